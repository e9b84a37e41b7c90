"""The verdict on a job: everything that leaves, what is proved of it, and what the job claims.

Idea     laws are asked about every class that the job uses. Of several filters on one update the
         best proof counts, because what comes before a clip or after noise costs nothing. The claim
         holds where everything that leaves is proved, together, within it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import final

from attrs import evolve, frozen

from quietbit.check import accounting, flower, nvflare, opacus, quietbit_jobs
from quietbit.check.law import LAWS, Claim, Reason, Release, Run, nothing
from quietbit.check.program import Program
from quietbit.check.reader import Sources, Unreadable
from quietbit.check.values import Given, MissingValue, Place, Unknown, Use
from quietbit.errors import InvalidParameter
from quietbit.target import Adjacency

__all__ = ["ENGINES", "FILES", "Verdict", "judge"]

FILES = (nvflare, flower, opacus, accounting, quietbit_jobs)  # of laws
# Versions that the laws were written for and are tested against.
ENGINES = {"flwr": "1.41", "nvflare": "2.9", "opacus": "1.6", "dp-accounting": "0.6"}
ROUNDS = "num-server-rounds"
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


def judge(
    sources: Sources,
    given: Given,
    *,
    adjacency: Adjacency = ZERO_OUT,
    max_epsilon: float | None = None,
    accepted: Collection[str] = (),
) -> Verdict:
    """Return the verdict on a job, at the adjacency that the claim is read under."""
    releases, missing, delta = _releases(sources, given)
    sums: dict[str, float] = {}  # by the unit that is protected
    claim = None
    for release in releases:
        if release.what not in accepted:
            unit = release.unit.value
            sums[unit] = sums.get(unit, 0.0) + release.epsilon(adjacency, delta)
            claim = claim or release.claim
    if max_epsilon is not None:
        claim = Claim(max_epsilon, delta, per_round=False)
    proven = max(sums.values(), default=math.inf)
    holds = None
    if not missing and (claim is not None or proven == math.inf):
        holds = claim is not None and proven <= claim.epsilon
    return Verdict(tuple(releases), missing, claim, delta, proven, holds)


def _releases(sources: Sources, given: Given) -> tuple[list[Release], tuple[Unknown, ...], float]:
    """Ask the laws of all classes; return also what is missing, and the delta that is asked at."""
    parameters = {name: names for name, (names, _) in LAWS.items()}
    program = Program(sources.ending(".py"), flower.config(sources), given, parameters)
    parts = list(nvflare.components(sources, given))
    rounds = [*nvflare.rounds(parts), *program.keywords("num_rounds")]
    if not rounds and ROUNDS in program.config:
        rounds.append(program.config[ROUNDS])
    place = Place(sources.title)
    run = Run(given, program, tuple(rounds), place)
    releases: list[Release] = []
    missing: list[Unknown] = []
    uses = list(nvflare.filters(sources, given))
    uses += [use for use in parts if use.name in LAWS]
    uses += [*program.uses(*LAWS), *flower.mods(program, given)]
    for use in uses:
        if use.name not in LAWS:
            releases.append(nothing("update", use, Reason.UNKNOWN_CLASS))
        elif use.covers and not nvflare.applied(use, parts):
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
    apps = [program.words[name] for name in APPS if name in program.words]
    if apps:
        beside = Use("metrics of the app", {}, apps[0], given)
        releases.append(nothing("metrics", beside, Reason.IN_CLEAR))
    if apps and not missing and not any(release.what in SENT for release in releases):
        bare = Use("no filter", {}, apps[0], given)
        releases.append(nothing("update", bare, Reason.NO_CLIP, Reason.NO_NOISE))
    if not releases and not missing:
        raise Unreadable(
            f"{sources.title} is no job that check knows: see docs/how-to/check-a-job.md."
        )
    given.check_taken()
    gated = [release for release in releases if release.law in quietbit_jobs.GATES]
    if gated:  # nothing else leaves through a gate
        releases = gated
    deltas = [release.claim.delta for release in releases if release.claim is not None]
    delta = deltas[0] if deltas else run.delta
    return _best(releases, delta), tuple(dict.fromkeys(missing)), delta


def _best(releases: list[Release], delta: float) -> list[Release]:
    """Return one release for each thing that leaves and each unit that is protected."""
    best: list[Release] = []
    for what in dict.fromkeys(release.what for release in releases):
        best += _of_one([release for release in releases if release.what == what], delta)
    return best


def _of_one(releases: list[Release], delta: float) -> list[Release]:
    """Return the best of a chain of filters, the worst of several chains and of calls in Python.

    Several calls may be alternatives, and several chains belong to several sites.
    """

    def epsilon(release: Release) -> float:
        return release.epsilon(ZERO_OUT, delta)

    chains: dict[str, Release] = {}
    calls: dict[str, Release] = {}
    for release in sorted(releases, key=epsilon):
        if not release.place.file.endswith(".py"):
            chains.setdefault(release.place.file, release)
        elif epsilon(release) < math.inf:
            calls[release.unit.value] = release
    worst = sorted(chains.values(), key=epsilon)[-1:]
    proved = [release for release in [*calls.values(), *worst] if epsilon(release) < math.inf]
    if proved:
        return proved
    bare = [release for release in releases if epsilon(release) == math.inf]
    why = {why.reason: why for release in bare[::-1] for why in release.why}
    return [evolve(bare[0], why=tuple(why.values()))]
