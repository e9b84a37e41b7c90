"""Who takes part in which round: fixed before data is seen, a function of a public seed or else secret.

Idea     `EachOnce` shuffles the clients once per epoch and takes cohorts in order, so nobody takes part twice before
         everybody has once; `Sampled` draws a cohort afresh each round. Either way the number of releases of every
         client is counted, never estimated: no amplification by sampling is claimed. `SecretOrder` is `EachOnce` with
         an order that the operating system draws and nobody can repeat, as a shuffle of all clients needs it: then
         everybody counts as having released as soon as an epoch begins, so that neither an account nor the moment to
         stop depends on the order.
Symbols  N = clients; m = cohort.
Source   Guo et al. (ICML 2023): one pass over the clients per epoch of N / m rounds.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, Protocol, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit.errors import check_int, require

__all__ = [
    "EachOnce",
    "Sampled",
    "Schedule",
    "SecretOrder",
    "participation",
    "releases_per_client",
    "secret_order",
]

Clients = NDArray[np.int64]
KINDS = ("each-once", "sampled", "secret-order")


class Schedule(Protocol):
    """The cohort of every round."""

    @property
    def clients(self) -> int:
        """How many clients there are."""
        ...

    def cohort(self, number: int) -> Clients:
        """The clients of round ``number``, from 0 on; no client twice."""
        ...

    def charged(self, number: int) -> Clients:
        """The clients for whom a release is counted in round ``number``: over all rounds so far, at least their own."""
        ...


def _size(schedule: Any, attribute: Any, size: int) -> None:
    """Refuse a cohort larger than the federation."""
    count = check_int(schedule.clients, "number of clients", 1)
    check_int(size, "cohort", 1)
    require(size <= count, "cohort", size, f"at most {count}, the number of clients")


def _seed(schedule: Any, attribute: Any, seed: int) -> None:
    check_int(seed, "seed", 0)


@final
@frozen
class EachOnce:
    """Every client once per epoch; where the cohort does not divide N, the rest of an epoch sits out."""

    clients: int
    size: int = field(validator=_size)
    seed: int = field(validator=_seed)

    def cohort(self, number: int) -> Clients:
        """The next slice of this epoch's order."""
        epoch, place = divmod(number, self.clients // self.size)
        return _order(self.clients, self.seed, epoch)[place * self.size : (place + 1) * self.size]

    def charged(self, number: int) -> Clients:
        """The cohort."""
        return self.cohort(number)


@final
@frozen
class Sampled:
    """A fresh cohort every round, drawn without replacement."""

    clients: int
    size: int = field(validator=_size)
    seed: int = field(validator=_seed)

    def cohort(self, number: int) -> Clients:
        """A subset that depends on the seed and the round alone."""
        generator = np.random.default_rng([self.seed, number, 1])
        return generator.choice(self.clients, self.size, replace=False).astype(np.int64)

    def charged(self, number: int) -> Clients:
        """The cohort."""
        return self.cohort(number)


@final
@frozen(eq=False)
class SecretOrder:
    """Every client once per epoch, in an order of the operating system's that is kept for as long as this object."""

    clients: int
    size: int = field(validator=_size)
    _epochs: dict[int, Clients] = field(init=False, factory=dict, repr=False)

    @property
    def per_epoch(self) -> int:
        """Rounds of an epoch; where the cohort does not divide the clients, the rest sits out."""
        return self.clients // self.size

    def cohort(self, number: int) -> Clients:
        """The next slice of this epoch's order."""
        epoch, place = divmod(number, self.per_epoch)
        if epoch not in self._epochs:
            self._epochs[epoch] = secret_order(self.clients)
        return self._epochs[epoch][place * self.size : (place + 1) * self.size]

    def charged(self, number: int) -> Clients:
        """Everybody when an epoch begins, nobody after that."""
        return np.arange(0 if number % self.per_epoch else self.clients, dtype=np.int64)


def secret_order(count: int) -> Clients:
    """A permutation drawn by the operating system, all equally likely.

    Ranks of 64 fresh bits each, drawn again where two are the same.
    """
    while True:
        keys = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        order = np.argsort(keys, kind="stable").astype(np.int64)
        if not bool(np.any(np.diff(keys[order]) == 0)):
            order.setflags(write=False)
            return order


def participation(kind: str, clients: int, size: int, seed: int) -> Schedule:
    """The schedule of that name; that of a secret order makes no use of the seed."""
    require(kind in KINDS, "participation", kind, "one of " + ", ".join(KINDS))
    if kind == "secret-order":
        return SecretOrder(clients, size)
    return EachOnce(clients, size, seed) if kind == "each-once" else Sampled(clients, size, seed)


def releases_per_client(schedule: Schedule, rounds: int) -> NDArray[np.int64]:
    """How often each client is charged with a release in the first ``rounds`` rounds."""
    counts = np.zeros(schedule.clients, dtype=np.int64)
    for number in range(check_int(rounds, "rounds", 0)):
        counts[schedule.charged(number)] += 1
    return counts


@lru_cache(maxsize=4)
def _order(clients: int, seed: int, epoch: int) -> Clients:
    order = np.random.default_rng([seed, epoch, 0]).permutation(clients).astype(np.int64)
    order.setflags(write=False)
    return order
