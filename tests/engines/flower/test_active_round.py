"""Masked sums through mod and strategy against a server that lies: exact, or refused; and sums of
kept coordinates.
"""

import json

import numpy as np
import pytest

from quietbit.node.refusal import Reason

pytest.importorskip("flwr", reason="needs the flower extra")
pytest.importorskip("cryptography", reason="needs the all extra")
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from engines.flower.kit import DIMENSION, RUN, be_the_server, gated, ledger, model
from engines.flower.secure_kit import (
    ACTIVE,
    CONFIG,
    NODES,
    SUM,
    Room,
    asking,
    flat,
    requests,
    run,
    shift,
    stepped,
)
from federation.node.makers import write_policy
from quietbit import Plan
from quietbit.errors import InvalidParameter
from quietbit.flower import PrivateStrategy
from quietbit.kernel.client_rng import seeded_client_rng
from quietbit.node.policy import simulated_members
from quietbit.node.request import run_name
from quietbit.secagg.identity import Identity, MemberList
from quietbit.secagg.plan import masked_size
from quietbit.wire.payload import Framed, Payload
from quietbit.wire.uplink import Uplink

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


def plain(before, stayed, number=1, config=ACTIVE):
    """The model after the plain sum of the same codes."""
    if config is CONFIG:
        return stepped(before, stayed, number)
    mechanism = (
        Plan.from_run_config(config).mechanism_for(DIMENSION).for_round(run_name(RUN), number)
    )
    old, total = flat(before).astype(np.float64), 0
    for node in stayed:
        words = seeded_client_rng(7)(number - 1, NODES.index(node))
        payload = Uplink(mechanism).send(old - (old - shift(node)), words)
        total = total + Payload.from_bytes(payload).codes().astype(np.int64)
    return (old - mechanism.mean_from_sum(total, len(stayed))).astype(np.float32)


@pytest.mark.parametrize(
    "pattern",
    [
        {},
        {"identity": [102]},
        {"shares": [104]},
        {"vector": [103]},
        {"confirm": [105]},
        {"unmask": [106]},
    ],
    ids=str,
)
def test_the_masked_sum_is_the_plain_sum_bit_for_bit(pattern):
    config = ACTIVE
    room = Room({(step, node) for step, nodes in pattern.items() for node in nodes}, config=config)
    strategy, (before, after) = run(room, config=config)
    stayed = [
        n
        for n in NODES
        if all(n not in pattern.get(s, ()) for s in ("identity", "keys", "shares", "vector"))
    ]
    (entry,) = strategy.report().rounds
    assert after is not None, entry.sentences()
    assert np.array_equal(flat(after), plain(before, stayed, config=config))
    assert len(entry.steps) == 5
    assert entry.steps[3] == len(stayed) - len(pattern.get("confirm", ()))


def test_rounds_go_on_and_nodes_say_who_they_are_once():
    room = Room(config=ACTIVE)
    strategy, history = run(room, rounds=2, config=ACTIVE)
    assert np.array_equal(flat(history[2]), plain(history[1], NODES, 2))
    assert [step for step, _, _ in room.seen].count("identity") == 6
    for place in room.contexts.values():
        assert SUM not in place.state
        assert ledger(place).releases == 2
    assert strategy.report().rounds[1].steps == (6, 6, 6, 6, 6)


def vectors_asked(config=ACTIVE):
    room = Room(config=config)
    strategy, messages = requests(room, config=config)
    for message in messages:
        assert not room.carry(message).has_error()
    return room, strategy, messages


def ask(room, message, step, table):
    content = RecordDict({name: message.content[name] for name in (SUM, "quietbit")})
    return room.carry(
        asking(Message(content, message.metadata.dst_node_id, "train"), step=step, table=table)
    )


