"""Privacy against accuracy: the paper's Figures 2, 4, 5 and 6, drawn from the results of a sweep.

Idea     a line per mechanism along its frontier, a bar of one standard deviation over seeds, every other
         point of the grid faint behind it; the line without privacy at the top.
Source   Guo et al. (ICML 2023), figures "Privacy vs. accuracy plot".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from quietbit._validate import require
from quietbit.plot.figure import INK, Axes, Figure, blank_figure, plain_axes
from quietbit.plot.palette import Look, looks
from quietbit_lab.experiment.frontier import Summary, frontier, summarise

__all__ = ["plot_frontier", "shared_words"]


def plot_frontier(results: Iterable[Mapping[str, Any]], title: str) -> Figure:
    """Accuracy over epsilon; results without a finished run, or of epsilons that mean different things, are refused."""
    points = summarise(results)
    require(points, "results", "no finished run", "results of at least one finished run")
    figure = blank_figure(7.2, 4.8)
    axes = plain_axes(figure.subplots(), title, x=f"epsilon of {shared_words(points)}", y="test accuracy, %")
    lines = sorted(frontier(points).items())
    chosen = looks([str(line[0].settings.get("mechanism", "")) for _, line in lines])
    for look, (label, line) in zip(chosen, lines, strict=True):
        _draw(axes, label, line, [p for p in points if p.label == label], look)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:.0e}"[0] in "235" else "")
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="lower right")
    return figure


def shared_words(points: Iterable[Summary]) -> str:
    """What all epsilons here mean; several meanings in one picture are refused."""
    private = [p for p in points if math.isfinite(p.epsilon_upper)] or list(points)
    kinds = sorted({tuple(str(p.settings[name]) for name in ("unit", "delta", "adjacency")) for p in private})
    require(len(kinds) == 1, "unit, delta and adjacency of the results", kinds, "the same for all")
    unit, delta, adjacency = kinds[0]
    return f"one {unit} at delta = {float(delta):g} ({adjacency} adjacency)"


def _draw(axes: Axes, label: str, line: list[Summary], cloud: list[Summary], look: Look) -> None:
    if all(math.isinf(p.epsilon_upper) for p in line):
        best = max(p.accuracy for p in line)
        axes.axhline(100 * best, color=look.light, linewidth=1.2, linestyle=(0, (5, 2)), label=f"{label} (no privacy)")
        return
    line = [p for p in line if math.isfinite(p.epsilon_upper)]
    rest = [p for p in cloud if math.isfinite(p.epsilon_upper) and p not in line]
    axes.scatter([p.epsilon_upper for p in rest], [100 * p.accuracy for p in rest], s=6, color=look.light, alpha=0.2)
    seeds = min(p.seeds for p in line)
    axes.errorbar(
        [p.epsilon_upper for p in line],
        [100 * p.accuracy for p in line],
        yerr=[100 * p.deviation for p in line],
        linewidth=1.6,
        markersize=4,
        capsize=2,
        label=f"{label} ({seeds} {'seed' if seeds == 1 else 'seeds'})",
        **look.line,
    )
