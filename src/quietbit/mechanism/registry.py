"""Mechanisms as plain values and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

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

__all__ = ["build", "describe", "family_of", "identity"]

FAMILIES = {
    DitheredMVU: "mvu", Gaussian: "gaussian", InterpolatedMVU: "imvu", Laplace: "laplace", Sign: "sign",
    Skellam: "skellam",
}  # fmt: skip
KINDS: dict[str, type] = {kind.__name__: kind for kind in (Ball, *FAMILIES)}


def identity(mechanism: Mechanism) -> bytes:
    """SHA-256 of the canonical text."""
    return mechanism_identity(mechanism)


def family_of(mechanism: Mechanism) -> str:
    """The name of its family."""
    return FAMILIES[type(mechanism)]


def describe(mechanism: Mechanism) -> dict[str, Any]:
    """Plain values, design in full."""
    found: dict[str, Any] = _plain(mechanism)
    return found


def build(description: Any) -> Mechanism:
    """The mechanism of a description."""
    found: Mechanism = _built(description)
    identity(found)
    return found


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
        return parse_design(json.dumps(value["design"]), "a design")
    fields = {name: _built(field) for name, field in value.items() if name != "kind"}
    return KINDS[value["kind"]](**fields)
