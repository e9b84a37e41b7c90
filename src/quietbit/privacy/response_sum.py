"""Answers behind masks: what a sum of bits, each told truly or turned round, reveals about one client's bit.

Idea     every client turns its bit with probability p, and the server sees how many ones there are. The others' bits
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

from quietbit.privacy.conversion import chord_upper, ladder, round_up
from quietbit.privacy.cost import Cost, Formula
from quietbit.privacy.sum_moment import MOST_REACH, SumMoments, bit_sum

__all__ = ["response_sum_cost"]

_BLOCK = 0.004  # share of the clients whose ends are treated together
_TAIL = 40.0  # what lies outside a window weighs at most about e^-40
_REACH = MOST_REACH - 40
_LEAST_STEP, _KNOTS_PER_DOUBLING = 2.0**-4, 4


def response_sum_cost(lie: float, clients: int, coin: bool, bits: int = 1) -> Cost:
    """Return the curve of one sum over ``clients`` honest clients, for neighbours that differ in ``bits`` bits.

    ``lie``, below 1/2, is exact in binary and so is 1 - ``lie``. With ``coin``, the neighbour's bit is a fair coin.
    """
    divergence = _divergence(lie, clients, coin)
    label = f"sum of {clients} bits of randomised response"
    return Cost.renyi(Formula(_times, divergence, bits), label, round_up(bits * divergence.loss, 4e-16))


def _times(alpha: float, divergence: _Divergence, bits: int) -> float:
    return round_up(bits * divergence.chord_upper(alpha), 4e-16)


@lru_cache(maxsize=16)
def _divergence(lie: float, clients: int, coin: bool) -> _Divergence:
    return _Divergence(lie, clients, coin)


@final
class _Divergence:
    """D_alpha of one bit, certified from above at any order."""

    def __init__(self, lie: float, clients: int, coin: bool) -> None:
        self._nodes = np.array([lie, 0.5, 1 - lie])
        self._coin = coin
        one = math.log(0.5 / lie) if coin else math.log((1 - lie) / lie)
        self.loss = one * (1 + 1e-12)  # of one client alone; of a coin against a bit, a lie is the larger
        self._known: dict[float, float] = {}
        # As many others at the other end are the mirror image. A block of k is treated as if its width stayed away:
        # leaving an independent bit out of a sum can only add to a divergence (data processing).
        width, end = math.floor(_BLOCK * clients), clients - 1
        firsts = range(0, end // 2 + 1, width + 1)
        blocks = [(first, min(first + width, end // 2)) for first in firsts]
        self._laws = SumMoments.of([bit_sum(first, 1 - lie, end - last, lie, _REACH) for first, last in blocks])

    def chord_upper(self, alpha: float) -> float:
        """D_alpha from above, from a fixed ladder of orders: (alpha - 1) D_alpha is convex."""
        if alpha <= 1 + _LEAST_STEP:  # borrowed from a larger order
            return self._upper(1 + _LEAST_STEP)
        return min(chord_upper(self._upper, alpha, *ladder(alpha, _KNOTS_PER_DOUBLING)), self.loss)

    def _upper(self, alpha: float) -> float:
        if alpha not in self._known:
            found = self.loss
            if alpha * self.loss + _TAIL <= _REACH:
                if self._coin:  # both ends against the middle, both ways round
                    table, gap = self._laws.cross(alpha, self._nodes, 1, self.loss)[:, [0, 2]], 0.5 - self._nodes[0]
                else:  # one end against the other; the diagonal is never looked at
                    table, gap = self._laws.table(alpha, self._nodes[[0, 2]], self.loss), 1 - 2 * self._nodes[0]
                    np.fill_diagonal(table, 0.0)
                worst = float(table.max())
                found = math.log1p(gap * gap * worst * alpha * (alpha - 1) / 2) / (alpha - 1) * (1 + 1e-9)
            self._known[alpha] = min(found, self.loss)
        return self._known[alpha]
