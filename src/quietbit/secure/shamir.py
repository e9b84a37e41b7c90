"""Shamir's secret sharing of 32 bytes.

Idea     a secret is the value at 0 of a random polynomial of degree t - 1; any t values tell it, fewer say nothing.
Symbols  F = integers modulo the prime 2^256 + 297, the first above every 32-byte secret; holder i has the value at i.
Source   Shamir, "How to share a secret" (CACM 1979).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

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
    """The secret from at least ``threshold`` shares; refused with fewer, and where shares contradict each other."""
    require(len(shares) >= threshold, "number of shares", len(shares), f"at least the threshold {threshold}")
    points = [(holder, int.from_bytes(data, "big")) for holder, data in shares.items()]
    basis, rest = points[:threshold], points[threshold:]
    for holder, value in rest:
        require(_interpolate(basis, holder) == value, "share", f"of holder {holder}", "one of the same polynomial")
    secret = _interpolate(basis, 0)
    require(secret < 2 ** (8 * SECRET_SIZE), "recovered secret", "a number", "one of 32 bytes (shares are not genuine)")
    return secret.to_bytes(SECRET_SIZE, "big")


def _value(polynomial: list[int], place: int) -> int:
    total = 0
    for coefficient in polynomial:
        total = (total * place + coefficient) % PRIME
    return total


def _interpolate(points: list[tuple[int, int]], place: int) -> int:
    """Lagrange's formula at ``place``."""
    total = 0
    for i, value in points:
        above, below = 1, 1
        for j, _ in points:
            if j != i:
                above, below = above * (place - j) % PRIME, below * (i - j) % PRIME
        total = (total + value * above * pow(below, -1, PRIME)) % PRIME
    return total
