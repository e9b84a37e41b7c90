"""Random bits of one client in one round: unpredictable, or reproducible from a seed.

Idea     seeded bits depend on the seed, the round and the client alone, so neither the order of
         clients nor the number of threads changes a code. Seeded bits give no privacy.
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
    """Return seeded bits for the kind ``seeded``, else unpredictable ones for every release."""
    if kind == "seeded":
        return seeded_client_rng(seed)
    return lambda number, client: secure_rng()


def seeded_client_rng(seed: int) -> ClientRng:
    """Return reproducible bits without privacy, seeded by seed, round and client."""
    base = check_int(seed, "seed", 0) << (ROUND_BITS + CLIENT_BITS)

    def rng_of(number: int, client: int) -> RandomBits:
        return seeded_rng(base | (number << CLIENT_BITS) | client)

    return rng_of
