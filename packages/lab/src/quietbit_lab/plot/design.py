"""One design at a glance: its probability table, and the bias and variance it leads to.

Idea     the table as a picture (rows are inputs, columns are symbols with the values they decode
         to), and to its right what a server sees: bias and variance of both mechanisms built on the
         table. On the ball [-1/2, 1/2] with beta = 1 an update u is the input x = 1/2 + u and a
         symbol decodes to a - 1/2, so the mechanisms' own closed forms are drawn and nothing is
         computed a second time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from quietbit._typing import FloatVector
from quietbit.design.table import Design
from quietbit.errors import require, require_module
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit_lab.baseline.dithered import DitheredMVU
from quietbit_lab.plot.figure import (
    GREY,
    INK,
    MECHANISMS,
    PAPER,
    Axes,
    Figure,
    blank_figure,
    plain_axes,
    shared_legend,
)

__all__ = ["LOOKS", "Moments", "X", "draw_moments", "moments", "plot_design"]

UNIT = Ball(Norm.L1, 1)
X = np.linspace(0.0, 1.0, 401)
# MVU is a broad line under I-MVU's narrow one, so that both show where they agree.
LOOKS: dict[str, dict[str, Any]] = {
    "laplace": {
        "color": MECHANISMS["laplace"].light,
        "linewidth": 1.8,
        "linestyle": (0, (5, 2)),
        "label": "Laplace noise (32 bits)",
    },
    "mvu": {
        "color": MECHANISMS["mvu"].light,
        "alpha": 0.5,
        "linewidth": 4.2,
        "label": "MVU (dithered to levels)",
    },
    "imvu": {"color": MECHANISMS["imvu"].light, "linewidth": 1.6, "label": "I-MVU (interpolated)"},
    "levels": {"color": INK, "s": 20, "zorder": 4, "linewidths": 0, "label": "the design's levels"},
}
MOST_DOTS = 64  # levels that are marked with dots
MOST_NUMBERS = 16  # rows or columns whose cells show numbers


def plot_design(design: Design) -> Figure:
    """Draw the probability table of a design beside bias and variance over the unit interval."""
    require(isinstance(design, Design), "design", type(design).__name__, "a Design")
    spec = design.spec
    if spec.bias == "exact":
        rule = "no bias at the levels"
    else:
        rule = f"bias penalty {spec.bias:g}"
    bits = f"{spec.output_bits} bit{'s' if spec.output_bits > 1 else ''}"
    title = "   ·   ".join(
        (f"{spec.input_levels} levels", bits, f"{spec.privacy} epsilon {spec.epsilon:g}", rule)
    )
    figure = blank_figure(11.5, 5.6, title, f"design {design.identity()}")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.25, 1.0))
    _table(figure, figure.add_subplot(grid[:, 0]), design)
    bias = figure.add_subplot(grid[0, 1])
    variance = figure.add_subplot(grid[1, 1])
    plain_axes(bias, "bias", y="expected output − x").axhline(0.0, color=GREY, linewidth=0.8)
    plain_axes(variance, "variance", "input x", "variance of the output")
    drawn = draw_moments(bias, variance, design, bias=True)
    largest = max(*(abs(limit) for limit in bias.get_ylim()), 1e-3)
    bias.set_ylim(-largest, largest)
    variance.set_ylim(
        0.0, 1.12 * max(float(drawn_moments.variance.max()) for drawn_moments in drawn.values())
    )
    shared_legend(figure, bias, "outside lower right")
    return figure


def _table(figure: Figure, axes: Axes, design: Design) -> None:
    table = design.probabilities
    alphabet = design.alphabet
    rows, columns = table.shape
    # Colour follows the square root of the probability, or all but the largest would look alike.
    scale = require_module("matplotlib.colors", "lab").PowerNorm(
        0.5, vmin=0.0, vmax=float(table.max())
    )
    image = axes.imshow(
        table, aspect="auto", cmap="Blues", norm=scale, origin="lower", interpolation="nearest"
    )
    plain_axes(axes, "probability of each symbol", "value the symbol decodes to", "input x").grid(
        False
    )
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    column_ticks = _ticks(columns)
    row_ticks = _ticks(rows)
    if len(column_ticks) > 9:
        turned = {"rotation": 55, "rotation_mode": "anchor", "ha": "right"}
    else:
        turned = {}
    axes.set_xticks(column_ticks, [f"{alphabet[k]:.3g}" for k in column_ticks], **turned)
    axes.set_yticks(row_ticks, [f"{design.spec.levels[k]:.3g}" for k in row_ticks])
    if max(rows, columns) <= MOST_NUMBERS:
        axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        axes.grid(True, which="minor", color=PAPER, linewidth=1.5)
        axes.tick_params(which="minor", length=0)
        size = 9 if columns <= 8 else 6.5
        for (i, j), probability in np.ndenumerate(table):
            dark = probability > 0.4 * table.max()
            axes.text(
                j,
                i,
                _short(probability),
                ha="center",
                va="center",
                fontsize=size,
                color=PAPER if dark else INK,
            )
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=8, length=2)


def _ticks(count: int) -> list[int]:
    if count <= MOST_NUMBERS:
        return list(range(count))
    return [round(k * (count - 1) / 8) for k in range(9)]


def _short(probability: float) -> str:
    if probability >= 0.00095:
        return f"{probability:.{2 if probability >= 0.0995 else 3}f}".lstrip("0")
    return f"{probability:.0e}".replace("e-0", "e-")


class Moments(NamedTuple):
    """Mean and variance of the decoded value at every x."""

    mean: FloatVector
    variance: FloatVector


def moments(design: Design, x: FloatVector) -> dict[str, Moments]:
    """Return the moments of MVU, dithered between levels, and of I-MVU, interpolated."""
    kinds: dict[str, Mechanism] = {
        "mvu": DitheredMVU(design, UNIT),
        "imvu": InterpolatedMVU(design, UNIT, decoder="alphabet"),
    }
    updates = np.clip(2 * x - 1, -1.0, 1.0).tolist()
    moments_of = {}
    for name, mechanism in kinds.items():
        mean = np.array([0.5 + mechanism.expectation(u) / 2 for u in updates])
        moments_of[name] = Moments(mean, np.array([mechanism.variance(u) / 4 for u in updates]))
    return moments_of


def draw_moments(top: Axes, bottom: Axes, design: Design, *, bias: bool) -> dict[str, Moments]:
    """Draw means or biases of MVU and I-MVU into ``top``, and variances into ``bottom``."""
    drawn = moments(design, X)
    levels = design.spec.levels
    for name, moments_of in drawn.items():
        top.plot(X, moments_of.mean - X if bias else moments_of.mean, **LOOKS[name])
        bottom.plot(X, moments_of.variance, **LOOKS[name])
    if len(levels) <= MOST_DOTS:
        dots = moments(design, levels)["mvu"]
        top.scatter(levels, dots.mean - levels if bias else dots.mean, **LOOKS["levels"])
        bottom.scatter(levels, dots.variance, **LOOKS["levels"])
    for axes in (top, bottom):
        axes.set_xlim(-0.02, 1.02)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "1"])
    return drawn
