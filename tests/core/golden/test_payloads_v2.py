"""Version 2 for ever: bodies that only their mechanism reads, read here from
docs/reference/wire_format.md alone.

ChaCha20, rows, quantiles and the Hadamard matrix are written out; mpmath has the quantiles, numpy
the public signs.
"""

from __future__ import annotations

import math
import struct
import tomllib
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from core.golden.payload_cases import CASES, CLIP, DIMENSION, FOLDER, uplink

SECOND = [name for name in CASES if name.startswith("v2")]
PINNED = tomllib.loads((Path(__file__).parent / "payloads.toml").read_text())
LEVELS = (
    551452454,
    1666654756,
    2820758935,
    4047321442,
    5395471909,
    6949456311,
    8886361323,
    11736382841,
)


def read_by_the_book(data: bytes) -> tuple[int, bytes, bytes]:
    """Dimension, identity and body of a payload of version 2."""
    magic, version, bits, dimension, length, identity, body_crc, head_crc = struct.unpack(
        "<4sHHQQ24sII", data[:56]
    )
    assert (magic, version, bits) == (b"QBIT", 2, 0)
    assert head_crc == zlib.crc32(data[:52])
    assert body_crc == zlib.crc32(data[56:])
    assert len(data) == 56 + length
    return dimension, identity, data[56:]


def block(key: bytes, nonce: bytes, number: int) -> list[int]:
    """The sixteen words of one block of ChaCha20 with a key of 16 bytes, given twice."""
    constants = struct.unpack("<4I", b"expand 16-byte k")
    start = [
        *constants,
        *struct.unpack("<4I", key) * 2,
        number % 2**32,
        number >> 32,
        *struct.unpack("<2I", nonce),
    ]
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
    return [
        j * width + (word * width >> 64)
        for j, word in enumerate(words(b"quietbit rows v1", nonce, count))
    ]


def quantised(codes: bytes, count: int) -> list[float]:
    """Four bits each, lower half of a byte first; level divided by g = sum of steps times
    density at thresholds.
    """
    levels = [-level / 2**32 for level in LEVELS[::-1]] + [level / 2**32 for level in LEVELS]
    gain = sum(
        (b - a) * math.exp(-((a + b) ** 2) / 8) / math.sqrt(2 * math.pi)
        for a, b in pairwise(levels)
    )
    return [levels[codes[k // 2] >> 4 * (k % 2) & 15] / gain for k in range(count)]


def decoded(mechanism: Any, body: bytes) -> Any:
    count, size = mechanism.keep, 32
    z = (
        quantised(body[8:], count)
        if len(body) != 24
        else [normal(word) for word in words(body[8:], bytes(8), count)]
    )
    spread = np.zeros(size)
    spread[kept(body[:8], count, size)] = z
    matrix = np.array(
        [[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    ) / math.sqrt(size)
    key = np.random.SeedSequence(mechanism.rotation_seed, spawn_key=(size,)).generate_state(
        2, np.uint64
    )
    bits = int(np.random.Philox(key=key).random_raw(1)[0])
    signs = np.array([-1.0 if bits >> k & 1 else 1.0 for k in range(size)])
    scale = math.sqrt(size / count) / mechanism.profile.gain_lower
    return (signs * (matrix @ spread) * scale)[:DIMENSION]


def test_the_cipher_is_the_published_one() -> None:
    """First block of the zero key and nonce, from the test vectors of the cipher's author for
    keys of 128 bits.
    """
    stream = struct.pack("<16I", *block(bytes(16), bytes(8), 0))
    assert stream.hex().startswith(
        "89670952608364fd00b2f90936f031c8e756e15dba04b8493d00429259b20f46"
    )


@pytest.mark.parametrize("name", SECOND)
def test_bodies_are_where_the_documentation_says(name: str) -> None:
    dimension, identity, body = read_by_the_book((FOLDER / f"{name}.bin").read_bytes())
    assert dimension == DIMENSION
    assert identity.hex() == PINNED[name]["identity"]
    assert body.hex() == PINNED[name]["body"]
    assert len(body) == (24 if "seed" in name else 12)


@pytest.mark.parametrize("name", SECOND)
def test_files_are_received_as_the_documentation_says(name: str) -> None:
    _, _, body = read_by_the_book((FOLDER / f"{name}.bin").read_bytes())
    found = uplink(name).receive([(FOLDER / f"{name}.bin").read_bytes()] * 3)
    assert found == pytest.approx(CLIP * decoded(CASES[name], body), abs=1e-10)
