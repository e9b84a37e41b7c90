"""Below one bit per parameter: rotate, keep k coordinates, clip again, and apply any mechanism of dimension k.

Idea     a private update carries a few bits whatever its dimension, so k of its rotated coordinates
         are nearly as good as all d. The map is public and linear, and the clip comes after it: the
         account is exactly that of the inner mechanism on its k-ball, for every update; zero stays
         zero. It can lengthen the difference of two close updates by sqrt(p/k), so `Projected` has
         no cost per sample; `ProjectedSamples` projects and clips every sample's gradient before
         the mean is taken, and one of n samples then moves that mean by its share of the clip.
Symbols  d = dimension, p = d padded to a power of two; y = sqrt(p/k) S H D x, clipped to the
         radius: S keeps k rows. v C^2: the inner mechanism's squared error; the projection adds
         |x|^2 / k, a fraction 1/(k v) of it.
Source   docs/theory/vector-mechanism.md; `rotation.py` says who chooses rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.norm import clip_factor
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.transform import padded_size
from quietbit.mechanism.abilities import (
    Ability,
    EachSample,
    Keeping,
    LengthBounded,
    PoisonBounded,
    Rotating,
    SamplePriced,
    SharedRows,
    Shortening,
    Summable,
    SummableRows,
)
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import (
    Accumulator,
    Body,
    Error,
    Layout,
    Mechanism,
    Parts,
    Reader,
    RowsAccumulator,
    Wrapper,
    check_mechanism,
    only,
    passed_on,
)
from quietbit.mechanism.poison import honest_length, poisoned, worst_direction
from quietbit.mechanism.rotation import (
    NONCE,
    Rowed,
    check_keep,
    check_rotated,
    check_rows,
    check_seed,
    fewest_kept,
)
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency

__all__ = ["Projected", "ProjectedSamples", "project"]

MOST_SAMPLES = (
    2**24
)  # limit at which the rounding of a sum of doubles is below what the cost per sample allows


@final
@frozen
class Projected(Rowed, Wrapper, SummableRows, Rotating, Shortening, LengthBounded, PoisonBounded):
    """Any mechanism of dimension k on k rotated coordinates of updates in an L2 ball of dimension d."""

    inner: Mechanism = field(converter=check_mechanism)
    ball: Ball = field(converter=check_rotated)
    rotation_seed: int = field(default=0, converter=check_seed)
    rows: int | None = field(default=None, converter=check_rows)
    prepares = "a rotation"

    def __attrs_post_init__(self) -> None:
        """Refuse an inner mechanism with another radius or norm, or whose dimension is not a power of two."""
        inside = self.inner.ball
        fits = inside.norm is Norm.L2 and inside.radius == self.ball.radius
        require(
            fits,
            "ball of the inner mechanism",
            inside,
            f"an L2 ball of radius {self.ball.radius!r}",
        )
        check_keep(inside.dimension, self.padded)

    @property
    def keep(self) -> int:
        """k: the number of coordinates that a client keeps."""
        return self.inner.ball.dimension

    @property
    def layout(self) -> Layout:
        """The inner body, after the nonce of the rows where the release draws them."""
        within = self.inner.layout
        if self.rows is not None:
            return within
        return Layout.opaque(self.ball.dimension, NONCE + within.size)

    def offers(self, ability: type[Ability]) -> bool:
        """Return whether rows are shared, for what needs that, and whether the inner mechanism has the rest."""
        if ability in (Keeping, Rotating, Shortening, LengthBounded, PoisonBounded):
            return True
        if issubclass(ability, Summable):
            return self.rows is not None and Summable.find(self.inner) is not None
        if ability is SharedRows:
            return self.rows is not None
        return ability.find(self.inner) is not None

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Rotate, keep k rows, and pass them to the inner mechanism, which clips them again."""
        factor = clip_factor(kernel.norm(update, self.ball.norm.order), self.ball.radius)
        nonce = self.drawn(rng)
        self.close(nonce, self.project(update, factor, nonce, kernel), rng, kernel, out)

    def drawn(self, rng: RandomBits) -> bytes:
        """Return the nonce of the rows of a release: fresh unless rows are shared."""
        return self.nonce(rng.draw(1) if self.rows is None else None)

    def close(
        self, nonce: bytes, kept: FloatVector, rng: RandomBits, kernel: Kernel, out: Body
    ) -> None:
        """Write the nonce, unless rows are shared, and the inner mechanism's release of the rows."""
        out[: self.nonce_size] = np.frombuffer(nonce[: self.nonce_size], dtype=np.uint8)
        self.inner.write([kept], rng, kernel, out[self.nonce_size :])

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator that adds decoded inner bodies at their rows and rotates back once per mean."""
        if self.rows is not None:
            return _Shared(self, self.inner.accumulator(kernel, max_payloads))
        return _Scattered(self, kernel, np.zeros(self.padded))

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the inner mechanism's cost: a public map before the last clip does not change it."""
        return self.inner.cost(adjacency)

    def sum_cost(self, clients: int, adjacency: Adjacency) -> Cost:
        """Return the inner mechanism's cost of a sum over clients that keep the same rows."""
        return Summable.of(self.inner).sum_cost(clients, adjacency)

    def mean_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the mean of the decoded updates from the sums of their codes, rotated back."""
        return self.unproject(self.kept_from_sum(total, clients))

    def kept_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the inner mechanism's mean."""
        return Summable.of(self.inner).mean_from_sum(total, clients)

    def error(self) -> Error:
        """Return the inner mechanism's error plus that of projecting an update on the sphere."""
        inner = self.inner.error()
        response = self.response(None)
        missed = (inner.response - response) * self.ball.radius**2 / self.ball.dimension
        projection = self.projection_error(self.ball.radius)
        squared = inner.squared + projection + max(0.0, missed)
        shared = 0.0 if self.rows is None else projection
        return evolve(inner, squared=squared, response=response, shared=shared)

    def response(self, block: int | None) -> float:
        """Return the share that the second clip and the inner mechanism, on coordinates rotated in one block, leave."""
        inner = Shortening.nearest(self.inner)
        return self.clip_response * (1.0 if inner is None else inner.response(self.keep))

    def decoded(self, value: float) -> tuple[float, float]:
        """Return the mean, unbiased but for the second clip, and the variance of one coordinate."""
        return self.inner.error().gain * value, self.inner.variance(0.0) + self.projection_error(
            value
        )

    @property
    def honest_length(self) -> float:
        """The inner mechanism's bound, spread over all coordinates."""
        return honest_length(self.inner) * math.sqrt(self.padded / self.keep)

    def poisoned(self, work: float) -> float:
        """Return the inner mechanism's reach along the worst direction, one of kept rows."""
        return worst_direction(self.keep, self.padded) * poisoned(self.inner, work)


