"""Laws of kernels: whatever the device, the codes, bytes, norms and counts of the reference.

Triton runs on a GPU, or in its interpreter, which takes a thousand times as long: on updates that
are shorter, and with fewer designs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from core.kernel.makers import FixedKey, GivenWords, make_sampler
from interpreter import interpret
from quietbit.kernel import cpu
from quietbit.kernel.base import Job, packed_size
from quietbit.kernel.norm import Clip
from quietbit.kernel.reference import ReferenceKernel, thresholds
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.sampler import Gain
from quietbit.kernel.select import select
from refusals import refuses

# Triton's interpreter wraps around.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
REFERENCE = ReferenceKernel()
NAMES = ["reference", "cpu", "cpu with three threads"]
if find_spec("triton") is not None and find_spec("torch") is not None:
    import torch

    NAMES.append("triton")
    if not torch.cuda.is_available():
        interpret()  # before any test imports triton
SAMPLERS = [
    make_sampler(levels, bits, epsilon, scale, low, high)
    for bits in range(1, 9)
    for levels, epsilon, scale, low, high in ((2, 1.0, 0.5, 0.0, 1.0), (5, 6.0, 0.8, -0.3, 1.3))
]
SAMPLERS += [
    make_sampler(2, 1, 5.0, 0.25, 0.25, 0.75),  # a polynomial of high degree
    make_sampler(2, 1, 30.0, 0.5, 0.0, 1.0),  # too steep for a polynomial
    make_sampler(2, 1, 0.01, 0.5, 0.0, 1.0),
    make_sampler(40, 2, 20.0, 0.5, 0.0, 1.0),
    make_sampler(3, 2, 2.0, 3.0, -2000.0, 3000.0),  # a clamp beyond what the table covers
    make_sampler(2, 1, 1.0, 0.5, 0.5, 0.5),  # a clamp to one point
    make_sampler(2, 1, 3.0, 0.8, -0.1, 1.1),
]


@pytest.fixture(params=NAMES)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "cpu with three threads":
        monkeypatch.setattr(cpu, "FEW", 64)
        return select("cpu", threads=3)
    return select(request.param)


def each(values: Iterable[Any], few: Iterable[Any] = ()) -> list[Any]:
    """Return every kernel with every value, but Triton with a few, of which its interpreter has
    most at night: it has tests of its own.
    """
    found: list[Any] = [(name, value) for name in NAMES if name != "triton" for value in values]
    if "triton" not in NAMES:
        return found
    slow = () if torch.cuda.is_available() else (pytest.mark.long,)
    for place, value in enumerate(few):
        found.append(pytest.param("triton", value, marks=slow if place > 1 else ()))
    return found


def length(kernel: Any, size: int) -> int:
    """Return the size of an update that a kernel samples in a moment."""
    return size // 5 if kernel.name == "triton" else size


def over(name: str, values: Iterable[Any], few: Iterable[Any] = ()) -> Any:
    """Give a test every kernel, and a value by this name."""
    return pytest.mark.parametrize(("kernel", name), each(values, few), indirect=["kernel"])


def update(size: int, seed: int, kind: Any = np.float32) -> Any:
    """Mostly small values, some at and beyond the clamps, zeros and subnormals."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=size) * 10.0 ** rng.uniform(-4, 0.5, size=size)
    values[::17] = 0.0
    values[5::31] = np.finfo(np.float32).smallest_subnormal
    values[7::29] = 1.0
    values[11::37] = -1.0
    return values.astype(kind)


@cache
def sampled(index: int, factor: float, size: int) -> tuple[Any, Any]:
    """An update and the reference's codes: it looks at every threshold, and is asked once for
    all kernels.
    """
    inputs = update(size, index)
    return inputs, REFERENCE.sample(SAMPLERS[index], inputs, seeded_rng(index), factor=factor)


@over("index", range(len(SAMPLERS)), few=(0, 1, 2, 4, 6, 8, 14, 17, 20, 21, 22))
def test_codes_are_those_of_the_reference(kernel: Any, index: int) -> None:
    size = length(kernel, 5003 if SAMPLERS[index].bits < 6 else 1203)
    for factor in (1.0, 0.37):
        inputs, expected = sampled(index, factor, size)
        found = kernel.sample(SAMPLERS[index], inputs, seeded_rng(index), factor=factor)
        np.testing.assert_array_equal(found, expected)


