"""A round without an engine: what must hold however requests and replies travel.

Nodes are the real client half behind a simulation's gate; a test carries the messages.
"""

import numpy as np
import pytest

from federation.contract.room import NODES, WEIGHTS, Node, Room, all_asks, releases
from plans import engine_plan
from quietbit.errors import QuietbitError
from quietbit.federation.client import Subject
from quietbit.federation.layout import named_arrays
from quietbit.federation.messages import SUM, Asked, Reply, pieces_of, split_pieces
from quietbit.federation.part import Model
from quietbit.federation.record import Outcome
from quietbit.node.request import Step

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
GIVEN = {"adjacency": "zero-out", "epsilon": 40.0, "releases": 8}
ADAPTIVE = {**GIVEN, "clip": 1.0}
PLAIN = engine_plan("imvu", **ADAPTIVE)
SUMS = engine_plan(
    "imvu", **ADAPTIVE, secure_aggregation={"threshold": 3, "adversary": "honest-but-curious"}
)


@pytest.mark.parametrize("plan", [PLAIN, SUMS], ids=["plain", "masked"])
def test_a_round_ends_with_the_mean_of_its_releases(plan):
    room = Room(plan)
    current = room.open()
    room.play(current)
    assert current.is_over
    assert len(current.answered) == 5
    mean = current.mean()
    assert mean is not None
    noise = np.sqrt(current.scope.mechanism.error().squared / 5)
    assert np.abs(mean - 0.1).max() < 8 * max(noise, 0.5)
    step = room.run.step(current)
    assert step.arrays is not None
    report = room.run.over(current)
    assert report.answered == 5
    assert not report.skipped


def test_a_step_that_is_not_taken_skips_the_round():
    room = Room(PLAIN)
    current = room.open()
    room.play(current)
    current.not_taken(QuietbitError("no finite model."))
    report = room.run.over(current)
    assert report.skipped
    assert report.sentences() == ("the step was not taken: no finite model.",)


@pytest.mark.parametrize("plan", [PLAIN, SUMS], ids=["plain", "masked"])
def test_whoever_is_asked_is_counted_before_anything_is_sent(plan):
    """An engine that fails between asking and sending leaves everybody counted."""
    room = Room(plan)
    current = room.open()
    for _ in range(2 * (plan is SUMS)):
        ask = current.next()
        assert ask is not None
        assert not ask.releases
        assert releases(room) == [0] * 5  # a step is no release
        for asked in ask.requests:
            current.take(room.nodes[int(asked.node)].answers(asked))
    ask = current.next()
    assert ask is not None
    assert ask.releases
    assert releases(room) == [1] * 5
    current.fail(ConnectionError("engine lost"))
    assert current.next() is None
    assert current.mean() is None
    assert "engine lost" in str(current.notes[-1])
    outcome = room.run.over(current)
    assert outcome.skipped
    assert outcome.failed == 5
    assert releases(room) == [1] * 5


def test_a_request_that_is_made_again_is_the_same_and_counts_once():
    room = Room(PLAIN)
    current = room.run.open(1, Model.of(named_arrays({"weight": WEIGHTS})))
    first = current.ask([Asked(11)])[0]
    again = current.ask([Asked(11)])[0]
    assert first.records == again.records
    assert room.run.updates[11].asked == 1
    reply = room.nodes[11].answers(first)
    assert current.take(reply) is Outcome.TAKEN
    declined = room.nodes[11].answers(again)
    assert declined.noted
    assert current.take(declined) is Outcome.SILENT
    assert current.take(reply) is Outcome.REFUSED  # the same bytes again
    assert releases(room)[0] == 1


def test_a_reply_after_the_end_is_noted_and_in_no_mean():
    room = Room(PLAIN)
    current = room.open()
    late = []

    def slow(trip, node):
        return node == 15

    room.play(current, slow)
    mean = current.mean()
    late.append(room.nodes[15].answers(room.asks[0].requests[-1]))
    assert current.take(late[0]) is Outcome.REFUSED
    np.testing.assert_array_equal(current.mean(), mean)
    assert "over" in str(current.notes[-1])
    assert releases(room) == [1] * 5


@pytest.mark.parametrize("trip", [1, 2, 3, 4])
@pytest.mark.parametrize("plan", [PLAIN, SUMS], ids=["plain", "masked"])
def test_a_round_in_which_all_fall_silent_ends(plan, trip):
    """Nothing waits for a reply: the round ends, has no mean, and asks nobody further."""
    room = Room(plan)
    current = room.open()
    room.play(current, lambda now, node: now >= trip)
    assert current.is_over
    was_asked = plan is PLAIN or trip >= 3
    assert releases(room) == [int(was_asked)] * 5
    answered = plan is PLAIN and trip > 1
    assert (current.mean() is not None) is answered
    assert len(room.asks) == (1 if plan is PLAIN else trip)
    assert room.run.over(current).skipped is not answered


@pytest.mark.parametrize("trip", [1, 2, 3, 4])
def test_below_the_threshold_nobody_is_asked_further(trip):
    """Two of five are left, and three are needed: the next step is not asked."""
    room = Room(SUMS)
    current = room.open()
    room.play(current, lambda now, node: now == trip and node > 12)
    assert len(room.asks) == trip
    assert current.mean() is None
    assert "there is no sum" in str(current.notes[-1])
    assert all(reply.refusal is None for reply in room.replies)


