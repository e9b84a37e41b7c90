"""The server's side of a run on an engine: one round after the other, and the report on all of them.

Idea     a release is taken in only if it is the first of a node that was asked, made for this run
         and this round, by this mechanism, whole to its last bit; then it counts as one, whatever
         it says. Everything else is refused with a sentence, and the round goes on. An answer to an
         evaluation is a release like any other. An adapter says how its engine carries bytes and
         what a node is called; who was asked, what became of it, the mechanism of a round, what it
         costs and the report are here, once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from logging import INFO, WARNING
from typing import Any, TypeVar, final

from attrs import define, field
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidPayload, Outlier, require
from quietbit.mechanism.abilities import Scouted, is_unmasked
from quietbit.mechanism.base import Answers, Mechanism
from quietbit.mechanism.expectation import Verdict, expectation
from quietbit.mechanism.registry import identity_of
from quietbit.node.refusal import Reason, Refusal
from quietbit.node.request import VECTOR, Framed, run_name
from quietbit.plan.clip import why_it_stays
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee, GuaranteePair
from quietbit.run.costs import SCOUTS
from quietbit.run.crowd import Crowds
from quietbit.run.layout import ModelLayout
from quietbit.run.messages import evaluation_of, lines_of, one_line
from quietbit.run.part import Asked, Node, Part, Reply
from quietbit.run.parts.replay import Leader, Replaying
from quietbit.run.parts.scouts import Scouting
from quietbit.run.parts.subspace import Basis, ServerCoordinates
from quietbit.run.plan import Plan
from quietbit.run.report import Counts, EvaluationReport, NodeReport, Report, RoundReport
from quietbit.wire.downlink import ServerStep
from quietbit.wire.uplink import Aggregator, Uplink, effective, weight_of

__all__ = ["Round", "Run"]

FAR_BELOW = 0.5  # of the releases: noise for more than twice as many as there will be


@define(eq=False, kw_only=True)
class Round:
    """One round from the first request to the last answer; a ``step`` is one of a masked sum, which has several."""

    run: int
    number: int
    mechanism: Mechanism
    counts: defaultdict[Node, Counts]  # of the run so far
    most_examples: int | None = (
        None  # up to which releases are weighted by public numbers of examples
    )
    scouts: Round | None = None  # what others are asked in this round, about the clip
    parts: tuple[Part, ...] = ()
    skipped: bool | None = field(
        default=None, init=False
    )  # whether the model stayed, as whoever steps has said
    uplink: int = field(default=0, init=False)
    downlink: int = field(default=0, init=False)
    reasons: list[str] = field(factory=list, init=False)
    answered: set[Any] = field(factory=set, init=False)  # nodes whose release was taken in
    needing: set[Node] = field(
        factory=set, init=False
    )  # nodes that could not replay what they were sent
    crashes: list[str] = field(factory=list, init=False)  # tracebacks, of simulated nodes
    _asked: set[Node] = field(factory=set, init=False)
    _declined: set[Node] = field(factory=set, init=False)
    _spoilt: set[Node] = field(factory=set, init=False)  # nodes of which an answer was refused
    _refused: int = field(default=0, init=False)
    _outliers: int = field(default=0, init=False)
    _payloads: int = field(default=0, init=False)
    _lines: Uplink = field(init=False)
    _aggregator: Aggregator = field(init=False)
    _weights: list[float] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        """Start an empty mean."""
        self._lines = Uplink(self.mechanism)
        self._aggregator = self._lines.aggregator()

    def sent(self, node: Node, size: int) -> None:
        """Note a request before it is sent; one that is sent again is the same request."""
        self.downlink += size
        for part in self.parts:
            part.ask(self, Asked(node, size))
        if node not in self._asked:
            self._asked.add(node)
            self.counts[node].asked += 1

    def arrived(self, node: Node, size: int) -> None:
        """Note a reply that came, before it is looked at."""
        self.uplink += size
        for part in reversed(self.parts):
            part.take(self, Reply(node, size))

    def add(self, node: Node, name: int, data: bytes, examples: Any = None) -> None:
        """Add a release to the mean; ``name`` is what the frame calls the node, ``examples`` the number it told."""
        with self._opened(node, name, data, examples) as (payload, weight):
            self._aggregator.add(payload, weight)

    def decode(
        self, node: Node, name: int, data: bytes, examples: Any = None
    ) -> tuple[FloatVector, float]:
        """Return the estimate that one release is by itself, and its weight."""
        with self._opened(node, name, data, examples) as (payload, weight):
            found = self._lines.receive([payload]), weight
        return found

    def decline(self, node: Node, reason: object, step: str = "") -> None:
        """Note that a node says it released nothing; only a node's own word means that."""
        self._say(node, "declined", reason, step)
        if self.waits_for(node, step):
            self._declined.add(node)
            if Refusal.read_reason(str(reason)) is Reason.NEEDS_MODEL:
                self.needing.add(node)
            if step in ("", VECTOR):
                self.counts[node].declined += 1

    def silent(self, node: Node, reason: object, step: str = "") -> None:
        """Note why there is no answer: a release may have been made, and counts."""
        self._say(node, "did not answer", reason, step)

    def refuse(self, node: Node, reason: object, step: str = "") -> None:
        """Note an answer that is not what was asked for."""
        self._say(node, "was refused", reason, step)
        self._refused += 1
        if self.asked(node):
            self._spoilt.add(node)
            if step in ("", VECTOR):
                self.counts[node].refused += 1

    def crashed(self, traceback: Any) -> None:
        """Note the traceback of a simulated node's app, where it crashed."""
        self.crashes += [] if traceback is None else [lines_of(str(traceback))]

    def asked(self, node: Node) -> bool:
        """Return whether a node is one of those that were asked."""
        return node in self._asked

    def waits_for(self, node: Node, step: str = "") -> bool:
        """Return whether a node was asked for a step and has said nothing yet."""
        return self.asked(node) and node not in self.answered and node not in self._declined

    def mean(self) -> FloatVector | None:
        """Return the mean of the releases that were added; None where there is none."""
        return self._aggregator.mean() if self.answered else None

    def kept(self) -> FloatVector | None:
        """Return the same among the rows that all nodes kept."""
        return self._aggregator.kept() if self.answered else None

    def lift(self, mean: FloatVector) -> FloatVector:
        """Return the mean of the model's numbers, as the parts make it of a mean of releases."""
        for part in reversed(self.parts):
            mean = part.lift(mean)
        return mean

    def answers(self) -> Answers | None:
        """Return what scouts, where this is their round, answered about the clip."""
        return self._aggregator.answers()

    def drained(self) -> Aggregator:
        """Return the mean of the releases since it was last asked for, where a round does not wait for all of them."""
        found, self._aggregator = self._aggregator, self._lines.aggregator()
        return found

    def failed(self) -> set[Any]:
        """Return the nodes that were asked and neither answered nor declined: dead, late or lost on the way."""
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
            tuple(self.reasons),
            resyncs=len(self.needing),
            crashed=len(self.crashes),
            outliers=self._outliers,
            effective=None if self.most_examples is None else effective(self._weights),
        )

    @contextmanager
    def _opened(
        self, node: Node, name: int, data: bytes, examples: Any
    ) -> Iterator[tuple[Any, float]]:
        """Open the first release of a node that was asked; count it where nothing is wrong with it."""
        if node not in self._asked:
            raise InvalidPayload("it was not asked in this round.")
        if node in self.answered or node in self._declined:
            raise InvalidPayload("it has answered in this round already.")
        release, weight = Framed.from_bytes(data), weight_of(examples, self.most_examples)
        release.expect(self.run, self.number, name)
        try:
            yield release.payload, weight
        except Outlier:
            self._outliers += 1
            raise
        self._weights += [] if self.most_examples is None else [weight]
        self._count(node, release.payload)

    def _count(self, node: Node, payload: bytes | memoryview) -> None:
        self.answered.add(node)
        self.counts[node].answered += 1
        self._payloads += len(payload)

    def _say(self, node: Node, what: str, reason: object, step: str) -> None:
        """Add a reason, which may be a stranger's words; engines that number their nodes give no name."""
        name, at = f"node {node}" if isinstance(node, int) else node, f" ({step})" if step else ""
        self.reasons.append(f"{name} {what}{at}: {one_line(str(reason))}")


