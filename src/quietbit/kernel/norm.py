"""Norms that are the same number on every device, and the clip factor that keeps a norm below a radius.

Idea     an update is cut into blocks of 4,096 values, 16 rows of 256 lanes; rows are added one after the
         other, the lanes by halving, and the blocks' sums by `math.fsum`, which rounds once. The order is
         fixed, so threads and devices agree to the last bit.
Symbols  u = 2^-53; N the exact norm, N' the computed one.

Error. Terms are non-negative. A square rounds once (u), a block's sum is 15 + 8 additions deep, `fsum`
rounds once: 25 u relatively, so |N' - N| <= 25 u N for the L1 norm and, after the square root, 14 u N for
the L2 norm. Float64 values whose sum leaves 2^-500 .. 2^500 are first scaled by a power of two that brings
the largest into [1, 2): exact, and what then underflows is below d 2^-1022. Hence |N' - N| < NORM_ERROR * N
with NORM_ERROR = 32 u = 2^-48; a norm above 0 and below 2^-1020 is reported as 2^-1020, which clips no less.

Second look. The update is read once for its norm and once more to be sampled, and may be modified in between. So the
sampling pass adds up |y|^p of the values y that it reads itself, in any order, with a relative error below LOOK_ERROR =
2^-40 (a term rounds once, and no term goes through more than 2^12 additions). The factor f leaves room for that: with S
the computed sum, S <= limit = (radius / f)^p (1 - LOOK_ERROR) proves f ||y|| <= radius, and an unmodified update always
passes, because f <= radius (1 - 2^-38) / N'. A NaN fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, check_real
from quietbit.kernel.chunks import Flat

__all__ = [
    "BLOCK", "LANES", "LOOK_ERROR", "NORM_ERROR", "ROWS", "Clip", "check_finite", "clip_factor", "exact_sum",
    "joint_norm", "rotated_factor",
]  # fmt: skip

NORM_ERROR = 2.0**-48
LOOK_ERROR = 2.0**-40
LOOK_ROOM = 2.0**-38  # room that the clip factor leaves for a second look
ROTATION_ROOM = 2.0**-16  # room that it leaves for a rotation in float32
LOOK_REACH = 2.0**240  # beyond it or below its inverse, sums of squares may leave the range of doubles
ROWS, LANES = 16, 256
CHANGED = "update must not change while it is sent, but somebody wrote to it meanwhile."
BLOCK = ROWS * LANES
SMALLEST = 2.0**-1020
SAFE_LOW, SAFE_HIGH = 2.0**-500, 2.0**500

BlockSums = Callable[[Flat, int, float], NDArray[np.float64]]


def check_finite(flat: Flat, block_sums: BlockSums, largest: Callable[[Flat], float]) -> None:
    """Refuse an update with a NaN or infinite entry."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = block_sums(flat, 1, 1.0)
    if not np.all(np.isfinite(sums)) and not math.isfinite(largest(flat)):
        raise InvalidParameter("update must be finite everywhere, got a NaN or infinite entry.")


def joint_norm(flat: Flat, order: int, block_sums: BlockSums, largest: Callable[[Flat], float]) -> float:
    """Return the norm of all parts together, from a kernel's block sums of ``|scale * value|^order``.

    Refuses an update with a NaN or infinite entry, and one whose norm is beyond the largest double.
    """
    if order not in (1, 2):
        raise InvalidParameter.of("order of the norm", "1 or 2", order)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        total = exact_sum(block_sums(flat, order, 1.0).tolist())
        scale = 1.0
        if not (SAFE_LOW < total < SAFE_HIGH):
            check_finite(flat, block_sums, largest)
            peak = largest(flat)
            if peak == 0.0:
                return 0.0
            scale = 2.0 ** max(-1000, min(1000, 1 - math.frexp(peak)[1]))
            total = exact_sum(block_sums(flat, order, scale).tolist())
    result = (math.sqrt(total) if order == 2 else total) / scale
    if not math.isfinite(result):
        raise InvalidParameter.of("norm of the update", "below the largest double", result)
    return max(result, SMALLEST)


def exact_sum(sums: list[float]) -> float:
    """Return the sum, rounded once; infinite or NaN if a term or the sum is."""
    try:
        return math.fsum(sums)
    except (OverflowError, ValueError):  # an overflow of the sum, or infinities of both signs
        return math.inf


def clip_factor(norm: float, radius: float, room: float = 0.0) -> float:
    """Return the factor, at most 1, that brings a vector of computed norm ``norm`` into the ball of ``radius``.

    Rounded down so that factor * vector, as a vector of real numbers, has a norm of at most (1 - room) radius
    whatever the error that NORM_ERROR allows.

    >>> clip_factor(0.5, 1.0), clip_factor(4.0, 1.0) <= 0.25
    (1.0, True)
    """
    # Integers: fractions would look for common divisors at every step.
    if type(radius) is not float or not 0.0 < radius < math.inf:
        radius = check_real(radius, "radius")
    if not 0 <= norm < math.inf:
        raise InvalidParameter.of("norm", "finite and not negative", norm)
    top, bottom = radius.as_integer_ratio()
    for lost in (room, NORM_ERROR):
        part, whole = lost.as_integer_ratio()
        top, bottom = top * (whole - part), bottom * whole
    over, under = float(norm).as_integer_ratio()
    top, bottom = top * under, bottom * over
    return 1.0 if bottom <= top else rounded_down(top, bottom)


def rounded_down(top: int, bottom: int) -> float:
    """Return the largest double that is not above top / bottom, a number below 2^1023."""
    nearest = top / bottom  # Python rounds quotients of integers correctly
    over, under = nearest.as_integer_ratio()
    return nearest if over * bottom <= top * under else math.nextafter(nearest, -math.inf)


@final
@dataclass(frozen=True, slots=True)
class Clip:
    """The factor that brings an update of known norm into a ball, and the limit of a second look.

    ``limit`` bounds the sum of |value|^order in the sampling pass; it is None where such sums could leave the range of
    doubles, and then only a private copy of the update may be measured and sampled.
    """

    factor: float
    limit: float | None

    @classmethod
    def of(cls, norm: float, radius: float, order: int) -> Clip:
        """Return the clip to the ball of that radius."""
        factor = clip_factor(norm, radius, LOOK_ROOM)
        if not 0.0 < factor <= 1.0:
            return cls(factor, None)
        reach = radius / factor
        if not 1 / LOOK_REACH < reach < LOOK_REACH:
            return cls(factor, None)
        (a, b), (c, d), (part, whole) = (x.as_integer_ratio() for x in (float(radius), factor, LOOK_ERROR))
        return cls(factor, rounded_down((a * d) ** order * (whole - part), (b * c) ** order * whole))

    def check(self, total: float) -> None:
        """Refuse the sum of a second look if the values may lie outside the ball."""
        if self.limit is None or not total <= self.limit:
            raise InvalidParameter(CHANGED)


def rotated_factor(norm: float, radius: float) -> float:
    """Return the clip factor before a rotation, with room for the length that rounding in float32 can add.

    A rotation in blocks lengthens by at most 2 (40 + 2) 2^-24 relatively, one more rounding included (`transform.py`).
    """
    if not 2.0**-90 <= (radius if type(radius) is float else check_real(radius, "radius")) <= 2.0**90:
        raise InvalidParameter.of("radius", "from 2^-90 to 2^90: rotations are in single precision", radius)
    return clip_factor(norm, radius, ROTATION_ROOM)
