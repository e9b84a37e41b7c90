"""Models side by side against the simulator, one by one: same rounds, accounts and ends.

Linear models, whose updates are outer products, and networks that clip every sample.
"""

import json

import numpy as np
import pytest

import quietbit
from federation.simulate.makers import setting, small_problem
from quietbit.federation.simulate.clients import ClientSide
from quietbit.federation.simulate.loop import play_round, simulate
from quietbit.federation.simulate.participation import releases_per_client
from quietbit.federation.simulate.problem import Score
from quietbit_lab.baseline.noise import Laplace
from quietbit_lab.baseline.skellam import IndependentSkellam, Skellam
from quietbit_lab.task.dataset import Dataset, Examples, Partition
from quietbit_lab.task.module import ModuleProblem

torch = pytest.importorskip("torch")

from lab.cohort.test_releases import Z, apart  # noqa: E402
from quietbit_lab.cohort.means import way_of  # noqa: E402
from quietbit_lab.task.batch import Batch  # noqa: E402
from quietbit_lab.task.batch_sweep import batch_records, restore, save  # noqa: E402
from quietbit_lab.task.linear_device import DeviceProblem, open_device  # noqa: E402
from quietbit_lab.task.module_device import Networks  # noqa: E402
from refusals import refuses  # noqa: E402

COMMON = {"clip": 1.0, "seed": 3, "rng": "seeded", "rounds": 6, "evaluate_at": (2, 6)}
SAMPLES = {"unit": "sample", "cohort": 3, "lr": 0.1, "momentum": 0.9}


def linear(mechanism, **more):
    return setting(mechanism=mechanism, **{**COMMON, "cohort": 20, "lr": 0.5, **more})


def network(mechanism, **more):
    if mechanism != "none" and "design_epsilon" not in more:
        more["epsilon"] = 6.0
    return setting(mechanism=mechanism, **{**COMMON, **SAMPLES, **more})


