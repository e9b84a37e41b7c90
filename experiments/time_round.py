"""Where the time of a round of Figure 3 goes.

Milliseconds of its parts, with weights drawn at random.

PYTHONPATH=src python experiments/time_round.py --device cuda --keep 1024 2048 4096
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from client_rows import Rows
from row_passes import Law, kept, sums
from wide_network import Wide

from quietbit.kernel.transform import padded_size


def main() -> None:
    """Forward alone, rows with lengths, sums of three laws, kept coordinates."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cohort", type=int, default=500)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--keep", type=int, nargs="+", default=[1024])
    parser.add_argument("--eager", action="store_true", help="nothing compiled")
    parser.add_argument("--plain", action="store_true", help="no kernels of our own either")
    given = parser.parse_args()
    plain = given.plain or given.device != "cuda"
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    network = Wide(10, plain=True, blocks=given.blocks, width=given.width).to(given.device)
    rows = Rows(network, given.device, given.cohort, compiled=not (plain or given.eager))
    images = torch.randint(
        0, 256, (given.cohort, 32, 32, 3), dtype=torch.uint8, device=given.device
    )
    labels = torch.randint(0, 10, (given.cohort,), device=given.device)
    found, lengths = rows.of(images, labels)
    factors = 1 / lengths
    timed("forward", lambda: rows.scores(images), given.device)
    timed("rows and lengths", lambda: rows.of(images, labels), given.device)
    for law in (Law("sum"), Law("logistic", 4.0, 0.1), Law("normal", 1.4)):
        timed(
            f"sums, {law.name}",
            lambda law=law: sums(found, factors, law, plain=plain),
            given.device,
        )
    size = padded_size(rows.dimension)
    signs = torch.randint(0, 2, (size,), device=given.device).mul(2).sub(1).to(torch.int8)
    for keep in given.keep:
        offsets = torch.randint(size // keep, (given.cohort, keep), device=given.device)
        timed(
            f"{keep} kept",
            lambda offsets=offsets: kept(found, signs, offsets, plain=plain),
            given.device,
        )


def timed(what: str, work: Callable[[], Any], device: str) -> None:
    """Once to begin with, then the mean of three."""
    began = time.perf_counter()
    for turn in range(4):
        if turn == 1:
            first, began = time.perf_counter() - began, time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
    print(
        f"{what:>20}: {1000 * (time.perf_counter() - began) / 3:9.1f} ms (first {first:.1f} s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
