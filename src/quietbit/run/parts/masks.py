"""Masked sums: the server sees the sum of all clients' codes, and no client's.

Idea     keys and shares are asked for while a round is configured, masked vectors are the round's
         train replies, and lists are confirmed and unmasking asked for when they have arrived. Each
         step asks those who are still there, takes in what is complete, and notes who is gone and
         why. Below the threshold the round fails closed: no further step is asked, nothing is
         unmasked, and there is no mean.
Symbols  t: threshold, the fewest clients of a sum; k: honest clients that a sum is priced at.
Source   Bonawitz et al. (CCS 2017), Figure 4; `quietbit.secagg`.
"""

from __future__ import annotations

from typing import ClassVar, final

from attrs import frozen

from quietbit.errors import require
from quietbit.run.section import Real, Section, Whole, Word, choice
from quietbit.secagg.plan import ServerModel
from quietbit.target import MOST_CLIENTS

__all__ = ["Masks"]

TIMEOUT = 600.0
_clients = Whole(2, MOST_CLIENTS)


@final
@frozen
class Masks(Section):
    """``[masks]``: releases are summed behind masks, and priced for ``honest`` clients that do not collude.

    A sum needs at least ``threshold`` clients. ``server`` says what the server may do: ``active``,
    lie (nodes have identities); ``honest-but-curious``, follow the protocol. ``neighbours`` are the
    clients that each deals with, and ``share_threshold`` of them recover its secrets. A simulation
    sums its cohort, and needs no field.
    """

    title: ClassVar[str] = "masks"

    threshold: int | None = choice(_clients)
    server: str | None = choice(Word(*(model.value for model in ServerModel)))
    honest: int | None = choice(_clients)
    neighbours: int | None = choice(_clients)
    share_threshold: int | None = choice(Whole(2))
    timeout: float = choice(Real(), TIMEOUT)

    def check(self) -> None:
        """Refuse neighbours without a share threshold, the reverse, and more honest clients than a sum has."""
        neighbours = self.neighbours
        shares = self.share_threshold
        rule = "given beside masks.share_threshold"
        require(shares is None or neighbours is not None, "masks.neighbours", neighbours, rule)
        rule = "given beside masks.neighbours, and at most one more than they are"
        fits = neighbours is None or (shares is not None and shares <= neighbours + 1)
        require(fits, "masks.share_threshold", shares, rule)
        if self.threshold is not None and self.honest is not None:
            rule = f"at most {self.threshold}, the threshold"
            require(self.honest <= self.threshold, "masks.honest", self.honest, rule)

    @property
    def active(self) -> bool:
        """Whether sums are secret from a malicious server."""
        return self.server == ServerModel.ACTIVE.value
