"""What C needs for a release: an update, random words and a sampler's tables, as structures.

Idea     one bit is decided by a polynomial where one is good enough, more bits by lines on cells
         (`tables.py`); a gain that no plan can hold leaves every coordinate to the exact law. What
         depends on the sampler alone is made once, and a release copies it with its gain.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from quietbit.kernel.base import Job
from quietbit.kernel.c import (
    MAX_COEFFICIENTS,
    Cells,
    Law,
    Part,
    Polynomial,
    Random,
    Rotation,
    Sampling,
    Update,
    address,
)
from quietbit.kernel.norm import BLOCK, KINDS, Flat
from quietbit.kernel.rng import PRIMARY, TIES, ChaChaBlock, PhiloxBlock, WordBlock
from quietbit.kernel.sampler import Sampler, level_knots
from quietbit.kernel.tables import cell_table, threshold_plan
from quietbit.kernel.transform import Blocks

__all__ = ["sampling_of", "update_of"]


def update_of(flat: Flat) -> Update:
    """Return an update for C, valid as long as its arrays live, and its number of ``blocks``."""
    parts = []
    block = 0
    for start, part in zip(flat.starts, flat.parts, strict=True):
        parts.append(Part(address(part), start, part.size, block, KINDS[part.dtype]))
        block += -(-part.size // BLOCK)
    update = Update((Part * len(parts))(*parts), len(parts), flat.size)
    update.blocks = block
    return update


def sampling_of(job: Job) -> Sampling:
    """Return how the update of a job is sampled; addresses in it stay valid as long as it lives."""
    sampler = job.sampler
    rate = job.gain.approximate()
    how = Sampling(bits=sampler.bits, order=job.order)
    how.law = ctypes.pointer(_with_gain(_law(sampler), tuple(job.gain)))
    how.random = ctypes.pointer(_random(job.block, job.flat.size))
    polynomial = None
    if sampler.bits == 1:  # with more bits a fit may take a second
        polynomial = _polynomial(sampler)
    # Polynomials compute in float32, cells in doubles.
    if polynomial is not None and 2.0**-100 < rate * polynomial.gain < 2.0**100:
        how.polynomial = ctypes.pointer(_with_gain(polynomial, rate * polynomial.gain))
    elif rate == 0.0 or 2.0**-900 < rate < 2.0**900:
        how.cells = ctypes.pointer(_with_gain(_cells(sampler), rate))
    if job.blocks is not None:
        how.rotation = ctypes.pointer(_rotation(job.blocks, job.factor))
    return how


def _with_gain(plan: Any, gain: Any) -> Any:
    """Return a copy with this gain, which keeps alive what it points to."""
    copy = type(plan).from_buffer_copy(plan)
    copy.gain = gain
    copy.original = plan
    return copy


def _rotation(blocks: Blocks, factor: float) -> Rotation:
    signs, last_signs = blocks.words()
    last = None if last_signs is None else address(last_signs)
    rotation = Rotation(factor, address(signs), last, blocks.size, blocks.block)
    rotation.signs_kept = (signs, last_signs)
    return rotation


def _random(block: WordBlock, size: int) -> Random:
    """Return a release's words: a key, or for blocks of another kind all words."""
    if isinstance(block, ChaChaBlock):
        return Random(key=block.key)
    if isinstance(block, PhiloxBlock):
        primary = tuple(block.key(PRIMARY).tolist())
        ties = tuple(block.key(TIES).tolist())
        return Random(seeded=primary, seeded_ties=ties, is_seeded=1)
    words = np.ascontiguousarray(block.primary(0, size), np.uint16)
    tie_words = np.ascontiguousarray(block.ties(np.arange(size)), np.uint64)
    random = Random(address(words), address(tie_words))
    random.kept = (words, tie_words)
    return random


@lru_cache(maxsize=32)
def _polynomial(sampler: Sampler) -> Polynomial | None:
    """Return the plan of one bit and a gain of 1; None where rounding alone cannot decide it."""
    plan = threshold_plan(sampler)
    if plan.lowered is None:
        return None
    gain = plan.rate
    shift = plan.offset
    low = 0.0
    if plan.centred:
        gain = 2 * gain
        shift = 2 * shift - 1
        low = -1.0
    # Highest power first; the constant is lowered, plus 1/2.
    constant = float(np.float32(plan.lowered + 0.5))
    falling = (*plan.coefficients[:0:-1, 0, 0].tolist(), constant)
    coefficients = (ctypes.c_float * MAX_COEFFICIENTS)(*falling)
    return Polynomial(gain, shift, low, coefficients, len(falling), plan.width)


@lru_cache(maxsize=32)
def _cells(sampler: Sampler) -> Cells:
    """Return the plan of cells, with a gain of 1."""
    table = cell_table(sampler)
    plan = Cells(
        1.0,
        *sampler.t_range,
        table.inverse,
        table.offset,
        address(table.start),
        address(table.step),
        address(table.lowest),
        address(table.highest),
        address(table.code),
        table.half,
        len(table.code),
        sampler.bits,
    )
    plan.table = table  # keeps the arrays alive
    return plan


@lru_cache(maxsize=32)
def _law(sampler: Sampler) -> Law:
    """Return the exact law, with a gain of 1."""
    tables = (sampler.base, sampler.base_tail, sampler.slope, sampler.slope_tail)
    arrays = [np.ascontiguousarray(array) for array in (*level_knots(sampler.levels), *tables)]
    places = [address(array) for array in arrays]
    law = Law((1.0, 1.0, 1.0, 0.0), sampler.t_range, *places, sampler.levels, sampler.bits)
    law.arrays = arrays
    return law
