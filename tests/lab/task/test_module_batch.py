"""Networks side by side against the simulator: same rounds without noise, same moments."""

import numpy as np
import pytest

import quietbit
from quietbit.federation.simulate.clients import ClientSide
from quietbit.federation.simulate.loop import play_round, simulate
from quietbit.federation.simulate.participation import releases_per_client
from quietbit_lab.baseline.noise import Laplace
from quietbit_lab.baseline.skellam import IndependentSkellam, Skellam
from quietbit_lab.experiment.record import Setting
from quietbit_lab.task.dataset import Dataset, Examples, Partition
from quietbit_lab.task.module import ModuleProblem

torch = pytest.importorskip("torch")
nn = torch.nn

from quietbit_lab.cohort.means import way_of  # noqa: E402
from quietbit_lab.task.batch import Batch  # noqa: E402
from quietbit_lab.task.module_device import Networks  # noqa: E402
from refusals import refuses  # noqa: E402


def ModuleBatch(made, settings):
    return Batch(Networks(made), settings)


DRAWS, SENT = 250, 80
Z = 6.11  # two-sided 1e-9 for one normal statistic
MECHANISMS = {
    "gaussian": {"mechanism": "gaussian"},
    "sign": {"mechanism": "sign"},
    "skellam": {"mechanism": "skellam", "bits": 16},
    "one bit": {"mechanism": "imvu", "bits": 1, "beta": 8.0, "clamp": True, "decoder": "alphabet"},
    "three bits": {
        "mechanism": "imvu",
        "bits": 3,
        "levels": 8,
        "design_epsilon": 3.0,
        "beta": 6.0,
        "clamp": True,
    },
    "unclamped": {
        "mechanism": "imvu",
        "bits": 3,
        "levels": 8,
        "design_epsilon": 1.0,
        "beta": 4.0,
        "clamp": False,
    },
}


def network():
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)
    )  # 77 parameters


def problem():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 80)
    inputs = rng.integers(0, 100, (80, 6, 6), dtype=np.uint8)
    inputs[np.arange(80), labels + 1, 2] = 255
    train, test = Examples(inputs[:60], labels[:60]), Examples(inputs[60:], labels[60:])
    return ModuleProblem(
        Dataset("dots", 3, train, test), Partition.by_owner(np.repeat(np.arange(6), 10)), network
    )


def chosen(**given):
    words = {
        "clip": 1.0,
        "adjacency": "zero-out",
        "unit": "sample",
        "cohort": 3,
        "participation": "each-once",
        "rounds": 4,
        "lr": 0.1,
        "momentum": 0.9,
        "seed": 3,
        "rng": "seeded",
        "evaluate_at": [2, 4],
    }
    if given.get("mechanism") != "none" and "design_epsilon" not in given:
        words["epsilon"] = 6.0
    return Setting.from_json({**words, **given})


def test_without_noise_rounds_are_the_simulators():
    """Three steps and two clips side by side."""
    settings = [
        chosen(mechanism="none", lr=lr, clip=clip)
        for lr, clip in ((0.1, 1.0), (0.5, 1.0), (0.5, 0.05))
    ]
    batch = ModuleBatch(problem(), settings)
    batch.advance()
    for setting, found in zip(settings, batch.runs(), strict=True):
        alone = simulate(problem(), setting.plan, setting.training)
        np.testing.assert_allclose(found.parameters, alone.parameters, atol=2e-6)
        assert [point.round for point in found.points] == [2, 4]
        assert found.points[-1].score.accuracy == alone.points[-1].score.accuracy
        assert found.points[-1].score.loss == pytest.approx(alone.points[-1].score.loss, rel=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "gaussian",
        "one bit",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in MECHANISMS
            if name not in ("gaussian", "one bit")
        ),
    ],
)
def test_one_round_has_the_moments_of_real_releases(name):
    """Moments along four directions: eight statistics, false alarms of 1e-9 each."""
    made, setting = problem(), chosen(**MECHANISMS[name])
    batch = ModuleBatch(made, [setting] * DRAWS)
    batch._round()
    law = batch.v.numpy().astype(np.float64)
    schedule = setting.plan.schedule(made.sizes.size)
    releases = releases_per_client(schedule, 4) if setting.plan.mechanism.calibrated else None
    mechanism = setting.plan.mechanism_for(made.dimension, made.sizes, releases)
    side = ClientSide(made, setting.training.local(setting.plan), setting.plan, mechanism)
    start = made.initial(setting.seed)
    means = []
    for number in range(1, SENT + 1):
        means.append(play_round(number, schedule.cohort(0), mechanism, side, start).mean())
    real = np.stack(means)
    assert apart(law, real) < Z
    assert apart(law, 3 * real) > Z  # the test can fail


