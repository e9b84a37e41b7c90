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
from quietbit.check.law import CLIENTS, LAWS, TRAINING, Claim, Reason, Release, Run, nothing
from quietbit.check.program import Program
from quietbit.check.reader import Sources, Unreadable
from quietbit.check.values import Given, MissingValue, Place, Unknown, Use
from quietbit.errors import InvalidParameter, check_real
from quietbit.target import Adjacency, Unit

__all__ = ["ENGINES", "FILES", "Verdict", "judge"]

FILES = (nvflare, flower, opacus, accounting, quietbit_jobs)  # of laws
# Versions that the laws were written for and are tested against.
ENGINES = ("flwr 1.41", "nvflare 2.9", "opacus 1.6", "dp-accounting 0.6")
SENT = ("update", "statistics")
# Names of apps that send an update in Python, and numbers beside it.
APPS = ("ClientApp", "NumPyClient", "FLModel", "LocalDpMod")
EVENT = "DpEvent"  # at the end of names, and the name of the law for those without their own
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
    parameters = {**flower.PARAMETERS, **opacus.PARAMETERS}
    parameters |= {name: names for name, (names, _) in LAWS.items()}
    program = Program(sources.ending(".py"), given, parameters, flower.config(sources))
    parts = tuple(nvflare.components(sources, given))
    counts = tuple(nvflare.rounds(sources, given)) or tuple(flower.rounds(program))
    run = Run(given, program, parts, counts, Place(sources.title))
    uses = list(nvflare.filters(sources, given, parts))
    uses += [use for use in parts if use.name in LAWS]
    for use in program.uses(*{**LAWS, **dict.fromkeys(program.called(EVENT))}):
        uses.append(evolve(use, applied=use.name not in nvflare.FILTERS))
    releases, missing = _ask(uses, run)
    given.check_taken()
    claims = [release.claim for release in releases if release.claim is not None]
    claim = min(claims, key=lambda one: one.epsilon, default=None)
    delta = min((one.delta for one in claims), default=run.delta)
    kinds: dict[str, list[Release]] = {"update": []}  # which comes first
    for release in releases:
        kinds.setdefault(release.what, []).append(release)
    best = [one for kind in kinds.values() if kind for one in _of_one(kind, delta)]
    updates = [release for release in best if release.what == "update"]
    if updates and all(release.law in quietbit_jobs.GATES for release in updates):
        best = updates  # nothing else leaves through a gate
    counted = [release for release in best if release.what not in accepted]
    if max_epsilon is not None:
        claim = Claim(check_real(max_epsilon, "max_epsilon"), delta, per_round=False)
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
        try:
            found = _of_use(use, run)
        except MissingValue as error:
            missing += error.values
            continue
        except ArithmeticError as error:
            rule = "of ordinary size"
            name = f"numbers of {use.name} ({use.place})"
            raise InvalidParameter.of(name, rule, dict(use.arguments)) from error
        for release in found:
            if use.chain and release.what == "update":
                release = evolve(release, way=CLIENTS, chain=use.chain)
            releases.append(release.relying(*use.needs))
    is_gated = any(release.law in quietbit_jobs.GATES for release in releases)
    apps = [run.program.words[name] for name in APPS if name in run.program.words]
    for place in [] if is_gated else apps[:1]:
        app = Use("the app", {}, place, run.given)
        releases.append(nothing(app, Reason.IN_CLEAR, what="metrics"))
        if not missing and not any(release.what in SENT for release in releases):
            releases.append(nothing(app, Reason.NO_CLIP, Reason.NO_NOISE))
    if not releases and not missing:
        title = run.place.file
        raise Unreadable(f"{title} is not a job that check knows: see docs/how-to/check-a-job.md.")
    return releases, tuple(dict.fromkeys(missing))


def _of_use(use: Use, run: Run) -> list[Release]:
    """Return what the law of a class says, or that nothing is proved of it."""
    if not use.applied:
        return [nothing(use, Reason.NOT_APPLIED if use.chain else Reason.RECIPE)]
    name = EVENT if use.name.endswith(EVENT) and use.name not in LAWS else use.name
    if name not in LAWS:
        return [nothing(use, Reason.UNKNOWN_CLASS)]
    return LAWS[name][1](use, run)


def _of_one(releases: list[Release], delta: float) -> list[Release]:
    """Return what counts of all that is said of one thing that leaves.

    Everything of training counts. Of the other ways the best one does; on a way the worst chain,
    for chains belong to several sites or apps; and the best law of a chain.
    """
    ways: dict[str, list[Release]] = {}
    for way in dict.fromkeys(release.way for release in releases):
        members = [release for release in releases if release.way == way]
        if way != TRAINING:
            chains: dict[str, Release] = {}
            for release in sorted(members, key=lambda one: one.epsilon(ZERO_OUT, delta)):
                chains.setdefault(release.chain, release)
            members = [list(chains.values())[-1]]
        if all(release.epsilon(ZERO_OUT, delta) < math.inf for release in members):
            ways[way] = members
    training = ways.pop(TRAINING, [])
    best = min(ways.values(), key=lambda members: members[0].epsilon(ZERO_OUT, delta), default=[])
    if training or best:
        return [*training, *best]
    why = {why.reason: why for release in reversed(releases) for why in release.why}
    bare = [release for release in releases if release.epsilon(ZERO_OUT, delta) == math.inf]
    return [evolve(bare[0], why=tuple(why.values()))]
