from __future__ import annotations

import math

import numpy as np
import pytest

from core.exact.privacy_kit import flat
from core.mechanism.makers import design, table
from quietbit import Ball, Norm
from quietbit.kernel.rng import seeded_rng
from quietbit.target import Adjacency
from quietbit.wire.payload import Payload
from quietbit.wire.uplink import Uplink
from quietbit_lab.baseline.dithered import DitheredMVU
from quietbit_lab.baseline.dithered_cost import dithered_l1_cost, dithered_l2_cost
from refusals import refuses


@pytest.mark.parametrize("levels", [2, 3, 4, 9])
def test_the_mean_is_linear_for_an_unbiased_design(levels: int) -> None:
    mechanism = DitheredMVU(design(levels, 1, 2.0), Ball(Norm.L2, 4))
    for value in np.linspace(-1.0, 1.0, 11):
        assert mechanism.expectation(value) == pytest.approx(value, abs=1e-9)


def test_at_a_level_the_law_is_the_row() -> None:
    mechanism = DitheredMVU(table(5, 2, 2.0), Ball(Norm.L1, 4))
    for i, x in enumerate(np.linspace(0, 1, 5)):
        assert np.allclose(
            mechanism.distribution(2 * x - 1), mechanism.design.probabilities[i], rtol=1e-12
        )


def test_an_extreme_coordinate_stays_on_the_outermost_level() -> None:
    """At clip 0.7 scaling rounds; the code of a boundary coordinate must follow the last row."""
    mechanism = DitheredMVU(design(4, 1, 20.0), Ball(Norm.L2, 1))
    uplink, rng = Uplink(mechanism, clip=0.7), seeded_rng(1)
    codes = [
        int(Payload.from_bytes(uplink.send(np.array([0.7]), rng)).codes()[0]) for _ in range(200)
    ]
    assert set(codes) == {1}  # the other symbol has probability below 1e-3 here
    assert mechanism.design.probabilities[-1, 0] < 5e-3


def test_wrong_fields_are_refused() -> None:
    with refuses("design"):
        DitheredMVU(None, Ball(Norm.L2, 1))  # type: ignore[arg-type]
    with refuses("ball"):
        DitheredMVU(design(), math.pi)  # type: ignore[arg-type]


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_constant_table_costs_almost_nothing(adjacency: Adjacency) -> None:
    assert dithered_l1_cost(flat(3, 2), 1.0, adjacency).pure_epsilon() < 1e-12
    assert dithered_l2_cost(flat(3, 2), 1.0, adjacency).rdp(2.0) < 1e-11
