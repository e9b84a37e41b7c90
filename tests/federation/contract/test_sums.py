"""Masked sums without an engine: the plain sum of the same codes, or none; and what nodes refuse.

The server of `Room` is honest, until a test changes what it asks. Clients and servers of
`quietbit.secagg` have their own tests; here they stand behind a node's gate and ledger.
"""

import copy
import json

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the all extra")

from federation.contract.room import DIMENSION, NODES, RUN, SEED, Node, Room, releases
from federation.node.makers import books, write_policy
from plans import engine_plan
from quietbit.federation.client import Subject
from quietbit.federation.messages import SUM, Asked, Reply, pieces_of
from quietbit.federation.server import Run
from quietbit.kernel.client_rng import seeded_client_rng
from quietbit.node.budget import account_of
from quietbit.node.ledger import StateLedger
from quietbit.node.policy import simulated_members
from quietbit.node.refusal import NotInSum, Reason, Refusal
from quietbit.node.stores import Vault, key_file
from quietbit.node.sum_step import SumStep
from quietbit.privacy.account import Account
from quietbit.secagg.client import SumClient
from quietbit.secagg.codec import (
    Unmasking,
    write_evidence,
    write_inbox,
)
from quietbit.secagg.identity import Identity, MemberList
from quietbit.secagg.plan import SumPlan, masked_size
from quietbit.target import Target
from quietbit.wire.payload import Framed, Payload
from quietbit.wire.uplink import Uplink
from refusals import refuses

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
GIVEN = {"clip": 1.0, "adjacency": "zero-out", "epsilon": 4.0, "releases": 2}
CURIOUS = {"threshold": 3, "adversary": "honest-but-curious", "honest_clients": 2}
PLANS = {
    "curious": engine_plan("imvu", **GIVEN, secure_aggregation=CURIOUS),
    "active": engine_plan(
        "imvu", **GIVEN, secure_aggregation={"threshold": 4, "adversary": "active"}
    ),
}
STEPS = {
    "curious": ("keys", "shares", "vector", "unmask"),
    "active": ("identity", "keys", "shares", "vector", "confirm", "unmask"),
}
MEMBERS = simulated_members(max(NODES) + 1)
FIVE = SumPlan(5, 3, DIMENSION, b"r")  # for lists of the curious server's sums
ALL = {1, 2, 3, 4, 5}
DEALT_SIZE = 80  # of a sealed pair of shares


def room_of(kind, plan=None):
    """Return nodes that learn something of their own, some of it longer than the clip."""
    room = Room(plan or PLANS[kind], MEMBERS if kind == "active" else None)
    for number, node in room.nodes.items():
        node.learnt = np.random.default_rng(number).normal(size=DIMENSION) * 0.1 * (number - 10)
    return room


def play(room, number, step=""):
    """Play a round until this step is asked; return what was asked of whom in each step."""
    current = room.open(number)
    requests = {}
    while (ask := current.next()) is not None:
        name = str(ask.requests[0].own_records[SUM]["step"])
        requests[name] = {int(asked.node): asked for asked in ask.requests}
        if name == step:
            break
        for node, asked in requests[name].items():
            current.take(room.nodes[node].answers(asked))
    return current, requests


def asking(asked, **changes):
    """Return the request with other values."""
    step = {**asked.own_records[SUM], **changes}
    own = {**asked.own_records, SUM: step}
    return Asked(asked.node, asked.place, asked.records, own, asked.carries_model)


def reason(reply):
    """Return why a node declines; None where it answers."""
    return None if reply.refusal is None else Refusal.read_reason(reply.refusal)


def noted(node):
    return StateLedger(dict(node.state.get("quietbit", {}))).read()


def sum_of_codes(room, nodes, current):
    """Return the mean of the codes that these nodes draw, added in the open."""
    mechanism = current.scope.mechanism
    total = np.zeros(mechanism.layout.count, np.int64)
    for node in nodes:
        words = seeded_client_rng(SEED)(current.number - 1, node)
        payload = Uplink(mechanism).send([room.nodes[node].learnt], words)
        total += Payload.from_bytes(payload).codes()
    return mechanism.mean_from_sum(total, len(nodes))


