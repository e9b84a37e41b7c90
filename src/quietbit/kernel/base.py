"""The interface of a kernel: a few operations that give the same bits on every device.

Idea     random bits are an argument, the update is never copied as a whole, and the result goes
         into the caller's buffer. The public methods check their arguments; a kernel implements
         the methods whose names begin with an underscore.
Symbols  d = dimension, b = bits; the code of coordinate k is bits k b .. (k+1) b - 1 of a
         little-endian bit stream (least significant bit of the first byte first); the padding bits
         of the last byte are zero.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal, TypeAlias, final

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from quietbit._typing import Codes, FloatVector
from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.kernel import expand
from quietbit.kernel.norm import Clip, Flat, exact_sum
from quietbit.kernel.normals import MAX_COUNT, normals_of_words
from quietbit.kernel.rng import RandomBits, WordBlock, start_state
from quietbit.kernel.rounded import NoiseLaw, grid_of, settle, steps_of
from quietbit.kernel.sampler import Gain, Sampler
from quietbit.kernel.transform import Blocks

__all__ = [
    "MAX_DIMENSION",
    "ByteBuffer",
    "Job",
    "Kernel",
    "Order",
    "Update",
    "code_type",
    "packed_size",
]

ByteBuffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]
Update: TypeAlias = Any  # an array, or a sequence of arrays that stands for their concatenation
Order: TypeAlias = Literal[1, 2]
Body: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]

MAX_PACKED_BITS = 16
MAX_DIMENSION = 2**48
PIECE = 1 << 19  # coordinates handled at once
BATCH = 64  # candidate seeds whose words are drawn at once
SMALLEST = 2.0**-1020  # the least norm reported for an update that is not zero; it clips no less


@final
@frozen(eq=False)
class Job:
    """One pass over an update: its values times the gain are sampled and packed into ``out``.

    With ``blocks``, ``factor`` times the update is first rotated, in float32. With an ``order`` of
    1 or 2 the pass also adds up |value|^order over the sampled values.
    """

    sampler: Sampler
    gain: Gain
    flat: Any
    block: WordBlock
    out: Any
    order: int = 0
    blocks: Blocks | None = None
    factor: float = 1.0


class Kernel(ABC):
    """One device's sampling, packing, norms, counting, rotation and expansion of seeds.

    An update is an array of float16, float32 or float64, or of uint16 with the bits of bfloat16, of
    any shape; a list of arrays stands for their concatenation. An update with a NaN or infinite
    entry is refused before a random word is drawn.
    """

    name: ClassVar[str]  # the name that `select` knows
    GROUP: ClassVar[int] = 1  # payloads added at once

    def sample_packed(self, sampler: Sampler, inputs: Update, rng: RandomBits, out: Body) -> None:
        """Sample an update as it is, unclipped; ``out`` holds ``packed_size(bits, d)`` bytes."""
        flat = self._flat(inputs)
        self._check_output(out, _bytes_of(sampler.bits, flat.size))
        self._check_finite(flat)
        gain = Gain.of(1.0, sampler.scale)
        self._sample(Job(sampler, gain, flat, rng.draw(flat.size), out))

    def sample_clipped(
        self,
        sampler: Sampler,
        inputs: Update,
        order: Order,
        clip: float,
        rng: RandomBits,
        out: Body,
    ) -> None:
        """Clip the update to that norm, sample it in units of the clip, and pack it into ``out``.

        The sampled values lie in the ball even if the update is modified at the same time: they are
        measured again while they are sampled (`norm.py`), and a sum that is too large wipes ``out``
        and raises.
        """
        flat = self._flat(inputs)
        self._check_output(out, _bytes_of(sampler.bits, flat.size))
        clipping = Clip.of(self._norm(flat, order), clip, order)
        measured: int = order
        if clipping.limit is None:
            flat = self._flat(flat.copied())
            clipping = Clip.of(self._norm(flat, order), clip, order)
            measured = 0
        gain = Gain.of(clipping.factor, sampler.scale / clip)
        self._release(Job(sampler, gain, flat, rng.draw(flat.size), out, measured), clipping)

    def sample_rotated(
        self,
        sampler: Sampler,
        inputs: Update,
        seed: int,
        block: int,
        clip: float,
        rng: RandomBits,
        out: Body,
    ) -> None:
        """Clip the update, rotate it in blocks, sample it in clips, and pack it into ``out``.

        The rotated vector, in float32, is a private copy and is measured too: where it is longer
        than the clip nothing is released. So the sampled values lie in the ball however the
        transform rounds. The clip factor leaves enough room that an unmodified update never fails.
        """
        flat = self._flat(inputs)
        self._check_output(out, _bytes_of(sampler.bits, flat.size))
        clipping = Clip.rotated(self._norm(flat, 2), clip)
        blocks = Blocks.of(flat.size, block, seed)
        gain = Gain.of(1.0, sampler.scale / clip)
        words = rng.draw(flat.size)
        self._release(Job(sampler, gain, flat, words, out, 2, blocks, clipping.factor), clipping)

    def pack(self, codes: Codes, bits: int) -> bytes:
        """Return codes as bytes; refuse a code of 2^bits or more."""
        width = check_int(bits, "bits", 1, MAX_PACKED_BITS)
        array = np.asarray(codes)
        if array.size:
            kind = array.dtype
            require(kind.kind in "iu", "type of the codes", str(kind), "whole numbers")
            least = int(array.min())
            largest = int(array.max())
            require(least >= 0, "smallest code", least, "at least 0")
            require(largest < 2**width, "largest code", largest, f"below 2^{width}")
        return self._pack(np.ascontiguousarray(array.reshape(-1), dtype=code_type(width)), width)

    def unpack(self, data: ByteBuffer, bits: int, dimension: int) -> Codes:
        """Return bytes as codes; refuse a wrong length or a padding bit that is not zero."""
        packed = _check_packed(data, bits, dimension, packed_size(bits, dimension))
        return self._unpack(packed, bits, dimension)

    def norm(self, inputs: Update, order: Order) -> float:
        """Return the L1 or L2 norm within NORM_ERROR (`norm.py`), the same number on every kernel.

        A norm beyond the largest double is refused.
        """
        return self._norm(self._flat(inputs), order)

    def _norm(self, flat: Any, order: Order) -> float:
        if order not in (1, 2):
            raise InvalidParameter.of("order of the norm", "1 or 2", order)
        scale = 1.0
        total = exact_sum(self._block_sums(flat, order, 1.0).tolist())
        if not 2.0**-500 < total < 2.0**500:
            # Squares may have overflowed or underflowed: measure a multiple of the update.
            self._check_finite(flat)
            peak = self._largest(flat)
            if peak == 0.0:
                return 0.0
            exponent = 1 - math.frexp(peak)[1]
            scale = 2.0 ** max(-1000, min(1000, exponent))
            total = exact_sum(self._block_sums(flat, order, scale).tolist())
        if order == 2:
            total = math.sqrt(total)
        result = total / scale
        if not math.isfinite(result):
            raise InvalidParameter.of("norm of the update", "below the largest double", result)
        return max(result, SMALLEST)

    def accumulate(
        self,
        payloads: Iterable[ByteBuffer],
        bits: int,
        table: Sequence[int] | NDArray[np.int64],
        total: NDArray[Any],
    ) -> None:
        """Add ``table[code]`` of every payload to ``total``, coordinate by coordinate.

        All are integers; the caller ensures that sums fit the type of ``total``. A payload of the
        wrong length or with padding bits set raises; those read before it may already have been
        added.
        """
        symbols = 2 ** check_int(bits, "bits", 1, MAX_PACKED_BITS)
        values = np.ascontiguousarray(table, np.int64)
        require(values.shape == (symbols,), "shape of the table", values.shape, f"({symbols},)")
        _check_flat(total, "total", np.int32, np.int64)
        size = _bytes_of(bits, total.size)
        stream = iter(payloads)
        while group := list(islice(stream, self.GROUP)):
            bodies = [_check_packed(data, bits, total.size, size) for data in group]
            self._accumulate(bodies, bits, values, total)

    def rotate(
        self,
        inputs: Update,
        seed: int,
        block: int | None = None,
        *,
        factor: float = 1.0,
        kind: Any = np.float32,
    ) -> Any:
        """Return ``factor * inputs`` rotated by public signs and transforms (`transform.py`).

        Without a ``block`` the update is padded with zeros to a power of two, as one block. The
        product is formed in double precision and rounded once to ``kind``, float32 or float64.
        Entries whose sums overflow are refused.
        """
        flat = self._flat(inputs)
        times = check_real(factor, "factor", at_least=0.0, at_most=1.0)
        return self._rotate(flat, times, Blocks.of(flat.size, block, seed), kind)

    def rotate_back(
        self, values: NDArray[Any], seed: int, block: int | None = None
    ) -> NDArray[Any]:
        """Undo a rotation in place, padding included, and return the values."""
        _check_flat(values, "values", np.float32, np.float64)
        blocks = Blocks.of(values.size, block, seed)
        require(blocks.size == values.size, "length", values.size, "a power of two")
        self._rotate_back(values, blocks)
        return values

    def rotated_rows(
        self, inputs: Update, seed: int, factor: float, places: NDArray[np.int64]
    ) -> FloatVector:
        """Return some entries of `rotate` in doubles, on the host."""
        rotated: NDArray[np.float32] = self.rotate(inputs, seed, factor=factor)
        return rotated[places].astype(np.float64)

    def normals(self, seed: bytes, count: int) -> FloatVector:
        """Return the first ``count`` standard normals of a 16-byte seed (`expand.py`)."""
        size = check_int(count, "count", 0, MAX_COUNT)
        return normals_of_words(self.words(expand.seed_state(seed), size))

    def rows(self, nonce: bytes, count: int, size: int) -> NDArray[np.int64]:
        """Return one row from each of ``count`` strata of ``0 .. size - 1``, in order.

        Stratum j is floor(j p/k) .. floor((j+1) p/k) - 1. A row of a stratum of width s <= 2^24 is
        chosen with probability 1/s up to a relative bias below 2^-40. Where k does not divide p
        widths differ by one, and a row's probability from k/p by a factor of at most 1/(1 - k/p).
        """
        starts = expand.strata(count, size)
        words = self.words(start_state(expand.ROWS_KEY, nonce), starts.size - 1)
        return expand.row_numbers(words, starts)

    def search(
        self,
        direction: FloatVector,
        edges: FloatVector,
        limits: Words,
        block: WordBlock,
        *,
        acceptance_lower: float,
    ) -> tuple[bytes, int]:
        """Return the first accepted candidate seed, and how many were tried.

        Candidate i is words 2 i and 2 i + 1 of stream 0. It is accepted if word i of stream 1 is
        below ``limits[s]``, where s is the number of ``edges`` at most t = <direction, normals>.
        ``acceptance_lower`` bounds the probability of accepting one candidate from below, for every
        direction.

        After `tries_upper` rejections the next candidate is returned without a test. It has the law
        of a zero update, and this happens with the same probability, at most FAILURE_UPPER, for
        every update; mixing two laws with the same third in the same proportion brings them closer,
        so it adds nothing to delta. The number of tries has the same law for every update, so the
        running time reveals nothing either.
        """
        _check_search(direction, edges, limits)
        most_tries = expand.tries_upper(acceptance_lower)
        for begin in range(0, most_tries, BATCH):
            count = min(BATCH, most_tries - begin)
            seeds = block.uniform64(0, 2 * begin, 2 * count).astype("<u8", copy=False)
            words = block.uniform64(1, begin, count)
            accepted = self._first_accepted(seeds, words, direction, edges, limits)
            if accepted >= 0:
                seed = seeds[2 * accepted : 2 * accepted + 2]
                return seed.tobytes(), begin + accepted + 1
        untested = block.uniform64(0, 2 * most_tries, 2).astype("<u8", copy=False)
        return untested.tobytes(), most_tries + 1

    def rounded_noise(
        self, values: FloatVector, unit: float, law: NoiseLaw, block: WordBlock, start: int
    ) -> FloatVector:
        """Return coordinates ``start ..`` with real noise of scale ``unit``, rounded to a grid.

        The grid is `grid_of(unit)`, and the rounding is exact.
        """
        words = block.uniform64(0, start, values.size)
        steps, certain = self._noise_steps(values, unit, law, words)
        for i in np.flatnonzero(~certain).tolist():
            steps[i] = settle(float(values[i]), unit, law, block, start + i)
        return np.asarray(steps * grid_of(unit))

    def add_seeds(
        self, nonces: Body, seeds: Body, total: NDArray[np.int64], *, count: int, shift: int
    ) -> None:
        """Add ``round(2^shift z)`` of every payload to the rows of its nonce.

        With a shift of `expand.finest_shift` the sums fit 64 bits.
        """
        payloads = len(seeds)
        shapes = (seeds.shape, nonces.shape)
        expected = ((payloads, 16), (payloads, 8))
        require(shapes == expected, "shapes of seeds and nonces", shapes, f"{expected}")
        kinds = (str(seeds.dtype), str(nonces.dtype))
        require(kinds == ("uint8", "uint8"), "types of seeds and nonces", kinds, "uint8")
        _check_flat(total, "total", np.int64)
        scale = math.ldexp(1.0, check_int(shift, "shift", 0, 48))
        starts = expand.strata(count, total.size)
        if payloads:
            contiguous = np.ascontiguousarray
            self._add_seeds(contiguous(nonces), contiguous(seeds), starts, scale, total)

    @abstractmethod
    def words(self, state: NDArray[np.uint32], count: int) -> Words:
        """Return the first words of a ChaCha20 stream, in the order of `expand.stream_words`."""

    def _flat(self, inputs: Update) -> Any:
        """Return the update in this kernel's form, with a size, a shape, and `copied`."""
        return Flat.of(inputs)

    def _check_output(self, out: Any, size: int) -> None:
        """Refuse a buffer that does not hold exactly the packed codes."""
        _check_flat(out, "output buffer", np.uint8, size=size)

    def _release(self, job: Job, clip: Clip) -> None:
        """Sample a job whose values are measured again; wipe its output if anything fails."""
        try:
            total = self._sample(job)
            if job.order:
                clip.check(total)
        except BaseException:
            job.out[:] = 0
            raise

    @abstractmethod
    def _sample(self, job: Job) -> float:
        """Sample and pack; return the sum that the job asks for, within LOOK_ERROR relatively."""

    def _sample_copy(self, job: Job, blocks: Blocks) -> float:
        """Rotate the whole update of a job into a private copy, then sample it."""
        rotated = Flat.of(self._rotate(job.flat, job.factor, blocks, np.float32))
        return self._sample(evolve(job, flat=rotated, blocks=None))

    @abstractmethod
    def _block_sums(self, flat: Any, order: int, scale: float) -> NDArray[np.float64]:
        """Return doubles with the same exact sum as all blocks' sums of ``|scale * value|^order``.

        `norm.py` defines the blocks.
        """

    def _check_finite(self, flat: Any) -> None:
        """Refuse an update with a NaN or infinite entry."""
        sums = self._block_sums(flat, 1, 1.0)
        if not np.all(np.isfinite(sums)) and not math.isfinite(self._largest(flat)):
            raise InvalidParameter.of("update", "finite everywhere", "a NaN or infinite entry")

    def _largest(self, flat: Any) -> float:
        """Return the largest absolute value; NaN if there is one."""
        peaks = []
        with np.errstate(invalid="ignore"):
            for start in range(0, flat.size, PIECE):
                piece = flat.piece(start, min(flat.size, start + PIECE))
                peaks.append(np.max(np.abs(piece)))
            return float(np.max(peaks, initial=0.0))

    @abstractmethod
    def _accumulate(
        self, group: list[NDArray[np.uint8]], bits: int, table: NDArray[np.int64], total: Any
    ) -> None:
        """Add ``table[code]`` of at most GROUP payloads."""

    @abstractmethod
    def _rotate(self, flat: Any, factor: float, blocks: Blocks, kind: Any) -> Any:
        """Return ``factor`` times the update, padded and rotated; refuse entries not finite."""

    @abstractmethod
    def _rotate_back(self, values: NDArray[Any], blocks: Blocks) -> None:
        """Undo a rotation in place."""

    @abstractmethod
    def _first_accepted(
        self, seeds: Words, words: Words, direction: FloatVector, edges: FloatVector, limits: Words
    ) -> int:
        """Return the index of the first seed (two words each) that its word accepts, or -1."""

    @abstractmethod
    def _add_seeds(self, nonces: Any, seeds: Any, starts: Any, scale: float, total: Any) -> None:
        """Add ``round(scale z)`` of every payload to the rows of its nonce."""

    def _noise_steps(
        self, values: FloatVector, unit: float, law: NoiseLaw, words: NDArray[np.uint64]
    ) -> Any:
        """Return the nearest multiples of the grid and which of them are certain (`rounded.py`)."""
        return steps_of(values, unit, law, words)

    def _pack(self, codes: Codes, bits: int) -> bytes:
        """Write every code's bits in order, least significant first."""
        places = np.arange(bits, dtype=codes.dtype)
        stream = (codes[:, None] >> places) & codes.dtype.type(1)
        return np.packbits(stream.astype(np.uint8).reshape(-1), bitorder="little").tobytes()

    def _unpack(self, data: NDArray[np.uint8], bits: int, dimension: int) -> Codes:
        """Read codes of ``bits`` bits back."""
        stream = np.unpackbits(data, bitorder="little")[: bits * dimension]
        weights = (1 << np.arange(bits)).astype(np.uint32)
        weighted = stream.reshape(dimension, bits) * weights
        codes: Codes = weighted.sum(axis=1, dtype=np.uint32).astype(code_type(bits))
        return codes


