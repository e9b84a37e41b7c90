"""What a client does on a GPU before anything leaves it: norm, clip, sample, pack. Right first, then how fast.

Idea     an update of float32 is read twice, so at best half the speed of reading alone. The script checks
         `TritonKernel.sample_clipped` against the reference on the device itself, times ways of cutting up the norm
         and the sampling pass beside a plain copy and a plain sum, takes the best of each, and times the whole, in a
         graph and from Python. Speeds are billions of coordinates per second, medians of CUDA events.

    PYTHONPATH=src python benchmarks/gpu/send.py [--size 28] [--quick] [--only check|norm|sample|whole]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from kernels import FixedKey, make_sampler, spread
from timing import seconds

from quietbit.errors import InvalidParameter
from quietbit.kernel import triton as kernels
from quietbit.kernel import triton_launch as launches
from quietbit.kernel.base import packed_size
from quietbit.kernel.chunks import Tensors
from quietbit.kernel.law import Gain
from quietbit.kernel.norm import BLOCK
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import GENERATORS, device_rng, seeded_rng
from quietbit.kernel.tables import thresholds_on_device
from quietbit.kernel.triton import TritonKernel, enqueue

RESULTS: dict[str, Any] = {}
LINES: list[str] = []
KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def note(line: str) -> None:
    LINES.append(line)
    print(line, flush=True)


def check(name: str, fine: bool) -> None:
    RESULTS.setdefault("checks", {})[name] = bool(fine)
    if not fine:
        note(f"WRONG: {name}")


def checks(quick: bool) -> None:
    """Bytes of the reference, for every type, odd sizes, several tensors; wiped when the update changes."""
    kernel, reference, fallbacks = TritonKernel(), ReferenceKernel(), []
    real = kernels._sample_at_once

    def counted(*given: Any) -> bool:
        decided = real(*given)
        fallbacks.append(not decided and bool(given[1].parts[0].any()))  # the host decides about zeros alone
        return decided

    kernels._sample_at_once = counted
    sizes = (1, 9, 4096, 100_003) if quick else (1, 7, 8, 9, 4095, 4096, 4099, 65_536, 100_003, 1_000_003)
    for bits, epsilon, levels in ((1, 1.0, 2), (1, 3.0, 2), (1, 12.0, 2), (2, 1.0, 2), (4, 1.0, 2), (4, 6.0, 5)):
        sampler = make_sampler(bits, epsilon, levels)
        for size in sizes if bits == 1 else sizes[:4]:
            for name, kind in KINDS.items():
                if size > 500_000 and (epsilon != 1.0 or kind != torch.float32):
                    continue
                x = spread(size, kind, size)
                host = x.double().cpu().numpy()
                for order, radius in ((2, 0.5), (1, 2.0), (2, 1e6)):
                    for label in ("given", *GENERATORS):
                        rng = seeded_rng(3) if label == "given" else FixedKey(label)
                        again = seeded_rng(3) if label == "given" else FixedKey(label)
                        wanted = np.empty(packed_size(bits, size), np.uint8)
                        reference.sample_clipped(sampler, host, order, radius, again, wanted)
                        out = torch.full((wanted.size,), 0xAA, dtype=torch.uint8, device="cuda")
                        kernel.sample_clipped(sampler, x, order, radius, rng, out)
                        right = np.array_equal(out.cpu().numpy(), wanted)
                        check(f"{label} {name} bits={bits} eps={epsilon} d={size} L{order} radius={radius}", right)
    check("the device decided every time", not any(fallbacks))
    pieces = [spread(size, torch.float32, size) for size in (5000, 3, 40_001, 8192)]
    host = [piece.cpu().numpy() for piece in pieces]
    wanted = np.empty(packed_size(1, 53_196), np.uint8)
    reference.sample_clipped(make_sampler(1), host, 2, 0.5, FixedKey("chacha12"), wanted)
    out = np.empty_like(wanted)
    kernel.sample_clipped(make_sampler(1), pieces, 2, 0.5, FixedKey("chacha12"), out)
    check("several tensors, into an array", np.array_equal(out, wanted))
    x = spread(1 << 20, torch.float32, 1)

    class Meddler(FixedKey):
        def draw(self, count: int) -> Any:
            x[12_345] = 1e4
            return super().draw(count)

    held = torch.full((1 << 17,), 0xAA, dtype=torch.uint8, device="cuda")
    try:
        kernel.sample_clipped(make_sampler(1), x, 2, 0.5, Meddler("philox"), held)
        check("a change between the looks is refused", False)
    except InvalidParameter:
        check("what was sampled is wiped", not bool(held.any()))
    kernels._sample_at_once = real
    done = RESULTS["checks"]
    note(f"checks: {sum(done.values())} right, {len(done) - sum(done.values())} wrong; fallbacks {sum(fallbacks)}")


def billions(size: int, taken: float) -> float:
    return size / taken / 1e9


def memory(x: torch.Tensor) -> None:
    """What memory allows: a copy, and a read alone."""
    target = torch.empty_like(x)
    RESULTS["copy"] = billions(x.numel(), seconds(lambda: target.copy_(x)))
    RESULTS["read"] = billions(x.numel(), seconds(lambda: x.sum()))
    note(f"copy {RESULTS['copy']:.0f}, read (sum) {RESULTS['read']:.0f}")


def norms(x: torch.Tensor) -> None:
    """Blocks per program, warps, and two ways of halving."""
    parts, want = Tensors.of(x), None
    peak = torch.zeros(1, dtype=torch.int64, device="cuda")
    best, kept = (0.0, dict(kernels.NORM_SHAPE)), dict(kernels.NORM_SHAPE)
    table: dict[str, float] = {}
    for split in (True, False):
        for blocks in (1, 2, 4, 8, 16):
            for warps in (1, 2, 4, 8):
                if not 64 <= blocks * 256 // warps <= 2048:
                    continue
                shape = {"BLOCKS": blocks, "SPLIT": split, "num_warps": warps}
                kernels.NORM_SHAPE.clear()
                kernels.NORM_SHAPE.update(shape)
                try:
                    sums = kernels._block_sums(parts, 2, 1.0, peak)
                    want = sums if want is None else want
                    check(f"norm {shape}", torch.equal(sums, want))
                    speed = billions(x.numel(), seconds(lambda: kernels._block_sums(parts, 2, 1.0, peak)))
                except Exception as error:  # a shape that does not compile is no choice
                    note(f"norm {shape}: {type(error).__name__}")
                    continue
                table[str(shape)] = speed
                best = max(best, (speed, shape), key=lambda pair: pair[0])
    for shape_name, speed in sorted(table.items(), key=lambda item: -item[1])[:6]:
        note(f"norm {speed:.0f} {shape_name}")
    kernels.NORM_SHAPE.clear()
    kernels.NORM_SHAPE.update(best[1] if best[0] else kept)
    RESULTS["norm"] = table
    exact = ReferenceKernel().norm(x[: 64 * BLOCK + 17].cpu().numpy(), 2)
    check("the norm is the reference's", TritonKernel().norm(x[: 64 * BLOCK + 17], 2) == exact)


def samples(x: torch.Tensor, name: str) -> None:
    """Rows per thread and threads per program, without and with a second look."""
    sampler = make_sampler(1)
    out = torch.empty(packed_size(1, x.numel()), dtype=torch.uint8, device="cuda")
    looks = torch.empty(launches.SETTLERS, dtype=torch.float64, device="cuda")
    gain = Gain.of(0.5, sampler.scale)
    plan = thresholds_on_device(sampler)
    rate = gain.approximate() * plan.rate
    doubles = (gain.first, gain.second, gain.high, gain.low, *sampler.t_range, rate, plan.offset)
    numbers = torch.tensor(doubles, dtype=torch.float64, device="cuda")
    kept, best, table = (dict(launches.GROUPS), dict(launches.THREADS)), (0.0, 0, 0), {}
    for generator in GENERATORS:
        for groups in (1, 2, 4) if generator != "chacha12" else (4,):
            for threads in (64, 128, 256) if generator != "chacha12" else (128,):
                launches.GROUPS[1], launches.THREADS[1] = groups, threads
                speeds = []
                for order in (0, 2):
                    launch = launches.Launch(sampler, x, FixedKey(generator).draw(x.numel()), out, True, True)

                    def task(launch: Any = launch, order: int = order) -> None:
                        count = torch.zeros(1, dtype=torch.int32, device="cuda")
                        launch.run(numbers, count, order, looks)

                    speeds.append(billions(x.numel(), seconds(task)))
                table[f"{generator} rows={groups} threads={threads}"] = speeds
                if generator == "philox" and speeds[1] > best[0]:
                    best = (speeds[1], groups, threads)
    for place, before in zip((launches.GROUPS, launches.THREADS), kept, strict=True):
        place.clear()
        place.update(before)
    if best[0]:
        launches.GROUPS[1], launches.THREADS[1] = best[1:]
    for label, (plain, looked) in sorted(table.items(), key=lambda item: -item[1][1])[:8]:
        note(f"sample {name} {label}: {plain:.0f}, with a second look {looked:.0f}")
    RESULTS[f"sample {name}"] = table


def whole(x: torch.Tensor, name: str) -> None:
    """Everything, in a graph and from Python, into a tensor and into an array."""
    sampler, kernel = make_sampler(1), TritonKernel()
    joined = Tensors.of(x)
    out = torch.empty(packed_size(1, x.numel()), dtype=torch.uint8, device="cuda")
    host = np.empty(out.numel(), np.uint8)
    for generator in GENERATORS:
        rng = device_rng(generator)
        fixed = FixedKey(generator)
        kernel.sample_clipped(sampler, x, 2, 1.0, rng, out)
        graph = seconds(lambda fixed=fixed: enqueue(sampler, joined, joined, 2, 1.0, fixed, out))
        python = seconds(lambda rng=rng: kernel.sample_clipped(sampler, x, 2, 1.0, rng, out), graph=False)
        array = seconds(lambda rng=rng: kernel.sample_clipped(sampler, x, 2, 1.0, rng, host), graph=False)
        found = [billions(x.numel(), taken) for taken in (graph, python, array)]
        RESULTS[f"whole {name} {generator} {x.numel()}"] = found
        text = f"{found[0]:.0f} in a graph, {found[1]:.0f} from Python, {found[2]:.0f} into an array on the host"
        note(f"norm + clip + sample, {name}, {generator}, d = {x.numel()}: {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=28, help="dimension as a power of two")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="check,norm,sample,whole")
    options = parser.parse_args()
    chosen, begin = options.only.split(","), time.time()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__, flush=True)
    if "check" in chosen:
        checks(options.quick)
    x = torch.randn(1 << options.size, device="cuda")
    memory(x)
    if "norm" in chosen:
        norms(x)
    if "sample" in chosen:
        samples(x, "float32")
        if not options.quick:
            samples(x.bfloat16(), "bfloat16")
    if "whole" in chosen:
        whole(x, "float32")
        for size in (20, 24, 26) if not options.quick else ():
            whole(x[: 1 << size], "float32")
        whole(x.bfloat16(), "bfloat16")
    note(f"chosen: norm {kernels.NORM_SHAPE}, rows {launches.GROUPS}, threads {launches.THREADS}")
    print(f"\n{time.time() - begin:.0f} s. Summary:\n" + "\n".join(LINES), flush=True)
    folder = os.environ.get("OUT")
    if folder:
        Path(folder, "send.json").write_text(json.dumps(RESULTS, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
