import json

import numpy as np
import pytest
import torch

import quietbit
from federation.simulate.makers import setting, small_problem
from quietbit.federation.simulate.loop import simulate
from quietbit.federation.simulate.problem import Score
from quietbit_lab.task.batch import Batch
from quietbit_lab.task.batch_sweep import restore, save
from quietbit_lab.task.linear_device import DeviceProblem, open_device
from refusals import refuses

COMMON = {"rounds": 6, "cohort": 20, "clip": 1.0, "seed": 3, "rng": "seeded", "evaluate_at": (2, 6)}


def given(mechanism, lr=0.5, **more):
    return setting(mechanism=mechanism, lr=lr, **{**COMMON, **more})


def train_many(problem, settings):
    batch = Batch(DeviceProblem(problem, open_device("cpu")), settings)
    batch.advance()
    return batch.runs()


def parts(settings):
    return settings.plan, settings.training


ALL = [
    given("none"),
    given("gaussian", noise_multiplier=2.0),
    given("gaussian", noise_multiplier=2.0, trust="central"),
    given("imvu", design_epsilon=1.0),
    given("imvu", design_epsilon=1.0, lr=0.1, trust="secure-aggregation"),
    given("imvu", design_epsilon=2.0, beta=4.0, clamp=True, clip=0.5),
    given("imvu", design_epsilon=2.0, bits=2, levels=8),
    given("sign", noise_multiplier=1.0, lr=0.05),
    given("skellam", noise_multiplier=2.0),
]


@pytest.fixture(scope="module")
def data():
    return DeviceProblem(small_problem(), open_device("cpu"))


def test_every_run_has_the_account_and_the_points_of_its_own_simulation(data):
    batch = Batch(data, ALL)
    batch.advance(100)
    for run, settings, draws in zip(batch.runs(), ALL, batch.draws, strict=True):
        alone = simulate(data.problem, *parts(settings))
        assert (run.status, run.reason, run.rounds) == (alone.status, alone.reason, alone.rounds)
        assert run.bytes_per_client == alone.bytes_per_client
        assert run.guarantee == alone.guarantee
        for mine, other in zip(run.points, alone.points, strict=True):
            assert (mine.round, mine.guarantee, mine.uplink_bytes) == (
                other.round,
                other.guarantee,
                other.uplink_bytes,
            )
        one_by_one = settings.plan.mechanism in ("imvu", "sign")
        assert draws == ("every client" if one_by_one else draws)
        assert run.parameters.any()


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_without_noise_it_is_the_simulator(momentum):
    runs = [
        given("none", lr=lr, clip=clip, momentum=momentum) for lr, clip in ((0.3, 1.0), (1.0, 0.2))
    ]
    problem = small_problem()
    for run, settings in zip(train_many(problem, runs), runs, strict=True):
        alone = simulate(problem, *parts(settings))
        np.testing.assert_allclose(run.parameters, alone.parameters, rtol=1e-5, atol=1e-6)
        assert [p.score.accuracy for p in run.points] == [p.score.accuracy for p in alone.points]


def test_l1_and_sampled_cohorts():
    runs = [
        given("none", norm="l1", participation="sampled"),
        given("laplace", norm="l1", participation="sampled", noise_multiplier=1.0),
    ]
    problem = small_problem()
    exact, noisy = train_many(problem, runs)
    alone = [simulate(problem, *parts(settings)) for settings in runs]
    np.testing.assert_allclose(exact.parameters, alone[0].parameters, rtol=1e-5, atol=1e-6)
    assert noisy.guarantee == alone[1].guarantee
    assert np.isfinite(noisy.parameters).all()


def test_a_run_that_diverges_or_meets_its_target_leaves_the_others_alone(data):
    runs = [
        given("imvu", design_epsilon=1.0, lr=1e30),
        given("none", lr=0.5),
        given("gaussian", noise_multiplier=2.0, epsilon=2.0),
        given("gaussian", epsilon=3.0),
        given("none", lr=1e30),
    ]
    batch = Batch(data, runs)
    batch.advance(100)
    found = batch.runs()
    for run, settings in zip(found, runs, strict=True):
        alone = simulate(data.problem, *parts(settings))
        assert (run.status, run.rounds, run.guarantee) == (
            alone.status,
            alone.rounds,
            alone.guarantee,
        )
        assert run.reason.split(": parameters")[0] == alone.reason.split(": parameters")[0]
        assert [(p.round, p.guarantee) for p in run.points] == [
            (p.round, p.guarantee) for p in alone.points
        ]
    assert [run.status for run in found] == [
        "diverged",
        "finished",
        "target reached",
        "finished",
        "diverged",
    ]
    np.testing.assert_allclose(
        found[1].parameters,
        simulate(data.problem, *parts(runs[1])).parameters,
        rtol=1e-5,
        atol=1e-6,
    )


