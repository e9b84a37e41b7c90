"""Public rotations: in blocks, so that no coordinate is large, or in full, to keep k rows.

Idea     real updates are concentrated, and a mechanism that acts on one coordinate at a time clamps
         and bends the large ones. So flip signs at random and mix blocks of coordinates by Hadamard
         matrices, y = R x, and undo this on the mean. After a rotation of the full update, y = H D
         x / sqrt(p), all rows are equally good, so k of them are enough: drawn by every release and
         named by a public nonce, or the same for all clients of a round. Rotations and rows are
         public and come before the last clip, so no account depends on them.
Symbols  d = dimension, p = d padded to a power of two; C = clip; b = `block`, a power of two; k =
         `keep`; S: k rows. f(u): the mean of what a coordinate u decodes to, g = f'(0), r(u) = 1 -
         f(u) / (g u): the share it lacks.
Source   docs/theory/rotation.md; docs/theory/vector-mechanism.md, "Rows";
         docs/theory/vector-mechanism.md.

Samples. A rotation keeps the distance of two updates that differ in one of n samples, but for its
rounding. In double precision that is at most 2^-46 C per update, and the update is multiplied by 1
- 2^-20 first (``exact``). A sample's share is never below 2^-21 of the clip (`privacy.cost`), so
the distance of two rotated updates never exceeds it.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self, cast, final

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.norm import clip_factor
from quietbit.kernel.rng import WordBlock
from quietbit.kernel.transform import padded_size
from quietbit.mechanism.abilities import Ability, SharedRows
from quietbit.mechanism.ball import Ball, Norm, check_ball, check_norm, usual_kernel
from quietbit.mechanism.base import Mechanism, Parts

__all__ = [
    "NONCE",
    "Rotation",
    "Rowed",
    "check_keep",
    "check_rotated",
    "check_rows",
    "check_seed",
    "fewest_kept",
    "response_lower",
    "rotation_for",
    "round_number",
    "wants_rotation",
]

# Fits into the fastest cache; a clamp at a tenth of the clip is then 6.4 deviations away.
USUAL_BLOCK = 4096
ROOM = 2.0**-20  # by which exact rotations shorten an update
SMALL = 0.05  # u_0, in deviations
POINTS = 600
MOST_MOMENT = 24
ENDS = (1.0, 2.0, 3.0, 4.0, 6.0)  # deviations up to which r is bounded by a square
NONCE = 8  # bytes that name rows
COST = 0.01  # the share of the error that a projection may add
MOST_ROWS = 2**64 - 1


def _power_of_two(value: Any, name: str, most: int) -> int:
    number = check_int(value, name, 1, most)
    require(number & (number - 1) == 0, name, number, "a power of two")
    return number


def _block(value: int) -> int:
    return _power_of_two(value, "block", 2**40)


def check_seed(value: Any) -> int:
    """Return the seed of a public rotation."""
    return check_int(value, "rotation_seed", 0)


@final
@frozen
class Rotation:
    """A public rotation in blocks; ``exact``: in double precision, for the privacy of samples."""

    block: int = field(converter=_block)
    seed: int = field(default=0, converter=check_seed)
    exact: bool = False

    def exactly(self, update: Parts, clip: float, kernel: Kernel) -> Any:
        """Return the update, clipped and shortened by 2^-20, rotated in double precision."""
        factor = clip_factor(kernel.norm(update, 2), clip) * (1 - ROOM)
        return kernel.rotate(update, self.seed, self.block, factor=factor, kind=np.float64)

    def back(self, values: FloatVector) -> FloatVector:
        """Undo the rotation, as a server does once per mean."""
        update = np.array(values, dtype=np.float64)
        usual_kernel().rotate_back(update, self.seed, self.block)
        if self.exact:
            return update / (1 - ROOM)
        return update


def rotation_for(dimension: int, *, whole: bool = False, exact: bool = False) -> Rotation:
    """Return the usual rotation of a dimension, with the public seed 0.

    Blocks have 4,096 entries, or fewer where the dimension is less. With ``whole`` they are as long
    as the dimension allows, for a closer clamp.

    >>> rotation_for(10**6).block, rotation_for(10**6, whole=True).block, rotation_for(1000).block
    (4096, 524288, 512)
    """
    block = 1 << (check_int(dimension, "dimension", 1).bit_length() - 1)
    if not whole:
        block = min(block, USUAL_BLOCK)
    return Rotation(block, exact=exact)


def wants_rotation(ball: Ball, rotate: bool | None) -> bool:
    """Return whether updates are rotated: on an L2 ball unless ``rotate`` is False."""
    if ball.norm is Norm.L2:
        return rotate is None or bool(rotate)
    require(not rotate, "rotate", rotate, "False on an l1 ball, whose norm a rotation changes")
    return False


def response_lower(missing: Callable[[FloatVector], FloatVector], block: int | None) -> float:
    """Return a lower bound on the decoded share of an update (docs/theory/rotation.md).

    ``missing`` is r(u) for positive coordinates and must not decrease. ``block`` is the length of
    the blocks in which the update was rotated; None for any update in the ball.
    """
    if block is None:
        return 1.0 - float(missing(np.ones(1))[0])
    deviation = 1 / math.sqrt(block)
    least = min(SMALL * deviation, 1.0)
    points = np.geomspace(least, 1.0, POINTS)
    lost = np.maximum(missing(points), 0.0)
    # Between two points r is at most its value at the upper one.
    ratios = points[:-1] / deviation
    upper = lost[1:]
    bounds = [float(lost[-1])]
    for end in ENDS:
        curvature = float(np.max(np.where(ratios <= end, upper / ratios**2, 0.0), initial=0.0))
        rest = np.maximum(upper - curvature * ratios**2, 0.0)
        moment = 3.0
        for k in range(3, MOST_MOMENT):
            moment *= 2 * k - 1
            clamped = moment * float(np.max(rest * ratios ** (2 - 2 * k), initial=0.0))
            bounds.append(float(lost[0]) + 3 * curvature + clamped)
    return 1.0 - min(bounds)


class Rowed(Mechanism, SharedRows):
    """A mechanism that keeps k rotated coordinates: shared ``rows``, or each release its own."""

    __slots__ = ()
    ball: Ball
    rotation_seed: int
    rows: int | None

    @property
    @abstractmethod
    def keep(self) -> int:
        """k: the number of coordinates that a client keeps."""

    @property
    def kept(self) -> int:
        """The smaller of k and d."""
        return min(self.keep, self.ball.dimension)

    @property
    def padded(self) -> int:
        """p: the dimension, padded to a power of two by the rotation."""
        return 1 << (self.ball.dimension - 1).bit_length()

    @property
    def missing(self) -> float:
        """The share of rows that are not kept; at 0 the projection adds no error."""
        return 1 - self.keep / self.padded

    @property
    def shared_rows(self) -> int:
        """The number of rows k."""
        return self.keep

    def offers(self, ability: type[Ability]) -> bool:
        """Return whether rows are shared, for abilities of shared rows; otherwise True."""
        return self.rows is not None or not issubclass(ability, SharedRows)

    def at(self, rows: int) -> Self:
        """Return the same mechanism on the rows with this number."""
        return evolve(self, rows=rows)  # type: ignore[misc]

    def for_round(self, run: bytes, number: int) -> Mechanism:
        """Return the mechanism on the rows of this round, where rows are shared."""
        if self.rows is None:
            return self
        return self.at(round_number(run, number))

    @property
    def priced_as(self) -> Mechanism:
        """The mechanism that a ledger records: which rows are shared does not change the cost."""
        if self.rows is None:
            return self
        return self.at(0)

    def projection_error(self, length: float) -> float:
        """Return the squared error per coordinate that rows not kept add for an update's length."""
        return length**2 / self.keep * self.missing

    @property
    def clip_response(self) -> float:
        """A lower bound on the mean share of an update that the second clip leaves.

        |y|^2 has mean |x|^2 and, as coordinates have fourth moments of at most 3 C^4/p^2, a
        variance of at most 3 (1 - k/p) C^4/k. Where |y| > 1, |y| (|y| - 1) is at most (|y|^2 - 1)/2
        + (|y|^2 - 1)^2/8, and E X_+ <= sd(X)/2.
        """
        each = self.missing / self.keep
        return 1 - math.sqrt(3 * each) / 4 - 3 * each / 8

    @property
    def nonce_size(self) -> int:
        """The number of bytes that name the rows in a body: 0 where rows are shared."""
        return NONCE if self.rows is None else 0

    def nonce(self, block: WordBlock | None = None, stream: int = 0) -> bytes:
        """Return the bytes that name the rows: the shared ones, or drawn from this stream."""
        if self.rows is not None or block is None:
            return cast(int, self.rows).to_bytes(NONCE, "little")
        return block.uniform64(stream, 0, 1).astype("<u8", copy=False).tobytes()

    def project(self, update: Parts, factor: float, nonce: bytes, kernel: Kernel) -> FloatVector:
        """Return sqrt(p/k) S H D (factor x), before the second clip."""
        rows = kernel.rows(nonce, self.keep, self.padded)
        coordinates = kernel.rotated_rows(update, self.rotation_seed, factor, rows)
        coordinates *= math.sqrt(self.padded / self.keep)
        return coordinates

    def unproject(self, kept: FloatVector) -> NDArray[Any]:
        """Return the update for its shared rows, in float32, in which all kernels agree."""
        kernel = usual_kernel()
        rows = kernel.rows(self.nonce(), self.keep, self.padded)
        scale = np.float32(math.sqrt(self.padded / self.keep))
        update = np.zeros(self.padded, dtype=np.float32)
        update[rows] = np.asarray(kept, dtype=np.float32) * scale
        kernel.rotate_back(update, self.rotation_seed)
        return update[: self.ball.dimension]


