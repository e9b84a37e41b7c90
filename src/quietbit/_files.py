"""Files that are written atomically, and the folder of caches.

Idea     a file is written beside its place, forced to disk and moved there, so that a reader sees
         either all of it or none.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from quietbit.errors import QuietbitError

__all__ = ["cache_folder", "write_json", "write_text", "write_whole"]


def cache_folder(name: str) -> Path:
    """Return the cache folder ``name``: below ``QUIETBIT_CACHE``, or in the user's cache folder."""
    override = os.environ.get("QUIETBIT_CACHE")
    if override:
        return Path(override) / name
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "quietbit" / name


def write_whole(
    path: Path, write: Callable[[IO[bytes]], object], *, make_folder: bool = True, mode: int = 0o644
) -> Path:
    """Let ``write`` fill a file, which appears as ``path`` only once it is complete and on disk."""
    name = None
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except OSError as error:
        raise QuietbitError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        if name is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
    return path


def write_text(path: Path, text: str, *, make_folder: bool = True) -> Path:
    """Write a text in UTF-8, atomically."""
    return write_whole(path, lambda file: file.write(text.encode()), make_folder=make_folder)


def write_json(path: Path, value: Any) -> Path:
    """Write a JSON file, atomically."""
    return write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
