"""A part: one capability of a run, as its server, its clients and its report see it.

Idea     a capability is a room: one file with a section of the plan and its parts. A round calls
         the server's parts in order on the way out (`prepare`, `begin`, `aside`, `ask`) and in
         reverse on the way in (`weight`, `take`, `lift`, `close`). A client's turn makes
         its parts anew for every message, and calls them in order on the way in (`read`, `accept`,
         before anything is noted) and in reverse on the way out (`answer`, after the app). Every
         hook has an empty default, so that a part says what it does and nothing else. A hook takes
         values and returns values: no part does I/O, and none holds a round.
Source   pfl-research's postprocessors, which run forward on a client and backward on a server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeAlias, final

from attrs import define, field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import QuietbitError
from quietbit.federation.layout import ModelLayout
from quietbit.federation.messages import Asked, Node, Release, Reply
from quietbit.federation.record import Counts, RoundReport
from quietbit.mechanism.base import Answers, Mechanism
from quietbit.node.request import ProposedMechanism, Request
from quietbit.wire.downlink import ServerStep

__all__ = [
    "AppAnswer",
    "Arrival",
    "Aside",
    "Closed",
    "Model",
    "Part",
    "Scope",
    "Step",
    "begun",
    "lifted",
    "released_dimension",
]


NodesStep: TypeAlias = Callable[[FloatVector, Mechanism, int], Mapping[str, Any]]


@final
@frozen(eq=False)
class Model:
    """The model of a round: its arrays, their layout, and the engine's step on a mean.

    ``step`` is None where the engine does something else with a mean, which ``engine`` names.
    ``nodes_step`` takes the step as nodes do, where they take it themselves (`Step.final`): from
    the mean on the rows that all nodes keep, the round's mechanism and its number.
    """

    arrays: Mapping[str, Any]
    layout: ModelLayout
    step: ServerStep | None = None
    engine: str = ""
    nodes_step: NodesStep | None = None

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, Any],
        local_arrays: str = "",
        step: ServerStep | None = None,
        engine: str = "",
    ) -> Model:
        """Read the layout of arrays; refuse those that cannot be learnt, but for local ones."""
        return cls(arrays, ModelLayout.of(arrays, local_arrays), step, engine)

    def stepped(self, mean: FloatVector) -> dict[str, Any]:
        """Return the learnt arrays less the mean."""
        return self.layout.stepped(self.arrays, mean)


def _same(mean: FloatVector) -> FloatVector:
    return mean


@final
@frozen(eq=False)
class Scope:
    """What parts may know of a round: its run, its number from 1 on, its mechanism and its model.

    ``clip`` is the largest norm of what is released, and the unit of what the mechanism decodes.
    ``section`` is that of the part that asks for something else than an update. ``name_of`` returns
    what frames call a node, and ``lift`` the mean of the model's numbers.
    """

    run: int
    number: int
    released: Mechanism | None  # None in a run without privacy
    model: Model | None = None
    clip: float = 1.0
    section: str = ""
    name_of: Callable[[Any], int] = int
    lift: Callable[[FloatVector], FloatVector] = _same

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of every release; a run without privacy has none."""
        if self.released is None:
            raise QuietbitError("A run without privacy has no mechanism.")
        return self.released

    @property
    def nodes_step(self) -> NodesStep | None:
        """How nodes take the step of the round themselves; None where the engine takes it."""
        return None if self.model is None else self.model.nodes_step


@final
@frozen(eq=False)
class Aside:
    """Nodes that are asked for something else in the place of what the round asks for.

    They answer in a round of their own beside it, with this mechanism.
    """

    section: str
    mechanism: Mechanism
    nodes: frozenset[Node]


@final
@frozen(eq=False)
class Closed:
    """A round that is over: its counts, who is in its mean, and who needs the full model next."""

    scope: Scope
    report: RoundReport
    answered: frozenset[Node]
    needing: frozenset[Node]
    weights: tuple[float, ...]
    answers: Answers | None = None  # about the clip
    side_rounds: tuple[Closed, ...] = ()


