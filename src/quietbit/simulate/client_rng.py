"""Random words for every release of a run, and how the words of several clients are read as one.

Idea     a release's seeded words depend on the round and the client alone, so neither the order of clients nor
         the number of threads changes a code. Rows of clients are sampled in one call of the kernel; `RowBlock`
         hands it every client's own words, so that the codes are those of one call per client. Secure words
         have nothing to repeat: a batch takes one key, and every coordinate of it has words of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import whole_number
from quietbit.kernel.rng import RandomBits, WordBlock, WordReader, secure_rng, seeded_rng

__all__ = ["ClientRng", "RowBlock", "RowRng", "secure_client_rng", "seeded_client_rng"]

ROUND_BITS = CLIENT_BITS = 48


class ClientRng(Protocol):
    """The words of every release of a run."""

    def __call__(self, number: int, client: int) -> RandomBits:
        """The words of one client in round ``number``."""
        ...

    def rows(self, number: int, clients: Sequence[int], used: int, width: int) -> WordBlock:
        """The words of several clients' releases of ``used`` coordinates, laid out in rows of ``width``."""
        ...


def secure_client_rng() -> ClientRng:
    """Words nobody can predict: every release, or every batch of releases, takes a fresh key."""
    return _Secure(secure_rng())


def seeded_client_rng(seed: int) -> ClientRng:
    """Reproducible words that protect nobody: seed, round and client make the seed of a release."""
    return _Seeded(whole_number(seed, "seed", 0) << (ROUND_BITS + CLIENT_BITS))


@final
@dataclass(frozen=True, slots=True)
class _Secure:
    rng: RandomBits

    def __call__(self, number: int, client: int) -> RandomBits:
        return self.rng

    def rows(self, number: int, clients: Sequence[int], used: int, width: int) -> WordBlock:
        # One draw for all rows: no two coordinates of it share a word, and setting up a key takes as long as
        # sampling a row.
        return self.rng.draw(len(clients) * width)


@final
@dataclass(frozen=True, slots=True)
class _Seeded:
    base: int

    def __call__(self, number: int, client: int) -> RandomBits:
        return seeded_rng(self.base | (number << CLIENT_BITS) | client)

    def rows(self, number: int, clients: Sequence[int], used: int, width: int) -> WordBlock:
        return RowBlock([self(number, client).draw(used) for client in clients], used, width)


@final
@dataclass(frozen=True, slots=True, eq=False)
class RowRng:
    """A source whose one draw is a block made beforehand."""

    block: WordBlock

    def draw(self, count: int) -> WordBlock:
        """The block itself; a kernel draws once."""
        return self.block


@final
@dataclass(frozen=True, slots=True, eq=False)
class RowBlock:
    """Blocks of ``used`` coordinates each, read as rows of ``width``; the padding's words are zero.

    What the padding is given does not matter: its codes are cleared before anything leaves the client.
    """

    blocks: Sequence[WordBlock]
    used: int
    width: int

    def primary(self, start: int, count: int) -> NDArray[np.uint16]:
        """Primary words of coordinates ``start .. start + count - 1`` of the rows."""
        out = np.zeros(count, dtype="<u2")
        self.reader(start).fill(out)
        return out

    def reader(self, start: int) -> WordReader:
        """A reader that walks through the rows."""
        return _RowReader(self, start)

    def ties(self, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Tie words of the given coordinates, each from its own row's block."""
        chosen = np.asarray(indices, dtype=np.int64)
        out = np.zeros(chosen.size, dtype=np.uint64)
        row, place = np.divmod(chosen, self.width)
        for number in np.unique(row).tolist():
            here = (row == number) & (place < self.used)
            out[here] = self.blocks[number].ties(place[here])
        return out

    def uniform64(self, stream: int, start: int, count: int) -> NDArray[np.uint64]:
        """Full words; streams are not laid out in rows, so a single row is needed."""
        whole_number(len(self.blocks), "rows of full words", 1, 1)
        return self.blocks[0].uniform64(stream, start, count)


@final
@dataclass(slots=True, eq=False)
class _RowReader:
    _rows: RowBlock
    _position: int
    _row: int = -1
    _reader: Any = None

    def fill(self, out: NDArray[np.uint16]) -> None:
        rows, done = self._rows, 0
        while done < out.size:
            row, place = divmod(self._position, rows.width)
            if row != self._row and place < rows.used:
                self._row, self._reader = row, rows.blocks[row].reader(place)
            stop = rows.used if place < rows.used else rows.width
            count = min(stop - place, out.size - done)
            if place < rows.used:
                self._reader.fill(out[done : done + count])
            else:
                out[done : done + count] = 0
            done += count
            self._position += count
