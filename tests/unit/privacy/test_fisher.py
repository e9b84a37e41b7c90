import math

import numpy as np
import pytest

from exact.privacy_kit import flat, rough
from quietbit._validate import InvalidParameter
from quietbit.design.rounding import exact_row
from quietbit.design.spec import DesignSpec
from quietbit.design.table import Design
from quietbit.privacy.fisher import fisher_information, fisher_supremum_upper, fisher_upper_between


def variance(start, slope, x):
    weights = np.exp(start + slope * x - (start + slope * x).max())
    weights /= weights.sum()
    return float(weights @ (slope - weights @ slope) ** 2)


def dense(start, slope, low, high):
    values = [variance(start, slope, x) for x in np.linspace(low, high, 3001)]
    centre = np.linspace(low, high, 3001)[int(np.argmax(values))]
    step = (high - low) / 3000
    near = np.clip(np.linspace(centre - step, centre + step, 2001), low, high)
    return max(variance(start, slope, x) for x in near)


@pytest.mark.parametrize("seed", range(20))
def test_within_a_millionth_above_a_dense_search(seed):
    rng = np.random.default_rng(seed)
    symbols = int(rng.integers(2, 40))
    start, slope = rng.normal(0, 5, symbols), rng.normal(0, 10 ** rng.uniform(-2, 1.3), symbols)
    reach = 60 / np.ptp(slope)
    low, high = -reach * rng.uniform(), reach * rng.uniform()
    best = dense(start, slope, low, high)
    assert best <= fisher_upper_between(start, slope, low, high) <= best * (1 + 1.2e-6)
    assert fisher_upper_between(start, slope, -math.inf, math.inf) >= best


def test_the_supremum_can_lie_far_outside():
    """Two symbols that only meet at x = 200: a search near [0, 1] would miss it."""
    start, slope = np.array([0.0, -400.0]), np.array([0.0, 2.0])
    assert fisher_upper_between(start, slope, -math.inf, math.inf) == pytest.approx(1.0, rel=1e-9)
    assert fisher_upper_between(start, slope, 0.0, 1.0) < 1e-150


def test_nearly_equal_slopes_do_not_stretch_the_search():
    start, slope = np.array([0.0, 1.0, -3.0, 2.0]), np.array([-1.0, -1.0 + 1e-13, 1.0, 1.0 - 1e-9])
    assert fisher_upper_between(start, slope, -math.inf, math.inf) == pytest.approx(1.0, rel=1e-6)


def test_equal_symbols_change_nothing():
    base = rough(2, 1, 3.0, 0)
    table = np.repeat(base.probabilities, 2, axis=1) / 2
    double = Design(DesignSpec(2, 2, 5.0), np.stack([exact_row(row) for row in table]), np.arange(4.0))
    assert fisher_supremum_upper(double) == pytest.approx(fisher_supremum_upper(base), rel=1e-9)
    assert fisher_information(double, 0.3) == pytest.approx(fisher_information(base, 0.3), rel=1e-12)


def test_wide_alphabets():
    design = rough(2, 8, 40.0, 1)
    best = max(fisher_information(design, x) for x in np.linspace(-0.5, 1.5, 2001))
    assert best <= fisher_supremum_upper(design) <= best * 1.001


def test_a_constant_table_has_none():
    assert fisher_supremum_upper(flat(2, 2)) == 0
    assert fisher_information(flat(3, 2), 0.4) == 0


def test_refusals():
    with pytest.raises(InvalidParameter, match="Theorem 2"):
        fisher_supremum_upper(rough(3, 2, 1.0, 0))
    with pytest.raises(InvalidParameter, match="x must be"):
        fisher_information(rough(3, 2, 1.0, 0), math.nan)


@pytest.mark.parametrize("place", [30.0, 700.0, 5000.0])
def test_sharp_steps_far_from_each_other_are_found_on_both_sides(place):
    """Three symbols, the middle one dominant for long: I is tiny at m = 1/2 and 1/16 at two distant steps."""
    start, slope = np.array([-place, 0.0, -place]), np.array([-0.5, 0.0, 0.5])
    assert fisher_upper_between(start, slope, -math.inf, math.inf) == pytest.approx(1 / 16, rel=1e-6)
    tiny = fisher_upper_between(start, slope, -1.0, 1.0)
    exact = math.exp(-place) * 0.25 * (math.exp(0.5) + math.exp(-0.5))
    if place < 600:
        assert exact * (1 - 1e-9) <= tiny <= exact * (1 + 2e-6)
