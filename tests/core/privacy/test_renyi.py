import math

import numpy as np
import pytest

from core.exact.privacy_kit import fisher_information, flat, law, renyi, rough
from quietbit.design.table import Design, DesignSpec, exact_row
from quietbit.privacy.cost import Cost
from quietbit.privacy.divergence import Segments, lipschitz_upper, zero_out_constant_upper
from quietbit.privacy.fisher import fisher_supremum_upper, variance_supremum_upper
from quietbit.privacy.renyi import RENYI_ACCURACY, RenyiConstant
from quietbit.privacy.renyi_cells import CrossCells, Problem, SameCells
from quietbit.target import Adjacency
from refusals import refuses


def kappa_upper(design, alpha, adjacency):
    return RenyiConstant(design, 0.0, 1.0, adjacency).upper(alpha)


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
    reach = 100 / np.ptp(slope)
    best = dense(start, slope, -reach, reach)
    assert best <= variance_supremum_upper(start, slope) <= best * (1 + 1.2e-6)


def test_the_supremum_can_lie_far_outside():
    """Two symbols that only meet at x = 200: a search near [0, 1] would miss it."""
    start, slope = np.array([0.0, -400.0]), np.array([0.0, 2.0])
    assert variance_supremum_upper(start, slope) == pytest.approx(1.0, rel=1e-9)


def test_nearly_equal_slopes_do_not_stretch_the_search():
    start, slope = np.array([0.0, 1.0, -3.0, 2.0]), np.array([-1.0, -1.0 + 1e-13, 1.0, 1.0 - 1e-9])
    assert variance_supremum_upper(start, slope) == pytest.approx(1.0, rel=1e-6)


def test_equal_symbols_change_nothing():
    base = rough(2, 1, 3.0, 0)
    table = np.repeat(base.probabilities, 2, axis=1) / 2
    double = Design(
        DesignSpec(2, 2, 5.0), np.stack([exact_row(row) for row in table]), np.arange(4.0)
    )
    assert fisher_supremum_upper(double) == pytest.approx(fisher_supremum_upper(base), rel=1e-9)
    assert fisher_information(double, 0.3) == pytest.approx(
        fisher_information(base, 0.3), rel=1e-12
    )


def test_wide_alphabets():
    design = rough(2, 8, 40.0, 1)
    best = max(fisher_information(design, x) for x in np.linspace(-0.5, 1.5, 2001))
    assert best <= fisher_supremum_upper(design) <= best * 1.001


def test_a_constant_table_has_none():
    assert fisher_supremum_upper(flat(2, 2)) == 0
    assert fisher_information(flat(3, 2), 0.4) == 0


def test_refusals():
    with refuses("input_levels", 3):
        fisher_supremum_upper(rough(3, 2, 1.0, 0))


@pytest.mark.parametrize("place", [30.0, 700.0, 5000.0])
def test_sharp_steps_far_from_each_other_are_found_on_both_sides(place):
    """Three symbols, the middle one dominant for long.

    I is tiny at m = 1/2 and 1/16 at two distant steps.
    """
    start, slope = np.array([-place, 0.0, -place]), np.array([-0.5, 0.0, 0.5])
    assert variance_supremum_upper(start, slope) == pytest.approx(1 / 16, rel=1e-6)


ALPHAS = (1.0001, 1.01, 3.0, 50.0, 1000.0, 1e5)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_two_levels_never_lose_to_theorem_2(adjacency):
    design = rough(2, 3, 6.0, 0)
    supremum = fisher_supremum_upper(design)
    for alpha in ALPHAS:
        assert kappa_upper(design, alpha, adjacency) <= alpha * supremum / 2 * (1 + 1e-12)


@pytest.mark.parametrize("levels", [3, 6, 40])
def test_zero_out_is_never_above_replace_one(levels):
    design = rough(levels, 2, 5.0, 1)
    for alpha in ALPHAS:
        zero_out = kappa_upper(design, alpha, Adjacency.ZERO_OUT)
        assert zero_out <= kappa_upper(design, alpha, Adjacency.REPLACE_ONE) * (1 + RENYI_ACCURACY)
        assert zero_out <= alpha * zero_out_constant_upper(design) ** 2 / 2 * (1 + 1e-12)


def test_too_many_levels_fall_back_on_simple_bounds():
    design = rough(300, 2, 5.0, 2)
    assert kappa_upper(design, 4.0, Adjacency.REPLACE_ONE) <= 4.0 * lipschitz_upper(
        design
    ) ** 2 / 2 * (1 + 1e-12)
    assert kappa_upper(design, 4.0, Adjacency.ZERO_OUT) < kappa_upper(
        design, 4.0, Adjacency.REPLACE_ONE
    )


def test_a_smaller_range_costs_no_more():
    design = rough(5, 3, 8.0, 3)
    small = RenyiConstant(design, 0.2, 0.8, Adjacency.REPLACE_ONE)
    large = RenyiConstant(design, -1.0, 2.0, Adjacency.REPLACE_ONE)
    for alpha in ALPHAS:
        assert small.upper(alpha) <= large.upper(alpha) * (1 + RENYI_ACCURACY)


def test_moments_are_convex_in_the_order_up_to_the_accuracy():
    constant = RenyiConstant(rough(4, 2, 5.0, 4), 0.0, 1.0, Adjacency.REPLACE_ONE)
    moment = lambda alpha: (alpha - 1) * constant.upper(alpha)  # noqa: E731
    for low, high in ((1.1, 1.9), (2.0, 8.0), (20.0, 300.0)):
        assert moment((low + high) / 2) <= (moment(low) + moment(high)) / 2 * (1 + RENYI_ACCURACY)