@final
@frozen
class ProjectedSamples(Wrapper, SamplePriced, EachSample, SharedRows):
    """A `Projected` whose privacy unit is one sample: it takes gradients one by one, never their mean."""

    inner: Projected = field(validator=only(Projected, "a Projected"))

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Refuse: an update is already a mean."""
        raise InvalidParameter(
            "update must be given as its samples' gradients (Uplink.send_samples), got their mean."
        )

    each_sample = passed_on("inner")
    shared_rows = passed_on("inner.shared_rows")
    row_places = passed_on("inner.row_places")
    unproject = passed_on("inner.unproject")

    def offers(self, ability: type[Ability]) -> bool:
        """Return whether rows are shared; gradients one by one are what it is for."""
        if issubclass(EachSample, ability):
            return True
        if ability is SamplePriced:
            return SamplePriced.find(self.inner.inner) is not None
        return ability.find(self.inner) is not None

    def write_samples(
        self, gradients: Sequence[Parts], rng: RandomBits, kernel: Kernel, out: Body
    ) -> None:
        """Project and clip every gradient separately, and release the mean."""
        count = check_int(len(gradients), "number of gradients", 1, MOST_SAMPLES)
        inner = self.inner
        ball = self.ball
        # Refuse bad gradients before any draw.
        factors = [clip_factor(kernel.norm(one, ball.norm.order), ball.radius) for one in gradients]
        nonce = inner.drawn(rng)
        total = np.zeros(inner.keep)
        for one, factor in zip(gradients, factors, strict=True):
            total += inner.inner.ball.clip(inner.project(one, factor, nonce, kernel))
        inner.close(nonce, total / count, rng, kernel, out)

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the inner mechanism's cost."""
        return self.inner.cost(adjacency)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the inner cost to one sample; ``samples`` must be the number of gradients that were projected."""
        return SamplePriced.of(self.inner.inner).sample_cost(adjacency, samples)


@final
@frozen(eq=False)
class _Scattered(Accumulator):
    """Rows drawn per release: every body is decoded by the inner mechanism and added at its rows."""

    mechanism: Projected
    kernel: Kernel
    total: FloatVector

    def check(self, body: Body) -> None:
        self.mechanism.inner.accumulator(self.kernel, 1).check(body[NONCE:])

    def add(self, bodies: Sequence[Body]) -> None:
        found = self.mechanism
        for body in bodies:
            one = found.inner.accumulator(self.kernel, 1)
            one.add([body[NONCE:]])
            places = self.kernel.rows(bytes(body[:NONCE]), found.keep, found.padded)
            self.total[places] += one.reader(1)(
                0, found.keep
            )  # strata are disjoint: no row occurs twice

    def reader(self, count: int) -> Reader:
        found = self.mechanism
        mean = self.total * (math.sqrt(found.padded / found.keep) / count)
        self.kernel.rotate_back(mean, found.rotation_seed)
        return lambda start, stop: mean[start:stop]


@final
@frozen(eq=False)
class _Shared(RowsAccumulator):
    """Shared rows: the inner mechanism's mean, spread over the rows and rotated back."""

    mechanism: Projected
    sums: Accumulator

    group = passed_on("sums.group")
    check = passed_on("sums.check")
    add = passed_on("sums.add")

    def kept(self, count: int) -> FloatVector:
        return self.sums.reader(count)(0, self.mechanism.keep)

    def reader(self, count: int) -> Reader:
        mean = self.mechanism.unproject(self.kept(count))
        return lambda start, stop: mean[start:stop]


def project(ball: Ball, keep: int | str, calibrated: Callable[[Ball], Mechanism]) -> Projected:
    """Return ``calibrated(k-ball)`` on k = ``keep`` rotated coordinates of updates in the ball.

    ``auto`` is the smallest k whose projection costs at most 1 % of the error, and at least 64, for
    the second clip.
    """
    require(
        ball.norm is Norm.L2, "norm of the ball", ball.norm.value, "l2 where coordinates are kept"
    )
    padded = padded_size(ball.dimension)
    if keep == "auto":
        first = calibrated(Ball(Norm.L2, ball.radius, padded))
        keep = max(
            fewest_kept(first.error().squared / ball.radius**2, ball.dimension), min(64, padded)
        )
    count = check_int(keep, "keep", 1, padded)
    return Projected(calibrated(Ball(Norm.L2, ball.radius, count)), ball)