def packed_size(bits: int, dimension: int) -> int:
    """Return the number of bytes of ``dimension`` codes of ``bits`` bits."""
    width = check_int(bits, "bits", 1, MAX_PACKED_BITS)
    return _bytes_of(width, check_int(dimension, "dimension", 0, MAX_DIMENSION))


def _bytes_of(bits: int, dimension: int) -> int:
    return (bits * dimension + 7) // 8


def code_type(bits: int) -> Any:
    """Return the dtype that holds unpacked codes."""
    return np.uint8 if bits <= 8 else np.uint16


def _check_flat(array: Any, name: str, *kinds: Any, size: int | None = None) -> None:
    """Refuse anything but a 1-D, contiguous, writable array of one of these dtypes and a size."""
    flat = isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype in kinds
    if not (flat and array.flags.c_contiguous and array.flags.writeable):
        names = " or ".join(np.dtype(kind).name for kind in kinds)
        given = getattr(array, "dtype", type(array).__name__)
        rule = f"a flat, contiguous, writable array of {names}"
        raise InvalidParameter.of(name, rule, str(given))
    if size is not None:
        require(array.size == size, name, array.size, f"{size} numbers long")


def _check_search(direction: FloatVector, edges: FloatVector, limits: Words) -> None:
    """Refuse arguments that a search for a seed has no meaning for."""
    flat = direction.ndim == 1 and 0 < direction.size <= MAX_COUNT
    if not (flat and np.all(np.isfinite(direction))):
        rule = "flat and finite, of 1 to 2^24 numbers"
        raise InvalidParameter.of("direction", rule, direction.shape)
    if not (edges.dtype == np.float64 and np.all(edges[1:] > edges[:-1])):
        raise InvalidParameter.of("edges", "increasing float64", edges.tolist())
    if not (limits.dtype == np.uint64 and limits.shape == (edges.size + 1,)):
        rule = f"uint64 of shape ({edges.size + 1},), one more than the edges"
        raise InvalidParameter.of("limits", rule, limits.shape)


def _check_packed(data: ByteBuffer, bits: int, dimension: int, size: int) -> NDArray[np.uint8]:
    """Return the bytes as an array; refuse them unless length and padding are right."""
    flat = np.frombuffer(data, dtype=np.uint8)
    require(flat.size == size, "length of the packed codes", flat.size, f"{size} bytes")
    used = (bits * dimension) % 8
    if used:
        padding = int(flat[-1]) >> used
        require(padding == 0, "padding bits", padding, "zero")
    return flat
