"""How fast whole updates leave a client and arrive at a server, beside what else one could do with them.

Idea     everything is timed in one run and takes turns, the best of several repeats counts, and the
         ratios are what to read. One thread is timed in seconds of processor time, so that whoever
         else uses the machine hardly matters; several threads by the clock on the wall. Designs are
         the shipped ones (two levels, epsilon 1), words are cryptographic, updates are float32 and
         three times too long, so that clipping has something to do. `benchmarks/uplink_kernels.py`
         times the parts.
Rows     send = all of it: norm, clipping, words, sampling, packing, checksums, header; default = what
         users get, rotated in blocks (`calibrate("imvu", ...)`), the others as in the paper; receive =
         checks and exact sums, per payload added; torch noise = x + randn_like(x); published =
         softmax over natural parameters, bernoulli (one bit) or multinomial, int64; read = memory
         read.

    python benchmarks/uplink.py [--large] [--linear] [--huge] [--memory] [--repeats 7]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from uplink_kernels import PUBLISHED, Timed, published_way

from quietbit.design.solve import solve
from quietbit.design.table import DesignSpec
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.calibrate import calibrate
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.wire.uplink import Uplink

EPSILON = 1.0
SLICE = 1 << 20  # coordinates of the published way with several bits: it is that slow
PAYLOADS = 30  # one-bit payloads received at a time


def best_times(tasks: Timed, repeats: int, threads: int = 1) -> dict[str, float]:
    """Seconds of each task: the best of the repeats, tasks taking turns."""
    clock = time.process_time if threads == 1 else time.perf_counter
    best = dict.fromkeys(tasks, float("inf"))
    for turn in range(repeats + 1):
        for name, task in tasks.items():
            began = clock()
            task()
            if turn > 0:  # the first turn warms up
                best[name] = min(best[name], clock() - began)
    return best


def uplink_of(dimension: int, bits: int, threads: int = 1) -> Uplink:
    """An uplink with the shipped design of that many bits."""
    design = solve(DesignSpec(2, bits, EPSILON))
    return Uplink(InterpolatedMVU(design, Ball(Norm.L2, dimension)), threads=threads)


def default_uplink(dimension: int, threads: int = 1) -> Uplink:
    """The uplink of what users get: one bit, rotated in blocks, clamped."""
    asked: dict[str, Any] = {"epsilon": EPSILON, "delta": 1e-5, "adjacency": "zero-out"}
    mechanism = calibrate("imvu", ball=Ball(Norm.L2, dimension), **asked).mechanism
    return Uplink(mechanism, threads=threads)


def update_of(dimension: int) -> np.ndarray[Any, Any]:
    """A float32 vector of norm 3, made a piece at a time."""
    x = np.empty(dimension, dtype=np.float32)
    rng, scale = np.random.default_rng(0), np.float32(3 / np.sqrt(dimension))
    for start in range(0, dimension, 1 << 22):
        piece = x[start : start + (1 << 22)]
        rng.standard_normal(out=piece, dtype=np.float32)
        piece *= scale
    return x


def published_symbols(x: torch.Tensor, natural: torch.Tensor) -> torch.Tensor:
    """Several bits as in the published code: probabilities by softmax, multinomial, int64."""
    place = (0.5 + x / 2).unsqueeze(-1)
    probabilities = torch.softmax((1 - place) * natural[0] + place * natural[1], dim=-1)
    return torch.multinomial(probabilities, 1).squeeze(-1)


def tasks_for(x: np.ndarray[Any, Any], threads: int) -> tuple[Timed, dict[str, int]]:
    """What is timed, and how many coordinates each task handles."""
    tensor = torch.from_numpy(x)
    tasks: Timed = {
        "read": lambda: float(tensor.sum()),
        "torch noise": lambda: tensor + torch.randn_like(tensor),
    }
    tasks["send, default"] = partial(default_uplink(x.size, threads).send, x)
    sizes = dict.fromkeys(tasks, x.size)
    for bits in (1, 2, 3, 4):
        uplink = uplink_of(x.size, bits, threads)
        design = uplink.mechanism.design  # type: ignore[attr-defined]
        natural = torch.log(torch.tensor(design.probabilities, dtype=torch.float32))
        part = tensor[: min(x.size, PUBLISHED if bits == 1 else SLICE)]
        way = partial(published_way, beta=1.0, radius=1.0) if bits == 1 else published_symbols
        tasks[f"published, {bits} bit"], sizes[f"published, {bits} bit"] = (
            partial(way, part, natural),
            part.numel(),
        )
        tasks[f"send, {bits} bit"], sizes[f"send, {bits} bit"] = partial(uplink.send, x), x.size
        payloads = [uplink.send(x) for _ in range(15 if bits == 1 else 1)] * (
            PAYLOADS // 15 if bits == 1 else 1
        )
        aggregator = uplink.aggregator()
        tasks[f"receive, {bits} bit"] = partial(aggregator.add_all, payloads)
        sizes[f"receive, {bits} bit"] = x.size * len(payloads)
    return tasks, sizes


def compare(dimension: int, threads: int, repeats: int) -> None:
    """One table."""
    torch.set_num_threads(threads)
    x = update_of(dimension)
    tasks, sizes = tasks_for(x, threads)
    speed = {
        name: sizes[name] / seconds / 1e9
        for name, seconds in best_times(tasks, repeats, threads).items()
    }
    print(f"\nd = {dimension:,}, float32, threads = {threads}")
    print(f"| {'':18} | G coordinates/s | x torch noise | x published |\n|---|---:|---:|---:|")
    for name, value in speed.items():
        rival = speed.get("published, " + name.split(", ")[-1], speed["published, 1 bit"])
        print(
            f"| {name:18} | {value:15.3f} | {value / speed['torch noise']:13.2f} | {value / rival:11.1f} |"
        )


def linear(dimensions: list[int], repeats: int) -> None:
    """Cost per coordinate of one-bit sending, over the sizes of updates."""
    print("\n| d | send, 1 bit | ns per coordinate |\n|---:|---:|---:|")
    for dimension in dimensions:
        uplink, x = uplink_of(dimension, 1), update_of(dimension)
        times = repeats * max(1, min(200, 10**7 // dimension))
        seconds = best_times({"send": partial(uplink.send, x)}, times)["send"]
        print(f"| {dimension:,} | {seconds * 1e6:,.0f} us | {seconds / dimension * 1e9:.3f} |")


def memory(dimension: int) -> None:
    """Peak memory of one sending and one receiving, beyond what was there before."""
    import resource

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    uplink_of(1000, 1).send(update_of(1000))
    uplink, x = uplink_of(dimension, 1), update_of(dimension)
    before = peak()
    payload = uplink.send(x)
    extra = (peak() - before - len(payload)) / 2**20
    print(
        f"d = {dimension:,}: payload {len(payload):,} bytes, send took {extra:.1f} MB more than that at its peak"
    )


def warm_start() -> None:
    """Time from a fresh process's first import to its first payload, compile caches on disk."""
    began = time.perf_counter()
    uplink = uplink_of(1000, 1)
    ready = time.perf_counter()
    x = update_of(1000)
    uplink.send(x)
    first = time.perf_counter()
    best = best_times({"send": partial(uplink.send, x)}, 2000)["send"]
    print(
        f"d = 1,000 in a new process: uplink built in {ready - began:.2f} s, "
        f"first payload {first - ready:.2f} s later, "
        f"the others {best * 1e6:.0f} us each (best)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--large", action="store_true", help="also 256 million coordinates (about 8 GB)"
    )
    parser.add_argument(
        "--linear", action="store_true", help="only cost against dimension, 1e3 to 1e8"
    )
    parser.add_argument("--huge", action="store_true", help="with --linear: also 1e9 (about 5 GB)")
    parser.add_argument(
        "--memory", action="store_true", help="only peak memory and warm start, in new processes"
    )
    parser.add_argument("--child", choices=["memory", "warm"], help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    if given.child:
        memory(1 << 28) if given.child == "memory" else warm_start()
    elif given.memory:
        for child in ("memory", "warm", "warm"):
            subprocess.run([sys.executable, __file__, "--child", child], check=True)  # noqa: S603
    elif given.linear:
        linear([10**k for k in range(3, 10 if given.huge else 9)], given.repeats)
    else:
        for dimension in (1 << 24, 1 << 28) if given.large else (1 << 24,):
            repeats = given.repeats if dimension == 1 << 24 else max(2, given.repeats // 3)
            for threads in sorted({1, os.cpu_count() or 1}):
                compare(dimension, threads, repeats)


if __name__ == "__main__":
    main()
