"""Compile the CPU kernels before many processes would compile the same at once, or find them compiled already.

numba keeps machine code beside the sources and knows it by their content. The same files lie in a folder named by a
digest of all sources, so that a new checkout of known sources compiles nothing; `compile_kernels.py keep`, after the
tests, adds what they alone compile.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

import quietbit
import quietbit_lab
from quietbit import Uplink
from quietbit.kernel.rng import secure_rng, seeded_rng
from unit.mechanism.makers import MECHANISMS

FOLDERS = (Path(quietbit.__file__).parent / "kernel", Path(str(quietbit_lab.__file__)).parent / "cohort")
KEPT = 4  # versions of the sources


def store() -> Path:
    """Where machine code of these sources is kept."""
    files = sorted(file for folder in FOLDERS for kind in ("*.py", "*.bin") for file in folder.glob(kind))
    digest = hashlib.sha256(sys.version.encode() + b"".join(file.read_bytes() for file in files))
    return user_cache_path("quietbit-tests") / "kernels" / digest.hexdigest()[:16]


def copy(start: Path, end: Path) -> None:
    """Copy machine code, index files last: an index without its code would only be compiled anew.

    An index numbers its files of code, and two of the same function number them differently: what is there stays.
    """
    end.mkdir(parents=True, exist_ok=True)
    there = {index.stem for index in end.glob("*.nbi")}
    for kind, named in (("*.nbc", lambda file: Path(file.stem).stem), ("*.nbi", lambda file: file.stem)):
        for file in start.glob(kind):
            if named(file) not in there:
                shutil.copy2(file, end)


def keep() -> None:
    """Put what is compiled now in the place of what was kept, whole; of two who do so at once the second may not."""
    kept = store()
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as temporary, contextlib.suppress(OSError):
        for folder in FOLDERS:
            copy(folder / "__pycache__", Path(temporary, "new", folder.name))
        if kept.exists():
            kept.rename(Path(temporary, "old"))
        Path(temporary, "new").rename(kept)
    for old in sorted(kept.parent.iterdir(), key=lambda folder: folder.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def main() -> None:
    """Release once and receive once with every mechanism, for updates of either width."""
    for folder in FOLDERS:
        copy(store() / folder.name, folder / "__pycache__")
    # As people use them: rotated in one block and in several, and codes for sums.
    target = {"epsilon": 4.0, "delta": 1e-5, "adjacency": "zero-out"}
    small, large = (quietbit.Ball("l2", 1.0, dimension) for dimension in (650, 100_000))
    rotated = [quietbit.calibrate("imvu", ball=ball, **target).mechanism for ball in (small, large)]
    summed = quietbit.calibrate_sum(ball=small, clients=100, **target).mechanism
    for mechanism in (*MECHANISMS.values(), *rotated, summed):
        uplink = Uplink(mechanism)
        for kind in (np.float32, np.float64):
            update = np.full(mechanism.domain.dimension, 0.01, kind)
            uplink.receive([uplink.send(update, rng) for rng in (seeded_rng(1), secure_rng())])
    keep()


if __name__ == "__main__":
    keep() if sys.argv[1:] == ["keep"] else main()
