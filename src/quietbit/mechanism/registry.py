"""Find mechanisms by name, and describe a mechanism as text from which it can be rebuilt.

Idea     a name leads to a family: the library's, or another package's. A package offers its
         families and the classes of its mechanisms by two groups of entry points, so that names are
         listed, and refused, without an import:

             [project.entry-points."quietbit.mechanisms"]
             linear-bit = "linear_bit:FAMILY"
             [project.entry-points."quietbit.kinds"]
             "linear-bit.LinearBit" = "linear_bit:LinearBit"

         A module is imported when its family is asked for by name, or when a description names one
         of its classes, and whoever builds from a description may limit which families that can be.
         A mechanism's public fields, as plain values, are its description. The same values, with
         designs named by their identity, form one canonical text whose SHA-256 is the mechanism's
         identity on the wire: two ends that differ in anything that matters have different digests,
         and their payloads do not mix. Derived fields are left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

import attrs

from quietbit.design.profile import Profile
from quietbit.design.table import Design
from quietbit.errors import InvalidParameter, QuietbitError, check_known, require
from quietbit.mechanism.base import Mechanism, check_mechanism, core_of
from quietbit.mechanism.family import Family

__all__ = [
    "build",
    "canonical_text",
    "describe",
    "described_family",
    "families",
    "family",
    "family_of",
    "identity_of",
    "importable",
]

FORMAT = "quietbit-mechanism"
VERSION = 1
FAMILY_GROUP = "quietbit.mechanisms"
KIND_GROUP = "quietbit.kinds"
HERE = "quietbit.mechanism."
# The library's families by name: the file, and the main class of the family.
OWN = {
    "imvu": ("interpolated", "InterpolatedMVU"),
    "vmvu": ("vector", "VectorMVU"),
    "gaussian": ("additive", "Gaussian"),
}
# The name, in policies and ledgers, of mechanisms that answer requests instead of sending an
# update.
ASKED = {
    "response": ("response", "RandomisedResponse"),
    "summed-response": ("response", "SummedResponse"),
    "scout": ("adaptive_clip", "Scout"),
}
# The library's kinds in descriptions: file and class. An identity keeps the kind it was first
# written with.
KINDS = {
    "Ball": ("ball", "Ball"),
    "PoissonBatch": ("batch", "PoissonBatch"),
    "LocalSteps": ("batch", "LocalSteps"),
    "Projected": ("projected", "Projected"),
    "ProjectedSamples": ("projected", "ProjectedSamples"),
    "Rotation": ("rotation", "Rotation"),
    "Watched": ("adaptive_clip", "AdaptiveClip"),
} | {name: (file, name) for file, name in (*OWN.values(), *ASKED.values())}
WRAPPERS = (
    "PoissonBatch",
    "LocalSteps",
    "Projected",
    "ProjectedSamples",
    "Watched",
)  # kinds with an inner mechanism
KIND_OF = {place: kind for kind, place in KINDS.items()}


def families() -> tuple[str, ...]:
    """Return the names of all families, the library's first; nothing is imported."""
    return (*OWN, *sorted(_packages()))


def family(name: str) -> Family:
    """Import and return the family of that name; an unknown name is refused, and the error lists the known ones."""
    check_known(name, families(), "mechanism")
    return _loaded(name)


def importable(names: Iterable[str]) -> Iterator[Family]:
    """Yield the families of these names; skip packages that cannot be imported."""
    for name in names:
        with suppress(InvalidParameter):
            yield _loaded(name)


@lru_cache(maxsize=1)
def _packages() -> dict[str, set[EntryPoint]]:
    """Return the families of other packages by name; a package cannot take a name of the library's."""
    offers: dict[str, set[EntryPoint]] = {}
    for entry in entry_points(group=FAMILY_GROUP):
        if entry.name not in OWN:
            offers.setdefault(entry.name, set()).add(entry)
    return offers


@lru_cache(maxsize=1)
def _package_kinds() -> dict[str, dict[str, EntryPoint]]:
    """Return the classes of other packages by kind and family; a package cannot take a kind of the library's."""
    kinds: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=KIND_GROUP):
        name, _, kind = entry.name.rpartition(".")
        if kind not in KINDS:
            kinds.setdefault(kind, {})[name] = entry
    return kinds


@cache
def _loaded(name: str) -> Family:
    """Return the family of a name; refuse a package that cannot be imported, by name."""
    if name in OWN:
        made: tuple[Family, ...] = importlib.import_module(HERE + OWN[name][0]).FAMILIES
        return next(family for family in made if family.name == name)
    entries = {entry.value: entry for entry in _packages()[name]}
    places = " and ".join(sorted(entries))
    require(len(entries) == 1, f"packages that offer {name!r}", places, "one")
    offered = _imported(entries[places], f"mechanism {name!r}")
    require(
        isinstance(offered, Family),
        f"{places}, offered as {name!r}",
        type(offered).__name__,
        "a Family",
    )
    require(
        offered.name == name,
        f"name of {places}",
        offered.name,
        f"{name!r}, as its entry point says",
    )
    return cast(Family, offered)


def _imported(entry: EntryPoint, name: str) -> Any:
    try:
        return entry.load()
    except Exception as error:  # anything another package may raise on import
        reason = f"importing {entry.value} failed with {type(error).__name__}: {error}"
        raise InvalidParameter(f"{name} cannot be used: {reason}") from error


