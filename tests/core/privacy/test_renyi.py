"""Suprema of variances and of Rényi quotients: laws over designs, and the cells of the search;
`core/exact/test_privacy_renyi.py` holds the constants against 60 digits.
"""

import numpy as np
import pytest

from core.exact.privacy_kit import fisher_information, flat, law, renyi, rough, summing_to_one
from quietbit.design.table import Design, DesignSpec
from quietbit.privacy.cost import Cost
from quietbit.privacy.divergence import Segments, lipschitz_upper, zero_out_constant_upper
from quietbit.privacy.fisher import fisher_supremum_upper, variance_supremum_upper
from quietbit.privacy.renyi import RENYI_ACCURACY, RenyiConstant
from quietbit.privacy.renyi_cells import CrossCells, Problem, SameCells
from quietbit.target import Adjacency

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
ALPHAS = (1.0001, 1.01, 3.0, 50.0, 1000.0, 1e5)


def variances(start, slope, points):
    exponents = start + np.outer(points, slope)
    weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    means = weights @ slope
    return weights @ slope**2 - means**2


@pytest.mark.parametrize("seed", range(20))
def test_within_a_millionth_above_a_dense_search(seed):
    rng = np.random.default_rng(seed)
    symbols = int(rng.integers(2, 40))
    start, slope = rng.normal(0, 5, symbols), rng.normal(0, 10 ** rng.uniform(-2, 1.3), symbols)
    slope -= slope.mean()
    points = np.linspace(-100, 100, 3001) / np.ptp(slope)
    centre = points[np.argmax(variances(start, slope, points))]
    near = centre + np.linspace(-1, 1, 2001) * (points[1] - points[0])
    best = float(variances(start, slope, near).max())
    found = variance_supremum_upper(start, slope)
    assert best * (1 - 1e-13) <= found <= best * (1 + 1.2e-6)


@pytest.mark.parametrize(
    ("start", "slope", "supremum"),
    [
        # Two symbols that only meet at x = 200: a search near [0, 1] would miss it.
        ([0.0, -400.0], [0.0, 2.0], 1.0),
        ([0.0, 1.0, -3.0, 2.0], [-1.0, -1.0 + 1e-13, 1.0, 1.0 - 1e-9], 1.0),
        # The middle symbol is dominant for long: tiny at m = 1/2, 1/16 at two distant steps.
        ([-30.0, 0.0, -30.0], [-0.5, 0.0, 0.5], 1 / 16),
        ([-700.0, 0.0, -700.0], [-0.5, 0.0, 0.5], 1 / 16),
        ([-5000.0, 0.0, -5000.0], [-0.5, 0.0, 0.5], 1 / 16),
    ],
    ids=["far outside", "nearly equal slopes", "steps", "distant steps", "very distant steps"],
)
def test_the_supremum_can_lie_far_outside(start, slope, supremum):
    found = variance_supremum_upper(np.array(start), np.array(slope))
    assert found == pytest.approx(supremum, rel=1e-6)


def test_equal_symbols_change_nothing():
    base = rough(2, 1, 3.0, 0)
    table = summing_to_one(np.repeat(base.probabilities, 2, axis=1) / 2)
    double = Design(DesignSpec(2, 2, 5.0), table, np.arange(4.0))
    assert fisher_supremum_upper(double) == pytest.approx(fisher_supremum_upper(base), rel=1e-9)


def test_wide_alphabets():
    design = rough(2, 8, 40.0, 1)
    best = max(fisher_information(design, x) for x in np.linspace(-0.5, 1.5, 2001))
    assert best <= fisher_supremum_upper(design) <= best * 1.001


def uppers(design, adjacency, low=0.0, high=1.0):
    constant = RenyiConstant(design, low, high, adjacency)
    return np.array([constant.upper(alpha) for alpha in ALPHAS])


@pytest.mark.parametrize("adjacency", Adjacency)
def test_two_levels_never_lose_to_theorem_2(adjacency):
    design = rough(2, 3, 6.0, 0)
    theorem = np.array(ALPHAS) * fisher_supremum_upper(design) / 2
    assert np.all(uppers(design, adjacency) <= theorem * (1 + 1e-12))


@pytest.mark.parametrize("levels", [3, 6])
def test_zero_out_is_never_above_replace_one(levels):
    design = rough(levels, 2, 5.0, 1)
    zero_out = uppers(design, ZERO)
    assert np.all(zero_out <= uppers(design, REPLACE) * (1 + RENYI_ACCURACY))
    simple = np.array(ALPHAS) * zero_out_constant_upper(design) ** 2 / 2
    assert np.all(zero_out <= simple * (1 + 1e-12))


def test_too_many_levels_fall_back_on_simple_bounds():
    design = rough(300, 2, 5.0, 2)
    zero_out, replaced = (RenyiConstant(design, 0.0, 1.0, each).upper(4.0) for each in Adjacency)
    simple = 4.0 * lipschitz_upper(design) ** 2 / 2
    assert min(zero_out, replaced) < max(zero_out, replaced) <= simple * (1 + 1e-12)


def test_a_smaller_range_costs_no_more():
    design = rough(4, 2, 8.0, 3)
    small, large = uppers(design, REPLACE, 0.2, 0.8), uppers(design, REPLACE, -1.0, 2.0)
    assert np.all(small <= large * (1 + RENYI_ACCURACY))


@pytest.mark.parametrize(("low", "high"), [(1.1, 1.9), (2.0, 8.0), (20.0, 300.0)])
def test_moments_are_convex_in_the_order_up_to_the_accuracy(low, high):
    constant = RenyiConstant(rough(4, 2, 5.0, 4), 0.0, 1.0, REPLACE)
    first, middle, last = (
        (alpha - 1) * constant.upper(alpha) for alpha in (low, (low + high) / 2, high)
    )
    assert middle <= (first + last) / 2 * (1 + RENYI_ACCURACY)


