"""What secure aggregation buys: error and bits per parameter against the number of clients.

Idea     one target, a growing cohort. Left, how far the decoded mean is off; right, what a client
         sends per parameter. Codes behind masks follow the ideal distributed Gaussian within a few
         percent, at the bits that a sum needs.
Source   `quietbit.mechanism.central_sum`; docs/theory/secure-aggregation.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from quietbit.mechanism.ball import Ball
from quietbit.secagg.plan import bits_for
from quietbit.target import Target
from quietbit_lab.baseline.sum_rows import compare_sums
from quietbit_lab.plot.figure import Figure, blank_figure, plain_axes, shared_legend

__all__ = ["COHORTS", "plot_secure_aggregation"]

COHORTS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
# By the place of the row; the fourth, the same codes seen one by one, has the first one's error and
# is left out.
LOOKS: dict[int, dict[str, Any]] = {
    4: {"color": "#e0a100", "linewidth": 1.6, "marker": "s"},
    2: {"color": "#1f6fb2", "linewidth": 1.6, "marker": "^"},
    1: {"color": "#8b909d", "linewidth": 4.2, "solid_capstyle": "butt"},
    0: {"color": "#c8361e", "linewidth": 1.6, "marker": "o"},
}


def plot_secure_aggregation(
    ball: Ball,
    target: Target,
    share: float = 1.0,
    report: Callable[[float, str], None] | None = None,
) -> Figure:
    """Draw error and bits over the number of clients; ``report(fraction, message)`` follows it.

    ``share`` of the clients of each cohort are counted on: honest, answering, and not colluding.
    """
    rows = {}
    for place, clients in enumerate(COHORTS):
        if report is not None:
            report(place / len(COHORTS), f"{clients:,} clients")
        honest = max(2, math.floor(clients * share * (1 + 1e-12)))
        rows[clients] = compare_sums(
            ball=ball, target=target, clients=clients, min_honest_clients=honest
        )
    if target.releases == 1:
        sums = "one sum"
    else:
        sums = f"{target.releases:,} sums"
    title = (
        f"Epsilon {target.epsilon:g} at delta = {target.delta:g} for all of a client's {sums} "
        f"({target.adjacency.value} adjacency), {ball.dimension:,} parameters"
    )
    figure = blank_figure(9.6, 4.6, title)
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    below = "clients in a sum" + ("" if share == 1 else f", {100 * share:.3g} % of them counted on")
    plain_axes(
        left, "Error of the mean", x=below, y="root-mean-square error of a coordinate / clip"
    )
    plain_axes(right, "What a client sends", x=below, y="bits per parameter, masks included")
    grid = [round(COHORTS[0] * (COHORTS[-1] / COHORTS[0]) ** (k / 300)) for k in range(301)]
    for place, look in LOOKS.items():
        line = {clients: points[place] for clients, points in rows.items()}
        style = {"markersize": 4, "label": line[COHORTS[0]].name, **look}
        errors = {n: math.sqrt(point.squared_error) for n, point in line.items()}
        left.plot(
            *zip(*((n, error) for n, error in errors.items() if math.isfinite(error)), strict=True),
            **style,
        )
        sent = [point.bits for point in line.values()]
        if (
            place == 0
        ):  # one more bit at every doubling: points where it was computed, steps between
            right.step(
                grid,
                [bits_for(n) for n in grid],
                **{**style, "marker": None, "where": "post"},
            )
            right.plot(COHORTS, sent, **{**style, "linestyle": "none"})
        else:
            right.plot(COHORTS, sent, **{**style, "marker": None, "linewidth": 2.0})
    for axes in (left, right):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
    left.set_yscale("log")
    right.set_ylim(0, 34)
    right.set_yticks([1, 4, 8, 12, 16, 24, 32])
    shared_legend(figure, left, "outside lower center")
    return figure
