from __future__ import annotations

import hashlib
import math
import os
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from scipy.linalg import hadamard

from quietbit.errors import InvalidParameter
from quietbit.kernel import transform
from quietbit.kernel.transform import (
    hadamard_,
    hadamard_reference,
    padded_size,
    rotate,
    rotate_back,
    rotate_back_,
    rotate_tensor,
    rotate_update,
    signs,
)

KINDS = (np.float32, np.float64)


def random(size, kind, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(kind)


@pytest.fixture(params=["numba", "numpy"])
def either(request, monkeypatch):
    """With compiled code and without."""
    if request.param == "numpy":
        monkeypatch.setattr(transform, "_machine_code", lambda: None)
    return request.param


def plain_rotation(vector, seed):
    """The rotation of the first payloads, written out: results must be these to the last bit."""
    size = 1 << (vector.size - 1).bit_length()
    values = np.zeros(size)
    values[: vector.size] = vector
    key = np.random.SeedSequence(seed, spawn_key=(size,)).generate_state(2, np.uint64)
    words = np.random.Philox(key=key).random_raw(-(-size // 64))
    flip = np.where(np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")[:size], -1.0, 1.0)
    values = values * flip
    half = 1
    while half < size:
        pairs = values.reshape(-1, 2, half)
        values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return values / math.sqrt(size), flip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("power", [0, 1, 2, 3, 7, 8])
def test_the_reference_is_the_matrix_product(kind, power):
    vector = random(1 << power, kind)
    expected = hadamard(1 << power) @ vector.astype(np.float64) / math.sqrt(1 << power)
    np.testing.assert_allclose(hadamard_reference(vector), expected, atol=64 * np.finfo(kind).eps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("power", [*range(15), 17, 18, 19, 20])
def test_compiled_results_are_the_references_bit_for_bit(kind, power):
    vector = random(1 << power, kind, power)
    expected = hadamard_reference(vector)
    given = vector.copy()
    assert hadamard_(given) is given
    np.testing.assert_array_equal(given, expected)
    np.testing.assert_array_equal(hadamard_(vector.copy(), threads=3), expected)


def test_twice_is_the_identity_and_the_stated_error_holds(either):
    size = 1 << 13
    for kind in KINDS:
        vector = random(size, kind)
        back = hadamard_(hadamard_(vector.copy()))
        unit = np.finfo(kind).eps / 2
        assert np.max(np.abs(back - vector)) <= 2 * 14 * unit * np.linalg.norm(vector)
    once = hadamard_(random(size, np.float32))
    exact = hadamard_(random(size, np.float32).astype(np.float64))
    assert np.max(np.abs(once - exact)) <= 14 * 2.0**-24 * np.linalg.norm(exact)


@pytest.mark.parametrize("size", [1, 3, 67, 5000])
def test_rotations_are_those_of_the_first_payloads_bit_for_bit(size, either):
    vector = random(size, np.float64, size)
    vector[::5] = 0.0
    expected, flip = plain_rotation(vector, 11)
    found = rotate(vector, 11)
    assert found.tobytes() == expected.tobytes()
    np.testing.assert_array_equal(signs(found.size, 11), flip)
    back = rotate_back(found, 11)
    np.testing.assert_allclose(back[:size], vector, atol=1e-13)
    np.testing.assert_allclose(back[size:], 0, atol=1e-13)
    in_place = found.copy()
    assert rotate_back_(in_place, 11) is in_place
    assert in_place.tobytes() == back.tobytes()
    assert not np.any(rotate(np.zeros(size), 0))


def test_seeds_and_sizes_have_their_own_signs():
    assert not np.array_equal(signs(256, 1), signs(256, 2))
    assert not np.array_equal(signs(256, 1), signs(512, 1)[:256])
    assert set(signs(256, 1).tolist()) == {1.0, -1.0}
    packed = np.packbits(signs(1024, 7) < 0).tobytes()  # payloads are decoded with these for ever
    assert hashlib.sha256(packed).hexdigest() == "b8719629e62392f92a55d41329bb22700a7b5ae2b16e784e983821dee50e9a06"
    assert np.abs(rotate(np.eye(1, 1000)[0], 0)).max() == pytest.approx(1 / 32)


def test_an_update_in_parts_is_rotated_once_scaled(either):
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
    expected = hadamard_reference(padded * signs(1 << 18, 5).astype(np.float32))
    np.testing.assert_array_equal(rotate_update(parts, 5, factor=0.37), expected)
    buffer = np.full(1 << 18, np.nan, dtype=np.float32)
    assert rotate_update(parts, 5, factor=0.37, out=buffer, threads=2) is buffer
    np.testing.assert_array_equal(buffer, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("at", [0, 33, 99])
def test_entries_that_are_no_numbers_are_refused_and_nothing_stays_behind(either, bad, at):
    update, buffer = np.zeros(100), np.ones(128, dtype=np.float32)
    update[at] = bad
    with pytest.raises(InvalidParameter, match="finite everywhere"):
        rotate_update(update, 0, out=buffer)
    assert not np.any(buffer)


def test_refusals():
    with pytest.raises(InvalidParameter, match="power of two"):
        hadamard_(np.zeros(3))
    with pytest.raises(InvalidParameter, match="float32 or float64"):
        hadamard_(np.zeros(4, dtype=np.int64))
    with pytest.raises(InvalidParameter, match="in a row"):
        hadamard_(np.zeros(8)[::2])
    with pytest.raises(InvalidParameter, match="factor"):
        rotate_update(np.zeros(4), 0, factor=float("nan"))
    with pytest.raises(InvalidParameter, match="factor"):
        rotate_update(np.zeros(4), 0, factor=1.5)
    with pytest.raises(InvalidParameter, match="output buffer"):
        rotate_update(np.zeros(4), 0, out=np.zeros(4))
    with pytest.raises(InvalidParameter, match="seed"):
        signs(4, -1)
    with pytest.raises(InvalidParameter, match="dimension"):
        padded_size(0)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("power", [0, 1, 6, 13])
def test_tensors_are_transformed_where_they_live(power):
    import torch

    for kind in KINDS:
        vector = random(1 << power, kind)
        expected = hadamard_reference(vector)
        tensor = torch.from_numpy(vector.copy())
        assert hadamard_(tensor) is tensor
        np.testing.assert_array_equal(tensor.numpy(), expected)
        other = torch.from_numpy(vector.copy())
        transform._hadamard_torch(torch, other, other)  # what other devices do
        np.testing.assert_array_equal(other.numpy(), expected)
    with pytest.raises(InvalidParameter, match="contiguous"):
        hadamard_(torch.zeros(8)[::2])
    with pytest.raises(InvalidParameter, match="power of two"):
        hadamard_(torch.zeros(12))


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("size", [1, 33, 1000])
def test_a_tensor_is_rotated_like_an_array(size):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tensor = torch.from_numpy(random(size, np.float64)).to(kind)
        array = tensor.view(torch.uint16).numpy() if kind == torch.bfloat16 else tensor.numpy()
        found = rotate_tensor(tensor.to(device), 5, factor=0.3)
        assert found.cpu().numpy().tobytes() == rotate_update(array, 5, factor=0.3).tobytes()
    back = rotate_back_(found.clone(), 5)
    assert back.cpu().numpy().tobytes() == rotate_back_(found.cpu().numpy(), 5).tobytes()
    with pytest.raises(InvalidParameter, match="finite everywhere"):
        rotate_tensor(torch.tensor([0.0, float("nan")]), 0)
    with pytest.raises(InvalidParameter, match="type of the update"):
        rotate_tensor(torch.zeros(2, dtype=torch.int32), 0)


@pytest.mark.skipif(find_spec("triton") is None or find_spec("torch") is None, reason="triton is not installed")
@pytest.mark.parametrize("power", [0, 1, 5, 12, 13, 17])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_triton_kernel_adds_in_the_same_order(power):
    import torch

    if torch.cuda.is_available():
        device = "cuda"
    elif "triton" in sys.modules and not sys.modules["triton"].knobs.runtime.interpret:
        pytest.skip("triton was imported without its interpreter")
    else:
        os.environ["TRITON_INTERPRET"] = "1"
        device = "cpu"
    from quietbit.kernel.triton_transform import hadamard_stages

    for kind in KINDS:
        vector = random(1 << power, kind)
        tensor = torch.from_numpy(vector.copy()).to(device)
        hadamard_stages(tensor, *transform._scale(1 << power))
        np.testing.assert_array_equal(tensor.cpu().numpy(), hadamard_reference(vector))