def test_equal_constants_make_equal_costs():
    made = [RenyiConstant(rough(3, 2, 5.0, 4), 0.0, 1.0, Adjacency.ZERO_OUT) for _ in range(2)]
    first, again = (Cost.per_square(constant, 0.5) for constant in made)
    assert first == again
    assert len((first + again).parts) == 1
    assert made[0] != RenyiConstant(rough(3, 2, 5.0, 4), 0.0, 1.0, Adjacency.REPLACE_ONE)


def test_orders_are_remembered():
    constant = RenyiConstant(rough(3, 2, 5.0, 4), 0.0, 1.0, Adjacency.ZERO_OUT)
    assert constant.upper(2.5) is constant.upper(2.5)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_constant_table_costs_nothing(adjacency):
    assert kappa_upper(flat(4, 2), 3.0, adjacency) == 0


@pytest.mark.parametrize("bad", [1.0, 0.2, math.nan, math.inf, "2"])
def test_refuses_orders_that_are_none(bad):
    with refuses("alpha"):
        kappa_upper(rough(3, 2, 2.0, 0), bad, Adjacency.ZERO_OUT)


def test_refuses_ranges_and_adjacencies_that_are_none():
    design = rough(3, 2, 2.0, 0)
    with refuses("input range", (0.6, 1.0)):
        RenyiConstant(design, 0.6, 1.0, Adjacency.ZERO_OUT)
    with refuses("input range", (1.0, 0.0)):
        RenyiConstant(design, 1.0, 0.0, Adjacency.REPLACE_ONE)
    with refuses("adjacency", "nearby"):
        RenyiConstant(design, 0.0, 1.0, "nearby")


LOW, HIGH = -0.5, 1.5


def ratio(design, x, other, alpha):
    return float(renyi(law(design, x), law(design, other), alpha)) / (x - other) ** 2


def problem(design, alpha):
    return Problem.of(Segments.over(design, LOW, HIGH), alpha, lipschitz_upper(design, LOW, HIGH))


@pytest.mark.parametrize("alpha", [1.02, 4.0, 200.0])
def test_same_segment_cells(alpha):
    design = rough(4, 2, 6.0, 0)
    task = problem(design, alpha)
    rng = np.random.default_rng(1)
    count = 40
    index = rng.integers(0, 3, count)
    left, right = task.segments.left[index], task.segments.right[index]
    c = rng.uniform(left, right)
    size = 10 ** rng.uniform(-3, 0, count) / 3
    near = np.where(rng.random(count) < 0.3, 0.0, size * rng.random(count))
    sign = rng.choice([-1.0, 1.0], count)
    cells = SameCells(
        index,
        sign,
        np.ones(count),
        c,
        size / 4 * rng.random(count),
        near,
        near + size * rng.random(count),
    )
    value, upper, _ = cells.bounds(task)
    assert (value <= upper).all()
    for k in range(count):
        for _ in range(4):
            x = c[k] + cells.dc[k] * rng.uniform(-1, 1)
            other = x - sign[k] * rng.uniform(cells.near[k], cells.far[k])
            if left[k] <= min(x, other) and max(x, other) <= right[k] and abs(x - other) > 1e-5:
                assert ratio(design, x, other, alpha) <= upper[k]


def test_halves_cover_their_cell():
    one = np.ones(1)
    cell = SameCells(np.array([1]), one, one, 0.5 * one, 0.1 * one, 0 * one, 0.01 * one)
    across_c, across_r = cell.halves(np.array([False])), cell.halves(np.array([True]))
    assert np.allclose(across_c.c, [0.45, 0.55])
    assert np.allclose(across_c.dc, 0.05)
    assert np.allclose(across_c.far, 0.01)
    assert np.allclose(np.stack((across_r.near, across_r.far)), [[0, 0.005], [0.005, 0.01]])
    assert np.allclose(across_r.dc, 0.1)


@pytest.mark.parametrize("alpha", [1.02, 4.0, 200.0])
def test_cross_segment_cells(alpha):
    design = rough(4, 2, 6.0, 0)
    task = problem(design, alpha)
    rng = np.random.default_rng(2)
    pairs = [(i, j) for i in range(3) for j in range(3) if i != j] * 8
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    scale = 10 ** rng.uniform(-3, 0, len(pairs))

    def place(own, other):
        """A piece of the segment, close to the side of the other one at small scales."""
        left, right = task.segments.left[own], task.segments.right[own]
        far = rng.uniform(0, 1, len(own)) * scale * (right - left)
        near = far * rng.uniform(0, 1, len(own)) * rng.choice([0.0, 1.0], len(own))
        a, b = (left + near, left + far)
        a, b = np.where(own > other, a, right - far), np.where(own > other, b, right - near)
        return (a + b) / 2, (b - a) / 2

    cells = CrossCells(first, second, *place(first, second), *place(second, first))
    value, upper, _ = cells.bounds(task)
    assert (value <= upper).all()
    for k in range(len(pairs)):
        for _ in range(4):
            x = cells.x[k] + cells.dx[k] * rng.uniform(-1, 1)
            y = cells.y[k] + cells.dy[k] * rng.uniform(-1, 1)
            if abs(x - y) > 1e-5:
                assert ratio(design, x, y, alpha) <= upper[k]


def test_halves_cover_their_cell_of_cross_cells():
    one = np.ones(1)
    cell = CrossCells(np.array([0]), np.array([2]), 0.1 * one, 0.05 * one, 0.8 * one, 0.02 * one)
    across_x, across_y = cell.halves(np.array([True])), cell.halves(np.array([False]))
    assert np.allclose(across_x.x, [0.075, 0.125])
    assert np.allclose(across_x.dx, 0.025)
    assert np.allclose(across_x.dy, 0.02)
    assert np.allclose(across_y.y, [0.79, 0.81])
    assert np.allclose(across_y.dy, 0.01)
