"""The interface of a kernel: a few operations that every device answers alike, bit for bit.

Idea     randomness is an argument, the update is never copied whole, and the result goes into the caller's buffer.
         Arguments are checked here, once; a kernel implements the operations whose names begin with an underscore and
         need not check again.
Symbols  d = dimension, b = bits; coordinate k's code occupies bits k b .. (k+1) b - 1 of a little-endian bit
         stream (least significant bit of the first byte first); the padding bits of the last byte are zero.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, ClassVar, Literal, TypeAlias, final

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from quietbit._typing import Codes, FloatVector
from quietbit.errors import check_int, check_real, require
from quietbit.kernel.chunks import Flat
from quietbit.kernel.expand import FIRST_STREAMS, MAX_COUNT, ROWS_KEY, row_numbers, seed_state, strata, tries_upper
from quietbit.kernel.law import Gain
from quietbit.kernel.norm import Clip, check_finite, joint_norm, rotated_factor
from quietbit.kernel.quantile import normals_of_words
from quietbit.kernel.rng import RandomBits, WordBlock, start_state
from quietbit.kernel.rounded import NoiseLaw, grid_of, settle, steps_of
from quietbit.kernel.sampler import Sampler
from quietbit.kernel.transform import Blocks

__all__ = ["MAX_DIMENSION", "ByteBuffer", "Job", "Kernel", "Order", "Update", "code_type", "packed_size"]

ByteBuffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]
Update: TypeAlias = Any  # an array, or a sequence of arrays that together, in order, are one flat vector
Order: TypeAlias = Literal[1, 2]
Body: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]

MAX_PACKED_BITS = 16
MAX_DIMENSION = 2**48
PIECE = 1 << 19  # coordinates handled at once
BATCH = 64  # candidate seeds whose words are drawn at once


@final
@frozen(eq=False)
class Job:
    """One pass over an update: its values times the gain are sampled and packed into all of ``out``.

    With ``blocks``, ``factor`` times the update is rotated first, in float32. With an ``order`` the sum of
    |value|^order over the sampled values is computed on the way.
    """

    sampler: Sampler
    gain: Gain
    flat: Any
    block: WordBlock
    out: Any
    order: int = 0
    blocks: Blocks | None = None
    factor: float = 1.0

    def of_rotated(self, own: Any) -> Job:
        """Return the job that remains once the update is rotated."""
        return evolve(self, flat=own, blocks=None)


class Kernel(ABC):
    """One device's implementation of sampling, packing, norms, counting, rotation and expansion; all are complete.

    Updates are arrays of float16, float32 or float64, or of uint16 holding the bit patterns of bfloat16, of any shape
    and layout; a list of them stands for their concatenation. An update with a NaN or infinite entry is refused before
    a word is drawn.
    """

    name: ClassVar[str]  # the name that `select` knows
    GROUP: ClassVar[int] = 1  # payloads added at once

    def sample(self, sampler: Sampler, inputs: Update, rng: RandomBits, *, factor: float = 1.0) -> Codes:
        """Return one code per coordinate of ``factor * inputs``, in the shape of a single array, else flat."""
        flat = self._flat(inputs)
        out = np.empty(packed_size(sampler.bits, flat.size), dtype=np.uint8)
        self.sample_packed(sampler, flat, rng, out, factor=factor)
        return self.unpack(out, sampler.bits, flat.size).reshape(flat.shape)

    def sample_packed(
        self, sampler: Sampler, inputs: Update, rng: RandomBits, out: Body, *, factor: float = 1.0
    ) -> None:
        """Pack the same codes into all of ``out``, which holds ``packed_size(bits, d)`` bytes."""
        flat, gain = self._flat(inputs), Gain.of(_check_factor(factor), sampler.scale)
        self._check_output(out, packed_size(sampler.bits, flat.size))
        check_finite(flat, self._block_sums, self._largest)
        self._sample(Job(sampler, gain, flat, rng.draw(flat.size), out))

    def sample_clipped(
        self, sampler: Sampler, inputs: Update, order: Order, radius: float, rng: RandomBits, out: Body
    ) -> None:
        """Pack the codes of the update clipped to the ball of that norm and radius into all of ``out``.

        The sampled values lie in the ball even if the update is modified at the same time: they are measured again
        while they are sampled, and a sum too large wipes ``out`` and raises. Where sums could leave the range of
        doubles a private copy is measured and sampled instead.
        """
        flat = self._flat(inputs)
        self._check_output(out, packed_size(sampler.bits, flat.size))
        clip = Clip.of(self.norm(flat, order), radius, order)
        if clip.limit is None:
            flat = self._flat(flat.copied())
            clip = Clip.of(self.norm(flat, order), radius, order)
        with _wiped(out):
            gain, look = Gain.of(clip.factor, sampler.scale), 0 if clip.limit is None else order
            total = self._sample(Job(sampler, gain, flat, rng.draw(flat.size), out, look))
            if clip.limit is not None:
                clip.check(total)

    def sample_rotated(
        self, sampler: Sampler, inputs: Update, seed: int, block: int, radius: float, rng: RandomBits, out: Body
    ) -> None:
        """Pack the codes of the update, clipped to the L2 ball of that radius and rotated in blocks, into ``out``.

        The update is scaled by `norm.rotated_factor` of its norm and rotated by `rotate` in float32. The rotated vector
        is private and is measured too: if the update was modified meanwhile and the vector is longer than the radius,
        nothing is released. So the sampled values lie in the ball however the transform rounds, and the factor leaves
        enough room that an unmodified update never fails.
        """
        flat = self._flat(inputs)
        self._check_output(out, packed_size(sampler.bits, flat.size))
        factor, blocks = rotated_factor(self.norm(flat, 2), radius), Blocks.of(flat.size, block, seed)
        gain = Gain.of(1.0, sampler.scale)
        with _wiped(out):
            total = self._sample(Job(sampler, gain, flat, rng.draw(flat.size), out, 2, blocks, factor))
            Clip.of(0.0, radius, 2).check(total)

    def pack(self, codes: Codes, bits: int) -> bytes:
        """Return codes as bytes; refuse a code of 2^bits or more."""
        width, array = check_int(bits, "bits", 1, MAX_PACKED_BITS), np.asarray(codes)
        require(array.dtype.kind in "iu" or array.size == 0, "type of the codes", str(array.dtype), "whole numbers")
        if array.size:
            require(int(array.min()) >= 0, "smallest code", int(array.min()), "at least 0")
            require(int(array.max()) < 2**width, "largest code", int(array.max()), f"below 2^{width}")
        return self._pack(np.ascontiguousarray(array.reshape(-1), dtype=code_type(width)), width)

    def unpack(self, data: ByteBuffer, bits: int, dimension: int) -> Codes:
        """Return bytes as codes; refuse a wrong length or a padding bit that is not zero."""
        return self._unpack(_check_packed(data, bits, dimension), bits, dimension)

    def norm(self, inputs: Update, order: Order) -> float:
        """Return the L1 or L2 norm within NORM_ERROR (see `norm.py`); every kernel returns the same number."""
        return joint_norm(self._flat(inputs), order, self._block_sums, self._largest)

    def accumulate(
        self, payloads: Iterable[ByteBuffer], bits: int, table: Sequence[int] | NDArray[np.int64], total: NDArray[Any]
    ) -> int:
        """Add ``table[code]`` of every payload to ``total``, coordinate by coordinate; return how many were added.

        All are integers, so the order of payloads does not matter and nothing rounds; the caller ensures that sums fit
        the type of ``total``. ``table = (0, 1)`` counts ones. A payload of the wrong length or with padding bits set
        raises; those read before it may already have been added.
        """
        values, symbols = np.ascontiguousarray(table, np.int64), 2 ** check_int(bits, "bits", 1, MAX_PACKED_BITS)
        require(values.shape == (symbols,), "shape of the table", values.shape, f"({symbols},)")
        fine = total.ndim == 1 and total.dtype in (np.int32, np.int64) and total.flags.c_contiguous
        require(fine and total.flags.writeable, "total", total.dtype, "a flat, writable array of int32 or int64")
        added, stream = 0, iter(payloads)
        while group := [_check_packed(data, bits, total.size) for data in islice(stream, self.GROUP)]:
            self._accumulate(group, bits, values, total)
            added += len(group)
        return added

    def rotate(
        self, inputs: Update, seed: int, block: int | None = None, *, factor: float = 1.0, kind: Any = np.float32
    ) -> Any:
        """Return ``factor * inputs`` rotated by public signs and transforms, in blocks as in `transform.py`.

        ``block`` is a power of two, at most the size of the update; without it the update is padded with zeros to a
        power of two, as one block. The product is formed in double precision and rounded once to ``kind``, float32 or
        float64; `transform.py` bounds the rounding of the rest. A NaN, an infinite entry and entries whose sums
        overflow are refused.
        """
        flat = self._flat(inputs)
        return self._rotate(flat, _check_factor(factor), Blocks.of(flat.size, block, seed), kind)

    def rotate_back(self, values: NDArray[Any], seed: int, block: int | None = None) -> NDArray[Any]:
        """Undo a rotation in place, padding included, and return the values; a server does so once per mean."""
        fine = isinstance(values, np.ndarray) and values.dtype in (np.float32, np.float64) and values.ndim == 1
        require(fine, "values", getattr(values, "dtype", type(values).__name__), "a flat array of float32 or float64")
        require(values.flags.writeable and values.flags.c_contiguous, "values", "another", "contiguous and writable")
        blocks = Blocks.of(values.size, block, seed)
        require(blocks.size == values.size, "length", values.size, "a power of two")
        self._rotate_back(values, blocks)
        return values

    def rotated_rows(self, inputs: Update, seed: int, factor: float, places: NDArray[np.int64]) -> FloatVector:
        """Return some entries of `rotate` in doubles, on the host."""
        rotated: NDArray[np.float32] = self.rotate(inputs, seed, factor=factor)
        return rotated[places].astype(np.float64)

    def normals(self, seed: bytes, count: int) -> FloatVector:
        """Return ``count`` standard normals of a seed of 16 bytes, each within EXPANSION_ERROR of an exact quantile.

        The first normals do not depend on ``count``.
        """
        return normals_of_words(self.words(seed_state(seed), check_int(count, "count", 0, MAX_COUNT)))

    def rows(self, nonce: bytes, count: int, size: int) -> NDArray[np.int64]:
        """Return one row from each of ``count`` strata of ``0 .. size - 1``, in order.

        Stratum j is floor(j p/k) .. floor((j+1) p/k) - 1. A row of a stratum of width s <= 2^24 is chosen with
        probability 1/s up to 2^-64, a relative bias below 2^-40. All strata have the same width exactly when k divides
        p; otherwise widths differ by one, and a row's probability from k/p by a factor of at most 1/(1 - k/p).
        """
        starts = strata(count, size)
        return row_numbers(self.words(start_state(ROWS_KEY, nonce), starts.size - 1), starts)

    def search(
        self,
        direction: FloatVector,
        edges: FloatVector,
        limits: Words,
        block: WordBlock,
        *,
        acceptance_lower: float,
        streams: tuple[int, int] = FIRST_STREAMS,
    ) -> tuple[bytes, int]:
        """Return the first accepted candidate seed, and how many were tried.

        Candidate i is words 2 i and 2 i + 1 of the first stream; it is accepted if word i of the second stream is below
        ``limits[s]``, s = the number of ``edges`` at most t = <direction, normals>. The result is a function of the
        words and the arguments alone.

        ``acceptance_lower`` bounds the probability of one candidate from below, for every direction. After
        `tries_upper` of it the next candidate is returned unseen, which has the law of a zero update. That event has
        the same probability, at most FAILURE_UPPER, for every update, and mixing the laws of two updates with the same
        third in the same proportion brings them closer: it adds nothing to delta. The number of candidates has the same
        geometric law for every update, so the running time reveals nothing either.
        """
        fine = direction.ndim == 1 and 0 < direction.size <= MAX_COUNT and bool(np.all(np.isfinite(direction)))
        require(fine, "direction", direction.shape, "flat and finite, of 1 to 2^24 numbers")
        fine = limits.dtype == np.uint64 and edges.dtype == np.float64 and limits.shape == (edges.size + 1,)
        require(fine, "limits", (limits.shape, limits.dtype), "uint64, one more than edges, which are float64")
        require(np.all(edges[1:] > edges[:-1]), "edges", "another order", "increasing")
        cap = tries_upper(acceptance_lower)
        for begin in range(0, cap, BATCH):
            some = min(BATCH, cap - begin)
            seeds = block.uniform64(streams[0], 2 * begin, 2 * some).astype("<u8", copy=False)
            at = self._first_accepted(seeds, block.uniform64(streams[1], begin, some), direction, edges, limits)
            if at >= 0:
                return seeds[2 * at : 2 * at + 2].tobytes(), begin + at + 1
        return block.uniform64(streams[0], 2 * cap, 2).astype("<u8", copy=False).tobytes(), cap + 1

    def rounded_noise(
        self, values: FloatVector, unit: float, law: NoiseLaw, block: WordBlock, start: int
    ) -> FloatVector:
        """Return coordinates ``start ..`` with real-valued noise of scale ``unit``, rounded to a public grid.

        The law of the result is exactly that of the nearest multiples of `rounded.grid_of(unit)` (`rounded.py`).
        Streams from 0 on are read.
        """
        steps, sure = self._noise_steps(values, unit, law, block.uniform64(0, start, values.size))
        for i in np.flatnonzero(~sure).tolist():
            steps[i] = settle(float(values[i]), unit, law, block, start + i)
        return np.asarray(steps * grid_of(unit))

    def add_seeds(
        self, nonces: Body, seeds: Body, total: NDArray[np.int64], *, count: int, shift: int, weights: Any = None
    ) -> None:
        """Add ``weight * round(2^shift z)`` of every payload to the rows of its nonce; integers, in any order.

        ``nonces`` is (payloads, 8) and ``seeds`` (payloads, 16) bytes; a weight of -1 removes a payload exactly. The
        caller ensures that sums fit (`finest_shift`).
        """
        payloads = len(seeds)
        shapes, kinds = (seeds.shape, nonces.shape), (str(seeds.dtype), str(nonces.dtype))
        require(shapes == ((payloads, 16), (payloads, 8)), "seeds and nonces", shapes, "(payloads, 16), (payloads, 8)")
        require(kinds == ("uint8", "uint8"), "seeds and nonces", kinds, "bytes")
        each = np.ones(payloads, np.int64) if weights is None else np.ascontiguousarray(weights, dtype=np.int64)
        require(each.shape == (payloads,), "weights", each.shape, f"one for each of {payloads} payloads")
        _check_total(total)
        scale, starts = math.ldexp(1.0, check_int(shift, "shift", 0, 48)), strata(count, total.size)
        if payloads:
            given = np.ascontiguousarray(nonces), np.ascontiguousarray(seeds), each
            self._add_seeds(*given, starts, scale, total)

    def scatter(self, nonce: bytes, numbers: NDArray[np.int64], total: NDArray[np.int64]) -> None:
        """Add integers to the rows of a nonce, as `add_seeds` does, for a payload that carries codes."""
        fine = numbers.ndim == 1 and numbers.dtype == np.int64
        require(fine, "numbers", str(numbers.dtype), "a flat array of int64")
        _check_total(total)
        total[self.rows(nonce, numbers.size, total.size)] += numbers

    @abstractmethod
    def words(self, state: NDArray[np.uint32], count: int) -> Words:
        """Return the first words of a stream of ChaCha20, in the order of `expand.stream_words`."""

    def _flat(self, inputs: Update) -> Any:
        """Return the update in this kernel's form, with a size, a shape, and `copied`."""
        return Flat.of(inputs)

    def _check_output(self, out: Any, size: int) -> None:
        """Refuse a buffer that does not hold exactly the packed codes."""
        fine = isinstance(out, np.ndarray) and out.shape == (size,) and out.dtype == np.uint8
        fine = fine and out.flags.c_contiguous and out.flags.writeable
        found = (getattr(out, "shape", None), str(getattr(out, "dtype", type(out).__name__)))
        require(fine, "output buffer", found, f"{size} contiguous writable bytes")

    @abstractmethod
    def _sample(self, job: Job) -> float:
        """Sample and pack; return the sum that the job asks for, with a relative error below LOOK_ERROR."""

    @abstractmethod
    def _block_sums(self, flat: Any, order: int, scale: float) -> NDArray[np.float64]:
        """Return doubles whose exact sum is that of all blocks' sums of ``|scale * value|^order`` (`norm.py`)."""

    def _largest(self, flat: Any) -> float:
        """Return the largest absolute value; NaN if there is one."""
        pieces = (flat.piece(start, min(flat.size, start + PIECE)) for start in range(0, flat.size, PIECE))
        return float(np.max([np.max(np.abs(piece)) for piece in pieces], initial=0.0))

    @abstractmethod
    def _accumulate(self, group: list[NDArray[np.uint8]], bits: int, table: NDArray[np.int64], total: Any) -> None:
        """Add ``table[code]`` of at most GROUP payloads."""

    @abstractmethod
    def _rotate(self, flat: Any, factor: float, blocks: Blocks, kind: Any) -> Any:
        """Return ``factor`` times the update, padded with zeros and rotated; refuse entries that are not finite."""

    @abstractmethod
    def _rotate_back(self, values: NDArray[Any], blocks: Blocks) -> None:
        """Undo a rotation in place."""

    @abstractmethod
    def _first_accepted(
        self, seeds: Words, words: Words, direction: FloatVector, edges: FloatVector, limits: Words
    ) -> int:
        """Return the index of the first seed (two words each) whose word is below its step's limit, or -1."""

    @abstractmethod
    def _add_seeds(self, nonces: Any, seeds: Any, weights: Any, starts: Any, scale: float, total: Any) -> None:
        """Add ``weight * round(scale z)`` of every payload to the rows of its nonce."""

    def _noise_steps(self, values: FloatVector, unit: float, law: NoiseLaw, words: NDArray[np.uint64]) -> Any:
        """Return `rounded.steps_of`."""
        return steps_of(values, unit, law, words)

    def _pack(self, codes: Codes, bits: int) -> bytes:
        """Write every code's bits in order, least significant first."""
        lifted = (codes[:, None] >> np.arange(bits, dtype=codes.dtype)) & codes.dtype.type(1)
        return np.packbits(lifted.astype(np.uint8).reshape(-1), bitorder="little").tobytes()

    def _unpack(self, data: NDArray[np.uint8], bits: int, dimension: int) -> Codes:
        """Read codes of ``bits`` bits back."""
        lifted = np.unpackbits(data, bitorder="little")[: bits * dimension].reshape(dimension, bits)
        weights = (1 << np.arange(bits)).astype(np.uint32)
        codes: Codes = (lifted * weights).sum(axis=1, dtype=np.uint32).astype(code_type(bits))
        return codes


