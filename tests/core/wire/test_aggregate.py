"""The streaming mean: bad payloads never reach it, and the caller says what becomes of them."""

import numpy as np
import pytest

from core.mechanism.makers import MECHANISMS, update
from quietbit.errors import InvalidPayload
from quietbit.kernel.rng import seeded_rng
from quietbit.wire.payload import Header
from quietbit.wire.uplink import Uplink
from refusals import refuses

UPLINK = Uplink(MECHANISMS["imvu one bit l2"])
OTHER = Uplink(MECHANISMS["imvu one bit l1 beta 8"])


def sent(uplink, seed):
    return uplink.send(update(uplink.mechanism.ball, seed), seeded_rng(seed))


GOOD = [sent(UPLINK, seed) for seed in range(20)]


def flipped(place):
    changed = bytearray(GOOD[0])
    changed[place] ^= 16
    return bytes(changed)


BAD = {
    "empty": b"",
    "truncated": GOOD[0][:-1],
    "padded": GOOD[0] + b"\0",
    "another body": flipped(70),
    "another version": flipped(4),
    "another identity": flipped(30),
    "another mechanism": sent(OTHER, 0),
}
every_bad = pytest.mark.parametrize("bad", BAD.values(), ids=BAD)


@every_bad
def test_a_bad_payload_is_fatal_unless_the_caller_says_otherwise(bad):
    with pytest.raises(InvalidPayload, match="Payload 2"):
        UPLINK.receive([GOOD[0], GOOD[1], bad, GOOD[2]])
    found = UPLINK.collect(iter([bad, *GOOD, bad]), on_error="skip")
    assert (found.count, found.refused) == (20, 2)
    assert np.array_equal(found.mean, UPLINK.receive(GOOD))


def test_an_aggregator_goes_on_after_a_refusal():
    aggregator = UPLINK.aggregator()
    for payload in GOOD[:10]:
        aggregator.add(payload)
    before = aggregator.mean()
    for bad in BAD.values():
        with pytest.raises(InvalidPayload):
            aggregator.add(bad)
    assert (aggregator.count, aggregator.refused) == (10, len(BAD))
    assert np.array_equal(aggregator.mean(), before)
    for payload in GOOD[10:]:
        aggregator.add(payload)
    assert np.array_equal(aggregator.mean(), UPLINK.receive(GOOD))


def test_a_mean_of_nothing_is_refused():
    with pytest.raises(InvalidPayload, match="0 were refused"):
        UPLINK.receive([])
    with pytest.raises(InvalidPayload, match="7 were refused"):
        UPLINK.receive(BAD.values(), on_error="skip")


def test_a_payload_has_the_header_of_its_mechanism():
    assert Header.of(UPLINK.mechanism).expect(GOOD[0][:64])


def test_too_many_payloads_are_refused():
    with refuses("number of payloads", 4):
        Uplink(UPLINK.mechanism, max_payloads=3).receive(GOOD[:4], on_error="skip")


@pytest.mark.parametrize("choice", ["ignore", None, True])
def test_another_on_error_is_refused_before_anything_is_read(choice):
    with refuses("on_error", choice):
        UPLINK.receive(map(pytest.fail, ["read"]), on_error=choice)


def test_something_that_is_no_payload_is_never_skipped():
    with refuses("payload", "int"):
        UPLINK.receive([GOOD[0], 17], on_error="skip")


def test_waiting_payloads_do_not_grow_with_their_number():
    aggregator = UPLINK.aggregator()
    for payload in GOOD * 3:
        aggregator.add(payload)
        assert len(aggregator._waiting) < 15
