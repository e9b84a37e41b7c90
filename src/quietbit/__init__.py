"""Updates that leave a device differentially private and packed to about one bit per parameter.

Idea     ``__init__.pyi`` lists all public names; any other may change. A name is imported when it
         is first used, so that ``import quietbit`` is instant and needs numpy, scipy and attrs at
         most.
"""

from importlib import import_module
from typing import Any

from quietbit._lazy import attach

RENAMED = {
    "AdaptiveClip": "Uplink, whose clip may change from round to round",
    "Directory": "MemberList",
    "calibrate_sum": "calibrate(..., honest=n)",
    "expectation": "forecast",
    "masked_sum": "simulate_secure_sum",
}
_find, __dir__, __all__ = attach(__name__, __file__, renamed=RENAMED)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("quietbit")
    return _find(name)
