"""Where results go: every path is tried before the work starts, so that nothing is half done."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from quietbit.errors import QuietbitError, require
from quietbit.plot.figure import FORMATS

__all__ = ["check_folder", "check_outputs"]


def check_outputs(*paths: Path | None, figures: tuple[Path | None, ...] = ()) -> None:
    """Refuse a path that cannot be written, is named twice, or is a figure of unknown format."""
    given = [path for path in (*paths, *figures) if path is not None]
    names = [str(path) for path in given]
    require(len({os.path.abspath(name) for name in names}) == len(names), "output paths", names, "different")
    for path in figures:
        known = path is None or path.suffix.lower().removeprefix(".") in FORMATS
        require(known, "end of the figure's file name", str(path), "one of ." + ", .".join(FORMATS))
    for path in given:
        if path.is_dir():
            raise QuietbitError(f"Cannot write {path}: it is a folder.")
        _try(path, path.parent)


def check_folder(folder: Path) -> None:
    """Make a folder for results, or say why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise QuietbitError(f"Cannot write {folder}: {error.strerror}.") from error
    _try(folder, folder)


def _try(path: Path, folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise QuietbitError(f"Cannot write {path}: {error.strerror}.") from error
