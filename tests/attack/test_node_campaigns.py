"""Campaigns against a node that nobody had run: what each tries, and how often, is in `CASES`.

Broadcast logs that are forked or rolled back, different models for different nodes, weights by
examples, releases that arrive late, twice or from strangers, other users at the
gatekeeper's socket, and families that hang.
"""

import json
import math
import random
import socket
import threading

import numpy as np
import pytest

from federation.node.makers import (
    BALL,
    DIMENSION,
    MECHANISM,
    NOISY,
    books,
    connected,
    keeper,
    request,
    serving,
)
from quietbit.errors import InvalidPayload, QuietbitError
from quietbit.federation.parts.weights import weight_of
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.node import budget
from quietbit.node.channel import HEAD, MAGIC
from quietbit.node.gatekeeper import Gatekeeper, RemoteGate
from quietbit.node.refusal import Unusable
from quietbit.node.request import ProposedMechanism
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
CASES = {"broadcast logs": 90, "weights": 3000, "frames": 2000, "socket messages": 300}
UPDATE = np.linspace(-0.2, 0.3, DIMENSION)


def test_forked_and_rolled_back_broadcast_logs(monkeypatch):
    """A node trains on the announced model or not at all, answers a round once, and pays for
    what it answers.
    """
    pytest.importorskip("flwr", reason="needs the flower extra")
    from engines.flower import test_replay as kit
    from engines.flower.kit import ledger
    from quietbit.federation.messages import MODEL
    from quietbit.wire.downlink import HEAD as BROADCAST

    rng = random.Random(40)  # noqa: S311
    logs = {}
    outcomes = {"same": 0, "declined": 0}

    def distort(message):
        """Send some nodes another log: of an earlier round, of another node, cut, doubled,
        reordered or changed.
        """
        node = message.metadata.dst_node_id
        said = message.content.config_records.get(MODEL)
        if said is None or not said.get("broadcasts"):
            return
        broadcasts = list(said["broadcasts"])
        logs.setdefault(node, []).append(broadcasts)
        forked = bytearray(broadcasts[-1])
        forked[rng.randrange(BROADCAST.size, len(forked))] ^= 1 << rng.randrange(8)
        ways = [
            {"broadcasts": broadcasts[:-1]},
            {"broadcasts": broadcasts + broadcasts[-1:]},
            {"broadcasts": rng.choice(logs[node])},  # rolled back
            {"broadcasts": broadcasts[::-1]},
            {"broadcasts": [*broadcasts[:-1], bytes(forked)]},
            {"round": max(0, said["round"] - rng.randrange(1, 3))},
            {"digest": rng.randbytes(32)},
            {},
        ]
        said.update(rng.choice(ways))

    played = 0
    while played < CASES["broadcast logs"]:
        if (
            played % 15 == 0
        ):  # a server that saw a node lose its model twice sends it whole from then on
            room = kit.Federation(nodes=(11, 12, 13))
            logs.clear()
        room.seen.clear()
        before = {node: ledger(room.contexts[node]).releases for node in room.contexts}
        model = room.arrays
        replies, _ = room.play(change=distort)
        for reply in replies:
            played += 1
            node = reply.metadata.src_node_id
            made = ledger(room.contexts[node]).releases - before[node]
            if reply.has_error():
                outcomes["declined"] += 1
                assert made == 0
                assert node not in room.seen
            else:
                outcomes["same"] += 1
                assert made == 1
                assert kit.same(
                    room.seen[node], model
                )  # whoever is told what: the model that was announced
    assert min(outcomes.values()) > 10


def test_different_models_for_different_nodes_under_replay():
    """A server may lead nodes to models of its choice; what leaves is one release per round, and
    none twice.
    """
    pytest.importorskip("flwr", reason="needs the flower extra")
    from engines.flower import test_replay as kit
    from engines.flower.kit import ledger

    room = kit.Federation(nodes=(11, 12))
    room.play()
    made = 0
    for number in range(2, 8):
        grid = kit.HandGrid((11, 12))
        first, second = room.strategy.configure_train(number, room.arrays, kit.ConfigRecord(), grid)
        contents = first.content, second.content
        second.content, first.content = contents
        for message in (first, second, first):
            node = message.metadata.dst_node_id
            made += not room.mod(message, room.contexts[node], room._app(node)).has_error()
    rounds = []
    for node in (11, 12):
        state = ledger(room.contexts[node])
        rounds += [(node, noted.round) for noted in state.noted]
    assert len(rounds) == len(set(rounds)) == made + 2
    assert made >= 6


def test_weights_by_examples():
    """Whatever a client says about its examples: a weight is a number above 0 and at most 1, or
    it is refused.
    """
    rng = random.Random(41)  # noqa: S311
    odd = [
        math.nan,
        math.inf,
        -math.inf,
        -1,
        0,
        1e308,
        10**400,
        True,
        None,
        "9",
        b"9",
        [3],
        2**70,
        -0.0,
        5e-324,
    ]
    refused = 0
    for _ in range(CASES["weights"]):
        most = rng.choice([1, 10, 1000, 10**6])
        said = rng.choice([*odd, rng.randrange(-5, 2 * most), rng.uniform(-1, 2 * most)])
        try:
            weight = weight_of(said, most)
        except QuietbitError:
            refused += 1
            continue
        assert 0 < weight <= 1
    assert 0 < refused < CASES["weights"]


