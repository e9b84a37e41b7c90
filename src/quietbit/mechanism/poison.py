"""Poisoned clients: how far an attacker's payload moves a mean, per mechanism.

Idea     an attacker is not bound to the clip: it sends any payload that the server decodes. Where codes or floats are
         sent, it writes the longest vector that the server accepts (`mechanism/outliers.py`). Where a seed is sent, it
         can only choose among seeds, each of which stands for pure noise: searching 2^b of them buys the largest of
         2^b normals along its direction. So a seed bounds the harm by the attacker's work: it grows more slowly than
         the root of the work's logarithm.
Symbols  b: work, 2^b seeds are tried; m: gain of the profile, z/m is decoded; C: clip; k: coordinates kept of p.

Seeds. The stream cipher is a random function, so 2^b seeds are 2^b draws of N(0, I_k). Along a unit vector v fixed
beforehand, a draw is worth <z, w>/m clips, w = sqrt(p/k) S H D v, and is beyond s with probability Q(s m / |w|): the
expected number of seeds beyond s is 2^b Q(s m / |w|), and P(any is) at most that. `seed_maximum` is where that number
is one. |w| = 1 where all rows are kept; where k rows are the release's own, they are searched too, and |w|^2 is at most
the 2^-b quantile of a mean of k squared normals, for a v that the public rotation spreads out. In a subspace of q
dimensions (an attacker content with any of several directions) a draw is as long as a chi variable of q degrees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtri, ndtri

from quietbit.errors import check_int, check_real
from quietbit.kernel.select import default_kernel
from quietbit.target import Trust

if TYPE_CHECKING:
    from quietbit.mechanism.base import Accumulator, Body, Mechanism

__all__ = ["WORK", "best_rows", "longest_payload", "moved", "seed_maximum"]

WORK = 30  # bits: a billion seeds, a few hours on one core
MOST_WORK = 120
FLOAT_BITS = 32


def seed_maximum(work: float, dimensions: int = 1) -> float:
    """Return what one of 2^``work`` normal draws is expected to exceed along a direction, or in a subspace.

    >>> round(seed_maximum(30), 2), round(seed_maximum(30, dimensions=10), 2)
    (6.01, 7.94)
    """
    chance = 2.0 ** -check_real(work, "work", at_most=MOST_WORK)
    many = check_int(dimensions, "dimensions", 1)
    return float(-ndtri(chance) if many == 1 else math.sqrt(chdtri(many, chance)))


def moved(mechanism: Mechanism, share: float, trust: Trust, work: float = WORK) -> float:
    """Return how far a ``share`` of all clients moves the mean of a round along its direction, in clips.

    A trusted server clips what it receives. Behind masks nobody sees an invalid code: one client can add anything, and
    only the range of the decoded mean bounds it.
    """
    part = check_real(share, "malicious", at_most=1.0)
    if trust is Trust.CENTRAL:
        return part
    return mechanism.poisoned(work) * (1.0 if trust is Trust.SECURE_AGGREGATION else part)


def best_rows(kept: int, padded: int, work: float) -> float:
    """Return |w| for the best of 2^work choices of rows."""
    if kept == padded:
        return 1.0
    return math.sqrt(min(float(chdtri(kept, 2.0**-work)) / kept, padded / kept))


def longest_payload(mechanism: Mechanism, bits: int, count: int, head: int = 0) -> float:
    """Return how long a payload of ``count`` codes, after ``head`` bytes, decodes at most, in clips."""
    ball, kernel = mechanism.domain, default_kernel()
    longest = 0.0
    for body in _extremes(mechanism, bits, count, head):
        accumulator = mechanism.accumulator(kernel, 1)
        accumulator.add([body])
        longest = max(longest, float(np.linalg.norm(accumulator.reader(1)(0, ball.dimension), ball.norm.order)))
    return min(longest, mechanism.honest_length) / (ball.radius * mechanism.error().gain)


def _extremes(mechanism: Mechanism, bits: int, count: int, head: int) -> Iterator[Body]:
    """Yield bodies of which one has the longest decoding: all coordinates alike, at an end of their codes."""
    kernel = default_kernel()
    if bits == FLOAT_BITS:
        largest = _largest_float(count, mechanism.accumulator(kernel, 1))
        yield np.full(count, largest, dtype="<f4").view(np.uint8)
        return
    for code in {0, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1}:  # the last two: for codes that wrap around
        packed = kernel.pack(np.full(count, code, dtype=np.uint16), bits)
        yield np.frombuffer(bytes(head) + packed, dtype=np.uint8)


def _largest_float(count: int, accumulator: Accumulator) -> float:
    """Return the largest float that the server accepts, to three digits."""
    low, high = 0.0, 3e38

    def fine(value: float) -> bool:
        try:
            accumulator.check(np.full(count, value, dtype="<f4").view(np.uint8))
        except ValueError:
            return False
        return True

    for _ in range(140):
        middle = math.sqrt(low * high) if low else high / 1e3
        low, high = (middle, high) if fine(middle) else (low, middle)
        if low and high / low < 1.001:
            break
    return low
