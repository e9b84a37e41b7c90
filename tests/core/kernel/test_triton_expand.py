"""Expansion in Triton's interpreter, or on a GPU where there is one: the reference's normals and
sums, bit for bit.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from interpreter import interpret

if find_spec("triton") is None or find_spec("torch") is None:
    pytest.skip("the triton kernel needs the packages triton and torch", allow_module_level=True)

import torch

if not torch.cuda.is_available():
    interpret()

from quietbit.kernel.expand import acceptance_limits
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.select import select

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # the interpreter's own arithmetic wraps around
REFERENCE = ReferenceKernel()


@pytest.fixture(scope="module")
def kernel():
    return select("triton")


def payloads(number):
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (number, 8), dtype=np.uint8), rng.integers(
        0, 256, (number, 16), dtype=np.uint8
    )


@pytest.mark.parametrize("count", [0, 1, 130, 1100])
def test_normals_and_rows_are_the_references(kernel, count):
    seed, nonce = bytes(range(16)), bytes(range(8))
    assert kernel.normals(seed, count).tobytes() == REFERENCE.normals(seed, count).tobytes()
    if count:
        assert (
            kernel.rows(nonce, count, 1 << 12).tobytes()
            == REFERENCE.rows(nonce, count, 1 << 12).tobytes()
        )


@pytest.mark.parametrize(("count", "size"), [(5, 64), (200, 1 << 12)])
def test_sums_are_the_references(kernel, count, size):
    nonces, seeds = payloads(3)
    expected, found = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for one, total in ((REFERENCE, expected), (kernel, found)):
        one.add_seeds(nonces, seeds, total, count=count, shift=44)
    np.testing.assert_array_equal(found, expected)


def test_the_same_seed_is_found(kernel):
    direction = np.random.default_rng(0).normal(size=130)
    direction /= np.linalg.norm(direction)
    given = (direction, np.array([1.2]), acceptance_limits([0.3, 1.0]))
    for start in range(
        3 if torch.cuda.is_available() else 1
    ):  # 64 candidates at once: slow in the interpreter
        found = [
            one.search(*given, seeded_rng(start).draw(1), acceptance_lower=0.95)
            for one in (kernel, REFERENCE)
        ]
        assert found[0] == found[1]


@pytest.mark.parametrize(("size", "block"), [(1, 1), (5, 4), (100, 64), (5000, 4096), (9000, 8192)])
def test_rotations_are_the_references(kernel, size, block):
    vector = np.random.default_rng(size).normal(size=size)
    vector[::3] = 0.0
    for kind, factor in ((np.float32, 1.0), (np.float64, 0.37)):
        given = vector.astype(kind)
        for name, chosen in (("rotate", (5,)), ("rotate", (5, block))):
            expected = getattr(REFERENCE, name)(given, *chosen, factor=factor, kind=kind)
            found = getattr(kernel, name)(given, *chosen, factor=factor, kind=kind)
            assert found.tobytes() == expected.tobytes()
            back = getattr(REFERENCE, name + "_back")(expected.copy(), *chosen)
            assert getattr(kernel, name + "_back")(found, *chosen).tobytes() == back.tobytes()
    half = torch.from_numpy(vector).to(torch.bfloat16)
    there = half.to("cuda") if torch.cuda.is_available() else half
    found = kernel.rotate(there, 5, block, factor=0.3).cpu().numpy()
    assert (
        found.tobytes()
        == REFERENCE.rotate(half.view(torch.uint16).numpy(), 5, block, factor=0.3).tobytes()
    )