def given_words() -> GivenWords:
    rng = np.random.default_rng(4)
    return GivenWords(rng.integers(0, 2**16, 9001), rng.integers(0, 2**48, 9001))


@pytest.mark.parametrize("source", [FixedKey, lambda: seeded_rng(3), given_words])
@over("index", [0, 3, 5, 17], few=(0, 5))
def test_words_of_every_source(kernel: Any, source: Any, index: int) -> None:
    """Several tiles and an odd end, clipped and rotated."""
    sampler = SAMPLERS[index]
    inputs = update(9001, 2)
    expected, out = np.full((2, packed_size(sampler.bits, 9001)), 0xAA, np.uint8)
    REFERENCE.sample_clipped(sampler, inputs, 2, 0.5, source(), expected)
    kernel.sample_clipped(sampler, inputs, 2, 0.5, source(), out)
    np.testing.assert_array_equal(out, expected)
    REFERENCE.sample_rotated(sampler, inputs, 9, 512, 0.5, source(), expected)
    kernel.sample_rotated(sampler, inputs, 9, 512, 0.5, source(), out)
    np.testing.assert_array_equal(out, expected)


@over("index", [0, 1, 2, 3, 7, 16, 17, 19, 20], few=(0, 1, 2))
def test_words_at_the_thresholds(kernel: Any, index: int) -> None:
    """Every coordinate's word within one unit, of 2^-16 or of 2^-64, of one of its thresholds."""
    sampler = SAMPLERS[index]
    inputs = update(length(kernel, 3001), 100 + index)
    rng = np.random.default_rng(index)
    upper, lower = thresholds(sampler, inputs, Gain.of(0.9, sampler.scale))
    rows = np.arange(inputs.size)
    which = rng.integers(0, upper.shape[1], size=inputs.size)
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


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, ">f4", "bfloat16"])
@over("index", [0, 3, 5], few=(0, 3))
def test_types_of_the_update(kernel: Any, kind: Any, index: int) -> None:
    values = update(length(kernel, 1003), index, np.float64)
    if kind == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32) >> np.uint32(16)
        inputs, same = (
            bits.astype(np.uint16),
            (bits << np.uint32(16)).view(np.float32).astype(np.float64),
        )
    else:
        inputs = values.astype(kind)
        same = inputs.astype(np.float64)
    expected = REFERENCE.sample(SAMPLERS[index], same, seeded_rng(1), factor=0.5)
    np.testing.assert_array_equal(
        kernel.sample(SAMPLERS[index], inputs, seeded_rng(1), factor=0.5), expected
    )
    assert kernel.norm(inputs, 2) == REFERENCE.norm(same, 2)


@pytest.mark.parametrize("bfloat", [False, True])
def test_every_half_precision_is_widened_exactly(kernel: Any, bfloat: bool) -> None:
    bits = np.arange(0, 2**16, 16 if kernel.name == "triton" else 1, dtype=np.uint16)
    if bfloat:
        halves = bits
        exact = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        halves = bits.view(np.float16)
        exact = halves
    finite = np.isfinite(exact)
    found = kernel.rotate(halves[finite], 0, 1, kind=np.float64)  # signs alone
    np.testing.assert_array_equal(np.abs(found), np.abs(exact[finite].astype(np.float64)))
    np.testing.assert_array_equal(found, REFERENCE.rotate(exact[finite], 0, 1, kind=np.float64))


@over("index", [0, 2, 4, 6], few=(0, 2, 4))
def test_widths(kernel: Any, index: int) -> None:
    sampler = SAMPLERS[index]
    sizes = (0, 1, 7, 8, 9, 2051)
    if kernel.name != "triton":
        sizes = (*sizes, 63, 64, 65, 2047, 2048, 2049, 4099)
    for size in sizes:
        inputs = update(size, size)
        expected = REFERENCE.sample(sampler, inputs, seeded_rng(2))
        out = np.full(packed_size(sampler.bits, size), 0xAA, np.uint8)
        kernel.sample_packed(sampler, inputs, seeded_rng(2), out)
        assert out.tobytes() == REFERENCE.pack(expected, sampler.bits), size
        np.testing.assert_array_equal(kernel.sample(sampler, inputs, seeded_rng(2)), expected)


