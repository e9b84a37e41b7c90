"""The server's account of every node, and its report: rounds, nodes, bytes, and the guarantee of the worst client.

Idea     the server cannot know whether a release that did not arrive was never made or was lost, so
         every request is counted as a release unless the node said that it made none: an upper
         bound for a node that keeps its id through the run. What a node spent in other runs, or
         under another id, its own ledger knows. The report is one value that prints as a table and
         writes itself as JSON, from which `quietbit report` makes a page; it holds counts and
         public settings, and no number that a client computed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any, final

from quietbit._files import write_json
from quietbit.privacy.guarantee import Guarantee, GuaranteePair, shown_epsilon
from quietbit.run.costs import spread
from quietbit.run.parts.evaluation import Estimate
from quietbit.run.plan import Plan
from quietbit.target import Unit

__all__ = ["Counts", "EvaluationReport", "NodeReport", "Report", "RoundReport", "grouped"]

FORMAT, VERSION = "quietbit federated run", 1  # of the saved JSON
SHOWN = 12  # nodes and reasons in the table; the JSON has them all
NAMED = 3  # nodes in a line about several
FEW_ANSWERS = 100  # to an evaluation: fewer leave an interval of a third of its range and more
NODE = re.compile(
    r"(?:node )?(?P<node>\S+) (?P<said>(?:declined|did not answer|was refused)\b.+)", re.DOTALL
)
COUNTS = "asked  answered  declined  failed  refused"
CRASHES = "the apps of {} simulated nodes crashed, and zero was released in place of their updates. The first:\n{}"
NO_METRIC = "the apps of {} simulated nodes returned no {}, and a coin was released in its place. The first:\n{}"


@final
@dataclass(slots=True)
class Counts:
    """Counts of one node: requests, valid releases, replies that said no, no reply, releases that were refused."""

    asked: int = 0
    answered: int = 0
    declined: int = 0
    failed: int = 0
    refused: int = 0

    @property
    def releases(self) -> int:
        """The most releases that this node can have made."""
        return self.asked - self.declined


@final
@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round: how many were asked, what became of it, and the bytes of whole messages as the engine sends them."""

    round: int
    asked: int
    answered: int  # whose release is in the mean
    declined: int  # who say that they released nothing
    failed: int  # from whom no reply came: they may have released
    refused: int  # replies that are not a valid release
    # no valid release, or a step to a model that is not finite: the model stayed as it was
    skipped: bool
    uplink_payload: int  # bytes of payloads alone
    uplink: int
    downlink: int
    reasons: tuple[str, ...]
    steps: tuple[
        int, ...
    ] = ()  # of a masked sum: how many sent keys, shares, their vector, and shares for unmasking
    clip: float | None = None  # where it moves
    epsilon_upper: float = (
        0.0  # of the worst client when the round, and the evaluation of its model, were over
    )
    # of those that declined: who could not replay what they were sent, and get the full model next
    resyncs: int = 0
    crashed: int = 0  # apps, in a simulation: their nodes released a zero update
    outliers: int = (
        0  # of those refused: longer than noise makes them (`quietbit.mechanism.poison`)
    )
    effective: float | None = (
        None  # where releases are weighted: how many of equal weight are as noisy
    )
    # asked about the clip, and in none of the counts above; their bytes and reasons are added
    scouts: int = 0
    scouted: int = 0  # of these: who answered
    records: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # of other parts, by their sections

    def beside(self, scouts: RoundReport) -> RoundReport:
        """Return this round with what became of its scouts."""
        names = ("refused", "uplink_payload", "uplink", "downlink", "reasons", "resyncs", "crashed")
        both = {name: getattr(self, name) + getattr(scouts, name) for name in names}
        return replace(self, **both, scouts=scouts.asked, scouted=scouts.answered)

    def lines(self, crashes: Sequence[str] = ()) -> list[tuple[int, str]]:
        """Return what became of the round, sentences with levels of logging; the first traceback among them."""
        lines = [(WARNING, f"round {self.round}: {reason}") for reason in grouped(self.reasons)]
        if crashes:
            lines.append((ERROR, f"round {self.round}: {CRASHES.format(len(crashes), crashes[0])}"))
        counts = f"{self.declined} declined, {self.failed} failed, {self.refused} refused"
        counts += f" ({self.outliers} outliers)" if self.outliers else ""
        crashed = f", {self.crashed} apps crashed" if self.crashed else ""
        scouts = (
            f"; {self.scouted} of {self.scouts} scouts answered" if self.clip is not None else ""
        )
        lines.append(
            (INFO, f"{self.answered} of {self.asked} nodes answered, {counts}{crashed}{scouts}")
        )
        if self.skipped:
            lines.append((WARNING, f"round {self.round} is skipped: the model stays as it was."))
        return lines


