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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from types import SimpleNamespace
from typing import Any, ClassVar, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import Codes, FloatVector
from quietbit.errors import InvalidParameter, check_int, require_module
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
    packed_size,
)
from quietbit.kernel.chacha import start_state
from quietbit.kernel.chunks import Flat
from quietbit.kernel.expand import MAX_COUNT, ROWS_KEY, check_seeds, seed_state, strata, whole_tiles
from quietbit.kernel.law import Gain
from quietbit.kernel.norm import BLOCK, Clip, joint_norm, rotated_factor
from quietbit.kernel.quantile import quantile_table
from quietbit.kernel.reference import check_factor
from quietbit.kernel.rng import RandomBits, WordBlock
from quietbit.kernel.rounded import OFF, REACH, NoiseLaw, grid_of, rounded_noise
from quietbit.kernel.sampler import Sampler, level_knots
from quietbit.kernel.tables import cell_table, odd_polynomial
from quietbit.kernel.transform import BlockSigns, check_finite_rotation, padded_size, scale_of, sign_words

__all__ = ["CpuKernel"]

CHUNK = 1 << 17  # coordinates sampled at once; also bounds the list of undecided ones
FILL = 1 << 19  # words expanded at once (1 MB): shorter runs of the cipher cost more in switching
NORM_CHUNK = 1 << 19
SETTLE = 4096  # undecided coordinates worth one call of the exact law
FEW = 1 << 18  # coordinates per thread below which starting a thread does not pay
MAX_THREADS = 1024
NO_LOOK = 0  # in the place of the order of a norm
NO_SUMS = np.empty(0)
ROTATED = 1 << 16  # coordinates rotated and sampled at once: 256 kB of float32
Task = Callable[[int, int], None]
Read = Callable[[int, int], tuple[NDArray[Any], float]]
Step = Callable[..., tuple[int, float]]


@lru_cache(maxsize=1)
def _machine_code() -> SimpleNamespace:
    require_module("numba", "cpu")
    from quietbit.kernel import compiled_bits, compiled_expand, compiled_sampling, compiled_transform

    found = vars(compiled_bits) | vars(compiled_sampling) | vars(compiled_expand) | vars(compiled_transform)
    return SimpleNamespace(**found)


def _check_threads(kernel: object, attribute: object, value: int) -> None:
    check_int(value, "threads", 1, MAX_THREADS)


