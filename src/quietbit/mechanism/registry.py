"""Mechanisms by name, and mechanisms written down: one text from which the same mechanism is built again.

Idea     a word leads to a family, the library's own or another package's (entry points of the group
         ``quietbit.mechanisms``, each a `Family`). A package is imported when its word, or a class that only it can
         have, is asked for: one that is broken breaks nothing else. A mechanism's public fields, written as plain
         values, are its description; the same values with designs named by their identity are one canonical text,
         whose SHA-256 is the mechanism's identity on the wire: two ends that differ in anything that matters have
         different digests, and their payloads do not mix. What is computed from the fields is left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

import attrs

from quietbit.design.profile import Profile
from quietbit.design.table import Design
from quietbit.errors import InvalidParameter, QuietbitError, check_known, require
from quietbit.mechanism.base import Mechanism, check_mechanism
from quietbit.mechanism.family import Family

__all__ = ["build", "canonical_text", "describe", "families", "family", "family_of", "identity_of", "importable"]

FORMAT = "quietbit-mechanism"
VERSION = 1
GROUP = "quietbit.mechanisms"
HERE = "quietbit.mechanism."
# The library's own words: the file that has the family, and the class that is its mechanism.
OWN = {
    "imvu": ("interpolated", "InterpolatedMVU"),
    "vmvu": ("vector", "VectorMVU"),
    "mvu": ("dithered", "DitheredMVU"),
    "gaussian": ("additive", "Gaussian"),
    "laplace": ("additive", "Laplace"),
    "sign": ("additive", "Sign"),
    "skellam": ("skellam", "Skellam"),
}
# The word, in policies and ledgers, of what answers questions that are not for an update.
ASKED = {
    "response": ("response", "RandomisedResponse"),
    "summed-response": ("summed_response", "SummedResponse"),
    "scout": ("adaptive_clip", "Scout"),
}
# The library's own kinds in descriptions: file and class. An identity keeps the word that it was first written with.
KINDS = {
    "Ball": ("ball", "Ball"),
    "IndependentSkellam": ("skellam", "IndependentSkellam"),
    "PoissonBatch": ("batch", "PoissonBatch"),
    "LocalSteps": ("local_steps", "LocalSteps"),
    "Projected": ("projected", "Projected"),
    "ProjectedSamples": ("projected", "ProjectedSamples"),
    "Rotation": ("rotation", "Rotation"),
    "Watched": ("adaptive_clip", "AdaptiveClip"),
} | {name: (file, name) for file, name in (*OWN.values(), *ASKED.values())}
KIND_OF = {place: kind for kind, place in KINDS.items()}


def families() -> tuple[str, ...]:
    """Return the words of all families, the library's own first; nothing is imported for them."""
    return (*OWN, *sorted(_packages()))


def family(name: str) -> Family:
    """Return the family of that word, imported now; any other word is refused with those there are."""
    check_known(name, families(), "mechanism")
    return _loaded(name)


def importable(words: Iterable[str]) -> Iterator[Family]:
    """Yield the families of these words but for those of packages that cannot be imported."""
    for word in words:
        with suppress(InvalidParameter):
            yield _loaded(word)


