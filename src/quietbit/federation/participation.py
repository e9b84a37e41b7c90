"""Who takes part in which round: fixed before data is seen, from a public seed or in secret.

Idea     the releases of every client are counted, never estimated; amplification is claimed for
         ``poisson`` alone.
Kinds    ``each-once`` shuffles the clients once per epoch and takes cohorts in order. ``sampled``
         draws a fresh cohort each round. ``poisson`` lets a trusted server draw each
         client with probability m / N in every round, in secret: all are charged, with the cost of
         a secret draw (`quietbit.privacy.subsampling`). ``zipf`` is realistic: client r comes with
         frequency proportional to 1/(r+1), until it has made all releases that the plan allows; one
         that has come, or may not, is redrawn.
Symbols  N = clients; m = cohort, for ``poisson`` the expected one.
Source   Guo et al. (ICML 2023): one pass over the clients per epoch of N / m rounds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit.errors import check_int, require
from quietbit.kernel.rng import secure_rng
from quietbit.mechanism.batch import draw_batch

__all__ = ["EACH_ONCE", "KINDS", "POISSON", "SAMPLED", "ZIPF", "Schedule", "releases_per_client"]

EACH_ONCE = "each-once"
SAMPLED = "sampled"
POISSON = "poisson"
ZIPF = "zipf"
KINDS = (EACH_ONCE, SAMPLED, POISSON, ZIPF)

Clients = NDArray[np.int64]
PATIENCE = 64  # draws as large as the cohort, before listing all who may come


@final
@frozen(eq=False)
class Schedule:
    """The cohort of every round, ``size`` among ``clients``.

    ``most`` bounds how often one client comes, where
    some come more often than others (``zipf``).
    """

    kind: str
    clients: int
    size: int
    seed: int = 0  # unused for secret draws
    most: int | None = None
    _secret: dict[int, Clients] = field(init=False, factory=dict, repr=False)
    # How often each client came so far.
    _came: list[NDArray[np.int32]] = field(init=False, factory=list, repr=False)

    def __attrs_post_init__(self) -> None:
        """Refuse an unknown kind, and a cohort larger than the federation."""
        require(self.kind in KINDS, "participation", self.kind, "one of " + ", ".join(KINDS))
        count = check_int(self.clients, "number of clients", 1)
        check_int(self.size, "cohort", 1)
        require(self.size <= count, "cohort", self.size, f"at most {count}, the number of clients")
        check_int(self.seed, "seed", 0)

    @property
    def rate(self) -> float:
        """The share of clients in a cohort, or the probability of each in a secret draw."""
        return self.size / self.clients

    def cohort(self, number: int) -> Clients:
        """Return the clients of round ``number``, counted from 0; no client twice.

        Where the cohort does not divide the clients, the remaining clients of an epoch sit out.
        """
        if self.kind == SAMPLED:
            generator = np.random.default_rng([self.seed, number, 1])
            return generator.choice(self.clients, self.size, replace=False).astype(np.int64)
        if self.kind == POISSON:
            if number not in self._secret:
                self._secret.clear()
                self._secret[number] = draw_batch(secure_rng(), self.rate, self.clients)
            return self._secret[number]
        if self.kind == ZIPF:
            return self._uneven(number)
        epoch, place = divmod(number, self.clients // self.size)
        order = _order(self.clients, self.seed, epoch)
        return order[place * self.size : (place + 1) * self.size]

    def _uneven(self, number: int) -> Clients:
        """Draw the rounds up to this one; a client that has made all its releases is left out."""
        if number < max(self._secret, default=0):
            self._secret.clear()
        if not self._secret:
            self._came[:] = [np.zeros(self.clients, dtype=np.int32)]
        for place in range(max(self._secret, default=-1) + 1, number + 1):
            cohort = self._drawn(np.random.default_rng([self.seed, place, 2]), place)
            self._came[0][cohort] += 1
            self._secret.clear()
            self._secret[place] = cohort
        return self._secret[number]

    def _drawn(self, rng: np.random.Generator, number: int) -> Clients:
        """Draw clients in turn, client r with weight 1/(r+1) among those that may come.

        Ranks are drawn from a law of log(1 + 1/r), and accepted with probability log(2) / (r log(1
        + 1/r)). Where that takes too long, the rest follow from a race of waiting times, which has
        the same law.
        """
        came = self._came[0]
        most = np.inf if self.most is None else self.most
        chosen: dict[int, None] = {}
        for _ in range(PATIENCE):
            uniform = rng.random((2, self.size))
            drawn = np.minimum(np.exp(uniform[0] * np.log(self.clients + 1)), self.clients)
            ranks = drawn.astype(np.int64)
            kept = ranks[uniform[1] * ranks * np.log1p(1 / ranks) <= np.log(2)] - 1
            for client in kept[came[kept] < most].tolist():
                chosen[client] = None
                if len(chosen) == self.size:
                    return np.sort(np.fromiter(chosen, dtype=np.int64))
        free = np.setdiff1d(np.flatnonzero(came < most), list(chosen))
        missing = self.size - len(chosen)
        rule = f"at most the clients that may still release in round {number + 1}"
        require(free.size >= missing, "cohort", self.size, rule)
        waits = rng.exponential(size=free.size) * (free + 1)
        clients = np.concatenate([list(chosen), free[np.argsort(waits)[:missing]]])
        return np.sort(clients.astype(np.int64))

    def charged(self, number: int) -> Clients:
        """Return whom a release in round ``number`` is charged to: all clients in secret draws."""
        if self.kind != POISSON:
            return self.cohort(number)
        return np.arange(self.clients, dtype=np.int64)


def releases_per_client(schedule: Schedule, rounds: int) -> NDArray[np.int64]:
    """Return how often each client is charged with a release in the first ``rounds`` rounds."""
    counts = np.zeros(schedule.clients, dtype=np.int64)
    for number in range(check_int(rounds, "rounds", 0)):
        counts[schedule.charged(number)] += 1
    return counts


@lru_cache(maxsize=4)
def _order(clients: int, seed: int, epoch: int) -> Clients:
    order = np.random.default_rng([seed, epoch, 0]).permutation(clients).astype(np.int64)
    order.setflags(write=False)
    return order
