import numpy as np
import pytest

import quietbit
from plans import flat_plan
from quietbit.federation.simulate.problem import LocalPlan, Training, clip_factors, clip_rows
from quietbit.mechanism.ball import Ball, Norm

PLAN = flat_plan("none", clip=1.0, adjacency="zero-out", norm="l1")


@pytest.mark.parametrize("norm", list(Norm))
@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 1e6])
def test_clipped_rows_lie_in_the_ball_exactly(norm, scale):
    rng = np.random.default_rng(3)
    rows = (rng.standard_normal((40, 501)) * scale).astype(np.float32)
    rows[0] = 0
    before = rows.copy()
    clip_rows(rows, norm, 0.3)
    ball = Ball(norm, 501)
    for row, old in zip(rows, before, strict=True):
        assert ball.contains(row.astype(np.float64) / 0.3)
        if ball.contains(old.astype(np.float64) * 1.00001 / 0.3):
            np.testing.assert_array_equal(row, old)
        else:
            assert np.linalg.norm(row.astype(np.float64), norm.order) > 0.3 * (1 - 1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_refused(bad):
    rows = np.zeros((2, 5), dtype=np.float32)
    rows[1, 2] = bad
    with pytest.raises(quietbit.InvalidParameter, match="finite"):
        clip_rows(rows, Norm.L2, 1.0)
    with pytest.raises(quietbit.InvalidParameter, match="finite"):
        clip_factors([1.0, bad], 1.0)


@pytest.mark.parametrize(
    "given",
    [
        {"clip": 0.0},
        {"clip": np.nan},
        {"clip": 1e-30},
        {"steps": 0},
        {"rate": -1.0},
        {"unit": "sample", "steps": 2},
    ],
)
def test_plans_that_make_no_sense_are_refused(given):
    with pytest.raises(quietbit.InvalidParameter):
        LocalPlan(**{"norm": Norm.L2, "clip": 1.0, **given})


def test_scores_come_where_asked_and_at_the_end():
    training = Training(0.1, 10, evaluate_at=(2, 5))
    assert [t for t in range(1, 11) if training.evaluated(t)] == [2, 5, 10]
    every = Training(0.1, 10, evaluate_every=4)
    assert [t for t in range(1, 11) if every.evaluated(t)] == [4, 8, 10]


def test_clients_take_their_part_from_both():
    assert Training(0.1, 10, local_steps=3, local_rate=0.2).local(PLAN) == LocalPlan(
        Norm.L1, 1.0, steps=3, rate=0.2
    )


@pytest.mark.parametrize(
    ("given", "mention"),
    [
        ({"lr": float("nan")}, "lr"),
        ({"rounds": 0}, "rounds"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": float("nan")}, "momentum"),
        ({"evaluate_at": (11,)}, "evaluate_at"),
        ({"evaluate_every": -1}, "evaluate_every"),
        ({"local_steps": 0}, "local steps"),
        ({"local_rate": 0.0}, "local rate"),
    ],
)
def test_refusals(given, mention):
    with pytest.raises(quietbit.InvalidParameter, match=mention):
        Training(**{"lr": 0.1, "rounds": 10, **given})
