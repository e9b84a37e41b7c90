"""Standard normals from 64-bit words, the same bits everywhere, and inner products of them.

Idea     a word's top bit is the sign; the other 63, made odd, are w, and |z*| is the quantile of
         1 - w / 2^64. As a double, w chooses one of 1,009 polynomials by its exponent and four
         bits; the other 48 are the argument. |z - z*| <= EXPANSION_ERROR and |z| <= LARGEST for
         every word.
Symbols  k = count, normals of a payload; u = direction, a unit vector of length k; z the normals of
         a seed, z* their exact quantiles; t = <u, z>.
Source   Wichura (1988) for piecewise quantiles, whose table is made and proved by
         `tests/core/kernel/quantile_maker.py`.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.errors import InvalidDesignFile, InvalidParameter, check_int, require

__all__ = [
    "EXPANSION_ERROR",
    "LARGEST",
    "MAX_COUNT",
    "inner",
    "inner_error_upper",
    "law_error_upper",
    "normals_of_words",
    "quantile_table",
    "unit",
]

SUMS = 64  # partial sums of an inner product
MAX_COUNT = 2**24
UNIT = 2.0**-53

PARTS = 16  # rows of the table per octave
ROWS = 63 * PARTS + 1  # the last one for w that rounds up to 2^63
EXPANSION_ERROR = 2.0**-48  # proved row by row in the tests: at most 2.2e-15
LARGEST = 9.0802  # the quantile at q = 2^-64 is 9.08015...
LOW = 2**63 - 1
ONE_BITS = 1023 << 52  # the double 1.0
INDEX_SHIFT = 48  # exponent and the first four bits of the mantissa are above
FIRST_INDEX = 1023 * PARTS
REST = 2**48 - 1
# Coefficients as a stored file: every machine uses the same numbers.
PROVED = {
    "quantile.bin": ("<f8", "f6734e5bbb501c566dad088d78502776e7671f0482dbeb60da4142fd230bb0e5"),
}


def proved_table(name: str) -> FloatVector:
    """Return the numbers of a file beside this one, in doubles; refuse a modified file."""
    kind, digest = PROVED[name]
    data = Path(__file__).with_name(name).read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise InvalidDesignFile(
            f"The table {name} is not the one that was proved right: install quietbit again."
        )
    return np.frombuffer(data, dtype=kind).astype(np.float64)


@lru_cache(maxsize=1)
def quantile_table() -> FloatMatrix:
    """Return the coefficients, one row per polynomial, constant first."""
    table: FloatMatrix = proved_table("quantile.bin").reshape(ROWS, 8)
    table.setflags(write=False)
    return table


def normals_of_words(words: NDArray[np.uint64]) -> FloatVector:
    """Return one normal per word; every kernel takes the same products and sums, unfused."""
    word = np.ascontiguousarray(words, dtype=np.uint64).view(np.int64)
    bits = ((word & LOW) | 1).astype(np.float64).view(np.int64)
    table = quantile_table()[(bits >> INDEX_SHIFT) - FIRST_INDEX]
    t = 2.0 * (((bits & REST) << 4) | ONE_BITS).view(np.float64) - 3.0
    z = table[..., 7]
    for k in range(6, -1, -1):
        z = z * t + table[..., k]
    return np.asarray(np.where(word < 0, -z, z))


def law_error_upper(count: int) -> float:
    """Bound the error of the probability that ``count`` exact quantiles lie in a half-space.

    The bound also holds for quadrants. z* is N(0, 1) rounded to the middle of one of 2^63 equally
    likely cells, so an interval's probability is within 2^-63. Replace one coordinate at a time:
    given the others, half-spaces and quadrants are intervals.
    """
    return check_int(count, "count", 0, 2**40) * 2.0**-63


def unit(vector: FloatVector) -> tuple[FloatVector, float]:
    """Return a vector's direction and length in doubles; zero has the direction of the first axis.

    The error of the direction is part of `inner_error_upper`; that of the length is (k/64 + 10)
    2^-53, relatively.
    """
    values = np.ascontiguousarray(vector, dtype=np.float64)
    flat = values.ndim == 1 and 0 < values.size <= MAX_COUNT
    require(flat, "vector", values.shape, f"flat, of 1 to {MAX_COUNT} numbers")
    largest = float(np.max(np.abs(values)))
    if not math.isfinite(largest):
        raise InvalidParameter.of("update", "finite everywhere", "a NaN or infinite entry")
    if largest == 0.0:
        return np.eye(1, values.size)[0], 0.0
    # Dividing by a power of two is exact here, and keeps squares away from overflow and underflow.
    exponent = math.frexp(largest)[1]
    scaled = np.ldexp(values, -exponent)
    length = math.sqrt(inner(scaled, scaled))
    return scaled / length, math.ldexp(length, exponent)


def inner(left: FloatVector, right: NDArray[np.float64]) -> Any:
    """Return inner products with each row of ``right``: 64 partial sums, then a tree of sums.

    Every kernel adds in this order.
    """
    product = np.zeros((*right.shape[:-1], -(-left.size // SUMS) * SUMS))
    np.multiply(left, right, out=product[..., : left.size])
    sums = np.zeros((*right.shape[:-1], SUMS))
    for start in range(0, product.shape[-1], SUMS):
        sums += product[..., start : start + SUMS]
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    return sums[..., 0][()]  # a number where ``right`` is a single vector


def inner_error_upper(count: int) -> float:
    """Bound |computed t - <y/|y|, z*>| for u = `unit(y)` and z = `normals`.

    With n = ceil(k/64) + 7 roundings between a product and the sum (Higham 2002, chapters 3 and 4),
    |z| <= LARGEST and sum |u_i| <= sqrt(k) |u|: the sum's own error is at most gamma_n |u|_1
    LARGEST; the direction's entries are off by gamma_{n+3} relatively (half of a sum of squares'
    error, its root, a quotient; the factor 1 + 2^-20 covers entries that underflow); normals by
    EXPANSION_ERROR.
    """
    size = check_int(count, "count", 1, MAX_COUNT)
    depth = -(-size // SUMS) + 7
    roundings = (2 * depth + 4) * UNIT
    rounding = roundings / (1 - roundings)
    return math.sqrt(size) * (rounding * LARGEST + EXPANSION_ERROR) * (1 + 2.0**-20)
