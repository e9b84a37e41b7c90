"""Secure aggregation: what the sum of the clients' codes reveals about one client.

Idea     the server sees, per coordinate, how many of n clients sent a one. The other clients' bits are the noise:
         whatever they hold, the divergence is largest with k of them at one end of the range and the rest at the
         other; all k are covered by exact convolutions, all pairs of inputs by convexity (`sum_moment`). A code of a
         binomial design is the number of ones among c = 2^b - 1 independent bits: a server that saw the c sums of
         first bits, second bits and so on would see more than the total: the divergence is at most c times one bit's.
Symbols  q: law of the others' sum, delta(s) = q(s-1) - q(s), P_p(s) = q(s) + p delta(s) with the client's own bit;
         Qbar = (sum P^alpha P'^(1-alpha) - 1)/((p - p')^2 alpha (alpha - 1)/2); kappa_alpha: sup of D_alpha/(x-x')^2;
         n: honest clients; kappa_m: one bit's constant with m clients; tau: by how much a client's true law may fall
         short of a binomial one; J: clients given up for it; loss: the largest log-ratio of one client.
Source   docs/theory/secure-aggregation.md has the proofs; Guo et al. (ICML 2023) leave it open (limitation 1).

Other clients' laws are binomial up to the rounding of the table and the sampler: law >= (1 - tau) binomial, so each is
a mixture that is binomial but for a probability of tau. Told who is not, the server still has n - 1 - j others to see
through: moment - 1 <= (moment at n - J) - 1 + P(more than J) (moment of one client - 1), by joint convexity.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.binomial import binomial_deviation_upper, is_evenly_spaced
from quietbit.design.solve import solve
from quietbit.design.spec import DesignSpec
from quietbit.design.table import Design
from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.privacy.conversion import OrderConstant
from quietbit.privacy.cost import Cost, Formula
from quietbit.privacy.divergence import CENTRE, Segments, check_range
from quietbit.privacy.sum_moment import MOST_REACH, SumMoments, bit_sum, pair_supremum_upper
from quietbit.target import MOST_CLIENTS, Adjacency

__all__ = ["AggregateConstant", "aggregate_cost", "codes_deviation_upper"]

OTHERS_ERROR = 2.0**-44  # a sampler's error, and more, by which others' probabilities may leave the range
_BLOCK = 0.004  # share of the clients whose ends are treated together
GRAIN = 2.0**36  # ranges are rounded outwards to multiples of 1/GRAIN
_TAIL = 40.0  # the mass outside a window is at most about e^-40
_LEAST_STEP = 2.0**-4
_REACHES = (150.0, 300.0, MOST_REACH - 40)
_FEW = 64  # clients: so few that nodes are cheap and expansions in 1/n are loose
_NODES, _MOST_NODES, _MOST_NUMBERS = (5, 9, 17, 33, 65, 129, 257), 257, 1 << 14


@final
class AggregateConstant(OrderConstant):
    """kappa_alpha of the sum of ``clients`` one-bit releases, certified from above at any order.

    ``clients`` counts the honest clients that answer and do not collude with the server: 2 to 100,000. The inputs of
    all lie in [low, high]. Exact up to a fraction of a percent for designs with two levels; with more levels the
    largest slope of the log-odds replaces all of them. One-bit designs only.
    """

    RUNGS = 4

    def __init__(self, design: Design, low: float, high: float, clients: int, adjacency: Adjacency) -> None:
        """Refuse designs of more than one bit, too few or too many clients, and ranges without a centre."""
        bits = design.spec.output_bits
        require(bits == 1, "output bits of the design", bits, "1 here (binomial designs: aggregate_cost)")
        require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
        self._clients = check_int(clients, "clients", 2, MOST_CLIENTS)
        low, high = check_range(low, high)
        super().__init__(design, low, high, self._clients, adjacency)
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
        require(
            least > 0 and most < 1, "input range", (low, high), "one where both symbols can occur in floating point"
        )
        self._loss = max(math.log(most / least), math.log1p(-least) - math.log1p(-most)) * (1 + 1e-12)
        # Others whose rarer symbol a sampler may never draw do not count as noise.
        self._noisy = min(least, 1 - most) > 2 * OTHERS_ERROR
        self._stacks: dict[float, SumMoments] = {}
        self._tables: dict[tuple[float, int], FloatMatrix] = {}

    def _upper(self, alpha: float) -> float:
        """Return the bound, at most that of one client alone, alpha slope^2 / 8."""
        alone = found = alpha * self._slope**2 / 8
        # Orders next to 1 borrow from the next larger: divergences grow with the order.
        order = max(alpha, 1 + _LEAST_STEP)
        if self._noisy and order * self._loss + _TAIL <= _REACHES[-1]:
            found = self._slope**2 * self._quotient(order) * (1 + 1e-9)
        return min(found, alone) * (1 + 1e-12)

    def __call__(self, alpha: float) -> float:
        """Return kappa_alpha from above, from `upper` at a ladder of orders."""
        if check_real(alpha, "alpha", above=1.0) <= 1 + _LEAST_STEP:
            return self.upper(1 + _LEAST_STEP)
        return min(super().__call__(alpha), alpha * self._slope**2 / 8 * (1 + 1e-12))

    def _quotient(self, alpha: float) -> float:
        """Bound the supremum of D_alpha/(u - u')^2 from above, with tables as fine as the order needs."""
        # Between nodes d apart the interpolated table is too large by about (d alpha)^2/4n times its value.
        reach = (self._range[1] - self._range[0]) * alpha
        fewest = reach / math.sqrt(4 * self._clients * self._range[0] * (1 - self._range[0]) * 5e-3)
        values = self._laws(alpha).q_0.shape[1]
        most = max(9, min(_MOST_NODES, _MOST_NUMBERS // values))
        count = next((nodes for nodes in _NODES if nodes >= min(2 * fewest, most)), _NODES[-1])
        value = self._with_nodes(alpha, count)
        while self._clients < _FEW and 2 * count - 1 <= most:
            count = 2 * count - 1
            finer = self._with_nodes(alpha, count)
            done = finer > value * (1 - 2e-3)
            value = min(value, finer)
            if done:
                break
        return value

    def _with_nodes(self, alpha: float, count: int) -> float:
        half = count // 2 + 1
        least, most = self._range
        # Evenly spaced in the log-odds, with the ends and the middle exact: Q varies fastest near the ends.
        ends = [math.log(p) - math.log1p(-p) for p in (least, self._middle, most)]
        odds = np.concatenate((np.linspace(ends[0], ends[1], half), np.linspace(ends[1], ends[2], half)[1:]))
        nodes = 1 / (1 + np.exp(-odds))
        nodes[[0, half - 1, -1]] = least, self._middle, most
        # Qbar is log-convex in the order; between orders 2 and 3 it need not be convex in p.
        parts = [(2.0, 3 - alpha), (3.0, alpha - 2)] if 2 < alpha < 3 else [(alpha, 1.0)]
        tables = [(self._table(order, nodes) * (alpha * (alpha - 1) / 2), power) for order, power in parts]
        cells = 1_500_000 if self._clients < _FEW else 100_000
        centre = half - 1 if self._zero_out else None
        return pair_supremum_upper(nodes, tables, alpha, centre, cells) / (alpha - 1)

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
        """Return others' laws that together dominate every k: a block of k is treated as if its width were absent.

        Leaving an independent bit out of a sum can only increase a divergence (data processing).
        """
        reach = next(reach for reach in _REACHES if alpha * self._loss + _TAIL <= reach)
        if reach not in self._stacks:
            least, most = self._range[0] - OTHERS_ERROR, self._range[1] + OTHERS_ERROR
            width, end = math.floor(_BLOCK * self._clients), self._clients - 1
            stop = end // 2 if self._symmetric else end
            blocks = [(first, min(first + width, stop)) for first in range(0, stop + 1, width + 1)]
            sums = [bit_sum(first, most, end - last, least, reach) for first, last in blocks]
            self._stacks[reach] = SumMoments.of(sums)
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
    """Return the curve of one secure sum of codes for neighbours within L2 ``distance`` in x-space.

    Holds where the server, and any clients that collude with it, see only the sum, which contains the codes of at least
    ``clients`` honest clients, the protected one included. Who answers must not depend on their codes, and where
    several sums are added up, neither may what a client puts into a later one (no error feedback). ``alone`` is the
    curve of the protected client's own release, of which the sum is post-processing: it is used where it is smaller,
    and at delta = 0. Designs are of one bit or binomial; with more bits the caller adds the protected client's own
    deviation from a binomial law, `codes_deviation_upper` per coordinate, to the sampler's slack.
    """
    distance = check_real(distance, "distance")
    # Rounded outwards, so that ranges which differ in their last bits share the computation.
    low, high = math.floor(low * GRAIN) / GRAIN, math.ceil(high * GRAIN) / GRAIN
    given = (design, low, high, adjacency, clients)
    kappa = _constant(*given) if design.spec.output_bits == 1 else _codes(*given)
    label = f"sum of {clients} codes, {adjacency.value}"
    whole = Cost.per_square(kappa, distance, label)
    return whole if alone is None else whole.or_else(alone, label)


@lru_cache(maxsize=16)
def _constant(design: Design, low: float, high: float, adjacency: Adjacency, clients: int) -> AggregateConstant:
    return AggregateConstant(design, low, high, clients, adjacency)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


BINOMIAL = 1e-10  # largest difference of log-probabilities from binomial ones
_SPARE = (0, 1, 2, 4, 8, 16, 32, 64)
_NEGLIGIBLE = math.log(1e-6)


def codes_deviation_upper(design: Design, low: float, high: float) -> float:
    """Bound the deviation from a binomial law, in logarithms; refuse designs whose codes are not sums of equal bits."""
    if not is_evenly_spaced(design):
        raise InvalidParameter(
            "alphabet must be evenly spaced for sums of codes of several bits, got an uneven one: use binomial_design."
        )
    found = binomial_deviation_upper(design, low, high)
    if not found <= BINOMIAL:
        raise InvalidParameter(
            "design must be one bit or binomial for the account of a sum, got codes that are not sums of equal bits: "
            "use binomial_design."
        )
    return found


def _codes(design: Design, low: float, high: float, adjacency: Adjacency, clients: int) -> Formula:
    """Return kappa_alpha of a sum of codes of a binomial design."""
    count = check_int(clients, "clients", 2, MOST_CLIENTS)
    deviation = codes_deviation_upper(design, low, high)
    bits = design.spec.outputs - 1
    each = design.spec.epsilon / bits
    ends = [1 / (1 + math.exp(-each * (2 * x - 1))) for x in (low, high)]
    rarest = min(ends[0], 1 - ends[1]) * (1 - 1e-12)
    loss = bits * max(math.log(ends[1] / ends[0]), math.log((1 - ends[0]) / (1 - ends[1]))) * (1 + 1e-12)
    short = deviation + OTHERS_ERROR / rarest**bits
    return Formula(_codes_kappa, bits, each, loss, short, count, _one_bit(each), low, high, adjacency)


def _codes_kappa(
    alpha: float, bits: int, each: float, loss: float, short: float, clients: int, design: Design, *where: Any
) -> float:
    """Return kappa_alpha of a sum of codes, each of ``bits`` equal bits with log-odds ``each`` (2x - 1).

    J clients are given up, so that more than J non-binomial ones add a millionth at most: P(Bin(n - 1, tau) > J) is
    at most (n tau)^(J+1)/(J+1)!, tau = ``short``.
    """
    bound = single = alpha * bits * each**2 / 2  # one client's code alone
    for spare in _SPARE:
        if clients - spare < 2:
            break
        tail = (spare + 1) * math.log(clients * short) - math.lgamma(spare + 2) + 1e-9 + (alpha - 1) * loss
        if tail + math.log(clients) <= _NEGLIGIBLE:
            one = _constant(design, *where, clients - spare)(alpha)
            bound = min(bound, bits * one * (1 + 1e-9 + 2.0**-46 / each) + single * math.exp(tail))
            break
    return bound * (1 + 1e-14)


@lru_cache(maxsize=16)
def _one_bit(epsilon: float) -> Design:
    return solve(DesignSpec(2, 1, epsilon), cache=False)
