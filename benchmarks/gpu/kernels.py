"""The GPU kernels: right first, then how far from the speed of memory.

Idea     everything is checked against the reference on the device itself, then timed in one run: medians of
         CUDA events around replays of a captured graph, so that Python's launch overhead (reported apart) is
         not mistaken for the kernel's. Speeds are billions of coordinates per second.
Rows     sample = both passes, words made in the kernel; norm + sample = what a client does before sending;
         published = softmax over natural parameters, a draw by torch, int64 codes; noise = x + randn_like(x);
         copy and read = what memory allows.

    PYTHONPATH=src python benchmarks/gpu/kernels.py [--quick] [--only check|choices|one|bits|server|published]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from timing import Task, seconds

from quietbit.design.rounding import exact_row
from quietbit.design.spec import DesignSpec
from quietbit.design.table import Design
from quietbit.kernel import triton_launch as launches
from quietbit.kernel.base import packed_size
from quietbit.kernel.norm import clip_factor
from quietbit.kernel.reference import ReferenceKernel, thresholds
from quietbit.kernel.rng import GENERATORS, DeviceBlock, device_rng, seeded_rng
from quietbit.kernel.sampler import Sampler
from quietbit.kernel.tables import thresholds_on_device
from quietbit.kernel.triton import TritonKernel

KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
RESULTS: dict[str, Any] = {}
LINES: list[str] = []


def make_sampler(bits: int, epsilon: float = 1.0, levels: int = 2) -> Sampler:
    """A symmetric table whose log-ratios reach ``epsilon``; a stand-in for a solved design."""
    symbols, rng = 2**bits, np.random.default_rng(bits)
    x = np.linspace(0.0, 1.0, levels)[:, None]
    logs = epsilon * (x - 0.5) * np.linspace(-1.0, 1.0, symbols) + (0.2 * rng.normal(size=symbols) if bits > 1 else 0.0)
    logs = logs + (0.02 * epsilon * rng.normal(size=(levels, symbols)) if levels > 2 else 0.0)
    table = np.stack([exact_row(row) for row in np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)])
    return Sampler.from_design(
        Design(DesignSpec(levels, bits, epsilon), table, np.linspace(-0.3, 1.3, symbols)), 0.5, 0.0, 1.0
    )


class FixedKey:
    """Device words under a fixed key: for checks and graphs only."""

    def __init__(self, generator: str) -> None:
        self.generator = generator

    def draw(self, count: int) -> DeviceBlock:
        """The same block every time."""
        return DeviceBlock(count, self.generator, tuple(0x9E3779B9 * (k + 1) & 0xFFFFFFFF for k in range(8)))


def note(line: str) -> None:
    LINES.append(line)
    print(line, flush=True)


def check(name: str, fine: bool) -> None:
    RESULTS.setdefault("checks", {})[name] = bool(fine)
    print("right" if fine else "WRONG", name, flush=True)
    if not fine:
        note(f"WRONG: {name}")


def spread(size: int, kind: torch.dtype, seed: int) -> torch.Tensor:
    """Values of all magnitudes, some beyond the clamp."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=size) * 10.0 ** rng.uniform(-4, 0.5, size=size)
    values[::17], values[7::29], values[11::37] = 0.0, 1.0, -1.0
    return torch.tensor(values, device="cuda").to(kind)


