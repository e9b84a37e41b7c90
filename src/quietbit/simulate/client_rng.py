"""Random bits for every release of a run.

Idea     a release's seeded bits depend on the seed, the round and the client alone, so neither the order of clients
         nor the number of threads changes a code. Secure ones have nothing to repeat: every release takes a fresh key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from quietbit.errors import check_int
from quietbit.kernel.rng import RandomBits, secure_rng, seeded_rng

__all__ = ["CLIENT_BITS", "ClientRng", "client_rng", "secure_client_rng", "seeded_client_rng"]

ROUND_BITS = CLIENT_BITS = 48
ClientRng: TypeAlias = Callable[[int, int], RandomBits]  # of a round and a client


def client_rng(kind: str, seed: int) -> ClientRng:
    """Return what a plan asks for: ``seeded``, else secure."""
    return seeded_client_rng(seed) if kind == "seeded" else secure_client_rng()


def secure_client_rng() -> ClientRng:
    """Return bits nobody can predict: every release takes a fresh key."""
    rng = secure_rng()
    return lambda number, client: rng


def seeded_client_rng(seed: int) -> ClientRng:
    """Return reproducible bits that protect nobody: seed, round and client make the seed of a release."""
    base = check_int(seed, "seed", 0) << (ROUND_BITS + CLIENT_BITS)
    return lambda number, client: seeded_rng(base | (number << CLIENT_BITS) | client)
