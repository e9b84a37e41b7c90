"""Build quietbit.wasm beside this file, with the `ziglang` wheel.

``python examples/browser/build.py``.

The module is kept in the repository because it is small (28 kB) and anybody can make the same
bytes, with zig 0.17.0. `quietbit.wasm.json` names the sources; a test compares them, and a long one
builds the module anew.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from quietbit.kernel.c.build import FOLDER as NATIVE

HERE = Path(__file__).parent
SOURCES = (
    "quietbit.h",
    "passes.h",
    "real_passes.h",
    "quietbit.c",
    "quietbit_client.h",
    "quietbit_client.c",
    "wasm.c",
)
ZIG = "0.17.0"
FLAGS = (
    *(
        "-target",
        "wasm32-freestanding",
        "-msimd128",
        "-mbulk-memory",
        "-Oz",
        "-std=c11",
        "-ffp-contract=off",
    ),
    *(
        "-fno-math-errno",
        "-nostdlib",
        "-Wl,--no-entry",
        "-Wl,--strip-all",
        "-Wl,-z,stack-size=262144",
    ),
)


def sources_digest() -> str:
    """Return a digest of the sources and the flags."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for name in SOURCES:
        digest.update((NATIVE / name).read_bytes())
    return digest.hexdigest()


def build(target: Path) -> None:
    """Compile the module."""
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        *FLAGS,
        str(NATIVE / "wasm.c"),
        "-o",
        str(target),
    ]
    subprocess.run(command, check=True)  # noqa: S603


if __name__ == "__main__":
    module = HERE / "quietbit.wasm"
    build(module)
    digest = hashlib.sha256(module.read_bytes()).hexdigest()
    note = {"sources": sources_digest(), "zig": ZIG, "sha256": digest}
    (HERE / "quietbit.wasm.json").write_text(json.dumps(note, indent=1) + "\n")
