"""The CPU kernel: chunks that fit the caches, passes in C, and the requested number of threads.

Idea     a thread processes its range in chunks of 131,072 coordinates: words are expanded into a
         small buffer, inputs are read once, packed bytes are written once, and no memory grows with
         the update. A rotated update exists one block at a time: signs, factor, butterflies and
         sampling follow while the block is in the first-level cache. Undecided coordinates are
         settled in batches by the exact law. The ranges of threads begin at byte boundaries, so
         threads share nothing; the C library (`c/quietbit.h`) has no locks and no state.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import Codes, FloatVector
from quietbit.errors import check_int
from quietbit.kernel import c as native
from quietbit.kernel.base import Job, Kernel, packed_size
from quietbit.kernel.c import Cells, Ending, Law, Polynomial, Rotation, Undecided, address
from quietbit.kernel.expand import MAX_COUNT, TILE, quantile_table, seed_state, whole_tiles
from quietbit.kernel.norm import BLOCK, Flat, exact_sum
from quietbit.kernel.rounded import NoiseLaw, grid_of
from quietbit.kernel.sampler import Sampler, level_knots
from quietbit.kernel.tables import UNDECIDED, CellTable, Thresholds, cell_table, threshold_plan
from quietbit.kernel.transform import Blocks, check_finite_rotation, ending

__all__ = ["CpuKernel"]

CHUNK = 1 << 17  # coordinates sampled at once; also bounds the list of undecided ones
FILL = 1 << 19  # words expanded at once (1 MB): shorter runs of the cipher cost more in switching
NORM_CHUNK = 1 << 19
SETTLE = 4096  # undecided coordinates worth one call of the exact law
FEW = 1 << 18  # coordinates per thread below which starting a thread does not pay
SPAN = 1 << 18  # entries transformed before the next are touched: 1 MB of float32
NO_SUMS = np.empty(0)
Bounds: TypeAlias = list[tuple[int, int]]
# Those of complete blocks, and of an overlapping last one (`Blocks.words`).
Signs: TypeAlias = tuple[NDArray[np.uint32], NDArray[np.uint32] | None] | None


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
        size = job.flat.size
        plan = _plan(job)
        blocks = job.blocks
        signs: Signs = None
        bounds = _bounds(size, CHUNK)
        if blocks is not None:
            if blocks.block > BLOCK or not plan.reads_floats:
                return self._sample_copy(job, blocks)
            signs = blocks.words()
            # The overlapping last block must lie in one chunk.
            if size - bounds[-1][0] < blocks.block and len(bounds) > 1:
                bounds[-2:] = [(bounds[-2][0], size)]
        if len(bounds) == 1:
            return _sample_chunks(job, plan, signs, bounds)[0]
        sums: list[float] = []

        def task(first: int, last: int) -> None:
            sums.extend(_sample_chunks(job, plan, signs, bounds[first:last]))

        workers = max(1, min(self.threads, size // FEW))
        self._spread(task, len(bounds), 1, workers)
        return exact_sum(sums)

    def _block_sums(self, flat: Flat, order: int, scale: float) -> FloatVector:
        block_sums = native.library().qb_block_sums
        all_sums = [NO_SUMS]
        for base, part in zip(flat.starts, flat.parts, strict=True):
            sums = np.empty(-(-part.size // BLOCK))
            out = address(sums)

            def task(start: int, stop: int, base: int = base, out: int = out) -> None:
                for first, last in _bounds(stop, NORM_CHUNK, start):
                    piece = flat.piece(base + first, base + last)
                    block_sums(
                        address(piece),
                        piece.itemsize == 8,
                        last - first,
                        scale,
                        order,
                        out + 8 * (first // BLOCK),
                    )

            self._spread(task, part.size, BLOCK)
            all_sums.append(sums)
        if len(all_sums) == 2:
            return all_sums[1]
        return np.concatenate(all_sums)

    def _pack(self, codes: Codes, bits: int) -> bytes:
        if bits > 8:
            return super()._pack(codes, bits)
        groups = -(-codes.size // 8)
        full = np.zeros(8 * groups, dtype=np.uint8)
        full[: codes.size] = codes
        out = np.empty(groups * bits, dtype=np.uint8)
        native.library().qb_pack(address(full), groups, bits, address(out))
        return out[: packed_size(bits, codes.size)].tobytes()

    def _unpack(self, data: NDArray[np.uint8], bits: int, dimension: int) -> Codes:
        if bits > 8:
            return super()._unpack(data, bits, dimension)
        groups = -(-dimension // 8)
        missing = groups * bits - data.size
        if missing > 0:
            data = np.concatenate([data, np.zeros(missing, np.uint8)])
        codes = np.empty(8 * groups, dtype=np.uint8)
        native.library().qb_unpack(address(data), groups, bits, address(codes))
        return codes[:dimension]

    def _accumulate(
        self, group: list[NDArray[np.uint8]], bits: int, table: NDArray[np.int64], total: Any
    ) -> None:
        """Count ones in packed bytes for one bit; look up the table for more bits."""
        functions = native.library()
        place = address(total)
        values = address(table)
        size = len(group)
        itemsize = total.itemsize
        wide = itemsize == 8
        base = size * int(table[0])
        step = int(table[1]) - int(table[0])

        def count(start: int, stop: int) -> None:
            rows = (ctypes.c_void_p * size)(*(address(data) + start // 8 for data in group))
            out = place + start * itemsize
            functions.qb_count_ones(rows, size, base, step, out, wide, stop - start)

        def look_up(start: int, stop: int) -> None:
            for first, last in _bounds(stop, CHUNK // 2, start):
                out = place + first * itemsize
                packed = slice(first * bits // 8, (last * bits + 7) // 8)
                for data in group:
                    codes = self._unpack(data[packed], bits, last - first)
                    functions.qb_add_values(address(codes), bits, values, out, wide, last - first)

        self._spread(count if bits == 1 else look_up, total.size, 512)

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
        """Write ``factor`` times the update, with its signs."""

        def task(start: int, stop: int) -> None:
            for first, last in _bounds(stop, CHUNK, start):
                piece = flat.piece(first, last)
                _flip_piece(piece, factor, words[first // 32 :], out[first:last])

        self._spread(task, flat.size, 64)

    def _transform(
        self, x: NDArray[Any], block: int, sums: FloatVector = NO_SUMS, sparse: bool = False
    ) -> None:
        """Transform every block of ``block`` numbers in ``x``.

        ``sums`` receives sums of squares, for a single block; ``sparse`` skips blocks of zeros.
        """
        functions = native.library()
        wide = x.itemsize == 8
        mode, scale = ending(block)
        last = Ending(scale, address(sums) if sums.size else None, mode)
        more = Ending(1.0, None, 0)  # further stages follow

        def late_stages(values: NDArray[Any], half: int, most: int, threads: int) -> None:
            """Run the stages from ``half`` to ``most``."""
            place = address(values)
            while half < most:
                rows = min(8, most // half)
                end = ctypes.byref(last if half * rows == block else more)
                stages = partial(functions.qb_late_stages, place, wide, half, rows)

                def task(start: int, stop: int, stages: Any = stages, end: Any = end) -> None:
                    stages(start, stop, end)

                self._spread(task, values.size // rows // BLOCK, 1, threads)
                half *= rows

        tile = min(block, BLOCK)
        span = max(SPAN, tile)
        early_end = ctypes.byref(last if block <= BLOCK else more)

        def stages_of_spans(start: int, stop: int) -> None:
            for number in range(start, stop):
                part = x[number * span : (number + 1) * span]
                place = address(part)
                functions.qb_early_stages(place, wide, part.size, tile, early_end, sparse)
                late_stages(part, BLOCK, min(block, span), 1)

        threads = self.threads if 2 * x.size >= FEW else 1
        self._spread(stages_of_spans, -(-x.size // span), 1, threads)
        late_stages(x, span, block, self.threads)

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
        self, task: Callable[[int, int], None], size: int, multiple: int, most: int | None = None
    ) -> None:
        """Run a task on ranges that start at multiples, one per thread if there is enough work.

        Unless given, the most threads are those that have FEW numbers each.
        """
        if most is None:
            most = max(1, min(self.threads, size // FEW))
        workers = min(size, most)
        if workers <= 1:
            task(0, size)
            return
        width = -(-size // (workers * multiple)) * multiple
        bounds = _bounds(size, width)
        with ThreadPoolExecutor(workers) as pool:
            starts, stops = zip(*bounds, strict=True)
            list(pool.map(task, starts, stops))


@lru_cache(maxsize=1)
def _quantiles() -> tuple[int, Any]:
    """Return the address of the quantile table, and the table, which must outlive the address."""
    table = quantile_table()
    return address(table), table


def _bounds(size: int, chunk: int, first: int = 0) -> Bounds:
    """Return the chunks of a range."""
    return [(start, min(size, start + chunk)) for start in range(first, size, chunk)]


def _flip_piece(
    x: NDArray[Any], factor: float, words: NDArray[np.uint32], out: NDArray[Any]
) -> None:
    """Write ``factor * x`` with signs, 32 per word."""
    native.library().qb_flip(
        address(x), x.itemsize == 8, x.size, factor, address(words), address(out), out.itemsize == 8
    )


def _sample_chunks(job: Job, plan: _Plan, signs: Signs, bounds: Bounds) -> list[float]:
    """Sample chunks that start at multiples of 64; return each chunk's sum of |value|^order."""
    if not bounds:
        return []
    bits = job.sampler.bits
    largest = max(stop - start for start, stop in bounds)
    first = bounds[0][0]
    words, undecided = _buffers(min(bounds[-1][1] - first, FILL + largest), largest + SETTLE)
    read = job.block.reader(first)
    sample = plan.function
    how: tuple[Any, ...] = (ctypes.byref(plan.structure), job.order)
    rotation = None
    if signs is not None:
        rotation = _rotation(job)
        sample = native.library().qb_sample_rotated
        how = (ctypes.byref(rotation), *plan.both)
    out = address(job.out)
    looked = ctypes.c_double()
    listed = 0
    sums = []
    begin = first  # the buffer has the words of coordinates begin .. filled - 1
    filled = first
    for number, (start, stop) in enumerate(bounds):
        if stop > filled:
            begin = start
            filled = max(stop, *(end for _, end in bounds[number:] if end - start <= FILL))
            read(words[: filled - begin])
        piece = job.flat.piece(start, stop)
        if not plan.reads_floats and piece.itemsize == 4:
            piece = piece.astype(np.float64)
        if rotation is not None:
            _point_to(rotation, signs, start, stop == job.flat.size)
        listed = sample(
            *how,
            address(piece),
            piece.itemsize == 8,
            stop - start,
            undecided.words_place + 2 * (start - begin),
            out + start * bits // 8,
            start,
            ctypes.byref(undecided.structure),
            listed,
            ctypes.byref(looked),
        )
        sums.append(looked.value)
        if listed >= SETTLE:
            _settle(job, undecided, listed)
            listed = 0
    if listed:
        _settle(job, undecided, listed)
    return sums


