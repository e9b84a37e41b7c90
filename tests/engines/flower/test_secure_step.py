"""What a node refuses in a masked sum, whatever the server asks: steps twice, other sums, both
secrets of a client.
"""

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import ErrorCode

from engines.flower.kit import DIMENSION, RUN, SIMULATED, app, be_the_server, gated, ledger, model
from engines.flower.secure_kit import (
    NODES,
    SUM,
    Room,
    asking,
    mechanism,
    requests,
    run,
    shift,
)
from federation.node.makers import books, write_policy
from quietbit.node.gate import LocalGate
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import Policy
from quietbit.node.refusal import NotInSum
from quietbit.node.request import Request, SumPart, description_of
from quietbit.node.stores import Vault, key_file
from quietbit.node.sum_step import SumStep
from quietbit.secagg.client import SumClient
from quietbit.secagg.codec import (
    Unmasking,
    read_inbox,
    read_tables,
    write_inbox,
    write_tables,
)
from quietbit.secagg.plan import SumPlan

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


class Listening(Room):
    """A room that remembers the requests."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked: dict[tuple[str, int], Message] = {}

    def carry(self, message, app_of=None):
        self.asked[message.content[SUM]["step"], message.metadata.dst_node_id] = message
        return super().carry(message, app_of)


def ready():
    """A room whose nodes were just sent the request for their vectors."""
    room = Listening()
    strategy, messages = requests(room)
    return room, strategy, messages


def bitmap(arrived):
    """A list of clients, of eight at most."""
    return bytes([sum(1 << (number - 1) for number in arrived)])


PLAN = SumPlan(6, 4, DIMENSION, b"r")
WIDE = SumPlan(8, 5, DIMENSION, b"r")  # its lists are as long, and may have strangers


def unmasking(data):
    """What a node of six gave up."""
    return Unmasking.read(PLAN, data)


def unmask(message, arrived):
    content = RecordDict({name: message.content[name] for name in (SUM, "quietbit")})
    step = {"step": "unmask", "table": bitmap(arrived) + b"\0\0"}
    return asking(Message(content, message.metadata.dst_node_id, "train"), **step)


LOG = None  # of the nodes' owners


@pytest.fixture(autouse=True)
def _log(owner_log):
    global LOG
    LOG = owner_log


def reason(reply):
    """What the server hears, and behind it what the owner's log says."""
    assert reply.has_error()
    assert reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION
    assert "\n" not in reply.error.reason
    return f"{reply.error.reason} {LOG.last()}"


def never(*_):
    raise AssertionError("the app must not be called")


def test_a_server_that_asks_to_unmask_both_ways_is_refused():
    room, _, messages = ready()
    for message in messages:
        assert not room.carry(message).has_error()
    first = room.carry(unmask(messages[0], [1, 2, 3, 4, 5]))
    found = unmasking(first.content[SUM]["answer"])
    assert set(found.pair_keys) == {6}  # one secret of each client, never both
    assert set(found.seeds) == {1, 2, 3, 4, 5}
    second = room.carry(unmask(messages[0], [1, 2, 3, 4, 5, 6]))
    assert "not part of the sum" in reason(second)
    assert SUM not in room.contexts[101].state


def twin(place):
    """Another process of the same node, started from the same copy of the state."""
    state = RecordDict({name: ConfigRecord(dict(record)) for name, record in place.state.items()})
    return Context(place.run_id, place.node_id, place.node_config, state, place.run_config)


def test_two_processes_of_a_node_do_not_both_unmask_or_share(tmp_path):
    """Flower starts a process for each message, from the same state: the file knows what the other
    one answered.
    """
    room = Listening({("shares", 101)})
    own = owned(tmp_path)
    room.contexts[101] = Room(**own).contexts[101]
    requests(room)
    before = twin(room.contexts[101])
    assert not gated()(room.asked["shares", 101], room.contexts[101], never).has_error()
    second = gated()(room.asked["shares", 101], before, never)
    assert "Step 2 of the sum of round 1" in reason(
        second
    )  # the same keys would have sealed other shares

    room, folder = Room(), tmp_path / "another"
    folder.mkdir()
    room.contexts[101] = Room(**owned(folder)).contexts[101]
    _, messages = requests(room)
    for message in messages:
        assert not room.carry(message).has_error()
    before = twin(room.contexts[101])
    found = unmasking(room.carry(unmask(messages[0], [1, 2, 3, 4, 5])).content[SUM]["answer"])
    assert set(found.pair_keys) == {6}
    second = gated()(unmask(messages[0], [1, 2, 3, 4, 5, 6]), before, never)
    assert "after step 5 of round 1" in reason(second)
    assert books(folder).releases == 1


