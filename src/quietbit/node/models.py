"""Where a node keeps the model of a run between rounds: files in a folder that its owner names.

Idea     a file appears whole or not at all, so that a process killed at any moment leaves the model of this round or of
         the one before. The folder is bounded: the models of the runs that were heard of last stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import final

from quietbit._files import write_whole

__all__ = ["ModelFolder"]

MOST_RUNS = 4
SUFFIX = ".qbmodel"


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
