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

__all__ = [
    "FORMATS", "GREY", "INK", "PAPER", "Axes", "Figure", "blank_figure", "plain_axes", "render_figure", "save_figure",
    "shared_legend",
]  # fmt: skip

# matplotlib is optional: its classes have no name here, so that this module imports without it.
Figure: TypeAlias = Any
Axes: TypeAlias = Any

FORMATS = ("png", "svg", "pdf")
PAPER, INK, GREY, FAINT = "#ffffff", "#1f2430", "#9aa0ad", "#d9dce3"
DOTS_PER_INCH = 160


def blank_figure(width: float, height: float, title: str = "", identity: str = "") -> Figure:
    """Return an empty figure of this size in inches, drawn by Agg; what it shows may be named in its corner."""
    figures = require_module("matplotlib.figure", "plot")
    agg = require_module("matplotlib.backends.backend_agg", "plot")
    figure = figures.Figure(figsize=(width, height), dpi=DOTS_PER_INCH, facecolor=PAPER, layout="constrained")
    agg.FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=11 if len(title) > 90 else 12, color=INK, x=0.01, ha="left")
    if identity:
        figure.text(0.01, 0.012, identity, fontsize=7, color="#8a8f9c")
    return figure


def plain_axes(axes: Axes, title: str = "", x: str = "", y: str = "") -> Axes:
    """Give axes the house look: two spines, a faint grid behind the data, titles on the left."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
    axes.grid(True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    axes.set_title(title, loc="left", fontsize=10.5, color=INK)
    axes.set_xlabel(x, fontsize=9.5, color=INK)
    axes.set_ylabel(y, fontsize=9.5, color=INK)
    return axes


def shared_legend(figure: Figure, axes: Axes, place: str, most: int = 9) -> None:
    """Make one legend for all axes, outside of them, from what one of them holds, ``most`` names in a line."""
    handles, labels = axes.get_legend_handles_labels()
    columns = min(len(labels), most) if figure.get_figwidth() > 8 else 2
    figure.legend(handles, labels, loc=place, ncols=columns, frameon=False, fontsize=9, labelcolor=INK)


def render_figure(figure: Figure, form: str) -> bytes:
    """Return the figure as the bytes of a png, svg or pdf file."""
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
