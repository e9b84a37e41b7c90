from __future__ import annotations

import numpy as np
import pytest

from quietbit._validate import InvalidParameter
from quietbit.secagg.plan import MASKED_HEADER_SIZE, SumPlan, bits_for, masked_size


@pytest.mark.parametrize(("clients", "dimension"), [(2, 1), (3, 9), (1000, 67), (100_000, 3), (7, 70_001)])
def test_packed_size_is_exact_and_packing_is_undone(clients: int, dimension: int) -> None:
    plan = SumPlan(clients, clients // 2 + 1, dimension, b"r")
    values = np.random.default_rng(1).integers(0, 2**plan.bits, dimension, dtype=np.uint32)
    data = plan.pack(2, values)
    assert len(data) == plan.payload_size == MASKED_HEADER_SIZE + -(-bits_for(clients) * dimension // 8)
    assert (plan.unpack(2, data) == values).all()
    assert MASKED_HEADER_SIZE == 24


def test_bits_are_those_of_the_largest_sum() -> None:
    assert [bits_for(n) for n in (1, 2, 3, 4, 7, 8, 1000, 100_000)] == [1, 2, 2, 3, 3, 4, 10, 17]


def test_codes_of_more_bits_need_a_wider_modulus() -> None:
    assert [bits_for(1000, 2**b - 1) for b in (1, 2, 3, 4)] == [10, 12, 13, 14]
    plan = SumPlan(10, 6, 100, b"r", largest_code=3)
    assert plan.bits == 5
    assert plan.payload_size == masked_size(10, 100, 3) == MASKED_HEADER_SIZE + 63
    assert plan.context != SumPlan(10, 6, 100, b"r").context
    with pytest.raises(InvalidParameter, match="largest_code"):
        SumPlan(10, 6, 100, b"r", largest_code=0)


def test_refusals() -> None:
    for threshold in (0, 5, 11):
        with pytest.raises(InvalidParameter, match="threshold"):
            SumPlan(10, threshold, 4, b"r")
    with pytest.raises(InvalidParameter, match="round_name"):
        SumPlan(10, 6, 4, b"")
    plan = SumPlan(3, 2, 3, b"r")
    data = plan.pack(1, np.zeros(3, dtype=np.uint32))
    for bad in (data[:-1], data + b"\0", b"X" + data[1:], data[:-1] + b"\xc0"):
        with pytest.raises(InvalidParameter, match="masked vector"):
            plan.unpack(1, bad)
    with pytest.raises(InvalidParameter, match="header"):
        plan.unpack(2, data)
