"""What a node keeps between messages, beside its ledger: secrets of masked sums, sealed, and the models of runs.

Idea     engines end the client's process after every message, and carry what it kept in records that they print, copy
         and write as they like. Secrets that wait there are sealed with a key in a file of the owner's beside the
         ledger: an engine's state without the node's disk, or the other way round, says nothing. A model waits in a
         folder that the owner names; a file appears whole or not at all, so that a process killed at any moment leaves
         the model of this round or of the one before.
Source   `quietbit.secagg.keys` for the seals.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import final

from attrs import frozen

from quietbit._files import write_whole
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.node.policy import PolicyError
from quietbit.node.refusal import NotInSum
from quietbit.secagg import keys
from quietbit.secagg.identity import PRIVATE, read_file

__all__ = ["ModelFolder", "Vault", "key_file", "simulation_key"]

NONCE, KEY = 16, 32
MOST_RUNS = 4
SUFFIX = ".qbmodel"


@final
@frozen(eq=False, repr=False)
class Vault(MutableMapping[str, bytes]):
    """A mapping whose values are sealed in another one; ``key`` is asked for its key when it is needed."""

    sealed: MutableMapping[str, bytes]
    key: Callable[[], bytes]

    def __getitem__(self, run: str) -> bytes:
        data = self.sealed[run]
        try:
            return keys.open_sealed(self._fresh_key(data[:NONCE]), data[NONCE:], run.encode())
        except (InvalidParameter, TypeError) as error:
            raise NotInSum("What was kept of this client's secrets cannot be read: it leaves the sum.") from error

    def __contains__(self, run: object) -> bool:
        return run in self.sealed

    def __setitem__(self, run: str, value: bytes) -> None:
        nonce = os.urandom(NONCE)
        self.sealed[run] = nonce + keys.seal(self._fresh_key(nonce), value, run.encode())

    def __delitem__(self, run: str) -> None:
        del self.sealed[run]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sealed)

    def __len__(self) -> int:
        return len(self.sealed)

    def _fresh_key(self, nonce: bytes) -> bytes:
        """Derive the key that seals one value: from a nonce that is drawn for it."""
        return keys.derive(self.key(), b"vault" + nonce, b"")


def key_file(path: str) -> bytes:
    """Read the key from a file that only its owner can read, made when it is first asked for."""
    try:
        with contextlib.suppress(FileExistsError):
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(made, "wb") as file:
                file.write(os.urandom(KEY))
        found = read_file(path, KEY, "key", PRIVATE)
    except (OSError, QuietbitError) as error:
        raise PolicyError(f"Cannot use the key {path}: {error}") from error
    if len(found) != KEY:
        raise PolicyError(f"The key {path} must be of {KEY} bytes.")
    return found


def simulation_key() -> bytes:
    """Return a key that anybody can compute: nodes of a simulation belong to nobody, and have no secrets."""
    return hashlib.sha256(b"quietbit/simulation/vault").digest()


@final
class ModelFolder(MutableMapping[str, bytes]):
    """Bytes by name, ``<run>.<part>``, each in a file of its own; the oldest runs make room for new ones."""

    def __init__(self, path: Path) -> None:
        """Name the folder; it is made when something is kept in it."""
        self.path = path

    def __getitem__(self, name: str) -> bytes:
        try:
            return self._file(name).read_bytes()
        except OSError as error:
            raise KeyError(name) from error

    def __setitem__(self, name: str, value: bytes) -> None:
        for torn in self.path.glob(f".{name}{SUFFIX}.*"):  # what a killed process left
            torn.unlink(missing_ok=True)
        write_whole(self._file(name), lambda file: file.write(value))
        ages: dict[str, float] = {}
        for file in self.path.glob(f"*{SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                run = file.name.partition(".")[0]
                ages[run] = max(ages.get(run, 0.0), file.stat().st_mtime)
        for run in sorted(ages, key=lambda one: ages[one], reverse=True)[MOST_RUNS:]:
            for file in self.path.glob(f"{run}.*{SUFFIX}"):
                file.unlink(missing_ok=True)

    def __delitem__(self, name: str) -> None:
        try:
            self._file(name).unlink()
        except FileNotFoundError as error:
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(file.name.removesuffix(SUFFIX) for file in self.path.glob(f"*{SUFFIX}")))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _file(self, name: str) -> Path:
        return self.path / f"{name}{SUFFIX}"
