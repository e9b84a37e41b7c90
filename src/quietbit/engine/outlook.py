"""What a run may come to, said before its first round: noise beside the clip, and settings that do not fit together.

Idea     all that is needed is public and known when the first questions are about to go out: the mechanism, how many
         nodes are asked of how many, the number of rounds. A run that will learn nothing, or whose nodes will
         decline half-way, is told so at once, with what would help; it is not stopped.
Symbols  turns: how often a node is asked in the run, on average: rounds * asked / nodes.
"""

from __future__ import annotations

import math
from logging import INFO, WARNING

from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.expectation import Verdict, expectation
from quietbit.plan.plan import Plan
from quietbit.target import Trust

__all__ = ["outlook"]

FAR_BELOW = 0.5  # of the releases: noise for more than twice as many as there will be


def outlook(settings: Plan, mechanism: Mechanism, *, asked: int, nodes: int, rounds: int) -> list[tuple[int, str]]:
    """Sentences with their levels of logging, for a run that asks ``asked`` of ``nodes`` nodes in each round."""
    if asked < 1 or rounds < 1:
        return []
    crowd = max(nodes, asked)
    lines, turns = [], rounds * asked / crowd
    lasting = rounds if settings.releases is None else min(rounds, settings.releases * crowd // asked)
    found = expectation(mechanism, cohort=asked, rounds=max(1, lasting), clients=crowd, trust=Trust(settings.trust))
    lines.append((INFO if found.verdict is Verdict.USEFUL else WARNING, found.sentence()))
    if settings.releases is not None and turns > settings.releases:
        lines.append(
            (
                WARNING,
                f"quietbit.releases is {settings.releases}, and {rounds} rounds ask a node {_often(turns)}: nodes "
                f"decline after {_often(settings.releases)}. Set quietbit.releases to {math.ceil(turns)}, or run "
                f"{settings.releases * crowd // asked} rounds.",
            )
        )
    elif settings.releases is not None and turns <= FAR_BELOW * settings.releases:
        lines.append(
            (
                WARNING,
                f"quietbit.releases is {settings.releases}, and {rounds} rounds ask a node {_often(turns)}: with "
                f"quietbit.releases = {math.ceil(turns)} the same epsilon would need less noise.",
            )
        )
    if settings.threshold is not None and not settings.threshold <= asked <= 2 * settings.threshold - 1:
        lines.append(
            (
                WARNING,
                f"quietbit.threshold is {settings.threshold}, and a round asks {asked} nodes: a sum needs from "
                f"{settings.threshold} to {2 * settings.threshold - 1}, so there will be none.",
            )
        )
    return lines


def _often(turns: float) -> str:
    if turns == 1:
        return "once"
    return f"{turns:g} times" if turns == int(turns) else f"about {turns:.1f} times"