def test_equal_constants_make_equal_costs():
    first, again = (RenyiConstant(rough(3, 2, 5.0, 4), 0.0, 1.0, ZERO) for _ in range(2))
    costs = Cost.per_square(first, 0.5) + Cost.per_square(again, 0.5)
    assert costs == Cost.per_square(first, 0.5) * 2
    assert first != RenyiConstant(rough(3, 2, 5.0, 4), 0.0, 1.0, REPLACE)
    assert first.upper(2.5) is first.upper(2.5)  # orders are remembered


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_constant_table_costs_nothing(adjacency):
    assert np.all(uppers(flat(4, 2), adjacency) == 0)
    assert fisher_supremum_upper(flat(2, 2)) == fisher_information(flat(3, 2), 0.4) == 0


# The cells of the search, against pairs drawn from them.
LOW, HIGH = -0.5, 1.5
DESIGN = rough(4, 2, 6.0, 0)
CELL_ORDERS = pytest.mark.parametrize("alpha", [1.02, 4.0, 200.0])


def problem(alpha):
    segments = Segments.over(DESIGN, LOW, HIGH)
    return Problem.of(segments, alpha, lipschitz_upper(DESIGN, LOW, HIGH))


def assert_bounded(cells, task, pairs):
    """No divergence of a pair (cell, x, x') exceeds the bound of its cell."""
    value, upper, _ = cells.bounds(task)
    assert (value <= upper).all()
    tried = 0
    for cell, x, other in pairs:
        if abs(x - other) > 1e-5:
            exact = renyi(law(DESIGN, x), law(DESIGN, other), task.alpha)
            assert float(exact) / (x - other) ** 2 <= upper[cell]
            tried += 1
    assert tried > 40


@CELL_ORDERS
def test_same_segment_cells(alpha):
    task, rng, count = problem(alpha), np.random.default_rng(1), 40
    index = rng.integers(0, 3, count)
    left, right = task.segments.left[index], task.segments.right[index]
    c = rng.uniform(left, right)
    size = 10 ** rng.uniform(-3, 0, count) / 3
    near = np.where(rng.random(count) < 0.3, 0.0, size * rng.random(count))
    far = near + size * rng.random(count)
    sign = rng.choice([-1.0, 1.0], count)
    dc = size / 4 * rng.random(count)
    cells = SameCells(index, sign, np.ones(count), c, dc, near, far)
    pairs = []
    for k in np.repeat(np.arange(count), 3):
        x = c[k] + dc[k] * rng.uniform(-1, 1)
        other = x - sign[k] * rng.uniform(near[k], far[k])
        if left[k] <= min(x, other) and max(x, other) <= right[k]:
            pairs.append((k, x, other))
    assert_bounded(cells, task, pairs)


@CELL_ORDERS
def test_cross_segment_cells(alpha):
    task, rng = problem(alpha), np.random.default_rng(2)
    indices = np.array([(i, j) for i in range(3) for j in range(3) if i != j] * 6)
    first, second = indices.T
    scale = 10 ** rng.uniform(-3, 0, len(indices))

    def place(own, other):
        """A piece of the segment, close to the side of the other one at small scales."""
        left, right = task.segments.left[own], task.segments.right[own]
        far = rng.uniform(0, 1, len(own)) * scale * (right - left)
        near = far * rng.uniform(0, 1, len(own)) * rng.choice([0.0, 1.0], len(own))
        a = np.where(own > other, left + near, right - far)
        b = np.where(own > other, left + far, right - near)
        return (a + b) / 2, (b - a) / 2

    (x, dx), (y, dy) = place(first, second), place(second, first)
    pairs = [
        (k, x[k] + dx[k] * rng.uniform(-1, 1), y[k] + dy[k] * rng.uniform(-1, 1))
        for k in np.repeat(np.arange(len(indices)), 3)
    ]
    assert_bounded(CrossCells(first, second, x, dx, y, dy), task, pairs)


def fields(cells, names):
    return np.array([getattr(cells, name) for name in names.split()])


def test_halves_cover_their_cell():
    one = np.ones(1)
    cell = SameCells(np.array([1]), one, one, 0.5 * one, 0.1 * one, 0 * one, 0.01 * one)
    across_c, across_r = (cell.halves(np.array([split])) for split in (False, True))
    near_and_far = "c dc near far"
    expected = [[0.45, 0.55], [0.05, 0.05], [0, 0], [0.01, 0.01]]
    np.testing.assert_allclose(fields(across_c, near_and_far), expected)
    expected = [[0.5, 0.5], [0.1, 0.1], [0, 0.005], [0.005, 0.01]]
    np.testing.assert_allclose(fields(across_r, near_and_far), expected)


def test_halves_cover_their_cell_of_cross_cells():
    one = np.ones(1)
    cell = CrossCells(np.array([0]), np.array([2]), 0.1 * one, 0.05 * one, 0.8 * one, 0.02 * one)
    across_x, across_y = (cell.halves(np.array([split])) for split in (True, False))
    expected = [[0.075, 0.125], [0.025, 0.025], [0.8, 0.8], [0.02, 0.02]]
    np.testing.assert_allclose(fields(across_x, "x dx y dy"), expected)
    expected = [[0.1, 0.1], [0.05, 0.05], [0.79, 0.81], [0.01, 0.01]]
    np.testing.assert_allclose(fields(across_y, "x dx y dy"), expected)
