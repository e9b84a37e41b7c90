"""Runs whose clip follows scouts: it finds the lengths, accounts stay in the budget, and scouts send no update."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from quietbit import Plan
from quietbit.simulate import Training, simulate
from quietbit.simulate.collect import run_name
from quietbit_lab.experiment.record import Setting, run_record
from unit.simulate.test_moving_clip import CLIENTS, ROUNDS, Long

USUAL: Any = {
    "adjacency": "replace-one", "epsilon": 600.0, "cohort": CLIENTS, "rng": "seeded", "clip_quantile": 0.5,
    "clip_scouts": 4,
}  # fmt: skip


def plan(**given: Any) -> Plan:
    return Plan(**{"mechanism": "gaussian", "clip": 1.0, **USUAL, **given})


@pytest.mark.parametrize("start", [0.1, 1.0, 10.0])
def test_the_clip_goes_to_the_median_from_wherever_it_began(start: float) -> None:
    """25 scouts of 100: a share is off by 0.1, and the last steps of 0.2 take a tenth of it: 0.5 is above ten of it."""
    run = simulate(Long(), plan(clip=start), Training(0.1, ROUNDS))
    assert run.status == "finished"
    assert run.clips[0] == start
    assert math.log(run.clips[-1]) == pytest.approx(0.0, abs=0.5)


@pytest.mark.parametrize(("rounds", "given"), [(6, {}), (2, {"trust": "secure-aggregation", "mechanism": "imvu"})])
def test_the_account_counts_updates_and_answers_and_stays_in_the_budget(rounds: int, given: dict[str, Any]) -> None:
    run = simulate(Long(), plan(epsilon=20.0, clip_scouts=10, **given), Training(0.1, rounds))
    assert run.status == "finished"
    assert run.account is not None
    assert run.guarantee is not None
    assert (run.account.counts + run.account.answered == rounds).all()
    assert run.account.answered.sum() == rounds * CLIENTS // 10
    assert 10.0 < run.guarantee.epsilon_upper <= 20.0
    assert max(run.account.cost(one).epsilon(1e-5) for one in range(0, CLIENTS, 7)) <= run.guarantee.epsilon_upper
    assert run.observers is not None
    assert run.observers.result is None
    assert run.bytes_per_client > 0


def test_a_scout_sends_no_update() -> None:
    """What a scout's update is does not change the mean by a bit; what another's is does."""
    named = plan()
    collector_of = simulate(Long(), named, Training(0.1, 1))
    assert collector_of.account is not None
    scouting = np.flatnonzero(collector_of.account.answered)
    sending = np.flatnonzero(collector_of.account.counts)
    assert scouting.size == CLIENTS // 4

    class Turned(Long):
        def __init__(self, whose: int) -> None:
            super().__init__()
            self.whose = whose

        def updates(self, parameters: Any, clients: Any, plan: Any, out: Any) -> None:
            super().updates(parameters, clients, plan, out)
            out[clients == self.whose] *= -1

    means = [simulate(Turned(int(one)), named, Training(0.1, 1)).parameters for one in (scouting[0], sending[0])]
    assert np.array_equal(means[0], collector_of.parameters)
    assert not np.array_equal(means[1], collector_of.parameters)


def test_threads_move_it_alike_and_records_keep_it() -> None:
    one, other = (simulate(Long(), plan(), Training(0.1, 5), threads=threads) for threads in (1, 2))
    assert one.clips == other.clips
    assert np.array_equal(one.parameters, other.parameters)
    record = run_record(one, {"name": "long"})
    assert Setting.from_json(record["settings"]).plan == one.plan
    assert run_name(1) != run_name(2)
