"""``quietbit compare``: the noise of every mechanism under every trust model, before a run."""

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
from quietbit.errors import QuietbitError, require

if TYPE_CHECKING:
    from quietbit.plan.compare import Comparison, ComparisonRow
    from quietbit.run.parts.evaluation import Evaluation
    from quietbit.subspace import SizeRow
    from quietbit.target import Trust

__all__ = ["compare"]

# Columns of a table: their names in JSON, and their heads.
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
    "error: squared, relative to Gaussian noise that every client adds. noise: in the mean of a "
    "round, as a multiple of the clip; over the run it is divided by the square root of the "
    "rounds: useful up to 0.1, hopeless above 3. keeps: rotated coordinates that are sent, if not "
    "all. bytes: what one client sends per round and in all, and receives per round (with "
    "downlink = replay where few coordinates are kept, else the model)."
)
CLIP = (
    "The clip: noise is proportional to it. A clip of twice the updates' norm doubles the noise "
    "relative to them; a clip of half their norm halves both updates and noise, and gains nothing."
)
SCOUTS = (
    " If their norm is unknown, clip = auto estimates it by scouts, for 5.3 % more squared error "
    "(5.2 % behind masks)."
)
NO_SCOUTS = (
    " Give a number: with clip = auto, scouts would be too few here, or their noise too large."
)
SITES = (
    "Few sites with many samples each, such as hospitals with patients? Protect the samples "
    "instead of the sites: --unit sample --samples N needs far less noise."
)
POISON = (
    "moved: how far malicious clients can move the mean of a round in the direction of their "
    "choice, in clips (an honest mean is at most one) and in standard deviations of the noise, "
    "whatever the server decodes; for a seed, the best of 2^30. Behind masks one client is enough, "
    "and only the range of the mean bounds it."
)
SPECTRUM = (
    "held: the directions' share of the squared norm of the mean public gradient, for gradients "
    "that they were not made of. missed, noise, error: norms in clips, of the rest, of the noise "
    "over the run, and of both."
)
WIDTH = 110


