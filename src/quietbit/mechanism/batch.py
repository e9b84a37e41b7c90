"""Secret batches of a site's samples: a release of one batch, or of several private steps.

Idea     every sample of the site is in the batch with probability q, independently, and only the
         site learns which. It releases the sum of the batch's clipped gradients divided by a public
         number m (about q times the site's samples), never by the number drawn: one sample then
         moves the release by at most C / m, whatever m is. A wrong m costs accuracy but no privacy,
         so a server may choose it. With local steps a site takes T steps of DP-SGD, each a release
         of a batch that costs as much as if it were observed, and sends the difference of models,
         rounded at random without bias: post-processing, because the gate itself adds the steps up.
Symbols  q: ``rate``; m: ``expected``; C: clip; T: ``steps``; eta: ``step_size``; g_t: the t-th
         release, decoded; D = eta (g_1 + ... + g_T); y: D rotated in blocks; s: its largest
         coordinate, a float32; L = 2^``bits`` - 1.
Source   Abadi et al. (2016), Algorithm 1; `privacy.subsampling` for the cost; Alistarh et al.
         (2017), rounding.

A sum longer than m C is clipped to the ball again, which moves no two sums apart; nor does
rounding, whose errors are added at the end (Knuth's two-sum). A gradient that is not finite counts
as zero: if the batch were refused, one sample would decide between the sum of all others and
nothing. If an app takes fewer steps, the gate takes the rest on empty batches: otherwise their
number would be a release without a cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, check_real, refuse_payload, require
from quietbit.kernel.base import Kernel, packed_size
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.abilities import (
    Ability,
    Batches,
    SampleGradients,
    SharedRows,
)
from quietbit.mechanism.accumulate import refuse_longer
from quietbit.mechanism.ball import Norm, check_norm
from quietbit.mechanism.base import (
    Accumulator,
    Batch,
    Body,
    Error,
    Layout,
    Mechanism,
    Parts,
    Reader,
    Wrapper,
    array_reader,
    check_mechanism,
    check_padding,
    passed_on,
)
from quietbit.mechanism.projected import MOST_SAMPLES
from quietbit.mechanism.rotation import Rotation, rotation_for
from quietbit.mechanism.rounding import independent_rounding
from quietbit.privacy.cost import Cost
from quietbit.privacy.subsampling import poisson_cost
from quietbit.target import Adjacency

__all__ = ["BatchSum", "LocalSteps", "PoissonBatch", "draw_batch", "site_release"]

MOST_STEPS = 10_000  # limits on what a gate can be asked to draw for one release
MOST_NUMBERS = 2**34
SCALE = 4  # bytes that hold the largest coordinate
SMALLEST = np.finfo(np.float32).tiny


def _expected(value: int) -> int:
    return check_int(value, "expected", 1, MOST_SAMPLES)


def _rate(value: float) -> float:
    return check_real(value, "rate", at_most=1.0)


def _steps(value: int) -> int:
    return check_int(value, "local_steps", 1, MOST_STEPS)


def _step_size(value: float) -> float:
    return check_real(value, "local_rate")


def _bits(value: int) -> int:
    return check_int(value, "local_bits", 1, 8)


class _OfBatches(Wrapper, Batches):
    """A mechanism that releases only batches of sample gradients (`begin`)."""

    __slots__ = ()

    def offers(self, ability: type[Ability]) -> bool:
        """Return whether it releases batches, always; else whether the inner mechanism has it."""
        return issubclass(Batches, ability) or ability.find(self.inner) is not None

    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Refuse: an update is already a mean, or a difference of models."""
        rule = "given as the gradients of batches that the gate drew"
        raise InvalidParameter.of("update", rule, "a mean")

    def write_samples(
        self, gradients: Sequence[Parts], clip: float, rng: RandomBits, kernel: Kernel, out: Body
    ) -> None:
        """Release the clipped gradients as the first batch; later batches are empty."""
        batch = self.begin(clip, rng, kernel)
        for gradient in gradients:
            flat = [np.asarray(part, dtype=np.float64).reshape(-1) for part in gradient]
            batch.add(np.concatenate(flat)[None])
        batch.write(out)


