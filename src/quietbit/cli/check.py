"""``quietbit check``: what a job proves, beside what it claims, without running any of it.

Idea     exit codes are for pipelines: 0 the claim holds, 1 it does not, 2 the job cannot be read, 3
         a value is missing. A job that claims nothing holds where everything that leaves is proved.
"""

from __future__ import annotations

import math
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

import quietbit
from quietbit.cli.console import JsonOption, column_table, rounded_up, show_json
from quietbit.cli.options import option, takes, usual

if TYPE_CHECKING:
    from quietbit.check.law import Release
    from quietbit.check.verdict import Verdict

__all__ = ["check"]

HOLDS, FAILS, MISSING = 0, 1, 3
SCHEMA = 1  # of the JSON
HEADS = ("leaves", "zero-out", "replace-one", "unit", "trust", "claimed", "times")
WANTED = 8.0  # the epsilon of a suggestion for a job that claims none
FEW_SITES = 100


@takes(
    option("rounds", int, "Rounds of the run, where the job does not say."),
    option("samples", int, "Samples of one client, where what is protected is a sample."),
    option("dimension", int, "Parameters in an update: for SVTPrivacy, and for a forecast."),
    option("clients", int, "Clients in a round, for a forecast of what to write instead."),
    option("delta", float, "Delta, where the job names none (1e-5 unless given)."),
    usual("adjacency", "zero-out"),
    option("max_epsilon", float, "Compare with this epsilon, in place of the job's own claim."),
    option("accept", str, "What may leave without proof, separated by commas: metrics, model."),
    option("attack", bool, "Compute the largest epsilon that outputs refute."),
)
def check(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="A job: folder, zip, or script.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Give a value that the job computes."),
    ] = None,
    json: JsonOption = False,
    **given: Any,
) -> int:
    """Say what a job of NVFlare, Flower or Opacus proves, beside what it claims.

    Nothing of the job is run. A value that exists only when it runs is named with its file and
    line: give it with --set. Exit codes: 0 the claim holds, 1 it does not, 2 the job cannot be
    read, 3 a value is missing.

    Example: quietbit check jobs/swarm --rounds 20

    Example: quietbit check app --set noise_multiplier=1.1 --samples 5000 --json

    Example: quietbit check job.zip --max-epsilon 8 --accept metrics
    """
    from quietbit.check.reader import read_job
    from quietbit.check.values import Given

    sources = read_job(job)  # refuses before anything large is imported
    from quietbit.check.verdict import judge

    adjacency = quietbit.Adjacency(given["adjacency"])
    facts = {name: given[name] for name in ("rounds", "samples", "dimension", "delta")}
    verdict = judge(
        sources,
        Given.of(set_ or [], **facts),
        adjacency=adjacency,
        max_epsilon=given["max_epsilon"],
        accepted=[word.strip() for word in (given["accept"] or "").split(",")],
    )
    rows = [Row(release, verdict, given["attack"]) for release in verdict.releases]
    sentence = _sentence(verdict, rows, adjacency)
    remedy = [] if verdict.holds else _remedy(verdict, rows, adjacency, given)
    if json:
        show_json(_plain(job, verdict, rows, sentence, remedy))
    else:
        _show(rows, sentence, remedy)
    if verdict.missing:
        return MISSING
    return FAILS if verdict.holds is False else HOLDS


@final
class Row:
    """One thing that leaves: its proven epsilons at its delta, and what outputs refute."""

    def __init__(self, release: Release, verdict: Verdict, attack: bool) -> None:
        """Ask the release; replacing costs at least as much as leaving out."""
        zero_out, replace_one = quietbit.Adjacency
        claim = release.claim
        self.release = release
        self.delta = verdict.delta if claim is None else claim.delta
        self.zero_out = release.epsilon(zero_out, self.delta)
        self.replace_one = max(self.zero_out, release.epsilon(replace_one, self.delta))
        self.refuted = release.refuted(zero_out, self.delta) if attack else None


def _sentence(verdict: Verdict, rows: list[Row], adjacency: quietbit.Adjacency) -> str:
    """Return the verdict in one sentence."""
    if verdict.missing:
        names = ", ".join(f"{value.name} ({value.place})" for value in verdict.missing)
        return f"No verdict yet: the job computes {names} when it runs."
    proven = _proven(rows, adjacency)
    if verdict.claim is None:
        return f"The job claims no epsilon: {proven}."
    claim = f"epsilon {verdict.claim.epsilon:g}"
    if verdict.claim.per_round:
        claim += " per round"
    if verdict.holds:
        return f"The claim of {claim} holds: {proven}."
    return f"The claim of {claim} does not hold: {proven}."


def _proven(rows: list[Row], adjacency: quietbit.Adjacency) -> str:
    """Return what is proved of everything that leaves."""
    parts = []
    for row in rows:
        epsilon = row.zero_out
        if adjacency is quietbit.Adjacency.REPLACE_ONE:
            epsilon = row.replace_one
        shown = "no guarantee"
        if epsilon < math.inf:
            shown = f"epsilon {_shown(epsilon)} ({adjacency.value})"
        parts.append(f"{shown} for its {row.release.what}")
    return " and ".join(parts)


