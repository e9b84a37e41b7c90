"""Honest-but-curious sums: a server that follows the protocol and keeps everything learns the sum,
and nothing of one.

`HONEST` random sums with random drop-outs are exact or refused. Then the same two worlds `REPEATS`
times over: client 1 sends only zeros, or only ones, and the server keeps its masked vector and its
shares in transit. Each number of the vector is uniform in both worlds: tests of each of its bits,
and of those of the sealed shares, would see a bias of some percent. False alarms: 1e-9 in all.
"""

import numpy as np
from scipy.stats import binom

from federation.secagg.kit import Room, plan_of

HONEST = 60
REPEATS = 60
ALARM = 1e-9


def seen_in_world(value):
    """Return all bits of the masked vectors of client 1, and the bytes of the shares that the
    server forwards.
    """
    vectors = []
    shares = []
    for trial in range(REPEATS):
        room = Room(plan_of(4, 3, active=False, name=b"world %d %d" % (value, trial))).dealt()
        codes = np.full(room.plan.dimension, value, dtype=np.uint32)
        data = room.clients[1].mask(codes, room.u1, room.inboxes[1])
        values = room.plan.unpack(1, data)
        vectors.append([(values >> np.uint32(bit)) & np.uint32(1) for bit in range(room.plan.bits)])
        sealed = b"".join(room.parts[1][holder] for holder in sorted(room.parts[1]))
        shares.append(np.frombuffer(sealed, dtype=np.uint8))
    return np.array(vectors), np.concatenate(shares)


def assert_fair(bits, tests):
    """Fail where so many ones among so many fair bits have less than the share of the false
    alarms.
    """
    ones = int(bits.sum())
    low = min(ones, bits.size - ones)
    assert 2 * binom.cdf(low, bits.size, 0.5) > ALARM / tests


def test_a_masked_vector_and_shares_in_transit_are_uniform_in_both_worlds():
    for value in (0, 1):
        vectors, shares = seen_in_world(value)
        bits = vectors.shape[1]
        for bit in range(bits):
            assert_fair(vectors[:, bit].ravel(), 2 * (bits + 1))
        assert_fair(np.unpackbits(shares), 2 * (bits + 1))


def test_the_test_can_fail():
    biased = np.random.default_rng(1).random(60 * 44) < 0.6
    try:
        assert_fair(biased, 4)
    except AssertionError:
        return
    raise AssertionError("a bias of a tenth was not seen")
