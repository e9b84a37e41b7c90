"""Find mechanisms by name, and describe a mechanism as text from which it can be rebuilt.

Idea     a name leads to a family: the library's, or another package's. A package offers its
         families and the classes of its mechanisms by two groups of entry points, so that names are
         listed, and refused, without an import:

             [project.entry-points."quietbit.mechanisms"]
             linear-bit = "linear_bit:FAMILY"
             [project.entry-points."quietbit.kinds"]
             "linear-bit.LinearBit" = "linear_bit:LinearBit"

         A module is imported when its family is asked for by name, or when a description names one
         of its classes; `build` takes a list of the families that are allowed. A mechanism's public
         fields, as plain values, are its description. The same values, with designs named by their
         identity, form one canonical text whose SHA-256 is the mechanism's identity on the wire:
         two ends that differ in anything that matters have different digests, and their payloads do
         not mix. The clip of a payload is in the text, as the radius of the mechanism's ball.
         Derived fields are left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

import attrs

from quietbit.design.profile import Profile
from quietbit.design.table import Design
from quietbit.errors import InvalidParameter, QuietbitError, check_known, require
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import FLOAT_BITS, Mechanism, check_mechanism
from quietbit.mechanism.family import Family

__all__ = [
    "AUTO",
    "build",
    "canonical_text",
    "describe",
    "described_family",
    "families",
    "family",
    "family_of",
    "identity_of",
    "noted",
    "noted_identity",
]

FORMAT = "quietbit-mechanism"
VERSION = 1
FAMILY_GROUP = "quietbit.mechanisms"
KIND_GROUP = "quietbit.kinds"
HERE = "quietbit.mechanism."
AUTO = "auto"  # in place of a family's name: the best of all families
# The kinds of the library's families, by name.
LIBRARY = {"imvu": "InterpolatedMVU", "vmvu": "VectorMVU", "gaussian": "Gaussian"}
# The files of their `FAMILY`.
FAMILIES = {"imvu": "interpolated_family", "vmvu": "vector_family", "gaussian": "additive"}
# Mechanisms that send an answer in place of an update, by their name in policies and ledgers.
ANSWERS = {"response": "RandomisedResponse", "scout": "Scout"}
# The library's kinds in descriptions, which are names of classes, and the files of these.
KINDS = {
    "Ball": "ball",
    "Gaussian": "additive",
    "InterpolatedMVU": "interpolated",
    "LocalSteps": "batch",
    "PoissonBatch": "batch",
    "Projected": "projected",
    "ProjectedSamples": "projected",
    "RandomisedResponse": "response",
    "Rotation": "rotation",
    "Scout": "scouts",
    "Scouted": "scouts",
    "VectorMVU": "vector",
}
# Kinds with an inner mechanism.
WRAPPERS = ("PoissonBatch", "LocalSteps", "Projected", "ProjectedSamples", "Scouted")
STEPS = "LocalSteps"
MOVING = "Watched"  # the kind of a clip that moves, in ledgers of earlier versions


def families() -> tuple[str, ...]:
    """Return the names of all families, the library's first; nothing is imported."""
    return (*LIBRARY, *sorted(_packages()))


def family(name: str) -> Family:
    """Import and return the family of a name; refuse an unknown name with the known ones."""
    check_known(name, families(), "mechanism")
    return _loaded(name)


@lru_cache(maxsize=1)
def _packages() -> dict[str, set[EntryPoint]]:
    """Return the families of installed packages by name; names of the library are not taken."""
    entries: dict[str, set[EntryPoint]] = {}
    for entry in entry_points(group=FAMILY_GROUP):
        if entry.name not in LIBRARY:
            entries.setdefault(entry.name, set()).add(entry)
    return entries


@lru_cache(maxsize=1)
def _package_kinds() -> dict[str, dict[str, EntryPoint]]:
    """Return the classes of installed packages by kind and family, but for the library's kinds."""
    kinds: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=KIND_GROUP):
        name, _, kind = entry.name.rpartition(".")
        if kind not in KINDS:
            kinds.setdefault(kind, {})[name] = entry
    return kinds