def test_shapes_layouts_and_lists(kernel: Any) -> None:
    sampler = SAMPLERS[4]
    whole = update(length(kernel, 6000), 3).reshape(-1, 120)
    for view in (whole[:, ::3], whole.T, whole[::-1], whole[0, 0]):
        expected = REFERENCE.sample(sampler, view.copy(), seeded_rng(4))
        found = kernel.sample(sampler, view, seeded_rng(4))
        assert found.shape == view.shape
        np.testing.assert_array_equal(found, expected)
        assert kernel.norm(view, 1) == kernel.norm(np.ascontiguousarray(view), 1)
    parts = [whole[:, ::3], whole[0].astype(np.float64), whole[0, :0], whole[3].astype(np.float16)]
    flat = np.concatenate([part.reshape(-1).astype(np.float64) for part in parts])
    expected = REFERENCE.sample(sampler, flat, seeded_rng(5))
    np.testing.assert_array_equal(kernel.sample(sampler, parts, seeded_rng(5)), expected)
    assert kernel.norm(parts, 2) == REFERENCE.norm(parts, 2)


EXTREME = [(1e300, 0.5, 3e-301), (1e-38, 1e38, 1.0), (1e-300, 1e-9, 1.0)]


@over("extreme", EXTREME, few=EXTREME[:1])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("bits", [1, 2])
def test_extreme_magnitudes(kernel: Any, extreme: Any, kind: Any, bits: int) -> None:
    magnitude, scale, factor = extreme
    sampler = make_sampler(2, bits, 2.0, scale)
    with np.errstate(over="ignore", under="ignore"):
        inputs = (update(length(kernel, 2001), 9, np.float64) * magnitude).astype(kind)
    inputs = np.where(np.isfinite(inputs), inputs, kind(0))
    expected = REFERENCE.sample(sampler, inputs, seeded_rng(6), factor=factor)
    np.testing.assert_array_equal(
        kernel.sample(sampler, inputs, seeded_rng(6), factor=factor), expected
    )


