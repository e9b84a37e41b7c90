"""Laws of kernels: whatever the device, the bits of the reference, and the same refusals.

Triton runs on a GPU, or in its interpreter, which takes a thousand times as long: a few operations,
and most of the others at night. Its own tests are in `kernel/test_triton.py`.
"""

from functools import cache, partial
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from core.kernel.makers import GivenWords
from core.kernel.operations import (
    LARGE,
    ONE_BIT,
    OPERATIONS,
    SAMPLERS,
    THREE_BITS,
    clipped,
    rotated,
    sampled,
    update,
)
from interpreter import interpret
from quietbit.kernel import base, cpu
from quietbit.kernel import c as native
from quietbit.kernel.base import Job, packed_size
from quietbit.kernel.expand import acceptance_limits
from quietbit.kernel.norm import Clip
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.sampler import Gain
from quietbit.kernel.select import select
from refusals import refuses

# Triton's interpreter wraps around.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
REFERENCE = ReferenceKernel()
CPU = ["cpu", "cpu with three threads", "cpu with sse2", "cpu with avx2"]
TRITON = []
QUICK = {
    "codes of 1 bits, times 0.37",
    "codes of 4 bits, times 1.0",
    "codes of too steep for a polynomial, times 1.0",
    "codes of 9 numbers",
    "codes of 1 bits, words at the thresholds",
    "codes, bfloat16",
    "norms, in parts of several types",
    "clipped, in parts of several types",
    "clipped codes of 4099 numbers",
    "clipped codes of 7 numbers",
    "rotated, words of an array",
    "rotation of 9000 in blocks of 4096",
    "rotation of 100 in blocks of None",
    "0 normals and rows",
    "1100 normals and rows",
    "seed 0 for 90 numbers",
    "sums of 200 rows of 4096",
}
if find_spec("triton") is not None and find_spec("torch") is not None:
    import torch

    TRITON = ["triton"]
    FAST = torch.cuda.is_available()
    if not FAST:
        interpret()  # before any test imports triton


@pytest.fixture
def kernel(request, monkeypatch):
    """A kernel by name, and how it runs: the best instruction set is the usual one."""
    name, _, how = request.param.partition(" ")
    if how == "with three threads":
        monkeypatch.setattr(cpu, "FEW", 64)
        yield select(name, threads=3)
    elif how:
        native.library().qb_instruction_set(native.INSTRUCTION_SETS[how.split()[1]])
        yield select(name)
        native.library().qb_instruction_set(0)
    else:
        monkeypatch.setattr(base, "BATCH", 4 if name == "triton" else base.BATCH)
        yield select(name)


FAST_KERNELS = ["reference", *CPU[:2]]
every_kernel = pytest.mark.parametrize("kernel", [*FAST_KERNELS, *TRITON], indirect=True)
fast_kernels = pytest.mark.parametrize("kernel", FAST_KERNELS, indirect=True)


def everything():
    """Every kernel with every operation."""
    found = list(product(CPU, OPERATIONS | LARGE))
    for one, name in product(TRITON, OPERATIONS):
        night = [] if FAST or name in QUICK else [pytest.mark.long]
        found.append(pytest.param(one, name, marks=night))
    return found


@cache
def expected(name):
    """What the reference gives: it looks at every threshold, and is asked once for all kernels."""
    return (OPERATIONS | LARGE)[name](REFERENCE)


@pytest.mark.parametrize(("kernel", "name"), everything(), indirect=["kernel"])
def test_every_operation_gives_the_bits_of_the_reference(kernel, name):
    assert (OPERATIONS | LARGE)[name](kernel) == expected(name)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30),
    single=st.booleans(),
    name=st.sampled_from(list(SAMPLERS)),
    factor=st.floats(1e-300, 1.0),
)
def test_any_update_is_sampled_like_the_reference(values, single, name, factor):
    inputs = np.array(values)
    if single:
        inputs = np.clip(inputs, -3e38, 3e38).astype(np.float32)
    sampler = SAMPLERS[name]
    found = sampled(select("cpu"), sampler, inputs, factor)
    assert found == sampled(REFERENCE, sampler, inputs, factor)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-1e150, 1e150), max_size=50),
    repeat=st.integers(1, 300),
    order=st.sampled_from([1, 2]),
)
def test_norms_agree_to_the_last_bit(values, repeat, order):
    inputs = np.array(values * repeat)
    assert select("cpu").norm(inputs, order) == REFERENCE.norm(inputs, order)


