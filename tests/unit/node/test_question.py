"""Tables and plans of masked sums: read as they were written, anything else refused."""

import pytest

from quietbit._validate import InvalidParameter
from quietbit.node.question import (
    GUARD,
    pack,
    pack_keys,
    pack_unmasking,
    sum_plan,
    unpack,
    unpack_keys,
    unpack_unmasking,
)
from quietbit.secagg.client import PublicKeys, Unmasking


def test_tables():
    table = {1: b"ab", 7: b"cd"}
    assert unpack(pack(table), 2, "it") == table
    assert unpack(b"", 2, "it") == {}
    assert pack({2: b""}) == b"\2\0\0\0"
    for data in (b"\1", b"\0\0\0\0ab", b"\2\0\0\0ab\2\0\0\0cd", b"\2\0\0\0ab\1\0\0\0cd", b"\xff\xff\xff\xffab"):
        with pytest.raises(InvalidParameter, match="table of it"):
            unpack(data, 2, "it")
    keys = {1: PublicKeys(b"s" * 32, b"m" * 32), 2: PublicKeys(b"t" * 32, b"n" * 32)}
    assert unpack_keys(pack_keys(keys)) == keys
    shares = Unmasking({1: b"p" * 33}, {2: b"q" * 33, 3: b"r" * 33})
    assert unpack_unmasking(pack_unmasking(shares)) == shares
    for data in (b"", b"\1\0\0", b"\4\0\0\0", b"\1\0\0\0a", pack_unmasking(shares)[:-1]):
        with pytest.raises(InvalidParameter):
            unpack_unmasking(data)


def test_a_plan_is_of_its_run_round_and_size():
    plan = sum_plan(2**63 + 5, 3, 4, 6, 42, 1)
    assert (plan.clients, plan.threshold, plan.dimension, plan.largest_code, plan.bits) == (6, 4, 42 + GUARD, 1, 3)
    run = 2**63 + 5
    others = [(1, 3, 4, 6, 42), (run, 4, 4, 6, 42), (run, 3, 4, 7, 42), (run, 3, 4, 6, 43), (run, 3, 5, 6, 42)]
    assert plan.context not in [sum_plan(*other, 1).context for other in others]
    assert plan.most_colluders == 1
    for clients in (3, 8):
        with pytest.raises(InvalidParameter, match="from the threshold, 4, to 7"):
            sum_plan(1, 1, 4, clients, 42, 1)