@over("bits", [1, 3, 8], few=(1, 2))
def test_a_gain_no_double_can_hold(kernel: Any, bits: int) -> None:
    """Nothing is decided from it; more coordinates than the list of undecided ones is settled
    at.
    """
    sampler, size = make_sampler(2, bits, 2.0, 1e-140), 501 if bits == 8 else 9001
    inputs = update(length(kernel, size), 1, np.float64) * 1e300
    expected = REFERENCE.sample(sampler, inputs, seeded_rng(6), factor=1e-170)
    np.testing.assert_array_equal(
        kernel.sample(sampler, inputs, seeded_rng(6), factor=1e-170), expected
    )
    nothing = kernel.sample(sampler, inputs, seeded_rng(6), factor=0.0)
    np.testing.assert_array_equal(nothing, REFERENCE.sample(sampler, 0 * inputs, seeded_rng(6)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@over("kind", [np.float16, np.float32, np.float64], few=(np.float32,))
def test_nan_and_infinity_are_refused_before_a_word_is_drawn(
    kernel: Any, bad: float, kind: Any
) -> None:
    rng = GivenWords(np.zeros(9001), np.zeros(9001))
    for at in (0, 4500, -1):
        inputs = np.ones(9001, kind)
        inputs[at] = bad
        with refuses("update"):
            kernel.sample(SAMPLERS[0], inputs, rng)
        with refuses("update"):
            kernel.sample_packed(SAMPLERS[2], inputs, rng, np.empty(packed_size(2, 9001), np.uint8))
        for order in (1, 2):
            with refuses("update"):
                kernel.norm(inputs, order)
    assert rng.draws == []


def test_a_nan_that_slips_through_is_still_randomised(kernel: Any) -> None:
    """Written after the checks, it yields the low end's law and no undefined behaviour, until it
    is wiped.
    """
    size = length(kernel, 4001)
    inputs = kernel._flat(np.full(size, np.nan, np.float32))
    for sampler in (SAMPLERS[0], SAMPLERS[3], SAMPLERS[4]):
        low, out = np.full(size, -1e3), np.empty(packed_size(sampler.bits, size), np.uint8)
        expected = REFERENCE.pack(REFERENCE.sample(sampler, low, seeded_rng(8)), sampler.bits)
        block = seeded_rng(8).draw(size)
        total = kernel._sample(Job(sampler, Gain.of(1.0, sampler.scale), inputs, block, out, 2))
        assert out.tobytes() == expected
        assert not np.isfinite(total)


def test_other_types_and_buffers_are_refused(kernel: Any) -> None:
    rng = GivenWords(np.zeros(8), np.zeros(8))
    for kind in (np.int8, np.int64, np.bool_, np.complex64, np.longdouble, object):
        inputs = np.ones(8, kind)
        with refuses("type of the update"):
            kernel.sample(SAMPLERS[0], inputs, rng)
    with refuses("output buffer"):
        kernel.sample_packed(SAMPLERS[0], np.ones(8), rng, np.empty(2, np.uint8))
    for factor in (-0.1, 1.0000001, np.nan):
        with refuses("factor"):
            kernel.sample(SAMPLERS[0], np.ones(8), rng, factor=factor)
    with refuses("order of the norm"):
        kernel.norm(np.ones(3), 3)
    assert rng.draws == []


@pytest.mark.parametrize("bits", range(1, 17))
def test_packing(kernel: Any, bits: int) -> None:
    rng = np.random.default_rng(bits)
    for size in (0, 1, 5, 8, 13, 64, 1001):
        codes = rng.integers(0, 2**bits, size=size).astype(np.uint16)
        packed = kernel.pack(codes, bits)
        whole = sum(int(code) << (bits * k) for k, code in enumerate(codes))
        assert packed == whole.to_bytes(packed_size(bits, size), "little")
        np.testing.assert_array_equal(kernel.unpack(packed, bits, size), codes)
        np.testing.assert_array_equal(kernel.unpack(bytearray(packed), bits, size), codes)


def test_packing_refuses_what_does_not_fit(kernel: Any) -> None:
    with refuses("largest code"):
        kernel.pack(np.array([0, 4]), 2)
    with refuses("smallest code"):
        kernel.pack(np.array([0, -1]), 2)
    for bits in (0, 17):
        with refuses("bits"):
            kernel.pack(np.zeros(3, np.uint8), bits)
    with refuses("length of the packed codes"):
        kernel.unpack(b"\x00\x00", 1, 8)
    with refuses("padding bits"):
        kernel.unpack(b"\x80", 1, 7)
    with refuses("dimension"):
        kernel.unpack(b"", 1, 2**60)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30),
    single=st.booleans(),
    index=st.integers(0, len(SAMPLERS) - 1),
    factor=st.floats(1e-300, 1.0),
    seed=st.integers(0, 2**40),
)
@pytest.mark.parametrize("name", ["cpu"])
def test_any_update_is_sampled_like_the_reference(
    name: str, values: list[float], single: bool, index: int, factor: float, seed: int
) -> None:
    inputs = np.array(values)
    if single:
        inputs = np.clip(inputs, -3e38, 3e38).astype(np.float32)
    expected = REFERENCE.sample(SAMPLERS[index], inputs, seeded_rng(seed), factor=factor)
    np.testing.assert_array_equal(
        select(name).sample(SAMPLERS[index], inputs, seeded_rng(seed), factor=factor), expected
    )


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-1e150, 1e150), max_size=50),
    repeat=st.integers(1, 300),
    order=st.sampled_from([1, 2]),
)
@pytest.mark.parametrize("name", ["cpu"])
def test_norms_agree_to_the_last_bit(
    name: str, values: list[float], repeat: int, order: Any
) -> None:
    inputs = np.array(values * repeat)
    assert select(name).norm(inputs, order) == REFERENCE.norm(inputs, order)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 8, 9, 16])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_counting(kernel: Any, bits: int, kind: Any) -> None:
    for size in (1, 13, 64, 1001, 4133):
        rng = np.random.default_rng(size)
        codes = rng.integers(0, 2**bits, size=(17, size))
        table = rng.integers(-5000, 5000, size=2**bits)
        payloads = [REFERENCE.pack(row, bits) for row in codes]
        total = np.full(size, 7, kind)
        kernel.accumulate(iter(payloads), bits, table, total)
        np.testing.assert_array_equal(total, 7 + table[codes].sum(axis=0))


