"""Lemma 1 and Theorem 1: the three L1 constants against brute force and closed forms."""

import itertools
import math

import numpy as np
import pytest

from core.exact.privacy_kit import (
    law,
    log_laws,
    max_ratio,
    one_bit,
    own_epsilon,
    rough,
    sigmoid_bit,
)
from quietbit.privacy.divergence import (
    lipschitz_upper,
    smallest_probability_lower,
    zero_out_constant_upper,
)
from quietbit_lab.baseline.lemma_1 import paper_constant_upper

DESIGNS = [
    sigmoid_bit(1.5),
    one_bit(5.0, 6),
    rough(2, 3, 6.0, 0),
    rough(3, 2, 8.0, 1),
    rough(8, 3, 5.0, 2),
    rough(9, 4, 12.0, 3),
    rough(4, 3, 25.0, 4),
]
EVERY = pytest.mark.parametrize("design", DESIGNS, ids=range(len(DESIGNS)))
# beta = 1, beta = 8 unclamped, beta < 1 and lopsided
RANGES = pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.5, 4.5), (0.3, 0.62)])


def from_centre(design, points):
    """The largest change of a log-probability from the centre, per distance."""
    change = np.abs(log_laws(design, points) - log_laws(design, [0.5])).max(axis=1)
    return float((change / np.abs(points - 0.5)).max())


@EVERY
@RANGES
def test_brute_force_never_exceeds_the_constants_and_comes_close(design, low, high):
    near = (0.5 + 1e-7, 0.5 - 1e-7, low + 1e-7, high - 1e-7)
    points = np.setdiff1d(np.concatenate((np.linspace(low, high, 181), near)), [0.5])
    logs = log_laws(design, points)
    ratio = np.abs(logs[:, None] - logs[None]).max(axis=2)
    apart = np.abs(points[:, None] - points[None])
    lipschitz = lipschitz_upper(design, low, high)
    assert (ratio <= lipschitz * apart + 1e-13).all()
    zero_out = zero_out_constant_upper(design, low, high)
    # The grid is coarse, the constant is not.
    assert (
        from_centre(design, points) / (1 + 1e-7) <= zero_out <= from_centre(design, points) / 0.97
    )
    assert zero_out <= lipschitz <= paper_constant_upper(design, low, high)


@pytest.mark.parametrize("seed", range(2))
def test_zero_out_constant_against_a_dense_search(seed):
    design = rough(5 + 3 * seed, 3, 4.0 + 6 * seed, 100 + seed)
    best = from_centre(design, np.setdiff1d(np.linspace(-1, 2, 1001), [0.5]))
    constant = zero_out_constant_upper(design, -1.0, 2.0)
    assert best <= constant * (1 + 1e-10)
    assert best >= constant * 0.995


@EVERY
@RANGES
def test_lipschitz_constant_is_attained(design, low, high):
    levels = np.linspace(0, 1, design.spec.input_levels)
    ends = [low, *levels[(levels > low) & (levels < high)].tolist(), high]
    steepest = 0.0
    for left, right in itertools.pairwise(ends):
        step = 1e-6 * (right - left)
        for a, b in ((left, left + step), (right - step, right)):
            steepest = max(steepest, float(max_ratio(law(design, a), law(design, b))) / (b - a))
    assert lipschitz_upper(design, low, high) == pytest.approx(steepest, rel=1e-4)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 20.0])
def test_one_bit_closed_form(epsilon):
    design = sigmoid_bit(epsilon)
    # Rows that sum to one exactly move a rare symbol by up to 1e-8 of itself.
    own = own_epsilon(design)
    exact = own * (1 + math.tanh(own / 2))
    assert exact * (1 - 1e-15) <= lipschitz_upper(design) <= exact * (1 + 1e-9)
    assert paper_constant_upper(design) == pytest.approx(exact, rel=1e-9)


def test_the_paper_constant_on_the_unit_interval_does_not_cover_beta_8():
    design = rough(4, 3, 6.0, 9)
    wide = max(float(max_ratio(law(design, x), law(design, x + 0.01))) / 0.01 for x in (-3.5, 4.49))
    assert lipschitz_upper(design, 0.0, 1.0) < wide <= lipschitz_upper(design, -3.5, 4.5)


@EVERY
def test_smallest_probability(design):
    least = min(float(min(law(design, x))) for x in np.linspace(-1.5, 2.5, 201))
    bound = smallest_probability_lower(design, -1.5, 2.5)
    assert least * (1 - 1e-9) <= bound <= least
