"""Coverage-guided fuzzing of everything that reads bytes from the network; needs atheris, run by
hand.

    pip install atheris
    PYTHONPATH=tests python tests/core/fuzz/atheris_payload.py SCRATCH_FOLDER \
        tests/core/golden/payloads -max_total_time=180 -max_len=512

Every input is judged as `test_payload_fuzz` does, in three ways: as it is, with both checksums made
right (so that the fuzzer gets past them), and as a body behind a right header.
"""

from __future__ import annotations

import sys
from typing import Any


def main():
    """Fuzz for as long as the arguments say."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["quietbit.wire"]):
        from core.fuzz.test_payload_fuzz import UPLINKS, check, resealed

    def one_input(data: bytes):
        for name, uplink in UPLINKS.items():
            check(name, data)
            check(name, resealed(uplink.header.seal(0) + data))
            if len(data) >= 64:
                check(name, resealed(data))

    runner: Any = atheris
    runner.Setup(sys.argv, one_input)
    runner.Fuzz()


if __name__ == "__main__":
    main()
