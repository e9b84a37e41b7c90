"""Each cell's bound covers the pairs in it, before any search."""

import numpy as np
import pytest

from exact.privacy_kit import law, renyi, rough
from quietbit.privacy.cells import CrossCells, Problem
from quietbit.privacy.divergence import Segments, lipschitz_upper

LOW, HIGH = -0.5, 1.5


def ratio(design, x, other, alpha):
    return float(renyi(law(design, x), law(design, other), alpha)) / (x - other) ** 2


def problem(design, alpha):
    return Problem.of(Segments.over(design, LOW, HIGH), alpha, lipschitz_upper(design, LOW, HIGH))


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


def test_halves_cover_their_cell():
    one = np.ones(1)
    cell = CrossCells(np.array([0]), np.array([2]), 0.1 * one, 0.05 * one, 0.8 * one, 0.02 * one)
    across_x, across_y = cell.halves(np.array([True])), cell.halves(np.array([False]))
    assert np.allclose(across_x.x, [0.075, 0.125])
    assert np.allclose(across_x.dx, 0.025)
    assert np.allclose(across_x.dy, 0.02)
    assert np.allclose(across_y.y, [0.79, 0.81])
    assert np.allclose(across_y.dy, 0.01)
