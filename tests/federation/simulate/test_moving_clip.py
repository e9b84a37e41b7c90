"""Runs whose clip moves: it finds the updates' lengths, the account is the plan's, and only the
mechanism clips.
"""

import math

import attrs
import numpy as np
import pytest

from federation.simulate.makers import small_problem
from plans import flat_plan
from quietbit.federation.simulate import Score, Training, simulate
from quietbit.mechanism.scouts import Scout
from quietbit.wire.payload import Header
from quietbit.wire.uplink import Uplink
from quietbit_lab.experiment.record import Setting, plan_table, run_record

D, CLIENTS, ROUNDS = 5, 100, 15
SUMS = {"trust": "secure-aggregation", "mechanism": "imvu", "epsilon": 0.5, "adjacency": "zero-out"}
LENGTHS = np.exp(np.linspace(-1.0, 1.0, CLIENTS)).astype(np.float32)  # their median is 1


class Long:
    """Client c always sends an update of its own length, whatever the clip that it is told."""

    name, dimension, sizes = "long", D, np.ones(CLIENTS, dtype=np.int64)

    def __init__(self, scale=1.0):
        self.scale = scale

    def initial(self, seed):
        return np.zeros(D, dtype=np.float32)

    def updates(self, parameters, clients, plan, out):
        out[:] = 0
        out[:, 0] = self.scale * LENGTHS[clients]

    def evaluate(self, parameters):
        return Score(0.5, 1.0)


def plan(**given):
    usual = {
        "mechanism": "gaussian",
        "clip": 1.0,
        "adjacency": "replace-one",
        "epsilon": 600.0,
        "cohort": CLIENTS,
        "rng": "seeded",
        "every": 4,
    }
    return flat_plan(**{**usual, **given})


@pytest.mark.parametrize(("rounds", "given"), [(6, {}), (2, SUMS)])
def test_answers_count_as_releases_and_runs_stay_in_the_budget(rounds, given):
    named = plan(**{"epsilon": 8.0, "every": 10, **given})
    run = simulate(Long(), named, Training(0.1, rounds))
    assert run.status == "finished"
    assert run.account is not None
    assert run.mechanism is not None
    assert run.guarantee is not None
    assert (run.account.counts == rounds).all()
    assert run.guarantee == (named.release(run.mechanism) * rounds).guarantee(1e-5)
    assert named.epsilon is not None
    assert 0.99 * named.epsilon < run.guarantee.epsilon_upper <= named.epsilon
    more = simulate(Long(), attrs.evolve(named, releases=rounds), Training(0.1, rounds + 3))
    assert (more.status, more.rounds) == ("target reached", rounds)


def test_a_scout_sends_an_answer_in_place_of_its_update():
    """Ninety updates of five floats and a header, and ten answers of one byte and a header."""
    run = simulate(Long(), plan(every=10), Training(0.1, 3))
    each = [Header.of(one).size for one in (run.mechanism, Scout(run.mechanism))]
    assert run.bytes_per_client == each[0]
    assert run.uplink_bytes == run.points[-1].uplink_bytes == 3 * (90 * each[0] + 10 * each[1])
    assert run_record(run, {})["uplink_bytes"] == run.uplink_bytes
    rounds = run.report().rounds
    assert {(one.answered, one.scouted, one.refused) for one in rounds} == {(90, 10, 0)}


def test_threads_move_it_alike_and_records_keep_it():
    one, other = (simulate(Long(), plan(), Training(0.1, 5), threads=threads) for threads in (1, 2))
    assert one.clips == other.clips
    assert np.array_equal(one.parameters, other.parameters)
    record = run_record(one, {"name": "long"})
    assert record["clips"] == one.clips
    again = Setting.from_json(record["settings"]).plan
    assert plan_table(again) == plan_table(one.plan)
    assert "clips" not in run_record(
        simulate(small_problem(), plan(every=None, cohort=60), Training(0.1, 1)), {}
    )


def test_every_round_is_sent_at_its_own_clip(monkeypatch):
    monkeypatch.setattr("quietbit.federation.moving_clip.SURE", 0.0)
    monkeypatch.setattr("quietbit.federation.moving_clip.RISE", 1e12)
    sent, plain = [], Uplink.send

    def noted(uplink, *given):
        sent.append(uplink.clip)
        return plain(uplink, *given)

    monkeypatch.setattr(Uplink, "send", noted)
    run = simulate(Long(), plan(), Training(0.1, 3))
    assert sent[::CLIENTS] == run.clips[:3]
    assert len(set(sent)) == 3


def test_a_client_that_is_not_finite_is_refused():
    run = simulate(Long(math.inf), plan(), Training(0.1, 2))
    assert run.status == "refused"
    assert set(run.clips) == {1.0}
