"""Malicious payloads: how long an honest one is, how far an attacker's moves a mean.

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
    "WORK",
    "exponential_length_upper",
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
ROUNDING = (
    1 + 2.0**-16
)  # more than the roundings of noise to its grid and to 32 bits, and of sums of squares
WORK = 30  # bits: a billion seeds, a few hours on one core
MOST_WORK = 120
FLOAT_BITS = 32
LEAST_FLOAT = 1e-37
LARGEST_FLOAT = 3e38


def normal_length_upper(
    dimension: int, radius: float, deviation: float, doubt: float = DOUBT
) -> float:
    """Return a length that an update in the ball plus normal noise exceeds with probability at most e^-doubt.

    >>> round(normal_length_upper(1000, 1.0, 1.0), 1), 1000**0.5
    (37.3, 31.622776601683793)
    """
    each = dimension * deviation**2
    signal = radius**2
    square = (
        each
        + signal
        + 2 * deviation * math.sqrt((each + 2 * signal) * doubt)
        + 2 * deviation**2 * doubt
    )
    return math.sqrt(square) * ROUNDING


def exponential_length_upper(
    dimension: int, radius: float, scale: float, doubt: float = DOUBT
) -> float:
    """Return the same bound on the L1 length of an update plus Laplace noise."""
    return (radius + scale * (dimension + math.sqrt(2 * dimension * doubt) + doubt)) * ROUNDING


def squares_upper(
    count: int, mean: float, second: float, largest: float, doubt: float = DOUBT
) -> float:
    """Return a bound that the sum of ``count`` independent squares exceeds with probability at most e^-doubt."""
    return (count * mean + math.sqrt(2 * count * second * doubt) + largest * doubt / 3) * ROUNDING


def refuse_longer(length: float, honest: float) -> None:
    """Refuse a payload that is longer than an honest one, or whose length is NaN."""
    if not length <= honest:
        raise Outlier(
            f"length of the payload must be at most {honest:g}, as for honest clients, got {length:g}."
        )


def seed_maximum(work: float, dimensions: int = 1) -> float:
    """Return what one of 2^``work`` normal draws is expected to exceed along a direction, or in a subspace.

    >>> round(seed_maximum(30), 2), round(seed_maximum(30, dimensions=10), 2)
    (6.01, 7.94)
    """
    chance = 2.0 ** -check_real(work, "work", at_most=MOST_WORK)
    many = check_int(dimensions, "dimensions", 1)
    return float(-ndtri(chance) if many == 1 else math.sqrt(chdtri(many, chance)))


def moved(mechanism: Mechanism, share: float, trust: Trust, work: float = WORK) -> float:
    """Return how far a ``share`` of all clients moves the mean of a round along the worst direction, in clips.

    A trusted server clips what it receives; behind masks only the range of the decoded mean bounds
    one client.
    """
    part = check_real(share, "malicious", at_most=1.0)
    if trust is Trust.CENTRAL:
        return part
    if trust is Trust.SECURE_AGGREGATION:
        part = 1.0
    return poisoned(mechanism, work) * part


def honest_length(mechanism: Mechanism) -> float:
    """Return a bound that an honest decoded payload exceeds with probability at most 2^-40; infinite for none."""
    bounded = LengthBounded.nearest(mechanism)
    return math.inf if bounded is None else bounded.honest_length


def poisoned(mechanism: Mechanism, work: float = WORK) -> float:
    """Return how far an attacker's payload, or the best of 2^``work`` seeds, lies along its direction, in clips."""
    bounded = PoisonBounded.nearest(mechanism)
    if bounded is not None:
        return bounded.poisoned(work)
    core = core_of(mechanism)
    return longest_payload(core, honest_length(core), core.layout.bits, core.layout.count)


def worst_direction(kept: int, padded: int) -> float:
    """Return how much longer a payload of kept rows is along the worst direction than on the rows themselves.

    The rotation is public. Along one of its rows, or a combination of rows that one release keeps,
    the server's scaling by sqrt(p/k) is the attacker's: other directions lose to the rows that are
    not kept.
    """
    return math.sqrt(padded / kept)


def longest_payload(
    mechanism: Mechanism, honest: float, bits: int, count: int, head: int = 0
) -> float:
    """Return how long a payload of ``count`` codes, after ``head`` bytes, decodes at most, in clips.

    A server refuses those longer than ``honest``.

    One of those with all coordinates alike, at an end of their codes, has the longest decoding.
    """
    ball = mechanism.ball
    kernel = default_kernel()
    accumulator = mechanism.accumulator(kernel, 1)

    def codes(code: int) -> Body:
        return np.frombuffer(
            bytes(head) + kernel.pack(np.full(count, code, dtype=np.uint16), bits), dtype=np.uint8
        )

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
        longest = length(
            floats(bisect(accepted, LEAST_FLOAT, LARGEST_FLOAT, relative=1e-3, by_ratio=True))
        )
    else:  # the last two are for codes that wrap around
        longest = max(
            length(codes(code)) for code in {0, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1}
        )
    return min(longest, honest) / (ball.radius * mechanism.error().gain)
