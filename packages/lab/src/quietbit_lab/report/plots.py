"""Pictures of runs: accuracy over epsilon (as the paper's figures), over rounds and over bytes.

Idea     over epsilon, a line per mechanism along its frontier, a bar of one standard deviation over
         seeds, every other point of the grid faint behind it, and the line without privacy at the
         top. Over rounds, lines end in their own names and numbers, so that nobody has to match
         colours with a legend. Over bytes, the best mean accuracy for every number of bytes that a
         client sends in a round; only settings within the budget count.
Source   Guo et al. (ICML 2023), figures "Privacy vs. accuracy plot".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quietbit.errors import require
from quietbit_lab.experiment.frontier import Summary, reported, rising, summarise
from quietbit_lab.plot.figure import INK, Axes, Figure, Look, blank_figure, looks, plain_axes

__all__ = ["plot_frontier", "plot_training", "plot_uplink", "shared_words", "shown_size"]

CROWDED = 1000  # a range with no room for three numbers in a decade
Sent = tuple[Summary, int]  # a setting, and the bytes a client sends in a round


def plot_frontier(results: Iterable[Mapping[str, Any]], title: str) -> Figure:
    """Draw accuracy over epsilon; refuse results without a finished run, or of several units."""
    runs = list(results)
    points = summarise(runs)
    lines = sorted(reported(runs).items())
    require(lines, "number of finished runs", 0, "at least one", "finish the sweep with --resume")
    figure = blank_figure(7.2, 4.8)
    axes = plain_axes(
        figure.subplots(), title, x=f"epsilon of {shared_words(points)}", y="test accuracy, %"
    )
    chosen = looks([str(line[0].settings.get("mechanism", "")) for _, line in lines])
    for look, (label, line) in zip(chosen, lines, strict=True):
        _draw(axes, label, line, [p for p in points if p.label == label], look)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    low, high = axes.get_xlim()
    named = "235" if high < CROWDED * low else "3"  # so that numbers do not touch
    axes.xaxis.set_minor_formatter(lambda x, _: f"{x:,g}" if f"{x:.0e}"[0] in named else "")
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="lower right")
    return figure


def shared_words(points: Iterable[Summary]) -> str:
    """Return what all epsilons here mean; refuse several meanings in one picture."""
    private = [p for p in points if math.isfinite(p.epsilon_upper)] or list(points)
    kinds = sorted(
        {tuple(str(p.settings[name]) for name in ("unit", "delta", "adjacency")) for p in private}
    )
    require(
        len(kinds) == 1,
        "unit, delta and adjacency of the results",
        kinds,
        "the same for all",
        "draw one picture of each kind",
    )
    unit, delta, adjacency = kinds[0]
    return f"one {unit} at delta = {float(delta):g} ({adjacency} adjacency)"


def _draw(axes: Axes, label: str, line: list[Summary], cloud: list[Summary], look: Look) -> None:
    if all(math.isinf(p.epsilon_upper) for p in line):
        best = max(p.accuracy for p in line)
        axes.axhline(
            100 * best,
            color=look.light,
            linewidth=1.2,
            linestyle=(0, (5, 2)),
            label=f"{label} (no privacy)",
        )
        return
    line = [p for p in line if math.isfinite(p.epsilon_upper)]
    rest = [p for p in cloud if math.isfinite(p.epsilon_upper) and p not in line]
    axes.scatter(
        [p.epsilon_upper for p in rest],
        [100 * p.accuracy for p in rest],
        s=6,
        color=look.light,
        alpha=0.2,
    )
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


def plot_training(
    curves: Mapping[str, Sequence[tuple[int, float]]], title: str, mechanisms: Mapping[str, str]
) -> Figure:
    """Test accuracy over rounds; ``curves`` maps a run's label to its (round, accuracy) points.

    ``mechanisms`` names the mechanism of each label, by which it is coloured.
    """
    rule = "at least one run, each with a point"
    require(curves and all(curves.values()), "curves", list(curves), rule)
    # A run keeps its colour whatever its rank, so that two pictures of the same runs can be
    # compared.
    colours = {
        name: look.light
        for name, look in zip(curves, looks([mechanisms[name] for name in curves]), strict=True)
    }
    figure = blank_figure(7.2, 4.4)
    axes = plain_axes(figure.subplots(), title, x="round", y="test accuracy, %")
    last = max(points[-1][0] for points in curves.values())
    heights: list[float] = []
    for label, points in sorted(curves.items(), key=lambda item: item[1][-1][1]):
        colour = colours[label]
        axes.plot([r for r, _ in points], [100 * a for _, a in points], color=colour, linewidth=1.8)
        # Labels keep a line's height from the one below.
        height = max(100 * points[-1][1], heights[-1] + 4.5 if heights else 0.0)
        heights.append(height)
        axes.text(
            last * 1.02,
            height,
            f"{label}  {100 * points[-1][1]:.1f} %",
            color=INK,
            fontsize=9,
            va="center",
        )
        axes.plot([points[-1][0]], [100 * points[-1][1]], "o", color=colour, markersize=4)
    axes.set_xlim(0, last * 1.45)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= last])
    axes.set_ylim(0, 100)
    return figure


def plot_uplink(settings: Sequence[Sent], title: str) -> Figure:
    """Draw accuracy over bytes per client per round, of the ``settings`` and their bytes."""
    require(
        settings,
        "number of settings within the target",
        len(settings),
        "at least one",
        "raise --epsilon",
    )
    figure = blank_figure(7.2, 4.4)
    axes = plain_axes(
        figure.subplots(), title, x="bytes that a client sends in a round", y="test accuracy, %"
    )
    labels = sorted(
        {point.label: str(point.settings.get("mechanism", "")) for point, _ in settings}.items()
    )
    for (label, _), look in zip(labels, looks([mechanism for _, mechanism in labels]), strict=True):
        line = rising(sent for sent in settings if sent[0].label == label)
        shown: Mapping[str, Any] = {
            **look.line,
            "label": label,
            "markersize": 5,
            "capsize": 2,
            "linewidth": 1.6,
        }
        axes.errorbar(
            [size for _, size in line],
            [100 * point.accuracy for point, _ in line],
            yerr=[100 * point.deviation for point, _ in line],
            **shown,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: shown_size(value))
    axes.xaxis.set_minor_formatter(
        lambda value, _: shown_size(value) if f"{value:.0e}"[0] in "25" else ""
    )
    axes.margins(x=0.15)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
    return figure


def shown_size(count: float) -> str:
    """Format a number of bytes as a person writes it."""
    if count <= 0 or not math.isfinite(count):
        return ""
    if count >= 1:
        power = min(3, int(math.log10(count) // 3))
    else:
        power = 0
    return f"{float(f'{count / 1000**power:.3g}'):g} {('B', 'kB', 'MB', 'GB')[power]}"
