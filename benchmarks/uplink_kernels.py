"""How fast updates become private bits, beside what else one could do with them.

Idea     everything is timed in one run and interleaved, the best of several repeats counts, and the
         ratios are what to read: absolute speeds depend on the machine and on who else uses it.
Rows     clip + sample = what `send` does before framing (L2 norm, clip factor, cryptographic words,
         sampling, packing, and the check that nobody wrote to the update meanwhile); rotate = in
         blocks of 4,096, fused with it; torch noise = x + randn_like(x); published = softmax over
         natural parameters, torch.bernoulli, int64; read = summing the update, i.e. reading memory.

    python benchmarks/uplink_kernels.py [--large] [--repeats 7]

QUIETBIT_INSTRUCTION_SET=avx2 (or sse2) hides AVX-512.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from quietbit.design.table import Design, DesignSpec, exact_row
from quietbit.kernel.base import packed_size
from quietbit.kernel.rng import secure_rng
from quietbit.kernel.sampler import Sampler
from quietbit.kernel.select import select

BLOCK = 4096
PUBLISHED = (
    1 << 24
)  # coordinates for the published way, which needs 40 bytes of temporaries for each
Timed = dict[str, Callable[[], Any]]


def interpolated_design(levels: int, bits: int, epsilon: float) -> Design:
    """A symmetric table that is linear in the log-odds between its ends.

    A stand-in for a solved one.
    """
    symbols = 2**bits
    x = np.linspace(0.0, 1.0, levels)[:, None]
    slopes = np.linspace(-0.5, 0.5, symbols)
    bumps = 0.1 * np.cos(np.pi * np.arange(symbols)) * np.abs(x - 0.5) if bits > 1 else 0.0
    weights = np.exp(2 * epsilon * (x - 0.5) * slopes + bumps)
    return Design(
        DesignSpec(levels, bits, epsilon),
        np.stack([exact_row(row) for row in weights / weights.sum(axis=1, keepdims=True)]),
        np.linspace(0, 1, symbols),
    )


def best_times(tasks: Timed, repeats: int) -> dict[str, float]:
    """Seconds of each task: the best of the repeats, tasks taking turns."""
    best = dict.fromkeys(tasks, float("inf"))
    for task in tasks.values():
        task()
    for _ in range(repeats):
        for name, task in tasks.items():
            began = time.perf_counter()
            task()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def published_way(
    x: torch.Tensor, natural: torch.Tensor, beta: float, radius: float
) -> torch.Tensor:
    """One bit as in the published code.

    Probabilities by softmax, bernoulli, whole numbers of 64 bits.
    """
    place = (0.5 + beta * x / (2 * radius)).unsqueeze(-1)
    probabilities = torch.softmax((1 - place) * natural[0] + place * natural[1], dim=-1)
    return torch.bernoulli(probabilities[..., 1]).long()


def tasks_for(x: np.ndarray[Any, Any], threads: int, epsilon: float) -> Timed:
    kernel, rng, tensor = select("cpu", threads=threads), secure_rng(), torch.from_numpy(x)
    slice_of = tensor[: min(x.size, PUBLISHED)]

    tasks: Timed = {
        "read": lambda: float(tensor.sum()),
        "norm": lambda: kernel.norm(x, 2),
        "torch noise": lambda: tensor + torch.randn_like(tensor),
    }
    natural = torch.log(
        torch.tensor(interpolated_design(2, 1, epsilon).probabilities, dtype=torch.float32)
    )
    tasks["published"] = lambda: published_way(slice_of, natural, 1.0, 1.0)
    for levels in (2, 8):
        for bits in (1, 2, 3, 4):
            sampler = Sampler.from_design(interpolated_design(levels, bits, epsilon), 0.5, 0.0, 1.0)
            out = np.empty(packed_size(bits, x.size), dtype=np.uint8)

            def send(sampler: Sampler = sampler, out: np.ndarray[Any, Any] = out) -> None:
                kernel.sample_clipped(sampler, x, 2, 1.0, rng, out)

            tasks[f"clip + sample, {bits} bit, {levels} levels"] = send
            if bits == 1 and levels == 2:
                tasks["clip + rotate + sample, 1 bit"] = partial(
                    kernel.sample_rotated, sampler, x, 3, BLOCK, 1.0, rng, out
                )
                tasks["sample only, 1 bit, 2 levels"] = partial(
                    kernel.sample_packed, sampler, x, rng, out
                )
    for bits in (1, 2, 4):
        random = np.random.default_rng(bits)
        payload = random.integers(0, 256, packed_size(bits, x.size), dtype=np.uint8)
        total: Any = np.zeros(x.size, dtype=np.int32 if bits == 1 else np.int64)
        table, copies = np.arange(2**bits), 15 if bits == 1 else 1
        tasks[f"count {copies} payloads, {bits} bit"] = partial(
            kernel.accumulate, [payload] * copies, bits, table, total
        )
    return tasks


def work(name: str, dimension: int) -> int:
    """Coordinates a task handles."""
    if name.startswith("count"):
        return dimension * int(name.split()[1])
    return min(dimension, PUBLISHED) if name == "published" else dimension


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--large", action="store_true", help="also 256 million coordinates (about 4 GB)"
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--epsilon", type=float, default=1.0)
    arguments = parser.parse_args()
    for dimension in (1 << 24, 1 << 28) if arguments.large else (1 << 24,):
        x = np.random.default_rng(0).standard_normal(dimension, dtype=np.float32)
        x /= np.float32(np.sqrt(dimension) / 2)
        for threads in sorted({1, os.cpu_count() or 1}):
            torch.set_num_threads(threads)
            repeats = arguments.repeats if dimension == 1 << 24 else max(2, arguments.repeats // 3)
            times = best_times(tasks_for(x, threads, arguments.epsilon), repeats)
            speed = {name: work(name, dimension) / seconds / 1e9 for name, seconds in times.items()}
            noise, published = speed["torch noise"], speed["published"]
            print(
                f"\nd = {dimension:,}, float32, threads = {threads}, epsilon = {arguments.epsilon:g}"
            )
            print(f"{'':34} {'G coordinates/s':>16} {'x torch noise':>14} {'x published':>12}")
            for name, value in speed.items():
                print(f"{name:34} {value:16.3f} {value / noise:14.2f} {value / published:12.1f}")


if __name__ == "__main__":
    main()
