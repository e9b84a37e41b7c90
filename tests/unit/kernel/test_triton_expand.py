"""Expansion in Triton's interpreter, or on a GPU where there is one: the reference's normals and sums, bit for bit."""

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

from quietbit.kernel import triton_expand
from quietbit.kernel.expand import ROWS_KEY, accumulate, normals, start_state, strata
from quietbit.kernel.quantile import quantile_table_torch

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's own arithmetic wraps around
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def payloads(number):
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (number, 8), dtype=np.uint8), rng.integers(0, 256, (number, 16), dtype=np.uint8)


def on_device(array):
    return torch.from_numpy(array.copy()).to(DEVICE)


@pytest.mark.parametrize("count", [1, 130, 1100])
def test_normals_are_the_references(count):
    _, seeds = payloads(2)
    found = triton_expand.expand_normals(on_device(seeds).view(torch.int32), count, quantile_table_torch(DEVICE))
    expected = np.stack([normals(key.tobytes(), count) for key in seeds])
    assert found.cpu().numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize(("count", "size"), [(5, 64), (200, 1 << 12)])
def test_sums_are_the_references(count, size):
    nonces, seeds = payloads(3)
    weights, expected = np.array([1, -1, 5]), np.zeros(size, np.int64)
    accumulate(nonces, seeds, expected, count=count, shift=44, weights=weights)
    total = torch.zeros(size, dtype=torch.int64, device=DEVICE)
    triton_expand.add_payloads(
        on_device(nonces).view(torch.int32),
        on_device(seeds).view(torch.int32),
        on_device(weights),
        on_device(strata(count, size)),
        count,
        2.0**44,
        quantile_table_torch(DEVICE),
        start_state(ROWS_KEY),
        total,
    )
    np.testing.assert_array_equal(total.cpu().numpy(), expected)
