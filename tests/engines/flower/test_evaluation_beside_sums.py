"""Updates are summed behind masks; each answer to an evaluation is seen, randomised, and priced so."""

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import ConfigRecord, Message

from engines.flower.kit import SIMULATED, ledger, model
from engines.flower.secure_kit import ACTIVE, CONFIG, SUM, Room, strategy_of
from engines.flower.test_evaluation import evaluates
from quietbit import Plan
from quietbit.mechanism.response import RandomisedResponse
from quietbit.node.budget import account_of
from quietbit.privacy.account import Account
from refusals import refuses

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
ASKS = {"quietbit.evaluate.epsilon": 0.5, "quietbit.evaluate.releases": 2}
CURIOUS = CONFIG | ASKS
LYING = ACTIVE | ASKS


def evaluate(strategy, room, number=1):
    messages = list(strategy.configure_evaluate(number, model(), ConfigRecord(), room))
    replies = [room.carry(message, evaluates(1.0)) for message in messages]
    return messages, replies, strategy.aggregate_evaluate(number, replies)


@pytest.mark.parametrize("config", [CURIOUS, LYING], ids=["curious", "active"])
def test_an_answer_is_randomised_per_client_and_no_step_of_a_sum(config):
    room, strategy = Room(config=config), strategy_of(config)
    messages, replies, _ = evaluate(strategy, room)
    assert not any(SUM in message.content for message in messages)
    payloads = {len(reply.content["quietbit"]["release"]) for reply in replies}
    assert len(payloads) == 1  # one size, whatever the answer
    mechanism = Plan.from_run_config(config).evaluation.mechanism
    assert mechanism == RandomisedResponse.within(0.5, 2, "zero-out")
    (outcome,) = strategy.report().evaluations
    assert (outcome.asked, outcome.answered) == (6, 6)


def test_answers_are_set_aside_purely_beside_the_account_of_sums():
    room, plan, strategy = Room(config=CURIOUS), Plan.from_run_config(CURIOUS), strategy_of(CURIOUS)
    assert plan.update_target == plan.target.without(2 * 0.5)
    for number in (1, 2):
        asked = strategy.configure_train(number, model(), ConfigRecord({}), room)
        strategy.aggregate_train(number, room.send_and_receive(asked))
        evaluate(strategy, room, number)
    report = strategy.report()
    assert [entry.answered for entry in (*report.rounds, *report.evaluations)] == [6] * 4
    state = ledger(room.contexts[101])
    assert state.releases == 4
    updates = account_of(state, plan.update_target, 3)
    assert updates.holds()
    cost = plan.release(plan.mechanism_for(42))
    apart = Account(plan.update_target, "adaptive").spend(cost, 2).guarantee().epsilon_upper
    assert updates.epsilon() == pytest.approx(apart, rel=1e-12)
    assert report.guarantee.epsilon_upper == pytest.approx(apart + 2 * 0.5, rel=1e-12)
    assert report.guarantee.epsilon_upper <= 4.0
    assert report.guarantee.delta == plan.delta
    assert "sees each randomised answer" in report.promise()
    _, replies, _ = evaluate(strategy, room, 3)
    assert all(reply.has_error() for reply in replies)  # what was set aside is used
    assert ledger(room.contexts[101]).releases == 4


def test_a_run_that_leaves_updates_nothing_is_refused():
    with refuses("quietbit.epsilon", 4.0):
        Plan.from_run_config(CURIOUS | {"quietbit.evaluate.epsilon": 2.0})


def test_the_request_for_an_answer_gets_no_update_and_that_for_an_update_no_answer():
    room, strategy = Room(config=CURIOUS), strategy_of(CURIOUS)
    asks = next(iter(strategy.configure_evaluate(1, model(), ConfigRecord(), room)))
    trains = next(iter(strategy.configure_train(1, model(), ConfigRecord({}), room)))
    for message, kind in ((asks, "train"), (trains, "evaluate")):
        other = Message(message.content, message.metadata.dst_node_id, kind)
        assert SIMULATED(other, room.contexts[101], evaluates(1.0)).has_error()
    assert ledger(room.contexts[101]).releases == 0
