"""Tables and plans of masked sums: read as they were written, anything else refused."""

import pytest

from quietbit.errors import InvalidParameter
from quietbit.node.question import (
    SumPart,
    pack,
    pack_advertised,
    pack_evidence,
    pack_unmasking,
    read_places,
    sum_plan,
    sum_rows,
    unpack,
    unpack_advertised,
    unpack_evidence,
    unpack_unmasking,
    write_places,
)
from quietbit.secagg.client import Advertisement, Unmasking
from unit.secagg.kit import identity, plan_of


def test_tables():
    table = {1: b"ab", 7: b"cd"}
    assert unpack(pack(table), 2, "it") == table
    assert unpack(b"", 2, "it") == {}
    assert pack({2: b""}) == b"\2\0\0\0"
    for data in (b"\1", b"\0\0\0\0ab", b"\2\0\0\0ab\2\0\0\0cd", b"\2\0\0\0ab\1\0\0\0cd", b"\xff\xff\xff\xffab"):
        with pytest.raises(InvalidParameter, match="table of it"):
            unpack(data, 2, "it")
    for plan in (plan_of(5, 4), plan_of(5, 4, active=False), plan_of(5, 4, near=(3, 2))):
        choice, signature = b"c" * 16 if plan.neighbours else b"", b"z" * 64 if plan.active else b""
        found = {i: Advertisement(b"s" * 32, b"m" * 32, b"d" * 32, choice, signature) for i in (1, 2)}
        assert unpack_advertised(plan, pack_advertised(found)) == found
        evidence = frozenset({1, 2, 4, 5}), {1: b"a" * 64, 4: b"b" * 64}, {2: b"e" * 64}
        expected = evidence if plan.active else (evidence[0], {}, {})
        assert unpack_evidence(plan, pack_evidence(plan, *evidence)) == expected
        with pytest.raises(InvalidParameter):
            unpack_evidence(plan, pack_evidence(plan, *evidence)[:-1])
    shares = Unmasking({1: b"p" * 16}, {2: b"q" * 16, 3: b"r" * 16})
    assert unpack_unmasking(pack_unmasking(shares)) == shares
    for data in (b"", b"\1\0\0", b"\4\0\0\0", b"\1\0\0\0a", pack_unmasking(shares)[:-1]):
        with pytest.raises(InvalidParameter):
            unpack_unmasking(data)


def part(clients, threshold=4, server="honest-but-curious", **near):
    return SumPart("keys", clients, 1, threshold, 2, server, **near)


def test_a_plan_is_of_its_run_round_and_size():
    run = 2**63 + 5
    plan = sum_plan(run, 3, part(6), 42, 1, None)
    assert (plan.clients, plan.threshold, plan.dimension, plan.largest_code, plan.bits) == (6, 4, 42, 1, 3)
    others = [
        sum_plan(1, 3, part(6), 42, 1, None), sum_plan(run, 4, part(6), 42, 1, None),
        sum_plan(run, 3, part(7), 42, 1, None), sum_plan(run, 3, part(6), 43, 1, None),
        sum_plan(run, 3, part(6, 5), 42, 1, None),
        sum_plan(run, 3, part(6, neighbours=3, share_threshold=2), 42, 1, None),
    ]  # fmt: skip
    assert plan.context not in [other.context for other in others]
    assert plan.most_colluders == 3
    for clients in (3, 8):
        with pytest.raises(InvalidParameter, match="from the threshold, 4, to 7"):
            sum_plan(1, 1, part(clients), 42, 1, None)
    members = tuple(identity(number).public for number in range(1, 7))
    for clients in (3, 6):
        with pytest.raises(InvalidParameter, match="from the threshold, 4, to 5"):
            sum_plan(1, 1, part(clients, server="active"), 42, 1, members[:clients])
    assert sum_plan(1, 1, part(5, server="active"), 42, 1, members[:5]).most_colluders == 2
    small = sum_plan(1, 1, part(6, neighbours=22, share_threshold=15), 42, 1, None)
    assert small.neighbours is None  # fewer clients than neighbours: everybody deals with everybody


def test_rows_change_with_run_and_round():
    assert len({sum_rows(run, number) for run in range(20) for number in range(1, 21)}) == 400
    assert sum_rows(7, 3) == sum_rows(7, 3) < 2**64


def test_places():
    assert read_places(write_places([5, 0, 99_999]), 3) == (5, 0, 99_999)
    for data in (b"", bytes(11), bytes(16)):
        with pytest.raises(InvalidParameter, match="list of members"):
            read_places(data, 3)


def test_steps_belong_to_their_server():
    assert SumPart("confirm", 5, 1, 4, 2, "active").active
    for step in ("confirm", "identity", "more"):
        with pytest.raises(InvalidParameter, match="step of the sum"):
            SumPart(step, 5, 1, 4, 2, "honest-but-curious")
    with pytest.raises(InvalidParameter, match="server of the sum"):
        SumPart("keys", 5, 1, 4, 2, "kind")