@final
@frozen
class Step:
    """The learnt arrays after a round, None where the model stays as it was.

    ``final``: nodes take the same step themselves, and the engine must not take another.
    """

    arrays: Mapping[str, Any] | None
    final: bool = False


@final
@define(eq=False)
class Arrival:
    """A server's message on a node, in the words of no engine.

    ``records`` are quietbit's own, by their names in `federation.messages`; ``arrays`` is the
    model and ``kind`` what the engine calls it. A part may put another model in its place.
    ``start`` returns the model that the app ships with, and its kind. ``parts`` are those of the
    turn, ``store`` keeps bytes from round to round, ``metrics`` names what the owner lets out as it
    is, and ``proposed`` is the request's mechanism, once the run is allowed.
    """

    records: Mapping[str, Any]
    arrays: Mapping[str, Any]
    kind: str = ""
    start: Callable[[], tuple[str, Mapping[str, Any]]] | None = None
    replayed: bool = False  # whether the arrays are not those that came
    parts: tuple[Part, ...] = ()
    store: MutableMapping[str, bytes] | None = None
    metrics: tuple[str, ...] = ()
    proposed: ProposedMechanism = field(init=False)


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

    A client makes a part where the plan has its section, or where it has none.

    On the server, ``in_columns`` says whether its records are columns of a `RoundReport`, and not
    apart.
    ``counts`` are releases of nodes besides updates, whose cost `spends` says, beside their cost.
    """

    section: ClassVar[str] = ""
    in_columns: ClassVar[bool] = False
    counts: Mapping[Node, Counts] = MappingProxyType({})

    def dimension(self, dimension: int) -> int:
        """Return the numbers of a release, of a model with ``dimension``; on both sides."""
        return dimension

    def prepare(self, scope: Scope) -> Scope:
        """Return what a round of updates is to be, at which clip and model; on the server."""
        return scope

    def begin(self, scope: Scope) -> None:
        """Note a round of updates that begins; on the server, before anybody is asked."""

    def aside(self, scope: Scope, nodes: list[Node]) -> Aside | None:
        """Return which nodes are asked for something else; on the server."""
        return None

    def ask(self, scope: Scope, requests: list[Asked]) -> None:
        """Complete the records of requests that are sent together; on the server."""

    def read(self, records: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of the request that this part reads from a message; on the client."""
        return {}

    def accept(self, request: Request, arrival: Arrival) -> None:
        """Refuse a request, or complete what arrived; on the client, before anything is noted."""

    def handed_over(self, drawn: int | None, added: int) -> bool:
        """Return whether the gate has the update, and not the app's answer; on the client.

        ``drawn`` samples were drawn, None without a draw, of which ``added`` have a gradient: where
        the gate has nothing, raise `UnusedBatch`.
        """
        return False

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

    def weight(self, scope: Scope, reply: Reply) -> float:
        """Return the weight of a release in the mean; the weights of all parts are multiplied."""
        return 1.0

    def take(self, scope: Scope, release: Release) -> None:
        """Note a release that is in the mean; on the server, in reverse order of the parts."""

    def close(self, closed: Closed) -> Mapping[str, Any]:
        """Return what the report says about a round that is over; an empty record is left out."""
        return {}

    def spends(self, releases: int) -> float:
        """Return the pure epsilon of releases besides updates."""
        return 0.0


def released_dimension(parts: tuple[Part, ...], dimension: int) -> int:
    """Return the numbers of a release, of a model with ``dimension``."""
    for part in parts:
        dimension = part.dimension(dimension)
    return dimension


def begun(parts: tuple[Part, ...], scope: Scope) -> Scope:
    """Begin a round of updates in all parts; return its scope, as they make it."""
    for part in parts:
        scope = part.prepare(scope)
    for part in parts:
        part.begin(scope)
    return scope


def lifted(parts: tuple[Part, ...], mean: FloatVector) -> FloatVector:
    """Return the mean of the model's numbers, from that of the releases."""
    for part in reversed(parts):
        mean = part.lift(mean)
    return mean
