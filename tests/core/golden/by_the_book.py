"""A reader of payloads that follows docs/reference/wire_format.md alone, with the standard library,
mpmath, and the rotation as a matrix: numpy has the public signs, scipy the Hadamard matrices.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

import mpmath
import numpy as np
from scipy.linalg import hadamard

IDENTITY = {1: 32, 2: 24}  # bytes, by the version


def read(data: bytes) -> tuple[int, int, str, bytes]:
    """Bits, dimension, identity and body of a payload of either version."""
    version = int.from_bytes(data[4:6], "little")
    head = 32 + IDENTITY[version]
    magic, _, bits, dimension, length, identity, body_crc, head_crc = struct.unpack(
        f"<4sHHQQ{IDENTITY[version]}sII", data[:head]
    )
    assert magic == b"QBIT"
    assert head_crc == zlib.crc32(data[: head - 4])
    assert body_crc == zlib.crc32(data[head:])
    assert len(data) == head + length
    if version == 1:
        assert length == (bits * dimension + 7) // 8
    else:
        assert bits == 0
    return bits, dimension, identity.hex(), data[head:]


def codes_of(body: bytes, bits: int, dimension: int) -> list[int]:
    """Codes of a bit stream whose padding is zero."""
    stream = int.from_bytes(body, "little")
    assert stream >> (bits * dimension) == 0
    return [stream >> (bits * k) & (2**bits - 1) for k in range(dimension)]


def block(key: bytes, nonce: bytes, number: int) -> list[int]:
    """The sixteen words of one block of ChaCha20 with a key of 16 bytes, given twice."""
    constants = struct.unpack("<4I", b"expand 16-byte k")
    counter = (number % 2**32, number >> 32)
    start = [*constants, *struct.unpack("<4I", key) * 2, *counter, *struct.unpack("<2I", nonce)]
    x = list(start)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for first, second, third, turn in (
            (a, b, d, 16),
            (c, d, b, 12),
            (a, b, d, 8),
            (c, d, b, 7),
        ):
            x[first] = (x[first] + x[second]) % 2**32
            mixed = x[third] ^ x[first]
            x[third] = (mixed << turn | mixed >> (32 - turn)) % 2**32

    for _ in range(10):
        for column in range(4):
            quarter(column, 4 + column, 8 + column, 12 + column)
        for column in range(4):
            quarter(column, 4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4)
    return [(end + begin) % 2**32 for end, begin in zip(x, start, strict=True)]


def words(key: bytes, nonce: bytes, count: int) -> list[int]:
    """Word 128 g + 16 j + i is words 2 j (lower half) and 2 j + 1 of block 16 g + i."""
    found = []
    for place in range(count):
        tile, rest = divmod(place, 128)
        j, i = divmod(rest, 16)
        drawn = block(key, nonce, 16 * tile + i)
        found.append(drawn[2 * j] | drawn[2 * j + 1] << 32)
    return found


def normal(word: int) -> float:
    """Sign from the top bit; the magnitude is the quantile of 1 - w / 2^64, w the other bits
    made odd.
    """
    w = (word % 2**63) | 1
    with mpmath.workprec(200):
        size = float(-mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(w) / 2**64 - 1))
    return -size if word >= 2**63 else size


def kept(nonce: bytes, count: int, size: int) -> list[int]:
    width = size // count
    drawn = words(b"quietbit rows v1", nonce, count)
    return [j * width + (word * width >> 64) for j, word in enumerate(drawn)]


def matrix(size: int, length: int, seed: int) -> Any:
    """R: one block after the other, and where they do not fit one more on the last coordinates."""
    count = size if size == length else size + length
    key = np.random.SeedSequence(seed, spawn_key=(count,)).generate_state(2, np.uint64)
    bits = np.random.Philox(key=key).random_raw(-(-count // 64)).astype("<u8")
    signs = 1.0 - 2.0 * np.unpackbits(bits.view(np.uint8), bitorder="little")[:count]
    found, last = np.eye(size), hadamard(length) / np.sqrt(length)
    for start in range(0, size - length + 1, length):
        stop = start + length
        found[start:stop, start:stop] = last * signs[start:stop]
    if size % length:
        again = np.eye(size)
        again[-length:, -length:] = last * signs[size:]
        found = again @ found
    assert np.allclose(found @ found.T, np.eye(size), atol=1e-12)
    return found


def of_codes(mechanism: Any, bits: int, codes: list[int]) -> Any:
    """The mean of one payload of codes or floats, in clips."""
    if bits == 32:
        return np.array(codes, dtype=np.uint32).view(np.float32).astype(np.float64)
    if not hasattr(mechanism, "values"):  # Skellam: centred, scaled and rotated back
        half = 2 ** (bits - 1)
        centred = (np.array(codes) + half) % (2 * half) - half
        turn = matrix(len(codes), len(codes), mechanism.rotation_seed)
        return turn.T @ centred / mechanism.scale
    values = mechanism.values[np.array(codes)]
    rotation = getattr(mechanism, "rotation", None)
    if rotation is None:
        return values
    return matrix(values.size, rotation.block, rotation.seed).T @ values


def of_seed(mechanism: Any, nonce: bytes, seed: bytes) -> Any:
    """The mean of one seed, in clips."""
    count, size = mechanism.keep, 32
    spread = np.zeros(size)
    spread[kept(nonce, count, size)] = [normal(word) for word in words(seed, bytes(8), count)]
    scale = math.sqrt(size / count) / mechanism.profile.gain_lower
    return scale * matrix(size, size, mechanism.rotation_seed).T @ spread
