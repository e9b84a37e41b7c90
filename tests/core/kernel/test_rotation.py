from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import hadamard

from quietbit.kernel.transform import rotate, rotate_back


@pytest.mark.parametrize("size", [1, 2, 3, 8, 67, 256])
def test_rotating_is_undone_and_keeps_lengths(size: int) -> None:
    vector = np.random.default_rng(size).normal(size=size)
    rotated = rotate(vector, 11)
    assert rotated.size == 1 << (size - 1).bit_length()
    assert np.linalg.norm(rotated) == pytest.approx(np.linalg.norm(vector), rel=1e-13)
    back = rotate_back(rotated, 11)
    assert np.allclose(back[:size], vector, atol=1e-14)
    assert np.allclose(back[size:], 0, atol=1e-14)


def test_it_is_a_hadamard_matrix_with_signs() -> None:
    basis = np.stack([rotate(row, 3) for row in np.eye(16)], axis=1)
    assert np.array_equal(np.abs(basis), np.full((16, 16), 0.25))
    assert np.array_equal(basis * np.sign(basis[0]), hadamard(16) / 4)


def test_seeds_differ_and_repeat() -> None:
    vector = np.arange(1.0, 65.0)
    assert np.array_equal(rotate(vector, 1), rotate(vector, 1))
    assert not np.array_equal(rotate(vector, 1), rotate(vector, 2))


def test_a_spike_is_spread_evenly() -> None:
    spike = np.eye(1, 1000)[0]
    assert np.abs(rotate(spike, 0)).max() == pytest.approx(1 / 32)


def test_zero_stays_zero() -> None:
    assert not np.any(rotate(np.zeros(5), 0))
