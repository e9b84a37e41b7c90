"""The sampler's tables and the primitives of its law, against rational and 60-digit arithmetic."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from core.kernel.makers import make_design, make_sampler
from quietbit.design.table import Design, DesignSpec, exact_row
from quietbit.kernel import sampler as law
from quietbit.kernel.reference import thresholds
from quietbit.kernel.sampler import SAMPLING_ERROR, Gain, Sampler
from refusals import refuses

MODERATE = st.floats(-(2.0**80), 2.0**80).filter(lambda v: v == 0 or abs(v) > 2.0**-300)


@given(MODERATE, MODERATE)
def test_sums_and_products_lose_nothing(a, b):
    high, low = law.two_sum(a, b)
    assert Fraction(high) + Fraction(low) == Fraction(a) + Fraction(b)
    high, low = law.two_product(a, b)
    assert Fraction(high) + Fraction(low) == Fraction(a) * Fraction(b)


def test_constants():
    with mpmath.workdps(60):
        log2 = mpmath.log(2)
        stored = mpmath.mpf(law.LOG2_HIGH) + mpmath.mpf(law.LOG2_LOW)
        assert abs(stored - log2) < mpmath.mpf(2) ** -85
        assert float(1 / log2) == law.INVERSE_LOG2
    assert float(law.LOG2_HIGH * 2.0**33).is_integer()
    for exponent in (0, -1011):
        assert law.POWERS[law.POWER_OFFSET + exponent] == 2.0**exponent
    assert not law.POWERS.flags.writeable


def test_the_exponential_is_within_four_units():
    rng = np.random.default_rng(0)
    points = np.append(rng.uniform(-700, 0, 3000), -(10.0 ** rng.uniform(-20, 2.8, 3000)))
    points[:2] = 0.0, -700.0
    k, r = law.reduce_exponent(points, 0.0)
    assert np.all(np.abs(r) < 0.35)
    values = law.exponential(r) * law.POWERS[k.astype(np.int64) + law.POWER_OFFSET]
    with mpmath.workdps(50):
        for point, value in zip(points.tolist(), values.tolist(), strict=True):
            exact = mpmath.exp(mpmath.mpf(point))
            assert abs(mpmath.mpf(value) / exact - 1) < 4 * 2.0**-53


@given(st.floats(2.0**-1074, 1.0), st.floats(2.0**-500, 2.0**500))
def test_a_gain_is_the_product_in_two_doubles(factor, scale):
    first, second, high, low = map(Fraction, Gain.of(factor, scale))
    exact = Fraction(factor) * Fraction(scale)
    assert 1 <= high <= 2
    assert abs(first * second * (high + low) / exact - 1) < Fraction(1, 2**104)


@given(st.floats(-1e6, 1e6), st.floats(-400.0, 400.0), st.floats(-1e6, 1e6))
def test_log_weights_keep_a_hundred_bits(base, t, slope):
    tails = (base * 1e-17, slope * 1e-17, t * 1e-17)
    high, low = law.log_weight(base, tails[0], slope, tails[1], t, tails[2])
    exact = Fraction(base) + Fraction(tails[0])
    exact += (Fraction(slope) + Fraction(tails[1])) * (Fraction(t) + Fraction(tails[2]))
    size = abs(Fraction(base)) + abs(Fraction(slope) * Fraction(t))
    lost = abs(Fraction(high) + Fraction(low) - exact)
    assert lost <= size * Fraction(1, 2**98) + Fraction(1, 2**1000)


def exact_law(design, sampler, value, factor):
    """Probabilities by interpolating logarithms of the design, straight from the paper's
    definition.
    """
    n = len(design.probabilities)
    t = mpmath.mpf(sampler.scale) * mpmath.mpf(factor) * mpmath.mpf(value)
    t = min(max(t, mpmath.mpf(sampler.low) - 0.5), mpmath.mpf(sampler.high) - 0.5)
    place = (t + mpmath.mpf(1) / 2) * (n - 1)
    i = int(min(max(mpmath.floor(place), 0), n - 2))
    below, above = ([mpmath.log(p) for p in design.probabilities[i + k].tolist()] for k in (0, 1))
    logs = [a * (i + 1 - place) + b * (place - i) for a, b in zip(below, above, strict=True)]
    weights = [mpmath.exp(value - max(logs)) for value in logs]
    return [weight / sum(weights) for weight in weights]


def steep_design():
    """Neighbouring rows that have nothing in common: slopes in the ten thousands."""
    rng = np.random.default_rng(4)
    one = 1 / (1 + np.exp(15 * rng.normal(size=1000)))
    one = np.clip(one, 1e-15, 1 - 1e-15)  # smaller ones cannot sum to one with their partner
    rows = [exact_row(row) for row in np.stack([1 - one, one], axis=1)]
    return Design(DesignSpec(1000, 1, 40.0), np.stack(rows), np.array([0.0, 1.0]))


@pytest.mark.parametrize(
    ("design", "low", "high"),
    [
        (make_design(2, 1, 1.0), 0.0, 1.0),
        (make_design(2, 1, 30.0), 0.0, 1.0),
        (make_design(2, 4, 5.0), -0.75, 1.75),
        (make_design(8, 3, 5.0), 0.0, 1.0),
        (make_design(33, 3, 20.0), -0.25, 1.25),
        (make_design(2, 8, 10.0), 0.0, 1.0),
        (steep_design(), 0.0, 1.0),
    ],
)
def test_probabilities_are_within_the_sampling_error(design, low, high):
    sampler = Sampler.from_design(design, 0.7, low, high)
    rng = np.random.default_rng(1)
    few = design.alphabet.size > 16  # 256 symbols take sixty digits each
    n = sampler.levels
    at_levels = (rng.integers(0, n, 1 if few else 10) / (n - 1) - 0.5) / 0.7
    anywhere = rng.uniform(-2, 2, 1 if few else 25)
    extreme = [0.0, 1e300] if few else [0.0, 5e-324, 1e-9, 1.0, -1.0, 1e300]
    values = np.concatenate([anywhere, extreme, at_levels])
    upper, lower = thresholds(sampler, values, Gain.of(0.99, sampler.scale))
    worst = mpmath.mpf(0)
    with mpmath.workdps(60):
        for row, value in enumerate(values.tolist()):
            edges = [int(u) * 2**48 + int(v) for u, v in zip(upper[row], lower[row], strict=True)]
            assert edges == sorted(edges)
            sampled = np.diff([0, *edges, 2**64]).tolist()
            exact = exact_law(design, sampler, value, 0.99)
            off = [abs(mpmath.mpf(a) / 2**64 - b) for a, b in zip(sampled, exact, strict=True)]
            worst = max(worst, *off)
    assert worst < SAMPLING_ERROR
    assert worst < 2.0**-50  # the proof allows 21 units; what is reached is a few


def test_tables_are_pairs_and_read_only():
    sampler = make_sampler(5, 3, 4.0)
    assert sampler.base.shape == sampler.slope_tail.shape == (4, 8)
    assert np.all(np.abs(sampler.base_tail) <= 2.0**-53 * np.abs(sampler.base))
    for table in (sampler.base, sampler.slope, sampler.base_tail, sampler.slope_tail):
        assert not table.flags.writeable
        assert not table[:, 0].any()
    assert sampler.t_range == (-0.5, 0.5)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"scale": 0.0}, "scale"),
        ({"scale": np.nan}, "scale"),
        ({"scale": np.inf}, "scale"),
        ({"low": np.nan}, "low"),
        ({"low": 2.0}, "low"),
        ({"low": -np.inf}, "low"),
        ({"high": 1e9}, "high"),
        ({"base": np.ones((2, 2))}, "column 0 of base"),
        ({"slope": np.zeros((2, 3))}, "shape of slope"),
        ({"slope": np.array([[0, np.nan]] * 2)}, "largest entry of slope"),
        ({"bits": 9}, "bits"),
    ],
)
def test_hypotheses_are_checked(change, name):
    with refuses(name):
        evolve(make_sampler(3, 1, 1.0), **change)
