"""Scouts of a run: what their answers may cost, and plans that they have no part in."""

import pytest
from attrs import evolve

from plans import engine_plan, flat_plan
from quietbit import Adjacency
from quietbit.federation.parts.adaptive_clip import AdaptiveClipping
from quietbit.federation.server import Run
from quietbit.mechanism.response import RandomisedResponse
from quietbit.privacy.account import Account
from refusals import refuses

MOVES = {"clip": 2.0, "adjacency": "zero-out", "epsilon": 8.0, "releases": 10, "quantile": 0.5}


@pytest.mark.parametrize("word", ["gaussian", "vmvu", "skellam"])
@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("mode", ["planned", "adaptive"])
def test_any_list_of_updates_and_answers_stays_in_the_budget(word, adjacency, mode):
    """On the account that is enforced: an answer is as true as the budget allows, and no truer."""
    given = {**MOVES, "adjacency": adjacency, "releases": 5}
    plan = engine_plan(word, **given)
    if mode == "planned":
        plan = flat_plan(word, **given, cohort=100)
    mechanism = plan.mechanism_for(40)
    assert mechanism.every == 20
    account = Account(plan.target, mode)
    assert account.spend(plan.release(mechanism), 5).epsilon() <= 8.0
    truer = evolve(mechanism, truth=min(mechanism.truth * 1.001, 1 - 1e-10))
    assert account.spend(plan.release(truer), 5).epsilon() > 8.0
    assert 0.2 < mechanism.truth < 1


def test_updates_err_as_without_scouts_but_for_those_that_are_missing():
    still = flat_plan("vmvu", **{**MOVES, "quantile": None}).mechanism_for(40)
    plan = flat_plan("vmvu", **MOVES, cohort=1000)
    moved = plan.mechanism_for(40)
    assert moved.layout == still.layout
    assert moved.error().squared == pytest.approx(still.error().squared)
    assert 1000 / plan.updates < 1.06
    sums = flat_plan("imvu", **MOVES, cohort=1000, trust="secure-aggregation")
    assert (sums.adaptive_clip.every, sums.updates, sums.summed_clients) == (40, 975, 975)
    assert (1000 / sums.updates) ** 2 < 1.06  # the noise is that of the whole sum


def test_sums_are_priced_for_answers_that_the_server_sees():
    plan = flat_plan("imvu", **MOVES, cohort=100, trust="secure-aggregation")
    mechanism = plan.mechanism_for(40)
    within, answer = mechanism.inner.sum_privacy(98, plan.adjacency), mechanism.truth
    found = mechanism.sum_privacy(98, plan.adjacency)
    assert found.pure_epsilon() >= RandomisedResponse(2, answer).epsilon_upper(plan.adjacency)
    for alpha in (1.5, 3.0, 20.0):
        assert found.rdp(alpha) >= within.rdp(alpha)
    assert (found * 10).epsilon(1e-5) <= 8.0


@pytest.mark.parametrize(
    ("given", "clip", "scouts"),
    [
        ({"quantile": 0.3}, 2.0, AdaptiveClipping(20, 0.3)),
        ({"every": 5}, 2.0, AdaptiveClipping(5, 0.5)),
        ({"clip": "auto"}, 1.0, AdaptiveClipping(20, 0.5)),
        ({"clip": "auto", "every": 7, "quantile": 0.4}, 1.0, AdaptiveClipping(7, 0.4)),
        ({}, 2.0, None),
    ],
)
def test_the_section_is_filled_in(given, clip, scouts):
    plan = flat_plan("vmvu", **{**MOVES, "cohort": 100, "quantile": None, **given})
    assert (plan.clip, plan.adaptive_clip) == (clip, scouts)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"quantile": 1.0}, "adaptive_clip.quantile"),
        ({"cohort": 19}, "adaptive_clip.every"),
        ({"clip": "automatic"}, "clip"),
        ({"design_epsilon": 1.0, "releases": None}, "adaptive_clip"),
        ({"epsilon": 1e-3, "releases": 10**6}, "epsilon"),
    ],
)
def test_a_clip_that_cannot_move_so_is_refused(changes, name):
    with refuses(name):
        flat_plan("imvu", **{**MOVES, "cohort": 100, **changes}).mechanism_for(50)


@pytest.mark.parametrize(
    ("dimension", "asked", "rounds", "says"),
    [
        (650, 20, 10, "will hardly move from 2: the run has about 10 answers"),
        (20_000, 400, 40, "will not rise above 2: the noise"),
        (100, 1000, 40, None),
    ],
)
def test_an_engine_says_when_scouts_cannot_move_the_clip(dimension, asked, rounds, says):
    said = []
    plan = engine_plan("gaussian", **{**MOVES, "epsilon": 20.0, "releases": 20})
    run = Run(plan, 7, lambda level, line: said.append(line))
    run.mechanism(dimension, 1)
    run.forecast(asked=asked, nodes=asked, rounds=rounds)
    about = [line for line in said if line.startswith("the clip")]
    assert len(about) == (says is not None)
    assert says is None or says in about[0]