@final
@frozen
class PoissonBatch(_OfBatches, SharedRows):
    """The sum of a batch's clipped gradients, divided by ``expected``.

    Each sample is in the batch with probability ``rate``.

    >>> from quietbit import Ball, Gaussian
    >>> inner = Gaussian(Ball("l2", 8), 0.02)
    >>> for rate in (0.1, 1.0):
    ...     batch = PoissonBatch(inner, expected=100, rate=rate)
    ...     round((batch.privacy(Adjacency.ZERO_OUT, 100) * 10).epsilon(1e-5), 1)
    0.8
    7.5
    """

    inner: Mechanism = field(converter=check_mechanism)
    expected: int = field(converter=_expected)
    rate: float = field(converter=_rate)

    def __attrs_post_init__(self) -> None:
        """Refuse an inner mechanism that projects a mean or releases batches, and an L1 ball.

        Projecting a mean, or clipping it to an L1 ball, can move two sums apart.
        """
        inner = self.inner
        keeps_all = inner.kept == inner.ball.dimension
        fits = keeps_all or SampleGradients.find(inner) is not None
        rule = "a mechanism of all coordinates or a ProjectedSamples"
        require(fits and Batches.find(inner) is None, "inner", type(inner).__name__, rule)
        check_norm(self.ball, Norm.L2, "for batches of samples")

    batch = passed_on("expected")
    sampling_rate = passed_on("rate")
    steps = 1
    longest_update = 1.0
    shared_rows = passed_on("inner.shared_rows")
    unproject = passed_on("inner.unproject")

    def begin(self, clip: float, rng: RandomBits, kernel: Kernel) -> Batch:
        """Return an empty batch."""
        return BatchSum(self, clip, rng, kernel)

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the inner mechanism's cost."""
        return self.inner.cost(adjacency)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the inner cost, amplified by secret sampling; ``samples`` must be ``expected``."""
        rule = f"{self.expected}, by which the sum is divided"
        require(samples == self.expected, "samples", samples, rule)
        cost = self.inner.privacy(adjacency, samples)
        if self.rate < 1.0:
            zero_out = self.inner.privacy(Adjacency.ZERO_OUT, samples)
            cost = poisson_cost(zero_out, cost, self.rate)
        return cost.bare()


@final
class BatchSum(Batch):
    """One batch, and the release of its sum."""

    def __init__(
        self, mechanism: PoissonBatch, clip: float, rng: RandomBits, kernel: Kernel
    ) -> None:
        """Start with an empty batch, whose sum is zero."""
        self._mechanism = mechanism
        self._clip = clip
        self._samples = mechanism.inner.samples(rng, kernel)
        self._total = np.zeros(self._samples.ball.dimension)
        self._rounding = np.zeros_like(self._total)
        self.count = 0

    def add(self, rows: NDArray[np.floating]) -> None:
        """Clip each row and add it; a row that is not finite counts as zero."""
        size = self._mechanism.ball.dimension
        fits = rows.ndim == 2 and rows.shape[1] == size
        require(fits, "gradients", rows.shape, f"rows of {size} entries")
        count = self.count + len(rows)
        require(count <= MOST_SAMPLES, "number of gradients", count, f"at most {MOST_SAMPLES}")
        for row in rows:
            gradient = self._clipped(np.asarray(row, dtype=np.float64))
            total = self._total + gradient
            before = total - gradient
            # Exactly what rounding lost.
            self._rounding += (gradient - (total - before)) + (self._total - before)
            self._total = total
            self.count += 1

    def _clipped(self, row: FloatVector) -> FloatVector:
        try:
            return self._samples.clipped(row, self._clip)
        except InvalidParameter:  # a NaN, an infinity, a norm beyond the largest double
            return np.zeros_like(self._total)

    def write(self, out: Body) -> None:
        """Release the sum divided by the expected number."""
        mean = (self._total + self._rounding) / self._mechanism.expected
        self._samples.write(mean, self._clip, out)


def draw_batch(rng: RandomBits, rate: float, count: int) -> NDArray[np.int64]:
    """Return the indices of the samples drawn, each with probability at most ``rate``."""
    size = check_int(count, "number of samples", 0, MOST_SAMPLES)
    if rate >= 1.0 or size == 0:
        return np.arange(size)
    words = rng.draw(size).uniform64(0, 0, size)
    return np.flatnonzero(words < np.uint64(int(rate * 2**53) << 11))  # rounded down


@final
@frozen
class LocalSteps(_OfBatches):
    """``steps`` releases of a `PoissonBatch`, each followed by a step of the site's model.

    >>> from quietbit import Ball, Gaussian
    >>> step = PoissonBatch(Gaussian(Ball("l2", 8), 0.02), expected=100, rate=0.1)
    >>> site = LocalSteps(step, steps=10, step_size=0.5)
    >>> round(site.privacy(Adjacency.ZERO_OUT, 100).epsilon(1e-5), 1)
    0.8
    >>> step.layout.size, site.layout.size
    (32, 8)
    """

    inner: Mechanism = field(converter=check_mechanism)
    steps: int = field(converter=_steps)
    step_size: float = field(converter=_step_size)
    bits: int = field(default=4, converter=_bits)

    def __attrs_post_init__(self) -> None:
        """Refuse an inner mechanism without batches, or with shared rows: steps need all rows."""
        kind = type(self.inner).__name__
        require(Batches.of(self.inner).steps == 1, "inner", kind, "a PoissonBatch")
        size = self.ball.dimension
        limit = MOST_NUMBERS // size
        rule = f"at most {limit} for {size} coordinates"
        require(self.steps <= limit, "local_steps", self.steps, rule)
        all_rows = SharedRows.find(self.inner) is None
        require(all_rows, "rows", "shared", "left out where sites take local steps")

    @property
    def layout(self) -> Layout:
        """The largest coordinate, then one code per coordinate."""
        size = self.ball.dimension
        return Layout.opaque(size, SCALE + packed_size(self.bits, size))

    batch = passed_on("inner.batch")
    sampling_rate = passed_on("inner.sampling_rate")

    @property
    def longest_update(self) -> float:
        """The length of ``steps`` clipped steps in one direction."""
        return float(self.steps * self.step_size)

    def begin(self, clip: float, rng: RandomBits, kernel: Kernel) -> Batch:
        """Return the first batch, empty."""
        return _Steps(self, clip, rng, kernel)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator of the differences on rotated coordinates."""
        return _Differences(self, kernel, np.zeros(self.ball.dimension))

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost of all steps, as if each were observed."""
        return self.inner.cost(adjacency) * self.steps

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the cost of all steps to one sample, as if each were observed."""
        return self.inner.sample_cost(adjacency, samples) * self.steps

    def error(self) -> Error:
        """Return the error of the noise and of the rounding, for a difference that is mostly noise.

        The largest of d normal coordinates is about sqrt(2 log 2d) deviations; a larger signal is
        rounded more coarsely.
        """
        noise = self.steps * self.step_size**2 * self.inner.error().squared
        largest = 2 * math.log(2 * self.ball.dimension)
        return Error(noise * (1 + 4 * largest / (6 * self._levels**2)))

    @property
    def _longest(self) -> float:
        """A bound on the length of an honest difference, except with probability 2^-40 per step."""
        noise = math.sqrt(self.ball.dimension * self.inner.error().squared)
        step = min(1 + 10 * noise, self.inner.honest_length)
        return float(self.steps * self.step_size * step + SMALLEST)

    @property
    def honest_length(self) -> float:
        """The length of the longest difference that a server accepts."""
        root = math.sqrt(self.ball.dimension)
        return self._longest * min(root, 1 + 2 * root / self._levels)

    @property
    def _levels(self) -> int:
        return int(2**self.bits - 1)

    @property
    def _rotation(self) -> Rotation:
        return rotation_for(self.ball.dimension, exact=True)


