"""Privacy against accuracy: the paper's Figures 2, 4, 5 and 6, drawn from the results of a sweep.

Idea     a line per mechanism along its frontier, a bar of one standard deviation over seeds, every other
         point of the grid faint behind it; the line without privacy at the top.
Source   Guo et al. (ICML 2023), figures "Privacy vs. accuracy plot".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from quietbit._validate import QuietbitError, require
from quietbit.federation.frontier import Summary, frontier, summarise
from quietbit.federation.sweep import finished
from quietbit.report.figure import INK, Axes, Figure, blank_figure, plain_axes

__all__ = ["plot_frontier", "read_runs"]

COLOURS = ("#c8361e", "#1f6fb2", "#e0a100", "#3d8f52", "#7a4fa3", "#7a7f8c", "#b8577f", "#4aa6a6")


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """The finished results below a folder, or a sentence about what is missing."""
    if not folder.is_dir():
        raise QuietbitError(f"There is no folder {folder}: run a sweep first.")
    found = finished(folder)
    if not found:
        raise QuietbitError(f"There are no finished runs in {folder}: quietbit sweep writes them.")
    return found


def plot_frontier(results: Iterable[Mapping[str, Any]], title: str) -> Figure:
    """Accuracy over epsilon; results without a finished run are refused."""
    points = summarise(results)
    require(points, "results", "no finished run", "results of at least one finished run")
    figure = blank_figure(7.2, 4.8)
    delta = next(iter({p.settings["delta"] for p in points}))
    adjacency = ", ".join(sorted({str(p.settings["adjacency"]) for p in points}))
    unit = ", ".join(sorted({str(p.settings["unit"]) for p in points}))
    x = f"epsilon of one {unit} at delta = {delta:g} ({adjacency} adjacency)"
    axes = plain_axes(figure.subplots(), title, x=x, y="test accuracy, %")
    lines = frontier(points)
    for colour, (label, line) in zip(_cycle(len(lines)), sorted(lines.items()), strict=True):
        _draw(axes, label, line, [p for p in points if p.label == label], colour)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:.0e}"[0] in "235" else "")
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="lower right")
    return figure


def _draw(axes: Axes, label: str, line: list[Summary], cloud: list[Summary], colour: str) -> None:
    if all(math.isinf(p.epsilon_upper) for p in line):
        best = max(p.accuracy for p in line)
        axes.axhline(100 * best, color=colour, linewidth=1.2, linestyle=(0, (5, 2)), label=f"{label} (no privacy)")
        return
    line = [p for p in line if math.isfinite(p.epsilon_upper)]
    rest = [p for p in cloud if math.isfinite(p.epsilon_upper) and p not in line]
    axes.scatter([p.epsilon_upper for p in rest], [100 * p.accuracy for p in rest], s=6, color=colour, alpha=0.2)
    seeds = min(p.seeds for p in line)
    axes.errorbar(
        [p.epsilon_upper for p in line],
        [100 * p.accuracy for p in line],
        yerr=[100 * p.deviation for p in line],
        color=colour,
        linewidth=1.6,
        marker="o",
        markersize=3.5,
        capsize=2,
        label=f"{label} ({seeds} {'seed' if seeds == 1 else 'seeds'})",
    )


def _cycle(count: int) -> list[str]:
    return [COLOURS[k % len(COLOURS)] for k in range(count)]
