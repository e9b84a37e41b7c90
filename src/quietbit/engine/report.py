"""The server's account of every node, and its report: rounds, nodes, bytes, and the guarantee of the worst client.

Idea     the server cannot know whether a release that did not arrive was never made or was lost, so every question is
         counted as a release unless the node said that it made none; and what releases cost is found as a node finds
         it. The report is one value that prints as a table and writes itself as JSON; it holds counts and public
         settings, and no number that a client computed.

For a node that keeps its id through the run this is an upper bound on what it released in the run, and equal to the
node's own ledger where nothing was lost and both count on the same honest clients. A SuperNode that restarts may come
back under another id and is then another node here; what it spent in other runs is not known here at all, and the
report says so. The node's own ledger knows both. `quietbit report` makes a page of a report that was saved.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any, final

from quietbit._files import write_json
from quietbit.plan.costs import spread
from quietbit.plan.evaluation import Estimate
from quietbit.plan.plan import Plan
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee, GuaranteePair
from quietbit.target import Target, Unit

__all__ = ["Counts", "EvaluationReport", "NodeCounts", "NodeReport", "Report", "RoundReport", "grouped"]

FORMAT, VERSION = "quietbit federated run", 1  # of the saved JSON
SHOWN = 12  # nodes and reasons in the table; the JSON has them all
NAMED = 3  # nodes in a line about several
NODE = re.compile(r"(?:node )?(?P<node>\S+) (?P<said>(?:declined|did not answer|was refused)\b.+)", re.DOTALL)
COUNTS = "asked  answered  declined  failed  refused"
CRASHES = "the apps of {} simulated nodes crashed, and zero was released in place of their updates. The first:\n{}"
NO_METRIC = "the apps of {} simulated nodes returned no {}, and a coin was released in its place. The first:\n{}"


@final
@dataclass(slots=True)
class Counts:
    """Counts of one node: questions, valid releases, replies that said no, no reply, releases that were refused."""

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
class NodeCounts:
    """Counts of all nodes of a run, and what they cost on the account that nodes keep."""

    def __init__(self, cap: Target) -> None:
        """Start with nobody; the cap is the run's."""
        self._account = Account(cap, "adaptive")
        self.nodes: dict[int | str, Counts] = {}

    def node(self, number: int | str) -> Counts:
        """Return the counts of a node, which start from zero."""
        return self.nodes.setdefault(number, Counts())

    def guarantee(self, spent: Iterable[tuple[Cost, int]]) -> Guarantee:
        """Return what these releases cost one client: costs, and how often each."""
        account = self._account
        for cost, releases in spent:
            account = account.spend(cost, releases) if releases else account
        return account.guarantee()

    def most(self) -> int:
        """Return the releases of the node with the most."""
        return max((node.releases for node in self.nodes.values()), default=0)


