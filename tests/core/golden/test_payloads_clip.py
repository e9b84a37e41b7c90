"""Payloads of a clip that moves: the inner mechanism's, in units of the clip, as
docs/reference/wire_format.md says.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from core.golden.payload_cases import CASES, DIMENSION, FOLDER
from core.golden.test_payloads import read_by_the_book
from core.golden.test_payloads_v2 import decoded
from core.golden.test_payloads_v2 import read_by_the_book as read_second
from quietbit import InvalidParameter, InvalidPayload
from quietbit.mechanism.registry import build, describe
from quietbit.wire.uplink import Uplink

PINNED = tomllib.loads((Path(__file__).parent / "payloads.toml").read_text())
MOVING = [name for name in CASES if name.startswith("clip")]


def test_codes_are_those_of_the_inner_mechanism() -> None:
    name = "clip_imvu_3bit"
    bits, identity, codes = read_by_the_book((FOLDER / f"{name}.bin").read_bytes())
    mechanism: Any = CASES[name]
    assert (bits, identity.hex(), codes) == (3, PINNED[name]["identity"], PINNED[name]["codes"])
    assert len(codes) == DIMENSION
    found = Uplink(mechanism).receive([(FOLDER / f"{name}.bin").read_bytes()] * 2)
    # Values of the inner mechanism, whose radius is 1.5, in units of the clip 0.75.
    assert found == pytest.approx(mechanism.inner.values[np.array(codes)] / 2, abs=1e-9)


def test_a_seed_is_that_of_the_inner_mechanism() -> None:
    name = "clip_vmvu_seed"
    dimension, identity, body = read_second((FOLDER / f"{name}.bin").read_bytes())
    mechanism: Any = CASES[name]
    assert (dimension, identity.hex(), body.hex()) == (
        DIMENSION,
        PINNED[name]["identity"],
        PINNED[name]["body"],
    )
    assert len(body) == 24
    found = Uplink(mechanism).receive([(FOLDER / f"{name}.bin").read_bytes()])
    assert found == pytest.approx(4 * decoded(mechanism.inner, body), abs=1e-9)


@pytest.mark.parametrize("name", MOVING)
def test_another_clip_is_another_mechanism(name: str) -> None:
    mechanism: Any = CASES[name]
    for changed in (
        evolve(mechanism, clip=mechanism.clip * 1.0001),
        evolve(mechanism, every=19, truth=0.5),
    ):
        with pytest.raises(InvalidPayload, match="mechanism identity of the payload"):
            Uplink(changed).receive([(FOLDER / f"{name}.bin").read_bytes()])
    with pytest.raises(InvalidPayload):
        Uplink(mechanism.inner).receive([(FOLDER / f"{name}.bin").read_bytes()])


@pytest.mark.parametrize("name", MOVING)
def test_the_bit_of_an_earlier_version_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidParameter, match="bit_epsilon"):
        build(describe(CASES[name]) | {"bit_epsilon": 1.0})