@pytest.mark.parametrize(
    ("kind", "lost"),
    [
        ("curious", {}),
        ("curious", {"keys": 11, "vector": 12}),
        ("curious", {"shares": 14, "unmask": 12}),
        ("active", {}),
        ("active", {"identity": 12}),
        ("active", {"shares": 14}),
        ("active", {"vector": 13}),
        ("active", {"confirm": 15}),
        ("active", {"unmask": 11}),
    ],
    ids=str,
)
def test_the_masked_sum_is_the_plain_sum_bit_for_bit(kind, lost):
    room = room_of(kind)
    current = room.open()
    room.play(current, lambda trip, node: lost.get(STEPS[kind][trip - 1]) == node)
    before = {node for step, node in lost.items() if step not in ("confirm", "unmask")}
    stayed = [node for node in NODES if node not in before]
    assert np.array_equal(current.mean(), sum_of_codes(room, stayed, current))
    report = room.run.over(current)
    assert (report.answered, report.skipped) == (len(stayed), False)
    assert report.steps[-1] == len(stayed) - ("unmask" in lost) - ("confirm" in lost)


def test_rounds_go_on_with_other_rows_and_nodes_say_who_they_are_once():
    given = {**GIVEN, "epsilon": 50.0, "releases": None, "coordinates": 16, "design_epsilon": 0.5}
    active = {"threshold": 4, "adversary": "active"}
    room = room_of("active", engine_plan("imvu", **given, secure_aggregation=active))
    steps = []
    for number in (1, 2):
        current, requests = play(room, number)
        steps.append(list(requests))
        assert np.array_equal(current.mean(), sum_of_codes(room, list(NODES), current))
        room.run.over(current)
    assert steps == [list(STEPS["active"]), list(STEPS["active"][1:])]
    for node in room.nodes.values():
        assert SUM not in node.state  # the secrets are forgotten
        (described,) = noted(node).mechanisms.values()  # one mechanism, whatever its rows
        assert json.dumps(described).count('"rows": 0') == 1


def test_a_vector_is_masked_and_as_wide_as_the_largest_sum():
    room = room_of("curious")
    current = room.open()
    room.play(current)
    vectors = [reply for reply in room.replies if SUM not in reply.records]
    assert len(vectors) == 5
    for reply in vectors:
        payload = bytes(Framed.from_bytes(pieces_of(reply.records)).payload)
        assert len(payload) == masked_size(5, DIMENSION)
        bits = np.unpackbits(np.frombuffer(payload[24:], np.uint8), bitorder="little")
        values = bits[: 3 * DIMENSION].reshape(-1, 3) @ [1, 2, 4]
        assert values.max() > 1  # 24 uniform values modulo 8 are all 0 or 1 with chance 4^-24


def test_books_count_on_the_honest_and_a_spent_budget_sends_no_key():
    room = room_of("curious")
    plan = room.run.plan
    for number in (1, 2, 3):
        current, requests = play(room, number)
        room.run.over(current)
    assert list(requests) == ["keys"]  # of a third sum, which exceeds the budget
    report = room.run.report()
    assert report.rounds[2].declined == 5
    mechanism = plan.mechanism_for(DIMENSION)
    cost = plan.release(mechanism)
    spent = Account(plan.target, "adaptive").spend(cost, 2).epsilon()
    assert 3.99 < spent <= 4.0
    for node in room.nodes.values():
        books_of_node = noted(node)
        assert [key[1] for key in books_of_node.counts()] == [2]
        assert account_of(books_of_node, plan.target, 2).epsilon() == spent
        local = Target(4.0, 1e-5, plan.adjacency)
        assert account_of(books_of_node, local, 2).epsilon() > spent  # had the masks failed
    guarantee = report.to_json()["guarantee"]
    assert guarantee["trust"] == "secure-aggregation"
    assert guarantee["min_honest_clients"] == 2
    assert guarantee["epsilon_upper"] == spent


def test_answers_are_set_aside_purely_beside_the_account_of_sums():
    asks = {"epsilon": 0.5, "releases": 2}
    plan = engine_plan("imvu", **GIVEN, secure_aggregation=CURIOUS, evaluate=asks)
    room = room_of("curious", plan)
    assert plan.update_target == plan.target.without(2 * 0.5)
    for number in (1, 2, 3):
        play(room, number) if number < 3 else None
        answers = room.run.open_answers(number)
        answers.start([Asked(node, carries_model=False) for node in NODES])
        room.play(answers, subject=Subject.EVALUATION)
        outcome = room.run.close_answers(answers, number)
        assert outcome.answered == (5 if number < 3 else 0)  # what was set aside is used
    report = room.run.report()
    updates = account_of(noted(room.nodes[11]), plan.update_target, 2)
    assert updates.holds()
    cost = plan.release(plan.mechanism_for(DIMENSION))
    apart = Account(plan.update_target, "adaptive").spend(cost, 2).guarantee().epsilon_upper
    assert updates.epsilon() == pytest.approx(apart, rel=1e-12)
    assert report.guarantee is not None
    assert report.guarantee.epsilon_upper == pytest.approx(apart + 2 * 0.5, rel=1e-12)
    assert report.guarantee.epsilon_upper <= 4.0
    assert report.guarantee.delta == plan.delta
    assert "sees each randomised answer" in report.promise()


