"""One-bit updates behind secure aggregation: what the sum of the bits reveals about one client.

Idea     the server sees, per coordinate, how many of n clients sent a one. Others' bits are the noise: whatever they
         hold, the divergence is largest with k of them at one end of the range and the rest at the other; all k
         are covered by exact convolutions, all pairs of inputs by convexity (`pair_search`).
Symbols  q: law of the others' sum, delta(s) = q(s-1) - q(s), P_p(s) = q(s) + p delta(s) with the client's own bit;
         Qbar = (sum P^alpha P'^(1-alpha) - 1)/((p - p')^2 alpha (alpha - 1)/2); kappa_alpha: sup of D_alpha/(x-x')^2.
Source   docs/theory/secure-aggregation.md has the proofs; Guo et al. (ICML 2023) leave it open (limitation 1).

Rounding. A law that is off by a factor within e^(+-eta) moves sqrt(Q) by the factor e^((alpha+1) eta) and by
2 eta sqrt(sum (q_0+q_1)^2 phi); both are added, as are the rounding of the moments and everything outside the window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit._validate import finite_real, require, whole_number
from quietbit.design.table import Design
from quietbit.privacy.binomial_sum import MOST_REACH, BitSum, bit_sum
from quietbit.privacy.conversion import round_up
from quietbit.privacy.curve import FunctionCurve
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.pair_search import pair_supremum_upper
from quietbit.privacy.segments import CENTRE, Segments, check_range

__all__ = ["MOST_CLIENTS", "AggregateConstant", "aggregate_curve", "aggregate_kappa_upper"]

MOST_CLIENTS = 100_000
OTHERS_ERROR = 2.0**-44  # others' probabilities may leave the range by a sampler's error, and by more
_BLOCK = 0.002  # share of the clients whose ends are treated together
_LEAST_STEP, _KNOTS_PER_DOUBLING = 2.0**-4, 8
_REACHES = (150.0, 300.0, MOST_REACH - 40)
_FEWEST_NODES, _MOST_NODES = 5, 257
_CHUNK = 64
_UNIT = 2.0**-53


@final
class AggregateConstant:
    """kappa_alpha of the sum of ``clients`` one-bit releases, certified from above at any order.

    ``clients`` counts the honest clients that answer and do not collude with the server: 2 to 100,000. Inputs,
    everybody's, lie in [low, high]. Exact up to a fraction of a percent for designs with two levels; with more
    levels the largest slope of the log-odds stands for all of them. One-bit designs only.
    """

    def __init__(self, design: Design, low: float, high: float, clients: int, adjacency: Adjacency) -> None:
        """Refuse designs of more than one bit, too few or too many clients, and ranges without a centre."""
        bits = design.spec.output_bits
        require(bits == 1, "output bits of the design", bits, "1 for the account of a sum")
        require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
        self._clients = whole_number(clients, "clients", 2, MOST_CLIENTS)
        low, high = check_range(low, high)
        inside = adjacency is Adjacency.REPLACE_ONE or low <= CENTRE <= high
        require(inside, "input range", (low, high), "around 1/2 for zero-out adjacency")
        segments = Segments.over(design, low, high, merge=False)
        odds = segments.start[:, 1] - segments.start[:, 0]
        slope = segments.slope[:, 1] - segments.slope[:, 0]
        ends = np.concatenate((odds, odds + slope * (segments.right - segments.left)))
        noise = 4 * segments.noise * (1 + float(np.abs(ends).max()))
        self._slope = float(np.abs(slope).max()) + 2 * segments.slope_error
        self._range = _sigmoid(float(ends.min()) - noise), _sigmoid(float(ends.max()) + noise)
        piece = min(max(int(np.searchsorted(segments.left, CENTRE, side="right")) - 1, 0), len(odds) - 1)
        middle = _sigmoid(float(odds[piece] + slope[piece] * (CENTRE - segments.left[piece])))
        self._symmetric = abs(self._range[0] + self._range[1] - 1) < 1e-9
        if self._symmetric:
            away = max(self._range[1], 1 - self._range[0]) - 0.5
            self._range = 0.5 - away, 0.5 + away
        self._zero_out = adjacency is Adjacency.ZERO_OUT
        # A centre within 1e-12 of 1/2 is 1/2: the quotient is smooth in it, and the last margin is 1e-9.
        if self._zero_out and not (self._symmetric and abs(middle - 0.5) < 1e-12):
            self._symmetric = False
            self._middle = middle
        else:
            self._middle = (self._range[0] + self._range[1]) / 2
        least, most = self._range
        require(0 < least and most < 1, "input range", (low, high), "one where both symbols can occur in floating point")
        self._loss = max(math.log(most / least), math.log1p(-least) - math.log1p(-most)) * (1 + 1e-12)
        self._nodes = _FEWEST_NODES
        self._sums: dict[float, list[BitSum]] = {}
        self._known: dict[float, float] = {}
        self._tables: dict[tuple[float, int], FloatMatrix] = {}

    def upper(self, alpha: float) -> float:
        """kappa_alpha from above: never more than one client's alone, alpha slope^2 / 8."""
        alpha = finite_real(alpha, "alpha", above=1.0)
        if alpha not in self._known:
            alone = alpha * self._slope**2 / 8
            found = alone
            # Orders next to 1 borrow from the next larger: divergences grow with the order.
            order = max(alpha, 1 + _LEAST_STEP)
            if order * self._loss + 60 <= _REACHES[-1]:
                found = self._slope**2 * self._quotient(order) * (1 + 1e-9)
            self._known[alpha] = min(found, alone) * (1 + 1e-12)
        return self._known[alpha]

    def chord_upper(self, alpha: float) -> float:
        """kappa_alpha from above, from `upper` at a fixed ladder of orders: (alpha - 1) kappa_alpha is convex."""
        alpha = finite_real(alpha, "alpha", above=1.0)
        if alpha <= 1 + _LEAST_STEP:
            return self.upper(1 + _LEAST_STEP)
        step = math.floor(math.log2(alpha - 1) * _KNOTS_PER_DOUBLING)
        below, above = (math.pow(2.0, place / _KNOTS_PER_DOUBLING) for place in (step, step + 1))
        part = min(max((alpha - 1 - below) / (above - below), 0.0), 1.0)
        moment = (1 - part) * below * self.upper(1 + below)
        if part > 0:
            moment += part * above * self.upper(1 + above)
        return min(moment / (alpha - 1), alpha * self._slope**2 / 8) * (1 + 1e-12)

    def _quotient(self, alpha: float) -> float:
        """sup D_alpha/(u - u')^2, with tables twice as fine until that hardly matters."""
        count = max(_FEWEST_NODES, self._nodes // 2 + 1)
        value = self._with_nodes(alpha, count)
        while count < _MOST_NODES:
            count = 2 * count - 1
            finer = self._with_nodes(alpha, count)
            done = finer > value * (1 - 2e-3)
            value = min(value, finer)
            if done:
                break
        self._nodes = count
        return value

    def _with_nodes(self, alpha: float, count: int) -> float:
        half = count // 2 + 1
        least, most = self._range
        left, right = np.linspace(least, self._middle, half), np.linspace(self._middle, most, half)
        nodes = np.concatenate((left, right[1:]))
        if 2 < alpha < 3:  # Qbar is convex in the order, and in p at orders 2 and 3
            table = (3 - alpha) * self._table(2.0, nodes) + (alpha - 2) * self._table(3.0, nodes)
        else:
            table = self._table(alpha, nodes)
        table = table * (alpha * (alpha - 1) / 2)
        return pair_supremum_upper(nodes, table, half - 1 if self._zero_out else None) / (alpha - 1)

    def _table(self, alpha: float, nodes: FloatVector) -> FloatMatrix:
        """The largest Qbar over all k, at every pair of nodes."""
        key = (alpha, len(nodes))
        if key in self._tables:
            return self._tables[key]
        reach = next(reach for reach in _REACHES if alpha * self._loss + 60 <= reach)
        if reach not in self._sums:
            self._sums[reach] = self._all_sums(reach)
        table = np.zeros((len(nodes), len(nodes)))
        for law in self._sums[reach]:
            found = _qbar_upper(law, alpha, nodes, self._loss)
            np.maximum(table, found, out=table)
            if self._symmetric:  # k others at the other end: the mirror image
                np.maximum(table, found[::-1, ::-1], out=table)
        if alpha in (2.0, 3.0):
            self._tables[key] = table
        return table

    def _all_sums(self, reach: float) -> list[BitSum]:
        """Others' laws that together dominate every k: a block of k loses its width of clients."""
        least, most = self._range[0] - OTHERS_ERROR, self._range[1] + OTHERS_ERROR
        width = math.floor(_BLOCK * self._clients)
        corners = set()
        for first in range(0, self._clients, width + 1):
            last = min(first + width, self._clients - 1)
            ends = (first, self._clients - 1 - last)
            corners.add((min(ends), max(ends)) if self._symmetric else ends)
        return [bit_sum(high, most, low, least, reach) for high, low in sorted(corners)]


def aggregate_kappa_upper(
    design: Design, alpha: float, clients: int, adjacency: Adjacency, low: float = 0.0, high: float = 1.0
) -> float:
    """The certified kappa_alpha of a sum at one order; for many orders keep an `AggregateConstant`."""
    return _constant(design, float(low), float(high), clients, adjacency).upper(alpha)


def aggregate_curve(
    design: Design, distance: float, clients: int, adjacency: Adjacency, low: float = 0.0, high: float = 1.0
) -> FunctionCurve:
    """The curve of one secure sum for neighbours within L2 ``distance`` in x-space.

    Holds where the server, and any clients that collude with it, see nothing but the sum, which contains the bits
    of at least ``clients`` honest clients, the protected one among them. Who answers must not depend on their bits.
    """
    distance = finite_real(distance, "distance")
    constant = _constant(design, float(low), float(high), clients, adjacency)
    return FunctionCurve(_Scaled(constant, distance), f"sum of {clients} one-bit releases, {adjacency.value}")


@final
@dataclass(frozen=True, slots=True)
class _Scaled:
    """kappa_alpha distance^2."""

    constant: AggregateConstant = field(repr=False)
    distance: float

    def __call__(self, alpha: float) -> float:
        return round_up(self.constant.chord_upper(alpha) * self.distance * self.distance, 1e-15)


@lru_cache(maxsize=32)
def _constant(design: Design, low: float, high: float, clients: int, adjacency: Adjacency) -> AggregateConstant:
    return AggregateConstant(design, low, high, clients, adjacency)


def _qbar_upper(sums: BitSum, alpha: float, nodes: FloatVector, loss: float) -> FloatMatrix:
    """Qbar at every pair of nodes for one law of the others, from above."""
    half = alpha * (alpha - 1) / 2
    q_0, q_1 = np.append(sums.law, 0.0), np.concatenate(([0.0], sums.law))
    edges = 0.0
    if sums.first > 0:  # the value before the window is not known
        edges, q_0, q_1 = edges + float(q_0[0]), q_0[1:], q_1[1:]
    if sums.last < sums.size:
        edges, q_0, q_1 = edges + float(q_1[-1]), q_0[:-1], q_1[:-1]
    delta = q_1 - q_0
    middle = float(nodes[len(nodes) // 2])
    base = q_0 + middle * delta
    logs = np.log1p(np.outer(nodes - middle, delta / base))
    moment = _products(base * np.exp(alpha * logs), np.exp((1 - alpha) * logs))
    # Rounding: a chunked sum of positive terms, two exponentials, and the logarithms times the order.
    units = 3 * _CHUNK + len(base) / _CHUNK + 60 + 8 * alpha * loss
    rounding = units * _UNIT * (1 + moment) + (3 + alpha) * edges + 1e-60
    h = np.subtract.outer(nodes, nodes)
    np.fill_diagonal(h, 1.0)
    table = (moment - math.fsum(q_0) + rounding) / (h * h) / half
    with np.errstate(under="ignore"):
        local = (delta * delta) @ (1 / (base[:, None] * np.exp(logs.T))) * (1 + len(base) * _UNIT + 1e-13)
    np.fill_diagonal(table, local)
    # Off by e^(+-eta): see the module's docstring; and what lies outside the window.
    spread = 1 / min(float(nodes[0]), 1 - float(nodes[-1]))
    eta = sums.error
    shift = 2 * eta * spread * np.sqrt(3 + moment)
    table = (np.sqrt(np.maximum(table, 0.0)) * math.exp((alpha + 1) * eta) + shift) ** 2
    outside = spread**2 * math.exp(alpha * loss + math.log(sums.tail + edges + 1e-300))
    return np.asarray(table + outside)


def _products(left: FloatMatrix, right: FloatMatrix) -> FloatMatrix:
    """left @ right.T, added up in short chunks so that rounding stays small."""
    count, length = left.shape
    room = -length % _CHUNK
    shape = (count, -1, _CHUNK)
    pieces = [np.pad(part, ((0, 0), (0, room))).reshape(shape).transpose(1, 0, 2) for part in (left, right)]
    return np.asarray((pieces[0] @ pieces[1].transpose(0, 2, 1)).sum(axis=0))


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
