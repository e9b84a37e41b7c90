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
    Batches,
    Claim,
    Noise,
    Normal,
    Reason,
    Release,
    Run,
    Why,
    law,
    nothing,
)
from quietbit.check.values import Use
from quietbit.errors import require
from quietbit.target import Adjacency, Unit

__all__ = ["found_multiplier"]

NAMES = (
    "module optimizer criterion data_loader noise_multiplier max_grad_norm batch_first "
    "loss_reduction poisson_sampling"
)
EPOCHS = ("epochs", "local_epochs", "num_epochs", "total_epochs")
BATCHES = ("batch_size", "local_batch_size")
BUFFERED = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
CLIPPINGS = ("flat", "per_layer")
HIGHEST = 1000.0
ROUNDING = 1e-9  # of a product of steps and a rate


def _steps(use: Use, run: Run, calibrated: int | None) -> tuple[int, int, float]:
    """Return the steps of a run, those that the noise was made for, and the rate of a batch."""
    batch = run.number("batch_size", _named(run, BATCHES), use.place)
    batches = math.ceil(run.number("samples", None, use.place) / batch)
    rounds = run.rounds if run.round_counts else int(run.given.find("rounds") or 1)
    usual = calibrated if rounds == 1 else None
    local = run.number("local_epochs", _named(run, EPOCHS) or usual, use.place)
    return rounds * local * batches, (calibrated or rounds * local) * batches, 1 / batches


def _named(run: Run, names: tuple[str, ...]) -> float | None:
    """Return the one number that config and keywords have under these names."""
    values = [run.program.config.get(name.replace("_", "-")) for name in names]
    for name in names:
        values += run.program.keywords(name)
    numbers = {value for value in values if isinstance(value, int | float)}
    return numbers.pop() if len(numbers) == 1 else None


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
    return [_release(use, run, multiplier, number, rate, None), *_buffers(run)]


@law("make_private_with_epsilon", NAMES)
def make_private_with_epsilon(use: Use, run: Run) -> list[Release]:
    """Price all steps of the run with the noise that Opacus finds for those it is told of."""
    epsilon, delta = use.numbers("target_epsilon", "target_delta")
    number, calibrated, rate = _steps(use, run, use.count("epochs"))
    multiplier = found_multiplier(epsilon, delta, rate, calibrated, _accountant(run))
    claim = Claim(epsilon, delta, per_round=False)
    release = _release(use, run, multiplier, number, rate, claim)
    if number > calibrated:
        why = Why(Reason.PER_ROUND, use.place, f"{number:,} steps, noise for {calibrated:,}")
        release = evolve(release, why=(*release.why, why))
    return [release, *_buffers(run)]


def _accountant(run: Run) -> str:
    kinds = [use.arguments.get("accountant", "prv") for use in run.program.uses("PrivacyEngine")]
    return "gdp" if "gdp" in kinds else "prv"


def _release(
    use: Use, run: Run, multiplier: float, number: int, rate: float, claim: Claim | None
) -> Release:
    """Return the release of the model that so many steps make."""
    if use.value("clipping", "flat") not in CLIPPINGS:
        return nothing("update", use, Reason.UNKNOWN_CLASS, detail="of this clipping")
    if "noise_generator" in use.arguments:
        return nothing("update", use, Reason.SEEDED)
    if multiplier == 0:
        return nothing("update", use, Reason.NO_NOISE)
    why = []
    noise: Noise = Batches(multiplier, rate)
    if _accountant(run) == "gdp":
        why.append(Why(Reason.APPROXIMATE, use.place, "accountant gdp"))
    if not use.value("poisson_sampling", True):
        why.append(Why(Reason.FIXED_BATCHES, use.place))
        noise = Normal.of(1.0, multiplier)
        number = math.ceil(number * rate - ROUNDING)  # once in every epoch, a last short one too
    return Release(
        "update", use.name, use.place, noise, number, Unit.SAMPLE, claim=claim, why=tuple(why)
    )


def _buffers(run: Run) -> list[Release]:
    """Return the statistics of BatchNorm, where nothing replaces them."""
    words = run.program.words
    if "fix" in words:
        return []
    uses = [Use(name, {}, words[name], run.given) for name in BUFFERED if name in words]
    return [nothing("model", use, Reason.BUFFERS) for use in uses]
