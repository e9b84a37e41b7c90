"""The picture of what k directions of public gradients buy, as `subspace_heads.py` stored it.

python experiments/draw_subspace.py experiments/results/subspace-heads.json docs/images/subspace.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from quietbit_lab.plot.figure import blank_figure, plain_axes, save_figure

COLOURS = {1.0: "#b5492f", 4.0: "#2f6fb5", None: "#5b6370"}
MARKERS = {1.0: "o", 4.0: "s", None: "^"}
NAMES = {1.0: "local epsilon 1", 4.0: "local epsilon 4", None: "not private"}
TASKS = (
    ("objects", "public start", "CIFAR-10's head, from a public start"),
    ("digits", "first start", "MNIST, linear, from zero"),
)


FEATURES = (256, 784)  # of the head, and pixels


def main(results: Path, out: Path) -> None:
    """Draw a panel per task: test accuracy over k, with all numbers at the right."""
    lines: list[dict[str, Any]] = json.loads(results.read_text(encoding="utf-8"))
    figure = blank_figure(9.0, 3.6)
    for place, (task, start, title) in enumerate(TASKS, 1):
        axes = plain_axes(
            figure.add_subplot(1, 2, place),
            title,
            "directions, all numbers last",
            "test accuracy, %",
        )
        mine = [line for line in lines if line["task"] == task and line["features"] in FEATURES]
        for epsilon, colour in COLOURS.items():
            points = []
            for line in mine:
                if line["line"] == start and line["epsilon"] == epsilon:
                    scores = 100 * np.array(line["test"])
                    points.append((line["k"] or line["d"], scores.mean(), scores.std()))
            if not points:
                continue
            sizes, means, spreads = zip(*sorted(points), strict=True)
            axes.errorbar(
                sizes,
                means,
                spreads,
                color=colour,
                marker=MARKERS[epsilon],
                markersize=4,
                label=NAMES[epsilon],
            )
        alone = next(line for line in mine if line["line"] == "public alone")
        axes.axhline(
            100 * float(np.mean(alone["test"])),
            color="#1f2430",
            linestyle=":",
            label="public alone",
        )
        axes.set_xscale("log", base=2)
        axes.legend(frameon=False)
    save_figure(figure, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