@pytest.mark.parametrize(
    ("arrived", "says"),
    [
        ([1, 2, 3], "Only 3 clients sent their masked vectors; the threshold is 4"),
        ([2, 3, 4, 5], "unknown clients or lacks this one"),
        ([1, 2, 3, 4, 7], "list of clients must be of clients 1 to 6"),
        ([], "unknown clients or lacks this one"),
    ],
)
def test_an_unmasking_request_must_be_of_enough_known_clients_and_this_one(arrived, says):
    room, _, messages = ready()
    for message in messages:
        room.carry(message)
    assert says in reason(room.carry(unmask(messages[0], arrived)))
    # It has left the sum: a better request comes too late.
    assert "not part of the sum" in reason(room.carry(unmask(messages[0], [1, 2, 3, 4, 5, 6])))


def test_nothing_is_unmasked_before_the_vector_was_sent():
    room, _, messages = ready()
    assert "unmask is not the next" in reason(room.carry(unmask(messages[0], [1, 2, 3, 4])))


def test_one_vector_in_a_round():
    room, _, messages = ready()
    assert not room.carry(messages[0]).has_error()
    assert "answered-before: " in reason(room.carry(messages[0], never))
    # Nor with fresh keys: the ledger has the round.
    assert "answered-before: " in reason(room.carry(room.asked["keys", 101], never))


def test_a_replayed_request_for_keys_or_shares_is_refused():
    room, _, messages = ready()
    assert "Step 1 of the sum of round 1" in reason(room.carry(room.asked["keys", 101]))
    assert "not part of the sum" in reason(room.carry(messages[0], never))
    assert "share is not the next" in reason(room.carry(room.asked["shares", 102]))
    assert "not part of the sum" in reason(room.carry(messages[1], never))


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("keys", "answered-before: "),
        ("shares", "not part of the sum"),
        ("vector", "answered-before: "),
        ("unmask", "not part of the sum"),
    ],
)
def test_a_request_of_an_earlier_round_is_refused(step, says):
    room = Listening()
    strategy, history = run(room)
    old = dict(room.asked)
    list(strategy.configure_train(2, history[1], ConfigRecord({}), room))
    assert says in reason(room.carry(old[step, 101], never))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda roster: {i: roster[i] for i in (1, 2, 3)}, "Only 3 clients published"),
        (lambda roster: {**roster, 1: roster[2]}, "unknown clients, or lacks this one"),
        (lambda roster: {i: roster[i] for i in (2, 3, 4, 5, 6)}, "lacks this one"),
        (lambda roster: {**roster, 3: roster[2]}, "a key twice"),
        (lambda roster: {**roster, 7: roster[6]}, "of clients 1 to 6"),
        (lambda roster: {**roster, 6: roster[6][1:]}, "length of the roster"),
        (lambda roster: {**roster, 6: bytes(96)}, "a key twice"),
        (lambda roster: {**roster, 6: b"\1" + bytes(95)}, "point of large order"),
        (lambda roster: {**roster, 6: b"\xff" * 32 + roster[6][32:]}, "below 2^255 - 19"),
    ],
)
def test_a_list_of_keys_must_be_of_enough_distinct_clients_and_this_one(change, says):
    room = Listening({("shares", node) for node in NODES[:1]})
    requests(room)
    room.gone = set()
    request = room.asked["shares", 101]
    (roster,) = read_tables(PLAN, request.content[SUM]["table"], "it", 96)
    altered = asking(request, table=write_tables(WIDE, change(roster)))
    assert says in reason(room.carry(altered))


