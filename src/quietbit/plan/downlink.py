"""The part of a plan about the way down: whose rows are kept, and whether clients replay rounds.

Idea     a round can be replayed where its mean is few numbers, so a replay needs rows that all clients share, and those
         need a mechanism that keeps few coordinates. What plays no part is refused, as everywhere in a plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietbit.errors import require
from quietbit.mechanism.calibrate import AUTO
from quietbit.mechanism.family import OWN, check_rows_word
from quietbit.target import Trust
from quietbit.wire.downlink import BITS

if TYPE_CHECKING:
    from quietbit.plan.plan import Plan

__all__ = ["APP", "FULL", "OF_STEP", "REPLAY", "check_downlink"]

FULL, REPLAY = DOWNLINKS = ("full", "replay")
SERVER, APP = STARTS = ("server", "app")  # who has the model of round 0 for clients
OF_STEP = ("server_rate", "server_momentum")


def check_downlink(plan: Plan) -> None:
    """Refuse shared rows where there are none, and what is about a replay where the full model goes down."""
    require(plan.downlink in DOWNLINKS, "downlink", plan.downlink, "one of " + ", ".join(DOWNLINKS))
    check_rows_word(plan.rows)
    if plan.replayed or plan.rows is not None:
        asked = ("downlink", plan.downlink) if plan.replayed else ("rows", plan.rows)
        kept = plan.private and plan.mechanism != AUTO and (plan.keep is not None or plan.knows_rows)
        rule = "left out unless few coordinates are kept: for vmvu, or where keep is given beside a mechanism"
        require(kept and plan.trust is not Trust.CENTRAL, *asked, rule)
        alike = plan.rows != OWN or not (plan.replayed or plan.secure)
        require(alike, "rows", plan.rows, "shared, or left out, for sums and replayed rounds")
    if not plan.replayed:
        plan.unused(("downlink_bits", "downlink_start", *OF_STEP), f"unless downlink is {REPLAY}")
        return
    bits, start = plan.downlink_bits, plan.downlink_start
    require(bits is None or bits in BITS, "downlink_bits", bits, "32, 16 or 8")
    require(start is None or start in STARTS, "downlink_start", start, " or ".join(STARTS))
    _ = plan.server_step
