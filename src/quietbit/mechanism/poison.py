"""Malicious payloads: how long an honest payload is, and how far an attacker's moves a mean.

Idea     an attacker is not bound to the clip: it sends any payload that the server decodes. So the
         server refuses a payload longer than noise makes it, except with probability 2^-40:
         post-processing, which costs no privacy and, but for that probability, no honest client.
         This helps where payloads differ in length, as floats and wide codes do. Where a seed is
         sent, each stands for pure noise, and searching 2^b of them buys the largest of 2^b normals
         along the attacker's direction. Where k of p rows of a public rotation are kept, the
         attacker picks a direction among them, along which everything is sqrt(p/k) longer.
Symbols  d coordinates; C: radius; T = log 2^40; b: work; m: gain of the profile, z/m is decoded; k:
         kept of p.
Source   docs/explanation/poisoned-clients.md; docs/theory/samplers.md, "Lengths of honest
         payloads".
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import chdtri, ndtri

from quietbit._search import bisect
from quietbit.errors import Outlier, check_int, check_real
from quietbit.kernel.select import default_kernel
from quietbit.mechanism.abilities import LengthBounded, PoisonBounded
from quietbit.mechanism.base import Body, Mechanism, core_of
from quietbit.target import Trust

__all__ = [
    "DOUBT",
    "ROUNDING",
    "WORK",
    "honest_length",
    "longest_payload",
    "moved",
    "normal_length_upper",
    "poisoned",
    "refuse_longer",
    "seed_maximum",
    "squares_upper",
    "worst_direction",
]

DOUBT = 40 * math.log(2)  # T: an honest payload is refused with probability at most 2^-40
# More than the roundings of noise to its grid and to 32 bits, and of sums of squares.
ROUNDING = 1 + 2.0**-16
WORK = 30  # bits: a billion seeds, a few hours on one core
MOST_WORK = 120
FLOAT_BITS = 32
LEAST_FLOAT = 1e-37
LARGEST_FLOAT = 3e38


def normal_length_upper(
    dimension: int, radius: float, deviation: float, doubt: float = DOUBT
) -> float:
    """Return a length that an update plus normal noise exceeds with probability at most e^-doubt.

    >>> round(normal_length_upper(1000, 1.0, 1.0), 1), 1000**0.5
    (37.3, 31.622776601683793)
    """
    noise = dimension * deviation**2
    signal = radius**2
    spread = 2 * deviation * math.sqrt((noise + 2 * signal) * doubt)
    tail = 2 * deviation**2 * doubt
    return math.sqrt(noise + signal + spread + tail) * ROUNDING


def squares_upper(
    count: int, mean: float, second: float, largest: float, doubt: float = DOUBT
) -> float:
    """Return what a sum of ``count`` independent squares exceeds with probability at most e^-doubt.

    ``mean`` and ``second`` are the first two moments of a square, ``largest`` is its largest value.
    """
    return (count * mean + math.sqrt(2 * count * second * doubt) + largest * doubt / 3) * ROUNDING


def refuse_longer(length: float, honest: float) -> None:
    """Refuse a payload that is longer than an honest one, or whose length is NaN."""
    if not length <= honest:
        rule = f"at most {honest:g}, as for honest clients"
        raise Outlier(f"length of the payload must be {rule}, got {length:g}.")


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


def honest_length(mechanism: Mechanism) -> float:
    """Return a length that honest payloads exceed with probability at most 2^-40, or infinity."""
    bounded = LengthBounded.nearest(mechanism)
    if bounded is None:
        return math.inf
    return bounded.honest_length


def poisoned(mechanism: Mechanism, work: float = WORK) -> float:
    """Return the reach of an attacker's payload, or of the best of 2^``work`` seeds, in clips."""
    bounded = PoisonBounded.nearest(mechanism)
    if bounded is not None:
        return bounded.poisoned(work)
    core = core_of(mechanism)
    return longest_payload(core, honest_length(core), core.layout.bits, core.layout.count)


def worst_direction(kept: int, padded: int) -> float:
    """Return how much longer a payload of kept rows is along the worst direction than on the rows.

    The rotation is public. An attacker that aims along kept rows gains the server's scaling by
    sqrt(p/k); along any other direction it loses what lies on rows that are not kept.
    """
    return math.sqrt(padded / kept)


def longest_payload(
    mechanism: Mechanism, honest: float, bits: int, count: int, head: int = 0
) -> float:
    """Return the length of the longest decoded payload of ``count`` codes, in clips.

    The codes follow ``head`` bytes, and a server refuses payloads longer than ``honest``. The
    longest payload has equal codes, at an end of their range.
    """
    ball = mechanism.ball
    kernel = default_kernel()
    accumulator = mechanism.accumulator(kernel, 1)

    def codes(code: int) -> Body:
        packed = kernel.pack(np.full(count, code, dtype=np.uint16), bits)
        return np.frombuffer(bytes(head) + packed, dtype=np.uint8)

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
    return min(longest, honest) / (ball.radius * mechanism.error().gain)
