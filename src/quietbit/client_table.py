"""What a client without Python may release: mechanisms, their costs and their tables, in one file.

Idea     a device in C or in a browser cannot compute the cost of a mechanism, and must not trust a
         server to. So its owner writes a table once: each mechanism under the SHA-256 of its
         description at a clip, its cost in whole units, the budget in the same units, and the
         numbers that the client samples with. The client looks a server's description up and
         refuses an unknown one; it interprets nothing that a server sends.
Costs    for one mechanism, a unit is a release, and the budget is the number of releases that the
         target allows. For several, Rényi divergences at one order add up, also if the mechanisms
         are chosen adaptively; the order is the one at which the first mechanism may be released
         most often, and costs are rounded up.
Layout   docs/how-to/write-a-client.md; `kernel/c/quietbit_client.h` reads it.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit._search import bisect
from quietbit.errors import InvalidParameter, check_int, require
from quietbit.kernel.expand import tries_upper
from quietbit.kernel.norm import Clip
from quietbit.kernel.normals import quantile_table
from quietbit.kernel.sampler import level_knots
from quietbit.kernel.tables import cell_table, threshold_plan
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.registry import identity_of
from quietbit.mechanism.vector import VectorMVU
from quietbit.node.request import description_of
from quietbit.privacy.conversion import epsilon_from_rdp
from quietbit.privacy.cost import Cost
from quietbit.target import Target
from quietbit.wire.uplink import Uplink

__all__ = ["client_table", "ledger_begin", "ledger_line"]

MAGIC = b"QBTABLE\x01"
HEAD = struct.Struct("<8sQQI12x")
ENTRY = struct.Struct("<32s32sQIIQdIIdddd2Qdd18f4Iddf1I4Qd6Q5Q3Q")
CODES = 1  # kinds of entries
SEED = 2
UNITS = 2**40  # of the budget, where there are several mechanisms
MOST_RELEASES = 10**6
ORDERS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0)
MARGIN = 1e-9  # relative, beyond any rounding of a cost
MOST_SEED = 2**64 - 1
LEAST_DIVERGENCE = 1e-12


class _Arrays:
    """The arrays of a table: each is stored once, at a multiple of eight bytes."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.data = bytearray()
        self.places: dict[bytes, int] = {}

    def add(self, array: NDArray[Any]) -> int:
        """Return the place of an array, and store it if it is new."""
        content = np.ascontiguousarray(array).tobytes()
        if content not in self.places:
            self.places[content] = self.begin + len(self.data)
            self.data += content + bytes(-len(content) % 8)
        return self.places[content]


def client_table(uplinks: Sequence[Uplink], target: Target) -> bytes:
    """Return the table of clients that may send by these uplinks within ``target``.

    Mechanisms are `InterpolatedMVU` (not rotated, or rotated in single precision) and `VectorMVU`
    that sends a seed. Others are refused, and so is a target that does not allow one release of
    the first.
    """
    require(len(uplinks) > 0, "uplinks", [], "a list of at least one Uplink")
    budget, costs = _costs([uplink.mechanism for uplink in uplinks], target)
    arrays = _Arrays(HEAD.size + ENTRY.size * len(uplinks))
    entries = [
        _entry(uplink.mechanism, uplink.clip, cost, arrays)
        for uplink, cost in zip(uplinks, costs, strict=True)
    ]
    size = arrays.begin + len(arrays.data) + 32
    content = HEAD.pack(MAGIC, size, budget, len(entries)) + b"".join(entries) + bytes(arrays.data)
    return content + hashlib.sha256(content).digest()


def ledger_begin(table: bytes) -> str:
    """Return the first line of a ledger for this table."""
    return f"quietbit-ledger 1 {table[-32:].hex()}\n"


def ledger_line(uplink: Uplink, cost: int, spent: int) -> str:
    """Return the line of one release, after releases of ``spent`` units."""
    return f"{identity_of(uplink.mechanism, uplink.clip).hex()} {cost} {spent + cost}\n"


def _costs(mechanisms: Sequence[Mechanism], target: Target) -> tuple[int, list[int]]:
    """Return the budget and the cost of each mechanism, in units."""
    costs = [mechanism.cost(target.adjacency) for mechanism in mechanisms]
    if len({mechanism.priced_as for mechanism in mechanisms}) == 1:
        return _releases(costs[0], target), [1] * len(costs)
    choices = [(order, _allowed_divergence(order, target)) for order in ORDERS]
    order, allowed = max(choices, key=lambda choice: choice[1] / costs[0].rdp(choice[0]))
    require(allowed > 0, "epsilon", target.epsilon, "large enough for the mechanisms together")
    unit = allowed / UNITS
    units = [math.floor(cost.rdp(order) * (1 + MARGIN) / unit) + 1 for cost in costs]
    rule = "large enough for one release of the first mechanism"
    require(units[0] <= UNITS, "epsilon", target.epsilon, rule)
    return UNITS, units


