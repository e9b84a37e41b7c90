from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from scipy.linalg import hadamard as matrix

from quietbit.kernel.select import select
from quietbit.kernel.transform import (
    Blocks,
    hadamard,
    padded_size,
    rotate,
    rotate_back,
    rotation_error_upper,
    signs,
)
from refusals import refuses

KINDS = (np.float32, np.float64)


def random(size, kind, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(kind)


@pytest.fixture(params=["reference", "cpu", "cpu with three threads"])
def kernel(request):
    return select("cpu", threads=3) if request.param.endswith("threads") else select(request.param)


def plain_rotation(vector, seed):
    """The rotation of the first payloads, written out: results must be these to the last bit."""
    size = 1 << (vector.size - 1).bit_length()
    values = np.zeros(size)
    values[: vector.size] = vector
    key = np.random.SeedSequence(seed, spawn_key=(size,)).generate_state(2, np.uint64)
    words = np.random.Philox(key=key).random_raw(-(-size // 64))
    flip = np.where(
        np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")[:size], -1.0, 1.0
    )
    values = values * flip
    half = 1
    while half < size:
        pairs = values.reshape(-1, 2, half)
        values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(
            -1
        )
        half *= 2
    return values / math.sqrt(size), flip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("power", [0, 1, 2, 3, 7, 8])
def test_the_reference_is_the_matrix_product(kind, power):
    vector = random(1 << power, kind)
    expected = matrix(1 << power) @ vector.astype(np.float64) / math.sqrt(1 << power)
    np.testing.assert_allclose(hadamard(vector), expected, atol=64 * np.finfo(kind).eps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("power", [*range(15), 17, 18, 19, 20])
def test_results_are_the_references_bit_for_bit(kernel, kind, power):
    vector = random(1 << power, kind, power)
    given, flips = vector.copy(), signs(vector.size, 3).astype(kind)
    assert kernel.rotate_back(given, 3) is given
    np.testing.assert_array_equal(given, hadamard(vector) * flips)
    np.testing.assert_array_equal(kernel.rotate(vector, 3, kind=kind), hadamard(vector * flips))


def test_twice_is_the_identity_and_the_stated_error_holds(kernel):
    size = 1 << 13
    for kind in KINDS:
        vector = random(size, kind)
        once = kernel.rotate(vector, 3, kind=kind)
        exact = rotate(vector.astype(np.float64), 3)
        allowed = rotation_error_upper(size, np.finfo(kind).eps / 2) * np.linalg.norm(vector)
        assert np.linalg.norm(once - exact) <= allowed + (1e-12 if kind is np.float64 else 0)
        assert np.linalg.norm(kernel.rotate_back(once, 3) - vector) <= 2.1 * allowed


@pytest.mark.parametrize("size", [1, 2, 3, 31, 33, 64, 100, 4095, 4096, 4097, 9000, 70_001])
def test_blocks_are_rotated_without_padding(kernel, size):
    """A product of orthonormal maps: written out block by block, undone by the transposes in
    reverse order.
    """
    vector = random(size, np.float64, size)
    vector[::5] = 0.0
    for block in {1, 1 << (size.bit_length() - 1), min(4096, 1 << (size.bit_length() - 1))}:
        flips = signs(size + block, 11)
        expected, whole = vector.copy(), size // block * block
        expected[:whole] *= flips[:whole]
        for start in range(0, whole, block):
            expected[start : start + block] = hadamard(expected[start : start + block])
        if whole < size:
            expected[-block:] = hadamard(expected[-block:] * flips[size:])
        found = kernel.rotate(vector, 11, block, kind=np.float64)
        np.testing.assert_array_equal(found, expected)
        assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(vector), rel=1e-13)
        single = kernel.rotate(vector, 11, block, factor=0.3)
        assert (
            single.tobytes() == select("reference").rotate(vector, 11, block, factor=0.3).tobytes()
        )
        np.testing.assert_allclose(kernel.rotate_back(found, 11, block), vector, atol=1e-13)


def test_a_lone_coordinate_is_spread_over_its_block(kernel):
    lone = np.zeros(10_000, dtype=np.float32)
    lone[100] = 1.0
    assert np.abs(kernel.rotate(lone, 3, 4096)).max() == 1 / 64


def test_blocks_that_cannot_be(kernel):
    for block in (0, 3, 8):
        with refuses("block"):
            kernel.rotate(np.zeros(7), 0, block)
    assert Blocks.of(64, 32, 1).words()[1] is None


@pytest.mark.parametrize("size", [1, 3, 67, 5000])
def test_rotations_are_those_of_the_first_payloads_bit_for_bit(size, kernel):
    vector = random(size, np.float64, size)
    vector[::5] = 0.0
    expected, flip = plain_rotation(vector, 11)
    found = rotate(vector, 11)
    assert found.tobytes() == expected.tobytes()
    np.testing.assert_array_equal(signs(found.size, 11), flip)
    back = rotate_back(found, 11)
    np.testing.assert_allclose(back[:size], vector, atol=1e-13)
    np.testing.assert_allclose(back[size:], 0, atol=1e-13)
    assert kernel.rotate(vector, 11, kind=np.float64).tobytes() == expected.tobytes()
    in_place = found.copy()
    assert kernel.rotate_back(in_place, 11) is in_place
    assert in_place.tobytes() == back.tobytes()
    assert not np.any(rotate(np.zeros(size), 0))


def test_seeds_and_sizes_have_their_own_signs():
    assert not np.array_equal(signs(256, 1), signs(256, 2))
    assert not np.array_equal(signs(256, 1), signs(512, 1)[:256])
    assert set(signs(256, 1).tolist()) == {1.0, -1.0}
    packed = np.packbits(signs(1024, 7) < 0).tobytes()  # payloads are decoded with these for ever
    assert (
        hashlib.sha256(packed).hexdigest()
        == "b8719629e62392f92a55d41329bb22700a7b5ae2b16e784e983821dee50e9a06"
    )
    assert np.abs(rotate(np.eye(1, 1000)[0], 0)).max() == pytest.approx(1 / 32)


def test_an_update_in_parts_is_rotated_once_scaled(kernel):
    rng = np.random.default_rng(3)
    whole = rng.normal(size=200_000)
    bfloat = (whole[150_000:].astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    parts = [
        whole[:50_001].astype(np.float16),
        whole[50_001:100_000].astype(np.float32).reshape(-1, 1),
        whole[100_000:150_000],
        bfloat,
    ]
    flat = np.concatenate(
        [
            parts[0].astype(np.float64),
            parts[1].reshape(-1).astype(np.float64),
            parts[2],
            (bfloat.astype(np.uint32) << 16).view(np.float32).astype(np.float64),
        ]
    )
    padded = np.zeros(1 << 18, dtype=np.float32)
    padded[: flat.size] = (flat * 0.37).astype(np.float32)
    expected = hadamard(padded * signs(1 << 18, 5).astype(np.float32))
    np.testing.assert_array_equal(kernel.rotate(parts, 5, factor=0.37), expected)
    places = np.array([0, 7, 200_000])
    np.testing.assert_array_equal(
        kernel.rotated_rows(parts, 5, 0.37, places), expected[places].astype(np.float64)
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("at", [0, 33, 99])
def test_entries_that_are_no_numbers_are_refused(kernel, bad, at):
    update = np.zeros(100)
    update[at] = bad
    for rotate_one in (lambda: kernel.rotate(update, 0), lambda: kernel.rotate(update, 0, 64)):
        with refuses("update"):
            rotate_one()


def test_refusals(kernel):
    with refuses("length"):
        kernel.rotate_back(np.zeros(3), 0)
    with refuses("values"):
        kernel.rotate_back(np.zeros(4, dtype=np.int64), 0)
    with refuses("values"):
        kernel.rotate_back(np.zeros(8)[::2], 0)
    for factor in (float("nan"), 1.5):
        with refuses("factor"):
            kernel.rotate(np.zeros(4), 0, factor=factor)
    with refuses("seed"):
        signs(4, -1)
    with refuses("dimension"):
        padded_size(0)


@pytest.mark.parametrize("block", [None, 1 << 19])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_transforms_longer_than_a_span_are_those_of_the_reference(kernel, block, kind) -> None:
    values = np.random.default_rng(8).normal(size=600_000).astype(kind)
    reference = select("reference")
    expected = reference.rotate(values, 5, block, factor=0.7, kind=kind)
    rotated = kernel.rotate(values, 5, block, factor=0.7, kind=kind)
    assert rotated.tobytes() == expected.tobytes()
    back = reference.rotate_back(expected.copy(), 5, block)
    assert kernel.rotate_back(rotated, 5, block).tobytes() == back.tobytes()
