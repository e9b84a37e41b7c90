"""Broadcasts are replayed bit for bit and in order, and only from the state before them."""

import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from quietbit import Ball, Norm, Uplink, calibrate, seeded_rng
from quietbit.errors import InvalidParameter, InvalidPayload
from quietbit.wire.downlink import (
    HEAD,
    Broadcast,
    Diverged,
    Downlink,
    OutOfStep,
    Replica,
    ServerStep,
)
from refusals import refuses

DIMENSION = 5000
RUN = b"run 7"
START = np.random.default_rng(1).normal(size=DIMENSION).astype(np.float32)


@pytest.fixture(scope="module")
def mechanism():
    ball = Ball(Norm.L2, DIMENSION)
    found = calibrate(
        "vmvu", ball=ball, epsilon=8.0, delta=1e-5, releases=1, adjacency="zero-out", rows="shared"
    )
    return found.mechanism


def mean_of(mechanism, number, clients=3):
    """The kept mean of one round's real payloads."""
    uplink = Uplink(mechanism.for_round(RUN, number))
    aggregator = uplink.aggregator()
    for client in range(clients):
        update = np.random.default_rng(100 * number + client).normal(size=DIMENSION) / 100
        aggregator.add(uplink.send(update, seeded_rng(1000 * number + client)))
    return aggregator.kept(), aggregator.mean()


def server_of(step=ServerStep(), start=START):  # noqa: B008 - it is frozen
    return Downlink(Replica(start), step)


def play(mechanism, server, rounds):
    return [
        server.advance(mean_of(mechanism, n)[0], mechanism.for_round(RUN, n), n)
        for n in range(server.replica.round + 1, server.replica.round + 1 + rounds)
    ]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_client_follows_the_server_bit_for_bit(mechanism, momentum):
    server = server_of(ServerStep(0.5, momentum))
    contents = play(mechanism, server, 3)
    client = Replica(START)
    client.replay(contents, mechanism, RUN)
    assert client.round == 3
    assert client.digest == server.replica.digest
    assert client.weights.tobytes() == server.replica.weights.tobytes()
    size = HEAD.size + 4 * mechanism.shared_rows
    assert all(len(content) == size for content in contents)


def test_momentum_is_the_usual_recursion(mechanism):
    """Of the means that an aggregator gives."""
    server = server_of(ServerStep(0.25, 0.5))
    means = []
    for number in (1, 2, 3):
        kept, mean = mean_of(mechanism, number)
        means.append(mean)
        server.advance(kept, mechanism.for_round(RUN, number), number)
    moved = 0.25 * (means[0] * 1.75 + means[1] * 1.5 + means[2])
    np.testing.assert_allclose(START - server.replica.weights, moved, rtol=1e-3, atol=1e-4)


def test_another_state_round_or_order_is_refused_and_left_alone(mechanism):
    first, second = play(mechanism, server_of(), 2)
    other = START.copy()
    other[17] = np.nextafter(other[17], np.float32(9))
    for weights, content in ((other, first), (START, second)):
        client = Replica(weights)
        with pytest.raises(OutOfStep, match="needs the state before it"):
            client.replay([content], mechanism, RUN)
        assert (client.weights == weights).all()


def test_rows_of_another_run_lead_elsewhere_and_are_noticed(mechanism):
    contents = play(mechanism, server_of(), 2)
    client = Replica(START)
    with pytest.raises(OutOfStep, match="differs"):
        client.replay(contents[:1], mechanism, b"another")
    assert client.digest == b""
    with pytest.raises(OutOfStep):
        client.replay(contents[1:], mechanism, RUN)


@pytest.fixture(scope="module")
def good(mechanism):
    return play(mechanism, server_of(), 1)[0]


def test_bytes_of_a_hostile_server_are_refused_before_they_are_used(mechanism, good):
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        bad = bytearray(good)
        for place in rng.integers(0, HEAD.size + 8, int(rng.integers(1, 4))).tolist():
            bad[place] = int(rng.integers(0, 256))
        if rng.random() < 0.3:
            bad = bad[: int(rng.integers(0, len(bad)))]
        fresh = Replica(START)
        try:
            fresh.replay([bytes(bad)], mechanism, RUN)
        except (InvalidPayload, InvalidParameter):
            refused += 1
        else:  # the last bits of a number may not change the step; a round before is left out
            assert fresh.digest == HEAD.unpack_from(bad)[-1] or fresh.round == 0
    assert refused > 270


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bits", 16),
        ("zero", 1),
        ("length", 2**32 - 1),
        ("rate", float("nan")),
        ("rate", -1.0),
        ("momentum", 1.0),
        ("scale", float("inf")),
        ("scale", 1.0),
    ],
)
def test_a_broadcast_with_a_wrong_field_is_refused(mechanism, good, field, value):
    fields = ("magic", "version", "bits", "zero", "round", "length", "rate", "momentum", "scale")
    head = list(HEAD.unpack_from(good))
    head[fields.index(field)] = value
    with pytest.raises(InvalidPayload):
        Broadcast.from_bytes(HEAD.pack(*head) + good[HEAD.size :], mechanism.shared_rows)


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 2.0**65])
def test_a_broadcast_of_wrong_numbers_is_refused(mechanism, good, number):
    changed = good[: HEAD.size] + struct.pack("<f", number) + good[HEAD.size + 4 :]
    with pytest.raises(InvalidPayload, match="numbers"):
        Broadcast.from_bytes(changed, mechanism.shared_rows)