def _rotation(job: Job) -> Rotation:
    """Return how C rotates a chunk, without the signs."""
    blocks = job.blocks
    mode, scale = ending(blocks.block)  # type: ignore[union-attr]
    return Rotation(job.factor, scale, None, None, blocks.block, mode)  # type: ignore[union-attr]


def _point_to(rotation: Rotation, signs: Any, start: int, is_last: bool) -> None:
    """Let C read the signs from coordinate ``start`` on, and at the end those of the last block."""
    first_signs, last_signs = signs
    rotation.signs = address(first_signs) + start // 8
    rotation.last_signs = None
    if is_last and last_signs is not None:
        rotation.last_signs = address(last_signs)


@final
class _UndecidedList:
    """Memory for undecided coordinates, as arrays and as C sees them; the address of the words."""

    __slots__ = ("index", "structure", "value", "word", "words_place")

    def __init__(self, room: int, words: NDArray[np.uint16]) -> None:
        self.words_place = address(words)
        self.index = np.empty(room, np.int64)
        self.word = np.empty(room, np.uint16)
        self.value = np.empty(room, np.float64)
        self.structure = Undecided(address(self.index), address(self.word), address(self.value))


_thread = threading.local()


def _buffers(words: int, room: int) -> tuple[NDArray[np.uint16], _UndecidedList]:
    """Return this thread's buffers, which are reused: fresh pages cost more than filling them."""
    sizes = getattr(_thread, "sizes", (-1, -1))
    if sizes[0] < words or sizes[1] < room:
        _thread.words = np.empty(words, np.uint16)
        _thread.undecided = _UndecidedList(room, _thread.words)
        _thread.sizes = (words, room)
    return _thread.words, _thread.undecided


