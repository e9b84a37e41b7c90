"""Every operation of the GPU's kernel.

Right first, bit for bit as the reference, then timed beside a copy.

Idea     one command on a machine with an NVIDIA GPU; torch, triton, numpy, scipy and attrs are
         enough. What is wrong is said, and ends in exit status 1. Ratios to a copy of as many
         float32 are what to read.
Rows     copy = one tensor into another; clipped = norm, clip, sampling, packing of one bit with
         `secure_rng`; rotated = the same of the update rotated in blocks of 4,096; rotate whole =
         all stages into another tensor.

    PYTHONPATH=src python benchmarks/gpu_check.py [--sizes 24 28]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from uplink_kernels import interpolated_design

from quietbit.kernel.base import Kernel, packed_size
from quietbit.kernel.expand import acceptance_limits
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import secure_rng, seeded_rng
from quietbit.kernel.sampler import Sampler
from quietbit.kernel.select import select

REFERENCE = ReferenceKernel()
BLOCK, K = 4096, 1024
wrong: list[str] = []


def check(name: str, found: Any, expected: Any) -> None:
    """Compare two arrays to the last bit."""
    found = found.cpu().numpy() if isinstance(found, torch.Tensor) else found
    fine = np.asarray(found).tobytes() == np.asarray(expected).tobytes()
    print("right" if fine else "WRONG", name, flush=True)
    if not fine:
        wrong.append(name)


class Same:
    """The words of one draw, made on the device by one kernel and by numpy for the other."""

    def __init__(self, size: int) -> None:
        """Draw them."""
        self.given = secure_rng().draw(size)

    def draw(self, count: int) -> Any:
        """Give the same again."""
        return self.given


class Given:
    """Words of a seed, copied to the device."""

    def draw(self, count: int) -> Any:
        """Give the same again."""
        return seeded_rng(3).draw(count)


def check_sampling(kernel: Kernel, device: str) -> None:
    """Codes of plain, clipped and rotated updates, all types, words of a seed and words made on the device."""
    rng = np.random.default_rng(1)
    size = 70_003
    # Every law in float32 and every type with one bit: each combination is compiled anew, which is
    # what takes time.
    cases = [(bits, levels, torch.float32) for bits, levels in ((1, 2), (2, 2), (3, 8), (8, 2))]
    cases += [(1, 2, kind) for kind in (torch.float64, torch.bfloat16, torch.float16)]
    for bits, levels, kind in cases:
        sampler = Sampler.from_design(interpolated_design(levels, bits, 2.0), 0.5, 0.0, 1.0)
        tensor = torch.from_numpy(rng.normal(size=size) / 50).to(kind)
        array = tensor.float().numpy() if tensor.element_size() == 2 else tensor.numpy()
        expected, out = np.empty((2, packed_size(bits, size)), np.uint8)
        chosen: list[tuple[float, Any]] = [(0.5, Same(size)), (100.0, Same(size))]
        for radius, words in chosen + ([(0.5, Given())] if kind is torch.float32 else []):
            name = f"{bits} bits, {levels} levels, {kind}, radius {radius:g}, {type(words).__name__.lower()} words"
            REFERENCE.sample_clipped(sampler, array, 2, radius, words, expected)
            kernel.sample_clipped(sampler, tensor.to(device), 2, radius, words, out)
            check("clipped, " + name, out, expected)
            REFERENCE.sample_rotated(sampler, array, 7, BLOCK, radius, words, expected)
            kernel.sample_rotated(sampler, tensor.to(device), 7, BLOCK, radius, words, out)
            check("rotated, " + name, out, expected)
        total, counted = np.zeros((2, size), np.int64)
        for one, sums in ((REFERENCE, total), (kernel, counted)):
            one.accumulate([expected.tobytes(), out.tobytes()], bits, np.arange(2**bits) ** 2, sums)
        check(f"counted, {bits} bits", counted, total)


def check_rotations(kernel: Kernel, device: str) -> None:
    """Rotations and their inverses."""
    for size, block in ((1, 1), (5, 4), (1000, 512), (100_001, 4096), (300_000, 262_144)):
        vector = np.random.default_rng(size).normal(size=size)
        for kind in (np.float32, np.float64):
            given = torch.from_numpy(vector.astype(kind)).to(device)
            for name, chosen in (("rotate", (5,)), ("rotate", (5, block))):
                for factor in (1.0, 0.37):
                    expected = getattr(REFERENCE, name)(
                        vector.astype(kind), *chosen, factor=factor, kind=kind
                    )
                    found = getattr(kernel, name)(given, *chosen, factor=factor, kind=kind)
                    check(
                        f"{name} {size} in {block}, {kind.__name__}, factor {factor}",
                        found,
                        expected,
                    )
                back = getattr(REFERENCE, name + "_back")(expected.copy(), *chosen)
                check(
                    f"{name}_back {size}", getattr(kernel, name + "_back")(expected, *chosen), back
                )


def check_expansion(kernel: Kernel) -> None:
    """Normals, rows, the search for a seed, sums of payloads."""
    rng = np.random.default_rng(2)
    for count in (1, 130, K, 5000):
        seed, nonce = rng.bytes(16), rng.bytes(8)
        check(f"normals {count}", kernel.normals(seed, count), REFERENCE.normals(seed, count))
        check(
            f"rows {count}",
            kernel.rows(nonce, count, 1 << 20),
            REFERENCE.rows(nonce, count, 1 << 20),
        )
    direction = rng.normal(size=K)
    direction /= np.linalg.norm(direction)
    given = (direction, np.array([1.2816]), acceptance_limits([1e-3, 1.0]))
    for start in range(5):
        found = [
            one.search(*given, seeded_rng(start).draw(1), acceptance_lower=0.1)
            for one in (kernel, REFERENCE)
        ]
        check(
            f"search {start}",
            np.frombuffer(found[0][0], np.uint8),
            np.frombuffer(found[1][0], np.uint8),
        )
    seeds, nonces = (
        rng.integers(0, 256, (50, 16), dtype=np.uint8),
        rng.integers(0, 256, (50, 8), dtype=np.uint8),
    )
    expected, total = np.zeros((2, 1 << 14), np.int64)
    REFERENCE.add_seeds(nonces, seeds, expected, count=K, shift=44)
    kernel.add_seeds(nonces, seeds, total, count=K, shift=44)
    check("sums of 50 payloads", total, expected)


def best(task: Callable[[], Any], repeats: int = 20) -> float:
    """Seconds of a task, host's work included.

    The best of some repeats, each waiting for the device.
    """
    found = float("inf")
    for _ in range(3):
        task()
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        task()
        torch.cuda.synchronize()
        found = min(found, time.perf_counter() - began)
    return found


def timings(kernel: Kernel, power: int) -> None:
    """One size, beside a copy of as many float32."""
    size = 1 << power
    x = torch.randn(size, device="cuda") / size**0.5 * 2
    other = torch.empty_like(x)
    sampler = Sampler.from_design(interpolated_design(2, 1, 1.0), 0.5, 0.0, 1.0)
    out: Any = torch.empty(packed_size(1, size), dtype=torch.uint8, device="cuda")
    rng = secure_rng()
    tasks: dict[str, Callable[[], Any]] = {
        "copy": lambda: other.copy_(x),
        "noise: x + randn_like(x)": lambda: x + torch.randn_like(x),
        "norm": lambda: kernel.norm(x, 2),
        "clipped, 1 bit": lambda: kernel.sample_clipped(sampler, x, 2, 1.0, rng, out),
        "rotated, 1 bit": lambda: kernel.sample_rotated(sampler, x, 3, BLOCK, 1.0, rng, out),
        "rotate in blocks": lambda: kernel.rotate(x, 3, BLOCK),
        "rotate whole": lambda: kernel.rotate(x, 3),
    }
    times = {name: best(task) for name, task in tasks.items()}
    print(f"\n2^{power} float32")
    for name, seconds in times.items():
        print(
            f"  {name:28} {1e6 * seconds:10.1f} us {seconds / times['copy']:8.2f} copies",
            flush=True,
        )


def main() -> None:
    """Check everything, then time it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[20, 24, 28], help="powers of two to time"
    )
    arguments = parser.parse_args()
    kernel = select("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    check_rotations(kernel, device)
    check_expansion(kernel)
    check_sampling(kernel, device)
    if device == "cuda":
        print(f"\n{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
        for power in arguments.sizes:
            timings(kernel, power)
        rng = np.random.default_rng(0)
        seeds, nonces = (rng.integers(0, 256, (10_000, n), dtype=np.uint8) for n in (16, 8))
        total = np.zeros(1 << 20, np.int64)
        added = best(lambda: kernel.add_seeds(nonces, seeds, total, count=K, shift=40))
        print(f"\n10,000 payloads of {K:,} added into 2^20: {1e3 * added:.3f} ms")
    print(f"\n{len(wrong)} wrong" if wrong else "\nall right")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
