"""Launching the cohort kernels: shapes, the list of undecided rows, and how clients are split over programs.

Idea     one configuration alone has too few rows to fill a GPU, so its clients are split over programs, which add
         their counts atomically; many configurations need no splitting. Nothing here reads from the device.
Symbols  a row is eight features; see `triton.py`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from quietbit.errors import MissingDependency, require_module
from quietbit.kernel.law import Gain
from quietbit.kernel.sampler import Sampler
from quietbit.kernel.tables import thresholds_on_device
from quietbit.kernel.triton import tables_on_device
from quietbit_lab.cohort.law import BitLaw, tail_table
from quietbit_lab.cohort.plan import PATTERN, bit_plan
from quietbit_lab.cohort.words import row_count

__all__ = ["count_on_device", "sum_on_device"]

FORMS = ("odd", "logistic", "laplace")
TERMS = 6  # a polynomial with more costs a GPU more than two of its special functions
LANES = 128
CLASSES = {"philox": 5, "chacha12": 2}  # classes that one thread counts, at most
CODE_CLASSES = {1: 2, 2: 2}  # the same for codes by bits, else 1: more would spill registers
GENERATORS = {"philox": 1, "chacha12": 2}
RESIDENT = 4  # programs that a multiprocessor runs at once, with 128 registers for each of their threads
FEWEST = 2  # clients per program
OVERHEAD = 1.5  # what starting a program and adding its counts costs, in clients
QUAD = 4  # clients that one block of chacha12 serves
ROOM = 1024  # rows the list holds beyond twice as many as are expected
SETTLERS = 1056  # programs of the second pass
SETTLE_LANES = 32


@lru_cache(maxsize=1)
def _machine_code() -> SimpleNamespace:
    triton = require_module("triton", "gpu")
    torch = require_module("torch", "torch")
    interpreted = bool(triton.knobs.runtime.interpret)
    if not interpreted and not torch.cuda.is_available():
        raise MissingDependency("The cohort kernel for GPUs needs an NVIDIA GPU, and torch sees none here.")
    from quietbit_lab.cohort import triton as kernels

    return SimpleNamespace(**vars(kernels) | {"interpreted": interpreted})


def count_on_device(law: BitLaw, left: Any, right: Any, key: Any, reach: float, generator: str, streams: Any) -> Any:
    """Both passes; tensors are on the GPU, or anywhere in Triton's interpreter."""
    torch, code = require_module("torch", "torch"), _machine_code()
    left, right = left.detach().contiguous(), right.detach().contiguous()
    groups, clients, classes = left.shape
    features = right.shape[1]
    size = groups * classes * features
    # The last number counts the rows that are listed.
    buffer = torch.zeros(size + 1, dtype=torch.int32, device=left.device)
    counts, count = buffer[:size].view(groups, classes, features), buffer[size:]
    if size == 0 or clients == 0:
        return counts
    plan, rows = bit_plan(law, reach, TERMS), row_count(features)
    expected = 8 * (2 * plan.width + 1) / 65536
    capacity = max(1, math.ceil(min(1.0, 2 * expected) * groups * clients * classes * rows) + ROOM)
    listed = torch.empty(capacity, dtype=torch.int64, device=left.device)
    at_once = _classes_at_once(classes, CLASSES[generator])
    blocks = -(-rows // LANES), classes // at_once
    per_program = _clients_per_program(
        clients, blocks[0] * blocks[1] * groups, _resident(left.device), QUAD if generator == "chacha12" else 1
    )
    splits = -(-clients // per_program)
    numbers = plan.coefficients if plan.form == "odd" else (plan.turns,)
    shape = {"FORM": FORMS.index(plan.form), "TERMS": len(numbers), "GENERATOR": GENERATORS[generator]}
    shape |= {"enable_fp_fusion": False}
    tables = _device_tables(law, reach, str(left.device))
    shared = (plan.rate, tuple(numbers), PATTERN, float(plan.width))
    code.count_bits[(*blocks, groups * splits)](
        left, right, counts, listed, count, capacity, key, streams, clients, classes, features, rows, per_program,
        splits, *shared, CLASSES=at_once, LANES=LANES, num_warps=LANES // 32, **shape,
    )  # fmt: skip
    programs = min(SETTLERS, -(-capacity // SETTLE_LANES)) if not code.interpreted else 2
    code.settle_bits[(programs,)](
        left, right, counts, listed, count, capacity, key, streams, tables.law, tables.reach, groups, clients, classes,
        features, rows, *shared, LANES=SETTLE_LANES, num_warps=1, **shape,
    )  # fmt: skip
    return counts


def sum_on_device(sampler: Sampler, left: Any, right: Any, table: Any, key: Any, streams: Any) -> Any:
    """Both passes of `sum_codes`; tensors are on the GPU, or anywhere in Triton's interpreter."""
    torch, code = require_module("torch", "torch"), _machine_code()
    left, right = left.detach().contiguous(), right.detach().contiguous()
    groups, clients, classes = left.shape
    features = right.shape[1]
    size = groups * classes * features
    buffer = torch.zeros(size + 1, dtype=torch.int64, device=left.device)
    totals, count = buffer[:size].view(groups, classes, features), buffer[size:].view(torch.int32)
    if size == 0 or clients == 0:
        return totals
    plan, rows = thresholds_on_device(sampler), row_count(features)
    gain, tables = Gain.of(1.0, sampler.scale), tables_on_device(sampler, str(left.device))
    expected = 8 * (sampler.symbols - 1) * (2 * plan.half + 1) / 65536
    capacity = max(1, math.ceil(min(1.0, 2 * expected) * groups * clients * classes * rows) + ROOM)
    listed = torch.empty(capacity, dtype=torch.int64, device=left.device)
    at_once = _classes_at_once(classes, CODE_CLASSES.get(sampler.bits, 1))
    blocks = -(-rows // LANES), classes // at_once
    per_program = _clients_per_program(clients, blocks[0] * blocks[1] * groups, _resident(left.device), 1)
    splits = -(-clients // per_program)
    values = _table_on_device(table.tobytes(), str(left.device))
    shape = {"BITS": sampler.bits, "DEGREE": plan.degree, "CELLS": plan.cells, "CENTRED": plan.centred}
    shape |= {"enable_fp_fusion": False}
    shared = (sampler.scale * plan.rate, plan.offset, plan.lowest, plan.highest, tables.coefficients, plan.half)
    code.sum_codes[(*blocks, groups * splits)](
        left, right, totals, listed, count, capacity, key, streams, values, clients, classes, features, rows,
        per_program, splits, *shared, CLASSES=at_once, LANES=LANES, num_warps=LANES // 32, **shape,
    )  # fmt: skip
    doubles = np.array((gain.first, gain.second, gain.high, gain.low, *sampler.t_range)).view(np.int64).tolist()
    programs = min(SETTLERS, -(-capacity // SETTLE_LANES)) if not code.interpreted else 2
    code.settle_codes[(programs,)](
        left, right, totals, listed, count, capacity, key, streams, values, groups, clients, classes, features, rows,
        *shared, *doubles, *tables.knots, sampler.levels, tables.law, LANES=SETTLE_LANES, num_warps=1, **shape,
    )  # fmt: skip
    return totals


def _classes_at_once(classes: int, most: int) -> int:
    """The largest number of classes per thread that divides them all."""
    return max(k for k in range(1, most + 1) if classes % k == 0)


@lru_cache(maxsize=1024)
def _clients_per_program(clients: int, programs: int, resident: int, step: int) -> int:
    """The split of clients that ends first, if programs take turns in waves of ``resident``; a multiple of ``step``."""
    choices = {step * math.ceil(clients / splits / step) for splits in range(1, max(1, clients // FEWEST) + 1)}

    def cost(clients_each: int) -> float:
        waves = math.ceil(programs * math.ceil(clients / clients_each) / resident)
        return waves * (clients_each + OVERHEAD)

    return min(sorted(choices, reverse=True), key=cost)


def _resident(device: Any) -> int:
    """Programs that run at once."""
    return RESIDENT * _multiprocessors(str(device))


@lru_cache(maxsize=8)
def _multiprocessors(device: str) -> int:
    torch = require_module("torch", "torch")
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.startswith("cuda") else 1


@lru_cache(maxsize=64)
def _device_tables(law: BitLaw, reach: float, device: str) -> SimpleNamespace:
    torch = require_module("torch", "torch")
    return SimpleNamespace(
        law=torch.tensor(tail_table(law), device=device),
        reach=torch.tensor([reach], dtype=torch.float64, device=device),
    )


@lru_cache(maxsize=64)
def _table_on_device(numbers: bytes, device: str) -> Any:
    """A table of int64 numbers, copied once."""
    torch = require_module("torch", "torch")
    return torch.tensor(np.frombuffer(numbers, dtype=np.int64).copy(), device=device)
