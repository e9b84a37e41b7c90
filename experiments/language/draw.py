"""Draw the results: loss over epsilon for five ways, what public text alone gives, and who gains.

python experiments/language/draw.py experiments/results/language.json docs/images/language-model.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from quietbit_lab.plot.figure import GREY, INK, blank_figure, looks, plain_axes, save_figure

EPSILONS = (1, 4, 8)
WAYS = {
    "local, Gaussian noise": ("gaussian", "gaussian"),
    "local, vmvu, 80 bytes": ("vmvu", "vmvu"),
    "local, vmvu in 16 renewed directions": ("vmvu {} vol-16 refreshed", "mvu"),
    "one-bit sums behind masks": ("sum", "imvu"),
    "trusted server": ("central", "skellam"),
}
LEVELS = {
    "pre-trained": "bias zero-shot",
    "public manuals alone": "bias public manuals",
    "not private, one pass": "bias zero none",
    "67 volunteers alone": "bias public volunteers",
    "not private, five passes": "bias zero none passes-5",
}
GAINS = {
    "local, epsilon 1": "bias zero vmvu 1",
    "local, epsilon 8": "bias zero vmvu 8",
    "16 directions, epsilon 1": "bias zero vmvu 1 vol-16 refreshed",
    "sums, epsilon 8": "bias zero sum 8",
    "not private, one pass": "bias zero none",
    "67 volunteers alone": "bias public volunteers",
    "volunteers, then sums at 8": "bias volunteers sum 8",
}


def main(results: Path, out: Path) -> None:
    """Draw both panels."""
    known: dict[str, Any] = {entry["name"]: entry for entry in json.loads(results.read_text())}
    figure = blank_figure(11.0, 4.6)
    left = plain_axes(
        figure.add_subplot(1, 2, 1),
        "Test loss after 1,060 authors took part once each",
        "epsilon",
        "test loss, nats per token",
    )
    for name, level in LEVELS.items():
        height = mean(known[level]["test"])
        left.axhline(height, color=GREY, linewidth=1.0, linestyle=(0, (4, 3)))
        left.text(8.25, height, name, fontsize=8, color=INK, va="bottom")
    for (name, (way, _)), look in zip(
        WAYS.items(), looks([kind for _, kind in WAYS.values()]), strict=True
    ):
        pattern = way if "{}" in way else way + " {}"
        lines = [f"bias zero {pattern.format(epsilon)}" for epsilon in EPSILONS]
        heights = [mean(known[line]["test"]) for line in lines]
        left.plot(EPSILONS, heights, label=name, linewidth=1.8, **look.line)
    votes = known["votes"]["prompts"]["elected"]
    left.plot(
        EPSILONS,
        [votes[f"votes {epsilon}"] for epsilon in EPSILONS],
        "k*",
        label="265 votes on 32 prompts",
    )
    left.set_xlim(0.6, 11.8)
    left.set_xticks(EPSILONS)
    left.set_ylim(3.24, 3.87)
    left.legend(loc="lower left", fontsize=8, frameon=False, labelcolor=INK)
    right = plain_axes(
        figure.add_subplot(1, 2, 2),
        "What 132 authors who took no part gain",
        "nats per token gained",
        "",
    )
    before = known["bias zero-shot"]["authors"]
    columns = []
    for line in GAINS.values():
        columns.append([old - new for old, new in zip(before, known[line]["authors"], strict=True)])
    right.boxplot(
        columns, orientation="horizontal", tick_labels=list(GAINS), whis=(0, 100), widths=0.5
    )
    right.axvline(0.0, color=GREY, linewidth=1.0)
    save_figure(figure, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
