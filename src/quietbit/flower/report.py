"""The server's report: rounds, nodes, bytes, and the guarantee of the client who is worst off.

Idea     one value that prints as a table and writes itself as JSON; it holds counts and public settings, and no number
         that a client computed.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from quietbit.flower.settings import RunSettings
from quietbit.privacy.guarantee import Guarantee

__all__ = ["NodeReport", "Report", "RoundReport"]

SHOWN = 12  # nodes and reasons in the table; the JSON has them all


@final
@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round: how many were asked, answered, said no and were refused (with reasons), and the bytes sent.

    ``uplink_payload`` counts payloads alone, ``uplink`` and ``downlink`` whole messages as Flower serialises them.
    A round without a valid release is ``skipped``: the model and the inner strategy stay as they were. Of a masked
    sum, ``steps`` says how many sent keys, shares, their vector, and shares for unmasking.
    """

    round: int
    asked: int
    answered: int
    declined: int
    refused: int
    skipped: bool
    uplink_payload: int
    uplink: int
    downlink: int
    reasons: tuple[str, ...]
    steps: tuple[int, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node: the counts, the most releases it can have made, and what those cost."""

    node: int
    asked: int
    answered: int
    declined: int
    refused: int
    releases: int
    epsilon_upper: float


@final
@dataclass(frozen=True, slots=True)
class Report:
    """What happened in a run so far; `print` it, or `save` it."""

    settings: RunSettings
    run: int
    identity: str
    dimension: int
    rounds: tuple[RoundReport, ...]
    nodes: tuple[NodeReport, ...]
    guarantee: Guarantee | None

    @property
    def uplink(self) -> int:
        """Bytes of all messages that came in."""
        return sum(entry.uplink for entry in self.rounds)

    @property
    def downlink(self) -> int:
        """Bytes of all messages that went out for training."""
        return sum(entry.downlink for entry in self.rounds)

    def to_json(self) -> dict[str, Any]:
        """Plain values; ids of runs and nodes are words, being too long for JSON's numbers."""
        values: dict[str, Any] = asdict(self)
        values["rounds"] = [
            {**asdict(entry), "reasons": list(entry.reasons), "steps": list(entry.steps)} for entry in self.rounds
        ]
        values["run"] = str(self.run)
        values["settings"] = self.settings.to_run_config()
        values["nodes"] = [{**asdict(entry), "node": str(entry.node)} for entry in self.nodes]
        values["guarantee"] = None
        if self.guarantee is not None:
            held = self.guarantee
            values["guarantee"] = {
                "epsilon_upper": held.epsilon_upper,
                "delta": held.delta,
                "unit": held.unit.value,
                "adjacency": held.adjacency.value,
                "trust": held.trust.value,
                "honest": self.settings.honest,
                "sentence": held.sentence(),
            }
        return values | {"uplink": self.uplink, "downlink": self.downlink}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON."""
        place = Path(path)
        place.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        return place

    def __str__(self) -> str:
        head = "round  asked  answered  declined  refused      uplink    downlink"
        lines = [f"quietbit: run {self.run}, {self.dimension:,} parameters, mechanism {self.identity[:16]}", head]
        for entry in self.rounds:
            note = f"  {' > '.join(map(str, entry.steps))}" if entry.steps else ""
            note += "  skipped" if entry.skipped else ""
            lines.append(
                f"{entry.round:5}  {entry.asked:5}  {entry.answered:8}  {entry.declined:8}  {entry.refused:7}"
                f"  {entry.uplink:10,}  {entry.downlink:10,}{note}"
            )
        lines += ["                node  asked  answered  declined  refused  releases  epsilon <="]
        for node in self.nodes[:SHOWN]:
            lines.append(
                f"{node.node:20}  {node.asked:5}  {node.answered:8}  {node.declined:8}  {node.refused:7}"
                f"  {node.releases:8}  {node.epsilon_upper:10.4g}"
            )
        if len(self.nodes) > SHOWN:
            lines.append(f"... and {len(self.nodes) - SHOWN} more nodes")
        reasons = [f"round {entry.round}: {reason}" for entry in self.rounds for reason in entry.reasons]
        lines += reasons[:SHOWN] + ([f"... and {len(reasons) - SHOWN} more"] if len(reasons) > SHOWN else [])
        if self.guarantee is not None:
            counted = (
                f" It counts on {self.settings.honest} honest clients in every sum." if self.settings.honest else ""
            )
            lines.append(f"The worst client: {self.guarantee.sentence()}{counted}")
        return "\n".join(lines)
