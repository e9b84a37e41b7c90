"""The verdict on a job: everything that leaves, what is proved of it, and what the job claims.

Idea     laws are asked about every class that the job uses. Of several filters on one update the
         best proof counts, because what comes before a clip or after noise costs nothing. The claim
         holds where everything that leaves is proved, together, within it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import final

from attrs import evolve, frozen

from quietbit.check import accounting, flower, nvflare, opacus, quietbit_jobs
from quietbit.check.law import LAWS, Claim, Reason, Release, Run, nothing
from quietbit.check.program import Program
from quietbit.check.reader import Sources, Unreadable
from quietbit.check.values import Given, MissingValue, Place, Unknown, Use
from quietbit.errors import InvalidParameter
from quietbit.target import Adjacency, Unit

__all__ = ["ENGINES", "FILES", "Verdict", "judge"]

FILES = (nvflare, flower, opacus, accounting, quietbit_jobs)  # of laws
# Versions that the laws were written for and are tested against.
ENGINES = ("flwr 1.41", "nvflare 2.9", "opacus 1.6", "dp-accounting 0.6")
SENT = ("update", "statistics")
# Names of apps that send an update in Python, and numbers beside it.
APPS = ("ClientApp", "NumPyClient", "FLModel", "LocalDpMod")
ZERO_OUT = Adjacency.ZERO_OUT


@final
@frozen
class Verdict:
    """What a job proves. ``holds`` is None where values are missing, or nothing is claimed."""

    releases: tuple[Release, ...]
    missing: tuple[Unknown, ...]
    claim: Claim | None
    delta: float  # where a release has no claim of its own
    proven: float  # of everything that counts, together
    holds: bool | None
    rounds: int | None  # where they are known
    engine: str  # whose job it is


def judge(
    sources: Sources,
    given: Given,
    *,
    adjacency: Adjacency = ZERO_OUT,
    max_epsilon: float | None = None,
    accepted: Collection[str] = (),
) -> Verdict:
    """Return the verdict on a job, at the adjacency that the claim is read under."""
    parameters = {name: names for name, (names, _) in LAWS.items()}
    program = Program(sources.ending(".py"), flower.config(sources), given, parameters)
    parts = list(nvflare.components(sources, given))
    counts = (*nvflare.rounds(parts), *flower.rounds(program))
    run = Run(given, program, counts, Place(sources.title))
    uses = list(nvflare.filters(sources, given, parts))
    uses += [use for use in parts if use.name in LAWS]
    uses += [*program.uses(*LAWS), *flower.mods(program, given)]
    releases, missing = _ask(uses, run)
    given.check_taken()
    claim = next((release.claim for release in releases if release.claim is not None), None)
    delta = run.delta if claim is None else claim.delta
    kinds: dict[str, list[Release]] = {}
    for release in releases:
        kinds.setdefault(release.what, []).append(release)
    best = [one for kind in kinds.values() for one in _of_one(kind, delta)]
    counted = [release for release in best if release.what not in accepted]
    if max_epsilon is not None:
        claim = Claim(max_epsilon, delta, per_round=False)
    proofs = [release for release in counted if release.epsilon(adjacency, delta) < math.inf]
    share = delta / max(1, len(proofs))  # the deltas of several releases add up, too
    sums = dict.fromkeys(Unit, 0.0)  # by what is protected
    for release in counted:
        sums[release.unit] += release.epsilon(adjacency, share)
    proven = max(sums.values()) if counted else math.inf
    holds = None
    if not missing and (claim is not None or proven == math.inf):
        holds = claim is not None and proven <= claim.epsilon
    engine = ""
    if parts:
        engine = "nvflare"
    elif program.words.keys() & set(APPS):
        engine = "flower"
    return Verdict(tuple(best), missing, claim, delta, proven, holds, run.known_rounds, engine)


def _ask(uses: Iterable[Use], run: Run) -> tuple[list[Release], tuple[Unknown, ...]]:
    """Ask the laws of all classes; return also what is missing."""
    releases: list[Release] = []
    missing: list[Unknown] = []
    for use in uses:
        if use.name not in LAWS:
            releases.append(nothing("update", use, Reason.UNKNOWN_CLASS))
        elif not use.applied:
            releases.append(nothing("update", use, Reason.NOT_APPLIED))
        else:
            try:
                releases += LAWS[use.name][1](use, run)
            except MissingValue as error:
                missing += error.values
            except ArithmeticError as error:
                rule = "of ordinary size"
                name = f"numbers of {use.name} ({use.place})"
                raise InvalidParameter.of(name, rule, dict(use.arguments)) from error
    gated = [release for release in releases if release.law in quietbit_jobs.GATES]
    if gated:  # nothing else leaves through a gate
        return gated, tuple(missing)
    apps = [run.program.words[name] for name in APPS if name in run.program.words]
    for place in apps[:1]:
        app = Use("the app", {}, place, run.given)
        releases.append(nothing("metrics", app, Reason.IN_CLEAR))
        if not missing and not any(release.what in SENT for release in releases):
            releases.append(nothing("update", app, Reason.NO_CLIP, Reason.NO_NOISE))
    if not releases and not missing:
        title = run.place.file
        raise Unreadable(f"{title} is not a job that check knows: see docs/how-to/check-a-job.md.")
    return releases, tuple(dict.fromkeys(missing))


def _of_one(releases: list[Release], delta: float) -> list[Release]:
    """Return the best of a chain of filters, the worst of several chains and of calls in Python.

    Several calls may be alternatives, and several chains belong to several sites.
    """
    ordered = sorted(releases, key=lambda release: release.epsilon(ZERO_OUT, delta))
    proofs: dict[str, Release] = {}
    bare: list[Release] = []
    sites = set()
    for release in ordered:
        file = release.place.file
        if not file.endswith(".py"):
            sites.add(file)
        if release.epsilon(ZERO_OUT, delta) == math.inf:
            bare.append(release)
        elif file in sites:
            proofs.setdefault(file, release)
        else:
            proofs[release.unit.value] = release
    calls = [proofs[key] for key in proofs if key not in sites]
    chains = [proofs[key] for key in proofs if key in sites]
    worst = chains[-1:] if len(chains) == len(sites) else []
    if calls or worst:
        return calls + worst
    why = {why.reason: why for release in bare for why in release.why}
    return [evolve(bare[0], why=tuple(why.values()))]
