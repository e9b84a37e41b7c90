"""Among whom releases were hidden in a run on an engine, and what that is worth against those who see the models alone.

Idea     the models are computed from means, so a release is one of those that arrived in its round, whoever chose the
         nodes. With a secret order the server asks every node once per epoch, in an order of the operating system's,
         and all rounds of an epoch together are one shuffle. Counted are releases that arrived, and nothing else.
Symbols  crowd: releases of one shuffle that arrived; epoch: as many rounds as one order lasts.
Source   docs/theory/shuffling.md. A node that does not answer is left out of the crowd; that is a price if whether it
         answers does not depend on when in the epoch it is asked, which is a hypothesis and stated there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from quietbit.errors import QuietbitError, check_int, require
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.shuffled import shuffled_privacy
from quietbit.plan.participation import secret_order
from quietbit.privacy.guarantee import Guarantee, Trust, Unit
from quietbit.privacy.ledger import Ledger
from quietbit.privacy.observers import GuaranteePair

__all__ = ["Crowds", "rounded_down"]

KEPT = 8  # crowds are rounded down to one of so many numbers per power of two: each has an account of its own


def rounded_down(crowd: int) -> int:
    """The crowd, or a little less: three binary digits after the first.

    >>> [rounded_down(crowd) for crowd in (1, 15, 17, 1000, 60_000)]
    [1, 15, 16, 960, 57344]
    """
    spare = max(0, crowd.bit_length() - KEPT.bit_length())
    return crowd >> spare << spare


@final
@dataclass(slots=True)
class Crowds:
    """The shuffles of a run so far; ``secret``: whether nodes are asked in a secret order."""

    secret: bool = False
    _left: list[int] = field(default_factory=list)  # nodes that this epoch has not asked yet, in their order
    _crowds: list[int] = field(default_factory=list)  # releases of every shuffle

    def cohort(self, nodes: Iterable[int], size: int) -> list[int]:
        """Whom to ask next: nobody twice in an epoch; where too few are left of one, the next begins with ``nodes``."""
        require(self.secret, "secret", self.secret, "True to choose nodes")
        size = check_int(size, "number of nodes to ask", 0)
        if size and len(self._left) < size:
            known = sorted(set(nodes))
            require(len(known) >= size, "number of nodes", len(known), f"at least {size}, which are to be asked")
            self._left = [known[place] for place in secret_order(len(known))]
            self._crowds.append(0)
        chosen, self._left = self._left[:size], self._left[size:]
        return chosen

    def record(self, arrived: int) -> None:
        """A round is over, and a mean of so many releases is public; none, and nothing is."""
        arrived = check_int(arrived, "number of releases", 0)
        if not self.secret:
            self._crowds += [arrived] if arrived else []
        elif self._crowds:
            self._crowds[-1] += arrived

    def observers(self, server: Guarantee, mechanism: Mechanism, releases: int) -> GuaranteePair:
        """Both guarantees, for the client with the most releases; in open order its rounds count as the smallest."""
        if server.trust is not Trust.LOCAL:
            reason = f"shuffling is accounted beside local trust, not {server.trust.value}"
            return GuaranteePair(server, None, reason=reason)
        known = sorted(crowd for crowd in self._crowds if crowd)
        counted = known if self.secret else known[: check_int(releases, "releases", 0)]
        if not counted:
            return GuaranteePair(server, None, reason="no release has arrived yet")
        ledger = Ledger(Unit.CLIENT, server.adjacency, Trust.SHUFFLED)
        try:
            for crowd in sorted({rounded_down(crowd) for crowd in counted}):
                times = sum(rounded_down(other) == crowd for other in counted)
                ledger = ledger.record(shuffled_privacy(mechanism, server.adjacency, crowd), times)
        except QuietbitError as error:
            reason = str(error).rstrip(".")
            return GuaranteePair(server, None, reason=reason[0].lower() + reason[1:])
        result = ledger.guarantee(server.delta, adaptive=False)  # one mechanism, fixed before the run
        return GuaranteePair(server, result, counted[0], len(counted), self.secret)
