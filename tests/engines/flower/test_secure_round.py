"""Masked sums through mod and strategy: the plain sum of the same codes, whoever leaves when; or no
sum at all.
"""

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Error, Message

from engines.flower.kit import DIMENSION, app, ledger, model
from engines.flower.secure_kit import (
    NODES,
    SETTINGS,
    SUM,
    Room,
    codes_of,
    flat,
    mechanism,
    requests,
    run,
    shift,
    stepped,
)
from quietbit.node.budget import account_of
from quietbit.privacy.account import Account
from quietbit.secagg.plan import masked_size
from quietbit.target import Adjacency, Target
from quietbit.wire.payload import Framed

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")
PATTERNS = [
    {},
    {"keys": [101, 106]},
    {"vector": [101, 102]},
    {"unmask": [105, 106]},
    {"shares": [104], "unmask": [102]},
    {"vector": [106], "unmask": [101]},
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_the_masked_sum_is_the_plain_sum_bit_for_bit(pattern):
    room = Room({(step, node) for step, nodes in pattern.items() for node in nodes})
    strategy, (before, after) = run(room)
    stayed = [
        n
        for n in NODES
        if all(n not in pattern.get(step, ()) for step in ("keys", "shares", "vector"))
    ]
    assert np.array_equal(flat(after), stepped(before, stayed))
    (entry,) = strategy.report().rounds
    assert (entry.asked, entry.answered, entry.skipped) == (6, len(stayed), False)
    assert entry.steps[2:] == (len(stayed), len(stayed) - len(pattern.get("unmask", ())))


def test_what_leaves_a_node_is_masked_and_as_wide_as_the_largest_sum():
    room = Room()
    strategy, _ = run(room)
    for step, node, reply in room.seen:
        if step != "vector":
            assert {name: sorted(record) for name, record in reply.content.items()} == {
                SUM: ["answer", "step"]
            }
            continue
        assert {name: sorted(record) for name, record in reply.content.items()} == {
            "quietbit": ["release"]
        }
        release = Framed.from_bytes(reply.content["quietbit"]["release"])
        assert (
            len(release.payload)
            == masked_size(6, DIMENSION)
            == 24 + (3 * (DIMENSION + 22) + 7) // 8
        )
        sent = np.unpackbits(np.frombuffer(release.payload[24:], np.uint8), bitorder="little")[
            : 3 * DIMENSION
        ]
        values = sent.reshape(-1, 3) @ [1, 2, 4]
        # 42 uniform values modulo 8 are all 0 or 1 with probability 4^-42.
        assert values.max() > 1
        assert not np.array_equal(values, codes_of(node))
    assert strategy.report().rounds[0].uplink_payload == 6 * masked_size(6, DIMENSION)


def test_ledger_and_report_name_the_trust_and_whom_they_count_on():
    room = Room()
    strategy, history = run(room, rounds=3)
    two = Account(SETTINGS.target, "adaptive").spend(SETTINGS.release(mechanism()), 2).epsilon()
    assert (mechanism().sum_privacy(3, Adjacency.ZERO_OUT) * 2).epsilon(1e-5) <= two
    assert 3.99 < two <= 4.0
    for place in room.contexts.values():
        found = ledger(place)
        assert [(honest, times) for (_, honest, _), times in found.counts().items()] == [(3, 2)]
        assert account_of(found, SETTINGS.target, 3).epsilon() == two
        local = Target(4.0, 1e-5, Adjacency.ZERO_OUT)
        assert account_of(found, local, 3).epsilon() > two  # had the masks failed
        assert SUM not in place.state  # the secrets are forgotten
    assert (
        history[3] is None
    )  # a third sum would exceed the budget: every node says no before it sends a key
    report = strategy.report()
    assert report.rounds[2].steps == (0, 0, 0, 0)
    assert report.rounds[2].declined == 6
    assert "budget-spent: " in report.rounds[2].sentences()[0]
    assert {node.releases for node in report.nodes} == {2}
    values = json.loads(json.dumps(report.to_json()))
    assert values == report.to_json()
    assert (values["guarantee"]["trust"], values["guarantee"]["min_honest_clients"]) == (
        "secure-aggregation",
        3,
    )
    assert values["guarantee"]["epsilon_upper"] == two
    assert values["settings"]["quietbit.secure-aggregation.threshold"] == 4
    assert str(report).splitlines()[-1].endswith("It counts on 3 honest clients in every sum.")


def test_an_app_that_fails_is_a_vector_like_any_other():
    room = Room()
    strategy, messages = requests(room)

    def broken(message, _):
        raise ValueError("private numbers: 1.23")

    nan, still = app(np.full(DIMENSION, np.nan)), app(np.zeros(DIMENSION))
    replies = [
        room.carry(message, call) for message, call in zip(messages, (broken, nan), strict=False)
    ]
    replies += [room.carry(message) for message in messages[2:]]
    assert not any(reply.has_error() for reply in replies)
    assert len({len(reply.content["quietbit"]["release"]) for reply in replies}) == 1
    found, _ = strategy.aggregate_train(1, replies)
    other = Room()
    twin, again = requests(other)
    expected, _ = twin.aggregate_train(
        1, [other.carry(m, still if m.metadata.dst_node_id in NODES[:2] else None) for m in again]
    )
    assert np.array_equal(flat(found), flat(expected))


def test_replies_that_are_no_vectors_of_this_round_are_refused_and_the_sum_goes_on():
    room = Room()
    strategy, messages = requests(room)
    plain, error = (
        app(shift(101))(messages[0], None),
        Message(Error(1, "lost"), reply_to=messages[1]),
    )
    for reply, message in ((plain, messages[0]), (error, messages[1])):
        reply.metadata._src_node_id = message.metadata.dst_node_id
    good = [room.carry(message) for message in messages[2:]]
    found, metrics = strategy.aggregate_train(1, [plain, error, *good, good[0]])
    assert np.array_equal(flat(found), stepped(model(), NODES[2:]))
    assert metrics["quietbit-answered"] == 4
    reasons = " ".join(strategy.report().rounds[0].sentences())
    assert "node 101 sent an unprotected reply (vector)" in reasons
    assert "node 102 did not answer (vector): Flower says LOAD_CLIENT_APP_EXCEPTION" in reasons
    assert (
        "node 103 sent a reply that is not valid (vector): it has answered in this round already"
        in reasons
    )
