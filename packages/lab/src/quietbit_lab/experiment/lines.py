"""Lines of results that are appended atomically, by one process per folder.

Idea     a line is one write at the end of the file, taken back if the disk refuses it. A process
         killed in the middle of a line leaves a torn one, which readers skip and the next writer
         removes. A lock dies with the process that holds it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from quietbit.errors import QuietbitError

__all__ = ["append_line", "only_writer", "read_lines"]


def append_line(path: Path, value: Any) -> None:
    """Append a line of JSON, on disk when this returns; a torn line before it is removed."""
    line = json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    try:
        with open(path, "a+b", buffering=0) as file:
            file.seek(0)
            end = file.truncate(file.read().rfind(b"\n") + 1)
            try:
                if file.write(line) != len(line):
                    raise OSError(28, "No space left on device")
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise
    except OSError as error:
        raise QuietbitError(
            f"Cannot write {path}: {error.strerror}. The earlier results in it are intact: make "
            "room and continue with --resume."
        ) from error


def read_lines(path: Path) -> list[Any]:
    """Return every whole line; a torn last line is left out, a damaged one before it is refused."""
    if not path.exists():
        return []
    content = path.read_bytes()
    lines = []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise QuietbitError(
                f"Line {number} of {path} is damaged: it is not JSON. Remove the line and continue "
                "with --resume."
            ) from error
    return lines


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock the folder for one process; a killed process releases it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0, is_singleton=False).acquire()
    except Timeout as error:
        raise QuietbitError(
            f"Another process is writing to {folder}: wait for it, or stop it first."
        ) from error
    except OSError as error:
        raise QuietbitError(f"Cannot write {folder}: {error.strerror}.") from error
    with lock:
        yield