def test_a_server_that_asks_to_unmask_both_ways_is_refused():
    room = room_of("curious")
    _, requests = play(room, 1, "unmask")
    node = room.nodes[11]
    asked = requests["unmask"][11]
    first = node.answers(asking(asked, table=write_evidence(FIVE, {1, 2, 3, 4}, {}, {})))
    given_up = Unmasking.read(FIVE, first.records[SUM]["answer"])
    assert set(given_up.pair_keys) == {5}  # one secret of each client, never both
    assert set(given_up.seeds) == {1, 2, 3, 4}
    assert reason(node.answers(asked)) is Reason.NOT_IN_SUM
    assert SUM not in node.state


def test_a_server_that_tells_nodes_different_lists_gets_no_share(owner_log):
    room = room_of("active")
    _, requests = play(room, 1, "confirm")
    keys = MEMBERS.keys(list(NODES))
    plan = SumPlan(5, 4, DIMENSION, b"r", members=keys, terms=b"m")
    lists = {number: ALL - {number % 5 + 1} for number in ALL}
    signed = {}
    for number, node in enumerate(NODES, 1):
        request = asking(requests["confirm"][node], table=plan.bitmap(lists[number]))
        signed[number] = room.nodes[node].answers(request).records[SUM]["answer"]
        again = asking(request, table=plan.bitmap(ALL))
        assert reason(room.nodes[node].answers(again)) is Reason.NOT_IN_SUM  # a list is signed once
    for number, node in enumerate(NODES, 1):
        told = {other: signed[other] for other in lists[number]}
        table = write_evidence(plan, lists[number], told, {})
        request = asking(requests["confirm"][node], step="unmask", table=table)
        assert reason(room.nodes[node].answers(request)) is Reason.NOT_IN_SUM
        assert "signature of client" in owner_log.last()


FORGED = write_inbox(FIVE, ALL, dict.fromkeys((2, 3, 4, 5), bytes(DEALT_SIZE)))


def unmasking(*arrived):
    return write_evidence(FIVE, set(arrived), {}, {})


@pytest.mark.parametrize(
    ("step", "changes", "why"),
    [
        ("vector", {"table": FORGED}, Reason.NOT_IN_SUM),
        ("unmask", {"table": unmasking(1, 2)}, Reason.NOT_IN_SUM),  # below the threshold
        ("unmask", {"table": unmasking(2, 3, 4)}, Reason.NOT_IN_SUM),  # without this client
        ("vector", {"number": 2}, Reason.NOT_IN_SUM),
        ("vector", {"clients": 4}, Reason.NOT_IN_SUM),
        ("vector", {"clients": 8}, Reason.INVALID),  # of which 3 are no threshold
        ("vector", {"number": 7}, Reason.INVALID),
        ("vector", {"step": "more"}, Reason.INVALID),
        ("vector", {"version": 2}, Reason.INVALID),
        ("vector", {"threshold": 2}, Reason.INVALID),
        ("vector", {"table": "x"}, Reason.INVALID),
    ],
)
def test_what_is_not_of_this_sum_is_refused_before_anything_is_noted(step, changes, why):
    room = room_of("curious")
    _, requests = play(room, 1, step)
    node = room.nodes[11]
    before = noted(node).releases
    node.models.clear()
    assert reason(node.answers(asking(requests[step][11], **changes))) is why
    assert not node.models  # the app is not called
    assert noted(node).releases == before


def test_every_step_is_taken_once_and_in_order():
    room = room_of("curious")
    _, requests = play(room, 1, "vector")
    node = room.nodes[11]
    unmask = asking(requests["vector"][11], step="unmask", table=unmasking(1, 2, 3))
    assert reason(node.answers(unmask)) is Reason.NOT_IN_SUM
    assert reason(node.answers(requests["shares"][11])) is Reason.NOT_IN_SUM
    assert reason(node.answers(requests["keys"][11])) is Reason.ANSWERED_BEFORE
    assert reason(node.answers(requests["vector"][11])) is None
    node.models.clear()
    for step in ("vector", "keys"):  # nor with fresh keys: the ledger has the round
        assert reason(node.answers(requests[step][11])) is Reason.ANSWERED_BEFORE
    assert not node.models


