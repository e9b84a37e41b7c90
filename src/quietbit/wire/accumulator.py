"""One whole number per coordinate, to which payloads are added without ever becoming floats.

Idea     codes of b <= 16 bits stand for values: with one bit it is enough to count ones; with more, each
         value is a fixed-point number and the kernel adds those. Floats become fixed-point numbers as they
         arrive, which is possible because an honest one is bounded. Sums of whole numbers are exact and do
         not depend on the order.
Symbols  v_j: what code j stands for; K: the most payloads that will be added; reach: the largest magnitude
         that a noisy float of the mechanism can have.

The mean is off by at most 2^-36 times max |v_j| or the reach (K = 2^24); for one bit, and for Skellam noise
before it is rotated back, only by the roundings of doubles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit._validate import InvalidParameter, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.fixed_point import FixedPoint
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.gaussian import Gaussian
from quietbit.mechanism.laplace import Laplace
from quietbit.mechanism.rotation import rotate_back
from quietbit.mechanism.sign import Sign
from quietbit.mechanism.skellam import Skellam
from quietbit.wire.header import refuse
from quietbit.wire.payload import Body
from quietbit.wire.tree import Reader

__all__ = ["Accumulator", "accumulator_for"]

GROUP = 15  # one-bit payloads that the kernels add at once
CHUNK = 1 << 18
NORMAL_REACH, LAPLACE_REACH = 9.5, 45.0  # above the largest noise that one 64-bit word can make


class Accumulator(Protocol):
    """Sums of payloads' bodies; ``group`` of them are best added together."""

    @property
    def group(self) -> int:
        """How many bodies to add at once."""
        ...

    def check(self, body: Body) -> None:
        """Refuse a body with values that no client could have sent."""
        ...

    def add(self, bodies: Sequence[Body]) -> None:
        """Add bodies that have been checked."""
        ...

    def reader(self, count: int) -> Reader:
        """The mean over ``count`` payloads, read by ranges of coordinates."""
        ...


def accumulator_for(mechanism: Mechanism, kernel: Kernel, most: int) -> Accumulator:
    """Empty sums for a mechanism; one whose codes stand for no values is refused."""
    if isinstance(mechanism, Gaussian | Laplace):
        return _Floats(_reach(mechanism), most, np.zeros(mechanism.code_count, dtype=np.int64))
    values, finish = _meaning(mechanism)
    if mechanism.bits == 1:
        return _Ones(values, kernel, np.zeros(mechanism.code_count, dtype=np.int32))
    unit = 2.0 ** math.frexp(float(np.abs(values).max()))[1]
    point = FixedPoint.of(values / unit, most)
    total = np.zeros(mechanism.code_count, dtype=np.int64)
    return _Symbols(mechanism.bits, point, unit, finish, kernel, total)


Finish = Callable[[FloatVector], FloatVector] | None


def _meaning(mechanism: Mechanism) -> tuple[FloatVector, Finish]:
    """The value of every code, and what turns the mean of values into the mean of updates, if anything."""
    if isinstance(mechanism, Skellam):
        half = 2 ** (mechanism.bits - 1)
        centred = (np.arange(2 * half) + half) % (2 * half) - half
        scale, seed, size = mechanism.scale, mechanism.rotation_seed, mechanism.ball.dimension
        return centred.astype(np.float64), lambda mean: rotate_back(mean / scale, seed)[:size]
    values = np.array([-1.0, 1.0]) if isinstance(mechanism, Sign) else getattr(mechanism, "values", None)
    if values is None:
        raise InvalidParameter(
            f"mechanism must have a value for every code, got a {type(mechanism).__name__} without `values`."
        )
    return np.asarray(values, dtype=np.float64), None


def _reach(mechanism: Gaussian | Laplace) -> float:
    noise = NORMAL_REACH * mechanism.sigma if isinstance(mechanism, Gaussian) else LAPLACE_REACH * mechanism.scale
    reach = (mechanism.domain.radius + noise) * (1 + 2.0**-20)
    require(reach < 3.4e38, "largest noisy value", reach, "below 3.4e38, the largest 32-bit float")
    return reach


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Ones:
    """One bit: how many ones each coordinate has had."""

    values: FloatVector
    kernel: Kernel
    total: NDArray[np.int32]

    @property
    def group(self) -> int:
        return GROUP

    def check(self, body: Body) -> None:
        """Every bit is a code."""

    def add(self, bodies: Sequence[Body]) -> None:
        self.kernel.accumulate(bodies, 1, np.array([0, 1]), self.total)

    def reader(self, count: int) -> Reader:
        low, high = self.values.tolist()

        def read(start: int, stop: int) -> FloatVector:
            ones = self.total[start:stop].astype(np.float64)
            return np.asarray((high * ones + low * (count - ones)) / count)

        return read


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Symbols:
    """2 to 16 bits: sums of fixed-point values, in multiples of ``unit``."""

    bits: int
    point: FixedPoint
    unit: float
    finish: Finish
    kernel: Kernel
    total: NDArray[np.int64]

    @property
    def group(self) -> int:
        return 1

    def check(self, body: Body) -> None:
        """Every pattern is a code."""

    def add(self, bodies: Sequence[Body]) -> None:
        self.kernel.accumulate(bodies, self.bits, self.point.table, self.total)

    def reader(self, count: int) -> Reader:
        def read(start: int, stop: int) -> FloatVector:
            return np.asarray(self.point.mean(self.total[start:stop], count) * self.unit)

        if self.finish is None:
            return read
        whole = self.finish(read(0, self.total.size))
        return lambda start, stop: whole[start:stop]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Floats:
    """32 bits: floats of magnitude at most ``reach``, added as fixed-point numbers."""

    reach: float
    most: int
    total: NDArray[np.int64]

    @property
    def group(self) -> int:
        return 1

    def check(self, body: Body) -> None:
        """No float is larger than the mechanism's noise allows."""
        values = body.view("<f4")
        for start in range(0, values.size, CHUNK):
            largest = float(np.abs(values[start : start + CHUNK]).max())
            if not largest <= self.reach:
                refuse("floats of the payload", f"at most {self.reach:g} in magnitude", f"{largest:g}")

    def add(self, bodies: Sequence[Body]) -> None:
        point, unit = self._scaling()
        for body in bodies:
            values = body.view("<f4")
            for start in range(0, values.size, CHUNK):
                piece = values[start : start + CHUNK].astype(np.float64)
                scaled = np.rint(piece * (2.0**point.shift / unit))
                self.total[start : start + CHUNK] += scaled.astype(np.int64)

    def reader(self, count: int) -> Reader:
        point, unit = self._scaling()
        return lambda start, stop: np.asarray(point.mean(self.total[start:stop], count) * unit)

    def _scaling(self) -> tuple[FixedPoint, float]:
        return FixedPoint.of(np.array([1.0]), self.most), 2.0 ** math.frexp(self.reach)[1]
