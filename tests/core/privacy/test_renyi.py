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
    symbols = int(rng.integers(2, 256 if seed == 0 else 40))
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
DESIGN = rough(4, 2, 6.0, 0)
SEGMENTS = Segments.over(DESIGN, -0.5, 1.5)
EDGES = np.append(SEGMENTS.left, SEGMENTS.right[-1])
ONES = np.ones(3)


def same_cells():
    """Whole segments, from either side."""
    middle, half = (SEGMENTS.left + SEGMENTS.right) / 2, (SEGMENTS.right - SEGMENTS.left) / 2
    sides = [
        SameCells(np.arange(3), sign * ONES, ONES, middle, half, 0 * half, 2 * half)
        for sign in (1.0, -1.0)
    ]
    return SameCells.joined(*([getattr(side, name) for name in side.__slots__] for side in sides))


def cross_cells():
    """Ends of segments that are turned to another one, of four sizes, in both orders."""
    first, second = np.tile([[0, 1, 0, 2, 1, 2], [1, 0, 2, 0, 2, 1]], 4)
    size = np.repeat([1.0, 0.1, 0.01, 0.001], 6)

    def end(own, other):
        left, right = SEGMENTS.left[own], SEGMENTS.right[own]
        half = (right - left) / 2 * size
        return np.where(own < other, right - half, left + half), half

    return CrossCells(first, second, *end(first, second), *end(second, first))


def pairs(cells, u, v):
    """The pairs (x, x') of cells at places u and v between 0 and 1 of their two sides."""
    if isinstance(cells, CrossCells):
        return cells.x + (2 * u - 1) * cells.dx, cells.y + (2 * v - 1) * cells.dy
    x = cells.c + (2 * u - 1) * cells.dc
    return x, x - cells.sign * (cells.near + v * (cells.far - cells.near))


def segments_of(cells):
    """The segments in which x and x' of each cell lie."""
    if isinstance(cells, CrossCells):
        return np.array([cells.first, cells.second])
    return np.array([cells.index, cells.index])


KINDS = pytest.mark.parametrize("first", [same_cells(), cross_cells()], ids=["same", "cross"])


@KINDS
@pytest.mark.parametrize("split", [True, False])
def test_halves_cover_their_cells(first, split):
    rng = np.random.default_rng(3)
    u, v = rng.random((2, len(first)))
    across_first = split == isinstance(first, CrossCells)
    halves = first.halves(np.full(len(first), split))
    for place in (0, 1):
        half = halves.take(slice(place * len(first), (place + 1) * len(first)))
        whole = ((u + place) / 2, v) if across_first else (u, (v + place) / 2)
        np.testing.assert_allclose(pairs(half, u, v), pairs(first, *whole), rtol=1e-12)


@KINDS
@pytest.mark.parametrize("alpha", [1.02, 4.0, 200.0])
def test_no_pair_exceeds_the_bound_of_its_cell(first, alpha):
    problem = Problem.of(SEGMENTS, alpha, lipschitz_upper(DESIGN, -0.5, 1.5))
    rng = np.random.default_rng(1)
    cells, tried = first, 0
    for _ in range(26):
        value, upper, _ = cells.bounds(problem)
        assert (value <= upper).all()
        places = rng.choice([0.001, 0.999], (2, len(cells)))
        for k, (x, other) in enumerate(np.transpose(pairs(cells, *places))[:24]):
            inside = np.searchsorted(EDGES, [x, other]) - 1
            if abs(x - other) > 1e-5 and np.array_equal(inside, segments_of(cells)[:, k]):
                exact = renyi(law(DESIGN, x), law(DESIGN, other), alpha)
                assert float(exact) / (x - other) ** 2 <= upper[k]
                tried += 1
        cells = cells.halves(rng.random(len(cells)) < 0.5)
        cells = cells.take(rng.permutation(len(cells))[:40])
    assert tried > 200
