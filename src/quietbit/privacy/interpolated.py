"""The cost of a vector sent through the interpolated mechanism: Theorems 1 and 2, a Gaussian pair.

Idea     coordinates are randomised independently, so scalar constants times the distance of two
         neighbours in x-space give the vector's cost. Many small independent codes are almost a
         Gaussian: with a little more variance a Gaussian pair dominates them at every epsilon at
         once, and such pairs compose exactly and adaptively.
Symbols  distance: ||x - x'|| of any two neighbours in the ball's norm, `Scaling.distance`; [low,
         high]: where coordinates of x can lie: [(1-beta)/2, (1+beta)/2], or [0, 1] when clamped.
         s_i^2: the largest variance of coordinate i's privacy loss under any exponential tilt of
         its law; for a bit s_i is half the distance of its two log-odds. budget >= sum s_i^2;
         largest >= s_i for every i.
Source   Guo et al. (ICML 2023), Theorem 1 (L1, pure) and Theorem 2 (L2, Rényi); more levels:
         `renyi`. The pair: docs/theory/exact-accounts.md has statements and proofs; composition:
         Dong, Roth, Su (2022).
"""

from __future__ import annotations

import math
from functools import lru_cache

from quietbit.design.table import Design
from quietbit.errors import check_real, require
from quietbit.privacy.conversion import dominating_square_upper
from quietbit.privacy.cost import Cost
from quietbit.privacy.divergence import (
    Segments,
    check_range,
    lipschitz_upper,
    through_centre_constant_upper,
    zero_out_constant_upper,
)
from quietbit.privacy.fisher import fisher_supremum_upper
from quietbit.privacy.renyi import RenyiConstant
from quietbit.privacy.rounding import FEW_OPERATIONS, round_up
from quietbit.target import Adjacency

__all__ = ["dominated_l2_cost", "interpolated_l1_cost", "interpolated_l2_cost"]


def interpolated_l1_cost(
    design: Design,
    distance: float,
    adjacency: Adjacency,
    low: float = 0.0,
    high: float = 1.0,
    *,
    in_ball: bool = False,
) -> Cost:
    """Return the cost by Theorem 1: (constant x distance)-DP for inputs within L1 ``distance``.

    The constant is L for replace-one and the zero-out constant for zero-out. The L2 account
    holds too, since an L1 distance bounds the L2 one.

    Args:
        design: the table that is interpolated.
        distance: the largest L1 distance of two neighbours' inputs.
        adjacency: which two inputs are neighbours.
        low: the smallest input of a coordinate.
        high: the largest input of a coordinate.
        in_ball: replace-one neighbours are any two inputs of an L1 ball around the centre with
            ``distance`` as its diameter: the path through the centre is shorter.
    """
    distance = check_real(distance, "distance")
    if adjacency is Adjacency.ZERO_OUT:
        constant = zero_out_constant_upper(design, low, high)
    elif in_ball:
        constant = through_centre_constant_upper(design, low, high)
    else:
        constant = lipschitz_upper(design, low, high)
    pure = Cost.pure(round_up(constant * distance, 1e-15))
    renyi = interpolated_l2_cost(design, distance, adjacency, low, high)
    return pure.tightened(renyi)


def interpolated_l2_cost(
    design: Design, distance: float, adjacency: Adjacency, low: float = 0.0, high: float = 1.0
) -> Cost:
    """Return the cost by Theorem 2 for inputs within L2 ``distance``.

    Two levels: D_alpha <= alpha M distance^2 / 2, with M the supremum over all real x, so the range
    does not matter. More levels: D_alpha <= kappa_alpha distance^2.
    """
    distance = check_real(distance, "distance")
    if design.spec.input_levels == 2:
        fisher = fisher_supremum_upper(design)
        return Cost.linear(round_up(fisher * distance * distance / 2, 1e-15))
    constant = _renyi_constant(design, float(low), float(high), adjacency)
    return Cost.per_square(constant, distance)


_renyi_constant = lru_cache(maxsize=128)(RenyiConstant)


def dominated_l2_cost(
    design: Design,
    distance: float,
    largest: float,
    low: float,
    high: float,
    *,
    together: bool = False,
) -> Cost:
    """Return the cost of a vector by a Gaussian pair that dominates it, for either adjacency.

    Besides the pair the cost has Theorem 2's Rényi bound, which is used where coordinates are not
    clamped.

    Args:
        design: of one output bit or of two levels; others are refused.
        distance: the largest L2 distance of two neighbours' inputs.
        largest: their largest distance in one coordinate: of a clamped input from the centre for
            zero-out, twice as much for replace-one.
        low: the smallest input of a coordinate.
        high: the largest input of a coordinate.
        together: one-bit releases of a fixed list cost as much as one product.
    """
    one_bit = design.spec.output_bits == 1
    levels = design.spec.input_levels
    rule = "2 where codes have more than one bit"
    require(one_bit or levels == 2, "input_levels", levels, rule, "use interpolated_l2_cost")
    distance = check_real(distance, "distance")
    largest = check_real(largest, "largest")
    low, high = check_range(low, high)
    steepest = _steepest_upper(design, low, high)
    reach = round_up(steepest * distance, FEW_OPERATIONS)
    single = round_up(steepest * min(largest, high - low), FEW_OPERATIONS)
    budget = round_up(reach * reach, FEW_OPERATIONS)
    pair = dominating_square_upper(budget, single, one_bit=one_bit) / 2
    if together and one_bit:
        return Cost.gaussian(pair, budget / 2, single)
    return Cost.gaussian(pair, budget / 2)


@lru_cache(maxsize=128)
def _steepest_upper(design: Design, low: float, high: float) -> float:
    """Return the largest s / |x - x'| of one coordinate, rounded up.

    Two levels: tilts of the law at x' are the laws of the same line at other x, also distant ones,
    so s^2 = M (x - x')^2 with M the supremum of the Fisher information over all real x. One bit: s
    is half the difference of the log-odds, which are piecewise linear; with two levels that is the
    same number, and needs no search.
    """
    if design.spec.output_bits == 1:
        return float(Segments.over(design, low, high).span.max()) / 2
    return round_up(math.sqrt(fisher_supremum_upper(design)), FEW_OPERATIONS)
