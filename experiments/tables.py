r"""Tables and figures of accuracy at equal privacy, from the results of a sweep.

Idea     for every mechanism the best setting at each privacy, with mean and standard deviation over
         seeds. Runs that are marked as choosing, or whose seeds are named with `--choose`, choose
         the settings and the others report them, so that the luck of the chosen run does not count;
         both look at the test set, as the paper does.

    python experiments/tables.py runs/mnist-ten-epochs/results.jsonl --choose 101 102 103 --each
    python experiments/tables.py experiments/results/fig2-mnist.jsonl.gz --epsilon 1 2 4 8 16 python
    experiments/tables.py experiments/results/fig2-mnist.jsonl.gz --figure fig2.png --title "Figure
    2" python experiments/tables.py runs/fig2-mnist/results.jsonl --pack
    experiments/results/fig2-mnist.jsonl.gz python experiments/tables.py
    experiments/results/fig2-mnist.jsonl.gz --unpack runs/fig2-mnist
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from quietbit_lab.experiment.frontier import Summary, reported, same_point, summarise
from quietbit_lab.experiment.packed import Result, pack, read_results, unpack
from quietbit_lab.plot.figure import save_figure
from quietbit_lab.report.plots import plot_frontier


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "results", type=Path, nargs="+", help="results.jsonl, or the same packed with gzip"
    )
    parser.add_argument(
        "--choose", type=int, nargs="*", default=[], help="seeds that choose settings"
    )
    parser.add_argument(
        "--each", action="store_true", help="a row for every epsilon and number of rounds"
    )
    parser.add_argument("--epsilon", type=float, nargs="*", default=[1.0, 2.0, 4.0, 8.0, 16.0])
    parser.add_argument("--figure", type=Path, help="draw the frontier instead")
    parser.add_argument("--title", default="")
    parser.add_argument(
        "--pack", type=Path, help="keep what tables and figures need, in one small file"
    )
    parser.add_argument(
        "--unpack",
        type=Path,
        metavar="DIR",
        help="a folder that `quietbit sweep --resume` continues",
    )
    given = parser.parse_args()
    results = [result for path in given.results for result in read_results(path)]
    if given.choose:
        results = [marked(result, given.choose) for result in results]
    if given.unpack is not None:
        unpack(results, given.unpack)
    elif given.pack is not None:
        pack(results, given.pack)
    elif given.figure is not None:
        save_figure(plot_frontier(results, given.title), given.figure)
    elif given.each:
        print_each(results)
    else:
        print_best(results, given.epsilon)


def marked(result: Result, choose: Sequence[int]) -> Result:
    """Return the result, marked as choosing if its seed is one of these."""
    return {**result, "chooses": result["record"]["settings"]["seed"] in choose}


def print_each(results: Sequence[Result]) -> None:
    """For every mechanism, strength and number of rounds.

    What the choosing seeds choose, by the other seeds.
    """
    chosen: dict[tuple[str, float, int], Summary] = {}
    for point in summarise(result for result in results if result.get("chooses")):
        key = (point.label, round(point.epsilon_upper, 6), point.rounds)
        if key not in chosen or point.accuracy > chosen[key].accuracy:
            chosen[key] = point
    others = {
        same_point(point): point for point in summarise(r for r in results if not r.get("chooses"))
    }
    print("| mechanism | rounds | epsilon | step size | clip | seeds | accuracy, % | deviation |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (label, epsilon, rounds), point in sorted(
        chosen.items(), key=lambda item: (item[0][2], item[0][1], item[0][0])
    ):
        if same_point(point) not in others:
            continue
        found = others[same_point(point)]
        lr, clip = point.settings["lr"], point.settings["clip"]
        shown = "none" if math.isinf(epsilon) else f"{epsilon:.2f}"
        print(
            f"| {label} | {rounds} | {shown} | {lr:g} | {clip:g} | {found.seeds} | "
            f"{100 * found.accuracy:.1f} | {100 * found.deviation:.1f} |"
        )


def print_best(results: Sequence[Result], bounds: Sequence[float]) -> None:
    """For every mechanism the point that choosing runs find best at each bound on epsilon, as the others report it."""
    lines = reported(results)
    print("| mechanism | " + " | ".join(f"epsilon <= {bound:g}" for bound in bounds) + " |")
    print("| --- |" + " --- |" * len(bounds))
    for label, line in sorted(lines.items()):
        cells = []
        for bound in bounds:
            inside = [
                point for point in line if point.epsilon_upper <= bound
            ]  # the last of a frontier is its best
            cells.append(shown_best(inside[-1]) if inside else "")
        print(f"| {label} | " + " | ".join(cells) + " |")


def shown_best(best: Summary) -> str:
    """Accuracy, deviation and what gave them."""
    settings = best.settings
    given = (settings[name] for name in ("design_epsilon", "noise_multiplier", "epsilon"))
    strength = next(
        (value for value in given if value is not None), math.nan
    )  # none without privacy
    return (
        f"{100 * best.accuracy:.1f} ± {100 * best.deviation:.1f} (at {best.epsilon_upper:.2f}: {strength:g}, "
        f"T {best.rounds}, lr {settings['lr']:g}, clip {settings['clip']:g})"
    )


if __name__ == "__main__":
    main()
