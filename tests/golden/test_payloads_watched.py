"""Payloads of earlier versions with a bit beside the update: read for ever, as docs/reference/wire_format.md says."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from golden.payload_cases import CASES, DIMENSION, FOLDER
from golden.test_payloads import read_by_the_book
from golden.test_payloads_v2 import decoded
from golden.test_payloads_v2 import read_by_the_book as read_second
from quietbit import InvalidParameter, InvalidPayload
from quietbit.wire.uplink import Uplink

PINNED = tomllib.loads((Path(__file__).parent / "payloads.toml").read_text())


def test_the_last_code_is_the_answer() -> None:
    name = "watched_imvu_3bit"
    bits, identity, codes = read_by_the_book((FOLDER / f"{name}.bin").read_bytes())
    mechanism: Any = CASES[name]
    assert (bits, identity.hex(), codes) == (3, PINNED[name]["identity"], PINNED[name]["codes"])
    assert len(codes) == DIMENSION + 1
    assert codes[-1] in (0, 1)
    found = Uplink(mechanism).receive([FOLDER / f"{name}.bin"] * 2)
    # Values of the inner mechanism, whose radius is 1.5, in units of the clip 0.75.
    assert found == pytest.approx(mechanism.inner.values[np.array(codes[:-1])] / 2, abs=1e-9)


def test_no_new_ones_are_made() -> None:
    mechanism: Any = CASES["watched_imvu_3bit"]
    with pytest.raises(InvalidParameter, match="bit_epsilon must be left out of new releases"):
        Uplink(mechanism).send(np.zeros(DIMENSION))


def test_the_last_byte_is_the_answer_after_a_body_without_codes() -> None:
    name = "watched_vmvu_seed"
    dimension, identity, body = read_second((FOLDER / f"{name}.bin").read_bytes())
    mechanism: Any = CASES[name]
    assert (dimension, identity.hex(), body.hex()) == (DIMENSION, PINNED[name]["identity"], PINNED[name]["body"])
    assert len(body) == 25
    assert body[-1] in (0, 1)
    found = Uplink(mechanism).receive([FOLDER / f"{name}.bin"])
    assert found == pytest.approx(4 * decoded(mechanism.inner, body[:-1]), abs=1e-9)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("watched")])
def test_another_clip_is_another_mechanism(name: str) -> None:
    mechanism: Any = CASES[name]
    for changed in (evolve(mechanism, clip=mechanism.clip * 1.0001), evolve(mechanism, bit_epsilon=0.99)):
        with pytest.raises(InvalidPayload, match="mechanism identity of the payload"):
            Uplink(changed).receive([FOLDER / f"{name}.bin"])
    with pytest.raises(InvalidPayload):
        Uplink(mechanism.inner).receive([FOLDER / f"{name}.bin"])
