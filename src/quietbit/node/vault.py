"""Where a node's secrets of masked sums wait between steps: sealed, with a key that lies elsewhere.

Idea     engines end the client's process after every message and carry what it kept in records that they print, copy
         and write as they like. What waits there is sealed; the key is a file of the owner's beside the ledger, so
         that a context without the node's disk, or the other way round, says nothing.
Source   RFC 8439 (ChaCha20-Poly1305), with a fresh nonce for every value; the run is bound to it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, MutableMapping
from typing import final

from attrs import frozen
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from quietbit.node.policy import PolicyError
from quietbit.secagg.plan import ProtocolError

__all__ = ["Vault", "key_file", "simulation_key"]

NONCE, KEY = 12, 32


@final
@frozen(eq=False, repr=False)
class Vault(MutableMapping[str, bytes]):
    """A mapping whose values are sealed in another one; ``key`` is asked for its key when it is needed."""

    sealed: MutableMapping[str, bytes]
    key: Callable[[], bytes]

    def __getitem__(self, run: str) -> bytes:
        data, cipher = self.sealed[run], self._cipher()
        try:
            return bytes(cipher.decrypt(data[:NONCE], data[NONCE:], run.encode()))
        except (InvalidTag, ValueError, TypeError) as error:
            raise ProtocolError("What was kept of this client's secrets cannot be read: it leaves the sum.") from error

    def __contains__(self, run: object) -> bool:
        return run in self.sealed

    def __setitem__(self, run: str, value: bytes) -> None:
        nonce = os.urandom(NONCE)
        self.sealed[run] = nonce + bytes(self._cipher().encrypt(nonce, value, run.encode()))

    def __delitem__(self, run: str) -> None:
        del self.sealed[run]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sealed)

    def __len__(self) -> int:
        return len(self.sealed)

    def _cipher(self) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(self.key())


def key_file(path: str) -> bytes:
    """Read the key from a file that only its owner can read, made when it is first asked for."""
    try:
        try:
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            pass
        else:
            with open(made, "wb") as file:
                file.write(os.urandom(KEY))
        with open(path, "rb") as file:
            mode, found = os.fstat(file.fileno()).st_mode, file.read(KEY + 1)
    except OSError as error:
        raise PolicyError(f"Cannot use the key {path}: {error.strerror}.") from error
    if mode & 0o077 or len(found) != KEY:
        raise PolicyError(f"The key {path} must be a file of {KEY} bytes that only its owner can read.")
    return found


def simulation_key() -> bytes:
    """Return a key that anybody can compute: nodes of a simulation belong to nobody, and have no secrets."""
    return hashlib.sha256(b"quietbit/simulation/vault").digest()