def test_counting_refuses_bad_payloads_and_totals(kernel: Any) -> None:
    table, total = np.array([0, 1]), np.zeros(9, np.int64)
    with refuses("length of the packed codes"):
        kernel.accumulate([b"\x00"], 1, table, total)
    with refuses("padding bits"):
        kernel.accumulate([b"\x00\x02"], 1, table, total)
    with refuses("shape of the table"):
        kernel.accumulate([], 2, table, total)
    with refuses("total"):
        kernel.accumulate([], 1, table, np.zeros(9))
    kernel.accumulate([], 1, table, total)
    assert not total.any()


class Meddler:
    """Words like a seed's; writes to the update at the moment they are drawn, that is between
    the two looks.
    """

    def __init__(self, meddle: Any) -> None:
        self.meddle, self.draws = meddle, 0

    def draw(self, count: int) -> Any:
        self.draws += 1
        self.meddle()
        return seeded_rng(1).draw(count)


@pytest.mark.parametrize("order", [1, 2])
@over("index", [0, 3, 4, 17], few=(0, 4))
@pytest.mark.parametrize("radius", [0.3, 10.0, 1e6])
def test_clipped_codes_are_those_of_the_clip_factor(
    kernel: Any, order: Any, index: int, radius: float
) -> None:
    sampler, inputs = SAMPLERS[index], update(length(kernel, 5003), index)
    in_clips = evolve(sampler, scale=sampler.scale / radius)
    factor = Clip.of(REFERENCE.norm(inputs, order), radius, order).factor
    assert (factor == 1.0) == (radius > 1000)
    expected = REFERENCE.pack(
        REFERENCE.sample(in_clips, inputs, seeded_rng(5), factor=factor), sampler.bits
    )
    parts = [inputs[:701], inputs[701:701], inputs[701:].astype(np.float64)]
    for same in (inputs, inputs.astype(np.float64), parts):
        out = np.full(packed_size(sampler.bits, inputs.size), 0xAA, np.uint8)
        if same is parts:  # blocks begin with each array, so the norm may differ in its last bit
            factor = Clip.of(REFERENCE.norm(parts, order), radius, order).factor
            expected = REFERENCE.pack(
                REFERENCE.sample(in_clips, inputs, seeded_rng(5), factor=factor), sampler.bits
            )
        kernel.sample_clipped(sampler, same, order, radius, seeded_rng(5), out)
        assert out.tobytes() == expected


@cache
def rotated(index: int, size: int, block: int, radius: float) -> tuple[Any, bytes]:
    """An update and the reference's bytes, which are the same for all kernels."""
    sampler, inputs = SAMPLERS[index], update(size, index)
    inputs[3] = 40.0
    own = REFERENCE.rotate(
        inputs, 9, block, factor=Clip.rotated(REFERENCE.norm(inputs, 2), radius).factor
    )
    assert np.linalg.norm(own.astype(np.float64)) < radius
    in_clips = evolve(sampler, scale=sampler.scale / radius)
    return inputs, REFERENCE.pack(REFERENCE.sample(in_clips, own, seeded_rng(5)), sampler.bits)


@pytest.mark.parametrize("index", [0, 3, 4])
@over(
    "shape",
    [(5003, 4096), (5003, 64), (150_001, 4096), (131_072, 2048), (70_000, 65_536)],
)
def test_rotated_codes_are_those_of_the_rotated_update(
    kernel: Any, index: int, shape: tuple[int, int]
) -> None:
    sampler = SAMPLERS[index]
    size, block = shape
    for radius in (0.5, 1e4):
        inputs, expected = rotated(index, size, block, radius)
        for same in (inputs, [inputs[:1001], inputs[1001:].astype(np.float64)]):
            out = np.full(packed_size(sampler.bits, size), 0xAA, np.uint8)
            kernel.sample_rotated(sampler, same, 9, block, radius, seeded_rng(5), out)
            if same is inputs or radius > 100:
                assert out.tobytes() == expected


@pytest.mark.parametrize("value", [100.0, np.nan, np.inf])
@over("size", [5001, 150_001])
def test_an_update_that_grows_while_it_is_rotated_is_not_released(
    kernel: Any, value: float, size: int
) -> None:
    """Written to after its norm is known: what is sampled is measured itself, so it is refused,
    and nothing is left.
    """
    inputs = np.full(size, 1e-3, np.float32)
    out = np.full(packed_size(1, size), 0xAA, np.uint8)
    rng = Meddler(lambda: inputs.__setitem__(slice(None), value))
    with refuses("update"):
        kernel.sample_rotated(SAMPLERS[0], inputs, 9, 4096, 1.0, rng, out)
    assert not out.any()


