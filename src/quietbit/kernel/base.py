"""The interface of a kernel: a few operations that every device answers alike, bit for bit.

Idea     randomness is an argument, the update is never copied whole, and the result goes into the
         caller's buffer. Arguments are checked here, once; a kernel implements the operations whose
         names begin with an underscore.
Symbols  d = dimension, b = bits; coordinate k's code occupies bits k b .. (k+1) b - 1 of a
         little-endian bit stream (least significant bit of the first byte first); the padding bits
         of the last byte are zero.
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
from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.kernel import expand
from quietbit.kernel.norm import Clip, Flat, exact_sum, rotated_factor
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
Update: TypeAlias = (
    Any  # an array, or a sequence of arrays that together, in order, are one flat vector
)
Order: TypeAlias = Literal[1, 2]
Body: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]

MAX_PACKED_BITS = 16
MAX_DIMENSION = 2**48
PIECE = 1 << 19  # coordinates handled at once
BATCH = 64  # candidate seeds whose words are drawn at once
SMALLEST = 2.0**-1020  # a norm above 0 is reported as no less, which clips no less


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


class Kernel(ABC):
    """One device's implementation of sampling, packing, norms, counting, rotation and expansion; all are complete.

    Updates are arrays of float16, float32 or float64, or of uint16 holding the bits of bfloat16, of
    any shape; a list of them stands for their concatenation. One with a NaN or infinite entry is
    refused before a word is drawn.
    """

    name: ClassVar[str]  # the name that `select` knows
    GROUP: ClassVar[int] = 1  # payloads added at once

    def sample(
        self, sampler: Sampler, inputs: Update, rng: RandomBits, *, factor: float = 1.0
    ) -> Codes:
        """Return one code per coordinate of ``factor * inputs``, in the shape of a single array, else flat."""
        flat = self._flat(inputs)
        out = np.empty(packed_size(sampler.bits, flat.size), dtype=np.uint8)
        self.sample_packed(sampler, flat, rng, out, factor=factor)
        return self.unpack(out, sampler.bits, flat.size).reshape(flat.shape)

    def sample_packed(
        self, sampler: Sampler, inputs: Update, rng: RandomBits, out: Body, *, factor: float = 1.0
    ) -> None:
        """Pack the same codes into all of ``out``, which holds ``packed_size(bits, d)`` bytes."""
        times = check_real(factor, "factor", at_least=0.0, at_most=1.0)
        flat, gain = self._flat(inputs), Gain.of(times, sampler.scale)
        self._check_output(out, packed_size(sampler.bits, flat.size))
        self._check_finite(flat)
        self._sample(Job(sampler, gain, flat, rng.draw(flat.size), out))

    def sample_clipped(
        self,
        sampler: Sampler,
        inputs: Update,
        order: Order,
        radius: float,
        rng: RandomBits,
        out: Body,
    ) -> None:
        """Pack the codes of the update clipped to the ball of that norm and radius into all of ``out``.

        The sampled values lie in the ball even if the update is modified at the same time: they are
        measured again while they are sampled (`norm.py`), and a sum too large wipes ``out`` and
        raises.
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
        self,
        sampler: Sampler,
        inputs: Update,
        seed: int,
        block: int,
        radius: float,
        rng: RandomBits,
        out: Body,
    ) -> None:
        """Pack the codes of the update, clipped to the L2 ball of that radius and rotated in blocks, into ``out``.

        The rotated vector, in float32, is private and is measured too: where it is longer than the
        radius nothing is released. So the sampled values lie in the ball however the transform
        rounds, and the factor before it leaves enough room that an unmodified update never fails.
        """
        flat = self._flat(inputs)
        self._check_output(out, packed_size(sampler.bits, flat.size))
        factor, blocks = (
            rotated_factor(self.norm(flat, 2), radius),
            Blocks.of(flat.size, block, seed),
        )
        gain = Gain.of(1.0, sampler.scale)
        with _wiped(out):
            total = self._sample(
                Job(sampler, gain, flat, rng.draw(flat.size), out, 2, blocks, factor)
            )
            Clip.of(0.0, radius, 2).check(total)

    def pack(self, codes: Codes, bits: int) -> bytes:
        """Return codes as bytes; refuse a code of 2^bits or more."""
        width, array = check_int(bits, "bits", 1, MAX_PACKED_BITS), np.asarray(codes)
        require(
            array.dtype.kind in "iu" or array.size == 0,
            "type of the codes",
            str(array.dtype),
            "whole numbers",
        )
        if array.size:
            require(int(array.min()) >= 0, "smallest code", int(array.min()), "at least 0")
            require(
                int(array.max()) < 2**width, "largest code", int(array.max()), f"below 2^{width}"
            )
        return self._pack(np.ascontiguousarray(array.reshape(-1), dtype=code_type(width)), width)

    def unpack(self, data: ByteBuffer, bits: int, dimension: int) -> Codes:
        """Return bytes as codes; refuse a wrong length or a padding bit that is not zero."""
        return self._unpack(_check_packed(data, bits, dimension), bits, dimension)

    def norm(self, inputs: Update, order: Order) -> float:
        """Return the L1 or L2 norm within NORM_ERROR (`norm.py`), the same on every kernel; an overflow is refused."""
        if order not in (1, 2):
            raise InvalidParameter.of("order of the norm", "1 or 2", order)
        flat = self._flat(inputs)
        scale = 1.0
        total = exact_sum(self._block_sums(flat, order, 1.0).tolist())
        if not 2.0**-500 < total < 2.0**500:  # squares may have left the range: measure a multiple
            self._check_finite(flat)
            peak = self._largest(flat)
            if peak == 0.0:
                return 0.0
            scale = 2.0 ** max(-1000, min(1000, 1 - math.frexp(peak)[1]))
            total = exact_sum(self._block_sums(flat, order, scale).tolist())
        result = (math.sqrt(total) if order == 2 else total) / scale
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
        values, symbols = (
            np.ascontiguousarray(table, np.int64),
            2 ** check_int(bits, "bits", 1, MAX_PACKED_BITS),
        )
        require(values.shape == (symbols,), "shape of the table", values.shape, f"({symbols},)")
        fine = total.ndim == 1 and total.dtype in (np.int32, np.int64) and total.flags.c_contiguous
        require(
            fine and total.flags.writeable,
            "total",
            total.dtype,
            "a flat, writable array of int32 or int64",
        )
        stream = iter(payloads)
        while group := [
            _check_packed(data, bits, total.size) for data in islice(stream, self.GROUP)
        ]:
            self._accumulate(group, bits, values, total)

    def rotate(
        self,
        inputs: Update,
        seed: int,
        block: int | None = None,
        *,
        factor: float = 1.0,
        kind: Any = np.float32,
    ) -> Any:
        """Return ``factor * inputs`` rotated by public signs and transforms, in blocks as in `transform.py`.

        Without a ``block`` the update is padded with zeros to a power of two, as one block. The
        product is formed in double precision and rounded once to ``kind``, float32 or float64.
        Entries whose sums overflow are refused.
        """
        flat, times = self._flat(inputs), check_real(factor, "factor", at_least=0.0, at_most=1.0)
        return self._rotate(flat, times, Blocks.of(flat.size, block, seed), kind)

    def rotate_back(
        self, values: NDArray[Any], seed: int, block: int | None = None
    ) -> NDArray[Any]:
        """Undo a rotation in place, padding included, and return the values; a server does so once per mean."""
        fine = (
            isinstance(values, np.ndarray)
            and values.dtype in (np.float32, np.float64)
            and values.ndim == 1
        )
        require(
            fine,
            "values",
            getattr(values, "dtype", type(values).__name__),
            "a flat array of float32 or float64",
        )
        require(
            values.flags.writeable and values.flags.c_contiguous,
            "values",
            "another",
            "contiguous and writable",
        )
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
        """Return the first ``count`` standard normals of a seed of 16 bytes, as `expand.py` makes them."""
        size = check_int(count, "count", 0, expand.MAX_COUNT)
        return expand.normals_of_words(self.words(expand.seed_state(seed), size))

    def rows(self, nonce: bytes, count: int, size: int) -> NDArray[np.int64]:
        """Return one row from each of ``count`` strata of ``0 .. size - 1``, in order.

        Stratum j is floor(j p/k) .. floor((j+1) p/k) - 1. A row of a stratum of width s <= 2^24 is
        chosen with probability 1/s up to a relative bias below 2^-40. Where k does not divide p
        widths differ by one, and a row's probability from k/p by a factor of at most 1/(1 - k/p).
        """
        starts = expand.strata(count, size)
        return expand.row_numbers(
            self.words(start_state(expand.ROWS_KEY, nonce), starts.size - 1), starts
        )

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

        Candidate i is words 2 i and 2 i + 1 of stream 0; it is accepted if word i of stream 1 is
        below ``limits[s]``, s = the number of ``edges`` at most t = <direction, normals>.
        ``acceptance_lower`` bounds the probability of one candidate from below, for every
        direction. After `tries_upper` of it the next candidate is returned unseen, which has the
        law of a zero update: with the same probability, at most FAILURE_UPPER, for every update,
        and mixing two laws with the same third in the same proportion brings them closer, so it
        adds nothing to delta. The number of tries has the same law for every update, so the running
        time reveals nothing either.
        """
        fine = (
            direction.ndim == 1
            and 0 < direction.size <= expand.MAX_COUNT
            and bool(np.all(np.isfinite(direction)))
        )
        require(fine, "direction", direction.shape, "flat and finite, of 1 to 2^24 numbers")
        fine = (
            limits.dtype == np.uint64
            and edges.dtype == np.float64
            and limits.shape == (edges.size + 1,)
        )
        require(
            fine,
            "limits",
            (limits.shape, limits.dtype),
            "uint64, one more than edges, which are float64",
        )
        require(np.all(edges[1:] > edges[:-1]), "edges", "another order", "increasing")
        cap = expand.tries_upper(acceptance_lower)
        for begin in range(0, cap, BATCH):
            some = min(BATCH, cap - begin)
            seeds = block.uniform64(0, 2 * begin, 2 * some).astype("<u8", copy=False)
            at = self._first_accepted(
                seeds, block.uniform64(1, begin, some), direction, edges, limits
            )
            if at >= 0:
                return seeds[2 * at : 2 * at + 2].tobytes(), begin + at + 1
        return block.uniform64(0, 2 * cap, 2).astype("<u8", copy=False).tobytes(), cap + 1

    def rounded_noise(
        self, values: FloatVector, unit: float, law: NoiseLaw, block: WordBlock, start: int
    ) -> FloatVector:
        """Return coordinates ``start ..`` with real noise of scale ``unit``, rounded to `grid_of(unit)`, exactly."""
        steps, sure = self._noise_steps(values, unit, law, block.uniform64(0, start, values.size))
        for i in np.flatnonzero(~sure).tolist():
            steps[i] = settle(float(values[i]), unit, law, block, start + i)
        return np.asarray(steps * grid_of(unit))

    def add_seeds(
        self, nonces: Body, seeds: Body, total: NDArray[np.int64], *, count: int, shift: int
    ) -> None:
        """Add ``round(2^shift z)`` of every payload to the rows of its nonce; with `finest_shift` the integers fit."""
        payloads = len(seeds)
        shapes, kinds = (seeds.shape, nonces.shape), (str(seeds.dtype), str(nonces.dtype))
        require(
            shapes == ((payloads, 16), (payloads, 8)),
            "seeds and nonces",
            shapes,
            "(payloads, 16), (payloads, 8)",
        )
        require(kinds == ("uint8", "uint8"), "seeds and nonces", kinds, "bytes")
        fine = total.ndim == 1 and total.dtype == np.int64 and total.flags.c_contiguous
        require(fine, "total", str(total.dtype), "a flat, contiguous array of int64")
        scale, starts = (
            math.ldexp(1.0, check_int(shift, "shift", 0, 48)),
            expand.strata(count, total.size),
        )
        if payloads:
            self._add_seeds(
                np.ascontiguousarray(nonces), np.ascontiguousarray(seeds), starts, scale, total
            )

    @abstractmethod
    def words(self, state: NDArray[np.uint32], count: int) -> Words:
        """Return the first words of a stream of ChaCha20, in the order of `expand.stream_words`."""

    def _flat(self, inputs: Update) -> Any:
        """Return the update in this kernel's form, with a size, a shape, and `copied`."""
        return Flat.of(inputs)

    def _check_output(self, out: Any, size: int) -> None:
        """Refuse a buffer that does not hold exactly the packed codes."""
        fine = isinstance(out, np.ndarray) and out.shape == (size,) and out.dtype == np.uint8
        if not (fine and out.flags.c_contiguous and out.flags.writeable):
            got = (getattr(out, "shape", None), str(getattr(out, "dtype", type(out).__name__)))
            raise InvalidParameter.of("output buffer", f"{size} contiguous writable bytes", got)

    @abstractmethod
    def _sample(self, job: Job) -> float:
        """Sample and pack; return the sum that the job asks for, with a relative error below LOOK_ERROR."""

    def _sample_copy(self, job: Job, blocks: Blocks) -> float:
        """Rotate the update of a job as a whole, then sample it."""
        own = Flat.of(self._rotate(job.flat, job.factor, blocks, np.float32))
        return self._sample(evolve(job, flat=own, blocks=None))

    @abstractmethod
    def _block_sums(self, flat: Any, order: int, scale: float) -> NDArray[np.float64]:
        """Return doubles whose exact sum is that of all blocks' sums of ``|scale * value|^order`` (`norm.py`)."""

    def _check_finite(self, flat: Any) -> None:
        """Refuse an update with a NaN or infinite entry."""
        sums = self._block_sums(flat, 1, 1.0)
        if not np.all(np.isfinite(sums)) and not math.isfinite(self._largest(flat)):
            raise InvalidParameter("update must be finite everywhere, got a NaN or infinite entry.")

    def _largest(self, flat: Any) -> float:
        """Return the largest absolute value; NaN if there is one."""
        pieces = (
            flat.piece(start, min(flat.size, start + PIECE)) for start in range(0, flat.size, PIECE)
        )
        with np.errstate(invalid="ignore"):
            return float(np.max([np.max(np.abs(piece)) for piece in pieces], initial=0.0))

    @abstractmethod
    def _accumulate(
        self, group: list[NDArray[np.uint8]], bits: int, table: NDArray[np.int64], total: Any
    ) -> None:
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
    def _add_seeds(self, nonces: Any, seeds: Any, starts: Any, scale: float, total: Any) -> None:
        """Add ``round(scale z)`` of every payload to the rows of its nonce."""

    def _noise_steps(
        self, values: FloatVector, unit: float, law: NoiseLaw, words: NDArray[np.uint64]
    ) -> Any:
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
    """Return the number of bytes of ``dimension`` codes of ``bits`` bits."""
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


def _check_packed(data: ByteBuffer, bits: int, dimension: int) -> NDArray[np.uint8]:
    """Return the bytes as an array; refuse them unless length and padding are right."""
    size = packed_size(bits, dimension)
    flat = np.frombuffer(data, dtype=np.uint8)
    require(flat.size == size, "length of the packed codes", flat.size, f"{size} bytes")
    used = (bits * dimension) % 8
    if used:
        require(int(flat[-1]) >> used == 0, "padding bits", int(flat[-1]) >> used, "zero")
    return flat