def test_too_few_shares_are_noticed_before_anyone_trains():
    room, _, messages = ready()
    table = messages[0].content[SUM]["table"]
    _, inbox = read_inbox(PLAN, table)
    dealt = {number: data for number, data in inbox.items() if number <= 3}
    few = asking(messages[0], table=write_inbox(PLAN, [1, 2, 3], dealt))
    assert "Only 3 clients shared their secrets; the threshold is 4" in reason(
        room.carry(few, never)
    )


@pytest.mark.parametrize("what", ["bits", "swapped", "stranger"])
def test_shares_that_are_not_genuine_end_the_nodes_part(what):
    room, _, messages = ready()
    u1, table = read_inbox(PLAN, messages[0].content[SUM]["table"])
    if what == "bits":
        table[3] = bytes([table[3][0] ^ 1]) + table[3][1:]
    elif what == "swapped":
        table[3], table[4] = table[4], table[3]
    else:
        table[7] = table[6]
    reply = room.carry(asking(messages[0], table=write_inbox(WIDE, u1, table)), never)
    says = {"stranger": "of clients 1 to 6"}.get(what, "dealt to client 1 is not genuine")
    assert says in reason(reply)
    assert SUM not in room.contexts[101].state
    assert ledger(room.contexts[101]).releases == 0  # opened before anything was noted


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clients": 7}, "not part of the sum"),
        (
            {"clients": 8},
            "threshold must be at least 5 of 8 clients",
        ),
        (
            {"clients": 3, "number": 1},
            "threshold must be a whole number from 2 to 3, got 4",
        ),
        ({"step": "more"}, "step of the sum must be one of keys, shares, vector, unmask"),
        ({"version": 2}, "version of the server's quietbit must be 3, got 2"),
        ({"number": 7}, "number of the client"),
        ({"number": 2}, "not part of the sum"),
        ({"threshold": 2}, "must carry a step of a masked sum"),
        ({"table": "x"}, "table of the step must be bytes"),
    ],
)
def test_a_sum_that_changes_midway_is_another(changes, says):
    room, _, messages = ready()
    assert says in reason(room.carry(asking(messages[0], **changes), never))
    assert SUM not in room.contexts[101].state
    assert ledger(room.contexts[101]).releases == 0  # nothing was spent


@pytest.mark.parametrize(("name", "value"), [("round", 2), ("dimension", 41)])
def test_a_model_of_another_round_or_size_is_of_another_sum(name, value):
    room, _, messages = ready()
    changed = ConfigRecord(dict(messages[0].content["quietbit"]) | {name: value})
    message = Message(RecordDict({**messages[0].content, "quietbit": changed}), 101, "train")
    reply = room.carry(message, never)
    assert reply.has_error()
    assert ledger(room.contexts[101]).releases == 0


def owned(folder, **changes):
    """The node config of a node whose owner allows sums."""
    sums = {
        "trust": ["secure-aggregation"],
        "min_honest_clients": 3,
        "local_epsilon": 1e3,
        "adjacency": "zero-out",
    }
    return {"quietbit_policy": write_policy(folder, **{"seed": 7, "epsilon": 1e3} | sums | changes)}


def test_the_ledger_is_written_before_the_vector_is_masked(monkeypatch, tmp_path):
    room, noted = Room(), []
    room.contexts[101] = Room(**owned(tmp_path)).contexts[101]
    _, messages = requests(room)
    mask = SumStep.mask

    def watched(step, payload):
        noted.append(books(tmp_path).releases)
        return mask(step, payload)

    monkeypatch.setattr(SumStep, "mask", watched)
    assert not room.carry(messages[0]).has_error()
    assert noted == [1, 1]  # of zero, before the app is called, and of the update
    assert [(honest, times) for (_, honest, _), times in books(tmp_path).counts().items()] == [
        (3, 1)
    ]


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"trust": ["local"], "min_honest_clients": None, "local_epsilon": None}, "(trust)"),
        ({"min_honest_clients": 5}, "(min-honest-clients)"),
        ({"min_honest_clients": 2}, "budget-spent: "),
        ({"epsilon": 3.0}, "budget-spent: "),
        ({"local_epsilon": 4.0}, "budget-spent: "),
        ({"mechanisms": ["gaussian"]}, "(mechanisms)"),
    ],
)
def test_a_node_s_own_terms(own, says, tmp_path):
    """In particular the second cap: what a node gives away if every mask fails is bounded by
    itself.
    """
    room = Room()
    room.contexts[101] = Room(**owned(tmp_path, **own)).contexts[101]
    strategy, _ = run(room, rounds=2)
    reasons = [
        reason
        for entry in strategy.report().rounds
        for reason in entry.sentences()
        if "node 101" in reason
    ]
    assert says in " ".join(reasons)


