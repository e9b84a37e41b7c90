"""The shipped profiles: two text files with a profile per line, read on first use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from typing import Any

from quietbit.design.profile import Profile
from quietbit.target import Adjacency, Target

__all__ = ["catalogue_lines", "catalogue_targets", "shipped_profile"]

EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
RELEASES = (1, 2, 3, 5, 10, 20, 50)
DELTAS = (1e-5, 1e-6)
ORDER = (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)


def catalogue_targets() -> Iterator[Target]:
    """Every target of the shipped catalogue, in the order it is listed."""
    for adjacency in ORDER:
        for epsilon in EPSILONS:
            yield Target(epsilon, 0.0, adjacency)
            for delta in DELTAS:
                for releases in RELEASES:
                    yield Target(epsilon, delta, adjacency, releases=releases)
            # Large files, and slow to solve: one delta is enough.
            yield Target(epsilon, DELTAS[0], adjacency, releases=200)


def catalogue_lines(profiles: Iterator[tuple[Target, Profile]]) -> dict[str, str]:
    """Return the text of each catalogue file by its adjacency: one line per target."""
    lines: dict[Adjacency, list[str]] = {adjacency: [] for adjacency in ORDER}
    for target, profile in profiles:
        words = {"delta": target.delta, "epsilon": target.epsilon, "releases": target.releases}
        entry = {**words, "identity": profile.identity(), "profile": json.loads(profile.canonical())}
        lines[target.adjacency].append(json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False))
    return {adjacency.value: "\n".join(listed) + "\n" for adjacency, listed in lines.items()}


def shipped_profile(target: Target) -> Profile | None:
    """Return the shipped profile for exactly this target, or ``None``."""
    entry = _catalogue(target.adjacency).get((target.epsilon, target.delta, target.releases))
    return None if entry is None else Profile.restored(entry, f"the catalogue's profile for {target}")


@lru_cache(maxsize=len(ORDER))
def _catalogue(adjacency: Adjacency) -> dict[tuple[float, float, int], dict[str, Any]]:
    source = files("quietbit.design.profiles") / f"{adjacency.value}.jsonl"
    lines = source.read_text(encoding="ascii").splitlines() if source.is_file() else []
    entries = map(json.loads, lines)
    return {
        (entry["epsilon"], entry["delta"], entry["releases"]): {**entry["profile"], "identity": entry["identity"]}
        for entry in entries
    }
