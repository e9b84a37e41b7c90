"""A report as one HTML file: no network, no library, light and dark, on a phone too.

Idea     the page's parts are plain files beside this one; here they become one text. Data from
         records enters as JSON in which no tag can end, is shown as text and never as markup, and a
         policy of the page itself lets no other script or address in.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from quietbit._files import write_whole
from quietbit.errors import require
from quietbit_lab.report.page_data import page_data
from quietbit_lab.report.runs import PlacedRun

__all__ = ["render_page", "save_page"]

SCRIPTS = ("chart.js", "tip.js", "plots.js", "mechanism.js", "groups.js", "table.js", "page.js")


def render_page(runs: Sequence[PlacedRun], title: str = "Private federated training") -> str:
    """Return the report of these runs, as the text of an HTML file."""
    return _assembled(page_data(runs, title))


def save_page(page: str, path: Path) -> Path:
    """Write a page; its name must end in .html, and it appears whole or not at all."""
    require(
        path.suffix.lower() in (".html", ".htm"),
        "end of the report's file name",
        path.name,
        ".html",
        "browsers open pages by it",
    )
    return write_whole(path, lambda file: file.write(page.encode()))


def _assembled(data: dict[str, Any]) -> str:
    script = "\n" + '"use strict";\n' + "\n".join(_part(name) for name in SCRIPTS)
    style = "\n" + _part("page.css")
    places = {
        "policy": _policy(style, script),
        "title": html.escape(data["title"]),
        "summary": html.escape(data["comparisons"][0]["summary"]),
        "lead": html.escape(_lead(data)),
        "style": style,
        "data": _json(data),
        "script": script,
    }
    # One pass from left to right: what a place receives is never searched for places again.
    text = ""
    for piece in _part("page.html").split("{{"):
        name, closed, rest = piece.partition("}}")
        text += places[name] + rest if closed else piece
    return text


def _lead(data: dict[str, Any]) -> str:
    runs = data["made"]["runs"]
    several = len(data["comparisons"])
    labels = sum(label["mechanism"] != "none" for label in data["labels"])
    first = data["comparisons"][0]
    words = (
        f"{runs:,} run{'s' if runs != 1 else ''} of {labels} mechanism{'s' if labels != 1 else ''}"
    )
    if several > 1:
        return f"{words}, in {several} comparisons, each of epsilons that mean the same."
    meaning = f"Privacy of one {first['unit']}, {first['adjacency']} adjacency."
    return f"{words} on {first['task']}. {meaning}"


def _part(name: str) -> str:
    return (files("quietbit_lab.report") / "page_parts" / name).read_text(encoding="utf-8")


def _json(data: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in: every < > & is written as an escape."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _policy(style: str, script: str) -> str:
    """Only this style and this script, nothing from anywhere else."""
    styles = f"style-src '{_digest(style)}'"
    scripts = f"script-src '{_digest(script)}'"
    return f"default-src 'none'; {styles}; {scripts}; base-uri 'none'"


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
