"""Costs as events of the `dp_accounting` package, for cross-checks by an account that is not ours.

Idea     only costs with an exact counterpart there are exported; the rest is refused rather than
         approximated.
Symbols  slope: rdp(alpha) = slope * alpha; a Gaussian of noise multiplier z has slope 1/(2 z^2).
Source   dp_accounting.dp_event. Our zero-out adjacency is its REPLACE_SPECIAL.

A linear cost that is not a Gaussian's becomes a zCDP event: the same Rényi divergences, but an accountant that
would use the Gaussian's exact profile cannot mistake it for one. What a Gaussian pair dominates becomes that Gaussian.
The adjacency is already in the slope, so the accountant's relation must not add to it: its default or
REPLACE_SPECIAL. Pure costs are refused: randomised response, which would dominate them, is priced by relation
there, too cheaply for REPLACE_SPECIAL.
"""

from __future__ import annotations

import math
from typing import Any

from quietbit.errors import require, require_module
from quietbit.privacy.cost import Cost

__all__ = ["dp_event"]


def dp_event(cost: Cost, *, without_slack: bool = False) -> Any:
    """The `dp_accounting` event of some releases.

    Args:
        cost: made of Gaussian and linear parts; others are refused.
        without_slack: leave out the sampler's slack, which no event can carry; refused unless asked for.
    """
    events = require_module("dp_accounting.dp_event", "accounting")
    rule = "free of sampling slack, which no event can carry (without_slack=True leaves it out)"
    require(without_slack or cost.slack == 0, "cost", cost, rule)
    require(cost.lost == 0, "cost", cost, "free of lost mass, which no event can carry")
    if not cost.parts:
        return events.NoOpDpEvent()
    if cost.pair_slope < math.inf:
        return events.GaussianDpEvent(1 / math.sqrt(2 * cost.pair_slope))
    rule = "made of Gaussian and linear parts: dp_accounting has no event for this one"
    require(cost.slope < math.inf, "cost", cost, rule)
    return events.ZCDpEvent(rho=cost.slope)