@final
@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round: how many were asked, and what became of it (with reasons); the bytes sent.

    Nodes that ``answered`` are in the mean. Those that ``declined`` say that they released nothing; those that
    ``failed`` did not reply, or something failed on the way: they may have released. Replies that are not a valid
    release are ``refused``. ``epsilon_upper`` is that of the worst client when the round was over.

    ``uplink_payload`` counts payloads alone, ``uplink`` and ``downlink`` whole messages as the engine serialises them.
    A round without a valid release, or that would leave a model that is not finite, is ``skipped``: the model stays
    as it was. Of a masked sum, ``steps`` says how many sent keys, shares, their vector, and shares for unmasking.
    ``clip`` is that of the round, where it moves; of ``scouts``, who are among none of these counts, ``scouted``
    answered, and their bytes, reasons and refused replies are added. ``resyncs`` are nodes that could not replay the
    rounds they were sent, released nothing and get the full model next; they are among those that declined.
    Where releases are weighted, ``effective`` is how many of equal weight are as noisy (`quietbit.wire.weighted`).
    Of those refused, ``outliers`` are longer than noise makes them (`quietbit.mechanism.poison`).
    Only a simulation knows which apps ``crashed``: their nodes answered with the release of a zero update.
    """

    round: int
    asked: int
    answered: int
    declined: int
    failed: int
    refused: int
    skipped: bool
    uplink_payload: int
    uplink: int
    downlink: int
    reasons: tuple[str, ...]
    steps: tuple[int, ...] = ()
    clip: float | None = None
    epsilon_upper: float = 0.0
    resyncs: int = 0
    crashed: int = 0
    outliers: int = 0
    effective: float | None = None
    scouts: int = 0
    scouted: int = 0

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
        scouts = f"; {self.scouted} of {self.scouts} scouts answered" if self.clip is not None else ""
        lines.append((INFO, f"{self.answered} of {self.asked} nodes answered, {counts}{crashed}{scouts}"))
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
        shown = ", ".join(map(str, self.estimates[:SHOWN])) + (", ..." if len(self.estimates) > SHOWN else "")
        what = f"{self.metric} of {self.model}" if self.model else self.metric
        return f"{what} {shown or 'unknown'}, {self.answered} of {self.asked} nodes answered"

    def lines(self, reasons: Sequence[str], crashes: Sequence[str]) -> list[tuple[int, str]]:
        """Return what became of it, sentences with levels of logging; the first traceback among them."""
        said = [(WARNING, reason) for reason in grouped(reasons)]
        said += [(ERROR, NO_METRIC.format(len(crashes), self.metric, crashes[0]))] if crashes else []
        return [(level, f"evaluation of round {self.round}: {line}") for level, line in [*said, (INFO, str(self))]]


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

    ``scores`` are the numbers that the server's own ``evaluate_fn`` found, each with its round.
    It names nodes, and rounds in which one did not answer: where their order is secret, it is for the server alone.
    """

    settings: Plan
    run: int
    identity: str
    dimension: int
    rounds: tuple[RoundReport, ...]
    nodes: tuple[NodeReport, ...]
    guarantee: Guarantee | None
    scores: tuple[Mapping[str, float], ...] = ()
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
        return f"No node answered in {len(self.rounds)} rounds, and the model has not changed: {why}"

    def to_json(self) -> dict[str, Any]:
        """Plain values; ids of runs and nodes are words, being too long for JSON's numbers, and no bound is null."""
        values: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(self)}
        values["scores"] = [{name: _finite(value) for name, value in entry.items()} for entry in self.scores]
        values["rounds"] = [
            _plain(entry) | {"reasons": list(entry.reasons), "steps": list(entry.steps)} for entry in self.rounds
        ]
        values["evaluations"] = [
            asdict(one) | {"estimates": list(map(asdict, one.estimates))} for one in self.evaluations
        ]
        values["run"] = str(self.run)
        values["settings"] = self.settings.to_run_config()
        values["nodes"] = [_plain(entry) | {"node": str(entry.node)} for entry in self.nodes]
        held, pair = self.guarantee, self.observers
        values["guarantee"] = None if held is None else {
            "epsilon_upper": _finite(held.epsilon_upper), "delta": held.delta, "unit": held.unit.value,
            "adjacency": held.adjacency.value, "trust": held.trust.value,
            "min_honest_clients": self.settings.min_honest_clients, "sentence": held.sentence(),
        }  # fmt: skip
        values["observers"] = None if pair is None else {
            "server_epsilon_upper": pair.server.epsilon_upper,
            "result_epsilon_upper": pair.result.epsilon_upper if pair.result is not None else None,
            "crowd": pair.crowd, "shuffles": pair.shuffles, "secret_order": pair.secret_order,
            "sentence": pair.sentence(),
        }  # fmt: skip
        return values | {"uplink": self.uplink, "downlink": self.downlink}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON, from which `quietbit report` makes a page; the file appears whole or not at all."""
        return write_json(Path(path), self.to_json())

    def __str__(self) -> str:
        lines = [
            f"quietbit: run {self.run}, {self.dimension:,} parameters, mechanism {self.identity[:16]}",
            "Rounds, with the bytes of whole messages",
            f"round  {COUNTS}      uplink    downlink",
        ]
        for entry in self.rounds:
            note = f"  {' > '.join(map(str, entry.steps))}" if entry.steps else ""
            note += "" if entry.clip is None else f"  clip {entry.clip:.3g}, {entry.scouted} of {entry.scouts} scouts"
            note += f"  {entry.resyncs} resyncs" if entry.resyncs else ""
            note += f"  {entry.crashed} apps crashed" if entry.crashed else ""
            note += f"  {entry.outliers} outliers" if entry.outliers else ""
            note += "" if entry.effective is None else f"  {entry.effective:.4g} of equal weight"
            note += "  skipped" if entry.skipped else ""
            lines.append(f"{entry.round:5}  {_counts(entry)}  {entry.uplink:10,}  {entry.downlink:10,}{note}")
        if self.evaluations:
            lines.append("Evaluations, with 95 % intervals (answers are randomised, and of the nodes that were asked)")
            lines += [f"{entry.round:5}  {entry}" for entry in self.evaluations]
        lines += [
            "Nodes, in this run (what a node released in other runs is in its own ledger)",
            f"                node  {COUNTS}  releases  epsilon <=",
        ]
        for node in self.nodes[:SHOWN]:
            lines.append(f"{node.node:20}  {_counts(node)}  {node.releases:8}  {node.epsilon_upper:10.4g}")
        if len(self.nodes) > SHOWN:
            lines.append(f"... and {len(self.nodes) - SHOWN} more nodes")
            counts = [(node.releases, node.epsilon_upper) for node in self.nodes]
            lines.append(f"Releases per node: {spread(counts)}")
        reasons = [f"round {entry.round}: {reason}" for entry in self.rounds for reason in grouped(entry.reasons)]
        lines += ["What went wrong", *reasons[:SHOWN]] if reasons else []
        lines += [f"... and {len(reasons) - SHOWN} more"] if len(reasons) > SHOWN else []
        lines += [self.promise()] if self.guarantee is not None else []
        lines += [self.observers.second()] if self.observers is not None else []
        return "\n".join(lines)

    def promise(self) -> str:
        """Return the guarantee of the worst client in words; a run that has not begun has none."""
        if self.guarantee is None:
            return "Nothing was released."
        honest = self.settings.min_honest_clients
        counted = f" It counts on {honest} honest clients in every sum." if honest else ""
        who = "The worst client" if self.guarantee.unit is Unit.CLIENT else "Any sample of the worst site"
        return f"{who}, in this run: {self.guarantee.sentence()}{counted}"


def grouped(reasons: Iterable[str]) -> list[str]:
    """Return reasons with those of several nodes that say the same in one line.

    >>> grouped(["node 7 declined: no.", "node 8 declined: no.", "there is no sum"])
    ['2 nodes (7, 8) declined: no.', 'there is no sum']
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for reason in reasons:
        parts = NODE.fullmatch(reason)
        found.setdefault(parts["said"] if parts else reason, []).append((parts["node"] if parts else "", reason))
    lines = []
    for said, entries in found.items():
        nodes = [node for node, _ in entries]
        shown = ", ".join(nodes[:NAMED]) + (", ..." if len(nodes) > NAMED else "")
        lines.append(f"{len(nodes)} nodes ({shown}) {said}" if len(nodes) > 1 and nodes[0] else entries[0][1])
    return lines


def _plain(entry: RoundReport | NodeReport) -> dict[str, Any]:
    return asdict(entry) | {"epsilon_upper": _finite(entry.epsilon_upper)}


def _finite(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if math.isfinite(value) else None


def _counts(entry: RoundReport | NodeReport) -> str:
    """Format the columns of `COUNTS`."""
    return f"{entry.asked:5}  {entry.answered:8}  {entry.declined:8}  {entry.failed:6}  {entry.refused:7}"
