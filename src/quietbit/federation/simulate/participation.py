"""Who takes part in which round: fixed before data is seen, from a public seed.

Idea     clients are shuffled once per epoch, and cohorts taken in order. The releases of every
         client are counted, never estimated. Other schedules are the laboratory's, each a
         `Schedule`, too.
Source   Guo et al. (ICML 2023): one pass over the clients per epoch of N / m rounds, for N clients
         and cohorts of m.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from quietbit.errors import check_int, require

__all__ = ["Clients", "Schedule", "releases_per_client"]

Clients = NDArray[np.int64]


@frozen(eq=False)
class Schedule:
    """The cohort of every round, ``size`` among ``clients``."""

    clients: int
    size: int
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        """Refuse a cohort larger than the federation."""
        count = check_int(self.clients, "number of clients", 1)
        check_int(self.size, "cohort", 1)
        require(self.size <= count, "cohort", self.size, f"at most {count}, the number of clients")
        check_int(self.seed, "seed", 0)

    def cohort(self, number: int) -> Clients:
        """Return the clients of round ``number``, counted from 0; no client twice.

        Where the cohort does not divide the clients, the remaining clients of an epoch sit out.
        """
        epoch, place = divmod(number, self.clients // self.size)
        order = _order(self.clients, self.seed, epoch)
        return order[place * self.size : (place + 1) * self.size]

    def charged(self, number: int) -> Clients:
        """Return whom a release in round ``number`` is charged to."""
        return self.cohort(number)


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
