"""Plain figures without pyplot, saved atomically, with one look per mechanism in all of them.

Idea     figures are values: no global state is read or changed, nothing is shown on a screen, and a
         file appears whole or not at all. Colours are told apart by people who see few of them,
         reach a contrast of 3 to 1 on their background, light or dark, and never carry the meaning
         alone: markers and names do too.
Source   Okabe and Ito (2008), "Color universal design", for the families of colours.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from quietbit._files import write_whole
from quietbit.cli.options import FORMATS
from quietbit.errors import require, require_module

__all__ = [
    "GREY",
    "INK",
    "MATPLOTLIB",
    "MECHANISMS",
    "PAPER",
    "Axes",
    "Figure",
    "Look",
    "blank_figure",
    "looks",
    "plain_axes",
    "save_figure",
    "shared_legend",
]

# matplotlib is optional: its classes have no name here, so that this module imports without it.
Figure: TypeAlias = Any
Axes: TypeAlias = Any

DOTS_PER_INCH = 160
PAPER = "#ffffff"
INK = "#1f2430"
GREY = "#9aa0ad"
FAINT = "#d9dce3"


def blank_figure(width: float, height: float, title: str = "", identity: str = "") -> Figure:
    """Return an empty figure of this size in inches; ``identity`` is printed in its corner."""
    figures = require_module("matplotlib.figure", "lab")
    agg = require_module("matplotlib.backends.backend_agg", "lab")
    figure = figures.Figure(
        figsize=(width, height), dpi=DOTS_PER_INCH, facecolor=PAPER, layout="constrained"
    )
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
    axes.tick_params(which="minor", colors=INK, labelsize=9)
    axes.set_title(title, loc="left", fontsize=10.5, color=INK)
    axes.set_xlabel(x, fontsize=9.5, color=INK)
    axes.set_ylabel(y, fontsize=9.5, color=INK)
    return axes


def shared_legend(figure: Figure, axes: Axes, place: str, most: int = 9) -> None:
    """Add one legend for all axes outside of them, from one of them, ``most`` names per line."""
    handles, labels = axes.get_legend_handles_labels()
    if figure.get_figwidth() > 8:
        columns = min(len(labels), most)
    else:
        columns = 2
    figure.legend(
        handles, labels, loc=place, ncols=columns, frameon=False, fontsize=9, labelcolor=INK
    )


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure in the format its file name ends in: png, svg or pdf."""
    target = Path(path)
    form = target.suffix.lower().removeprefix(".")
    require(
        form in FORMATS,
        "end of the figure's file name",
        target.name,
        "one of ." + ", .".join(FORMATS),
    )
    return write_whole(target, lambda file: figure.savefig(file, format=form), make_folder=False)


MATPLOTLIB = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "down": "v",
    "diamond": "D",
    "plus": "P",
    "cross": "X",
}


@final
@dataclass(frozen=True, slots=True)
class Look:
    """How a run is drawn: colours on light and dark, a marker, and dashes (none: solid)."""

    light: str
    dark: str
    marker: str
    dash: tuple[int, ...] = ()

    @property
    def line(self) -> dict[str, Any]:
        """The look as matplotlib takes it."""
        style: Any = "solid"
        if self.dash:
            style = (0, self.dash)
        return {"color": self.light, "linestyle": style, "marker": MATPLOTLIB[self.marker]}


MECHANISMS = {
    "imvu": Look("#c8361e", "#ff8566", "circle"),
    "vmvu": Look("#6741d9", "#b197fc", "cross"),
    "gaussian": Look("#1f6fb2", "#6db5f2", "square"),
    "sign": Look("#a87000", "#f0bd3c", "triangle"),
    "skellam": Look("#00806a", "#43cdb0", "diamond"),
    "mvu": Look("#8461b5", "#bb9ee8", "down"),
    "laplace": Look("#6c7280", "#a9afbd", "plus"),
    "none": Look("#1f2430", "#e8ebf2", "circle", (6, 4)),
}
OTHERS = (Look("#b8577f", "#ee94b8", "cross"), Look("#3d7f8f", "#7cc7d8", "diamond"))
DASHES: tuple[tuple[int, ...], ...] = ((), (7, 3), (2, 3), (9, 3, 2, 3))
MARKERS = ("circle", "diamond", "square", "cross")
# A further run of the same mechanism is moved towards these: (on light, on dark, how far).
BLACK = ("#000000", "#ffffff")
SHADES = ((*BLACK, 0.0), (*BLACK, 0.45), ("#b3008f", "#ff9bea", 0.6), ("#5e4a2b", "#dccba8", 0.75))


def looks(mechanisms: Sequence[str]) -> list[Look]:
    """Return a look per run, by its mechanism; a second run of one is darker and dashed."""
    strangers = [name for name in dict.fromkeys(mechanisms) if name not in MECHANISMS]
    chosen = []
    for place, name in enumerate(mechanisms):
        base = MECHANISMS.get(name) or OTHERS[strangers.index(name) % len(OTHERS)]
        turn = mechanisms[:place].count(name)
        black, white, share = SHADES[turn % len(SHADES)]
        light = _mixed(base.light, black, share)
        dark = _mixed(base.dark, white, share)
        others = [marker for marker in MARKERS if marker != base.marker]
        if turn:
            marker = others[(turn - 1) % len(others)]
        else:
            marker = base.marker
        chosen.append(Look(light, dark, marker, DASHES[turn % len(DASHES)] if turn else base.dash))
    return chosen


def _mixed(colour: str, other: str, share: float) -> str:
    parts = [
        round((1 - share) * int(colour[k : k + 2], 16) + share * int(other[k : k + 2], 16))
        for k in (1, 3, 5)
    ]
    return "#" + "".join(f"{part:02x}" for part in parts)
