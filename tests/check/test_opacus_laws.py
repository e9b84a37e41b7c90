"""The laws of Opacus, and of events in dp_accounting's terms."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from check.kit import assert_normal, catches, job, reasons, row, verdict
from quietbit.check.law import Batches
from quietbit.check.opacus import found_multiplier
from quietbit.target import Adjacency

EPOCHS = ["local_epochs=3"]  # which the script computes
SCRIPT = """
from opacus import PrivacyEngine
def train(epochs):
    loader = DataLoader(data, batch_size=64, shuffle=True)
    engine = PrivacyEngine({accountant})
    m, o, loader = engine.{call}(module=m, optimizer=o, data_loader=loader, max_grad_norm=1.0, {arguments})
"""


def script(folder: Path, arguments: str, call: str = "make_private", accountant: str = "", more=""):
    text = SCRIPT.format(call=call, arguments=arguments, accountant=accountant) + more
    return job(folder, train_py=text)


def found(folder: Path, arguments: str, **kind: str):
    return row(script(folder, arguments, **kind), *EPOCHS, given={"samples": 6400})


def test_steps_and_rate_are_those_of_the_loader(tmp_path):
    release = found(tmp_path, "noise_multiplier=1.1").release
    assert (release.times, release.noise) == (300, Batches(1.1, 0.01))
    assert release.unit.value == "sample"


def test_shuffled_batches_are_not_amplified(tmp_path):
    poisson = found(tmp_path / "a", "noise_multiplier=1.1")
    fixed = found(tmp_path / "b", "noise_multiplier=1.1, poisson_sampling=False")
    assert reasons(fixed) == {"FIXED_BATCHES"}
    assert fixed.release.times == 3  # a sample is once in every epoch
    assert fixed.zero_out > 4 * poisson.zero_out


def test_rounds_that_the_noise_was_not_made_for(tmp_path):
    arguments = "target_epsilon=2.0, target_delta=1e-5, epochs=3"
    kind = {"call": "make_private_with_epsilon"}
    once = verdict(script(tmp_path / "a", arguments, **kind), given={"samples": 64})
    assert (once.claim.epsilon, once.holds) == (2.0, True)
    more = "strategy.start(grid, num_rounds=5)\n"
    again = script(tmp_path / "b", arguments, more=more, **kind)
    found = verdict(again, given={"samples": 64})
    assert found.holds is False
    assert "PER_ROUND" in reasons(found.releases[0])
    assert found.proven > 1.5 * 2.0


def test_the_central_limit_accountant_is_no_bound(tmp_path):
    arguments = "target_epsilon=2.0, target_delta=1e-5, epochs=3"
    kind = {"call": "make_private_with_epsilon", "accountant": "accountant='gdp'"}
    gaussian = row(script(tmp_path, arguments, **kind), given={"samples": 6400})
    assert "APPROXIMATE" in reasons(gaussian)
    assert gaussian.zero_out > 2.0


def test_buffers_of_batchnorm_are_not_protected(tmp_path):
    more = "model = torch.nn.BatchNorm2d(3)\n"
    folder = script(tmp_path / "a", "noise_multiplier=1.1", more=more)
    assert reasons(row(folder, *EPOCHS, what="model", given={"samples": 6400})) == {"BUFFERS"}
    fixed = more + "model = ModuleValidator.fix(model)\n"
    folder = script(tmp_path / "b", "noise_multiplier=1.1", more=fixed)
    assert len(verdict(folder, *EPOCHS, given={"samples": 6400}).releases) == 1


@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_the_attack_stays_below_the_proof_and_grows_with_epsilon(rate):
    refuted = []
    for multiplier in (0.5, 2.0):
        noise = Batches(multiplier, rate)
        proven = noise.proven(Adjacency.ZERO_OUT, 100, 1e-5)
        refuted.append(noise.refuted(Adjacency.ZERO_OUT, 100, 1e-5))
        assert refuted[-1] <= proven
    assert refuted[0] > refuted[1]


@pytest.mark.filterwarnings("ignore")
def test_what_opacus_does_is_the_law():
    """Clip, deviation and rate of the real engine on a model of 100,000 parameters."""
    opacus = pytest.importorskip("opacus", reason="Opacus is not here")
    torch = pytest.importorskip("torch")
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    data = torch.utils.data.TensorDataset(torch.ones(64, 100_000))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    model = torch.nn.Linear(100_000, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model, optimizer, private = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.5,
        max_grad_norm=2.0,
    )
    assert isinstance(private.batch_sampler, UniformWithReplacementSampler)
    assert private.sample_rate == pytest.approx(8 / 64)
    assert optimizer.expected_batch_size == 8

    def step(values):
        optimizer.zero_grad()
        model(values).sum().backward()
        optimizer.step()
        return next(model.parameters()).grad.numpy() * optimizer.expected_batch_size

    catches(assert_normal, step(torch.zeros(1, 100_000)), 1.5 * 2.0)  # noise alone
    optimizer.noise_multiplier = 0.0
    assert np.linalg.norm(step(torch.ones(1, 100_000))) == pytest.approx(2.0, rel=1e-3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["prv", "rdp", "gdp"])
def test_opacus_finds_at_least_the_noise_that_is_priced(kind):
    utils = pytest.importorskip("opacus.accountants.utils", reason="Opacus is not here")
    pytest.importorskip("opacus")
    theirs = utils.get_noise_multiplier(
        target_epsilon=3.0, target_delta=1e-5, sample_rate=0.02, epochs=10, accountant=kind
    )
    ours = found_multiplier(3.0, 1e-5, 0.02, 500, kind)
    assert 0.9 * theirs < ours <= theirs * (1 + (1e-3 if kind == "gdp" else 0))


EVENTS = {
    "GaussianDpEvent(2.0)": 1,
    "SelfComposedDpEvent(GaussianDpEvent(2.0), 9)": 9,
    "SelfComposedDpEvent(event=SelfComposedDpEvent(GaussianDpEvent(2.0), 3), count=3)": 9,
    "SingleEpochTreeAggregationDpEvent(2.0, 511)": 9,
}


@pytest.mark.parametrize("event", EVENTS)
def test_events_cost_what_their_gaussians_do(tmp_path, event):
    mu = math.sqrt(EVENTS[event]) / 2
    folder = job(tmp_path, plan_py=f"import dp_accounting as dp\nevent = dp.{event}\n")
    proven = row(folder).zero_out
    from scipy.stats import norm

    def delta(epsilon):
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
            -mu / 2 - epsilon / mu
        )

    assert delta(proven) <= 1e-5 * (1 + 1e-6)  # never below the analytic account,
    assert delta(proven / 1.001) > 1e-5  # and within 0.1 % of it


def test_an_event_of_a_variable_is_inside_another(tmp_path):
    text = (
        "noise = GaussianDpEvent(1.1)\n"
        "step = PoissonSampledDpEvent(0.01, noise)\n"
        "run = SelfComposedDpEvent(step, 300)\n"
    )
    found = verdict(job(tmp_path, plan_py=text))
    (only,) = found.releases
    assert (only.times, only.noise) == (300, Batches(1.1, 0.01))


def test_batches_of_a_fixed_size_are_priced_without_sampling(tmp_path):
    text = "e = SampledWithoutReplacementDpEvent(1000, 10, GaussianDpEvent(1.1))\n"
    found = row(job(tmp_path, plan_py=text))
    assert reasons(found) == {"FIXED_BATCHES"}
    assert found.zero_out == pytest.approx(
        row(job(tmp_path / "b", p_py="GaussianDpEvent(1.1)")).zero_out
    )


def test_dp_accounting_agrees_within_its_own_error(tmp_path):
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    text = "SelfComposedDpEvent(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.2)), 40)"
    event = eval(text, vars(accounting))  # noqa: S307
    theirs = PLDAccountant().compose(event).get_epsilon(1e-5)
    ours = row(job(tmp_path, p_py=text)).zero_out
    assert theirs * 0.99 <= ours <= theirs * 1.02
