"""The one path, for tests: codes of what `Uplink.send` writes, and what `Uplink.receive` makes of codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from quietbit import Uplink
from quietbit.wire.header import Header
from quietbit.wire.payload import Payload

__all__ = ["decode", "encode"]


def encode(mechanism: Any, update: Any, rng: Any, kernel: str | None = None) -> Any:
    """The codes of one release, in the update's shape where there is one per coordinate."""
    codes = Payload.from_bytes(Uplink(mechanism, kernel=kernel).send(update, rng)).codes()
    shape = np.shape(update)
    return codes.reshape(shape) if codes.size == int(np.prod(shape)) else codes


def decode(mechanism: Any, codes: Any) -> Any:
    """What a server makes of one release with these codes, in their shape where there is one per coordinate."""
    payload = Payload.from_codes(Header.of(mechanism), codes)
    mean = Uplink(mechanism).receive([payload.to_bytes()])
    return mean.reshape(np.shape(codes)) if mean.size == np.asarray(codes).size else mean
