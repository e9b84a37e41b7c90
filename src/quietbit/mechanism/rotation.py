"""Rotation in blocks, after which no coordinate of any update is likely to be large.

Idea     real updates are concentrated: a few coordinates hold half of the squared length. A mechanism that acts on one
         coordinate at a time clamps and bends these, so that a mean comes out too short however many clients there
         are. So first flip signs at random and mix blocks of coordinates by Hadamard matrices, y = R x, and undo this
         on the mean: a coordinate of y is large only for few choices of signs.
Symbols  d = dimension; C = radius; b = `block`, a power of two; R = R_m ... R_1, each H_b D_j on b coordinates: blocks
         [0, b), [b, 2b), ... and, where b does not divide d, a last one on [d - b, d), applied after the others.
         f(u): the mean of what a coordinate u decodes to, g = f'(0), r(u) = 1 - f(u) / (g u): the share it lacks.
Source   docs/theory/rotation.md; Ailon and Chazelle (2006); Khintchine's inequality with Haagerup's constants.

Orthonormal. Each R_j is, so R is: no padding, exactly d codes, and lengths and distances stay. A rotation is public and
comes before the last clip of the mechanism, so no account depends on it: not on its seed, not on its rounding.

Seed. With one public seed an update can be *chosen* to be a single coordinate after the rotation, and is then clamped.
Against that, give a run a fresh seed, drawn after the data exist. The seed costs no privacy either way.

Small. Every coordinate of y is last made by one R_j, as b^(-1/2) sum_i +-D_i z_i for some z with |z| <= |x| that
these signs are independent of. So over signs it has the even moments of a normal number of variance at most
C^2 / b, or smaller ones (Khintchine), and P(|y_i| > c C / sqrt(b)) <= 2 exp(-c^2 / 2).

Response. The decoded mean is R^T f(R x) / g, and its part along x, relative to |x|, is at least one less
sum_i E[y_i^2 r(y_i)] / |x|^2. Where r(u) <= r(u_0) + a u^2 + A_k u^(2k - 2) for all |u| <= C, this is at most
r(u_0) + 3 a C^2 / b + A_k (2k - 1)!! (C^2 / b)^(k - 1): for every update in the ball, in expectation over signs. The
codes' curvature is what a stands for and a clamp what A_k does; the least of these bounds over a few a and k is what
`response_lower` takes off. Without a rotation an update may be one coordinate of size C, and what is missing of it is
the largest r.

Samples. What one of n samples moves stays as long, but for the rounding of the transform. In double precision it is at
most 2^-46 C for each of two updates, and the update is multiplied by 1 - 2^-20 first (``exact``). A share is never
below 2^-21 of the radius (`privacy.sensitivity`), so the distance of two updates never exceeds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import numpy as np
from attrs import field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import check_int, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.norm import clip_factor
from quietbit.mechanism.ball import Ball, usual_kernel
from quietbit.mechanism.base import Parts
from quietbit.mechanism.rows import check_seed

__all__ = ["Rotation", "response_lower", "rotation_for"]

USUAL_BLOCK = 4096  # fits into the fastest cache; a clamp at a tenth of the radius is then 6.4 deviations away
ROOM = 2.0**-20
SMALL = 0.05  # u_0, in deviations
POINTS = 600
MOST_MOMENT = 24
ENDS = (1.0, 2.0, 3.0, 4.0, 6.0)  # up to how many deviations r is held to be a square


def _block(value: int) -> int:
    block = check_int(value, "block", 1, 2**40)
    require(block & (block - 1) == 0, "block", block, "a power of two")
    return block


@final
@frozen
class Rotation:
    """A public rotation in blocks; ``exact``: in double precision, for the privacy of samples."""

    block: int = field(converter=_block)
    seed: int = field(default=0, converter=check_seed)
    exact: bool = False

    def fits(self, ball: Ball) -> None:
        """Refuse a ball that this cannot rotate."""
        check_int(self.block, "block of the rotation", 1, ball.dimension)

    def exactly(self, update: Parts, ball: Ball, kernel: Kernel) -> Any:
        """Return the rotated update in double precision, clipped to the ball and shortened by 2^-20."""
        factor = clip_factor(kernel.norm(update, 2), ball.radius) * (1 - ROOM)
        return kernel.rotate(update, self.seed, self.block, factor=factor, kind=np.float64)

    def back(self, values: FloatVector) -> FloatVector:
        """Undo the rotation; a server does so once per mean."""
        turned = np.array(values, dtype=np.float64)
        usual_kernel().rotate_back(turned, self.seed, self.block)
        return turned / (1 - ROOM) if self.exact else turned


def rotation_for(dimension: int, *, whole: bool = False, exact: bool = False) -> Rotation:
    """Return the usual rotation of a dimension, with the public seed 0.

    Blocks have 4,096 entries, or as many as the dimension allows; ``whole``: as many as it allows, for a closer clamp.

    >>> rotation_for(10**6).block, rotation_for(10**6, whole=True).block, rotation_for(1000).block
    (4096, 524288, 512)
    """
    largest = 1 << (check_int(dimension, "dimension", 1).bit_length() - 1)
    return Rotation(largest if whole else min(largest, USUAL_BLOCK), exact=exact)


def response_lower(missing: Callable[[FloatVector], FloatVector], radius: float, block: int | None) -> float:
    """Return a lower bound on the share of an update that is decoded: 1 minus an upper bound on what is missing.

    ``missing`` is r(u) for positive coordinates and must not decrease. ``block``: coordinates are those of an update
    rotated in blocks of that length; None: they may be anything in the ball.
    """
    if block is None:
        return 1.0 - float(missing(np.array([radius]))[0])
    deviation = radius / math.sqrt(block)
    least = min(SMALL * deviation, radius)
    points = np.geomspace(least, radius, POINTS)
    lost = np.maximum(missing(points), 0.0)
    # Between two points r is at most what it is at the upper one.
    ratios, upper = points[:-1] / deviation, lost[1:]
    bounds = [float(lost[-1])]
    for end in ENDS:
        curvature = float(np.max(np.where(ratios <= end, upper / ratios**2, 0.0), initial=0.0))
        rest, moment = np.maximum(upper - curvature * ratios**2, 0.0), 3.0
        for k in range(3, MOST_MOMENT):
            moment *= 2 * k - 1
            clamped = moment * float(np.max(rest * ratios ** (2 - 2 * k), initial=0.0))
            bounds.append(float(lost[0]) + 3 * curvature + clamped)
    return 1.0 - min(bounds)
