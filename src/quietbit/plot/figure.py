"""A plain figure, made without pyplot, and how it reaches the disk.

Idea     figures are values: no global state is read or changed, nothing is shown on a screen, and a file
         appears whole or not at all.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, TypeAlias

from quietbit._files import write_whole
from quietbit.errors import require, require_module
from quietbit.plot.palette import MECHANISMS

__all__ = [
    "FORMATS",
    "INK",
    "LOOKS",
    "PAPER",
    "Axes",
    "Figure",
    "blank_figure",
    "plain_axes",
    "render_figure",
    "save_figure",
    "shared_legend",
    "unit_ticks",
]

# matplotlib is optional: its classes have no name here, so that this module imports without it.
Figure: TypeAlias = Any
Axes: TypeAlias = Any

FORMATS = ("png", "svg", "pdf")
PAPER, INK, FAINT = "#ffffff", "#1f2430", "#d9dce3"
# MVU is a broad line under I-MVU's narrow one, so that both show where they agree.
LOOKS: dict[str, dict[str, Any]] = {
    "laplace": {
        "color": MECHANISMS["laplace"].light,
        "linewidth": 1.8,
        "linestyle": (0, (5, 2)),
        "label": "Laplace noise (32 bits)",
    },
    "mvu": {"color": MECHANISMS["mvu"].light, "alpha": 0.5, "linewidth": 4.2, "label": "MVU (dithered to levels)"},
    "imvu": {"color": MECHANISMS["imvu"].light, "linewidth": 1.6, "label": "I-MVU (interpolated)"},
    "levels": {"color": INK, "s": 20, "zorder": 4, "linewidths": 0, "label": "the design's levels"},
}
DOTS_PER_INCH = 160


def blank_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, drawn by Agg."""
    figures = require_module("matplotlib.figure", "plot")
    agg = require_module("matplotlib.backends.backend_agg", "plot")
    figure = figures.Figure(figsize=(width, height), dpi=DOTS_PER_INCH, facecolor=PAPER, layout="constrained")
    agg.FigureCanvasAgg(figure)
    return figure


def plain_axes(axes: Axes, title: str = "", x: str = "", y: str = "") -> Axes:
    """The house look: two spines, a faint grid behind the data, titles on the left."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#9aa0ad")
    axes.grid(True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    axes.set_title(title, loc="left", fontsize=10.5, color=INK)
    axes.set_xlabel(x, fontsize=9.5, color=INK)
    axes.set_ylabel(y, fontsize=9.5, color=INK)
    return axes


def unit_ticks(axes: Axes) -> None:
    """Quarters of the unit interval, with a little room beside it."""
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "1"])


def shared_legend(figure: Figure, axes: Axes, place: str) -> None:
    """One legend for all axes, outside of them, made from what one of them holds."""
    handles, labels = axes.get_legend_handles_labels()
    columns = len(labels) if figure.get_figwidth() > 8 else 2
    figure.legend(handles, labels, loc=place, ncols=columns, frameon=False, fontsize=9, labelcolor=INK)


def render_figure(figure: Figure, form: str) -> bytes:
    """The figure as the bytes of a png, svg or pdf file."""
    require(form in FORMATS, "format of the figure", form, "one of " + ", ".join(FORMATS))
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form)
    return buffer.getvalue()


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure in the format its file name ends in: png, svg or pdf."""
    target = Path(path)
    form = target.suffix.lower().lstrip(".")
    require(form in FORMATS, "end of the figure's file name", target.name, "one of ." + ", .".join(FORMATS))
    content = render_figure(figure, form)
    return write_whole(target, lambda file: file.write(content), make_folder=False)
