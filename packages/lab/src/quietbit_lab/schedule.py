"""Simulations in which clients take part otherwise than once per epoch.

Idea     amplification is claimed for ``poisson`` alone.
Kinds    ``sampled`` draws a fresh cohort each round. ``poisson`` lets a trusted server draw each
         client with probability m / N in every round, in secret: all are charged, with the cost of
         a secret draw (`quietbit.privacy.subsampling`). ``zipf`` is realistic: client r comes with
         frequency proportional to 1/(r+1), until it has made all releases that the plan allows.
Symbols  N = clients; m = cohort, for ``poisson`` the expected one.
"""

from __future__ import annotations

from functools import cache
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, require
from quietbit.federation.costs import ClientCosts
from quietbit.federation.fields import Word, choice
from quietbit.federation.simulate.participation import Clients, Schedule
from quietbit.federation.simulate.plan import SimulatedPlan
from quietbit.kernel.rng import secure_rng
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.batch import draw_batch
from quietbit.privacy.cost import Cost
from quietbit.privacy.subsampling import poisson_cost
from quietbit.target import Adjacency, Unit

__all__ = [
    "EACH_ONCE",
    "POISSON",
    "SAMPLED",
    "ZIPF",
    "Sampled",
    "ScheduledPlan",
    "SecretDraws",
    "Uneven",
]

EACH_ONCE = "each-once"
SAMPLED = "sampled"
POISSON = "poisson"
ZIPF = "zipf"


@final
@frozen(eq=False)
class Sampled(Schedule):
    """A fresh cohort each round."""

    def cohort(self, number: int) -> Clients:
        """Return the clients of round ``number``, counted from 0; no client twice."""
        generator = np.random.default_rng([self.seed, number, 1])
        return generator.choice(self.clients, self.size, replace=False).astype(np.int64)


@final
@frozen(eq=False)
class SecretDraws(Schedule):
    """A trusted server draws each client by itself, in secret; all are charged."""

    _drawn: dict[int, Clients] = field(init=False, factory=dict, repr=False)

    @property
    def rate(self) -> float:
        """The probability of each client in a draw."""
        return self.size / self.clients

    def cohort(self, number: int) -> Clients:
        """Return the clients of round ``number``; of one round there is one draw."""
        if number not in self._drawn:
            self._drawn.clear()
            self._drawn[number] = draw_batch(secure_rng(), self.rate, self.clients)
        return self._drawn[number]

    def charged(self, number: int) -> Clients:
        """Return all clients."""
        return np.arange(self.clients, dtype=np.int64)


@final
@frozen(eq=False)
class Uneven(Schedule):
    """Client r with a frequency of 1/(r+1), at most ``most`` times."""

    most: int | None = None
    _known: dict[int, Clients] = field(init=False, factory=dict, repr=False)
    # How often each client came so far.
    _came: list[NDArray[np.int32]] = field(init=False, factory=list, repr=False)

    def cohort(self, number: int) -> Clients:
        """Draw the rounds up to this one; a client that has made all its releases is left out."""
        if number < max(self._known, default=0):
            self._known.clear()
        if not self._known:
            self._came[:] = [np.zeros(self.clients, dtype=np.int32)]
        for place in range(max(self._known, default=-1) + 1, number + 1):
            cohort = self._drawn(np.random.default_rng([self.seed, place, 2]), place)
            self._came[0][cohort] += 1
            self._known.clear()
            self._known[place] = cohort
        return self._known[number]

    def _drawn(self, rng: np.random.Generator, number: int) -> Clients:
        """Draw clients in turn, client r with weight 1/(r+1) among those that may come.

        They are the first of a race of waiting times, which has the same law.
        """
        free = np.arange(self.clients)
        if self.most is not None:
            free = np.flatnonzero(self._came[0] < self.most)
        rule = f"at most the clients that may still release in round {number + 1}"
        require(free.size >= self.size, "cohort", self.size, rule)
        waits = rng.exponential(size=free.size) * (free + 1)
        first = np.argpartition(waits, self.size - 1)[: self.size]
        return np.sort(free[first].astype(np.int64))


@final
@frozen
class ScheduledPlan(SimulatedPlan):
    """A simulated plan with a choice of ``participation``."""

    participation: str = choice(Word(EACH_ONCE, SAMPLED, POISSON, ZIPF), EACH_ONCE)

    def check_run(self) -> None:
        """Refuse draws that are not secret where they must be."""
        super().check_run()
        secret = self.participation == POISSON
        rule = f"secure where participation is {self.participation}"
        reason = "who takes part must stay secret, and a seed gives it away"
        require(not secret or self.rng == "secure", "rng", self.rng, rule, reason)
        if secret and not self.central:
            reason = "poisson participation hides nothing from a server that sees who answers"
            raise InvalidParameter.of("trust", "central", self.trust.value, reason)

    def schedule(self, clients: int) -> Schedule:
        """Return who takes part in which round."""
        if self.participation == SAMPLED:
            return Sampled(clients, self.cohort, self.seed)
        if self.participation == POISSON:
            return SecretDraws(clients, self.cohort)
        if self.participation == ZIPF:
            return Uneven(clients, self.cohort, self.seed, self.releases)
        return super().schedule(clients)

    def account(self, mechanism: Mechanism, sizes: NDArray[np.int64]) -> ClientCosts:
        """Return the account of clients of these sizes; of secret draws, that of all clients."""
        if self.participation != POISSON:
            return super().account(mechanism, sizes)
        rate = SecretDraws(sizes.size, self.cohort).rate

        @cache
        def price(samples: int | None) -> Cost:
            far = self.release(mechanism, samples)
            return poisson_cost(mechanism.privacy(Adjacency.ZERO_OUT), far, rate)

        return ClientCosts(price, sizes, self.unit is Unit.SAMPLE)

    @property
    def clients_differ(self) -> bool:
        """Whether the most exposed client is not simply the busiest one."""
        return super().clients_differ or self.participation == POISSON
