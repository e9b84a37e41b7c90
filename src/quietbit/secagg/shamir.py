"""Shamir's secret sharing of 32 bytes.

Idea     a secret is the value at 0 of a random polynomial of degree t - 1; any t values tell it, fewer say nothing.
Symbols  F = integers modulo the prime 2^256 + 297, the first above every 32-byte secret; holder i has the value at i.
Source   Shamir, "How to share a secret" (CACM 1979).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import lru_cache

from quietbit._validate import require, whole_number

__all__ = ["PRIME", "SECRET_SIZE", "SHARE_SIZE", "recover", "share"]

PRIME = 2**256 + 297
SECRET_SIZE = 32
SHARE_SIZE = 33
MOST_HOLDERS = 100_000


def share(secret: bytes, holders: list[int], threshold: int) -> dict[int, bytes]:
    """A share for every holder, numbered from 1; ``threshold`` of them recover the secret."""
    require(len(secret) == SECRET_SIZE, "length of the secret", len(secret), f"{SECRET_SIZE} bytes")
    threshold = whole_number(threshold, "threshold", 1, len(holders))
    fine = len(set(holders)) == len(holders) and all(1 <= holder <= MOST_HOLDERS for holder in holders)
    require(fine, "holders", "numbers", f"distinct whole numbers from 1 to {MOST_HOLDERS}")
    polynomial = [secrets.randbelow(PRIME) for _ in range(threshold - 1)] + [int.from_bytes(secret, "big")]
    return {holder: _value(polynomial, holder).to_bytes(SHARE_SIZE, "big") for holder in holders}


def recover(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret from at least ``threshold`` shares; refused with fewer, and where shares contradict each other.

    Shares beyond the threshold are checked all at once: the values of a polynomial of degree below t are orthogonal
    to w_i r(i) for every polynomial r of degree below h - t, where h is their number and w_i = 1/prod_{j != i} (i - j);
    others are orthogonal to it for a random r with a chance of 1 in 2^256.
    """
    require(len(shares) >= threshold, "number of shares", len(shares), f"at least the threshold {threshold}")
    holders = tuple(sorted(shares))
    values = [int.from_bytes(shares[holder], "big") for holder in holders]
    weights, at_zero = _weights(holders)
    check = [secrets.randbelow(PRIME) for _ in range(len(holders) - threshold)]
    if check:
        parts = (w * v * _value(check, holder) for w, v, holder in zip(weights, values, holders, strict=True))
        require(sum(parts) % PRIME == 0, "shares", "some that contradict each other", "of the same polynomial")
    secret = sum(w * v for w, v in zip(at_zero, values, strict=True)) % PRIME
    require(secret < 2 ** (8 * SECRET_SIZE), "recovered secret", "a number", "one of 32 bytes (shares are not genuine)")
    return secret.to_bytes(SECRET_SIZE, "big")


def _value(polynomial: list[int], place: int) -> int:
    total = 0
    for coefficient in polynomial:
        total = (total * place + coefficient) % PRIME
    return total


@lru_cache(maxsize=64)
def _weights(holders: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """1/prod_{j != i} (i - j) for every holder i, and Lagrange's coefficients at 0: the same for many secrets."""
    weights, at_zero = [], []
    for i in holders:
        above, below = 1, 1
        for j in holders:
            if j != i:
                above, below = above * -j % PRIME, below * (i - j) % PRIME
        inverse = pow(below, -1, PRIME)
        weights.append(inverse)
        at_zero.append(above * inverse % PRIME)
    return tuple(weights), tuple(at_zero)
