"""Lemma 1 and Theorem 1: the three L1 constants against brute force and closed forms."""

import itertools
import math

import numpy as np
import pytest

from core.exact.privacy_kit import (
    law,
    max_ratio,
    one_bit,
    own_epsilon,
    product_law,
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
RANGES = [
    (0.0, 1.0),
    (-3.5, 4.5),
    (0.3, 0.62),
]  # beta = 1, beta = 8 unclamped, beta < 1 and lopsided


def log_laws(design, points):
    return np.array([[float(p) for p in map(math.log, law(design, x))] for x in points])


@pytest.mark.parametrize("design", DESIGNS, ids=range(len(DESIGNS)))
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_brute_force_never_exceeds_the_constants_and_comes_close(design, low, high):
    points = np.unique(
        np.concatenate(
            (np.linspace(low, high, 241), [0.5 + 1e-7, 0.5 - 1e-7, low + 1e-7, high - 1e-7])
        )
    )
    logs = log_laws(design, points)
    ratio = np.abs(logs[:, None] - logs[None]).max(axis=2)
    apart = np.abs(points[:, None] - points[None])
    pairs = apart > 1e-8
    lipschitz = lipschitz_upper(design, low, high)
    assert (ratio[pairs] <= lipschitz * apart[pairs] + 1e-13).all()
    zero_out = zero_out_constant_upper(design, low, high)
    away = np.abs(points - 0.5) > 1e-8
    centre = np.abs(logs - log_laws(design, [0.5])).max(axis=1)[away] / np.abs(points[away] - 0.5)
    assert centre.max() <= zero_out * (1 + 1e-7)
    assert centre.max() >= zero_out * 0.97  # the grid is coarse, the constant is not
    assert zero_out <= lipschitz <= paper_constant_upper(design, low, high)


@pytest.mark.parametrize("design", DESIGNS, ids=range(len(DESIGNS)))
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_lipschitz_constant_is_attained(design, low, high):
    ends = [k / (design.spec.input_levels - 1) for k in range(design.spec.input_levels)]
    ends = [low, *(e for e in ends if low < e < high), high]
    steepest = 0.0
    for left, right in itertools.pairwise(ends):
        step = 1e-6 * (right - left)
        for a, b in ((left, left + step), (right - step, right)):
            steepest = max(steepest, float(max_ratio(law(design, a), law(design, b))) / (b - a))
    assert lipschitz_upper(design, low, high) == pytest.approx(steepest, rel=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_zero_out_constant_against_a_dense_search(seed):
    design = rough(5 + seed % 4, 3, 4.0 + 3 * seed, 100 + seed)
    points = np.setdiff1d(np.linspace(-1, 2, 1001), [0.5])
    centre = np.abs(log_laws(design, points) - log_laws(design, [0.5])).max(axis=1) / np.abs(
        points - 0.5
    )
    constant = zero_out_constant_upper(design, -1.0, 2.0)
    assert centre.max() <= constant * (1 + 1e-10)
    assert centre.max() >= constant * 0.995


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 20.0])
def test_one_bit_closed_form(epsilon):
    design = sigmoid_bit(epsilon)
    epsilon = own_epsilon(
        design
    )  # rows that sum to one exactly move a rare symbol by up to 1e-8 of itself
    exact = epsilon * (1 + math.tanh(epsilon / 2))
    assert lipschitz_upper(design) == pytest.approx(exact, rel=1e-9)
    assert paper_constant_upper(design) == pytest.approx(exact, rel=1e-9)
    assert lipschitz_upper(design) >= exact * (1 - 1e-15)


def test_the_paper_constant_on_the_unit_interval_does_not_cover_beta_8():
    design = rough(4, 3, 6.0, 9)
    wide = max(float(max_ratio(law(design, x), law(design, x + 0.01))) / 0.01 for x in (-3.5, 4.49))
    assert wide > lipschitz_upper(design, 0.0, 1.0)
    assert wide <= lipschitz_upper(design, -3.5, 4.5)


def test_vectors_add_up():
    design = rough(4, 2, 6.0, 5)
    x, other = (0.1, 0.8, 0.5), (0.3, 0.75, 0.2)
    joint = [product_law([law(design, c) for c in point]) for point in (x, other)]
    distance = sum(abs(a - b) for a, b in zip(x, other, strict=True))
    assert float(max_ratio(*joint)) <= lipschitz_upper(design) * distance


@pytest.mark.parametrize("design", DESIGNS, ids=range(len(DESIGNS)))
def test_smallest_probability(design):
    least = min(float(min(law(design, x))) for x in np.linspace(-1.5, 2.5, 401))
    bound = smallest_probability_lower(design, -1.5, 2.5)
    assert 0 < bound <= least
    assert bound == pytest.approx(least, rel=1e-9)
