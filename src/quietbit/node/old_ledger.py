"""Ledgers of quietbit 0.1: a text file of chained lines and a counter in JSON, read once.

Idea     `quietbit node import` hands the lines to a new ledger as they are, so that every digest,
         head and release is the same. A ledger that quietbit 0.1 would have refused is refused
         here, too; the old files are not changed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from quietbit.errors import check_int, require
from quietbit.node.ledger import FileLedger, LedgerError, LedgerState, check_owner, owned_path

__all__ = ["import_ledger"]

COUNTER = "quietbit-counter"
MOST_BYTES = 256 * 2**20


def import_ledger(
    ledger: str | os.PathLike[str],
    counter: str | os.PathLike[str],
    old_ledger: str | os.PathLike[str],
    old_counter: str | os.PathLike[str],
) -> FileLedger:
    """Make ``ledger`` and ``counter`` of the lines of a ledger of quietbit 0.1."""
    place = owned_path(old_ledger, "old ledger")
    # An incomplete last line was never acted upon.
    complete = _content(place, "old ledger").rpartition(b"\n")[0]
    state = LedgerState(f"The ledger {place}")
    try:
        lines = complete.decode("ascii").split("\n")
        for line in lines:
            state.take(line)
    except UnicodeDecodeError as error:
        raise LedgerError(f"{place} is not a ledger of quietbit 0.1.") from error
    _check_counter(owned_path(old_counter, "old counter"), state)
    return FileLedger.create(ledger, counter, lines)


def _check_counter(place: Path, state: LedgerState) -> None:
    try:
        values = json.loads(_content(place, "old counter"))
        require(values["format"] == COUNTER, "format", values["format"], COUNTER)
        count = check_int(values["count"], "count", 1)
        state.check_counter(place, values["ledger"], count, values["head"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LedgerError(f"{place} is not a counter of quietbit 0.1.") from error


def _content(path: Path, name: str) -> bytes:
    """Return the bytes of an owner's file, which no process of quietbit 0.1 writes meanwhile."""
    check_owner(path, name)
    try:
        with path.open("rb") as file:
            _lock(file.fileno())
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise LedgerError(f"Cannot read the {name} {path}: {error.strerror}.") from error
    if len(data) > MOST_BYTES:
        raise LedgerError(f"The {name} {path} has more than {MOST_BYTES} bytes.")
    return data


def _lock(handle: int) -> None:
    try:
        import fcntl
    except ImportError:  # quietbit 0.1 had no ledgers on systems without POSIX locks
        return
    fcntl.flock(handle, fcntl.LOCK_SH)
