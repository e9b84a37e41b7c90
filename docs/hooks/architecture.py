"""Write the walk into docs/explanation/architecture.md, and draw it.

    python docs/hooks/architecture.py

Idea     the page is prose but for what stands between two markers, which this writes from the walk
         itself: the files that one send and one receive pass, each with the first line of its
         docstring. The picture shows the folders from the top down, with both ways through them. A
         test fails when the page is not what this would write.
"""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path

from walk import LAYERS, ROOT, Walk, one_receive, one_send

__all__ = ["PAGE", "PICTURE", "page", "picture"]

DOCS = Path(__file__).parent.parent
PAGE, PICTURE = DOCS / "explanation" / "architecture.md", DOCS / "images" / "architecture.svg"
BEGIN, END = "<!-- walk -->", "<!-- end of the walk -->"
WORDS = {
    "cli": "one file per command",
    "flower": "an engine: mod, strategy, rounds",
    "nvflare": "another engine: filters at both ends",
    "local": "the round loop in one process",
    "run": "plan, rounds, turns, report; one file per capability",
    "node": "the owner's policy, ledger and gatekeeper",
    "auditor": "a self-test of this machine",
    "plan": "comparisons, and the rule of a moving clip",
    "secagg": "masked sums",
    "wire": "update to bytes, bytes to mean",
    "mechanism": "clip, randomise, decode, price",
    "privacy": "curves, releases, guarantees",
    "kernel": "the only code that knows devices",
    "design": "tables and profiles, certified",
}
ROW, WIDTH, LEFT, TOP = 44, 390, 20, 54
SEND, RECEIVE = "#00897b", "#e07b00"


def page() -> str:
    """Return the page with its walk written anew."""
    text = PAGE.read_text(encoding="utf-8")
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    return f"{text[:start]}\n\n{_tables()}\n{text[stop:]}"


def picture() -> str:
    """Return the picture, in colours that light and dark pages can both show."""
    send, receive = one_send(), one_receive()
    height = TOP + ROW * len(LAYERS) + 16
    ink = "#5f6b7a"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 {height}" role="img" '
        f'aria-label="Folders of the library from the top down, with the files that one send and one receive pass">',
        f'<g font-family="sans-serif" font-size="13" fill="{ink}">',
        f'<text x="{LEFT}" y="24" font-weight="bold">imports point down</text>',
        f'<text x="{LEFT + WIDTH + 30}" y="24" font-weight="bold" fill="{SEND}">'
        f"send: {len(send.files)} files, {send.calls} calls</text>",
        f'<text x="{LEFT + WIDTH + 30}" y="42" font-weight="bold" fill="{RECEIVE}">'
        f"receive: {len(receive.files)} files, {receive.calls} calls</text>",
    ]
    for place, name in enumerate(LAYERS):
        y = TOP + ROW * place
        parts.append(
            f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW - 8}" rx="6" fill="none" stroke="{ink}"/>'
            f'<text x="{LEFT + 12}" y="{y + 23}" font-weight="bold">{name}/</text>'
            f'<text x="{LEFT + 104}" y="{y + 23}" font-size="12">{escape(WORDS[name])}</text>'
        )
        for row, (walk, colour) in enumerate(((send, SEND), (receive, RECEIVE))):
            files = [Path(file).stem for file in walk.files if file.startswith(f"{name}/")]
            if files:
                parts.append(
                    f'<circle cx="{LEFT + WIDTH + 18}" cy="{y + 11 + 15 * row}" r="4" fill="{colour}"/>'
                    f'<text x="{LEFT + WIDTH + 30}" y="{y + 15 + 15 * row}" font-size="12" fill="{colour}">'
                    f"{escape(', '.join(files))}</text>"
                )
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def _tables() -> str:
    found = []
    for title, walk in (("One send", one_send()), ("One receive", one_receive())):
        found.append(f"### {title}: {len(walk.files)} files, {walk.calls} calls\n")
        found.append("| | file | what it is |\n|---|---|---|")
        found.append("\n".join(_rows(walk)) + "\n")
    return "\n".join(found)


def _rows(walk: Walk) -> list[str]:
    return [
        f"| {place} | `{file}` | {_headline(file)} |" for place, file in enumerate(walk.files, 1)
    ]


def _headline(file: str) -> str:
    text = ast.get_docstring(ast.parse((ROOT / file).read_text(encoding="utf-8"))) or ""
    return text.splitlines()[0].rstrip(".").replace("|", "\\|")


def main() -> None:
    """Write both."""
    PAGE.write_text(page(), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
    print(PAGE, PICTURE)


if __name__ == "__main__":
    main()
