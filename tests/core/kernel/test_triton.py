"""The triton kernel in Triton's interpreter, or on a GPU where there is one: the reference's
codes, norms, counts.
"""

from __future__ import annotations

import math
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

from core.kernel.makers import GivenWords, make_sampler
from pairs import pairs
from quietbit.kernel.base import Job, packed_size
from quietbit.kernel.reference import ReferenceKernel, thresholds
from quietbit.kernel.rng import DeviceBlock, seeded_rng
from quietbit.kernel.sampler import Gain
from quietbit.kernel.select import select
from quietbit.kernel.triton import kernel as host
from refusals import refuses

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # the interpreter's own arithmetic wraps around
FAST = torch.cuda.is_available()  # the interpreter takes a thousand times as long
several = product if FAST else pairs
SLOW = () if FAST else (pytest.mark.long,)
REFERENCE = ReferenceKernel()
SAMPLERS = {
    "one bit": make_sampler(2, 1, 1.0),
    "one bit, centred": make_sampler(2, 1, 3.0, 0.8, -0.1, 1.1),
    "one bit, cells": make_sampler(2, 1, 30.0),
    "one bit, five levels": make_sampler(5, 1, 6.0, 0.8, -0.3, 1.3),
    "two bits": make_sampler(2, 2, 1.0),
    "three bits": make_sampler(2, 3, 3.0),
    "four bits": make_sampler(2, 4, 1.0),
    "four bits, five levels": make_sampler(5, 4, 6.0, 0.8, -0.3, 1.3),
    "five bits": make_sampler(2, 5, 1.0),
    "eight bits": make_sampler(2, 8, 1.0),
    "a clamp beyond the cells": make_sampler(3, 2, 2.0, 3.0, -2000.0, 3000.0),
    "a clamp to one point": make_sampler(2, 1, 1.0, 0.5, 0.5, 0.5),
}


class FixedKey:
    def draw(self, count):
        return DeviceBlock(count, tuple(0x9E3779B9 * (k + 1) & 0xFFFFFFFF for k in range(8)))


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


@pytest.mark.parametrize("name", SAMPLERS)
def test_codes_are_those_of_the_reference(kernel, name):
    inputs = update(2003 if SAMPLERS[name].bits < 8 else 203, 1)
    for factor in (1.0, 0.37) if FAST or name in ("one bit", "two bits") else (0.37,):
        expected = REFERENCE.sample(SAMPLERS[name], inputs, seeded_rng(3), factor=factor)
        found = kernel.sample(SAMPLERS[name], inputs, seeded_rng(3), factor=factor)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "name",
    [
        "one bit",
        "three bits",
        *(pytest.param(one, marks=SLOW) for one in ("one bit, cells", "two bits", "four bits")),
    ],
)
def test_words_made_in_the_kernel_are_the_generators(kernel, name):
    """Same key, same codes as the reference with the words numpy makes: more than one program,
    an odd end.
    """
    inputs = update(9001 if FAST else 5001, 2)
    expected = REFERENCE.sample(SAMPLERS[name], inputs, FixedKey(), factor=0.5)
    np.testing.assert_array_equal(
        kernel.sample(SAMPLERS[name], inputs, FixedKey(), factor=0.5), expected
    )


@pytest.mark.parametrize(
    "name", ["one bit", "one bit, five levels", "two bits", pytest.param("four bits", marks=SLOW)]
)
def test_words_at_the_thresholds(kernel, name):
    """Every coordinate's word within one unit, of 2^-16 or of 2^-64, of one of its thresholds."""
    sampler, inputs = SAMPLERS[name], update(1501 if FAST else 601, 100)
    rng = np.random.default_rng(5)
    upper, lower = thresholds(sampler, inputs, Gain.of(0.9, sampler.scale))
    rows, which = np.arange(inputs.size), rng.integers(0, upper.shape[1], size=inputs.size)
    whole = [
        int(u) * 2**48 + int(v) for u, v in zip(upper[rows, which], lower[rows, which], strict=True)
    ]
    steps = rng.choice([-(2**48), -1, 0, 1, 2**48], size=inputs.size)
    aimed = [
        min(2**64 - 1, max(0, value + int(step))) for value, step in zip(whole, steps, strict=True)
    ]
    rng = GivenWords([value >> 48 for value in aimed], [value & (2**48 - 1) for value in aimed])
    full = [
        [int(u) * 2**48 + int(v) for u, v in zip(a, b, strict=True)]
        for a, b in zip(upper, lower, strict=True)
    ]
    expected = [sum(value >= edge for edge in row) for value, row in zip(aimed, full, strict=True)]
    np.testing.assert_array_equal(kernel.sample(sampler, inputs, rng, factor=0.9), expected)


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


