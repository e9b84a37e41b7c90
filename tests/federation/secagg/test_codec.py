"""Tables of masked sums: anything but what was written is refused, without allocating it."""

import resource

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the all extra")

from federation.secagg.kit import plan_of
from quietbit.errors import InvalidParameter
from quietbit.secagg.codec import (
    Advertisement,
    Unmasking,
    decode,
    encode,
    numbered,
    pack_evidence,
    pack_inbox,
    pack_roster,
    read_places,
    unpack_dealt,
    unpack_evidence,
    unpack_inbox,
    unpack_roster,
    write_places,
)
from refusals import refuses


@pytest.mark.parametrize("plan", [plan_of(5, 4), plan_of(5, 4, active=False)])
def test_everything_is_read_as_it_was_written(plan):
    signature = b"z" * 64 if plan.active else b""
    roster = {i: Advertisement(b"s" * 32, b"m" * 32, b"d" * 32, signature) for i in (1, 2, 4, 5)}
    assert unpack_roster(plan, pack_roster(roster)) == roster
    dealt = {1: b"a" * 80, 5: b"b" * 80}
    assert unpack_dealt(encode(dealt)) == dealt
    assert unpack_inbox(plan, pack_inbox(plan, {1, 2, 5}, dealt)) == ({1, 2, 5}, dealt)
    evidence = frozenset({1, 2, 4, 5}), {1: b"a" * 64, 4: b"b" * 64}, {2: b"e" * 64}
    assert unpack_evidence(plan, pack_evidence(plan, *evidence)) == evidence
    shares = Unmasking({1: b"p" * 16}, {2: b"q" * 16, 3: b"r" * 16})
    assert Unmasking.read(shares.to_bytes()) == shares
    written = (
        pack_roster(roster),
        pack_inbox(plan, {1, 2}, dealt),
        pack_evidence(plan, *evidence),
        shares.to_bytes(),
    )
    readers = unpack_roster, unpack_inbox, unpack_evidence, lambda _, data: Unmasking.read(data)
    for data, read in zip(written, readers, strict=True):
        for bad in (b"", data[:-1], data + b"\0", data[1:], encode([]), encode([data]), encode(0)):
            with pytest.raises(InvalidParameter):
                read(plan, bad)


def test_mutations_are_refused_or_read_as_what_they_say():
    """Flipped bits give an InvalidParameter, or the one value that these bytes encode."""
    plan, rng = plan_of(5, 4), np.random.default_rng(3)
    data = pack_evidence(plan, {1, 2, 4, 5}, {1: b"a" * 64, 4: b"b" * 64}, {2: b"e" * 64})
    refused = 0
    for _ in range(2000):
        bad = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            bad[place] ^= 1 << rng.integers(8)
        try:
            assert pack_evidence(plan, *unpack_evidence(plan, bytes(bad))) == bad
        except InvalidParameter:
            refused += 1
    assert 50 < refused < 1950


def test_one_form_and_nothing_that_was_only_claimed():
    table = {1: b"ab", 7: b"cd"}
    assert numbered(decode(encode(table), "it"), 2, "it") == table
    assert encode({7: b"cd", 1: b"ab"}) == encode(table)
    for bad in (
        {0: b"ab"},
        {100_001: b"ab"},
        {1: b"a"},
        {1: 2},
        {1: "ab"},
        {True: b"ab"},
        {1.0: b"ab"},
        [b"ab"],
        {-1: b"ab"},
    ):
        with pytest.raises(InvalidParameter):
            numbered(decode(encode(bad), "it"), 2, "it")
    claims = [
        head + size.to_bytes(8, "big")
        for head in (b"\x5b", b"\x9b", b"\xbb")
        for size in (2**31, 2**62)
    ]
    forms = [
        b"\x18\x01",
        b"\x9f\xff",
        b"\x5f\x41a\xff",
        b"\xa2\x01\x01\x01\x01",
        b"\xa2\x02\x02\x01\x01",
        b"\x01\x02",
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for bad in (
        b"",
        *claims,
        *forms,
        b"\x81" * 100_000,
        b"\xff" * 10,
        b"\xc0\x61a",
        b"\xd9\x01\x02\x81\x81\x01",
    ):
        with refuses("it"):
            decode(bad, "it")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_places():
    assert read_places(write_places([5, 0, 99_999]), 3) == (5, 0, 99_999)
    for data in (b"", bytes(11), bytes(16)):
        with refuses("length of the list of members", len(data)):
            read_places(data, 3)
