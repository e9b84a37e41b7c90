"""What a device decides in float32 is what the exact thresholds decide, within the stated margins."""

import numpy as np
import pytest

from core.kernel.makers import make_design, make_sampler
from core.kernel.operations import sampled
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.sampler import Sampler
from quietbit.kernel.select import select
from quietbit.kernel.tables import UNDECIDED, cell_table, scaled_cumulative, threshold_plan

SAMPLERS = {
    "mild": make_sampler(2, 1, 1.0),
    "steeper": make_sampler(2, 1, 3.0),
    "a high degree": make_sampler(2, 1, 5.0),
    "a short range": make_sampler(2, 1, 5.0, low=0.25, high=0.75),
    "flat": make_sampler(2, 1, 0.1, low=0.3, high=0.9),
    "too steep": make_sampler(2, 1, 30.0),
    "two bits": make_sampler(2, 2, 1.0),
    "three bits": make_sampler(2, 3, 6.0, low=-0.5, high=1.5),
    "four bits": make_sampler(2, 4, 2.0),
    "five levels": make_sampler(5, 1, 2.0, low=-0.3, high=1.3),
    "five levels, four bits": make_sampler(5, 4, 6.0, low=-0.3, high=1.3),
    "seven levels": make_sampler(7, 2, 8.0),
    "a hundred levels": make_sampler(100, 1, 10.0),
    "a wide clamp": make_sampler(3, 2, 2.0, low=-2000.0, high=3000.0),
    "one point": make_sampler(2, 1, 1.0, low=0.5, high=0.5),
}
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)


def points(sampler, beyond=0.0):
    """Places in the range, and as far beyond it as is asked; and what 65,536 words decide there."""
    low, high = sampler.t_range
    t = np.random.default_rng(0).uniform(low - beyond, high + beyond, 20_000)
    t = np.append(t, np.linspace(low, high, 997)).astype(np.float32)
    return t, scaled_cumulative(sampler, np.clip(t.astype(np.float64), low, high))


def cells_of(sampler):
    """The table, the place of every point in it, and the exact thresholds."""
    t, exact = points(sampler)
    table = cell_table(sampler)
    place = np.clip(t.astype(np.float64), *sampler.t_range) * table.inverse + table.offset
    return table, place, exact


@every_sampler
def test_lines_miss_by_less_than_the_margin(sampler):
    table, place, exact = cells_of(sampler)
    cell = place.astype(np.int64)
    assert 0 <= cell.min() <= cell.max() < len(table.start)
    part = (place - cell).astype(np.float32)[:, None]
    line = table.start[cell] + table.step[cell] * part
    assert np.abs(line + 0.5 - exact).max() <= table.half - 0.5


@every_sampler
def test_the_look_up_answers_only_when_every_word_agrees(sampler):
    table, place, exact = cells_of(sampler)
    words = np.random.default_rng(1).integers(0, 65536, place.size)
    least = (words[:, None] >= exact).sum(axis=1)
    most = (words[:, None] + 1 > exact).sum(axis=1)
    where = place.astype(np.int64), words >> 8
    said = table.code[where]
    sure = said != UNDECIDED
    assert np.mean(sure) > 0.5
    np.testing.assert_array_equal(said[sure], least[sure])
    np.testing.assert_array_equal(said[sure], most[sure])
    assert np.all(table.lowest[where] <= least)
    assert np.all(table.highest[where] >= most)


def device_places(plan, t, low, high):
    """The argument of a polynomial as a device computes it, every operation rounded to float32."""
    p = t * np.float32(plan.rate) + np.float32(plan.offset)
    return np.clip(p, np.float32(low), np.float32(high))


def lines(plan, t):
    """G_k - 1/2 as a device computes it; NaN where it decides nothing."""
    p = device_places(plan, t, plan.lowest, plan.highest)
    cell = np.zeros(t.size, np.int64)
    if plan.coefficients.shape[1] > 1:
        cell = p.astype(np.int64)
        p = p - cell.astype(np.float32)
    elif plan.centred:
        p = np.float32(2) * p - np.float32(1)
    value = np.zeros((t.size, plan.coefficients.shape[2]), np.float32)
    for row in plan.coefficients[::-1]:
        value = value * p[:, None] + row[cell]
    return value[:, :-1].astype(np.float64)


@every_sampler
def test_the_margin_of_polynomials_holds(sampler):
    plan = threshold_plan(sampler)
    t, exact = points(sampler, beyond=0.1)
    off = np.abs(lines(plan, t) - (exact - 0.5))
    assert np.nanmax(off, initial=0.0) <= plan.half - 0.5
    if plan.coefficients.shape[1] == 1:
        assert plan.coefficients.shape[0] % 2 == 0
        assert not np.isnan(off).any()
        assert np.nanmax(off) > (plan.half - 0.5) / 50  # the bound is not idle


@pytest.mark.parametrize("name", ["mild", "steeper", "a short range"])
def test_one_bit_by_rounding(name):
    """V from float32 rounding at 2^23 lies where the docstring says, for every input tried; a CPU
    cuts it off instead.
    """
    plan = threshold_plan(SAMPLERS[name])
    t, exact = points(SAMPLERS[name], beyond=0.1)
    p = device_places(plan, t, 0, 1)
    p = np.float32(2) * p - np.float32(1) if plan.centred else p
    value = np.full(t.size, plan.coefficients[-1, 0, 0])
    for row in plan.coefficients[-2:0:-1, 0, 0]:
        value = value * p + row
    rounded = (value * p + np.float32(plan.lowered + 2.0**23)).view(np.uint32).astype(np.int64)
    cut = (value * p + np.float32(plan.lowered + 0.5)).astype(np.int64)
    for found in (rounded - 0x4B000000, cut):
        assert found.min() >= 0
        assert (found <= exact[:, 0]).all()
        assert (exact[:, 0] <= found + plan.width + 1).all()


def test_mild_laws_are_one_polynomial_and_steep_ones_cells():
    plans = {name: threshold_plan(SAMPLERS[name]) for name in ("mild", "four bits", "too steep")}
    pieces = {name: plan.coefficients.shape[1] > 1 for name, plan in plans.items()}
    assert pieces == {"mild": False, "four bits": False, "too steep": True}
    with pytest.raises(ValueError, match="read-only"):
        plans["mild"].coefficients[0] = 0


def test_one_bit_is_rounded_where_that_can_decide_it():
    found = {
        name for name, sampler in SAMPLERS.items() if threshold_plan(sampler).lowered is not None
    }
    assert found >= {"mild", "steeper", "a short range"}
    assert not found & {"too steep", "five levels", "one point", "two bits"}


@pytest.mark.parametrize("beta", [1e-2, 1e-3, 1e-6])
@pytest.mark.parametrize("levels", [3, 5])
def test_a_kink_inside_a_short_range_needs_no_polynomial(levels, beta):
    """High powers of a short reach have coefficients that float32 cannot hold: cells serve, and
    codes are right.
    """
    low, high = 0.5 - beta / 2, 0.5 + beta / 2
    sampler = Sampler.from_design(make_design(levels, 1, 0.5), beta / 2, low, high)
    plan = threshold_plan(sampler)
    assert plan.coefficients.shape[1] > 1 or np.all(np.isfinite(plan.coefficients))
    inputs = np.random.default_rng(1).normal(size=3001).astype(np.float32)
    found = sampled(select("cpu"), sampler, inputs)
    assert found == sampled(ReferenceKernel(), sampler, inputs)