@pytest.mark.parametrize(
    ("name", "size"),
    [("one bit", size) for size in (0, 1, 7, 8, 9, 1024, 2048, 2051)]
    + [(name, size) for name in ("two bits", "three bits") for size in (1, 9, 2051)],
)
def test_widths_and_buffers(kernel, name, size):
    sampler, inputs = SAMPLERS[name], update(size, size)
    expected = REFERENCE.pack(REFERENCE.sample(sampler, inputs, seeded_rng(2)), sampler.bits)
    out = np.full(packed_size(sampler.bits, size), 0xAA, np.uint8)
    kernel.sample_packed(sampler, inputs, seeded_rng(2), out)
    assert out.tobytes() == expected
    larger = torch.full((out.size + 1,), 0xAA, dtype=torch.uint8)
    kernel.sample_packed(sampler, torch.tensor(inputs), seeded_rng(2), larger[1:])
    assert larger.numpy().tobytes() == b"\xaa" + expected


@pytest.mark.parametrize(
    ("magnitude", "scale", "factor"),
    [
        (1e300, 0.5, 3e-301),
        (1e-38, 1e38, 1.0),
        (1e-300, 1e-9, 1.0),
        (1e300, 1e-140, 1e-170),
        (1.0, 0.5, 0.0),
    ],
)
@pytest.mark.parametrize("bits", [1, 2])
def test_extreme_magnitudes(kernel, magnitude, scale, factor, bits):
    sampler = make_sampler(2, bits, 2.0, scale)
    inputs = update(501, 9, np.float64) * magnitude
    expected = REFERENCE.sample(sampler, inputs, seeded_rng(6), factor=factor)
    np.testing.assert_array_equal(
        kernel.sample(sampler, inputs, seeded_rng(6), factor=factor), expected
    )


