"""Public rotations: in blocks, after which no coordinate is large, or of the whole update, of which k rows are kept.

Idea     real updates are concentrated, and a mechanism that acts on one coordinate at a time clamps
         and bends the large ones. So flip signs at random and mix blocks of coordinates by Hadamard
         matrices, y = R x, and undo this on the mean. A rotation of the whole update, y = H D x /
         sqrt(p), makes all rows equally good, so k of them may stand for all: drawn by every
         release and named by a public nonce, or the same for all clients of a round. Rotations and
         rows are public and come before the last clip, so no account depends on them.
Symbols  d = dimension, p = d padded to a power of two; C = radius; b = `block`, a power of two; k =
         `keep`; S: k rows. f(u): the mean of what a coordinate u decodes to, g = f'(0), r(u) = 1 -
         f(u) / (g u): the share it lacks.
Source   docs/theory/rotation.md; docs/theory/vector-mechanism.md, "Rows";
         docs/theory/shared-rows.md.

Samples. What one of n samples moves stays as long, but for the rounding of the transform. In double
precision it is at most 2^-46 C for each of two updates, and the update is multiplied by 1 - 2^-20
first (``exact``). A share is never below 2^-21 of the radius (`privacy.cost`), so the distance of
two updates never exceeds it.
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
from quietbit.mechanism.abilities import Ability, Keeping, SharedRows
from quietbit.mechanism.ball import Ball, Norm, check_ball, usual_kernel
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
]

# fits into the fastest cache; a clamp at a tenth of the radius is then 6.4 deviations away
USUAL_BLOCK = 4096
ROOM = 2.0**-20
SMALL = 0.05  # u_0, in deviations
POINTS = 600
MOST_MOMENT = 24
ENDS = (1.0, 2.0, 3.0, 4.0, 6.0)  # up to how many deviations r is held to be a square
NONCE = 8  # bytes that name rows
COST = 0.01  # of the error, that a projection may add
MOST_ROWS = 2**64 - 1
LARGEST_RADIUS = 2.0**90


def _power(value: Any, name: str, most: int, why: str = "") -> int:
    number = check_int(value, name, 1, most)
    require(number & (number - 1) == 0, name, number, "a power of two" + why)
    return number


def _block(value: int) -> int:
    return _power(value, "block", 2**40)


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

    def exactly(self, update: Parts, ball: Ball, kernel: Kernel) -> Any:
        """Return the rotated update in double precision, clipped to the ball and shortened by 2^-20."""
        factor = clip_factor(kernel.norm(update, 2), ball.radius) * (1 - ROOM)
        return kernel.rotate(update, self.seed, self.block, factor=factor, kind=np.float64)

    def back(self, values: FloatVector) -> FloatVector:
        """Undo the rotation; a server does so once per mean."""
        turned = np.array(values, dtype=np.float64)
        usual_kernel().rotate_back(turned, self.seed, self.block)
        if self.exact:
            return turned / (1 - ROOM)
        return turned


def rotation_for(dimension: int, *, whole: bool = False, exact: bool = False) -> Rotation:
    """Return the usual rotation of a dimension, with the public seed 0.

    Blocks have 4,096 entries, or as many as the dimension allows; ``whole``: as many as it allows,
    for a closer clamp.

    >>> rotation_for(10**6).block, rotation_for(10**6, whole=True).block, rotation_for(1000).block
    (4096, 524288, 512)
    """
    largest = 1 << (check_int(dimension, "dimension", 1).bit_length() - 1)
    return Rotation(largest if whole else min(largest, USUAL_BLOCK), exact=exact)


def response_lower(
    missing: Callable[[FloatVector], FloatVector], radius: float, block: int | None
) -> float:
    """Return a lower bound on the decoded share of an update (docs/theory/rotation.md).

    ``missing`` is r(u) for positive coordinates and must not decrease. ``block``: coordinates are
    those of an update rotated in blocks of that length; None: they may be anything in the ball.
    """
    if block is None:
        return 1.0 - float(missing(np.array([radius]))[0])
    deviation = radius / math.sqrt(block)
    least = min(SMALL * deviation, radius)
    points = np.geomspace(least, radius, POINTS)
    lost = np.maximum(missing(points), 0.0)
    # Between two points r is at most what it is at the upper one.
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


class Rowed(Mechanism, SharedRows, Keeping):
    """A mechanism that keeps k rotated coordinates: those that ``rows`` identifies, or, if None, a release's own."""

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
        """k, or d where that is less."""
        return min(self.keep, self.ball.dimension)

    @property
    def padded(self) -> int:
        """p: the dimension, padded to a power of two by the rotation."""
        return 1 << (self.ball.dimension - 1).bit_length()

    @property
    def missing(self) -> float:
        """The share of rows that are not kept; at 0 the projection costs nothing."""
        return 1 - self.keep / self.padded

    @property
    def shared_rows(self) -> int:
        """The number of rows k."""
        return self.keep

    def offers(self, ability: type[Ability]) -> bool:
        """Return whether rows are shared, for the abilities that need it."""
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
        """The mechanism that a ledger records: the cost does not depend on which rows are shared."""
        if self.rows is None:
            return self
        return self.at(0)

    def projection_error(self, length: float) -> float:
        """Return the squared error per coordinate that leaving out rows adds, for an update of this length."""
        return length**2 / self.keep * self.missing

    @property
    def clip_response(self) -> float:
        """A lower bound on the share of an update that the second clip leaves, averaged over signs and rows.

        |y|^2 has mean |x|^2 and, as coordinates have fourth moments of at most 3 C^4/p^2, a variance of at most
        3 (1 - k/p) C^4/k; |y| (|y| - 1) <= (|y|^2 - 1)/2 + (|y|^2 - 1)^2/8 where |y| > 1, and E X_+ <= sd(X)/2.
        """
        each = self.missing / self.keep
        return 1 - math.sqrt(3 * each) / 4 - 3 * each / 8

    @property
    def nonce_size(self) -> int:
        """The number of bytes that name the rows in a body: 0 where rows are shared."""
        return NONCE if self.rows is None else 0

    def nonce(self, block: WordBlock | None = None, stream: int = 0) -> bytes:
        """Return the eight bytes that name the rows: the round's, or those a release draws from this stream."""
        if self.rows is not None or block is None:
            return cast(int, self.rows).to_bytes(NONCE, "little")
        return block.uniform64(stream, 0, 1).astype("<u8", copy=False).tobytes()

    def project(self, update: Parts, factor: float, nonce: bytes, kernel: Kernel) -> FloatVector:
        """Return sqrt(p/k) S H D (factor x), before the second clip."""
        padded = self.padded
        kept = kernel.rotated_rows(
            update, self.rotation_seed, factor, kernel.rows(nonce, self.keep, padded)
        )
        kept *= math.sqrt(padded / self.keep)
        return kept

    def row_places(self) -> NDArray[np.int64]:
        """Return the indices of the shared rows among the p rotated coordinates."""
        return usual_kernel().rows(self.nonce(), self.keep, self.padded)

    def unproject(self, kept: FloatVector) -> NDArray[Any]:
        """Return the estimate of an update from its shared rows, in single precision, in which all kernels agree."""
        total = np.zeros(self.padded, dtype=np.float32)
        total[self.row_places()] = np.asarray(kept, dtype=np.float32) * np.float32(
            math.sqrt(self.padded / self.keep)
        )
        usual_kernel().rotate_back(total, self.rotation_seed)
        return total[: self.ball.dimension]


