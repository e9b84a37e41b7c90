"""Rotated payloads and shared rows, for ever: read from docs/reference/wire_format.md alone.

The rotation is written out as a matrix: numpy has the public signs, scipy the Hadamard matrices.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from scipy.linalg import hadamard

from core.golden.payload_cases import CASES, CLIP, DIMENSION, FOLDER, payload, uplink
from core.golden.test_payloads import read_by_the_book
from core.golden.test_payloads_v2 import decoded
from core.golden.test_payloads_v2 import read_by_the_book as read_second
from quietbit import InvalidPayload
from quietbit.wire.uplink import Uplink

PINNED = tomllib.loads((Path(__file__).parent / "payloads.toml").read_text())
ROTATED = [name for name in CASES if name.startswith("rotated")]


def matrix(size: int, block: int, seed: int) -> Any:
    """R: one block after the other, and where they do not fit one more on the last coordinates."""
    count = size + block
    key = np.random.SeedSequence(seed, spawn_key=(count,)).generate_state(2, np.uint64)
    words = np.random.Philox(key=key).random_raw(-(-count // 64)).astype("<u8")
    signs = 1.0 - 2.0 * np.unpackbits(words.view(np.uint8), bitorder="little")[:count]
    found, last = np.eye(size), hadamard(block) / np.sqrt(block)
    for start in range(0, size - block + 1, block):
        found[start : start + block, start : start + block] = last * signs[start : start + block]
    if size % block:
        again = np.eye(size)
        again[-block:, -block:] = last * signs[size:]
        found = again @ found
    assert np.allclose(found @ found.T, np.eye(size), atol=1e-12)
    return found


@pytest.mark.parametrize("name", ROTATED)
def test_codes_are_those_of_the_rotated_update(name: str) -> None:
    mechanism: Any = CASES[name]
    bits, identity, codes = read_by_the_book((FOLDER / f"{name}.bin").read_bytes())
    pinned = PINNED[name]
    assert (bits, identity.hex(), codes) == (pinned["bits"], pinned["identity"], pinned["codes"])
    assert len(codes) == DIMENSION  # nothing is padded
    turn = matrix(DIMENSION, mechanism.rotation.block, mechanism.rotation.seed)
    mean = CLIP * turn.T @ mechanism.values[np.array(codes)]
    assert uplink(name).receive([(FOLDER / f"{name}.bin").read_bytes()]) == pytest.approx(
        mean, abs=1e-5
    )
    assert payload(name) == (FOLDER / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", ROTATED)
def test_another_rotation_is_another_mechanism(name: str) -> None:
    mechanism: Any = CASES[name]
    turn = mechanism.rotation
    for other in (
        None,
        evolve(turn, seed=turn.seed + 1),
        evolve(turn, block=4),
        evolve(turn, exact=not turn.exact),
    ):
        with pytest.raises(InvalidPayload, match="mechanism identity of the payload"):
            Uplink(evolve(mechanism, rotation=other), clip=CLIP).receive(
                [(FOLDER / f"{name}.bin").read_bytes()]
            )


def test_shared_rows_have_no_nonce() -> None:
    name = "rows_vmvu_shared"
    mechanism: Any = CASES[name]
    dimension, identity, body = read_second((FOLDER / f"{name}.bin").read_bytes())
    assert (dimension, identity.hex(), body.hex()) == (
        DIMENSION,
        PINNED[name]["identity"],
        PINNED[name]["body"],
    )
    assert len(body) == 16
    own = evolve(mechanism, rows=None)
    mean = CLIP * decoded(own, (5).to_bytes(8, "little") + body)
    assert uplink(name).receive([(FOLDER / f"{name}.bin").read_bytes()]) == pytest.approx(
        mean, abs=1e-5
    )
    assert payload(name) == (FOLDER / f"{name}.bin").read_bytes()
    with pytest.raises(InvalidPayload, match="mechanism identity of the payload"):
        Uplink(mechanism.at(6), clip=CLIP).receive([(FOLDER / f"{name}.bin").read_bytes()])
