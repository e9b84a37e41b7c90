"""The server's side of a run on an engine: one round after the other, and the report on all of them.

Idea     a release is taken in only if it is the first of a node that was asked, made for this run and this round, by
         this mechanism, whole to its last bit; then it counts as one, whatever it says. Everything else is refused
         with a sentence, and the round goes on. An adapter says how its engine carries bytes and what a node is
         called; who was asked, what became of it, the mechanism of a round and the report are here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

from attrs import define, field

from quietbit._typing import FloatVector
from quietbit.engine.crowd import Crowds
from quietbit.engine.evaluation import Evaluations
from quietbit.engine.outlook import outlook
from quietbit.engine.replay import NEEDS
from quietbit.engine.report import Counts, NodeCounts, NodeReport, Report, RoundReport
from quietbit.errors import InvalidPayload, Outlier, require
from quietbit.mechanism.base import Answers, Mechanism
from quietbit.mechanism.registry import identity_of
from quietbit.node.question import VECTOR, Framed, run_name
from quietbit.plan.costs import SCOUTS
from quietbit.plan.plan import Plan
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee, GuaranteePair
from quietbit.wire.uplink import Uplink
from quietbit.wire.weighted import WeightedMean, effective, weight_of

__all__ = ["Round", "Run"]

Node = int | str


@define(eq=False, kw_only=True)
class Round:
    """One round from the first question to the last answer, of which the server sees every release.

    A masked sum has several ``step``s, of which one brings the releases; what counts what is the same.
    """

    run: int
    number: int
    mechanism: Mechanism
    account: NodeCounts
    most_examples: int | None = None  # up to which releases are weighted by public numbers of examples
    uplink: int = 0
    downlink: int = 0
    reasons: list[str] = field(factory=list)
    numbers: dict[str, list[float]] = field(factory=dict)  # that nodes let through
    needing: set[Node] = field(factory=set, init=False)  # nodes that could not replay what they were sent
    crashes: list[str] = field(factory=list)  # tracebacks, of simulated nodes
    _asked: set[Node] = field(factory=set, init=False)
    _answered: set[Node] = field(factory=set, init=False)
    _declined: set[Node] = field(factory=set, init=False)
    _spoilt: set[Node] = field(factory=set, init=False)  # nodes of which an answer was refused
    _refused: int = field(default=0, init=False)
    _outliers: int = field(default=0, init=False)
    _payloads: int = field(default=0, init=False)
    _lines: Uplink = field(init=False)
    _aggregator: WeightedMean = field(init=False)
    _weights: list[float] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        """Start an empty mean."""
        self._lines = Uplink(self.mechanism)
        self._aggregator = WeightedMean(self._lines.aggregator)

    def sent(self, node: Node, size: int) -> None:
        """Note a question before it is sent; one that is sent again is the same question."""
        self.downlink += size
        if node not in self._asked:
            self._asked.add(node)
            self.account.node(node).asked += 1

    def add(self, node: Node, name: int, data: bytes, examples: Any = None) -> None:
        """Add a release to the mean; ``name`` is what the frame calls the node, ``examples`` the number it told."""
        payload, weight = self._opened(node, name, data), weight_of(examples, self.most_examples)
        with self._outlier_counted():
            self._aggregator.add(payload, weight)
        self._count(node, payload, weight)

    def decode(self, node: Node, name: int, data: bytes, examples: Any = None) -> tuple[FloatVector, float]:
        """Return the estimate that one release is by itself, and its weight."""
        payload, weight = self._opened(node, name, data), weight_of(examples, self.most_examples)
        with self._outlier_counted():
            mean: FloatVector = self._lines.receive([payload])
        self._count(node, payload, weight)
        return mean, weight

    def decline(self, node: Node, reason: str, step: str = "") -> None:
        """Note that a node says it released nothing; only a node's own word means that."""
        self.reasons.append(f"{_called(node)} declined{_at(step)}: {reason}")
        if self.waits_for(node, step):
            self._declined.add(node)
            self.needing |= {node} if reason == NEEDS else set()
            if step in ("", VECTOR):
                self.account.node(node).declined += 1

    def silent(self, node: Node, reason: str, step: str = "") -> None:
        """Note why there is no answer: a release may have been made, and counts."""
        self.reasons.append(f"{_called(node)} did not answer{_at(step)}: {reason}")

    def refuse(self, node: Node, reason: str, step: str = "") -> None:
        """Note an answer that is not what was asked for."""
        self._refused += 1
        if self.asked(node):
            self._spoilt.add(node)
            if step in ("", VECTOR):
                self.account.node(node).refused += 1
        self.reasons.append(f"{_called(node)} was refused{_at(step)}: {reason}")

    def asked(self, node: Node) -> bool:
        """Return whether a node is one of those that were asked."""
        return node in self._asked

    def waits_for(self, node: Node, step: str = "") -> bool:
        """Return whether a node was asked for a step and has said nothing yet."""
        return self.asked(node) and node not in self._answered and node not in self._declined

    def mean(self) -> FloatVector | None:
        """Return the mean of the releases that were added; None where there is none."""
        if not self._answered:
            return None
        mean: FloatVector = self._aggregator.mean()
        return mean

    def drained(self) -> WeightedMean:
        """Return the mean of the releases since it was last asked for, where a round does not wait for all of them."""
        found, self._aggregator = self._aggregator, WeightedMean(self._lines.aggregator)
        return found

    def kept(self) -> FloatVector | None:
        """Return the same among the rows that all nodes kept."""
        return self._aggregator.kept() if self._answered else None

    def metrics(self) -> dict[str, float]:
        """Return the plain mean of every number that nodes let through, over the nodes that did."""
        return {name: sum(values) / len(values) for name, values in sorted(self.numbers.items())}

    def answered(self) -> set[Any]:
        """Return the nodes whose release was taken in."""
        return self._answered

    def failed(self) -> set[Any]:
        """Return the nodes that were asked and neither answered nor declined: dead, late or lost on the way."""
        return self._asked - self._answered - self._declined - self._spoilt

    def answers(self) -> Answers | None:
        """Return what nodes that scouted said about the clip; None where nobody did."""
        return self._aggregator.answers()

    def report(self) -> RoundReport:
        """Return the counts so far."""
        return RoundReport(
            self.number, len(self._asked), len(self._answered), len(self._declined), len(self.failed()), self._refused,
            not self._answered, self._payloads, self.uplink, self.downlink, tuple(self.reasons),
            resyncs=len(self.needing),
            crashed=len(self.crashes),
            outliers=self._outliers,
            effective=None if self.most_examples is None else effective(self._weights),
        )  # fmt: skip

    def _opened(self, node: Node, name: int, data: bytes) -> bytes | memoryview:
        if node not in self._asked:
            raise InvalidPayload("it was not asked in this round.")
        if node in self._answered or node in self._declined:
            raise InvalidPayload("it has answered in this round already.")
        release = Framed.from_bytes(data)
        release.expect(self.run, self.number, name)
        return release.payload

    @contextmanager
    def _outlier_counted(self) -> Iterator[None]:
        try:
            yield
        except Outlier:
            self._outliers += 1
            raise

    def _count(self, node: Node, payload: bytes | memoryview, weight: float = 1.0) -> None:
        self._answered.add(node)
        self._weights += [] if self.most_examples is None else [weight]
        self.account.node(node).answered += 1
        self._payloads += len(payload)