def advanced(mechanism, mean, start=START):
    return server_of(start=start).advance(mean, mechanism, 1)


@pytest.mark.parametrize(
    ("ask", "name", "value"),
    [
        (lambda m: advanced(m, np.zeros(7)), "shape of the mean", (7,)),
        (lambda m: advanced(m, np.full(m.shared_rows, 2.0**65)), "mean of the round", 2.0**65),
        (lambda m: advanced(m, np.zeros(m.shared_rows), START[:5]), "size of the model", 5),
        (lambda m: Replica(START.reshape(2, -1)), "weights", "2-D float32"),
        (
            lambda m: Replica(np.array([0.0, np.nan], dtype=np.float32)),
            "weights",
            "1 entries that are NaN or infinite",
        ),
        (lambda m: Replica(START, speed=START[:1]), "size of speed", 1),
        (lambda m: ServerStep(0.5, 1.0), "momentum", 1.0),
    ],
)
def test_a_bad_model_mean_or_step_is_refused(mechanism, ask, name, value):
    with refuses(name, value):
        ask(mechanism)


def test_who_missed_rounds_gets_them_or_the_model_where_that_is_smaller(mechanism, monkeypatch):
    """Rounds without a step leave no gap."""
    monkeypatch.setattr("quietbit.wire.downlink.LOG_BYTES", 3 * 8400)
    server = server_of()
    contents = [
        server.advance(mean_of(mechanism, number)[0], mechanism.for_round(RUN, number), number)
        for number in (1, 2, 4, 8, 9)
    ]
    assert server.since(9) == []
    assert server.since(7) == server.since(4) == contents[3:]
    assert server.since(2) is None  # 3 x 8,292 bytes are more than 20,000 of the model
    assert server.since(1) is None  # the log has lost it
    assert server.since(99) is None
    client = Replica(START)
    client.replay(contents[:4], mechanism, RUN)
    client.replay(contents, mechanism, RUN)  # what it has already is left out
    assert (client.round, client.digest) == (9, server.replica.digest)
    with refuses("round", 9):
        server.advance(mean_of(mechanism, 9)[0], mechanism.for_round(RUN, 9), 9)


def test_a_step_that_leaves_no_finite_model_is_not_taken(mechanism):
    server = server_of(ServerStep(2.0**64, 0.5), np.full(DIMENSION, 3e38, dtype=np.float32))
    digest = server.replica.digest
    kept = np.full(mechanism.shared_rows, 2.0**64)
    with pytest.warns(RuntimeWarning), pytest.raises(Diverged):
        server.advance(kept, mechanism.for_round(RUN, 1), 1)
    assert (server.replica.round, server.replica.digest) == (0, digest)
    assert bool(np.isfinite(server.replica.weights).all())


def test_without_avx512_and_fma_the_bits_are_the_same(mechanism):
    """A process with a plain instruction set replays to the digest of this one."""
    server = server_of(ServerStep(0.5, 0.9))
    contents = play(mechanism, server, 2)
    program = f"""
import sys, numpy as np
from quietbit import Ball, Norm, calibrate
from quietbit.wire.downlink import Replica
start = np.frombuffer(bytes.fromhex({START.tobytes().hex()!r}), dtype="<f4")
found = calibrate("vmvu", ball=Ball(Norm.L2, {DIMENSION}), epsilon=8.0, delta=1e-5, releases=1,
                  adjacency="zero-out", rows="shared")
client = Replica(start)
contents = [bytes.fromhex(text) for text in {[content.hex() for content in contents]!r}]
client.replay(contents, found.mechanism, {RUN!r})
print(client.digest.hex())
"""
    plain = {"QUIETBIT_INSTRUCTION_SET": "sse2", "NPY_DISABLE_CPU_FEATURES": ""}
    done = subprocess.run(
        [sys.executable, "-"],
        input=program,
        env={**os.environ, **plain},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == server.replica.digest.hex()
