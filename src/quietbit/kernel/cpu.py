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
from quietbit.kernel.c import Sampling, Undecided, address
from quietbit.kernel.cpu_plan import law_of, sampling_of
from quietbit.kernel.expand import TILE, seed_state, whole_tiles
from quietbit.kernel.norm import BLOCK, Flat, exact_sum
from quietbit.kernel.normals import MAX_COUNT, quantile_table
from quietbit.kernel.rounded import NoiseLaw, grid_of
from quietbit.kernel.transform import Blocks, check_finite_rotation

__all__ = ["CpuKernel"]

CHUNK = 1 << 17  # coordinates sampled at once; also bounds the list of undecided ones
NORM_CHUNK = 1 << 19
SETTLE = 4096  # undecided coordinates worth one call of the exact law
FEW = 1 << 18  # coordinates per thread below which starting a thread does not pay
NO_SUMS = np.empty(0)
Bounds: TypeAlias = list[tuple[int, int]]


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
        blocks = job.blocks
        least = 1
        if blocks is not None:
            if blocks.block > BLOCK:
                return self._sample_copy(job, blocks)
            least = blocks.block  # an overlapping last block must lie in one chunk
        how = sampling_of(job)
        starts = range(0, max(0, size - least) + 1, CHUNK)
        bounds = list(zip(starts, [*starts[1:], size], strict=True))
        if len(bounds) == 1:
            return _sample_chunks(job, how, bounds)[0]
        sums: list[float] = []

        def task(first: int, last: int) -> None:
            sums.extend(_sample_chunks(job, how, bounds[first:last]))

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
        self._spread(partial(native.library().qb_accumulate, *how), total.size, 512)

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
            self._sign(out[-block:], last)
            self._transform(out[-block:], block)
        if not sums.size:
            sums = self._block_sums(Flat.of(out), 1, 1.0)
        return check_finite_rotation(out, sums)

    def _rotate_back(self, values: NDArray[Any], blocks: Blocks) -> None:
        first, last = blocks.words()
        block = blocks.block
        if last is not None:
            self._transform(values[-block:], block)
            self._sign(values[-block:], last)
        # A mean has few rows that are not zero, and which they are is public.
        self._transform(values[: blocks.whole], block, sparse=True)
        self._sign(values, first)

    def _flip(
        self, flat: Flat, factor: float, words: NDArray[np.uint32], out: NDArray[Any]
    ) -> None:
        """Write ``factor`` times the update, with its signs."""
        flip = native.library().qb_flip
        signs = address(words)
        place = address(out)
        wide = out.itemsize == 8

        def task(start: int, stop: int) -> None:
            for first, last in _bounds(stop, CHUNK, start):
                piece = flat.piece(first, last)
                to = place + first * out.itemsize
                here = (address(piece), piece.itemsize == 8, last - first)
                flip(*here, factor, signs + first // 8, to, wide)

        self._spread(task, flat.size, 64)

    def _sign(self, values: NDArray[Any], words: NDArray[np.uint32]) -> None:
        """Change the signs of an array in place."""
        flip = native.library().qb_flip
        signs = address(words)
        place = address(values)
        wide = values.itemsize == 8

        def task(start: int, stop: int) -> None:
            here = place + start * values.itemsize
            flip(here, wide, stop - start, 1.0, signs + start // 8, here, wide)

        self._spread(task, values.size, 64)

    def _transform(
        self, x: NDArray[Any], block: int, sums: FloatVector = NO_SUMS, sparse: bool = False
    ) -> None:
        """Transform every block of ``block`` numbers in ``x``.

        ``sums`` receives sums of squares, for a single block; ``sparse`` skips blocks of zeros.
        """
        functions = native.library()
        values = (address(x), x.itemsize == 8, x.size, block)
        ends = (address(sums) if sums.size else None, sparse)
        threads = self.threads if 2 * x.size >= FEW else 1
        step = 0
        while parts := functions.qb_transform_parts(x.size, block, step):
            self._spread(partial(functions.qb_transform, *values, step, *ends), parts, 1, threads)
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


@final
class _Buffers(threading.local):
    """A thread's words and undecided coordinates; fresh pages would cost more than filling them."""

    def __init__(self) -> None:
        most = CHUNK + BLOCK
        self.words = np.empty(most, np.uint16)
        self.index = np.empty(most + SETTLE, np.int64)
        self.word = np.empty(most + SETTLE, np.uint16)
        self.value = np.empty(most + SETTLE, np.float64)
        self.undecided = Undecided(*map(address, (self.index, self.word, self.value)))


_buffers = _Buffers()


def _sample_chunks(job: Job, how: Sampling, bounds: Bounds) -> list[float]:
    """Sample chunks that start at multiples of 64; return each chunk's sum of |value|^order."""
    words = _buffers.words
    undecided = ctypes.byref(_buffers.undecided)
    end = bounds[-1][1]
    read = job.block.reader(bounds[0][0])
    out = address(job.out)
    total = ctypes.c_double()
    listed = 0
    sums = []
    for start, stop in bounds:
        read(words[: stop - start])
        piece = job.flat.piece(start, stop)
        listed = native.library().qb_sample(
            ctypes.byref(how),
            address(piece),
            piece.itemsize == 8,
            address(words),
            start,
            stop - start,
            out,
            undecided,
            listed,
            ctypes.byref(total),
        )
        sums.append(total.value)
        if listed >= SETTLE or (listed and stop == end):
            _settle(job, listed)
            listed = 0
    return sums


def _settle(job: Job, listed: int) -> None:
    """Overwrite the codes of undecided coordinates by those of the exact law."""
    ties = np.ascontiguousarray(job.block.ties(_buffers.index[:listed]), np.uint64)
    law = ctypes.byref(law_of(job))
    undecided = ctypes.byref(_buffers.undecided)
    native.library().qb_resolve(law, undecided, address(ties), listed, address(job.out))
