"""The shipped profiles: two text files with a profile per line, read on first use."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

from quietbit.design.profile import Profile
from quietbit.target import Adjacency, Target

__all__ = ["shipped_profile"]


def shipped_profile(target: Target) -> Profile | None:
    """Return the shipped profile for exactly this target, or ``None``."""
    entry = _catalogue(target.adjacency).get((target.epsilon, target.delta, target.releases))
    return None if entry is None else Profile.restored(entry, f"the catalogue's profile for {target}")


@lru_cache(maxsize=len(Adjacency))
def _catalogue(adjacency: Adjacency) -> dict[tuple[float, float, int], dict[str, Any]]:
    source = files(__name__) / f"{adjacency.value}.jsonl"
    lines = source.read_text(encoding="ascii").splitlines() if source.is_file() else []
    entries = map(json.loads, lines)
    return {
        (entry["epsilon"], entry["delta"], entry["releases"]): {**entry["profile"], "identity": entry["identity"]}
        for entry in entries
    }
