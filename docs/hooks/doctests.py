"""Examples in docstrings as code: a griffe extension that fences them before the reference is rendered.

Idea     an example in a docstring is a paragraph that begins with ``>>>``. Markdown reads three of those as nested
         quotations, so each such paragraph is put between fences. The docstrings stay as Python programmers write them.
"""

from __future__ import annotations

from typing import Any

import griffe

__all__ = ["Doctests", "fenced"]


class Doctests(griffe.Extension):
    """Fences the examples of every docstring that griffe collects."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return the text with every paragraph that begins with ``>>>`` between fences."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        f"```pycon\n{one}\n```" if one.lstrip().startswith(">>>") else one for one in paragraphs
    )
