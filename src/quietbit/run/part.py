"""A part: one capability of a run, as its server, its clients and its report see it.

Idea     a capability is a room: one file with a section of the plan and its parts. A run calls the
         server's parts in order on the way out (`prepare`, `ask`, `sent`) and in reverse on the way
         in (`take`, `lift`, `advance`, `close`). A client's turn makes its parts anew for every
         message, and calls them in order on the way in (`read`, `step`, `accept`, before anything
         is noted) and in reverse on the way out (`answer`, after the app). Every hook has an empty
         default, so that a part says what it does and nothing else. Adapters carry requests and
         replies and name nodes; they call no part themselves.
Source   pfl-research's postprocessors, which run forward on a client and backward on a server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, final

from attrs import define, frozen

from quietbit._typing import FloatVector
from quietbit.mechanism.base import Mechanism
from quietbit.node.gatekeeper import AcceptedRequest, Gate
from quietbit.node.request import Request
from quietbit.privacy.account import Account
from quietbit.run.layout import ModelLayout
from quietbit.run.messages import Asked, Node, Reply
from quietbit.run.record import Counts

__all__ = [
    "AppAnswer",
    "Arrival",
    "OpenRound",
    "Part",
    "Step",
    "Transport",
    "lifted",
    "released_dimension",
]


class OpenRound(Protocol):
    """What a part may know of a round in any adapter: its number, from 1 on."""

    @property
    def number(self) -> int:
        """The number of the round."""
        ...


@final
@frozen
class Step:
    """The learnt arrays after a round, None where the model stays as it was.

    ``final``: nodes take the same step themselves, and the engine must not take another.
    """

    arrays: Mapping[str, Any] | None
    final: bool = False


class Transport(Protocol):
    """How an engine carries requests that are not the round's own, as the steps of a masked sum."""

    def exchange(self, requests: list[Asked], timeout: float) -> list[Reply]:
        """Send requests, set their sizes, wait, and return the replies that came in time."""
        ...


@final
@define(eq=False)
class Arrival:
    """A server's message on a node, in the words of no engine.

    ``records`` are quietbit's own, by their names in `quietbit.run.messages`; ``arrays`` is the
    model and ``kind`` what the engine calls it. A part may put another model in its place.
    ``start`` returns the model that the app ships with, and its kind. ``parts`` are those of the
    turn.
    """

    records: Mapping[str, Any]
    arrays: Mapping[str, Any]
    kind: str = ""
    start: Callable[[], tuple[str, Mapping[str, Any]]] | None = None
    replayed: bool = False  # whether the arrays are not those that came
    parts: tuple[Part, ...] = ()


class AppAnswer(Protocol):
    """What an app answered; whatever it does when it is read, it does in the app's own thread."""

    def update(self, layout: ModelLayout, received: list[FloatVector]) -> list[FloatVector]:
        """Return *received minus trained* of every learnt array."""
        ...

    def metric(self, name: str) -> Any:
        """Return the app's metric of this name; one that is missing is refused."""
        ...


class Part:
    """One capability of a run; ``section`` is its name in a plan and in the report.

    A client makes a part where the plan has its section, or where it has none. ``hands_over`` says
    whether its gate has the update before the app answers.

    On the server, ``in_columns`` says whether its records are columns of a `RoundReport`, and not
    apart;
    ``takes_step`` whether nodes take the steps of a run themselves (`Step.final`). ``counts`` are
    releases of nodes besides updates, which `spend` adds to their cost.
    """

    section: ClassVar[str] = ""
    hands_over: ClassVar[bool] = False
    in_columns: ClassVar[bool] = False
    takes_step: bool = False
    counts: Mapping[Node, Counts] = MappingProxyType({})

    def dimension(self, dimension: int) -> int:
        """Return the numbers of a release, of a model with ``dimension``; on both sides."""
        return dimension

    def prepare(self, mechanism: Mechanism, number: int) -> Mechanism:
        """Return the mechanism of round ``number``; the server calls it before anybody is asked."""
        return mechanism

    def open(self, **fields: Any) -> Any:
        """Return the round with these fields, where the part has rounds of its own kind."""
        return None

    def ask(self, round: Any, requests: list[Asked], transport: Transport | None) -> None:
        """Complete requests that are sent together, or take some out; on the server."""

    def sent(self, round: OpenRound, asked: Asked) -> None:
        """Note a message that is about to be sent to a node; on the server."""

    def read(self, records: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of the request that this part reads from a message; on the client."""
        return {}

    def step(self, request: Request, gate: Gate) -> bytes | None:
        """Return the answer to a request that is answered without the app; on the client."""
        return None

    def accept(self, request: Request, arrival: Arrival, gate: Gate) -> None:
        """Refuse a request, or complete what arrived; on the client, before anything is noted."""

    def check_handed_over(self, accepted: AcceptedRequest) -> None:
        """Raise `UnusedBatch` where the gate has nothing of the app; on the client, after it."""

    def answer(self, app: AppAnswer, update: Any) -> Any:
        """Return what is released of the app's answer; on the client, in the app's own thread.

        ``update`` is what the parts after this one have made of the answer, None at first.
        """
        return update

    def project(self, update: FloatVector) -> FloatVector:
        """Return what the mechanism gets of an update, or of a table's rows; on the client."""
        return update

    def lift(self, mean: FloatVector) -> FloatVector:
        """Return the mean of the model's numbers; wherever a step is taken, in reverse order."""
        return mean

    def take(self, round: OpenRound, reply: Reply) -> None:
        """Note a reply that came; on the server, in reverse order of the parts."""

    def weight(self, round: Any, reply: Reply) -> float:
        """Return the weight of a release in the mean; the weights of all parts are multiplied."""
        return 1.0

    def advance(self, round: Any) -> Step | None:
        """Take the step of a round; return None to leave it to other parts and the plain mean."""
        return None

    def close(self, round: OpenRound) -> Mapping[str, Any]:
        """Return what the report says about a round that is over; an empty record is left out."""
        return {}

    def spend(self, account: Account, releases: int) -> tuple[Account, float]:
        """Add the cost of releases besides updates to an account; return an epsilon apart."""
        return account, 0.0


def released_dimension(parts: tuple[Part, ...], dimension: int) -> int:
    """Return the numbers of a release, of a model with ``dimension``."""
    for part in parts:
        dimension = part.dimension(dimension)
    return dimension


def lifted(parts: tuple[Part, ...], mean: FloatVector) -> FloatVector:
    """Return the mean of the model's numbers, from that of the releases."""
    for part in reversed(parts):
        mean = part.lift(mean)
    return mean