def test_shapes_layouts_lists_and_bfloat16_patterns(kernel):
    sampler, whole = SAMPLERS["three bits"], update(1200, 3).reshape(10, 120)
    for view in (whole[:, ::3], whole.T, whole[::-1], whole[0, 0]):
        expected = REFERENCE.sample(sampler, view.copy(), seeded_rng(4))
        found = kernel.sample(sampler, view, seeded_rng(4))
        assert found.shape == view.shape
        np.testing.assert_array_equal(found, expected)
    parts = [whole[:, ::3], whole[0].astype(np.float64), whole[0, :0], whole[3].astype(np.float16)]
    expected = REFERENCE.sample(sampler, parts, seeded_rng(5))
    np.testing.assert_array_equal(kernel.sample(sampler, parts, seeded_rng(5)), expected)
    assert kernel.norm(parts, 2) == REFERENCE.norm(parts, 2)
    tensors = [torch.tensor(np.ascontiguousarray(part)) for part in parts]
    np.testing.assert_array_equal(kernel.sample(sampler, tensors, seeded_rng(5)), expected)
    bits = (whole.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    expected = REFERENCE.sample(sampler, bits, seeded_rng(5))
    np.testing.assert_array_equal(kernel.sample(sampler, bits, seeded_rng(5)), expected)


def test_norms_of_many_blocks_are_exact(kernel):
    """More than 64 blocks go through limbs; spread too wide, they come back whole."""
    inputs = update(66 * 4096 + 5, 11)
    assert kernel.norm(inputs, 2) == REFERENCE.norm(inputs, 2)
    wide = inputs.astype(np.float64)
    wide[:4096] = 1e-200
    wide[4096:8192] = 1e60
    assert kernel.norm(wide, 1) == REFERENCE.norm(wide, 1)
    assert kernel.norm(wide * 1e200, 2) == REFERENCE.norm(wide * 1e200, 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_refusals_before_a_word_is_drawn(kernel, bad):
    rng, inputs = GivenWords(np.zeros(5001), np.zeros(5001)), np.ones(5001, np.float32)
    inputs[4500] = bad
    with refuses("update"):
        kernel.sample(SAMPLERS["one bit"], inputs, rng)
    with refuses("update"):
        kernel.norm(inputs, 2)
    with refuses("type of the update"):
        kernel.sample(SAMPLERS["one bit"], np.ones(8, np.int32), rng)
    with refuses("type of the update"):
        kernel.sample(SAMPLERS["one bit"], torch.ones(8, dtype=torch.int32), rng)
    with refuses("output buffer"):
        kernel.sample_packed(SAMPLERS["one bit"], np.ones(8), rng, np.empty(2, np.uint8))
    with refuses("factor"):
        kernel.sample(SAMPLERS["one bit"], np.ones(8), rng, factor=1.5)
    assert rng.draws == []


def test_a_nan_that_slips_through_is_still_randomised(kernel):
    for name in ("one bit", "one bit, five levels", "two bits"):
        sampler, block = SAMPLERS[name], seeded_rng(8).draw(505)
        expected = REFERENCE.pack(
            REFERENCE.sample(sampler, np.full(505, -1e3), seeded_rng(8)), sampler.bits
        )
        nothing, out = (
            kernel._flat(np.full(505, np.nan, np.float32)),
            np.empty(packed_size(sampler.bits, 505), np.uint8),
        )
        total = kernel._sample(Job(sampler, Gain.of(1.0, sampler.scale), nothing, block, out, 2))
        assert out.tobytes() == expected
        assert not math.isfinite(total)


@pytest.mark.parametrize(
    ("own", "name", "ball"),
    several(
        [False, True],
        ["one bit", "one bit, five levels", "two bits", "three bits"],
        [(2, 0.25), (1, 3.0), (2, 1e9)],
    ),
)
def test_clipped_codes_are_those_of_the_reference(kernel, own, name, ball):
    order, radius = ball
    rng = (lambda: FixedKey()) if own else (lambda: seeded_rng(4))
    sampler, inputs = SAMPLERS[name], update(4211, 21)
    expected = np.empty(packed_size(sampler.bits, 4211), np.uint8)
    REFERENCE.sample_clipped(sampler, inputs, order, radius, rng(), expected)
    out = np.full_like(expected, 0xAA)
    kernel.sample_clipped(sampler, torch.tensor(inputs), order, radius, rng(), out)
    np.testing.assert_array_equal(out, expected)
    if FAST or name == "one bit":
        on_device = torch.full((out.size,), 0xAA, dtype=torch.uint8, device=kernel_device())
        kernel.sample_clipped(
            sampler, torch.tensor(inputs).requires_grad_(), order, radius, rng(), on_device
        )
        np.testing.assert_array_equal(on_device.cpu().numpy(), expected)


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


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_clipping_on_the_device_refuses(kernel, bad):
    inputs = torch.tensor(update(5003, 24, np.float64))
    inputs[17] = bad
    out = np.full(packed_size(1, 5003), 0xAA, np.uint8)
    with refuses("update"):
        kernel.sample_clipped(SAMPLERS["one bit"], inputs.float(), 2, 1.0, FixedKey(), out)
    assert (out == 0xAA).all()  # nothing was drawn


@pytest.mark.parametrize(
    ("magnitude", "radius"),
    [(1e300, 1.0), (1e-300, 1e-301), (0.0, 1.0), (1e-120, 1e-121), (1e140, 1e-140)],
)
def test_extreme_updates(kernel, magnitude, radius):
    inputs = update(2001, 25, np.float64) * magnitude
    expected, out = np.full((2, packed_size(1, 2001)), 0xAA, np.uint8)
    REFERENCE.sample_clipped(SAMPLERS["one bit"], inputs, 2, radius, FixedKey(), expected)
    kernel.sample_clipped(SAMPLERS["one bit"], torch.tensor(inputs), 2, radius, FixedKey(), out)
    np.testing.assert_array_equal(out, expected)


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
    tensor = torch.tensor(inputs)
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


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 8, 9, 16])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("size", [1, 13, 1001])
def test_counting(kernel, bits, kind, size):
    rng = np.random.default_rng(size)
    codes, table = (
        rng.integers(0, 2**bits, size=(17, size)),
        rng.integers(-5000, 5000, size=2**bits),
    )
    payloads = [REFERENCE.pack(row, bits) for row in codes]
    total = np.full(size, 7, kind)
    kernel.accumulate(iter(payloads), bits, table, total)
    np.testing.assert_array_equal(total, 7 + table[codes].sum(axis=0))
    np.testing.assert_array_equal(kernel.unpack(payloads[3], bits, size), codes[3])


def test_counting_more_payloads_than_planes_hold(kernel):
    rows = np.full((300, 5), 0xFF, np.uint8)
    total = np.zeros(40, np.int32)
    kernel.accumulate(rows, 1, np.array([0, 1]), total)
    assert (total == 300).all()


def test_counting_refuses_bad_payloads_and_totals(kernel):
    table, total = np.array([0, 1]), np.zeros(9, np.int64)
    with refuses("length of the packed codes"):
        kernel.accumulate([b"\x00"], 1, table, total)
    with refuses("padding bits"):
        kernel.accumulate([b"\x00\x02"], 1, table, total)
    kernel.accumulate([], 1, table, total)
    assert not total.any()


def test_packing_and_the_name(kernel):
    codes = np.arange(13) % 8
    assert kernel.pack(codes, 3) == REFERENCE.pack(codes, 3)
    np.testing.assert_array_equal(kernel.unpack(REFERENCE.pack(codes, 3), 3, 13), codes)
    assert kernel.name == "triton"


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
