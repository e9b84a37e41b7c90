"""Draw the diagrams of the pages: who holds what, and what leaves.

    python docs/hooks/diagrams.py

Idea     boxes and arrows as plain SVG, whose colours follow the reader's light or dark setting. A
         test compares the stored files with what this writes.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

__all__ = ["FOLDER", "diagrams"]

FOLDER = Path(__file__).parent.parent / "images"
STYLE = """
  text { font: 15px sans-serif; fill: #1f2430; } .small { font-size: 13px; fill: #596070; } .bold { font-weight: 600; }
  rect { fill: #ffffff; stroke: #8a92a3; stroke-width: 1.3; } .own { fill: #eef3fb; stroke: #2f6fb5; }
  .gate { fill: #e9f6ee; stroke: #2c7a4b; stroke-width: 2; } .far { fill: #fbf0ec; stroke: #b5492f; }
  path { stroke: #596070; stroke-width: 1.8; fill: none; } .head { fill: #596070; stroke: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e8ebf2; } .small { fill: #b2b9c9; } rect { fill: #20242e; stroke: #707a8e; }
    .own { fill: #1d2a3d; stroke: #6aa5e6; } .gate { fill: #1c3326; stroke: #67c08c; }
    .far { fill: #3a2520; stroke: #e08a70; }
    path { stroke: #b2b9c9; } .head { fill: #b2b9c9; }
  }
"""


class Drawing:
    """A picture that grows shape by shape."""

    def __init__(self, width: int, height: int, title: str) -> None:
        """Begin an empty picture."""
        self.width, self.height, self.title = width, height, title
        self.shapes: list[str] = []

    def box(
        self, x: int, y: int, width: int, height: int, lines: list[str], kind: str = ""
    ) -> None:
        """Add a box with centred lines; the first is bold, the others are small."""
        self.shapes.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="7"/>'
        )
        first = y + height / 2 - 9 * (len(lines) - 1) + 5
        for place, line in enumerate(lines):
            style = "small" if place else "bold"
            self.text(x + width / 2, first + 18 * place, line, style)

    def frame(self, x: int, y: int, width: int, height: int, label: str, kind: str = "own") -> None:
        """Add a large box with a label on top."""
        self.shapes.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="11"/>'
        )
        self.text(x + 12, y + 22, label, "small", "start")

    def text(
        self, x: float, y: float, words: str, style: str = "small", anchor: str = "middle"
    ) -> None:
        """Add words."""
        self.shapes.append(
            f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def arrow(self, x: int, y: int, to_x: int, to_y: int, label: str = "", above: int = 8) -> None:
        """Add an arrow to the right, with words above its middle."""
        self.shapes.append(f'<path d="M{x},{y}L{to_x - 7},{to_y}"/>')
        self.shapes.append(f'<path class="head" d="M{to_x},{to_y}l-11,-5.5v11z"/>')
        if label:
            self.text((x + to_x) / 2, (y + to_y) / 2 - above, label)

    def svg(self) -> str:
        """Return the file."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img">'
        body = "\n".join(self.shapes)
        return (
            f"{head}\n<title>{escape(self.title)}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
        )


def node() -> Drawing:
    """Draw a node of an engine: the app trains, the gate decides, one release leaves."""
    drawing = Drawing(
        940,
        250,
        "A node: the app trains on the data, the gate clips, notes and randomises, one release leaves",
    )
    drawing.frame(10, 20, 610, 215, "the owner's node")
    drawing.box(30, 70, 110, 70, ["data"], "")
    drawing.box(190, 70, 140, 70, ["your app", "trains as ever"])
    drawing.box(
        400,
        55,
        200,
        100,
        ["quietbit's gate", "clips, notes the cost,", "randomises, packs"],
        "gate",
    )
    drawing.box(400, 175, 90, 42, ["policy"])
    drawing.box(510, 175, 90, 42, ["ledger"])
    drawing.arrow(140, 105, 190, 105)
    drawing.arrow(330, 105, 400, 105, "update")
    drawing.arrow(600, 105, 745, 105, "80 bytes")
    drawing.box(745, 55, 180, 100, ["server", "sees one release", "per node per round"], "far")
    drawing.text(835, 190, "takes the mean, moves the model,")
    drawing.text(835, 208, "and writes the report")
    return drawing


def sums() -> Drawing:
    """Draw masked sums: single vectors are noise to the server, the sum is not."""
    drawing = Drawing(
        940,
        300,
        "Secure aggregation: clients send masked codes, and the server can read their sum alone",
    )
    for place, name in enumerate(("client 1", "client 2", "client 3")):
        top = 20 + 92 * place
        drawing.box(20, top, 130, 64, [name, "random bits"], "own")
        drawing.box(240, top, 170, 64, ["bits + masks", "random to everybody"], "gate")
        drawing.arrow(150, top + 32, 240, top + 32, "masks")
        drawing.arrow(410, top + 32, 590, 144 + 14 * (place - 1))
    drawing.box(590, 90, 150, 108, ["server", "adds them up:", "masks cancel"], "far")
    drawing.arrow(740, 144, 800, 144)
    drawing.box(800, 105, 125, 78, ["the sum", "and nothing else"])
    drawing.text(665, 225, "the bits of the others hide each client's own,")
    drawing.text(665, 243, "so the sum alone needs to be private")
    return drawing


def threats() -> Drawing:
    """Draw where each thing can be seen."""
    drawing = Drawing(
        940,
        250,
        "What each party sees: the app sees data, the gate updates, the server releases, everybody the model",
    )
    columns = [
        ("data", "own", ["your app", "and the owner"]),
        ("update", "own", ["app and gate"]),
        ("release", "gate", ["the server", "(behind masks: sums)"]),
        ("mean", "far", ["the server"]),
        ("model", "far", ["everybody"]),
    ]
    for place, (name, kind, seen) in enumerate(columns):
        left = 20 + 186 * place
        drawing.box(left, 60, 128, 58, [name], kind)
        drawing.text(left + 64, 150, "seen by", "small")
        for line, words in enumerate(seen):
            drawing.text(left + 64, 170 + 18 * line, words, "bold" if not line else "small")
        if place:
            drawing.arrow(left - 58, 89, left, 89)
    drawing.shapes.append('<path stroke-dasharray="6 5" d="M363,20V235"/>')
    drawing.text(353, 34, "not private", "small", "end")
    drawing.text(373, 34, "from here on (ε, δ) holds", "small", "start")
    return drawing


def hospitals() -> Drawing:
    """Draw three hospitals whose patients are protected."""
    drawing = Drawing(
        940,
        300,
        "Three hospitals: a gate at each draws a secret batch of patients, and what leaves hides any one of them",
    )
    for place, name in enumerate(("hospital 1", "hospital 2", "hospital 3")):
        top = 14 + 94 * place
        drawing.frame(15, top, 500, 84, name)
        drawing.box(110, top + 14, 130, 56, ["150 patients"])
        drawing.box(300, top + 14, 200, 56, ["gate", "secret batch, clip, noise"], "gate")
        drawing.arrow(240, top + 42, 300, top + 42)
        drawing.arrow(500, top + 42, 690, 150 + 18 * (place - 1), "76 bytes" if place == 1 else "")
    drawing.box(
        690, 96, 180, 108, ["server", "one model for all;", "epsilon 4 of any patient"], "far"
    )
    return drawing


def diagrams() -> dict[str, str]:
    """Return every file by its name."""
    made = {
        "node": node(),
        "masked-sums": sums(),
        "who-sees-what": threats(),
        "hospitals": hospitals(),
    }
    return {f"{name}.svg": drawing.svg() for name, drawing in made.items()}


if __name__ == "__main__":
    for name, text in diagrams().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