def test_a_server_that_tells_nodes_different_lists_gets_no_share(owner_log):
    room, _, messages = vectors_asked()
    lists = [bytes([0b111111 ^ (1 << (place + 1) % 6)]) for place in range(6)]
    signed = {}
    for place, message in enumerate(messages):
        signed[place + 1] = ask(room, message, "confirm", lists[place]).content[SUM]["answer"]
    for place, message in enumerate(messages):
        listed = [number for number in signed if lists[place][0] >> (number - 1) & 1]
        signatures = b"".join(signed[number] for number in listed)
        table = lists[place] + lists[place] + signatures + b"\0"
        reply = ask(room, message, "unmask", table)
        assert reply.has_error()
        assert Reason.NOT_IN_SUM.value in reply.error.reason
        assert "signature of client" in owner_log.last()
        assert SUM not in room.contexts[NODES[place]].state
    assert not [1 for step, _, reply in room.seen if step == "unmask" and not reply.has_error()]


def test_a_list_is_signed_once(owner_log):
    room, _, messages = vectors_asked()
    assert not ask(room, messages[0], "confirm", b"\x3f").has_error()
    again = ask(room, messages[0], "confirm", b"\x1f")
    assert Reason.NOT_IN_SUM.value in again.error.reason
    assert "confirm is not the next" in owner_log.last()
    nobody = b"\x3f\0\0"
    assert "not part of the sum" in ask(room, messages[0], "unmask", nobody).error.reason
    early = ask(room, messages[1], "unmask", nobody)
    assert early.has_error()
    assert "unmask is not the next" in owner_log.last()


def owned(folder, members, own, signer, **changes):
    """The node config of a node with an identity, in a directory that the operator has signed."""
    (folder / "members.json").write_text(members.signed(signer))
    own.save(folder / "own.pem")
    sums = {
        "trust": ["secure-aggregation"],
        "min_honest_clients": 3,
        "local_epsilon": 1e3,
        "adjacency": "zero-out",
        "directory": str(folder / "members.json"),
        "own_key": str(folder / "own.pem"),
        "seed": 7,
        "epsilon": 1e3,
        "operator": signer.public.hex(),
        "most_colluders": 1,
    }
    return {"quietbit_policy": write_policy(folder, **sums | changes)}


class Owned(Room):
    """Six nodes, each with its owner's policy and identity."""

    def __init__(self, folder, config=ACTIVE, **changes):
        super().__init__(config=config)
        self.signer = Identity.new()
        self.people = [Identity.new() for _ in NODES]
        self.members = MemberList.of((f"node {i}", one.public) for i, one in enumerate(self.people))
        for place, node in enumerate(NODES):
            (own := folder / str(node)).mkdir()
            given = owned(own, self.members, self.people[place], self.signer, **changes)
            self.contexts[node] = Room(config=config, **given).contexts[node]

    def strategy(self, config=ACTIVE):
        return PrivateStrategy(
            FedAvg(min_train_nodes=6, min_available_nodes=6), config, members=self.members
        )


def one_round(room, strategy, number=1):
    be_the_server()
    replies = room.send_and_receive(
        strategy.configure_train(number, model(), ConfigRecord({}), room)
    )
    found, _ = strategy.aggregate_train(number, replies)
    entry = strategy.report().rounds[-1]
    return None if entry.skipped else found, entry


def test_nodes_of_owners(tmp_path, monkeypatch):
    monkeypatch.setattr("engines.flower.secure_kit.SIMULATED", gated())
    room = Owned(tmp_path)
    found, _ = one_round(room, room.strategy())
    assert np.array_equal(flat(found), plain(model(), NODES))
    for node in NODES:
        folder = tmp_path / str(node)
        assert {path.name for path in folder.iterdir()} == {
            "counter",
            "ledger",
            "ledger.key",
            "members.json",
            "own.pem",
            "policy.toml",
        }
    said = [reply.error.reason for _, _, reply in room.seen if reply.has_error()]
    assert not said