@final
@frozen
class CpuKernel(Kernel):
    """Sampling at line rate with numba; see `Kernel` for what each method promises."""

    name: ClassVar[str] = "cpu"
    threads: int = field(default=1, validator=_check_threads)

    def __attrs_post_init__(self) -> None:
        """Refuse a machine without numba."""
        _machine_code()

    def sample(
        self, sampler: Sampler, inputs: Update, rng: RandomBits, *, factor: float = 1.0, verified: bool = False
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
        self._sample(sampler, gain, _reader(flat), rng.draw(flat.size), out, _bounds(flat.size), NO_LOOK)

    def sample_clipped(
        self, sampler: Sampler, inputs: Update, order: Order, radius: float, rng: RandomBits, out: NDArray[np.uint8]
    ) -> None:
        """The norm, then codes of private copies of small pieces, whose sums are looked at in the end."""
        flat = Flat.of(inputs)
        check_output(out, sampler.bits, flat.size)
        clip = Clip.of(self.norm(flat, order), radius, order)
        if clip.limit is None:
            super().sample_clipped(sampler, inputs, order, radius, rng, out)
            return
        gain, bounds = Gain.of(clip.factor, sampler.scale), _bounds(flat.size)
        with _wiped(out):
            clip.check(self._sample(sampler, gain, _reader(flat), rng.draw(flat.size), out, bounds, order))

    def sample_rotated(
        self,
        sampler: Sampler,
        inputs: Update,
        seed: int,
        block: int,
        radius: float,
        rng: RandomBits,
        out: NDArray[np.uint8],
    ) -> None:
        """The norm, then chunk by chunk: signs, factor, butterflies and sampling while the chunk is in the cache."""
        flat = Flat.of(inputs)
        if block > ROTATED // 2 or flat.size < 8 * block:
            super().sample_rotated(sampler, inputs, seed, block, radius, rng, out)
            return
        check_output(out, sampler.bits, flat.size)
        factor = rotated_factor(self.norm(flat, 2), radius)
        chosen = BlockSigns.of(flat.size, block, seed)
        bounds = _bounds(flat.size, ROTATED)
        if flat.size - bounds[-1][0] < block:  # the overlapping block lies in one chunk
            bounds[-2:] = [(bounds[-2][0], flat.size)]
        limit = Clip.of(0.0, radius, 2)
        with _wiped(out):
            total = self._sample(
                sampler,
                Gain.of(1.0, sampler.scale),
                lambda: _RotatedChunks(flat, factor, chosen).read,
                rng.draw(flat.size),
                out,
                bounds,
                NO_LOOK,
            )
            limit.check(total)

    def _sample(
        self,
        sampler: Sampler,
        gain: Gain,
        reader: Callable[[], Read],
        block: WordBlock,
        out: NDArray[np.uint8],
        bounds: list[tuple[int, int]],
        order: int,
    ) -> float:
        """Sample chunk by chunk; return the sum of |value|^order of what was sampled, and of what readers added up."""
        sums: list[float] = []

        def task(first: int, last: int) -> None:
            sums.extend(_sample_chunks(sampler, gain, reader(), block, out, bounds[first:last], order))

        size = bounds[-1][1] if bounds else 0
        self._spread(task, len(bounds), 1, max(1, min(self.threads, size // FEW)))
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

    def hadamard(self, values: Any) -> Any:
        """Few visits of memory, on as many threads as there are."""
        array = check_in_place(values)
        self._transform(array, array.size, NO_SUMS)
        return values

    def rotate(self, inputs: Update, seed: int, *, factor: float = 1.0, kind: Any = np.float32) -> Any:
        """Scale and flip chunk by chunk, then transform."""
        flat = Flat.of(inputs)
        out = np.empty(padded_size(flat.size), dtype=kind)
        out[flat.size :] = 0.0
        self._flipped(flat, check_factor(factor), sign_words(out.size, seed), out)
        sums = np.empty(-(-out.size // BLOCK))
        self._transform(out, out.size, sums)
        return check_finite_rotation(out, sums)

    def rotate_back(self, values: Any, seed: int) -> Any:
        """Transform, then flip."""
        self.hadamard(values)
        self._flipped(Flat.of(values), 1.0, sign_words(values.size, seed), values)
        return values

    def block_rotate(
        self, inputs: Update, seed: int, block: int, *, factor: float = 1.0, kind: Any = np.float32
    ) -> Any:
        """Scale and flip chunk by chunk, then transform every block."""
        flat = Flat.of(inputs)
        chosen = BlockSigns.of(flat.size, block, seed)
        out = np.empty(flat.size, dtype=kind)
        self._flipped(flat, check_factor(factor), chosen.first, out)
        self._transform(out[: chosen.whole], block, NO_SUMS)
        if chosen.last is not None:
            tail = out[-block:]
            self._flipped(Flat.of(tail), 1.0, chosen.last, tail)
            self._transform(tail, block, NO_SUMS)
        return check_finite_rotation(out, self._block_sums(Flat.of(out), 1, 1.0))

    def block_rotate_back(self, values: Any, seed: int, block: int) -> Any:
        """The transposes in reverse order."""
        chosen = BlockSigns.of(values.size, block, seed)
        if chosen.last is not None:
            tail = values[-block:]
            self._transform(tail, block, NO_SUMS)
            self._flipped(Flat.of(tail), 1.0, chosen.last, tail)
        self._transform(values[: chosen.whole], block, NO_SUMS)
        self._flipped(Flat.of(values), 1.0, chosen.first, values)
        return values

    def _flipped(self, flat: Flat, factor: float, words: NDArray[np.uint32], out: NDArray[Any]) -> None:
        """Write ``factor`` times the update with its signs."""

        def task(start: int, stop: int) -> None:
            for s, e in _bounds(stop, CHUNK, start):
                _flip(flat.piece(s, e), factor, words[s // 32 : -(-e // 32)], out[s:e])

        self._spread(task, flat.size, 64)

    def _transform(self, x: NDArray[Any], block: int, sums: FloatVector) -> None:
        """Transform every block of ``block`` numbers that ``x`` is made of."""
        code, many = _machine_code(), 2 * x.size >= FEW
        scale, exact = scale_of(block)
        end, more = (1 if exact else 2, x.dtype.type(scale), sums), (0, x.dtype.type(1.0), sums)

        def late(values: NDArray[Any], half: int, most: int, inside: bool) -> None:
            """The stages from ``half`` to ``most``."""
            while half < most:
                rows = min(8, most // half)
                chunks = values.size // rows // code.BLOCK
                ending = end if half * rows == block else more
                if inside:
                    code.late_stages(values, half, rows, 0, chunks, ending)
                else:
                    self._spread(partial(code.late_stages, values, half, rows, ending=ending), chunks, 1, self.threads)
                half *= rows

        span = max(code.SPAN, min(block, code.BLOCK))

        def inside_spans(first: int, last: int) -> None:
            for at in range(first, last):
                part = x[at * span : (at + 1) * span]
                code.early_stages(part, min(block, code.BLOCK), end if block <= code.BLOCK else more)
                late(part, code.BLOCK, min(block, span), True)

        self._spread(inside_spans, -(-x.size // span), 1, self.threads if many else 1)
        late(x, span, block, False)

    def words(self, state: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
        """Sixteen blocks side by side."""
        out = np.empty(whole_tiles(count), np.uint64)
        _machine_code().expand_words(state, out)
        return out[:count]

    def normals(self, seed: bytes, count: int) -> FloatVector:
        """Words and normals tile by tile."""
        size = check_int(count, "count", 0, MAX_COUNT)
        out = np.empty(whole_tiles(size))
        _machine_code().expand_normals(seed_state(seed), quantile_table(), out)
        return out[:size]

    def first_accepted(
        self,
        seeds: NDArray[np.uint64],
        words: NDArray[np.uint64],
        direction: FloatVector,
        edges: FloatVector,
        limits: NDArray[np.uint64],
    ) -> int:
        """Expand one seed after the other, in buffers of one vector's length."""
        padded = np.zeros(whole_tiles(direction.size))
        padded[: direction.size] = direction
        keys, state = seeds.view("<u4").reshape(-1, 4), start_state(bytes(16))
        return int(_machine_code().first_accepted(keys, words, state, padded, edges, limits, quantile_table()))

    def rounded_noise(
        self, values: FloatVector, unit: float, law: NoiseLaw, block: WordBlock, start: int
    ) -> FloatVector:
        """Normals tile by tile, without the temporary arrays."""

        def steps(x: FloatVector, unit: float, law: NoiseLaw, words: NDArray[np.uint64]) -> Any:
            near, sure = np.empty(x.size), np.empty(x.size, np.bool_)
            numbers = (unit, grid_of(unit), OFF, REACH)
            _machine_code().noise_steps(x, words, numbers, law is NoiseLaw.NORMAL, quantile_table(), near, sure)
            return near, sure

        return rounded_noise(values, unit, law, block, start, steps)

    def add_seeds(
        self, nonces: Any, seeds: Any, total: Any, *, count: int, shift: int, weights: Any | None = None
    ) -> None:
        """Tile by tile, so that the part of the total a tile falls into stays in the cache."""
        payloads = check_seeds(nonces, seeds, weights, total)
        each = np.ones(payloads, np.int64) if weights is None else np.ascontiguousarray(weights, dtype=np.int64)
        scale = math.ldexp(1.0, check_int(shift, "shift", 0, 48))
        keys, tails = (np.ascontiguousarray(part).view("<u4") for part in (seeds, nonces))
        states, starts = (start_state(ROWS_KEY), start_state(bytes(16))), strata(count, total.size)
        _machine_code().add_payloads(tails, keys, each, *states, starts, scale, quantile_table(), total)

    def _spread(self, task: Task, size: int, multiple: int, most: int | None = None) -> None:
        """Run a task on ranges that start at multiples, one per thread if there is enough to do."""
        workers = min(size, max(1, min(self.threads, size // FEW)) if most is None else most)
        if workers <= 1:
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


def _bounds(size: int, chunk: int = CHUNK, first: int = 0) -> list[tuple[int, int]]:
    """Chunks of an update."""
    return [(start, min(size, start + chunk)) for start in range(first, size, chunk)]


def _reader(flat: Flat) -> Callable[[], Read]:
    """A reader of plain chunks, which adds nothing up."""
    return lambda: lambda start, stop: (flat.piece(start, stop), 0.0)


class _RotatedChunks:
    """One thread's reader of chunks that are scaled and rotated in a buffer of its own, and measured there."""

    def __init__(self, flat: Flat, factor: float, chosen: BlockSigns) -> None:
        self.flat, self.factor, self.chosen = flat, factor, chosen
        self.buffer = np.empty(ROTATED + chosen.block, np.float32)
        self.sums = np.empty(-(-self.buffer.size // BLOCK))
        scale, exact = scale_of(chosen.block)
        self.mode, self.scale = 1 if exact else 2, np.float32(scale)

    def read(self, start: int, stop: int) -> tuple[NDArray[Any], float]:
        """The chunk, and the sum of its squares; a chunk begins at a block, and only the last may end elsewhere."""
        code, chosen = _machine_code(), self.chosen
        own, ending = self.buffer[: stop - start], (self.mode, self.scale, self.sums[:0])
        words = chosen.first[start // 32 : -(-stop // 32)]
        _flip(self.flat.piece(start, stop), self.factor, words, own)
        code.early_stages(own[: own.size // chosen.block * chosen.block], chosen.block, ending)
        if stop == chosen.size and chosen.last is not None:
            tail = own[-chosen.block :]
            _flip(tail, 1.0, chosen.last, tail)
            code.early_stages(tail, chosen.block, ending)
        return own, float(code.power_sum(own, 2))


def _flip(x: NDArray[Any], factor: float, words: NDArray[np.uint32], out: NDArray[Any]) -> None:
    """Write ``factor * x`` with signs."""
    code = _machine_code()
    if out.dtype == np.float64:
        code.flip_doubles(x, factor, words, out)
    elif factor == 1.0 and x.dtype == np.float32:
        code.flip(x, words, out)
    else:
        code.flip_scaled(x, factor, words, out)


@contextmanager
def _wiped(out: NDArray[np.uint8]) -> Iterator[None]:
    """Whatever goes wrong, nothing that was sampled stays."""
    try:
        yield
    except BaseException:
        out[:] = 0
        raise


def _sample_chunks(
    sampler: Sampler,
    gain: Gain,
    read: Read,
    block: WordBlock,
    out: NDArray[np.uint8],
    bounds: list[tuple[int, int]],
    order: int,
) -> list[float]:
    """Sample chunks, each from a multiple of eight on; each chunk's sum for a second look."""
    if not bounds:
        return []
    bits, most = sampler.bits, max(stop - start for start, stop in bounds)
    words, undecided = _buffers(min(bounds[-1][1] - bounds[0][0], FILL + most), most + SETTLE)
    reader, filled = block.reader(bounds[0][0]), bounds[0][0]
    found, step, sums, begin = 0, _step(sampler, gain, order), [], filled
    for number, (start, stop) in enumerate(bounds):
        if stop > filled:
            rest = bounds[number:]
            begin = start
            filled = max(stop, *(end for _, end in rest if end - start <= FILL))
            reader.fill(words[: filled - begin])
        values, total = read(start, stop)
        target = out[start * bits // 8 : (stop * bits + 7) // 8]
        found, looked = step(values, words[start - begin : stop - begin], target, start, undecided, found)
        sums.append(total + looked)
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
            looked: tuple[int, float] = code.sample_one_bit(x, words, out, start, plan, undecided, found, order)
            return looked

        return by_polynomial
    cells = cell_table(sampler)
    plan = (rate, *sampler.t_range, cells.inverse, cells.offset)
    table = (np.float32(cells.half), cells.start, cells.step, cells.lowest, cells.highest)

    def by_cells(x: Any, words: Any, out: Any, start: int, undecided: Any, found: int) -> tuple[int, float]:
        given = (x, words, out, start, sampler.bits, plan, table, cells.code, undecided, found)
        looked: tuple[int, float] = code.sample_cells(*given, order)
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
