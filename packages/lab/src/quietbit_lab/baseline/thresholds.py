"""A law on the integers, drawn to any precision by comparing wide words with thresholds.

Idea     value k is drawn where a word of ``64 * words`` bits reaches as many thresholds as lie
         below it. The first 64 bits nearly always decide, the others are read where they tie; a
         guide of 2^16 places makes a search as fast as one look.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Self, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit.kernel.rng import WordBlock

__all__ = ["ThresholdTable"]


@final
@frozen(eq=False)
class ThresholdTable:
    """Thresholds of a law; ``first`` is the value drawn when no threshold is reached."""

    first: int
    words: int
    thresholds: tuple[int, ...]
    heads: NDArray[np.uint64] = field(init=False)  # the first 64 bits of each threshold
    guide: NDArray[np.int64] = field(init=False)  # heads before each of 2^16 parts, and in all

    def __attrs_post_init__(self) -> None:
        """Find where a search begins, and nearly always ends."""
        heads = [value >> (64 * (self.words - 1)) for value in self.thresholds]
        firsts = np.array(heads, dtype=np.uint64)
        starts = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
        object.__setattr__(self, "heads", firsts)
        object.__setattr__(self, "guide", np.append(np.searchsorted(firsts, starts), firsts.size))

    @classmethod
    def of_weights(cls, first: int, words: int, weights: Sequence[int]) -> Self:
        """Return the table of the values from ``first`` on, with probabilities in proportion."""
        total = sum(weights)
        running = 0
        thresholds = []
        for weight in weights[:-1]:
            running += weight
            thresholds.append((running << (64 * words)) // total)
        return cls(first, words, tuple(thresholds))

    def draw(self, block: WordBlock, stream: int, start: int, count: int) -> NDArray[np.int64]:
        """Return draws of coordinates ``start ..`` from ``words`` streams from ``stream`` on."""
        head = block.uniform64(stream, start, count)
        place = self._reached(head)
        tied = np.flatnonzero(self.heads[np.maximum(place, 1) - 1] == head)
        for k in tied.tolist():
            place[k] = bisect_right(self.thresholds, self._whole_word(block, stream, start + k))
        return np.asarray(place + self.first, dtype=np.int64)

    def _reached(self, head: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return how many heads each word reaches: by the guide, or by search where it is full."""
        bucket = (head >> np.uint64(48)).astype(np.int64)
        first = self.guide[bucket]
        last = self.guide[bucket + 1]
        nearest = self.heads[np.minimum(first, self.heads.size - 1)]
        place = first + ((first < last) & (nearest <= head))
        crowded = np.flatnonzero(last - first > 1)
        place[crowded] = np.searchsorted(self.heads, head[crowded], side="right")
        return np.asarray(place)

    def _whole_word(self, block: WordBlock, stream: int, position: int) -> int:
        parts = [int(block.uniform64(stream + w, position, 1)[0]) for w in range(self.words)]
        return sum(part << (64 * (self.words - 1 - w)) for w, part in enumerate(parts))
