"""The CPU kernel: chunks that fit the caches, compiled passes, and the requested number of threads.

Idea     a thread processes its range in chunks of 131,072 coordinates: words are expanded into a small buffer, inputs
         are read once, packed bytes are written once, and nothing else grows with the update. A rotated update exists
         a chunk at a time: signs, factor, butterflies and sampling follow while the chunk is in the cache. Undecided
         coordinates are settled in batches by the exact law. Threads own ranges that begin at whole bytes, so they
         share nothing. Importing this module needs numba.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import Codes, FloatVector
from quietbit.errors import check_int
from quietbit.kernel import compiled_expand, compiled_sampling, compiled_transform
from quietbit.kernel.base import Job, Kernel, packed_size
from quietbit.kernel.expand import MAX_COUNT, ROWS_KEY, quantile_table, seed_state, whole_tiles
from quietbit.kernel.norm import BLOCK, Flat, exact_sum
from quietbit.kernel.rng import start_state
from quietbit.kernel.rounded import OFF, REACH, NoiseLaw, grid_of
from quietbit.kernel.sampler import level_knots
from quietbit.kernel.tables import UNDECIDED, cell_table, threshold_plan
from quietbit.kernel.transform import Blocks, check_finite_rotation, ending

__all__ = ["CpuKernel"]

CHUNK = 1 << 17  # coordinates sampled at once; also bounds the list of undecided ones
FILL = 1 << 19  # words expanded at once (1 MB): shorter runs of the cipher cost more in switching
NORM_CHUNK = 1 << 19
SETTLE = 4096  # undecided coordinates worth one call of the exact law
FEW = 1 << 18  # coordinates per thread below which starting a thread does not pay
NO_SUMS = np.empty(0)
ROTATED = 1 << 16  # coordinates rotated and sampled at once: 256 kB of float32
Bounds: TypeAlias = list[tuple[int, int]]


def _threads(value: int) -> int:
    return check_int(value, "threads", 1, 1024)


@final
@frozen
class CpuKernel(Kernel):
    """Sampling at memory speed with numba; `Kernel` documents the methods."""

    name: ClassVar[str] = "cpu"
    GROUP: ClassVar[int] = compiled_sampling.GROUP
    threads: int = field(default=1, converter=_threads)

    def _sample(self, job: Job) -> float:
        size, blocks = job.flat.size, job.blocks
        if blocks is not None and (blocks.block > ROTATED // 2 or size < 8 * blocks.block):
            return self._sample_copy(job, blocks)
        bounds, signs = _bounds(size, CHUNK if blocks is None else ROTATED), None
        if blocks is not None:
            signs = blocks.words()
            if size - bounds[-1][0] < blocks.block:  # the overlapping block lies in one chunk
                bounds[-2:] = [(bounds[-2][0], size)]
        sums: list[float] = []

        def task(first: int, last: int) -> None:
            sums.extend(_sample_chunks(job, signs, bounds[first:last]))

        self._spread(task, len(bounds), 1, max(1, min(self.threads, size // FEW)))
        return exact_sum(sums)

    def _block_sums(self, flat: Flat, order: int, scale: float) -> FloatVector:
        found = [NO_SUMS]
        for base, part in zip(flat.starts, flat.parts, strict=True):
            sums = np.empty(-(-part.size // BLOCK))

            def task(start: int, stop: int, base: int = base, sums: FloatVector = sums) -> None:
                for s, e in _bounds(stop, NORM_CHUNK, start):
                    target = sums[s // BLOCK : -(-e // BLOCK)]
                    compiled_sampling.block_sums(flat.piece(base + s, base + e), scale, order, target)

            self._spread(task, part.size, BLOCK)
            found.append(sums)
        return np.concatenate(found)

    def _pack(self, codes: Codes, bits: int) -> bytes:
        if bits > 8:
            return super()._pack(codes, bits)
        full = np.zeros(-(-codes.size // 8) * 8, dtype=np.uint8)
        full[: codes.size] = codes
        out = np.empty(full.size // 8 * bits, dtype=np.uint8)
        compiled_sampling.pack_bytes(full.view(np.uint64), bits, out)
        return out[: packed_size(bits, codes.size)].tobytes()

    def _unpack(self, data: NDArray[np.uint8], bits: int, dimension: int) -> Codes:
        if bits > 8:
            return super()._unpack(data, bits, dimension)
        words = -(-dimension // 8)
        if data.size < words * bits:
            data = np.concatenate([data, np.zeros(words * bits - data.size, np.uint8)])
        codes = np.empty(8 * words, dtype=np.uint8)
        compiled_sampling.unpack_bytes(data, bits, codes.view(np.uint64))
        return codes[:dimension]

    def _accumulate(self, group: list[NDArray[np.uint8]], bits: int, table: NDArray[np.int64], total: Any) -> None:
        """Count in the packed domain for one bit, by look-up for more bits."""
        kind = total.dtype.type
        base, step, values = kind(len(group) * table[0]), kind(table[1] - table[0]), table.astype(kind)

        def count(start: int, stop: int) -> None:
            rows = np.zeros((self.GROUP, CHUNK // 4), dtype=np.uint8)  # fifteen rows of 32 kB
            for s, e in _bounds(stop, 2 * CHUNK, start):
                used = slice(s // 8, -(-e // 8))
                for row, data in zip(rows, group, strict=False):
                    row[: used.stop - used.start] = data[used]
                compiled_sampling.count_group(rows.view(np.uint64), base, step, total[s:e])

        def look_up(start: int, stop: int) -> None:
            for s, e in _bounds(stop, CHUNK // 2, start):
                for data in group:
                    codes = self._unpack(data[s * bits // 8 : (e * bits + 7) // 8], bits, e - s)
                    compiled_sampling.add_lookup(codes, values, total[s:e])

        self._spread(count if bits == 1 else look_up, total.size, 512)

    def _rotate(self, flat: Flat, factor: float, blocks: Blocks, kind: Any) -> Any:
        """Scale and flip signs chunk by chunk, then transform."""
        (first, last), block = blocks.words(), blocks.block
        out = np.empty(blocks.size, dtype=kind)
        out[flat.size :] = 0.0
        self._flipped(flat, factor, first, out)
        sums = np.empty(-(-out.size // BLOCK)) if block == out.size else NO_SUMS
        self._transform(out[: blocks.whole], block, sums)
        if last is not None:
            self._flipped(Flat.of(out[-block:]), 1.0, last, out[-block:])
            self._transform(out[-block:], block)
        return check_finite_rotation(out, sums if sums.size else self._block_sums(Flat.of(out), 1, 1.0))

    def _rotate_back(self, values: NDArray[Any], blocks: Blocks) -> None:
        (first, last), block = blocks.words(), blocks.block
        if last is not None:
            self._transform(values[-block:], block)
            self._flipped(Flat.of(values[-block:]), 1.0, last, values[-block:])
        self._transform(values[: blocks.whole], block, sparse=True)  # a mean's few kept rows are public
        self._flipped(Flat.of(values), 1.0, first, values)

    def _flipped(self, flat: Flat, factor: float, words: NDArray[np.uint32], out: NDArray[Any]) -> None:
        """Write ``factor`` times the update, with its signs."""

        def task(start: int, stop: int) -> None:
            for s, e in _bounds(stop, CHUNK, start):
                compiled_transform.flip(flat.piece(s, e), factor, words[s // 32 : -(-e // 32)], out[s:e])

        self._spread(task, flat.size, 64)

    def _transform(self, x: NDArray[Any], block: int, sums: FloatVector = NO_SUMS, sparse: bool = False) -> None:
        """Transform every block of ``block`` numbers in ``x``; ``sums``: of squares, for a single block."""
        code, many = compiled_transform, 2 * x.size >= FEW
        (mode, scale), one = ending(block), x.dtype.type
        end, more = (mode, one(scale), sums), (0, one(1.0), sums)

        def late(values: NDArray[Any], half: int, most: int, inside: bool) -> None:
            """Run the stages from ``half`` to ``most``."""
            while half < most:
                rows = min(8, most // half)
                chunks = values.size // rows // BLOCK
                task = partial(code.late_stages, values, half, rows, ending=end if half * rows == block else more)
                self._spread(task, chunks, 1, 1 if inside else self.threads)
                half *= rows

        span = max(code.SPAN, min(block, BLOCK))

        def inside_spans(first: int, last: int) -> None:
            for at in range(first, last):
                part = x[at * span : (at + 1) * span]
                code.early_stages(part, min(block, BLOCK), end if block <= BLOCK else more, sparse)
                late(part, BLOCK, min(block, span), True)

        self._spread(inside_spans, -(-x.size // span), 1, self.threads if many else 1)
        late(x, span, block, False)

    def words(self, state: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
        """Expand sixteen blocks side by side."""
        out = np.empty(whole_tiles(count), np.uint64)
        compiled_expand.expand_words(state, out)
        return out[:count]

    def normals(self, seed: bytes, count: int) -> FloatVector:
        """Compute words and normals tile by tile."""
        size = check_int(count, "count", 0, MAX_COUNT)
        out = np.empty(whole_tiles(size))
        compiled_expand.expand_normals(seed_state(seed), quantile_table(), out)
        return out[:size]

    def _first_accepted(self, seeds: Any, words: Any, direction: FloatVector, edges: Any, limits: Any) -> int:
        padded = np.zeros(whole_tiles(direction.size))
        padded[: direction.size] = direction
        keys, state = seeds.view("<u4").reshape(-1, 4), start_state(bytes(16))
        return int(compiled_expand.first_accepted(keys, words, state, padded, edges, limits, quantile_table()))

    def _noise_steps(self, values: FloatVector, unit: float, law: NoiseLaw, words: NDArray[np.uint64]) -> Any:
        """Compute normals tile by tile, without temporary arrays."""
        near, sure = np.empty(values.size), np.empty(values.size, np.bool_)
        numbers = (unit, grid_of(unit), OFF, REACH)
        compiled_expand.noise_steps(values, words, numbers, law is NoiseLaw.NORMAL, quantile_table(), near, sure)
        return near, sure

    def _add_seeds(self, nonces: Any, seeds: Any, starts: Any, scale: float, total: Any) -> None:
        """Add tile by tile, so that the part of the total under a tile stays in the cache."""
        keys, tails, states = seeds.view("<u4"), nonces.view("<u4"), (start_state(ROWS_KEY), start_state(bytes(16)))
        compiled_expand.add_payloads(tails, keys, states, starts, scale, quantile_table(), total)

    def _spread(self, task: Callable[[int, int], None], size: int, multiple: int, most: int | None = None) -> None:
        """Run a task on ranges that start at multiples, one per thread if there is enough work."""
        workers = min(size, max(1, min(self.threads, size // FEW)) if most is None else most)
        if workers <= 1:
            task(0, size)
            return
        width = -(-size // (workers * multiple)) * multiple
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(task, *zip(*_bounds(size, width), strict=True)))


def _bounds(size: int, chunk: int, first: int = 0) -> Bounds:
    """Return the chunks of a range."""
    return [(start, min(size, start + chunk)) for start in range(first, size, chunk)]


def _rotated(job: Job, signs: Any, start: int, stop: int, room: NDArray[np.float32]) -> NDArray[Any]:
    """Scale and rotate a chunk in a private buffer; it begins at a block, and only the last may end elsewhere."""
    own, block = room[: stop - start], job.blocks.block  # type: ignore[union-attr]
    mode, scale = ending(block)
    end = (mode, np.float32(scale), NO_SUMS)
    compiled_transform.flip(job.flat.piece(start, stop), job.factor, signs[0][start // 32 : -(-stop // 32)], own)
    compiled_transform.early_stages(own[: own.size // block * block], block, end)
    if stop == job.flat.size and signs[1] is not None:
        compiled_transform.flip(own[-block:], 1.0, signs[1], own[-block:])
        compiled_transform.early_stages(own[-block:], block, end)
    return own


def _sample_chunks(job: Job, signs: Any, bounds: Bounds) -> list[float]:
    """Sample chunks, each starting at a multiple of eight; return each chunk's sum for a second look."""
    if not bounds:
        return []
    bits, most = job.sampler.bits, max(stop - start for start, stop in bounds)
    words, undecided = _buffers(min(bounds[-1][1] - bounds[0][0], FILL + most), most + SETTLE)
    read, begin = job.block.reader(bounds[0][0]), bounds[0][0]
    found, step, sums, filled = 0, _step(job), [], begin
    room = np.empty(0 if job.blocks is None else most, np.float32)
    for number, (start, stop) in enumerate(bounds):
        if stop > filled:
            begin, filled = start, max(stop, *(end for _, end in bounds[number:] if end - start <= FILL))
            read(words[: filled - begin])
        here = job.flat.piece(start, stop) if signs is None else _rotated(job, signs, start, stop, room)
        target = job.out[start * bits // 8 : (stop * bits + 7) // 8]
        found, looked = step(here, words[start - begin : stop - begin], target, start, undecided, found)
        sums.append(looked)
        if found >= SETTLE:
            _settle(job, undecided, found)
            found = 0
    _settle(job, undecided, found)
    return sums


_kept = threading.local()


def _buffers(words: int, room: int) -> tuple[NDArray[np.uint16], Any]:
    """Return this thread's buffers, kept between calls because fresh pages cost more than filling them."""
    sizes = getattr(_kept, "sizes", (-1, -1))
    if sizes[0] < words or sizes[1] < room:
        _kept.words = np.empty(words, np.uint16)
        _kept.undecided = (np.empty(room, np.int64), np.empty(room, np.uint16), np.empty(room, np.float64))
        _kept.sizes = (words, room)
    return _kept.words, _kept.undecided


def _step(job: Job) -> Callable[..., Any]:
    """Return the function that samples one chunk, by polynomial or by cells; a gain outside doubles decides nothing."""
    rate, sampler, order = job.gain.approximate(), job.sampler, job.order
    decidable = rate == 0.0 or 2.0**-900 < rate < 2.0**900
    plan = threshold_plan(sampler) if sampler.bits == 1 and decidable else None  # a second to fit eight bits
    if plan is not None and plan.lowered is not None:
        slope, offset, low = rate * plan.rate, plan.offset, 0.0
        if plan.centred:
            slope, offset, low = 2 * slope, 2 * offset - 1, -1.0
        falling = (*plan.coefficients[:0:-1, 0, 0], np.float32(plan.lowered + 0.5))
        rest = (np.float32(low), falling, np.uint16(plan.width))
        double, single = (slope, offset, *rest), (np.float32(slope), np.float32(offset), *rest)

        def by_polynomial(x: Any, *given: Any) -> Any:
            if x.dtype == np.float32 and 2.0**-100 < slope < 2.0**100:
                return compiled_sampling.sample_one_bit(single, order, x, *given)
            return compiled_sampling.sample_one_bit(double, order, x.astype(np.float64), *given)

        return by_polynomial
    cells = cell_table(sampler)
    half, lowest, highest, known = cells.half, cells.lowest, cells.highest, cells.code
    if not decidable:
        lowest, highest, known = np.zeros_like(known), np.ones_like(known), np.full_like(known, UNDECIDED)
        half = np.inf
    table = (np.float32(half), cells.start, cells.step, lowest, highest)
    law = (sampler.bits, (rate, *sampler.t_range, cells.inverse, cells.offset), table, known)
    return partial(compiled_sampling.sample_cells, law, order)


def _settle(job: Job, undecided: Any, found: int) -> None:
    if found == 0:
        return
    sampler, listed = job.sampler, tuple(array[:found] for array in undecided)
    tables = (sampler.base, sampler.base_tail, sampler.slope, sampler.slope_tail)
    law = (tuple(job.gain), sampler.t_range, level_knots(sampler.levels), tables)
    compiled_sampling.resolve(listed, job.block.ties(listed[0]), law, sampler.bits, job.out)
