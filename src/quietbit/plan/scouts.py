"""Scouts: a few clients of a round answer with a bit about their length instead of an update, and the clip follows.

Idea     a bit beside every release takes its price from every update. Scouts take nothing from the others: one client
         in twenty, drawn in public, says by randomised response whether its update was no longer than the round's clip,
         for about the price of a whole release, so that its bit says far more. The rest send updates as if there were
         no scouts. What it costs is the updates that are missing, 1 / (1 - 1/20) of squared error, 5.3 %.
Symbols  m = cohort; one in n scouts, floor(m / n) of a round; e = pure epsilon of an answer; R = releases of a client.
Source   Andrew, Thakkar, McMahan, Ramaswamy (NeurIPS 2021) for the quantile; Warner (1965) for the answer.

Account. Who scouts is a function of public values (run, round, number of the client), so the list of a client's
releases, updates and answers, is fixed in advance, and their costs add up. Nobody knows which lists there will be when
e is chosen: it is the largest with which a client stays in the budget that answers once instead of sending an update,
or always, and in between as often as `_mixes` says. The account of a run counts both kinds of every client, and has the
last word.

Zero-out. The zero update has no length to speak of: such a scout says either answer alike, which is the neighbour that
`RandomisedResponse` prices. Clients whose update is zero count as half short and half long.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int
from quietbit.mechanism.base import Answers
from quietbit.mechanism.family import largest_private
from quietbit.mechanism.response import RandomisedResponse
from quietbit.privacy.cost import Cost
from quietbit.target import Target

__all__ = ["Scouts", "check_every", "scouts_of"]

LEAST_EPSILON, LARGEST_EPSILON = 1e-6, 20.0
SHORT = 0  # the cell of updates no longer than the clip


def check_every(value: int) -> int:
    """Return of how many clients one scouts: 2 at least, so that updates are left."""
    return check_int(value, "clip_scouts", 2)


@final
@frozen
class Scouts:
    """One client in ``every`` answers through ``mechanism`` whether its update was no longer than the clip."""

    every: int = field(converter=check_every)
    mechanism: RandomisedResponse
    release: Cost = field(repr=False, eq=False)  # of one answer

    @classmethod
    def priced(cls, every: int, update: Cost, target: Target) -> Scouts:
        """Return scouts whose answers cost so much that a client of any list of releases stays within the target.

        ``update`` is the cost of an update, all of which together meet the target.
        """
        releases = target.releases

        def spent(epsilon: float, often: Sequence[int] = (1, releases)) -> float:
            answer = Cost.pure(epsilon).like(update)
            return max((update * (releases - n) + answer * n).epsilon(target.delta) for n in often)

        within = largest_private(spent, LEAST_EPSILON, LARGEST_EPSILON, target.epsilon, "the answer of a scout")
        while spent(within, _mixes(releases)) > target.epsilon:
            within *= 1 - 1e-3
        mechanism = RandomisedResponse.within(within, 2, target.adjacency)
        cost = mechanism.privacy(target.adjacency).under(trust=target.trust)
        return cls(every, mechanism, cost)

    def among(self, clients: NDArray[np.int64], run: bytes, number: int) -> NDArray[np.bool_]:
        """Return who of a cohort scouts in a round: those with the least hash of run, round and own number."""
        begin = b"quietbit/scouts/" + len(run).to_bytes(8, "little") + run + number.to_bytes(8, "little")
        ranks = [hashlib.sha256(begin + client.to_bytes(8, "little")).digest() for client in clients.tolist()]
        first = sorted(range(len(ranks)), key=ranks.__getitem__)[: scouts_of(clients.size, self.every)]
        found = np.zeros(clients.size, dtype=np.bool_)
        found[first] = True
        return found

    def shares(self, length: float, clip: float) -> FloatVector:
        """Return the cell of an update of this length, as `RandomisedResponse` takes it; of the zero update none."""
        found = np.zeros(2)
        if length > 0:
            found[SHORT if length <= clip else 1 - SHORT] = 1.0
        return found

    def answers(self, mean: FloatVector, count: int) -> Answers:
        """Return the share of updates that the clip leaves alone, from the decoded mean of ``count`` answers.

        Its deviation is a public bound: that of coins and of the draw of scouts together, where half are short.
        """
        return Answers(float(mean[SHORT]), 0.5 / (self.mechanism.truth * math.sqrt(count)))


def scouts_of(cohort: int, every: int) -> int:
    """Return how many clients of a round scout."""
    return cohort // every


def _mixes(releases: int) -> list[int]:
    """Return how many of a client's releases may be answers: once, always, and some numbers between."""
    between = {round(releases * part / 8) for part in range(9)} | {1, 2, 3, 4}
    return sorted(n for n in between if 1 <= n <= releases)
