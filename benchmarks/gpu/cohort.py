"""A cohort's codes, drawn and summed without ever being written.

Billions of codes a second, on a GPU or one CPU core.

Idea     600 clients x 10 classes x 3,970 features (MNIST's shape), one model or many at once;
         beside it the same in plain torch, which writes gradients and uniform numbers.

    PYTHONPATH=src python benchmarks/gpu/cohort.py --device cuda
    PYTHONPATH=src python benchmarks/gpu/cohort.py --device cpu
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from quietbit import Ball, DesignSpec, InterpolatedMVU, Norm, solve
from quietbit_lab.cohort.law import code_law
from quietbit_lab.cohort.outer import mean_codes

CLIENTS, CLASSES, FEATURES = 600, 10, 3970


def seconds(task: Callable[[], Any], device: str) -> float:
    """The best of five, after one that compiles."""
    found = []
    for _ in range(6):
        began = time.perf_counter()
        task()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    torch.set_num_threads(1)
    right = torch.rand((CLIENTS, FEATURES), device=device)
    for models in (1, 12) if device == "cuda" else (1,):
        left = torch.rand((models, CLASSES, CLIENTS), device=device) - 0.5
        count = models * CLIENTS * CLASSES * FEATURES
        for levels, bits in ((2, 1), (4, 2), (8, 3), (16, 4)):
            mechanism = InterpolatedMVU(
                solve(DesignSpec(levels, bits, 3.0)), Ball(Norm.L2, CLASSES * FEATURES)
            )
            laws = [code_law(mechanism)] * models
            spent = seconds(lambda laws=laws, left=left: mean_codes(laws, left, right, 1), device)  # type: ignore[misc]
            print(
                f"{device}, {models:3d} models, {bits} bits: {count / spent / 1e9:8.2f} billion codes a second"
            )
    left = (torch.rand((CLASSES, CLIENTS), device=device) - 0.5).T

    def plain() -> Any:
        rows = left[:, :, None] * right[:, None, :]
        return (torch.rand_like(rows) < torch.sigmoid(3 * rows)).sum(dim=0)

    print(
        f"{device}, plain torch, 1 bit: {CLIENTS * CLASSES * FEATURES / seconds(plain, device) / 1e9:8.2f} billion"
    )


if __name__ == "__main__":
    main()