@every_kernel
@pytest.mark.parametrize("kind", [np.float16, "bfloat16"])
def test_every_half_precision_is_widened_exactly(kernel, kind):
    bits = np.arange(0, 2**16, 16 if kernel.name == "triton" else 1, dtype=np.uint16)
    halves, exact = bits, (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind is np.float16:
        halves = exact = bits.view(np.float16)
    finite = np.isfinite(exact)
    found = kernel.rotate(halves[finite], 0, 1, kind=np.float64)  # signs alone
    np.testing.assert_array_equal(np.abs(found), np.abs(exact[finite].astype(np.float64)))


@fast_kernels
@pytest.mark.parametrize("bits", range(1, 17))
def test_packing(kernel, bits):
    rng = np.random.default_rng(bits)
    for size in (0, 1, 5, 8, 13, 64, 1001):
        codes = rng.integers(0, 2**bits, size=size).astype(np.uint16)
        packed = kernel.pack(codes, bits)
        whole = sum(int(code) << (bits * k) for k, code in enumerate(codes))
        assert packed == whole.to_bytes(packed_size(bits, size), "little")
        np.testing.assert_array_equal(kernel.unpack(bytearray(packed), bits, size), codes)


@pytest.mark.parametrize(
    ("kernel", "bits"),
    [*product(["reference", *CPU], [1, 2, 3, 4, 5, 8, 9, 16]), *product(TRITON, [1, 3, 9])],
    indirect=["kernel"],
)
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_counting(kernel, bits, kind):
    for size in (1, 13, 64, 1001, 4133):
        rng = np.random.default_rng(size)
        codes = rng.integers(0, 2**bits, size=(17, size))
        table = rng.integers(-5000, 5000, size=2**bits)
        payloads = [REFERENCE.pack(row, bits) for row in codes]
        total = np.full(size, 7, kind)
        kernel.accumulate(iter(payloads), bits, table, total)
        np.testing.assert_array_equal(total, 7 + table[codes].sum(axis=0))


ONES = np.ones(9)
OUT = np.zeros(2, np.uint8)
LIMITS = acceptance_limits([1.0, 1.0])
NONCES, SEEDS, TOTAL = np.zeros((2, 8), np.uint8), np.zeros((2, 16), np.uint8), np.zeros(64, int)


def search(kernel, direction, edges, limits=LIMITS):
    block = seeded_rng(0).draw(1)
    return kernel.search(direction, np.array(edges), limits, block, acceptance_lower=1.0)


def sample(kernel, rng, kind=float, out=OUT):
    kernel.sample_packed(ONE_BIT, ONES.astype(kind), rng, out)


def clip(kernel, rng, order=2, radius=1.0, out=OUT):
    kernel.sample_clipped(ONE_BIT, ONES, order, radius, rng, out)


def add(kernel, _, nonces=NONCES, seeds=SEEDS, **more):
    given = {"total": TOTAL, "shift": 40} | more
    kernel.add_seeds(nonces, seeds, given["total"], count=4, shift=given["shift"])


REFUSED = [
    ("type of the update", partial(sample, kind=np.int8)),
    ("type of the update", partial(sample, kind=np.int64)),
    ("type of the update", partial(sample, kind=np.bool_)),
    ("type of the update", partial(sample, kind=np.complex64)),
    ("type of the update", partial(sample, kind=np.longdouble)),
    ("type of the update", partial(sample, kind=object)),
    ("output buffer", partial(sample, out=OUT[:1])),
    ("output buffer", partial(clip, out=OUT[:1])),
    ("radius", partial(clip, radius=0.0)),
    ("order of the norm", partial(clip, order=3)),
    ("order of the norm", lambda kernel, _: kernel.norm(ONES, 3)),
    ("block", lambda kernel, rng: kernel.sample_rotated(ONE_BIT, ONES, 9, 3, 1.0, rng, OUT)),
    ("largest code", lambda kernel, _: kernel.pack(np.array([0, 4]), 2)),
    ("smallest code", lambda kernel, _: kernel.pack(np.array([0, -1]), 2)),
    ("type of the codes", lambda kernel, _: kernel.pack(np.array([0.5]), 1)),
    ("bits", lambda kernel, _: kernel.pack(OUT, 0)),
    ("bits", lambda kernel, _: kernel.pack(OUT, 17)),
    ("length of the packed codes", lambda kernel, _: kernel.unpack(b"\x00\x00", 1, 8)),
    ("length of the packed codes", lambda kernel, _: kernel.unpack(b"abc", 1, 2**47)),
    ("padding bits", lambda kernel, _: kernel.unpack(b"\x80", 1, 7)),
    ("dimension", lambda kernel, _: kernel.unpack(b"", 1, 2**60)),
    ("length of the packed codes", lambda kernel, _: kernel.accumulate([b""], 1, [0, 1], TOTAL)),
    ("padding bits", lambda kernel, _: kernel.accumulate([b"\0\2"], 1, [0, 1], TOTAL[:9])),
    ("shape of the table", lambda kernel, _: kernel.accumulate([], 2, [0, 1], TOTAL)),
    ("total", lambda kernel, _: kernel.accumulate([], 1, [0, 1], ONES)),
    ("block", lambda kernel, _: kernel.rotate(ONES, 0, 0)),
    ("block", lambda kernel, _: kernel.rotate(ONES, 0, 3)),
    ("block", lambda kernel, _: kernel.rotate(ONES, 0, 16)),
    ("factor", lambda kernel, _: kernel.rotate(ONES, 0, factor=np.nan)),
    ("factor", lambda kernel, _: kernel.rotate(ONES, 0, factor=1.5)),
    ("update", lambda kernel, _: kernel.rotate(1e39 * ONES, 0)),
    ("update", lambda kernel, _: kernel.rotate(1e39 * ONES, 0, 4)),
    ("length", lambda kernel, _: kernel.rotate_back(np.zeros(3), 0)),
    ("values", lambda kernel, _: kernel.rotate_back(np.zeros(4, np.int64), 0)),
    ("values", lambda kernel, _: kernel.rotate_back(np.zeros(8)[::2], 0)),
    ("seed", lambda kernel, _: kernel.normals(bytes(15), 1)),
    ("count", lambda kernel, _: kernel.normals(bytes(16), -1)),
    ("nonce", lambda kernel, _: kernel.rows(bytes(9), 1, 1)),
    ("count", lambda kernel, _: kernel.rows(bytes(8), 9, 8)),
    ("size", lambda kernel, _: kernel.rows(bytes(8), 1, 2**25)),
    ("direction", lambda kernel, _: search(kernel, np.array([np.nan]), [0.5])),
    ("limits", lambda kernel, _: search(kernel, ONES, [0.0, 0.5])),
    ("edges", lambda kernel, _: search(kernel, ONES, [0.0, np.nan])),
    ("shapes of seeds and nonces", partial(add, nonces=NONCES[:1])),
    ("shapes of seeds and nonces", partial(add, seeds=SEEDS[:, :8])),
    ("types of seeds and nonces", partial(add, seeds=SEEDS.astype(np.int8))),
    ("total", partial(add, total=np.zeros(64))),
    ("shift", partial(add, shift=60)),
]


@every_kernel
@pytest.mark.parametrize(("name", "ask"), REFUSED)
def test_what_has_no_meaning_is_refused_before_a_word_is_drawn(kernel, name, ask):
    rng = GivenWords(np.zeros(9), np.zeros(9))
    with refuses(name):
        ask(kernel, rng)
    assert rng.draws == []
    assert not TOTAL.any()


@fast_kernels
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("bad", "at"), [(np.nan, 0), (np.inf, 4500), (-np.inf, -1), (np.nan, -1)])
def test_nan_and_infinity_are_refused_before_a_word_is_drawn(kernel, kind, bad, at):
    rng = GivenWords(np.zeros(9001), np.zeros(9001))
    inputs = np.ones(9001, kind)
    inputs[at] = bad
    out = np.full(packed_size(1, 9001), 0xAA, np.uint8)
    for ask in (
        lambda: kernel.sample_packed(ONE_BIT, inputs, rng, out),
        lambda: kernel.sample_clipped(ONE_BIT, inputs, 2, 1.0, rng, out),
        lambda: kernel.sample_rotated(ONE_BIT, inputs, 9, 512, 1.0, rng, out),
        lambda: kernel.norm(inputs, 1),
        lambda: kernel.norm(inputs, 2),
        lambda: kernel.rotate(inputs, 0),
        lambda: kernel.rotate(inputs, 0, 64),
    ):
        with refuses("update"):
            ask()
    assert rng.draws == []
    assert (out == 0xAA).all()


