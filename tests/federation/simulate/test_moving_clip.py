"""Runs whose clip moves: it finds the updates' lengths, the account is the plan's, and only the
mechanism clips.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
import pytest

from federation.simulate.makers import small_problem
from plans import flat_plan
from quietbit.federation.simulate import Score, SimulatedPlan, Training, simulate
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

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def initial(self, seed: int) -> Any:
        return np.zeros(D, dtype=np.float32)

    def updates(self, parameters: Any, clients: Any, plan: Any, out: Any) -> None:
        out[:] = 0
        out[:, 0] = self.scale * LENGTHS[clients]

    def evaluate(self, parameters: Any) -> Score:
        return Score(0.5, 1.0)


def plan(**given: Any) -> SimulatedPlan:
    usual: Any = {
        "mechanism": "gaussian",
        "clip": 1.0,
        "adjacency": "replace-one",
        "epsilon": 600.0,
        "cohort": CLIENTS,
        "rng": "seeded",
        "every": 4,
    }
    return flat_plan(**{**usual, **given})


@pytest.mark.parametrize("start", [0.1, 1.0, 10.0])
def test_the_clip_goes_to_the_median_from_wherever_it_began(start: float) -> None:
    """25 scouts of 100: a share is off by 0.1, and the last steps of 0.2 take a tenth of it: 0.5
    is above ten of it.
    """
    run = simulate(Long(), plan(clip=start), Training(0.1, ROUNDS))
    assert run.status == "finished"
    assert run.clips[0] == start
    assert len(run.clips) == ROUNDS + 1
    assert math.log(run.clips[-1]) == pytest.approx(0.0, abs=0.5)


def test_longer_updates_have_a_larger_clip_and_auto_begins_at_one() -> None:
    run = simulate(Long(4.0), plan(clip="auto"), Training(0.1, ROUNDS))
    assert run.clips[0] == 1.0
    assert math.log(run.clips[-1]) == pytest.approx(math.log(4), abs=0.5)


@pytest.mark.parametrize(("rounds", "given"), [(6, {}), (2, SUMS)])
def test_answers_count_as_releases_and_runs_stay_in_the_budget(
    rounds: int, given: dict[str, Any]
) -> None:
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


def test_bytes_are_those_of_updates_and_of_answers() -> None:
    """Ninety updates of five floats and a header, and ten answers of one byte and a header."""
    run = simulate(Long(), plan(every=10), Training(0.1, 3))
    each = (
        [Header.of(one).size for one in (run.mechanism, Scout(run.mechanism))]
        if run.mechanism
        else []
    )
    assert run.bytes_per_client == each[0]
    assert run.uplink_bytes == run.points[-1].uplink_bytes == 3 * (90 * each[0] + 10 * each[1])
    assert run_record(run, {})["uplink_bytes"] == run.uplink_bytes


def test_a_scout_sends_no_update() -> None:
    """What a scout's update is does not change the mean by a bit; what another's is does."""
    asked: list[list[Any]] = [[], []]
    plain = Uplink.send

    def noted(self: Uplink, update: Any, rng: Any = None) -> bytes:
        asked[self.mechanism.unmasked].append(int(np.searchsorted(LENGTHS, np.float32(update[0]))))
        return plain(self, update, rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Uplink, "send", noted)
        usual = simulate(Long(), plan(), Training(0.1, 1)).parameters
    sending, scouting = asked
    assert sorted(sending + scouting) == list(range(CLIENTS))
    assert len(scouting) == CLIENTS // 4

    class Turned(Long):
        whose = -1

        def updates(self, parameters: Any, clients: Any, plan: Any, out: Any) -> None:
            super().updates(parameters, clients, plan, out)
            out[clients == self.whose] *= -1

    for whose, same in ((scouting[0], True), (sending[0], False)):
        problem = Turned()
        problem.whose = whose
        assert np.array_equal(simulate(problem, plan(), Training(0.1, 1)).parameters, usual) is same


def test_threads_move_it_alike_and_records_keep_it() -> None:
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


def test_payloads_of_the_round_before_are_of_another_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "quietbit.federation.moving_clip.SURE", 0.0
    )  # every answer moves it, however few there are
    monkeypatch.setattr("quietbit.federation.moving_clip.RISE", 1e12)
    sent: list[Any] = []
    plain = Uplink.send

    def noted(self: Uplink, update: Any, rng: Any = None) -> bytes:
        data = plain(self, update, rng)
        sent.append((self.clip, data[24:56]))
        return data

    monkeypatch.setattr(Uplink, "send", noted)
    run = simulate(Long(), plan(), Training(0.1, 3))
    assert [sent[CLIENTS * number][0] for number in range(3)] == run.clips[:3]
    assert len({sent[CLIENTS * number][1] for number in range(3)}) == 3
    assert len(set(run.clips[:3])) == 3


def test_a_client_that_is_not_finite_is_refused() -> None:
    run = simulate(Long(math.inf), plan(), Training(0.1, 2))
    assert run.status == "refused"
    assert set(run.clips) == {1.0}