def packed_size(bits: int, dimension: int) -> int:
    """Return the number of bytes of ``dimension`` codes of ``bits`` bits.

    >>> packed_size(3, 11)
    5
    """
    width = check_int(bits, "bits", 1, MAX_PACKED_BITS)
    return (width * check_int(dimension, "dimension", 0, MAX_DIMENSION) + 7) // 8


def code_type(bits: int) -> Any:
    """Return the dtype that holds unpacked codes."""
    return np.uint8 if bits <= 8 else np.uint16


@contextmanager
def _wiped(out: Any) -> Iterator[None]:
    """Wipe ``out`` if anything fails, so that no sampled value remains."""
    try:
        yield
    except BaseException:
        out[:] = 0
        raise


def _check_factor(factor: float) -> float:
    """Refuse a clip factor outside 0 (an update too long for any double) to 1."""
    return 0.0 if factor == 0 else check_real(factor, "factor", at_most=1.0)


def _check_packed(data: ByteBuffer, bits: int, dimension: int) -> NDArray[np.uint8]:
    """Return the bytes as an array; refuse them unless length and padding are right."""
    size = packed_size(bits, dimension)
    flat = np.frombuffer(data, dtype=np.uint8)
    require(flat.size == size, "length of the packed codes", flat.size, f"{size} bytes")
    used = (bits * dimension) % 8
    if used:
        require(int(flat[-1]) >> used == 0, "padding bits", int(flat[-1]) >> used, "zero")
    return flat


def _check_total(total: NDArray[Any]) -> None:
    fine = total.ndim == 1 and total.dtype == np.int64 and total.flags.c_contiguous
    require(fine, "total", str(total.dtype), "a flat, contiguous array of int64")
