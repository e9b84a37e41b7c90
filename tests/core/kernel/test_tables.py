"""The float32 stand-ins stay within the margins they claim."""

from __future__ import annotations

import numpy as np
import pytest

from core.kernel.makers import make_design, make_sampler
from quietbit.kernel.reference import ReferenceKernel, cumulative
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.sampler import Sampler
from quietbit.kernel.select import select
from quietbit.kernel.tables import UNDECIDED, cell_table, threshold_plan

SAMPLERS = [
    make_sampler(2, 1, 1.0),
    make_sampler(2, 1, 5.0),
    make_sampler(2, 1, 0.1, 0.5, 0.3, 0.9),
    make_sampler(2, 3, 6.0, 0.5, -0.5, 1.5),
    make_sampler(7, 2, 8.0),
    make_sampler(100, 1, 10.0),
]


def points(sampler: Sampler) -> np.ndarray:
    low, high = sampler.t_range
    return np.sort(np.random.default_rng(0).uniform(low, high, 20_000))


@pytest.mark.parametrize("index", range(len(SAMPLERS)))
def test_lines_miss_by_less_than_the_margin(index: int) -> None:
    sampler = SAMPLERS[index]
    table, t = cell_table(sampler), points(sampler)
    exact = 65536 * cumulative(sampler, t, np.zeros_like(t))
    place = t * table.inverse + table.offset
    cell = place.astype(np.int64)
    assert cell.min() >= 0
    assert cell.max() < len(table.start)
    part = (place - cell).astype(np.float32)[:, None]
    line = table.start[cell] + table.step[cell] * part
    assert np.abs(line + 0.5 - exact).max() <= table.half - 0.5


@pytest.mark.parametrize("index", range(len(SAMPLERS)))
def test_the_look_up_answers_only_when_every_word_agrees(index: int) -> None:
    sampler = SAMPLERS[index]
    table, t = cell_table(sampler), points(sampler)
    scaled = 65536 * cumulative(sampler, t, np.zeros_like(t))
    cell = (t * table.inverse + table.offset).astype(np.int64)
    rng = np.random.default_rng(1)
    words = rng.integers(0, 65536, t.size)
    least = (words[:, None] >= scaled).sum(axis=1)
    most = (words[:, None] + 1 > scaled).sum(axis=1)
    column = words >> 8
    said = table.code[cell, column]
    sure = said != UNDECIDED
    assert np.mean(sure) > 0.5
    np.testing.assert_array_equal(said[sure], least[sure])
    np.testing.assert_array_equal(said[sure], most[sure])
    assert np.all(table.lowest[cell, column] <= least)
    assert np.all(table.highest[cell, column] >= most)


@pytest.mark.parametrize("beta", [1e-2, 1e-3, 1e-6])
@pytest.mark.parametrize("levels", [3, 5])
def test_a_kink_inside_a_short_range_needs_no_polynomial(levels: int, beta: float) -> None:
    """High powers of a short reach have coefficients that float32 cannot hold: cells serve, and
    codes are right.
    """
    sampler = Sampler.from_design(
        make_design(levels, 1, 0.5), beta / 2, 0.5 - beta / 2, 0.5 + beta / 2
    )
    plan = threshold_plan(sampler)
    assert plan.coefficients.shape[1] > 1 or np.all(np.isfinite(plan.coefficients))
    inputs = np.random.default_rng(1).normal(size=3001).astype(np.float32)
    expected = ReferenceKernel().sample(sampler, inputs, seeded_rng(1))
    np.testing.assert_array_equal(select("cpu").sample(sampler, inputs, seeded_rng(1)), expected)
