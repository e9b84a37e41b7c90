"""Write the walk into docs/explanation/architecture.md, and draw it.

    python docs/hooks/architecture.py

Idea     the page is prose but for what stands between two markers, which this writes from the walk
         itself: the files that one send and one receive pass, each with the first line of its
         docstring. The picture shows the folders in seven groups from the top down, with the way
         of an update down on a client and up on a server. A test fails when the page is stale.
"""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path
from typing import NamedTuple

from walk import LAYERS, ROOT, Walk, one_receive, one_send

__all__ = ["GROUPS", "PAGE", "PICTURE", "page", "picture"]

DOCS = Path(__file__).parent.parent
PAGE = DOCS / "explanation" / "architecture.md"
PICTURE = DOCS / "images" / "architecture.svg"
CLASSES = {
    "flower/client.py": "PrivateClientApp",
    "flower/strategy.py": "PrivateStrategy",
    "federation/client.py": "Turn, parts",
    "federation/server.py": "Run, parts",
}
BEGIN = "<!-- walk -->"
END = "<!-- end of the walk -->"


class Group(NamedTuple):
    """A box: folders of one layer, a line about them, and the files an engine's round passes."""

    folders: tuple[str, ...]
    line: str
    client: tuple[str, ...] = ()  # beside those of the walk, which begins in wire/
    server: tuple[str, ...] = ()
    addition: str = ""  # what a new capability adds here


GROUPS = (
    Group(("cli",), "one file per command"),
    Group(
        ("flower", "nvflare"),
        "two engines: carry messages, name nodes",
        ("flower/client.py",),
        ("flower/transport.py", "flower/strategy.py"),
    ),
    Group(
        ("federation",),
        "plan, rounds, turns, report",
        ("federation/client.py",),
        ("federation/round.py", "federation/server.py"),
        "a new capability: one file in federation/parts/",
    ),
    Group(
        ("node",),
        "owner's policy, ledger, gate",
        ("node/gate.py", "node/ledger.py"),
    ),
    Group(("secagg", "wire"), "masked sums; updates to bytes, bytes to means"),
    Group(
        ("mechanism", "privacy"),
        "clip, randomise, decode; what it costs",
        addition="a new mechanism: one file in mechanism/",
    ),
    Group(("kernel", "design", "gradients"), "devices; certified tables; gradients per sample"),
)
ROW = 66
WIDTH = 350
LEFT = 20
TOP = 62
COLUMNS = (LEFT + WIDTH + 24, LEFT + WIDTH + 214)
CLIENT = "#00897b"
SERVER = "#e07b00"
INK = "#5f6b7a"


def page() -> str:
    """Return the page with its walk written anew."""
    text = PAGE.read_text(encoding="utf-8")
    start = text.index(BEGIN) + len(BEGIN)
    stop = text.index(END)
    return f"{text[:start]}\n\n{_tables()}\n{text[stop:]}"


def picture() -> str:
    """Return the picture, in colours that light and dark pages can both show."""
    if tuple(folder for group in GROUPS for folder in group.folders) != LAYERS:
        raise ValueError(f"the groups of the picture must be the layers {LAYERS}, in order")
    height = TOP + ROW * len(GROUPS) + 12
    end = height - 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 {height}" role="img" '
        'aria-label="Seven groups of folders from the top down, with the files that an update '
        'passes on a client and on a server">',
        f'<g font-family="sans-serif" font-size="13" fill="{INK}">',
        _text(LEFT, 24, "imports point down", weight="bold"),
        _text(LEFT, 42, "quietbit-lab, a second distribution, builds on all of it", size=12),
        _text(COLUMNS[0], 24, "client sends", CLIENT, weight="bold"),
        _text(COLUMNS[1], 24, "server receives", SERVER, weight="bold"),
        _arrow(COLUMNS[0] - 12, TOP + ROW, end, CLIENT),
        _arrow(COLUMNS[1] - 12, end, TOP + ROW, SERVER),
    ]
    walks = (one_send(), one_receive())
    for place, group in enumerate(GROUPS):
        lines += _box(TOP + ROW * place, group, walks)
    return "\n".join([*lines, "</g>", "</svg>"]) + "\n"


def _box(y: int, group: Group, walks: tuple[Walk, Walk]) -> list[str]:
    title = "  ".join(f"{folder}/" for folder in group.folders)
    lines = [
        f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW - 8}" rx="6" fill="none" '
        f'stroke="{INK}"/>',
        _text(LEFT + 12, y + 19, title, weight="bold"),
        _text(LEFT + 12, y + 35, group.line, size=12),
    ]
    if group.addition:
        lines.append(_text(LEFT + 12, y + 51, f"+ {group.addition}", "#b0306a", size=12))
    listed = (group.client, group.server)
    for x, walk, files, colour in zip(COLUMNS, walks, listed, (CLIENT, SERVER), strict=True):
        names = [_name(file) for file in files]
        names += [_name(file) for file in walk.files if file.split("/")[0] in group.folders]
        for number, line in enumerate(_wrapped(names)):
            lines.append(_text(x, y + 19 + 16 * number, line, colour, size=12))
    return lines


def _name(file: str) -> str:
    """Return the file's name without its ending, and its class; a missing file is an error."""
    if not (ROOT / file).is_file():
        raise FileNotFoundError(f"the picture names {file}, which does not exist")
    name = Path(file).stem
    if file in CLASSES:
        name += f" ({CLASSES[file]})"
    return name


def _wrapped(names: list[str]) -> list[str]:
    """Return the names in lines that fit a column."""
    lines: list[str] = []
    for name in dict.fromkeys(names):
        if lines and len(lines[-1]) + len(name) < 26:
            lines[-1] += f", {name}"
        else:
            lines.append(name)
    return lines


def _text(
    x: int, y: int, words: str, colour: str = INK, size: int = 13, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{colour}">'
        f"{escape(words)}</text>"
    )


def _arrow(x: int, start: int, stop: int, colour: str) -> str:
    back = 8 if stop < start else -8
    return (
        f'<path d="M{x} {start}V{stop}M{x - 4} {stop + back}L{x} {stop}L{x + 4} {stop + back}" '
        f'fill="none" stroke="{colour}" stroke-width="2"/>'
    )


def _tables() -> str:
    tables = []
    for title, walk in (("One send", one_send()), ("One receive", one_receive())):
        tables.append(f"### {title}: {len(walk.files)} files, {walk.calls} calls\n")
        tables.append("| | file | what it is |\n|---|---|---|")
        tables.append("\n".join(_rows(walk)) + "\n")
    return "\n".join(tables)


def _rows(walk: Walk) -> list[str]:
    return [
        f"| {place} | `{file}` | {_headline(file)} |" for place, file in enumerate(walk.files, 1)
    ]


def _headline(file: str) -> str:
    text = ast.get_docstring(ast.parse((ROOT / file).read_text(encoding="utf-8"))) or ""
    return text.splitlines()[0].rstrip(".").replace("|", "\\|")


def main() -> None:
    """Write the page and its picture."""
    PAGE.write_text(page(), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
    print(PAGE, PICTURE)


if __name__ == "__main__":
    main()
