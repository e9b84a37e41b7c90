"""What only the Triton kernel has: tensors, lists of undecided rows, and a GPU that may be missing.

It runs in Triton's interpreter, or on a GPU where there is one; `laws/test_kernels.py` compares its
operations with the reference.
"""

from importlib.util import find_spec

import numpy as np
import pytest

from interpreter import interpret

if find_spec("triton") is None or find_spec("torch") is None:
    pytest.skip("the triton kernel needs the packages triton and torch", allow_module_level=True)

import torch

if not torch.cuda.is_available():
    interpret()

from core.kernel.makers import FixedKey, GivenWords, make_sampler
from core.kernel.operations import ONE_BIT, STEEP, TWO_BITS, clipped, norms, rotated, update
from pairs import pairs
from quietbit.errors import MissingDependency
from quietbit.kernel.base import packed_size
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.select import select
from quietbit.kernel.triton import kernel as host
from refusals import refuses

# The interpreter's own arithmetic wraps around.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
FAST = torch.cuda.is_available()
SLOW = () if FAST else (pytest.mark.long,)
REFERENCE = ReferenceKernel()
DEVICE = "cuda" if FAST else "cpu"
UNDECIDED = make_sampler(3, 2, 2.0, 3.0, -2000.0, 3000.0)  # outside the cells nothing is decided
KINDS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(scope="module")
def kernel():
    return select("triton")


def test_a_tensor_takes_the_payload(kernel):
    inputs = update(2051, 1)
    expected = clipped(REFERENCE, ONE_BIT, inputs, source="a key")
    larger = torch.full((len(expected) + 1,), 0xAA, dtype=torch.uint8, device=DEVICE)
    tensor = torch.tensor(inputs).requires_grad_()
    kernel.sample_clipped(ONE_BIT, tensor, 2, 0.5, FixedKey(), larger[1:])
    assert larger.cpu().numpy().tobytes() == b"\xaa" + expected


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_tensors_are_refused_before_a_word_is_drawn(kernel, bad):
    rng, inputs = GivenWords(np.zeros(5003), np.zeros(5003)), torch.ones(5003, dtype=torch.float64)
    inputs[17] = bad
    out = torch.full((packed_size(1, 5003),), 0xAA, dtype=torch.uint8)
    for name, given, room in (
        ("update", inputs.float(), out),
        ("type of the update", torch.ones(8, dtype=torch.int32), out[:1]),
        ("type of the update", torch.ones(8).to_sparse(), out[:1]),
        ("output buffer", torch.ones(8), out),
    ):
        with refuses(name):
            kernel.sample_clipped(ONE_BIT, given, 2, 1.0, rng, room)
    assert rng.draws == []
    assert (out == 0xAA).all()


@pytest.mark.parametrize("kind", [pytest.param(KINDS[0], marks=SLOW), *KINDS[1:]])
def test_tensors_of_every_type_and_in_pieces(kernel, kind):
    inputs = torch.tensor(update(5001, 22, np.float64)).to(kind)
    pieces = [inputs[:4097], inputs[:0], inputs[4097:4501], inputs[4501:].reshape(50, 10)]
    same = [piece.double().numpy() for piece in pieces]
    assert clipped(kernel, ONE_BIT, pieces) == clipped(REFERENCE, ONE_BIT, same)
    assert norms(inputs)(kernel) == norms(inputs.double().numpy())(REFERENCE)


def test_norms_of_many_blocks_are_exact(kernel):
    """More than 64 blocks go through limbs; spread too wide, they come back whole."""
    wide = update(66 * 4096 + 5, 11, np.float64)
    assert kernel.norm(wide, 2) == REFERENCE.norm(wide, 2)
    wide[:4096] = 1e-200
    wide[4096:8192] = 1e60
    assert kernel.norm(wide, 1) == REFERENCE.norm(wide, 1)
    assert kernel.norm(wide * 1e200, 2) == REFERENCE.norm(wide * 1e200, 2)


