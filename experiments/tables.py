r"""Tables and figures of accuracy at equal privacy, from the results of a sweep.

Idea     for every mechanism the best setting at each privacy, with mean and standard deviation over seeds. With
         `--select` some seeds choose the setting and the others report it, so that the luck of the chosen run does not
         count; both look at the test set, as the paper does.

    python experiments/tables.py runs/mnist-ten-epochs/results.jsonl --select 101 102 103
    python experiments/tables.py experiments/results/fig2-mnist.jsonl.gz --epsilon 1 2 4 8 16
    python experiments/tables.py experiments/results/fig2-mnist.jsonl.gz --figure fig2.png --title "Figure 2"
    python experiments/tables.py runs/fig2-mnist/results.jsonl --pack experiments/results/fig2-mnist.jsonl.gz
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quietbit.plot.figure import save_figure
from quietbit_lab.experiment.frontier import Summary, summarise
from quietbit_lab.experiment.record import modern
from quietbit_lab.report.plots import plot_frontier

Result = Mapping[str, Any]


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="results.jsonl, or the same packed with gzip")
    parser.add_argument("--select", type=int, nargs="*", default=[], help="seeds that choose settings")
    parser.add_argument("--epsilon", type=float, nargs="*", default=[1.0, 2.0, 4.0, 8.0, 16.0])
    parser.add_argument("--figure", type=Path, help="draw the frontier instead")
    parser.add_argument("--title", default="")
    parser.add_argument("--pack", type=Path, help="keep what tables and figures need, in one small file")
    given = parser.parse_args()
    results = [result for path in given.results for result in read(path)]
    if given.pack is not None:
        pack(results, given.pack)
    elif given.figure is not None:
        save_figure(plot_frontier(results, given.title), given.figure)
    elif given.select:
        print_selected(results, given.select)
    else:
        print_best(summarise(results), given.epsilon)


def read(path: Path) -> list[Result]:
    """The lines of a file of results, in today's words."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        lines = [json.loads(line) for line in file]
    return [{**line, "record": modern(line["record"])} for line in lines]


def pack(results: Iterable[Result], path: Path) -> None:
    """Settings and points of every run, without what a run's whole record says about machines and bytes."""
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        for result in results:
            record = result["record"]
            points = [
                {name: point[name] for name in ("round", "accuracy", "epsilon_upper")} for point in record["points"]
            ]
            kept = {name: record[name] for name in ("status", "settings", "task", "device", "draws")}
            line = {name: result[name] for name in ("sweep", "job", "label")} | {"record": kept | {"points": points}}
            packed.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def print_selected(results: Iterable[Result], select: Sequence[int]) -> None:
    """For every mechanism, strength and number of rounds: what the selecting seeds choose, by the other seeds."""
    by_use: dict[bool, list[Result]] = {True: [], False: []}
    for result in results:
        by_use[result["record"]["settings"]["seed"] in select].append(result)
    chosen: dict[tuple[str, float, int], Summary] = {}
    for point in summarise(by_use[True]):
        key = (point.label, round(point.epsilon_upper, 6), point.rounds)
        if key not in chosen or point.accuracy > chosen[key].accuracy:
            chosen[key] = point
    reported = {named(point): point for point in summarise(by_use[False])}
    print("| mechanism | rounds | epsilon | step size | clip | seeds | accuracy, % | deviation |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (label, epsilon, rounds), point in sorted(
        chosen.items(), key=lambda item: (item[0][2], item[0][1], item[0][0])
    ):
        found = reported[named(point)]
        lr, clip = point.settings["lr"], point.settings["clip"]
        shown = "none" if math.isinf(epsilon) else f"{epsilon:.2f}"
        print(
            f"| {label} | {rounds} | {shown} | {lr:g} | {clip:g} | {found.seeds} | "
            f"{100 * found.accuracy:.1f} | {100 * found.deviation:.1f} |"
        )


def print_best(points: Sequence[Summary], bounds: Sequence[float]) -> None:
    """For every mechanism the best mean accuracy whose epsilon is at most each bound."""
    labels = sorted({point.label for point in points})
    print("| mechanism | " + " | ".join(f"epsilon <= {bound:g}" for bound in bounds) + " |")
    print("| --- |" + " --- |" * len(bounds))
    for label in labels:
        cells = []
        for bound in bounds:
            inside = [p for p in points if p.label == label and p.epsilon_upper <= bound]
            best = max(inside, key=lambda p: p.accuracy, default=None)
            cells.append("" if best is None else shown_best(best))
        print(f"| {label} | " + " | ".join(cells) + " |")


def shown_best(best: Summary) -> str:
    """Accuracy, deviation and what gave them."""
    settings = best.settings
    given = (settings[name] for name in ("design_epsilon", "noise_multiplier", "epsilon"))
    strength = next((value for value in given if value is not None), math.nan)  # none without privacy
    return (
        f"{100 * best.accuracy:.1f} ± {100 * best.deviation:.1f} (at {best.epsilon_upper:.2f}: {strength:g}, "
        f"T {best.rounds}, lr {settings['lr']:g}, clip {settings['clip']:g})"
    )


def named(point: Summary) -> str:
    """Equal for summaries of one setting."""
    return json.dumps([point.label, point.rounds, dict(point.settings)], sort_keys=True)


if __name__ == "__main__":
    main()