def test_frames_of_rounds_that_do_not_wait():
    """A release is counted for the run, round and node that it was made for, and for no other."""
    rng = random.Random(42)  # noqa: S311
    payload = Uplink(MECHANISM).send(UPDATE)
    taken = 0
    for _ in range(CASES["frames"]):
        made = [rng.choice([0, 1, 2**64 - 1]), rng.randrange(1, 4), rng.choice([0, 11, 2**64 - 1])]
        asked = [value if rng.random() < 0.7 else rng.choice([0, 1, 2, 3, 11]) for value in made]
        honest = Framed(*made, payload).to_bytes()
        data = bytearray(honest)
        if rng.random() < 0.3:
            data[rng.randrange(24)] ^= 1 << rng.randrange(8)
        try:
            Framed.from_bytes(bytes(data)).expect(*asked)
        except InvalidPayload:
            continue
        taken += 1
        assert made == asked or data != honest
    assert taken > 100


def test_releases_that_come_late_and_twice_count_once():
    pytest.importorskip("flwr", reason="needs the flower extra")
    from engines.flower import test_stragglers as kit
    from engines.flower.kit import ledger

    rng = random.Random(43)  # noqa: S311

    class Doubling(kit.SlowGrid):
        """Every reply is delivered again with later ones."""

        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            return [*replies, *rng.sample(replies, len(replies) // 2)]

    original = kit.SlowGrid
    kit.SlowGrid = Doubling
    try:
        strategy, grid, _, _ = kit.play(lambda node: rng.randrange(3), rounds=6)
    finally:
        kit.SlowGrid = original
    made = sum(ledger(context).releases for context in grid.contexts.values())
    report = strategy.report()
    assert sum(node.releases for node in report.nodes) == made
    assert 0 < sum(entry.answered for entry in report.rounds) <= made


MANY = {"epsilon": 1e4, "releases": 1000, "releases_per_day": 1000}


def spoilt(rng, good):
    """A message with other bytes, of other sizes, or none."""
    text = bytearray(good)
    for _ in range(rng.randrange(1, 4)):
        text[rng.randrange(len(text))] = rng.randrange(256)
    sizes = rng.choice([0, 2**32 - 1, len(text)]), rng.choice([0, 2**63, 8])
    return rng.choice(
        [
            rng.randbytes(rng.randrange(64)),
            HEAD.pack(MAGIC, *sizes) + text,
            HEAD.pack(MAGIC, len(text), 0) + text[: rng.randrange(len(text))],
            HEAD.pack(MAGIC, 2, 0) + rng.choice([b"{}", b"[]", b"3 ", b'""']),
        ]
    )


def test_other_users_at_the_socket(tmp_path):
    """Whatever bytes come, in whatever pieces: nothing leaves for them, and the next honest
    client is answered.
    """
    rng = random.Random(44)  # noqa: S311
    good = json.dumps({"ask": "release", "request": request(1).to_json()}).encode()
    with serving(tmp_path, **MANY) as remote:
        for _ in range(CASES["socket messages"]):
            with connected(tmp_path) as raw:
                raw.settimeout(5)
                raw.sendall(spoilt(rng, good))
                if rng.random() < 0.5:
                    raw.shutdown(socket.SHUT_WR)
                    raw.recv(4096)
        # Changed bytes that are a message all the same are noted, and cost a release at most.
        assert books(tmp_path).releases <= 40
        answer = remote.accept(request(9, run=77)).release([UPDATE])
        assert Framed.from_bytes(answer).run == 77


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_nobody_can_put_a_socket_in_the_gatekeepers_place(tmp_path, mode):
    """A stranger's socket would be handed the update as it is."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(QuietbitError, match="socket"):
        Gatekeeper(keeper(tmp_path), folder / "gate")
    heard = []
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.bind(str(folder / "gate"))
    stranger.listen()
    stranger.settimeout(0.2)
    with pytest.raises(Unusable):
        RemoteGate(folder / "gate").accept(request())
    with pytest.raises(TimeoutError):
        heard.append(stranger.accept())
    stranger.close()
    assert heard == []


def test_a_family_that_hangs_keeps_nobody_else_waiting(tmp_path, monkeypatch):
    """It is priced before the ledger is locked. Before, one that hung held the lock for ever."""
    gate = keeper(tmp_path)
    hangs = threading.Event()
    goes_on = threading.Event()
    cost = InterpolatedMVU.cost

    def slow(self, adjacency):
        hangs.set()
        goes_on.wait(30)
        return cost(self, adjacency)

    budget._COSTS.clear()
    ProposedMechanism.read.cache_clear()
    monkeypatch.setattr(InterpolatedMVU, "cost", slow)
    thread = threading.Thread(target=lambda: gate.accept(request(1)), daemon=True)
    thread.start()
    assert hangs.wait(10)
    gate.accept(request(1, NOISY, run=8)).release(None)
    assert books(tmp_path).releases == 1
    goes_on.set()
    thread.join(10)
    assert books(tmp_path).releases == 2


@pytest.mark.parametrize(
    "fault", [MemoryError, RecursionError, ZeroDivisionError, SystemError, KeyboardInterrupt]
)
def test_a_family_that_raises_releases_nothing(tmp_path, monkeypatch, fault):
    gate = keeper(tmp_path)
    budget._COSTS.clear()

    def broken(self, adjacency):
        raise fault

    monkeypatch.setattr(InterpolatedMVU, "cost", broken)
    with pytest.raises((QuietbitError, fault)):
        gate.accept(request(1))
    assert books(tmp_path).releases == 0
    assert BALL.dimension == DIMENSION
