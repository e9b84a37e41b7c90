"""One colour and one marker per mechanism, on paper and on dark screens alike.

Idea     a mechanism looks the same in every picture. Colours are told apart by people who see few of them
         (vermilion, blue, amber, bluish green, purple: Okabe and Ito's families), reach a contrast of 3 to 1 on
         their background, and never carry the meaning alone: markers and names do too.
Source   Okabe and Ito (2008), "Color universal design", for the families of colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

__all__ = ["MECHANISMS", "Look", "looks"]

MATPLOTLIB = {"circle": "o", "square": "s", "triangle": "^", "down": "v", "diamond": "D", "plus": "P", "cross": "X"}


@final
@dataclass(frozen=True, slots=True)
class Look:
    """How a run is drawn: colours on light and dark, a marker, a pattern of dashes (none: a solid line)."""

    light: str
    dark: str
    marker: str
    dash: tuple[int, ...] = ()

    @property
    def line(self) -> dict[str, Any]:
        """The look as matplotlib takes it."""
        style = (0, self.dash) if self.dash else "solid"
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
SHADES = (
    ("#000000", "#ffffff", 0.0),
    ("#000000", "#ffffff", 0.45),
    ("#b3008f", "#ff9bea", 0.6),
    ("#5e4a2b", "#dccba8", 0.75),
)


def looks(mechanisms: Sequence[str]) -> list[Look]:
    """Return a look for each run by its mechanism; a second run of the same one is darker and dashed."""
    seen: dict[str, int] = {}
    found = []
    for name in mechanisms:
        strangers = [other for other in dict.fromkeys(mechanisms) if other not in MECHANISMS]
        base = MECHANISMS.get(name) or OTHERS[strangers.index(name) % len(OTHERS)]
        turn = seen.get(name, 0)
        seen[name] = turn + 1
        black, white, share = SHADES[turn % len(SHADES)]
        light, dark = _mixed(base.light, black, share), _mixed(base.dark, white, share)
        others = [marker for marker in MARKERS if marker != base.marker]
        marker = others[(turn - 1) % len(others)] if turn else base.marker
        found.append(Look(light, dark, marker, DASHES[turn % len(DASHES)] if turn else base.dash))
    return found


def _mixed(colour: str, other: str, share: float) -> str:
    parts = [round((1 - share) * int(colour[k : k + 2], 16) + share * int(other[k : k + 2], 16)) for k in (1, 3, 5)]
    return "#" + "".join(f"{part:02x}" for part in parts)
