"""How long a design takes, how that grows with its size, and how good the result is.

Run on one core:  python benchmarks/design.py [--quick] The published solver's times, from its
authors' code on comparable hardware, are 43 s for (128 levels, 3 bits), 295 s for (256, 3) and 124
s for (512, 1). The peer measured in the same run is HiGHS on the inner linear program.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from quietbit.design.certify import certify
from quietbit.design.table import Design, DesignSpec
from quietbit_lab.design.bound import gap_to, lower_bound
from quietbit_lab.design.interior_point import CentralPath
from quietbit_lab.design.search import solve

GROWTH = [(n, b) for b in (3, 4) for n in (64, 128, 256, 512)]
QUALITY = [
    (8, 3, 5.0, "metric-l1", "exact", 0.06878),
    (32, 3, 2.0, "metric-l1", "exact", 0.3945),
    (8, 3, 5.0, "strict", "exact", 0.01214),
    (2, 1, 1.0, "metric-l1", 100.0, 0.8883),
    (8, 3, 5.0, "strict", 100.0, 0.01261),
    (8, 3, 5.0, "metric-l1", 100.0, 0.08676),
    (32, 3, 2.0, "metric-l1", 100.0, 0.3623),
    (128, 3, 4.0, "metric-l1", 100.0, 0.1212),
    (512, 1, 1.0, "metric-l1", 100.0, 1.1785),
]


def timed_design(spec: DesignSpec) -> tuple[float, Design]:
    start = time.perf_counter()
    design = solve(spec, cache=False)
    return time.perf_counter() - start, design


def highs_seconds(design: Design) -> float:
    """HiGHS on the linear program of the final alphabet, with neighbouring constraints only."""
    spec, n, b = design.spec, design.spec.input_levels, design.spec.outputs
    x, a, ratio = spec.levels, design.alphabet, np.exp(spec.log_ratio_step)
    lower, upper = np.arange((n - 1) * b), np.arange(b, n * b)
    count = len(lower)
    row = np.arange(count)
    rows = np.concatenate([row, row, row + count, row + count])
    columns = np.concatenate([lower, upper, upper, lower])
    values = np.concatenate(
        [np.ones(count), np.full(count, -ratio), np.ones(count), np.full(count, -ratio)]
    )
    inequalities = coo_matrix((values, (rows, columns)), shape=(2 * count, n * b)).tocsr()
    level = np.repeat(np.arange(n), b)
    equalities = coo_matrix(
        (
            np.concatenate([np.ones(n * b), np.tile(a, n)]),
            (np.concatenate([level, level + n]), np.tile(np.arange(n * b), 2)),
        )
    ).tocsr()
    start = time.perf_counter()
    linprog(
        ((a[None, :] - x[:, None]) ** 2 / n).ravel(),
        inequalities,
        np.zeros(2 * count),
        equalities,
        np.concatenate([np.ones(n), x]),
        method="highs",
    )
    return time.perf_counter() - start


def inner_seconds(design: Design) -> float:
    """Our interior point on the same problem, from a cold start to the same accuracy."""
    start = time.perf_counter()
    path = CentralPath(design.spec)
    for gap in (1e-2, 1e-4, 1e-6):
        path.solve(design.alphabet, gap)
    return time.perf_counter() - start


def growth(console: Console, sizes: list[tuple[int, int]]) -> None:
    table = Table(title="Whole solve, metric-l1, epsilon 5, one core")
    for heading in (
        "levels",
        "bits",
        "exact, s",
        "penalty 100, s",
        "s per 1000 cells",
        "HiGHS / ours, one alphabet",
    ):
        table.add_column(heading, justify="right")
    for levels, bits in sizes:
        exact, design = timed_design(DesignSpec(levels, bits, 5.0))
        penalty, _ = timed_design(DesignSpec(levels, bits, 5.0, bias=100.0))
        cells = levels * 2**bits / 1000
        # HiGHS takes minutes beyond this size.
        peer = f"{highs_seconds(design) / inner_seconds(design):.0f}" if levels <= 256 else "-"
        table.add_row(
            str(levels), str(bits), f"{exact:.1f}", f"{penalty:.1f}", f"{exact / cells:.2f}", peer
        )
    console.print(table)


def quality(console: Console) -> None:
    table = Table(
        title="Objective against what was known, and against the any-alphabet lower bound"
    )
    for heading in (
        "levels",
        "bits",
        "epsilon",
        "privacy",
        "bias",
        "known",
        "ours",
        "lower bound",
        "gap",
        "seconds",
    ):
        table.add_column(heading, justify="right")
    for levels, bits, epsilon, privacy, bias, known in QUALITY:
        seconds, design = timed_design(DesignSpec(levels, bits, epsilon, privacy, bias))  # type: ignore[arg-type]
        facts = certify(design)
        table.add_row(
            *(str(value) for value in (levels, bits, epsilon, privacy, bias)),
            *(f"{value:.5g}" for value in (known, facts.objective, lower_bound(design))),
            f"{gap_to(design):.2%}",
            f"{seconds:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only up to 128 levels")
    arguments = parser.parse_args()
    wide = Console(width=130)
    quality(wide)
    growth(wide, [size for size in GROWTH if size[0] <= 128] if arguments.quick else GROWTH)
