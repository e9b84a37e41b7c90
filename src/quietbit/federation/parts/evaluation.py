"""Private evaluation: one randomised answer per client about a model, and estimates from many.

Idea     an app computes its metric as usual; one cell of randomised response leaves the node. A
         share (accuracy) or a bounded number (a loss) becomes right or wrong on an example drawn at
         random; a list of counts (histogram, confusion matrix) becomes one of its cells. The budget
         of all evaluations is set aside from the run's, so updates and answers never compete for it
         (`Target.without`).
Symbols  n answers, h of them in a cell: h is binomial with the frequency f = t share + (1 - t)/k;
         t: truth, k: cells.
Source   Clopper and Pearson (1934) for f; the interval of the share is that of f, mapped by the
         line between them.

The interval covers the coins, and which clients were asked if those who answered are a random draw:
clients that differ make h less spread than binomial (Hoeffding 1956), and so does a draw without
replacement. It does not cover clients that choose not to answer, or that lie
(docs/how-to/evaluate-privately.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import ERROR, INFO, WARNING
from typing import Any, ClassVar, final

import numpy as np
from attrs import evolve, field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import check_int, require
from quietbit.federation.fields import Names, Real, Whole, choice, needed
from quietbit.federation.intervals import clopper_pearson
from quietbit.federation.messages import Node
from quietbit.federation.part import AppAnswer, Arrival, Part
from quietbit.federation.record import SHOWN, Counts, Note, RoundReport, grouped
from quietbit.federation.terms import Say, Section, Terms, given
from quietbit.mechanism.registry import identity_of
from quietbit.mechanism.response import MOST_CELLS, RandomisedResponse
from quietbit.node.request import Request
from quietbit.privacy.cost import Cost
from quietbit.target import MAX_RELEASES, Adjacency, Unit

__all__ = ["Estimate", "Evaluate", "Evaluation", "EvaluationReport"]

FEW_ANSWERS = 100  # fewer leave an interval of a third of its range and more
NO_METRIC = (
    "the apps of {} simulated nodes returned no {}, and a coin was released in its place. "
    "The first:\n{}"
)
DOUBT = 0.05
MOST_LETTERS = 100


@final
@frozen
class Evaluate(Section):
    """``[evaluate]``: nodes answer evaluations with one randomised cell each, at ``epsilon``.

    ``metric`` is the app's, a number from 0 to ``upper_bound``, or with ``bins`` a list of as many
    counts. With ``groups`` it is a list of two counts per group, right and wrong. A client answers
    ``releases`` evaluations, as many as it makes updates unless given.
    """

    title: ClassVar[str] = "evaluate"

    epsilon: float = needed(Real())
    metric: str = "accuracy"
    upper_bound: float = choice(Real(), 1.0)
    bins: int | None = choice(Whole(2, MOST_CELLS))
    releases: int | None = choice(Whole(1, MAX_RELEASES))
    groups: str | None = choice(Names(MOST_CELLS // 2))

    @property
    def group_names(self) -> tuple[str, ...]:
        """The groups whose accuracies are estimated; empty without ``groups``."""
        return () if self.groups is None else tuple(self.groups.split(", "))

    @property
    def cells(self) -> int | None:
        """How many counts the app's metric is a list of; None where it is one number."""
        return 2 * len(self.group_names) or self.bins

    def check(self) -> None:
        """Refuse a metric without a name, and cells beside groups."""
        named = isinstance(self.metric, str) and 0 < len(self.metric) <= MOST_LETTERS
        require(named, "evaluate.metric", self.metric, "a name")
        require(
            self.bins is None or self.groups is None,
            "evaluate.bins",
            self.bins,
            "left out",
            "evaluate.groups has two cells per group",
        )

    def check_plan(self, plan: Terms) -> None:
        """Require a number of evaluations, and a budget that leaves something to updates."""
        if plan.releases is None:
            given(plan, "evaluate.releases", " where the mechanism's strength is")
        plan.update_target  # noqa: B018 - refused now, if the budget is too small

    def spends(self, terms: Terms) -> float:
        """Return the epsilon that is set aside for all answers of a client."""
        return self.request(terms).reserved

    def client(self, terms: Terms, asked: str) -> Evaluation | None:
        """Return the part of a turn that answers about a model."""
        return self.request(terms) if asked == self.title else None

    def assumption(self) -> str:
        """Return what the server sees of an evaluation."""
        return "The server sees each randomised answer to an evaluation, at a cost counted in it."

    def part(self, plan: Terms, say: Say, resource: Any = None) -> Evaluation:
        """Return the part that asks about models."""
        return self.request(plan)

    def request(self, plan: Terms) -> Evaluation:
        """Return the request of a run, at the plan's adjacency and unit."""
        asked = self
        if self.releases is None:
            asked = evolve(self, releases=plan.releases)
        return Evaluation(asked, adjacency=plan.adjacency, unit=plan.unit)


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate from ``answers`` clients, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float
    answers: int

    def __str__(self) -> str:
        # Unbiased estimates of few answers leave the range of shares.
        value = min(max(self.value, self.low), self.high)
        return f"{value:.4g} ({self.low:.4g} to {self.high:.4g})"


