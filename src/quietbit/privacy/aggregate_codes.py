"""Codes of several bits behind secure aggregation, where a code is a sum of equal bits.

Idea     a code of a binomial design is the number of ones among c = 2^b - 1 independent bits. A server that saw the c
         sums of first bits, of second bits and so on, would see more than their total: so the divergence of the
         total is at most c times that of a sum of one-bit codes.
Symbols  n: honest clients; kappa_m: one bit's constant with m clients (`aggregate`); tau: by how much a client's true
         law may fall short of a binomial one; J: clients given up for it; loss: the largest log-ratio of one client.
Source   docs/theory/secure-aggregation.md, "More bits".

Other clients' laws are binomial up to the rounding of the table and the sampler: law >= (1 - tau) binomial, so each is
a mixture that is binomial but for a probability of tau. Told who is not, the server still has n - 1 - j others to see
through: moment - 1 <= (moment at n - J) - 1 + P(more than J) (moment of one client - 1), by joint convexity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import final

from quietbit._validate import InvalidParameter, finite_real, whole_number
from quietbit.design.binomial import binomial_deviation_upper, is_evenly_spaced
from quietbit.design.solve import solve_anew
from quietbit.design.spec import DesignSpec
from quietbit.design.table import Design
from quietbit.privacy.aggregate import GRAIN, MOST_CLIENTS, OTHERS_ERROR, AggregateConstant
from quietbit.privacy.conversion import round_up
from quietbit.privacy.curve import FunctionCurve, PrivacyCurve
from quietbit.privacy.guarantee import Adjacency

__all__ = ["aggregate_codes_curve", "codes_deviation_upper"]

BINOMIAL = 1e-10  # how far logarithms of probabilities may be from binomial ones
_SPARE = (0, 1, 2, 4, 8, 16, 32, 64)
_NEGLIGIBLE = math.log(1e-6)


def codes_deviation_upper(design: Design, low: float, high: float) -> float:
    """The deviation from a binomial law, in logarithms; a design whose codes are no sums of equal bits is refused."""
    if not is_evenly_spaced(design):
        raise InvalidParameter(
            "alphabet must be evenly spaced for sums of codes of several bits, got an uneven one: use binomial_design."
        )
    found = binomial_deviation_upper(design, low, high)
    if not found <= BINOMIAL:
        raise InvalidParameter(
            "design must be one bit or binomial for the account of a sum, got codes that are no sums of equal bits: "
            "use binomial_design."
        )
    return found


def aggregate_codes_curve(
    design: Design,
    distance: float,
    clients: int,
    adjacency: Adjacency,
    low: float = 0.0,
    high: float = 1.0,
    *,
    alone: PrivacyCurve | None = None,
) -> FunctionCurve:
    """The curve of one secure sum of codes of a binomial design; arguments as in `aggregate_curve`.

    The protected client's own deviation from a binomial law, `codes_deviation_upper` per coordinate, is left to the
    caller, who adds it to the sampler's slack.
    """
    distance = finite_real(distance, "distance")
    count = whole_number(clients, "clients", 2, MOST_CLIENTS)
    low, high = math.floor(low * GRAIN) / GRAIN, math.ceil(high * GRAIN) / GRAIN
    deviation = codes_deviation_upper(design, low, high)
    bits = design.spec.outputs - 1
    each = design.spec.epsilon / bits
    ends = [1 / (1 + math.exp(-each * (2 * x - 1))) for x in (low, high)]
    rarest = min(ends[0], 1 - ends[1]) * (1 - 1e-12)
    loss = bits * max(math.log(ends[1] / ends[0]), math.log((1 - ends[0]) / (1 - ends[1]))) * (1 + 1e-12)
    short = deviation + OTHERS_ERROR / rarest**bits
    bound = _Codes(_one_bit(each), low, high, count, adjacency, bits, each, loss, short, distance, alone)
    pure = math.inf if alone is None else alone.pure_epsilon_upper()
    return FunctionCurve(bound, f"sum of {count} codes of {bits} equal bits, {adjacency.value}", pure)


@final
@dataclass(frozen=True, slots=True)
class _Codes:
    design: Design = field(repr=False)
    low: float
    high: float
    clients: int
    adjacency: Adjacency
    bits: int
    each: float
    loss: float
    short: float
    distance: float
    alone: PrivacyCurve | None

    def __call__(self, alpha: float) -> float:
        single = alpha * self.bits * self.each**2 / 2  # kappa of one client's own code
        bound = single
        spare = self._spare(alpha)
        if spare is not None:
            one = _constant(self.design, self.low, self.high, self.clients - spare, self.adjacency).chord_upper(alpha)
            rest = single * math.exp(self._log_tail(spare) + (alpha - 1) * self.loss)
            bound = min(bound, self.bits * one * (1 + 1e-9 + 2.0**-46 / self.each) + rest)
        bound = round_up(bound * self.distance * self.distance, 1e-14)
        return bound if self.alone is None else min(bound, self.alone.rdp(alpha))

    def _spare(self, alpha: float) -> int | None:
        """How many clients to give up, so that more of them being no binomial adds a millionth at most."""
        for spare in _SPARE:
            if self.clients - spare < 2:
                break
            if self._log_tail(spare) + (alpha - 1) * self.loss + math.log(self.clients) <= _NEGLIGIBLE:
                return spare
        return None

    def _log_tail(self, spare: int) -> float:
        """The logarithm of P(Bin(n - 1, tau) > J) <= (n tau)^(J+1)/(J+1)!, from above."""
        return (spare + 1) * math.log(self.clients * self.short) - math.lgamma(spare + 2) + 1e-9


@lru_cache(maxsize=16)
def _one_bit(epsilon: float) -> Design:
    return solve_anew(DesignSpec(2, 1, epsilon))


@lru_cache(maxsize=16)
def _constant(design: Design, low: float, high: float, clients: int, adjacency: Adjacency) -> AggregateConstant:
    return AggregateConstant(design, low, high, clients, adjacency)