def _releases(cost: Cost, target: Target) -> int:
    """Return the number of releases that the target allows."""

    def fits(count: int) -> bool:
        return (cost * count).epsilon(target.delta) <= target.epsilon

    require(fits(1), "epsilon", target.epsilon, "large enough for one release")
    low = 1
    while low < MOST_RELEASES and fits(2 * low):
        low *= 2
    high = 2 * low
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return min(low, MOST_RELEASES)


def _allowed_divergence(order: float, target: Target) -> float:
    """Return the largest Rényi divergence of an order within the target, or 0."""

    def fits(divergence: float) -> bool:
        return epsilon_from_rdp(lambda _: divergence, target.delta, [order]) <= target.epsilon

    if not fits(LEAST_DIVERGENCE):
        return 0.0
    return bisect(fits, LEAST_DIVERGENCE, target.epsilon + 1.0) * (1 - MARGIN)


@singledispatch
def _entry(mechanism: Mechanism, clip: float, cost: int, arrays: _Arrays) -> bytes:
    rule = "an InterpolatedMVU or a VectorMVU, which the client in C implements"
    raise InvalidParameter.of("mechanism", rule, type(mechanism).__name__)


def _names(mechanism: Mechanism, clip: float) -> tuple[bytes, bytes]:
    description = description_of(mechanism, clip)
    return identity_of(mechanism, clip), hashlib.sha256(description.encode()).digest()


@_entry.register
def _codes(mechanism: InterpolatedMVU, clip: float, cost: int, arrays: _Arrays) -> bytes:
    sampler = mechanism.sampler
    rotation = mechanism.rotation
    block = 0
    seed = 0
    limit = 0.0
    if rotation is not None:
        rule = "in single precision: the client in C does not protect samples"
        require(not rotation.exact, "rotation", "exact", rule)
        block = rotation.block
        seed = check_int(rotation.seed, "seed of the rotation", 0, MOST_SEED)
        limit = Clip.rotated(0.0, clip).limit or 0.0
    plan = threshold_plan(sampler) if sampler.bits == 1 else None
    coefficients = [0.0] * 18
    numbers = (0.0, 0.0)
    shape = (0, 0, 0)
    cells: tuple[Any, ...] = (0, 0.0, 0.0, 0.5)
    table = [0] * 5
    if plan is not None and plan.lowered is not None:
        falling = [*plan.coefficients[:0:-1, 0, 0].tolist(), float(np.float32(plan.lowered + 0.5))]
        coefficients[: len(falling)] = falling
        numbers = (plan.rate, plan.offset)
        shape = (len(falling), plan.width, int(plan.centred))
    else:
        lines = cell_table(sampler)
        cells = (len(lines.code), lines.inverse, lines.offset, lines.half)
        table = [
            arrays.add(part)
            for part in (lines.start, lines.step, lines.lowest, lines.highest, lines.code)
        ]
    tables = (sampler.base, sampler.base_tail, sampler.slope, sampler.slope_tail)
    law = [arrays.add(array) for array in (*level_knots(sampler.levels), *tables)]
    return ENTRY.pack(
        *_names(mechanism, clip),
        cost,
        *(CODES, mechanism.ball.norm.order, mechanism.ball.dimension, clip),
        *(sampler.bits, sampler.levels, sampler.scale / clip, *sampler.t_range, limit),
        *(block, seed, *numbers, *coefficients, *shape, *cells),
        *(0, 0, 0, 0, 0, 0.0, *law, *table, 0, 0, 0),
    )


@_entry.register
def _seed(mechanism: VectorMVU, clip: float, cost: int, arrays: _Arrays) -> bytes:
    profile = mechanism.profile
    seed = check_int(mechanism.rotation_seed, "rotation_seed", 0, MOST_SEED)
    rows = mechanism.rows
    return ENTRY.pack(
        *_names(mechanism, clip),
        cost,
        *(SEED, mechanism.ball.norm.order, mechanism.ball.dimension, clip),
        *(0, 0, 0.0, 0.0, 0.0, 0.0),
        *(0, seed, 0.0, 0.0, *([0.0] * 18), 0, 0, 0, 0, 0.0, 0.0, 0.0),
        *(
            int(rows is not None),
            mechanism.keep,
            rows or 0,
            tries_upper(0.999 / profile.largest),
            profile.edges.size,
        ),
        *(profile.largest, *([0] * 11), arrays.add(profile.edges), arrays.add(profile.levels)),
        arrays.add(quantile_table()),
    )
