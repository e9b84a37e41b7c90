"""Designs and profiles on disk: canonical text with its SHA-256, written atomically.

Idea     a file is the canonical text with its identity among its values; reading recomputes the
         identity and refuses a changed or truncated file. The cache has one file per spec of a
         design or target of a profile; several writers are harmless, because each writes a file of
         its own and renames it into place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from quietbit._files import cache_folder, write_text
from quietbit.errors import InvalidDesignFile, QuietbitError

__all__ = ["Stored", "cached", "frozen_array", "remember"]

VERSION = 1  # of both formats
SOLVER_VERSION = 2  # raised when a search changes, so that what it found before is ignored


class Stored(ABC):
    """Numbers with one canonical text; two objects are equal if their identities are."""

    __slots__ = ()
    WORD: ClassVar[str]
    SUFFIX: ClassVar[str]  # of cached files
    MOST_BYTES: ClassVar[int]
    _identity: str  # set last by the constructor, with `_seal`

    @abstractmethod
    def _values(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""

    @classmethod
    @abstractmethod
    def _of_values(cls, values: Mapping[str, Any]) -> Self:
        """Build an object from such values."""

    def canonical(self) -> str:
        """Return the canonical JSON text: sorted keys, shortest exact decimals, no spaces."""
        return _text({**self._values(), "format": f"quietbit-{self.WORD}", "version": VERSION})

    def identity(self) -> str:
        """Return the SHA-256 of the canonical text, in hexadecimal."""
        return self._identity

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stored) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def _seal(self) -> None:
        object.__setattr__(self, "_identity", hashlib.sha256(self.canonical().encode()).hexdigest())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the canonical text with the identity among its values, atomically."""
        content = {**json.loads(self.canonical()), "identity": self._identity}
        return write_text(Path(path), _text(content) + "\n", make_folder=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file; refuse it if it was changed or truncated, or describes something else."""
        try:
            if Path(path).stat().st_size > cls.MOST_BYTES:
                raise InvalidDesignFile(
                    f"{path} is not a {cls.WORD}: it is larger than {cls.MOST_BYTES} bytes."
                )
            text = Path(path).read_text(encoding="ascii")
        except OSError as error:
            raise InvalidDesignFile(f"Cannot read {path}: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise InvalidDesignFile(f"{path} is not a {cls.WORD}: it is not plain text.") from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, origin: str) -> Self:
        """Return the object that a text describes; ``origin`` names the file in a refusal."""
        # Old profiles have their identity on a separate line.
        lines = text.splitlines()
        stated = {}
        if len(lines) == 2 and len(lines[1]) == 64:
            text = lines[0]
            stated = {"identity": lines[1]}
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidDesignFile(
                f"{origin} is not a {cls.WORD}: it is not complete JSON."
            ) from error
        if not isinstance(content, dict):
            content = {}
        return cls.restored({**content, **stated}, origin)

    @classmethod
    def restored(cls, content: Mapping[str, Any], origin: str) -> Self:
        """Return the object that values describe; refuse values that contradict their identity."""
        word = f"quietbit-{cls.WORD}"
        if content.get("format") != word:
            raise InvalidDesignFile(f"{origin} is not a {cls.WORD}: its format is not {word!r}.")
        version = content.get("version")
        if version != VERSION:
            raise InvalidDesignFile(
                f"{origin} has version {version!r}, and this library reads {VERSION}."
            )
        try:
            made = cls._of_values(content)
        except (QuietbitError, KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, KeyError):
                reason = f"{error} is missing"
            else:
                reason = str(error).rstrip(".")
            raise InvalidDesignFile(f"{origin} is not a usable {cls.WORD}: {reason}.") from error
        stated = content.get("identity")
        expected_keys = {*json.loads(made.canonical()), "identity"}
        if made.identity() != stated or set(content) != expected_keys:
            raise InvalidDesignFile(
                f"{origin} was changed: its content does not match its identity {stated!r}."
            )
        return made


Kind = TypeVar("Kind", bound=Stored)


def cached(kind: type[Kind], key: object) -> Kind | None:
    """Return the cached result for this spec or target; None where there is no intact file."""
    with contextlib.suppress(InvalidDesignFile):
        return kind.load(_cache_file(kind, key))
    return None


def remember(made: Stored, key: object) -> None:
    """Store a design or a profile in the cache; a cache that cannot be written is ignored."""
    path = _cache_file(type(made), key)
    with contextlib.suppress(OSError, QuietbitError):
        path.parent.mkdir(parents=True, exist_ok=True)
        made.save(path)


def frozen_array(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a read-only copy in doubles."""
    array = np.array(values, dtype=np.float64, order="C", copy=True)
    array.setflags(write=False)
    return array


def _cache_file(kind: type[Stored], key: object) -> Path:
    digest = hashlib.sha256(f"{SOLVER_VERSION}:{key!r}".encode()).hexdigest()
    return cache_folder("designs") / f"{digest[:32]}.{kind.SUFFIX}"


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
