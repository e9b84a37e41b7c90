"""The picture of a clip that finds itself: its path from five starts, as `scouts.py` stored it.

python experiments/draw_scouts.py experiments/results/scouts-mnist.json docs/images/clip-paths.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from quietbit_lab.plot.figure import blank_figure, plain_axes, save_figure

COLOURS = ("#2f6fb5", "#2c7a4b", "#b58a1e", "#b5492f", "#6b3fa0")  # of the five starts


def main(results: Path, out: Path) -> None:
    """Draw a line per start."""
    record = json.loads(results.read_text(encoding="utf-8"))
    lines = [line for line in record["lines"] if line["way"] == "scouts"]
    figure = blank_figure(8.0, 3.4)
    title = (
        "MNIST, 1,000 clients per round of whom 50 scout: the clip of each round, from five starts"
    )
    axes = plain_axes(figure.add_subplot(1, 1, 1), title, "round", "clip")
    for line, colour in zip(lines, COLOURS, strict=True):
        rounds = [5 * place for place in range(len(line["clips"]))]
        name = f"from {line['clip']:g}: {line['mean']:.1f} %"
        axes.plot(rounds, line["clips"], color=colour, marker="o", markersize=3, label=name)
    axes.set_yscale("log")
    axes.legend(frameon=False, title="test accuracy")
    save_figure(figure, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
