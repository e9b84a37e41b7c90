"""One design at a glance: its probability table, and the bias and variance it leads to.

Idea     the table as a picture (rows are inputs, columns are symbols with the values they decode to), and to
         its right what a server sees: bias and variance of both mechanisms built on the table.
"""

from __future__ import annotations

import numpy as np

from quietbit.design.table import Design
from quietbit.errors import require, require_module
from quietbit.plot.figure import GREY, INK, PAPER, Axes, Figure, blank_figure, plain_axes, shared_legend
from quietbit.plot.moments import draw_moments

__all__ = ["plot_design"]

MOST_NUMBERS = 16  # rows or columns beyond which cells hold no numbers and ticks are thinned


def plot_design(design: Design) -> Figure:
    """Draw the probability table of a design beside bias and variance over the unit interval."""
    require(isinstance(design, Design), "design", design, "a Design")
    spec = design.spec
    rule = "no bias at the levels" if spec.bias == "exact" else f"bias penalty {spec.bias:g}"
    bits = f"{spec.output_bits} bit{'s' if spec.output_bits > 1 else ''}"
    title = "   ·   ".join((f"{spec.input_levels} levels", bits, f"{spec.privacy} epsilon {spec.epsilon:g}", rule))
    figure = blank_figure(11.5, 5.6, title, f"design {design.identity()}")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.25, 1.0))
    _table(figure, figure.add_subplot(grid[:, 0]), design)
    bias, variance = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
    plain_axes(bias, "bias", y="expected output − x").axhline(0.0, color=GREY, linewidth=0.8)
    plain_axes(variance, "variance", "input x", "variance of the output")
    drawn = draw_moments(bias, variance, design, bias=True)
    largest = max(*(abs(limit) for limit in bias.get_ylim()), 1e-3)
    bias.set_ylim(-largest, largest)
    variance.set_ylim(0.0, 1.12 * max(float(moments.variance.max()) for moments in drawn.values()))
    shared_legend(figure, bias, "outside lower right")
    return figure


def _table(figure: Figure, axes: Axes, design: Design) -> None:
    table, alphabet = design.probabilities, design.alphabet
    rows, columns = table.shape
    # Colour follows the square root of the probability, or all but the largest would look alike.
    scale = require_module("matplotlib.colors", "plot").PowerNorm(0.5, vmin=0.0, vmax=float(table.max()))
    image = axes.imshow(table, aspect="auto", cmap="Blues", norm=scale, origin="lower", interpolation="nearest")
    plain_axes(axes, "probability of each symbol", "value the symbol decodes to", "input x").grid(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    column_ticks, row_ticks = _ticks(columns), _ticks(rows)
    turned = {"rotation": 55, "rotation_mode": "anchor", "ha": "right"} if len(column_ticks) > 9 else {}
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
            axes.text(j, i, _short(probability), ha="center", va="center", fontsize=size, color=PAPER if dark else INK)
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
