"""Tables of masked sums: anything but what was written is refused, without allocating it."""

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the all extra")

from federation.secagg.kit import plan_of
from quietbit.errors import InvalidParameter
from quietbit.secagg.codec import (
    Advertisement,
    Unmasking,
    read_dealt,
    read_evidence,
    read_inbox,
    read_places,
    read_roster,
    write_evidence,
    write_inbox,
    write_places,
    write_roster,
    write_tables,
)
from refusals import refuses

EVIDENCE = ({1, 2, 4, 5}, {1: b"a" * 64, 4: b"b" * 64}, {2: b"e" * 64})


@pytest.mark.parametrize("plan", [plan_of(11, 8), plan_of(11, 8, active=False)])
def test_everything_is_read_as_it_was_written_and_nothing_else_is(plan):
    signature = b"z" * 64 if plan.active else b""
    roster = {i: Advertisement(b"s" * 32, b"m" * 32, b"d" * 32, signature) for i in (1, 2, 4, 9)}
    dealt = {1: b"a" * 80, 5: b"b" * 80}
    shares = Unmasking({1: b"p" * 16}, {2: b"q" * 16, 3: b"r" * 16})
    cases = [
        (read_roster, write_roster(plan, roster), roster),
        (read_dealt, write_tables(plan, dealt), dealt),
        (read_inbox, write_inbox(plan, {1, 9}, dealt), [{1: b"", 9: b""}, dealt]),
        (
            read_evidence,
            write_evidence(plan, *EVIDENCE),
            [dict.fromkeys(EVIDENCE[0], b""), *EVIDENCE[1:]],
        ),
        (Unmasking.read, shares.to_bytes(plan), shares),
    ]
    for read, data, value in cases:
        assert read(plan, data) == value
        beyond = data[:1] + bytes([data[1] | 0x80]) + data[2:]  # a twelfth client
        for bad in (b"", data[:1], data[:-1], data + b"\0", data[1:], beyond):
            with pytest.raises(InvalidParameter):
                read(plan, bad)


def test_mutations_are_refused_or_read_as_what_they_say():
    """Flipped bits give an InvalidParameter, or the one value that these bytes encode."""
    plan, rng = plan_of(5, 4), np.random.default_rng(3)
    data = write_evidence(plan, *EVIDENCE)
    refused = 0
    for _ in range(500):
        bad = bytearray(data)
        for place in rng.choice([0, 1, 130, *range(len(data))], rng.integers(1, 4)):
            bad[place] ^= 1 << rng.integers(8)
        try:
            assert write_evidence(plan, *read_evidence(plan, bytes(bad))) == bad
        except InvalidParameter:
            refused += 1
    assert 10 < refused < 490


def test_places():
    assert read_places(write_places([5, 0, 99_999]), 3) == (5, 0, 99_999)
    for data in (b"", bytes(11), bytes(16)):
        with refuses("length of the list of members", len(data)):
            read_places(data, 3)
