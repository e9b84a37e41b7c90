"""What a kernel is: a few operations that every device answers alike, bit for bit.

Idea     randomness is an argument, the update is never copied whole, and the result goes into the caller's
         buffer.
Symbols  d = dimension, b = bits; coordinate k's code occupies bits k b .. (k+1) b - 1 of a little-endian bit
         stream (least significant bit of the first byte first); the padding bits of the last byte are zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import Codes, FloatVector
from quietbit.errors import check_int, require
from quietbit.kernel.chacha import start_state
from quietbit.kernel.chunks import Flat
from quietbit.kernel.expand import FIRST_STREAMS, MAX_COUNT, ROWS_KEY, row_numbers, search, seed_state, strata
from quietbit.kernel.norm import Clip, check_rotated, rotated_factor
from quietbit.kernel.quantile import normals_of_words
from quietbit.kernel.rng import RandomBits, WordBlock
from quietbit.kernel.rounded import NoiseLaw, rounded_noise, steps_of
from quietbit.kernel.sampler import Sampler
from quietbit.kernel.transform import check_transformed

__all__ = [
    "MAX_DIMENSION",
    "ByteBuffer",
    "Kernel",
    "Order",
    "Update",
    "check_codes",
    "check_in_place",
    "check_output",
    "check_packed",
    "check_table",
    "code_type",
    "packed_size",
]

ByteBuffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]
Update: TypeAlias = Any  # an array, or a sequence of arrays read one after the other as one flat vector
Order: TypeAlias = Literal[1, 2]

MAX_PACKED_BITS = 16
MAX_DIMENSION = 2**48


class Kernel(ABC):
    """One device's way to sample, pack, measure, count, rotate and expand; every kernel has all of it.

    Updates are arrays of float16, float32 or float64, or of uint16 holding the bit patterns of bfloat16, of
    any shape and layout; a list of them stands for their concatenation. An update with a NaN or infinite
    entry is refused before a word is drawn; ``verified=True`` says that `norm` has already looked at this
    very update.
    """

    name: ClassVar[str]  # what `select` knows this kernel by

    @abstractmethod
    def sample(
        self, sampler: Sampler, inputs: Update, rng: RandomBits, *, factor: float = 1.0, verified: bool = False
    ) -> Codes:
        """Return one code per coordinate of ``factor * inputs``, in the shape of a single array, else flat."""

    @abstractmethod
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
        """Pack the same codes into all of ``out``, which holds ``packed_size(bits, d)`` bytes."""

    def sample_clipped(
        self, sampler: Sampler, inputs: Update, order: Order, radius: float, rng: RandomBits, out: NDArray[np.uint8]
    ) -> None:
        """Pack the codes of the update clipped to the ball of that norm and radius into all of ``out``.

        What is sampled lies in the ball even if somebody else writes to the update at the same time: either a
        private copy is measured and sampled, or what was sampled is measured again, and a sum too large wipes
        ``out`` and raises. Every kernel applies the same factor, `norm.Clip.of(norm, radius, order).factor`.
        """
        flat = Flat.of(inputs)
        check_output(out, sampler.bits, flat.size)
        own = flat.copied()
        clip = Clip.of(self.norm(own, order), radius, order)
        self.sample_packed(sampler, own, rng, out, factor=clip.factor, verified=True)

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
        """Pack the codes of the update, clipped to the L2 ball of that radius and rotated in blocks, into ``out``.

        The update is scaled by `norm.rotated_factor` of its norm and rotated by `block_rotate` in float32. That vector
        is private and is measured itself: if somebody else wrote to the update meanwhile and it is longer than the
        radius, nothing is released. So what is sampled lies in the ball whatever the transform rounds, and the factor's
        room sees to it that an update which nobody changed never fails.
        """
        check_output(out, sampler.bits, Flat.of(inputs).size)
        factor = rotated_factor(self.norm(inputs, 2), radius)
        own = self.block_rotate(inputs, seed, block, factor=factor)
        check_rotated(self.norm(own, 2), radius)
        self.sample_packed(sampler, own, rng, out, verified=True)

    @abstractmethod
    def pack(self, codes: Codes, bits: int) -> bytes:
        """Return codes as bytes; a code of 2^bits or more is refused."""

    @abstractmethod
    def unpack(self, data: ByteBuffer, bits: int, dimension: int) -> Codes:
        """Return bytes as codes; a wrong length or a padding bit that is not zero is refused."""

    @abstractmethod
    def norm(self, inputs: Update, order: Order) -> float:
        """Return the L1 or L2 norm within NORM_ERROR (see `norm.py`), the same number from every kernel."""

    @abstractmethod
    def accumulate(
        self,
        payloads: Iterable[ByteBuffer],
        bits: int,
        table: NDArray[np.int64],
        total: NDArray[np.int64] | NDArray[np.int32],
    ) -> int:
        """Add ``table[code]`` of every payload to ``total``, coordinate by coordinate; return how many were added.

        Whole numbers, so the order of payloads does not matter and nothing rounds; whether sums fit the
        type of ``total`` is the caller's to see to. ``table = (0, 1)`` counts ones.
        """

    @abstractmethod
    def hadamard(self, values: Any) -> Any:
        """Transform in place, and return, a flat contiguous float32 or float64 array of a power of two of numbers.

        The transform is `transform.hadamard`; applied twice it gives the input back, up to rounding.
        """

    @abstractmethod
    def rotate(self, inputs: Update, seed: int, *, factor: float = 1.0, kind: Any = np.float32) -> Any:
        """Return ``factor * inputs`` with public signs, padded with zeros to a power of two, and transformed.

        The product is formed in double precision and rounded once to ``kind``, float32 or float64; `transform.py` has
        a bound on the rounding of the rest. A NaN, an infinite entry and entries whose sums overflow are refused.
        """

    @abstractmethod
    def rotate_back(self, values: Any, seed: int) -> Any:
        """Undo a rotation in place, padding included, and return the values: what a server does once per mean."""

    @abstractmethod
    def block_rotate(
        self, inputs: Update, seed: int, block: int, *, factor: float = 1.0, kind: Any = np.float32
    ) -> Any:
        """Return ``factor * inputs``, rounded once to ``kind``, rotated in blocks as `transform.block_rotate` does it.

        As many numbers as the update has; ``block`` is a power of two of at most as many. Refused as by `rotate`.
        """

    @abstractmethod
    def block_rotate_back(self, values: Any, seed: int, block: int) -> Any:
        """Undo `block_rotate` in place, and return the values."""

    def rotated_rows(self, inputs: Update, seed: int, factor: float, places: NDArray[np.int64]) -> FloatVector:
        """Return some entries of `rotate` in doubles, on the host."""
        rotated: NDArray[np.float32] = self.rotate(inputs, seed, factor=factor)
        return rotated[places].astype(np.float64)

    @abstractmethod
    def words(self, state: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
        """Return the first words of a stream of ChaCha20, in the order of `expand.stream_words`."""

    def normals(self, seed: bytes, count: int) -> FloatVector:
        """Return the normals of a seed of 16 bytes: `expand.normals`."""
        return normals_of_words(self.words(seed_state(seed), check_int(count, "count", 0, MAX_COUNT)))

    def rows(self, nonce: bytes, count: int, size: int) -> NDArray[np.int64]:
        """Return the rows of a nonce: `expand.rows`."""
        starts = strata(count, size)
        return row_numbers(self.words(start_state(ROWS_KEY, nonce), starts.size - 1), starts)

    @abstractmethod
    def first_accepted(
        self,
        seeds: NDArray[np.uint64],
        words: NDArray[np.uint64],
        direction: FloatVector,
        edges: FloatVector,
        limits: NDArray[np.uint64],
    ) -> int:
        """Return the number of the first seed (two words each) whose word is below its step's limit, or -1."""

    def search(
        self,
        direction: FloatVector,
        edges: FloatVector,
        limits: NDArray[np.uint64],
        block: WordBlock,
        *,
        acceptance_lower: float,
        streams: tuple[int, int] = FIRST_STREAMS,
    ) -> tuple[bytes, int]:
        """Return the first of the candidate seeds that is accepted, and how many were looked at.

        Candidate i is words 2 i and 2 i + 1 of the first stream; it is accepted if word i of the second stream is below
        ``limits[s]``, s = the number of ``edges`` at most t = <direction, normals>. Given the words the answer is a
        function of the arguments alone.

        ``acceptance_lower`` bounds the chance of one candidate from below, for every direction. After `tries_upper` of
        it the next candidate is returned unseen, which is the law of a zero update. That event has the same
        probability, at most FAILURE_UPPER, for every update, and mixing the laws of two updates with one and the same
        third in the same proportion brings them closer: it adds nothing to delta. The number of candidates follows the
        same geometric law for every update, so the time taken tells nothing either.
        """
        chosen = {"acceptance_lower": acceptance_lower, "streams": streams}
        return search(self.first_accepted, direction, edges, limits, block, **chosen)  # type: ignore[arg-type]

    def rounded_noise(
        self, values: FloatVector, unit: float, law: NoiseLaw, block: WordBlock, start: int
    ) -> FloatVector:
        """Return values of coordinates ``start ..`` with real-valued noise of size ``unit``, rounded to a public grid.

        The law of what is returned is exactly that of the nearest multiples of `rounded.grid_of(unit)`: `rounded.py`.
        """
        return rounded_noise(values, unit, law, block, start, steps_of)

    @abstractmethod
    def add_seeds(
        self, nonces: Any, seeds: Any, total: Any, *, count: int, shift: int, weights: Any | None = None
    ) -> None:
        """Add ``weight * round(2^shift z)`` of every payload to the rows of its nonce; whole numbers, in any order.

        ``nonces`` is (payloads, 8) and ``seeds`` (payloads, 16) bytes; a weight of -1 takes a payload out again,
        exactly. Whether sums fit is the caller's to see to (`finest_shift`).
        """

    def scatter(self, nonce: bytes, numbers: NDArray[np.int64], total: NDArray[np.int64]) -> None:
        """Add whole numbers to the rows of a nonce: what `add_seeds` does, for a payload that carries codes."""
        fine = numbers.ndim == 1 and numbers.dtype == np.int64
        require(fine, "numbers", str(numbers.dtype), "a flat array of int64")
        require(total.ndim == 1 and total.dtype == np.int64, "total", str(total.dtype), "a flat array of int64")
        total[self.rows(nonce, numbers.size, total.size)] += numbers


