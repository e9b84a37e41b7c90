"""The reference kernel: slow, evidently correct, in numpy with double precision.

Idea     evaluate the law of every coordinate (`sampler.py`), compare it with all 64 bits of the
         coordinate's word, pack bit by bit. The other kernels are tested against this one.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import Codes, FloatMatrix, FloatVector
from quietbit.kernel import sampler as law
from quietbit.kernel.base import Job, Kernel
from quietbit.kernel.expand import stream_words
from quietbit.kernel.norm import BLOCK, LANES, ROWS, Flat, exact_sum
from quietbit.kernel.normals import inner
from quietbit.kernel.sampler import Sampler, level_knots
from quietbit.kernel.transform import Blocks, check_finite_rotation, rotate, rotate_back

__all__ = ["ReferenceKernel", "cumulative", "exact_codes", "thresholds"]

CHUNK = 1 << 15  # coordinates at a time: limits memory only


def cumulative(sampler: Sampler, t: FloatVector, t_low: FloatVector) -> FloatMatrix:
    """Return F_0 .. F_{B-2} at each t (a pair, already clamped), one row per t."""
    last = sampler.levels - 2
    knots, tails = level_knots(sampler.levels)
    guess = np.floor((t + 0.5) * (sampler.levels - 1)).astype(np.int64)
    index = np.clip(guess, 0, last)
    below = ((t - knots[index]) + (t_low - tails[index])) < 0
    above = ((t - knots[index + 1]) + (t_low - tails[index + 1])) >= 0
    # The ends of the segment enclose t, as pairs; the outer segments are unbounded.
    segment = np.clip(index - below + above, 0, last)
    total, tail = law.log_weight(
        sampler.base[segment],
        sampler.base_tail[segment],
        sampler.slope[segment],
        sampler.slope_tail[segment],
        t[:, None],
        t_low[:, None],
    )
    peak = total.max(axis=1, keepdims=True)
    difference, lost = law.two_sum(total, -peak)
    difference = np.maximum(difference, law.FLOOR)
    exponent, remainder = law.reduce_exponent(difference, tail + lost)
    power = law.POWERS[exponent.astype(np.int64) + law.POWER_OFFSET]
    sums = law.exponential(remainder) * power
    half = 1
    while half < sampler.symbols:
        # Sklansky's order: the last sum of a left half is added to its right half.
        view = sums.reshape(t.size, sampler.symbols // (2 * half), 2, half)
        view[:, :, 1, :] += view[:, :, 0, -1:]
        half *= 2
    result: FloatMatrix = sums[:, :-1] / sums[:, -1:]
    return result


def _position(
    sampler: Sampler, values: NDArray[Any], gain: law.Gain
) -> tuple[FloatVector, FloatVector]:
    """Return t = factor * scale * value as a clamped pair."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scaled = values.astype(np.float64) * gain.first * gain.second
        scaled = np.where(scaled > -law.CEILING, scaled, -law.CEILING)
        scaled = np.where(scaled < law.CEILING, scaled, law.CEILING)
        t, t_low = law.shift(scaled, gain.high, gain.low)
    low, high = sampler.t_range
    below = ((t - low) + t_low) < 0
    above = ((t - high) + t_low) > 0
    inside = np.where(below, low, np.where(above, high, t))
    return inside, np.where(below | above, 0.0, t_low)


def thresholds(sampler: Sampler, values: NDArray[Any], gain: law.Gain) -> tuple[Any, Any]:
    """Return floor(2^64 F_k) per value as two numbers: the upper 16 bits (up to 65536), and 48."""
    with np.errstate(under="ignore"):
        t, t_low = _position(sampler, values, gain)
        scaled = cumulative(sampler, t, t_low) * 65536.0
        upper = np.floor(scaled)
        lower = np.floor((scaled - upper) * 2.0**48)
    return upper.astype(np.int64), lower.astype(np.int64)


