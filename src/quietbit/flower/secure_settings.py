"""The settings of masked sums through Flower: those of a private run, and whom a sum counts on.

Idea     beside the keys of `RunSettings` three more say how large a sum is and how many must stay; client and server
         read the same run config, so a client knows the threshold without believing the server.
Symbols  n: clients; t: threshold; k: honest.

| key | meaning | default |
|---|---|---|
| `quietbit-sums.clients` | the most clients of a sum: at most 2 t - 1 | required |
| `quietbit-sums.threshold` | how many must send their vector and help to unmask, or the sum is not made | required |
| `quietbit-sums.honest` | how many of those do not collude with the server: what privacy is accounted at | the threshold |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast, final

import numpy as np

from quietbit._validate import InvalidParameter, require, whole_number
from quietbit.federation.choose import choose_mechanism
from quietbit.flower.settings import RunSettings
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.privacy.aggregate import MOST_CLIENTS
from quietbit.privacy.curve import PrivacyCurve
from quietbit.privacy.guarantee import Guarantee, Trust, Unit
from quietbit.privacy.ledger import Ledger
from quietbit.secure.plan import SumPlan

__all__ = ["SUMS", "SumSettings"]

SUMS = "quietbit-sums."
KEYS = ("clients", "threshold", "honest")


@final
@dataclass(frozen=True, slots=True)
class SumSettings:
    """What the table above says, checked; the mechanism must be imvu."""

    run: RunSettings
    clients: int
    threshold: int
    honest: int

    def __post_init__(self) -> None:
        """Refuse thresholds that cannot protect, and mechanisms whose sums have no account."""
        clients = whole_number(self.clients, SUMS + "clients", 2, MOST_CLIENTS)
        threshold = whole_number(self.threshold, SUMS + "threshold", clients // 2 + 1, clients)
        whole_number(self.honest, SUMS + "honest", 2, threshold)
        require(self.run.mechanism == "imvu", "quietbit.mechanism", self.run.mechanism, "imvu for masked sums")
        self._plan()

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> SumSettings:
        """Read the keys of both tables."""
        ours = {key.removeprefix(SUMS): value for key, value in config.items() if key.startswith(SUMS)}
        for key in ours:
            require(key in KEYS, "run-config key", SUMS + key, "one of " + ", ".join(SUMS + name for name in KEYS))
        for key in KEYS[:2]:
            if key not in ours:
                raise InvalidParameter(f"run config must have the key {SUMS}{key}, which is missing.")
        return cls(RunSettings.from_run_config(config), **{"honest": ours["threshold"], **ours})

    def mechanism_for(self, dimension: int) -> InterpolatedMVU:
        """The mechanism for updates of this dimension, as told or calibrated to the sum; the same at both ends."""
        return _mechanism(self, dimension)

    def plan_for(self, run: int, number: int, clients: int, dimension: int) -> SumPlan:
        """The masked sum of round ``number`` over ``clients`` clients; more than the settings name are refused."""
        count = whole_number(clients, "clients of the sum", self.threshold, self.clients)
        codes = 2 ** (self.run.bits or 1) - 1
        return SumPlan(count, self.threshold, dimension, f"flower/{run}/{number}".encode(), codes)

    def guarantee(self, mechanism: InterpolatedMVU, releases: int) -> Guarantee:
        """What so many sums cost one client."""
        adjacency = self.run.privacy_adjacency
        ledger = Ledger(Unit.CLIENT, adjacency, Trust.SECURE_AGGREGATION)
        return ledger.record(self.curve(mechanism), releases, adjacency).guarantee(self.run.delta)

    def curve(self, mechanism: InterpolatedMVU) -> PrivacyCurve:
        """The curve of one sum."""
        return _curve(self, mechanism)

    def _plan(self) -> Any:
        trust = Trust.SECURE_AGGREGATION.value
        return replace(self.run._plan(), trust=trust, cohort=self.clients, honest=self.honest)


@lru_cache(maxsize=8)
def _mechanism(settings: SumSettings, dimension: int) -> InterpolatedMVU:
    one_client = np.ones(1, dtype=np.int64)
    found = choose_mechanism(settings._plan(), dimension, one_client, settings.run.releases or 1)
    return cast(InterpolatedMVU, found)


@lru_cache(maxsize=8)
def _curve(settings: SumSettings, mechanism: InterpolatedMVU) -> PrivacyCurve:
    return mechanism.aggregate_privacy(settings.honest, settings.run.privacy_adjacency)
