"""Masked sums over Flower's messages; tests/federation/contract/test_sums.py has the sums."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
pytest.importorskip("cryptography", reason="needs the all extra")
from flwr.app import ConfigRecord, Error, Message, RecordDict

from engines.flower.kit import SIMULATED, app, be_the_server, ledger, model
from engines.flower.secure_kit import (
    ACTIVE,
    CONFIG,
    NODES,
    SUM,
    Room,
    flat,
    requests,
    run,
    shift,
    stepped,
)
from federation.node.makers import books, write_policy

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")
RELEASE = {"quietbit": ["release"]}
STEP = {SUM: ["answer", "step"]}


@pytest.mark.parametrize(
    ("config", "lost"),
    [
        (CONFIG, {("vector", 102), ("unmask", 105)}),
        (ACTIVE, {("shares", 104)}),
    ],
    ids=["curious", "active"],
)
def test_the_model_steps_by_the_plain_sum_and_each_step_is_one_record(config, lost):
    room = Room(lost, config)
    strategy, (before, after) = run(room, config=config)
    gone = {node for step, node in lost if step != "unmask"}
    stayed = [node for node in NODES if node not in gone]
    assert np.array_equal(flat(after), stepped(before, stayed, config))
    (entry,) = strategy.report().rounds
    assert entry.answered == len(stayed)
    for step, _, reply in room.seen:
        held = {name: sorted(record) for name, record in reply.content.items()}
        assert held == (RELEASE if step == "vector" else STEP)


def test_a_node_with_an_owner_takes_its_steps_behind_its_gate(tmp_path):
    rules = {"trust": ["secure-aggregation"], "min_honest_clients": 3, "local_epsilon": 1e3}
    path = write_policy(tmp_path, seed=7, epsilon=1e3, adjacency="zero-out", **rules)
    room = Room()
    room.contexts[103] = Room(quietbit_policy=path).contexts[103]
    _, (before, after) = run(room)
    assert np.array_equal(flat(after), stepped(before, NODES, CONFIG))
    assert books(tmp_path).releases == 1
    assert SUM not in room.contexts[103].state


def test_a_node_that_declines_or_is_asked_for_something_else_has_left_the_sum():
    room = Room()
    _, messages = requests(room)
    assert all(SUM in place.state for place in room.contexts.values())
    wrong = {**messages[0].content, SUM: ConfigRecord({**messages[0].content[SUM], "number": 2})}
    reply = room.carry(Message(RecordDict(wrong), 101, "train"))
    assert reply.error.reason.startswith("quietbit: not-in-sum: ")
    assert ledger(room.contexts[101]).releases == 0
    be_the_server()
    evaluate = Message(RecordDict({"arrays": model()}), 102, "evaluate")
    SIMULATED(evaluate, room.contexts[102], app(shift(102)))
    kept = [node for node in NODES if SUM in room.contexts[node].state]
    assert kept == NODES[2:]


def test_replies_that_are_no_vectors_of_this_round_are_refused_and_the_sum_goes_on():
    room = Room()
    strategy, messages = requests(room)
    plain = app(shift(101))(messages[0], None)
    error = Message(Error(1, "lost"), reply_to=messages[1])
    for reply, message in ((plain, messages[0]), (error, messages[1])):
        reply.metadata._src_node_id = message.metadata.dst_node_id
    good = [room.carry(message) for message in messages[2:]]
    found, metrics = strategy.aggregate_train(1, [plain, error, *good, good[0]])
    assert np.array_equal(flat(found), stepped(model(), NODES[2:], CONFIG))
    assert metrics["quietbit-answered"] == 4
    reasons = " ".join(strategy.report().rounds[0].sentences())
    assert "node 101 sent an unprotected reply (vector)" in reasons
    assert "node 102 did not answer (vector): Flower says LOAD_CLIENT_APP_EXCEPTION" in reasons
    assert "node 103 sent a reply that is not valid (vector)" in reasons
