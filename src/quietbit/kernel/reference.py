"""The reference kernel: slow, obviously right, numpy in double precision.

Idea     evaluate the law of every coordinate as `law.py` writes it, compare with all 64 bits of its word,
         pack bit by bit. The other kernels are tested against this one and call its law for the coordinates
         they cannot decide.
Symbols  as in `sampler.py` and `base.py`.
Source   Guo et al. (ICML 2023), section "Interpolated MVU mechanism".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import Codes, FloatMatrix, FloatVector
from quietbit.errors import InvalidParameter, check_int, check_real
from quietbit.kernel import law
from quietbit.kernel.base import (
    ByteBuffer,
    Kernel,
    Order,
    Update,
    check_codes,
    check_in_place,
    check_output,
    check_packed,
    check_table,
    code_type,
)
from quietbit.kernel.chunks import Flat
from quietbit.kernel.expand import add_seeds, check_seeds, first_accepted, strata, stream_words
from quietbit.kernel.norm import BLOCK, LANES, ROWS, joint_norm, padded_blocks
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.sampler import Sampler, level_knots
from quietbit.kernel.transform import (
    BlockSigns,
    block_rotate,
    block_rotate_back,
    check_finite_rotation,
    hadamard,
    padded_size,
    signs,
)

__all__ = ["ReferenceKernel", "cumulative", "exact_codes", "thresholds"]

CHUNK = 1 << 15  # coordinates at a time: memory, not meaning
TIE_MASK = np.uint64(2**48 - 1)


def cumulative(sampler: Sampler, t: FloatVector, t_low: FloatVector) -> FloatMatrix:
    """F_0 .. F_{B-2} at each t (a pair, already clamped): one row per t."""
    segment = _segment(sampler, t, t_low)
    table = (sampler.base, sampler.base_tail, sampler.slope, sampler.slope_tail)
    base, base_tail, slope, slope_tail = (values[segment] for values in table)
    total, tail = law.log_weight(base, base_tail, slope, slope_tail, t[:, None], t_low[:, None])
    peak = total.max(axis=1, keepdims=True)
    difference, lost = law.two_sum(total, -peak)
    difference = np.maximum(difference, law.FLOOR)
    exponent, remainder = law.reduce_exponent(difference, tail + lost)
    power = law.POWERS[exponent.astype(np.int64) + law.POWER_OFFSET]
    sums = law.exponential(remainder) * power
    half = 1
    while half < sampler.symbols:  # Sklansky's order: the last sum of a left half joins its right half
        view = sums.reshape(t.size, sampler.symbols // (2 * half), 2, half)
        view[:, :, 1, :] += view[:, :, 0, -1:]
        half *= 2
    result: FloatMatrix = sums[:, :-1] / sums[:, -1:]
    return result


def _segment(sampler: Sampler, t: FloatVector, t_low: FloatVector) -> NDArray[np.int64]:
    """The segment whose ends enclose t, comparing pairs; the outer segments go on for ever."""
    last = sampler.levels - 2
    if last == 0:
        return np.zeros(t.size, dtype=np.int64)
    knots, tails = level_knots(sampler.levels)
    index = np.clip(np.floor((t + 0.5) * (sampler.levels - 1)).astype(np.int64), 0, last)
    below = ((t - knots[index]) + (t_low - tails[index])) < 0
    above = ((t - knots[index + 1]) + (t_low - tails[index + 1])) >= 0
    return np.clip(index - below + above, 0, last)


def position(sampler: Sampler, values: NDArray[Any], factor: float) -> tuple[FloatVector, FloatVector]:
    """T = factor * scale * value as a clamped pair."""
    gain = law.Gain.of(factor, sampler.scale)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scaled = values.astype(np.float64) * gain.first * gain.second
        scaled = np.where(scaled > -law.CEILING, scaled, -law.CEILING)
        scaled = np.where(scaled < law.CEILING, scaled, law.CEILING)
        t, t_low = law.shift(scaled, gain.high, gain.low)
    low, high = sampler.t_range
    below, above = ((t - low) + t_low) < 0, ((t - high) + t_low) > 0
    inside = np.where(below, low, np.where(above, high, t))
    return inside, np.where(below | above, 0.0, t_low)


def thresholds(sampler: Sampler, values: NDArray[Any], factor: float) -> tuple[Any, Any]:
    """floor(2^64 F_k) per value, split into the upper 16 bits (0 .. 65536) and the lower 48."""
    with np.errstate(under="ignore"):
        scaled = cumulative(sampler, *position(sampler, values, factor)) * 65536.0
        upper = np.floor(scaled)
        lower = np.floor((scaled - upper) * 2.0**48)
    return upper.astype(np.int64), lower.astype(np.int64)


def exact_codes(
    sampler: Sampler, values: NDArray[Any], factor: float, primary: NDArray[np.uint16], ties: NDArray[np.uint64]
) -> Codes:
    """The code of every value: how many thresholds its 64-bit word reaches."""
    upper, lower = thresholds(sampler, values, factor)
    first = primary.astype(np.int64)[:, None]
    second = (ties & TIE_MASK).astype(np.int64)[:, None]
    reached = (first > upper) | ((first == upper) & (second >= lower))
    codes: Codes = reached.sum(axis=1).astype(np.uint8)
    return codes


def check_finite(flat: Flat) -> None:
    """Refuse an update with a NaN or infinite entry."""
    for start in range(0, flat.size, CHUNK):
        if not np.all(np.isfinite(flat.piece(start, min(flat.size, start + CHUNK)))):
            raise InvalidParameter("update must be finite everywhere, got a NaN or infinite entry.")


def check_factor(factor: float) -> float:
    """A clip factor: from 0 (an update too long for any double) to 1."""
    return 0.0 if factor == 0 else check_real(factor, "factor", at_most=1.0)


@final
class ReferenceKernel(Kernel):
    """The kernel without tricks; see `Kernel` for what each method promises."""

    name = "reference"

    def sample(
        self, sampler: Sampler, inputs: Update, rng: RandomBits, *, factor: float = 1.0, verified: bool = False
    ) -> Codes:
        """One code per coordinate."""
        flat, factor = Flat.of(inputs), check_factor(factor)
        if not verified:
            check_finite(flat)
        block = rng.draw(flat.size)
        codes = np.empty(flat.size, dtype=np.uint8)
        for start in range(0, flat.size, CHUNK):
            stop = min(flat.size, start + CHUNK)
            primary = block.primary(start, stop - start)
            ties = block.ties(np.arange(start, stop))
            codes[start:stop] = exact_codes(sampler, flat.piece(start, stop), factor, primary, ties)
        return codes.reshape(flat.shape)

    def sample_packed(
        self,
        sampler: Sampler,
        inputs: Update,
        rng: RandomBits,
        out: NDArray[np.uint8],
        *,
        factor: float = 1.0,
        verified: bool = False,
    ) -> None:
        """One code per coordinate, packed."""
        check_output(out, sampler.bits, Flat.of(inputs).size)
        codes = self.sample(sampler, inputs, rng, factor=factor, verified=verified)
        out[:] = np.frombuffer(self.pack(codes, sampler.bits), dtype=np.uint8)

    def pack(self, codes: Codes, bits: int) -> bytes:
        """Write every code's bits, least significant first, one after the other."""
        flat = check_codes(codes, bits)
        lifted = (flat[:, None] >> np.arange(bits, dtype=flat.dtype)) & flat.dtype.type(1)
        return np.packbits(lifted.astype(np.uint8).reshape(-1), bitorder="little").tobytes()

    def unpack(self, data: ByteBuffer, bits: int, dimension: int) -> Codes:
        """Read them back."""
        flat = check_packed(data, bits, dimension)
        lifted = np.unpackbits(flat, bitorder="little")[: bits * dimension].reshape(dimension, bits)
        weights = (1 << np.arange(bits)).astype(np.uint32)
        codes: Codes = (lifted * weights).sum(axis=1, dtype=np.uint32).astype(code_type(bits))
        return codes

    def norm(self, inputs: Update, order: Order) -> float:
        """The norm, in the fixed order of `norm.py`."""
        return joint_norm(Flat.of(inputs), order, _block_sums, _largest)

    def accumulate(
        self,
        payloads: Iterable[ByteBuffer],
        bits: int,
        table: NDArray[np.int64],
        total: NDArray[np.int64] | NDArray[np.int32],
    ) -> int:
        """Unpack, look up, add; one payload at a time."""
        values = check_table(table, bits, total)
        added = 0
        for payload in payloads:
            total += values[self.unpack(payload, bits, total.size)].astype(total.dtype)
            added += 1
        return added

    def hadamard(self, values: Any) -> Any:
        """Transform stage by stage."""
        check_in_place(values)
        values[:] = hadamard(values)
        return values

    def rotate(self, inputs: Update, seed: int, *, factor: float = 1.0, kind: Any = np.float32) -> Any:
        """Scale, flip, pad and transform the whole update."""
        flat = Flat.of(inputs)
        out = self._scaled(flat, factor, kind, padded_size(flat.size))
        out[: flat.size] *= signs(out.size, seed)[: flat.size].astype(kind)
        with np.errstate(over="ignore", invalid="ignore"):
            rotated = hadamard(out)
        return check_finite_rotation(rotated, rotated.astype(np.float64))

    def rotate_back(self, values: Any, seed: int) -> Any:
        """Transform, then flip."""
        self.hadamard(values)
        values *= signs(values.size, seed).astype(values.dtype)
        return values

    def block_rotate(
        self, inputs: Update, seed: int, block: int, *, factor: float = 1.0, kind: Any = np.float32
    ) -> Any:
        """Scale, then block after block."""
        flat = Flat.of(inputs)
        chosen, own = BlockSigns.of(flat.size, block, seed), self._scaled(flat, factor, kind, flat.size)
        with np.errstate(over="ignore", invalid="ignore"):
            rotated = block_rotate(own, chosen)
        return check_finite_rotation(rotated, rotated.astype(np.float64))

    def block_rotate_back(self, values: Any, seed: int, block: int) -> Any:
        """The transposes in reverse order."""
        return block_rotate_back(values, BlockSigns.of(values.size, block, seed))

    def _scaled(self, flat: Flat, factor: float, kind: Any, size: int) -> NDArray[Any]:
        """The update times the factor in an array of its own, zeros at its end."""
        out = np.zeros(size, dtype=kind)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = flat.piece(0, flat.size).astype(np.float64) * check_factor(factor)
            out[: flat.size] = scaled
        return out

    def words(self, state: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
        """ChaCha20 in numpy."""
        return stream_words(state, count)

    def first_accepted(
        self,
        seeds: NDArray[np.uint64],
        words: NDArray[np.uint64],
        direction: FloatVector,
        edges: FloatVector,
        limits: NDArray[np.uint64],
    ) -> int:
        """Expand one seed after the other."""
        return first_accepted(seeds, words, direction, edges, limits)

    def add_seeds(
        self, nonces: Any, seeds: Any, total: Any, *, count: int, shift: int, weights: Any | None = None
    ) -> None:
        """Expand and add one payload after the other."""
        payloads = check_seeds(nonces, seeds, weights, total)
        each = np.ones(payloads, np.int64) if weights is None else weights
        scale = math.ldexp(1.0, check_int(shift, "shift", 0, 48))
        add_seeds(nonces, seeds, each, strata(count, total.size), scale, total)


def _block_sums(flat: Flat, order: int, scale: float) -> FloatVector:
    sums = []
    for base, part in zip(flat.starts, flat.parts, strict=True):
        for start in range(0, part.size, 8 * BLOCK):
            stop = min(part.size, start + 8 * BLOCK)
            blocks = padded_blocks(flat.piece(base + start, base + stop), scale)
            terms = blocks * blocks if order == 2 else np.abs(blocks)
            lanes = np.zeros((len(blocks), LANES))
            for row in range(ROWS):
                lanes += terms[:, row]
            while lanes.shape[1] > 1:
                half = lanes.shape[1] // 2
                lanes = lanes[:, :half] + lanes[:, half:]
            sums.append(lanes[:, 0])
    return np.concatenate(sums) if sums else np.empty(0)


def _largest(flat: Flat) -> float:
    """The largest absolute value; NaN if there is one."""
    peak = 0.0
    for start in range(0, flat.size, CHUNK):
        found = float(np.max(np.abs(flat.piece(start, min(flat.size, start + CHUNK)))))
        if math.isnan(found):
            return found
        peak = max(peak, found)
    return peak
