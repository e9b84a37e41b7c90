"""The plan of a simulation: a run's choices, its cohort, and where random bits come from.

Idea     a simulation knows beforehand who takes part how often, so it accounts for that plan and
         not for whatever a server may ask. It has no nodes: what only an engine reads is refused,
         and a run may have no privacy, or a server that clients trust.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from attrs import frozen

from quietbit.errors import require
from quietbit.federation.costs import ClientCosts
from quietbit.federation.fields import Whole, Word, choice
from quietbit.federation.mechanism import mechanism_of
from quietbit.federation.messages import Node
from quietbit.federation.plan import Plan
from quietbit.federation.simulate.participation import Schedule
from quietbit.federation.terms import Counts, Priced, left_out
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.scouts import scout_rank
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import MOST_CLIENTS, Unit

__all__ = ["SimulatedPlan"]

OF_ENGINES = (
    "local_arrays",
    "evaluate",
    "stragglers",
    "secure_aggregation.threshold",
    "secure_aggregation.adversary",
    "secure_aggregation.timeout",
    "samples.dataset_size",
    "samples.sampling_rate",
    "samples.steps",
    "samples.learning_rate",
    "samples.bits",
)


@frozen
class SimulatedPlan(Plan):
    """A plan with the ``cohort`` of a round, ``rng`` and ``seed``.

    ``rng`` is ``secure`` or ``seeded``; the seed fixes who takes part, too.

    >>> plan = SimulatedPlan("gaussian", clip=1.0, adjacency="zero-out", epsilon=2.0, releases=7)
    >>> round(plan.mechanism_for(dimension=30).noise_multiplier, 2)
    5.28
    """

    cohort: int = choice(Whole(1), 1)
    rng: str = choice(Word("secure", "seeded"), "secure")
    seed: int = choice(Whole(0), 0)

    def complete(self) -> None:
        """Refuse what only an engine reads, and fill in what follows from other choices."""
        left_out(self, OF_ENGINES, "of a simulation, which has no nodes")
        super().complete()

    def check_run(self) -> None:
        """Refuse a cohort that does not fit."""
        if self.secure_aggregation is not None:
            rule = f"from 2 to {MOST_CLIENTS} for sums"
            require(2 <= self.cohort <= MOST_CLIENTS, "cohort", self.cohort, rule)
        scouts = self.adaptive_clip
        if scouts is not None and scouts.every is not None:
            rule = f"at most {self.cohort}, the cohort, so that somebody scouts"
            require(scouts.every <= self.cohort, "adaptive_clip.every", scouts.every, rule)

    @property
    def updates(self) -> int:
        """The number of updates per round: the cohort without its scouts."""
        scouts = self.adaptive_clip
        if scouts is None or scouts.every is None:
            return self.cohort
        return self.cohort - self.cohort // scouts.every

    @property
    def summed_clients(self) -> int | None:
        """The number of clients in a sum; None without sums."""
        return None if self.secure_aggregation is None else self.updates

    def schedule(self, clients: int) -> Schedule:
        """Return who of ``clients`` clients takes part in which round."""
        return Schedule(clients, self.cohort, self.seed)

    def scouts_among(self, nodes: list[Node], number: int) -> list[Node]:
        """Return those of lowest rank: a sum is of as many clients as its cost is computed for."""
        name = f"simulation/{self.seed}".encode()

        def rank(node: Node) -> int:
            return scout_rank(name, number - 1, int(node))

        return sorted(nodes, key=rank)[: self.cohort - self.updates]

    def mechanism_for(
        self,
        dimension: int,
        sizes: Counts | None = None,
        releases: int | Counts | None = None,
    ) -> Mechanism:
        """Return the mechanism for updates of ``dimension`` entries.

        ``sizes`` are the samples of each client, needed where the privacy unit is a sample;
        ``releases`` is how often each client takes part, or one number for all, the plan's by
        default.
        """
        return mechanism_of(self, dimension, sizes, releases)

    def account(self, mechanism: Mechanism, sizes: Counts) -> ClientCosts:
        """Return the account of clients of these sizes; refuse a mechanism without one."""

        @cache
        def price(samples: int | None) -> Cost:
            return self.release(mechanism, samples)

        return ClientCosts(price, sizes, self.unit is Unit.SAMPLE)

    @property
    def clients_differ(self) -> bool:
        """Whether the most exposed client is not simply the busiest one."""
        return self.samples is not None

    def account_of(self, sizes: Counts, releases: Counts) -> Priced | None:
        """Return the guarantee of the most exposed client, where clients differ."""
        if not self.clients_differ:
            return None
        counts: Any = np.broadcast_to(releases, sizes.shape)

        def worst(mechanism: Mechanism) -> Guarantee:
            account = self.account(mechanism, sizes)
            account.counts = counts
            return account.worst(self.delta)

        return worst