def _show(rows: list[Row], sentence: str, remedy: list[str]) -> None:
    """Print the verdict, the table, the reasons, and what to write instead."""
    print(sentence)
    if rows:
        column_table("What leaves, and the epsilon that is proved", HEADS, _lines(rows))
    for row in rows:
        release = row.release
        print(f"{release.what}: {release.law} at {release.place}")
        for why in release.why:
            detail = f" ({why.detail})" if why.detail else ""
            print(f"  - {why.reason.value}{detail}, {why.place}")
        for need in release.needs:
            print(f"  - relies on {need}")
        if row.refuted is not None:
            refuted = "every epsilon" if row.refuted == math.inf else f"{row.refuted:.4g}"
            print(f"  - its outputs refute {refuted} (zero-out)")
    if remedy:
        print("\nWhat to write instead")
    for line in remedy:
        print(f"  {line}")
    print(f"\nWritten for {', '.join(_versions())}.")


def _lines(rows: list[Row]) -> list[list[str]]:
    lines = []
    for row in rows:
        release = row.release
        claim = "" if release.claim is None else f"{release.claim.epsilon:g}"
        epsilons = [_shown(row.zero_out), _shown(row.replace_one)]
        terms = [release.unit.value, release.trust.value]
        lines.append([release.what, *epsilons, *terms, claim, str(release.times)])
    return lines


def _shown(epsilon: float) -> str:
    return "no guarantee" if epsilon == math.inf else rounded_up(epsilon, 5)


def _plain(
    job: Path, verdict: Verdict, rows: list[Row], sentence: str, remedy: list[str]
) -> dict[str, Any]:
    """Return what JSON says; docs/how-to/check-a-job.md describes the fields."""
    claim = verdict.claim
    return {
        "schema": SCHEMA,
        "job": str(job),
        "holds": verdict.holds,
        "sentence": sentence,
        "proven_epsilon": verdict.proven,
        "claimed_epsilon": None if claim is None else claim.epsilon,
        "rows": [_plain_row(row) for row in rows],
        "missing": [_plain_place(value.place, name=value.name) for value in verdict.missing],
        "remedy": remedy,
        "versions": _versions(),
    }


def _plain_row(row: Row) -> dict[str, Any]:
    release = row.release
    claim = release.claim
    return {
        "what": release.what,
        "law": release.law,
        **_plain_place(release.place),
        "epsilon_zero_out": row.zero_out,
        "epsilon_replace_one": row.replace_one,
        "delta": row.delta,
        "unit": release.unit.value,
        "trust": release.trust.value,
        "times": release.times,
        "claimed_epsilon": None if claim is None else claim.epsilon,
        "claimed_per_round": None if claim is None else claim.per_round,
        "reasons": [
            _plain_place(why.place, reason=why.reason.name.lower(), detail=why.detail)
            for why in release.why
        ],
        "relies_on": list(release.needs),
        "refuted_epsilon": row.refuted,
        "refutes_every_epsilon": row.refuted == math.inf,
    }


def _plain_place(place: Any, **facts: str) -> dict[str, Any]:
    return {**facts, "file": place.file, "line": place.line}


def _versions() -> list[str]:
    """Return the versions that the laws were written for, and those that are installed."""
    from quietbit.check.verdict import ENGINES

    found = [f"quietbit {quietbit.__version__}"]
    for name, written in ENGINES.items():
        try:
            found.append(f"{name} {written} (installed: {version(name)})")
        except PackageNotFoundError:
            found.append(f"{name} {written}")
    return found


def _remedy(
    verdict: Verdict, rows: list[Row], adjacency: quietbit.Adjacency, given: dict[str, Any]
) -> list[str]:
    """Return the lines that give a job its epsilon, and what to expect of them."""
    updates = [row for row in rows if row.release.what == "update"]
    if not updates or verdict.missing:
        return []
    release = updates[0].release
    epsilon = verdict.claim.epsilon if verdict.claim is not None else WANTED
    if release.unit is quietbit.Unit.SAMPLE:
        return [
            f"calibrate once, for the steps of all rounds, on Poisson batches: epsilon {epsilon:g}",
            "and send arrays alone: quietbit.nvflare and quietbit.flower do (protect-samples)",
        ]
    delta = updates[0].delta
    rounds = release.times if release.times > 1 else given["rounds"] or release.times
    budget = {"epsilon": epsilon, "delta": delta, "clip": 1.0, "releases": rounds}
    arguments = ", ".join(f"{name}={value:g}" for name, value in budget.items())
    fields = ", ".join(f'"{name}": {value:g}' for name, value in budget.items())
    word = adjacency.value
    lines = [
        f'NVFlare, among task_result_filters: {{"path": "quietbit.nvflare.LocalPrivacy", "args": '
        f'{{{fields}, "adjacency": "{word}"}}}}',
        f'Flower: app = PrivateClientApp({arguments}, adjacency="{word}")',
    ]
    if given["dimension"] is None or given["clients"] is None:
        return [*lines, "--dimension and --clients say what can be learnt under this noise"]
    return lines + _forecasts(epsilon, delta, word, int(rounds), given)


def _forecasts(
    epsilon: float, delta: float, word: str, rounds: int, given: dict[str, Any]
) -> list[str]:
    """Return what to expect of the remedy, and of its honest rivals."""
    ball = quietbit.Ball("l2", given["dimension"])
    mechanism = quietbit.calibrate(
        "gaussian", ball=ball, epsilon=epsilon, delta=delta, adjacency=word, releases=rounds
    ).mechanism
    clients = given["clients"]
    lines = []
    for trust in ("local", "central"):
        expected = quietbit.forecast(mechanism, cohort=clients, rounds=rounds, trust=trust)
        lines.append(f"{trust} trust: {expected.sentence()}")
    lines.append("public data alone: no noise, and nothing of the clients' data")
    if expected.verdict.value != "useful" and clients < FEW_SITES:
        lines.append(
            f"you cannot have this with {clients} sites; protect patients instead: quietbit "
            "compare --unit sample"
        )
    return lines