@final
class Run:
    """All rounds of a run: the mechanism of each, what every node released, and the report."""

    def __init__(self, plan: Plan, number: int = 0) -> None:
        """Begin with nobody asked; ``number`` is what frames call the run."""
        self.plan, self.number = plan, number
        self.account, self.evaluations = NodeCounts(plan.update_target), Evaluations(plan)
        self.crowds = Crowds(plan.secret_order)
        self.rounds: list[RoundReport] = []
        self._moving = plan.moving_clip()
        self._mechanism: Mechanism | None = None
        self._cost = Cost()

    def mechanism(self, dimension: int, number: int) -> Mechanism:
        """Return the mechanism of a round: its rows where all keep the same ones, its clip where the clip moves."""
        if self._mechanism is None:
            self._mechanism = self.plan.mechanism_for(dimension)
            self._cost = self.plan.release(self._mechanism)
        known = self._mechanism.domain.dimension
        require(dimension == known, "number of parameters", dimension, f"{known}, as in earlier rounds")
        found = self._mechanism.for_round(run_name(self.number), number)
        return found if self._moving is None else found.at_clip(self._moving.clip)

    def scouts(self, mechanism: Mechanism, number: int, node: int) -> bool:
        """Return whether a node, by its number in frames, scouts in this round of this mechanism."""
        return self._moving is not None and not mechanism.is_turn_of(run_name(self.number), number, node)

    def outlook(self, *, asked: int, nodes: int, rounds: int) -> list[tuple[int, str]]:
        """Return what to expect of the run, before its first questions go out: sentences with levels of logging."""
        if self._mechanism is None:
            return []
        return outlook(self.plan, self._mechanism, asked=asked, nodes=nodes, rounds=rounds)

    def so_far(self, current: Round) -> RoundReport:
        """Return the counts of a round that late releases may still join."""
        return replace(current.report(), epsilon_upper=self._worst().epsilon_upper)

    def close(
        self, current: Round, scouts: Round | None = None, *, skipped: bool | None = None, reasons: Iterable[str] = ()
    ) -> RoundReport:
        """Count a round that is over, and its scouts, by whom the clip moves. Nothing is public if ``skipped``."""
        found = current.report()
        clip = None if self._moving is None else self._moving.clip
        if scouts is not None and self._moving is not None:
            self._moving.move(scouts.answers())
            found = found.beside(scouts.report())
        for node in current.failed() | (set() if scouts is None else scouts.failed()):
            self.account.node(node).failed += 1
        reached = self._worst().epsilon_upper
        skipped = found.skipped if skipped is None else skipped
        outcome = replace(found, skipped=skipped, epsilon_upper=reached, clip=clip, reasons=(*found.reasons, *reasons))
        self.rounds.append(outcome)
        self.crowds.record(outcome.asked, () if found.skipped else current.answered())
        return outcome

    def report(self, scores: Iterable[Mapping[str, float]] = ()) -> Report:
        """Return rounds, nodes, bytes and the guarantee of the worst client so far."""
        mechanism, known = self._mechanism, dict[tuple[int, int], float]()
        nodes = []
        asked = self.evaluations.account.nodes
        for node in sorted({*self.account.nodes, *asked}, key=lambda name: (isinstance(name, str), name)):
            counts = self.account.nodes.get(node) or Counts()
            both = counts.releases, self.evaluations.answers(node)
            if both not in known:
                known[both] = self.evaluations.with_updates(self.account, self._cost, *both).epsilon_upper
            numbers = counts.asked, counts.answered, counts.declined, counts.failed, counts.refused
            nodes.append(NodeReport(node, *numbers, both[0], known[both], both[1]))
        guarantee, pair = None if mechanism is None and not asked else self._worst(), None
        if guarantee is not None and mechanism is not None:
            pair = self.crowds.observers(guarantee, mechanism, self.account.most())
            reasons = {
                "evaluations": bool(asked),
                "weights, which tell whose release is which": self.plan.most_examples is not None,
                "releases that come when they like": self.plan.arrivals is not None,
                SCOUTS: self.plan.clip_scouts is not None,
            }
            for lacks in (what for what, there in reasons.items() if there):
                pair = GuaranteePair(guarantee, None, reason=f"the account of the crowd does not have {lacks}")
        return Report(
            settings=self.plan,
            run=self.number,
            identity=identity_of(mechanism).hex() if mechanism is not None else "",
            dimension=mechanism.domain.dimension if mechanism is not None else 0,
            rounds=tuple(self.rounds),
            nodes=tuple(nodes),
            guarantee=guarantee,
            scores=tuple(scores),
            observers=pair,
            evaluations=tuple(self.evaluations.reports),
        )

    def _worst(self) -> Guarantee:
        """Return what holds for every client: the guarantee of the most updates and most answers to evaluations."""
        both = self.account.most(), self.evaluations.answers()
        return replace(self.evaluations.with_updates(self.account, self._cost, *both), delta=self.plan.delta)


def _at(step: str) -> str:
    return f" ({step})" if step else ""


def _called(node: Node) -> str:
    """Return how to call a node in a sentence: engines that number their nodes give no name."""
    return f"node {node}" if isinstance(node, int) else node
