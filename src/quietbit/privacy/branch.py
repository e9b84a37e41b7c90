"""Branch and bound: the supremum of a function over cells, certified from above.

Idea     every cell has one value inside it and one bound on all of it. A cell is settled once its
         bound is within ``accuracy`` of the largest value found; others are halved. The largest
         bound of a settled cell is returned, which is a bound whatever the search does, even if it
         is cut short.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Self, TypeVar

import numpy as np

from quietbit._typing import FloatVector

__all__ = ["Cells", "supremum_upper"]

_MOST_ROUNDS = 120  # halvings after which doubles cannot divide a cell
Problem = TypeVar("Problem")


class Cells(ABC, Generic[Problem]):
    """Cells of one kind: a subclass is a dataclass with slots whose fields are arrays, one entry per cell."""

    __slots__: tuple[str, ...] = ()

    @abstractmethod
    def bounds(self, problem: Problem) -> tuple[FloatVector, FloatVector, Any]:
        """Return a value in each cell, a bound on all of it, and what `halves` needs to split it."""

    @abstractmethod
    def halves(self, split: Any) -> Self:
        """Return both halves of every cell."""

    def crude(self, problem: Problem) -> FloatVector:
        """Return a cheap bound on each cell."""
        return np.full(len(self), np.inf)

    def __len__(self) -> int:
        return len(getattr(self, self.__slots__[0]))

    def take(self, chosen: Any) -> Self:
        """Return the cells at an index or mask."""
        return type(self)(*(getattr(self, name)[chosen] for name in self.__slots__))

    @classmethod
    def joined(cls, first: Iterable[Any], second: Iterable[Any]) -> Self:
        """Return the cells of two lists of arrays."""
        return cls(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))


def supremum_upper(
    problem: Problem,
    pools: Sequence[Cells[Problem]],
    accuracy: float,
    budget: int,
    *,
    best: float = 0.0,
    negligible: float = 0.0,
    chunk: int = sys.maxsize,
) -> float:
    """Bound the supremum over the cells of all pools, and ``best``, a value that is attained, from above.

    The answer is within ``accuracy`` of the largest value found, as a share of it, or of
    ``negligible``; after ``budget`` cells it is what has been proved by then. ``chunk`` cells are
    computed at once.
    """
    settled = best
    for left in range(_MOST_ROUNDS, -1, -1):
        halves = []
        for cells in pools:
            upper = cells.crude(problem)
            hopeful = upper > max(best * (1 + accuracy), negligible)
            settled = max(settled, float(upper[~hopeful].max(initial=0.0)))
            cells = cells.take(hopeful)
            upper = upper[hopeful]
            split = np.zeros(len(cells), dtype=np.bool_)
            for first in range(0, len(cells), chunk):
                part = slice(first, first + chunk)
                if budget > 0:
                    value, upper[part], split[part] = cells.take(part).bounds(problem)
                    budget -= len(value)
                    best = max(best, float(value.max()))
            upper[np.isnan(upper)] = np.inf  # NaN is not a bound
            hopeful = upper > max(best * (1 + accuracy), negligible)
            if budget <= 0 or not left:
                hopeful[:] = False
            settled = max(settled, float(upper[~hopeful].max(initial=0.0)))
            halves.append(cells.take(hopeful).halves(split[hopeful]))
        pools = halves
        if not any(map(len, pools)):
            break
    return max(settled, best)
