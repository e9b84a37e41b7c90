"""Privacy filters: stopping in time when mechanisms are chosen as one goes.

Idea     a server that sees releases may pick the next mechanism from what it saw. Costs that simply add up, against a
         budget fixed in advance, still bound the whole: Rényi divergences at one order, pure epsilons, mu^2 of
         Gaussians. Taking the best of several such accounts afterwards costs a share of delta for each of them.
Symbols  accounts j = 1..J, fixed in advance, with shares delta_j; x_j: what account j has summed up so far.
Source   Feldman and Zrnic (2021), Theorem 4.3: Rényi filters; Smith and Thakurta (2022): Gaussian ones; Rogers, Roth,
         Ullman, Vadhan (2016): pure ones. docs/theory/filters.md proves what is used here.

Theorem. Release only while some account j still proves epsilon at delta_j. Then what was released when it stops is
(epsilon, lost + sum_j delta_j)-private, however mechanisms, inputs and the moment of stopping were chosen. Each x_j
only grows, so an account that holds at the end held all along. Let O_j be the outcomes whose first account that holds
at the end is j: on them the process is the one stopped by account j alone, which is (epsilon, delta_j)-private. Sum
over j. A pure account has delta_j = 0 and costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from quietbit.errors import require
from quietbit.privacy.conversion import ROUNDING_MARGIN
from quietbit.privacy.cost import Cost
from quietbit.privacy.gaussian import gaussian_epsilon_upper
from quietbit.privacy.guarantee import check_delta

__all__ = ["ORDERS", "filter_epsilon_upper"]

ORDERS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
LOST_SHARE = 1 / 16  # of delta, set aside for mass that releases may lose (`with_delta`)


def filter_epsilon_upper(cost: Cost, delta: float, orders: Iterable[float] = ORDERS) -> float:
    """The epsilon that holds at ``delta`` for releases whose mechanisms were chosen in the light of earlier ones.

    Args:
        cost: what was released, all together.
        delta: in [0, 1); at 0 only pure accounts count.
        orders: of the Rényi accounts; they must have been fixed before the first release, and each takes an equal share
            of delta, as does one account for Gaussians alone.
    """
    delta = check_delta(delta)
    chosen = [float(order) for order in orders]
    require(all(1 < order < math.inf for order in chosen), "orders", chosen, "finite numbers above 1")
    found = [cost.pure_epsilon()]
    share = delta * (1 - LOST_SHARE) / (len(chosen) + 1) * (1 - 1e-15)
    if share > 0 and cost.lost <= delta * LOST_SHARE:
        found.append(cost.certified_pure())
        if cost.slack == 0:
            found.append(gaussian_epsilon_upper(cost.pair_slope, share))
        found += [_converted(cost.certified_rdp(order), order, share) for order in chosen]
    return min(found)


def _converted(divergence: float, order: float, delta: float) -> float:
    """Epsilon of a divergence: (1 - e^-x)_+ <= e^((a-1) x) (1 - 1/a)^(a-1) / a at every x.

    No other way of conversion is used here, because this one holds outcome by outcome: also for what is left of a law
    when the outcomes of lost mass are taken away.
    """
    if not divergence < math.inf:
        return math.inf
    terms = (divergence, math.log1p(-1 / order), -(math.log(delta) + math.log(order)) / (order - 1))
    return max(0.0, math.fsum(terms) + ROUNDING_MARGIN * sum(abs(term) for term in terms))