def dots():
    """Six clients with ten images each, and a network of 77 parameters."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 80)
    inputs = rng.integers(0, 100, (80, 6, 6), dtype=np.uint8)
    inputs[np.arange(80), labels + 1, 2] = 255
    train, test = Examples(inputs[:60], labels[:60]), Examples(inputs[60:], labels[60:])

    def make():
        return torch.nn.Sequential(
            torch.nn.Conv2d(1, 2, 3, padding=1),
            torch.nn.MaxPool2d(2),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(18, 3),
        )

    split = Partition.by_owner(np.repeat(np.arange(6), 10))
    return ModuleProblem(Dataset("dots", 3, train, test), split, make)


@pytest.fixture(scope="module")
def models():
    """Of either kind of setting, by its unit."""
    return {
        "client": DeviceProblem(small_problem(), open_device("cpu")),
        "sample": Networks(dots()),
    }


def trained(models, settings):
    batch = Batch(models[settings[0].plan.unit.value], settings)
    batch.advance()
    return batch


@pytest.mark.parametrize(
    "settings",
    [
        [linear("none", lr=0.3, momentum=0.0), linear("none", lr=1.0, clip=0.2, momentum=0.0)],
        [linear("none", lr=1e30), linear("none", lr=0.3), linear("none", lr=1.0, clip=0.2)],
        [linear("none", norm="l1", participation="sampled")],
        [network("none"), network("none", lr=1e30), network("none", lr=0.5, clip=0.05)],
    ],
    ids=["linear", "one that diverges", "l1 and sampled cohorts", "networks"],
)
def test_without_noise_rounds_are_the_simulators(models, settings):
    batch = trained(models, settings)
    for run, chosen in zip(batch.runs(), settings, strict=True):
        alone = simulate(batch.data.problem, chosen.plan, chosen.training)
        assert run.status == alone.status
        if run.status == "finished":
            np.testing.assert_allclose(run.parameters, alone.parameters, rtol=1e-5, atol=2e-6)
        for mine, other in zip(run.points, alone.points, strict=True):
            assert (mine.round, mine.score.accuracy) == (other.round, other.score.accuracy)
            assert mine.score.loss == pytest.approx(other.score.loss, rel=1e-5)


CODES = {"bits": 3, "levels": 8, "clamp": True, "design_epsilon": 3.0, "beta": 6.0}
CLIENTS = {
    "exact": linear("none", evaluate_at=(), rounds=5),
    "gaussian": linear("gaussian", noise_multiplier=2.0),
    "trusted server": linear("gaussian", noise_multiplier=2.0, trust="central"),
    "one bit": linear("imvu", design_epsilon=1.0),
    "secure sums": linear("imvu", design_epsilon=1.0, lr=0.1, trust="secure-aggregation"),
    "clamped": linear("imvu", design_epsilon=2.0, beta=4.0, clamp=True, clip=0.5),
    "two bits": linear("imvu", design_epsilon=2.0, bits=2, levels=8),
    "signs": linear("sign", noise_multiplier=1.0, lr=0.05),
    "skellam": linear("skellam", noise_multiplier=2.0),
    "calibrated": linear("gaussian", epsilon=3.0),
    "shorter": linear("gaussian", noise_multiplier=2.0, rounds=3, evaluate_at=(2, 3)),
    "meets its budget": linear("gaussian", noise_multiplier=2.0, epsilon=2.0),
    "diverges": linear("imvu", design_epsilon=1.0, lr=1e30),
    "diverges exactly": linear("none", lr=1e30),
}
NETWORKS = {
    "gaussian": network("gaussian"),
    "one bit": network("imvu", beta=8.0, clamp=True, decoder="alphabet"),
    "three bits": network("imvu", **CODES),
}


def account(run):
    """How a run ended, what it cost and what it sent, after every scored round."""
    ended = run.status, run.reason.split(": parameters")[0], run.rounds, run.bytes_per_client
    return ended, run.guarantee, [(p.round, p.guarantee, p.uplink_bytes) for p in run.points]


@pytest.mark.parametrize("settings", [CLIENTS, NETWORKS], ids=["linear", "networks"])
def test_every_run_has_the_account_the_end_and_the_points_of_its_own_simulation(models, settings):
    batch = trained(models, list(settings.values()))
    for (name, chosen), run in zip(settings.items(), batch.runs(), strict=True):
        alone = simulate(batch.data.problem, chosen.plan, chosen.training)
        ended = {"meets": "target reached", "diverges": "diverged"}.get(name.split()[0], "finished")
        assert run.status == ended
        assert account(run) == account(alone)
        assert run.parameters.any()


def test_a_checkpoint_continues_as_if_nothing_had_happened(models, tmp_path):
    settings, path = list(CLIENTS.values()), tmp_path / "batch.npz"
    whole, part, rest, other = (
        Batch(models["client"], some) for some in (settings, settings, settings, settings[:2])
    )
    whole.advance(100)
    assert not restore(part, path)
    part.advance(4)
    save(part, path)
    assert restore(rest, path)
    assert rest.number == 4
    rest.advance(100)
    assert rest.done
    for left, right in zip(whole.runs(), rest.runs(), strict=True):
        assert account(left) == account(right)
        assert [p.score for p in left.points] == [p.score for p in right.points]
        if left.status == "finished" and left.rounds > 4:  # what had ended is a record alone
            np.testing.assert_array_equal(left.parameters, right.parameters)
    assert not restore(other, path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(quietbit.QuietbitError, match="damaged"):
        restore(part, path)


def test_runs_far_behind_are_dropped_and_say_so(models, monkeypatch):
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
    runs = [linear("none", lr=lr, evaluate_at=tuple(table)) for lr in (0.5, 0.6, 0.7, 0.1)]
    runs.append(linear("gaussian", noise_multiplier=2.0, evaluate_at=tuple(table)))
    batch = Batch(models["client"], runs, 0.2)
    batch.advance(100)
    _, slow, *others = batch.runs()
    assert [run.status for run in others] == ["finished"] * 3
    assert slow.status == "dropped"
    assert slow.reason.startswith("Dropped after round 3: 40.0 points behind")
    assert slow.rounds == slow.points[-1].round == 3
    assert slow.account is None
    private = others[-1]
    assert private.guarantee.epsilon_upper > private.points[0].guarantee.epsilon_upper


@pytest.mark.parametrize(
    "chosen",
    [
        linear("imvu", design_epsilon=1.0),
        linear("gaussian", noise_multiplier=1.0),
        NETWORKS["gaussian"],
    ],
    ids=["one bit", "gaussian", "networks"],
)
def test_a_seeded_batch_is_repeated_and_no_round_or_run_shares_noise(models, chosen):
    first, again = (trained(models, [chosen, chosen]) for _ in range(2))
    for left, right in zip(first.runs(), again.runs(), strict=True):
        np.testing.assert_array_equal(left.parameters, right.parameters)
    assert not np.array_equal(first.runs()[0].parameters, first.runs()[1].parameters)
    seeds = set()
    for number in range(4):
        first.number = number
        seeds.add(first._seed("normal"))
    assert len(seeds) == 4


def test_secure_words_are_not_repeated(models):
    secure = [linear("gaussian", noise_multiplier=1.0, rng="secure")]
    left, right = (trained(models, secure).runs()[0] for _ in range(2))
    assert not np.array_equal(left.parameters, right.parameters)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ([], "settings"),
        ([linear("none"), linear("none", seed=4)], "settings of a batch"),
        ([linear("none", local_steps=2)], "local_steps"),
        ([linear("imvu", design_epsilon=1.0, unit="sample")], "unit"),
        ([linear("skellam", noise_multiplier=2.0, bits=6)], "variance of a cohort's Skellam noise"),
        ([linear("mvu", design_epsilon=2.0, bits=1)], "levels"),
    ],
)
def test_what_cannot_be_done_is_refused(models, settings, name):
    with refuses(name):
        Batch(models["client"], settings)


def test_what_networks_cannot_do_is_refused(models):
    with refuses("settings of a batch"):
        Batch(models["sample"], [network("gaussian", unit="client")])
    laplace = way_of(Laplace(quietbit.Ball("l1", 77), 0.5), 3)
    with refuses("mechanism", "laplace"):
        laplace.rows(torch.zeros((3, 77)), torch.Generator())
    few = IndependentSkellam(Skellam(quietbit.Ball("l2", 77), 0.5, bits=6))  # no normal replaces it
    with refuses("variance of a cohort's Skellam noise"):
        way_of(few, 3)


def test_records_name_the_device_and_what_was_drawn(models):
    batch = trained(models, [CLIENTS["gaussian"], CLIENTS["one bit"]])
    found = batch_records(batch, batch.runs(), {"name": "clusters"})
    assert [record["draws"] for record in found] == ["law of the sum", "every client"]
    assert all(record["protects"].startswith("nobody: codes or sums") for record in found)
    assert found[1]["device"] == "cpu"
    assert found[1]["batch"] == {"identity": batch.identity, "runs": 2, "place": 1}
    json.dumps(found, allow_nan=False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_draws_what_a_cpu_draws(models):
    """The same words give the same counts; errors in a last digit may move a few of them."""
    settings = [CLIENTS[name] for name in ("exact", "one bit", "clamped", "two bits", "signs")]
    found = []
    for name in ("cpu", "cuda"):
        batch = Batch(DeviceProblem(models["client"].problem, open_device(name)), settings)
        batch.advance(1)
        found.append(np.array([run.parameters for run in batch.runs()]))
    assert np.mean(np.abs(found[0] - found[1]) > 1e-6) < 0.01


DRAWS, SENT = 250, 80
NETWORK_CODES = NETWORKS | {
    "sign": network("sign"),
    "skellam": network("skellam", bits=16),
    "unclamped": network("imvu", **{**CODES, "design_epsilon": 1.0, "beta": 4.0, "clamp": False}),
}


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("gaussian", "one bit") else pytest.param(name, marks=pytest.mark.long)
        for name in NETWORK_CODES
    ],
)
def test_one_round_has_the_moments_of_real_releases(models, name):
    """Moments along four directions: eight statistics, false alarms of 1e-9 each."""
    made, chosen = models["sample"].problem, NETWORK_CODES[name]
    batch = Batch(models["sample"], [chosen] * DRAWS)
    batch._round()
    law = batch.v.numpy().astype(np.float64)
    schedule = chosen.plan.schedule(made.sizes.size)
    releases = releases_per_client(schedule, 6) if chosen.plan.mechanism.calibrated else None
    mechanism = chosen.plan.mechanism_for(made.dimension, made.sizes, releases)
    side = ClientSide(made, chosen.training.local(chosen.plan), chosen.plan, mechanism)
    start = made.initial(chosen.seed)
    means = []
    for number in range(1, SENT + 1):
        means.append(play_round(number, schedule.cohort(0), mechanism, side, start).mean())
    real = np.stack(means)
    assert apart(law, real) < Z
    assert apart(law, 3 * real) > Z  # the test can fail