@takes(
    option("epsilon", float, "The most epsilon of all releases of one client together.", ...),
    usual("delta", ...),
    usual("adjacency", ...),
    option("cohort", int, "Clients in a round.", ...),
    option("clients", int, "Clients in all; the cohort unless given."),
    option("rounds", int, "Rounds of the run. Give this or --releases."),
    option("releases", int, "How many updates one client sends. Give this or --rounds."),
    option("trust", str, "local, secure-aggregation or central; all unless given.", metavar="WORD"),
    option(
        "unit",
        str,
        "Whose data epsilon protects: a client, or one sample of a site (--samples).",
        "client",
        metavar="WORD",
    ),
    option("samples", int, "The approximate number of samples of a site (--unit sample)."),
    option("sampling_rate", float, "Probability that a sample is in a batch (--unit sample)."),
    option("local_steps", int, "Private steps of a site per release (--unit sample)."),
    option(
        "min_honest_clients",
        int,
        "The fewest of a cohort that answer and do not collude with the server; all unless given.",
    ),
    option(
        "baselines",
        bool,
        "Show published mechanisms of others, too; none of them is recommended.",
        False,
    ),
    option(
        "evaluate",
        float,
        "Epsilon of one answer to a private evaluation; one goes with every release.",
    ),
    option(
        "malicious",
        float,
        "Show how far this share of malicious clients can move the mean of a round.",
    ),
    option(
        "public",
        Path,
        "Show what a subspace of public gradients gains: an .npy file, one gradient per row.",
    ),
    option("dimension", int, "Parameters in an update: those that a client trains.", ...),
    option("clip", float, "Largest norm of an update; all noise is proportional to it.", 1.0),
    usual("norm", "l2"),
    option(
        "out",
        Path,
        "Draw noise over releases and over bytes: a png, svg or pdf file (needs quietbit-lab).",
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

    Every row is calibrated to the same epsilon. Compare the noise in the mean of a round, as a
    multiple of the clip: no mean of updates is longer than the clip, so noise of 10 clips hides a
    round's mean, and only many rounds can average it out. More clients or fewer parameters make it
    smaller; secure aggregation makes it smaller by the square root of the cohort, because only the
    sum needs to be private.

    Example: quietbit compare --dimension 7850 --epsilon 8 --delta 1e-5 --adjacency zero-out
    --clients 60000 --cohort 600 --rounds 100

    Example: quietbit compare --dimension 1000000 --epsilon 2 --delta 1e-6 --adjacency replace-one
    --clients 100000 --cohort 1000 --releases 1 --trust local --out compare.svg

    Example: quietbit compare --unit sample --samples 5000 --sampling-rate 0.1 --dimension 2570
    --epsilon 4 --delta 1e-5 --adjacency zero-out --cohort 10 --rounds 150
    """
    rule = "left out unless --unit is client"
    require(out is None or given["unit"] == "client", "out", str(out), rule)
    check_outputs(figures=(out,))
    gradients = None if public is None else _gradients(public, dimension)
    draw = None if out is None else plotter("comparison")
    with progress_bar("Comparing", quiet=json) as report:
        comparison = quietbit.compare(quietbit.Ball(norm, clip, dimension), **given, report=report)
    if draw is not None:
        with progress_bar("Drawing", quiet=json) as report:
            draw(comparison, out, report)
    spectra = {} if gradients is None else _spectra(comparison, gradients)
    if json:
        facts = _plain(comparison)
        if out is not None:
            facts["plot"] = str(out)
        if spectra:
            facts["subspace"] = {
                trust: [asdict(row) for row in spectra[trust]] for trust in spectra
            }
        show_json(facts)
        return
    _show(comparison)
    for trust, rows in spectra.items():
        _show_spectrum(trust, rows)
    if out is not None:
        print(f"Drawn as {out}.")


def _show(comparison: Comparison) -> None:
    """Print a table per trust model, its best row, and a legend."""
    _say(_request(comparison))
    is_poisoned = any(row.moved is not None for row in comparison.rows)
    columns = COLUMNS | MOVED if is_poisoned else COLUMNS
    for trust in _trusts(comparison):
        _show_trust(comparison, trust, columns)
    _show_evaluations(comparison)
    if comparison.samples is None and not any(_is_useful(row) for row in comparison.rows):
        _say(SITES + "\n")
    _say(LEGEND)
    if is_poisoned:
        _say(POISON)
    best_rows = [comparison.best(trust) for trust in _trusts(comparison)]
    if any(row is not None and comparison.scouts_help(row) for row in best_rows):
        _say(CLIP + SCOUTS)
    elif comparison.samples is None:
        _say(CLIP + NO_SCOUTS)
    else:
        _say(CLIP)


def _trusts(comparison: Comparison) -> list[Trust]:
    """Return the trust models of the rows, in their order."""
    return list(dict.fromkeys(row.trust for row in comparison.rows))


def _request(comparison: Comparison) -> str:
    """Return the run that is compared, as a sentence."""
    target = comparison.target
    releases = "one release"
    if target.releases > 1:
        releases = f"{target.releases:,} releases"
    rounds = "1 round"
    if comparison.rounds > 1:
        rounds = f"{comparison.rounds:,} rounds"
    senders = "clients"
    unit = "all of a client's"
    if comparison.samples is not None:
        senders = "sites"
        unit = f"one of the {comparison.samples.count:,} samples of a site, over all of its"
    return (
        f"{comparison.ball.dimension:,} parameters; epsilon {target.epsilon:g} at delta = "
        f"{target.delta:g} for {unit} {releases} ({target.adjacency.value} adjacency); "
        f"{comparison.cohort:,} of {comparison.clients:,} {senders} per round, {rounds}.\n"
    )


def _show_trust(comparison: Comparison, trust: Trust, columns: dict[str, str]) -> None:
    """Print the rows of one trust model, the least noise first, and which to choose."""
    rows = [row for row in comparison.rows if row.trust is trust]
    rows.sort(key=lambda row: row.noise)
    within_target = [_facts(comparison, row) for row in rows if not row.refusal]
    if within_target:
        lines = [[_cell(facts[name]) for name in columns] for facts in within_target]
        column_table(f"{trust.value} trust", list(columns.values()), lines)
    for row in rows:
        if row.refusal:
            _say(f"{row.name}, {trust.value}: {row.refusal}")
    best = comparison.best(trust)
    if best is not None:
        name = best.name
        if best.keep is not None:
            name += f" keeping {best.keep:,} coordinates"
        _say(f"Best under {trust.value} trust: {name} (a client computes: {best.work}).")
        _say(f"{best.verdict[:1].upper()}{best.verdict[1:]}\n")


def _show_evaluations(comparison: Comparison) -> None:
    """Print how accurate private evaluations are, where they were asked for."""
    cohort = comparison.cohort
    evaluation = comparison.evaluation
    if evaluation is not None:
        points = 100 * evaluation.margin(cohort)
        _say(
            f"Evaluation at epsilon {evaluation.epsilon:g} per answer: {cohort:,} answers give an "
            f"accuracy within {points:.2g} points, 95 % of the time. All answers of a client cost "
            f"{evaluation.spends:g} of its epsilon, and updates have the rest.\n"
        )
    evaluation = comparison.summed_evaluation
    if evaluation is not None:
        points = 100 * evaluation.margin(cohort)
        lies = 196 * (evaluation.mechanism.error().squared / cohort) ** 0.5
        _say(
            f"Behind masks, at epsilon {evaluation.epsilon:g} per sum: within {points:.2g} points "
            f"for all clients that could have been asked, within {lies:.2g} for those that were. "
            "Answers share the account of updates.\n"
        )


def _gradients(path: Path, dimension: int) -> Any:
    """Read public gradients; refuse those of another number of parameters."""
    import numpy as np

    try:
        gradients = np.load(path, allow_pickle=False)
    except OSError as error:
        raise QuietbitError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, EOFError) as error:
        raise QuietbitError(f"{path} is not an .npy file of numbers: {error}") from error
    is_array = isinstance(gradients, np.ndarray)
    require(is_array, "public", type(gradients).__name__, "an .npy file of one array")
    is_number = gradients.dtype.kind in "fiu"
    require(is_number, "public", str(gradients.dtype), "an array of real numbers")
    rule = f"rows of {dimension:,} numbers, by --dimension"
    fits = gradients.ndim == 2 and gradients.shape[1] == dimension
    require(fits, "public", gradients.shape, rule)
    return gradients


def _spectra(comparison: Comparison, gradients: Any) -> dict[str, list[SizeRow]]:
    """Return what directions of public gradients gain, under each trust within the target."""
    from quietbit.subspace import spectrum

    spectra = {}
    for trust in _trusts(comparison):
        best = comparison.best(trust)
        if best is not None and best.expected is not None:
            noise = best.expected.run_noise
            spectra[trust.value] = spectrum(gradients, noise=noise, clip=comparison.ball.radius)
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
    if row.expected is None or row.trust.value == "central":
        return False
    return row.expected.verdict.value == "useful"


def _plain(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain values for JSON."""
    best: dict[str, int | None] = {}
    for trust in _trusts(comparison):
        row = comparison.best(trust)
        best[trust.value] = None if row is None else comparison.rows.index(row)
    return {
        "dimension": comparison.ball.dimension,
        "clip": comparison.ball.radius,
        "norm": comparison.ball.norm.value,
        **comparison.target.keywords(),
        "adjacency": comparison.target.adjacency.value,
        "unit": comparison.target.unit.value,
        "clients": comparison.clients,
        "cohort": comparison.cohort,
        "rounds": comparison.rounds,
        "rows": [_facts(comparison, row) for row in comparison.rows],
        "evaluation": _evaluation(comparison, comparison.evaluation),
        "summed_evaluation": _evaluation(comparison, comparison.summed_evaluation),
        "best": best,
    }


def _evaluation(comparison: Comparison, evaluation: Evaluation | None) -> dict[str, float] | None:
    if evaluation is None:
        return None
    facts = {"epsilon": evaluation.epsilon, "margin": evaluation.margin(comparison.cohort)}
    if evaluation is not comparison.summed_evaluation:  # summed answers share updates' account
        facts["spends"] = evaluation.spends
    return facts


def _facts(comparison: Comparison, row: ComparisonRow) -> dict[str, Any]:
    """Return what JSON says of one row; its refusal where it does not reach the target."""
    facts: dict[str, Any] = {"mechanism": row.name, "trust": row.trust.value}
    expected = row.expected
    if expected is None or row.guarantee is None:
        return {**facts, "refusal": row.refusal}
    moved_over_noise = None
    if row.moved is not None:
        moved_over_noise = row.moved * comparison.ball.dimension**0.5 / row.noise
    sensitivity = [
        {"clip_over_length": point.clip, "noise": point.noise, "cut": point.cut}
        for point in comparison.clip_points(row)
    ]
    return {
        **facts,
        "keep": row.keep,
        "payload_bytes": row.payload_bytes,
        "downlink_bytes": row.downlink_bytes,
        "relative_error": row.relative_error,
        "noise": row.noise,
        "work": row.work,
        "moved": row.moved,
        "moved_over_noise": moved_over_noise,
        "bytes_per_client": comparison.bytes_per_client(row),
        "bytes_in_all": comparison.bytes_in_all(row),
        "run_noise": expected.run_noise,
        "response": expected.response,
        "clients_needed": expected.clients_needed,
        "parameters_allowed": expected.parameters_allowed,
        "scouts_help": comparison.scouts_help(row),
        "clip_sensitivity": sensitivity,
        "verdict": expected.verdict.value,
        "sentence": expected.sentence(),
        "guarantee": row.guarantee.sentence(),
        "epsilon_upper": row.guarantee.epsilon_upper,
    }


def _say(text: str) -> None:
    """Print text, wrapped to the width of the terminal."""
    width = WIDTH
    if sys.stdout.isatty():
        width = min(WIDTH, shutil.get_terminal_size().columns)
    print("\n".join(fill(line, width) for line in text.split("\n")))


def _cell(value: Any) -> str:
    """Return a cell of a table, with three digits of a real number."""
    if isinstance(value, float):
        return f"{float(f'{value:.3g}'):,g}"
    return shown("", value)
