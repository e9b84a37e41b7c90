"""Designs and profiles on disk: canonical text with its SHA-256, written whole or not at all.

Idea     A file is the canonical text with its identity, which reading recomputes: a changed or truncated file is
         refused. The cache holds one file per spec of a design or target of a profile; writers race harmlessly,
         because each writes a file of its own and renames it into place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from quietbit._files import cache_folder as kept_in
from quietbit._files import write_text
from quietbit.design import profile as profiles
from quietbit.design import table as designs
from quietbit.design.profile import Profile
from quietbit.design.spec import DesignSpec
from quietbit.design.table import Design
from quietbit.errors import InvalidDesignFile, QuietbitError
from quietbit.target import Target

__all__ = [
    "cache_folder", "cached", "cached_profile", "parse_design", "parse_profile", "read_design", "read_profile",
    "remember", "remember_profile", "verified_profile", "write_design", "write_profile",
]  # fmt: skip

SOLVER_VERSION = 1  # raised when a search finds better designs, so that older cached ones are left alone
MAX_BYTES, MAX_PROFILE_BYTES = 64 * 2**20, 2**20
Stored = TypeVar("Stored", Design, Profile)


def write_design(design: Design, path: Path) -> Path:
    """Write one line: the design with its identity among its values."""
    content = {**json.loads(design.canonical()), "identity": design.identity()}
    return write_text(path, json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n", make_folder=False)


def write_profile(profile: Profile, path: Path) -> Path:
    """Write two lines: the profile, and its identity."""
    return write_text(path, f"{profile.canonical()}\n{profile.identity()}\n", make_folder=False)


def read_design(path: Path) -> Design:
    """Read and verify a design file."""
    return parse_design(_text(path, "design", MAX_BYTES), str(path))


def read_profile(path: Path) -> Profile:
    """Read and verify a profile file."""
    content, _, stated = _text(path, "profile", MAX_PROFILE_BYTES).partition("\n")
    return verified_profile(content, stated.strip(), str(path))


def parse_design(text: str, origin: str) -> Design:
    """Return the design that a text stands for; ``origin`` names it in a refusal."""
    content = _values(text, origin, "design", designs.FORMAT, designs.VERSION)
    stated = content.pop("identity", None)
    design = _made(
        lambda: Design(DesignSpec(**content["spec"]), content["probabilities"], content["alphabet"]), origin, "design"
    )
    if design.identity() != stated or set(content) != set(json.loads(design.canonical())):
        raise InvalidDesignFile(f"{origin} was changed: its content does not match its identity {stated!r}.")
    return design


def parse_profile(text: str, origin: str) -> Profile:
    """Return the profile that a canonical text stands for; any other text is refused."""
    content = _values(text, origin, "profile", profiles.FORMAT, profiles.VERSION)
    found = _made(lambda: Profile(content["edges"], content["levels"]), origin, "profile")
    if found.canonical() != text.strip():
        raise InvalidDesignFile(f"{origin} is not the canonical text of its profile, {found.identity()}.")
    return found


def verified_profile(text: str, stated: str, origin: str) -> Profile:
    """Return the profile of a text, refused unless it has the identity stated beside it."""
    found = parse_profile(text, origin)
    if found.identity() != stated:
        raise InvalidDesignFile(f"{origin} was changed: its content does not match its identity {stated!r}.")
    return found


def cache_folder() -> Path:
    """Where solved designs and profiles are kept."""
    return kept_in("designs")


def cached(spec: DesignSpec) -> Design | None:
    """Return the cached design for exactly this spec; a damaged file counts as absent."""
    with contextlib.suppress(InvalidDesignFile):
        design = read_design(_cache_file(spec, "json"))
        return design if design.spec == spec else None
    return None


def cached_profile(target: Target) -> Profile | None:
    """Return the cached profile for exactly this target; a damaged file counts as absent."""
    with contextlib.suppress(InvalidDesignFile):
        return read_profile(_cache_file(target, "profile"))
    return None


def remember(design: Design) -> None:
    """Keep a design in the cache; a cache that cannot be written is not a reason to fail."""
    _remember(write_design, design, _cache_file(design.spec, "json"))


def remember_profile(target: Target, profile: Profile) -> None:
    """Keep a profile in the cache likewise."""
    _remember(write_profile, profile, _cache_file(target, "profile"))


def _remember(write: Callable[[Stored, Path], Path], made: Stored, path: Path) -> None:
    with contextlib.suppress(OSError, QuietbitError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(made, path)


def _cache_file(asked: DesignSpec | Target, suffix: str) -> Path:
    key = hashlib.sha256(f"{SOLVER_VERSION}:{asked!r}".encode()).hexdigest()[:32]
    return cache_folder() / f"{key}.{suffix}"


def _text(path: Path, what: str, most: int) -> str:
    try:
        if path.stat().st_size > most:
            raise InvalidDesignFile(f"{path} is not a {what}: it is larger than {most} bytes.")
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise InvalidDesignFile(f"Cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidDesignFile(f"{path} is not a {what}: it is not plain text.") from error


def _values(text: str, origin: str, what: str, word: str, version: int) -> dict[str, Any]:
    try:
        content = json.loads(text, parse_constant=_not_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidDesignFile(f"{origin} is not a {what}: it is not complete JSON.") from error
    if not isinstance(content, dict) or content.get("format") != word:
        raise InvalidDesignFile(f"{origin} is not a {what}: it does not say format {word!r}.")
    if content.get("version") != version:
        raise InvalidDesignFile(f"{origin} has version {content.get('version')!r}, and this library reads {version}.")
    return content


def _not_finite(name: str) -> float:
    raise ValueError(name)


def _made(make: Callable[[], Stored], origin: str, what: str) -> Stored:
    try:
        return make()
    except (QuietbitError, KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise InvalidDesignFile(f"{origin} is not a usable {what}: {reason}.") from error
