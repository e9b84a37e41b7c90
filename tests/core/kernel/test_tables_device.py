"""Polynomial thresholds: what is decided from them is what the exact thresholds decide, by a
margin.
"""

from __future__ import annotations

import numpy as np
import pytest

from core.kernel.makers import make_sampler
from quietbit.kernel.tables import scaled_cumulative, threshold_plan

CASES = [
    (2, 1, 1.0, 0.0, 1.0),
    (2, 1, 3.0, 0.0, 1.0),
    (2, 1, 5.0, 0.25, 0.75),
    (2, 1, 30.0, 0.0, 1.0),
    (5, 1, 2.0, -0.3, 1.3),
    (2, 2, 1.0, 0.0, 1.0),
    (2, 4, 2.0, 0.0, 1.0),
    (5, 4, 6.0, -0.3, 1.3),
    (3, 2, 2.0, -2000.0, 3000.0),
    (2, 1, 1.0, 0.5, 0.5),
]


def lines(plan, t):
    """G_k - 1/2 as a device computes it, in float32 with every operation rounded; NaN where it
    decides nothing.
    """
    p = np.clip(
        np.float32(t) * np.float32(plan.rate) + np.float32(plan.offset),
        np.float32(plan.lowest),
        np.float32(plan.highest),
    )
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


@pytest.mark.parametrize("case", CASES)
def test_the_margin_holds(case):
    levels, bits, epsilon, low, high = case
    sampler = make_sampler(levels, bits, epsilon, 0.5, low, high)
    plan = threshold_plan(sampler)
    rng = np.random.default_rng(0)
    t = np.unique(
        np.concatenate(
            [rng.uniform(low - 0.6, high - 0.4, 20_000), np.linspace(low - 0.5, high - 0.5, 997)]
        )
    )
    t = t.astype(np.float32)
    exact = scaled_cumulative(sampler, np.clip(t.astype(np.float64), *sampler.t_range))
    off = np.abs(lines(plan, t) - (exact - 0.5))
    assert np.nanmax(off, initial=0.0) <= plan.half - 0.5
    if plan.coefficients.shape[1] == 1:
        assert plan.coefficients.shape[0] % 2 == 0
        assert not np.isnan(off).any()
        assert np.nanmax(off) > (plan.half - 0.5) / 50  # the bound is not idle


@pytest.mark.parametrize("case", [case for case in CASES if case[1] == 1])
def test_one_bit_by_rounding(case):
    """V from float32 rounding at 2^23 lies where the docstring says, for every input tried."""
    levels, bits, epsilon, low, high = case
    sampler = make_sampler(levels, bits, epsilon, 0.5, low, high)
    plan = threshold_plan(sampler)
    if plan.lowered is None:
        assert epsilon > 20 or levels > 2 or low == high
        return
    t = np.random.default_rng(1).uniform(low - 0.6, high - 0.4, 50_000).astype(np.float32)
    p = np.clip(t * np.float32(plan.rate) + np.float32(plan.offset), np.float32(0), np.float32(1))
    p = np.float32(2) * p - np.float32(1) if plan.centred else p
    value = np.full(t.size, plan.coefficients[-1, 0, 0])
    for row in plan.coefficients[-2:0:-1, 0, 0]:
        value = value * p + row
    v = (value * p + np.float32(plan.lowered + 2.0**23)).view(np.uint32).astype(
        np.int64
    ) - 0x4B000000
    exact = scaled_cumulative(sampler, np.clip(t.astype(np.float64), *sampler.t_range))[:, 0]
    cut = (value * p + np.float32(plan.lowered + 0.5)).astype(np.int64)  # as a CPU has it
    for found in (v, cut):
        assert found.min() >= 0
        assert (found <= exact).all()
        assert (exact <= found + plan.width + 1).all()


def test_mild_laws_are_one_polynomial_and_steep_ones_cells():
    assert threshold_plan(make_sampler(2, 4, 1.0)).coefficients.shape[1] == 1
    assert threshold_plan(make_sampler(2, 1, 30.0)).coefficients.shape[1] > 1
    assert threshold_plan(make_sampler(2, 1, 1.0)).lowered is not None
    with pytest.raises(ValueError, match="read-only"):
        threshold_plan(make_sampler(2, 1, 1.0)).coefficients[0] = 0