@final
class _Steps(Batch):
    """The successive batches of one release, and the sum of their releases."""

    def __init__(self, mechanism: LocalSteps, clip: float, rng: RandomBits, kernel: Kernel) -> None:
        self._mechanism = mechanism
        self._clip = clip
        self._rng = rng
        self._kernel = kernel
        self._difference = np.zeros(mechanism.ball.dimension)  # in clips
        self._left = mechanism.steps
        self._batch = Batches.of(mechanism.inner).begin(clip, rng, kernel)

    def add(self, rows: FloatVector) -> None:
        self._batch.add(rows)

    def step(self) -> FloatVector | None:
        inner = self._mechanism.inner
        kernel = self._kernel
        steps = self._mechanism.steps
        require(self._left, "number of steps", steps + 1, f"at most {steps}")
        body = np.zeros(inner.layout.size, dtype=np.uint8)
        self._batch.write(body)
        accumulator = inner.accumulator(kernel, 1)
        accumulator.add([body])
        gradient = accumulator.reader(1)(0, self._difference.size)
        change = self._mechanism.step_size * gradient
        self._difference += change
        self._left -= 1
        self._batch = Batches.of(inner).begin(self._clip, self._rng, kernel)
        return change * self._clip if self._left else None

    def write(self, out: Body) -> None:
        while self._left:
            self.step()
        mechanism = self._mechanism
        seed = mechanism._rotation.seed
        block = mechanism._rotation.block
        rotated = self._kernel.rotate([self._difference], seed, block, kind=np.float64)
        largest = np.float32(max(float(np.abs(rotated).max()), float(SMALLEST)))
        # The next larger float keeps every coordinate at or below the highest level.
        scale = np.nextafter(largest, np.float32(np.inf))
        levels = mechanism._levels
        values = (rotated / float(scale) + 1) / 2 * levels
        codes = independent_rounding(values, self._rng.draw(rotated.size))
        out[:SCALE] = np.frombuffer(scale.astype("<f4").tobytes(), dtype=np.uint8)
        packed = self._kernel.pack(np.clip(codes, 0, levels).astype(np.uint8), mechanism.bits)
        out[SCALE:] = np.frombuffer(packed, dtype=np.uint8)


