"""Branch and bound: the supremum of a function over cells, certified from above.

Idea     every cell has one value inside it and one bound on all of it. A cell is settled once its
         bound is within ``accuracy`` of the largest value found; others are halved. The largest
         bound of a settled cell is returned: it is a bound even if the search is cut short.
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
    """Cells of one kind; a subclass is a dataclass with slots of arrays, one entry per cell."""

    __slots__: tuple[str, ...] = ()

    @abstractmethod
    def bounds(self, problem: Problem) -> tuple[FloatVector, FloatVector, Any]:
        """Return a value in each cell, a bound on all of it, and what `halves` needs."""

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
        """Return the cells of two lists of arrays, in the order of the fields."""
        return cls(*map(np.concatenate, zip(first, second, strict=True)))


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
    """Bound the supremum over the cells of all pools, and ``best``, from above.

    Args:
        problem: what the cells' bounds are computed from.
        pools: the first cells, one pool for each kind.
        accuracy: the answer exceeds the largest value found by at most this share of it.
        budget: cells after which the answer is what has been proved by then.
        best: a value that is attained.
        negligible: a bound below which cells are settled.
        chunk: cells that are computed at once.
    """
    settled = best
    for rounds_left in range(_MOST_ROUNDS, -1, -1):
        halves = []
        for pool in pools:
            upper = pool.crude(problem)
            hopeful = upper > max(best * (1 + accuracy), negligible)
            settled = max(settled, float(upper[~hopeful].max(initial=0.0)))
            cells = pool.take(hopeful)
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
            if budget <= 0 or rounds_left == 0:
                hopeful[:] = False
            settled = max(settled, float(upper[~hopeful].max(initial=0.0)))
            halves.append(cells.take(hopeful).halves(split[hopeful]))
        pools = halves
        if not any(map(len, pools)):
            break
    return max(settled, best)
