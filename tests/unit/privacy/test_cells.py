"""Each cell's bound covers the pairs in it, before any search."""

import numpy as np
import pytest

from exact.privacy_kit import law, renyi, rough
from quietbit.privacy.cells import CrossCells, Problem, SameCells
from quietbit.privacy.divergence import Segments, lipschitz_upper

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
        index, sign, np.ones(count), c, size / 4 * rng.random(count), near, near + size * rng.random(count)
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


LOW, HIGH = -0.5, 1.5


def ratio_of_cross_cells(design, x, other, alpha):
    return float(renyi(law(design, x), law(design, other), alpha)) / (x - other) ** 2


def problem_of_cross_cells(design, alpha):
    return Problem.of(Segments.over(design, LOW, HIGH), alpha, lipschitz_upper(design, LOW, HIGH))


@pytest.mark.parametrize("alpha", [1.02, 4.0, 200.0])
def test_cross_segment_cells(alpha):
    design = rough(4, 2, 6.0, 0)
    task = problem_of_cross_cells(design, alpha)
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
                assert ratio_of_cross_cells(design, x, y, alpha) <= upper[k]


def test_halves_cover_their_cell_of_cross_cells():
    one = np.ones(1)
    cell = CrossCells(np.array([0]), np.array([2]), 0.1 * one, 0.05 * one, 0.8 * one, 0.02 * one)
    across_x, across_y = cell.halves(np.array([True])), cell.halves(np.array([False]))
    assert np.allclose(across_x.x, [0.075, 0.125])
    assert np.allclose(across_x.dx, 0.025)
    assert np.allclose(across_x.dy, 0.02)
    assert np.allclose(across_y.y, [0.79, 0.81])
    assert np.allclose(across_y.dy, 0.01)
