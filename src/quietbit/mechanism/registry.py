"""Mechanisms by name, and mechanisms written down: one text from which the same mechanism is built again.

Idea     a word leads to a family, the library's own or another package's (entry points of the group
         ``quietbit.mechanisms``, each an object that satisfies `Family`). A mechanism's public fields, written as plain
         values, are its description; the same values with designs named by their identity are one canonical text,
         whose SHA-256 is the mechanism's identity on the wire: two ends that differ in anything that matters have
         different digests, and their payloads do not mix. What is computed from the fields is left out.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any

import attrs

from quietbit.design.profile import Profile, parse_profile
from quietbit.design.store import parse_design
from quietbit.design.table import Design
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.family import Family
from quietbit.mechanism.projected import Projected, ProjectedSamples
from quietbit.mechanism.watched import Watched

__all__ = ["build", "canonical_text", "describe", "families", "family", "family_of", "identity_of"]

FORMAT = "quietbit-mechanism"
VERSION = 1
GROUP = "quietbit.mechanisms"
OWN = ("interpolated", "vector", "dithered", "additive", "skellam")  # files whose FAMILIES are the library's


@lru_cache(maxsize=1)
def families() -> Mapping[str, Family]:
    """Every family there is, by its word; a package cannot take a word of the library's."""
    found: dict[str, Family] = {}
    for one in _all():
        require(one.name not in found, "name of a mechanism", one.name, "one that is not taken")
        found[one.name] = one
    return found


def _all() -> Iterator[Family]:
    for file in OWN:
        yield from importlib.import_module(f"quietbit.mechanism.{file}").FAMILIES
    for entry in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        yield entry.load()


def family(name: str) -> Family:
    """The family of that word; any other is refused with the words there are."""
    known = families()
    require(name in known, "mechanism", name, "one of " + ", ".join(known))
    return known[name]


def family_of(mechanism: Mechanism) -> str:
    """The word of the family that a mechanism is of, or that the one inside a wrapper is of; empty for strangers."""
    inside: Any = mechanism
    while inside is not None:
        for word, one in families().items():
            if one.kinds[0] is type(inside):
                return word
        inside = getattr(inside, "inner", None)
    return ""


def identity_of(mechanism: Mechanism) -> bytes:
    """SHA-256 of the canonical text: 32 bytes."""
    return hashlib.sha256(canonical_text(mechanism).encode()).digest()


def canonical_text(mechanism: Mechanism) -> str:
    """The one text that stands for a mechanism: sorted keys, shortest exact decimals, no spaces."""
    content = {"format": FORMAT, "mechanism": _plain(mechanism, "mechanism", in_full=False), "version": VERSION}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def describe(mechanism: Mechanism) -> dict[str, Any]:
    """The mechanism as plain values, its design in full: what `build` reads and JSON can hold."""
    described: dict[str, Any] = _plain(mechanism, "mechanism", in_full=True)
    return described


def build(description: Mapping[str, Any]) -> Mechanism:
    """The mechanism that a description stands for; anything that does not make one is refused."""
    try:
        found = _built(description)
    except QuietbitError as error:
        raise InvalidParameter(f"A description of a mechanism cannot be used: {error}") from error
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise InvalidParameter(f"A description of a mechanism is not complete: {str(error).rstrip('.')}.") from error
    require(isinstance(found, Mechanism), "description", type(found).__name__, "that of a mechanism")
    mechanism: Mechanism = found
    return mechanism


def _plain(value: Any, name: str, *, in_full: bool) -> Any:
    if isinstance(value, Design | Profile):
        word, named = "design" if isinstance(value, Design) else "profile", {"identity": value.identity()}
        return {word: {**json.loads(value.canonical()), **named} if in_full else value.identity()}
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    made_of = (
        attrs.fields(type(value)) if attrs.has(type(value)) else getattr(value, "__dataclass_fields__", {}).values()
    )
    if made_of and not isinstance(value, type):
        given = {field.name: getattr(value, field.name) for field in made_of if field.init}
        return {"kind": type(value).__name__} | {
            key: _plain(field, f"{name}.{key}", in_full=in_full) for key, field in given.items()
        }
    raise InvalidParameter(
        f"{name} must be a number, a word, a Design, a Profile or a dataclass of these to have an identity, "
        f"got a {type(value).__name__}."
    )


def _built(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "kind" not in value and "design" in value:
        return parse_design(json.dumps(value["design"]), "the design of a mechanism")
    if "kind" not in value and "profile" in value:
        content = dict(value["profile"])
        stated = content.pop("identity", None)
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        found = parse_profile(text, "the profile of a mechanism")
        require(found.identity() == stated, "identity of the profile", stated, found.identity())
        return found
    kind = value["kind"]
    kinds = _kinds()
    require(kind in kinds, "kind of the mechanism", kind, "one of " + ", ".join(kinds))
    return kinds[kind](**{name: _built(field) for name, field in value.items() if name != "kind"})


def _kinds() -> dict[str, type]:
    found: dict[str, type] = {
        "Ball": Ball,
        "Projected": Projected,
        "ProjectedSamples": ProjectedSamples,
        "Watched": Watched,
    }
    for one in families().values():
        for kind in one.kinds:
            taken = found.setdefault(kind.__name__, kind)
            require(taken is kind, "name of a mechanism's class", kind.__name__, "one that is not taken")
    return found
