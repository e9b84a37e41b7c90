"""A comparison as a picture: the noise of a run over the releases of a client, and over the bytes it sends.

Idea     both axes up are the same number, the noise over the run in clips, with the verdicts as bands behind it. Left,
         every client takes part more often for the same epsilon; right, what a round's payload buys. Colours are the
         mechanisms', lines the trust.
Source   `quietbit.plan.compare`; bands: `quietbit.mechanism.expectation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from quietbit.mechanism.expectation import HOPELESS_ABOVE, USEFUL_UP_TO
from quietbit.plan.compare import Comparison, ComparisonRow, compare
from quietbit.plot.figure import INK, Axes, Figure, blank_figure, plain_axes
from quietbit.plot.palette import looks
from quietbit.privacy.guarantee import Trust

__all__ = ["RELEASES", "compare_releases", "plot_comparison"]

RELEASES = (1, 3, 10, 50)
BANDS = (("useful", 0.0, USEFUL_UP_TO, "#dff0e3"), ("hard", USEFUL_UP_TO, HOPELESS_ABOVE, "#fbf3d9"))
HOPELESS = "#f7dfdc"
LINES: dict[Trust, Any] = {Trust.LOCAL: "solid", Trust.SECURE_AGGREGATION: (0, (6, 2)), Trust.CENTRAL: (0, (1.5, 1.5))}
OTHER_LINE = (0, (3, 1, 1, 1))
Key = tuple[str, Trust]


def compare_releases(
    found: Comparison, releases: Sequence[int] = RELEASES, report: Callable[[float, str], None] | None = None
) -> dict[int, Comparison]:
    """The same question for other numbers of releases, with as many clients: more rounds of the same cohort."""
    trusts = {row.trust for row in found.rows}
    only = trusts.pop() if len(trusts) == 1 else None
    asked = sorted({*releases, found.target.releases})
    answers = {found.target.releases: found}
    for place, times in enumerate(asked):
        if report is not None:
            report(place / len(asked), f"{times:,} releases")
        if times not in answers:
            answers[times] = compare(
                found.ball, **{**found.target.keywords(), "releases": times}, clients=found.clients,
                cohort=found.cohort, trust=only, min_honest_clients=found.min_honest_clients,
            )  # fmt: skip
    return answers


def plot_comparison(found: Comparison, over: dict[int, Comparison]) -> Figure:
    """Noise over releases (from `compare_releases`) beside noise over bytes."""
    figure, target = blank_figure(10.4, 5.2), found.target
    left, right = figure.subplots(1, 2, sharey=True)
    figure.suptitle(
        f"{found.ball.dimension:,} parameters, {found.clients:,} clients, {found.cohort:,} in a round; epsilon "
        f"{target.epsilon:g} at delta = {target.delta:g} for all releases of a client ({target.adjacency.value})",
        x=0.01, ha="left", fontsize=11, color=INK,
    )  # fmt: skip
    plain_axes(left, "Taking part more often", x="releases of a client", y="noise over the run / clip")
    plain_axes(right, "Sending more", x="bytes per client per round")
    keys = _keys(over)
    for key, look in zip(keys, looks([name for name, _ in keys]), strict=True):
        name, trust = key
        style = {**look.line, "linestyle": LINES.get(trust, OTHER_LINE), "linewidth": 1.6, "markersize": 5}
        label = name if trust is Trust.LOCAL else f"{name}, {trust.value}"
        points = [(times, row) for times, one in sorted(over.items()) if (row := _whole(one, key)) is not None]
        left.plot([times for times, _ in points], [_run_noise(row) for _, row in points], label=label, **style)
        rows = sorted((row for row in found.rows if _key(row) == key and row.expected), key=lambda r: r.payload_bytes)
        sizes, noises = [row.payload_bytes for row in rows], [_run_noise(row) for row in rows]
        right.plot(sizes, noises, **{**style, "linewidth": 0.9})
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
    left.set_xticks(sorted(over), [f"{times:,}" for times in sorted(over)])
    left.minorticks_off()
    _bands(left, right, over)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9, labelcolor=INK)
    return figure


def _keys(over: dict[int, Comparison]) -> list[Key]:
    rows = [row for one in over.values() for row in one.rows if row.expected is not None]
    return list(dict.fromkeys(_key(row) for row in rows))


def _key(row: ComparisonRow) -> Key:
    return row.name, row.trust


def _whole(found: Comparison, key: Key) -> ComparisonRow | None:
    """The row of a mechanism in which most is sent: coordinates that are not kept make little difference."""
    rows = [row for row in found.rows if _key(row) == key and row.expected is not None]
    return max(rows, key=lambda row: row.payload_bytes, default=None)


def _run_noise(row: ComparisonRow) -> float:
    return math.inf if row.expected is None else row.expected.run_noise


def _bands(left: Axes, right: Axes, over: dict[int, Comparison]) -> None:
    """What the noise means, behind the lines and in words beside them."""
    known = [_run_noise(row) for one in over.values() for row in one.rows if row.expected is not None]
    low, high = min([*known, USEFUL_UP_TO]) / 2, max([*known, HOPELESS_ABOVE]) * 2
    for axes in (left, right):
        axes.set_ylim(low, high)
        for name, start, stop, colour in (*BANDS, ("hopeless", HOPELESS_ABOVE, high, HOPELESS)):
            bottom = max(start, low)
            axes.axhspan(bottom, min(stop, high), color=colour, zorder=0, linewidth=0)
            if axes is right:
                axes.text(
                    1.02, math.sqrt(bottom * min(stop, high)), name, transform=axes.get_yaxis_transform(), ha="left",
                    va="center", fontsize=9, color="#6c7280", style="italic",
                )  # fmt: skip
