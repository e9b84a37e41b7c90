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

from quietbit.check import accounting as accounting
from quietbit.check import flower as flower
from quietbit.check import nvflare
from quietbit.check import opacus as opacus
from quietbit.check import quietbit_jobs as quietbit_jobs
from quietbit.check.law import LAWS, Claim, Reason, Release, Run, nothing
from quietbit.check.program import Program
from quietbit.check.reader import Sources, Unreadable
from quietbit.check.values import Given, MissingValue, Place, Unknown, Use, Value
from quietbit.target import Adjacency

__all__ = ["ENGINES", "Row", "Verdict", "judge"]

# Versions that the laws were written for and are tested against.
ENGINES = {"flwr": "1.41", "nvflare": "2.9", "opacus": "1.6", "dp-accounting": "0.6"}
CONFIG = ("tool", "flwr", "app", "config")
ROUNDS = "num-server-rounds"
SENT = ("update", "statistics")
# Names of apps that send an update in Python, and numbers beside it.
FEDERATED = ("ClientApp", "NumPyClient", "FLModel", "LocalDpMod")


@final
@frozen
class Row:
    """One thing that leaves: its proven epsilons at ``delta``, and what outputs refute."""

    release: Release
    delta: float
    zero_out: float
    replace_one: float
    refuted: float | None


@final
@frozen
class Verdict:
    """What a job proves. ``holds`` is None where values are missing, or nothing is claimed."""

    rows: tuple[Row, ...]
    missing: tuple[Unknown, ...]
    claim: Claim | None
    proven: float  # of everything that counts, together
    holds: bool | None


def judge(
    sources: Sources,
    given: Given,
    *,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    max_epsilon: float | None = None,
    accepted: Collection[str] = (),
    attack: bool = False,
) -> Verdict:
    """Return the verdict on a job, at the adjacency that the claim is read under."""
    releases, missing, delta = _releases(sources, given)
    rows = [_row(release, delta, attack) for release in _best(releases, delta)]
    counted = [row for row in rows if row.release.what not in accepted]
    claims = [row.release.claim for row in counted if row.release.claim is not None]
    claim = claims[0] if claims else None
    if max_epsilon is not None:
        claim = Claim(max_epsilon, delta, per_round=False)
    proven = math.inf
    if counted and not missing:
        proven = _together(counted, adjacency)
    holds = None
    if not missing and claim is not None:
        holds = proven <= claim.epsilon
    elif not missing and proven == math.inf:
        holds = False
    return Verdict(tuple(rows), missing, claim, proven, holds)


def _releases(sources: Sources, given: Given) -> tuple[list[Release], tuple[Unknown, ...], float]:
    """Ask the laws of all classes; return also what is missing, and the delta that is asked at."""
    parameters = {name: names for name, (names, _) in LAWS.items()}
    parameters["PrivacyConfig"] = ("target_delta", "population_size")
    program = Program(sources.ending(".py"), _config(sources), given, parameters)
    filters = list(nvflare.uses(sources, given))
    parts = list(nvflare.components(sources, given))
    rounds = [*nvflare.rounds(sources, given), *program.keywords("num_rounds")]
    if not rounds and ROUNDS in program.config:
        rounds = [program.config[ROUNDS]]
    place = Place(sources.title)
    run = Run(given, program, tuple(rounds), place)
    releases: list[Release] = []
    missing: list[Unknown] = []
    known = [use for use in parts if use.name in LAWS]
    for use in [*filters, *known, *program.uses(*LAWS), *_mods(program, given)]:
        if use.name not in LAWS:
            releases.append(nothing("update", use, Reason.UNKNOWN_CLASS))
            continue
        if use.covers and not nvflare.applied(use, parts):
            releases.append(nothing("update", use, Reason.NOT_APPLIED))
            continue
        try:
            releases += LAWS[use.name][1](use, run)
        except MissingValue as error:
            missing += error.values
    apps = [program.words[name] for name in FEDERATED if name in program.words]
    for app in apps[:1]:
        beside = Use("metrics of the app", {}, app, given)
        releases.append(nothing("metrics", beside, Reason.IN_CLEAR))
    if (
        (apps or nvflare.is_job(sources))
        and not missing
        and not any(release.what in SENT for release in releases)
    ):
        start = Use("no filter", {}, place, given)
        releases.append(nothing("update", start, Reason.NO_CLIP, Reason.NO_NOISE))
    if not releases and not missing:
        raise Unreadable(
            f"{sources.title} is no job that check knows: see docs/how-to/check-a-job.md."
        )
    given.check_taken()
    deltas = [release.claim.delta for release in releases if release.claim is not None]
    return releases, tuple(dict.fromkeys(missing)), deltas[0] if deltas else run.delta


def _mods(program: Program, given: Given) -> Iterable[Use]:
    """Return the mods that an app names without calling them."""
    for name in ("flip_local_dp_mod",):
        if name in program.words:
            yield Use(name, {}, program.words[name], given)


def _config(sources: Sources) -> dict[str, Value]:
    """Return the run config of a Flower app, with dots between its tables."""
    flat: dict[str, Value] = {}
    for source in sources.called("pyproject"):
        table = source.values()
        for key in CONFIG:
            table = table.get(key, {})
        waiting = [("", table)]
        while waiting:
            prefix, values = waiting.pop()
            for key, value in values.items():
                if isinstance(value, dict):
                    waiting.append((f"{prefix}{key}.", value))
                else:
                    flat[prefix + key] = value
    return flat


def _best(releases: list[Release], delta: float) -> list[Release]:
    """Return one release for each thing that leaves: the best proved, or all reasons there are."""
    best: dict[tuple[str, str], Release] = {}
    private = {release.what for release in releases if release.cost(Adjacency.ZERO_OUT) is not None}
    for release in releases:
        unit = release.unit.value if release.what in private else ""
        key = (release.what, unit)
        if release.what in private and release.cost(Adjacency.ZERO_OUT) is None:
            continue
        other = best.get(key)
        if other is None:
            best[key] = release
        elif release.what not in private:
            known = {why.reason for why in other.why}
            more = tuple(why for why in release.why if why.reason not in known)
            best[key] = evolve(other, why=other.why + more)
        elif release.epsilon(Adjacency.ZERO_OUT, delta) < other.epsilon(Adjacency.ZERO_OUT, delta):
            best[key] = release
    return list(best.values())


def _row(release: Release, delta: float, attack: bool) -> Row:
    if release.claim is not None:
        delta = release.claim.delta
    refuted = release.refuted(Adjacency.ZERO_OUT, delta) if attack else None
    zero_out = release.epsilon(Adjacency.ZERO_OUT, delta)
    replace_one = release.epsilon(Adjacency.REPLACE_ONE, delta)
    return Row(release, delta, zero_out, max(zero_out, replace_one), refuted)


def _together(rows: list[Row], adjacency: Adjacency) -> float:
    """Return the epsilon of everything: the largest of the units' sums."""
    zero_out = adjacency is Adjacency.ZERO_OUT
    sums: dict[str, float] = {}
    for row in rows:
        unit = row.release.unit.value
        sums[unit] = sums.get(unit, 0.0) + (row.zero_out if zero_out else row.replace_one)
    return max(sums.values())
