"""Answers to evaluations at a node: one ledger, a part of every cap, and no answer for free."""

from dataclasses import replace

import numpy as np
import pytest
from attrs import evolve

from core.statistical.kit import seed
from federation.node.makers import (
    MECHANISM,
    books,
    declines,
    forbids,
    keeper,
    policy,
    request,
    write_policy,
)
from quietbit import Adjacency, Uplink
from quietbit.errors import InvalidParameter
from quietbit.mechanism.response import RandomisedResponse
from quietbit.mechanism.scouts import Scouted
from quietbit.node.budget import account_of, epsilon_spent
from quietbit.node.gate import LocalGate
from quietbit.node.refusal import AnsweredBefore, BudgetSpent, NotAllowed
from quietbit.node.request import Step, SumPart
from quietbit.node.sender import PrivateSender
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.target import Target
from refusals import refuses

ANSWER = RandomisedResponse.within(0.5, 2, "replace-one")
RIGHT = np.array([0.0, 1.0])
CAP = Target(8.0, 1e-5, Adjacency.REPLACE_ONE)


def asked(number, mechanism=ANSWER, **changes):
    return request(number, mechanism, **{"epsilon": 100.0, "delta": 0.0} | changes)


def test_an_owner_who_names_no_budget_answers_nothing(tmp_path):
    with forbids("evaluate"):
        keeper(tmp_path).accept(asked(1))
    assert books(tmp_path).releases == 0


def test_answers_end_where_their_part_of_the_cap_does(tmp_path):
    held = keeper(tmp_path, evaluate=1.6)
    for number in (1, 2, 3):
        held.accept(asked(number)).release(RIGHT)
    declines(held, BudgetSpent, asked(4), asked(1, run=99))


def test_an_answer_inside_a_wrapper_is_refused_and_not_left_out_of_both_accounts(tmp_path):
    held = keeper(tmp_path, evaluate=1.6)
    with refuses("mechanism of an answer", "Scouted"):
        held.accept(asked(1, Scouted(ANSWER, 20, 0.5)))
    assert books(tmp_path).releases == 0


def test_the_same_request_is_never_answered_twice(tmp_path):
    held = keeper(tmp_path, evaluate=4.0)
    held.accept(asked(3)).release(RIGHT)
    for number in (3, 2, 1):
        declines(held, AnsweredBefore, asked(number))
    other = RandomisedResponse.within(0.4, 2, "replace-one")  # the same round in other words
    declines(held, AnsweredBefore, asked(3, other))
    held.accept(request(3)).release(None)  # the update of that round is another request
    declines(held, AnsweredBefore, request(3))


def test_updates_have_what_is_left_of_the_cap_and_no_more(tmp_path):
    each = MECHANISM.privacy(Adjacency.REPLACE_ONE)

    def fit(cap):
        account, many = Account(cap, "adaptive"), 0
        while account.allows(each, many + 1):
            many += 1
        return many

    whole, left = fit(CAP), fit(CAP.without(3.0))
    assert left < whole
    held = keeper(tmp_path, evaluate=3.0, releases=1000, releases_per_day=1000)
    for number in range(1, left + 1):
        held.accept(request(number))
    declines(held, BudgetSpent, request(left + 1))
    for number in range(1, 7):
        held.accept(asked(number)).release(RIGHT)
    declines(held, BudgetSpent, asked(7))
    rules = policy(tmp_path, evaluate=3.0)
    total = epsilon_spent(books(tmp_path), CAP, rules)
    updates = account_of(books(tmp_path), CAP.without(3.0)).epsilon()
    assert updates + 6 * ANSWER.epsilon_upper(Adjacency.REPLACE_ONE) <= total <= 8.0


def make(folder):
    folder.mkdir()
    return folder


def test_the_runs_own_budget_for_evaluations_is_held_too(tmp_path):
    held = keeper(tmp_path, evaluate=4.0)
    for number in (1, 2):
        held.accept(asked(number, epsilon=1.0)).release(RIGHT)
    declines(held, BudgetSpent, asked(3, epsilon=1.0))


@pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
def test_seeded_words_of_an_update_and_an_answer_are_not_the_same(tmp_path):
    from quietbit.kernel.client_rng import seeded_client_rng

    held = keeper(tmp_path, evaluate=4.0, seed=5)
    wide = RandomisedResponse.within(0.01, 2**16, "replace-one")
    data = held.accept(asked(1, wide)).release(np.zeros(2**16))
    reused = Uplink(wide).send(np.zeros(2**16), seeded_client_rng(5)(0, 0))
    assert not data.endswith(reused)


