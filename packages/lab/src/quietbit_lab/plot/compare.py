"""A comparison as a picture: the noise of a run over a client's releases and over its bytes.

Idea     both axes up are the same number, the noise over the run in clips, with the verdicts as
         bands behind it. Left, every client takes part more often for the same epsilon; right, what
         a round's payload buys. Colours are the mechanisms', lines the trust.
Source   `quietbit.plan.compare`; bands: `quietbit.mechanism.expectation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from quietbit.errors import QuietbitError
from quietbit.mechanism.expectation import HOPELESS_ABOVE, USEFUL_UP_TO
from quietbit.plan.compare import Comparison, compare
from quietbit.target import Trust
from quietbit_lab.plot.figure import (
    Figure,
    blank_figure,
    looks,
    plain_axes,
    save_figure,
    shared_legend,
)

__all__ = ["RELEASES", "plot_comparison", "save_comparison"]

RELEASES = (1, 3, 10, 50)
BANDS = (
    ("useful", 0.0, USEFUL_UP_TO, "#dff0e3"),
    ("hard", USEFUL_UP_TO, HOPELESS_ABOVE, "#fbf3d9"),
    ("hopeless", HOPELESS_ABOVE, math.inf, "#f7dfdc"),
)
LINES: dict[Trust, Any] = {
    Trust.LOCAL: "solid",
    Trust.SECURE_AGGREGATION: (0, (6, 2)),
    Trust.CENTRAL: (0, (1.5, 1.5)),
}
Lines: TypeAlias = dict[
    tuple[str, Trust], list[tuple[int, float]]
]  # of a mechanism under a trust: bytes and noise


def save_comparison(
    comparison: Comparison, path: Path, report: Callable[[float, str], None] | None = None
) -> Path:
    """Draw a comparison into a file; `quietbit compare --out` finds this by its entry point."""
    return save_figure(plot_comparison(comparison, report=report), path)


def plot_comparison(
    comparison: Comparison,
    releases: Sequence[int] = RELEASES,
    report: Callable[[float, str], None] | None = None,
) -> Figure:
    """Draw noise over releases beside noise over bytes; call ``report(fraction, message)``."""
    target = comparison.target
    title = (
        f"{comparison.ball.dimension:,} parameters, {comparison.clients:,} clients, "
        f"{comparison.cohort:,} per "
        f"round; epsilon {target.epsilon:g} at delta = {target.delta:g} for all releases of a "
        f"client ({target.adjacency.value})"
    )
    figure = blank_figure(10.4, 5.2, title)
    left, right = figure.subplots(1, 2, sharey=True)
    plain_axes(
        left, "Taking part more often", x="releases of a client", y="noise over the run / clip"
    )
    plain_axes(right, "Sending more", x="bytes per client per round")
    answers = _over_releases(comparison, releases, report)
    keys = list(dict.fromkeys(key for lines in answers.values() for key in lines))
    for (name, trust), look in zip(keys, looks([name for name, _ in keys]), strict=True):
        style = {**look.line, "linestyle": LINES[trust], "linewidth": 1.6, "markersize": 5}
        if trust is Trust.LOCAL:
            label = name
        else:
            label = f"{name}, {trust.value}"
        # Where most is sent: coordinates that are not kept make little difference.
        points = {
            times: lines[name, trust][-1][1]
            for times, lines in answers.items()
            if (name, trust) in lines
        }
        left.plot(list(points), list(points.values()), label=label, **style)
        sent = _lines(comparison).get((name, trust), [])
        right.plot(
            [size for size, _ in sent], [noise for _, noise in sent], **{**style, "linewidth": 0.9}
        )
    known = [noise for lines in answers.values() for line in lines.values() for _, noise in line]
    low = min([*known, USEFUL_UP_TO]) / 2
    high = max([*known, HOPELESS_ABOVE]) * 2
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", ylim=(low, high))
    for name, start, stop, colour in BANDS:
        bottom = max(start, low)
        top = min(stop, high)
        for axes in (left, right):
            axes.axhspan(bottom, top, color=colour, zorder=0, linewidth=0)
        style = {"va": "center", "fontsize": 9, "color": "#6c7280", "style": "italic"}
        right.text(
            1.02, math.sqrt(bottom * top), name, transform=right.get_yaxis_transform(), **style
        )
    left.set_xticks(list(answers), [f"{times:,}" for times in answers])
    left.minorticks_off()
    shared_legend(figure, left, "outside lower center", most=5)
    return figure


def _over_releases(
    comparison: Comparison, releases: Sequence[int], report: Any
) -> dict[int, Lines]:
    """Compare at other numbers of releases, with as many clients: more rounds per cohort."""
    trusts = {row.trust for row in comparison.rows}
    evaluations = [
        evaluation
        for evaluation in (comparison.evaluation, comparison.summed_evaluation)
        if evaluation is not None
    ]
    request: dict[str, Any] = {
        **comparison.target.keywords(),
        "clients": comparison.clients,
        "cohort": comparison.cohort,
        "trust": trusts.pop() if len(trusts) == 1 else None,
        "min_honest_clients": comparison.min_honest_clients,
        "baselines": any(row.baseline for row in comparison.rows),
        "evaluate": evaluations[0].epsilon if evaluations else None,
    }
    numbers = sorted({*releases, comparison.target.releases})
    answers = {}
    for place, times in enumerate(numbers):
        if report is not None:
            report(place / len(numbers), f"{times:,} releases")
        with suppress(QuietbitError):  # evaluations of many releases may leave nothing for updates
            same = times == comparison.target.releases
            answers[times] = _lines(
                comparison if same else compare(comparison.ball, **{**request, "releases": times})
            )
    return answers


def _lines(comparison: Comparison) -> Lines:
    """Return bytes and noise of every mechanism that reaches the target, by what it sends."""
    lines: Lines = {}
    for row in comparison.rows:
        if row.expected is not None:
            lines.setdefault((row.name, row.trust), []).append(
                (row.payload_bytes, row.expected.run_noise)
            )
    return {key: sorted(points) for key, points in lines.items()}
