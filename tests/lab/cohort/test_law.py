"""The exact one-bit laws against 40-digit arithmetic, and the margins of their float32 stand-ins."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from quietbit.kernel.sampler import SAMPLING_ERROR
from quietbit_lab.cohort.law import BitLaw, exact_bits, tail_table, thresholds
from quietbit_lab.cohort.plan import CAP, bit_plan

TAILS = {
    BitLaw.LOGISTIC: lambda t: 1 / (1 + mpmath.exp(t)),
    BitLaw.NORMAL: lambda t: mpmath.ncdf(-t),
    BitLaw.LAPLACE: lambda t: mpmath.exp(-t) / 2 if t >= 0 else 1 - mpmath.exp(t) / 2,
    BitLaw.UNIFORM: lambda t: min(max((1 - t) / 2, 0), 1),
}


@pytest.mark.parametrize("law", BitLaw)
def test_the_law_is_right_to_2_to_the_minus_52(law):
    rng = np.random.default_rng(1)
    t = np.concatenate(
        [3 * rng.normal(size=100), rng.uniform(-50, 50, size=50), [0.0, -0.25, 1e-30, 48.0, 60.0, -48.0]]
    )
    upper, lower = thresholds(law, t, 1000.0)
    with mpmath.workdps(40):
        for value, whole, rest in zip(t.tolist(), upper.tolist(), lower.tolist(), strict=True):
            found = (whole + mpmath.mpf(rest) / 2**48) / 65536
            assert abs(found - TAILS[law](mpmath.mpf(value))) < 2.0**-52 < SAMPLING_ERROR


@pytest.mark.parametrize("law", BitLaw)
def test_clamping_nan_and_symmetry(law):
    far, edge = (thresholds(law, np.array([-x, np.nan, x]), 2.0) for x in (1e30, 2.0))
    for one, other in zip(far, edge, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one[0] == one[1]
    assert thresholds(law, np.zeros(1), 1.0)[0][0] == 32768
    assert not tail_table(law).flags.writeable


def test_bits_at_the_threshold():
    upper, lower = thresholds(BitLaw.NORMAL, np.array([0.3]), 1.0)
    t = np.full(4, 0.3)
    primary = upper[0] + np.array([-1, 0, 0, 1])
    ties = lower[0] + np.array([10, -1, 0, -10])
    np.testing.assert_array_equal(exact_bits(BitLaw.NORMAL, t, 1.0, primary, ties), [False, False, True, True])


@pytest.mark.parametrize("law", BitLaw)
@pytest.mark.parametrize("reach", [0.01, 0.25, 1.0, 2.0, 4.0, 20.0, 1000.0])
def test_plans_keep_their_margin(law, reach):
    """In float32, step by step, on points that the fit did not see."""
    plan = bit_plan(law, reach)
    t = np.random.default_rng(2).uniform(-1.1, 1.1, size=20000) * min(reach, 2 * CAP[law])
    one, half = np.float32(1.0), np.float32(0.5)
    f = np.clip(t.astype(np.float32) * np.float32(plan.rate) + half, np.float32(0), one)
    z = np.float32(2) * f - one
    if plan.form == "odd":
        q = np.zeros_like(z)
        for value in reversed(plan.coefficients):
            q = q * (z * z) + np.float32(value)
        v = np.float32(32768) + q * z
    elif plan.form == "logistic":
        v = np.float32(65536) / (one + np.exp2(z * np.float32(plan.turns)))
    else:
        side = np.float32(32768) * (one - np.exp2(-np.abs(z) * np.float32(plan.turns)))
        v = np.float32(32768) - np.copysign(side, z)
    upper, lower = thresholds(law, t.astype(np.float32).astype(np.float64), reach)
    off = np.abs(v.astype(np.float64) - (upper + lower / 2.0**48))
    assert off.max() < plan.margin + 2.0**-7  # v itself is rounded here, to 2^-8 at most
    assert plan.width >= 1
