import numpy as np
import pytest

import quietbit
from federation.simulate.makers import chosen, small_problem
from quietbit.federation.simulate.loop import simulate


def planned(**given):
    usual = {
        "mechanism": "imvu",
        "design_epsilon": 2.0,
        "lr": 0.5,
        "rounds": 12,
        "cohort": 20,
        "clip": 1.0,
    }
    return chosen(**{**usual, "rng": "seeded", "seed": 4, **given})


def test_training_learns_and_repeats_to_the_last_digit():
    problem = small_problem(count=900)
    first = simulate(problem, *planned(rounds=60, cohort=60, evaluate_every=10))
    second = simulate(problem, *planned(rounds=60, cohort=60, evaluate_every=10), threads=2)
    assert first.status == "finished"
    assert first.points[-1].score.accuracy > 0.9
    assert [p.score for p in first.points] == [p.score for p in second.points]
    assert [p.round for p in first.points] == [10, 20, 30, 40, 50, 60]
    np.testing.assert_array_equal(first.parameters, second.parameters)


def test_the_report_is_that_of_an_engine():
    run = simulate(small_problem(), *planned(rounds=3, cohort=60, evaluate_every=1, epsilon=50.0))
    assert run.bytes_per_client == 64 + 5  # a header, and 39 bits
    report = run.report()
    assert report.uplink == run.uplink_bytes == run.points[-1].uplink_bytes == 3 * 60 * 69
    assert report.downlink == run.downlink_bytes == 3 * 60 * 39 * 4
    epsilons = [entry.epsilon_upper for entry in report.rounds]
    assert epsilons == [point.guarantee.epsilon_upper for point in run.points]
    assert [score["accuracy"] for score in report.scores] == [
        point.score.accuracy for point in run.points
    ]
    text = str(report)
    assert run.guarantee.sentence() in text
    assert run.spread in text
    assert report.to_json()["settings"]["quietbit.cohort"] == 60


def test_the_report_of_a_run_without_privacy_says_so():
    run = simulate(small_problem(), *planned(mechanism="none", design_epsilon=None, rounds=2))
    report = run.report()
    assert [entry.answered for entry in report.rounds] == [20, 20]
    assert report.guarantee is None
    assert "No guarantee" in str(report)


def test_momentum_and_step_by_hand():
    problem = small_problem()
    run = simulate(
        problem, *chosen(mechanism="none", lr=0.25, rounds=3, cohort=60, clip=100.0, momentum=0.5)
    )
    w, v = np.zeros(problem.dimension, dtype=np.float32), 0.0
    rows, plan = np.zeros((60, problem.dimension), dtype=np.float32), run.training.local(run.plan)
    for _ in range(3):
        problem.updates(w, np.arange(60), plan, rows)
        v = 0.5 * v + rows.mean(axis=0, dtype=np.float64)
        w = (w - 0.25 * v).astype(np.float32)
    np.testing.assert_allclose(run.parameters, w, atol=1e-6)
    assert run.guarantee is None


@pytest.mark.parametrize("name", ["imvu", "gaussian", "sign"])
def test_a_target_is_calibrated_to_and_kept(name):
    run = simulate(
        small_problem(), *planned(mechanism=name, design_epsilon=None, epsilon=5.0, rounds=6)
    )
    assert run.rounds == 6
    assert 4.99 < run.guarantee.epsilon_upper <= 5.0


def test_a_target_stops_a_run_whose_strength_is_given():
    run = simulate(small_problem(), *planned(design_epsilon=1.0, epsilon=5.0, rounds=600))
    assert run.status == "target reached"
    assert "budget epsilon 5" in run.reason
    assert run.guarantee.epsilon_upper <= 5.0
    assert run.points[-1].round == run.rounds < 600


def test_sample_level_runs():
    problem = small_problem(samples=10)
    run = simulate(
        problem,
        *planned(
            mechanism="gaussian", design_epsilon=None, noise_multiplier=3.0, unit="sample", cohort=3
        ),
    )
    assert run.guarantee.unit.value == "sample"
    # Noise is relative to the largest sensitivity: one release of the smallest client is a plain
    # Gaussian's.
    slope = run.account.cost(0).rdp(2.0) / run.account.counts[0]
    assert slope == pytest.approx(2.0 / (2 * 3.0**2), rel=1e-4)


class Faulty:
    """A problem whose gradients turn bad, grow, or are cut short by Ctrl-C, in the third round."""

    def __init__(self, fault):
        self.inner, self.fault, self.calls = small_problem(), fault, 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def updates(self, parameters, clients, plan, out):
        self.calls += 1
        if self.calls == 3 and self.fault == "interrupt":
            raise KeyboardInterrupt
        self.inner.updates(parameters, clients, plan, out)
        if self.calls == 3 and self.fault == "nan":
            raise quietbit.InvalidParameter("gradient must be finite, got a NaN.")


@pytest.mark.parametrize(("fault", "status"), [("nan", "refused"), ("interrupt", "interrupted")])
def test_what_was_finished_stays(fault, status):
    run = simulate(Faulty(fault), *planned(evaluate_every=1))
    assert run.status == status
    assert "round 3" in run.reason
    assert [p.round for p in run.points] == [1, 2]
    assert (
        run.account.counts.max() >= 1
    )  # the round that failed is on the account: its payloads may be out
    rounds = run.report().rounds
    assert [entry.skipped for entry in rounds] == [False, False, True]
    assert [entry.asked for entry in rounds] == [20, 20, 20]


def test_a_diverging_run_says_so():
    run = simulate(small_problem(), *planned(lr=1e30, evaluate_every=1))
    assert run.status == "diverged"
    assert run.reason.startswith("The run diverged in round 1")
    (entry,) = run.report().rounds
    assert entry.skipped
    assert "diverged" in entry.sentences()[0]


def test_the_releases_of_a_plan_are_those_it_is_calibrated_to():
    problem, given = (
        small_problem(),
        {"mechanism": "gaussian", "design_epsilon": None, "epsilon": 5.0},
    )
    more = simulate(problem, *planned(**given, rounds=6, releases=9))
    assert more.guarantee.epsilon_upper < 4
    long = simulate(problem, *planned(**given, rounds=12, releases=2))
    assert long.status == "target reached"
    assert 4.99 < long.guarantee.epsilon_upper <= 5.0
    assert long.rounds == 6  # three rounds are an epoch of sixty clients


@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
def test_a_run_that_keeps_some_coordinates(trust):
    """Behind masks all clients of a round keep the same rows, others in every round: no
    coordinate stays unmoved.
    """
    given = {
        "trust": trust,
        "keep": 16,
        "clip": 10.0,
        "momentum": 0.0,
        "lr": 1.0,
        "design_epsilon": 3.0,
    }
    problem = small_problem(count=900)
    run = simulate(problem, *planned(**given, rounds=10, cohort=60, evaluate_at=()))
    assert run.status == "finished"
    assert run.bytes_per_client < 64 + 39
    one, two = (
        simulate(problem, *planned(**given, rounds=rounds, cohort=60)).parameters
        for rounds in (1, 2)
    )
    assert (
        np.count_nonzero(one) == np.count_nonzero(two) == 39
    )  # rotated back, every coordinate takes part
    assert np.linalg.matrix_rank(np.stack([one, two - one])) == 2
