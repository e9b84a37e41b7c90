"""An update as one flat vector, its norm, and the factor that clips it to a ball.

Idea     kernels read an update in pieces and never copy all of it, except for arrays that are not
         contiguous or in another byte order. A norm adds blocks of 4,096
         values, 16 rows of 256 lanes: rows one after the other, lanes by halving, the blocks' sums
         by `math.fsum`. The order is fixed, so threads and devices agree to the last bit.
Symbols  N the exact norm, N' the computed one: |N' - N| < NORM_ERROR N (docs/theory/numerics.md); f
         the clip factor.

Second look. The update is read once for its norm and once more to be sampled, and may be modified
in between. So the sampling pass adds up |y|^p of the values y that it samples, in any order, with
a relative error below LOOK_ERROR (a term rounds once, and no term goes through more than 2^12
additions). The factor leaves room for that: with S the computed sum, S <= limit = (radius / f)^p (1
- LOOK_ERROR) proves f ||y|| <= radius, and an unmodified update always passes, because f <= radius
(1 - 2^-38) / N'. A NaN fails.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit.arrays import as_array, is_tensor
from quietbit.errors import InvalidParameter, check_real

__all__ = ["BLOCK", "KINDS", "LANES", "NORM_ERROR", "ROWS", "Clip", "Flat", "clip_factor", "widen"]

# The numbers of types in C; the last one is for the bits of bfloat16.
KINDS = {
    np.dtype(np.float32): 0,
    np.dtype(np.float64): 1,
    np.dtype(np.float16): 2,
    np.dtype(np.uint16): 3,
}
RULE = "float16, float32, float64, or uint16 for the bits of bfloat16"
NORM_ERROR = 2.0**-48
LOOK_ERROR = 2.0**-40
LOOK_ROOM = 2.0**-38  # room that the clip factor leaves for a second look
ROTATION_ROOM = 2.0**-16  # room that it leaves for a rotation in float32
# Beyond this, or below its inverse, sums of squares may leave the range of doubles.
LOOK_REACH = 2.0**240
ROWS = 16
LANES = 256
BLOCK = ROWS * LANES


@final
@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """Consecutive contiguous 1-D arrays as one vector; ``parts[i]`` begins at ``starts[i]``."""

    parts: tuple[NDArray[Any], ...]
    starts: tuple[int, ...]
    size: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, update: Any) -> Flat:
        """Wrap an array, or a list or tuple of arrays, without a copy."""
        if isinstance(update, Flat):
            return update
        several = False
        if isinstance(update, list | tuple):
            several = all(hasattr(part, "__array__") for part in update)
        arrays = update if several else (update,)
        parts = []
        starts = []
        size = 0
        for array in arrays:
            if type(array) is np.ndarray:
                part = array
            elif is_tensor(array):
                part = as_array(array)
            else:
                part = np.asarray(array)
            shape = part.shape
            kind = part.dtype.newbyteorder("=")
            if kind not in KINDS:
                raise InvalidParameter.of("type of the update", RULE, str(part.dtype))
            parts.append(np.ascontiguousarray(part, kind).reshape(-1))
            starts.append(size)
            size += part.size
        if several:
            shape = (size,)
        return cls(tuple(parts), tuple(starts), size, shape)

    def copied(self) -> list[NDArray[Any]]:
        """Return private copies of the arrays."""
        return [np.array(part, copy=True) for part in self.parts]

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Return coordinates ``start .. stop - 1`` as contiguous float32 or float64.

        The result is a view of the update where that is possible.
        """
        if start >= stop:
            return np.empty(0, dtype=np.float32)
        index = bisect_right(self.starts, start) - 1
        pieces = []
        while start < stop:
            part = self.parts[index]
            offset = self.starts[index]
            begin = start - offset
            end = min(part.size, stop - offset)
            if end > begin:
                pieces.append(widen(part[begin:end]))
                start += end - begin
            index += 1
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces)


