"""A mechanism as plain values, and the same mechanism from them: what a ledger keeps to price its releases.

Idea     an identity names a mechanism but cannot price it. The description holds its public fields and, where it
         has one, its whole design, so that the privacy curve is rebuilt from the numbers that were sampled with. What
         is rebuilt must have the identity that was noted, or it is refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, cast

from quietbit._validate import QuietbitError, require
from quietbit.design.store import parse_design
from quietbit.design.table import Design
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.clipping import Ball
from quietbit.mechanism.description import mechanism_identity
from quietbit.mechanism.dithered import DitheredMVU
from quietbit.mechanism.gaussian import Gaussian
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.laplace import Laplace
from quietbit.mechanism.sign import Sign
from quietbit.mechanism.skellam import Skellam
from quietbit.privacy.curve import PrivacyCurve
from quietbit.privacy.guarantee import Adjacency

__all__ = ["curve_of", "describe"]

KINDS: dict[str, type] = {
    kind.__name__: kind for kind in (Ball, DitheredMVU, Gaussian, InterpolatedMVU, Laplace, Sign, Skellam)
}


def describe(mechanism: Mechanism) -> str:
    """One line of JSON that `curve_of` reads."""
    return json.dumps(_plain(mechanism), sort_keys=True, separators=(",", ":"), allow_nan=False)


@lru_cache(maxsize=256)
def curve_of(text: str, identity: str, adjacency: Adjacency, honest: int = 0) -> PrivacyCurve:
    """The curve of one release of the described mechanism; ``identity`` is hexadecimal and must be its own.

    Where ``honest`` is above 0 it is the curve of a secure sum that counts on so many honest clients.
    """
    try:
        found = _built(json.loads(text))
        same = mechanism_identity(found).hex() == identity
    except (ValueError, TypeError, KeyError, AttributeError, QuietbitError) as error:
        raise QuietbitError(f"A mechanism of the ledger cannot be rebuilt: {str(error).rstrip('.')}.") from error
    if not same:
        raise QuietbitError(f"A mechanism of the ledger is not the one it was noted as ({identity[:16]}...).")
    if honest:
        summed = isinstance(found, InterpolatedMVU)
        require(summed, "mechanism of a sum in the ledger", type(found).__name__, "InterpolatedMVU")
        return cast(InterpolatedMVU, found).aggregate_privacy(honest, adjacency)
    curve: PrivacyCurve = found.privacy(adjacency)
    return curve


def _plain(value: Any) -> Any:
    if isinstance(value, Design):
        return {"design": {**json.loads(value.canonical()), "identity": value.identity()}}
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {"kind": type(value).__name__} | {name: _plain(field) for name, field in given.items()}
    return value


def _built(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "design" in value and "kind" not in value:
        return parse_design(json.dumps(value["design"]), "a design of the ledger")
    fields = {name: _built(field) for name, field in value.items() if name != "kind"}
    return KINDS[value["kind"]](**fields)