@cache
def _loaded(name: str) -> Family:
    """Return the family of a known name; refuse a package that cannot be imported."""
    if name in LIBRARY:
        found: Family = importlib.import_module(HERE + FAMILIES[name]).FAMILY
        return found
    entries = {entry.value: entry for entry in _packages()[name]}
    places = " and ".join(sorted(entries))
    remedy = "uninstall all but one"
    require(len(entries) == 1, f"packages with a mechanism {name!r}", places, "one", remedy)
    loaded = _imported(entries[places], f"mechanism {name!r}")
    require(isinstance(loaded, Family), places, type(loaded).__name__, "a Family")
    rule = f"{name!r}, as its entry point says"
    require(loaded.name == name, f"name of {places}", loaded.name, rule)
    return cast(Family, loaded)


def _imported(entry: EntryPoint, name: str) -> Any:
    try:
        return entry.load()
    except Exception as error:  # a package may raise anything on import
        reason = f"importing {entry.value} failed with {type(error).__name__}: {error}"
        message = f"{name} cannot be used: {reason}"
        raise InvalidParameter(message, name=name, value=entry.value) from error


def family_of(mechanism: Mechanism) -> str:
    """Return the name of the family of a mechanism, without its wrappers; empty if unknown."""
    core = type(mechanism.core)
    for name, place in _places(core.__name__).items():
        if place == f"{core.__module__}:{core.__name__}":
            return name
    return ""


def described_family(description: Any) -> str:
    """Return the name of the family of a description, without its wrappers; empty if unknown.

    Nothing is imported and nothing is built, so a policy may ask this of what a stranger sent.
    """
    while isinstance(description, Mapping) and description.get("kind") in WRAPPERS:
        description = description.get("inner")
    kind = description.get("kind") if isinstance(description, Mapping) else None
    return next(iter(_places(kind)), "") if isinstance(kind, str) else ""


def _places(kind: str) -> dict[str, str]:
    """Return the places of the classes of a kind, as module:class, by the name of the family."""
    for name, known in (LIBRARY | ANSWERS).items():
        if known == kind:
            return {name: f"{HERE}{KINDS[kind]}:{kind}"}
    return {name: entry.value for name, entry in _package_kinds().get(kind, {}).items()}


def identity_of(mechanism: Mechanism, clip: float = 1.0) -> bytes:
    """Return the SHA-256 of the canonical text: 32 bytes."""
    return hashlib.sha256(canonical_text(mechanism, clip).encode()).digest()


def canonical_text(mechanism: Mechanism, clip: float = 1.0) -> str:
    """Return the canonical text of a mechanism: sorted keys, shortest exact decimals, no spaces."""
    plain = _plain(mechanism, "mechanism", clip, in_full=False)
    sends_lengths = mechanism.core.layout.bits == FLOAT_BITS or plain["kind"] == STEPS
    if sends_lengths and clip != 1.0:
        # Before the clip was beside the mechanism, these were not in clips.
        return _text(plain | {"lengths": "clips"})
    return _text(plain)


def describe(mechanism: Mechanism, clip: float = 1.0) -> dict[str, Any]:
    """Return the mechanism as plain values for JSON and `build`, its design in full.

    With a clip other than 1 they are for clients that read one text alone, and not for `build`.
    """
    return cast(dict[str, Any], _plain(mechanism, "mechanism", clip, in_full=True))


def _text(plain: Mapping[str, Any]) -> str:
    content = {"format": FORMAT, "mechanism": plain, "version": VERSION}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def build(description: Mapping[str, Any], allowed: Collection[str] | None = None) -> Mechanism:
    """Return the mechanism of a description; refuse a description that is not a mechanism's.

    ``allowed`` limits the families of installed packages whose modules may be imported for it; None
    allows all.
    """
    try:
        mechanism = _built(description, allowed)
    except QuietbitError as error:
        message = f"The description of a mechanism cannot be used: {error}"
        name = getattr(error, "name", "") or "description"
        raise InvalidParameter(message, name=name, value=getattr(error, "value", "")) from error
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        reason = str(error).rstrip(".")
        if isinstance(error, KeyError):
            reason = f"{reason} is missing"
        message = f"The description of a mechanism is not complete: {reason}."
        raise InvalidParameter(message, name="description") from error
    return check_mechanism(mechanism, "description")


