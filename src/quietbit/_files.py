"""Files that are written atomically, those that other users may change, and the folder of caches.

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

__all__ = [
    "OTHERS_WRITE",
    "PRIVATE",
    "cache_folder",
    "others",
    "write_json",
    "write_text",
    "write_whole",
]

OTHERS_WRITE = 0o022  # permission bits: that others may write; any right of others
PRIVATE = 0o077


def others(
    status: os.stat_result, name: str, path: str | os.PathLike[str], barred: int = OTHERS_WRITE
) -> str:
    """Return who besides this user and root has a right on a file, as a sentence; empty if nobody.

    Rights on Windows are lists, which these bits do not show: there nothing is checked.
    """
    if os.name == "nt":
        return ""
    place = os.fspath(path)
    user = os.geteuid()
    if status.st_uid not in (user, 0):
        return (
            f"The {name} {place} belongs to user {status.st_uid} and is used by user {user}: use "
            "it as its owner."
        )
    if status.st_mode & barred & OTHERS_WRITE:
        return f"Other users may write the {name} {place}: chmod go-w {place}."
    if status.st_mode & barred:
        return f"Other users may read the {name} {place}: chmod go= {place}."
    return ""


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
            with contextlib.suppress(OSError):
                os.unlink(name)
    return path


def write_text(path: Path, text: str, *, make_folder: bool = True) -> Path:
    """Write a text in UTF-8, atomically."""
    return write_whole(path, lambda file: file.write(text.encode()), make_folder=make_folder)


def write_json(path: Path, value: Any) -> Path:
    """Write a JSON file, atomically."""
    return write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
