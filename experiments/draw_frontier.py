"""The pictures of the private head and of Figure 3, from kept results: a few seconds.

python experiments/draw_frontier.py docs/images/figures
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from quietbit_lab.plot.figure import blank_figure, looks, plain_axes, save_figure, shared_legend
from quietbit_lab.report.plots import shown_size

RESULTS = Path(__file__).parent / "results"
NAMES = {
    "vmvu": "vector mechanism",
    "gaussian": "Gaussian, 32 bits",
    "imvu": "I-MVU, one bit",
    "sign": "SignSGD, one bit",
}
TRUSTING = {"sum": "one-bit sums, central trust", "central": "trusted server, central trust"}
Row = dict[str, Any]


def read(name: str) -> list[Row]:
    """Return the lines of a file of results."""
    found: list[Row] = json.loads((RESULTS / name).read_text())
    return found


def curves(
    axes: Any, rows: list[Row], names: dict[str, str], across: Callable[[Row], float], **style: Any
) -> None:
    """Draw mean and deviation over seeds of every mechanism, over what ``across`` returns."""
    for (name, label), look in zip(names.items(), looks([*names]), strict=True):
        mine = sorted((row for row in rows if row["mechanism"] == name), key=across)
        if mine:
            values = [100 * np.array(row["accuracies"]) for row in mine]
            middle, spread = [value.mean() for value in values], [value.std() for value in values]
            axes.errorbar(
                [across(row) for row in mine],
                middle,
                yerr=spread,
                label=label,
                capsize=2,
                **(look.line | style),
            )


def ceiling(axes: Any, rows: list[Row]) -> None:
    """Draw a dotted line at the accuracy without noise."""
    plain = [np.mean(row["accuracies"]) for row in rows if row["mechanism"] == "none"]
    if plain:
        axes.axhline(
            100 * max(plain), linestyle=":", color="grey", linewidth=1, label="without privacy"
        )


def panel(
    figure: Any,
    place: tuple[int, int, int],
    title: str,
    ticks: list[float],
    low: float,
    high: float,
    meaning: str = "",
) -> Any:
    """Axes with accuracy upwards and epsilon, by powers, to the right."""
    words = f"epsilon of one client{meaning}"
    axes = plain_axes(figure.add_subplot(*place), title, words, "test accuracy, %")
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(low, high)
    return axes


def head(rows: list[Row], published: list[Row], out: Path) -> None:
    """Draw one release per client of the fitted network, and of the network as published."""
    figure = blank_figure(
        11.0, 4.1, "CIFAR-10, a private head: the vector mechanism leads at every epsilon"
    )
    kinds = [("zero-out", True), ("replace-one", True), ("zero-out", False)]
    for place, (adjacency, started) in enumerate(kinds):
        title = "public start" if started else "from zero"
        low = 65 if started else 10
        place_of = (1, 3, place + 1)
        axes = panel(figure, place_of, title, [1, 2, 4, 8], low, 95, f", {adjacency}, delta 1e-5")
        before = [row for row in published if row["mechanism"] == "vmvu"]
        for part, names in (
            (rows, NAMES),
            (before, {"vmvu": "vector mechanism, network as published"}),
        ):
            mine = [
                row for row in part if (row["adjacency"], row["started"]) == (adjacency, started)
            ]
            dash = {"alpha": 0.45, "linestyle": "dashed"} if part is before else {}
            curves(
                axes,
                [row for row in mine if row["releases"] == 1],
                names,
                lambda row: row["epsilon"],
                **dash,
            )
        ceiling(axes, rows)
    shared_legend(figure, figure.axes[0], "outside lower center")
    save_figure(figure, out / "head-cifar10.svg")


def releases(rows: list[Row], out: Path) -> None:
    """Draw what taking part more often costs, and what trust in masks or a server buys."""
    figure = blank_figure(
        11.0,
        4.1,
        "CIFAR-10, a private head: the more often a client takes part, the less the "
        "mechanism matters"
        " (zero-out, delta 1e-5)",
    )
    names = {name: NAMES[name] for name in ("vmvu", "gaussian", "imvu")} | TRUSTING
    for place, count in enumerate((1, 3, 10, 50)):
        axes = panel(
            figure,
            (1, 4, place + 1),
            f"{count} release{'s' if count > 1 else ''} per client",
            [1, 4, 8],
            10,
            95,
        )
        mine = [row for row in rows if row["releases"] == count and row["adjacency"] == "zero-out"]
        curves(axes, [row for row in mine if not row["started"]], names, lambda row: row["epsilon"])
    shared_legend(figure, figure.axes[0], "outside lower center")
    save_figure(figure, out / "frontier-releases.svg")


def sizes(rows: list[Row], out: Path) -> None:
    """Draw accuracy over the bytes of a payload."""
    figure = blank_figure(
        13.0,
        4.1,
        "CIFAR-10, a private head: 80 bytes of the vector mechanism do more than 10 kB of Gaussian"
        " noise (zero-out, delta 1e-5)",
    )
    for place, epsilon in enumerate((1, 4, 8)):
        axes = plain_axes(
            figure.add_subplot(1, 3, place + 1),
            f"epsilon {epsilon}",
            "size of an update",
            "test accuracy, %",
        )
        mine = [row for row in rows if row["epsilon"] == epsilon and row["adjacency"] == "zero-out"]
        mine = [
            {**row, "mechanism": row["mechanism"].partition("-")[0]}
            for row in mine
            if not row["started"]
        ]
        curves(
            axes,
            [row for row in mine if row["releases"] == 1],
            NAMES | TRUSTING,
            lambda row: row["bytes"],
        )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda count, _: shown_size(count))
        axes.set_ylim(10, 95)
    shared_legend(figure, figure.axes[0], "outside lower center")
    save_figure(figure, out / "frontier-bytes.svg")


def crowds(rows: list[Row], out: Path) -> None:
    """Draw the vector mechanism over the number of clients, a line per epsilon."""
    figure = blank_figure(
        6.4, 4.1, "CIFAR-10, a private head: more clients buy accuracy at any epsilon"
    )
    title = "vector mechanism, one release per client, zero-out, delta 1e-5"
    axes = panel(figure, (1, 1, 1), title, [1000, 5000, 15000, 50000], 10, 95)
    axes.set_xticks([1000, 5000, 15000, 50000], ["1,000", "5,000", "15,000", "50,000"])
    axes.set_xlabel("clients")
    for epsilon, look in zip((8, 4, 2, 1), looks([*NAMES]), strict=True):
        mine = sorted(
            (row["clients"], row["accuracies"]) for row in rows if row["epsilon"] == epsilon
        )
        values = [100 * np.array(found) for _, found in mine]
        middle, spread = [value.mean() for value in values], [value.std() for value in values]
        axes.errorbar(
            [n for n, _ in mine],
            middle,
            yerr=spread,
            label=f"epsilon {epsilon}",
            capsize=2,
            **look.line,
        )
    shared_legend(figure, axes, "outside lower center")
    save_figure(figure, out / "head-cifar10-clients.svg")


def chosen(runs: list[Row]) -> list[Row]:
    """Return each cell's step that was best on held-out images, with its seeds' accuracies."""
    found: dict[tuple[str, float], Row] = {}
    for run in runs:
        cell = run["mechanism"], run["epsilon"]
        if run["seed"] == 1 and run["held_out"] > found.get(cell, {"held_out": -1.0})["held_out"]:
            found[cell] = run
    return [
        row
        | {
            "accuracies": [run["test"] for run in runs if same_training(run, row)],
            "tried": tried(runs, row),
        }
        for row in found.values()
    ]


def same_training(run: Row, row: Row) -> bool:
    """Whether two differ in their seeds at most."""
    return all(run[name] == row[name] for name in ("mechanism", "epsilon", "step"))


def tried(runs: list[Row], row: Row) -> list[tuple[float, float]]:
    """Return the steps of a cell and what they reached on the held-out images."""
    mine = [
        run
        for run in runs
        if (run["mechanism"], run["epsilon"]) == (row["mechanism"], row["epsilon"])
    ]
    return sorted((run["step"], run["held_out"]) for run in mine if run["seed"] == 1)


def fig3(out: Path) -> None:
    """Draw Figure 3, the head alone and all parameters; print the rows of the page's table."""
    figure = blank_figure(
        9.0,
        4.1,
        "CIFAR-10, fine-tuning a WideResNet-28-10: the vector mechanism leads up to epsilon 10",
    )
    whole = chosen(read("fig3-whole.json"))
    for row in whole:
        values = 100 * np.array(row["accuracies"])
        steps = ", ".join(f"{step:g}: {100 * held:.1f}" for step, held in row["tried"])
        print(
            f"{row['mechanism']:>10} {row['epsilon']:>4g}: "
            f"{values.mean():.1f} +- {values.std():.1f}, "
            f"{values.size} seeds, step {row['step']:g} of {steps}; {row.get('bytes', 0):,} bytes"
        )
    panels = {
        "the head alone: 6,410 parameters": read("fig3-head.json"),
        "all 36,479,194 parameters": whole,
    }
    for place, (title, rows) in enumerate(panels.items()):
        ticks = [1.0, 3.0, 10.0, 30.0, 100.0]
        meaning = ", zero-out, delta 1e-5"
        axes = panel(figure, (1, 2, place + 1), title, ticks, 10, 85, meaning)
        private = [row | {"mechanism": row["mechanism"].partition("*")[0]} for row in rows]
        curves(axes, private, NAMES, lambda row: row["epsilon"])
        ceiling(axes, rows)
    shared_legend(figure, figure.axes[0], "outside lower center")
    save_figure(figure, out / "fig3.svg")


def main(out: Path) -> None:
    """All five."""
    rows = read("head-cifar10.json")
    head(read("head-cifar10-tuned.json"), rows, out)
    releases(rows, out)
    sizes(rows, out)
    everyone = {"mechanism": "vmvu", "adjacency": "zero-out", "releases": 1, "started": False}
    whole = [row | {"clients": 50000} for row in rows if everyone.items() <= row.items()]
    crowds(whole + read("head-cifar10-clients.json"), out)
    fig3(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