class Meddler:
    """Words of a seed; writes to the update when they are drawn, which is between the two looks."""

    def __init__(self, meddle):
        self.meddle, self.draws = meddle, []

    def draw(self, count):
        self.draws.append(count)
        self.meddle()
        return seeded_rng(1).draw(count)


@fast_kernels
@pytest.mark.parametrize("block", [None, 512, 4096])
@pytest.mark.parametrize("sampler", [ONE_BIT, SAMPLERS["5 bits, five levels"], THREE_BITS])
@pytest.mark.parametrize(
    ("kind", "length", "place", "value"),
    [
        (np.float16, 0.5, slice(None), 100.0),
        (np.float32, 1e-3, slice(None), 100.0),
        (np.float32, 1e3, slice(None), 3e4),
        (np.float64, 1e-3, 4999, np.nan),
        (np.float64, 1e-3, 4999, np.inf),
        (np.float64, 1e-3, 4999, 1e300),
    ],
)
def test_an_update_that_grows_between_the_looks_is_not_released(
    kernel, block, sampler, kind, length, place, value
):
    """What is sampled is measured itself, so it is refused; the words are spent, and nothing is
    left.
    """
    inputs = np.full(9001, length / 100).astype(kind)
    out = np.full(packed_size(sampler.bits, 9001), 0xAA, np.uint8)
    rng = Meddler(lambda: inputs.__setitem__(place, kind(value)))
    with refuses("update"):
        if block is None:
            kernel.sample_clipped(sampler, inputs, 2, 0.5, rng, out)
        else:
            kernel.sample_rotated(sampler, inputs, 9, block, 0.5, rng, out)
    assert not out.any()
    assert rng.draws == [9001]


