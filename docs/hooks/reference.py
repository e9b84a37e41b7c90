"""What MkDocs does with pages before it renders them: the API reference, and links that leave the documentation.

Idea     ``reference/api.md`` holds one line, ``<!-- public names -->``; MkDocs calls this hook, which puts a directive
         of mkdocstrings per public name in its place, grouped by the folder the name lives in. A name that is
         exported is documented; there is no second list to keep. A link to a file outside of docs/, which works in
         the repository and not on the site, becomes the file's path in words.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

import quietbit
import quietbit.flower
import quietbit.node
import quietbit.nvflare

__all__ = ["on_page_markdown", "public_names"]

MARKER = "<!-- public names -->"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(?:#[^)\s]+)?\)")
FIRST = ("quietbit.wire.uplink.Uplink", "quietbit.mechanism.calibrate.calibrate")
# Folders in the order a reader meets them, with what they hold; a folder that is not listed comes last.
FOLDERS = {
    "design": "Designs",
    "mechanism": "Mechanisms",
    "privacy": "Privacy accounts",
    "wire": "Sending and receiving",
    "gradients": "Torch models",
    "kernel": "Random bits",
    "auditor": "Auditing",
    "secagg": "Secure aggregation",
    "plan": "Plans",
    "simulate": "Training",
    "node": "What a node's owner controls",
    "flower": "Flower",
    "nvflare": "NVFlare",
    "engine": "The report of a run on an engine",
    "target": "Targets",
    "errors": "Errors",
}


def public_names() -> dict[str, list[str]]:
    """Return the full path of every public name but the version, by heading; the two that everybody needs first."""
    found: dict[str, list[str]] = {}
    for package in (quietbit, quietbit.node, quietbit.flower, quietbit.nvflare):
        for line in ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")).body:
            if isinstance(line, ast.ImportFrom):
                paths = found.setdefault(str(line.module).split(".")[1], [])
                paths.extend(path for name in line.names if (path := f"{line.module}.{name.name}") not in paths)
    order = [*FOLDERS, *sorted(set(found) - set(FOLDERS))]
    rest = {FOLDERS.get(one, one): [path for path in found[one] if path not in FIRST] for one in order if one in found}
    return {"Where to start": list(FIRST), **rest}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the reference page."""
    folder = posixpath.dirname(page.file.src_uri)

    def settle(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        outside = not path.startswith("docs/") and not re.match(r"[a-z]+:", link[2])
        return f"{link[1]} (`{path}`)" if outside else link[0]

    settled = LINK.sub(settle, markdown)
    return settled.replace(MARKER, _directives()) if MARKER in settled else settled


def _directives() -> str:
    lines: list[str] = []
    for heading, paths in public_names().items():
        lines.append(f"## {heading}\n")
        lines.extend(f"::: {path}\n    options:\n      heading_level: 3\n" for path in paths)
    return "\n".join(lines)
