"""Accuracy as runs go on, one line per run: what a training looked like.

Idea     the lines end in their own names and numbers, so that nobody has to match colours with a legend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quietbit._validate import require
from quietbit.plot.figure import INK, Figure, blank_figure, plain_axes
from quietbit.plot.palette import looks

__all__ = ["plot_training"]

# Where nobody says which mechanisms the runs have, they look like these, in turn.
TURNS = ("gaussian", "sign", "imvu", "laplace", "skellam", "mvu")


def plot_training(
    curves: Mapping[str, Sequence[tuple[int, float]]], title: str, mechanisms: Mapping[str, str] | None = None
) -> Figure:
    """Test accuracy over rounds; ``curves`` maps a run's label to its (round, accuracy) points.

    ``mechanisms`` names the mechanism of each label, by which it is coloured.
    """
    require(curves and all(curves.values()), "curves", list(curves), "at least one run, each with a point")
    known = mechanisms if mechanisms is not None else {}
    names = [known.get(label, TURNS[place % len(TURNS)]) for place, label in enumerate(curves)]
    # A run keeps its colour whatever its rank, so that two pictures of the same runs can be compared.
    colours = {label: look.light for label, look in zip(curves, looks(names), strict=True)}
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
        axes.text(last * 1.02, height, f"{label}  {100 * points[-1][1]:.1f} %", color=INK, fontsize=9, va="center")
        axes.plot([points[-1][0]], [100 * points[-1][1]], "o", color=colour, markersize=4)
    axes.set_xlim(0, last * 1.45)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= last])
    axes.set_ylim(0, 100)
    return figure
