"""Exact sums of payload bodies: one integer per coordinate, never a float, and none too long.

Idea     codes of b <= 16 bits stand for values. With one bit it is enough to count ones; with more,
         each value is a fixed-point number and the kernel adds those. Floats are converted to fixed
         point on arrival, which is possible because an honest float is bounded. Integer sums are
         exact and do not depend on the order. The mean is off by at most 2^-36 times max |v_j| or
         the reach (K = 2^24).
         An attacker is not bound to the clip: it sends any payload that the server decodes. So the
         server refuses a payload longer than noise makes it, except with probability 2^-40:
         post-processing, which costs no privacy and, but for that probability, no honest client.
         This helps where payloads differ in length, as floats and wide codes do.
Symbols  v_j: what code j stands for; K: the most payloads that will be added; reach: the largest
         magnitude that a noisy float of the mechanism can have; d coordinates; T = log 2^40.
         Lengths are in clips.
Source   docs/explanation/threat-model.md; docs/theory/numerics.md, "Lengths of honest
         payloads".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import Outlier, check_int, refuse_payload, require
from quietbit.kernel.base import Kernel
from quietbit.mechanism.base import Accumulator, Body, Reader, array_reader

__all__ = [
    "DOUBT",
    "ROUNDING",
    "FixedPoint",
    "code_accumulator",
    "normal_length_upper",
    "of_floats",
    "refuse_longer",
]

CHUNK = 1 << 18
LARGEST_FLOAT = 3.4e38
MAX_SHIFT = 52
DOUBT = 40 * math.log(2)  # T: an honest payload is refused with probability at most 2^-40
# More than the roundings of noise to its grid and to 32 bits, and of sums of squares.
ROUNDING = 1 + 2.0**-16

# A map from the mean of the values to the mean of the updates.
Finish: TypeAlias = Callable[[FloatVector], FloatVector]


def code_accumulator(
    values: FloatVector,
    bits: int,
    count: int,
    kernel: Kernel,
    max_payloads: int,
    finish: Finish | None = None,
    honest: float = math.inf,
) -> Accumulator:
    """Return an accumulator of ``count`` codes; code j stands for ``values[j]``.

    ``finish`` maps the mean of the values to an update. A payload whose values have a norm above
    ``honest`` is refused.
    """
    alphabet = np.asarray(values, dtype=np.float64)
    if bits == 1 and finish is None:
        return _Ones(alphabet, kernel, np.zeros(count, dtype=np.int32))
    point = FixedPoint.of(alphabet, max_payloads)
    return _Symbols(bits, point, finish, kernel, np.zeros(count, dtype=np.int64), alphabet, honest)


def of_floats(
    reach: float, count: int, max_payloads: int, honest: float = math.inf, order: int = 2
) -> Accumulator:
    """Return an accumulator of floats of magnitude up to ``reach``.

    A payload whose norm of this order is above ``honest`` is refused.
    """
    largest = reach * (1 + 2.0**-20)
    rule = "below 3.4e38, the largest 32-bit float"
    require(largest < LARGEST_FLOAT, "largest noisy value", largest, rule)
    point = FixedPoint.of(np.array([largest]), max_payloads)
    return _Floats(largest, point, np.zeros(count, dtype=np.int64), honest, order)


def normal_length_upper(dimension: int, deviation: float) -> float:
    """Return a length that an update plus normal noise exceeds with probability at most 2^-40.

    >>> round(normal_length_upper(1000, 1.0), 1), 1000**0.5
    (37.3, 31.622776601683793)
    """
    noise = dimension * deviation**2
    spread = 2 * deviation * math.sqrt((noise + 2) * DOUBT)
    tail = 2 * deviation**2 * DOUBT
    return math.sqrt(noise + 1 + spread + tail) * ROUNDING


def refuse_longer(length: float, honest: float) -> None:
    """Refuse a payload that is longer than an honest one, or whose length is NaN."""
    if not length <= honest:
        rule = f"at most {honest:g}, as for honest clients"
        raise Outlier(f"length of the payload must be {rule}, got {length:g}.")


@final
@frozen(eq=False)
class FixedPoint:
    """Values as integers, ``table[j] = round(2^shift v_j)``, for sums of at most ``most`` payloads.

    A mean is off by at most 2^-(shift + 1). The shift is the largest with K max |v_j| 2^shift
    surely at most 2^62 (and max |v_j| 2^shift at most 2^52).
    """

    table: NDArray[np.int64]
    shift: int
    most: int

    @classmethod
    def of(cls, values: FloatVector, most: int) -> FixedPoint:
        """Return the finest fixed point whose sums of ``most`` values fit 63 bits.

        >>> FixedPoint.of(np.array([-0.5, 0.25]), 2**20).shift
        41
        """
        count = check_int(most, "most payloads", 1, 2**40)
        largest = float(np.abs(values).max(initial=0.0))
        require(0 < largest < math.inf, "largest alphabet value", largest, "above 0 and finite")
        shift = min(MAX_SHIFT, 61 - (count - 1).bit_length()) - math.frexp(largest)[1]
        return cls(np.rint(values * 2.0**shift).astype(np.int64), shift, count)

    def mean(self, total: NDArray[np.int64], payloads: int) -> FloatVector:
        """Return the mean value per coordinate from totals over ``payloads`` payloads."""
        count = check_int(payloads, "payloads", 1, self.most)
        return np.asarray(total.astype(np.float64) / (float(count) * 2.0**self.shift))


@final
@frozen(eq=False)
class _Ones(Accumulator):
    """The number of ones per coordinate, for one-bit codes."""

    values: FloatVector
    kernel: Kernel
    total: NDArray[np.int32]

    group = 15  # one-bit payloads that the kernels add at once

    def add(self, bodies: Sequence[Body]) -> None:
        self.kernel.accumulate(bodies, 1, np.array([0, 1]), self.total)

    def reader(self, count: int) -> Reader:
        low, high = self.values.tolist()

        def read(start: int, stop: int) -> FloatVector:
            ones = self.total[start:stop].astype(np.float64)
            return np.asarray((high * ones + low * (count - ones)) / count)

        return read


@final
@frozen(eq=False)
class _Symbols(Accumulator):
    """Sums of fixed-point values, for codes of 2 to 16 bits."""

    bits: int
    point: FixedPoint
    finish: Finish | None
    kernel: Kernel
    total: NDArray[np.int64]
    values: FloatVector
    honest: float

    def check(self, body: Body) -> None:
        """Refuse codes whose norm exceeds the honest bound, where there is one."""
        if self.honest < math.inf:
            codes = self.kernel.unpack(body.tobytes(), self.bits, self.total.size)
            refuse_longer(float(np.linalg.norm(self.values[codes])), self.honest)

    def add(self, bodies: Sequence[Body]) -> None:
        self.kernel.accumulate(bodies, self.bits, self.point.table, self.total)

    def reader(self, count: int) -> Reader:
        def read(start: int, stop: int) -> FloatVector:
            return self.point.mean(self.total[start:stop], count)

        if self.finish is None:
            return read
        return array_reader(self.finish(read(0, self.total.size)))


@final
@frozen(eq=False)
class _Floats(Accumulator):
    """Sums of 32-bit floats of magnitude at most ``reach``, as fixed-point numbers."""

    reach: float
    point: FixedPoint
    total: NDArray[np.int64]
    honest: float
    order: int

    def check(self, body: Body) -> None:
        """Refuse a float beyond ``reach`` and a payload whose norm exceeds the honest bound."""
        values = body.view("<f4")
        length = 0.0
        for start in range(0, values.size, CHUNK):
            piece = np.abs(values[start : start + CHUNK].astype(np.float64))
            largest = float(piece.max())
            if not largest <= self.reach:
                rule = f"at most {self.reach:g} in magnitude"
                refuse_payload("floats of the payload", rule, f"{largest:g}")
            length += float(piece @ piece if self.order == 2 else piece.sum())
        refuse_longer(length ** (1 / self.order), self.honest)

    def add(self, bodies: Sequence[Body]) -> None:
        for body in bodies:
            values = body.view("<f4")
            for start in range(0, values.size, CHUNK):
                piece = values[start : start + CHUNK].astype(np.float64)
                scaled = np.rint(piece * 2.0**self.point.shift)
                self.total[start : start + CHUNK] += scaled.astype(np.int64)

    def reader(self, count: int) -> Reader:
        return lambda start, stop: self.point.mean(self.total[start:stop], count)