class Meddler(FixedKey):
    """Writes to a tensor when the key is drawn: after the norm, before the codes."""

    def __init__(self, meddle):
        self.meddle = meddle

    def draw(self, count):
        self.meddle()
        return super().draw(count)


@pytest.mark.parametrize(
    ("sampler", "block", "value", "at"),
    pairs([ONE_BIT, TWO_BITS, STEEP], [None, 4096], [50.0, np.nan, np.inf], [0, 4500, -1]),
)
def test_a_tensor_that_changes_between_the_looks_is_wiped(kernel, sampler, block, value, at):
    inputs = torch.tensor(update(8192, 23), device=DEVICE)
    inputs[at] = 0.0
    out = torch.full((packed_size(sampler.bits, 8192),), 0xAA, dtype=torch.uint8, device=DEVICE)
    rng = Meddler(lambda: inputs.__setitem__(at, value))
    with refuses("update"):
        if block is None:
            kernel.sample_clipped(sampler, inputs, 2, 1.0, rng, out)
        else:
            kernel.sample_rotated(sampler, inputs, 9, block, 1.0, rng, out)
    assert not out.any()


@pytest.mark.parametrize("source", ["a key", "a seed"])
def test_a_list_that_overflows_means_everything_is_done_again(kernel, monkeypatch, source):
    """Every row counts once in the second look, also when it comes twice."""
    monkeypatch.setattr(host, "ROOM", 3)
    inputs = 300.0 * update(1003, 26)
    radius = 1.1 * REFERENCE.norm(inputs, 2)
    expected = clipped(REFERENCE, UNDECIDED, inputs, radius, source=source)
    assert clipped(kernel, UNDECIDED, torch.tensor(inputs), radius, source=source) == expected
    tensor = torch.tensor(inputs, device=DEVICE)
    out = np.full(packed_size(2, 1003), 0xAA, np.uint8)
    rng = Meddler(lambda: tensor.mul_(2.0))
    with refuses("update"):
        kernel.sample_clipped(UNDECIDED, tensor, 2, radius, rng, out)
    assert not out.any()


@pytest.mark.parametrize("source", [pytest.param("a key", marks=SLOW), "a seed"])
@pytest.mark.parametrize("size", [pytest.param(8192, marks=SLOW), 9003])
def test_rotated_codes_are_those_of_the_reference(kernel, source, size):
    """Whole blocks of 4,096 go through registers, the last two by way of memory; listed rows
    keep their values.
    """
    inputs = update(size, 31)
    for sampler, radius in ((ONE_BIT, 0.5), (TWO_BITS, 1e4)):
        expected = rotated(REFERENCE, sampler, inputs, 4096, radius, source)
        assert rotated(kernel, sampler, torch.tensor(inputs), 4096, radius, source) == expected


@pytest.mark.parametrize("source", ["a seed", pytest.param("a key", marks=SLOW)])
def test_a_list_of_rotated_rows_that_overflows_means_another_way(kernel, monkeypatch, source):
    monkeypatch.setattr(host, "ROOM", -26)  # one row is left
    found, real = [], host._passes
    monkeypatch.setattr(
        host, "_passes", lambda *given, **more: found.append(real(*given, **more)) or found[-1]
    )
    inputs = update(24_576, 32)
    expected = rotated(REFERENCE, ONE_BIT, inputs, 4096, 1e4, source)
    assert rotated(kernel, ONE_BIT, torch.tensor(inputs), 4096, 1e4, source) == expected
    assert found[0] is None


def test_counting_more_payloads_than_planes_hold(kernel):
    rows = np.full((300, 5), 0xFF, np.uint8)
    total = np.zeros(40, np.int32)
    kernel.accumulate(rows, 1, np.array([0, 1]), total)
    assert (total == 300).all()


def test_a_missing_gpu_is_one_sentence(monkeypatch):
    import triton  # after `interpret`

    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingDependency) as missing:
        select("triton")
    assert str(missing.value) == "The triton kernel needs an NVIDIA GPU, and torch sees none here."