def test_secrets_are_forgotten_with_the_next_message_of_another_kind():
    room, _, messages = ready()
    room.carry(messages[0])
    place = room.contexts[101]
    assert SUM in place.state
    be_the_server()
    evaluate = Message(RecordDict({"arrays": model()}), 101, "evaluate")
    SIMULATED(evaluate, place, app(shift(101)))
    assert SUM not in place.state


def test_sums_that_are_never_finished_do_not_fill_the_memory(tmp_path):
    secrets = {}
    policy = Policy.load(owned(tmp_path)["quietbit_policy"])
    held = LocalGate(policy, FileLedger(policy.ledger, policy.counter), secrets)
    for number in range(70):
        part = SumPart("keys", 6, 1, 4, 3, "honest-but-curious")
        asked = Request(
            number, 1, 11, DIMENSION, description_of(mechanism()), 1e3, 1e-5, "zero-out", None, part
        )
        assert len(held.step(asked)) == 96
    assert list(secrets) == [str(number) for number in range(6, 70)]


def test_what_is_kept_is_nothing_a_server_ever_sees_and_sealed_where_it_waits(monkeypatch):
    held, written = [], SumClient.to_bytes

    def watched(client):
        held.extend(
            bytes(part) for part in (client._sealing, *client._secrets.values()) if any(part)
        )
        held.extend(share for pair in client._received.values() for share in pair)
        return written(client)

    monkeypatch.setattr(SumClient, "to_bytes", watched)
    room, _, messages = ready()
    reply = room.carry(messages[0])
    place = room.contexts[101]
    secrets = set(held)
    assert len(secrets) == 6 * (3 + 2) + 5 * 2  # of each its own, and what the first was dealt
    (kept,) = place.state[SUM].values()
    sent = [r.content for s, n, r in room.seen if n == 101 and s != "vector"]
    values = [
        v for c in (*sent, reply.content) for r in c.config_records.values() for v in r.values()
    ]
    for value in (
        *(v for v in values if isinstance(v, bytes)),
        kept,
        repr(place).encode(),
        str(place.state).encode(),
    ):
        for secret in secrets:
            assert secret not in value
            assert secret.hex().encode() not in value
            assert repr(secret)[2:-1].encode() not in value


def test_a_copied_state_without_the_owner_s_disk_is_no_sum(tmp_path):
    """What waits in Flower's state opens with a key that lies beside the ledger, and for the run it
    was kept for.
    """
    room = Listening({("shares", 101)})
    room.contexts[101] = Room(**owned(tmp_path)).contexts[101]
    requests(room)
    key = tmp_path / "ledger.key"
    assert key.stat().st_mode & 0o777 == 0o600
    kept = bytes(next(iter(room.contexts[101].state[SUM].values())))
    vault = Vault({str(RUN): kept, "2": kept}, lambda: key_file(str(key)))
    assert vault[str(RUN)]
    assert repr(kept) not in repr(vault)
    for bad in (lambda: vault["2"], lambda: Vault({str(RUN): kept}, lambda: bytes(32))[str(RUN)]):
        with pytest.raises(NotInSum):
            bad()
    key.chmod(0o644)
    reply = gated()(room.asked["shares", 101], room.contexts[101], never)
    assert "its owner's log says why" in reason(reply)
    assert str(tmp_path) not in reply.error.reason
