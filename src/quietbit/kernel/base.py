"""What a kernel is: a few operations that every device answers alike, bit for bit.

Idea     randomness is an argument, the update is never copied whole, and the result goes into the caller's
         buffer.
Symbols  d = dimension, b = bits; coordinate k's code occupies bits k b .. (k+1) b - 1 of a little-endian bit
         stream (least significant bit of the first byte first); the padding bits of the last byte are zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import Codes
from quietbit.errors import check_int, require
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.sampler import Sampler

__all__ = [
    "MAX_DIMENSION",
    "ByteBuffer",
    "Kernel",
    "Order",
    "Update",
    "check_codes",
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


class Kernel(Protocol):
    """One device's way to sample, pack, measure and count.

    Updates are arrays of float16, float32 or float64, or of uint16 holding the bit patterns of bfloat16, of
    any shape and layout; a list of them stands for their concatenation. An update with a NaN or infinite
    entry is refused before a word is drawn; ``verified=True`` says that `norm` has already looked at this
    very update.
    """

    @property
    def name(self) -> str:
        """The name `select` knows this kernel by."""
        ...

    def sample(
        self,
        sampler: Sampler,
        inputs: Update,
        rng: RandomBits,
        *,
        factor: float = 1.0,
        verified: bool = False,
    ) -> Codes:
        """One code per coordinate of ``factor * inputs``, in the shape of a single array, else flat."""
        ...

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
        """The same codes, packed into all of ``out``, which holds ``packed_size(bits, d)`` bytes."""
        ...

    def sample_clipped(
        self,
        sampler: Sampler,
        inputs: Update,
        order: Order,
        radius: float,
        rng: RandomBits,
        out: NDArray[np.uint8],
    ) -> None:
        """The codes of the update clipped to the ball of that norm and radius, packed into all of ``out``.

        What is sampled lies in the ball even if somebody else writes to the update at the same time: either a
        private copy is measured and sampled, or what was sampled is measured again, and a sum too large wipes
        ``out`` and raises. Every kernel applies the same factor, `norm.Clip.of(norm, radius, order).factor`.
        """
        ...

    def pack(self, codes: Codes, bits: int) -> bytes:
        """Codes as bytes; a code of 2^bits or more is refused."""
        ...

    def unpack(self, data: ByteBuffer, bits: int, dimension: int) -> Codes:
        """Bytes as codes; a wrong length or a padding bit that is not zero is refused."""
        ...

    def norm(self, inputs: Update, order: Order) -> float:
        """The L1 or L2 norm within NORM_ERROR (see `norm.py`), the same number from every kernel."""
        ...

    def accumulate(
        self,
        payloads: Iterable[ByteBuffer],
        bits: int,
        table: NDArray[np.int64],
        total: NDArray[np.int64] | NDArray[np.int32],
    ) -> int:
        """Add ``table[code]`` of every payload to ``total``, coordinate by coordinate; how many were added.

        Whole numbers, so the order of payloads does not matter and nothing rounds; whether sums fit the
        type of ``total`` is the caller's to see to. ``table = (0, 1)`` counts ones.
        """
        ...


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
    require(fine, "output buffer", found, f"{size} writable bytes in a row")


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
