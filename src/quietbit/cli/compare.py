"""``quietbit compare``: which mechanism, under which trust, and whether it can work at all."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from attrs import asdict

import quietbit
from quietbit.cli.console import JsonOption, column_table, progress_bar, show_json, shown
from quietbit.cli.options import check_outputs, option, plotter, takes, usual
from quietbit.errors import require

if TYPE_CHECKING:
    from quietbit.plan.compare import Comparison, ComparisonRow
    from quietbit.run.parts.evaluation import Evaluation
    from quietbit.subspace import SizeRow

__all__ = ["compare"]

# Columns of a table: what they are called in JSON, and their heads.
COLUMNS = {
    "mechanism": "mechanism",
    "keep": "keeps",
    "payload_bytes": "bytes up",
    "bytes_per_client": "in all",
    "downlink_bytes": "bytes down",
    "relative_error": "error",
    "noise": "noise",
    "run_noise": "over the run",
    "verdict": "verdict",
}
MOVED = {"moved": "moved", "moved_over_noise": "in noise"}
LEGEND = (
    "error: squared, relative to Gaussian noise added by every client. noise: in the mean of a round, as a multiple of "
    "the clip; over the run it is divided by the root of the rounds, and useful up to 0.1, hopeless above 3. keeps: "
    "rotated coordinates sent, where not all are. bytes: what one client sends per round and in all, and gets "
    "per round (with downlink = replay where few coordinates are kept, else the model)."
)
CLIP = (
    "The clip: noise is proportional to it, so a clip of twice the updates' length doubles the noise beside them; one "
    "of half their length cuts them in half, noise and all, and gains nothing."
)
SCOUTS = (
    " Where nobody knows their length, clip = auto finds it by scouts, for 5.3 % more squared error (5.2 % behind "
    "masks)."
)
NO_SCOUTS = (
    " Give a number: scouts (clip = auto) would be too few here to find it, or noise too loud."
)
SITES = (
    "Few sites with many samples each, such as hospitals with patients? Protect the samples instead of the sites: "
    "--unit sample --samples N needs far less noise."
)
POISON = (
    "moved: how far the malicious clients can move the mean of a round along the direction that suits them "
    "best, in clips (an honest mean is no longer than one) and in deviations of the noise there: whatever the server "
    "decodes, for a seed the best of 2^30. Behind masks one client is enough, and only the range of the mean bounds it."
)
SPECTRUM = (
    "held: share of the mean public gradient's squared length in the directions, of gradients that they were not made "
    "of. missed, noise, error: lengths in clips, of the rest, of the noise over the run, and of both."
)
WIDTH = 110


@takes(
    option("epsilon", float, "What all releases of one client together may cost.", ...),
    usual("delta", ...),
    usual("adjacency", ...),
    option("cohort", int, "Clients in a round.", ...),
    option("clients", int, "Clients in all; the cohort unless given."),
    option("rounds", int, "Rounds of the run. Say this or --releases."),
    option("releases", int, "How often a client takes part. Say this or --rounds."),
    option("trust", str, "local, secure-aggregation or central; all unless given.", metavar="WORD"),
    option(
        "unit",
        str,
        "Whose data epsilon protects: a client's, or one sample of a site (--samples).",
        "client",
        metavar="WORD",
    ),
    option("samples", int, "About how many samples a site has (--unit sample)."),
    option("sampling_rate", float, "Probability of a sample to be in a batch (--unit sample)."),
    option("local_steps", int, "Private steps of a site per release (--unit sample)."),
    option(
        "min_honest_clients",
        int,
        "Of a cohort, for secure aggregation: who answers and does not collude (all unless given).",
    ),
    option(
        "baselines",
        bool,
        "Rows for the field's other mechanisms too, none of which is chosen.",
        False,
    ),
    option(
        "evaluate",
        float,
        "What one answer to a private evaluation costs; one goes with every release.",
    ),
    option(
        "malicious",
        float,
        "Share of clients that send what they like: how far they move a round's mean.",
    ),
    option(
        "public",
        Path,
        "An .npy file of public gradients, a row each: what a subspace of k directions buys.",
    ),
    option("dimension", int, "Parameters in an update: what a client trains, and no more.", ...),
    option("clip", float, "Largest norm of an update; every noise is proportional to it.", 1.0),
    usual("norm", "l2"),
    option(
        "out",
        Path,
        "Draw noise over releases and over bytes, as png, svg or pdf (needs quietbit-lab).",
    ),
)
def compare(
    dimension: int,
    clip: float,
    norm: str,
    out: Path | None,
    public: Path | None,
    json: JsonOption = False,
    **given: Any,
) -> None:
    """Compare all mechanisms and trust models for a run, before anything is trained.

    Every row is calibrated to the same epsilon. The number that decides is the noise in the mean of
    a round, as a multiple of the clip: no mean of updates is longer than the clip, so noise of 10
    clips drowns a round, and only many rounds can average it out. More clients or fewer parameters
    make it smaller; secure aggregation makes it smaller by the root of the cohort, because then
    only the sum needs to be private.

    Example: quietbit compare --dimension 7850 --epsilon 8 --delta 1e-5 --adjacency zero-out
    --clients 60000 --cohort 600 --rounds 100

    Example: quietbit compare --dimension 1000000 --epsilon 2 --delta 1e-6 --adjacency replace-one
    --clients 100000 --cohort 1000 --releases 1 --trust local --out compare.svg

    Example: quietbit compare --unit sample --samples 5000 --sampling-rate 0.1 --dimension 2570
    --epsilon 4 --delta 1e-5 --adjacency zero-out --cohort 10 --rounds 150
    """
    require(
        out is None or given["unit"] == "client",
        "out",
        str(out),
        "left out unless --unit is client",
    )
    check_outputs(figures=(out,))
    gradients = None if public is None else _gradients(public, dimension)
    draw = None if out is None else plotter("comparison")
    with progress_bar("Comparing", quiet=json) as report:
        found = quietbit.compare(quietbit.Ball(norm, clip, dimension), **given, report=report)
    if draw is not None:
        with progress_bar("Drawing", quiet=json) as report:
            draw(found, out, report)
    spectra = {} if gradients is None else _spectra(found, gradients)
    if json:
        facts = _plain(found) | ({} if out is None else {"plot": str(out)})
        if spectra:
            facts["subspace"] = {
                trust: [asdict(row) for row in spectra[trust]] for trust in spectra
            }
        show_json(facts)
        return
    _show(found)
    for trust, rows in spectra.items():
        _show_spectrum(trust, rows)
    if out is not None:
        print(f"Drawn as {out}.")


def _show(found: Comparison) -> None:
    target, cohort = found.target, found.cohort
    times = "one release" if target.releases == 1 else f"{target.releases:,} releases"
    who, whose = "clients", "all of a client's"
    if found.samples is not None:
        who = "sites"
        whose = f"one of the {found.samples.count:,} samples of a site, over all of its"
    _say(
        f"{found.ball.dimension:,} parameters; epsilon {target.epsilon:g} at delta = {target.delta:g} for {whose} "
        f"{times} ({target.adjacency.value} adjacency); {cohort:,} of {found.clients:,} {who} "
        f"per round, {found.rounds:,} round{'s' if found.rounds > 1 else ''}.\n"
    )
    poisoned = any(row.moved is not None for row in found.rows)
    columns = COLUMNS | (MOVED if poisoned else {})
    for trust in dict.fromkeys(row.trust for row in found.rows):
        rows = sorted((row for row in found.rows if row.trust is trust), key=lambda row: row.noise)
        reached = [_facts(found, row) for row in rows if not row.refusal]
        if reached:
            lines = [[_cell(facts[name]) for name in columns] for facts in reached]
            column_table(f"{trust.value} trust", list(columns.values()), lines)
        for row in rows[len(reached) :]:  # whose noise is infinite
            _say(f"{row.name}, {trust.value}: {row.refusal}")
        best = found.best(trust)
        if best is not None:
            kept = f" keeping {best.keep:,} coordinates" if best.keep is not None else ""
            _say(
                f"Best under {trust.value} trust: {best.name}{kept} (a client computes: {best.work})."
            )
            _say(f"{best.verdict[:1].upper()}{best.verdict[1:]}\n")
    if (asked := found.evaluation) is not None:
        _say(
            f"Evaluation at epsilon {asked.epsilon:g} per answer: {cohort:,} answers give an accuracy within "
            f"{100 * asked.margin(cohort):.2g} points, 95 % of the time. All answers of a client cost {asked.spends:g} "
            "of its epsilon, and updates have the rest.\n"
        )
    if (asked := found.summed_evaluation) is not None:
        lies = 196 * (asked.mechanism.error().squared / cohort) ** 0.5
        _say(
            f"Behind masks, at epsilon {asked.epsilon:g} per sum: within {100 * asked.margin(cohort):.2g} points of "
            f"all clients that might have been asked, within {lies:.2g} of those that were. Answers share the account "
            "of updates.\n"
        )
    if found.samples is None and not any(_is_useful(row) for row in found.rows):
        _say(SITES + "\n")
    best_rows = [found.best(trust) for trust in dict.fromkeys(row.trust for row in found.rows)]
    helps = any(row is not None and found.scouts_help(row) for row in best_rows)
    _say(LEGEND)
    if poisoned:
        _say(POISON)
    _say(CLIP + (SCOUTS if helps else "" if found.samples is not None else NO_SCOUTS))


def _gradients(path: Path, dimension: int) -> Any:
    """Read public gradients; refuse those of another number of parameters."""
    import numpy as np

    gradients = np.load(path, allow_pickle=False)
    rule = f"rows of {dimension:,} numbers, by --dimension"
    fits = gradients.ndim == 2 and gradients.shape[1] == dimension
    require(fits, "public", gradients.shape, rule)
    return gradients


def _spectra(found: Comparison, gradients: Any) -> dict[str, list[SizeRow]]:
    """Return what directions of public gradients buy, under every trust that has a way."""
    from quietbit.subspace import spectrum

    spectra = {}
    for trust in dict.fromkeys(row.trust for row in found.rows):
        best = found.best(trust)
        if best is not None and best.expected is not None:
            noise = best.expected.run_noise
            spectra[trust.value] = spectrum(gradients, noise=noise, clip=found.ball.radius)
    return spectra


def _show_spectrum(trust: str, rows: list[SizeRow]) -> None:
    heads = ["directions", "held", "missed", "noise over the run", "error"]
    lines = []
    for row in rows:
        values = (row.directions, row.held, row.missed, row.noise, row.error)
        lines.append([_cell(value) for value in values])
    column_table(f"a subspace of public gradients, {trust} trust", heads, lines)
    best = min(rows, key=_error)
    advice = f"Set quietbit.subspace = {best.directions}."
    if best is rows[-1]:
        advice = "Send all numbers: no subspace of these gradients pays."
    _say(f"{advice} {SPECTRUM}\n")


def _error(row: SizeRow) -> float:
    return row.error


def _is_useful(row: ComparisonRow) -> bool:
    """Return whether a run can be expected to learn this way, without a trusted server."""
    return (
        row.expected is not None
        and row.trust.value != "central"
        and row.expected.verdict.value == "useful"
    )


def _plain(found: Comparison) -> dict[str, Any]:
    best = {
        trust.value: found.best(trust) for trust in dict.fromkeys(row.trust for row in found.rows)
    }
    return {
        "dimension": found.ball.dimension,
        "clip": found.ball.radius,
        "norm": found.ball.norm.value,
        **found.target.keywords(),
        "adjacency": found.target.adjacency.value,
        "unit": found.target.unit.value,
        "clients": found.clients,
        "cohort": found.cohort,
        "rounds": found.rounds,
        "rows": [_facts(found, row) for row in found.rows],
        "evaluation": _evaluation(found, found.evaluation),
        "summed_evaluation": _evaluation(found, found.summed_evaluation),
        "best": {
            trust: found.rows.index(row) if row is not None else None for trust, row in best.items()
        },
    }


def _evaluation(found: Comparison, asked: Evaluation | None) -> dict[str, float] | None:
    if asked is None:
        return None
    spends = (
        {} if asked is found.summed_evaluation else {"spends": asked.spends}
    )  # in sums answers share the account
    return {"epsilon": asked.epsilon, **spends, "margin": asked.margin(found.cohort)}


def _facts(found: Comparison, row: ComparisonRow) -> dict[str, Any]:
    start = {"mechanism": row.name, "trust": row.trust.value}
    expected, guarantee = row.expected, row.guarantee
    if expected is None or guarantee is None:
        return {**start, "refusal": row.refusal}
    own = ("keep", "payload_bytes", "downlink_bytes", "relative_error", "noise", "work", "moved")
    of_run = ("run_noise", "response", "clients_needed", "parameters_allowed")
    points = found.clip_points(row)
    return {
        **start,
        **{name: getattr(row, name) for name in own},
        "moved_over_noise": None
        if row.moved is None
        else row.moved * found.ball.dimension**0.5 / row.noise,
        "bytes_per_client": found.bytes_per_client(row),
        "bytes_in_all": found.bytes_in_all(row),
        **{name: getattr(expected, name) for name in of_run},
        "scouts_help": found.scouts_help(row),
        "clip_sensitivity": [
            {"clip_over_length": one.clip, "noise": one.noise, "cut": one.cut} for one in points
        ],
        "verdict": expected.verdict.value,
        "sentence": expected.sentence(),
        "guarantee": guarantee.sentence(),
        "epsilon_upper": guarantee.epsilon_upper,
    }


def _say(text: str) -> None:
    width = min(WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH
    print("\n".join(fill(line, width) for line in text.split("\n")))


def _cell(value: Any) -> str:
    return f"{float(f'{value:.3g}'):,g}" if isinstance(value, float) else shown("", value)
