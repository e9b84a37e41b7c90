"""The CPU kernel: passes in C over the caller's buffers, on the requested number of threads.

Idea     two passes over an update, one for its norm and one that makes random words, rotates,
         samples, settles and packs, each a single call per thread (`c/quietbit.h`). C works in
         tiles of 4,096 coordinates that stay in the first-level cache, and neither allocates nor
         keeps anything, so no memory grows with the update. The ranges of threads begin at byte
         boundaries, so threads share nothing.
Codes    one bit is decided by a polynomial where one is good enough, more bits by lines on cells
         (`tables.py`); a gain that no plan can hold leaves every coordinate to the exact law. What
         depends on the sampler alone is made once, and a release copies it with its gain.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, ClassVar, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import Codes, FloatVector
from quietbit.errors import check_int
from quietbit.kernel import c as native
from quietbit.kernel.base import Job, Kernel, packed_size
from quietbit.kernel.c import (
    MAX_COEFFICIENTS,
    Cells,
    Law,
    Part,
    Polynomial,
    Random,
    Rotation,
    Sampling,
    Update,
    address,
)
from quietbit.kernel.expand import TILE, seed_state, whole_tiles
from quietbit.kernel.norm import BLOCK, KINDS, Flat, exact_sum
from quietbit.kernel.normals import MAX_COUNT, quantile_table
from quietbit.kernel.rng import PRIMARY, TIES, ChaChaBlock, PhiloxBlock, WordBlock
from quietbit.kernel.rounded import NoiseLaw, grid_of
from quietbit.kernel.sampler import Sampler, level_knots
from quietbit.kernel.tables import cell_table, threshold_plan
from quietbit.kernel.transform import Blocks, check_finite_rotation

__all__ = ["CpuKernel"]

FEW = 1 << 18  # coordinates per thread below which starting a thread does not pay
NO_SUMS = np.empty(0)


def _threads(value: int) -> int:
    return check_int(value, "threads", 1, 1024)


@final
@frozen
class CpuKernel(Kernel):
    """Sampling at memory speed in C; `Kernel` documents the methods."""

    name: ClassVar[str] = "cpu"
    GROUP: ClassVar[int] = 15
    threads: int = field(default=1, converter=_threads)

    def _sample(self, job: Job) -> float:
        if job.blocks is not None and job.blocks.block > BLOCK:
            return self._sample_copy(job, job.blocks)
        size = job.flat.size
        how = _sampling_of(job)
        update = _update_of(job.flat)
        sample = partial(native.library().qb_sample, ctypes.byref(how), ctypes.byref(update))
        out = address(job.out)
        # The last tile is longer, as an overlapping block joins the one before it.
        tiles = max(1, size // BLOCK)
        sums: list[float] = []

        def task(first: int, last: int) -> None:
            stop = size if last == tiles else last * BLOCK
            sums.append(sample(out, first * BLOCK, stop))

        self._spread(task, tiles, size)
        return exact_sum(sums)

    def _block_sums(self, flat: Flat, order: int, scale: float) -> FloatVector:
        update = _update_of(flat)
        sums = np.empty(update.blocks)
        block_sums = native.library().qb_block_sums
        task = partial(block_sums, ctypes.byref(update), scale, order, address(sums))
        self._spread(task, sums.size, flat.size)
        return sums

    def _pack(self, codes: Codes, bits: int) -> bytes:
        if bits > 8:
            return super()._pack(codes, bits)
        out = np.empty(packed_size(bits, codes.size), dtype=np.uint8)
        native.library().qb_pack(address(codes), codes.size, bits, address(out))
        return out.tobytes()

    def _unpack(self, data: NDArray[np.uint8], bits: int, dimension: int) -> Codes:
        if bits > 8:
            return super()._unpack(data, bits, dimension)
        codes = np.empty(dimension, dtype=np.uint8)
        native.library().qb_unpack(address(data), dimension, bits, address(codes))
        return codes

    def _accumulate(
        self, group: list[NDArray[np.uint8]], bits: int, table: NDArray[np.int64], total: Any
    ) -> None:
        size = len(group)
        rows = (ctypes.c_void_p * size)(*map(address, group))
        how = (rows, size, bits, address(table), address(total), total.itemsize == 8)
        self._spread(partial(native.library().qb_accumulate, *how), total.size, total.size, 512)

    def _rotate(self, flat: Flat, factor: float, blocks: Blocks, kind: Any) -> Any:
        """Scale and flip signs in chunks, then transform."""
        first, last = blocks.words()
        block = blocks.block
        out = np.empty(blocks.size, dtype=kind)
        out[flat.size :] = 0.0
        self._flip(flat, factor, first, out)
        sums = np.empty(-(-out.size // BLOCK)) if block == out.size else NO_SUMS
        self._transform(out[: blocks.whole], block, sums)
        if last is not None:
            self._flip(Flat.of(out[-block:]), 1.0, last, out[-block:])
            self._transform(out[-block:], block)
        if not sums.size:
            sums = self._block_sums(Flat.of(out), 1, 1.0)
        return check_finite_rotation(out, sums)

    def _rotate_back(self, values: NDArray[Any], blocks: Blocks) -> None:
        first, last = blocks.words()
        block = blocks.block
        if last is not None:
            self._transform(values[-block:], block)
            self._flip(Flat.of(values[-block:]), 1.0, last, values[-block:])
        # A mean has few rows that are not zero, and which they are is public.
        self._transform(values[: blocks.whole], block, sparse=True)
        self._flip(Flat.of(values), 1.0, first, values)

    def _flip(
        self, flat: Flat, factor: float, words: NDArray[np.uint32], out: NDArray[Any]
    ) -> None:
        """Write ``factor`` times the update, with its signs; ``out`` may be the update."""
        update = ctypes.byref(_update_of(flat))
        target = (address(words), address(out), out.itemsize == 8)
        task = partial(native.library().qb_flip, update, factor, *target)
        self._spread(task, flat.size, flat.size, 64)

    def _transform(
        self, x: NDArray[Any], block: int, sums: FloatVector = NO_SUMS, sparse: bool = False
    ) -> None:
        """Transform every block of ``block`` numbers in ``x``.

        ``sums`` receives sums of squares, for a single block; ``sparse`` skips blocks of zeros.
        """
        functions = native.library()
        values = (address(x), x.itemsize == 8, x.size, block)
        ends = (address(sums) if sums.size else None, sparse)
        step = 0
        while parts := functions.qb_transform_parts(x.size, block, step):
            task = partial(functions.qb_transform, *values, step, *ends)
            self._spread(task, parts, 2 * x.size)
            step += 1

    def words(self, state: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
        """Return ChaCha20 words, sixteen blocks at a time."""
        out = np.empty(whole_tiles(count), np.uint64)
        start = np.ascontiguousarray(state, np.uint32)
        native.library().qb_expand_words(address(start), out.size // TILE, address(out))
        return out[:count]

    def normals(self, seed: bytes, count: int) -> FloatVector:
        """Compute words and normals tile by tile."""
        size = check_int(count, "count", 0, MAX_COUNT)
        out = np.empty(whole_tiles(size))
        state = seed_state(seed)
        tiles = out.size // TILE
        quantiles = _quantiles()[0]
        native.library().qb_expand_normals(address(state), quantiles, tiles, address(out))
        return out[:size]

    def _first_accepted(
        self, seeds: Any, words: Any, direction: FloatVector, edges: Any, limits: Any
    ) -> int:
        padded = np.zeros(whole_tiles(direction.size))
        padded[: direction.size] = direction
        seeds = np.ascontiguousarray(seeds)
        words = np.ascontiguousarray(words)
        edges = np.ascontiguousarray(edges)
        limits = np.ascontiguousarray(limits)
        accepted: int = native.library().qb_first_accepted(
            address(seeds),
            address(words),
            words.size,
            address(padded),
            padded.size // TILE,
            address(edges),
            edges.size,
            address(limits),
            _quantiles()[0],
        )
        return accepted

    def _noise_steps(
        self, values: FloatVector, unit: float, law: NoiseLaw, words: NDArray[np.uint64]
    ) -> Any:
        """Compute noise tile by tile, without temporary arrays."""
        inputs = np.ascontiguousarray(values, np.float64)
        words = np.ascontiguousarray(words, np.uint64)
        steps = np.empty(inputs.size)
        certain = np.empty(inputs.size, np.bool_)
        native.library().qb_noise_steps(
            address(inputs),
            address(words),
            inputs.size,
            unit,
            grid_of(unit),
            law is NoiseLaw.NORMAL,
            _quantiles()[0],
            address(steps),
            address(certain),
        )
        return steps, certain

    def _add_seeds(self, nonces: Any, seeds: Any, starts: Any, scale: float, total: Any) -> None:
        """Add tile by tile, so that the part of the total under a tile stays in the cache."""
        native.library().qb_add_seeds(
            address(nonces),
            address(seeds),
            len(seeds),
            address(starts),
            starts.size - 1,
            scale,
            _quantiles()[0],
            address(total),
        )

    def _spread(
        self, task: Callable[[int, int], None], count: int, work: int, multiple: int = 1
    ) -> None:
        """Run a task on ranges of ``0 .. count - 1`` that begin at multiples, one per thread.

        There are as many as have FEW of the ``work`` numbers each.
        """
        workers = min(count, self.threads, work // FEW)
        if workers <= 1:
            task(0, count)
            return
        width = -(-count // (workers * multiple)) * multiple
        starts = range(0, count, width)
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(task, starts, [*starts[1:], count]))


@lru_cache(maxsize=1)
def _quantiles() -> tuple[int, Any]:
    """Return the address of the quantile table, and the table, which must outlive the address."""
    table = quantile_table()
    return address(table), table


def _update_of(flat: Flat) -> Update:
    """Return an update for C, valid as long as its arrays live, and its number of ``blocks``."""
    parts = []
    block = 0
    for start, part in zip(flat.starts, flat.parts, strict=True):
        parts.append(Part(address(part), start, part.size, block, KINDS[part.dtype]))
        block += -(-part.size // BLOCK)
    update = Update((Part * len(parts))(*parts), len(parts), flat.size)
    update.blocks = block
    return update


def _sampling_of(job: Job) -> Sampling:
    """Return how the update of a job is sampled; addresses in it stay valid as long as it lives."""
    sampler = job.sampler
    rate = job.gain.approximate()
    how = Sampling(bits=sampler.bits, order=job.order)
    how.law = ctypes.pointer(_with_gain(_law(sampler), tuple(job.gain)))
    how.random = ctypes.pointer(_random(job.block, job.flat.size))
    polynomial = None
    if sampler.bits == 1:  # with more bits a fit may take a second
        polynomial = _polynomial(sampler)
    # Polynomials compute in float32, cells in doubles.
    if polynomial is not None and 2.0**-100 < rate * polynomial.gain < 2.0**100:
        how.polynomial = ctypes.pointer(_with_gain(polynomial, rate * polynomial.gain))
    elif rate == 0.0 or 2.0**-900 < rate < 2.0**900:
        how.cells = ctypes.pointer(_with_gain(_cells(sampler), rate))
    if job.blocks is not None:
        how.rotation = ctypes.pointer(_rotation(job.blocks, job.factor))
    return how


def _with_gain(plan: Any, gain: Any) -> Any:
    """Return a copy with this gain, which keeps alive what it points to."""
    copy = type(plan).from_buffer_copy(plan)
    copy.gain = gain
    copy.original = plan
    return copy


def _rotation(blocks: Blocks, factor: float) -> Rotation:
    signs, last_signs = blocks.words()
    last = None if last_signs is None else address(last_signs)
    rotation = Rotation(factor, address(signs), last, blocks.size, blocks.block)
    rotation.signs_kept = (signs, last_signs)
    return rotation


def _random(block: WordBlock, size: int) -> Random:
    """Return a release's words: a key, or for blocks of another kind all words."""
    if isinstance(block, ChaChaBlock):
        return Random(key=block.key)
    if isinstance(block, PhiloxBlock):
        primary = tuple(block.key(PRIMARY).tolist())
        ties = tuple(block.key(TIES).tolist())
        return Random(seeded=primary, seeded_ties=ties, is_seeded=1)
    words = np.ascontiguousarray(block.primary(0, size), np.uint16)
    tie_words = np.ascontiguousarray(block.ties(np.arange(size)), np.uint64)
    random = Random(address(words), address(tie_words))
    random.kept = (words, tie_words)
    return random


