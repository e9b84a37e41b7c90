"""``quietbit compare``: the noise of every mechanism under every trust model, before a run."""

from __future__ import annotations

import shutil
import sys
from textwrap import fill
from typing import TYPE_CHECKING, Any

import quietbit
from quietbit.cli.console import JsonOption, column_table, progress_bar, show_json, shown
from quietbit.cli.options import option, takes, usual

if TYPE_CHECKING:
    from quietbit.federation.compare import Comparison, ComparisonRow
    from quietbit.target import Trust

__all__ = ["compare"]

# Columns of a table: their names in JSON, and their heads.
COLUMNS = {
    "mechanism": "mechanism",
    "coordinates": "keeps",
    "payload_bytes": "bytes",
    "noise": "noise",
    "run_noise": "over the run",
    "verdict": "verdict",
}
LEGEND = (
    "noise: in the mean of a round, as a multiple of the clip; over the run it is divided by the "
    "square root of the rounds: useful up to 0.1, hopeless above 3. keeps: rotated coordinates "
    "that are sent, if not all. bytes: what one client sends per round."
)
SITES = (
    "Few sites with many samples each, such as hospitals with patients? Protect the samples "
    "instead of the sites: --unit sample --samples N needs far less noise."
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
    option("dimension", int, "Parameters in an update: those that a client trains.", ...),
    usual("norm", "l2"),
)
def compare(
    dimension: int,
    norm: str,
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
    --clients 100000 --cohort 1000 --releases 1 --trust local

    Example: quietbit compare --unit sample --samples 5000 --sampling-rate 0.1 --dimension 2570
    --epsilon 4 --delta 1e-5 --adjacency zero-out --cohort 10 --rounds 150
    """
    with progress_bar("Comparing", quiet=json) as report:
        comparison = quietbit.compare(quietbit.Ball(norm, dimension), **given, report=report)
    if json:
        show_json(_plain(comparison))
    else:
        _show(comparison)


def _show(comparison: Comparison) -> None:
    """Print a table per trust model, its best row, and a legend."""
    _say(_request(comparison))
    for trust in _trusts(comparison):
        _show_trust(comparison, trust)
    if comparison.samples is None and not any(_is_useful(row) for row in comparison.rows):
        _say(SITES + "\n")
    _say(LEGEND)


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
        unit = f"one of the {comparison.samples:,} samples of a site, over all of its"
    return (
        f"{comparison.ball.dimension:,} parameters; epsilon {target.epsilon:g} at delta = "
        f"{target.delta:g} for {unit} {releases} ({target.adjacency.value} adjacency); "
        f"{comparison.cohort:,} of {comparison.clients:,} {senders} per round, {rounds}.\n"
    )


def _show_trust(comparison: Comparison, trust: Trust) -> None:
    """Print the rows of one trust model, the least noise first, and which to choose."""
    rows = [row for row in comparison.rows if row.trust is trust]
    rows.sort(key=lambda row: row.noise)
    within_target = [_facts(row) for row in rows if not row.refusal]
    if within_target:
        lines = [[_cell(facts[name]) for name in COLUMNS] for facts in within_target]
        column_table(f"{trust.value} trust", list(COLUMNS.values()), lines)
    for row in rows:
        if row.refusal:
            _say(f"{row.name}, {trust.value}: {row.refusal}")
    best = comparison.best(trust)
    if best is not None:
        name = best.name
        if best.coordinates is not None:
            name += f" keeping {best.coordinates:,} coordinates"
        _say(f"Best under {trust.value} trust: {name}.")
        _say(f"{best.verdict[:1].upper()}{best.verdict[1:]}\n")


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
        "norm": comparison.ball.norm.value,
        **comparison.target.keywords(),
        "adjacency": comparison.target.adjacency.value,
        "unit": comparison.target.unit.value,
        "clients": comparison.clients,
        "cohort": comparison.cohort,
        "rounds": comparison.rounds,
        "rows": [_facts(row) for row in comparison.rows],
        "best": best,
    }


def _facts(row: ComparisonRow) -> dict[str, Any]:
    """Return what JSON says of one row; its refusal where it does not reach the target."""
    facts: dict[str, Any] = {"mechanism": row.name, "trust": row.trust.value}
    expected = row.expected
    if expected is None or row.guarantee is None:
        return {**facts, "refusal": row.refusal}
    return {
        **facts,
        "coordinates": row.coordinates,
        "payload_bytes": row.payload_bytes,
        "noise": row.noise,
        "run_noise": expected.run_noise,
        "response": expected.response,
        "clients_needed": expected.clients_needed,
        "parameters_allowed": expected.parameters_allowed,
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
