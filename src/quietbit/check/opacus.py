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

from attrs import evolve, frozen

from quietbit._search import bisect
from quietbit.check.law import Batches, Claim, Normal, Reason, Release, Run, Why, law, nothing
from quietbit.check.values import Use
from quietbit.errors import require
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency, Unit

__all__ = ["found_multiplier"]

NAMES = (
    "module optimizer criterion data_loader noise_multiplier max_grad_norm batch_first "
    "loss_reduction poisson_sampling"
)
EPOCHS = ("epochs", "local_epochs", "num_epochs", "total_epochs")
BATCHES = ("batch_size", "local_batch_size")
CLIPPINGS = ("flat", "per_layer")
HIGHEST = 1000.0


@frozen
class _Steps:
    """The steps of a run and those that the noise was made for, and the rate of a batch."""

    number: int
    calibrated: int
    rate: float


def _steps(use: Use, run: Run, calibrated: int | None) -> _Steps:
    """Read the size of batches, and the number of samples, epochs and rounds."""
    batch = run.number("batch_size", run.program.named(*BATCHES), use.place)
    batches = math.ceil(run.number("samples", None, use.place) / batch)
    rounds = run.rounds if run.round_counts else int(run.given.find("rounds") or 1)
    local = run.program.named(*EPOCHS)
    if local is None and rounds == 1:
        local = calibrated
    number = rounds * run.number("local_epochs", local, use.place) * batches
    return _Steps(number, (calibrated or 0) * batches, 1 / batches)


def found_multiplier(epsilon: float, delta: float, rate: float, steps: int, kind: str) -> float:
    """Return a multiplier that no accountant of Opacus goes below for a target.

    Theirs bound epsilon from above with an error of 0.01 and more, ours with less; a test compares
    them.
    """

    def meets(multiplier: float) -> bool:
        if kind == "gdp":
            slope = rate**2 * steps * math.expm1(multiplier**-2) / 2
            return Cost.gaussian(slope).epsilon(delta) <= epsilon
        cost = Batches(multiplier, rate).cost(Adjacency.ZERO_OUT) * steps
        return cost.epsilon(delta) <= epsilon

    require(meets(HIGHEST), "target_epsilon", epsilon, "reachable")
    return bisect(meets, HIGHEST, 0.1, relative=1e-3, by_ratio=True)


@law("make_private", NAMES)
def make_private(use: Use, run: Run) -> list[Release]:
    """Price all steps of the run with the noise that is written down."""
    multiplier = use.number("noise_multiplier")
    return _release(use, run, multiplier, _steps(use, run, None), None)


@law("make_private_with_epsilon", NAMES)
def make_private_with_epsilon(use: Use, run: Run) -> list[Release]:
    """Price all steps of the run with the noise that Opacus finds for those it is told of."""
    epsilon, delta = use.numbers("target_epsilon", "target_delta")
    steps = _steps(use, run, use.count("epochs"))
    kind = _accountant(run)
    multiplier = found_multiplier(epsilon, delta, steps.rate, steps.calibrated, kind)
    return _release(use, run, multiplier, steps, Claim(epsilon, delta, per_round=False))


def _accountant(run: Run) -> str:
    kinds = {str(use.arguments.get("accountant", "prv")) for use in _engines(run)}
    return kinds.pop() if len(kinds) == 1 else "prv"


def _engines(run: Run) -> list[Use]:
    return run.program.uses("PrivacyEngine")


def _release(
    use: Use, run: Run, multiplier: float, steps: _Steps, claim: Claim | None
) -> list[Release]:
    if use.value("clipping", "flat") not in CLIPPINGS:
        return [nothing("update", use, Reason.UNKNOWN_CLASS, detail="of this clipping")]
    if "noise_generator" in use.arguments:
        return [nothing("update", use, Reason.SEEDED)]
    why = []
    if multiplier == 0:
        why.append(Why(Reason.NO_NOISE, use.place))
    if claim is not None and steps.number > steps.calibrated:
        detail = f"{steps.number:,} steps, noise for {steps.calibrated:,}"
        why.append(Why(Reason.PER_ROUND, use.place, detail))
    if _accountant(run) == "gdp":
        why.append(Why(Reason.APPROXIMATE, _engines(run)[0].place, "accountant gdp"))
    release = Release(
        "update",
        use.name,
        use.place,
        Batches(multiplier, steps.rate) if multiplier > 0 else None,
        steps.number,
        Unit.SAMPLE,
        claim=claim,
    )
    if not use.value("poisson_sampling", True):
        why.append(Why(Reason.FIXED_BATCHES, use.place))
        epochs = round(steps.number * steps.rate)
        release = evolve(release, noise=Normal.of(1.0, multiplier), times=epochs)
    releases = [evolve(release, why=tuple(why))]
    for name in ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"):
        if name in run.program.words and "fix" not in run.program.words:
            place = run.program.words[name]
            releases.append(Release("model", name, place, why=(Why(Reason.BUFFERS, place),)))
    return releases
