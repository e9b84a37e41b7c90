"""From 64-bit words to standard normals: a piecewise polynomial for the normal quantile, the same bits everywhere.

Idea     the top bit of a word is the sign; the other 63, made odd, are w, and |z| is the normal quantile of 1 - w /
         2^64. As a double, w has its octave in the exponent and its place inside the octave in the mantissa: exponent
         and four bits choose one of 1,009 polynomials of degree 7, the other 48 bits are its argument. Only integer
         operations and double-precision products and sums in a fixed order are used, none of them fused, so numpy,
         numba and Triton agree bit for bit on every machine with IEEE arithmetic.
Symbols  w odd, 1 .. 2^63 - 1; q = w / 2^64; z* the exact quantile; t from -1 to 1; c_0 .. c_7 a row of the table.
Source   the table is made, and its error proved, by `tests/unit/kernel/quantile_maker.py`; Wichura (1988) for the
         idea of piecewise approximations to this function.

What an account may use.

- |z - z*| <= EXPANSION_ERROR for every word, and |z| <= LARGEST. The law of z is symmetric, exactly.
- z* is N(0,1) rounded to the middle (in probability) of one of 2^63 equally likely cells, so for every x
  |P(z* <= x) - Phi(x)| <= 2^-64, and P(z* in I) is within 2^-63 of the normal probability of any interval I.
- For z* of k words and any vectors u, v: P(<u, z*> <= x and <v, z*> <= y) is within `law_error_upper(k)` = k 2^-63 of
  what it is for k independent normals. Proof: replace one coordinate at a time. Given the others, the event is that
  the coordinate lies in an interval, whose probability changes by at most 2^-63. One half-space is the case v = 0, y
  >= 0.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.errors import InvalidDesignFile, check_int

__all__ = [
    "EXPANSION_ERROR",
    "LARGEST",
    "ROWS",
    "law_error_upper",
    "normals_of_words",
    "proved_table",
    "quantile_table",
]

PARTS = 16  # rows per octave
ROWS = 63 * PARTS + 1  # the last for w that rounds up to 2^63
FILE = "quantile.bin"
DIGEST = "f6734e5bbb501c566dad088d78502776e7671f0482dbeb60da4142fd230bb0e5"
EXPANSION_ERROR = 2.0**-48  # proved row by row in the tests: at most 2.2e-15
LARGEST = 9.0802  # the quantile at q = 2^-64 is 9.08015...

LOW = 2**63 - 1
ONE_BITS = 1023 << 52  # the double 1.0
INDEX_SHIFT = 48  # exponent and the first four bits of the mantissa are above
FIRST_INDEX = 1023 * PARTS
REST = 2**48 - 1


@lru_cache(maxsize=1)
def quantile_table() -> FloatMatrix:
    """Return the coefficients, one row per polynomial, constant first; refuse a table other than the proved one."""
    table: FloatMatrix = proved_table(FILE, "<f8", DIGEST).reshape(ROWS, 8)
    table.setflags(write=False)
    return table


def proved_table(name: str, kind: str, digest: str) -> FloatVector:
    """Return the numbers of a file beside this one, in doubles; refuse a file other than the proved one."""
    data = Path(__file__).with_name(name).read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise InvalidDesignFile(f"The table {name} must be the one that was proved right, got another.")
    return np.frombuffer(data, dtype=kind).astype(np.float64)


def law_error_upper(count: int) -> float:
    """Bound how far half-spaces and quadrants of ``count`` exact quantiles are from their normal probabilities."""
    return check_int(count, "count", 0, 2**40) * 2.0**-63


def normals_of_words(words: NDArray[np.uint64]) -> FloatVector:
    """Return one normal per word, with numpy.

    >>> normals_of_words(np.array([2**62, 2**63 + 2**62], dtype=np.uint64)).round(9)
    array([ 0.67448975, -0.67448975])
    """
    word = np.ascontiguousarray(words, dtype=np.uint64).view(np.int64)
    bits = ((word & LOW) | 1).astype(np.float64).view(np.int64)
    table = quantile_table()[(bits >> INDEX_SHIFT) - FIRST_INDEX]
    t = 2.0 * (((bits & REST) << 4) | ONE_BITS).view(np.float64) - 3.0
    z = table[..., 7]
    for k in range(6, -1, -1):
        z = z * t + table[..., k]
    signed: FloatVector = np.where(word < 0, -z, z)
    return signed
