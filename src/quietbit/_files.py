"""Files that appear whole or not at all, lines that are appended whole or not at all, and the folder of caches.

Idea     a file is written beside its place, forced to disk and moved there; a line of results is one write at the end
         of the file, taken back if the disk refuses part of it. A process killed in the middle of a line leaves
         a torn one, which readers skip and the next writer removes. A lock dies with the process that holds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from quietbit.errors import QuietbitError, require_module

__all__ = ["append_line", "cache_folder", "only_writer", "read_lines", "write_json", "write_text", "write_whole"]

BINARY = getattr(os, "O_BINARY", 0)  # Windows would turn line ends into two bytes without it


def cache_folder(name: str) -> Path:
    """Return where things of this name are kept: under ``QUIETBIT_CACHE``, or in the user's cache folder."""
    override = os.environ.get("QUIETBIT_CACHE")
    base = Path(override) if override else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quietbit"
    return base / name


def write_whole(path: Path, write: Callable[[IO[bytes]], object], *, make_folder: bool = True) -> Path:
    """Let ``write`` fill a file that appears under ``path`` only when it is complete and on disk."""
    name = None
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        raise QuietbitError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        if name is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
    return path


def write_text(path: Path, text: str, *, make_folder: bool = True) -> Path:
    """Write a text in UTF-8, whole."""
    return write_whole(path, lambda file: file.write(text.encode()), make_folder=make_folder)


def write_json(path: Path, value: Any) -> Path:
    """Write a JSON file, whole."""
    return write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def append_line(path: Path, value: Any) -> None:
    """Append a line of JSON, on disk when this returns; a torn line before it is removed."""
    line = json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o644)
    except OSError as error:
        raise QuietbitError(f"Cannot write {path}: {error.strerror}.") from error
    try:
        end = _end_of_last_line(handle)
        try:
            os.ftruncate(handle, end)
            os.lseek(handle, end, os.SEEK_SET)
            if os.write(handle, line) != len(line):
                raise OSError(28, "No space left on device")
            os.fsync(handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, end)
            raise QuietbitError(f"Cannot write {path}: {error.strerror}; what it held before is intact.") from error
    finally:
        os.close(handle)


def read_lines(path: Path) -> list[Any]:
    """Return every whole line; a torn last line is left out, a damaged one before it is refused."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    found = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise QuietbitError(f"Line {number} of {path} is damaged: it is not JSON.") from error
    return found


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder for one process; a second one is refused, and a killed one lets go by dying."""
    filelock = require_module("filelock", "")
    lock = filelock.FileLock(folder / ".lock", timeout=0, is_singleton=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout as error:
        raise QuietbitError(f"Another process is writing to {folder}: wait for it, or stop it first.") from error
    except OSError as error:
        raise QuietbitError(f"Cannot write {folder}: {error.strerror}.") from error
    try:
        yield
    finally:
        lock.release()


def _end_of_last_line(handle: int) -> int:
    position = os.fstat(handle).st_size
    while position > 0:
        start = max(0, position - 4096)
        os.lseek(handle, start, os.SEEK_SET)
        found = os.read(handle, position - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0
