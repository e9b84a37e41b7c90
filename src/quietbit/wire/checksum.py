"""CRC-32 of long bodies, on one thread or several; the same number either way.

Idea     the checksum is there for accidents: a flipped bit, a lost packet, a half-written file. Anyone can
         compute it, so it proves nothing about who sent a payload; use an authenticated channel for that.
         CRC-32 is in every language's standard library, catches every error of one or two bits (in bodies up
         to 512 MB) and every burst of up to 32, and misses other errors once in 2^32 times.
Symbols  P = the polynomial 0xEDB88320 (bit-reflected); crc(A B) = crc(A) x^(8 |B|) + crc(B) modulo P.
Source   ISO 3309 for the polynomial; the standard library's zlib for the arithmetic on bytes.
"""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor

__all__ = ["checksum", "joined"]

POLYNOMIAL = 0xEDB88320
ONE = 1 << 31  # the polynomial 1: the highest bit is the constant term
WORTHWHILE = 1 << 21  # bytes per thread below which starting a thread does not pay


def checksum(data: memoryview | bytes, threads: int = 1) -> int:
    """CRC-32 of the bytes.

    >>> checksum(b"123456789") == 0xCBF43926
    True
    """
    workers = max(1, min(threads, len(data) // WORTHWHILE))
    if workers == 1:
        return zlib.crc32(data)
    width, view = -(-len(data) // workers), memoryview(data)
    pieces = [view[start : start + width] for start in range(0, len(data), width)]
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(zlib.crc32, pieces))
    total = found[0]
    for crc, piece in zip(found[1:], pieces[1:], strict=True):
        total = joined(total, crc, len(piece))
    return total


def joined(first: int, second: int, length: int) -> int:
    """The checksum of two pieces one after the other; ``length`` is that of the second, in bytes.

    >>> joined(zlib.crc32(b"quiet"), zlib.crc32(b"bit"), 3) == zlib.crc32(b"quietbit")
    True
    """
    power, base, exponent = ONE, ONE >> 1, 8 * length
    while exponent:
        if exponent & 1:
            power = _product(power, base)
        base, exponent = _product(base, base), exponent >> 1
    return _product(first, power) ^ second


def _product(a: int, b: int) -> int:
    """The product modulo P."""
    result = 0
    for place in range(31, -1, -1):
        if a >> place & 1:
            result ^= b
        b = (b >> 1) ^ (POLYNOMIAL if b & 1 else 0)  # b times x
    return result
