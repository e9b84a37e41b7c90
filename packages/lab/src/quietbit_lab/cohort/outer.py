"""Sums over a cohort of codes of outer products, without writing an update or a code.

Idea     a client of one example and a linear model has an update of rank one, left[k] right[f]. A
         kernel makes the product in a register, draws its code from `CodeLaw` and keeps the sum of
         what codes stand for, as whole numbers: neither the order of clients nor the number of
         threads matters.
Symbols  G models, K classes, m clients, F features; left (G, K, m), right (m, F), both float32;
         result (G, K, F). A value v is counted as rint((v - v_0) / (v_last - v_0) 2^18).

Randomness: SplitMix64 (Steele, Lea, Flood 2014) on a CPU, Philox4x32 (Salmon et al. 2011) on a GPU,
from a seed of 63 bits for each call; equal seeds give equal sums on the same kind of device.
Neither is a cipher: for simulations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import require, require_module
from quietbit.kernel.c import address
from quietbit.kernel.c.build import BuildFailed, build_library
from quietbit_lab.cohort.law import CodeLaw

__all__ = ["mean_codes"]

torch: Any = require_module("torch", "lab[torch]")
Tensor: TypeAlias = Any
WHOLE = 2.0**18
GOLDEN = 0x9E3779B97F4A7C15
BLOCK = 128  # lanes of a GPU program, four features each
LEAST = 16  # clients of a program
MOST = 4096
PROGRAMS = 4096  # that fill a GPU
FEW = 1 << 18  # codes below which threads cost more than they bring


def mean_codes(laws: Sequence[CodeLaw], left: Tensor, right: Tensor, seed: int) -> Tensor:
    """Return the mean of decoded codes for each model, class and feature: float32, (G, K, F).

    ``laws`` has one of each model, all of as many bits; a NaN counts as the least value of the
    table.
    """
    require(
        len({law.cumulative.shape for law in laws}) == 1, "laws", len(laws), "of as many bits each"
    )
    require(
        len(laws) == left.shape[0], "laws", len(laws), f"one for each of {left.shape[0]} models"
    )
    require(
        left.shape[2] == right.shape[0],
        "clients of right",
        right.shape[0],
        f"the {left.shape[2]} of left",
    )
    if left.device.type == "cuda":
        total = _on_device(tuple(laws), left.contiguous(), right.contiguous(), seed)
    else:
        arrays = left.detach().contiguous().numpy(), right.detach().contiguous().numpy()
        total = torch.from_numpy(_on_host(laws, *arrays, seed, torch.get_num_threads()))
    first = _column([law.values[0] for law in laws], left.device)
    width = _column(
        [(law.values[-1] - law.values[0]) / WHOLE / right.shape[0] for law in laws], left.device
    )
    return (total.double() * width + first).float()


def _column(values: Sequence[float], device: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)[:, None, None]


def _whole(law: CodeLaw) -> NDArray[np.int32]:
    share = (law.values - law.values[0]) / (law.values[-1] - law.values[0])
    return np.asarray(np.rint(share * WHOLE), dtype=np.int32)


def _on_host(
    laws: Sequence[CodeLaw],
    left: NDArray[np.float32],
    right: NDArray[np.float32],
    seed: int,
    threads: int,
) -> NDArray[np.int64]:
    groups, classes, clients = left.shape
    total = np.zeros((groups, classes, right.shape[1]), dtype=np.int64)
    sum_class = _compiled() or sum_class_in_numpy
    wholes = [_whole(law) for law in laws]

    def work(row: int) -> None:
        g, k = divmod(row, classes)
        counter = (seed + (row + 1) * GOLDEN * 0x632BE59BD9B4E019) % 2**64
        sum_class(left[g, k], right, counter, laws[g], wholes[g], total[g, k])

    if threads == 1 or total.size * clients < FEW:
        for row in range(groups * classes):
            work(row)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(groups * classes)))
    return total


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., None] | None:
    """Return the loop over clients and features in C, or None without a compiler."""
    source = Path(__file__).with_name("outer.c")
    try:
        library = ctypes.CDLL(str(build_library(source, (source.name,))))
    except (BuildFailed, OSError):
        return None
    function = library.sum_codes
    function.restype = None
    pointer = ctypes.c_void_p
    size = ctypes.c_size_t
    number = ctypes.c_float
    function.argtypes = (
        *(pointer, size, pointer, size, ctypes.c_uint64, number, number),
        *(pointer, size, size, pointer, size, pointer),
    )

    def sum_class(
        left: NDArray[np.float32],
        right: NDArray[np.float32],
        counter: int,
        law: CodeLaw,
        whole: Any,
        out: Any,
    ) -> None:
        table = np.ascontiguousarray(law.cumulative, np.float32)
        function(
            address(left),
            left.size,
            address(right),
            right.shape[1],
            counter,
            law.low,
            law.inverse,
            address(table),
            table.shape[0] - 1,
            table.shape[1],
            address(whole),
            whole.size,
            address(out),
        )

    return sum_class


def sum_class_in_numpy(
    left: NDArray[np.float32],
    right: NDArray[np.float32],
    counter: int,
    law: CodeLaw,
    whole: Any,
    out: Any,
) -> None:
    """Do what `outer.c` does, client by client."""
    features = right.shape[1]
    table = np.asarray(law.cumulative, np.float32)
    last = np.float32(np.float32(table.shape[0] - 1) - np.float32(1e-3))
    steps = np.arange(features, dtype=np.uint64)
    for i in range(left.size):
        z = (steps + np.uint64(i * features)) * np.uint64(GOLDEN) + np.uint64(counter)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        uniform = (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        with np.errstate(invalid="ignore", over="ignore"):
            x = (left[i] * right[i] - np.float32(law.low)) * np.float32(law.inverse)
        x = np.where(x > 0, np.minimum(x, last), np.float32(0.0))  # so that a NaN is 0
        cell = x.astype(np.int64)
        part = x - cell.astype(np.float32)
        code = np.zeros(features, np.int64)
        step = whole.size // 2
        while step > 0:
            here = table[cell, code + step - 1]
            line = here + part * (table[cell + 1, code + step - 1] - here)
            code += step * (uniform >= line)
            step //= 2
        out += whole[code]


def _on_device(laws: tuple[CodeLaw, ...], left: Tensor, right: Tensor, seed: int) -> Tensor:
    from quietbit_lab.cohort.outer_triton import sum_codes

    groups, classes, clients = left.shape
    features = right.shape[1]
    total = torch.zeros((groups, classes, features), dtype=torch.int64, device=left.device)
    tables, places, wholes = _moved(laws, str(left.device))
    blocks = -(-features // (4 * BLOCK))
    require(
        clients * blocks * BLOCK < 2**31,
        "clients of a cohort",
        clients,
        "fewer for this number of features",
    )
    splits = max(
        -(-clients // MOST), min(-(-clients // LEAST), -(-PROGRAMS // (groups * classes * blocks)))
    )
    chunk = -(-clients // splits)
    sum_codes[groups * classes, blocks, -(-clients // chunk)](
        left,
        right,
        tables,
        places,
        wholes,
        total,
        seed,
        clients,
        classes,
        features,
        chunk,
        BITS=laws[0].bits,
        CELLS=laws[0].cumulative.shape[0] - 1,
        BLOCK=BLOCK,
    )
    return total


@lru_cache(maxsize=64)
def _moved(laws: tuple[CodeLaw, ...], device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return tables, ranges and integers on a device; laws are compared by identity."""
    tables = torch.from_numpy(np.stack([law.cumulative for law in laws])).to(device)
    places = torch.tensor(
        [[law.low, law.inverse] for law in laws], dtype=torch.float32, device=device
    )
    return tables, places, torch.from_numpy(np.stack([_whole(law) for law in laws])).to(device)
