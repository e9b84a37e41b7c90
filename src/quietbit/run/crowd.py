"""Shuffle amplification of a run on an engine, against those who see its models alone.

Idea     the models are computed from means, so a release is one of those that arrived in its round.
         With a secret order the server asks every node once per epoch, and all rounds of an epoch
         together are one shuffle. A node that was away for a part of an epoch is hidden among the
         rounds that it was there for.
Symbols  crowd: the fewest releases among which one of a shuffle is hidden; epoch: as many rounds as
         one order lasts; n: nodes of the first shuffle, known before its first output; T: shuffles
         so far; n_j = n 2^(-j/4): a level.
Source   docs/theory/shuffling.md: why accounts are fixed before the first output, one for every T,
         level j of all shuffles but the last and level i of the last, with the share 1 / (T (T+1)
         (j+1) (j+2) (i+1) (i+2)) of delta. Hypothesis: whether a node answers does not depend on
         when in the epoch it is asked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import final

from attrs import define, field

from quietbit.errors import QuietbitError, check_int, require
from quietbit.mechanism.base import Mechanism, shuffled_privacy
from quietbit.privacy.account import Account
from quietbit.privacy.guarantee import Guarantee, GuaranteePair
from quietbit.run.participation import secret_order
from quietbit.target import Target, Trust, Unit

__all__ = ["Crowds", "level"]

STEPS = 4  # levels per power of two


def level(first: int, crowd: int) -> tuple[int, int]:
    """Return the first level that a crowd reaches, and how many clients it stands for.

    >>> [level(1000, crowd) for crowd in (2000, 1000, 999, 600, 10)]
    [(0, 1000), (0, 1000), (1, 840), (3, 594), (27, 9)]
    """
    place = max(0, math.floor(STEPS * math.log2(first / crowd)) - 1)
    while (size := math.floor(first * 2.0 ** (-place / STEPS))) > crowd:
        place += 1
    return place, size


@define
class _Shuffle:
    """One shuffle: who was to be asked, what arrived, and what came while a node was away."""

    roster: frozenset[int] = frozenset()
    arrived: int = 0
    answered: set[int] = field(factory=set)
    absent: frozenset[int] = frozenset()  # of the roster, in the round that is open
    missed: dict[int, int] = field(factory=dict)

    def record(self, nodes: Collection[int]) -> None:
        self.arrived += len(nodes)
        self.answered.update(nodes)
        for node in self.absent:
            self.missed[node] = self.missed.get(node, 0) + len(nodes)

    @property
    def crowd(self) -> int:
        """The fewest among whom one that answered is hidden: those that came while it was there."""
        away = [missed for node, missed in self.missed.items() if node in self.answered]
        return self.arrived - max(away, default=0)

    @property
    def leavers(self) -> int:
        """How many answered, and were away for a part of it."""
        return sum(1 for node, missed in self.missed.items() if missed and node in self.answered)


@final
@define
class Crowds:
    """The shuffles of a run so far; ``secret``: whether nodes are asked in a secret order."""

    secret: bool = False
    _waiting: list[int] = field(factory=list, init=False)  # nodes not asked yet in this epoch
    _shuffles: list[_Shuffle] = field(factory=list, init=False)
    _first: int = field(default=0, init=False)  # nodes of the first shuffle

    def cohort(self, nodes: Iterable[int], size: int) -> list[int]:
        """Return whom to ask next, nobody twice in an epoch.

        Where too few nodes are left of one epoch, the next begins with ``nodes``.
        """
        require(self.secret, "secret", self.secret, "True to choose nodes")
        size = check_int(size, "number of nodes to ask", 0)
        present = frozenset(nodes)
        if size and len(self._waiting) < size:
            known = sorted(present)
            rule = f"at least {size}, which are to be asked"
            require(len(known) >= size, "number of nodes", len(known), rule)
            self._waiting = [known[place] for place in secret_order(len(known))]
            self._shuffles.append(_Shuffle(present))
            self._first = self._first or len(known)
        if self._shuffles:
            self._shuffles[-1].absent = self._shuffles[-1].roster - present
        chosen = self._waiting[:size]
        self._waiting = self._waiting[size:]
        return chosen

    def record(self, asked: int, arrived: Collection[int]) -> None:
        """Note that a round is over, and the mean of the releases that arrived is public."""
        if not self.secret:
            self._first = self._first or check_int(asked, "number of nodes asked", 0)
            self._shuffles.append(_Shuffle())
        if self._shuffles:
            self._shuffles[-1].record(arrived)

    def observers(self, server: Guarantee, mechanism: Mechanism, releases: int) -> GuaranteePair:
        """Return both guarantees of the client with the most releases.

        In open order its rounds count as the smallest ones.
        """
        if server.trust is not Trust.LOCAL:
            reason = f"shuffling is accounted beside local trust, not {server.trust.value}"
            return GuaranteePair(server, None, reason=reason)
        if server.unit is not Unit.CLIENT:
            reason = "shuffling is accounted for clients, not for single samples"
            return GuaranteePair(server, None, reason=reason)
        known = [shuffle for shuffle in self._shuffles if shuffle.arrived]
        if not self.secret:
            smallest = sorted(known, key=lambda shuffle: shuffle.crowd)
            known = smallest[: check_int(releases, "releases", 0)]
        if not known:
            return GuaranteePair(server, None, reason="no release has arrived yet")
        *before, last = [shuffle.crowd for shuffle in known]
        place_before, size_before = level(self._first, min(before, default=self._first))
        place_last, size_last = level(self._first, last)
        count = len(known)
        places = (count, place_before + 1, place_last + 1)
        share = server.delta / math.prod(place * (place + 1) for place in places)
        account = Account(Target(math.inf, share, server.adjacency, trust=Trust.SHUFFLED))
        try:
            if before:
                cost = shuffled_privacy(mechanism, server.adjacency, size_before)
                account = account.spend(cost, count - 1)
            account = account.spend(shuffled_privacy(mechanism, server.adjacency, size_last))
        except QuietbitError as error:
            reason = str(error).rstrip(".")
            return GuaranteePair(server, None, reason=reason[0].lower() + reason[1:])
        result = Guarantee(
            account.epsilon(), server.delta, Unit.CLIENT, server.adjacency, Trust.SHUFFLED
        )
        leavers = sum(shuffle.leavers for shuffle in known)
        return GuaranteePair(
            server, result, min([*before, last]), count, self.secret, leavers=leavers
        )
