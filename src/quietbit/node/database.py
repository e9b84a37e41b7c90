"""The owner's databases: SQLite files that nobody else may change, opened for one transaction.

Idea     a ledger is worth as much as the rights on its file. So every opening checks that the file
         is a regular one of this user with one name, in a folder where no other user can put or
         replace anything, a journal included. A missing file is an error: only `create` makes one.
         `synchronous=extra` forces a transaction to disk before it counts, and `secure_delete`
         wipes what is deleted. SQLite locks the file, and rolls back what a crash left.
Source   https://www.sqlite.org/lockingv3.html and https://www.sqlite.org/pragma.html.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from quietbit._files import others
from quietbit.errors import QuietbitError, require

__all__ = [
    "COUNTER",
    "HELP",
    "LEDGER",
    "LedgerError",
    "check_owner",
    "created",
    "opened",
    "owned_path",
]

APPLICATION = 0x71426974  # "qBit", in the header of the file
VERSION = 3  # of the schema; version 2 was a text file
LEDGER = (  # the tables of `node.ledger`, `node.refusal_log` and `node.costs`
    "create table lines (number integer primary key, line text not null)",
    "create table refusals (number integer primary key, time real not null, run text not null, "
    "round integer not null, reason text not null, detail text not null)",
    "create table reasons (reason text primary key, count integer not null)",
    "create table refused_runs (run text primary key, time real not null, boot text not null, "
    "running real not null)",
    "create table costs (version text, bound text, alpha real, value real not null, "
    "primary key (version, bound, alpha))",
)
COUNTER = (
    "create table counter (ledger text not null, count integer not null, head text not null)",
)
PAGES = 2**16  # of 4096 bytes each: the largest file that is written
WAIT = 60.0  # seconds until a lock that another process holds is an error
HELP = (
    "Restore the newest copy of both files. Without a copy the account of this node's releases is "
    "lost: only its owner can decide to move both files away and start again with `quietbit node "
    "init`"
)
IMPORT = (
    "If an earlier quietbit wrote it, move both files away and give them to `quietbit node import`"
)


class LedgerError(QuietbitError):
    """A ledger that cannot be read, written or trusted: the node then releases nothing."""


def owned_path(path: str | os.PathLike[str], name: str) -> Path:
    """Return an absolute path whose folder has no links in it; the file itself may not be one."""
    place = Path(path).expanduser()
    # A relative path would name another file in another working directory.
    require(place.is_absolute(), name, str(path), "an absolute path")
    return Path(os.path.realpath(place.parent)) / place.name


def check_owner(path: Path, name: str) -> None:
    """Refuse a file that other users could change or replace, and whatever is not a file."""
    try:
        file = os.lstat(path)
    except FileNotFoundError as error:
        raise LedgerError(
            f"The {name} {path} is missing: only `quietbit node init` makes one, once. {HELP}."
        ) from error
    except OSError as error:
        raise LedgerError(f"Cannot open the {name} {path}: {error.strerror}.") from error
    if not stat.S_ISREG(file.st_mode) or file.st_nlink != 1:
        raise LedgerError(
            f"The {name} {path} must be a regular file with one name: not a FIFO, a device, a "
            "symbolic link or a hard link."
        )
    _check_folder(path, name)
    problem = others(file, name, path)
    if problem:
        raise LedgerError(problem)


def _check_folder(path: Path, name: str) -> None:
    problem = others(os.lstat(path.parent), f"folder of the {name}", path.parent)
    if problem:
        raise LedgerError(problem)


@contextlib.contextmanager
def opened(path: Path, name: str, *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """Open an owner's database for one transaction, which an exception rolls back."""
    check_owner(path, name)
    with _connected(path, name) as database:
        database.execute("begin immediate" if write else "begin")
        if database.execute("pragma application_id").fetchone()[0] != APPLICATION:
            raise LedgerError(f"{path} is not a {name} of quietbit. {IMPORT}.")
        version = database.execute("pragma user_version").fetchone()[0]
        if version != VERSION:
            raise LedgerError(
                f"The {name} {path} cannot be used: it has version {version}, and this quietbit "
                f"reads version {VERSION}. Install the quietbit that wrote it, or a newer one."
            )
        yield database
        database.execute("commit")


@contextlib.contextmanager
def created(path: Path, name: str, tables: tuple[str, ...]) -> Iterator[sqlite3.Connection]:
    """Make a database with these tables, for its owner only; refuse where the file exists."""
    try:
        _check_folder(path, name)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise LedgerError(f"Cannot make the {name} {path}: {error.strerror}.") from error
    with _connected(path, name) as database:
        database.execute("pragma journal_mode = delete")
        database.execute("begin immediate")
        database.execute(f"pragma application_id = {APPLICATION}")
        database.execute(f"pragma user_version = {VERSION}")
        for table in tables:
            database.execute(table)
        yield database
        database.execute("commit")


@contextlib.contextmanager
def _connected(path: Path, name: str) -> Iterator[sqlite3.Connection]:
    """Connect to an existing file; an error of SQLite says which file it is about."""
    try:
        database = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, timeout=WAIT, isolation_level=None
        )
        with contextlib.closing(database):
            database.execute("pragma synchronous = extra")
            database.execute("pragma secure_delete = on")
            database.execute(f"pragma max_page_count = {PAGES}")
            yield database
    except sqlite3.Error as error:
        remedy = ""
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
            remedy = f" {IMPORT}."
        raise LedgerError(f"Cannot use the {name} {path}: {error}.{remedy}") from error
