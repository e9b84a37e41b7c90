"""NVFlare: private updates through a second engine; a client filter within the owner's policy, and a server filter.

Idea     a job changes by one call, `add_privacy(recipe, settings)`. What the clients' filter (`PrivateUplink`) lets out
         is one packed release and nothing else; the server's (`PrivateReceiver`) turns each into an unbiased difference
         of weights of weight one, which any averaging workflow takes. A site can hold every job to the same rule with
         its own `privacy.json`. Settings, policy, ledger and gatekeeper are the ones that Flower's nodes have.

Names are imported when they are first used: this package imports without NVFlare, and says what is missing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from quietbit.errors import require_module

if TYPE_CHECKING:
    from quietbit.node.report import Report
    from quietbit.nvflare.client import PrivateUplink
    from quietbit.nvflare.recipe import add_privacy
    from quietbit.nvflare.server import PrivateReceiver

__all__ = ["PrivateReceiver", "PrivateUplink", "Report", "add_privacy"]

_HOMES = {
    "node.report": ("Report",),
    "nvflare.client": ("PrivateUplink",),
    "nvflare.recipe": ("add_privacy",),
    "nvflare.server": ("PrivateReceiver",),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module 'quietbit.nvflare' has no attribute {name!r}")
        if home.startswith("nvflare."):
            require_module("nvflare", "nvflare")
        value = getattr(importlib.import_module(f"quietbit.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
