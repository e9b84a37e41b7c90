"""The server's side of a run on an engine: one round after the other, and the report on all.

Idea     an adapter says how its engine carries requests and replies and what a node is called; who
         was asked, what became of it, the mechanism of a round, what it costs and the report are
         here, once. What a run can do besides is in its parts: those of the plan's sections, then
         those of one's own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from logging import ERROR, WARNING
from typing import Any, TypeVar, final

from quietbit.errors import QuietbitError, require
from quietbit.federation.collectors import Collector, Plain, Singles
from quietbit.federation.costs import NodeCosts, spread
from quietbit.federation.messages import Asked, BatchFault, Node, Reply, pieces_of, request_record
from quietbit.federation.outlook import outlook
from quietbit.federation.part import (
    Aside,
    Model,
    Part,
    Scope,
    Step,
    begun,
    lifted,
    released_dimension,
)
from quietbit.federation.parts.evaluation import Evaluation, EvaluationReport
from quietbit.federation.parts.secure_aggregation import MaskedSums
from quietbit.federation.plan import Plan
from quietbit.federation.record import Counts, Note, Outcome, RoundReport
from quietbit.federation.report import Report
from quietbit.federation.round import PASSED_NO_GATE, Round, side_scope
from quietbit.federation.terms import Say
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.registry import identity_of
from quietbit.node.request import run_name
from quietbit.wire.uplink import Uplink

__all__ = ["Run"]

MOST_NAMES = 100  # of numbers that owners let out
SomePart = TypeVar("SomePart", bound=Part)


@final
class Run:
    """All rounds of a run: the mechanism of each, what every node released, and the report."""

    def __init__(
        self,
        plan: Plan,
        number: int,
        say: Say,
        parts: tuple[Part, ...] = (),
        name_of: Callable[[Any], int] = int,
        protect: str = "Let all nodes answer through quietbit.",
        **given: Any,
    ) -> None:
        """Start a run, whose ``number`` is in every frame; ``say`` logs a sentence.

        ``parts`` come after those of the plan's own sections; ``name_of`` returns what frames call
        a node, and ``protect`` says how a node of this engine is protected. ``given`` are values
        for single sections, by the names that these have for them.
        """
        self.plan = plan
        self.number = number
        self.say = say
        self.updates = defaultdict[Node, Counts](Counts)
        self.unprotected: set[Node] = set()  # that sent what no gate lets out
        self.numbers: set[str] = set()  # names of what owners let out as it is
        self.uplink_beside = 0  # bytes of messages outside of rounds, such as evaluations
        self.downlink_beside = 0
        self.rounds: list[RoundReport] = []
        self.parts = (*_section_parts(plan, say, given), *parts)
        self._name_of = name_of
        self._protect = protect
        self._open: Round | None = None
        self._faults = Counter[BatchFault]()  # of the apps of the last round, in a simulation
        self._mechanism: Mechanism | None = None
        self._costs = NodeCosts(plan, self.parts, self.updates)
        # By section: the mechanism of its last round, how it is described, and its channel.
        self._known: dict[str, tuple[Mechanism | None, dict[str, Any], Uplink | None]] = {}

    def find(self, kind: type[SomePart]) -> SomePart | None:
        """Return the part of a kind; None where the run has none."""
        for part in self.parts:
            if isinstance(part, kind):
                return part
        return None

    @property
    def begun(self) -> bool:
        """Whether a round was opened."""
        return bool(self.rounds) or self._open is not None

    def dimension(self, dimension: int) -> int:
        """Return how many numbers a release has, for a model of ``dimension``."""
        return released_dimension(self.parts, dimension)

    def mechanism(self, dimension: int, number: int) -> Mechanism:
        """Return the mechanism of a round, for a model of ``dimension`` numbers."""
        dimension = self.dimension(dimension)
        if self._mechanism is None:
            self._mechanism = self.plan.mechanism_for(dimension)
            self._costs.update = self.plan.release(self._mechanism)
        known = self._mechanism.ball.dimension
        rule = f"{known}, as in earlier rounds"
        require(dimension == known, "number of parameters", dimension, rule)
        return self._mechanism.for_round(run_name(self.number), number)

    def open(self, number: int, model: Model, *, singly: bool = False) -> Round:
        """Return an empty round of updates to a model.

        ``singly``: the engine averages the estimates of single releases itself.
        """
        mechanism = self.mechanism(model.layout.dimension, number)
        scope = self._scope(number, mechanism, model=model, clip=self.plan.clip)
        scope = begun(self.parts, scope)
        current = self._round(scope, self.updates, singly=singly and scope.nodes_step is None)
        self._open = current
        return current

    def open_answers(self, number: int) -> Round:
        """Return an empty round of answers about a model; numbers of rounds grow within a run."""
        part = self._evaluating()
        scope = self._scope(number, part.mechanism, section=part.section)
        return self._round(scope, part.counts, singly=True, adds=True)

    def close_answers(self, current: Round, number: int, model: str = "") -> EvaluationReport:
        """Report a round of answers as one about the model of round ``number``."""
        part = self._evaluating()
        current.end()
        mean = current.mean()
        report = part.report(replace(current.report(), round=number), mean, model)
        self.count_bytes(uplink=current.uplink, downlink=current.downlink)
        self._note_names(current.metrics())
        self.charge_rounds(number)
        for level, line in part.lines(report, current.notes, list(map(str, current.crashes))):
            self.say(level, f"evaluation of round {number}: {line}")
        return report

    def _evaluating(self) -> Evaluation:
        part = self.find(Evaluation)
        if part is None:
            raise QuietbitError("Set quietbit.evaluate to have evaluations answered.")
        return part

    def _scope(self, number: int, mechanism: Mechanism, **fields: Any) -> Scope:
        lift = partial(lifted, self.parts)
        return Scope(self.number, number, mechanism, name_of=self._name_of, lift=lift, **fields)

    def _round(
        self,
        scope: Scope,
        counts: defaultdict[Node, Counts],
        *,
        singly: bool = False,
        adds: bool = False,
    ) -> Round:
        """Return an empty round of this run; an unchanged mechanism is not described again."""
        mechanism, record, channel = self._known.get(scope.section, (None, {}, None))
        if mechanism is not scope.mechanism:
            record = request_record(scope.number, scope.mechanism)
            channel = None
        request = {**record, "round": scope.number, "clip": scope.clip}
        collector: Collector
        sums = self.find(MaskedSums)
        if sums is not None and not scope.section:
            collector = sums.collector(scope, request["mechanism"])
        else:
            if channel is None or channel.clip != scope.clip:
                channel = Uplink(scope.mechanism, clip=scope.clip)
            collector = Singles(channel, adds=adds) if singly else Plain(channel)
        self._known[scope.section] = (scope.mechanism, record, channel)
        return Round(
            scope=scope,
            collector=collector,
            request=request,
            counts=counts,
            parts=self.parts,
            side=partial(self._side, scope, counts),
            unprotected=self.unprotected,
        )

    def _side(self, scope: Scope, counts: defaultdict[Node, Counts], aside: Aside) -> Round:
        """Return a round beside one, in which some nodes are asked for something else."""
        return self._round(side_scope(scope, aside), counts)

    def allowed(self, requests: list[Asked]) -> list[Asked]:
        """Return the requests to nodes that sent no unprotected reply."""
        return [asked for asked in requests if not self.excludes(asked.node)]

    def excludes(self, node: Node) -> bool:
        """Return whether a node sent an unprotected reply, and is asked no more."""
        return node in self.unprotected

    def take_beside(self, reply: Reply) -> None:
        """Take a reply outside of rounds: bytes and numbers count, and a release if it has one."""
        self.count_bytes(uplink=reply.size)
        self._note_names(reply.metrics)
        if pieces_of(reply.records):
            self.updates[reply.node].extra += 1
        if not reply.unprotected or reply.node in self.unprotected:
            return
        self.unprotected.add(reply.node)
        note = Note(PASSED_NO_GATE, reply.node, Outcome.UNPROTECTED)
        self.say(WARNING, str(note))
        if self.rounds:
            last = self.rounds[-1]
            self.rounds[-1] = replace(last, reasons=(*last.reasons, note))

    def _note_names(self, names: Iterable[str]) -> None:
        """Note the names of numbers that owners let out as they are, up to a limit."""
        new = [name for name in names if name not in self.numbers]
        self.numbers.update(new[: MOST_NAMES - len(self.numbers)])

    def count_bytes(self, *, uplink: int = 0, downlink: int = 0) -> None:
        """Count messages outside of rounds."""
        self.uplink_beside += uplink
        self.downlink_beside += downlink

    def step(self, current: Round) -> Step:
        """Take the step of a round; a model that would not be finite raises."""
        step = current.advance()
        if step is not None:
            return step
        mean = current.mean()
        if mean is None or current.model is None:
            return Step(None)
        return Step(current.model.stepped(current.lift(mean)))

    def over(self, current: Round) -> RoundReport:
        """Count a round that is over, and those beside it; say what became of it."""
        self._open = None
        report = current.close()
        rounds = [current, *current.side_rounds]
        for member in rounds:
            self._note_names(member.metrics())
        for node in frozenset[Node]().union(*(member.failed() for member in rounds)):
            self.updates[node].failed += 1
        outcome = replace(report, epsilon_upper=self.epsilon_upper())
        self.rounds.append(outcome)
        told = [crash for member in rounds for crash in member.crashes]
        crashes = [crash for crash in told if isinstance(crash, str)]
        self._faults = Counter(crash for crash in told if not isinstance(crash, str))
        for fault, count in self._faults.items():
            self.say(ERROR, f"round {outcome.round}: {_of_apps(count, fault)}")
        notes = [section.note(outcome) for section in self.plan.sections]
        for level, line in outcome.lines(crashes, [note for note in notes if note]):
            self.say(level, line)
        return outcome

    def forecast(self, *, asked: int, nodes: int, rounds: int) -> None:
        """Say what to expect of a run that asks ``asked`` of ``nodes`` nodes in each round."""
        if self._mechanism is None or asked < 1 or rounds < 1:
            return
        for level, line in outlook(self.plan, self._mechanism, asked, nodes, rounds):
            self.say(level, line)

    def ends(self) -> str | None:
        """Return why the run must end after the last round that was closed; else None."""
        last = self.rounds[-1:]
        if last and last[0].unprotected and not last[0].heard:
            return (
                f"{Report.no_guarantee(len(self.unprotected))} No other reply came in round "
                f"{last[0].round}. {self._protect}"
            )
        if last and self._faults.total() >= last[0].answered > 0:
            return " ".join(_of_apps(count, fault) for fault, count in self._faults.items())
        return self._all_crashed()

    def _all_crashed(self) -> str | None:
        """Return a sentence where all apps crashed in each of the last two rounds; else None."""
        last = self.rounds[-2:]
        if len(last) < 2:
            return None
        for entry in last:
            released = entry.answered + entry.scouted
            if not released or entry.crashed < released:
                return None
        return (
            f"All apps crashed in rounds {last[0].round} and {last[1].round}, and released zeros; "
            "the log has a traceback. Nothing can be learnt."
        )

    def epsilon_upper(self) -> float | None:
        """Return what the run has cost the worst client by now; None without a guarantee."""
        if self.unprotected:
            return None
        return self._costs.worst().epsilon_upper

    def charge_rounds(self, number: int) -> None:
        """Add what parts have spent by now to round ``number`` and to those after it."""
        reached = self.epsilon_upper()
        if reached is None:
            return
        for place, entry in enumerate(self.rounds):
            before = entry.epsilon_upper
            if entry.round >= number and before is not None and before < reached:
                self.rounds[place] = replace(entry, epsilon_upper=reached)

    def report(self, scores: Iterable[Mapping[str, float]] = ()) -> Report:
        """Return rounds, nodes, bytes and the guarantee of the worst client so far."""
        guarantee = None
        rounds = self.rounds
        if self.unprotected:
            rounds = [replace(entry, epsilon_upper=None) for entry in rounds]
        elif self._mechanism is not None or any(part.counts for part in self.parts):
            guarantee = self._costs.worst()
        identity = ""
        dimension = 0
        if self._mechanism is not None:
            identity = identity_of(self._mechanism).hex()
            dimension = self._mechanism.ball.dimension
        evaluating = self.find(Evaluation)
        nodes = self._costs.nodes(guaranteed=not self.unprotected)
        participation = ""
        if nodes and not self.unprotected:
            participation = spread([(node.releases, node.epsilon_upper or 0.0) for node in nodes])
        return Report(
            settings=self.plan,
            run=self.number,
            identity=identity,
            dimension=dimension,
            rounds=tuple(rounds),
            nodes=nodes,
            guarantee=guarantee,
            scores=tuple(scores),
            evaluations=() if evaluating is None else tuple(evaluating.reports),
            unprotected=len(self.unprotected),
            participation=participation,
            numbers=tuple(sorted(self.numbers)),
            uplink_beside=self.uplink_beside,
            downlink_beside=self.downlink_beside,
        )


def _section_parts(plan: Plan, say: Say, given: Mapping[str, Any]) -> list[Part]:
    """Return the parts of a plan's sections; refuse what is given for a section that is absent."""
    sections = plan.sections
    needed = {section.needs for section in sections}
    for name, value in given.items():
        known = name in needed or value is None
        require(known, name, type(value).__name__, "left out without its section of the plan")
    parts = [section.part(plan, say, given.get(section.needs)) for section in sections]
    return [part for part in parts if part is not None]


def _of_apps(count: int, fault: BatchFault) -> str:
    return f"{count} {'app' if count == 1 else 'apps'} {fault.sentence}."
