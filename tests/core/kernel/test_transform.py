"""Rotations of the reference: a matrix product, undone by its transpose.

That it stays the same for ever is what golden payloads say.
"""

import math

import numpy as np
import pytest
from scipy.linalg import hadamard as matrix

from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.transform import (
    hadamard,
    padded_size,
    rotate,
    rotation_error_upper,
    signs,
)
from refusals import refuses

KERNEL = ReferenceKernel()
KINDS = (np.float32, np.float64)


def random(size, kind=np.float64):
    values = np.random.default_rng(size).normal(size=size)
    values[::5] = 0.0
    return values.astype(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("power", [0, 1, 2, 3, 7, 8])
def test_the_transform_is_the_matrix_product(kind, power):
    vector = random(1 << power, kind)
    expected = matrix(1 << power) @ vector.astype(np.float64) / math.sqrt(1 << power)
    np.testing.assert_allclose(hadamard(vector), expected, atol=64 * np.finfo(kind).eps)


@pytest.mark.parametrize("kind", KINDS)
def test_twice_is_the_identity_and_the_stated_error_holds(kind):
    size = 1 << 13
    vector = random(size, kind)
    once = KERNEL.rotate(vector, 3, kind=kind)
    exact = rotate(vector.astype(np.float64), 3)
    allowed = rotation_error_upper(size, np.finfo(kind).eps / 2) * np.linalg.norm(vector)
    assert np.linalg.norm(once - exact) <= allowed + (1e-12 if kind is np.float64 else 0)
    assert np.linalg.norm(KERNEL.rotate_back(once, 3) - vector) <= 2.1 * allowed


@pytest.mark.parametrize("size", [1, 2, 3, 31, 33, 64, 100, 4096, 4097, 9000])
@pytest.mark.parametrize("divisor", [1, 4, 64])
def test_blocks_are_rotated_without_padding(size, divisor):
    """A product of orthonormal maps: written out block by block, undone by the transposes in
    reverse order.
    """
    block = max(1, (1 << (size.bit_length() - 1)) // divisor)
    flips, vector, whole = signs(size + block, 11), random(size), size // block * block
    expected = vector.copy()
    expected[:whole] *= flips[:whole]
    for start in range(0, whole, block):
        expected[start : start + block] = hadamard(expected[start : start + block])
    if whole < size:
        expected[-block:] = hadamard(expected[-block:] * flips[size:])
    found = KERNEL.rotate(vector, 11, block, kind=np.float64)
    np.testing.assert_array_equal(found, expected)
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(vector), rel=1e-13)
    np.testing.assert_allclose(KERNEL.rotate_back(found, 11, block), vector, atol=1e-13)


def test_sizes_and_seeds_are_whole_numbers():
    with refuses("seed"):
        signs(4, -1)
    with refuses("dimension"):
        padded_size(0)


def test_an_update_is_scaled_in_doubles_and_rounded_once():
    whole = random(3000)
    parts = [whole[:1001].astype(np.float16), whole[1001:].reshape(-1, 1)]
    exact = np.concatenate([parts[0].astype(np.float64), whole[1001:]]) * 0.37
    expected = rotate(exact.astype(np.float32), 5)
    np.testing.assert_array_equal(KERNEL.rotate(parts, 5, factor=0.37), expected)
    places = np.array([0, 7, 3000])
    found = KERNEL.rotated_rows(parts, 5, 0.37, places)
    assert found.tobytes() == expected[places].astype(np.float64).tobytes()
