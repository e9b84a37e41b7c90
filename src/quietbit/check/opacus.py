"""Opacus 1.6: DP-SGD on the samples of a client.

Idea     a step clips every sample's gradient and adds noise z times the clip to their sum. With
         Poisson batches of rate 1 / batches one step costs a secret batch; with shuffled ones a
         sample is in one step of every epoch, without a secret. What a run costs is all its steps,
         whichever engine counted them.
Symbols  z: noise_multiplier; q: rate of a batch.
Source   opacus 1.6.0: privacy_engine.py, accountants/; Dong, Roth, Su (2022), section 6, for the
         approximation of the accountant "gdp".
"""

from __future__ import annotations

import math

from attrs import evolve

from quietbit._search import bisect
from quietbit.check.law import (
    TRAINING,
    Batches,
    Claim,
    Noise,
    Normal,
    Reason,
    Release,
    Run,
    buffers,
    law,
    seeded,
)
from quietbit.check.values import Use, Value
from quietbit.errors import require
from quietbit.target import Adjacency, Unit

__all__ = ["PARAMETERS", "found_multiplier"]

NAMES = (
    "module optimizer criterion data_loader noise_multiplier max_grad_norm batch_first "
    "loss_reduction poisson_sampling clipping noise_generator target_epsilon target_delta epochs"
)
PARAMETERS = {
    "PrivacyEngine": ("accountant", "secure_mode"),
    "DataLoader": ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler"),
}
EPOCHS = ("epochs", "local_epochs", "num_epochs", "total_epochs")
CLIPPINGS = ("flat", "per_layer")
SCHEDULERS = ("ExponentialNoise", "LambdaNoise", "StepNoise")
TORCH_SEEDS = (
    "torch.manual_seed",
    "cuda.manual_seed",
    "cuda.manual_seed_all",
    "random.manual_seed",
    ".manual_seed",
)
HIGHEST = 1000.0
ONCE = "a loader that has every sample in one batch of an epoch, and no more"
ROUNDING = 1e-9  # of a product of steps and a rate


def _steps(use: Use, run: Run, calibrated: int | None) -> tuple[int, int, float]:
    """Return the steps of a run, those that the noise was made for, and the rate of a batch."""
    loaders = run.program.uses("DataLoader")
    own = use.arguments.get("data_loader")
    if isinstance(own, Use):
        loaders = [own]
    sizes = [loader.arguments.get("batch_size", 1) for loader in loaders]
    batch = run.number("batch_size", _one(sizes), use.place)
    samples = run.number("samples", None, use.place)
    is_floor = any(loader.arguments.get("drop_last", False) is not False for loader in loaders)
    batches = max(1, samples // batch) if is_floor else math.ceil(samples / batch)
    rounds = run.rounds if run.round_counts else int(run.given.find("rounds") or 1)
    usual = calibrated if rounds == 1 else None
    named = [run.program.config.get(name.replace("_", "-")) for name in EPOCHS]
    for name in EPOCHS:
        named += run.program.keywords(name)
    counts = [number for number in named if number is not None]
    local = run.number("local_epochs", _one(counts) if counts else usual, use.place)
    return rounds * local * batches, (calibrated or rounds * local) * batches, 1 / batches


def _one(values: list[Value]) -> Value:
    """Return the number that all are, or None."""
    return values[0] if values and all(value == values[0] for value in values) else None


def found_multiplier(epsilon: float, delta: float, rate: float, steps: int, kind: str) -> float:
    """Return a multiplier that no accountant of Opacus goes below for a target.

    Theirs bound epsilon from above with an error of 0.01 and more, ours with less; a test compares
    them.
    """

    def meets(multiplier: float) -> bool:
        noise: Noise = Batches(multiplier, rate)
        if kind == "gdp":
            noise = Normal(rate * math.sqrt(math.expm1(multiplier**-2)))
        return noise.proven(Adjacency.ZERO_OUT, steps, delta) <= epsilon

    require(meets(HIGHEST), "target_epsilon", epsilon, "reachable")
    return bisect(meets, HIGHEST, 0.1, relative=1e-3, by_ratio=True)


@law("make_private", NAMES)
def make_private(use: Use, run: Run) -> list[Release]:
    """Price all steps of the run with the noise that is written down."""
    multiplier = use.number("noise_multiplier")
    number, _, rate = _steps(use, run, None)
    return [_release(use, run, multiplier, number, rate, None), *buffers(run)]


@law("make_private_with_epsilon", NAMES)
def make_private_with_epsilon(use: Use, run: Run) -> list[Release]:
    """Price all steps of the run with the noise that Opacus finds for those it is told of."""
    epsilon, delta = use.numbers("target_epsilon", "target_delta")
    number, calibrated, rate = _steps(use, run, use.count("epochs"))
    multiplier = found_multiplier(epsilon, delta, rate, calibrated, _accountant(run))
    claim = Claim(epsilon, delta, per_round=False)
    release = _release(use, run, multiplier, number, rate, claim)
    if number > calibrated:
        detail = f"{number:,} steps, noise for {calibrated:,}"
        release = release.because(Reason.PER_ROUND, detail)
    return [release, *buffers(run)]


def _accountant(run: Run) -> str:
    kinds = [use.value("accountant", "prv") for use in run.program.uses("PrivacyEngine")]
    return "gdp" if "gdp" in kinds else "prv"


def _release(
    use: Use, run: Run, multiplier: float, number: int, rate: float, claim: Claim | None
) -> Release:
    """Return the release of the model that so many steps make."""
    release = Release(
        "update",
        use.name,
        use.place,
        unit=Unit.SAMPLE,
        claim=claim,
        needs=(f"{number:,} steps, counted in epochs and rounds: loops are not read",),
        way=TRAINING,
    )
    is_secure = [engine.value("secure_mode", False) for engine in run.program.uses("PrivacyEngine")]
    bad = []
    if "opacus" not in run.program.words or use.value("clipping", "flat") not in CLIPPINGS:
        bad.append(Reason.UNKNOWN_CLASS)
    if use.arguments.get("noise_generator") is not None:
        bad.append(Reason.SEEDED)
    if not (is_secure and all(is_secure)) and seeded(use, run, *TORCH_SEEDS):
        bad.append(Reason.SEEDED)
    if not run.program.words.keys().isdisjoint(SCHEDULERS):
        bad.append(Reason.CHANGING_NOISE)
    if multiplier == 0:
        bad.append(Reason.NO_NOISE)
    if bad:
        for reason in bad:
            release = release.because(reason)
        return release
    noise: Noise = Batches(multiplier, rate)
    if _accountant(run) == "gdp":
        release = release.because(Reason.APPROXIMATE, "accountant gdp")
    if not use.value("poisson_sampling", True):
        release = release.because(Reason.FIXED_BATCHES).relying(ONCE)
        noise = Normal.of(1.0, multiplier)
        number = math.ceil(number * rate - ROUNDING)  # once in every epoch, a last short one too
    return evolve(release, noise=noise, times=number)
