"""Below one bit per parameter: rotate, keep k coordinates, clip again, apply any mechanism to them.

Idea     a private update carries a few bits whatever its dimension, so k of its rotated coordinates
         are nearly as good as all d. The map is public and linear, and the clip comes after it: the
         account is exactly that of the inner mechanism on its k-ball, for every update; zero stays
         zero. The map can lengthen the difference of two close updates by sqrt(p/k), so `Projected`
         has no cost per sample; `ProjectedSamples` projects and clips every sample's gradient
         before the mean is taken, and one of n samples then moves that mean by its share of the
         clip.
Symbols  d = dimension, p = d padded to a power of two; y = sqrt(p/k) S H D x, clipped to the
         clip C: S keeps k rows. v C^2: the inner mechanism's squared error; the projection adds
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
from quietbit.errors import InvalidParameter, check_int
from quietbit.kernel.base import Kernel
from quietbit.kernel.norm import clip_factor
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.transform import padded_size
from quietbit.mechanism.abilities import (
    Ability,
    SampleGradients,
    SharedRows,
    Summable,
)
from quietbit.mechanism.ball import Ball, Norm, check_norm
from quietbit.mechanism.base import (
    Accumulator,
    Body,
    Error,
    Layout,
    Mechanism,
    Parts,
    Reader,
    Samples,
    Wrapper,
    array_reader,
    check_mechanism,
    only,
    passed_on,
)
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

# The rounding of a sum of this many doubles is below what the cost per sample allows.
MOST_SAMPLES = 2**24


@final
@frozen
class Projected(Rowed, Wrapper, Summable):
    """Any mechanism of dimension k, on k rotated coordinates of updates of dimension d."""

    inner: Mechanism = field(converter=check_mechanism)
    ball: Ball = field(converter=check_rotated)
    rotation_seed: int = field(default=0, converter=check_seed)
    rows: int | None = field(default=None, converter=check_rows)

    def __attrs_post_init__(self) -> None:
        """Refuse an inner ball that is no L2 ball, or whose dimension does not fit."""
        inner = self.inner.ball
        check_norm(inner, Norm.L2, "inside a projection")
        check_keep(inner.dimension, self.padded)

    @property
    def keep(self) -> int:
        """k: the number of coordinates that a client keeps."""
        return self.inner.ball.dimension

    @property
    def layout(self) -> Layout:
        """The inner body, after the nonce of the rows where the release draws them."""
        inner = self.inner.layout
        if self.rows is not None:
            return inner
        return Layout.opaque(self.ball.dimension, NONCE + inner.size)

    def offers(self, ability: type[Ability]) -> bool:
        """Return whether it has the ability; sums need shared rows, and an inner one of sums."""
        if ability is Summable:
            return self.rows is not None and Summable.find(self.inner) is not None
        if ability is SharedRows:
            return self.rows is not None
        return ability.find(self.inner) is not None

    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Rotate, keep k rows, and pass them to the inner mechanism, which clips them again."""
        factor = clip_factor(kernel.norm(update, self.ball.norm.order), clip)
        nonce = self.drawn(rng)
        self.close(nonce, self.project(update, factor, nonce, kernel), clip, rng, kernel, out)

    def drawn(self, rng: RandomBits) -> bytes:
        """Return the nonce of the rows of a release: fresh unless rows are shared."""
        return self.nonce(rng.draw(1) if self.rows is None else None)

    def close(
        self,
        nonce: bytes,
        kept: FloatVector,
        clip: float,
        rng: RandomBits,
        kernel: Kernel,
        out: Body,
    ) -> None:
        """Write the nonce, unless rows are shared, and the inner mechanism's release."""
        out[: self.nonce_size] = np.frombuffer(nonce[: self.nonce_size], dtype=np.uint8)
        self.inner.write([kept], clip, rng, kernel, out[self.nonce_size :])

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator that adds inner bodies at their rows and rotates back the mean."""
        if self.rows is not None:
            return _Shared(self, self.inner.accumulator(kernel, max_payloads))
        return _Scattered(self, kernel, np.zeros(self.padded))

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the inner mechanism's cost, which a public map before the clip does not change."""
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
        missed = (inner.response - response) / self.ball.dimension
        projection = self.projection_error(1.0)
        squared = inner.squared + projection + max(0.0, missed)
        shared = 0.0 if self.rows is None else projection
        return evolve(inner, squared=squared, response=response, shared=shared)

    def response(self, block: int | None) -> float:
        """Return the share that the second clip and the inner mechanism leave."""
        return self.clip_response * self.inner.response(self.keep)

    def decoded(self, value: float) -> tuple[float, float]:
        """Return the mean, unbiased but for the second clip, and the variance of one coordinate."""
        variance = self.inner.variance(0.0) + self.projection_error(value)
        return self.inner.error().gain * value, variance

    @property
    def honest_length(self) -> float:
        """The inner mechanism's bound, spread over all coordinates."""
        return self.inner.honest_length * math.sqrt(self.padded / self.keep)


