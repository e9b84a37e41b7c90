"""Formulas as MathML: what is between dollars becomes a formula when the site is built.

Idea     browsers draw MathML by themselves, so the site needs no script and fetches nothing.
         Arithmatex finds the formulas in the Markdown (where GitHub finds them too); this hook
         turns each into MathML, and a formula that cannot be read stops the build.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

__all__ = ["on_page_content"]

FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Render the formulas of a page, after Markdown and before the theme."""
    return FORMULA.sub(_formula, content)


def _formula(found: re.Match[str]) -> str:
    display = found[1] == "div"
    text = html.unescape(found[2]).strip()
    opening, closing = (r"\[", r"\]") if display else (r"\(", r"\)")
    latex = text.removeprefix(opening).removesuffix(closing).strip()
    written = convert(latex, display="block" if display else "inline")
    bare = latex.replace(r"\{", "").replace(r"\}", "")
    if bare.count("{") != bare.count("}") or "\\" in re.sub(r"<[^>]*>", "", written):
        raise ValueError(
            f"this formula cannot be read: {latex}"
        )  # the converter passes on what it does not know
    return f'<div class="formula">{written}</div>' if display else written
