"""What a node's part in masked sums has cost it in a run: noted before a vector leaves.

Idea     a line of JSON in the node's state: how many sums, of which mechanism, counting on how many honest clients.
         The trust it is about is secure aggregation, and it says so; the local ledger of `node_ledger` is another.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, final

from quietbit._validate import require, whole_number
from quietbit.flower.node_ledger import BudgetSpent, UnreadableLedger
from quietbit.flower.secure_settings import SumSettings
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.payload.identity import mechanism_identity
from quietbit.privacy.guarantee import Guarantee, Trust

__all__ = ["SumLedger"]

FORMAT, VERSION = "quietbit-sum-ledger", 1


@final
@dataclass(frozen=True, slots=True)
class SumLedger:
    """Sums that a node has sent a vector for in one run; immutable, recording returns a new one."""

    identity: str = ""
    honest: int = 0
    releases: int = 0
    last_round: int = 0

    def record(self, settings: SumSettings, mechanism: InterpolatedMVU, number: int) -> SumLedger:
        """One more sum, in round ``number``; refused for an earlier round, another mechanism, or beyond the budget."""
        self.check_round(number)
        identity = mechanism_identity(mechanism).hex()
        same = self.releases == 0 or (self.identity, self.honest) == (identity, settings.honest)
        require(same, "mechanism of the sum", identity[:16], "the one of this run's earlier sums")
        following = replace(
            self, identity=identity, honest=settings.honest, releases=self.releases + 1, last_round=number
        )
        reached = following.guarantee(settings, mechanism).epsilon_upper
        if reached > settings.run.epsilon:
            raise BudgetSpent(
                f"Another sum would cost epsilon {reached:.4g}, and the run allows {settings.run.epsilon:g} "
                f"({self.releases} sums so far, counting on {settings.honest} honest clients)."
            )
        return following

    def check_round(self, number: int) -> None:
        """Refuse a round that is not later than the last one."""
        require(number > self.last_round, "round", number, f"above {self.last_round}, the last one answered")

    def guarantee(self, settings: SumSettings, mechanism: InterpolatedMVU) -> Guarantee:
        """What the sums so far cost, under secure aggregation."""
        return settings.guarantee(mechanism, self.releases)

    def to_text(self) -> str:
        """One line of JSON; it states the trust and the honest clients that are counted on."""
        return json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                "trust": Trust.SECURE_AGGREGATION.value,
                "identity": self.identity,
                "honest": self.honest,
                "releases": self.releases,
                "last_round": self.last_round,
            }
        )

    @classmethod
    def from_text(cls, text: Any) -> SumLedger:
        """The ledger of a line; anything else is refused, and nothing more is spent."""
        try:
            kept = json.loads(text)
            fine = (kept["format"], kept["version"], kept["trust"]) == (FORMAT, VERSION, "secure-aggregation")
            require(fine, "ledger of sums", kept["format"], f"{FORMAT} of version {VERSION}")
            numbers = (whole_number(kept[name], name, 0) for name in ("honest", "releases", "last_round"))
            return cls(str(kept["identity"]), *numbers)
        except (ValueError, TypeError, KeyError) as error:
            raise UnreadableLedger("The ledger of this node's masked sums cannot be read.") from error
