"""The server's account of every node, and its report: rounds, nodes, bytes, and the worst client.

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
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, final

from quietbit._files import write_json
from quietbit.errors import one_line
from quietbit.federation.record import LETTERS, NAMED, SHOWN, NodeReport, RoundReport, grouped
from quietbit.federation.terms import Terms
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import Unit

__all__ = ["Report"]

FORMAT = "quietbit federated run"  # of the saved JSON
VERSION = 1
NOTHING_ARRIVED = "No release arrived. This counts every request as a release that was lost."
SEVERAL = "An owner whose node comes back under another, or joins twice, has spent their sum."


@final
@dataclass(frozen=True, slots=True)
class Report:
    """What happened in a run so far; `print` it, or `save` it.

    It names nodes, and rounds in which one did not answer: where their order is secret, it is for
    the server alone.
    """

    settings: Terms
    run: int
    identity: str
    dimension: int
    rounds: tuple[RoundReport, ...]
    nodes: tuple[NodeReport, ...]
    guarantee: Guarantee | None
    scores: tuple[Mapping[str, float], ...] = ()  # of the server's own ``evaluate_fn``, by round
    evaluations: tuple[Any, ...] = ()  # `run.parts.evaluation.EvaluationReport` each
    unprotected: int = 0  # nodes that sent what no gate lets out: there is no guarantee
    participation: str = ""  # releases and epsilons of some nodes, in words
    numbers: tuple[str, ...] = ()  # names of what owners let out as it is, beside releases
    uplink_beside: int = 0  # bytes of messages outside of rounds, such as evaluations
    downlink_beside: int = 0

    @property
    def uplink(self) -> int:
        """Bytes of all messages that came in."""
        return self.uplink_beside + sum(entry.uplink for entry in self.rounds)

    @property
    def downlink(self) -> int:
        """Bytes of all messages that went out."""
        return self.downlink_beside + sum(entry.downlink for entry in self.rounds)

    def unanswered(self) -> str | None:
        """Return a sentence for a run in which no node answered in any round; else None."""
        if not self.rounds or any(entry.answered for entry in self.rounds):
            return None
        lines = grouped(self.rounds[-1].reasons) or ["no reply came in time."]
        count = len(self.rounds)
        return f"No node answered in {count} rounds, and the model has not changed: {lines[0]}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values: ids as text, as JSON's numbers are too short; null for infinity."""
        values: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(self)}
        for entry, known in zip(values["rounds"], self.rounds, strict=True):
            entry["reasons"] = known.sentences()
        values["run"] = str(self.run)
        values["settings"] = self.settings.to_run_config()
        values["nodes"] = [asdict(entry) | {"node": one_line(entry.node)} for entry in self.nodes]
        if self.guarantee is not None:
            sentence = self.guarantee.sentence()
            honest = self.settings.honest
            values["guarantee"] |= {"min_honest_clients": honest, "sentence": sentence}
        values["uplink"] = self.uplink
        values["downlink"] = self.downlink
        plain: dict[str, Any] = _plain(values)
        return plain

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON; the file appears complete or not at all."""
        return write_json(Path(path), self.to_json())

    def __str__(self) -> str:
        head = f"quietbit: run {self.run}, {self.dimension:,} parameters"
        lines = [
            f"{head}, mechanism {self.identity[:16] or self.settings.mechanism.name}",
            "Rounds, with the bytes of whole messages",
            "round  asked  answered  declined  failed  refused      uplink    downlink  notes",
        ]
        for entry in self.rounds:
            replies = f"{entry.asked:5}  {entry.answered:8}  {entry.declined:8}"
            missing = f"{entry.failed:6}  {entry.refused:7}"
            sizes = f"{entry.uplink:10,}  {entry.downlink:10,}"
            row = [f"{entry.round:5}", replies, missing, sizes, *self._notes(entry)]
            lines.append("  ".join(row))
        if self.uplink_beside or self.downlink_beside:
            beside = f"{self.uplink_beside:10,}  {self.downlink_beside:10,}"
            lines.append(f"{'Evaluations and other messages':>46}  {beside}")
        if self.evaluations:
            rule = "answers are randomised, and of the nodes that were asked"
            lines.append(f"Evaluations, with 95 % intervals ({rule})")
            lines += [f"{entry.round:5}  {entry}" for entry in self.evaluations]
        if self.participation:
            lines.append(f"Releases per node, in this run: {self.participation}")
        reasons = []
        for entry in self.rounds:
            reasons += [f"round {entry.round}: {line}" for line in grouped(entry.reasons)]
        if reasons:
            lines += ["What went wrong", *reasons[:SHOWN]]
        if len(reasons) > SHOWN:
            lines.append(f"... and {len(reasons) - SHOWN} more")
        if self.guarantee is not None or self.unprotected or self.settings.public:
            lines.append(self.promise())
        return "\n".join(lines)

    def promise(self) -> str:
        """Return the guarantee of the worst client in words; a run that has not begun has none.

        It counts by the names that nodes have on the server, and leaves out what owners let out.
        """
        if self.unprotected:
            return self.no_guarantee(self.unprotected)
        if self.settings.public:
            return "No guarantee: updates left without noise."
        if self.guarantee is None:
            return "Nothing was released."
        who = "The worst client"
        if self.guarantee.unit is not Unit.CLIENT:
            who = "Any sample of the worst site"
        named = any(isinstance(entry.node, str) for entry in self.nodes)
        who = f"{who}, per node {'name' if named else 'number'} in this run"
        if self.numbers:
            who = f"{who}, but for numbers that left unprotected ({self._listed()})"
        sentences = [f"{who}: {self.guarantee.sentence()} {SEVERAL}"]
        if self.guarantee.epsilon_upper and not self._arrived:
            sentences.insert(0, NOTHING_ARRIVED)
        sentences += [section.assumption() for section in self.settings.sections]
        return " ".join(sentence for sentence in sentences if sentence)

    @staticmethod
    def no_guarantee(count: int) -> str:
        """Return what stands in place of an epsilon where nodes sent what no gate lets out."""
        nodes = "1 node" if count == 1 else f"{count} nodes"
        return f"No guarantee: {nodes} sent unprotected replies."

    @property
    def _arrived(self) -> bool:
        """Whether a release came, valid or not, that can be told from silence."""
        came = any(entry.answered or entry.scouted or entry.refused for entry in self.rounds)
        return came or any(entry.extra or entry.evaluations for entry in self.nodes)

    def _listed(self) -> str:
        """Return the names of what owners let out, the first of them."""
        names = [one_line(name, LETTERS) for name in self.numbers[:NAMED]]
        if len(self.numbers) > NAMED:
            names.append("...")
        return ", ".join(names)

    def _notes(self, entry: RoundReport) -> list[str]:
        """Return the last columns of a round: what its sections note, and what went wrong."""
        notes = [section.note(entry) for section in self.settings.sections]
        if entry.crashed:
            notes.append(f"{entry.crashed} apps crashed")
        if entry.outliers:
            notes.append(f"{entry.outliers} outliers")
        if entry.skipped:
            notes.append("skipped")
        return [note for note in notes if note]


def _plain(value: Any) -> Any:
    """Return what JSON has of a value: lists for tuples, and null for what is not finite."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
