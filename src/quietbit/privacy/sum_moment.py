"""How far apart two laws of a sum are when one bit of it changes its probability.

Idea     with the others' law q fixed, the sum's law is affine in the client's own probability p, and the Rényi moment
         exceeds 1 by (p - p')^2 times a positive sum Q, evaluated here at a table of nodes, from above.
Symbols  q_0 = q, q_1(s) = q(s-1), delta = q_1 - q_0, P_p = q_0 + p delta; moment(p, p') = sum P_p^alpha P_p'^(1-alpha);
         phi(x, y) = (x^alpha y^(1-alpha) - y - alpha (x - y))/(x - y)^2 > 0, of degree -1;
         Q = sum delta^2 phi(P_p, P_p') = (moment - 1)/(p - p')^2; Qbar = Q/(alpha (alpha - 1)/2).
Source   docs/theory/secure-aggregation.md, steps 3 and 6.

Rounding. If the computed law is within a factor e^(+-eta) of q, then delta is off by at most 2 eta (q_0 + q_1) and
phi by a factor e^((2 alpha + 1) eta), so that sqrt(Q) <= e^((alpha + 1) eta) (sqrt(computed Q) +
2 eta sqrt(sum (q_0 + q_1)^2 phi)); and (q_0 + q_1) <= P_p / min(p, 1 - p) bounds the last sum by the moment itself.
Outside the window phi(x, y) <= alpha (alpha - 1)/2 max(1, x/y)^alpha / y and x/y <= e^loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.privacy.binomial_sum import BitSum

__all__ = ["SumMoments"]

_CHUNK = 64
_UNIT = 2.0**-53
_MOST_NUMBERS = 1 << 19  # of a stack's logarithms: small enough for the cache of most machines


@final
@dataclass(frozen=True, slots=True, eq=False)
class SumMoments:
    """Several laws of the others' sum, a row each, padded with zeros; ready for many orders and nodes."""

    q_0: FloatMatrix
    delta: FloatMatrix
    mass: FloatVector  # sum of q_0 over the window
    outside: FloatVector  # probability of what is not in the window, and of its edges, from above
    error: FloatVector

    @classmethod
    def of(cls, laws: list[BitSum]) -> SumMoments:
        """Leave out values of a sum whose probability needs one that was dropped."""
        rows, outside = [], []
        for sums in laws:
            q_0, q_1 = np.append(sums.law, 0.0), np.concatenate(([0.0], sums.law))
            beyond = sums.tail
            if sums.first > 0:
                beyond, q_0, q_1 = beyond + float(q_0[0]), q_0[1:], q_1[1:]
            if sums.last < sums.size:
                beyond, q_0, q_1 = beyond + float(q_1[-1]), q_0[:-1], q_1[:-1]
            rows.append((q_0, q_1 - q_0))
            outside.append(beyond * (1 + 1e-9))
        length = -(-max(len(row[0]) for row in rows) // _CHUNK) * _CHUNK
        stack = np.zeros((2, len(rows), length))
        for index, pair in enumerate(rows):
            stack[:, index, : len(pair[0])] = pair
        mass = np.array([row[0].sum() for row in rows])
        return cls(stack[0], stack[1], mass, np.array(outside), np.array([sums.error for sums in laws]))

    def table(self, alpha: float, nodes: FloatVector, loss: float) -> FloatMatrix:
        """The largest Qbar(nodes[i], nodes[j]) over the laws, from above; ``loss`` bounds |log P_p/P_p'|."""
        h = np.subtract.outer(nodes, nodes)
        np.fill_diagonal(h, 1.0)
        best = np.zeros_like(h)
        for part in self._parts(len(nodes)):
            base, logs = part._logs(nodes, len(nodes) // 2)
            right = np.exp((1 - alpha) * logs)
            np.multiply(logs, alpha, out=logs)
            np.exp(logs, out=logs)
            logs *= base[:, None, :]
            moment = _products(logs, right)
            found = part._exceeding(moment, alpha, loss) / (h * h)
            index = np.arange(len(nodes))
            found[:, index, index] = part._local(nodes)
            best = np.maximum(best, part._rounded(found, moment, alpha, nodes, loss).max(axis=0))
        return best

    def cross(self, alpha: float, nodes: FloatVector, centre: int, loss: float) -> FloatMatrix:
        """As `table`, but only its two rows Qbar(nodes[i], nodes[centre]) and Qbar(nodes[centre], nodes[i])."""
        h = nodes - nodes[centre]
        h[centre] = 1.0
        best = np.zeros((2, len(nodes)))
        for part in self._parts(len(nodes)):
            base, logs = part._logs(nodes, centre)
            moments = [(np.exp(e * logs) * base[:, None, :]).sum(axis=-1) for e in (alpha, 1 - alpha)]
            moment = np.stack(moments, axis=1)
            found = part._exceeding(moment, alpha, loss) / (h * h)
            found[:, :, centre] = part._local(nodes[centre : centre + 1])
            best = np.maximum(best, part._rounded(found, moment, alpha, nodes, loss).max(axis=0))
        return best

    def _parts(self, count: int) -> Iterator[SumMoments]:
        """The stack cut into pieces that fit the cache."""
        rows = max(1, _MOST_NUMBERS // (count * self.q_0.shape[1]))
        for first in range(0, len(self.mass), rows):
            piece = slice(first, first + rows)
            yield SumMoments(*(getattr(self, name)[piece] for name in self.__slots__))

    def _logs(self, nodes: FloatVector, reference: int) -> tuple[FloatMatrix, FloatMatrix]:
        """P at one node, and log(P_p / that) at all: (laws, values) and (laws, nodes, values)."""
        base = self.q_0 + nodes[reference] * self.delta
        ratio = np.divide(self.delta, base, out=np.zeros_like(base), where=base > 0)
        return base, np.log1p((nodes - nodes[reference])[:, None] * ratio[:, None, :])

    def _local(self, nodes: FloatVector) -> FloatMatrix:
        """Qbar on the diagonal: sum delta^2 / P, the same at all orders."""
        columns = []
        for node in nodes:
            law = self.q_0 + node * self.delta
            terms = np.divide(self.delta**2, law, out=np.zeros_like(law), where=law > 0)
            columns.append(terms.sum(axis=1))
        return np.stack(columns, axis=1) * (1 + 1e-13)

    def _exceeding(self, moment: FloatMatrix, alpha: float, loss: float) -> FloatMatrix:
        """(moment - 1)/(alpha (alpha - 1)/2), rounded up."""
        # A chunked sum of positive terms, two exponentials, and logarithms times the order.
        units = 3 * _CHUNK + self.q_0.shape[1] / _CHUNK + 60 + 8 * alpha * loss
        edges = ((3 + alpha) * self.outside + 1e-60)[:, None, None]
        rounding = units * _UNIT * (1 + moment) + edges
        return np.asarray((moment - self.mass[:, None, None] + rounding) / (alpha * (alpha - 1) / 2))

    def _rounded(
        self, table: FloatMatrix, moment: FloatMatrix, alpha: float, nodes: FloatVector, loss: float
    ) -> FloatMatrix:
        """What the module's docstring says under Rounding."""
        spread = 1 / min(float(nodes[0]), 1 - float(nodes[-1]))
        error = self.error[:, None, None]
        shift = 2 * error * spread * np.sqrt(3 + moment)
        outside = spread**2 * np.exp(alpha * loss + np.log(self.outside + 1e-300))[:, None, None]
        root = np.sqrt(np.maximum(table, 0.0)) + shift
        return np.asarray(root * root * np.exp(2 * (alpha + 1) * error) + outside)


def _products(left: FloatMatrix, right: FloatMatrix) -> FloatMatrix:
    """The product left @ right.T, law by law, added up in short chunks so that rounding stays small."""
    laws, count, _ = left.shape
    a, b = (part.reshape(laws, count, -1, _CHUNK).transpose(0, 2, 1, 3) for part in (left, right))
    return np.asarray((a @ b.transpose(0, 1, 3, 2)).sum(axis=1))
