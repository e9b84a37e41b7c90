"""Which folder of the library imports which, and the files that one update passes.

    python docs/hooks/walk.py

Idea     imports are read from the sources, and calls are noted as they happen (`sys.setprofile`)
         while one payload is sent and one is received, after a first that fills caches. The way
         into C counts with the kernel that calls it. A test holds the numbers, and the page of the
         architecture shows them.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, final

import numpy as np

import quietbit
from quietbit import Ball, Mechanism, Uplink, calibrate, seeded_rng

__all__ = [
    "LAYERS",
    "Hop",
    "Walk",
    "calibrated",
    "folder_graph",
    "main",
    "one_receive",
    "one_send",
    "sizes",
]

ROOT = Path(quietbit.__file__).parent
DIMENSION = 1000
COMPILED = f"{os.sep}kernel{os.sep}c{os.sep}"  # counts with the kernel that calls it
# From the top down: a folder imports what is below it only.
LAYERS = (
    "cli",
    "check",
    "flower",
    "nvflare",
    "federation",
    "node",
    "secagg",
    "wire",
    "mechanism",
    "privacy",
    "kernel",
    "design",
    "gradients",
)


@final
@dataclass(frozen=True, slots=True)
class Hop:
    """A call into one of the library's files, ``depth`` calls below the first."""

    file: str
    function: str
    depth: int


@final
@dataclass(frozen=True, slots=True)
class Walk:
    """All calls of one send or one receive, in order."""

    hops: tuple[Hop, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Files in the order in which they are first entered."""
        return tuple(dict.fromkeys(hop.file for hop in self.hops))

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders likewise."""
        return tuple(dict.fromkeys(_folder(file) for file in self.files))

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return len(self.hops)


def folder_graph(root: Path = ROOT) -> dict[str, set[str]]:
    """Return the folders that the files of every folder import; files beside them: "ground"."""
    found: dict[str, set[str]] = {}
    for path in sorted(root.rglob("*.py")):
        here = _folder(str(path.relative_to(root)))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                parts = name.split(".")
                if parts[0] == root.name and len(parts) > 1 and parts[1] != here:
                    found.setdefault(here, set()).add(
                        parts[1] if (root / parts[1]).is_dir() else "ground"
                    )
    return found


def sizes(root: Path = ROOT) -> dict[str, tuple[int, int]]:
    """Return the number of files and lines of every folder."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(root.rglob("*.py")):
        name = _folder(str(path.relative_to(root)))
        files, lines = found.get(name, (0, 0))
        found[name] = files + 1, lines + len(path.read_text(encoding="utf-8").splitlines())
    return found


def calibrated(word: str) -> Mechanism:
    """Return a mechanism for 1,000 parameters as `calibrate` makes it for users: rotated."""
    ball = Ball("l2", DIMENSION)
    return calibrate(word, ball=ball, epsilon=1.0, delta=1e-5, adjacency="zero-out").mechanism


def one_send(mechanism: Mechanism | None = None) -> Walk:
    """Return the calls of `Uplink.send` for an update longer than the clip; I-MVU unless given."""
    uplink = Uplink(mechanism or calibrated("imvu"))
    update = np.linspace(-1.0, 1.0, uplink.structure.size, dtype=np.float32)
    rng = seeded_rng(1)
    return _walked(lambda: uplink.send(update, rng))


def one_receive() -> Walk:
    """Return the calls of `Uplink.receive` for the mean of one payload."""
    uplink = Uplink(calibrated("imvu"))
    payload = uplink.send(np.zeros(DIMENSION, dtype=np.float32), seeded_rng(1))
    return _walked(lambda: uplink.receive([payload]))


def main() -> None:
    """Print the imports between folders, and the calls of one send and one receive."""
    print("Folders, from the top down: files, lines, and what they import")
    graph = folder_graph()
    counted = sizes()
    for name in ("names", *LAYERS, "ground"):
        files, lines = counted.get(name, (0, 0))
        below = [layer for layer in (*LAYERS, "ground") if layer in graph.get(name, set())]
        print(f"  {name:10} {files:3} files {lines:6,} lines   {' '.join(below)}")
    for title, walk in (("send", one_send()), ("receive", one_receive())):
        print(f"\nOne {title}: {len(walk.files)} files, {walk.calls} calls")
        _print_calls(walk)


def _print_calls(walk: Walk) -> None:
    """Write a line per call; what is called again from the same place is counted instead."""
    lines: list[tuple[str, int]] = []
    for hop in walk.hops:
        line = f"  {'  ' * hop.depth}{hop.file}  {hop.function}"
        if lines and lines[-1][0] == line:
            lines[-1] = line, lines[-1][1] + 1
        else:
            lines.append((line, 1))
    for line, times in lines:
        print(line + (f"  x {times}" if times > 1 else ""))


def _walked(errand: Callable[[], Any]) -> Walk:
    errand()  # compiles, and fills what is kept
    hops: list[Hop] = []
    depth = 0
    before = sys.getprofile()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal depth
        name = frame.f_code.co_filename
        if not name.startswith(f"{ROOT}{os.sep}") or COMPILED in name:
            return
        if event == "call":
            inner = frame.f_code.co_name
            if not inner.startswith("<") or inner == "<lambda>":  # comprehensions do not count
                hops.append(Hop(str(Path(name).relative_to(ROOT)), inner, depth))
            depth += 1
        elif event == "return":
            depth -= 1

    sys.setprofile(note)
    try:
        errand()
    finally:
        sys.setprofile(before)
    return Walk(tuple(hops))


def _folder(file: str) -> str:
    """Return the folder of a file; "names" for the public list, "ground" for other files."""
    parts = Path(file).parts
    if len(parts) > 1:
        return parts[0]
    return "names" if file == "__init__.py" else "ground"


if __name__ == "__main__":
    main()
