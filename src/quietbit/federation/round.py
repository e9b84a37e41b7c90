"""One round of a run on its server: what to ask next, and what became of every reply.

Idea     a round is a state machine without I/O: `next` says what to send now, `take` takes one
         reply at any time, `fail` says that the engine could not go on, `mean` has the result. A
         release is taken in only if it is the first of a node that was asked, made for this run and
         this round, by this mechanism, complete to its last bit; then it counts as one, whatever it
         says. Everything else becomes a `Note` of the report, and the round goes on. Whoever is
         asked is counted before anything is sent. What a part asks of some nodes in place of an
         update is a round beside this one (`beside`), in the same trip. An evaluation is a round
         that takes no step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import Any, final

from attrs import define, evolve, field

from quietbit._typing import FloatVector
from quietbit.errors import InvalidPayload, Outlier, QuietbitError, lines_of, one_line
from quietbit.federation.collectors import Collector, Query
from quietbit.federation.messages import (
    CRASHED,
    RECORD,
    Ask,
    Asked,
    BatchFault,
    Node,
    Release,
    Reply,
    pieces_of,
)
from quietbit.federation.part import Aside, Closed, Model, Part, Scope, Step
from quietbit.federation.record import Counts, Note, Outcome, RoundReport
from quietbit.node.refusal import Reason, Refusal

__all__ = ["PASSED_NO_GATE", "Round"]

PASSED_NO_GATE = "none of it is used, and no more is asked."


@final
@define(eq=False)
class _Standing:
    """What one node was asked in a round, and what came of it."""

    is_member: bool = False  # the round asks it, and none beside it
    asked: bool = False  # for a release
    waiting: bool = False  # for what was asked last
    silent: bool = False  # in an earlier step
    declined: bool = False
    spoilt: bool = False  # an answer was refused
    needs_model: bool = False
    weight: float | None = None  # of its release, where that was taken in
    came: set[bytes] = field(factory=set)  # digests of releases

    @property
    def failed(self) -> bool:
        """Whether it was asked, and neither answered nor declined."""
        heard = self.weight is not None or self.declined or self.spoilt
        return (self.waiting or self.silent) and not heard


@final
@define(eq=False, kw_only=True)
class Round:
    """One round of requests and replies; ``collector`` has the mean of the valid releases."""

    scope: Scope
    collector: Collector
    request: dict[str, Any] = field(repr=False)  # what is asked, beside the model
    counts: defaultdict[Node, Counts]  # of all nodes, in the run so far
    parts: tuple[Part, ...] = ()
    side: Callable[[Aside], Round] | None = None  # makes a round beside this one
    unprotected: set[Node] = field(factory=set)  # nodes that sent what no gate lets out, in the run
    side_rounds: list[Round] = field(factory=list, init=False)
    is_over: bool = field(default=False, init=False)
    skipped: bool | None = field(default=None, init=False)  # whether the model stayed, once known
    uplink: int = field(default=0, init=False)
    downlink: int = field(default=0, init=False)
    notes: list[Note] = field(factory=list, init=False)
    crashes: list[str | BatchFault] = field(factory=list, init=False)  # of simulated nodes' apps
    _given: dict[Node, Asked] = field(factory=dict, init=False)  # requests that are not made yet
    _nodes: defaultdict[Node, _Standing] = field(init=False)
    _metrics: dict[str, list[float]] = field(factory=dict, init=False)
    _outliers: int = field(default=0, init=False)
    _payloads: int = field(default=0, init=False)
    _failed: bool = field(default=False, init=False)
    _query: Query = field(factory=lambda: Query(()), init=False)

    @_nodes.default
    def _nobody(self) -> defaultdict[Node, _Standing]:
        return defaultdict(_Standing)

    @property
    def number(self) -> int:
        """The number of the round, from 1 on."""
        return self.scope.number

    @property
    def model(self) -> Model | None:
        """The model of the round."""
        return self.scope.model

    @property
    def answered(self) -> frozenset[Node]:
        """The nodes whose release was taken in."""
        return self._those(lambda standing: standing.weight is not None)

    def start(self, requests: Iterable[Asked]) -> None:
        """Begin with requests to these nodes; `next` completes them."""
        self._given = {asked.node: asked for asked in requests}
        nodes = self._split(list(self._given))
        self.collector.start(nodes)

    def next(self) -> Ask | None:
        """Return what to send now; None when the round is over. Nothing is sent here."""
        if self.is_over:
            return None
        for standing in self._nodes.values():
            standing.silent |= standing.waiting
            standing.waiting = False
        query = None
        if not self._failed:
            try:
                query = self.collector.next()
            except QuietbitError as error:
                self._fail(error)
        if query is None and any(side._is_pending() for side in self.side_rounds):
            query = Query(())  # those beside this round are asked all the same
        if query is None:
            self.end()
            return None
        self._query = query
        if query.releases:
            return Ask(self.number, tuple(self._for_releases(query)))
        requests = []
        for node in query.nodes:
            self._nodes[node].waiting = True
            own = dict(query.records[node])
            records = {RECORD: self.request}
            asked = Asked(node, records=records, own_records=own, carries_model=False)
            requests.append(asked)
        return Ask(self.number, tuple(requests), releases=False, timeout=query.timeout)

    def ask(self, requests: list[Asked]) -> list[Asked]:
        """Complete requests for releases, and count whom they are for; nothing is sent here.

        A request that is made again is the same request.
        """
        self._split([asked.node for asked in requests])
        for asked in requests:
            asked.records[RECORD] = self.of(asked.node).request
        for part in self.parts:
            part.ask(self.scope, requests)
        for asked in requests:
            self.of(asked.node)._count(asked.node)
        return requests

    def of(self, node: Node) -> Round:
        """Return the round that asks a node: this one, or one beside it."""
        for side in self.side_rounds:
            if node in side._nodes and side._nodes[node].is_member:
                return side
        return self

    def sent(self, asked: Asked) -> None:
        """Note the size of a message, once it is known."""
        self.of(asked.node).downlink += asked.size

    def take(self, reply: Reply) -> Outcome:
        """Take one reply, at any time; what cannot be used becomes a note."""
        current = self.of(reply.node)
        if current is not self:
            return current.take(reply)
        self.uplink += reply.size
        if reply.refusal is not None:
            # An engine's error may hide a release; only a node's own word means that there is none.
            if reply.noted:
                return self._note(reply.node, Outcome.SILENT, reply.refusal)
            return self._decline(reply.node, reply.refusal)
        if reply.unprotected:
            return self.unprotect(reply.node)
        self.came(reply.node, pieces_of(reply.records))
        try:
            self._check_expected(reply.node)
            if self._query.releases:
                self._take_in(reply)
            else:
                self.collector.answer(reply.node, reply)
        except QuietbitError as error:
            return self.refuse(reply.node, error)
        self._nodes[reply.node].waiting = False
        return Outcome.TAKEN

    def fail(self, error: object) -> None:
        """End the round without a result; who was asked stays counted."""
        self._fail(error)
        self.end()

    def end(self) -> None:
        """End the round: what comes from here on is noted, and in no mean."""
        self.is_over = True
        self._name_liars()
        for side in self.side_rounds:
            side.end()

    def mean(self) -> FloatVector | None:
        """Return the mean of the releases that were added; None where there is none."""
        return None if self._failed else self.collector.mean()

    def advance(self, unit: float = 1.0) -> Step | None:
        """Take the step as nodes do, by the mean over ``unit``; None where they take none."""
        nodes_step = self.scope.nodes_step
        if nodes_step is None:
            return None
        kept = None if self._failed else self.collector.kept()
        if kept is None:
            return Step(None, final=True)
        arrays = nodes_step(kept / unit, self.scope.mechanism, self.number)
        return Step(arrays, final=True)

    def lift(self, mean: FloatVector) -> FloatVector:
        """Return the mean of the model's numbers that a mean of releases stands for."""
        return self.scope.lift(mean)

    def refuse(self, node: Node, reason: object, outcome: Outcome = Outcome.REFUSED) -> Outcome:
        """Note an answer that is not what was asked for."""
        standing = self._nodes[node]
        standing.spoilt = True
        if standing.is_member and self._query.releases:
            self.counts[node].refused += 1
        return self._note(node, outcome, reason)

    def unprotect(self, node: Node) -> Outcome:
        """Note a reply that holds what no gate lets out: the run has no guarantee from here on."""
        self.unprotected.add(node)
        return self.refuse(node, PASSED_NO_GATE, Outcome.UNPROTECTED)

    def came(self, node: Node, release: bytes) -> None:
        """Count what may be a release, by a node that was asked or not.

        The first one is counted with the request, unless the node said that it made none; the same
        bytes are the same release.
        """
        if not release:
            return
        standing = self._nodes[node]
        digest = blake2b(release, digest_size=16).digest()
        counted = standing.asked and not standing.declined and not standing.came
        if not counted and digest not in standing.came:
            self.counts[node].extra += 1
        standing.came.add(digest)

    def asked(self, node: Node) -> bool:
        """Return whether a node was asked for a release."""
        return node in self._nodes and self._nodes[node].asked

    def failed(self) -> frozenset[Node]:
        """Return the nodes that were asked, and neither answered nor declined."""
        return self._those(lambda standing: standing.failed)

    def metrics(self) -> dict[str, float]:
        """Return the plain mean of every number that nodes let out, over the nodes that did."""
        names = sorted(self._metrics)
        return {name: sum(self._metrics[name]) / len(self._metrics[name]) for name in names}

    def not_taken(self, error: QuietbitError) -> None:
        """Note that the model stays as it was, because a step would have spoilt it."""
        self.skipped = True
        self.notes.append(Note(f"the step was not taken: {error}"))

    def report(self) -> RoundReport:
        """Return the counts so far."""
        outcomes = Counter(note.outcome for note in self.notes)
        unprotected = outcomes[Outcome.UNPROTECTED]
        report = RoundReport(
            self.number,
            len(self._those(lambda standing: standing.asked)),
            len(self.answered),
            len(self._those(lambda standing: standing.declined)),
            len(self.failed()),
            outcomes[Outcome.REFUSED] + unprotected,
            self._failed or not self.answered,
            self._payloads,
            self.uplink,
            self.downlink,
            tuple(self.notes),
            resyncs=len(self._those(lambda standing: standing.needs_model)),
            crashed=len(self.crashes),
            outliers=self._outliers,
            unprotected=unprotected,
        )
        return replace(report, **self.collector.columns())

    def close(self) -> RoundReport:
        """End the round and tell the parts; return its counts, with what the parts report."""
        self.end()
        closed = self.closed()
        report = closed.report
        for side in self.side_rounds:
            report = report.with_side_round(side.report())
        columns: dict[str, Any] = {}
        records = {}
        for part in reversed(self.parts):
            record = part.close(closed)
            if part.in_columns:
                columns.update(record)
            elif record:
                records[part.section] = dict(record)
        if self.skipped is not None:
            columns["skipped"] = self.skipped
        return replace(report, **columns, records=records)

    def closed(self) -> Closed:
        """Return what parts report a round by, once it is over."""
        weights = [standing.weight for standing in self._nodes.values()]
        return Closed(
            self.scope,
            self.report(),
            self.answered,
            self._those(lambda standing: standing.needs_model),
            tuple(weight for weight in weights if weight is not None),
            self.collector.answers() if self.scope.section else None,
            tuple(side.closed() for side in self.side_rounds),
        )

    def _those(self, have: Callable[[_Standing], bool]) -> frozenset[Node]:
        """Return the nodes that stand as ``have`` says."""
        return frozenset(node for node, standing in self._nodes.items() if have(standing))

    def _is_pending(self) -> bool:
        """Whether the round has nodes that were not asked yet."""
        return bool(self._those(lambda standing: standing.is_member and not standing.asked))

    def _fail(self, error: object) -> None:
        self._failed = True
        self._name_liars()
        self.notes.append(Note(f"there is no {self.collector.result}: {one_line(error)}"))

    def _split(self, nodes: list[Node]) -> list[Node]:
        """Let parts ask some nodes for something else, in rounds beside this one; return others."""
        new = []
        for node in nodes:
            if not self._nodes[node].is_member and self.of(node) is self:
                new.append(node)
        for part in self.parts:
            aside = part.aside(self.scope, new)
            if aside is None or not aside.nodes or self.side is None:
                continue
            sides = [side for side in self.side_rounds if side.scope.section == aside.section]
            if not sides:
                sides = [self.side(aside)]
                self.side_rounds += sides
            sides[0]._join(aside.nodes)
            new = [node for node in new if node not in aside.nodes]
        self._join(new)
        return new

    def _join(self, nodes: Iterable[Node]) -> None:
        """Let the round ask these nodes."""
        for node in nodes:
            self._nodes[node].is_member = True

    def _for_releases(self, query: Query) -> list[Asked]:
        """Return the requests for releases, and those of the rounds beside this one."""
        others = [node for node in self._given if self.of(node) is not self]
        requests = self.ask([self._given[node] for node in (*query.nodes, *others)])
        beside = self.collector.side_request(len(self._given))
        for asked in requests:
            if self.of(asked.node) is self:
                asked.own_records.update(query.records.get(asked.node, {}))
            else:
                asked.records.update(beside)
        return requests

    def _count(self, node: Node) -> None:
        """Count a node that is asked for a release, once."""
        standing = self._nodes[node]
        if not standing.asked:
            standing.asked = True
            standing.waiting = True
            self.counts[node].asked += 1

    def _check_expected(self, node: Node) -> None:
        """Refuse a reply of a node from which none is waited for."""
        if self.is_over:
            raise InvalidPayload("it came when the round was over.")
        standing = self._nodes[node]
        if not standing.is_member:
            raise InvalidPayload("it was not asked in this round.")
        if not standing.waiting:
            raise InvalidPayload("it has answered in this round already.")

    def _take_in(self, reply: Reply) -> None:
        """Add the first release of a node that was asked, and count it."""
        node = reply.node
        payload = self.collector.read(self.scope, reply)
        weight = 1.0
        for part in self.parts:
            weight *= part.weight(self.scope, reply)
        release = Release(node, payload, weight, lambda: self.collector.decode(payload))
        try:
            self.collector.add(release)
        except Outlier:
            self._outliers += 1
            raise
        self._nodes[node].weight = weight
        self.counts[node].answered += 1
        self._payloads += memoryview(payload).nbytes
        self._note_extras(reply)
        for part in reversed(self.parts):
            part.take(self.scope, release)

    def _decline(self, node: Node, reason: object) -> Outcome:
        """Note that a node says it released nothing."""
        standing = self._nodes[node]
        if standing.waiting and not standing.declined:
            standing.declined = True
            standing.waiting = False
            standing.needs_model = Refusal.read_reason(str(reason)) is Reason.NEEDS_MODEL
            if self._query.releases and not standing.came:
                self.counts[node].declined += 1
        return self._note(node, Outcome.DECLINED, reason)

    def _note_extras(self, reply: Reply) -> None:
        """Note the numbers beside a valid release, and of a simulated node why its app crashed."""
        for name, value in reply.metrics.items():
            self._metrics.setdefault(name, []).append(value)
        crash = reply.records.get(CRASHED)
        if crash is not None and crash.get("traceback") is not None:
            text = str(crash["traceback"])
            self.crashes.append(BatchFault.told(text) or lines_of(text))

    def _name_liars(self) -> None:
        """Note which nodes were found out, each once."""
        for node, lie in self.collector.liars().items():
            note = Note(one_line(lie), node, Outcome.EXPOSED)
            if note not in self.notes:
                self.notes.append(note)

    def _note(self, node: Node, outcome: Outcome, reason: object) -> Outcome:
        """Add a note, whose text may be a stranger's words."""
        self.notes.append(Note(one_line(reason), node, outcome, self._query.step))
        return outcome


def side_scope(scope: Scope, aside: Aside) -> Scope:
    """Return what parts may know of a round beside one."""
    return evolve(scope, released=aside.mechanism, section=aside.section)