def test_a_request_of_an_earlier_round_is_refused():
    room = room_of("curious")
    current, old = play(room, 1)
    room.run.over(current)
    reasons = {}
    for number, step in enumerate(STEPS["curious"], 11):  # each node is asked for one of them
        reasons[step] = (number, old[step][number])
    play(room, 2, "vector")
    assert {step: reason(room.nodes[n].answers(asked)) for step, (n, asked) in reasons.items()} == {
        "keys": Reason.ANSWERED_BEFORE,
        "shares": Reason.NOT_IN_SUM,
        "vector": Reason.ANSWERED_BEFORE,
        "unmask": Reason.NOT_IN_SUM,
    }


def owned(folder, **changes):
    """Return the policy of a node whose owner allows sums."""
    rules = {
        "trust": ["secure-aggregation"],
        "min_honest_clients": 2,
        "local_epsilon": 1e3,
        "adjacency": "zero-out",
        "epsilon": 1e3,
        "seed": SEED,
    }
    return write_policy(folder, **rules | changes)


@pytest.mark.parametrize("step", ["shares", "unmask"])
def test_two_processes_of_a_node_do_not_both_answer_a_step(step, tmp_path):
    """An engine starts a process for each message, from the same state: the file knows better."""
    room = room_of("curious")
    node = Node(11, room.run.plan, owner=owned(tmp_path))
    room.nodes[11] = node
    _, requests = play(room, 1, step)
    twin = Node(11, room.run.plan, owner=node.config["quietbit.policy"])
    twin.state = copy.deepcopy(node.state)
    assert reason(node.answers(requests[step][11])) is None
    assert reason(twin.answers(requests[step][11])) is Reason.ANSWERED_BEFORE
    assert books(tmp_path).releases == (step == "unmask")


def test_the_ledger_is_written_before_the_vector_is_masked(monkeypatch, tmp_path):
    room = room_of("curious")
    room.nodes[11] = Node(11, room.run.plan, owner=owned(tmp_path))
    seen = []
    mask = SumStep.mask

    def watched(step, payload):
        if step._run == str(RUN):
            seen.append(books(tmp_path).releases)
        return mask(step, payload)

    _, requests = play(room, 1, "vector")
    monkeypatch.setattr(SumStep, "mask", watched)
    assert reason(room.nodes[11].answers(requests["vector"][11])) is None
    assert seen == [1]
    assert [(key[1], times) for key, times in books(tmp_path).counts().items()] == [(2, 1)]


def test_what_a_node_gives_away_if_every_mask_fails_has_a_cap_of_its_own(tmp_path):
    room = room_of("curious")
    room.nodes[11] = Node(11, room.run.plan, owner=owned(tmp_path, local_epsilon=2.0))
    _, requests = play(room, 1, "keys")
    assert reason(room.nodes[11].answers(requests["keys"][11])) is Reason.BUDGET_SPENT


class Owned:
    """Five nodes, each with its owner's policy and identity, in an operator's directory."""

    def __init__(self, folder, kind="active", **changes):
        self.people = [Identity.new() for _ in NODES]
        signer = Identity.new()
        named = [(f"node {place}", one.public) for place, one in enumerate(self.people)]
        self.members = MemberList.of(named)
        self.room = Room(PLANS[kind], self.members if kind == "active" else None)
        for node, person in zip(NODES, self.people, strict=True):
            home = folder / str(node)
            home.mkdir()
            (home / "members.json").write_text(self.members.signed(signer))
            person.save(home / "own.pem")
            rules = {
                "directory": str(home / "members.json"),
                "own_key": str(home / "own.pem"),
                "operator": signer.public.hex(),
                "most_colluders": 1,
            }
            policy = owned(home, **rules | changes)
            self.room.nodes[node] = Node(node, PLANS[kind], owner=policy)


def test_nodes_of_owners_are_in_a_sum_and_keep_no_secrets(tmp_path):
    room = Owned(tmp_path).room
    current, _ = play(room, 1)
    assert np.array_equal(current.mean(), sum_of_codes(room, list(NODES), current))
    files = {"counter", "ledger", "ledger.key", "members.json", "own.pem", "policy.toml"}
    assert {path.name for path in (tmp_path / "11").iterdir()} == files


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"operator": "00" * 32}, "active", "its owner's log says why"),
        ({"min_honest_clients": 4}, "active", "so few colluding clients could unmask"),
        ({}, "curious", "(directory)"),
        ({"directory": None, "operator": None, "own_key": None}, "active", "(own-key)"),
    ],
)
def test_an_owner_s_terms_of_members(changes, kind, says, tmp_path):
    room = Owned(tmp_path, kind, **changes).room
    current, _ = play(room, 1)
    assert current.mean() is None
    sentences = " ".join(room.run.over(current).sentences())
    assert says in sentences
    assert str(tmp_path) not in sentences


