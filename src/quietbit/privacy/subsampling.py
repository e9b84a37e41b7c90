"""What is gained when nobody learns which clients took part.

Idea     a secret cohort of m among N clients, all cohorts equally likely, contains a given client with probability m/N;
         who sees only the result learns less about it. Where the server learns who took part there is no gain.
Symbols  g = m/N; eps(j): the cohort's Rényi curve at order j; eps(inf): its max-divergence; replace-one adjacency.
Source   Wang, Balle, Kasiviswanathan (AISTATS 2019), Theorem 9: for whole orders alpha >= 2, (alpha - 1) eps'(alpha) <=
         log(1 + g^2 C(alpha, 2) min(4 (e^eps(2) - 1), e^eps(2) min(2, (e^eps(inf) - 1)^2))
               + sum_{j=3}^alpha g^j C(alpha, j) e^((j-1) eps(j)) min(2, (e^eps(inf) - 1)^j)).

Two more bounds hold at every real order, by joint convexity of the moment: the cohort is the same in both worlds, and
differs in content only when the client is in it, so the moment is at most 1 + g (e^((alpha-1) eps(alpha)) - 1), and the
divergence at most eps(alpha). Between whole orders (alpha - 1) eps' is bounded by its chord, being convex.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

from quietbit._validate import InvalidParameter, require, whole_number
from quietbit.privacy.conversion import round_up
from quietbit.privacy.curve import FunctionCurve, PrivacyCurve
from quietbit.privacy.guarantee import Adjacency

__all__ = ["secret_cohort_curve"]

MOST_ORDER = 512  # larger whole orders use the two simple bounds


def secret_cohort_curve(
    curve: PrivacyCurve, cohort: int, population: int, adjacency: Adjacency, *, server_learns_cohort: bool
) -> FunctionCurve:
    """The curve of one release by a uniformly random cohort that stays secret.

    ``curve`` is that of the release for a given cohort, for instance `aggregate_privacy(cohort, adjacency)`.

    Args:
        curve: the account when it is known who took part.
        cohort: how many clients take part, exactly.
        population: how many could have.
        adjacency: replace-one; the theorem says nothing about zero-out, where a client is swapped with nobody.
        server_learns_cohort: whether whoever sees the result also learns who took part. Then there is no amplification,
            and this is refused: pairwise masks, as in `quietbit.secure`, need the server to know who takes part.
    """
    if server_learns_cohort:
        raise InvalidParameter(
            "Subsampling amplifies nothing when the server learns who took part: account each client's own releases."
        )
    require(adjacency is Adjacency.REPLACE_ONE, "adjacency", adjacency, "replace-one for a cohort of fixed size")
    total = whole_number(population, "population", 1)
    chosen = whole_number(cohort, "cohort", 1, total)
    bound = _Amplified(curve, chosen / total * (1 + 1e-15))
    label = f"secret cohort of {chosen} among {total}"
    return FunctionCurve(bound, label, _pure(curve.pure_epsilon_upper(), bound.rate))


def _pure(epsilon: float, rate: float) -> float:
    """The max-divergence log(1 + g (e^eps - 1)), by the same convexity."""
    return math.inf if math.isinf(epsilon) else min(epsilon, round_up(_log_mix(epsilon, rate)))


def _log_mix(exponent: float, rate: float) -> float:
    """log(1 + g (e^x - 1)) without overflow."""
    if exponent < 30:
        return math.log1p(rate * math.expm1(exponent))
    return exponent + math.log(rate) + math.log1p((1 - rate) / rate * math.exp(-exponent))


@final
@dataclass(frozen=True, slots=True)
class _Amplified:
    curve: PrivacyCurve = field(repr=False)
    rate: float

    def __call__(self, alpha: float) -> float:
        alone = self.curve.rdp(alpha)
        bound = min(alone, _log_mix((alpha - 1) * alone, self.rate) / (alpha - 1) if alone < math.inf else math.inf)
        if alpha <= MOST_ORDER:
            # Below 2 the chord starts at order 1, where the moment's logarithm is 0.
            below = math.floor(alpha)
            part = alpha - below
            moment = (1 - part) * self._whole(below) + (part * self._whole(below + 1) if part > 0 else 0.0)
            bound = min(bound, moment / (alpha - 1))
        return round_up(bound)

    def _whole(self, alpha: int) -> float:
        """(alpha - 1) eps'(alpha) at a whole order: the theorem, in logarithms."""
        if alpha == 1:
            return 0.0
        pure = self.curve.pure_epsilon_upper()
        # log(e^pure - 1), or infinity where there is no pure guarantee
        grow = math.inf if math.isinf(pure) else pure + math.log(-math.expm1(-pure)) if pure > 0 else -math.inf
        second = self.curve.rdp(2.0)
        if not second < math.inf:
            return math.inf
        gap = math.log(4) + second + math.log(-math.expm1(-second)) if second > 0 else -math.inf
        small = min(gap, second + min(math.log(2), 2 * grow))
        terms = [2 * math.log(self.rate) + _log_choose(alpha, 2) + small]
        for j in range(3, alpha + 1):
            size = (j - 1) * self.curve.rdp(float(j)) + min(math.log(2), j * grow)
            terms.append(j * math.log(self.rate) + _log_choose(alpha, j) + size)
        top = max(0.0, *terms)
        if not top < math.inf:
            return math.inf
        exponentials = math.fsum(math.exp(term - top) for term in terms) * (1 + 1e-9)
        return math.log1p(exponentials) if top == 0 else top + math.log(math.exp(-top) + exponentials)


def _log_choose(above: int, below: int) -> float:
    value = math.lgamma(above + 1) - math.lgamma(below + 1) - math.lgamma(above - below + 1)
    return value + 1e-12 * (1 + value)
