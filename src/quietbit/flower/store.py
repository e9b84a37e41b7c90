"""Where a node's ledger is kept: in Flower's context, or in a file of the node's own.

Idea     a release is noted before it leaves. Flower keeps ``context.state`` in memory, and takes it back from the
         client app only *after* the reply has been handed over. A file (node config ``quietbit.ledger``) is written
         beside its place, forced to disk, renamed, and its folder forced to disk, all under a lock, before anything
         is encoded. What cannot be read or written is an error, and the node declines.

**A node without a file is protected only as long as its messages are handled one at a time.** Flower 1.41 may start
several app processes of one node at once, each from the same copy of ``context.state``: each then answers as if the
others did not exist. A release is then missing from the ledger; of a masked sum, the same step is answered twice, which
can give up both secrets of a client. Nodes in production must have ``quietbit.ledger`` in their node config.

| what happens | context.state | file |
|---|---|---|
| the next round of a run | kept | kept |
| the app fails, or the node declines | kept | kept |
| the client app is killed, before or after its reply was handed over | lost | kept |
| two messages at once: Flower starts a process for each, from the same state | one of two notes is lost | kept |
| the SuperNode restarts (it then has another node id) | lost | kept |
| the SuperLink restarts | kept, for the same run | kept |
| a new run | begins empty, unless it is of the same series | kept |
| a simulation | kept for the run | node configs of simulated nodes cannot name one |

The context carries a copy of the file's ledger: a file that is gone in mid-run, or behind that copy, is refused. A file
that is taken away between runs is not noticed, except by a warning that a new one is begun.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Protocol, final

from quietbit._validate import QuietbitError, require
from quietbit.flower.node_ledger import NodeLedger, UnreadableLedger, read_ledger

__all__ = ["FileStore", "LedgerStore", "StateStore", "store_for"]

LOGGER = logging.getLogger(__name__)
RECORD, FIELD = "quietbit", "ledger"
Change = Callable[[NodeLedger], NodeLedger]
MakeRecord = Callable[[dict[str, str]], Any]


class LedgerStore(Protocol):
    """A ledger that outlives a message."""

    def read(self) -> NodeLedger:
        """The ledger as it is."""
        ...

    def update(self, change: Change) -> NodeLedger:
        """Apply a change and keep the result; where the change raises, nothing is kept."""
        ...


def store_for(node_config: Mapping[str, Any], state: MutableMapping[str, Any], make: MakeRecord) -> LedgerStore:
    """The file that the node config names, else the state; ``make`` builds a record of the state."""
    inner = StateStore(state, make)
    if "quietbit.ledger" not in node_config:
        return inner
    given = node_config["quietbit.ledger"]
    path = Path(given).expanduser() if isinstance(given, str) else Path()
    # A relative path would be another file, and an empty ledger, when the SuperNode is started elsewhere.
    require(path.is_absolute(), "quietbit.ledger of the node", given, "the absolute path of a file")
    return FileStore(path, inner)


@final
class StateStore:
    """The ledger in Flower's context state, as one text."""

    def __init__(self, state: MutableMapping[str, Any], make: MakeRecord) -> None:
        """Hold on to the state; nothing is written yet."""
        self._state, self._make = state, make

    def read(self) -> NodeLedger:
        """The ledger; a state without one has released nothing."""
        if RECORD not in self._state:
            return NodeLedger()
        text = self._state[RECORD].get(FIELD)
        if not isinstance(text, str):
            raise UnreadableLedger("The ledger in the context's state is not readable.")
        return NodeLedger.from_text(text, "The ledger in the context's state")

    def update(self, change: Change) -> NodeLedger:
        """Change it in place."""
        changed = change(self.read())
        self.put(changed)
        return changed

    def put(self, ledger: NodeLedger) -> None:
        """Write it."""
        self._state[RECORD] = self._make({FIELD: ledger.to_text()})


@final
class FileStore:
    """The ledger in a file; the state carries a copy."""

    def __init__(self, path: Path, copy: StateStore) -> None:
        """Name the file; its folder must exist when it is used."""
        # Links are followed once: two names of one file must share a lock, and renaming would replace a link.
        self._path, self._copy = Path(os.path.realpath(path)), copy

    def read(self) -> NodeLedger:
        """The ledger of the file; one that does not exist yet has released nothing."""
        with _locked(self._path):
            return self._read()

    def update(self, change: Change) -> NodeLedger:
        """Read, change, write and force to disk, all under the lock."""
        with _locked(self._path):
            changed = change(self._read())
            if not self._path.exists():
                LOGGER.warning("quietbit: there is no ledger at %s yet; a new one is begun.", self._path)
            _write(self._path, changed.to_text())
        self._copy.put(changed)
        return changed

    def _read(self) -> NodeLedger:
        known = self._copy.read()
        if not self._path.exists():
            if NodeLedger().is_behind(known):
                raise UnreadableLedger(
                    f"The ledger {self._path} is gone, and this run has noted {known.releases} releases."
                )
            return NodeLedger()
        found = read_ledger(self._path)
        if found.is_behind(known):
            raise UnreadableLedger(
                f"The ledger {self._path} is behind what this run has noted ({known.releases} releases)."
            )
        return found


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An exclusive lock between processes, on a file beside the ledger that is never renamed."""
    try:
        import fcntl as locks
    except ImportError as error:
        raise UnreadableLedger("A ledger file needs POSIX file locks, which this system does not have.") from error
    try:
        handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UnreadableLedger(f"Cannot lock the ledger {path}: {error.strerror}.") from error
    try:
        locks.flock(handle, locks.LOCK_EX)
        yield
    finally:
        os.close(handle)  # which gives the lock back


def _write(path: Path, text: str) -> None:
    name = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise QuietbitError(f"Cannot write the ledger {path}: {error.strerror}.") from error
    finally:
        if name is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
