"""Version 1 for ever: files written once are read alike by every later version of the library.

The reader here follows docs/reference/wire_format.md with the standard library alone, so that
format, documentation and library check each other.
"""

from __future__ import annotations

import hashlib
import struct
import tomllib
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.golden.payload_cases import CASES, CLIP, DIMENSION, FOLDER, payload, uplink
from quietbit.kernel.transform import rotate_back

FIRST = [name for name in CASES if name.startswith("v1")]
PINNED = tomllib.loads((Path(__file__).parent / "payloads.toml").read_text())


def read_by_the_book(data: bytes) -> tuple[int, bytes, list[int]]:
    """Bits, identity and codes of a payload of version 1."""
    magic, version, bits, dimension, length, identity, body_crc, head_crc = struct.unpack(
        "<4sHHQQ32sII", data[:64]
    )
    assert (magic, version) == (b"QBIT", 1)
    assert head_crc == zlib.crc32(data[:60])
    assert body_crc == zlib.crc32(data[64:])
    assert len(data) == 64 + length == 64 + (bits * dimension + 7) // 8
    stream = int.from_bytes(data[64:], "little")
    codes = [stream >> (bits * k) & (2**bits - 1) for k in range(dimension)]
    assert stream >> (bits * dimension) == 0
    return bits, identity, codes


def test_no_file_is_without_a_case_and_no_case_without_a_file() -> None:
    assert {path.stem for path in FOLDER.glob("*.bin")} == set(CASES) == set(PINNED)


@pytest.mark.parametrize("name", CASES)
def test_files_are_the_ones_that_were_written(name: str) -> None:
    data = (FOLDER / f"{name}.bin").read_bytes()
    assert hashlib.sha256(data).hexdigest() == PINNED[name]["sha256"]


@pytest.mark.parametrize("name", FIRST)
def test_codes_are_where_the_documentation_says(name: str) -> None:
    bits, identity, codes = read_by_the_book((FOLDER / f"{name}.bin").read_bytes())
    assert bits == PINNED[name]["bits"] == CASES[name].layout.bits
    assert identity.hex() == PINNED[name]["identity"]
    assert codes == PINNED[name]["codes"]


@pytest.mark.parametrize("name", CASES)
def test_mechanisms_keep_their_identity(name: str) -> None:
    header = uplink(name).header
    assert header.identity.hex() == PINNED[name]["identity"]
    assert (FOLDER / f"{name}.bin").read_bytes().startswith(header.fields)


@pytest.mark.parametrize("name", FIRST)
def test_files_are_received_as_their_values(name: str) -> None:
    mechanism: Any = CASES[name]
    _, _, codes = read_by_the_book((FOLDER / f"{name}.bin").read_bytes())
    if mechanism.layout.bits == 32:
        expected = np.array(codes, dtype=np.uint32).view(np.float32).astype(np.float64)
    elif hasattr(mechanism, "values"):
        expected = mechanism.values[np.array(codes)]
        expected = expected if mechanism.unitless else CLIP * expected
    else:  # Skellam: centred, scaled and rotated back by a reader of its own
        half = 2 ** (mechanism.bits - 1)
        centred = (np.array(codes) + half) % (2 * half) - half
        expected = rotate_back(CLIP * centred / mechanism.scale, mechanism.rotation_seed)[
            : mechanism.ball.dimension
        ]
    found = uplink(name).receive([(FOLDER / f"{name}.bin").read_bytes()] * 2)
    assert found.shape == (DIMENSION,)
    assert np.allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in CASES if "imvu" in name or "vmvu" in name])
def test_the_same_words_give_the_same_bytes(name: str) -> None:
    """For the interpolated and the vector mechanism every bit is specified, from the words to
    the wire.
    """
    assert payload(name) == (FOLDER / f"{name}.bin").read_bytes()