def noted(description: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism that a ledger notes, which an earlier version may have written.

    Before the clip was beside the mechanism, balls had a radius. The library's own mechanisms cost
    the same on the unit ball; those of other packages are refused.
    """
    return build(_on_unit_ball(description))


def noted_identity(description: Mapping[str, Any]) -> str:
    """Return the hexadecimal identity of the mechanism that a ledger notes, as it was written."""
    return hashlib.sha256(_text(_named(description)).encode()).hexdigest()


def _named(value: Any) -> Any:
    """Return a part of a description with designs and profiles named by their identity."""
    if not isinstance(value, Mapping):
        return value
    if "kind" in value:
        return {name: _named(part) for name, part in value.items()}
    return {name: part["identity"] for name, part in value.items()}


def _on_unit_ball(value: Any) -> Any:
    """Return a part of a description with balls of radius 1 and without clips that move."""
    if not isinstance(value, Mapping) or "kind" not in value:
        return value
    fields = {name: _on_unit_ball(part) for name, part in value.items()}
    if value["kind"] == "Ball":
        return {**fields, "radius": 1.0}
    if value["kind"] == MOVING:
        del fields["clip"]
        return {**fields, "kind": "Scouted"} if "every" in fields else fields["inner"]
    changed = any(fields[name] != part for name, part in value.items())
    if changed and value["kind"] not in KINDS:
        rule = "of radius 1 for a mechanism of another package"
        raise InvalidParameter.of("ball of the mechanism", rule, value["kind"])
    return fields


def _plain(value: Any, name: str, clip: float, *, in_full: bool) -> Any:
    """Return a value as JSON has it; ``name`` is its path, for a refusal."""
    if isinstance(value, Design | Profile):
        key = "design" if isinstance(value, Design) else "profile"
        identity = value.identity()
        if not in_full:
            return {key: identity}
        return {key: {**json.loads(value.canonical()), "identity": identity}}
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Ball):
        norm = value.norm.value
        return {"kind": "Ball", "norm": norm, "radius": clip, "dimension": value.dimension}
    plain: dict[str, Any] = {"kind": _kind(value, name)}
    for key, part in _public(value):
        plain[key] = _plain(part, f"{name}.{key}", clip, in_full=in_full)
    return plain


def _kind(value: Any, name: str) -> str:
    """Return the unique name of a value's class in descriptions."""
    kind = type(value)
    has_fields = attrs.has(kind) or dataclasses.is_dataclass(kind)
    rule = "a number, a word, a Design, a Profile or a frozen class of these to have an identity"
    require(has_fields, name, kind.__name__, rule)
    full_name = f"{kind.__module__}.{kind.__name__}"
    known = KINDS.get(kind.__name__)
    ours = known is None or full_name == f"{HERE}{known}.{kind.__name__}"
    rule = "named differently from the classes of quietbit"
    require(ours, f"class of {name}", full_name, rule)
    return kind.__name__


def _public(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public fields that define a mechanism; skip those left out at their default."""
    members: Iterable[Any]
    if attrs.has(type(value)):
        members = attrs.fields(type(value))
    else:
        members = dataclasses.fields(value)
    for member in members:
        part = getattr(value, member.name)
        skipped = member.metadata.get("left_out") and part == member.default
        if member.init and not skipped:
            yield member.name, part


def _built(value: Any, allowed: Collection[str] | None) -> Any:
    """Return the value of a part of a description: the inverse of `_plain`."""
    if not isinstance(value, Mapping):
        return value
    if "kind" not in value and "design" in value:
        return Design.restored(value["design"], "the design of a mechanism")
    if "kind" not in value and "profile" in value:
        return Profile.restored(value["profile"], "the profile of a mechanism")
    fields = {name: _built(part, allowed) for name, part in value.items() if name != "kind"}
    if value["kind"] == "Ball":
        radius = fields.pop("radius")
        remedy = "the clip goes beside the mechanism"
        require(radius == 1.0, "radius of the ball", radius, "1.0", remedy)
    return _class(value["kind"], allowed)(**fields)


def _class(kind: str, allowed: Collection[str] | None) -> type:
    """Return the class of a kind: of the library, or of one installed package."""
    if kind in KINDS:
        return cast(type, getattr(importlib.import_module(HERE + KINDS[kind]), kind))
    entries = _package_kinds().get(kind, {})
    places = {entry.value: entry for entry in entries.values()}
    rule = "one of " + ", ".join(KINDS) + ", or of one installed package"
    require(len(places) == 1, "kind of the mechanism", kind, rule)
    (entry,) = places.values()
    if allowed is not None:
        modules = {
            candidate.module
            for kinds in _package_kinds().values()
            for name, candidate in kinds.items()
            if name in allowed
        }
        rule = "of a family that is allowed here"
        require(entry.module in modules, "kind of the mechanism", kind, rule)
    return cast(type, _imported(entry, f"kind {kind!r}"))
