"""Each cell's bound covers the pairs in it, before any search."""

import numpy as np
import pytest

from exact.privacy_kit import law, renyi, rough
from quietbit.privacy.cells import Problem, SameCells
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
