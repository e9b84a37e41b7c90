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

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, final

from attrs import frozen

from quietbit.errors import check_int, require
from quietbit.node.request import ALONE, VECTOR, SumPart
from quietbit.run.messages import SUM, read_fields
from quietbit.run.part import Part
from quietbit.run.section import Real, Section, Whole, Word, choice
from quietbit.secagg.plan import ServerModel
from quietbit.target import MOST_CLIENTS

if TYPE_CHECKING:
    from quietbit.node.gatekeeper import Gate
    from quietbit.node.request import Request
    from quietbit.run.plan import Plan

__all__ = ["Masking", "Masks"]

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


@final
class Masking(Part):
    """The client's half: what the server asks in one step of a sum; most need no app."""

    section: ClassVar[str] = "masks"

    def __init__(self, plan: Plan) -> None:
        """Keep the sum's terms, to which a node holds the server."""
        self._masks = plan.masks or Masks()

    def read(self, records: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the step of the sum that is asked for; refuse a message without one."""
        masks = self._masks
        step = read_fields(
            records.get(SUM),
            {"version", "step", "clients", "number", "table"},
            "The server's message must carry a step of a masked sum, and does not: make its "
            "strategy a PrivateStrategy with quietbit.masks.",
        )
        part = SumPart(
            step=step["step"],
            clients=step["clients"],
            number=step["number"],
            threshold=check_int(masks.threshold, "quietbit.masks.threshold", 2),
            honest=check_int(masks.honest, "quietbit.masks.honest", 2),
            server=str(masks.server),
            neighbours=masks.neighbours,
            share_threshold=masks.share_threshold,
            table=step["table"],
        )
        return {"sum": part}

    def step(self, request: Request, gate: Gate) -> bytes | None:
        """Answer keys, shares, lists and unmasking; vectors and releases beside the sum need the app."""
        if request.part.step in (VECTOR, ALONE):
            return None
        return gate.step(request)
