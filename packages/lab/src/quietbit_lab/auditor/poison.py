"""How far an attacker's payload moves a mean: searched seeds, and the longest payloads.

Idea     an attacker is not bound to the clip: it sends any payload that the server decodes, up to
         the length at which the server refuses (`mechanism.accumulate`). Where a seed is sent,
         each stands for pure noise, and searching 2^b of them buys the largest of 2^b normals along
         the attacker's direction. Where k of p rows of a public rotation are kept, the attacker
         picks a direction among them, along which everything is sqrt(p/k) longer.
Symbols  b: work; m: gain of the profile, z/m is decoded; k: kept of p.
Source   packages/lab/docs/profiles.md; docs/explanation/threat-model.md, "Poisoned clients".
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import chdtri, ndtri

from quietbit._search import bisect
from quietbit.errors import check_int, check_real
from quietbit.kernel.select import default_kernel
from quietbit.mechanism.base import Body, Mechanism, Wrapper
from quietbit.mechanism.batch import LocalSteps
from quietbit.mechanism.projected import Projected
from quietbit.mechanism.vector import VectorMVU
from quietbit.target import Trust

__all__ = ["WORK", "longest_payload", "moved", "poisoned", "seed_maximum", "worst_direction"]

WORK = 30  # bits: a billion seeds, a few hours on one core
MOST_WORK = 120
FLOAT_BITS = 32
LEAST_FLOAT = 1e-37
LARGEST_FLOAT = 3e38


def seed_maximum(work: float, dimensions: int = 1) -> float:
    """Return what one of 2^``work`` normal draws is expected to exceed.

    The draw is measured along a direction, or by its length in a subspace of ``dimensions``.

    >>> round(seed_maximum(30), 2), round(seed_maximum(30, dimensions=10), 2)
    (6.01, 7.94)
    """
    chance = 2.0 ** -check_real(work, "work", at_most=MOST_WORK)
    count = check_int(dimensions, "dimensions", 1)
    if count == 1:
        return float(-ndtri(chance))
    return math.sqrt(chdtri(count, chance))


def moved(mechanism: Mechanism, share: float, trust: Trust, work: float = WORK) -> float:
    """Return how far a ``share`` of malicious clients moves the mean of a round, in clips.

    A trusted server clips what it receives; behind masks only the range of the decoded mean bounds
    one client.
    """
    malicious = check_real(share, "malicious", at_most=1.0)
    if trust is Trust.CENTRAL:
        return malicious
    if trust is Trust.SECURE_AGGREGATION:
        return poisoned(mechanism, work)
    return poisoned(mechanism, work) * malicious


def poisoned(mechanism: Mechanism, work: float = WORK) -> float:
    """Return the reach of an attacker's payload, or of the best of 2^``work`` seeds, in clips."""
    if isinstance(mechanism, LocalSteps):  # the longest accepted difference, in clips of all steps
        return mechanism.honest_length / mechanism.longest_update
    if isinstance(mechanism, Projected):  # along the worst direction, one of kept rows
        return worst_direction(mechanism.keep, mechanism.padded) * poisoned(mechanism.inner, work)
    if isinstance(mechanism, VectorMVU):
        stretch = worst_direction(mechanism.keep, mechanism.padded)
        return stretch * seed_maximum(work) / mechanism.profile.gain_lower
    if isinstance(mechanism, Wrapper):
        return poisoned(mechanism.inner, work)
    layout = mechanism.layout
    return longest_payload(mechanism, mechanism.honest_length, layout.bits, layout.count)


def worst_direction(kept: int, padded: int) -> float:
    """Return how much longer a payload of kept rows is along the worst direction than on the rows.

    The rotation is public. An attacker that aims along kept rows gains the server's scaling by
    sqrt(p/k); along any other direction it loses what lies on rows that are not kept.
    """
    return math.sqrt(padded / kept)


def longest_payload(mechanism: Mechanism, honest: float, bits: int, count: int) -> float:
    """Return the length of the longest decoded payload of ``count`` codes, in clips.

    A server refuses payloads longer than ``honest``. The longest payload has equal codes, at an end
    of their range.
    """
    ball = mechanism.ball
    kernel = default_kernel()
    accumulator = mechanism.accumulator(kernel, 1)

    def codes(code: int) -> Body:
        packed = kernel.pack(np.full(count, code, dtype=np.uint16), bits)
        return np.frombuffer(packed, dtype=np.uint8)

    def floats(value: float) -> Body:
        return np.full(count, value, dtype="<f4").view(np.uint8)

    def accepted(value: float) -> bool:
        try:
            accumulator.check(floats(value))
        except ValueError:
            return False
        return True

    def length(body: Body) -> float:
        sums = mechanism.accumulator(kernel, 1)
        sums.add([body])
        return float(np.linalg.norm(sums.reader(1)(0, ball.dimension), ball.norm.order))

    if bits == FLOAT_BITS:
        largest = bisect(accepted, LEAST_FLOAT, LARGEST_FLOAT, relative=1e-3, by_ratio=True)
        longest = length(floats(largest))
    else:
        middle = 2 ** (bits - 1)  # an end of codes that wrap around
        longest = max(length(codes(code)) for code in {0, 2**bits - 1, middle, middle - 1})
    return min(longest, honest) / mechanism.error().gain