def packed_size(bits: int, dimension: int) -> int:
    """Bytes that carry ``dimension`` codes of ``bits`` bits.

    >>> packed_size(3, 11)
    5
    """
    width = check_int(bits, "bits", 1, MAX_PACKED_BITS)
    return (width * check_int(dimension, "dimension", 0, MAX_DIMENSION) + 7) // 8


def check_output(out: NDArray[np.uint8], bits: int, dimension: int) -> None:
    """Refuse a buffer that does not hold exactly the packed codes."""
    size = packed_size(bits, dimension)
    fine = isinstance(out, np.ndarray) and out.shape == (size,) and out.dtype == np.uint8
    fine = fine and out.flags.c_contiguous and out.flags.writeable
    found = (getattr(out, "shape", None), str(getattr(out, "dtype", type(out).__name__)))
    require(fine, "output buffer", found, f"{size} contiguous writable bytes")


def check_in_place(values: Any) -> NDArray[Any]:
    """The array to be transformed, refused unless it can be, in place."""
    array = check_transformed(values)
    fine = array.flags.writeable and array.flags.c_contiguous
    require(fine, "array to transform", "another", "contiguous and writable")
    return array


def check_packed(data: ByteBuffer, bits: int, dimension: int) -> NDArray[np.uint8]:
    """The bytes as an array, refused unless length and padding are right."""
    size = packed_size(bits, dimension)
    flat = np.frombuffer(data, dtype=np.uint8)
    require(flat.size == size, "length of the packed codes", flat.size, f"{size} bytes")
    used = (bits * dimension) % 8
    if used:
        require(int(flat[-1]) >> used == 0, "padding bits", int(flat[-1]) >> used, "zero")
    return flat