def apart(one, other):
    worst, size = 0.0, one.shape[1]
    for axis in np.vstack([np.eye(size)[[0, 25, 76]], np.ones(size) / np.sqrt(size)]):
        for power in (1, 2):
            a, b = (one @ axis) ** power, (other @ axis) ** power
            spread = np.sqrt(a.var() / a.size + b.var() / b.size)
            worst = max(worst, abs(a.mean() - b.mean()) / max(spread, 1e-12))
    return worst


def test_the_account_is_the_simulators():
    settings = [chosen(**MECHANISMS[name]) for name in ("gaussian", "one bit", "three bits")]
    batch = ModuleBatch(problem(), settings)
    batch.advance()
    for setting, found in zip(settings, batch.runs(), strict=True):
        alone = simulate(problem(), setting.plan, setting.training)
        assert found.guarantee == alone.guarantee
        assert [point.guarantee for point in found.points] == [
            point.guarantee for point in alone.points
        ]
        assert found.bytes_per_client == alone.bytes_per_client
        assert found.points[-1].uplink_bytes == alone.points[-1].uplink_bytes


def test_a_seeded_batch_is_repeated_and_no_round_or_run_shares_noise():
    settings = [chosen(**MECHANISMS["gaussian"])] * 2
    batches = [ModuleBatch(problem(), settings) for _ in range(2)]
    for batch in batches:
        batch.advance()
    (one, other), (again, _) = (batch.runs() for batch in batches)
    np.testing.assert_array_equal(one.parameters, again.parameters)
    assert not np.array_equal(one.parameters, other.parameters)
    secure = ModuleBatch(problem(), [chosen(**MECHANISMS["gaussian"], rng="secure")])
    assert secure._seed("normal") != secure._seed("normal")
    seeds = set()
    for number in range(4):
        batches[0].number = number
        seeds.add(batches[0]._seed("normal"))
    assert len(seeds) == 4


def test_a_model_that_is_not_finite_spoils_no_other():
    settings = [chosen(mechanism="none", lr=lr) for lr in (0.2, 0.1)]
    whole, spoilt = (ModuleBatch(problem(), settings) for _ in range(2))
    spoilt.w[0, 5] = torch.nan
    for batch in (whole, spoilt):
        batch.advance()
    assert [run.status for run in spoilt.runs()] == ["diverged", "finished"]
    np.testing.assert_array_equal(spoilt.runs()[1].parameters, whole.runs()[1].parameters)


def test_clients_as_units_and_unknown_mechanisms_are_refused():
    with refuses("settings of a batch"):
        ModuleBatch(problem(), [chosen(mechanism="gaussian", unit="client")])
    laplace = way_of(Laplace(quietbit.Ball("l1", 77), 0.5), 3)
    with refuses("mechanism", "laplace"):
        laplace.rows(torch.zeros((3, 77)), torch.Generator())
    few = IndependentSkellam(Skellam(quietbit.Ball("l2", 77), 0.5, bits=6))  # no normal replaces it
    with refuses("variance of a cohort's Skellam noise"):
        way_of(few, 3)