def test_strangers_and_those_who_say_they_are_somebody_else_are_not_members(
    tmp_path,
):
    group = Owned(tmp_path)
    current = group.room.open()
    ask = current.next()
    assert ask is not None
    keys = [person.public for person in group.people]
    keys[2] = keys[0]
    keys[3] = Identity.new().public
    for asked, key in zip(ask.requests, keys, strict=True):
        current.take(Reply(asked.node, 1, {SUM: {"step": "identity", "answer": key}}))
    assert current.next() is None  # three are left, and four are needed
    sentences = " ".join(map(str, current.notes))
    assert "identity must be used by one node only" in sentences
    assert "identity must be in the list of members" in sentences
    assert releases(group.room) == [0] * 5


def test_a_server_s_own_directory_is_not_the_operator_s(tmp_path, owner_log):
    """It gives nodes places in a list of its own: nodes read theirs, and find others there."""
    group = Owned(tmp_path)
    entries = [(member.name, member.key) for member in reversed(group.members.members)]
    nodes = group.room.nodes
    room = Room(PLANS["active"], MemberList.of(entries))
    room.nodes = nodes
    current, _ = play(room, 1)
    assert current.mean() is None
    assert Reason.NOT_IN_SUM.value in " ".join(map(str, current.notes))
    assert "not-in-sum. identity must be" in owner_log.text()


def test_members_go_with_a_server_that_may_lie():
    with refuses("members"):
        Run(PLANS["active"], RUN, print)
    with refuses("members"):
        Run(PLANS["curious"], RUN, print, members=MEMBERS)


def test_sums_that_are_never_finished_do_not_fill_the_memory(
    monkeypatch,
):
    monkeypatch.setattr("quietbit.node.sum_step.MOST_SUMS", 3)
    room = room_of("curious")
    _, requests = play(room, 1, "keys")
    node = room.nodes[11]
    for run in range(5):
        assert reason(node.answers(requests["keys"][11], run=run)) is None
    assert list(node.state[SUM]) == ["2", "3", "4"]


def test_what_is_kept_is_nothing_a_server_ever_sees_and_sealed_where_it_waits(
    monkeypatch,
):
    secrets = set()
    written = SumClient.to_bytes

    def watched(client):
        own = (client._sealing, *client._secrets.values())
        secrets.update(bytes(part) for part in own if any(part))
        secrets.update(share for pair in client._received.values() for share in pair)
        return written(client)

    monkeypatch.setattr(SumClient, "to_bytes", watched)
    room = room_of("curious")
    _, requests = play(room, 1, "vector")
    node = room.nodes[11]
    reply = node.answers(requests["vector"][11])
    assert len(secrets) == 5 * (3 + 2) + 4 * 2  # each has its own; the first was dealt some
    (kept,) = node.state[SUM].values()
    shown = [kept, repr(node.state).encode(), pieces_of(reply.records)]
    for value in shown:
        for secret in secrets:
            assert secret not in value
            assert repr(secret)[2:-1].encode() not in value


def test_a_copied_state_without_the_owner_s_disk_is_no_sum(tmp_path):
    """What waits in a state opens with a key beside the ledger, and for the run it is of."""
    room = room_of("curious")
    node = Node(11, room.run.plan, owner=owned(tmp_path))
    room.nodes[11] = node
    _, requests = play(room, 1, "shares")
    key = tmp_path / "ledger.key"
    assert key.stat().st_mode & 0o777 == 0o600
    (kept,) = node.state[SUM].values()
    vault = Vault({str(RUN): kept, "2": kept}, lambda: key_file(str(key)))
    assert vault[str(RUN)]
    assert repr(kept) not in repr(vault)
    elsewhere = Vault({str(RUN): kept}, lambda: bytes(32))
    for bad, run in ((vault, "2"), (elsewhere, str(RUN))):
        with pytest.raises(NotInSum):
            bad[run]
    key.chmod(0o644)
    refused = node.answers(requests["shares"][11])
    assert reason(refused) is Reason.UNUSABLE
    assert str(tmp_path) not in str(refused.refusal)