@lru_cache(maxsize=32)
def _polynomial(sampler: Sampler) -> Polynomial | None:
    """Return the plan of one bit and a gain of 1; None where rounding alone cannot decide it."""
    plan = threshold_plan(sampler)
    if plan.lowered is None:
        return None
    gain = plan.rate
    shift = plan.offset
    low = 0.0
    if plan.centred:
        gain = 2 * gain
        shift = 2 * shift - 1
        low = -1.0
    # Highest power first; the constant is lowered, plus 1/2.
    constant = float(np.float32(plan.lowered + 0.5))
    falling = (*plan.coefficients[:0:-1, 0, 0].tolist(), constant)
    coefficients = (ctypes.c_float * MAX_COEFFICIENTS)(*falling)
    return Polynomial(gain, shift, low, coefficients, len(falling), plan.width)


@lru_cache(maxsize=32)
def _cells(sampler: Sampler) -> Cells:
    """Return the plan of cells, with a gain of 1."""
    table = cell_table(sampler)
    plan = Cells(
        1.0,
        *sampler.t_range,
        table.inverse,
        table.offset,
        address(table.start),
        address(table.step),
        address(table.lowest),
        address(table.highest),
        address(table.code),
        table.half,
        len(table.code),
        sampler.bits,
    )
    plan.table = table  # keeps the arrays alive
    return plan


@lru_cache(maxsize=32)
def _law(sampler: Sampler) -> Law:
    """Return the exact law, with a gain of 1."""
    tables = (sampler.base, sampler.base_tail, sampler.slope, sampler.slope_tail)
    arrays = [np.ascontiguousarray(array) for array in (*level_knots(sampler.levels), *tables)]
    places = [address(array) for array in arrays]
    law = Law((1.0, 1.0, 1.0, 0.0), sampler.t_range, *places, sampler.levels, sampler.bits)
    law.arrays = arrays
    return law
