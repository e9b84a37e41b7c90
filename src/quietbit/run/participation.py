"""Who takes part in which round: fixed before data is seen, from a public seed or in secret.

Idea     the releases of every client are counted, never estimated; amplification is claimed for
         ``poisson`` alone. ``each-once``     shuffles the clients once per epoch and takes cohorts
         in order. ``sampled``       draws a fresh cohort each round. ``secret-order``  is
         ``each-once`` in an order that the operating system draws; all are charged when an epoch
                           begins, so that neither an account nor the time to stop depends on the
         order. ``poisson``       lets a trusted server draw each client with probability m / N in
         every round, in secret: all
                           are charged, with the cost of a secret draw
         (`quietbit.privacy.subsampling`). ``zipf``          is realistic: client r comes with
         frequency proportional to 1/(r+1), until it has made all
                           releases that the plan allows; one that has come, or may not, is redrawn.
Symbols  N = clients; m = cohort, for ``poisson`` the expected one.
Source   Guo et al. (ICML 2023): one pass over the clients per epoch of N / m rounds.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit.errors import check_int, require
from quietbit.kernel.rng import secure_rng
from quietbit.mechanism.batch import draw_batch

__all__ = ["KINDS", "POISSON", "SECRET", "ZIPF", "Schedule", "releases_per_client", "secret_order"]

Clients = NDArray[np.int64]
PATIENCE = 64  # draws as large as the cohort, before listing all who may come
EACH_ONCE, SAMPLED, SECRET, POISSON, ZIPF = KINDS = (
    "each-once",
    "sampled",
    "secret-order",
    "poisson",
    "zipf",
)


@final
@frozen(eq=False)
class Schedule:
    """The cohort of every round, ``size`` among ``clients``; a secret order lives as long as this object.

    ``most`` bounds how often one client comes, where some come more often than others (``zipf``).
    """

    kind: str
    clients: int
    size: int
    seed: int = 0  # unused for secret draws
    most: int | None = None
    _secret: dict[int, Clients] = field(init=False, factory=dict, repr=False)
    _came: list[NDArray[np.int32]] = field(
        init=False, factory=list, repr=False
    )  # how often each client came so far

    def __attrs_post_init__(self) -> None:
        """Refuse an unknown kind, and a cohort larger than the federation."""
        require(self.kind in KINDS, "participation", self.kind, "one of " + ", ".join(KINDS))
        count = check_int(self.clients, "number of clients", 1)
        check_int(self.size, "cohort", 1)
        require(self.size <= count, "cohort", self.size, f"at most {count}, the number of clients")
        check_int(self.seed, "seed", 0)

    @property
    def rate(self) -> float:
        """The share of clients in a cohort; where it is drawn in secret, the probability of each client."""
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
        if self.kind == SECRET and epoch not in self._secret:
            self._secret[epoch] = secret_order(self.clients)
        order = (
            self._secret[epoch] if self.kind == SECRET else _order(self.clients, self.seed, epoch)
        )
        return order[place * self.size : (place + 1) * self.size]

    def _uneven(self, number: int) -> Clients:
        """Draw the rounds up to this one, in order; a client with all its allowed releases does not come again."""
        if number < max(self._secret, default=0):
            self._secret.clear()
        if not self._secret:
            self._came[:] = [np.zeros(self.clients, dtype=np.int32)]
        for one in range(max(self._secret, default=-1) + 1, number + 1):
            found = self._drawn(np.random.default_rng([self.seed, one, 2]), one)
            self._came[0][found] += 1
            self._secret.clear()
            self._secret[one] = found
        return self._secret[number]

    def _drawn(self, rng: np.random.Generator, number: int) -> Clients:
        """Draw clients in turn, client r with weight 1/(r+1) among those that may come, in little memory.

        Ranks are drawn from a law of log(1 + 1/r), and accepted with probability log(2) / (r log(1
        + 1/r)). Where that takes too long, the rest follow from a race of waiting times, which has
        the same law.
        """
        came, most, chosen = (
            self._came[0],
            np.inf if self.most is None else self.most,
            dict[int, None](),
        )
        for _ in range(PATIENCE):
            uniform = rng.random((2, self.size))
            ranks = np.minimum(np.exp(uniform[0] * np.log(self.clients + 1)), self.clients).astype(
                np.int64
            )
            kept = ranks[uniform[1] * ranks * np.log1p(1 / ranks) <= np.log(2)] - 1
            for one in kept[came[kept] < most].tolist():
                chosen[one] = None
                if len(chosen) == self.size:
                    return np.sort(np.fromiter(chosen, dtype=np.int64))
        free = np.setdiff1d(np.flatnonzero(came < most), list(chosen))
        missing, rule = (
            self.size - len(chosen),
            f"at most the clients that may still release in round {number + 1}",
        )
        require(free.size >= missing, "cohort", self.size, rule)
        waits = rng.exponential(size=free.size) * (free + 1)
        return np.sort(
            np.concatenate([list(chosen), free[np.argsort(waits)[:missing]]]).astype(np.int64)
        )

    def charged(self, number: int) -> Clients:
        """Return whom a release in round ``number`` is charged to: the cohort, or all clients where it is secret."""
        if self.kind == POISSON:
            return np.arange(self.clients, dtype=np.int64)
        if self.kind != SECRET:
            return self.cohort(number)
        return np.arange(
            0 if number % (self.clients // self.size) else self.clients, dtype=np.int64
        )


def secret_order(count: int) -> Clients:
    """Return a permutation drawn by the operating system, all equally likely: ranks of 64 bits, without ties."""
    while True:
        keys = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        order = np.argsort(keys, kind="stable").astype(np.int64)
        if not bool(np.any(np.diff(keys[order]) == 0)):
            order.setflags(write=False)
            return order


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
