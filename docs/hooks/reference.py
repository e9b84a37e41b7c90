"""What MkDocs does with pages before it renders them.

The API reference, and links that leave the documentation.

Idea     the pages ``reference/api*.md`` hold a line each, ``<!-- public names: mechanisms -->``;
         MkDocs calls this, which puts a directive of mkdocstrings per public name of that page in
         its place. `PAGES` says which folder is on which page, and a folder that it does not name
         is on the first. A name that is exported is documented; there is no second list to keep. A
         link to a file outside of docs/, which works in the repository and not on the site, becomes
         the file's path in words.
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

__all__ = ["PAGES", "on_page_markdown", "page_names", "public_names"]

MARKER = re.compile(r"<!-- public names: (?P<page>[a-z]+) -->")
PAGES = {
    "mechanisms": ("design", "mechanism", "kernel", "gradients"),
    "privacy": ("privacy", "target", "errors"),
    "runs": ("run", "plan", "simulate", "engine", "auditor", "local"),
    "sums": ("secagg",),
    "engines": ("flower", "nvflare", "node"),
}
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(?:#[^)\s]+)?\)")
FIRST = ("quietbit.wire.uplink.Uplink", "quietbit.mechanism.calibrate.calibrate")
# Folders in the order a reader meets them, with what they hold; a folder that is not listed comes
# last.
FOLDERS = {
    "design": "Designs",
    "mechanism": "Mechanisms",
    "privacy": "Privacy accounts",
    "wire": "Sending and receiving",
    "gradients": "Torch models",
    "kernel": "Random bits",
    "auditor": "Auditing",
    "secagg": "Secure aggregation",
    "run": "Plans and runs",
    "plan": "Comparisons",
    "local": "Training",
    "node": "What a node's owner controls",
    "flower": "Flower",
    "nvflare": "NVFlare",
    "target": "Targets",
    "errors": "Errors",
}


def public_names() -> dict[str, list[str]]:
    """Return the full path of every public name but the version, by heading.

    The two that everybody needs first.
    """
    found: dict[str, list[str]] = {}
    for package in (quietbit, quietbit.node, quietbit.flower, quietbit.nvflare):
        for line in ast.parse(
            Path(str(package.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
        ).body:
            if isinstance(line, ast.ImportFrom):
                paths = found.setdefault(str(line.module).split(".")[1], [])
                paths.extend(
                    path
                    for name in line.names
                    if (path := f"{line.module}.{name.name}") not in paths
                )
    order = [*FOLDERS, *sorted(set(found) - set(FOLDERS))]
    rest = {
        FOLDERS.get(one, one): [path for path in found[one] if path not in FIRST]
        for one in order
        if one in found
    }
    return {"Where to start": list(FIRST), **rest}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the reference page."""
    folder = posixpath.dirname(page.file.src_uri)

    def settle(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        outside = not path.startswith("docs/") and not re.match(r"[a-z]+:", link[2])
        return f"{link[1]} (`{path}`)" if outside else link[0]

    settled = LINK.sub(settle, markdown)
    return MARKER.sub(lambda marker: _directives(marker["page"]), settled)


def page_names(page: str) -> dict[str, list[str]]:
    """Return the public names of one page by heading.

    ``start`` has the two for everybody, and what has no page.
    """
    names = public_names()
    headings = {FOLDERS.get(folder, folder) for folder in PAGES.get(page, ())}
    elsewhere = {FOLDERS.get(folder, folder) for folders in PAGES.values() for folder in folders}
    return {
        heading: paths
        for heading, paths in names.items()
        if paths and (heading in headings if page in PAGES else heading not in elsewhere)
    }


def _directives(page: str) -> str:
    lines: list[str] = []
    for heading, paths in page_names(page).items():
        lines.append(f"## {heading}\n")
        lines.extend(f"::: {path}\n    options:\n      heading_level: 3\n" for path in paths)
    return "\n".join(lines)
