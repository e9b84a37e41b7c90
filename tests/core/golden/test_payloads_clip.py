"""Payloads at other clips than 1: codes and seeds are those of the mechanism, floats are in clips."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from core.golden.payload_cases import CASES, CLIP, CLIPS, DIMENSION, FOLDER, UPDATE, uplink
from core.golden.test_payloads import read_by_the_book
from core.golden.test_payloads_v2 import decoded
from core.golden.test_payloads_v2 import read_by_the_book as read_second
from quietbit import InvalidPayload, seeded_rng
from quietbit.wire.uplink import Uplink

PINNED = tomllib.loads((Path(__file__).parent / "payloads.toml").read_text())
MOVING = [name for name in CASES if name.startswith("clip")]


def test_codes_are_those_of_the_mechanism() -> None:
    name = "clip_imvu_3bit"
    bits, identity, codes = read_by_the_book((FOLDER / f"{name}.bin").read_bytes())
    mechanism: Any = CASES[name]
    assert (bits, identity.hex(), codes) == (3, PINNED[name]["identity"], PINNED[name]["codes"])
    assert len(codes) == DIMENSION
    found = uplink(name).receive([(FOLDER / f"{name}.bin").read_bytes()] * 2)
    assert found == pytest.approx(0.75 * mechanism.values[np.array(codes)], abs=1e-9)


def test_a_seed_is_that_of_the_mechanism() -> None:
    name = "clip_vmvu_seed"
    dimension, identity, body = read_second((FOLDER / f"{name}.bin").read_bytes())
    mechanism: Any = CASES[name]
    pinned = (DIMENSION, PINNED[name]["identity"], PINNED[name]["body"])
    assert (dimension, identity.hex(), body.hex()) == pinned
    assert len(body) == 24
    found = uplink(name).receive([(FOLDER / f"{name}.bin").read_bytes()])
    assert found == pytest.approx(6 * decoded(mechanism.inner, body), abs=1e-9)


def test_floats_are_in_clips() -> None:
    name = "clip_gaussian"
    _, _, codes = read_by_the_book((FOLDER / f"{name}.bin").read_bytes())
    values = np.array(codes, dtype=np.uint32).view(np.float32).astype(np.float64)
    found = uplink(name).receive([(FOLDER / f"{name}.bin").read_bytes()])
    assert found == pytest.approx(CLIP * values, abs=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_a_payload_is_of_one_clip(name: str) -> None:
    clip = CLIPS.get(name, CLIP)
    for other in (1.0001 * clip, clip / 2, 1 / clip if clip != 1 else 3.0):
        with pytest.raises(InvalidPayload, match="payload of another mechanism or clip"):
            Uplink(CASES[name], clip=other).receive([(FOLDER / f"{name}.bin").read_bytes()])


def test_other_scouts_are_another_mechanism() -> None:
    name = "clip_vmvu_seed"
    mechanism: Any = CASES[name]
    for changed in (evolve(mechanism, every=19), mechanism.inner):
        with pytest.raises(InvalidPayload, match="mechanism identity of the payload"):
            Uplink(changed, clip=6.0).receive([(FOLDER / f"{name}.bin").read_bytes()])


@pytest.mark.parametrize("name", ["imvu_1bit", "vmvu_seed", "sign_gaussian"])
def test_powers_of_two_scale_exactly(name: str) -> None:
    """An update of 8 at clip 8 is one of 1 at clip 1: the same body."""
    mechanism = next(CASES[case] for case in CASES if case.endswith(name))
    bodies = set()
    for clip in (2.0**-9, 1.0, 8.0):
        channel = Uplink(mechanism, clip=clip)
        bodies.add(channel.send(clip * UPDATE, seeded_rng(1))[channel.header.head :])
    assert len(bodies) == 1
