"""Samples protected at the node, in the process and behind the socket."""

import contextlib
import math

import numpy as np
import pytest

from federation.node.makers import (
    DIMENSION,
    MECHANISM,
    books,
    declines,
    gate_of,
    keeper,
    policy,
    request,
    serving,
)
from quietbit.errors import InvalidParameter
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.batch import LocalSteps, PoissonBatch
from quietbit.mechanism.response import RandomisedResponse
from quietbit.node.budget import account_of
from quietbit.node.refusal import BudgetSpent
from quietbit.target import Adjacency, Target, Unit
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink
from refusals import refuses

BALL = Ball(Norm.L2, DIMENSION)
EXACT = PoissonBatch(Gaussian(BALL, 1e-3), 10, 0.5)
NOISY = PoissonBatch(Gaussian(BALL, 0.02), 100, 0.1)  # mu 0.5 per release without sampling
RULES = {
    "unit": "sample",
    "data_set": "ward 7",
    "mechanisms": ["gaussian", "imvu"],
    "epsilon": 2.0,
    "adjacency": "zero-out",
}


def asked(number=1, mechanism=NOISY, **changes):
    return request(
        number, mechanism, **{"unit": "sample", "adjacency": "zero-out", "epsilon": 1e6, **changes}
    )


def mean(mechanism, data):
    return np.asarray(Uplink(mechanism).receive([bytes(Framed.from_bytes(data).payload)]))


@contextlib.contextmanager
def gate(folder, remote, **changes):
    if not remote:
        yield keeper(folder, **{**RULES, **changes})
        return
    with serving(folder, **{**RULES, **changes}) as held:
        yield held


@pytest.mark.parametrize("remote", [False, True])
def test_the_gate_draws_clips_each_row_and_divides_by_the_public_number(tmp_path, remote):
    with gate(tmp_path, remote, epsilon=1e9) as held:
        accepted = held.accept(asked(mechanism=EXACT))
        assert books(tmp_path).releases == 1  # noted before anything is drawn
        drawn = accepted.draw(40)
        assert 3 < len(drawn) < 37
        assert len(set(drawn.tolist())) == len(drawn)
        rows = np.zeros((len(drawn), DIMENSION), dtype=np.float32)
        rows[:, 0], rows[0, 0] = 0.25, 1e6
        rows[1, 0] = math.nan  # one spoilt sample takes nothing from the others
        accepted.add(rows[:2])
        accepted.add(rows[2:])
        found = mean(EXACT, accepted.release(None))
    expected = min(1.0, (1 + 0.25 * (len(drawn) - 2)) / 10)
    assert found[0] == pytest.approx(expected, abs=8e-3)
    assert np.abs(found[1:]).max() < 8e-3


@pytest.mark.parametrize("remote", [False, True])
def test_an_app_can_hand_over_no_more_than_was_drawn_and_draws_once(tmp_path, remote):
    with gate(tmp_path, remote, epsilon=1e9) as held:
        accepted = held.accept(asked(mechanism=EXACT))
        with pytest.raises(InvalidParameter, match="drawn"):
            accepted.add(np.ones((1, DIMENSION)))
        drawn = accepted.draw(20)
        with pytest.raises(InvalidParameter, match="drawn once"):
            accepted.draw(20)
        with pytest.raises(InvalidParameter, match="number of gradients"):
            accepted.add(np.ones((len(drawn) + 1, DIMENSION)))
        found = mean(EXACT, accepted.release([np.ones(DIMENSION)]))  # an update is no batch
    assert np.abs(found).max() < 8e-3


def test_the_owner_counts_what_a_patient_loses_with_the_amplification(tmp_path):
    held = keeper(tmp_path, **{**RULES, "epsilon": 0.6}, releases=999, releases_per_day=999)
    made = 0
    with contextlib.suppress(BudgetSpent):
        while made < 900:
            held.accept(asked(made + 1))
            made += 1
    cap = Target(0.6, 1e-5, "zero-out", unit="sample")
    account = account_of(books(tmp_path), cap, data_set="ward 7")
    assert account.guarantee().unit is Unit.SAMPLE
    assert 0.5 < account.epsilon() <= 0.6
    once = NOISY.privacy(Adjacency.ZERO_OUT, 100)
    assert (once * made).epsilon(1e-5) <= 0.6 < (once * (made + 3)).epsilon(1e-5)
    whole = NOISY.inner.privacy(Adjacency.ZERO_OUT, 100)
    assert (whole * made).epsilon(1e-5) > 2  # without sampling it would have been far beyond


