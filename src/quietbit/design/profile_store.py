"""Profiles on disk: canonical text with its identity, in a file, in the cache, and in the shipped catalogue.

Idea     As for designs: reading recomputes the identity, so a changed or truncated file is refused; a file appears
         whole or not at all. The catalogue is two text files with a profile per line, read on first use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from quietbit.design.profile import ADJACENCIES, Profile, parse_profile
from quietbit.design.profile_target import ProfileTarget
from quietbit.design.store import cache_folder
from quietbit.errors import InvalidDesignFile, QuietbitError

__all__ = [
    "cached_profile",
    "catalogue_lines",
    "catalogue_targets",
    "read_profile",
    "remember_profile",
    "shipped_profile",
    "write_profile",
]

SOLVER_VERSION = 1  # raised when the search finds better profiles, so that older cached ones are left alone
MAX_BYTES = 2**20
EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
RELEASES = (1, 2, 3, 5, 10, 20, 50)
DELTAS = (1e-5, 1e-6)


def write_profile(profile: Profile, path: str | os.PathLike[str]) -> Path:
    """Write the canonical text beside its final place, then rename it there."""
    final = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{final.name}.", dir=final.parent)
    except OSError as error:
        raise QuietbitError(f"Cannot write {final}: {error.strerror}.") from error
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(profile.canonical() + "\n" + profile.identity() + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, final)
    except OSError as error:
        raise QuietbitError(f"Cannot write {final}: {error.strerror}.") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    return final


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Read and verify a profile file: the canonical text and, on a second line, its identity."""
    source = Path(path)
    try:
        if source.stat().st_size > MAX_BYTES:
            raise InvalidDesignFile(f"{source} is not a profile: it is larger than {MAX_BYTES} bytes.")
        text = source.read_text(encoding="ascii")
    except OSError as error:
        raise InvalidDesignFile(f"Cannot read {source}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidDesignFile(f"{source} is not a profile: it is not plain text.") from error
    content, _, stated = text.partition("\n")
    return _verified(content, stated.strip(), str(source))


def catalogue_targets() -> Iterator[ProfileTarget]:
    """Every target of the shipped catalogue, in the order it is listed."""
    for adjacency in ADJACENCIES:
        for epsilon in EPSILONS:
            yield ProfileTarget(epsilon, 0.0, 1, adjacency)
            for delta in DELTAS:
                for releases in RELEASES:
                    yield ProfileTarget(epsilon, delta, releases, adjacency)
            yield ProfileTarget(
                epsilon, DELTAS[0], 200, adjacency
            )  # large files, and slow to solve: one delta is enough


def catalogue_lines(profiles: Iterator[tuple[ProfileTarget, Profile]]) -> dict[str, str]:
    """The text of each catalogue file by its adjacency: one line per target."""
    lines: dict[str, list[str]] = {adjacency: [] for adjacency in ADJACENCIES}
    for target, profile in profiles:
        words = {"delta": target.delta, "epsilon": target.epsilon, "releases": target.releases}
        entry = {**words, "identity": profile.identity(), "profile": json.loads(profile.canonical())}
        lines[target.adjacency].append(json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False))
    return {adjacency: "\n".join(listed) + "\n" for adjacency, listed in lines.items()}


def shipped_profile(target: ProfileTarget) -> Profile | None:
    """The shipped profile for exactly this target, or ``None``."""
    entry = _catalogue(target.adjacency).get((target.epsilon, target.delta, target.releases))
    return None if entry is None else _verified(*entry, f"the catalogue's profile for {target}")


def cached_profile(target: ProfileTarget) -> Profile | None:
    """The profile kept for exactly this target; a damaged file counts as absent."""
    with contextlib.suppress(InvalidDesignFile):
        return read_profile(_cache_file(target))
    return None


def remember_profile(target: ProfileTarget, profile: Profile) -> None:
    """Keep a profile in the cache; a cache that cannot be written is not a reason to fail."""
    path = _cache_file(target)
    with contextlib.suppress(OSError, QuietbitError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_profile(profile, path)


def _cache_file(target: ProfileTarget) -> Path:
    key = hashlib.sha256(f"{SOLVER_VERSION}:{target!r}".encode()).hexdigest()[:32]
    return cache_folder() / f"{key}.profile"


@lru_cache(maxsize=len(ADJACENCIES))
def _catalogue(adjacency: str) -> dict[tuple[float, float, int], tuple[str, str]]:
    source = files("quietbit.design.profiles") / f"{adjacency}.jsonl"
    if not source.is_file():
        return {}
    found = {}
    for line in source.read_text(encoding="ascii").splitlines():
        entry = json.loads(line)
        text = json.dumps(entry["profile"], sort_keys=True, separators=(",", ":"), allow_nan=False)
        found[entry["epsilon"], entry["delta"], entry["releases"]] = (text, entry["identity"])
    return found


def _verified(text: str, stated: str, origin: str) -> Profile:
    profile = parse_profile(text, origin)
    if profile.identity() != stated:
        raise InvalidDesignFile(f"{origin} was changed: its content does not match its identity {stated!r}.")
    return profile
