"""The two guarantees of a planned run: against the server, and against those who see its models alone.

Idea     a model is computed from means, and a mean does not say whose release was which: within a round a release is
         one of the cohort's, whoever chose the cohort. Where the order of clients is drawn in secret, once per epoch,
         all rounds of the epoch together are one shuffle of all clients. What is not random is not counted on.
Symbols  crowd: clients of the shuffle; shuffles: of the worst client, each with an order of its own.
Source   docs/theory/shuffling.md. An epoch that was not finished is a part of one that was, and costs no more.
"""

from __future__ import annotations

from quietbit.errors import QuietbitError
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.shuffled import shuffled_privacy
from quietbit.plan.costs import ClientCosts
from quietbit.plan.plan import Plan
from quietbit.privacy.guarantee import Trust, Unit
from quietbit.privacy.observers import GuaranteePair

__all__ = ["observers"]


def observers(plan: Plan, mechanism: Mechanism, account: ClientCosts) -> GuaranteePair:
    """Both guarantees of a run that every client of the account takes part in as planned, nobody dropping out."""
    server = account.worst(plan.delta)
    if plan.trust is not Trust.LOCAL:
        return GuaranteePair(server, None, reason=f"shuffling is accounted beside local trust, not {plan.trust.value}")
    if plan.unit is Unit.SAMPLE:
        return GuaranteePair(server, None, reason="shuffling is accounted for clients, not for single samples")
    secret = plan.participation == "secret-order"
    crowd, shuffles = int(account.counts.size) if secret else plan.cohort, int(account.counts.max())
    try:
        release = shuffled_privacy(mechanism, plan.adjacency, crowd)
    except QuietbitError as error:
        reason = str(error).rstrip(".")
        return GuaranteePair(server, None, reason=reason[0].lower() + reason[1:])
    result = (release * shuffles).guarantee(plan.delta)
    return GuaranteePair(server, result, crowd, shuffles, secret)
