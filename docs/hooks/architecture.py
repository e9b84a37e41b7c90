"""Draw the way of an update for docs/explanation/architecture.md, and count its files and calls.

    python docs/hooks/architecture.py

Idea     the picture follows one update over Flower, down on a client and up on a server, with the
         files that it passes. Those of the core are checked against the walk itself, so a file that
         an update no longer passes cannot stay in the picture. The page is prose but for the
         sentence between two markers. A test fails when either is stale.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

from diagrams import STYLE
from walk import ROOT, one_receive, one_send

__all__ = ["PAGE", "PICTURE", "page", "picture"]

DOCS = Path(__file__).parent.parent
PAGE = DOCS / "explanation" / "architecture.md"
PICTURE = DOCS / "images" / "architecture.svg"
BEGIN = "<!-- walk -->"
END = "<!-- end of the walk -->"
CORE = ("wire", "mechanism", "kernel")  # what `Uplink` reaches


class Stop(NamedTuple):
    """What happens to an update at one place, and the files where it does."""

    files: tuple[str, ...]
    line: str


CLIENT = (
    Stop(("flower/client.py",), "your app has trained: the array comes back"),
    Stop(("federation/client.py",), "parts change what is released, in reverse"),
    Stop(("node/budget.py", "node/ledger.py"), "cost noted, before the app ran"),
    Stop(("node/gate.py",), "exactly one release, zero if the app failed"),
    Stop(("wire/uplink.py",), "send: one flat vector"),
    Stop(("mechanism/interpolated.py", "kernel/cpu.py"), "clipped, rotated, randomised"),
    Stop(("wire/payload.py",), "header, packed codes, checksums"),
)
SERVER = (
    Stop(("federation/server.py",), "the step of the model; a row of the report"),
    Stop(("mechanism/rotation.py",), "sums to a mean, rotated back"),
    Stop(("mechanism/accumulate.py", "kernel/cpu.py"), "exact sums of codes"),
    Stop(("wire/uplink.py", "wire/payload.py"), "receive: every field checked"),
    Stop(("federation/collectors.py",), "a plain mean, or a masked sum"),
    Stop(("federation/round.py",), "take: the first valid release of each node"),
    Stop(("flower/strategy.py", "flower/transport.py"), "the message is read, once"),
)
TOP = 44
ROW = 66
HEIGHT = 48
WIDTH = 372
LEFT = 12
RIGHT = LEFT + WIDTH + 32
BOTTOM = TOP + ROW * len(CLIENT)


def page() -> str:
    """Return the page with its counts written anew."""
    text = PAGE.read_text(encoding="utf-8")
    start = text.index(BEGIN) + len(BEGIN)
    stop = text.index(END)
    send, receive = one_send(), one_receive()
    counts = (
        f"One send passes {len(send.files)} files in {send.calls} calls, one receive "
        f"{len(receive.files)} in {receive.calls}."
    )
    return f"{text[:start]}\n{counts}\n{text[stop:]}"


def picture() -> str:
    """Return the picture; its colours follow the reader's light or dark setting."""
    height = BOTTOM + 42
    title = "The way of an update: seven places down on a client, seven up on a server"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" role="img">',
        f"<title>{title}</title>\n<style>{STYLE}</style>",
        _text(LEFT + WIDTH // 2, 24, "a client's array", "bold"),
        _text(RIGHT + WIDTH // 2, 24, "the server's mean", "bold"),
    ]
    columns = ((LEFT, CLIENT, one_send().files), (RIGHT, SERVER, one_receive().files))
    for x, stops, passed in columns:
        kind = "own" if x == LEFT else "far"
        for place, stop in enumerate(stops):
            lines += _box(x, TOP + ROW * place, stop, kind, passed)
    for place in range(len(CLIENT) - 1):
        y = TOP + ROW * place + HEIGHT
        lines.append(_arrow(LEFT + WIDTH // 2, y, y + ROW - HEIGHT))
        lines.append(_arrow(RIGHT + WIDTH // 2, y + ROW - HEIGHT, y))
    lines.append(_crossing())
    return "\n".join([*lines, "</svg>"]) + "\n"


def _box(x: int, y: int, stop: Stop, kind: str, passed: tuple[str, ...]) -> list[str]:
    """Return a place, once its files are known to exist and, in the core, to be passed."""
    for file in stop.files:
        if not (ROOT / file).is_file():
            raise FileNotFoundError(f"the picture names {file}, which does not exist")
        if file.split("/")[0] in CORE and file not in passed:
            raise ValueError(f"the picture names {file}, which an update does not pass")
    middle = x + WIDTH // 2
    return [
        f'<rect class="{kind}" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="7"/>',
        _text(middle, y + 20, ", ".join(stop.files), "bold"),
        _text(middle, y + 39, stop.line, "small"),
    ]


def _text(x: int, y: int, words: str, style: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}" text-anchor="middle">{escape(words)}</text>'


def _arrow(x: int, start: int, stop: int) -> str:
    """Return a short arrow down or up."""
    back = -9 if stop > start else 9
    return (
        f'<path d="M{x},{start}V{stop + back}"/><path class="head" d="M{x},{stop}l-5,{back}h10z"/>'
    )


def _crossing() -> str:
    """Return the way of the bytes from the last place of a client to the first of the server."""
    low = BOTTOM - ROW + HEIGHT
    start, stop = LEFT + WIDTH // 2, RIGHT + WIDTH // 2
    bend = low + 24
    return (
        f'<path d="M{start},{low}V{bend}H{stop}V{low + 9}"/>'
        f'<path class="head" d="M{stop},{low}l-5,9h10z"/>'
        + _text((start + stop) // 2, bend + 22, "the engine carries the bytes", "small")
    )


def main() -> None:
    """Write the page and its picture."""
    PAGE.write_text(page(), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
    print(PAGE, PICTURE)


if __name__ == "__main__":
    main()
