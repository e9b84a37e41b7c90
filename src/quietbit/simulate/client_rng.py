"""Random bits for every release of a run.

Idea     a release's seeded bits depend on the seed, the round and the client alone, so neither the order of clients
         nor the number of threads changes a code. Secure ones have nothing to repeat: every release takes a fresh key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final

from quietbit.errors import check_int
from quietbit.kernel.rng import RandomBits, secure_rng, seeded_rng

__all__ = ["CLIENT_BITS", "ClientRng", "client_rng", "secure_client_rng", "seeded_client_rng"]

ROUND_BITS = CLIENT_BITS = 48


class ClientRng(Protocol):
    """The random bits of every release of a run."""

    def __call__(self, number: int, client: int) -> RandomBits:
        """Those of one client in round ``number``."""
        ...


def client_rng(kind: str, seed: int) -> ClientRng:
    """What a plan asks for: ``seeded``, else secure."""
    return seeded_client_rng(seed) if kind == "seeded" else secure_client_rng()


def secure_client_rng() -> ClientRng:
    """Bits nobody can predict: every release takes a fresh key."""
    return _Secure(secure_rng())


def seeded_client_rng(seed: int) -> ClientRng:
    """Reproducible bits that protect nobody: seed, round and client make the seed of a release."""
    return _Seeded(check_int(seed, "seed", 0) << (ROUND_BITS + CLIENT_BITS))


@final
@dataclass(frozen=True, slots=True)
class _Secure:
    rng: RandomBits

    def __call__(self, number: int, client: int) -> RandomBits:
        return self.rng


@final
@dataclass(frozen=True, slots=True)
class _Seeded:
    base: int

    def __call__(self, number: int, client: int) -> RandomBits:
        return seeded_rng(self.base | (number << CLIENT_BITS) | client)