@final
@frozen(eq=False)
class _Differences(Accumulator):
    """The sum of the rotated differences."""

    mechanism: LocalSteps
    kernel: Kernel
    total: FloatVector

    def check(self, body: Body) -> None:
        """Refuse a difference longer than steps, noise and rounding allow, and set padding bits."""
        scale = float(body[:SCALE].view("<f4")[0])
        longest = self.mechanism._longest
        if not 0 < scale <= longest:
            rule = f"above 0 and at most {longest:g}"
            refuse_payload("largest coordinate of the payload", rule, f"{scale:g}")
        check_padding(body, self.mechanism.bits * self.total.size)
        # A code is less than one level away from its coordinate.
        longest += 2 * scale * math.sqrt(self.total.size) / self.mechanism._levels
        refuse_longer(float(np.linalg.norm(self._read(body))), longest * (1 + 1e-9))

    def add(self, bodies: Sequence[Body]) -> None:
        for body in bodies:
            self.total[:] += self._read(body)

    def _read(self, body: Body) -> FloatVector:
        scale = float(body[:SCALE].view("<f4")[0])
        codes = self.kernel.unpack(body[SCALE:].tobytes(), self.mechanism.bits, self.total.size)
        return np.asarray(scale * (2.0 * codes / self.mechanism._levels - 1.0))

    def reader(self, count: int) -> Reader:
        mean = self.total / count
        rotation = self.mechanism._rotation
        self.kernel.rotate_back(mean, rotation.seed, rotation.block)
        return array_reader(mean)


def site_release(
    inner: Mechanism,
    samples: int,
    sampling_rate: float,
    local_steps: int | None = None,
    local_rate: float | None = None,
    local_bits: int = 4,
) -> Mechanism:
    """Return the release of a site with about ``samples`` samples: one batch, or local steps."""
    batch = PoissonBatch(inner, max(1, int(samples * sampling_rate)), sampling_rate)
    if local_steps is None:
        return batch
    if local_rate is None:
        rule = "given where sites take local steps: the learning rate of each"
        raise InvalidParameter.of("local_rate", rule)
    return LocalSteps(batch, local_steps, local_rate, local_bits)