def exact_codes(
    sampler: Sampler,
    values: NDArray[Any],
    gain: law.Gain,
    primary: NDArray[np.uint16],
    ties: NDArray[np.uint64],
) -> Codes:
    """Return the code of every value: the number of thresholds that its 64-bit word reaches."""
    upper, lower = thresholds(sampler, values, gain)
    first = primary.astype(np.int64)[:, None]
    second = (ties & np.uint64(2**48 - 1)).astype(np.int64)[:, None]
    reached = (first > upper) | ((first == upper) & (second >= lower))
    codes: Codes = reached.sum(axis=1).astype(np.uint8)
    return codes


@final
class ReferenceKernel(Kernel):
    """The kernel without optimisations; `Kernel` documents the methods."""

    name = "reference"

    def _sample(self, job: Job) -> float:
        if job.blocks is not None:
            return self._sample_copy(job, job.blocks)
        size = job.flat.size
        sums = []
        codes = np.empty(size, dtype=np.uint8)
        for start in range(0, size, CHUNK):
            stop = min(size, start + CHUNK)
            values = job.flat.piece(start, stop).copy()
            primary = job.block.primary(start, stop - start)
            ties = job.block.ties(np.arange(start, stop))
            codes[start:stop] = exact_codes(job.sampler, values, job.gain, primary, ties)
            if job.order:
                with np.errstate(over="ignore", invalid="ignore"):
                    terms = np.abs(values.astype(np.float64)) ** job.order
                    sums.append(float(np.sum(terms)))
        job.out[:] = np.frombuffer(self._pack(codes, job.sampler.bits), dtype=np.uint8)
        return exact_sum(sums)

    @np.errstate(over="ignore", under="ignore", invalid="ignore")
    def _block_sums(self, flat: Flat, order: int, scale: float) -> FloatVector:
        sums = [np.empty(0)]
        for base, part in zip(flat.starts, flat.parts, strict=True):
            for start in range(0, part.size, 8 * BLOCK):
                stop = min(part.size, start + 8 * BLOCK)
                values = flat.piece(base + start, base + stop)
                blocks = np.zeros((-(-values.size // BLOCK), ROWS, LANES))
                np.multiply(values, scale, out=blocks.reshape(-1)[: values.size], dtype=np.float64)
                terms = blocks * blocks if order == 2 else np.abs(blocks)
                lanes = np.zeros((len(blocks), LANES))
                for row in range(ROWS):
                    lanes += terms[:, row]
                while lanes.shape[1] > 1:
                    half = lanes.shape[1] // 2
                    lanes = lanes[:, :half] + lanes[:, half:]
                sums.append(lanes[:, 0])
        return np.concatenate(sums)

    def _accumulate(
        self, group: list[NDArray[np.uint8]], bits: int, table: NDArray[np.int64], total: Any
    ) -> None:
        for data in group:
            total += table[self._unpack(data, bits, total.size)].astype(total.dtype)

    def _rotate(self, flat: Flat, factor: float, blocks: Blocks, kind: Any) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = flat.piece(0, flat.size).astype(np.float64) * factor
            rotated = rotate(scaled.astype(kind), blocks)
        return check_finite_rotation(rotated, rotated.astype(np.float64))

    def _rotate_back(self, values: NDArray[Any], blocks: Blocks) -> None:
        values[:] = rotate_back(values, blocks)

    def words(self, state: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
        """Return ChaCha20 words, in numpy."""
        return stream_words(state, count)

    def _first_accepted(
        self, seeds: Any, words: Any, direction: FloatVector, edges: Any, limits: Any
    ) -> int:
        for i, word in enumerate(words):
            z = self.normals(seeds[2 * i : 2 * i + 2].tobytes(), direction.size)
            t = inner(direction, z)
            step = int(np.searchsorted(edges, t, side="right"))
            if word < limits[step]:
                return i
        return -1

    def _add_seeds(self, nonces: Any, seeds: Any, starts: Any, scale: float, total: Any) -> None:
        for nonce, seed in zip(nonces, seeds, strict=True):
            z = self.normals(seed.tobytes(), starts.size - 1)
            places = self.rows(nonce.tobytes(), starts.size - 1, total.size)
            # Strata are disjoint, so no row appears twice.
            total[places] += np.rint(z * scale).astype(np.int64)
