"""What several commands of the laboratory take: I-MVU's options, words for numbers, a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import quietbit
from quietbit.cli.options import find_design, refusing, usual

__all__ = ["OF_IMVU", "check_folder", "find_imvu", "number_or_word"]

OF_IMVU = (
    usual("adjacency", ...),
    usual("norm", "l2"),
    usual("beta", 1.0),
    usual("clamp", False),
    usual("delta", 1e-5),
)


def number_or_word(text: str) -> float | str:
    """Return the text as a number where it is one; the library checks other words."""
    try:
        return float(text)
    except ValueError:
        return text


def find_imvu(text: str, given: Mapping[str, Any]) -> quietbit.InterpolatedMVU:
    """Return I-MVU with the design of this file or name, and the options' ball and beta."""
    ball = quietbit.Ball(given["norm"], given["dimension"])
    return quietbit.InterpolatedMVU(find_design(text), ball, given["beta"], given["clamp"])


def check_folder(folder: Path) -> None:
    """Make a folder for results; refuse one that cannot be written in."""
    with refusing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
