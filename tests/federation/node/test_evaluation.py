"""Answers to evaluations at a node: one ledger, a part of every cap, and no answer for free."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attrs import evolve

from core.statistical.kit import seed
from federation.node.makers import MECHANISM, books, forbids, keeper, policy, request, write_policy
from quietbit import Adjacency, Uplink
from quietbit.errors import InvalidParameter
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.response import RandomisedResponse
from quietbit.mechanism.scouts import Scouted
from quietbit.node.budget import account_of, epsilon_spent
from quietbit.node.gate import LocalGate
from quietbit.node.ledger import FileLedger
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


def asked(number: int, mechanism: Mechanism = ANSWER, **changes):
    return request(number, mechanism, **{"epsilon": 100.0, "delta": 0.0} | changes)


def test_an_owner_who_names_no_budget_answers_nothing(tmp_path):
    with forbids("evaluate"):
        keeper(tmp_path).accept(asked(1))
    assert books(tmp_path).releases == 0


def test_answers_end_where_their_part_of_the_cap_does(tmp_path):
    held = keeper(tmp_path, evaluate=1.6)
    for number in (1, 2, 3):
        held.accept(asked(number)).release(RIGHT)
    with pytest.raises(BudgetSpent):
        held.accept(asked(4))
    with pytest.raises(BudgetSpent):  # whatever run asks
        held.accept(asked(1, run=99))
    assert books(tmp_path).releases == 3


def test_an_answer_inside_a_wrapper_is_refused_and_not_left_out_of_both_accounts(tmp_path):
    held = keeper(tmp_path, evaluate=1.6)
    with refuses("mechanism of an answer", "Scouted"):
        held.accept(asked(1, Scouted(ANSWER, 20, 0.5)))
    assert books(tmp_path).releases == 0


def test_the_same_request_is_never_answered_twice(tmp_path):
    held = keeper(tmp_path, evaluate=4.0)
    held.accept(asked(3)).release(RIGHT)
    for number in (3, 2, 1):
        with pytest.raises(AnsweredBefore):
            held.accept(asked(number))
    other = RandomisedResponse.within(0.4, 2, "replace-one")  # the same round in other words
    with pytest.raises(AnsweredBefore):
        held.accept(asked(3, other))
    held.accept(request(3)).release(None)  # the update of that round is another request
    with pytest.raises(AnsweredBefore):
        held.accept(request(3))


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
    with pytest.raises(BudgetSpent):
        held.accept(request(left + 1))
    for number in range(1, 7):
        held.accept(asked(number)).release(RIGHT)
    with pytest.raises(BudgetSpent):
        held.accept(asked(7))
    rules = policy(tmp_path, evaluate=3.0)
    total = epsilon_spent(books(tmp_path), CAP, rules)
    updates = account_of(books(tmp_path), CAP.without(3.0)).epsilon()
    assert updates + 6 * ANSWER.epsilon_upper(Adjacency.REPLACE_ONE) <= total <= 8.0


def test_what_was_answered_stays_set_aside_when_the_owner_allows_less(tmp_path):
    held = keeper(tmp_path, evaluate=7.5)
    for number in range(1, 15):
        held.accept(asked(number)).release(RIGHT)
    stricter = policy(tmp_path, evaluate=0.0)
    later = LocalGate(stricter, FileLedger(stricter.ledger, stricter.counter), {})
    with pytest.raises(NotAllowed):
        later.accept(asked(15))
    free = keeper(make(tmp_path / "other"), evaluate=0.0)
    free.accept(request(1)).release(None)  # with nothing answered one update fits
    strong = evolve(MECHANISM, beta=2.0)
    assert 1.0 < strong.privacy(Adjacency.REPLACE_ONE).epsilon(1e-5) < 8.0
    with pytest.raises(BudgetSpent):
        later.accept(request(1, strong))
    free.accept(request(2, strong)).release(None)
    gone = policy(tmp_path, epsilon=5.0)
    with pytest.raises(BudgetSpent):
        LocalGate(gone, FileLedger(gone.ledger, gone.counter), {}).accept(request(1))


def test_an_owner_who_allows_evaluations_after_updates_allows_no_more_in_all(tmp_path):
    held = keeper(tmp_path)
    strong = evolve(MECHANISM, beta=2.0)
    held.accept(request(1, strong))
    held.accept(request(2, strong))
    with pytest.raises(BudgetSpent):
        held.accept(request(3, strong))
    kinder = policy(tmp_path, evaluate=3.0)
    later = LocalGate(kinder, FileLedger(kinder.ledger, kinder.counter), {})
    with pytest.raises(BudgetSpent):
        later.accept(asked(1))
    assert books(tmp_path).releases == 2
    richer = policy(tmp_path, epsilon=80.0, evaluate=3.0)
    LocalGate(richer, FileLedger(richer.ledger, richer.counter), {}).accept(asked(1))


def make(folder):
    folder.mkdir()
    return folder


def test_the_runs_own_budget_for_evaluations_is_held_too(tmp_path):
    held = keeper(tmp_path, evaluate=4.0)
    for number in (1, 2):
        held.accept(asked(number, epsilon=1.0)).release(RIGHT)
    with pytest.raises(BudgetSpent):
        held.accept(asked(3, epsilon=1.0))


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


def test_a_policy_whose_evaluations_would_take_all_is_refused(tmp_path):
    with refuses("evaluate"):
        policy(tmp_path, evaluate=8.0)
    assert "evaluate = 0.25" in policy(tmp_path, evaluate=0.25).text()


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


@pytest.mark.parametrize("evaluate", [0.3, 2.0, 5.0])
def test_a_server_that_mixes_requests_never_gets_more_than_the_cap(tmp_path, evaluate):
    """Updates and answers in any order cost no more than as a list fixed beforehand."""
    rng, held = np.random.default_rng(seed(int(10 * evaluate))), keeper(tmp_path, evaluate=evaluate)
    spent, rounds = Cost(), {"answer": 0, "update": 0}
    for _ in range(60):
        kind = str(rng.choice(["answer", "update"]))
        mechanism = evolve(MECHANISM, beta=float(rng.choice([0.5, 1.0, 2.0])))
        if kind == "answer":
            epsilon, cells = float(rng.choice([0.05, 0.3, 1.0])), int(rng.choice([2, 5]))
            mechanism = RandomisedResponse.within(epsilon, cells, "replace-one")
        rounds[kind] += 1
        try:
            held.accept(request(rounds[kind], mechanism, epsilon=1e3, delta=1e-5)).release(None)
        except BudgetSpent:
            continue
        spent = spent + mechanism.privacy(Adjacency.REPLACE_ONE)
    assert books(tmp_path).releases >= 3
    assert (
        spent.epsilon(1e-5)
        <= epsilon_spent(books(tmp_path), CAP, policy(tmp_path, evaluate=evaluate))
        <= 8.0
    )


def test_where_sums_are_allowed_answers_count_under_both_caps(tmp_path):
    sums = {
        "trust": ["local", "secure-aggregation"],
        "min_honest_clients": 50,
        "local_epsilon": 6.0,
    }
    with refuses("evaluate"):
        policy(tmp_path, **sums, evaluate=7.0)
    held = keeper(tmp_path, **sums, evaluate=1.0)
    for number in (1, 2):
        held.accept(asked(number)).release(RIGHT)
    with pytest.raises(BudgetSpent):
        held.accept(asked(3))
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
    with forbids("trust"):
        held.accept(asked(1))
    open_too = keeper(make(tmp_path / "open"), **SUMS | {"trust": ("local", "secure-aggregation")})
    assert len(open_too.accept(asked(1)).release(RIGHT)) > 0


def test_an_answer_is_no_part_of_a_sum(tmp_path):
    held = keeper(tmp_path, **SUMS | {"trust": ("local", "secure-aggregation")})
    part = SumPart(Step.KEYS, 400, 1, 320, 300, "honest-but-curious")
    for step in (Step.KEYS, Step.ALONE):
        with pytest.raises(InvalidParameter):
            held.step(request(1, ANSWER, epsilon=100.0, sum=replace(part, step=step)))
    assert books(tmp_path).releases == 0