def round_number(run: bytes, number: int) -> int:
    """Return the number that names a round's shared rows: one per round, equal on all machines."""
    round_bytes = check_int(number, "round", 0).to_bytes(8, "little")
    name = b"quietbit/rows/" + len(run).to_bytes(8, "little") + run + round_bytes
    return int.from_bytes(hashlib.sha256(name).digest()[:NONCE], "little")


def check_rotated(value: Any) -> Ball:
    """Return an L2 ball, whose norm a rotation leaves unchanged."""
    ball = check_ball(value)
    check_norm(ball, Norm.L2, "where updates are rotated")
    return ball


def check_keep(value: Any, most: int = MOST_ROWS) -> int:
    """Return a number of rows, a power of two up to ``most``: all rows are kept equally often."""
    return _power_of_two(value, "coordinates", most)


def check_rows(value: Any) -> int | None:
    """Return the number of the shared rows, or None."""
    if value is None:
        return None
    return check_int(value, "rows", 0, MOST_ROWS)


def fewest_kept(squared_error: float, dimension: int) -> int:
    """Return the least power of two k whose projection adds at most 1 % to the error.

    >>> fewest_kept(100.0, 10**6), fewest_kept(1e-9, 100)
    (1, 128)
    """
    padded = padded_size(dimension)
    wanted = 1 / (COST * check_real(squared_error, "squared_error") + 1 / padded)
    return min(1 << max(0, math.ceil(math.log2(wanted) - 1e-12)), padded)
