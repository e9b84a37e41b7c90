"""An update as one flat vector, its norm, the same number on every device, and the factor that clips it to a ball.

Idea     kernels read an update in pieces, never copied whole: a piece inside one contiguous float32
         or float64 array is a view of it, any other is a copy. A norm adds blocks of 4,096 values,
         16 rows of 256 lanes: rows one after the other, lanes by halving, the blocks' sums by
         `math.fsum`. The order is fixed, so threads and devices agree to the last bit.
Symbols  N the exact norm, N' the computed one: |N' - N| < NORM_ERROR N (docs/theory/kernels.md); f
         the clip factor.

Second look. The update is read once for its norm and once more to be sampled, and may be modified
in between. So the sampling pass adds up |y|^p of the values y that it reads itself, in any order,
with a relative error below LOOK_ERROR (a term rounds once, and no term goes through more than 2^12
additions). The factor leaves room for that: with S the computed sum, S <= limit = (radius / f)^p (1
- LOOK_ERROR) proves f ||y|| <= radius, and an unmodified update always passes, because f <= radius
(1 - 2^-38) / N'. A NaN fails.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit.arrays import NUMPY_FLOATS, as_array, is_tensor
from quietbit.errors import InvalidParameter, check_real

__all__ = ["BLOCK", "LANES", "NORM_ERROR", "ROWS", "Clip", "Flat", "clip_factor", "widen"]

ACCEPTED = {*NUMPY_FLOATS, "uint16"}
RULE = "float16, float32, float64, or uint16 for the bits of bfloat16"
NORM_ERROR = 2.0**-48
LOOK_ERROR = 2.0**-40
LOOK_ROOM = 2.0**-38  # room that the clip factor leaves for a second look
ROTATION_ROOM = 2.0**-16  # room that it leaves for a rotation in float32
LOOK_REACH = (
    2.0**240
)  # beyond it or below its inverse, sums of squares may leave the range of doubles
ROWS, LANES = 16, 256
BLOCK = ROWS * LANES


@final
@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """Consecutive arrays as one vector: ``starts[i]`` is the flat position where ``parts[i]`` begins."""

    parts: tuple[NDArray[Any], ...]
    starts: tuple[int, ...]
    size: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, update: Any) -> Flat:
        """Wrap an array, or a list or tuple of arrays, without a copy."""
        if isinstance(update, Flat):
            return update
        several = isinstance(update, list | tuple) and all(
            hasattr(part, "__array__") for part in update
        )
        given = update if several else (update,)
        parts = tuple(
            part
            if type(part) is np.ndarray
            else as_array(part)
            if is_tensor(part)
            else np.asarray(part)
            for part in given
        )
        starts, size = [], 0
        for part in parts:
            if part.dtype.name not in ACCEPTED:
                raise InvalidParameter.of("type of the update", RULE, str(part.dtype))
            starts.append(size)
            size += part.size
        return cls(parts, tuple(starts), size, (size,) if several else parts[0].shape)

    def copied(self) -> list[NDArray[Any]]:
        """Return private copies of the arrays."""
        return [np.array(part, copy=True) for part in self.parts]

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Return coordinates ``start .. stop - 1`` as contiguous float32 or float64, a view where possible."""
        if start >= stop:
            return np.empty(0, dtype=np.float32)
        index = bisect_right(self.starts, start) - 1
        found = []
        while start < stop:
            part, begin = self.parts[index], start - self.starts[index]
            end = min(part.size, stop - self.starts[index])
            if end > begin:
                flat = part.reshape(-1) if part.flags.c_contiguous else part.flat
                found.append(widen(flat[begin:end]))
                start += end - begin
            index += 1
        return found[0] if len(found) == 1 else np.concatenate(found)


def widen(values: NDArray[Any]) -> NDArray[Any]:
    """Return half precision as float32 and other types in this machine's byte order; always exact."""
    native = values.dtype.newbyteorder("=")
    if native == np.float16:
        return values.astype(np.float32)
    if native == np.uint16:  # bfloat16: the upper half of a float32's bits
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.ascontiguousarray(values, dtype=native)


def exact_sum(sums: list[float]) -> float:
    """Return the sum, rounded once; infinite or NaN if a term or the sum is."""
    try:
        return math.fsum(sums)
    except (OverflowError, ValueError):  # an overflow of the sum, or infinities of both signs
        return math.inf


def clip_factor(norm: float, radius: float, room: float = 0.0) -> float:
    """Return the factor, at most 1, that brings a vector of computed norm ``norm`` into the ball of ``radius``.

    Rounded down: factor * vector, in real numbers, is at most (1 - room) radius long, whatever
    NORM_ERROR allows.
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

    ``limit`` is None where sums could leave the range of doubles: then a private copy is measured
    and sampled.
    """

    factor: float
    limit: float | None

    @classmethod
    def of(cls, norm: float, radius: float, order: int) -> Clip:
        """Return the clip to the ball of that radius."""
        factor = clip_factor(norm, radius, LOOK_ROOM)
        if not (0.0 < factor <= 1.0 and 1 / LOOK_REACH < radius / factor < LOOK_REACH):
            return cls(factor, None)
        (a, b), (c, d), (part, whole) = (
            x.as_integer_ratio() for x in (float(radius), factor, LOOK_ERROR)
        )
        return cls(
            factor, rounded_down((a * d) ** order * (whole - part), (b * c) ** order * whole)
        )

    def check(self, total: float) -> None:
        """Refuse the sum of a second look if the values may lie outside the ball."""
        if self.limit is None or not total <= self.limit:
            raise InvalidParameter(
                "update must not change while it is sent, but somebody wrote to it meanwhile."
            )


def rotated_factor(norm: float, radius: float) -> float:
    """Return the clip factor before a rotation in float32, which lengthens by at most 2 (40 + 2) 2^-24 relatively."""
    if (
        not 2.0**-90
        <= (radius if type(radius) is float else check_real(radius, "radius"))
        <= 2.0**90
    ):
        raise InvalidParameter.of(
            "radius", "from 2^-90 to 2^90: rotations are in single precision", radius
        )
    return clip_factor(norm, radius, ROTATION_ROOM)
