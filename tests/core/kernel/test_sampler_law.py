"""The primitives of the law, against exact rational arithmetic and 60-digit numbers."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quietbit.kernel import sampler as law

MODERATE = st.floats(-(2.0**80), 2.0**80).filter(lambda v: v == 0 or abs(v) > 2.0**-300)


@given(MODERATE, MODERATE)
def test_sums_and_products_lose_nothing(a: float, b: float) -> None:
    high, low = law.two_sum(a, b)
    assert Fraction(high) + Fraction(low) == Fraction(a) + Fraction(b)
    high, low = law.two_product(a, b)
    assert Fraction(high) + Fraction(low) == Fraction(a) * Fraction(b)


def test_constants() -> None:
    with mpmath.workdps(60):
        log2 = mpmath.log(2)
        assert (
            abs(mpmath.mpf(law.LOG2_HIGH) + mpmath.mpf(law.LOG2_LOW) - log2) < mpmath.mpf(2) ** -85
        )
        assert float(1 / log2) == law.INVERSE_LOG2
    assert float(law.LOG2_HIGH * 2.0**33).is_integer()
    assert law.POWERS[law.POWER_OFFSET] == 1.0
    assert law.POWERS[law.POWER_OFFSET - 1011] == 2.0**-1011
    assert not law.POWERS.flags.writeable


def test_the_exponential_is_within_four_units() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate(
        [rng.uniform(-700, 0, 3000), -(10.0 ** rng.uniform(-20, 2.8, 3000)), [0.0, -700.0]]
    )
    k, r = law.reduce_exponent(points, 0.0)
    assert np.all(np.abs(r) < 0.35)
    values = law.exponential(r) * law.POWERS[k.astype(np.int64) + law.POWER_OFFSET]
    with mpmath.workdps(50):
        for point, value in zip(points.tolist(), values.tolist(), strict=True):
            exact = mpmath.exp(mpmath.mpf(point))
            assert abs(mpmath.mpf(value) / exact - 1) < 4 * 2.0**-53


@given(st.floats(2.0**-1074, 1.0), st.floats(2.0**-500, 2.0**500))
def test_a_gain_is_the_product_in_two_doubles(factor: float, scale: float) -> None:
    gain = law.Gain.of(factor, scale)
    exact = Fraction(factor) * Fraction(scale)
    stored = (
        Fraction(gain.first) * Fraction(gain.second) * (Fraction(gain.high) + Fraction(gain.low))
    )
    assert 1 <= gain.high <= 2
    assert abs(stored / exact - 1) < Fraction(1, 2**104)


@pytest.mark.parametrize("factor", [0.0, 1.0, 0.5])
def test_gains_of_round_numbers(factor: float) -> None:
    assert law.Gain.of(factor, 4.0).approximate() == 4 * factor


@given(st.floats(-1e6, 1e6), st.floats(-400.0, 400.0), st.floats(-1e6, 1e6))
def test_log_weights_keep_a_hundred_bits(base: float, t: float, slope: float) -> None:
    tails = (base * 1e-17, slope * 1e-17, t * 1e-17)
    high, low = law.log_weight(base, tails[0], slope, tails[1], t, tails[2])
    exact = Fraction(base) + Fraction(tails[0])
    exact += (Fraction(slope) + Fraction(tails[1])) * (Fraction(t) + Fraction(tails[2]))
    size = abs(Fraction(base)) + abs(Fraction(slope) * Fraction(t))
    assert abs(Fraction(high) + Fraction(low) - exact) <= size * Fraction(1, 2**98) + Fraction(
        1, 2**1000
    )