def _released_nothing(
    kernel: Any, sampler: Any, inputs: Any, radius: float, rng: Any, out: Any
) -> None:
    """Every kernel looks twice, so it refuses and leaves nothing."""
    with refuses("update"):
        kernel.sample_clipped(sampler, inputs, 2, radius, rng, out)
    assert not out.any()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@over("index", [0, 4, 17])
@pytest.mark.parametrize("radius", [0.5, 1e3])
def test_an_update_that_grows_between_the_looks_is_not_released(
    kernel: Any, kind: Any, index: int, radius: float
) -> None:
    """A write between measuring and sampling is refused, and nothing is left."""
    sampler, inputs = SAMPLERS[index], update(9001, 2).astype(kind)
    out = np.full(packed_size(sampler.bits, 9001), 0xAA, np.uint8)
    rng = Meddler(lambda: inputs.__setitem__(slice(None), kind(100.0)))
    _released_nothing(kernel, sampler, inputs, radius, rng, out)
    assert rng.draws == 1


@over("value", [np.nan, np.inf, 1e300])
def test_a_nan_between_the_looks_is_not_released(kernel: Any, value: float) -> None:
    inputs = np.full(5001, 1e-3)
    out = np.full(packed_size(1, 5001), 0xAA, np.uint8)
    rng = Meddler(lambda: inputs.__setitem__(4999, value))
    _released_nothing(kernel, SAMPLERS[0], inputs, 1.0, rng, out)


@over("size", [9001])
def test_measuring_and_sampling_apart_release_what_they_should_not(kernel: Any, size: int) -> None:
    """The same write against `norm` and `sample_packed`, as updates were sent before: it goes
    out unclipped.
    """
    inputs = update(size, 2)
    factor = Clip.of(kernel.norm(inputs, 2), 0.5, 2).factor
    out, unclipped = np.empty((2, packed_size(1, size)), np.uint8)
    rng = Meddler(lambda: inputs.__setitem__(slice(None), 100.0))
    rng.meddle()
    kernel.sample_packed(SAMPLERS[0], inputs, rng, out, factor=factor)
    kernel.sample_packed(
        SAMPLERS[0], np.full(size, 100.0, np.float32), seeded_rng(1), unclipped, factor=factor
    )
    np.testing.assert_array_equal(out, unclipped)


CLIPPED = [(1e300, 1.0), (1e-300, 1e-301), (1e-300, 1.0), (0.0, 1.0), (1e200, 1e-200)]


@over("clipped", CLIPPED, few=CLIPPED[:1])
def test_extreme_updates_are_clipped(kernel: Any, clipped: Any) -> None:
    magnitude, radius = clipped
    sampler, inputs = make_sampler(2, 1, 2.0, 0.5), update(length(kernel, 3001), 4, np.float64)
    inputs *= magnitude
    out, expected = np.full((2, packed_size(1, inputs.size)), 0xAA, np.uint8)
    kernel.sample_clipped(sampler, inputs, 2, radius, seeded_rng(2), out)
    REFERENCE.sample_clipped(sampler, inputs, 2, radius, seeded_rng(2), expected)
    np.testing.assert_array_equal(out, expected)


def test_clipping_refuses_before_a_word_is_drawn(kernel: Any) -> None:
    rng, out = GivenWords(np.zeros(9), np.zeros(9)), np.empty(2, np.uint8)
    with refuses("update"):
        kernel.sample_clipped(SAMPLERS[0], np.array([1.0] * 8 + [np.nan]), 2, 1.0, rng, out)
    with refuses("output buffer"):
        kernel.sample_clipped(SAMPLERS[0], np.ones(9), 2, 1.0, rng, np.empty(3, np.uint8))
    with refuses("radius"):
        kernel.sample_clipped(SAMPLERS[0], np.ones(9), 2, 0.0, rng, out)
    with refuses("order of the norm"):
        kernel.sample_clipped(SAMPLERS[0], np.ones(9), 3, 1.0, rng, out)
    assert rng.draws == []