@final
@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """One evaluation: who was asked, who answered, and the estimates with their 95 % intervals (none: no answer)."""

    round: int
    metric: str
    asked: int
    answered: int
    declined: int
    estimates: tuple[Estimate, ...]
    model: str = ""  # its name, where a workflow evaluates several

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.estimates[:SHOWN])) + (
            ", ..." if len(self.estimates) > SHOWN else ""
        )
        what = f"{self.metric} of {self.model}" if self.model else self.metric
        return f"{what} {shown or 'unknown'}, {self.answered} of {self.asked} nodes answered"

    def lines(self, reasons: Sequence[str], crashes: Sequence[str]) -> list[tuple[int, str]]:
        """Return what became of it, sentences with levels of logging; the first traceback among them."""
        said = [(WARNING, reason) for reason in grouped(reasons)]
        said += (
            [(ERROR, NO_METRIC.format(len(crashes), self.metric, crashes[0]))] if crashes else []
        )
        said.append((INFO, str(self)))
        if 0 < self.answered < FEW_ANSWERS:
            said.append(
                (
                    WARNING,
                    f"{self.answered} randomised answers are few: the estimate is a rough one.",
                )
            )
        return [(level, f"evaluation of round {self.round}: {line}") for level, line in said]


@final
@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node: the counts, the most releases it can have made, and what those cost, its evaluations included."""

    node: int | str
    asked: int
    answered: int
    declined: int
    failed: int
    refused: int
    releases: int
    epsilon_upper: float
    evaluations: int = 0


@final
@dataclass(frozen=True, slots=True)
class Report:
    """What happened in a run so far; `print` it, or `save` it.

    It names nodes, and rounds in which one did not answer: where their order is secret, it is for
    the server alone.
    """

    settings: Plan
    run: int
    identity: str
    dimension: int
    rounds: tuple[RoundReport, ...]
    nodes: tuple[NodeReport, ...]
    guarantee: Guarantee | None
    scores: tuple[
        Mapping[str, float], ...
    ] = ()  # of the server's own ``evaluate_fn``, each with its round
    observers: GuaranteePair | None = None
    evaluations: tuple[EvaluationReport, ...] = ()

    @property
    def uplink(self) -> int:
        """Bytes of all messages that came in."""
        return sum(entry.uplink for entry in self.rounds)

    @property
    def downlink(self) -> int:
        """Bytes of all messages that went out for training."""
        return sum(entry.downlink for entry in self.rounds)

    def unanswered(self) -> str | None:
        """Return a sentence for a run in which no node answered in any round; None for any other."""
        if not self.rounds or any(entry.answered for entry in self.rounds):
            return None
        why = " ".join(grouped(self.rounds[-1].reasons)[:1]) or "no reply came in time."
        return (
            f"No node answered in {len(self.rounds)} rounds, and the model has not changed: {why}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values; ids are words, being too long for JSON's numbers, and what is not finite is null."""
        values: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(self)}
        for entry in values["rounds"]:
            if not entry["records"]:
                del entry["records"]
        values |= {"run": str(self.run), "settings": self.settings.to_run_config()}
        values["nodes"] = [asdict(entry) | {"node": str(entry.node)} for entry in self.nodes]
        held, pair = self.guarantee, self.observers
        values["guarantee"] = (
            None
            if held is None
            else {
                "epsilon_upper": held.epsilon_upper,
                "delta": held.delta,
                "unit": held.unit.value,
                "adjacency": held.adjacency.value,
                "trust": held.trust.value,
                "min_honest_clients": None
                if self.settings.masks is None
                else self.settings.masks.honest,
                "sentence": held.sentence(),
            }
        )
        values["observers"] = (
            None
            if pair is None
            else {
                "server_epsilon_upper": pair.server.epsilon_upper,
                "result_epsilon_upper": pair.result.epsilon_upper
                if pair.result is not None
                else None,
                "crowd": pair.crowd,
                "shuffles": pair.shuffles,
                "secret_order": pair.secret_order,
                "sentence": pair.sentence(),
            }
        )
        plain: dict[str, Any] = _plain(values | {"uplink": self.uplink, "downlink": self.downlink})
        return plain

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON; the file appears whole or not at all."""
        return write_json(Path(path), self.to_json())

    def __str__(self) -> str:
        lines = [
            f"quietbit: run {self.run}, {self.dimension:,} parameters, mechanism {self.identity[:16]}",
            "Rounds, with the bytes of whole messages",
            f"round  {COUNTS}      uplink    downlink  notes",
        ]
        for entry in self.rounds:
            note = f"  {' > '.join(map(str, entry.steps))}" if entry.steps else ""
            note += (
                ""
                if entry.clip is None
                else f"  clip {entry.clip:.3g}, {entry.scouted} of {entry.scouts} scouts"
            )
            note += f"  {entry.resyncs} resyncs" if entry.resyncs else ""
            note += f"  {entry.crashed} apps crashed" if entry.crashed else ""
            note += f"  {entry.outliers} outliers" if entry.outliers else ""
            note += "" if entry.effective is None else f"  {entry.effective:.4g} of equal weight"
            note += "  skipped" if entry.skipped else ""
            lines.append(
                f"{entry.round:5}  {_counts(entry)}  {entry.uplink:10,}  {entry.downlink:10,}{note}"
            )
        if self.evaluations:
            lines.append(
                "Evaluations, with 95 % intervals (answers are randomised, and of the nodes that were asked)"
            )
            lines += [f"{entry.round:5}  {entry}" for entry in self.evaluations]
        lines += [
            "Nodes, in this run (what a node released in other runs is in its own ledger)",
            f"                node  {COUNTS}  releases  epsilon <=",
        ]
        for node in self.nodes[:SHOWN]:
            epsilon = shown_epsilon(node.epsilon_upper)
            lines.append(f"{node.node:20}  {_counts(node)}  {node.releases:8}  {epsilon:>10}")
        if len(self.nodes) > SHOWN:
            lines.append(f"... and {len(self.nodes) - SHOWN} more nodes")
            counts = [(node.releases, node.epsilon_upper) for node in self.nodes]
            lines.append(f"Releases per node: {spread(counts)}")
        reasons = [
            f"round {entry.round}: {reason}"
            for entry in self.rounds
            for reason in grouped(entry.reasons)
        ]
        lines += ["What went wrong", *reasons[:SHOWN]] if reasons else []
        lines += [f"... and {len(reasons) - SHOWN} more"] if len(reasons) > SHOWN else []
        lines += [self.promise()] if self.guarantee is not None else []
        lines += [self.observers.second()] if self.observers is not None else []
        return "\n".join(lines)

    def promise(self) -> str:
        """Return the guarantee of the worst client in words; a run that has not begun has none."""
        if self.guarantee is None:
            return "Nothing was released."
        masks = self.settings.masks
        counted = (
            "" if masks is None else f" It counts on {masks.honest} honest clients in every sum."
        )
        who = (
            "The worst client"
            if self.guarantee.unit is Unit.CLIENT
            else "Any sample of the worst site"
        )
        return f"{who}, in this run: {self.guarantee.sentence()}{counted}"


def grouped(reasons: Iterable[str]) -> list[str]:
    """Return reasons with those of several nodes that say the same in one line.

    >>> grouped(["node 7 declined: no.", "node 8 declined: no.", "there is no sum"])
    ['2 nodes (7, 8) declined: no.', 'there is no sum']
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for reason in reasons:
        parts = NODE.fullmatch(reason)
        found.setdefault(parts["said"] if parts else reason, []).append(
            (parts["node"] if parts else "", reason)
        )
    lines = []
    for said, entries in found.items():
        nodes = [node for node, _ in entries]
        shown = ", ".join(nodes[:NAMED]) + (", ..." if len(nodes) > NAMED else "")
        lines.append(
            f"{len(nodes)} nodes ({shown}) {said}" if len(nodes) > 1 and nodes[0] else entries[0][1]
        )
    return lines


def _plain(value: Any) -> Any:
    """Return what JSON has of a value: lists for tuples, and null for what is not finite."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _counts(entry: RoundReport | NodeReport) -> str:
    """Format the columns of `COUNTS`."""
    return f"{entry.asked:5}  {entry.answered:8}  {entry.declined:8}  {entry.failed:6}  {entry.refused:7}"