@final
@frozen
class ProjectedSamples(Wrapper, SampleGradients, SharedRows):
    """A `Projected` whose privacy unit is one sample: it takes gradients, never their mean."""

    inner: Projected = field(validator=only(Projected, "a Projected"))

    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Refuse: an update is already a mean."""
        rule = "given as the gradients of its samples"
        raise InvalidParameter.of("update", rule, "their mean", "use Uplink.send_samples")

    shared_rows = passed_on("inner.shared_rows")
    unproject = passed_on("inner.unproject")

    def samples(self, rng: RandomBits, kernel: Kernel) -> Samples:
        """Return a release of a mean of gradients, each projected and clipped again."""
        return _ProjectedOnes(self, rng, kernel, self.inner, self.inner.drawn(rng))

    def offers(self, ability: type[Ability]) -> bool:
        """Return whether it takes gradients, always; else whether the inner mechanism has it."""
        if issubclass(SampleGradients, ability):
            return True
        return ability.find(self.inner) is not None

    def write_samples(
        self, gradients: Sequence[Parts], clip: float, rng: RandomBits, kernel: Kernel, out: Body
    ) -> None:
        """Project and clip every gradient separately, and release the mean."""
        count = check_int(len(gradients), "number of gradients", 1, MOST_SAMPLES)
        inner = self.inner
        # Measuring refuses bad gradients before any draw.
        norms = [kernel.norm(gradient, self.ball.norm.order) for gradient in gradients]
        nonce = inner.drawn(rng)
        total = np.zeros(inner.keep)
        for gradient, norm in zip(gradients, norms, strict=True):
            factor = clip_factor(norm, clip)
            total += inner.inner.ball.clip(inner.project(gradient, factor, nonce, kernel), clip)
        inner.close(nonce, total / count, clip, rng, kernel, out)

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the inner mechanism's cost."""
        return self.inner.cost(adjacency)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the inner cost to one sample; ``samples`` must be the number of gradients."""
        return self.inner.inner.sample_cost(adjacency, samples)


@final
@frozen(eq=False)
class _ProjectedOnes(Samples):
    """A release whose gradients keep the same rows: they are summed there."""

    projected: Projected
    nonce: bytes

    @property
    def ball(self) -> Ball:
        return self.projected.inner.ball

    def clipped(self, gradient: FloatVector, clip: float) -> FloatVector:
        once = self.mechanism.ball.clip(gradient, clip)
        kept = self.projected.project([once], 1.0, self.nonce, self.kernel)
        return np.asarray(self.ball.clip(kept, clip), dtype=np.float64)

    def write(self, mean: FloatVector, clip: float, out: Body) -> None:
        self.projected.close(self.nonce, mean, clip, self.rng, self.kernel, out)


@final
@frozen(eq=False)
class _Scattered(Accumulator):
    """Rows drawn per release: every body is decoded and added at its rows."""

    mechanism: Projected
    kernel: Kernel
    total: FloatVector

    def check(self, body: Body) -> None:
        self.mechanism.inner.accumulator(self.kernel, 1).check(body[NONCE:])

    def add(self, bodies: Sequence[Body]) -> None:
        mechanism = self.mechanism
        for body in bodies:
            inner = mechanism.inner.accumulator(self.kernel, 1)
            inner.add([body[NONCE:]])
            rows = self.kernel.rows(bytes(body[:NONCE]), mechanism.keep, mechanism.padded)
            # Rows come from disjoint strata, so none occurs twice.
            self.total[rows] += inner.reader(1)(0, mechanism.keep)

    def reader(self, count: int) -> Reader:
        mechanism = self.mechanism
        mean = self.total * (math.sqrt(mechanism.padded / mechanism.keep) / count)
        self.kernel.rotate_back(mean, mechanism.rotation_seed)
        return array_reader(mean)


@final
@frozen(eq=False)
class _Shared(Accumulator):
    """Shared rows: the inner mechanism's mean, spread over the rows and rotated back."""

    mechanism: Projected
    sums: Accumulator

    group = passed_on("sums.group")
    check = passed_on("sums.check")
    add = passed_on("sums.add")

    def kept(self, count: int) -> FloatVector:
        return self.sums.reader(count)(0, self.mechanism.keep)

    def reader(self, count: int) -> Reader:
        return array_reader(self.mechanism.unproject(self.kept(count)))


def project(
    ball: Ball,
    coordinates: int | str,
    calibrated: Callable[[Ball], Mechanism],
    clients: int = 1,
) -> Projected:
    """Return ``calibrated(k-ball)`` on k rotated coordinates of updates in the ball.

    ``auto`` is the smallest k whose projection adds at most 1 % to the error of a mean of
    ``clients`` clients, and at least 64, for the second clip.
    """
    check_norm(ball, Norm.L2, "where coordinates are kept")
    padded = padded_size(ball.dimension)
    if coordinates == "auto":
        dense = calibrated(Ball(Norm.L2, padded))
        fewest = fewest_kept(dense.error().of_mean(clients), ball.dimension)
        coordinates = max(fewest, min(64, padded))
    count = check_int(coordinates, "coordinates", 1, padded)
    return Projected(calibrated(Ball(Norm.L2, count)), ball)