@final
@frozen(eq=False)
class _Plan:
    """How C decides: its function, by a polynomial or by cells, and whether it reads float32."""

    function: Any
    structure: Polynomial | Cells
    reads_floats: bool

    @property
    def both(self) -> tuple[Any, Any]:
        """The polynomial and the cells as arguments, one of them null."""
        place = ctypes.byref(self.structure)
        return (place, None) if isinstance(self.structure, Polynomial) else (None, place)


def _plan(job: Job) -> _Plan:
    """Return how C decides.

    With a gain outside the range of doubles it leaves every coordinate undecided; with one outside
    that of float32 it must read doubles.
    """
    rate = job.gain.approximate()
    functions = native.library()
    decidable = rate == 0.0 or 2.0**-900 < rate < 2.0**900
    # With more than one bit a fit may take a second.
    if job.sampler.bits == 1 and decidable:
        plan = _polynomial(job.sampler, rate)
        if plan is not None:
            return _Plan(functions.qb_sample_one_bit, plan, 2.0**-100 < plan.gain < 2.0**100)
    return _Plan(functions.qb_sample_cells, _cells(job.sampler, rate, decidable), True)


def _polynomial(sampler: Sampler, rate: float) -> Polynomial | None:
    """Return the plan of one bit; None where rounding alone cannot decide it."""
    plan = threshold_plan(sampler)
    if plan.lowered is None:
        return None
    slope = rate * plan.rate
    offset = plan.offset
    low = 0.0
    if plan.centred:
        slope = 2 * slope
        offset = 2 * offset - 1
        low = -1.0
    falling = _falling_coefficients(plan)
    return Polynomial(slope, offset, low, falling, plan.coefficients.shape[0], plan.width)


