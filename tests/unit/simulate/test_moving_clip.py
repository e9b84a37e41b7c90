"""Runs whose clip moves: it finds the updates' lengths, the account is the plan's, and only the mechanism clips."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from quietbit import Plan
from quietbit.privacy.guarantee import Adjacency
from quietbit.simulate import Score, Training, simulate
from quietbit.wire.uplink import Uplink
from quietbit_lab.experiment.record import Setting, run_record
from unit.simulate.makers import small_problem

D, CLIENTS, ROUNDS = 5, 100, 15
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


def plan(**given: Any) -> Plan:
    usual: Any = {"clip": 1.0, "adjacency": "replace-one", "cohort": CLIENTS, "rng": "seeded", "clip_quantile": 0.5}
    return Plan("gaussian", **{**usual, "noise_multiplier": 2.0, "clip_bit_epsilon": 3.0, **given})


@pytest.mark.parametrize("start", [0.1, 1.0, 10.0])
def test_the_clip_goes_to_the_median_from_wherever_it_began(start: float) -> None:
    """Noise: 100 bits that lie with 5 % are off by 0.024 in a round, so that a band of 0.3 is above ten deviations."""
    run = simulate(Long(), plan(clip=start), Training(0.1, ROUNDS))
    assert run.status == "finished"
    assert run.clips[0] == start
    assert len(run.clips) == ROUNDS + 1
    assert math.log(run.clips[-1]) == pytest.approx(0.0, abs=0.3)


def test_longer_updates_have_a_larger_clip() -> None:
    run = simulate(Long(4.0), plan(), Training(0.1, ROUNDS))
    assert math.log(run.clips[-1]) == pytest.approx(math.log(4), abs=0.3)


def test_threads_move_it_alike_and_records_keep_it() -> None:
    one, other = (simulate(Long(), plan(), Training(0.1, 5), threads=threads) for threads in (1, 2))
    assert one.clips == other.clips
    assert np.array_equal(one.parameters, other.parameters)
    record = run_record(one, {"name": "long"})
    assert record["clips"] == one.clips
    assert Setting.from_json(record["settings"]).plan == one.plan
    assert "clips" not in run_record(
        simulate(small_problem(), plan(clip_quantile=None, clip_bit_epsilon=None, cohort=60), Training(0.1, 1)), {}
    )


def test_the_account_is_that_of_releases_and_bits() -> None:
    run = simulate(Long(), plan(), Training(0.1, 3))
    mechanism: Any = run.mechanism
    assert run.guarantee is not None
    assert run.guarantee == (mechanism.privacy(Adjacency.REPLACE_ONE) * 3).guarantee(1e-5)
    inside = (mechanism.inner.privacy(Adjacency.REPLACE_ONE) * 3).guarantee(1e-5)
    assert run.guarantee.epsilon_upper > inside.epsilon_upper


def test_the_budget_stops_a_run_with_its_bits_counted() -> None:
    two = simulate(Long(), plan(), Training(0.1, 2)).guarantee
    assert two is not None
    run = simulate(Long(), plan(epsilon=two.epsilon_upper), Training(0.1, 5))
    assert (run.status, run.rounds) == ("target reached", 2)


def test_payloads_of_the_round_before_are_of_another_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    plain = Uplink.send

    def noted(self: Uplink, update: Any, rng: Any = None) -> bytes:
        data = plain(self, update, rng)
        sent.append((self.mechanism.domain.radius, data[24:56]))
        return data

    monkeypatch.setattr(Uplink, "send", noted)
    run = simulate(Long(), plan(), Training(0.1, 3))
    assert [sent[CLIENTS * number][0] for number in range(3)] == run.clips[:3]
    assert len({name for _, name in sent}) == len(set(run.clips[:3])) == 3


def test_a_client_that_is_not_finite_is_refused() -> None:
    run = simulate(Long(math.inf), plan(), Training(0.1, 2))
    assert run.status == "refused"
    assert run.clips == [1.0]
