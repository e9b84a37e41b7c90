"""What every node of a run has spent, by the server's counts: the account that its report shows.

Idea     a node's own releases compose, and all nodes are asked alike, so counts are enough. Updates
         enter one adaptive account; what parts count besides has an epsilon of its own, which was
         set aside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import final

from attrs import define, field

from quietbit.federation.messages import Node
from quietbit.federation.part import Part
from quietbit.federation.plan import Plan
from quietbit.federation.record import Counts, NodeReport
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee

__all__ = ["NodeCosts"]


@final
@define(eq=False)
class NodeCosts:
    """The costs of all nodes; ``update`` is that of one update, once the mechanism is known."""

    plan: Plan
    parts: tuple[Part, ...]
    updates: Mapping[Node, Counts]
    update: Cost = field(factory=Cost, init=False)

    def worst(self) -> Guarantee:
        """Return the guarantee of the most updates and the most other releases of any client."""
        others = [_most(part.counts) for part in self.parts]
        return replace(self._guarantee(_most(self.updates), *others), delta=self.plan.delta)

    def nodes(self, *, guaranteed: bool) -> tuple[NodeReport, ...]:
        """Return the counts of every node, numbered ones first; epsilons where ``guaranteed``."""
        names = set(self.updates).union(*(part.counts for part in self.parts))
        epsilons: dict[tuple[int, ...], float | None] = {}
        nodes = []
        for node in sorted(names, key=lambda name: (isinstance(name, str), name)):
            counts = self.updates.get(node, Counts())
            others = [part.counts.get(node, Counts()).releases for part in self.parts]
            key = (counts.releases, *others)
            if key not in epsilons:
                epsilons[key] = self._guarantee(*key).epsilon_upper if guaranteed else None
            entry = NodeReport(
                node,
                **asdict(counts),
                releases=counts.releases,
                epsilon_upper=epsilons[key],
                evaluations=sum(others),
            )
            nodes.append(entry)
        return tuple(nodes)

    def _guarantee(self, updates: int, *others: int) -> Guarantee:
        """Return what a node's updates, and its other releases by part, cost it."""
        account = Account(self.plan.update_target, "adaptive")
        if updates:
            account = account.spend(self.update, updates)
        guarantee = account.guarantee()
        apart = 0.0
        for part, releases in zip(self.parts, others, strict=True):
            if releases:
                apart += part.spends(releases)
        if not apart:
            return guarantee
        total = math.nextafter(guarantee.epsilon_upper + apart, math.inf)
        return replace(guarantee, epsilon_upper=total)


def _most(counts: Mapping[Node, Counts]) -> int:
    """Return the releases of the node with the most."""
    return max((entry.releases for entry in counts.values()), default=0)
