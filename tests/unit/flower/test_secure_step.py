"""What a node refuses in a masked sum, whatever the server asks: steps twice, other sums, both secrets of a client."""

import json

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import ErrorCode

from quietbit.node.question import pack, unpack, unpack_unmasking
from quietbit.node.sums import SumStep
from unit.flower.kit import SIMULATED, app, be_the_server, model
from unit.flower.secure_kit import CONFIG, NODES, SUM, Room, asking, questions, run, shift

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")
KEY_ROW, SHARE_ROW = 4 + 64, 4 + 82


class Listening(Room):
    """A room that remembers the questions."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked: dict[tuple[str, int], Message] = {}

    def carry(self, message, app_of=None):
        self.asked[message.content[SUM]["step"], message.metadata.dst_node_id] = message
        return super().carry(message, app_of)


def ready():
    """A room whose nodes were just sent the question for their vectors."""
    room = Listening()
    strategy, messages = questions(room)
    return room, strategy, messages


def unmask(message, arrived):
    content = RecordDict({SUM: message.content[SUM]})
    step = {"step": "unmask", "table": pack(dict.fromkeys(arrived, b""))}
    return asking(Message(content, message.metadata.dst_node_id, "train"), **step)


def reason(reply):
    assert reply.has_error()
    assert reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION
    assert "\n" not in reply.error.reason
    return reply.error.reason


def never(*_):
    raise AssertionError("the app must not be called")


def test_a_server_that_asks_to_unmask_both_ways_is_refused():
    room, _, messages = ready()
    for message in messages:
        assert not room.carry(message).has_error()
    first = room.carry(unmask(messages[0], [1, 2, 3, 4, 5]))
    found = unpack_unmasking(first.content[SUM]["answer"])
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
    """Flower starts a process for each message, from the same state: the file knows what the other one answered."""
    path = tmp_path / "ledger.json"
    room = Listening({("shares", 101)})
    own = {"quietbit_ledger": str(path), "quietbit_words": "seeded", "quietbit_trust": "secure-aggregation"}
    room.contexts[101] = Room(**own).contexts[101]
    questions(room)
    before = twin(room.contexts[101])
    assert not SIMULATED(room.asked["shares", 101], room.contexts[101], never).has_error()
    second = SIMULATED(room.asked["shares", 101], before, never)
    assert "step 2 of the sum of round 1" in reason(second)  # the same keys would have sealed other shares

    room = Room()
    path.unlink()
    room.contexts[101] = Room(**own).contexts[101]
    _, messages = questions(room)
    for message in messages:
        assert not room.carry(message).has_error()
    before = twin(room.contexts[101])
    found = unpack_unmasking(room.carry(unmask(messages[0], [1, 2, 3, 4, 5])).content[SUM]["answer"])
    assert set(found.pair_keys) == {6}
    second = SIMULATED(unmask(messages[0], [1, 2, 3, 4, 5, 6]), before, never)
    assert "must come after step 4 of round 1" in reason(second)
    assert read_ledger(path).releases == 1


@pytest.mark.parametrize(
    ("arrived", "says"),
    [
        ([1, 2, 3], "Only 3 clients sent their masked vectors; the threshold is 4"),
        ([2, 3, 4, 5], "unknown clients or lacks this one"),
        ([1, 2, 3, 4, 7], "unknown clients or lacks this one"),
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
    assert "above 1, the last one answered" in reason(room.carry(messages[0], never))
    # Nor with fresh keys: the ledger has the round.
    assert "above 1, the last one answered" in reason(room.carry(room.asked["keys", 101], never))


def test_a_replayed_question_for_keys_or_shares_is_refused():
    room, _, messages = ready()
    assert "keys is not the next" in reason(room.carry(room.asked["keys", 101]))
    assert "not part of the sum" in reason(room.carry(messages[0], never))
    assert "share is not the next" in reason(room.carry(room.asked["shares", 102]))
    assert "not part of the sum" in reason(room.carry(messages[1], never))


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("keys", "the last one answered"),
        ("shares", "not part of the sum"),
        ("vector", "the last one answered"),
        ("unmask", "not part of the sum"),
    ],
)
def test_a_question_of_an_earlier_round_is_refused(step, says):
    room = Listening()
    strategy, history = run(room)
    old = dict(room.asked)
    list(strategy.configure_train(2, history[1], ConfigRecord({}), room))
    assert says in reason(room.carry(old[step, 101], never))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda table: table[: 3 * KEY_ROW], "Only 3 clients published keys; the threshold is 4"),
        (lambda table: table[KEY_ROW:], "does not contain this client's own"),
        (lambda table: table[:KEY_ROW] + table[4:KEY_ROW].join([b"\2\0\0\0", b""]) + table[2 * KEY_ROW :], "one twice"),
        (lambda table: table[:-KEY_ROW] + b"\7\0\0\0" + table[-64:], "unknown clients"),
        (lambda table: table[:-1], "length of the table of public keys"),
        (lambda table: table[KEY_ROW : 2 * KEY_ROW] + table[:KEY_ROW], "larger than the one before"),
        (lambda table: table[:-64] + bytes(64), "one twice"),
        (lambda table: table[:-64] + bytes(32) + b"\1" + bytes(31), "point of large order"),
    ],
)
def test_a_list_of_keys_must_be_of_enough_distinct_clients_and_this_one(change, says):
    room = Listening({("shares", node) for node in NODES[:1]})
    questions(room)
    room.gone = set()
    question = room.asked["shares", 101]
    altered = asking(question, table=change(question.content[SUM]["table"]))
    assert says in reason(room.carry(altered))


def test_too_few_shares_are_noticed_before_anyone_trains():
    room, _, messages = ready()
    table = messages[0].content[SUM]["table"]
    few = asking(messages[0], table=table[: 2 * SHARE_ROW])
    assert "Only 3 clients shared their secrets; the threshold is 4" in reason(room.carry(few, never))


@pytest.mark.parametrize("what", ["bits", "swapped", "stranger"])
def test_shares_that_are_not_genuine_end_the_nodes_part(what):
    room, _, messages = ready()
    table = unpack(messages[0].content[SUM]["table"], 82, "shares")
    if what == "bits":
        table[3] = bytes([table[3][0] ^ 1]) + table[3][1:]
    elif what == "swapped":
        table[3], table[4] = table[4], table[3]
    else:
        table[7] = table[6]
    reply = room.carry(asking(messages[0], table=pack(table)))
    assert reply.has_error()
    assert "the app failed on the node" in reply.error.reason
    assert SUM not in room.contexts[101].state


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clients": 7}, "not part of the sum"),
        ({"clients": 8}, "from the threshold, 4, to 7, got 8"),
        ({"clients": 3, "number": 1}, "from the threshold, 4, to 7, got 3"),
        ({"round": 2}, "round of the model must be 2, the sum's, got 1"),
        ({"dimension": 41}, "not part of the sum"),
        ({"step": "more"}, "step of the sum must be one of keys, shares, vector, unmask"),
        ({"version": 2}, "version of the server's sums must be 1, got 2"),
        ({"number": 7}, "number of the client"),
        ({"threshold": 2}, "must carry a step of a masked sum"),
        ({"table": "x"}, "table of the step must be bytes"),
    ],
)
def test_a_sum_that_changes_midway_is_another(changes, says):
    room, _, messages = ready()
    assert says in reason(room.carry(asking(messages[0], **changes), never))
    assert SUM not in room.contexts[101].state
    kept = room.contexts[101].state["quietbit"]["ledger"]
    assert NodeLedger.from_text(kept, "it").releases == 0  # nothing was spent


def test_a_mechanism_of_the_server_s_own_is_refused_before_keys_are_sent():
    other = CONFIG | {"quietbit.clip": 2.0}
    room = Room(config=other)
    strategy, (_, after) = run(room)
    assert after is None
    assert not room.steps()
    assert "clip of the server's mechanism must be 2.0, got 1.0" in strategy.report().rounds[0].reasons[0]


def test_the_ledger_is_written_before_the_vector_is_masked(monkeypatch, tmp_path):
    path = tmp_path / "ledger.json"
    own = {"quietbit_ledger": str(path), "quietbit_words": "seeded", "quietbit_trust": "secure-aggregation"}
    room, noted = Room(), []
    room.contexts[101] = Room(**own).contexts[101]
    _, messages = questions(room)
    mask = SumStep.mask

    def watched(step, payload):
        noted.append(read_ledger(path).releases)
        return mask(step, payload)

    monkeypatch.setattr(SumStep, "mask", watched)
    assert not room.carry(messages[0]).has_error()
    assert noted == [1]
    ledger = read_ledger(path)
    assert (ledger.releases, ledger.honest) == (1, 3)
    held = ledger.guarantee(1e-5, Adjacency.ZERO_OUT, Trust.SECURE_AGGREGATION)
    assert "secure-aggregation trust" in held.sentence()


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"quietbit_threshold": 5}, "says quietbit.trust ="),
        ({"quietbit_threshold": 5, "quietbit_trust": "local"}, "says quietbit.trust ="),
        ({"quietbit_threshold": 5, "quietbit_trust": "secure-aggregation"}, "at least 5, this node's own, got 4"),
        ({"quietbit_honest": 1, "quietbit_trust": "secure-aggregation"}, "quietbit.honest of the node"),
        ({"quietbit_honest": 2, "quietbit_trust": "secure-aggregation"}, "is spent"),
    ],
)
def test_a_node_s_own_terms(own, says):
    room = Room(quietbit_words="seeded", **own)
    strategy, history = run(room, rounds=2)
    assert says in " ".join(reason for entry in strategy.report().rounds for reason in entry.reasons)
    assert None in history


def test_a_careful_node_counts_on_fewer_and_spends_more():
    room = Room()
    room.contexts[101] = Room(
        quietbit_words="seeded", quietbit_honest=2, quietbit_threshold=4, quietbit_trust="secure-aggregation"
    ).contexts[101]
    strategy, history = run(room, rounds=2)
    assert history[2] is not None
    ledgers = {n: NodeLedger.from_text(p.state["quietbit"]["ledger"], "it") for n, p in room.contexts.items()}
    assert {n: (found.releases, found.honest) for n, found in ledgers.items()} == {
        n: (1, 2) if n == 101 else (2, 3) for n in NODES
    }
    assert [entry.steps for entry in strategy.report().rounds] == [(6, 6, 6, 6), (5, 5, 5, 5)]


def test_secrets_are_forgotten_with_the_next_message_of_another_kind():
    room, _, messages = ready()
    room.carry(messages[0])
    place = room.contexts[101]
    assert SUM in place.state
    be_the_server()
    evaluate = Message(RecordDict({"arrays": model()}), 101, "evaluate")
    SIMULATED(evaluate, place, app(shift(101)))
    assert SUM not in place.state


def test_what_is_kept_is_nothing_a_server_ever_sees():
    room, _, messages = ready()
    kept = room.contexts[101].state[SUM]["client"]
    reply = room.carry(messages[0])
    assert json.loads(room.contexts[101].state[SUM]["client"])["secrets"] == ["", "", ""]  # needed no more
    sent = [r.content for s, n, r in room.seen if n == 101 and s != "vector"]
    secrets = [bytes.fromhex(part) for part in json.loads(kept)["secrets"]]
    assert [len(secret) for secret in secrets] == [32, 32, 32]
    for content in (*sent, reply.content):
        for record in content.config_records.values():
            for value in record.values():
                assert not any(secret in value for secret in secrets if isinstance(value, bytes))
