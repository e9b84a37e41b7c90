"""Accuracy against bytes: what a client has to send for the accuracy that a mechanism reaches.

Idea     of each mechanism the best mean accuracy for every number of bytes that a client sends in a round, with a
         bar of one standard deviation over seeds; only settings within the target epsilon count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from quietbit._validate import require
from quietbit.plot.figure import INK, Figure, blank_figure, plain_axes
from quietbit.plot.palette import looks
from quietbit_lab.experiment.frontier import Summary

__all__ = ["plot_uplink"]

Sent = tuple[Summary, int]  # a setting, and the bytes a client sends in a round


def plot_uplink(settings: Sequence[Sent], title: str) -> Figure:
    """Accuracy over bytes a client and round; ``settings`` are those that may be chosen, with their bytes."""
    require(settings, "settings", list(settings), "at least one that ended within the target")
    figure = blank_figure(7.2, 4.4)
    axes = plain_axes(figure.subplots(), title, x="bytes that a client sends in a round", y="test accuracy, %")
    labels = sorted({point.label: str(point.settings.get("mechanism", "")) for point, _ in settings}.items())
    for (label, _), look in zip(labels, looks([mechanism for _, mechanism in labels]), strict=True):
        line = _best([sent for sent in settings if sent[0].label == label])
        shown: Mapping[str, Any] = {**look.line, "label": label, "markersize": 5, "capsize": 2, "linewidth": 1.6}
        axes.errorbar(
            [size for _, size in line],
            [100 * point.accuracy for point, _ in line],
            yerr=[100 * point.deviation for point, _ in line],
            **shown,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: _size(value))
    axes.xaxis.set_minor_formatter(lambda value, _: _size(value) if f"{value:.0e}"[0] in "25" else "")
    axes.margins(x=0.15)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
    return figure


def _best(settings: Sequence[Sent]) -> list[Sent]:
    """By growing bytes, only what is more accurate than everything smaller."""
    chosen: list[Sent] = []
    for sent in sorted(settings, key=lambda item: (item[1], -item[0].accuracy)):
        if not chosen or sent[0].accuracy > chosen[-1][0].accuracy:
            chosen.append(sent)
    return chosen


def _size(count: float) -> str:
    if count <= 0 or not math.isfinite(count):
        return ""
    power = min(3, int(math.log10(count) // 3)) if count >= 1 else 0
    return f"{count / 1000**power:g} {('B', 'kB', 'MB', 'GB')[power]}"