@final
@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """One evaluation: who was asked, who answered, and the estimates; none without an answer."""

    round: int
    metric: str
    asked: int
    answered: int
    declined: int
    estimates: tuple[Estimate, ...]
    model: str = ""  # its name, where a workflow evaluates several

    def __str__(self) -> str:
        shown = [str(estimate) for estimate in self.estimates[:SHOWN]]
        if len(self.estimates) > SHOWN:
            shown.append("...")
        subject = f"{self.metric} of {self.model}" if self.model else self.metric
        values = ", ".join(shown) or "unknown"
        return f"{subject} {values}, {self.answered} of {self.asked} nodes answered"


@final
@frozen(eq=False)
class Evaluation(Part):
    """Both halves of a request about a model: what a client ``asked`` answers, what a server sees.

    A client draws one cell of the app's metric by the plan's own mechanism. The server sees every
    answer, beside masked sums of updates, too; it has rounds of them, their estimates (``reports``)
    and their cost.

    >>> evaluation = Evaluation(Evaluate(0.5), adjacency="replace-one")
    >>> evaluation.reserved, round(evaluation.margin(10_000), 3)
    (0.5, 0.04)
    """

    section: ClassVar[str] = "evaluate"

    asked: Evaluate
    adjacency: Adjacency = field(kw_only=True, converter=Adjacency)
    unit: Unit = field(default=Unit.CLIENT, kw_only=True)
    mechanism: RandomisedResponse = field(init=False, repr=False)
    counts: defaultdict[Node, Counts] = field(init=False, repr=False)
    reports: list[EvaluationReport] = field(init=False, repr=False, factory=list)

    @mechanism.default
    def _mechanism(self) -> RandomisedResponse:
        """Return the most truthful response; one changed sample can change the answer."""
        which = Adjacency.REPLACE_ONE if self.unit is Unit.SAMPLE else self.adjacency
        return RandomisedResponse.within(self.asked.epsilon, self.asked.cells or 2, which)

    @counts.default
    def _nobody(self) -> defaultdict[Node, Counts]:
        return defaultdict(Counts)

    @property
    def releases(self) -> int:
        """How many evaluations a client answers."""
        return self.asked.releases or 1

    @property
    def reserved(self) -> float:
        """The pure epsilon set aside for all answers of a client."""
        return self.spends(self.releases)

    def spends(self, releases: int) -> float:
        """Return the pure epsilon of this many answers of a client."""
        return (Cost.pure(self.asked.epsilon) * releases).pure_epsilon()

    def read(self, records: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the cap of all answers."""
        return {"epsilon": self.reserved, "delta": 0.0}

    def accept(self, request: Request, arrival: Arrival) -> None:
        """Refuse a mechanism that is not the one that the plan calibrates for its evaluations."""
        offered = arrival.proposed.mechanism
        require(
            identity_of(offered) == identity_of(self.mechanism),
            "mechanism of the evaluation",
            type(offered).__name__,
            "the one that follows from quietbit.evaluate, with the same parameters",
            "use the same version of quietbit on server and nodes",
        )

    def answer(self, app: AppAnswer, update: Any) -> FloatVector:
        """Return the app's metric as shares of cells."""
        return self.shares(app.metric(self.asked.metric))

    def due(self, number: int, rounds: int | None) -> bool:
        """Return whether round ``number`` asks about its model, of answers spread over ``rounds``.

        >>> evaluation = Evaluation(Evaluate(1.0, releases=3), adjacency="zero-out")
        >>> [number for number in range(1, 9) if evaluation.due(number, 8)]
        [3, 6, 8]
        """
        if rounds is None or self.releases >= rounds:
            return True
        return number * self.releases // rounds > (number - 1) * self.releases // rounds

    def shares(self, value: Any) -> FloatVector:
        """Return the app's result as an update: shares of cells; anything but numbers is refused.

        The numbers themselves are private, and are in no message.
        """
        numbers = np.atleast_1d(np.asarray(value, dtype=np.float64))
        size = 1 if self.asked.cells is None else self.asked.cells
        metric = f"{self.asked.metric} of the app"
        require(numbers.shape == (size,), f"shape of {metric}", numbers.shape, f"({size},)")
        require(bool(np.isfinite(numbers).all()), metric, "a NaN or an infinity", "finite")
        if self.asked.cells is None:
            share = min(max(float(numbers[0]) / self.asked.upper_bound, 0.0), 1.0)
            return np.array([1.0 - share, share])
        counts = np.maximum(numbers, 0.0)
        return counts / max(math.fsum(counts), np.finfo(np.float64).tiny)

    def metric_of(self, mean: Sequence[float] | FloatVector) -> float | list[float]:
        """Return the metric of decoded shares, or the share of every cell."""
        if self.asked.cells is None:
            return self.asked.upper_bound * float(mean[1])
        return [float(share) for share in mean]

    def estimates(self, mean: Sequence[float] | FloatVector, answers: int) -> tuple[Estimate, ...]:
        """Return the estimates from the decoded mean of answers: the metric, or one per cell."""
        cells = range(1, 2)
        if self.asked.cells is not None:
            cells = range(self.asked.cells)
        return tuple(self._estimate(float(mean[cell]), answers) for cell in cells)

    def _says_little(self, estimates: Sequence[Estimate]) -> bool:
        """Return whether an interval covers more than half of what is possible."""
        return any(estimate.high - estimate.low > self._unit / 2 for estimate in estimates)

    def margin(self, answers: int, share: float = 0.5) -> float:
        """Return half the length of the interval from this many answers, for a cell of a share."""
        estimate = self._estimate(share, check_int(answers, "answers", 1))
        return (estimate.high - estimate.low) / 2

    @property
    def _unit(self) -> float:
        """The largest value that an estimate can have."""
        return self.asked.upper_bound if self.asked.cells is None else 1.0

    def _estimate(self, share: float, answers: int) -> Estimate:
        unit = self._unit
        named = self.mechanism.frequency(share) * answers
        low, high = clopper_pearson(min(max(named, 0.0), answers), answers, DOUBT / 2)
        ends = [unit * min(max(self.mechanism.share(end), 0.0), 1.0) for end in (low, high)]
        value = unit * min(max(share, 0.0), 1.0)  # noise may lead outside of what is possible
        return Estimate(value, ends[0], ends[1], answers)

    def report(
        self, answers: RoundReport, mean: FloatVector | None, model: str
    ) -> EvaluationReport:
        """Return the estimates of a round of answers, and keep them for the run's report."""
        estimates: tuple[Estimate, ...] = ()
        if mean is not None:
            estimates = self.estimates(mean, answers.answered)
        report = EvaluationReport(
            answers.round,
            self.asked.metric,
            answers.asked,
            answers.answered,
            answers.declined,
            estimates,
            model,
        )
        self.reports.append(report)
        return report

    def lines(
        self, report: EvaluationReport, notes: Sequence[Note], crashes: Sequence[str]
    ) -> list[tuple[int, str]]:
        """Return what became of an evaluation, sentences with levels of logging."""
        lines = [(WARNING, line) for line in grouped(notes)]
        if crashes:
            lines.append((ERROR, NO_METRIC.format(len(crashes), report.metric, crashes[0])))
        lines.append((INFO, str(report)))
        answers = report.answered
        if 0 < answers < FEW_ANSWERS:
            lines.append((WARNING, f"{answers} randomised answers are few: a rough estimate."))
        if self._says_little(report.estimates):
            reason = "the interval covers more than half of what is possible"
            lines.append((WARNING, f"{answers} answers are too few: {reason}."))
        return lines
