"""Scouts: who they are, what an answer costs, what many of them say, and plans that they have no part in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from quietbit import Adjacency, InvalidParameter, Plan
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.adaptive_clip import AdaptiveClip
from quietbit.mechanism.response import RandomisedResponse
from quietbit.plan.scouts import Scouts
from quietbit.privacy.cost import Cost
from quietbit.wire.uplink import Uplink

MOVES: Any = {
    "clip": 2.0, "adjacency": "zero-out", "epsilon": 8.0, "releases": 5, "cohort": 100, "clip_quantile": 0.5,
    "clip_scouts": 20,
}  # fmt: skip


def scouts(every: int = 20, truth: float = 0.5) -> Scouts:
    return Scouts(every, RandomisedResponse(2, truth), Cost())


def test_who_scouts_follows_from_run_round_and_numbers_alone() -> None:
    clients = np.random.default_rng(1).permutation(1000)[:210]
    chosen = scouts().among(clients, b"run", 3)
    assert chosen.sum() == 10
    assert np.array_equal(chosen, scouts(truth=0.9).among(clients, b"run", 3))
    back = scouts().among(clients[::-1], b"run", 3)
    assert set(clients[chosen]) == set(clients[::-1][back])  # in whatever order they are asked
    for other in (scouts().among(clients, b"run", 4), scouts().among(clients, b"ruin", 3)):
        assert other.sum() == 10
        assert set(clients[other]) != set(clients[chosen])


def test_everybody_scouts_equally_often() -> None:
    """Fifty clients, 4,000 rounds: each number is within binomial tails of 1e-9 / 50 on either side."""
    clients, rounds = np.arange(50), 4000
    often = sum(scouts(10).among(clients, b"run", number).astype(int) for number in range(rounds))
    low, high = stats.binom.ppf([1e-11, 1 - 1e-11], rounds, 0.1)
    assert low <= np.min(often) <= np.max(often) <= high


@pytest.mark.parametrize("word", ["gaussian", "vmvu", "imvu"])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_every_list_of_updates_and_answers_stays_in_the_budget(word: str, adjacency: Adjacency) -> None:
    plan = Plan(word, **{**MOVES, "adjacency": adjacency})
    mechanism = plan.mechanism_for(40)
    found = plan.scouts(mechanism, 5)
    assert isinstance(mechanism, AdaptiveClip)
    assert found is not None
    update = plan.release(mechanism)
    spent = [(update * (5 - n) + found.release * n).epsilon(plan.delta) for n in range(6)]
    assert max(spent) <= 8.0
    assert max(spent[1:]) > 8.0 * 0.999  # the answer is as truthful as that allows
    assert found.release.pure_epsilon() == found.mechanism.epsilon_upper(adjacency)


def test_updates_cost_and_err_as_without_scouts_wherever_the_clip_is() -> None:
    plain = Plan("vmvu", **{**MOVES, "clip_quantile": None, "clip_scouts": None}).mechanism_for(40)
    moved = Plan("vmvu", **MOVES).mechanism_for(40)
    assert moved.error() == plain.error()
    assert moved.layout == plain.layout
    for clip in (0.01, 2.0, 300.0):
        assert moved.at_clip(clip).privacy(Adjacency.ZERO_OUT) == plain.privacy(Adjacency.ZERO_OUT)
        assert moved.at_clip(clip).priced_as == moved.priced_as
        assert moved.at_clip(clip).error().squared == pytest.approx(plain.error().squared * (clip / 2) ** 2)


def test_the_cost_of_scouts_is_the_updates_that_are_missing() -> None:
    plan = Plan("vmvu", **{**MOVES, "cohort": 1000})
    assert plan.updates == 950
    assert 1000 / plan.updates < 1.06


def test_a_release_without_a_bit_has_no_answers_and_comes_back() -> None:
    plan = Plan("gaussian", **{**MOVES, "epsilon": 50.0, "releases": 1})
    uplink = Uplink(plan.mechanism_for(3).at_clip(4.0))
    sent = uplink.collect([uplink.send(np.array([0.0, 3.0, 0.0]), seeded_rng(seed)) for seed in range(400)])
    assert sent.answers is None
    assert sent.mean == pytest.approx([0, 3, 0], abs=0.5)
    with pytest.raises(InvalidParameter, match="account for sums"):
        plan.mechanism_for(3).sum_privacy(10, Adjacency.ZERO_OUT)


@pytest.mark.parametrize("clip", [0.5, 1.0, 2.5])
def test_the_share_is_estimated_without_bias(clip: float) -> None:
    """6,000 answers through the wire: beyond 6.2 standard deviations, 1e-9, it is no chance."""
    found, count = scouts(truth=0.3), 6000
    lengths = np.exp(np.linspace(-1, 1, count))
    lines = Uplink(found.mechanism)
    payloads = [lines.send(found.shares(x, clip), seeded_rng(place)) for place, x in enumerate(lengths)]
    answers = found.answers(lines.receive(payloads), count)
    assert answers.deviation == pytest.approx(0.5 / (0.3 * math.sqrt(count)))
    assert abs(answers.share - (lengths <= clip).mean()) < 6.2 * answers.deviation


def test_cells_by_hand() -> None:
    found = scouts()
    assert found.shares(1.0, 1.0).tolist() == [1, 0]
    assert found.shares(1.1, 1.0).tolist() == [0, 1]
    assert found.shares(0.0, 1.0).tolist() == [0, 0]  # of nothing, either alike


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clip_quantile": None}, "clip_scouts must be left out unless the clip moves"),
        ({"clip_bit_epsilon": 0.1}, "clip_bit_epsilon must be left out where scouts answer"),
        ({"cohort": 19}, "clip_scouts must be at most 19"),
        ({"clip_scouts": 1}, "clip_scouts must be"),
        ({"participation": "secret-order"}, "participation must be left out where scouts answer"),
        ({"trust": "central", "mechanism": "gaussian"}, "trust must be local where the clip moves"),
        ({"design_epsilon": 2.0}, "clip_scouts must be left out where the mechanism's strength is given"),
        ({"mode": "adaptive", "cohort": 1}, "clip_scouts must be left out of an engine's run"),
    ],
)
def test_plans_that_scouts_have_no_part_in(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        Plan(**{"mechanism": "vmvu", **MOVES, **given})
