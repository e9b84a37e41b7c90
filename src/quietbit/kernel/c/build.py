"""Build the C kernel: with the system's compiler, or with the `ziglang` wheel where there is none.

Idea     the library lies beside its sources and is named by a digest of them and of the flags, so
         that an old library is never used with a changed source. Installing builds it; a checkout
         that is used without being installed builds it at first use, in place: whoever may write
         there may change the Python sources, too.

    python -m quietbit.kernel.c      # builds the library if it is missing, prints its path

The build hook runs this file before anything is installed, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

__all__ = ["SOURCES", "BuildFailed", "build_library", "find_compiler", "library_path", "zig_target"]

FOLDER = Path(__file__).parent
SOURCES = ("quietbit.h", "passes.h", "real_passes.h", "quietbit.c")
# Contracting a product and a sum changes results. No code needs traps or errno, and gcc vectorises
# only loops that can raise neither.
FLAGS = (
    "-std=c11",
    "-O3",
    "-ffp-contract=off",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-shared",
)
SUFFIXES = {"win32": ".dll", "darwin": ".dylib"}
OLDEST_GLIBC = "2.17"


class BuildFailed(Exception):
    """No compiler, no place to write, or a compiler that failed; the message is one sentence."""


def library_path(source: Path = FOLDER / "quietbit.c", beside: Sequence[str] = SOURCES) -> Path:
    """Return the path of a source's library, built or not; ``beside`` are the files it needs."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for name in beside:
        digest.update(source.with_name(name).read_bytes())
    machine = platform.machine().lower()
    suffix = SUFFIXES.get(sys.platform, ".so")
    return source.with_name(f"_{source.stem}-{digest.hexdigest()[:12]}-{machine}{suffix}")


def find_compiler() -> list[str] | None:
    """Return the command of $CC, cc, gcc, clang, or zig from the `ziglang` wheel; None if none."""
    chosen = os.environ.get("CC")
    if chosen:
        return chosen.split()
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            return [path]
    if find_spec("ziglang") is not None:
        target = zig_target(sys.platform, platform.machine())
        return [sys.executable, "-m", "ziglang", "cc", "-target", target]
    return None


def zig_target(system: str, machine: str) -> str:
    """Return zig's name for a platform; without a target zig compiles for this very processor."""
    processor = machine.lower()
    processor = {"amd64": "x86_64", "arm64": "aarch64"}.get(processor, processor)
    if system == "win32":
        return f"{processor}-windows-gnu"
    if system == "darwin":
        return f"{processor}-macos"
    if "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or ""):
        return f"{processor}-linux-musl"
    return f"{processor}-linux-gnu.{OLDEST_GLIBC}"


def build_library(
    source: Path = FOLDER / "quietbit.c",
    beside: Sequence[str] = SOURCES,
    *,
    compiler: Sequence[str] | None = None,
) -> Path:
    """Build the library of a source unless it exists, remove older ones, and return its path.

    Raises `BuildFailed` with the reason. Two processes may build at once: each replaces the file
    atomically.
    """
    target = library_path(source, beside)
    if target.exists():
        return target
    command = list(compiler) if compiler is not None else find_compiler()
    if command is None:
        raise BuildFailed("there is no C compiler (cc, gcc, clang, or the ziglang wheel)")
    position_independent = [] if sys.platform == "win32" else ["-fPIC"]
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="_build-") as folder:
            output = Path(folder, target.name)
            run = subprocess.run(  # noqa: S603
                [*command, *FLAGS, *position_independent, str(source), "-o", str(output)],
                capture_output=True,
                text=True,
                check=False,
            )
            if run.returncode != 0:
                lines = run.stderr.strip().splitlines() or ["no message"]
                errors = [line for line in lines if "error" in line]
                reason = (errors or lines)[0]
                raise BuildFailed(f"{command[0]} failed with status {run.returncode}: {reason}")
            output.replace(target)
    except OSError as error:
        raise BuildFailed(
            f"{target.parent} cannot be written, or {command[0]} cannot be run: {error}"
        ) from error
    for old in target.parent.glob(f"_{source.stem}-*{target.suffix}"):
        if old != target:
            with contextlib.suppress(OSError):  # on Windows a loaded library stays
                old.unlink()
    return target
