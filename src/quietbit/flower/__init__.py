"""Flower: private updates through an engine; a client mod within the owner's policy, and a strategy wrapper.

Idea     two lines change in a Flower app. The mod (`PrivateUplink`) turns the difference a client has learnt into
         one packed release and lets nothing else out; the wrapper (`PrivateStrategy`) turns releases into a mean
         and hands it to any strategy. Both read the run's plan from the run config (`quietbit.plan.plan`).

Names are imported when they are first used: this package imports without Flower, and says what is missing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from quietbit.errors import require_module

if TYPE_CHECKING:
    from quietbit.flower.accountant import GaussianAccountant
    from quietbit.flower.client import PrivateUplink
    from quietbit.flower.strategy import PrivateStrategy
    from quietbit.node.policy import SeededRngWarning, Simulation, simulated_directory
    from quietbit.node.report import Report

__all__ = [
    "GaussianAccountant",
    "PrivateStrategy",
    "PrivateUplink",
    "Report",
    "SeededRngWarning",
    "Simulation",
    "simulated_directory",
]

_HOMES = {
    "flower.accountant": ("GaussianAccountant",),
    "flower.client": ("PrivateUplink",),
    "node.report": ("Report",),
    "flower.strategy": ("PrivateStrategy",),
    "node.policy": ("SeededRngWarning", "Simulation", "simulated_directory"),
}
_ENGINE = ("flower.accountant", "flower.client", "flower.strategy")  # the files that cannot be imported without Flower

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module 'quietbit.flower' has no attribute {name!r}")
        if home in _ENGINE:
            require_module("flwr", "flower")
        value = getattr(importlib.import_module(f"quietbit.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
