"""Shamir's secret sharing of 16 bytes.

Idea     a secret is the value at 0 of a random polynomial of degree t - 1; any t values tell it, fewer say nothing.
Symbols  F = integers modulo the prime 2^128 - 159, the last below 2^128: shares are as long as secrets; holder i has
         the value at i. Secrets are drawn below the prime.
Source   Shamir, "How to share a secret" (CACM 1979).

Whether shares are genuine cannot be told from t of them. Whoever recovers a secret checks every share, and the secret,
against what its dealer has committed to (`quietbit.secagg.client`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from quietbit.errors import check_int, require

__all__ = ["PRIME", "SECRET_SIZE", "SHARE_SIZE", "new_secret", "recover", "share"]

PRIME = 2**128 - 159
SECRET_SIZE = SHARE_SIZE = 16
MOST_HOLDERS = 100_000


def new_secret() -> bytes:
    """Draw a secret from the operating system's randomness, uniform below the prime."""
    return secrets.randbelow(PRIME).to_bytes(SECRET_SIZE, "big")


def share(secret: bytes | bytearray, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Split a secret into a share for every holder, numbered from 1; ``threshold`` of them recover it."""
    require(len(secret) == SECRET_SIZE, "length of the secret", len(secret), f"{SECRET_SIZE} bytes")
    number = int.from_bytes(secret, "big")
    require(number < PRIME, "secret", "a number", "below the prime of the shares")
    threshold = check_int(threshold, "threshold", 1, len(holders))
    fine = len(set(holders)) == len(holders) and all(1 <= holder <= MOST_HOLDERS for holder in holders)
    require(fine, "holders", "numbers", f"distinct whole numbers from 1 to {MOST_HOLDERS}")
    polynomial = [secrets.randbelow(PRIME) for _ in range(threshold - 1)] + [number]
    return {holder: _value(polynomial, holder).to_bytes(SHARE_SIZE, "big") for holder in holders}


def recover(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Recover the secret from the first ``threshold`` of at least as many shares; refuse fewer."""
    require(len(shares) >= threshold, "number of shares", len(shares), f"at least the threshold {threshold}")
    holders = tuple(sorted(shares)[:threshold])
    values = [int.from_bytes(shares[holder], "big") for holder in holders]
    fine = all(len(shares[holder]) == SHARE_SIZE for holder in holders) and max(values) < PRIME
    require(fine, "shares", "others", f"numbers of {SHARE_SIZE} bytes below the prime")
    secret = sum(w * v for w, v in zip(_at_zero(holders), values, strict=True)) % PRIME
    return secret.to_bytes(SECRET_SIZE, "big")


def _value(polynomial: list[int], place: int) -> int:
    total = 0
    for coefficient in polynomial:
        total = (total * place + coefficient) % PRIME
    return total


@lru_cache(maxsize=64)
def _at_zero(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's coefficients at 0: the same for many secrets."""
    found = []
    for i in holders:
        above, below = 1, 1
        for j in holders:
            if j != i:
                above, below = above * -j % PRIME, below * (i - j) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)
