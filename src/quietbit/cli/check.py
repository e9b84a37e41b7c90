"""``quietbit check``: what a job proves, beside what it claims, without running any of it.

Idea     exit codes are for pipelines: 0 the claim holds, 1 it does not, 2 the job cannot be read, 3
         a value is missing. A job that claims nothing holds where everything that leaves is proved.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

    sources = read_job(job)  # refuses before anything large is imported
    from quietbit.check.values import Given
    from quietbit.check.verdict import ENGINES, judge

    facts = {name: given[name] for name in ("rounds", "samples", "dimension", "delta")}
    verdict = judge(
        sources,
        Given.of(set_ or [], **facts),
        adjacency=quietbit.Adjacency(given["adjacency"]),
        max_epsilon=given["max_epsilon"],
        accepted=(given["accept"] or "").replace(" ", "").split(","),
    )
    rows = [_row(release, verdict, given["attack"]) for release in verdict.releases]
    found = {
        "schema": SCHEMA,
        "holds": verdict.holds,
        "sentence": _sentence(verdict, rows, given["adjacency"]),
        "proven_epsilon": verdict.proven,
        "claimed_epsilon": verdict.claim and verdict.claim.epsilon,
        "rows": rows,
        "missing": [_placed(value.place, name=value.name) for value in verdict.missing],
        "remedy": [] if verdict.holds or verdict.missing else _remedy(verdict, given),
        "versions": [f"quietbit {quietbit.__version__}", *ENGINES],
    }
    if json:
        show_json(found)
    else:
        _show(found, verdict)
    if verdict.missing:
        return MISSING
    return FAILS if verdict.holds is False else HOLDS


def _row(release: Release, verdict: Verdict, attack: bool) -> dict[str, Any]:
    """Return what JSON says of one thing that leaves; docs/how-to/check-a-job.md lists it."""
    zero_out, replace_one = quietbit.Adjacency
    delta = verdict.delta
    least = release.epsilon(zero_out, delta)
    refuted = release.refuted(zero_out, delta) if attack else None
    reasons = [
        _placed(why.place, reason=why.reason.name.lower(), detail=why.detail) for why in release.why
    ]
    return {
        "what": release.what,
        "law": release.law,
        **_placed(release.place),
        "epsilon_zero_out": least,
        "epsilon_replace_one": max(least, release.epsilon(replace_one, delta)),
        "delta": delta,
        "unit": release.unit.value,
        "trust": release.trust.value,
        "times": release.times,
        "claimed_epsilon": release.claim and release.claim.epsilon,
        "reasons": reasons,
        "relies_on": list(release.needs),
        "refuted_epsilon": refuted,
        "refutes_every_epsilon": refuted == math.inf,
    }


def _placed(place: Any, **facts: str) -> dict[str, Any]:
    return {**facts, "file": place.file, "line": place.line}


def _sentence(verdict: Verdict, rows: list[dict[str, Any]], adjacency: str) -> str:
    """Return the verdict in one sentence."""
    if verdict.missing:
        names = ", ".join(f"{value.name} ({value.place})" for value in verdict.missing)
        example = verdict.missing[0].name
        return f"No verdict: the job computes {names} when it runs; give it (--set {example}=...)."
    key = f"epsilon_{adjacency.replace('-', '_')}"
    parts = [f"{_shown(row[key], 'epsilon ')} for its {row['what']}" for row in rows]
    proven = f"{' and '.join(parts)} ({adjacency}, delta {verdict.delta:g})"
    if verdict.claim is None:
        return f"The job claims no epsilon: {proven}."
    each = " per round" if verdict.claim.per_round else ""
    word = "holds" if verdict.holds else "does not hold"
    return f"The claim of epsilon {verdict.claim.epsilon:g}{each} {word}: {proven}."


def _shown(epsilon: float, head: str = "") -> str:
    return "no guarantee" if epsilon == math.inf else head + rounded_up(epsilon, 5)


def _show(found: dict[str, Any], verdict: Verdict) -> None:
    """Print the verdict, the table, the reasons, and what to write instead."""
    print(found["sentence"])
    lines = []
    for row in found["rows"]:
        epsilons = [_shown(row["epsilon_zero_out"]), _shown(row["epsilon_replace_one"])]
        terms = [str(row[key] or "") for key in ("unit", "trust", "claimed_epsilon", "times")]
        lines.append([row["what"], *epsilons, *terms])
    if lines:
        column_table("What leaves, and the epsilon that is proved", HEADS, lines)
    for release, row in zip(verdict.releases, found["rows"], strict=True):
        print(f"{release.what}: {release.law} at {release.place}")
        for why in release.why:
            detail = f" ({why.detail})" if why.detail else ""
            print(f"  - {why.reason.value}{detail}, {why.place}")
        for need in release.needs:
            print(f"  - relies on {need}")
        if row["refutes_every_epsilon"]:
            print("  - its outputs refute every epsilon")
        elif row["refuted_epsilon"] is not None:
            print(f"  - its outputs refute epsilon {row['refuted_epsilon']:.4g} (zero-out)")
    for line in found["remedy"]:
        print(f"Instead: {line}")
    print(f"Written for {', '.join(found['versions'])}.")


def _remedy(verdict: Verdict, given: dict[str, Any]) -> list[str]:
    """Return the lines that give a job its epsilon, and what to expect of them."""
    updates = [release for release in verdict.releases if release.what == "update"]
    if not updates:
        return []
    epsilon = WANTED if verdict.claim is None else verdict.claim.epsilon
    if updates[0].unit is quietbit.Unit.SAMPLE:
        return [
            f"calibrate once, for the steps of all rounds, on Poisson batches: epsilon {epsilon:g}",
            "and send arrays alone: quietbit.nvflare and quietbit.flower do (protect-samples)",
        ]
    releases = given["rounds"] or verdict.rounds or updates[0].times
    word = given["adjacency"]
    budget = {"epsilon": epsilon, "delta": verdict.delta, "releases": releases}
    fields = ", ".join(f'"{name}": {value:g}' for name, value in budget.items())
    arguments = ", ".join(f"{name}={value:g}" for name, value in budget.items())
    by_engine = {
        "nvflare": 'among task_result_filters: {"tasks": ["train"], "filters": [{"path": '
        f'"quietbit.nvflare.LocalPrivacy", "args": {{{fields}, "clip": 1.0, "adjacency": "{word}"'
        "}}]}, with the exact names of the tasks",
        "flower": f'app = PrivateClientApp({arguments}, clip=1.0, adjacency="{word}")',
    }
    lines = [text for engine, text in by_engine.items() if verdict.engine in (engine, "")]
    clients = given["clients"]
    if given["dimension"] is None or clients is None:
        return [*lines, "--dimension and --clients say what can be learnt under this noise"]
    ball = quietbit.Ball("l2", given["dimension"])
    mechanism: Any = quietbit.calibrate(
        "gaussian",
        ball=ball,
        epsilon=epsilon,
        delta=verdict.delta,
        adjacency=word,
        releases=releases,
    ).mechanism
    lines.append(f"which takes noise of {mechanism.noise_multiplier:.3g} times the clip")
    for trust in ("local", "central"):
        expected = quietbit.forecast(mechanism, cohort=clients, rounds=releases, trust=trust)
        lines.append(f"{trust} trust: {expected.sentence()}")
    lines.append("public data alone: no noise, and nothing of the clients' data")
    if expected.verdict.value != "useful" and clients < FEW_SITES:
        lines.append(f"you cannot have this with {clients} sites; protect patients instead")
    return lines