@every_kernel
def test_a_nan_that_slips_through_is_still_randomised(kernel):
    """Written after the checks, it yields the low end's law and no undefined behaviour, until it
    is wiped.
    """
    inputs = kernel._flat(np.full(1001, np.nan, np.float32))
    for sampler in (ONE_BIT, THREE_BITS, SAMPLERS["4 bits"]):
        out = np.empty(packed_size(sampler.bits, 1001), np.uint8)
        block = seeded_rng(3).draw(1001)
        total = kernel._sample(Job(sampler, Gain.of(1.0, sampler.scale), inputs, block, out, 2))
        assert out.tobytes() == sampled(REFERENCE, sampler, np.full(1001, -1e3))
        assert not np.isfinite(total)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("radius", [0.3, 10.0, 1e6])
def test_clipped_codes_are_those_of_the_clip_factor(order, radius):
    inputs = update(5003)
    factor = Clip.of(REFERENCE.norm(inputs, order), radius, order).factor
    assert (factor == 1.0) == (radius > 1000)
    in_clips = evolve(THREE_BITS, scale=THREE_BITS.scale / radius)
    expected = sampled(REFERENCE, in_clips, inputs, factor)
    assert clipped(REFERENCE, THREE_BITS, inputs, radius, order) == expected


@pytest.mark.parametrize("radius", [0.5, 1e4])
def test_rotated_codes_are_those_of_the_rotated_update(radius):
    inputs = update(5003)
    inputs[3] = 40.0
    factor = Clip.rotated(REFERENCE.norm(inputs, 2), radius).factor
    own = REFERENCE.rotate(inputs, 9, 512, factor=factor)
    assert np.linalg.norm(own.astype(np.float64)) < radius
    in_clips = evolve(THREE_BITS, scale=THREE_BITS.scale / radius)
    expected = sampled(REFERENCE, in_clips, own)
    assert rotated(REFERENCE, THREE_BITS, inputs, 512, radius) == expected
