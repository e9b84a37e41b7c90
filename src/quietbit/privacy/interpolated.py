"""The privacy of a vector sent through the interpolated mechanism: Theorems 1 and 2.

Idea     coordinates are randomised independently, so scalar constants times the distance of two neighbours in
         x-space give the vector's curve.
Symbols  distance: ||x - x'|| of any two neighbours in the ball's norm, `sensitivity(adjacency, beta)`;
         [low, high]: where coordinates of x can lie: [(1-beta)/2, (1+beta)/2], or [0, 1] when clamped.
Source   Guo et al. (ICML 2023), Theorem 1 (L1, pure) and Theorem 2 (L2, Rényi); more levels: `renyi`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import final

from quietbit.design.table import Design
from quietbit.errors import check_real
from quietbit.privacy.conversion import round_up
from quietbit.privacy.cost import Cost
from quietbit.privacy.divergence import lipschitz_upper, through_centre_constant_upper, zero_out_constant_upper
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.renyi import RenyiConstant, fisher_supremum_upper

__all__ = ["interpolated_l1_cost", "interpolated_l2_cost"]


def interpolated_l1_cost(
    design: Design,
    distance: float,
    adjacency: Adjacency,
    low: float = 0.0,
    high: float = 1.0,
    *,
    with_renyi: bool = False,
    in_ball: bool = False,
) -> Cost:
    """Theorem 1: (constant x distance)-DP for inputs within L1 ``distance``.

    The constant is L for replace-one and the zero-out constant for zero-out. With ``in_ball`` the inputs are any two of
    an L1 ball around the centre with ``distance`` as its diameter (replace-one), and the path through the centre
    gives the smaller constant. ``with_renyi`` adds what the L2
    account says about the same inputs (an L1 distance bounds the L2 one): the same epsilon at delta = 0, and
    often a much smaller one at delta > 0 after many releases.
    """
    distance = check_real(distance, "distance")
    replace_one = through_centre_constant_upper if in_ball else lipschitz_upper
    constant = zero_out_constant_upper if adjacency is Adjacency.ZERO_OUT else replace_one
    pure = Cost.pure(round_up(constant(design, low, high) * distance, 1e-15))
    if not with_renyi:
        return pure
    inner = interpolated_l2_cost(design, distance, adjacency, low, high)
    return Cost.renyi(_Smaller(pure, inner), "interpolated, L1 and L2 accounts", pure.pure_epsilon())


def interpolated_l2_cost(
    design: Design, distance: float, adjacency: Adjacency, low: float = 0.0, high: float = 1.0
) -> Cost:
    """Theorem 2 for inputs within L2 ``distance``: alpha M distance^2 / 2 with two levels.

    More levels give kappa_alpha distance^2. Two levels need no range: M is the supremum over all real x.
    """
    distance = check_real(distance, "distance")
    if design.spec.input_levels == 2:
        return Cost.linear(round_up(_two_levels(design) * distance * distance / 2, 1e-15))
    constant = _more_levels(design, float(low), float(high), adjacency)
    return Cost.renyi(_Scaled(constant, distance), f"interpolated, {adjacency.value}")


@final
@dataclass(frozen=True, slots=True)
class _Scaled:
    """kappa_alpha distance^2."""

    constant: RenyiConstant = field(repr=False)
    distance: float

    def __call__(self, alpha: float) -> float:
        return round_up(self.constant.chord_upper(alpha) * self.distance * self.distance, 1e-15)


@final
@dataclass(frozen=True, slots=True)
class _Smaller:
    """The smaller of two Rényi bounds on the same release."""

    left: Cost
    right: Cost

    def __call__(self, alpha: float) -> float:
        return min(self.left.rdp(alpha), self.right.rdp(alpha))


@lru_cache(maxsize=128)
def _two_levels(design: Design) -> float:
    return fisher_supremum_upper(design)


@lru_cache(maxsize=128)
def _more_levels(design: Design, low: float, high: float, adjacency: Adjacency) -> RenyiConstant:
    return RenyiConstant(design, low, high, adjacency)
