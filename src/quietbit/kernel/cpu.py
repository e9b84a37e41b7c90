"""The CPU kernel: chunks that fit the caches, compiled passes, as many threads as the caller says.

Idea     a thread walks through its range in chunks of 131,072 coordinates: words are expanded into a small
         buffer, inputs are read once, packed bytes are written once, and nothing else grows with the update.
         Clipping reads the update once before; `norm.py` says how the sampling pass makes sure that what it
         samples is still inside the ball.
         Undecided coordinates are settled in batches by the exact law. Threads own ranges that begin at
         whole bytes, so they share nothing.
Symbols  as in `base.py` and `tables.py`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from types import SimpleNamespace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import Codes, FloatVector
from quietbit.errors import InvalidParameter, check_int, require_module
from quietbit.kernel.base import (
    ByteBuffer,
    Order,
    Update,
    check_codes,
    check_output,
    check_packed,
    check_table,
    code_type,
    packed_size,
)
from quietbit.kernel.chunks import Flat
from quietbit.kernel.law import Gain
from quietbit.kernel.norm import BLOCK, Clip, joint_norm
from quietbit.kernel.reference import check_factor
from quietbit.kernel.rng import RandomBits, WordBlock
from quietbit.kernel.sampler import Sampler, level_knots
from quietbit.kernel.tables import cell_table, odd_polynomial

__all__ = ["CpuKernel"]

CHUNK = 1 << 17  # coordinates sampled at once; also bounds the list of undecided ones
FILL = 1 << 19  # words expanded at once (1 MB): shorter runs of the cipher cost more in switching
NORM_CHUNK = 1 << 19
SETTLE = 4096  # undecided coordinates worth one call of the exact law
FEW = 1 << 18  # coordinates per thread below which starting a thread does not pay
MAX_THREADS = 1024
NO_LOOK = 0  # in the place of the order of a norm
Task = Callable[[int, int], None]
Step = Callable[..., tuple[int, float]]


@lru_cache(maxsize=1)
def _machine_code() -> SimpleNamespace:
    require_module("numba", "cpu")
    from quietbit.kernel import compiled_bits, compiled_sampling

    return SimpleNamespace(**vars(compiled_bits) | vars(compiled_sampling))


@final
@dataclass(frozen=True, slots=True)
class CpuKernel:
    """Sampling at line rate with numba; see `Kernel` for what each method promises."""

    threads: int = 1

    def __post_init__(self) -> None:
        """Refuse a number of threads that is none, and a machine without numba."""
        object.__setattr__(self, "threads", check_int(self.threads, "threads", 1, MAX_THREADS))
        _machine_code()

    @property
    def name(self) -> str:
        """The name `select` knows this kernel by."""
        return "cpu"

    def sample(
        self,
        sampler: Sampler,
        inputs: Update,
        rng: RandomBits,
        *,
        factor: float = 1.0,
        verified: bool = False,
    ) -> Codes:
        """One code per coordinate: packed, then unpacked."""
        flat = Flat.of(inputs)
        out = np.empty(packed_size(sampler.bits, flat.size), dtype=np.uint8)
        self.sample_packed(sampler, inputs, rng, out, factor=factor, verified=verified)
        return self.unpack(out, sampler.bits, flat.size).reshape(flat.shape)

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
        """One code per coordinate, packed straight from the inputs."""
        flat, gain = Flat.of(inputs), Gain.of(check_factor(factor), sampler.scale)
        check_output(out, sampler.bits, flat.size)
        if not verified:
            self._check_finite(flat)
        self._sample(sampler, gain, flat, rng.draw(flat.size), out, NO_LOOK)

    def sample_clipped(
        self,
        sampler: Sampler,
        inputs: Update,
        order: Order,
        radius: float,
        rng: RandomBits,
        out: NDArray[np.uint8],
    ) -> None:
        """The norm, then codes of private copies of small pieces, whose sums are looked at in the end."""
        flat = Flat.of(inputs)
        check_output(out, sampler.bits, flat.size)
        clip = Clip.of(self.norm(flat, order), radius, order)
        if clip.limit is None:
            own = flat.copied()
            factor = Clip.of(self.norm(own, order), radius, order).factor
            self.sample_packed(sampler, own, rng, out, factor=factor, verified=True)
            return
        gain = Gain.of(clip.factor, sampler.scale)
        try:
            clip.check(self._sample(sampler, gain, flat, rng.draw(flat.size), out, order))
        except BaseException:
            out[:] = 0  # whatever went wrong, nothing that was sampled stays
            raise

    def _sample(
        self, sampler: Sampler, gain: Gain, flat: Flat, block: WordBlock, out: NDArray[np.uint8], order: int
    ) -> float:
        """Sample everything; the sum of |value|^order of what was sampled, unless order is NO_LOOK."""
        sums: list[float] = []

        def task(start: int, stop: int) -> None:
            sums.extend(_sample_range(sampler, gain, flat, block, out, start, stop, order))

        self._spread(task, flat.size, 64)
        try:
            return math.fsum(sums)
        except (OverflowError, ValueError):
            return math.inf

    def pack(self, codes: Codes, bits: int) -> bytes:
        """Codes as bytes."""
        flat, code = check_codes(codes, bits), _machine_code()
        if bits > 8:
            out = np.zeros(packed_size(bits, flat.size), dtype=np.uint8)
            code.pack_wide(flat, bits, out)
            return out.tobytes()
        full = np.zeros(-(-flat.size // 8) * 8, dtype=np.uint8)
        full[: flat.size] = flat
        out = np.empty(full.size // 8 * bits, dtype=np.uint8)
        code.pack_bytes(full.view(np.uint64), bits, out)
        return out[: packed_size(bits, flat.size)].tobytes()

    def unpack(self, data: ByteBuffer, bits: int, dimension: int) -> Codes:
        """Bytes as codes."""
        return _unpack(check_packed(data, bits, dimension), bits, dimension)

    def norm(self, inputs: Update, order: Order) -> float:
        """The norm, at the speed of reading."""
        return joint_norm(Flat.of(inputs), order, self._block_sums, _largest)

    def accumulate(
        self,
        payloads: Iterable[ByteBuffer],
        bits: int,
        table: NDArray[np.int64],
        total: NDArray[np.int64] | NDArray[np.int32],
    ) -> int:
        """Count in the packed domain for one bit, by look-up for more.

        At most fifteen payloads are held at a time. A payload of the wrong length or with padding bits set
        raises; those read before it may already have been added.
        """
        values = check_table(table, bits, total)
        added, stream = 0, iter(payloads)
        while True:
            group = [check_packed(data, bits, total.size) for data in islice(stream, 15 if bits == 1 else 1)]
            if not group:
                return added
            if bits == 1:
                self._spread(_counting(group, values, total), total.size, 512)
            else:
                self._spread(_adding(group[0], bits, values, total), total.size, 512)
            added += len(group)

    def _spread(self, task: Task, size: int, multiple: int) -> None:
        """Run a task on ranges that start at multiples, one per thread if there is enough to do."""
        workers = max(1, min(self.threads, size // FEW))
        if workers == 1:
            task(0, size)
            return
        width = -(-size // (workers * multiple)) * multiple
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(task, *zip(*((s, min(size, s + width)) for s in range(0, size, width)), strict=True)))

    def _block_sums(self, flat: Flat, order: int, scale: float) -> FloatVector:
        code, found = _machine_code(), []
        for base, part in zip(flat.starts, flat.parts, strict=True):
            sums = np.empty(-(-part.size // BLOCK))

            def task(start: int, stop: int, base: int = base, sums: FloatVector = sums) -> None:
                for s in range(start, stop, NORM_CHUNK):
                    e = min(stop, s + NORM_CHUNK)
                    code.block_sums(flat.piece(base + s, base + e), scale, order, sums[s // BLOCK : -(-e // BLOCK)])

            self._spread(task, part.size, BLOCK)
            found.append(sums)
        return np.concatenate(found) if found else np.empty(0)

    def _check_finite(self, flat: Flat) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            sums = self._block_sums(flat, 1, 1.0)
        if not np.all(np.isfinite(sums)) and not np.isfinite(_largest(flat)):
            raise InvalidParameter("update must be finite everywhere, got a NaN or infinite entry.")


def _largest(flat: Flat) -> float:
    """The largest absolute value; NaN if there is one."""
    pieces = (flat.piece(s, min(flat.size, s + NORM_CHUNK)) for s in range(0, flat.size, NORM_CHUNK))
    return float(np.max([np.max(np.abs(piece)) for piece in pieces], initial=0.0))


def _sample_range(
    sampler: Sampler,
    gain: Gain,
    flat: Flat,
    block: WordBlock,
    out: NDArray[np.uint8],
    start: int,
    stop: int,
    order: int,
) -> list[float]:
    """Sample coordinates ``start .. stop - 1``, ``start`` a multiple of eight; each chunk's sum for a second look."""
    chunk, bits = min(CHUNK, stop - start), sampler.bits
    words, undecided = _buffers(min(FILL, stop - start), chunk + SETTLE)
    reader = block.reader(start)
    found, step, sums = 0, _step(sampler, gain, order), []
    for fill in range(start, stop, FILL):
        reader.fill(words[: min(FILL, stop - fill)])
        for s in range(fill, min(stop, fill + FILL), CHUNK):
            e = min(stop, s + CHUNK)
            target = out[s * bits // 8 : (e * bits + 7) // 8]
            found, total = step(flat.piece(s, e), words[s - fill : e - fill], target, s, undecided, found)
            sums.append(total)
            if found >= SETTLE:
                _settle(sampler, gain, block, out, undecided, found)
                found = 0
    _settle(sampler, gain, block, out, undecided, found)
    return sums


_kept = threading.local()


def _buffers(words: int, room: int) -> tuple[NDArray[np.uint16], Any]:
    """This thread's buffers, kept between calls: fresh pages cost more than filling them."""
    sizes = getattr(_kept, "sizes", (-1, -1))
    if sizes[0] < words or sizes[1] < room:
        _kept.words = np.empty(words, np.uint16)
        _kept.undecided = (np.empty(room, np.int64), np.empty(room, np.uint16), np.empty(room, np.float64))
        _kept.sizes = (words, room)
    return _kept.words, _kept.undecided


def _step(sampler: Sampler, gain: Gain, order: int) -> Step:
    """How one chunk is sampled: by polynomial, by cells, or by listing everything as undecided."""
    code, rate = _machine_code(), gain.approximate()
    if not (rate == 0.0 or 2.0**-900 < rate < 2.0**900):
        return partial(_list_all, order)
    polynomial = odd_polynomial(sampler)
    if polynomial is not None:
        low, high = np.float32(polynomial.low), np.float32(polynomial.high)
        rest = (low, high, polynomial.coefficients, np.uint16(polynomial.width))
        double = (rate, polynomial.shift, *rest)
        single = (np.float32(rate), np.float32(polynomial.shift), *rest) if 2.0**-100 < rate < 2.0**100 else None

        def by_polynomial(x: Any, words: Any, out: Any, start: int, undecided: Any, found: int) -> tuple[int, float]:
            plan: Any = single if x.dtype == np.float32 else None
            if plan is None:
                x, plan = x.astype(np.float64, copy=False), double
            if order == NO_LOOK:
                return code.sample_one_bit(x, words, out, start, plan, undecided, found), 0.0
            looked: tuple[int, float] = code.look_one_bit(x, words, out, start, plan, undecided, found, order)
            return looked

        return by_polynomial
    cells = cell_table(sampler)
    plan = (rate, *sampler.t_range, cells.inverse, cells.offset)
    table = (np.float32(cells.half), cells.start, cells.step, cells.lowest, cells.highest)

    def by_cells(x: Any, words: Any, out: Any, start: int, undecided: Any, found: int) -> tuple[int, float]:
        given = (x, words, out, start, sampler.bits, plan, table, cells.code, undecided, found)
        if order == NO_LOOK:
            return code.sample_cells(*given), 0.0
        looked: tuple[int, float] = code.look_cells(*given, order)
        return looked

    return by_cells


def _list_all(order: int, x: Any, words: Any, out: Any, start: int, undecided: Any, found: int) -> tuple[int, float]:
    """For gains so extreme that a double cannot hold them: leave every coordinate to the exact law."""
    code, index, total = _machine_code(), slice(found, found + x.size), 0.0
    out[:] = 0
    undecided[0][index] = np.arange(start, start + x.size)
    undecided[1][index] = words
    value = undecided[2][index]
    value[:] = x
    if order != NO_LOOK:
        runs = (value[s : s + code.PIECE] for s in range(0, value.size, code.PIECE))
        total = math.fsum(code.look(run, np.empty_like(run), order) for run in runs)
    return found + int(x.size), total


def _settle(sampler: Sampler, gain: Gain, block: WordBlock, out: NDArray[np.uint8], undecided: Any, found: int) -> None:
    if found == 0:
        return
    index, word, value = (array[:found] for array in undecided)
    codes = np.empty(found, dtype=np.uint8)
    tables = (sampler.base, sampler.base_tail, sampler.slope, sampler.slope_tail)
    pair = (gain.first, gain.second, gain.high, gain.low)
    code = _machine_code()
    code.resolve(value, word, block.ties(index), pair, sampler.t_range, level_knots(sampler.levels), tables, codes)
    code.place_codes(out, sampler.bits, index, codes)


def _unpack(data: NDArray[np.uint8], bits: int, dimension: int) -> Codes:
    codes = np.empty(-(-dimension // 8) * 8, dtype=code_type(bits))
    code = _machine_code()
    if bits > 8:
        code.unpack_wide(data, bits, codes[:dimension])
        return codes[:dimension]
    whole = dimension // 8
    code.unpack_bytes(data[: whole * bits], bits, codes[: 8 * whole].view(np.uint64))
    if codes.size > 8 * whole:
        last = np.zeros(bits, dtype=np.uint8)
        last[: data.size - whole * bits] = data[whole * bits :]
        code.unpack_bytes(last, bits, codes[8 * whole :].view(np.uint64))
    return codes[:dimension]


def _counting(group: list[NDArray[np.uint8]], table: NDArray[np.int64], total: NDArray[Any]) -> Task:
    """Add up to fifteen one-bit payloads on a range of coordinates."""
    kind, code = total.dtype.type, _machine_code()
    base, step = kind(len(group) * table[0]), kind(table[1] - table[0])

    def task(start: int, stop: int) -> None:
        bytes_at_once = CHUNK // 4  # fifteen rows of 32 kB
        rows = np.zeros((code.GROUP, bytes_at_once), dtype=np.uint8)
        for s in range(start, stop, 8 * bytes_at_once):
            e = min(stop, s + 8 * bytes_at_once)
            used = (e - s + 7) // 8
            for row, data in zip(rows, group, strict=False):
                row[:used] = data[s // 8 : s // 8 + used]
            code.count_group(rows.view(np.uint64), base, step, total[s:e])

    return task


def _adding(data: NDArray[np.uint8], bits: int, table: NDArray[np.int64], total: NDArray[Any]) -> Task:
    """Look up one payload's codes on a range of coordinates."""
    code, values = _machine_code(), table.astype(total.dtype)

    def task(start: int, stop: int) -> None:
        for s in range(start, stop, CHUNK // 2):
            e = min(stop, s + CHUNK // 2)
            codes = _unpack(data[s * bits // 8 : (e * bits + 7) // 8], bits, e - s)
            code.add_lookup(codes, values, total[s:e])

    return task
