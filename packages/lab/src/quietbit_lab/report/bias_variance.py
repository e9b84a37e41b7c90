"""Figure 1 of the paper: what interpolation costs, and how more levels win it back.

Idea     mean above and variance below, one column per number of levels; MVU, I-MVU, and Laplace
         noise of the same epsilon for comparison.
Source   Guo et al. (ICML 2023), figure "Comparison of MVU and I-MVU with b = 3 and L1-metric-DP eps
         = 5".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quietbit.design.table import Design
from quietbit.errors import require
from quietbit_lab.plot.design import LOOKS, X, draw_moments
from quietbit_lab.plot.figure import Figure, blank_figure, plain_axes, shared_legend

__all__ = ["plot_bias_variance"]


def plot_bias_variance(designs: Sequence[Design]) -> Figure:
    """Draw mean and variance of MVU and I-MVU over [0, 1], a column per design, beside Laplace's.

    All designs must have L1-metric privacy of one epsilon: only then is one Laplace mechanism their
    equal.
    """
    require(len(designs) > 0, "number of designs", len(designs), "at least one")
    privacies = {(design.spec.privacy, design.spec.epsilon) for design in designs}
    same = len(privacies) == 1 and designs[0].spec.privacy == "metric-l1"
    require(same, "privacy of the designs", sorted(privacies), "metric-l1 with one epsilon")
    epsilon = designs[0].spec.epsilon
    bits = ", ".join(sorted({f"{design.spec.output_bits}" for design in designs}))
    title = f"What a server sees of an input x   ·   {bits} bits   ·   "
    title += f"L1-metric privacy, epsilon {epsilon:g}"
    figure = blank_figure(1.2 + 3.1 * len(designs), 5.9, title)
    grid = figure.subplots(2, len(designs), sharex=True, sharey="row", squeeze=False)
    for column, design in enumerate(designs):
        top, bottom = grid[:, column]
        plain_axes(
            top, f"{design.spec.input_levels} input levels", y="" if column else "expected output"
        )
        plain_axes(bottom, x="input x", y="" if column else "variance")
        bottom.plot(
            X, np.full(X.size, 2 / epsilon**2), **LOOKS["laplace"]
        )  # noise of scale 1/epsilon
        worst = float(np.abs(draw_moments(top, bottom, design, bias=False)["imvu"].mean - X).max())
        note = f"largest bias of I-MVU: {worst:.3f}"
        top.text(
            0.97,
            0.05,
            note,
            transform=top.transAxes,
            ha="right",
            fontsize=9,
            color=LOOKS["imvu"]["color"],
        )
        top.set_ylim(-0.04, 1.04)
        bottom.set_ylim(bottom=0.0)
    shared_legend(figure, grid[1, 0], "outside lower center")
    return figure