@lru_cache(maxsize=32)
def _falling_coefficients(plan: Thresholds) -> Any:
    """Return the coefficients, highest power first; the constant is lowered, plus 1/2."""
    constant = np.float32(plan.lowered + 0.5)  # type: ignore[operator]
    falling = [*plan.coefficients[:0:-1, 0, 0].tolist(), float(constant)]
    return (ctypes.c_float * native.MAX_COEFFICIENTS)(*falling)


@lru_cache(maxsize=32)
def _undecided_table(sampler: Sampler) -> CellTable:
    """Return the cells with every word undecided, and no distance that decides."""
    cells = cell_table(sampler)
    return CellTable(
        inverse=cells.inverse,
        offset=cells.offset,
        half=np.inf,
        start=cells.start,
        step=cells.step,
        code=np.full_like(cells.code, UNDECIDED),
        lowest=np.zeros_like(cells.code),
        highest=np.ones_like(cells.code),
    )


def _cells(sampler: Sampler, rate: float, decidable: bool) -> Cells:
    """Return the plan of cells, with the table that its addresses point into."""
    table = cell_table(sampler) if decidable else _undecided_table(sampler)
    plan = Cells(
        rate,
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
    plan.table = table  # keeps the arrays alive, even when the cache evicts the table
    return plan


def _settle(job: Job, undecided: _UndecidedList, listed: int) -> None:
    """Overwrite the codes of undecided coordinates by those of the exact law."""
    ties = np.ascontiguousarray(job.block.ties(undecided.index[:listed]), np.uint64)
    law = Law.from_buffer_copy(_law(job.sampler)[0])
    law.gain = tuple(job.gain)
    native.library().qb_resolve(
        ctypes.byref(law),
        ctypes.byref(undecided.structure),
        address(ties),
        listed,
        address(job.out),
    )


@lru_cache(maxsize=32)
def _law(sampler: Sampler) -> tuple[Law, Any]:
    """Return the exact law as C sees it, without the gain, and the arrays that it points to."""
    tables = (sampler.base, sampler.base_tail, sampler.slope, sampler.slope_tail)
    arrays = [np.ascontiguousarray(array) for array in (*level_knots(sampler.levels), *tables)]
    places = [address(array) for array in arrays]
    no_gain = (0.0, 0.0, 1.0, 0.0)
    law = Law(no_gain, sampler.t_range, *places, sampler.levels, sampler.bits)
    return law, arrays