def family_of(mechanism: Mechanism) -> str:
    """Return the name of the family of a mechanism, or of the one inside its wrappers; empty if unknown."""
    kind = type(core_of(mechanism))
    for name, (file, class_name) in (OWN | ASKED).items():
        if (kind.__module__, kind.__name__) == (HERE + file, class_name):
            return name
    for name, entry in _package_kinds().get(kind.__name__, {}).items():
        if entry.value == f"{kind.__module__}:{kind.__name__}":
            return name
    return ""


def described_family(description: Any) -> str:
    """Return the name of the family of a description, or of what its wrappers hold; empty if unknown.

    Nothing is imported and nothing is built: this is what a policy asks first of what a stranger
    sent.
    """
    while isinstance(description, Mapping) and description.get("kind") in WRAPPERS:
        description = description.get("inner")
    if isinstance(description, Mapping):
        kind = description.get("kind")
    else:
        kind = None
    for name, (_, class_name) in (OWN | ASKED).items():
        if kind == class_name:
            return name
    if isinstance(kind, str):
        offers = _package_kinds().get(kind, {})
    else:
        offers = {}
    return next(iter(offers), "")


def identity_of(mechanism: Mechanism) -> bytes:
    """Return the SHA-256 of the canonical text: 32 bytes."""
    return hashlib.sha256(canonical_text(mechanism).encode()).digest()


def canonical_text(mechanism: Mechanism) -> str:
    """Return the canonical text of a mechanism: sorted keys, shortest exact decimals, no spaces."""
    content = {
        "format": FORMAT,
        "mechanism": _plain(mechanism, "mechanism", in_full=False),
        "version": VERSION,
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def describe(mechanism: Mechanism) -> dict[str, Any]:
    """Return the mechanism as plain values that JSON can hold and `build` reads, its design in full."""
    return cast(dict[str, Any], _plain(mechanism, "mechanism", in_full=True))


def build(description: Mapping[str, Any], allowed: Collection[str] | None = None) -> Mechanism:
    """Return the mechanism of a description; refuse a description that is not a mechanism's.

    ``allowed`` limits the families of other packages whose modules may be imported for it; None
    allows all installed.
    """
    try:
        mechanism = _built(description, allowed)
    except QuietbitError as error:
        raise InvalidParameter(f"A description of a mechanism cannot be used: {error}") from error
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise InvalidParameter(
            f"A description of a mechanism is not complete: {str(error).rstrip('.')}."
        ) from error
    return check_mechanism(mechanism, "description")


def _plain(value: Any, name: str, *, in_full: bool) -> Any:
    if isinstance(value, Design | Profile):
        word = "design" if isinstance(value, Design) else "profile"
        named = {"identity": value.identity()}
        return {word: {**json.loads(value.canonical()), **named} if in_full else value.identity()}
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = _kind(value, name)
    return {"kind": kind} | {
        key: _plain(part, f"{name}.{key}", in_full=in_full) for key, part in _public(value)
    }


def _kind(value: Any, name: str) -> str:
    """Return the unique name of a class in descriptions."""
    given = type(value)
    if not (attrs.has(given) or dataclasses.is_dataclass(given)):
        rule = (
            "a number, a word, a Design, a Profile or a frozen class of these to have an identity"
        )
        raise InvalidParameter(f"{name} must be {rule}, got a {given.__name__}.")
    place = given.__module__.removeprefix(HERE), given.__name__
    if given.__module__.startswith(HERE) and place in KIND_OF:
        return KIND_OF[place]
    require(
        given.__name__ not in KINDS,
        f"class of {name}",
        f"{given.__module__}.{given.__name__}",
        "named otherwise",
    )
    return given.__name__


def _public(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public fields that define a mechanism; skip those left out at their default."""
    if attrs.has(type(value)):
        for one in attrs.fields(type(value)):
            found = getattr(value, one.name)
            if one.init and not (one.metadata.get("left_out") and found == one.default):
                yield one.name, found
    else:
        yield from (
            (one.name, getattr(value, one.name)) for one in dataclasses.fields(value) if one.init
        )


def _built(value: Any, allowed: Collection[str] | None) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "kind" not in value and "design" in value:
        return Design.restored(value["design"], "the design of a mechanism")
    if "kind" not in value and "profile" in value:
        return Profile.restored(value["profile"], "the profile of a mechanism")
    made = _class(value["kind"], allowed)
    return made(**{name: _built(field, allowed) for name, field in value.items() if name != "kind"})


def _class(kind: str, allowed: Collection[str] | None) -> type:
    """Return the class of a kind: the library's, or else another package's; no other module is imported."""
    if kind in KINDS:
        file, name = KINDS[kind]
        return cast(type, getattr(importlib.import_module(HERE + file), name))
    offers = _package_kinds().get(kind, {})
    places = {entry.value: entry for entry in offers.values()}
    if len(places) != 1:
        rule = "one of " + ", ".join(KINDS) + ", or of one installed package"
        raise InvalidParameter.of("kind of the mechanism", rule, kind)
    (entry,) = places.values()
    if allowed is not None:
        modules = {
            offered.module
            for kinds in _package_kinds().values()
            for name, offered in kinds.items()
            if name in allowed
        }
        require(
            entry.module in modules,
            "kind of the mechanism",
            kind,
            "of a family that is allowed here",
        )
    return cast(type, _imported(entry, f"kind {kind!r}"))
