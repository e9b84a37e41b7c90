"""The torch kernel on tensors: devices, bfloat16, totals on the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quietbit.errors import InvalidParameter
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.torch import TorchKernel
from unit.kernel.makers import make_sampler

KERNEL, REFERENCE = TorchKernel(), ReferenceKernel()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_give_the_codes_of_their_values(kind: torch.dtype) -> None:
    sampler = make_sampler(3, 2, 4.0)
    values = torch.tensor(np.random.default_rng(0).normal(size=(30, 41))).to(kind)
    found = KERNEL.sample(sampler, values.T, seeded_rng(3))
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.uint8
    assert found.shape == (41, 30)
    same = values.T.double().numpy()
    np.testing.assert_array_equal(found.numpy(), REFERENCE.sample(sampler, same, seeded_rng(3)))
    assert KERNEL.norm(values.T, 2) == REFERENCE.norm(same, 2)


def test_lists_of_tensors_are_one_vector() -> None:
    sampler = make_sampler(2, 1, 1.0)
    parts = [
        torch.ones(3, 5),
        torch.zeros(0),
        torch.full((7,), -0.25, dtype=torch.bfloat16, requires_grad=True),
    ]
    flat = np.concatenate([np.ones(15), np.full(7, -0.25)])
    found = KERNEL.sample(sampler, parts, seeded_rng(1))
    np.testing.assert_array_equal(found.numpy(), REFERENCE.sample(sampler, flat, seeded_rng(1)))
    assert KERNEL.norm(parts, 1) == REFERENCE.norm(flat, 1)


def test_totals_may_be_tensors() -> None:
    codes = np.random.default_rng(1).integers(0, 4, size=(5, 21))
    total = torch.zeros(21, dtype=torch.int64)
    payloads = [REFERENCE.pack(row, 2) for row in codes]
    assert KERNEL.accumulate(payloads, 2, np.array([3, -1, 4, 10]), total) == 5
    np.testing.assert_array_equal(total.numpy(), np.array([3, -1, 4, 10])[codes].sum(axis=0))


def test_packing_takes_tensors() -> None:
    codes = torch.arange(32, dtype=torch.uint8)
    assert KERNEL.pack(codes, 5) == REFERENCE.pack(codes.numpy(), 5)


def test_whole_number_tensors_are_refused() -> None:
    for update in (torch.ones(3, dtype=torch.int64), [torch.ones(3), np.ones(3)]):
        with pytest.raises(InvalidParameter, match="update"):
            KERNEL.sample(make_sampler(), update, seeded_rng(1))