def check_codes(codes: Codes, bits: int) -> Codes:
    """The codes, flat and contiguous, as uint8 or (from 9 bits on) uint16."""
    width = check_int(bits, "bits", 1, MAX_PACKED_BITS)
    array = np.asarray(codes)
    require(array.dtype.kind in "iu" or array.size == 0, "type of the codes", str(array.dtype), "whole numbers")
    flat = array.reshape(-1)
    if flat.size:
        require(int(flat.min()) >= 0, "smallest code", int(flat.min()), "at least 0")
        require(int(flat.max()) < 2**width, "largest code", int(flat.max()), f"below 2^{width}")
    return np.ascontiguousarray(flat, dtype=code_type(width))


def code_type(bits: int) -> Any:
    """The type that holds unpacked codes."""
    return np.uint8 if bits <= 8 else np.uint16


def check_table(table: Sequence[int] | NDArray[np.int64], bits: int, total: NDArray[Any]) -> NDArray[np.int64]:
    """The table as int64, refused unless it has one entry per code and ``total`` can take the sums."""
    values = np.ascontiguousarray(table, dtype=np.int64)
    symbols = 2 ** check_int(bits, "bits", 1, MAX_PACKED_BITS)
    require(values.shape == (symbols,), "shape of the table", values.shape, f"({symbols},)")
    fine = total.ndim == 1 and total.dtype in (np.int32, np.int64) and total.flags.c_contiguous
    require(fine and total.flags.writeable, "total", total.dtype, "a flat, writable array of int32 or int64")
    return values
