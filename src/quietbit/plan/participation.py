"""Who takes part in which round: public, fixed before data is seen, a function of its own seed.

Idea     `EachOnce` shuffles the clients once per epoch and takes cohorts in order, so nobody takes part twice
         before everybody has once; `Sampled` draws a cohort afresh each round. Either way the number of
         releases of every client is counted, never estimated: no amplification by sampling is claimed.
Symbols  N = clients; m = cohort.
Source   Guo et al. (ICML 2023): one pass over the clients per epoch of N / m rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import require, whole_number

__all__ = ["EachOnce", "Participation", "Sampled", "participation", "releases_per_client"]

Clients = NDArray[np.int64]
KINDS = ("each-once", "sampled")


class Participation(Protocol):
    """The cohort of every round."""

    @property
    def clients(self) -> int:
        """How many clients there are."""
        ...

    def cohort(self, number: int) -> Clients:
        """The clients of round ``number``, from 0 on; no client twice."""
        ...


@final
@dataclass(frozen=True, slots=True)
class EachOnce:
    """Every client once per epoch; where the cohort does not divide N, the rest of an epoch sits out."""

    clients: int
    size: int
    seed: int

    def __post_init__(self) -> None:
        """Refuse a cohort larger than the federation."""
        _check(self.clients, self.size, self.seed)

    def cohort(self, number: int) -> Clients:
        """The next slice of this epoch's order."""
        per_epoch = self.clients // self.size
        epoch, place = divmod(number, per_epoch)
        return _order(self.clients, self.seed, epoch)[place * self.size : (place + 1) * self.size]


@final
@dataclass(frozen=True, slots=True)
class Sampled:
    """A fresh cohort every round, drawn without replacement."""

    clients: int
    size: int
    seed: int

    def __post_init__(self) -> None:
        """Refuse a cohort larger than the federation."""
        _check(self.clients, self.size, self.seed)

    def cohort(self, number: int) -> Clients:
        """A subset that depends on the seed and the round alone."""
        generator = np.random.default_rng([self.seed, number, 1])
        return generator.choice(self.clients, self.size, replace=False).astype(np.int64)


def participation(kind: str, clients: int, size: int, seed: int) -> Participation:
    """The schedule of that name: ``each-once`` or ``sampled``."""
    require(kind in KINDS, "participation", kind, "one of " + ", ".join(KINDS))
    return EachOnce(clients, size, seed) if kind == "each-once" else Sampled(clients, size, seed)


def releases_per_client(schedule: Participation, rounds: int) -> NDArray[np.int64]:
    """How often each client takes part in the first ``rounds`` rounds."""
    counts = np.zeros(schedule.clients, dtype=np.int64)
    for number in range(whole_number(rounds, "rounds", 0)):
        counts[schedule.cohort(number)] += 1
    return counts


@lru_cache(maxsize=4)
def _order(clients: int, seed: int, epoch: int) -> Clients:
    order = np.random.default_rng([seed, epoch, 0]).permutation(clients).astype(np.int64)
    order.setflags(write=False)
    return order


def _check(clients: int, size: int, seed: int) -> None:
    count = whole_number(clients, "number of clients", 1)
    cohort = whole_number(size, "cohort", 1)
    require(cohort <= count, "cohort", cohort, f"at most {count}, the number of clients")
    whole_number(seed, "seed", 0)