def test_two_data_sets_have_two_accounts_and_a_release_of_none_counts_in_both(tmp_path):
    nameless = {name: value for name, value in RULES.items() if name not in ("unit", "data_set")}
    keeper(tmp_path, **{**nameless, "epsilon": 1e6}).accept(asked(1))
    for number, name in ((2, "ward 7"), (3, "ward 7"), (4, "ward 8")):
        rules = policy(tmp_path, **{**RULES, "data_set": name, "epsilon": 50.0})
        gate_of(rules).accept(asked(number))
    found = books(tmp_path)
    counts = {
        name: sum(times for _, times in account_of(found, rules.caps[0], data_set=name).entries)
        for name in ("", "ward 7", "ward 8", "ward 9")
    }
    assert counts == {"": 4, "ward 7": 3, "ward 8": 2, "ward 9": 1}


def test_an_update_of_a_client_costs_a_sample_as_much_as_replacing_it(tmp_path):
    held = keeper(tmp_path, **{**RULES, "epsilon": 1e3}, largest_clip=10.0)
    held.accept(request(1, MECHANISM, adjacency="zero-out", epsilon=1e3))
    cap = Target(1e3, 1e-5, "zero-out", unit="sample")
    found = account_of(books(tmp_path), cap, data_set="ward 7").epsilon()
    assert found >= MECHANISM.privacy(Adjacency.REPLACE_ONE).epsilon(1e-5) > 0


def test_a_client_policy_is_not_loosened_by_a_run_that_protects_samples(tmp_path):
    held = keeper(tmp_path, mechanisms=["gaussian"], epsilon=8.0, adjacency="zero-out")
    # noise 0.02 of the clip says nearly all about a client
    declines(held, BudgetSpent, asked(1))


def test_a_policy_bounds_the_rate(tmp_path):
    held = keeper(tmp_path, **RULES, largest_sampling_rate=0.05)
    declines(held, "largest-sampling-rate", asked(1))


@pytest.mark.parametrize("remote", [False, True])
def test_several_steps_are_one_release_and_the_gate_adds_them_up(tmp_path, remote):
    site = LocalSteps(EXACT, 3, 0.5, 8)
    with gate(tmp_path, remote, epsilon=1e9) as held:
        accepted, taken = held.accept(asked(mechanism=site)), []
        with pytest.raises(InvalidParameter, match="after a batch"):
            accepted.step()
        for number in range(2):  # the third is taken without the app
            drawn = accepted.draw(40)
            with pytest.raises(InvalidParameter, match="drawn once"):
                accepted.draw(40)
            rows = np.zeros((len(drawn), DIMENSION), dtype=np.float32)
            rows[:, number] = 0.25
            accepted.add(rows)
            taken.append(accepted.step())
        with pytest.raises(InvalidParameter, match="radients"):
            accepted.add(np.ones((1, DIMENSION)))
        with pytest.raises(InvalidParameter, match="after a batch"):
            accepted.step()
        found = mean(site, accepted.release([np.ones(DIMENSION)]))
    assert books(tmp_path).releases == 1
    np.testing.assert_allclose(found, sum(taken), atol=0.02)
    assert found[:2].min() > 0.04  # more than 3 of 40 coins, twice: but for 2e-8


def test_a_batch_is_refused_in_a_run_that_protects_clients(tmp_path):
    with pytest.raises(InvalidParameter, match="this one protects clients"):
        keeper(tmp_path).accept(request()).draw(280)


def test_steps_beyond_the_budget_are_refused_before_anything_is_drawn(tmp_path):
    held = keeper(tmp_path, **{**RULES, "epsilon": 0.6})
    declines(held, BudgetSpent, asked(mechanism=LocalSteps(NOISY, 400, 0.5)))
    held.accept(asked(mechanism=LocalSteps(NOISY, 2, 0.5), run=8))


def test_rows_that_cannot_be_added_are_not_handed_over_again(tmp_path):
    held = keeper(tmp_path, **{**RULES, "epsilon": 1e9})
    accepted = held.accept(asked(mechanism=EXACT))
    drawn = accepted.draw(40)
    rows = np.zeros((len(drawn), DIMENSION), dtype=object)
    rows[-1, 0] = "no number"
    with pytest.raises(ValueError, match="could not convert"):
        accepted.add(rows)
    with refuses("number of gradients", 1):
        accepted.add(np.zeros((1, DIMENSION)))


def test_evaluations_draw_no_batch_and_are_answered_where_batches_are_small(tmp_path):
    held = keeper(tmp_path, **RULES, largest_sampling_rate=0.1, evaluate=1.0)
    answer = RandomisedResponse.within(0.5, 2, "replace-one")
    assert held.accept(asked(1, answer)).release(np.array([0.0, 1.0]))
    declines(held, "largest-sampling-rate", asked(1, EXACT))
