"""Which mechanism a payload belongs to: a digest of its kind, its parameters and its design.

Idea     a mechanism's public fields, written as one canonical text, are hashed; two ends that differ in
         anything that matters have different digests, and their payloads do not mix. A design enters by its
         own identity. What is computed from the fields (samplers, tables) is left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from enum import Enum
from typing import Any

from quietbit._validate import InvalidParameter
from quietbit.design.table import Design
from quietbit.mechanism.base import Mechanism

__all__ = ["canonical_mechanism", "mechanism_identity"]

FORMAT = "quietbit-mechanism"
VERSION = 1


def mechanism_identity(mechanism: Mechanism) -> bytes:
    """SHA-256 of the canonical text: 32 bytes."""
    return hashlib.sha256(canonical_mechanism(mechanism).encode()).digest()


def canonical_mechanism(mechanism: Mechanism) -> str:
    """The one text that stands for a mechanism: sorted keys, shortest exact decimals, no spaces."""
    content = {"format": FORMAT, "mechanism": _described(mechanism, "mechanism"), "version": VERSION}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _described(value: Any, name: str) -> Any:
    if isinstance(value, Design):
        return {"design": value.identity()}
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {"kind": type(value).__name__} | {
            key: _described(field, f"{name}.{key}") for key, field in given.items()
        }
    raise InvalidParameter(
        f"{name} must be a number, a word, a Design or a dataclass of these to have an identity, "
        f"got a {type(value).__name__}."
    )
