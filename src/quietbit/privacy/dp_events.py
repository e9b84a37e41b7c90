"""Curves as events of the `dp_accounting` package, for cross-checks by an account that is not ours.

Idea     only curves with an exact counterpart there are exported; the rest is refused rather than
         approximated.
Symbols  slope: rdp(alpha) = slope * alpha; a Gaussian of noise multiplier z has slope 1/(2 z^2).
Source   dp_accounting.dp_event. Our zero-out adjacency is its REPLACE_SPECIAL.

A linear curve that is no Gaussian becomes a zCDP event: the same Rényi divergences, but an accountant that
would use the Gaussian's exact profile cannot mistake it for one. What a Gaussian pair dominates becomes that Gaussian.
The adjacency is already in the slope, so the accountant's relation must not add to it: its default or
REPLACE_SPECIAL. Pure curves are refused: randomised response, which would dominate them, is priced by relation
there, too cheaply for REPLACE_SPECIAL.
"""

from __future__ import annotations

import math
from typing import Any

from quietbit.errors import require, require_module
from quietbit.privacy.curve import (
    ComposedCurve,
    GaussianCurve,
    GaussianPairCurve,
    LinearCurve,
    PrivacyCurve,
    SlackCurve,
)
from quietbit.privacy.ledger import Ledger

__all__ = ["dp_event"]


def dp_event(source: PrivacyCurve | Ledger, *, without_slack: bool = False) -> Any:
    """The `dp_accounting` event of a curve or of all releases of a ledger.

    Args:
        source: made of Gaussian and linear curves, repeated and composed; others are refused.
        without_slack: leave out the sampler's slack, which no event can carry; refused unless asked for.
    """
    events = require_module("dp_accounting.dp_event", "accounting")
    curve = source.total() if isinstance(source, Ledger) else source
    if isinstance(curve, SlackCurve) and without_slack:
        curve = curve.inner
    return _event(events, curve)


def _event(events: Any, curve: PrivacyCurve) -> Any:
    if isinstance(curve, ComposedCurve):
        parts = [events.SelfComposedDpEvent(_event(events, part), times) for part, times in curve.parts]
        return parts[0] if len(parts) == 1 else events.ComposedDpEvent(parts)
    if curve.epsilon_upper(0.0) == 0:
        return events.NoOpDpEvent()
    if isinstance(curve, GaussianCurve):
        return events.GaussianDpEvent(1 / math.sqrt(2 * curve.slope))
    if isinstance(curve, GaussianPairCurve) and curve.pair_slope < math.inf:
        return events.GaussianDpEvent(1 / math.sqrt(2 * curve.pair_slope))
    if isinstance(curve, LinearCurve | GaussianPairCurve):
        return events.ZCDpEvent(rho=curve.slope)
    rule = "made of Gaussian and linear curves: dp_accounting has no event for this one"
    if isinstance(curve, SlackCurve):
        rule = "free of sampling slack, which no event can carry (without_slack=True leaves it out)"
    require(False, "curve", curve, rule)
    return None
