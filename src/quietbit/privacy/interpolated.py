"""The privacy of a vector sent through the interpolated mechanism: Theorems 1 and 2, and one Gaussian pair.

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
from quietbit.privacy.conversion import dominating_square_upper, round_up
from quietbit.privacy.cost import Cost
from quietbit.privacy.divergence import (
    Segments,
    check_range,
    lipschitz_upper,
    through_centre_constant_upper,
    zero_out_constant_upper,
)
from quietbit.privacy.renyi import RenyiConstant, fisher_supremum_upper
from quietbit.target import Adjacency

__all__ = ["dominated_l2_cost", "interpolated_l1_cost", "interpolated_l2_cost"]

_ROUNDING = 1e-14  # of a handful of operations on positive doubles


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

    The constant is L for replace-one and the zero-out constant for zero-out. With ``in_ball`` the
    inputs are any two of an L1 ball around the centre with ``distance`` as its diameter
    (replace-one): the path through it is shorter. At finite orders the L2 account is used where it
    is smaller, since an L1 distance bounds the L2 one.
    """
    distance = check_real(distance, "distance")
    replace_one = through_centre_constant_upper if in_ball else lipschitz_upper
    constant = zero_out_constant_upper if adjacency is Adjacency.ZERO_OUT else replace_one
    pure = Cost.pure(round_up(constant(design, low, high) * distance, 1e-15))
    inner = interpolated_l2_cost(design, distance, adjacency, low, high)
    return pure.or_else(inner, "interpolated, L1 and L2 accounts")


def interpolated_l2_cost(
    design: Design, distance: float, adjacency: Adjacency, low: float = 0.0, high: float = 1.0
) -> Cost:
    """Return the cost by Theorem 2 for inputs within L2 ``distance``: alpha M distance^2 / 2 with two levels.

    More levels give kappa_alpha distance^2. Two levels need no range: M is the supremum over all
    real x.
    """
    distance = check_real(distance, "distance")
    if design.spec.input_levels == 2:
        return Cost.linear(round_up(fisher_supremum_upper(design) * distance * distance / 2, 1e-15))
    constant = _more_levels(design, float(low), float(high), adjacency)
    return Cost.per_square(constant, distance, f"interpolated, {adjacency.value}")


_more_levels = lru_cache(maxsize=128)(RenyiConstant)


def dominated_l2_cost(
    design: Design,
    distance: float,
    largest: float,
    low: float,
    high: float,
    *,
    together: bool = False,
) -> Cost:
    """Return the curve of a vector sent through the interpolated mechanism, for either adjacency.

    ``distance`` and ``largest`` bound the L2 distance of two neighbours' inputs, and that in one
    coordinate, which is a clamped input's from the centre for zero-out, twice as much for
    replace-one. Inputs lie in [low, high]. ``together``: one-bit releases of a fixed list are
    priced as one product. A design has one output bit or two levels, or is refused. Besides the
    pair the curve has Theorem 2's Rényi bound, used where coordinates are not clamped.
    """
    one_bit = design.spec.output_bits == 1
    levels = design.spec.input_levels
    require(one_bit or levels == 2, "input_levels", levels, "2 where codes have more than one bit")
    distance = check_real(distance, "distance")
    largest = check_real(largest, "largest")
    low, high = check_range(low, high)
    steepest = _steepest_upper(design, low, high)
    reach = round_up(steepest * distance, _ROUNDING)
    single = round_up(steepest * min(largest, high - low), _ROUNDING)
    budget = round_up(reach * reach, _ROUNDING)
    pair = dominating_square_upper(budget, single, one_bit=one_bit) / 2
    return Cost.gaussian(pair, budget / 2, single if together and one_bit else 0.0)


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
    return round_up(math.sqrt(fisher_supremum_upper(design)), _ROUNDING)
