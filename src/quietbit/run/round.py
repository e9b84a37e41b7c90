"""One round of a run on its server, from the first request to the last reply.

Idea     a release is taken in only if it is the first of a node that was asked, made for this run
         and this round, by this mechanism, complete to its last bit; then it counts as one,
         whatever it says. Everything else becomes a `Note` of the report, and the round goes on. In
         the account every release counts that came, taken in or not. An answer to an evaluation is
         a release like any other. What a part asks of some nodes in place of an update is a round
         beside this one (`beside`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, TypeVar, final

from attrs import define, field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import InvalidPayload, Outlier, QuietbitError, lines_of, one_line
from quietbit.mechanism.base import Answers, Mechanism
from quietbit.node.refusal import Reason, Refusal
from quietbit.node.request import VECTOR, Framed
from quietbit.run.layout import ModelLayout
from quietbit.run.messages import (
    CRASHED,
    Asked,
    BatchFault,
    Node,
    Reply,
    join_pieces,
    pieces_of,
)
from quietbit.run.part import Part
from quietbit.run.record import Counts, Note, Outcome, RoundReport
from quietbit.run.request import request_record
from quietbit.run.terms import Terms
from quietbit.wire.downlink import ServerStep
from quietbit.wire.uplink import Aggregator, Uplink

__all__ = ["PASSED_NO_GATE", "Model", "Round", "note_names"]

PASSED_NO_GATE = "none of it is used, and no more is asked."
MOST_NAMES = 100  # of numbers that owners let out
Result = TypeVar("Result")


@final
@frozen(eq=False)
class Model:
    """The model of a round: its arrays, their layout, and the engine's step on a mean.

    ``step`` is None where the engine does something else with a mean, which ``engine`` names.
    """

    arrays: Mapping[str, Any]
    layout: ModelLayout
    step: ServerStep | None = None
    engine: str = ""

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, Any],
        plan: Terms,
        step: ServerStep | None = None,
        engine: str = "",
    ) -> Model:
        """Read the layout of arrays under a plan; refuse those that cannot be learnt."""
        return cls(arrays, ModelLayout.of(arrays, plan.local_arrays), step, engine)

    def stepped(self, mean: FloatVector) -> dict[str, Any]:
        """Return the learnt arrays less the mean."""
        return self.layout.stepped(self.arrays, mean)


@define(eq=False, kw_only=True)
class Round:
    """One round of requests and replies, and the mean of the releases that are valid."""

    run: int
    number: int
    mechanism: Mechanism
    counts: defaultdict[Node, Counts]  # of all nodes, in the run so far
    parts: tuple[Part, ...] = ()
    section: str = ""  # of the part that asks for something else than an update
    model: Model | None = None
    name_of: Callable[[Any], int] = int  # what frames call a node
    unprotected: set[Node] = field(factory=set)  # nodes that sent what no gate lets out, in the run
    numbers: set[str] = field(factory=set)  # names of what owners let out as it is, in the run
    request: dict[str, Any] = field(repr=False)  # which mechanism is asked for
    channel: Uplink | None = field(default=None, repr=False)  # of an earlier round, to use again
    beside: list[Round] = field(factory=list, init=False)
    skipped: bool | None = field(default=None, init=False)  # whether the model stayed, once known
    uplink: int = field(default=0, init=False)
    downlink: int = field(default=0, init=False)
    notes: list[Note] = field(factory=list, init=False)
    answered: set[Any] = field(factory=set, init=False)  # nodes whose release was taken in
    needing: set[Node] = field(factory=set, init=False)  # nodes that need the full model next
    faults: list[BatchFault] = field(factory=list, init=False)  # of apps of simulated nodes
    crashes: list[str] = field(factory=list, init=False)  # tracebacks, of simulated nodes
    weights: list[float] = field(factory=list, init=False)
    _asked: set[Node] = field(factory=set, init=False)
    _declined: set[Node] = field(factory=set, init=False)
    _spoilt: set[Node] = field(factory=set, init=False)  # nodes of which an answer was refused
    _came: dict[Node, set[bytes]] = field(factory=dict, init=False)  # digests of releases
    _metrics: dict[str, list[float]] = field(factory=dict, init=False)
    _refused: int = field(default=0, init=False)
    _unprotected: int = field(default=0, init=False)
    _outliers: int = field(default=0, init=False)
    _payloads: int = field(default=0, init=False)
    _uplink: Uplink = field(init=False)
    _aggregator: Aggregator = field(init=False)

    @request.default
    def _described(self) -> dict[str, Any]:
        return request_record(self.number, self.mechanism)

    def __attrs_post_init__(self) -> None:
        """Start an empty mean."""
        self._uplink = self.channel or Uplink(self.mechanism)
        self._aggregator = self._uplink.aggregator()

    def reusable(self) -> dict[str, Any]:
        """Return the fields that later rounds of the same mechanism need not make again."""
        return {"request": self.request, "channel": self._uplink}

    def side(self, mechanism: Mechanism, section: str) -> Round:
        """Return a round beside this one, in which some nodes are asked for something else."""
        side = Round(
            run=self.run,
            number=self.number,
            mechanism=mechanism,
            counts=self.counts,
            parts=self.parts,
            section=section,
            name_of=self.name_of,
            unprotected=self.unprotected,
            numbers=self.numbers,
        )
        self.beside.append(side)
        return side

    def sent(self, asked: Asked) -> None:
        """Note a request before it is sent; one that is sent again is the same request."""
        self.downlink += asked.size
        for part in self.parts:
            part.sent(self, asked)
        if asked.node not in self._asked:
            self._asked.add(asked.node)
            self.counts[asked.node].asked += 1

    def arrived(self, reply: Reply) -> None:
        """Note a reply that came, before it is read."""
        self.uplink += reply.size
        for part in reversed(self.parts):
            part.take(self, reply)

    def take(self, reply: Reply) -> bool:
        """Add the release of a reply to the mean; return False, with a note, without one."""
        for side in self.beside:
            if side.asked(reply.node):
                return side.take(reply)
        return self.read(reply, self._add) is not None

    def decode(self, reply: Reply, *, add: bool = False) -> tuple[FloatVector, float] | None:
        """Return the estimate that one release is by itself, and its weight; None without one.

        With ``add`` it is in the mean, too.
        """

        def decoded(payload: Any, weight: float) -> tuple[FloatVector, float]:
            estimate = self._uplink.receive([payload])
            if add:
                self._aggregator.add(payload, weight)
            return estimate, weight

        return self.read(reply, lambda reply: self._valid(reply, decoded))

    def read(self, reply: Reply, read: Callable[[Reply], Result], step: str = "") -> Result | None:
        """Return what ``read`` makes of a reply; None, with a note, where it refuses it."""
        if reply.size:
            self.arrived(reply)
        if reply.refusal is not None:
            # An engine's error may hide a release; only a node's own word means that there is none.
            note = self.silent if reply.noted else self.decline
            note(reply.node, reply.refusal, step)
            return None
        if reply.unprotected:
            self.unprotect(reply.node, step)
            return None
        self.came(reply.node, pieces_of(reply.records))
        try:
            return read(reply)
        except QuietbitError as error:
            self.refuse(reply.node, error, step)
            return None

    def decline(self, node: Node, reason: object, step: str = "") -> None:
        """Note that a node says it released nothing."""
        self._note(node, Outcome.DECLINED, reason, step)
        if self.waits_for(node, step):
            self._declined.add(node)
            if Refusal.read_reason(str(reason)) is Reason.NEEDS_MODEL:
                self.needing.add(node)
            if step in ("", VECTOR) and node not in self._came:
                self.counts[node].declined += 1

    def silent(self, node: Node, reason: object, step: str = "") -> None:
        """Note why there is no answer: a release may have been made, and counts."""
        self._note(node, Outcome.SILENT, reason, step)

    def refuse(self, node: Node, reason: object, step: str = "") -> None:
        """Note an answer that is not what was asked for."""
        self._note(node, Outcome.REFUSED, reason, step)
        self._refused += 1
        if self.asked(node):
            self._spoilt.add(node)
            if step in ("", VECTOR):
                self.counts[node].refused += 1

    def unprotect(self, node: Node, step: str = "") -> None:
        """Note a reply that holds what no gate lets out: the run has no guarantee from here on."""
        self._note(node, Outcome.UNPROTECTED, PASSED_NO_GATE, step)
        self._spoilt.add(node)
        self._refused += 1
        self._unprotected += 1
        self.unprotected.add(node)
        if step in ("", VECTOR):
            self.counts[node].refused += 1

    def came(self, node: Node, release: bytes) -> None:
        """Count what may be a release, by a node that was asked or not.

        The first one is counted with the request, unless the node said that it made none; the same
        bytes are the same release.
        """
        if not release:
            return
        earlier = self._came.setdefault(node, set())
        digest = blake2b(release, digest_size=16).digest()
        counted = node in self._asked and node not in self._declined and not earlier
        if not counted and digest not in earlier:
            self.counts[node].extra += 1
        earlier.add(digest)

    def asked(self, node: Node) -> bool:
        """Return whether a node is one of those that were asked."""
        return node in self._asked

    def waits_for(self, node: Node, step: str = "") -> bool:
        """Return whether a node was asked for a step and has said nothing yet."""
        return self.asked(node) and node not in self.answered and node not in self._declined

    def mean(self) -> FloatVector | None:
        """Return the mean of the releases that were added; None where there is none."""
        if not self.answered:
            return None
        mean: FloatVector = self._aggregator.mean()
        return mean

    def kept(self) -> FloatVector | None:
        """Return the mean on the rows that all nodes keep; None where there is none."""
        if not self.answered:
            return None
        return self._aggregator.kept()

    def lift(self, mean: FloatVector) -> FloatVector:
        """Return the mean of the model's numbers that a mean of releases stands for."""
        for part in reversed(self.parts):
            mean = part.lift(mean)
        return mean

    def answers(self) -> Answers | None:
        """Return what nodes answered about the clip; None where nobody did."""
        return self._aggregator.answers()

    def metrics(self) -> dict[str, float]:
        """Return the plain mean of every number that nodes let out, over the nodes that did."""
        names = sorted(self._metrics)
        return {name: sum(self._metrics[name]) / len(self._metrics[name]) for name in names}

    def failed(self) -> set[Any]:
        """Return the nodes that were asked, and neither answered nor declined."""
        return self._asked - self.answered - self._declined - self._spoilt

    def report(self) -> RoundReport:
        """Return the counts so far."""
        return RoundReport(
            self.number,
            len(self._asked),
            len(self.answered),
            len(self._declined),
            len(self.failed()),
            self._refused,
            not self.answered,
            self._payloads,
            self.uplink,
            self.downlink,
            tuple(self.notes),
            resyncs=len(self.needing),
            crashed=len(self.crashes) + len(self.faults),
            outliers=self._outliers,
            unprotected=self._unprotected,
        )

    def note_extras(self, reply: Reply) -> None:
        """Note the numbers beside a valid release, and of a simulated node why its app crashed."""
        for name, value in reply.metrics.items():
            self._metrics.setdefault(name, []).append(value)
        note_names(self.numbers, reply.metrics)
        crash = reply.records.get(CRASHED)
        if crash is not None and crash.get("traceback") is not None:
            text = str(crash["traceback"])
            fault = BatchFault.told(text)
            if fault is None:
                self.crashes.append(lines_of(text))
            else:
                self.faults.append(fault)

    def _add(self, reply: Reply) -> bool:
        self._valid(reply, self._aggregator.add)
        return True

    def _valid(self, reply: Reply, use: Callable[[Any, float], Result]) -> Result:
        """Return what ``use`` makes of the first release of a node that was asked, and count it."""
        node = reply.node
        if node not in self._asked:
            raise InvalidPayload("it was not asked in this round.")
        if node in self.answered or node in self._declined:
            raise InvalidPayload("it has answered in this round already.")
        release = Framed.from_bytes(join_pieces(reply.records))
        weight = 1.0
        for part in self.parts:
            weight *= part.weight(self, reply)
        release.expect(self.run, self.number, self.name_of(node))
        try:
            result = use(release.payload, weight)
        except Outlier:
            self._outliers += 1
            raise
        self.weights.append(weight)
        self.count(node, release.payload)
        self.note_extras(reply)
        return result

    def not_taken(self, error: QuietbitError) -> None:
        """Note that the model stays as it was, because a step would have spoilt it."""
        self.notes.append(Note(f"the step was not taken: {error}"))

    def count(self, node: Node, payload: bytes | memoryview) -> None:
        """Count a release that was taken in."""
        self.answered.add(node)
        self.counts[node].answered += 1
        self._payloads += len(payload)

    def _note(self, node: Node, outcome: Outcome, reason: object, step: str) -> None:
        """Add a note, whose text may be a stranger's words."""
        self.notes.append(Note(one_line(reason), node, outcome, step))


def note_names(known: set[str], names: Iterable[str]) -> None:
    """Add names of numbers that owners let out to those that are known, up to a limit."""
    known.update([name for name in names if name not in known][: MOST_NAMES - len(known)])
