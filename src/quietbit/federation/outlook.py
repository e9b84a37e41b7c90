"""What to expect of a run that is about to begin, in sentences with levels of logging."""

from __future__ import annotations

import math
from collections.abc import Iterator
from logging import INFO, WARNING

from quietbit.federation.terms import RunForecast, Terms
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.forecast import Verdict, forecast

__all__ = ["outlook"]

FAR_BELOW = 0.5  # of the releases: noise for more than twice as many as there will be


def outlook(
    plan: Terms, mechanism: Mechanism, asked: int, nodes: int, rounds: int
) -> Iterator[tuple[int, str]]:
    """Yield what to expect of rounds that ask ``asked`` of ``nodes`` nodes each, and warnings."""
    clients = max(nodes, asked)
    turns = rounds * asked / clients  # how often a node is asked, on average
    lasting = rounds
    if plan.releases is not None:
        lasting = plan.releases * clients // asked
    useful = max(1, min(rounds, lasting))
    expected = forecast(mechanism, cohort=asked, rounds=useful, clients=clients, trust=plan.trust)
    yield INFO if expected.verdict is Verdict.USEFUL else WARNING, expected.sentence()
    if plan.releases is not None:
        asks = "1 round asks" if rounds == 1 else f"{rounds} rounds ask"
        subject = f"quietbit.releases is {plan.releases}, and {asks} a node {_often(turns)}"
        if turns > plan.releases:
            remedy = f"Set quietbit.releases to {math.ceil(turns)}, or run {lasting} rounds."
            yield WARNING, f"{subject}: nodes decline after {_often(plan.releases)}. {remedy}"
        elif turns <= FAR_BELOW * plan.releases:
            remedy = f"with quietbit.releases = {math.ceil(turns)}"
            yield WARNING, f"{subject}: {remedy} the same epsilon would need less noise."
    run = RunForecast(mechanism, asked, useful, expected.noise, plan.clip)
    for section in plan.sections:
        warning = section.forecast(run)
        if warning is not None:
            yield WARNING, warning


def _often(turns: float) -> str:
    if turns == 1:
        return "once"
    if turns == int(turns):
        return f"{turns:g} times"
    return f"about {turns:.1f} times"
