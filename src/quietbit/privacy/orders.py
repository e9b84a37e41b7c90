"""Rényi bounds between orders: from a few orders where a bound is computed to all the others.

Idea     (alpha - 1) D_alpha is convex in alpha and 0 at alpha = 1, so a chord between two orders
         bounds every order between them. Slow bounds are computed on a ladder of orders, once each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import ClassVar

from quietbit.errors import check_real
from quietbit.privacy.rounding import round_up

__all__ = ["OrderConstant", "chord_upper"]


def chord_upper(upper: Callable[[float], float], alpha: float, below: float, above: float) -> float:
    """Bound D_alpha from above by ``upper`` at the orders ``below`` and ``above`` around alpha."""
    part = min(max((alpha - below) / (above - below), 0.0), 1.0)
    moment = 0.0
    if below > 1:
        moment = (1 - part) * (below - 1) * upper(below)
    if part > 0:
        moment += part * (above - 1) * upper(above)
    return round_up(moment / (alpha - 1))


class OrderConstant(ABC):
    """An upper bound kappa_alpha that is computed once per order, with chords in between.

    Two constants are equal where their types and ``arguments`` are, so that equal releases are
    counted together.
    """

    RUNGS: ClassVar[int]  # orders on the ladder per doubling of alpha - 1

    def __init__(self, *arguments: Hashable) -> None:
        self._identity = (type(self), arguments)
        self._computed: dict[float, float] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrderConstant) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @abstractmethod
    def _upper(self, alpha: float) -> float:
        """Compute the bound at an order."""

    def upper(self, alpha: float) -> float:
        """Return kappa_alpha, rounded up."""
        alpha = check_real(alpha, "alpha", above=1.0)
        if alpha not in self._computed:
            self._computed[alpha] = self._upper(alpha)
        return self._computed[alpha]

    def __call__(self, alpha: float) -> float:
        """Return a bound on kappa_alpha from `upper` at the two orders around it on the ladder."""
        alpha = check_real(alpha, "alpha", above=1.0)
        rung = math.floor(math.log2(alpha - 1) * self.RUNGS)
        below = 1 + math.pow(2.0, rung / self.RUNGS)
        above = 1 + math.pow(2.0, (rung + 1) / self.RUNGS)
        return chord_upper(self.upper, alpha, below, above)
