"""Coverage-guided fuzzing of everything that reads bytes from the network; needs atheris, run by
hand.

    pip install atheris python tests/core/fuzz/atheris_payload.py SCRATCH_FOLDER tests/core/golden/payloads
    -max_total_time=180 -max_len=512

Every input is tried three ways: as it is, with both checksums made right (so that the fuzzer gets
past them), and as a body behind a right header. A crash is anything but `InvalidPayload`, a payload
that does not write back to the same bytes, or a refused one that changed the mean.
"""

from __future__ import annotations

import io
import struct
import sys
import zlib
from typing import Any


def resealed(data: bytes) -> bytes:
    """Make both checksums right, as an attacker would."""
    partial = data[:56] + struct.pack("<I", zlib.crc32(data[64:]))
    return partial + struct.pack("<I", zlib.crc32(partial)) + data[64:]


def main() -> None:
    """Fuzz for as long as the arguments say."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["quietbit.wire"]):
        import numpy as np

        from quietbit.design.table import Design, DesignSpec
        from quietbit.errors import InvalidPayload
        from quietbit.kernel.rng import seeded_rng
        from quietbit.mechanism.additive import Gaussian
        from quietbit.mechanism.ball import Ball, Norm
        from quietbit.mechanism.interpolated import InterpolatedMVU
        from quietbit.wire.payload import Payload
        from quietbit.wire.uplink import Uplink

    bit = Design(
        DesignSpec(2, 1, 1.0), np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([0.0, 1.0])
    )
    rows = np.array([[0.5, 0.25, 0.125, 0.125], [0.125, 0.125, 0.25, 0.5]])
    two = Design(DesignSpec(2, 2, 2.0), rows, np.array([0.0, 0.25, 0.75, 1.0]))
    ball = Ball(Norm.L2, 13)
    uplinks = [
        Uplink(found)
        for found in (InterpolatedMVU(bit, ball), InterpolatedMVU(two, ball), Gaussian(ball, 1.0))
    ]
    good = [uplink.send(np.linspace(-1, 1, 13), seeded_rng(0)) for uplink in uplinks]
    means = [uplink.receive([data]) for uplink, data in zip(uplinks, good, strict=True)]

    def judge(data: bytes) -> None:
        try:
            if Payload.from_bytes(data).to_bytes() != data:
                raise RuntimeError("two byte strings for the same codes")
        except InvalidPayload:
            pass
        for uplink, valid, mean in zip(uplinks, good, means, strict=True):
            for source in (data, io.BytesIO(data)):
                found = uplink.collect([valid, source], on_error="skip")
                if found.refused and not np.array_equal(found.mean, mean):
                    raise RuntimeError("a refused payload changed the mean")

    def one_input(data: bytes) -> None:
        judge(data)
        if len(data) >= 64:
            judge(resealed(data))
        for uplink in uplinks:
            judge(resealed(uplink.header.seal(0) + data))

    runner: Any = atheris
    runner.Setup(sys.argv, one_input)
    runner.Fuzz()


if __name__ == "__main__":
    main()
