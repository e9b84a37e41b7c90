"""Below one bit per parameter: rotate, keep k coordinates, clip again, and let any mechanism of dimension k go on.

Idea     a private update carries a few bits whatever its dimension, so k rotated coordinates of it are nearly as good
         as all d. The map is public and linear and the clip comes after it: the account is that of the inner mechanism
         on its k-ball, exactly, whatever the update was; zero stays zero.
Symbols  d = dimension, p = d padded to a power of two; y = sqrt(p/k) S H D x, clipped to the radius: S keeps k rows.
         v C^2: the inner mechanism's squared error; the projection adds |x|^2 / k, a fraction 1/(k v) of it.
Source   docs/theory/vector-mechanism.md; rows and rotation are those of `vector.py`.

Rows. Under local trust every release draws its own, from a public nonce of 8 bytes before the inner body; the errors of
the projection then average out over clients. For sums behind masks all clients must keep the same rows: ``rows`` then
names them (a number that changes with every round), it is part of the mechanism's identity, and a payload made for
other rows is refused. No nonce is sent, and the error |mean|^2 / k does not average out within the round.

Samples. The projection can lengthen the difference of two close updates by sqrt(p/k), so one sample's price is not
known once gradients are averaged, and `Projected` refuses it. `ProjectedSamples` projects every sample's gradient and
clips it among the k before the mean is taken: one of n samples then moves what the inner mechanism sees by at most its
share of the clip, which is what that mechanism's price per sample asks for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.expand import rows as choose_rows
from quietbit.kernel.norm import clip_factor
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.transform import padded_size, rotate_back_, rotated_rows
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import (
    Accumulator,
    Body,
    Error,
    Layout,
    Mechanism,
    Parts,
    Reader,
    check_rng,
    check_value,
    refuse_samples,
    summable,
)
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.release import Release

__all__ = ["Projected", "ProjectedSamples", "check_rotated", "fewest_kept", "project"]

NONCE = 8
COST = 0.01
MOST_ROWS = 2**64 - 1
LARGEST_RADIUS = 2.0**90
MOST_SAMPLES = 2**24  # whose sum in doubles is off by less than the price per sample allows for roundings


@final
@dataclass(frozen=True, slots=True)
class Projected:
    """Any mechanism of dimension k on k rotated coordinates of updates in an L2 ball of dimension d.

    ``rows`` is None where every release keeps rows of its own, or the number of the rows that all keep.
    """

    inner: Any  # a Mechanism; dataclasses describe themselves by their fields
    ball: Ball
    rotation_seed: int = 0
    rows: int | None = None

    def __post_init__(self) -> None:
        """Refuse an inner mechanism for another radius or norm, or of a dimension that is no power of two."""
        require(isinstance(self.inner, Mechanism), "inner", self.inner, "a mechanism")
        require(isinstance(self.ball, Ball) and self.ball.norm is Norm.L2, "ball", self.ball, "an L2 ball")
        check_rotated(self.ball)
        inside = self.inner.domain
        fits = inside.norm is Norm.L2 and inside.radius == self.ball.radius
        require(fits, "ball of the inner mechanism", inside, f"an L2 ball of radius {self.ball.radius!r}")
        keep = check_int(inside.dimension, "keep", 1, self.padded)
        require(keep & (keep - 1) == 0, "keep", keep, "a power of two, so that every row is kept equally often")
        object.__setattr__(self, "rotation_seed", check_int(self.rotation_seed, "rotation_seed", 0))
        if self.rows is not None:
            object.__setattr__(self, "rows", check_int(self.rows, "rows", 0, MOST_ROWS))

    @property
    def domain(self) -> Ball:
        """Where updates are clipped to."""
        return self.ball

    @property
    def keep(self) -> int:
        """k: coordinates that a client keeps."""
        return int(self.inner.domain.dimension)

    @property
    def padded(self) -> int:
        """p: the dimension, padded to a power of two by the rotation."""
        return padded_size(self.ball.dimension)

    @property
    def bits(self) -> int:
        """Bits per code of the inner mechanism."""
        return int(self.inner.layout.bits)

    @property
    def layout(self) -> Layout:
        """The inner body, after the nonce of its rows where they are its own."""
        within: Layout = self.inner.layout
        return within if self.rows is not None else Layout.opaque(self.ball.dimension, NONCE + within.size)

    def at(self, rows: int) -> Projected:
        """The same mechanism on the rows of this number, as for a round of masked sums."""
        return replace(self, rows=rows)

    @property
    def priced_as(self) -> Projected:
        """What stands for it in a ledger: its account does not depend on which rows all clients keep."""
        return self if self.rows is None else self.at(0)

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Rotate, keep k rows, and hand them to the inner mechanism, which clips them again."""
        check_rng(rng)
        factor = clip_factor(kernel.norm(update, self.ball.norm.order), self.ball.radius)
        nonce = self._nonce(rng)
        self._close(nonce, self._kept(update, factor, nonce), rng, kernel, out)

    def write_each(self, gradients: Sequence[Parts], rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """The same for the mean of samples' gradients, each of which is projected and clipped by itself."""
        check_rng(rng)
        count = check_int(len(gradients), "number of gradients", 1, MOST_SAMPLES)
        order, radius = self.ball.norm.order, self.ball.radius
        factors = [
            clip_factor(kernel.norm(one, order), radius) for one in gradients
        ]  # refused before a draw, if at all
        nonce, total = self._nonce(rng), np.zeros(self.keep)
        for one, factor in zip(gradients, factors, strict=True):
            total += self.inner.domain.clip(self._kept(one, factor, nonce))
        self._close(nonce, total / count, rng, kernel, out)

    def _kept(self, update: Parts, factor: float, nonce: bytes) -> FloatVector:
        """What the rows that the nonce names see of the update, before it is clipped again."""
        kept = rotated_rows(update, self.rotation_seed, factor, choose_rows(nonce, self.keep, self.padded))
        kept *= math.sqrt(self.padded / self.keep)
        return kept

    def _close(self, nonce: bytes, kept: FloatVector, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """The body: the nonce where rows are the client's own, and what the inner mechanism makes of the rows."""
        if self.rows is None:
            out[:NONCE] = np.frombuffer(nonce, dtype=np.uint8)
            out = out[NONCE:]
        self.inner.write([kept], rng, kernel, out)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Sums of what the inner bodies stand for, in the places of their rows; rotated back once per mean."""
        if self.rows is not None:
            return _Shared(self, self.inner.accumulator(kernel, max_payloads))
        return _Scattered(self, kernel, np.zeros(self.padded))

    def privacy(self, adjacency: Adjacency, samples: int | None = None) -> Release:
        """The inner mechanism's: a public map before the last clip changes nothing."""
        refuse_samples(samples, "projecting can lengthen the difference of two close updates (see ProjectedSamples)")
        return self.inner.privacy(adjacency)  # type: ignore[no-any-return]

    def sum_privacy(self, clients: int, adjacency: Adjacency) -> Release:
        """The inner mechanism's, of a sum over clients that keep the same rows."""
        require(self.rows is not None, "rows", self.rows, "named, and the same for all, in a sum of codes")
        return summable(self.inner).sum_privacy(clients, adjacency)

    def mean_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """The mean of the decoded updates from the sums of their codes, rotated back."""
        return self.spread(summable(self.inner).mean_from_sum(total, clients))

    def error(self) -> Error:
        """The inner mechanism's, and that of the projection of an update on the sphere."""
        inner: Error = self.inner.error()
        return replace(inner, squared=inner.squared + self._projection(self.ball.radius))

    @property
    def shared_error(self) -> float:
        """The part of the squared error that all clients of a round have in common, so that no mean averages it out."""
        return self._projection(self.ball.radius) if self.rows is not None else 0.0

    def expectation(self, value: float) -> float:
        """The inner mechanism's gain times the value, as far as the second clip leaves it unbiased."""
        return float(self.inner.error().gain) * check_value(self.ball, value)

    def variance(self, value: float) -> float:
        """Of the inner mechanism at zero, and of the projection of an update of this one coordinate."""
        return float(self.inner.variance(0.0)) + self._projection(check_value(self.ball, value))

    def spread(self, kept: FloatVector) -> FloatVector:
        """Numbers of the shared rows as an estimate of the update: the transpose of the projection."""
        total = np.zeros(self.padded)
        total[choose_rows(self._name(), self.keep, self.padded)] = kept * math.sqrt(self.padded / self.keep)
        rotate_back_(total, self.rotation_seed)
        return total[: self.ball.dimension]

    def _projection(self, length: float) -> float:
        return length**2 / self.keep * (1 - self.keep / self.padded)

    def _name(self) -> bytes:
        return int(self.rows or 0).to_bytes(NONCE, "little")

    def _nonce(self, rng: RandomBits) -> bytes:
        if self.rows is not None:
            return self._name()
        return rng.draw(1).uniform64(0, 0, 1).astype("<u8", copy=False).tobytes()


@final
@dataclass(frozen=True, slots=True)
class ProjectedSamples:
    """A `Projected` for clients whose samples are protected: it is given their gradients one by one, never the mean."""

    inner: Projected

    def __post_init__(self) -> None:
        """Refuse anything but a projection."""
        require(isinstance(self.inner, Projected), "inner", self.inner, "a Projected")

    @property
    def domain(self) -> Ball:
        """Where gradients are clipped to."""
        return self.inner.domain

    @property
    def layout(self) -> Layout:
        """The projection's."""
        return self.inner.layout

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Refused: an update is a mean already."""
        raise InvalidParameter(
            "update must be given as its samples' gradients (Uplink.send_samples), got their mean: each is projected "
            "and clipped by itself."
        )

    def write_samples(self, gradients: Sequence[Parts], rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Project and clip every gradient, and release the mean."""
        self.inner.write_each(gradients, rng, kernel, out)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """The projection's."""
        return self.inner.accumulator(kernel, max_payloads)

    def privacy(self, adjacency: Adjacency, samples: int | None = None) -> Release:
        """The inner mechanism's, of a client or of one of as many samples as there were gradients."""
        return self.inner.inner.privacy(adjacency, samples)  # type: ignore[no-any-return]

    def error(self) -> Error:
        """The projection's."""
        return self.inner.error()

    def expectation(self, value: float) -> float:
        """The projection's."""
        return self.inner.expectation(value)

    def variance(self, value: float) -> float:
        """The projection's."""
        return self.inner.variance(value)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Scattered:
    """Own rows: every body is decoded by the inner mechanism and added where its rows are."""

    mechanism: Projected
    kernel: Kernel
    total: FloatVector

    @property
    def group(self) -> int:
        return 1

    def check(self, body: Body) -> None:
        """Refuse what the inner mechanism refuses."""
        self.mechanism.inner.accumulator(self.kernel, 1).check(body[NONCE:])

    def add(self, bodies: Any) -> None:
        found = self.mechanism
        for body in bodies:
            one = found.inner.accumulator(self.kernel, 1)
            one.add([body[NONCE:]])
            places = choose_rows(bytes(body[:NONCE]), found.keep, found.padded)
            self.total[places] += one.reader(1)(0, found.keep)  # strata are disjoint: no row twice

    def reader(self, count: int) -> Reader:
        found = self.mechanism
        mean = self.total * (math.sqrt(found.padded / found.keep) / count)
        rotate_back_(mean, found.rotation_seed)
        return lambda start, stop: mean[start:stop]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """The same rows for all: the inner mechanism's mean, spread and rotated back."""

    mechanism: Projected
    sums: Accumulator

    @property
    def group(self) -> int:
        return self.sums.group

    def check(self, body: Body) -> None:
        """Refuse what the inner mechanism refuses."""
        self.sums.check(body)

    def add(self, bodies: Any) -> None:
        self.sums.add(bodies)

    def reader(self, count: int) -> Reader:
        mean = self.mechanism.spread(self.sums.reader(count)(0, self.mechanism.keep))
        return lambda start, stop: mean[start:stop]


def check_rotated(ball: Ball) -> None:
    """Refuse a ball that single precision cannot rotate: some of its updates would be refused, which tells which."""
    fine = 1 / LARGEST_RADIUS <= ball.radius <= LARGEST_RADIUS
    require(fine, "radius", ball.radius, "from 2^-90 to 2^90: rotations are in single precision")


def fewest_kept(squared_error: float, dimension: int, cost: float = COST) -> int:
    """The least power of two k whose projection adds at most ``cost`` of a noise of ``squared_error`` (radius 1).

    >>> fewest_kept(100.0, 10**6), fewest_kept(1e-9, 100)
    (1, 128)
    """
    padded = padded_size(dimension)
    wanted = 1 / (check_real(cost, "cost") * check_real(squared_error, "squared_error") + 1 / padded)
    return min(1 << max(0, math.ceil(math.log2(wanted) - 1e-12)), padded)


def project(ball: Ball, keep: int | str, calibrated: Any) -> Projected:
    """The mechanism that ``calibrated(k-ball)`` gives, on k = ``keep`` rotated coordinates of updates in the ball.

    ``auto`` is the least k whose projection costs at most 1 % of the error; at least 64, for below that the second
    clip takes too much of a long update.
    """
    require(ball.norm is Norm.L2, "norm of the ball", ball.norm.value, "l2 where coordinates are kept")
    padded = padded_size(ball.dimension)
    if keep == "auto":
        first = calibrated(Ball(Norm.L2, ball.radius, padded))
        keep = max(fewest_kept(first.error().squared / ball.radius**2, ball.dimension), min(64, padded))
    count = check_int(keep, "keep", 1, padded)
    return Projected(calibrated(Ball(Norm.L2, ball.radius, count)), ball)
