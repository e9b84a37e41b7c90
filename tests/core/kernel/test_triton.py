"""The triton kernel in Triton's interpreter, or on a GPU where there is one: the reference's
codes, norms, counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest

from interpreter import interpret

if find_spec("triton") is None or find_spec("torch") is None:
    pytest.skip("the triton kernel needs the packages triton and torch", allow_module_level=True)

import torch

if not torch.cuda.is_available():
    interpret()

from core.kernel.makers import FixedKey, GivenWords, make_sampler
from pairs import pairs
from quietbit.kernel.base import packed_size
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.select import select
from quietbit.kernel.triton import kernel as host
from refusals import refuses

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # the interpreter's own arithmetic wraps around


def every(*choices):
    """All combinations, where `pairs` is for want of time."""
    return list(product(*choices))


FAST = torch.cuda.is_available()  # the interpreter takes a thousand times as long
several = every if FAST else pairs
SLOW = () if FAST else (pytest.mark.long,)
REFERENCE = ReferenceKernel()
SAMPLERS = {
    "one bit": make_sampler(2, 1, 1.0),
    "one bit, cells": make_sampler(2, 1, 30.0),
    "two bits": make_sampler(2, 2, 1.0),
    "three bits": make_sampler(2, 3, 3.0),
    "four bits": make_sampler(2, 4, 1.0),
}


def kernel_device():
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def kernel():
    return select("triton")


def update(size, seed, kind=np.float32):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=size) * 10.0 ** rng.uniform(-4, 0.5, size=size)
    values[::17], values[5::31], values[7::29], values[11::37] = 0.0, 1e-45, 1.0, -1.0
    return values.astype(kind)


def test_a_tensor_takes_the_payload(kernel):
    sampler, inputs = SAMPLERS["one bit"], update(2051, 1)
    expected = np.empty(packed_size(1, 2051), np.uint8)
    REFERENCE.sample_clipped(sampler, inputs, 2, 0.25, FixedKey(), expected)
    larger = torch.full((expected.size + 1,), 0xAA, dtype=torch.uint8, device=kernel_device())
    tensor = torch.tensor(inputs).requires_grad_()
    kernel.sample_clipped(sampler, tensor, 2, 0.25, FixedKey(), larger[1:])
    assert larger.cpu().numpy().tobytes() == b"\xaa" + expected.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_tensors_are_refused_before_a_word_is_drawn(kernel, bad):
    rng, inputs = GivenWords(np.zeros(5003), np.zeros(5003)), torch.ones(5003, dtype=torch.float64)
    inputs[17] = bad
    out = torch.full((packed_size(1, 5003),), 0xAA, dtype=torch.uint8)
    with refuses("update"):
        kernel.sample_clipped(SAMPLERS["one bit"], inputs.float(), 2, 1.0, rng, out)
    with refuses("type of the update"):
        kernel.sample(SAMPLERS["one bit"], torch.ones(8, dtype=torch.int32), rng)
    with refuses("output buffer"):
        kernel.sample_clipped(SAMPLERS["one bit"], torch.ones(8), 2, 1.0, rng, out)
    assert rng.draws == []
    assert (out == 0xAA).all()


@pytest.mark.parametrize("own", [False, True])
def test_a_list_that_overflows_means_everything_is_done_again(kernel, monkeypatch, own):
    monkeypatch.setattr(host, "ROOM", 3)
    rng = FixedKey() if own else seeded_rng(8)
    steep = make_sampler(3, 2, 2.0, 3.0, -2000.0, 3000.0)  # outside the cells nothing is decided
    inputs = 300.0 * update(1003, 4)
    expected = REFERENCE.sample(steep, inputs, FixedKey() if own else seeded_rng(8))
    np.testing.assert_array_equal(kernel.sample(steep, inputs, rng), expected)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["one bit", "two bits"])
def test_tensors_of_every_type(kernel, kind, name):
    inputs = torch.tensor(update(1003, 6, np.float64)).to(kind)
    same = inputs.double().numpy()
    found = kernel.sample(SAMPLERS[name], inputs, seeded_rng(1), factor=0.5)
    expected = REFERENCE.sample(SAMPLERS[name], same, seeded_rng(1), factor=0.5)
    np.testing.assert_array_equal(found, expected)
    for order in (1, 2):
        assert kernel.norm(inputs, order) == REFERENCE.norm(same, order)


def test_norms_of_many_blocks_are_exact(kernel):
    """More than 64 blocks go through limbs; spread too wide, they come back whole."""
    inputs = update(66 * 4096 + 5, 11)
    assert kernel.norm(inputs, 2) == REFERENCE.norm(inputs, 2)
    wide = inputs.astype(np.float64)
    wide[:4096] = 1e-200
    wide[4096:8192] = 1e60
    assert kernel.norm(wide, 1) == REFERENCE.norm(wide, 1)
    assert kernel.norm(wide * 1e200, 2) == REFERENCE.norm(wide * 1e200, 2)


@pytest.mark.parametrize(
    "kind",
    [
        torch.float32,
        torch.bfloat16,
        *(pytest.param(one, marks=SLOW) for one in (torch.float16, torch.float64)),
    ],
)
def test_clipped_tensors_of_every_type_and_in_pieces(kernel, kind):
    sampler, inputs = SAMPLERS["one bit"], torch.tensor(update(6001, 22, np.float64)).to(kind)
    same = inputs.double().numpy()
    expected = np.empty(packed_size(1, 6001), np.uint8)
    REFERENCE.sample_clipped(sampler, same, 2, 0.7, FixedKey(), expected)
    out = np.full_like(expected, 0xAA)
    kernel.sample_clipped(sampler, inputs, 2, 0.7, FixedKey(), out)
    np.testing.assert_array_equal(out, expected)
    pieces = [inputs[:4097], inputs[:0], inputs[4097:5001], inputs[5001:].reshape(100, 10)]
    REFERENCE.sample_clipped(
        sampler, [same[:4097], same[4097:5001], same[5001:]], 2, 0.7, FixedKey(), expected
    )
    kernel.sample_clipped(sampler, pieces, 2, 0.7, FixedKey(), out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 4096, 4099])
@pytest.mark.parametrize("own", [pytest.param(False, marks=SLOW), True])
def test_clipped_widths(kernel, size, own):
    rng = (lambda: FixedKey()) if own else (lambda: seeded_rng(4))
    inputs, sampler = update(size, size), SAMPLERS["three bits"]
    expected, out = (
        np.empty(packed_size(3, size), np.uint8),
        np.full(packed_size(3, size), 0xAA, np.uint8),
    )
    REFERENCE.sample_clipped(sampler, inputs, 2, 0.5, rng(), expected)
    kernel.sample_clipped(sampler, torch.tensor(inputs), 2, 0.5, rng(), out)
    np.testing.assert_array_equal(out, expected)


class Meddler(FixedKey):
    """Writes to a tensor when the key is drawn: after the norm, before the codes."""

    def __init__(self, meddle):
        self.meddle = meddle

    def draw(self, count):
        self.meddle()
        return super().draw(count)


@pytest.mark.parametrize(
    ("name", "value", "at"),
    several(["one bit", "two bits", "one bit, cells"], [50.0, np.nan, np.inf], [0, 4500, -1]),
)
def test_a_tensor_that_changes_between_the_looks_is_wiped(kernel, name, value, at):
    inputs = torch.tensor(update(5003, 23), device=kernel_device())
    inputs[at] = 0.0
    bits = SAMPLERS[name].bits
    out = torch.full((packed_size(bits, 5003),), 0xAA, dtype=torch.uint8, device=inputs.device)
    rng = Meddler(lambda: inputs.__setitem__(at, value))
    with refuses("update"):
        kernel.sample_clipped(SAMPLERS[name], inputs, 2, 1.0, rng, out)
    assert not out.any()


def test_an_overflowing_list_counts_every_row_once(kernel, monkeypatch):
    monkeypatch.setattr(host, "ROOM", 3)
    steep = make_sampler(3, 2, 2.0, 3.0, -2000.0, 3000.0)  # outside the cells nothing is decided
    inputs, out, expected = (
        300.0 * update(1003, 26),
        *np.full((2, packed_size(2, 1003)), 0xAA, np.uint8),
    )
    radius = 1.1 * REFERENCE.norm(inputs, 2)
    REFERENCE.sample_clipped(steep, inputs, 2, radius, FixedKey(), expected)
    kernel.sample_clipped(steep, torch.tensor(inputs), 2, radius, FixedKey(), out)
    np.testing.assert_array_equal(out, expected)
    tensor = torch.tensor(inputs, device=kernel_device())
    rng = Meddler(lambda: tensor.mul_(2.0))
    with refuses("update"):
        kernel.sample_clipped(steep, tensor, 2, radius, rng, out)
    assert not out.any()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("size", "block"), [pytest.param(8192, 4096, marks=SLOW), (9003, 4096), (5001, 512)]
)
def test_rotated_codes_are_those_of_the_reference(kernel, own, size, block):
    """Whole blocks of 4,096 go through registers, the last two by way of memory; listed rows
    keep their values.
    """
    rng = FixedKey if own else (lambda: seeded_rng(4))
    for name, radius in (("one bit", 0.5), ("two bits", 1e4)):
        sampler, inputs = SAMPLERS[name], update(size, 31)
        expected, out = np.full((2, packed_size(sampler.bits, size)), 0xAA, np.uint8)
        REFERENCE.sample_rotated(sampler, inputs, 9, block, radius, rng(), expected)
        kernel.sample_rotated(sampler, torch.tensor(inputs), 9, block, radius, rng(), out)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("own", [False, pytest.param(True, marks=SLOW)])
def test_a_list_of_rotated_rows_that_overflows_means_another_way(kernel, monkeypatch, own):
    monkeypatch.setattr(host, "ROOM", -26)  # one row is left
    found, real = [], host._passes
    monkeypatch.setattr(
        host, "_passes", lambda *given, **more: found.append(real(*given, **more)) or found[-1]
    )
    rng = FixedKey if own else (lambda: seeded_rng(4))
    sampler, inputs = SAMPLERS["one bit"], update(24_576, 32)
    expected, out = np.full((2, packed_size(1, 24_576)), 0xAA, np.uint8)
    REFERENCE.sample_rotated(sampler, inputs, 9, 4096, 1e4, rng(), expected)
    kernel.sample_rotated(sampler, torch.tensor(inputs), 9, 4096, 1e4, rng(), out)
    np.testing.assert_array_equal(out, expected)
    assert found[0] is None


@pytest.mark.parametrize("value", [50.0, np.nan])
def test_a_tensor_that_changes_before_it_is_rotated_is_wiped(kernel, value):
    inputs = torch.tensor(update(8192, 33), device=kernel_device())
    out = torch.full((1024,), 0xAA, dtype=torch.uint8, device=inputs.device)
    with refuses("update"):
        kernel.sample_rotated(
            SAMPLERS["one bit"],
            inputs,
            9,
            4096,
            1.0,
            Meddler(lambda: inputs.__setitem__(7, value)),
            out,
        )
    assert not out.any()


def test_counting_more_payloads_than_planes_hold(kernel):
    rows = np.full((300, 5), 0xFF, np.uint8)
    total = np.zeros(40, np.int32)
    kernel.accumulate(rows, 1, np.array([0, 1]), total)
    assert (total == 300).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_one_sentence():
    code = (
        "from quietbit.errors import MissingDependency\n"
        "from quietbit.kernel.select import select\n"
        "try:\n    select('triton')\nexcept MissingDependency as error:\n    print(error)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    assert run.stdout == "The triton kernel needs an NVIDIA GPU, and torch sees none here.\n"
