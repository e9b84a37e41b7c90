"""Secure aggregation: what the sum of the clients' codes reveals about one client.

Idea     the server sees, per coordinate, how many of n clients sent a one. The other clients' bits
         are the noise: whatever they hold, the divergence is largest with k of them at one end of
         the range and the rest at the other; `bit_sums` covers all k, and `bit_pairs` finds the
         worst pair of inputs.
Symbols  p, p': the client's two probabilities of a one; u = log(p/(1-p)); Q, Qbar as in
         `bit_sums`; kappa_alpha: sup of D_alpha/(x-x')^2; loss: largest log-ratio of one client.
Source   docs/theory/secure-aggregation.md: proofs and rounding; Guo et al. (ICML 2023) leave it
         open (limitation 1).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.table import Design
from quietbit.errors import check_int, check_real, require
from quietbit.privacy.bit_pairs import pair_supremum_upper
from quietbit.privacy.bit_sums import MOST_REACH, SumMoments
from quietbit.privacy.cost import Cost
from quietbit.privacy.divergence import CENTRE, Segments, check_around_centre, check_range
from quietbit.privacy.orders import OrderConstant
from quietbit.target import MOST_CLIENTS, Adjacency

__all__ = ["AggregateConstant", "aggregate_cost"]

# More than a sampler's error, by which others' probabilities may leave the range.
OTHERS_ERROR = 2.0**-44
GRAIN = 2.0**36  # ranges are rounded outwards to multiples of 1/GRAIN
_TAIL = 40.0  # the mass outside a window is at most about e^-40
_REACHES = (150.0, 300.0, MOST_REACH - 40)
_LEAST_ORDER = 1 + 2.0**-4  # smaller orders use its bound: divergences grow with the order
_FEW = 64  # clients: so few that nodes are cheap and expansions in 1/n are loose
_NODES = (5, 9, 17, 33, 65, 129, 257)
_MOST_NODES = 257
_MOST_NUMBERS = 1 << 14


def _bits_over(design: Design, low: float, high: float) -> tuple[float, float, float, float]:
    """Return the least probability of a one, that of a zero update, the largest, and the slope.

    Probabilities of a one-bit design over a range of inputs are rounded outwards; the slope is the
    steepest of the log-odds, rounded up.
    """
    segments = Segments.over(design, low, high, merge=False)
    odds = segments.start[:, 1] - segments.start[:, 0]
    slope = segments.slope[:, 1] - segments.slope[:, 0]
    ends = np.append(odds, odds + slope * (segments.right - segments.left))
    noise = 4 * segments.noise * (1 + float(np.abs(ends).max()))
    piece = int(np.searchsorted(segments.left, CENTRE, side="right")) - 1
    piece = min(max(piece, 0), len(odds) - 1)
    at_centre = odds[piece] + slope[piece] * (CENTRE - segments.left[piece])
    least = _sigmoid(float(ends.min()) - noise)
    most = _sigmoid(float(ends.max()) + noise)
    steepest = float(np.abs(slope).max()) + 2 * segments.slope_error
    return least, _sigmoid(float(at_centre)), most, steepest


@final
class AggregateConstant(OrderConstant):
    """kappa_alpha of the sum of one-bit releases, certified from above at any order.

    Args:
        design: of one output bit. With more than two levels the largest slope of the log-odds
            replaces all of them.
        low: the smallest input.
        high: the largest input.
        clients: from 2 to 100,000, all honest: they answer and do not collude with the server.
        adjacency: which two inputs are neighbours.
    """

    RUNGS = 4

    def __init__(
        self, design: Design, low: float, high: float, clients: int, adjacency: Adjacency
    ) -> None:
        adjacency = Adjacency(adjacency)
        bits = design.spec.output_bits
        require(bits == 1, "output bits of the design", bits, "1 for sums")
        self._clients = check_int(clients, "clients", 2, MOST_CLIENTS)
        self._zero_out = adjacency is Adjacency.ZERO_OUT
        if self._zero_out:
            low, high = check_around_centre(low, high)
        else:
            low, high = check_range(low, high)
        super().__init__(design, low, high, self._clients, adjacency)
        least, middle, most, self._slope = _bits_over(design, low, high)
        self._symmetric = abs(least + most - 1) < 1e-9
        if self._symmetric:
            away = max(most, 1 - least) - 0.5
            least = 0.5 - away
            most = 0.5 + away
        # A centre within 1e-12 of 1/2 is 1/2: the quotient is smooth in it, and the last margin is
        # 1e-9.
        centred = self._symmetric and abs(middle - 0.5) < 1e-12
        if self._zero_out and not centred:
            self._symmetric = False
        else:
            middle = (least + most) / 2
        rule = "one where both symbols can occur in floating point"
        remedy = "use a smaller epsilon of the design, or a smaller beta"
        require(least > 0 and most < 1, "input range", (low, high), rule, remedy)
        self._least = least
        self._middle = middle
        self._most = most
        loss = max(math.log(most / least), math.log1p(-least) - math.log1p(-most))
        self._loss = loss * (1 + 1e-12)
        # Others whose rarer symbol a sampler may never draw do not count as noise.
        self._noisy = min(least, 1 - most) > 2 * OTHERS_ERROR
        self._stacks: dict[float, SumMoments] = {}
        self._tables: dict[tuple[float, int], FloatMatrix] = {}

    def _alone(self, alpha: float) -> float:
        """Return the bound of one client alone."""
        return alpha * self._slope**2 / 8

    def _upper(self, alpha: float) -> float:
        """Return the bound, at most that of one client alone."""
        bound = self._alone(alpha)
        order = max(alpha, _LEAST_ORDER)
        if self._noisy and order * self._loss + _TAIL <= _REACHES[-1]:
            bound = min(bound, self._slope**2 * self._quotient(order) * (1 + 1e-9))
        return bound * (1 + 1e-12)

    def __call__(self, alpha: float) -> float:
        """Return kappa_alpha from above, from `upper` at a ladder of orders."""
        if check_real(alpha, "alpha", above=1.0) <= _LEAST_ORDER:
            return self.upper(_LEAST_ORDER)
        return min(super().__call__(alpha), self._alone(alpha) * (1 + 1e-12))

    def _quotient(self, alpha: float) -> float:
        """Bound D_alpha/(u - u')^2 from above, with tables as fine as the order needs."""
        # Between nodes d apart the interpolated table is too large by about (d alpha)^2/4n times
        # its value.
        reach = (self._most - self._least) * alpha
        variance = self._least * (1 - self._least)
        fewest = reach / math.sqrt(4 * self._clients * variance * 5e-3)
        values = self._laws(alpha).q_0.shape[1]
        most = max(9, min(_MOST_NODES, _MOST_NUMBERS // values))
        needed = min(2 * fewest, most)
        count = next((nodes for nodes in _NODES if nodes >= needed), _NODES[-1])
        value = self._with_nodes(alpha, count)
        while self._clients < _FEW and 2 * count - 1 <= most:
            count = 2 * count - 1
            finer = self._with_nodes(alpha, count)
            settled = finer > value * (1 - 2e-3)
            value = min(value, finer)
            if settled:
                break
        return value

    def _with_nodes(self, alpha: float, count: int) -> float:
        """Return the bound with tables of ``count`` nodes."""
        nodes = self._nodes(count)
        # Qbar is log-convex in the order; between orders 2 and 3 it need not be convex in p.
        if 2 < alpha < 3:
            powers = [(2.0, 3 - alpha), (3.0, alpha - 2)]
        else:
            powers = [(alpha, 1.0)]
        scale = alpha * (alpha - 1) / 2
        tables = [(self._table(order, nodes) * scale, power) for order, power in powers]
        cells = 1_500_000 if self._clients < _FEW else 100_000
        centre = count // 2 if self._zero_out else None
        return pair_supremum_upper(nodes, tables, alpha, centre, cells) / (alpha - 1)

    def _nodes(self, count: int) -> FloatVector:
        """Return probabilities with evenly spaced log-odds, the ends and the middle exact.

        Q varies fastest near the ends.
        """
        exact = (self._least, self._middle, self._most)
        left, middle, right = (math.log(p) - math.log1p(-p) for p in exact)
        half = count // 2 + 1
        odds = np.append(np.linspace(left, middle, half), np.linspace(middle, right, half)[1:])
        nodes = 1 / (1 + np.exp(-odds))
        nodes[[0, half - 1, -1]] = exact
        return nodes

    def _table(self, alpha: float, nodes: FloatVector) -> FloatMatrix:
        """Return the largest Qbar over all k, at the pairs of nodes that adjacency compares."""
        key = (alpha, len(nodes))
        if key in self._tables:
            return self._tables[key]
        laws = self._laws(alpha)
        if self._zero_out:
            centre = [len(nodes) // 2]
            table = np.zeros((len(nodes), len(nodes)))
            table[:, centre] = laws.table(alpha, nodes, nodes[centre], self._loss)
            table[centre, :] = laws.table(alpha, nodes[centre], nodes, self._loss)
        else:
            table = laws.table(alpha, nodes, nodes, self._loss)
        if self._symmetric:  # as many others at the other end: the mirror image
            table = np.maximum(table, table[::-1, ::-1])
        if alpha in (2.0, 3.0):
            self._tables[key] = table
        return table

    def _laws(self, alpha: float) -> SumMoments:
        """Return the laws of the others' sum, in a window that is wide enough for the order."""
        reach = next(reach for reach in _REACHES if alpha * self._loss + _TAIL <= reach)
        if reach not in self._stacks:
            self._stacks[reach] = SumMoments.of_others(
                self._clients - 1,
                self._least - OTHERS_ERROR,
                self._most + OTHERS_ERROR,
                reach,
                half=self._symmetric,
            )
        return self._stacks[reach]


def aggregate_cost(
    design: Design,
    distance: float,
    clients: int,
    adjacency: Adjacency,
    low: float = 0.0,
    high: float = 1.0,
    *,
    alone: Cost | None = None,
) -> Cost:
    """Return the cost of one secure sum of codes for neighbours within L2 ``distance`` in x-space.

    It holds where the server, and any clients that collude with it, see only the sum. Who answers
    must not depend on their codes, and where several sums are added up, neither may what a client
    puts into a later one (no error feedback).

    Args:
        design: of one bit.
        distance: the largest L2 distance of two neighbours' inputs.
        clients: honest clients whose codes the sum contains, the protected one included.
        adjacency: which two inputs are neighbours.
        low: the smallest input of a coordinate.
        high: the largest input of a coordinate.
        alone: the cost of the protected client's own release, of which the sum is post-processing:
            what is proved of it is proved of the sum too.
    """
    distance = check_real(distance, "distance")
    # Rounded outwards, so that ranges which differ in their last bits share the computation.
    low = math.floor(low * GRAIN) / GRAIN
    high = math.ceil(high * GRAIN) / GRAIN
    kappa = _constant(design, low, high, clients, adjacency)
    cost = Cost.per_square(kappa, distance)
    if alone is None:
        return cost
    return cost.tightened(alone)


_constant = lru_cache(maxsize=16)(AggregateConstant)


def _sigmoid(value: float) -> float:
    if value > -700:
        return 1 / (1 + math.exp(-value))
    return 0.0