@pytest.mark.parametrize("masked", [False, True])
def test_scouts_answer_beside_a_round_in_the_same_trip(masked):
    """They are asked in one trip, in a round of their own, whose answers are in no mean."""
    sums = {"threshold": 3, "adversary": "honest-but-curious"} if masked else None
    plan = engine_plan("imvu", **{**ADAPTIVE, "every": 3}, secure_aggregation=sums)
    room = Room(plan)
    seen = 0
    for number in range(1, 9):
        current = room.open(number)
        room.play(current)
        trip = all_asks(room)[-1]
        beside = set().union(*(side.answered for side in current.side_rounds))
        assert not current.answered & beside
        fits = not masked or len(NODES) - len(beside) >= 3
        assert {asked.node for asked in trip.requests} == (set(NODES) if fits else beside)
        assert current.answered == (set(NODES) - beside if fits else set())
        report = room.run.over(current)
        assert report.scouted == len(beside)
        seen += len(beside)
        for node in NODES:
            made = sum(node in {asked.node for asked in ask.requests} for ask in all_asks(room))
            assert room.run.updates[node].releases == made
    assert seen > 0


@pytest.mark.parametrize("masked", [False, True])
def test_an_evaluation_is_a_round_that_takes_no_step(masked):
    sums = {"threshold": 3, "adversary": "honest-but-curious"} if masked else None
    plan = engine_plan("imvu", **ADAPTIVE, secure_aggregation=sums, evaluate={"epsilon": 1.0})
    room = Room(plan)
    answers = room.run.open_answers(1)
    answers.start([Asked(node, carries_model=False) for node in NODES])
    room.play(answers, subject=Subject.EVALUATION)
    assert len(answers.answered) == 5
    assert room.run.step(answers).arrays is None
    report = room.run.close_answers(answers, 1)
    assert report.answered == 5
    assert report.estimates
    assert not room.run.rounds


def test_a_node_that_was_not_asked_is_in_no_mean_and_its_release_counts():
    room = Room(PLAIN)
    current = room.open(nodes=NODES[:4])
    ask = current.next()
    assert ask is not None
    stranger = room.nodes[15].answers(Asked(15, records=dict(ask.requests[0].records)))
    assert current.take(stranger) is Outcome.REFUSED
    assert "not asked" in str(current.notes[-1])
    assert 15 not in current.answered
    assert releases(room) == [1] * 5


def test_a_vector_of_another_round_is_in_no_sum():
    room = Room(SUMS)
    first = room.open(1)
    room.play(first)
    vectors = [reply for reply in room.replies if SUM not in reply.records]
    second = room.open(2)
    for _ in range(2):
        ask = second.next()
        assert ask is not None
        for asked in ask.requests:
            second.take(room.nodes[int(asked.node)].answers(asked))
    ask = second.next()
    assert ask is not None
    steps = {asked.own_records[SUM]["step"] for asked in ask.requests}
    assert steps == {Step.VECTOR}
    assert [second.take(reply) for reply in vectors] == [Outcome.REFUSED] * 5
    assert second.next() is None
    assert second.mean() is None


def test_every_release_of_a_node_counts_asked_for_or_not():
    """Three nodes' releases in one round of one node, whose ledger forgot: the first is valid."""
    room = Room(PLAIN)
    current = room.open(nodes=NODES[:2])
    ask = current.next()
    assert ask is not None
    asked = ask.requests[0]
    several = []
    for seed in range(3):
        several.append(Node(int(asked.node), PLAIN, seed=seed).answers(asked))
    assert current.take(several[0]) is Outcome.TAKEN
    assert current.take(several[1]) is Outcome.REFUSED
    assert current.take(several[1]) is Outcome.REFUSED  # the same bytes are the same release
    current.take(Reply(asked.node, 1, refusal="quietbit: no.", noted=False))
    assert current.take(several[2]) is Outcome.REFUSED
    assert releases(room)[:2] == [3, 1]


@pytest.mark.parametrize("declined_first", [False, True])
@pytest.mark.parametrize("size", [None, -1], ids=["valid", "cut"])
def test_a_node_that_says_that_it_made_no_release_and_sends_one_is_counted(declined_first, size):
    room = Room(PLAIN)
    current = room.open(nodes=NODES[:1])
    ask = current.next()
    assert ask is not None
    declined = Reply(NODES[0], 1, refusal="quietbit: no.", noted=False)
    made = room.nodes[NODES[0]].answers(ask.requests[0])
    released = Reply(NODES[0], 1, split_pieces(pieces_of(made.records)[:size]))
    replies = [declined, released]
    for reply in replies if declined_first else reversed(replies):
        current.take(reply)
    assert releases(room)[0] == 1


def test_an_unprotected_reply_is_in_no_mean_and_ends_the_guarantee():
    room = Room(PLAIN)
    current = room.open(nodes=NODES[:3])
    ask = current.next()
    assert ask is not None
    assert current.take(Reply(NODES[0], 1, unprotected=True)) is Outcome.UNPROTECTED
    for asked in ask.requests[1:]:
        current.take(room.nodes[int(asked.node)].answers(asked))
    assert current.answered == set(NODES[1:3])
    assert room.run.excludes(NODES[0])
    assert not room.run.excludes(NODES[1])
    room.run.step(current)
    room.run.over(current)
    assert room.run.report().guarantee is None
