"""A part: one capability of a run, as its server, its clients and its report see it.

Idea     a capability is a room: one file with a section of the plan and a part. A run calls its
         parts in order on the way out (`prepare`, `ask`, and `accept` on a client) and in reverse
         on the way in (`take`, `close`). Every hook has an empty default, so that a part says what
         it does and nothing else. Adapters carry messages and name nodes; they call no part
         themselves.
Source   pfl-research's postprocessors, which run forward on a client and backward on a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, final

from attrs import frozen

from quietbit.mechanism.base import Mechanism

if TYPE_CHECKING:
    from quietbit.node.request import Request
    from quietbit.run.plan import Plan

__all__ = ["Asked", "Node", "OpenRound", "Part", "Reply"]

Node: TypeAlias = int | str


class OpenRound(Protocol):
    """What a part may know of a round in any adapter: its number, from 1 on."""

    @property
    def number(self) -> int:
        """The number of the round."""
        ...


@final
@frozen
class Asked:
    """A node that is asked, and the bytes of the message that goes to it."""

    node: Node
    size: int


@final
@frozen
class Reply:
    """A node that replied, and the bytes of the message that came; whether it is valid is decided afterwards."""

    node: Node
    size: int


class Part:
    """One capability of a run; ``section`` is its name in a plan and in the report."""

    section: ClassVar[str] = ""

    def prepare(self, mechanism: Mechanism, number: int) -> Mechanism:
        """Return the mechanism of round ``number``; the server calls it before anybody is asked."""
        return mechanism

    def ask(self, round: OpenRound, asked: Asked) -> None:
        """Note a node that is about to be asked; on the server."""

    def accept(self, request: Request, plan: Plan, names: tuple[str, ...]) -> None:
        """Refuse a request on the client, before the ledger is touched; ``names`` are numbers that may leave."""

    def take(self, round: OpenRound, reply: Reply) -> None:
        """Note a reply that came; on the server, in reverse order of the parts."""

    def close(self, round: OpenRound) -> Mapping[str, Any]:
        """Return what the report says about a round that is over; an empty record is left out."""
        return {}
