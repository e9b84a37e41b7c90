"""Sums of flipped bits behind masks: what the sum reveals about one client's bit.

Idea     every client flips its bit with probability p, and the server sees the number of ones. The other clients' bits
         are the noise. Whatever they hold, the divergence is largest with k of them at one and the rest at zero (joint
         convexity); all k are covered by exact convolutions (`sum_moment`). A client whose bit is drawn from shares is
         a mixture of the two, and no further away.
Symbols  n: honest clients; p: probability of a lie; Q: as in `sum_moment`, (moment - 1) / h^2 for own probabilities h
         apart; D_alpha = log(1 + h^2 Q) / (alpha - 1).
Source   docs/theory/secure-aggregation.md, steps 2 and 3, at the two ends of the range alone: `aggregate` has to cover
         every pair of inputs between them, where a steep law is far worse.

Neighbours: a bit against the other (h = 1 - 2p), or against a coin (zero-out: no bit at all; h = 1/2 - p).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

import numpy as np

from quietbit.privacy.conversion import OrderConstant, round_up
from quietbit.privacy.cost import Cost, Formula
from quietbit.privacy.sum_moment import MOST_REACH, SumMoments, bit_sum

__all__ = ["response_sum_cost"]

_BLOCK = 0.004  # share of the clients whose ends are treated together
_TAIL = 40.0  # the mass outside a window is at most about e^-40
_REACH = MOST_REACH - 40
_LEAST_STEP = 2.0**-4


def response_sum_cost(lie: float, clients: int, coin: bool, bits: int = 1) -> Cost:
    """Return the curve of one sum over ``clients`` honest clients, for neighbours that differ in ``bits`` bits.

    ``lie``, below 1/2, is exact in binary and so is 1 - ``lie``. With ``coin``, the neighbour's bit is a fair coin.
    """
    divergence = _divergence(lie, clients, coin)
    label = f"sum of {clients} bits of randomised response"
    return Cost.renyi(Formula(_times, divergence, bits), label, round_up(bits * divergence.loss, 4e-16))


def _times(alpha: float, divergence: _Divergence, bits: int) -> float:
    return round_up(bits * divergence(alpha), 4e-16)


@lru_cache(maxsize=16)
def _divergence(lie: float, clients: int, coin: bool) -> _Divergence:
    return _Divergence(lie, clients, coin)


@final
class _Divergence(OrderConstant):
    """D_alpha of one bit, certified from above at any order."""

    RUNGS = 4

    def __init__(self, lie: float, clients: int, coin: bool) -> None:
        super().__init__(lie, clients, coin)
        # One end against the other, or each end against the middle; both ways round.
        pairs = [(lie, 0.5), (1 - lie, 0.5)] if coin else [(lie, 1 - lie)]
        self._pairs = [*pairs, *((other, one) for one, other in pairs)]
        one = math.log(0.5 / lie) if coin else math.log((1 - lie) / lie)
        self.loss = one * (1 + 1e-12)  # of one client alone; against a coin, a lie has the larger loss
        # As many others at the other end are the mirror image. A block of k is treated as if its width were absent:
        # leaving an independent bit out of a sum can only increase a divergence (data processing).
        width, end = math.floor(_BLOCK * clients), clients - 1
        firsts = range(0, end // 2 + 1, width + 1)
        blocks = [(first, min(first + width, end // 2)) for first in firsts]
        self._laws = SumMoments.of([bit_sum(first, 1 - lie, end - last, lie, _REACH) for first, last in blocks])

    def _upper(self, alpha: float) -> float:
        order = max(alpha, 1 + _LEAST_STEP)  # orders next to 1 use the bound of a larger one
        if order * self.loss + _TAIL > _REACH:
            return self.loss
        tables = [self._laws.table(order, np.array([p]), np.array([q]), self.loss) for p, q in self._pairs]
        worst, gap = max(float(table[0, 0]) for table in tables), self._pairs[0][1] - self._pairs[0][0]
        return min(math.log1p(gap * gap * worst * order * (order - 1) / 2) / (order - 1) * (1 + 1e-9), self.loss)
