"""Secret batches: a site clips the gradient of every sample it drew and releases their sum.

Idea     every sample of the site is in the batch with probability q, independently, and only the site learns which.
         It releases the sum of the batch's clipped gradients divided by a public number m (about q times the site's
         samples), never by the number drawn: one sample then moves the release by at most C / m, whatever m is. A
         wrong m costs accuracy but no privacy, so a server may choose it. An empty batch releases zero.
Symbols  q: ``rate``; m: ``expected``; C: radius of the ball.
Source   Abadi et al. (2016), Algorithm 1; `quietbit.privacy.poisson` for the price.

A sum longer than m C is clipped to the ball again, which moves no two sums apart. Rounding moves none apart either,
even if far more than m samples are drawn: each rounding error is kept and added at the end (Knuth's two-sum). With
q = 1 every sample is in every batch, and the cost is that of one of m samples without sampling.

A gradient that is not finite counts as zero; the rest of the batch is unaffected. Refusing the whole batch would let
one sample decide between the sum of all others and nothing, which the cost does not cover.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.base import Batch, Body, Mechanism, Parts, Wrapper, check_mechanism, passed_on
from quietbit.mechanism.projected import MOST_SAMPLES, Projected
from quietbit.privacy.cost import Cost
from quietbit.privacy.poisson import poisson_cost
from quietbit.target import Adjacency

__all__ = ["BatchSum", "OfBatches", "PoissonBatch", "draw_batch"]


def _rate(value: float) -> float:
    return check_real(value, "rate", at_most=1.0)


def _expected(value: int) -> int:
    return check_int(value, "expected", 1, MOST_SAMPLES)


class OfBatches(Wrapper):
    """A mechanism that releases only batches of sample gradients (`begin`)."""

    __slots__ = ()

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Refuse: an update is already a mean, or a difference of models."""
        raise InvalidParameter("update must be given as the gradients of batches that the gate drew, got a mean.")

    def write_samples(self, gradients: Sequence[Parts], rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Release the clipped gradients as the first batch; later batches are empty."""
        total = self.begin(rng, kernel)
        for one in gradients:
            total.add(np.concatenate([np.asarray(part, dtype=np.float64).reshape(-1) for part in one])[None])
        total.write(out)


@final
@frozen
class PoissonBatch(OfBatches):
    """A mechanism that is given the gradients of a batch drawn with ``rate``, and releases their sum over ``expected``.

    >>> from quietbit import Ball, Gaussian
    >>> batch = PoissonBatch(Gaussian(Ball("l2", 1.0, 8), 0.02), expected=100, rate=0.1)
    >>> whole = PoissonBatch(Gaussian(Ball("l2", 1.0, 8), 0.02), expected=100, rate=1.0)
    >>> costs = [one.privacy(Adjacency.ZERO_OUT, 100) * 10 for one in (batch, whole)]
    >>> [round(cost.epsilon(1e-5), 1) for cost in costs]
    [0.8, 7.5]
    """

    inner: Mechanism = field(converter=check_mechanism)
    expected: int = field(converter=_expected)
    rate: float = field(converter=_rate)

    def __attrs_post_init__(self) -> None:
        """Refuse a mechanism that projects and clips a mean, and balls where clipping can move two sums apart."""
        inner = self.inner
        whole = inner.kept == inner.domain.dimension or inner.each_sample is not None
        require(whole and not inner.batch, "inner", type(self.inner).__name__, "a mechanism or a ProjectedSamples")
        require(self.domain.norm is Norm.L2, "norm of the ball", self.domain.norm.value, "l2 for batches of samples")

    batch = passed_on("expected")
    sampling_rate = passed_on("rate")

    def begin(self, rng: RandomBits, kernel: Kernel) -> Batch:
        """Return an empty batch."""
        return BatchSum(self, rng, kernel)

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the inner mechanism's cost."""
        return self.inner.cost(adjacency)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the inner mechanism's cost, amplified by secret sampling; ``samples`` must be the expected number."""
        require(samples == self.expected, "samples", samples, f"{self.expected}, what the sum is divided by")
        near, far = (self.inner.privacy(which, samples) for which in (Adjacency.ZERO_OUT, adjacency))
        return (far if self.rate == 1.0 else poisson_cost(near, far, self.rate)).bare()


@final
class BatchSum(Batch):
    """One batch, and the release of its sum."""

    def __init__(self, mechanism: PoissonBatch, rng: RandomBits, kernel: Kernel) -> None:
        """Begin with an empty batch, whose sum is zero."""
        self._mechanism, self._rng, self._kernel = mechanism, rng, kernel
        self._projected = cast(Projected | None, mechanism.inner.each_sample)
        self._nonce = b"" if self._projected is None else self._projected.drawn(rng)
        self._ball = mechanism.domain if self._projected is None else self._projected.inner.domain
        self._total, self._missed = np.zeros(self._ball.dimension), np.zeros(self._ball.dimension)
        self.count = 0

    def add(self, rows: NDArray[np.floating]) -> None:
        """Clip each row to the ball and add it; a row that is not finite counts as zero."""
        whole = self._mechanism.domain
        fits = rows.ndim == 2 and rows.shape[1] == whole.dimension
        require(fits, "gradients", rows.shape, f"rows of {whole.dimension} entries")
        require(self.count + len(rows) <= MOST_SAMPLES, "number of gradients", "more", f"at most {MOST_SAMPLES}")
        for row in rows:
            one = self._clipped(np.asarray(row, dtype=np.float64))
            total = self._total + one
            before = total - one
            self._missed += (one - (total - before)) + (self._total - before)  # exactly what rounding lost
            self._total = total
            self.count += 1

    def _clipped(self, row: FloatVector) -> FloatVector:
        try:
            clipped = self._mechanism.domain.clip(row)
            if self._projected is not None:
                clipped = self._ball.clip(self._projected.project([clipped], 1.0, self._nonce, self._kernel))
            return np.asarray(clipped, dtype=np.float64)
        except InvalidParameter:  # a NaN, an infinity, a norm beyond the largest double
            return np.zeros_like(self._total)

    def write(self, out: Body) -> None:
        """Release the sum divided by the expected number."""
        mean = (self._total + self._missed) / self._mechanism.expected
        if self._projected is None:
            self._mechanism.inner.write([mean], self._rng, self._kernel, out)
        else:
            self._projected.close(self._nonce, mean, self._rng, self._kernel, out)


def draw_batch(rng: RandomBits, rate: float, count: int) -> NDArray[np.int64]:
    """Return the indices of the samples drawn from ``count``, each with probability at most ``rate``."""
    size = check_int(count, "number of samples", 0, MOST_SAMPLES)
    if rate >= 1.0 or size == 0:
        return np.arange(size)
    words = rng.draw(size).uniform64(0, 0, size)
    return np.flatnonzero(words < np.uint64(int(rate * 2**53) << 11))  # rounded down
