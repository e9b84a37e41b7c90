"""What the owner of a device controls: a policy, a ledger that cannot be turned back, and who keeps them.

Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quietbit.node.policy import Policy, Simulation
    from quietbit.node.sender import PrivateSender

__all__ = ["Policy", "PrivateSender", "Simulation"]

_HOMES = {"node.policy": ("Policy", "Simulation"), "node.sender": ("PrivateSender",)}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module 'quietbit.node' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"quietbit.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
