"""The streaming mean: bad payloads never reach it, and the caller says what becomes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.mechanism.makers import MECHANISMS, update
from path import packed
from quietbit.errors import InvalidPayload
from quietbit.kernel.rng import seeded_rng
from quietbit.wire.payload import Header
from quietbit.wire.uplink import Uplink
from refusals import refuses

MECHANISM = MECHANISMS["imvu one bit l2"]
UPLINK = Uplink(MECHANISM)
WORDS = seeded_rng(3)
GOOD = [UPLINK.send(update(MECHANISM.ball, seed), WORDS) for seed in range(40)]
OTHER = Uplink(MECHANISMS["imvu one bit l1 beta 8"]).send(
    update(MECHANISMS["imvu one bit l1 beta 8"].ball), WORDS
)


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 16
    return bytes(changed)


BAD = [
    b"",
    GOOD[0][:-1],
    GOOD[0] + b"\0",
    flipped(GOOD[0], 70),
    flipped(GOOD[0], 4),
    flipped(GOOD[0], 30),
    OTHER,
]


def test_bad_payloads_are_skipped_counted_and_leave_no_trace() -> None:
    mixed = [part for pair in zip(GOOD, BAD * 6, strict=False) for part in pair]
    found = UPLINK.collect(iter(mixed), on_error="skip")
    assert (found.count, found.refused) == (40, 40)
    assert np.array_equal(found.mean, UPLINK.receive(GOOD))


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_a_bad_payload_is_fatal_unless_the_caller_says_otherwise(bad: bytes) -> None:
    with pytest.raises(InvalidPayload, match="Payload 2"):
        UPLINK.receive([GOOD[0], GOOD[1], bad, GOOD[2]])


def test_an_aggregator_goes_on_after_a_refusal() -> None:
    aggregator = UPLINK.aggregator()
    for payload in GOOD[:20]:
        aggregator.add(payload)
    before = aggregator.mean()
    for bad in BAD:
        with pytest.raises(InvalidPayload):
            aggregator.add(bad)
    assert (aggregator.count, aggregator.refused) == (20, len(BAD))
    assert np.array_equal(aggregator.mean(), before)
    for payload in GOOD[20:]:
        aggregator.add(payload)
    assert np.array_equal(aggregator.mean(), UPLINK.receive(GOOD))


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidPayload, match="0 were refused"):
        UPLINK.receive([])
    with pytest.raises(InvalidPayload, match="7 were refused"):
        UPLINK.receive(BAD, on_error="skip")


def test_too_many_payloads_are_refused() -> None:
    with refuses("number of payloads", 4):
        Uplink(MECHANISM, max_payloads=3).receive(GOOD[:4], on_error="skip")


@pytest.mark.parametrize("choice", ["ignore", None, True])
def test_another_on_error_is_refused_before_anything_is_read(choice: Any) -> None:
    def untouched() -> Any:
        raise AssertionError("read")
        yield b""

    with refuses("on_error", choice):
        UPLINK.receive(untouched(), on_error=choice)


def test_something_that_is_no_payload_is_never_skipped() -> None:
    with refuses("payload", "int"):
        UPLINK.receive([GOOD[0], 17], on_error="skip")


def test_every_payload_counts_once_whatever_it_holds() -> None:
    header = Header.of(MECHANISM)
    ones = packed(header, np.ones(67, dtype=np.uint8))
    zeros = packed(header, np.zeros(67, dtype=np.uint8))
    found = UPLINK.receive([ones, zeros, zeros])
    low, high = MECHANISM.values
    assert np.allclose(found, (2 * low + high) / 3, rtol=1e-15)


def test_waiting_payloads_do_not_grow_with_their_number() -> None:
    aggregator = UPLINK.aggregator()
    for payload in GOOD * 3:
        aggregator.add(payload)
        assert len(aggregator._waiting) < 15
