"""Random bits of one client in one round: nobody's to predict, or reproducible from a seed.

Idea     a release's seeded bits depend on the seed, the round and the client alone, so neither the
         order of clients nor the number of threads changes a code. Seeded bits protect nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from quietbit.errors import check_int
from quietbit.kernel.rng import RandomBits, secure_rng, seeded_rng

__all__ = ["CLIENT_BITS", "ClientRng", "client_rng", "seeded_client_rng"]

ROUND_BITS = 48
CLIENT_BITS = 48

ClientRng: TypeAlias = Callable[[int, int], RandomBits]  # of a round and a client


def client_rng(kind: str, seed: int) -> ClientRng:
    """Return what a plan asks for: ``seeded``, else unpredictable bits, with a fresh key for every release."""
    if kind == "seeded":
        return seeded_client_rng(seed)
    return lambda number, client: secure_rng()


def seeded_client_rng(seed: int) -> ClientRng:
    """Return reproducible bits that protect nobody: seed, round and client make the seed of a release."""
    base = check_int(seed, "seed", 0) << (ROUND_BITS + CLIENT_BITS)
    return lambda number, client: seeded_rng(base | (number << CLIENT_BITS) | client)