def check_sampling() -> None:
    kernel, reference = TritonKernel(), ReferenceKernel()
    cases = [(1, 1.0, 2), (1, 3.0, 2), (1, 12.0, 2), (1, 3.0, 5), (2, 1.0, 2), (3, 2.0, 2), (4, 1.0, 2), (4, 6.0, 5)]
    for bits, epsilon, levels in cases:
        sampler = make_sampler(bits, epsilon, levels)
        size = 1_000_003 if (bits, epsilon) == (1, 1.0) else 100_003
        for kind in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            x = spread(size if kind == torch.float32 else size // 4, kind, bits)
            host = x.double().cpu().numpy()
            for label in ("given", *GENERATORS):
                rng = None if label == "given" else FixedKey(label)
                if kind != torch.float32 and (label != "given" or (bits, epsilon, levels) not in cases[:5:4]):
                    continue
                found = kernel.sample(sampler, x, rng or seeded_rng(bits), factor=0.7).cpu().numpy()
                wanted = reference.sample(sampler, host, rng or seeded_rng(bits), factor=0.7)
                check(f"{label} {kind} bits={bits} epsilon={epsilon} levels={levels}", np.array_equal(found, wanted))
        low = reference.sample(sampler, np.full(10_001, -1e3), seeded_rng(3))
        nothing = torch.full((10_001,), float("nan"), device="cuda")
        found = kernel.sample(sampler, nothing, seeded_rng(3), verified=True).cpu().numpy()
        check(f"NaN is the low end, bits={bits} epsilon={epsilon} levels={levels}", np.array_equal(found, low))
    x = spread(3_000_017, torch.float32, 5)
    for order in (1, 2):
        check(f"norm {order}", kernel.norm(x, order) == reference.norm(x.cpu().numpy(), order))
    wide = x.double() * 1e160
    check("norm of large float64", kernel.norm(wide, 2) == reference.norm(wide.cpu().numpy(), 2))
    bad = x.clone()
    bad[1234567] = float("nan")
    try:
        kernel.sample(make_sampler(1), bad, FixedKey("philox"))
        check("NaN refused", False)
    except ValueError:
        check("NaN refused", True)


def check_frequencies() -> None:
    """2^27 equal coordinates, fresh keys: the number of each code within 7 standard deviations."""
    kernel, size = TritonKernel(), 1 << 27
    for generator in GENERATORS:
        for bits in (1, 2, 4):
            sampler = make_sampler(bits, 1.5)
            x = torch.full((size,), 0.37, device="cuda")
            upper, lower = thresholds(sampler, np.array([np.float32(0.37)]), 1.0)
            law = np.diff((upper[0] + lower[0] / 2.0**48) / 65536.0, prepend=0.0, append=1.0)
            codes = kernel.sample(sampler, x, device_rng(generator), verified=True)
            counts = torch.bincount(codes.int(), minlength=2**bits).cpu().numpy()
            score = np.abs(counts - size * law) / np.sqrt(size * law * (1 - law))
            check(f"frequencies {generator} bits={bits} score={score.max():.2f}", bool(score.max() < 7.0))
            del codes, x


def check_counting() -> None:
    kernel, rng = TritonKernel(), np.random.default_rng(1)
    for bits, size, many in ((1, 100_003, 600), (1, 4096, 3), (2, 10_001, 20), (3, 10_001, 20), (4, 10_001, 20)):
        codes = rng.integers(0, 2**bits, size=(many, size))
        table = rng.integers(-5000, 5000, size=2**bits)
        rows = np.stack([np.frombuffer(ReferenceKernel().pack(row, bits), np.uint8) for row in codes])
        total = torch.full((size,), 7, dtype=torch.int32, device="cuda")
        kernel.accumulate(torch.tensor(rows, device="cuda"), bits, table, total)
        check(f"counting bits={bits}", np.array_equal(total.cpu().numpy(), 7 + table[codes].sum(axis=0)))


def report(label: str, size: int, task: Task, graph: bool = True, count: float | None = None) -> float:
    took = seconds(task, graph)
    speed = (count or size) / took / 1e9
    RESULTS.setdefault("speeds", {})[f"{label} d=2^{size.bit_length() - 1}"] = {"seconds": took, "billions": speed}
    note(f"{label:44s} d=2^{size.bit_length() - 1:<3d} {took * 1e6:10.1f} us {speed:9.1f} G/s")
    torch.cuda.empty_cache()
    return took


def sampling(bits: int, x: torch.Tensor, generator: str, epsilon: float = 1.0, levels: int = 2) -> Task:
    """Sampling into a buffer of its own, under a key that a graph may hold."""
    out = torch.empty(packed_size(bits, x.numel()), dtype=torch.uint8, device="cuda")
    sampler, rng = make_sampler(bits, epsilon, levels), FixedKey(generator)
    return partial(TritonKernel().sample_packed, sampler, x, rng, out, factor=0.5, verified=True)


def client(sampler: Sampler, x: torch.Tensor, out: torch.Tensor, clip: bool) -> None:
    """What a client does before sending, with fresh keys."""
    kernel = TritonKernel()
    factor = clip_factor(kernel.norm(x, 2), 1.0) if clip else 0.5
    kernel.sample_packed(sampler, x, device_rng("philox"), out, factor=factor, verified=True)


def noise(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn_like(x)


def time_one_bit(sizes: list[int]) -> None:
    for size in sizes:
        for kind in KINDS if size == 1 << 28 else ("float32", "bfloat16"):
            x = (torch.randn(size, device="cuda") * 0.05).to(KINDS[kind])
            for generator in GENERATORS:
                for epsilon in (1.0, 3.0) if size == 1 << 28 and kind == "float32" else (1.0,):
                    task = sampling(1, x, generator, epsilon)
                    report(f"sample 1 bit {kind} {generator} eps={epsilon:g}", size, task)
            out = torch.empty(packed_size(1, size), dtype=torch.uint8, device="cuda")
            sampler = make_sampler(1)
            report(f"norm + sample 1 bit {kind}, from Python", size, partial(client, sampler, x, out, True), False)
            report(f"norm {kind}, from Python", size, partial(TritonKernel().norm, x, 2), False)
            report(f"sample 1 bit {kind}, from Python", size, partial(client, sampler, x, out, False), False)
            report(f"copy {kind}", size, partial(torch.empty_like(x).copy_, x))
            report(f"read {kind} (sum)", size, x.sum)
            report(f"noise x + randn_like(x) {kind}", size, partial(noise, x), False)


def time_bits(sizes: list[int]) -> None:
    for size in sizes:
        x = torch.randn(size, device="cuda") * 0.05
        for bits in (2, 3, 4, 8) if size == 1 << 26 else (2, 3, 4):
            for generator in ("philox", "chacha12"):
                report(f"sample {bits} bits float32 {generator}", size, sampling(bits, x, generator))
        report("sample 4 bits, 5 levels, cells", size, sampling(4, x, "philox", 6.0, 5))


def time_choices() -> None:
    """Rows per thread and threads per program."""
    size = 1 << 28
    kept = dict(launches.GROUPS), dict(launches.THREADS)
    x = torch.randn(size, device="cuda") * 0.05
    for bits in (1, 4):
        for groups in (1, 2, 4):
            for threads in (128, 256):
                launches.GROUPS[bits], launches.THREADS[bits] = groups, threads
                report(f"{bits} bits, {groups} rows x {threads} threads", size, sampling(bits, x, "philox"))
    for table, before in zip((launches.GROUPS, launches.THREADS), kept, strict=True):
        table.clear()
        table.update(before)


def time_server() -> None:
    size = 1 << 24
    for bits, many in ((1, 252), (2, 64), (4, 64)):
        rows = torch.randint(0, 256, (many, packed_size(bits, size)), dtype=torch.uint8, device="cuda")
        total = torch.zeros(size, dtype=torch.int32, device="cuda")
        task = partial(TritonKernel().accumulate, rows, bits, np.arange(2**bits), total)
        took = report(f"add {many} payloads of {bits} bits", size, task, False, count=many * size)
        note(f"{'':44s}        {rows.numel() / took / 1e12:10.2f} TB/s of payload")


def published(x: torch.Tensor, natural: torch.Tensor, bernoulli: bool) -> torch.Tensor:
    """Codes as the published code draws them: probabilities by softmax, one draw by torch, int64."""
    place = (0.5 + 0.25 * x).unsqueeze(-1)
    probabilities = torch.softmax((1 - place) * natural[0] + place * natural[1], dim=-1)
    if bernoulli:
        return torch.bernoulli(probabilities[..., 1]).long()
    return torch.multinomial(probabilities, 1).squeeze(-1)


def published_in_pieces(x: torch.Tensor, natural: torch.Tensor) -> None:
    for start in range(0, x.numel(), 1 << 23):  # torch.multinomial takes at most 2^24 rows
        published(x[start : start + (1 << 23)], natural, False)


def time_published() -> None:
    size = 1 << 26
    x = torch.randn(size, device="cuda") * 0.05
    for bits in (1, 2, 3, 4):
        sampler = make_sampler(bits)
        ends = [sampler.base[0] - sampler.slope[0] / 2, sampler.base[0] + sampler.slope[0] / 2]
        natural = torch.tensor(np.stack(ends)).float().cuda()
        slow = report(f"published way, {bits} bits", size, partial(published_in_pieces, x, natural), False)
        if bits == 1:
            report("the same with torch.bernoulli, 1 bit", size, partial(published, x, natural, True), False)
        fast = report(f"sample {bits} bits float32 philox", size, sampling(bits, x, "philox"))
        note(f"{'':44s} {slow / fast:10.1f} times the published way")
        RESULTS.setdefault("ratios", {})[f"published / sample, {bits} bits"] = slow / fast


def check_all() -> None:
    check_sampling()
    check_counting()
    check_frequencies()
    note(f"checks: {sum(RESULTS['checks'].values())} of {len(RESULTS['checks'])} right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="leave out d = 2^30")
    parser.add_argument("--only", choices=["check", "choices", "one", "bits", "server", "published"])
    chosen = parser.parse_args()
    began = time.perf_counter()
    large = [1 << 26, 1 << 28] if chosen.quick else [1 << 26, 1 << 28, 1 << 30]
    steps: dict[str, Callable[[], None]] = {
        "check": check_all,
        "one": partial(time_one_bit, large),
        "bits": partial(time_bits, [1 << 26, 1 << 28]),
        "server": time_server,
        "published": time_published,
        "choices": time_choices,
    }
    RESULTS["machine"] = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "plans": {b: (thresholds_on_device(make_sampler(b)).degree, thresholds_on_device(make_sampler(b)).half)
                  for b in (1, 2, 3, 4)},
    }  # fmt: skip
    for name, step in steps.items():
        if chosen.only in (None, name):
            print(f"-- {name} at {time.perf_counter() - began:.1f} s", flush=True)
            step()
    print(f"-- done at {time.perf_counter() - began:.1f} s\n")
    print("\n".join(LINES))
    folder = os.environ.get("OUT")
    if folder:
        Path(folder, "kernels.json").write_text(json.dumps(RESULTS, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
