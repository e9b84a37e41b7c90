"""The picture and the table of `few_releases.py`.

Accuracy over epsilon where every client takes part once.

python experiments/draw_few_releases.py experiments/results/few-releases-mnist.json
docs/images/few-releases.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from quietbit_lab.plot.figure import blank_figure, looks, plain_axes, save_figure, shared_legend

NAMES = {
    "vmvu": "vector mechanism, 80 bytes",
    "gaussian": "Gaussian, exact account, 158,864 bytes",
    "imvu": "I-MVU, one bit, 5,027 bytes",
}


def main(source: Path, out: Path) -> None:
    """Draw one panel per adjacency and print the table."""
    found: list[dict[str, Any]] = [
        one for one in json.loads(source.read_text()) if one["releases"] == 1
    ]
    figure = blank_figure(9.0, 3.6)
    adjacencies = ("zero-out", "replace-one")
    for place, adjacency in enumerate(adjacencies):
        axes = plain_axes(
            figure.add_subplot(1, 2, place + 1), f"{adjacency}, one release a client", "epsilon", ""
        )
        for (name, label), look in zip(NAMES.items(), looks([*NAMES]), strict=True):
            rows = sorted(
                (
                    row
                    for row in found
                    if row["mechanism"] == name and row["adjacency"] == adjacency
                ),
                key=lambda row: row["epsilon"],
            )
            values = 100 * np.array([row["accuracies"] for row in rows])
            epsilons = [row["epsilon"] for row in rows]
            axes.errorbar(
                epsilons,
                values.mean(axis=1),
                yerr=values.std(axis=1),
                label=label,
                capsize=2,
                **look.line,
            )
            cells = ", ".join(f"{row.mean():.1f} +- {row.std():.1f}" for row in values)
            print(f"{adjacency:12} {name:9} {cells}")
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axes.set_ylim(10, 100)
        axes.set_ylabel("test accuracy, %")
    shared_legend(figure, figure.axes[0], "outside lower center")
    save_figure(figure, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