def test_runs_far_behind_are_dropped_and_say_so(data, monkeypatch):
    """The second run is 0.4, 0.4 and the third 0.5, 0.3, .. behind: it catches up and stays."""
    table = {
        2: (0.9, 0.5, 0.4, 0.2, 0.1),
        3: (0.9, 0.5, 0.6, 0.2, 0.1),
        4: (0.9, 0.7, 0.2, 0.1),
        6: (0.9, 0.7, 0.2, 0.1),
    }
    scores = iter(table.values())
    monkeypatch.setattr(
        DeviceProblem, "scores", lambda self, models: [Score(a, 1.0) for a in next(scores)]
    )
    runs = [given("none", lr=lr, evaluate_at=tuple(table)) for lr in (0.5, 0.6, 0.7, 0.1)]
    runs.append(given("gaussian", noise_multiplier=2.0, evaluate_at=tuple(table)))
    batch = Batch(data, runs, 0.2)
    batch.advance(100)
    best, slow, catching, small, other = batch.runs()
    assert [run.status for run in (best, slow, catching, other)] == [
        "finished",
        "dropped",
        "finished",
        "finished",
    ]
    assert small.status == "finished"
    assert slow.reason.startswith("Dropped after round 3: 40.0 points behind")
    assert slow.rounds == slow.points[-1].round == 3
    assert slow.account is None
    assert other.guarantee.epsilon_upper > other.points[0].guarantee.epsilon_upper


def test_seeded_batches_repeat_and_secure_ones_do_not(data):
    runs = [given("imvu", design_epsilon=1.0), given("gaussian", noise_multiplier=1.0)]
    first, again = train_many(data.problem, runs), train_many(data.problem, runs)
    for left, right in zip(first, again, strict=True):
        np.testing.assert_array_equal(left.parameters, right.parameters)
    secure = [given("gaussian", noise_multiplier=1.0, rng="secure")]
    left, right = train_many(data.problem, secure)[0], train_many(data.problem, secure)[0]
    assert not np.array_equal(left.parameters, right.parameters)


def test_a_checkpoint_continues_as_if_nothing_had_happened(data, tmp_path):
    runs = [
        given("imvu", design_epsilon=1.0),
        given("gaussian", noise_multiplier=1.0),
        given("none", lr=1e30),
        given("none"),
    ]
    whole, path = Batch(data, runs), tmp_path / "batch.npz"
    whole.advance(100)
    part = Batch(data, runs)
    assert not restore(part, path)
    part.advance(3)
    save(part, path)
    rest = Batch(data, runs)
    assert restore(rest, path)
    assert rest.number == 3
    rest.advance(100)
    for left, right in zip(whole.runs(), rest.runs(), strict=True):
        assert (left.status, left.reason, left.guarantee) == (
            right.status,
            right.reason,
            right.guarantee,
        )
        assert [(p.round, p.score, p.guarantee) for p in left.points] == [
            (p.round, p.score, p.guarantee) for p in right.points
        ]
        if left.status == "finished":
            np.testing.assert_array_equal(left.parameters, right.parameters)
    assert not restore(Batch(data, runs[:2]), path)  # other settings
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(quietbit.QuietbitError, match="damaged"):
        restore(Batch(data, runs), path)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ([], "settings"),
        ([given("none"), given("none", seed=4)], "settings of a batch"),
        ([given("none", local_steps=2)], "local_steps"),
        ([given("imvu", design_epsilon=1.0, unit="sample")], "unit"),
        ([given("skellam", noise_multiplier=2.0, bits=6)], "variance of a cohort's Skellam noise"),
        ([given("mvu", design_epsilon=2.0, bits=1)], "levels"),
    ],
)
def test_what_cannot_be_done_is_refused(data, settings, name):
    with refuses(name):
        Batch(data, settings)


def test_records_name_the_device_and_what_was_drawn(data):
    from quietbit_lab.task.batch_sweep import batch_records

    batch = Batch(
        data, [given("gaussian", noise_multiplier=1.0), given("imvu", design_epsilon=1.0)]
    )
    batch.advance(100)
    found = batch_records(batch, batch.runs(), {"name": "clusters"})
    assert [record["draws"] for record in found] == ["law of the sum", "every client"]
    assert all(record["protects"].startswith("nobody: codes or sums") for record in found)
    assert found[1]["device"] == "cpu"
    assert found[1]["batch"] == {"identity": batch.identity, "runs": 2, "place": 1}
    json.dumps(found, allow_nan=False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_draws_what_a_cpu_draws(data):
    """The same words give the same counts; errors in a last digit may move a few of them."""
    runs = [settings for settings in ALL if settings.plan.mechanism in ("none", "imvu", "sign")]
    found = []
    for name in ("cpu", "cuda"):
        batch = Batch(DeviceProblem(data.problem, open_device(name)), runs)
        batch.advance(1)
        found.append(np.array([run.parameters for run in batch.runs()]))
    assert np.mean(np.abs(found[0] - found[1]) > 1e-6) < 0.01


def test_runs_of_different_length_end_where_they_would_alone(data, tmp_path):
    """With the account of their own rounds, whether or not a checkpoint lies between."""
    runs = [
        given("gaussian", noise_multiplier=2.0, rounds=rounds, evaluate_at=(2, rounds))
        for rounds in (6, 3, 4)
    ]
    runs.append(given("none", rounds=5, evaluate_at=()))
    for broken in (False, True):
        batch, path = Batch(data, runs), tmp_path / "batch.npz"
        if broken:
            batch.advance(4)
            save(batch, path)
            batch = Batch(data, runs)
            assert restore(batch, path)
        batch.advance(100)
        assert batch.done
        for run, settings in zip(batch.runs(), runs, strict=True):
            alone = simulate(data.problem, *parts(settings))
            assert (run.status, run.rounds, run.guarantee) == (
                alone.status,
                alone.rounds,
                alone.guarantee,
            )
            assert [(p.round, p.guarantee) for p in run.points] == [
                (p.round, p.guarantee) for p in alone.points
            ]
    alone = simulate(data.problem, *parts(runs[-1]))
    np.testing.assert_allclose(batch.runs()[-1].parameters, alone.parameters, rtol=1e-5, atol=1e-6)