def widen(values: NDArray[Any]) -> NDArray[Any]:
    """Return half precision as float32, exactly, and other types as they are."""
    if values.dtype == np.float16:
        return values.astype(np.float32)
    if values.dtype == np.uint16:  # bfloat16: the upper half of a float32's bits
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def exact_sum(sums: list[float]) -> float:
    """Return the sum, rounded once; infinite or NaN if a term or the sum is."""
    try:
        return math.fsum(sums)
    except (OverflowError, ValueError):  # an overflow of the sum, or infinities of both signs
        return math.inf


def clip_factor(norm: float, radius: float, room: float = 0.0) -> float:
    """Return the factor, at most 1, that brings a vector of that computed norm into a ball.

    It is rounded down: factor * vector, in real numbers, is at most (1 - room) radius long, for
    every true norm within NORM_ERROR of the computed one.
    """
    if type(radius) is not float or not 0.0 < radius < math.inf:
        radius = check_real(radius, "radius")
    if not 0 <= norm < math.inf:
        raise InvalidParameter.of("norm", "finite and not negative", norm)
    # Whole numbers, because fractions would look for common divisors at every step.
    top, bottom = radius.as_integer_ratio()
    for lost in (room, NORM_ERROR):
        share, unit = lost.as_integer_ratio()
        top *= unit - share
        bottom *= unit
    over, under = float(norm).as_integer_ratio()
    top *= under
    bottom *= over
    if bottom <= top:
        return 1.0
    return rounded_down(top, bottom)


def rounded_down(top: int, bottom: int) -> float:
    """Return the largest double that is not above top / bottom, a number below 2^1023."""
    nearest = top / bottom  # Python rounds quotients of integers correctly
    over, under = nearest.as_integer_ratio()
    if over * bottom <= top * under:
        return nearest
    return math.nextafter(nearest, -math.inf)


@final
@dataclass(frozen=True, slots=True)
class Clip:
    """The factor that brings an update of known norm into a ball, and the limit of a second look.

    ``limit`` is None where sums could leave the range of doubles; the caller then measures and
    samples a private copy.
    """

    factor: float
    limit: float | None

    @classmethod
    def of(cls, norm: float, radius: float, order: int) -> Clip:
        """Return the clip to the ball of that radius."""
        factor = clip_factor(norm, radius, LOOK_ROOM)
        if not (0.0 < factor <= 1.0 and 1 / LOOK_REACH < radius / factor < LOOK_REACH):
            return cls(factor, None)
        return cls(factor, _look_limit(radius, factor, order))

    @classmethod
    def rotated(cls, norm: float, radius: float) -> Clip:
        """Return the clip to the ball of that radius before a rotation in float32.

        The rotation lengthens a vector by a share of at most 2 (40 + 2) 2^-24, for which there is
        room. ``limit`` is that of the rotated vector, which is not scaled again.
        """
        number = radius if type(radius) is float else check_real(radius, "radius")
        if not 2.0**-90 <= number <= 2.0**90:
            rule = "from 2^-90 to 2^90, because rotations are in single precision"
            raise InvalidParameter.of("radius", rule, radius)
        return cls(clip_factor(norm, radius, ROTATION_ROOM), _look_limit(number, 1.0, 2))

    def check(self, total: float) -> None:
        """Refuse the sum of a second look if the values may lie outside the ball."""
        if self.limit is None or not total <= self.limit:
            raise InvalidParameter.of("update", "left unmodified while it is being sent")


@lru_cache(maxsize=64)
def _look_limit(radius: float, factor: float, order: int) -> float:
    """Return (radius / factor)^order (1 - LOOK_ERROR), rounded down."""
    a, b = float(radius).as_integer_ratio()
    c, d = factor.as_integer_ratio()
    share, unit = LOOK_ERROR.as_integer_ratio()
    top = (a * d) ** order * (unit - share)
    bottom = (b * c) ** order * unit
    return rounded_down(top, bottom)
