"""A part: one capability of a run, as its server, its clients and its report see it.

Idea     a capability is a room: one file with a section of the plan and a part. A run calls its
         parts in order on the way out (`prepare`, `ask`, and `accept` and `project` on a client)
         and in reverse on the way in (`take`, `lift`, `close`). Every hook has an empty default, so that a part says what
         it does and nothing else. Adapters carry messages and name nodes; they call no part
         themselves.
Source   pfl-research's postprocessors, which run forward on a client and backward on a server.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, final

from attrs import frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
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

    def dimension(self, dimension: int) -> int:
        """Return the numbers of a release, of a model with ``dimension``; on both sides, before `prepare`."""
        return dimension

    def prepare(self, mechanism: Mechanism, number: int) -> Mechanism:
        """Return the mechanism of round ``number``; the server calls it before anybody is asked."""
        return mechanism

    def ask(self, round: OpenRound, asked: Asked) -> None:
        """Note a node that is about to be asked; on the server."""

    def enclose(self, node: Node) -> Mapping[str, NDArray[Any]]:
        """Return arrays that go beside the request to a node, by name; on the server."""
        return {}

    def unpack(
        self,
        enclosed: Mapping[str, NDArray[Any]],
        store: MutableMapping[str, bytes] | None,
        run: int,
    ) -> None:
        """Read what came beside a request; on the client, before `accept`. ``store`` keeps bytes by name."""

    def accept(self, request: Request, plan: Plan, names: tuple[str, ...]) -> None:
        """Refuse a request on the client, before the ledger is touched; ``names`` are numbers that may leave."""

    def project(self, update: FloatVector) -> FloatVector:
        """Return what the mechanism gets of an update, or of every row of a table; on the client."""
        return update

    def lift(self, mean: FloatVector) -> FloatVector:
        """Return the mean of the model's numbers; wherever a step is taken, in reverse order of the parts."""
        return mean

    def take(self, round: OpenRound, reply: Reply) -> None:
        """Note a reply that came; on the server, in reverse order of the parts."""

    def close(self, round: OpenRound) -> Mapping[str, Any]:
        """Return what the report says about a round that is over; an empty record is left out."""
        return {}
