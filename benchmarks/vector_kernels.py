"""How fast updates are rotated and seeds become vectors, beside a copy and beside torch's noise; one core.

Idea     everything is timed in one run and interleaved; processor time, the best of several repeats
         counts, and the ratios are what to read: absolute speeds depend on the machine and on who
         else uses it.
Rows     copy = np.copyto of as many float32; rotate = signs, scaling and transform of an update of
         10^6 float32; search = the first accepted seed for k = 1,024 at one chance in ten; noise =
         x + randn_like(x) on 10^6 float32; payloads = 10,000 seeds and nonces of k = 1,024 added
         into 2^20 rotated coordinates.

    OMP_NUM_THREADS=1 python benchmarks/vector_kernels.py [--repeats 9] [--large]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from quietbit.kernel.expand import acceptance_limits, finest_shift
from quietbit.kernel.normals import unit
from quietbit.kernel.rng import secure_rng
from quietbit.kernel.select import select

K, SIZE, DIMENSION, PAYLOADS = 1024, 1 << 20, 1_000_000, 10_000
KERNEL = select("cpu")
Timed = dict[str, Callable[[], Any]]


def best_times(tasks: Timed, repeats: int) -> dict[str, float]:
    """Seconds of processor time of each task: the best of the repeats, tasks taking turns."""
    best = dict.fromkeys(tasks, float("inf"))
    for task in tasks.values():
        task()
    for _ in range(repeats):
        for name, task in tasks.items():
            began = time.process_time()
            task()
            best[name] = min(best[name], time.process_time() - began)
    return best


def show(title: str, times: dict[str, float], unit_of: str) -> None:
    print(f"\n{title}")
    for name, seconds in times.items():
        print(f"  {name:52} {1e3 * seconds:10.3f} ms   {seconds / times[unit_of]:8.2f} x {unit_of}")


def transforms(size: int, repeats: int) -> None:
    tasks: Timed = {}
    for kind in (np.float32, np.float64):
        values = np.random.default_rng(0).standard_normal(size).astype(kind)
        other = np.empty_like(values)
        name = np.dtype(kind).name
        tasks[f"copy {name}"] = lambda a=other, b=values: np.copyto(a, b)  # type: ignore[misc]
        tasks[f"rotate back {name}"] = lambda b=values: KERNEL.rotate_back(b, 3)  # type: ignore[misc]
    show(f"2^{size.bit_length() - 1} numbers", best_times(tasks, repeats), "copy float32")


def client(repeats: int) -> None:
    update = np.random.default_rng(1).standard_normal(DIMENSION, dtype=np.float32)
    tensor, words = torch.from_numpy(update), secure_rng()
    edges, limits = (
        np.array([1.2816]),
        acceptance_limits([1e-3, 1.0]),
    )  # the upper tenth, nearly always
    direction = unit(KERNEL.rotated_rows(update, 3, 1.0, KERNEL.rows(bytes(8), K, SIZE)))[0]
    tasks: Timed = {
        "noise": lambda: tensor + torch.randn_like(tensor),
        "rotate": lambda: KERNEL.rotate(update, 3, factor=0.5),
        "rows": lambda: KERNEL.rows(bytes(8), K, SIZE),
        "normals of one seed": lambda: KERNEL.normals(bytes(16), K),
        "search, 1 in 10, mean of 50": lambda: [
            KERNEL.search(direction, edges, limits, words.draw(1), acceptance_lower=0.1)
            for _ in range(50)
        ],
    }
    times = best_times(tasks, repeats)
    times["search, 1 in 10, mean of 50"] /= 50
    times["rotate + rows + search"] = (
        times["rotate"] + times["rows"] + times["search, 1 in 10, mean of 50"]
    )
    show(f"a client: d = {DIMENSION:,}, k = {K:,}", times, "noise")


def server(repeats: int) -> None:
    rng = np.random.default_rng(2)
    seeds = rng.integers(0, 256, (PAYLOADS, 16), dtype=np.uint8)
    nonces = rng.integers(0, 256, (PAYLOADS, 8), dtype=np.uint8)
    total, values, other = np.zeros(SIZE, np.int64), np.zeros(SIZE), np.zeros(SIZE)
    shift = finest_shift(1000 * PAYLOADS)
    tasks: Timed = {
        "copy": lambda: np.copyto(other, values),
        f"add {PAYLOADS:,} payloads": lambda: KERNEL.add_seeds(
            nonces, seeds, total, count=K, shift=shift
        ),
        "rotate back, float64": lambda: KERNEL.rotate_back(values, 3),
    }
    times = best_times(tasks, repeats)
    show(f"a server: p = {SIZE:,}, k = {K:,}", times, "copy")
    each = times[f"add {PAYLOADS:,} payloads"] / (PAYLOADS * K)
    print(f"  {1e9 * each:.1f} ns for each number expanded, placed and added")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--large", action="store_true", help="also 2^27 numbers (about 3 GB)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for size in (1 << 16, SIZE, 1 << 24, *((1 << 27,) if arguments.large else ())):
        transforms(size, arguments.repeats if size < 1 << 24 else max(2, arguments.repeats // 3))
    client(arguments.repeats)
    server(arguments.repeats)


if __name__ == "__main__":
    main()
