"""Launches of the Triton kernel: both passes that sample one tensor on the device.

Idea     the first pass decides almost every coordinate in float32 and lists the rest; the second settles those by the
         exact law in float64. What they need (tables, words that were given, shapes of programs) is put together here.
Symbols  as in `triton.py`, whose kernel these launches belong to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, final

import numpy as np

from quietbit.errors import MissingDependency, require_module
from quietbit.kernel.law import Gain
from quietbit.kernel.rng import LANES, DeviceBlock, WordBlock
from quietbit.kernel.sampler import Sampler, level_knots
from quietbit.kernel.tables import Thresholds, thresholds_on_device

__all__ = ["DRAWN", "GROUPS", "SETTLERS", "THREADS", "Launch", "machine_code", "sample_rows", "tables_on_device"]

GIVEN, CHACHA = 0, 2
DRAWN = {"philox": 1, "chacha12": CHACHA, "philox7": 3}
ROOM = 1024  # rows the list holds beyond twice as many as are expected
SETTLERS = 1056  # programs of the second pass: eight per multiprocessor of an H200
MAGIC, PATTERN = 2.0**23, 0x4B000000
GROUPS = {1: 2, 2: 2, 3: 2, 4: 2}  # rows per thread by bits, else 1; one bit of a 2-byte type and chacha12 have four
THREADS = {1: 128}  # threads per program by bits, else 128; chacha12 always has 128


@lru_cache(maxsize=1)
def machine_code() -> SimpleNamespace:
    """The compiled functions, with ``device``: where they run, and ``interpreted``."""
    triton = require_module("triton", "gpu")
    torch = require_module("torch", "torch")
    interpreted = bool(triton.knobs.runtime.interpret)
    if not interpreted and not torch.cuda.is_available():
        raise MissingDependency("The triton kernel needs an NVIDIA GPU, and torch sees none here.")
    from quietbit.kernel import triton_expand, triton_sampling, triton_sums, triton_transform

    found = vars(triton_sampling) | vars(triton_sums) | vars(triton_expand) | vars(triton_transform)
    return SimpleNamespace(**found | {"device": "cpu" if interpreted else "cuda", "interpreted": interpreted})


@final
@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """Both passes over one contiguous tensor on the device, all but the numbers that the gain gives.

    ``decidable``: the gain is one that a double holds; ``single``: and float32 too.
    """

    sampler: Sampler
    x: Any
    block: WordBlock
    out: Any
    decidable: bool
    single: bool

    def run(self, numbers: Any, count: Any, order: int, looks: Any) -> tuple[int, Any]:
        """Sample; ``order`` of a second look, or 0: the first pass's sums are returned, the second's go to ``looks``.

        ``count`` is a zero on the device; beyond the capacity, which is returned first, it means that the second pass
        did everything.
        """
        torch, code, sampler, x = require_module("torch", "torch"), machine_code(), self.sampler, self.x
        size, plan, tables = x.numel(), thresholds_on_device(sampler), tables_on_device(sampler, str(x.device))
        rows, given = size // 8, not isinstance(self.block, DeviceBlock)
        room = math.ceil(min(1.0, 16 * sampler.symbols * (2 * plan.half + 2) / 65536) * rows) + ROOM
        capacity = room if self.decidable else -1
        listed = torch.empty(room, dtype=torch.int64, device=x.device)
        words = _primary_words(self.block, size, x.device) if given else count
        keys = [0] * 8 if given else [word - (word >> 31 << 32) for word in self.block.key]  # type: ignore[attr-defined]
        generator = GIVEN if given else DRAWN[self.block.generator]  # type: ignore[attr-defined]
        searched = (plan.lowest, plan.highest, tables.coefficients, plan.half)
        shape = {"BITS": sampler.bits, "DEGREE": plan.degree, "CELLS": plan.cells}
        kinds = {"GENERATOR": generator, "DOUBLE": not self.single, "CENTRED": plan.centred, "LOOK": order}
        first = torch.empty(0, dtype=torch.float64, device=x.device)
        if self.decidable and rows:
            four = generator == CHACHA or (sampler.bits == 1 and x.element_size() == 2)
            groups = 4 if four else GROUPS.get(sampler.bits, 1)
            lanes = LANES if generator == CHACHA else THREADS.get(sampler.bits, LANES)
            even = rows % (lanes * groups) == 0
            tile = {"GROUPS": groups, "LANES": lanes, "EVEN": even, "num_warps": lanes // 32}
            grid = (-(-rows // (lanes * groups)),)
            first = torch.empty(grid[0] if order else 0, dtype=torch.float64, device=x.device)
            common = (x, self.out, words, *keys, listed, count, capacity, rows, numbers, first)
            if plan.lowered is not None:
                rest = {"DEGREE": plan.degree, "WIDTH": 16 // x.element_size()}
                code.sample_one_bit[grid](*common, _falling(plan), plan.width, PATTERN, **rest, **kinds, **tile)
            else:
                code.sample_thresholds[grid](*common, *searched, **shape, **kinds, **tile)
        ties, trust = count, int(self.decidable)
        if given:
            listed, ties = _listed_ties(self.block, listed, count, capacity, size)
            capacity = listed.numel()
            count = torch.full_like(count, capacity)
            if capacity == 0:
                return room, first
        at_once = max(4, code.LIMIT // sampler.symbols)
        programs = min(-(-room // at_once), 4 if code.interpreted else SETTLERS)
        code.resolve_rows[(programs,)](
            x, self.out, words, ties, *keys, listed, count, capacity, size, rows, numbers, looks, *tables.knots,
            sampler.levels, tables.law, trust, *searched, ROWS=at_once, num_warps=4, **shape, **kinds,
            enable_fp_fusion=False,
        )  # fmt: skip
        return (room if self.decidable else -1), first


def sample_rows(sampler: Sampler, gain: Gain, x: Any, block: WordBlock, out: Any) -> None:
    """Both passes with a gain that the host knows."""
    torch, plan = require_module("torch", "torch"), thresholds_on_device(sampler)
    rate = gain.approximate()
    decidable = rate == 0.0 or 2.0**-900 < rate < 2.0**900
    single = x.dtype != torch.float64 and (rate == 0.0 or 2.0**-100 < rate * plan.rate < 2.0**100)
    doubles = (gain.first, gain.second, gain.high, gain.low, *sampler.t_range, rate * plan.rate, plan.offset)
    numbers = torch.tensor(doubles, dtype=torch.float64, device=x.device)
    count = torch.zeros(1, dtype=torch.int32, device=x.device)
    Launch(sampler, x, block, out, decidable, single).run(numbers, count, 0, numbers)


def _falling(plan: Thresholds) -> tuple[float, ...]:
    """The coefficients of a one-bit threshold, the highest power first, the constant as `lowered` plus 2^23."""
    upper = [float(value) for value in plan.coefficients[:0:-1, 0, 0]]
    return (*upper, float(plan.lowered or 0.0) + MAGIC)


@lru_cache(maxsize=32)
def tables_on_device(sampler: Sampler, device: str) -> SimpleNamespace:
    """A sampler's tables on a device."""
    torch = require_module("torch", "torch")

    def put(array: Any) -> Any:
        return torch.tensor(np.ascontiguousarray(array), device=device)

    law = np.stack([sampler.base, sampler.base_tail, sampler.slope, sampler.slope_tail])
    knots = tuple(put(values) for values in level_knots(sampler.levels))
    coefficients = thresholds_on_device(sampler).coefficients
    pairs = np.stack([coefficients[0::2], coefficients[1::2]], axis=-1).copy().view(np.int64)
    return SimpleNamespace(coefficients=put(pairs), law=put(law), knots=knots)


def _primary_words(block: WordBlock, size: int, device: Any) -> Any:
    """Given primary words on the device, two to an int32, whole rows."""
    torch = require_module("torch", "torch")
    padded = np.zeros(-(-size // 8) * 8, dtype="<u2")
    padded[:size] = block.primary(0, size)
    return torch.tensor(padded.view("<i4"), device=device)


def _listed_ties(block: WordBlock, listed: Any, count: Any, capacity: int, size: int) -> tuple[Any, Any]:
    """The rows left to the exact law, as the host sees them, and their tie words."""
    torch = require_module("torch", "torch")
    found, rows = int(count.cpu()[0]), -(-size // 8)
    chosen = np.arange(rows) if found > capacity else listed[:found].cpu().numpy()
    if found <= capacity and size % 8:
        chosen = np.append(chosen, rows - 1)
    index = (8 * chosen[:, None] + np.arange(8)).reshape(-1).astype(np.int64)
    ties = np.zeros(index.size, dtype=np.int64)
    inside = index < size
    ties[inside] = (block.ties(index[inside]) & np.uint64(2**48 - 1)).astype(np.int64)
    return torch.tensor(chosen.astype(np.int64), device=listed.device), torch.tensor(ties, device=listed.device)