@pytest.mark.parametrize(
    ("changes", "config", "says"),
    [
        ({"operator": "00" * 32}, ACTIVE, "its owner's log says why"),
        ({"most_colluders": 4}, ACTIVE, "so few colluding clients could unmask"),
        ({"min_honest_clients": 5}, ACTIVE, "so few colluding clients could unmask"),  # t - C = 4
        ({}, CONFIG, "(directory)"),
        ({"directory": None, "operator": None, "own_key": None}, ACTIVE, "(own-key)"),
    ],
)
def test_an_owner_s_terms(changes, config, says, tmp_path, monkeypatch):
    monkeypatch.setattr("engines.flower.secure_kit.SIMULATED", gated())
    room = Owned(tmp_path, config, **changes)
    strategy = (
        room.strategy()
        if config is ACTIVE
        else PrivateStrategy(FedAvg(min_train_nodes=6, min_available_nodes=6), config)
    )
    found, entry = one_round(room, strategy)
    assert found is None
    assert says in " ".join(entry.sentences())
    assert str(tmp_path) not in " ".join(entry.sentences())


def test_strangers_and_those_who_say_they_are_somebody_else_are_not_members(tmp_path, monkeypatch):
    monkeypatch.setattr("engines.flower.secure_kit.SIMULATED", gated())
    room = Owned(tmp_path)

    def alter(step, node, reply):
        if step == "identity" and node in (
            103,
            106,
        ):  # a name that is another's, and one that is nobody's
            key = room.people[0].public if node == 103 else Identity.new().public
            reply.content[SUM] = ConfigRecord({"step": step, "answer": key})
        return reply

    room.alter = alter
    found, entry = one_round(room, room.strategy())
    assert found is None  # four are left, and five are needed
    reasons = " ".join(entry.sentences())
    assert (
        "node 103 sent a reply that is not valid (identity): identity must be used by one node only"
        in reasons
    )
    assert (
        "node 106 sent a reply that is not valid (identity): identity must be in the list of members"
        in reasons
    )
    assert "threshold must be a whole number from 2 to 4, got 5" in reasons


def test_a_server_s_own_directory_is_not_the_operator_s(tmp_path, monkeypatch, owner_log):
    """It invents members and gives nodes their places in its own list: nodes read theirs, and find
    others there.
    """
    monkeypatch.setattr("engines.flower.secure_kit.SIMULATED", gated())
    room = Owned(tmp_path)
    mixed = list(room.members.members)
    invented = MemberList.of([(one.name, one.key) for one in reversed(mixed)])
    strategy = PrivateStrategy(
        FedAvg(min_train_nodes=6, min_available_nodes=6), ACTIVE, members=invented
    )
    found, entry = one_round(room, strategy)
    assert found is None
    assert Reason.NOT_IN_SUM.value in " ".join(entry.sentences())
    assert "not-in-sum. identity must be" in owner_log.text()


def test_the_directory_goes_with_the_setting():
    with pytest.raises(InvalidParameter, match="members must be a MemberList where"):
        PrivateStrategy(FedAvg(), ACTIVE)
    with pytest.raises(InvalidParameter, match="left out"):
        PrivateStrategy(FedAvg(), CONFIG, members=simulated_members(6))


KEPT = {name: value for name, value in ACTIVE.items() if name != "quietbit.releases"} | {
    "quietbit.mechanism.coordinates": 16,
    "quietbit.mechanism.design-epsilon": 0.5,
    "quietbit.epsilon": 50.0,
}


def test_sums_of_kept_coordinates_are_of_other_rows_in_every_round():
    room = Room(config=KEPT)
    strategy, history = run(room, rounds=3, config=KEPT)
    for number in (1, 2, 3):
        assert np.array_equal(
            flat(history[number]), plain(history[number - 1], NODES, number, KEPT)
        )
    vectors = [reply for step, _, reply in room.seen if step == "vector"]
    sizes = {
        len(Framed.from_bytes(reply.content["quietbit"]["release"]).payload) for reply in vectors
    }
    assert sizes == {masked_size(6, 16) + 64}
    books = ledger(room.contexts[101])
    assert books.releases == 3
    assert len(books.mechanisms) == 1  # the books know one mechanism, whatever its rows
    (described,) = books.mechanisms.values()
    assert json.dumps(described).count('"rows": 0') == 1
    assert 0 < strategy.report().guarantee.epsilon_upper <= 50.0
