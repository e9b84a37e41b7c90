from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.ball import Norm
from quietbit_lab.baseline.skellam import TRIES, conditional_rounding, length_upper


class UnluckyBlock:
    """Words that always round up, for vectors whose every try is then too long."""

    def uniform64(self, stream: int, start: int, count: int) -> Any:
        return np.zeros(count, dtype=np.uint64)


def length(points: Any, norm: Norm) -> float:
    halves = np.asarray(points) / 2
    return float(halves @ halves if norm is Norm.L2 else np.abs(halves).sum())


@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize("offset", [False, True])
def test_the_bound_always_holds_and_points_are_neighbours(norm: Norm, offset: bool) -> None:
    random, rng = np.random.default_rng(0), seeded_rng(3)
    for size in (1, 3, 20, 400):
        for reach in (0.1, 2.0, 30.0):
            vector = random.normal(size=size)
            vector *= reach / np.linalg.norm(vector, ord=norm.order)
            bound = length_upper(norm, reach, size, offset=offset)
            points = conditional_rounding(vector, norm, bound, rng.draw(size), offset=offset)
            assert length(points, norm) <= bound
            assert np.all(np.abs(points / 2 - vector) <= 1)
            assert np.all(points % 2 == int(offset))


@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize("offset", [False, True])
def test_the_last_resort_is_always_short_enough(norm: Norm, offset: bool) -> None:
    rng, unlucky = np.random.default_rng(1), UnluckyBlock()
    given: Any = unlucky
    vectors = [rng.normal(size=size) * scale for size in (1, 7, 50) for scale in (0.3, 5.0)]
    met = 0
    for vector in [*vectors, np.full(50, 0.6)]:
        reach = float(np.linalg.norm(vector, ord=norm.order))
        bound = length_upper(norm, reach, vector.size, offset=offset)
        points = conditional_rounding(vector, norm, bound, given, offset=offset)
        assert length(points, norm) <= bound
        assert np.all(points % 2 == int(offset))
        up = 2 * (np.floor(vector - 0.5 * offset) + 1) + int(offset)
        met += length(up, norm) > bound
    assert met > 0  # the last resort was needed
    assert math.exp(-0.5) ** TRIES < 1e-43


def test_rounding_is_unbiased_before_rejection() -> None:
    size = 100_000
    points = conditional_rounding(np.full(size, 0.3), Norm.L2, 1e9, seeded_rng(2).draw(size))
    ups = int((points == 2).sum())
    assert set(np.unique(points).tolist()) == {0, 2}
    assert abs(ups - 0.3 * size) < 6.2 * math.sqrt(0.21 * size)  # six standard deviations: 1e-9
