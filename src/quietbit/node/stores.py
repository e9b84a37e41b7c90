"""What a node stores between messages besides its ledger: sealed secrets of sums, and models.

Idea     engines end the client's process after every message, and carry its state in records that
         they may print, copy and write anywhere. Secrets in these records are sealed with a key in
         a file beside the ledger: the engine's state without the node's disk, or the disk without
         the state, reveals nothing. Models are in a folder that the owner names. A file is replaced
         as a whole, so a process killed at any moment leaves the model of this round or of the one
         before.
Source   `quietbit.secagg.keys` for the seals.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import final

from attrs import frozen

from quietbit._files import PRIVATE, others, write_whole
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.node.policy import PolicyError
from quietbit.node.refusal import NotInSum
from quietbit.secagg import keys
from quietbit.secagg.identity import read_file

__all__ = ["ModelFolder", "Vault", "key_file", "simulation_key"]

NONCE = 16
KEY = 32
MOST_RUNS = 4
SUFFIX = ".qbmodel"


@final
@frozen(eq=False, repr=False)
class Vault(MutableMapping[str, bytes]):
    """A mapping whose values are sealed in another mapping; ``key()`` returns the key for it."""

    sealed: MutableMapping[str, bytes]
    key: Callable[[], bytes]

    def __getitem__(self, run: str) -> bytes:
        data = self.sealed[run]
        try:
            return keys.open_sealed(self._fresh_key(data[:NONCE]), data[NONCE:], run.encode())
        except (InvalidParameter, TypeError) as error:
            raise NotInSum(
                f"The stored secrets of run {run} cannot be read: this client leaves the sum."
            ) from error

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
        """Derive the key that seals one value, from the nonce that was drawn for it."""
        return keys.derive(self.key(), b"vault" + nonce, b"")


def key_file(path: str) -> bytes:
    """Read the key from a file that only its owner can read; make the file if it is missing."""
    try:
        with contextlib.suppress(FileExistsError):
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(made, "wb") as file:
                file.write(os.urandom(KEY))
        key = read_file(path, KEY, "key", PRIVATE)
    except (OSError, QuietbitError) as error:
        raise PolicyError(f"Cannot use the key {path}: {error}") from error
    if len(key) != KEY:
        raise PolicyError(
            f"The key {path} must have {KEY} bytes, got {len(key)}: restore it from a copy."
        )
    return key


def simulation_key() -> bytes:
    """Return a key that anybody can compute: simulated nodes have no secrets."""
    return hashlib.sha256(b"quietbit/simulation/vault").digest()


@final
class ModelFolder(MutableMapping[str, bytes]):
    """Bytes by name, ``<run>.<part>``, one file each, for the latest four runs."""

    def __init__(self, path: Path) -> None:
        """Name the folder; it is made when the first model is stored."""
        self.path = path

    def __getitem__(self, name: str) -> bytes:
        try:
            handle = os.open(
                self._file(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError as error:
            raise KeyError(name) from error
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise KeyError(name)
            return file.read()

    def __setitem__(self, name: str, value: bytes) -> None:
        self._make_folder()
        for unfinished in self.path.glob(f".{name}{SUFFIX}.*"):  # of a process that was killed
            unfinished.unlink(missing_ok=True)
        write_whole(self._file(name), lambda file: file.write(value), make_folder=False, mode=0o600)
        ages: dict[str, float] = {}
        for model in self.path.glob(f"*{SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                run = model.name.partition(".")[0]
                ages[run] = max(ages.get(run, 0.0), model.lstat().st_mtime)
        newest_first = sorted(ages, key=ages.__getitem__, reverse=True)
        for run in newest_first[MOST_RUNS:]:
            for model in self.path.glob(f"{run}.*{SUFFIX}"):
                model.unlink(missing_ok=True)

    def _make_folder(self) -> None:
        """Make the folder for this user alone; refuse a link, and one that others may write in."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.path.lstat()
        except OSError as error:
            raise PolicyError(
                f"Cannot use the folder of models {self.path}: {error.strerror}."
            ) from error
        if not stat.S_ISDIR(status.st_mode):
            raise PolicyError(f"models must be a folder and not a link, got {self.path}.")
        problem = others(status, "folder of models", self.path)
        if problem:
            raise PolicyError(problem)

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
