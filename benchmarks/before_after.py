"""The CPU kernel of two source trees, in turns: processor time of one as a share of the other's.

Idea     each tree is a process of its own; every task runs once in the one and once in the other,
         many times over, and the best of each counts. Neither the machine nor who else uses it
         matters then: a ratio above 1 is a loss. Words are those of production: their making is part of
         a send. numpy, scipy and attrs are enough.

    git worktree add ../before COMMIT
    OMP_NUM_THREADS=1 python benchmarks/before_after.py ../before/src src [--repeats 30]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

Tasks = dict[str, Callable[[], Any]]
LARGE, SMALL, K = 1 << 22, 1000, 1024


def tasks() -> Tasks:
    """Every operation that a client or a server waits for."""
    from quietbit import Design, DesignSpec
    from quietbit.kernel.base import packed_size
    from quietbit.kernel.expand import acceptance_limits
    from quietbit.kernel.rng import secure_rng
    from quietbit.kernel.rounded import NoiseLaw
    from quietbit.kernel.sampler import Sampler
    from quietbit.kernel.select import select

    kernel: Any = select("cpu")
    home: Any = import_module("quietbit.design.table")
    if not hasattr(home, "exact_row"):  # an older tree
        home = import_module("quietbit.design.rounding")
    in_blocks = getattr(kernel, "block_rotate", kernel.rotate)
    words, rng, found = secure_rng(), np.random.default_rng(0), Tasks()
    block = words.draw(LARGE)
    x = rng.standard_normal(LARGE, dtype=np.float32) / np.float32(np.sqrt(LARGE) / 2)

    def add(name: str, task: Callable[..., Any], *given: Any, times: int = 1, **named: Any) -> None:
        found[name] = lambda: [task(*given, **named) for _ in range(times)]

    add("norm, float32", kernel.norm, x, 2)
    add("norm, float64", kernel.norm, x.astype(np.float64), 2)
    for levels, bits in ((2, 1), (2, 2), (8, 3), (2, 4), (2, 8)):
        ends = np.linspace(0.0, 1.0, levels)[:, None]
        weights = np.exp(
            (ends - 0.5) * np.linspace(-1, 1, 2**bits)
            + 0.1 * np.cos(3 * np.arange(2**bits)) * ends**2
        )
        table = np.stack([home.exact_row(row / row.sum()) for row in weights])
        design = Design(DesignSpec(levels, bits, 2.0), table, np.linspace(0, 1, 2**bits))
        sampler, out = (
            Sampler.from_design(design, 0.5, 0.0, 1.0),
            np.empty(packed_size(bits, LARGE), np.uint8),
        )
        add(
            f"clip and sample, {bits} bits, {levels} levels",
            kernel.sample_clipped,
            sampler,
            x,
            2,
            1.0,
            words,
            out,
        )
        if bits == 1:
            few = np.empty(packed_size(1, SMALL), np.uint8)
            add(
                "clip and sample, 1,000",
                kernel.sample_clipped,
                sampler,
                x[:SMALL],
                2,
                1.0,
                words,
                few,
                times=200,
            )
            add(
                "clip and sample, float64",
                kernel.sample_clipped,
                sampler,
                x.astype(np.float64),
                2,
                1.0,
                words,
                out,
            )
            add(
                "clip, rotate and sample",
                kernel.sample_rotated,
                sampler,
                x,
                3,
                4096,
                1.0,
                words,
                out,
            )
            some = np.empty(packed_size(1, 100_000), np.uint8)
            add(
                "clip, rotate and sample, 100,000",
                kernel.sample_rotated,
                sampler,
                x[:100_000],
                3,
                4096,
                1.0,
                words,
                some,
            )
        payload = rng.integers(0, 256, packed_size(bits, LARGE), dtype=np.uint8)
        total, copies = np.zeros(LARGE, np.int32 if bits == 1 else np.int64), 15 if bits == 1 else 1
        add(
            f"add up {copies} payloads, {bits} bits",
            kernel.accumulate,
            [payload] * copies,
            bits,
            np.arange(2**bits),
            total,
        )
    add("rotate, 1,000,000", kernel.rotate, x[:1_000_000], 3, factor=0.5)
    add("rotate in blocks, float64", in_blocks, x[:1_000_000], 3, 4096, factor=0.5, kind=np.float64)
    for power, kind in ((16, np.float32), (20, np.float64), (24, np.float32)):
        add(
            f"rotate back, 2^{power} {kind.__name__}",
            kernel.rotate_back,
            rng.standard_normal(1 << power).astype(kind),
            3,
        )
    direction = rng.normal(size=K)
    given = (
        direction / np.linalg.norm(direction),
        np.array([1.2816]),
        acceptance_limits([1e-3, 1.0]),
        block,
    )
    add("search for a seed", kernel.search, *given, acceptance_lower=0.1, times=20)
    add("rows", kernel.rows, bytes(8), K, 1 << 20, times=50)
    add("normals of a seed", kernel.normals, bytes(16), K, times=50)
    seeds, nonces = (rng.integers(0, 256, (500, n), dtype=np.uint8) for n in (16, 8))
    add(
        "add 500 seeds",
        kernel.add_seeds,
        nonces,
        seeds,
        np.zeros(1 << 20, np.int64),
        count=K,
        shift=40,
    )
    values = rng.normal(size=1 << 18)
    for law in NoiseLaw:
        add(f"noise, {law.value}", kernel.rounded_noise, values, 1.3, law, block, 0)
    return found


def work() -> None:
    """Run the tasks that are asked for, one word a line, and answer with seconds of processor time."""
    made = tasks()
    print("\t".join(made), flush=True)
    for line in sys.stdin:
        began = time.process_time()
        made[line.rstrip("\n")]()
        print(time.process_time() - began, flush=True)


def main() -> None:
    """Take turns and show the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs="*", help="folders to import quietbit from: before, after")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--only", default="", help="what names of operations contain")
    arguments = parser.parse_args()
    if not arguments.trees:
        return work()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers: list[Any] = [
        subprocess.Popen([sys.executable, __file__], env=os.environ | {"PYTHONPATH": tree}, **pipes)  # noqa: S603
        for tree in arguments.trees
    ]
    names = [worker.stdout.readline().rstrip("\n").split("\t") for worker in workers]
    print(f"{'milliseconds of processor time':42} {'before':>10} {'after':>10} {'ratio':>7}")
    for name in (name for name in names[0] if arguments.only in name):
        best = [float("inf")] * len(workers)
        for _ in range(arguments.repeats):
            for place, worker in enumerate(workers):
                worker.stdin.write(name + "\n")
                worker.stdin.flush()
                best[place] = min(best[place], float(worker.stdout.readline()))
        print(
            f"{name:42} {1e3 * best[0]:10.3f} {1e3 * best[-1]:10.3f} {best[-1] / best[0]:7.3f}",
            flush=True,
        )
    for worker in workers:
        worker.stdin.close()
        worker.wait()


if __name__ == "__main__":
    main()
