"""Rows that all clients of a round keep: they cost what own rows cost, whichever they are."""

import pytest

from quietbit import Adjacency, Ball, Norm, calibrate

BALL = Ball(Norm.L2, 3000)


@pytest.mark.parametrize(("mechanism", "keep"), [("vmvu", None), ("imvu", 512), ("gaussian", 512)])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_shared_rows_cost_what_own_rows_cost(mechanism, keep, adjacency):
    given = {
        "ball": BALL,
        "epsilon": 3.0,
        "delta": 1e-5,
        "adjacency": adjacency,
        "releases": 2,
        "coordinates": keep,
    }
    own, shared = (calibrate(mechanism, **given, rows=rows) for rows in ("own", "shared"))
    assert own.guarantee == shared.guarantee
    costs = {
        (one.privacy(adjacency) * 2).epsilon(1e-5)
        for one in (
            own.mechanism,
            *(shared.mechanism.for_round(b"run", number) for number in (0, 1, 77)),
        )
    }
    assert len(costs) == 1
    assert shared.mechanism.for_round(b"run", 1) != shared.mechanism.for_round(b"run", 2)