SomeRound = TypeVar("SomeRound", bound=Round)


@final
class Run:
    """All rounds of a run: the mechanism of each, what every node released, and the report."""

    def __init__(
        self,
        plan: Plan,
        number: int,
        say: Callable[[int, str], None],
        parts: tuple[Part, ...] = (),
        basis: Basis | None = None,
    ) -> None:
        """Start a run; ``number`` is what frames call it, ``say`` takes a level of logging and a sentence.

        ``parts`` come after those of the plan's own sections; ``basis`` gives the directions of a
        subspace, where the plan has one.
        """
        self.plan = plan
        self.number = number
        self.say = say
        self.evaluation = plan.evaluation
        self.updates = defaultdict[Node, Counts](Counts)
        self.answers = defaultdict[Node, Counts](Counts)
        self.crowds = Crowds(plan.secret_order)
        self.rounds: list[RoundReport] = []
        self.evaluations: list[EvaluationReport] = []
        self.scouting = None if plan.scouts is None else Scouting(plan, plan.scouts)
        self.replaying = None if plan.replay is None else Replaying(plan.replay, say)
        own: tuple[Part | None, ...] = (self.scouting, self.replaying)
        own += ServerCoordinates.of(plan, basis)
        self.parts: tuple[Part, ...] = (*(part for part in own if part is not None), *parts)
        self._account = Account(plan.update_target, "adaptive")
        self._mechanism: Mechanism | None = None
        self._cost = Cost()

    @property
    def leader(self) -> Leader | None:
        """The model that nodes replay, where there is one."""
        return None if self.replaying is None else self.replaying.leader

    def dimension(self, dimension: int) -> int:
        """Return the numbers of a release, of a model with ``dimension``."""
        for part in self.parts:
            dimension = part.dimension(dimension)
        return dimension

    def mechanism(self, dimension: int, number: int) -> Mechanism:
        """Return the mechanism of a round: its rows where all keep the same ones, its clip where the clip moves."""
        dimension = self.dimension(dimension)
        if self._mechanism is None:
            self._mechanism = self.plan.mechanism_for(dimension)
            self._cost = self.plan.release(self._mechanism)
        known = self._mechanism.ball.dimension
        require(
            dimension == known, "number of parameters", dimension, f"{known}, as in earlier rounds"
        )
        mechanism = self._mechanism.for_round(run_name(self.number), number)
        for part in self.parts:
            mechanism = part.prepare(mechanism, number)
        return mechanism

    def open(
        self,
        kind: type[SomeRound],
        number: int,
        mechanism: Mechanism,
        *,
        evaluates: bool = False,
        **fields: Any,
    ) -> SomeRound:
        """Return an empty round of updates, of scouts, or of answers where it ``evaluates`` the model."""
        counts, weighted = (
            (self.answers, False) if evaluates else (self.updates, not is_unmasked(mechanism))
        )
        weights = self.plan.weights if weighted else None
        most = None if weights is None else weights.most_examples
        return kind(
            run=self.number,
            number=number,
            mechanism=mechanism,
            counts=counts,
            most_examples=most,
            parts=self.parts,
            **fields,
        )

    def scouts(self, mechanism: Mechanism, number: int, node: int) -> bool:
        """Return whether a node, by its number in frames, scouts in this round of this mechanism."""
        return self.scouting is not None and self.scouting.scouts(
            mechanism, run_name(self.number), number, node
        )

    def lead(
        self,
        number: int,
        arrays: Mapping[str, Any],
        layout: ModelLayout,
        step: ServerStep | None,
        other: str,
    ) -> None:
        """Follow the model that nodes replay, where they do."""
        if self.replaying is not None:
            self.replaying.lead(number, arrays, layout, step, other, self.lift)

    def enclosed(self, node: Node) -> dict[str, NDArray[Any]]:
        """Return the arrays of all parts that go beside the request to a node."""
        arrays: dict[str, NDArray[Any]] = {}
        for part in self.parts:
            arrays.update(part.enclose(node))
        return arrays

    def lift(self, mean: FloatVector) -> FloatVector:
        """Return the mean of the model's numbers, as the parts make it of a mean of releases."""
        for part in reversed(self.parts):
            mean = part.lift(mean)
        return mean

    def outlook(self, *, asked: int, nodes: int, rounds: int) -> None:
        """Say what to expect of a run that asks ``asked`` of ``nodes`` nodes in each round, and what would help it."""
        if self._mechanism is None or asked < 1 or rounds < 1:
            return
        plan, releases, crowd = self.plan, self.plan.releases, max(nodes, asked)
        turns = rounds * asked / crowd  # how often a node is asked, on average
        lasting = rounds if releases is None else releases * crowd // asked
        few = max(1, min(rounds, lasting))
        found = expectation(
            self._mechanism, cohort=asked, rounds=few, clients=crowd, trust=plan.trust
        )
        self.say(INFO if found.verdict is Verdict.USEFUL else WARNING, found.sentence())
        said = f"quietbit.releases is {releases}, and {rounds} rounds ask a node {_often(turns)}"
        if releases is not None and turns > releases:
            remedy = f"Set quietbit.releases to {math.ceil(turns)}, or run {lasting} rounds."
            self.say(WARNING, f"{said}: nodes decline after {_often(releases)}. {remedy}")
        elif releases is not None and turns <= FAR_BELOW * releases:
            less = f"with quietbit.releases = {math.ceil(turns)} the same epsilon would need less noise"
            self.say(WARNING, f"{said}: {less}.")
        threshold = None if plan.masks is None else plan.masks.threshold
        if threshold is not None and not threshold <= asked <= 2 * threshold - 1:
            needs = f"a sum needs from {threshold} to {2 * threshold - 1}, so there will be none"
            self.say(
                WARNING,
                f"quietbit.masks.threshold is {threshold}, and a round asks {asked} nodes: {needs}.",
            )
        scouted = Scouted.find(self._mechanism)
        if scouted is not None:
            why = why_it_stays(scouted, found.noise, asked * few)
            if why is not None:
                self.say(WARNING, f"{why}. Set quietbit.clip to a number.")

    def so_far(self, current: Round) -> RoundReport:
        """Return the counts of a round that late releases may still join."""
        return replace(current.report(), epsilon_upper=self._worst().epsilon_upper)

    def close(self, current: Round) -> RoundReport:
        """Count a round that is over, and its scouts; say what became of it."""
        rounds = [current]
        report = current.report()
        records: dict[str, Any] = {}
        fields: dict[str, Any] = {}
        for part in reversed(self.parts):
            record = part.close(current)
            if part in (self.scouting, self.replaying):
                fields.update(record)
            elif record:
                records[part.section] = dict(record)
        if current.scouts is not None:
            rounds.append(current.scouts)
            report = report.beside(current.scouts.report())
        for node in set[Node]().union(*(one.failed() for one in rounds)):
            self.updates[node].failed += 1
        outcome = replace(
            report,
            **fields,
            skipped=report.skipped if current.skipped is None else current.skipped,
            epsilon_upper=self._worst().epsilon_upper,
            records=records,
        )
        self.rounds.append(outcome)
        self.crowds.record(outcome.asked, () if report.skipped else current.answered)
        self._tell(outcome.lines([crash for one in rounds for crash in one.crashes]))
        return outcome

    def evaluated(self, current: Round, number: int, model: str = "") -> EvaluationReport:
        """Count an evaluation that is over; report it as that of round ``number``, and say what it estimates."""
        asked, mean = evaluation_of(self.plan), current.mean()  # of a sum, which is unmasked now
        found = current.report()
        estimates = () if mean is None else asked.estimates(mean, found.answered)
        outcome = EvaluationReport(
            number, asked.metric, found.asked, found.answered, found.declined, estimates, model
        )
        self.evaluations.append(outcome)
        self._charge_rounds(number)
        self._tell(outcome.lines(found.reasons, current.crashes))
        if asked.says_little(estimates):
            few = f"{found.answered} answers are too few: the interval covers more than half of what is possible"
            self.say(WARNING, f"evaluation of round {number}: {few}.")
        return outcome

    def all_crashed(self) -> str | None:
        """Return a sentence where all apps crashed in each of the last two rounds; None otherwise."""
        last = self.rounds[-2:]
        if len(last) < 2:
            return None
        for entry in last:
            released = entry.answered + entry.scouted
            if not released or entry.crashed < released:
                return None
        return "All apps crashed in two rounds, and released zeros; the log has a traceback. Nothing can be learnt."

    def epsilon_upper(self) -> float:
        """Return what the run has cost the worst client by now."""
        return self._worst().epsilon_upper

    def _charge_rounds(self, number: int) -> None:
        """Add what evaluations have cost by now to round ``number`` and to those after it."""
        reached = self.epsilon_upper()
        for place, entry in enumerate(self.rounds):
            if entry.round >= number and entry.epsilon_upper < reached:
                self.rounds[place] = replace(entry, epsilon_upper=reached)

    def report(self, scores: Iterable[Mapping[str, float]] = ()) -> Report:
        """Return rounds, nodes, bytes and the guarantee of the worst client so far."""
        mechanism, costs, nodes = self._mechanism, dict[tuple[int, int], float](), []
        for node in sorted(
            {*self.updates, *self.answers}, key=lambda name: (isinstance(name, str), name)
        ):
            counts, answers = (known.get(node, Counts()) for known in (self.updates, self.answers))
            both = counts.releases, answers.releases
            if both not in costs:
                costs[both] = self._guarantee(*both).epsilon_upper
            cost, more = costs[both], answers.releases
            nodes.append(
                NodeReport(
                    node, **asdict(counts), releases=both[0], epsilon_upper=cost, evaluations=more
                )
            )
        guarantee, pair = None if mechanism is None and not self.answers else self._worst(), None
        if guarantee is not None and mechanism is not None:
            pair = self.crowds.observers(guarantee, mechanism, _most(self.updates))
            reasons = {
                "evaluations": bool(self.answers),
                "weights, which tell whose release is which": self.plan.weights is not None,
                "releases that come when they like": self.plan.arrivals is not None,
                SCOUTS: self.plan.scouts is not None,
            }
            for lacks in (what for what, there in reasons.items() if there):
                pair = GuaranteePair(
                    guarantee, None, reason=f"the account of the crowd does not have {lacks}"
                )
        return Report(
            settings=self.plan,
            run=self.number,
            identity=identity_of(mechanism).hex() if mechanism is not None else "",
            dimension=mechanism.ball.dimension if mechanism is not None else 0,
            rounds=tuple(self.rounds),
            nodes=tuple(nodes),
            guarantee=guarantee,
            scores=tuple(scores),
            observers=pair,
            evaluations=tuple(self.evaluations),
        )

    def _guarantee(self, updates: int, answers: int) -> Guarantee:
        """Return what a node's updates and answers cost it: those in sums on one account, others added to it."""
        asked, account = self.evaluation if answers else None, self._account
        for cost, times in (
            (self._cost, updates),
            *(asked.shared(answers) if asked is not None else ()),
        ):
            account = account.spend(cost, times) if times else account
        found, apart = account.guarantee(), asked.costs(answers) if asked is not None else 0.0
        return (
            replace(found, epsilon_upper=math.nextafter(found.epsilon_upper + apart, math.inf))
            if apart
            else found
        )

    def _worst(self) -> Guarantee:
        """Return what holds for every client: the guarantee of the most updates and most answers to evaluations."""
        return replace(
            self._guarantee(_most(self.updates), _most(self.answers)), delta=self.plan.delta
        )

    def _tell(self, lines: Iterable[tuple[int, str]]) -> None:
        for level, line in lines:
            self.say(level, line)


def _most(counts: Mapping[Node, Counts]) -> int:
    """Return the releases of the node with the most."""
    return max((one.releases for one in counts.values()), default=0)


def _often(turns: float) -> str:
    if turns == 1:
        return "once"
    return f"{turns:g} times" if turns == int(turns) else f"about {turns:.1f} times"