def test_a_share_that_cannot_be_read_is_one_answer_like_any_other(tmp_path):
    held = keeper(tmp_path, evaluate=4.0)
    sizes = {
        len(held.accept(asked(number)).release(bad))
        for number, bad in enumerate(
            (None, RIGHT, np.array([np.nan, 1.0]), np.zeros(3), "right"), 1
        )
    }
    assert len(sizes) == 1
    assert books(tmp_path).releases == 5


def test_a_sender_without_an_engine_answers_evaluations_too(tmp_path):
    path = write_policy(tmp_path, evaluate=1.0)
    updates, answers = PrivateSender(Uplink(MECHANISM), path), PrivateSender(Uplink(ANSWER), path)
    updates.send(np.zeros(42))
    for _ in range(2):
        answers.send(RIGHT)
    with pytest.raises(BudgetSpent):
        answers.send(RIGHT)
    updates.send(np.zeros(42))
    spent = answers.guarantee().epsilon_upper
    assert spent == updates.guarantee().epsilon_upper
    assert spent > 2 * ANSWER.epsilon_upper(Adjacency.REPLACE_ONE)


@pytest.mark.parametrize("evaluate", [[0.3], [2.0], [5.0], [7.5, 0.0, 3.0], [0.0, 3.0]], ids=str)
def test_a_server_that_mixes_requests_never_gets_more_than_the_cap(tmp_path, evaluate):
    """Updates and answers in any order cost no more than as a list fixed beforehand, whatever the
    owner sets aside for answers meanwhile.
    """
    rng, held = np.random.default_rng(seed(int(10 * sum(evaluate)))), keeper(tmp_path)
    spent, rounds = Cost(), {"answer": 0, "update": 0}
    for place in range(60):
        rules = policy(tmp_path, evaluate=evaluate[place * len(evaluate) // 60])
        gate = LocalGate(rules, held.ledger, {})
        kind = str(rng.choice(["answer", "update"]))
        mechanism = evolve(MECHANISM, beta=float(rng.choice([0.5, 1.0, 2.0])))
        if kind == "answer":
            epsilon, cells = float(rng.choice([0.05, 0.3, 1.0])), int(rng.choice([2, 5]))
            mechanism = RandomisedResponse.within(epsilon, cells, "replace-one")
        rounds[kind] += 1
        try:
            gate.accept(request(rounds[kind], mechanism, epsilon=1e3, delta=1e-5)).release(None)
        except (BudgetSpent, NotAllowed):
            continue
        spent = spent + mechanism.privacy(Adjacency.REPLACE_ONE)
        assert spent.epsilon(1e-5) <= epsilon_spent(books(tmp_path), CAP, rules) <= 8.0
    assert books(tmp_path).releases >= 3


def test_where_sums_are_allowed_answers_count_under_both_caps(tmp_path):
    sums = {
        "trust": ["local", "secure-aggregation"],
        "min_honest_clients": 50,
        "local_epsilon": 6.0,
    }
    held = keeper(tmp_path, **sums, evaluate=1.0)
    for number in (1, 2):
        held.accept(asked(number)).release(RIGHT)
    declines(held, BudgetSpent, asked(3))
    rules = policy(tmp_path, **sums, evaluate=1.0)
    assert all(0.99 < epsilon_spent(books(tmp_path), cap, rules) <= 1.0 for cap in rules.caps)


SUMS = {
    "trust": ("secure-aggregation",),
    "local_epsilon": 50.0,
    "min_honest_clients": 300,
    "evaluate": 0.5,
}


def test_an_owner_who_allows_sums_alone_lets_no_answer_be_seen(tmp_path):
    held = keeper(tmp_path, **SUMS)
    declines(held, "trust", asked(1))
    open_too = keeper(make(tmp_path / "open"), **SUMS | {"trust": ("local", "secure-aggregation")})
    assert len(open_too.accept(asked(1)).release(RIGHT)) > 0


def test_an_answer_is_no_part_of_a_sum(tmp_path):
    held = keeper(tmp_path, **SUMS | {"trust": ("local", "secure-aggregation")})
    part = SumPart(Step.KEYS, 400, 1, 320, 300, "honest-but-curious")
    for step in (Step.KEYS, Step.ALONE):
        with pytest.raises(InvalidParameter):
            held.step(request(1, ANSWER, epsilon=100.0, sum=replace(part, step=step)))
    assert books(tmp_path).releases == 0
