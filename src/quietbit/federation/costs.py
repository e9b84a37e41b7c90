"""The costs of a run: counted per client, reported for the worst client.

Idea     a client's own releases compose, so counts are enough to rebuild any client's ledger; the
         guarantee of the run is the largest over all clients. No randomness of who takes part is
         counted on. A server counts the nodes of an engine in one adaptive account, as nodes do
         (`NodeCosts`); what parts count besides updates has an epsilon of its own, which was set
         aside. A simulation knows its clients, their samples and its schedule beforehand
         (`ClientCosts`).
Source   Guo et al. (ICML 2023), section "Rényi DP and composition".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias, final

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from quietbit.errors import require
from quietbit.federation.messages import Node
from quietbit.federation.part import Part
from quietbit.federation.record import Counts, NodeReport
from quietbit.federation.terms import Terms
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee, shown_epsilon

__all__ = ["ClientCosts", "NodeCosts", "spread"]

# The cost of one release: to a client (None), or to one of this many samples.
_CostOf: TypeAlias = Callable[[int | None], Cost]


@final
@define(eq=False)
class ClientCosts:
    """The releases of every client so far; ``sizes`` are the samples of each.

    With clients as the privacy unit, all are of one kind; with samples (``by_size``), a client's
    size is its kind, and the smallest clients are the most exposed. Adjacency, unit and trust are
    those of the cost.
    """

    price: _CostOf
    sizes: NDArray[np.int64]
    by_size: bool = False
    counts: NDArray[np.int64] = field(init=False)
    _guarantees: dict[tuple[int, int, float], Guarantee] = field(
        init=False, factory=dict, repr=False
    )

    def __attrs_post_init__(self) -> None:
        """Start with no releases; refuse a mechanism without an account."""
        self.counts = np.zeros(self.sizes.size, dtype=np.int64)
        positive = self.sizes.size > 0 and int(self.sizes.min()) > 0
        require(positive, "sizes of the clients", self.sizes.tolist(), "all positive")
        self._cost(int(self.sizes.min()), 1)

    def record(self, clients: NDArray[np.int64]) -> None:
        """Record one more release of each of these clients."""
        self.counts[clients] += 1

    def fresh(self) -> ClientCosts:
        """Return the same account without releases."""
        return ClientCosts(self.price, self.sizes, self.by_size)

    def cost(self, client: int) -> Cost:
        """Return the cost of one client's releases."""
        return self._cost(int(self.sizes[client]), int(self.counts[client]))

    def spread(self, delta: float) -> str:
        """Describe how unequal participation was: the releases and epsilons of some clients."""
        order = np.argsort(self.counts, kind="stable")
        clients = []
        for client in _places(order):
            epsilon = self.cost(int(client)).epsilon(delta)
            clients.append((int(self.counts[client]), epsilon))
        return spread(clients)

    def worst(self, delta: float, after: NDArray[np.int64] | None = None) -> Guarantee:
        """Return the guarantee of every client, now or once those of ``after`` have sent."""
        counts = self.counts.copy()
        if after is not None:
            counts[after] += 1
        kinds = np.ones_like(self.sizes)
        if self.by_size:
            kinds = self.sizes
        # Of the clients with equally many releases, none is worse off than the smallest; and a
        # client with fewer releases and more samples than another has the smaller epsilon.
        smallest = {
            times: int(kinds[counts == times].min()) for times in np.unique(counts).tolist()
        }
        guarantees = []
        for times, kind in smallest.items():
            worse = [other for other in smallest if other > times and smallest[other] <= kind]
            if not worse:
                guarantees.append(self._guarantee(kind, times, delta))
        return max(guarantees, key=lambda guarantee: guarantee.epsilon_upper)

    def _guarantee(self, kind: int, times: int, delta: float) -> Guarantee:
        """Return the guarantee of clients of a kind; there is one mechanism, fixed in the plan."""
        key = (kind, times, delta)
        if key not in self._guarantees:
            self._guarantees[key] = self._cost(kind, times).guarantee(delta)
        return self._guarantees[key]

    def _cost(self, kind: int, times: int) -> Cost:
        return self.price(kind if self.by_size else None) * times


def spread(clients: Sequence[tuple[int, float]]) -> str:
    """Describe the clients with the fewest, the median and the most releases.

    >>> spread([(0, 0.0), (7, 3.5), (1, 1.25), (2, 1.5)])
    'fewest 0 (epsilon 0), median 2 (epsilon 1.5), most 7 (epsilon 3.5)'
    """
    phrases = []
    words = ("fewest", "median", "most")
    for word, (times, epsilon) in zip(words, _places(sorted(clients)), strict=True):
        phrases.append(f"{word} {times} (epsilon {shown_epsilon(epsilon)})")
    return ", ".join(phrases)


def _places(ordered: Any) -> list[Any]:
    return [ordered[place] for place in (0, len(ordered) // 2, len(ordered) - 1)]


@final
@define(eq=False)
class NodeCosts:
    """The costs of all nodes; ``update`` is that of one update, once the mechanism is known."""

    plan: Terms
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
