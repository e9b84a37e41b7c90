"""A cohort's round on one CPU core: the cohort kernel beside the per-client path and plain torch.

Idea     600 clients x 39,700 coordinates, sampling and summing alone, in processor time (best of five). The per-client
         path writes the gradients of 45 clients at a time, samples and packs them, and adds up the payloads.

    PYTHONPATH=src python benchmarks/gpu/cohort_cpu.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from cohort_rounds import KEY, make_sampler

from quietbit.kernel.base import packed_size
from quietbit.kernel.cpu import CpuKernel
from quietbit.kernel.rng import RandomBits, secure_rng, seeded_rng
from quietbit.kernel.sampler import Sampler
from quietbit_lab.cohort.codes import sum_codes
from quietbit_lab.cohort.sums import BitLaw, count_ones

CLIENTS, CLASSES, FEATURES, ROWS = 600, 10, 3970, 45
SIZE = CLASSES * FEATURES
WIDTH = -(-SIZE // 8) * 8


def per_client(left: Any, right: Any, sampler: Sampler, rng: RandomBits) -> Any:
    """Gradients, codes, payloads, counts."""
    kernel, bits = CpuKernel(1), sampler.bits
    total: Any = np.zeros(SIZE, np.int32 if bits == 1 else np.int64)
    rows, out = np.zeros((ROWS, WIDTH), np.float32), np.empty(packed_size(bits, ROWS * WIDTH), np.uint8)
    for start in range(0, CLIENTS, ROWS):
        many = min(ROWS, CLIENTS - start)
        chosen = slice(start, start + many)
        target = rows[:many, :SIZE].reshape(many, CLASSES, FEATURES)
        np.multiply(left[chosen, :, None], right[chosen, None, :], out=target)
        rows[:many, :SIZE] = target.reshape(many, SIZE)
        packed = out[: packed_size(bits, many * WIDTH)]
        kernel.sample_packed(sampler, rows[:many].reshape(-1), rng, packed, verified=True)
        payloads = packed.reshape(many, -1)[:, : packed_size(bits, SIZE)].copy()
        if bits * SIZE % 8:
            payloads[:, -1] &= (1 << (bits * SIZE % 8)) - 1
        kernel.accumulate(list(payloads), bits, np.arange(2**bits), total)
    return total


def plain(left: Any, right: Any) -> Any:
    """As one would write it with torch."""
    return torch.bernoulli(torch.sigmoid(left[:, :, None] * right[:, None, :])).sum(dim=0)


def report(label: str, task: Callable[[], Any]) -> None:
    task()
    times = []
    for _ in range(5):
        began = time.process_time()
        task()
        times.append(time.process_time() - began)
    print(f"{label:44s} {min(times) * 1e3:8.1f} ms {CLIENTS * SIZE / min(times) / 1e9:8.2f} G/s", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    left = (0.1 * rng.normal(size=(CLIENTS, CLASSES))).astype(np.float32)
    right = rng.normal(size=(CLIENTS, FEATURES)).astype(np.float32)
    tensors = torch.tensor(left)[None], torch.tensor(right)
    for generator in ("philox", "chacha12"):
        task = partial(count_ones, BitLaw.LOGISTIC, *tensors, words_key=KEY, reach=1.0, generator=generator)
        report(f"count_ones, {generator}", task)
    report("per client, 1 bit, AES", lambda: per_client(left, right, make_sampler(1), secure_rng()))
    report("per client, 1 bit, seeded words", lambda: per_client(left, right, make_sampler(1), seeded_rng(1)))
    report("plain torch, 1 bit", partial(plain, torch.tensor(left), torch.tensor(right)))
    for bits in (2, 4):
        sampler, table = make_sampler(bits), np.arange(2**bits)
        report(f"sum_codes, {bits} bits", partial(sum_codes, sampler, *tensors, table=table, words_key=KEY))
        report(f"per client, {bits} bits, AES", partial(per_client, left, right, sampler, secure_rng()))


if __name__ == "__main__":
    main()