def round_number(run: bytes, number: int) -> int:
    """Return the number of a round's shared rows: different in every round, the same on every machine."""
    place = check_int(number, "round", 0).to_bytes(8, "little")
    name = b"quietbit/rows/" + len(run).to_bytes(8, "little") + run + place
    return int.from_bytes(hashlib.sha256(name).digest()[:NONCE], "little")


def check_rotated(value: Any) -> Ball:
    """Return an L2 ball that single precision can rotate; in a larger one, a refusal would depend on the update."""
    ball = check_ball(value)
    require(
        ball.norm is Norm.L2, "norm of the ball", ball.norm.value, "l2 where updates are rotated"
    )
    fine = 1 / LARGEST_RADIUS <= ball.radius <= LARGEST_RADIUS
    require(fine, "radius", ball.radius, "from 2^-90 to 2^90: rotations are in single precision")
    return ball


def check_keep(value: Any, most: int = MOST_ROWS) -> int:
    """Return a number of rows; refuse it unless it is a power of two up to ``most``."""
    return _power(value, "keep", most, ", so that every row is kept equally often")


def check_rows(value: Any) -> int | None:
    """Return the number of the shared rows, or None."""
    if value is None:
        return None
    return check_int(value, "rows", 0, MOST_ROWS)


def fewest_kept(squared_error: float, dimension: int) -> int:
    """Return the smallest power of two k whose projection adds at most 1 % to ``squared_error`` (C = 1).

    >>> fewest_kept(100.0, 10**6), fewest_kept(1e-9, 100)
    (1, 128)
    """
    padded = padded_size(dimension)
    wanted = 1 / (COST * check_real(squared_error, "squared_error") + 1 / padded)
    return min(1 << max(0, math.ceil(math.log2(wanted) - 1e-12)), padded)
