"""Secure aggregation: what the sum of the clients' codes reveals about one client.

Idea     the server sees, per coordinate, how many of n clients sent a one. The other clients' bits
         are the noise: whatever they hold, the divergence is largest with k of them at one end of
         the range and the rest at the other; all k are covered by exact convolutions. Given these,
         the moment exceeds 1 by h^2 Q, Q convex in p and in p': at most its bilinear interpolation
         between nodes, and branch and bound finds the worst pair of inputs. A code of a binomial
         design is the number of ones among c = 2^b - 1 bits, and costs at most c times one bit.
         Bits of randomised response are at the two ends alone: no pair between them has to be
         covered.
Symbols  q: law of the others' sum; q_0 = q, q_1(s) = q(s-1), delta = q_1 - q_0; P_p = q_0 + p
         delta: with the client's own bit; moment = sum P_p^alpha P_p'^(1-alpha); h = p - p'; Q =
         (moment - 1)/h^2, Qbar = Q/(alpha (alpha-1)/2); u = log(p/(1-p)); kappa_alpha: sup of
         D_alpha/(x-x')^2; loss: the largest log-ratio of one client.
Source   docs/theory/secure-aggregation.md: proofs and rounding; Guo et al. (ICML 2023) leave it
         open (limitation 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.closed_form import binomial_deviation_upper, is_evenly_spaced
from quietbit.design.solve import solve
from quietbit.design.table import Design, DesignSpec
from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.privacy.branch import Cells, supremum_upper
from quietbit.privacy.cost import Cost, Formula
from quietbit.privacy.divergence import CENTRE, Segments, check_range
from quietbit.privacy.orders import OrderConstant
from quietbit.privacy.rounding import round_up
from quietbit.target import MOST_CLIENTS, Adjacency

__all__ = [
    "AggregateConstant",
    "BitSum",
    "SumMoments",
    "aggregate_cost",
    "bit_sum",
    "codes_deviation_upper",
    "pair_supremum_upper",
    "response_sum_cost",
]

OTHERS_ERROR = (
    2.0**-44
)  # a sampler's error, and more, by which others' probabilities may leave the range
_BLOCK = 0.004  # share of the clients whose ends are treated together
GRAIN = 2.0**36  # ranges are rounded outwards to multiples of 1/GRAIN
_TAIL = 40.0  # the mass outside a window is at most about e^-40
_LEAST_STEP = 2.0**-4
MOST_REACH = 690.0  # e^-690 is still a normal double
_REACHES = (150.0, 300.0, MOST_REACH - 40)
_FEW = 64  # clients: so few that nodes are cheap and expansions in 1/n are loose
_NODES = (5, 9, 17, 33, 65, 129, 257)
_MOST_NODES = 257
_MOST_NUMBERS = 1 << 14
_ACCURACY = 1e-3  # of the supremum over pairs of inputs
_CHUNK = 64
_STACK = 1 << 19  # logarithms at once: small enough for the cache of most machines
BINOMIAL = 1e-10  # largest difference of log-probabilities from binomial ones
_SPARE = (0, 1, 2, 4, 8, 16, 32, 64)
_NEGLIGIBLE = math.log(1e-6)
_UNIT = 2.0**-53
_Surfaces: TypeAlias = "Sequence[tuple[_Surface, float]]"


@final
class AggregateConstant(OrderConstant):
    """kappa_alpha of the sum of ``clients`` one-bit releases, certified from above at any order.

    ``clients``, 2 to 100,000, are honest, answer and do not collude with the server; inputs lie in
    [low, high]. With more than two levels the largest slope of the log-odds replaces all of them.
    """

    RUNGS = 4

    def __init__(
        self, design: Design, low: float, high: float, clients: int, adjacency: Adjacency
    ) -> None:
        bits = design.spec.output_bits
        require(
            bits == 1,
            "output bits of the design",
            bits,
            "1 here (binomial designs: aggregate_cost)",
        )
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
        piece = min(
            max(int(np.searchsorted(segments.left, CENTRE, side="right")) - 1, 0), len(odds) - 1
        )
        middle = _sigmoid(float(odds[piece] + slope[piece] * (CENTRE - segments.left[piece])))
        self._symmetric = abs(self._range[0] + self._range[1] - 1) < 1e-9
        if self._symmetric:
            away = max(self._range[1], 1 - self._range[0]) - 0.5
            self._range = 0.5 - away, 0.5 + away
        self._zero_out = adjacency is Adjacency.ZERO_OUT
        # A centre within 1e-12 of 1/2 is 1/2: the quotient is smooth in it, and the last margin is
        # 1e-9.
        if self._zero_out and not (self._symmetric and abs(middle - 0.5) < 1e-12):
            self._symmetric = False
            self._middle = middle
        else:
            self._middle = (self._range[0] + self._range[1]) / 2
        least, most = self._range
        rule = "one where both symbols can occur in floating point"
        require(least > 0 and most < 1, "input range", (low, high), rule)
        self._loss = max(math.log(most / least), math.log1p(-least) - math.log1p(-most)) * (
            1 + 1e-12
        )
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
        # Between nodes d apart the interpolated table is too large by about (d alpha)^2/4n times
        # its value.
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
        # Evenly spaced in the log-odds, with the ends and the middle exact: Q varies fastest near
        # the ends.
        ends = [math.log(p) - math.log1p(-p) for p in (least, self._middle, most)]
        odds = np.concatenate(
            (np.linspace(ends[0], ends[1], half), np.linspace(ends[1], ends[2], half)[1:])
        )
        nodes = 1 / (1 + np.exp(-odds))
        nodes[[0, half - 1, -1]] = least, self._middle, most
        # Qbar is log-convex in the order; between orders 2 and 3 it need not be convex in p.
        if 2 < alpha < 3:
            parts = [(2.0, 3 - alpha), (3.0, alpha - 2)]
        else:
            parts = [(alpha, 1.0)]
        tables = [
            (self._table(order, nodes) * (alpha * (alpha - 1) / 2), power) for order, power in parts
        ]
        cells = 1_500_000 if self._clients < _FEW else 100_000
        if self._zero_out:
            centre = half - 1
        else:
            centre = None
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
        reach = next(reach for reach in _REACHES if alpha * self._loss + _TAIL <= reach)
        if reach not in self._stacks:
            least = self._range[0] - OTHERS_ERROR
            most = self._range[1] + OTHERS_ERROR
            self._stacks[reach] = SumMoments.of_others(
                self._clients - 1, least, most, reach, half=self._symmetric
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
    """Return the curve of one secure sum of codes for neighbours within L2 ``distance`` in x-space.

    Holds where the server, and any clients that collude with it, see only the sum, which contains
    the codes of at least ``clients`` honest clients, the protected one included. Who answers must
    not depend on their codes, and where several sums are added up, neither may what a client puts
    into a later one (no error feedback). ``alone`` is the curve of the protected client's own
    release, of which the sum is post-processing: it is used where it is smaller, and at delta = 0.
    Designs are of one bit or binomial; with more bits the caller adds the protected client's own
    deviation from a binomial law, `codes_deviation_upper` per coordinate, to the sampler's slack.
    """
    distance = check_real(distance, "distance")
    # Rounded outwards, so that ranges which differ in their last bits share the computation.
    low = math.floor(low * GRAIN) / GRAIN
    high = math.ceil(high * GRAIN) / GRAIN
    given = (design, low, high, clients, adjacency)
    kappa: AggregateConstant | Formula = (
        _codes(*given) if design.spec.output_bits > 1 else _constant(*given)
    )
    label = f"sum of {clients} codes, {adjacency.value}"
    whole = Cost.per_square(kappa, distance, label)
    if alone is None:
        return whole
    return whole.or_else(alone, label)


_constant = lru_cache(maxsize=16)(AggregateConstant)


def _sigmoid(value: float) -> float:
    if value > -700:
        return 1 / (1 + math.exp(-value))
    return 0.0


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


def _codes(design: Design, low: float, high: float, clients: int, adjacency: Adjacency) -> Formula:
    """Return kappa_alpha of a sum of codes of a binomial design."""
    count = check_int(clients, "clients", 2, MOST_CLIENTS)
    deviation = codes_deviation_upper(design, low, high)
    bits = design.spec.outputs - 1
    each = design.spec.epsilon / bits
    ends = [1 / (1 + math.exp(-each * (2 * x - 1))) for x in (low, high)]
    rarest = min(ends[0], 1 - ends[1]) * (1 - 1e-12)
    loss = (
        bits
        * max(math.log(ends[1] / ends[0]), math.log((1 - ends[0]) / (1 - ends[1])))
        * (1 + 1e-12)
    )
    short = deviation + OTHERS_ERROR / rarest**bits
    return Formula(
        _codes_kappa, bits, each, loss, short, count, adjacency, _one_bit(each), low, high
    )


def _codes_kappa(
    alpha: float,
    bits: int,
    each: float,
    loss: float,
    short: float,
    clients: int,
    adjacency: Adjacency,
    *where: Any,
) -> float:
    """Return kappa_alpha of a sum of codes of ``bits`` equal bits with log-odds ``each`` (2x - 1); ``short``: tau."""
    bound = single = alpha * bits * each**2 / 2  # one client's code alone
    for spare in _SPARE:
        if clients - spare < 2:
            break
        # More than J = spare others are not binomial with probability (n tau)^(J+1)/(J+1)! at most.
        tail = (
            (spare + 1) * math.log(clients * short)
            - math.lgamma(spare + 2)
            + 1e-9
            + (alpha - 1) * loss
        )
        if tail + math.log(clients) <= _NEGLIGIBLE:
            one = _constant(*where, clients - spare, adjacency)(alpha)
            bound = min(bound, bits * one * (1 + 1e-9 + 2.0**-46 / each) + single * math.exp(tail))
            break
    return bound * (1 + 1e-14)


@lru_cache(maxsize=16)
def _one_bit(epsilon: float) -> Design:
    return solve(DesignSpec(2, 1, epsilon), cache=False)


@final
class _ResponseDivergence(OrderConstant):
    """D_alpha of one bit, certified from above at any order."""

    RUNGS = 4

    def __init__(self, lie: float, clients: int, coin: bool) -> None:
        super().__init__(lie, clients, coin)
        # One end against the other, or each end against the middle; both ways round.
        if coin:
            pairs = [(lie, 0.5), (1 - lie, 0.5)]
        else:
            pairs = [(lie, 1 - lie)]
        self._pairs = [*pairs, *((other, one) for one, other in pairs)]
        if coin:
            one = math.log(0.5 / lie)
        else:
            one = math.log((1 - lie) / lie)
        self.loss = one * (
            1 + 1e-12
        )  # of one client alone; against a coin, a lie has the larger loss
        # As many others at the other end are the mirror image.
        self._laws = SumMoments.of_others(clients - 1, lie, 1 - lie, _REACHES[-1], half=True)

    def _upper(self, alpha: float) -> float:
        order = max(alpha, 1 + _LEAST_STEP)  # orders next to 1 use the bound of a larger one
        if order * self.loss + _TAIL > _REACHES[-1]:
            return self.loss
        tables = [
            self._laws.table(order, np.array([p]), np.array([q]), self.loss) for p, q in self._pairs
        ]
        worst = max(float(table[0, 0]) for table in tables)
        gap = self._pairs[0][1] - self._pairs[0][0]
        return min(
            math.log1p(gap * gap * worst * order * (order - 1) / 2) / (order - 1) * (1 + 1e-9),
            self.loss,
        )


_response = lru_cache(maxsize=16)(_ResponseDivergence)


def response_sum_cost(lie: float, clients: int, coin: bool, bits: int = 1) -> Cost:
    """Return the curve of one sum over ``clients`` honest clients, for neighbours that differ in ``bits`` bits.

    ``lie``, below 1/2, is exact in binary and so is 1 - ``lie``. With ``coin``, the neighbour's bit
    is a fair coin.
    """
    divergence = _response(lie, clients, coin)
    label = f"sum of {clients} bits of randomised response"
    return Cost.renyi(
        Formula(_times, divergence, bits), label, round_up(bits * divergence.loss, 4e-16)
    )


def _times(alpha: float, divergence: _ResponseDivergence, bits: int) -> float:
    return round_up(bits * divergence(alpha), 4e-16)


@final
@dataclass(frozen=True, slots=True, eq=False)
class BitSum:
    """Probabilities of ``first .. first + len(law) - 1``; the sum ranges over ``0 .. size``."""

    law: FloatVector
    first: int
    size: int
    tail: float
    error: float


def bit_sum(
    many: int, probability: float, others: int, other_probability: float, reach: float
) -> BitSum:
    """Return the law of Bin(many, probability) + Bin(others, other_probability), to a tail of about e^-reach."""
    # Both parts are kept further out than the sum, so that what they lack does not show inside the
    # sum's window.
    a = _binomial(many, probability, reach + 40)
    b = _binomial(others, other_probability, reach + 40)
    law = np.convolve(a.law, b.law)
    error = a.error + b.error + (min(len(a.law), len(b.law)) + 2) * _UNIT + 1e-16
    missing = a.tail + b.tail
    kept = np.flatnonzero(law >= max(missing * 1e16, math.exp(-reach - 10)))
    low = int(kept[0])
    high = int(kept[-1])
    first = a.first + b.first + low
    size = many + others
    tail = missing
    if first > 0:
        tail += _beyond(law[low], law[low] / law[low + 1])
    if a.first + b.first + high < size:
        tail += _beyond(law[high], law[high] / law[high - 1])
    return BitSum(law[low : high + 1], first, size, tail * (1 + 1e-9), error)


def _beyond(edge: float, ratio: float) -> float:
    """Bound the mass beyond the edge of a law that falls there by ``ratio`` at least: edge (r + r^2 + ...)."""
    ratio = float(ratio) * (1 + 1e-9)
    if ratio < 1:
        return float(edge) * ratio / (1 - ratio)
    return math.inf


def _binomial(count: int, probability: float, reach: float) -> BitSum:
    """Return Bin(count, probability), from the mode outwards until e^-reach of the mode."""
    reach = min(reach, MOST_REACH)
    mode = min(int((count + 1) * probability), count)
    odds = probability / (1 - probability)
    # Bernstein's inequality says how far to go; the edges are then measured.
    far = (
        math.ceil(
            reach / 3
            + math.sqrt(reach * reach / 9 + 2 * reach * count * probability * (1 - probability))
        )
        + 2
    )
    up = np.arange(mode, min(count, mode + far))
    down = np.arange(mode, max(0, mode - far), -1)
    above = np.cumprod((count - up) / (up + 1) * odds)
    below = np.cumprod(down / ((count - down + 1) * odds))
    floor = math.exp(-reach)
    above = above[above >= floor]
    below = below[below >= floor]
    law = np.concatenate((below[::-1], [1.0], above))
    law /= law.sum()
    first = mode - len(below)
    last = mode + len(above)
    if first > 0:
        tail = _beyond(law[0], first / ((count - first + 1) * odds))
    else:
        tail = 0.0
    if last < count:
        tail += _beyond(law[-1], (count - last) / (last + 1) * odds)
    steps = max(len(above), len(below), 1)
    return BitSum(law, first, count, tail, (10 * steps + 40) * _UNIT)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SumMoments:
    """Several laws of the others' sum, one row each, padded with zeros; used for many orders and nodes."""

    q_0: FloatMatrix
    delta: FloatMatrix
    mass: FloatVector  # sum of q_0 over the window
    outside: FloatVector  # upper bound on the probability outside the window, edges included
    error: FloatVector

    @classmethod
    def of(cls, laws: list[BitSum]) -> SumMoments:
        """Build the rows; leave out values of a sum whose probability needs a dropped one."""
        rows = []
        outside = []
        for sums in laws:
            q_0 = np.append(sums.law, 0.0)
            q_1 = np.concatenate(([0.0], sums.law))
            beyond = sums.tail
            if sums.first > 0:
                beyond = beyond + float(q_0[0])
                q_0 = q_0[1:]
                q_1 = q_1[1:]
            if sums.first + len(sums.law) <= sums.size:
                beyond = beyond + float(q_1[-1])
                q_0 = q_0[:-1]
                q_1 = q_1[:-1]
            rows.append((q_0, q_1 - q_0))
            outside.append(beyond * (1 + 1e-9))
        length = -(-max(len(row[0]) for row in rows) // _CHUNK) * _CHUNK
        stack = np.zeros((2, len(rows), length))
        for index, pair in enumerate(rows):
            stack[:, index, : len(pair[0])] = pair
        mass = np.array([row[0].sum() for row in rows])
        return cls(
            stack[0], stack[1], mass, np.array(outside), np.array([sums.error for sums in laws])
        )

    @classmethod
    def of_others(
        cls, others: int, low: float, high: float, reach: float, *, half: bool
    ) -> SumMoments:
        """Build laws that together dominate every k others at ``high``, the rest ``low``; ``half``: k up to half."""
        # A block of k counts as if its width were absent: fewer others are worse (data processing).
        width = math.floor(_BLOCK * (others + 1))
        if half:
            stop = others // 2
        else:
            stop = others
        blocks = [(first, min(first + width, stop)) for first in range(0, stop + 1, width + 1)]
        return cls.of([bit_sum(first, high, others - last, low, reach) for first, last in blocks])

    def table(
        self, alpha: float, rows: FloatVector, columns: FloatVector, loss: float
    ) -> FloatMatrix:
        """Bound the largest Qbar(rows[i], columns[j]) over the laws from above; ``loss`` bounds |log P_p/P_p'|."""
        h = np.subtract.outer(rows, columns)
        same = h == 0
        h[same] = 1.0
        best = np.zeros_like(h)
        most = max(
            1, _STACK // (max(h.shape) * self.q_0.shape[1])
        )  # laws at once, to stay in the cache
        # A chunked sum of positive terms, two exponentials, and logarithms times the order.
        units = 3 * _CHUNK + self.q_0.shape[1] / _CHUNK + 60 + 8 * alpha * loss
        spread = 1 / min(rows.min(), columns.min(), 1 - rows.max(), 1 - columns.max())
        for first in range(0, len(self.mass), most):
            part = SumMoments(
                *(getattr(self, name)[first : first + most] for name in self.__slots__)
            )
            base = part.q_0 + columns[len(columns) // 2] * part.delta
            ratio = np.divide(part.delta, base, out=np.zeros_like(base), where=base > 0)[:, None, :]
            left, right = (
                np.log1p((p - columns[len(columns) // 2])[:, None] * ratio) for p in (rows, columns)
            )
            for logs, order in ((left, alpha), (right, 1 - alpha)):
                np.exp(np.multiply(logs, order, out=logs), out=logs)
            left *= base[:, None, :]
            # left @ right.T, law by law, added up in short chunks so that rounding stays small
            a, b = (
                one.reshape(*one.shape[:2], -1, _CHUNK).transpose(0, 2, 1, 3)
                for one in (left, right)
            )
            moment = (a @ b.transpose(0, 1, 3, 2)).sum(axis=1)
            rounding = (
                units * _UNIT * (1 + moment) + ((3 + alpha) * part.outside + 1e-60)[:, None, None]
            )
            found = (
                (moment - part.mass[:, None, None] + rounding) / (alpha * (alpha - 1) / 2) / (h * h)
            )
            found[:, same] = part._local(rows[same.any(axis=1)])
            error = part.error[:, None, None]  # from here on, step 6 of the page
            root = np.sqrt(np.maximum(found, 0.0)) + 2 * error * spread * np.sqrt(3 + moment)
            beyond = spread**2 * np.exp(alpha * loss + np.log(part.outside + 1e-300))[:, None, None]
            best = np.maximum(
                best, (root * root * np.exp(2 * (alpha + 1) * error) + beyond).max(axis=0)
            )
        return best

    def _local(self, nodes: FloatVector) -> FloatMatrix:
        """Return Qbar on the diagonal: sum delta^2 / P, the same at all orders."""
        q_0 = self.q_0[:, None, :]
        delta = self.delta[:, None, :]
        law = q_0 + nodes[:, None] * delta
        terms = np.divide(delta**2, law, out=np.zeros_like(law), where=law > 0)
        return np.asarray(terms.sum(axis=-1) * (1 + 1e-13))


def pair_supremum_upper(
    nodes: FloatVector,
    tables: Sequence[tuple[FloatMatrix, float]],
    alpha: float,
    centre: int | None,
    most_cells: int = 400_000,
) -> float:
    """Bound the supremum of log(1 + h^2 Q)/(u - u')^2 over p, p' in the nodes' range, from above.

    ``tables`` are (table, power) pairs: Q is at most the product of convex functions to these
    powers, each bounded at (nodes[i], nodes[j]) by table[i, j]; usually there is one, with power 1.
    With a ``centre``, one of p and p' is that node, and only its row and column of a table are
    used. A single table has order ``alpha``. After ``most_cells`` cells the answer is what has been
    proved by then, which is still a bound.
    """
    order = alpha if len(tables) == 1 else math.inf
    squares = np.subtract.outer(nodes, nodes) ** 2
    logs = [np.log1p(squares * table) * (1 + 1e-15) for table, _ in tables]
    pairs = zip(tables, logs, strict=True)
    surfaces = [(_Surface(nodes, table, moment, order), power) for (table, power), moment in pairs]
    return supremum_upper(surfaces, (_first(centre, nodes),), _ACCURACY, most_cells) * (1 + 1e-12)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Cells(Cells[_Surfaces]):
    """Rectangles [a, b] x [c, d] of (p, p'), each inside cell (row, column) of the table."""

    row: Any
    column: Any
    a: FloatVector
    b: FloatVector
    c: FloatVector
    d: FloatVector

    def halves(self, split: Any) -> _Cells:
        """Split every cell, across p where the mask is set."""
        x = (self.a + self.b) / 2
        y = (self.c + self.d) / 2
        lower = (self.a, np.where(split, x, self.b), self.c, np.where(split, self.d, y))
        upper = (np.where(split, x, self.a), self.b, np.where(split, self.c, y), self.d)
        return self.joined((self.row, self.column, *lower), (self.row, self.column, *upper))

    def bounds(self, problem: _Surfaces) -> tuple[FloatVector, FloatVector, Any]:
        """Return the quotient at the middles, by the interpolated tables, a bound on each cell, and its longer side."""
        a = self.a
        b = self.b
        c = self.c
        d = self.d
        x = (a + b) / 2
        y = (c + d) / 2
        most = np.ones(len(a))
        middle = np.ones(len(a))
        for surface, power in problem:
            corners = [surface.upper(self.row, self.column, p, r) for p in (a, b) for r in (c, d)]
            most *= np.maximum.reduce(corners) ** power
            middle *= surface.upper(self.row, self.column, x, y) ** power
        near = np.maximum(np.maximum(a - d, c - b), 0.0)
        upper = _secant_upper(a, b, c, d) ** 2 * _moment_quotient(near, most)
        value = _secant_upper(x, x, y, y) ** 2 * _moment_quotient(np.abs(x - y), middle)
        return value, upper, b - a >= d - c


def _first(centre: int | None, nodes: FloatVector) -> _Cells:
    """Return the table's own cells, or their slices through the centre."""
    index = np.arange(len(nodes) - 1)
    low = nodes[:-1]
    high = nodes[1:]
    if centre is None:
        row, column = (grid.ravel() for grid in np.meshgrid(index, index, indexing="ij"))
        return _Cells(row, column, low[row], high[row], low[column], high[column])
    fixed = np.full_like(index, min(centre, index[-1]))
    at = np.full(len(index), nodes[centre])
    return _Cells.joined((index, fixed, low, high, at, at), (fixed, index, at, at, low, high))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Surface:
    """Q between the nodes, from above: bilinear, or by chords of powers of the moment 1 + h^2 Q (the page, step 3)."""

    nodes: FloatVector
    table: FloatMatrix
    moment: FloatMatrix  # logarithms
    alpha: float  # infinite: bilinear only

    def upper(self, row: Any, column: Any, x: FloatVector, y: FloatVector) -> Any:
        """Return a bound on Q at points (x, y) of the table's cells."""
        nodes = self.nodes
        table = self.table
        right = (x - nodes[row]) / (nodes[row + 1] - nodes[row])
        up = (y - nodes[column]) / (nodes[column + 1] - nodes[column])
        below = (1 - right) * table[row, column] + right * table[row + 1, column]
        above = (1 - right) * table[row, column + 1] + right * table[row + 1, column + 1]
        bilinear = (1 - up) * below + up * above
        if math.isinf(self.alpha):
            return bilinear
        square = (x - y) ** 2
        large = (square * bilinear > 0.1) & (np.abs(x - y) > 1e-9)
        if not large.any():
            return bilinear
        row = row[large]
        column = column[large]
        right = right[large]
        up = up[large]
        sides = []
        for beside in (column, column + 1):
            left = self.moment[row, beside] / self.alpha
            other = self.moment[row + 1, beside] / self.alpha
            norm = np.log((1 - right) * np.exp(left) + right * np.exp(other))
            sides.append(np.exp(-norm * self.alpha / (self.alpha - 1)))
        logarithm = -(self.alpha - 1) * np.log((1 - up) * sides[0] + up * sides[1])
        logarithm += 1e-14 * (self.alpha + np.abs(logarithm))
        bilinear[large] = np.minimum(bilinear[large], np.expm1(logarithm) / square[large])
        return bilinear


def _moment_quotient(distance: FloatVector, table: Any) -> Any:
    """Return log(1 + h^2 Q)/h^2, which falls with h and grows with Q; Q itself at h = 0."""
    z = distance * distance * table
    small = z < 1e-6  # there log(1 + z) <= z costs less than a part in a million
    square = np.where(small, 1.0, distance * distance)
    return np.where(small, table, np.log1p(z) / square)


def _secant_upper(a: FloatVector, b: FloatVector, c: FloatVector, d: FloatVector) -> Any:
    """Bound (p - p')/(u - u') over a cell from above, at most 1/4, the logistic function's steepest slope."""
    left, right, low, high = (np.log(p) - np.log1p(-p) for p in (a, b, c, d))
    near = np.maximum(np.maximum(left - high, low - right), 0.0) / 2
    far = np.maximum(np.abs(right - low), np.abs(high - left)) / 2
    middle = np.maximum(np.maximum(left + low, -(right + high)), 0.0) / 2
    safe = np.maximum(far, 1e-4)
    growth = np.where(far < 1e-4, 1 + 1e-8, np.sinh(safe) / safe)
    return np.minimum(growth / (2 * (np.cosh(near) + np.cosh(middle))) * (1 + 1e-12), 0.25)
