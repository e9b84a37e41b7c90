"""Golden payloads for ever: files written once are read alike by every later version of the library.

The reader (`by_the_book.py`) follows docs/reference/wire_format.md, so that format, documentation
and library check each other.
"""

from __future__ import annotations

import hashlib
import struct
import tomllib
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from core.golden.by_the_book import block, codes_of, of_codes, of_seed, read
from core.golden.payload_cases import CASES, CLIP, CLIPS, DIMENSION, FOLDER, payload, uplink
from quietbit import InvalidPayload
from quietbit.wire.uplink import Uplink

PINNED = tomllib.loads((Path(__file__).parent / "payloads.toml").read_text())
FILES = {name: (FOLDER / f"{name}.bin").read_bytes() for name in CASES}


def test_no_file_is_without_a_case_and_no_case_without_a_file() -> None:
    assert {path.stem for path in FOLDER.glob("*.bin")} == set(CASES) == set(PINNED)


@pytest.mark.parametrize("name", CASES)
def test_files_are_the_ones_that_were_written(name: str) -> None:
    assert hashlib.sha256(FILES[name]).hexdigest() == PINNED[name]["sha256"]


@pytest.mark.parametrize("name", CASES)
def test_all_is_where_the_documentation_says(name: str) -> None:
    bits, dimension, identity, body = read(FILES[name])
    pinned = PINNED[name]
    assert bits == pinned.get("bits", 0) == CASES[name].layout.bits
    assert identity == pinned["identity"]
    if bits:
        assert codes_of(body, bits, dimension) == pinned["codes"]
    else:
        assert (dimension, body.hex()) == (DIMENSION, pinned["body"])
        assert len(body) == (16 if "shared" in name else 24)


@pytest.mark.parametrize("name", CASES)
def test_mechanisms_keep_their_identity(name: str) -> None:
    header = uplink(name).header
    assert header.identity.hex() == PINNED[name]["identity"]
    assert FILES[name].startswith(header.fields)


@pytest.mark.parametrize("name", CASES)
def test_files_are_received_as_their_values(name: str) -> None:
    mechanism: Any = CASES[name]
    bits, dimension, _, body = read(FILES[name])
    if bits:
        values = of_codes(mechanism, bits, codes_of(body, bits, dimension))
    else:
        shared = b"" if len(body) == 24 else (5).to_bytes(8, "little")
        body = shared + body
        values = of_seed(mechanism.core, body[:8], body[8:])
    clip = 1 if mechanism.unitless else CLIPS.get(name, CLIP)
    exact = "rotated" not in name and "shared" not in name  # or in single precision
    found = uplink(name).receive([FILES[name]] * 2)
    assert found == pytest.approx(clip * values[:DIMENSION], rel=0, abs=1e-9 if exact else 1e-5)


def test_the_cipher_is_the_published_one() -> None:
    """First block of the zero key and nonce, from the test vectors of the cipher's author for
    keys of 128 bits.
    """
    stream = struct.pack("<16I", *block(bytes(16), bytes(8), 0))
    assert stream.hex().startswith(
        "89670952608364fd00b2f90936f031c8e756e15dba04b8493d00429259b20f46"
    )


@pytest.mark.parametrize("name", [name for name in CASES if "imvu" in name or "vmvu" in name])
def test_the_same_words_give_the_same_bytes(name: str) -> None:
    """For the interpolated and the vector mechanism every bit is specified, from the words to
    the wire.
    """
    assert payload(name) == FILES[name]


@pytest.mark.parametrize("name", CASES)
def test_a_payload_is_of_one_clip(name: str) -> None:
    clip = CLIPS.get(name, CLIP)
    for other in (1.0001 * clip, clip / 2, 1 / clip if clip != 1 else 3.0):
        with pytest.raises(InvalidPayload, match="payload of another mechanism or clip"):
            Uplink(CASES[name], clip=other).receive([FILES[name]])


ROTATED: Any = CASES["rotated_imvu_1bit"]
SCOUTED: Any = CASES["clip_vmvu_seed"]
SHARED: Any = CASES["rows_vmvu_shared"]
CHANGED: dict[str, tuple[str, Any]] = {
    "no rotation": ("rotated_imvu_1bit", evolve(ROTATED, rotation=None)),
    **{
        f"a rotation of another {field}": (
            "rotated_imvu_1bit",
            evolve(ROTATED, rotation=evolve(ROTATED.rotation, **{field: value})),
        )
        for field, value in (("seed", 4), ("block", 4), ("exact", True))
    },
    "other scouts": ("clip_vmvu_seed", evolve(SCOUTED, every=19)),
    "no scouts": ("clip_vmvu_seed", SCOUTED.inner),
    "other rows": ("rows_vmvu_shared", SHARED.at(6)),
}


@pytest.mark.parametrize("change", CHANGED)
def test_what_is_changed_is_another_mechanism(change: str) -> None:
    name, mechanism = CHANGED[change]
    with pytest.raises(InvalidPayload, match="mechanism identity of the payload"):
        Uplink(mechanism, clip=CLIPS.get(name, CLIP)).receive([FILES[name]])