@lru_cache(maxsize=1)
def _packages() -> dict[str, set[EntryPoint]]:
    """Words of other packages; one cannot take a word of the library's."""
    found: dict[str, set[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        if entry.name not in OWN:
            found.setdefault(entry.name, set()).add(entry)
    return found


@cache
def _loaded(word: str) -> Family:
    """Return the family of a word; a package that cannot be imported is refused, with its name."""
    if word in OWN:
        made: tuple[Family, ...] = importlib.import_module(HERE + OWN[word][0]).FAMILIES
        return next(one for one in made if one.name == word)
    entries = {entry.value: entry for entry in _packages()[word]}
    places = " and ".join(sorted(entries))
    require(len(entries) == 1, f"packages that offer {word!r}", places, "one")
    try:
        found = entries[places].load()
    except Exception as error:  # whatever somebody else's module does when it is imported
        raise InvalidParameter(
            f"mechanism {word!r} cannot be used: importing {places} failed with {type(error).__name__}: {error}"
        ) from error
    require(isinstance(found, Family), f"{places}, offered as {word!r}", type(found).__name__, "a Family")
    require(found.name == word, f"name of {places}", found.name, f"{word!r}, as its entry point says")
    return cast(Family, found)


def family_of(mechanism: Mechanism) -> str:
    """Return the word of the family that a mechanism, or the one inside its wrappers, is of; empty for strangers."""
    kind = type(mechanism.core)
    for word, (file, name) in (OWN | ASKED).items():
        if (kind.__module__, kind.__name__) == (HERE + file, name):
            return word
    return next((one.name for one in importable(sorted(_packages())) if one.kinds and one.kinds[0] is kind), "")


def identity_of(mechanism: Mechanism) -> bytes:
    """Return the SHA-256 of the canonical text: 32 bytes."""
    return hashlib.sha256(canonical_text(mechanism).encode()).digest()


def canonical_text(mechanism: Mechanism) -> str:
    """Return the one text that stands for a mechanism: sorted keys, shortest exact decimals, no spaces."""
    content = {"format": FORMAT, "mechanism": _plain(mechanism, "mechanism", in_full=False), "version": VERSION}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def describe(mechanism: Mechanism) -> dict[str, Any]:
    """Return the mechanism as plain values, its design in full: what `build` reads and JSON can hold."""
    described: dict[str, Any] = _plain(mechanism, "mechanism", in_full=True)
    return described


def build(description: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism that a description stands for; anything that does not make one is refused."""
    try:
        found = _built(description)
    except QuietbitError as error:
        raise InvalidParameter(f"A description of a mechanism cannot be used: {error}") from error
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise InvalidParameter(f"A description of a mechanism is not complete: {str(error).rstrip('.')}.") from error
    return check_mechanism(found, "description")


def _plain(value: Any, name: str, *, in_full: bool) -> Any:
    if isinstance(value, Design | Profile):
        word, named = "design" if isinstance(value, Design) else "profile", {"identity": value.identity()}
        return {word: {**json.loads(value.canonical()), **named} if in_full else value.identity()}
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"kind": _kind(value, name)} | {
        key: _plain(part, f"{name}.{key}", in_full=in_full) for key, part in _public(value)
    }


def _kind(value: Any, name: str) -> str:
    """Return the word for a class: no two classes share one."""
    given = type(value)
    if not (attrs.has(given) or dataclasses.is_dataclass(given)):
        raise InvalidParameter(
            f"{name} must be a number, a word, a Design, a Profile or a frozen class of these to have an identity, "
            f"got a {given.__name__}."
        )
    place = given.__module__.removeprefix(HERE), given.__name__
    if given.__module__.startswith(HERE) and place in KIND_OF:
        return KIND_OF[place]
    require(given.__name__ not in KINDS, f"class of {name}", f"{given.__module__}.{given.__name__}", "named otherwise")
    return given.__name__


def _public(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a mechanism is made from: fields that are given, and not those that only say the default."""
    if attrs.has(type(value)):
        for one in attrs.fields(type(value)):
            found = getattr(value, one.name)
            if one.init and not (one.metadata.get("left_out") and found == one.default):
                yield one.name, found
    else:
        yield from ((one.name, getattr(value, one.name)) for one in dataclasses.fields(value) if one.init)


def _built(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "kind" not in value and "design" in value:
        return Design.restored(value["design"], "the design of a mechanism")
    if "kind" not in value and "profile" in value:
        return Profile.restored(value["profile"], "the profile of a mechanism")
    return _class(value["kind"])(**{name: _built(field) for name, field in value.items() if name != "kind"})


def _class(kind: str) -> type:
    """Return the class that a kind stands for: the library's own, or else one of another package's."""
    if kind in KINDS:
        file, name = KINDS[kind]
        return cast(type, getattr(importlib.import_module(HERE + file), name))
    for made in (made for one in importable(sorted(_packages())) for made in one.kinds):
        if made.__name__ == kind:
            return made
    raise InvalidParameter.of(
        "kind of the mechanism", "one of " + ", ".join(KINDS) + ", or an installed package's", kind
    )
