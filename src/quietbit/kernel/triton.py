"""The Triton kernel: packed codes on an NVIDIA GPU at the speed of reading the update.

Idea     one pass decides almost every coordinate in float32 and lists the rest; a second, small
         pass settles those by the exact law in float64. With `device_rng` the random words are made
         in registers, and only the update and its codes move through memory; other words are copied
         to the device first, which serves to test the kernel against the reference. One bit of an
         update rotated in blocks of 4,096 is sampled from registers as well.

Importing this module needs torch and triton. Without a GPU everything runs on the CPU in Triton's
interpreter if ``TRITON_INTERPRET=1`` was set before triton was imported, thousands of times slower.
"""

from __future__ import annotations

import math
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from attrs import evolve, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, require
from quietbit.kernel import triton_passes as passes
from quietbit.kernel import triton_sampling as sampling
from quietbit.kernel.base import Job, Kernel, Update
from quietbit.kernel.expand import MAX_COUNT, ROWS_KEY, inner, quantile_table, seed_state
from quietbit.kernel.norm import BLOCK, Flat, widen
from quietbit.kernel.rng import TILE, DeviceBlock, WordBlock
from quietbit.kernel.sampler import Sampler, level_knots
from quietbit.kernel.tables import threshold_plan
from quietbit.kernel.transform import Blocks, check_finite_rotation, sign_key
from quietbit.kernel.triton_passes import LANES, LIMB_BITS, LIMBS, hadamard_stages

__all__ = ["TritonKernel"]

DEVICE = "cpu" if sampling.INTERPRETED.value else "cuda"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NORM_BLOCKS = 8  # blocks of a norm per program
ROOM = 1024  # rows in the list beyond twice the expected number
SETTLERS = (
    4 if sampling.INTERPRETED.value else 1056
)  # programs of the second pass: eight per multiprocessor of an H200
MAGIC, PATTERN = 2.0**23, 0x4B000000


@final
@frozen(eq=False)
class Tensors:
    """An update as consecutive flat tensors on the device; ``of_torch``: it came as tensors."""

    parts: tuple[Any, ...]
    shape: tuple[int, ...]
    of_torch: bool

    @classmethod
    def of(cls, update: Update) -> Tensors:
        """Bring arrays or tensors to the device; flat contiguous tensors on the device are read in place."""
        if isinstance(update, Tensors):
            return update
        items = list(update) if isinstance(update, list | tuple) else [update]
        of_torch = any(isinstance(item, torch.Tensor) for item in items)
        if of_torch:
            for item in items:
                fine = (
                    isinstance(item, torch.Tensor)
                    and item.dtype in FLOATS
                    and item.layout == torch.strided
                )
                require(
                    fine,
                    "type of the update",
                    str(getattr(item, "dtype", type(item))),
                    "dense floating tensors",
                )
            size = sum(item.numel() for item in items)
            shape = (size,) if isinstance(update, list | tuple) else tuple(update.shape)
        else:
            flat = Flat.of(update)
            items, shape = [_put(widen(part)) for part in flat.parts], flat.shape
        return cls(tuple(_flat_there(item) for item in items), shape, of_torch)

    @property
    def size(self) -> int:
        """The number of coordinates of all parts."""
        return sum(part.numel() for part in self.parts)

    def joined(self) -> Any:
        """Return all parts as one tensor whose first entry is aligned to 16 bytes."""
        filled = [part for part in self.parts if part.numel()]
        if len(filled) == 1:
            return filled[0].clone() if filled[0].data_ptr() % 16 else filled[0]
        same = len({part.dtype for part in filled}) == 1
        return torch.cat([part if same else part.double() for part in filled])

    def copied(self) -> Self:
        """Return the same values in private memory."""
        return evolve(self, parts=tuple(part.clone() for part in self.parts))


@final
@frozen
class TritonKernel(Kernel):
    """Sampling at memory speed on a GPU; `Kernel` documents the methods.

    Updates may be arrays, which are copied to the device, or floating torch tensors; one contiguous
    tensor on the device is read in place, and is rotated into another. The ``out`` of sampling may
    be a uint8 tensor on the device.
    """

    name: ClassVar[str] = "triton"
    GROUP: ClassVar[int] = passes.MAX_GROUP

    def _flat(self, inputs: Update) -> Tensors:
        return Tensors.of(inputs)

    def _check_output(self, out: Any, size: int) -> None:
        if not isinstance(out, torch.Tensor):
            return super()._check_output(out, size)
        fine = tuple(out.shape) == (size,) and out.dtype == torch.uint8
        require(fine, "output buffer", (tuple(out.shape), str(out.dtype)), f"{size} bytes")

    def _sample(self, job: Job) -> float:
        out, there = job.out, isinstance(job.out, torch.Tensor)
        fit = (
            there and out.device.type == DEVICE and out.is_contiguous() and out.data_ptr() % 16 == 0
        )
        packed = out if fit else torch.empty(out.shape[0], dtype=torch.uint8, device=DEVICE)
        total = _sampled(evolve(job, out=packed), job.flat.joined()) if job.flat.size else 0.0
        if not fit:
            (out if there else torch.from_numpy(out)).copy_(packed)
        return total

    def _block_sums(self, flat: Tensors, order: int, scale: float) -> NDArray[np.float64]:
        """Return a few doubles whose sum is exactly that of the block sums, or the block sums themselves."""
        blocks = [-(-part.numel() // BLOCK) for part in flat.parts]
        sums = torch.empty(sum(blocks), dtype=torch.float64, device=DEVICE)
        limbs = torch.zeros(LIMBS + 2, dtype=torch.int64, device=DEVICE)
        scaled, begin = scale != 1.0, 0
        power = torch.full((1,), scale, dtype=torch.float64, device=DEVICE) if scaled else sums
        shape = {
            "ORDER": order,
            "SCALED": scaled,
            "BLOCKS": NORM_BLOCKS,
            "LIMBS": LIMBS,
            "num_warps": 8,
        }
        for part, many in zip(flat.parts, blocks, strict=True):
            if many:
                grid, target = (-(-many // NORM_BLOCKS),), sums[begin:] if begin else sums
                passes.block_sums[grid](
                    part, target, limbs, part.numel(), many, power, **shape, enable_fp_fusion=False
                )
            begin += many
        if len(sums) > 64:
            shape = {
                "SIZE": 1024,
                "LIMBS": LIMBS,
                "LIMB_BITS": LIMB_BITS,
                "enable_fp_fusion": False,
            }
            passes.add_limbs[(-(-len(sums) // 1024),)](sums, len(sums), limbs, **shape)
            *found, unfit, largest = limbs.cpu().numpy()
            highest = float(largest.view(np.float64))
            if unfit == 0 and 2.0**-400 < highest < 2.0**400:
                top = math.frexp(highest)[1]
                return np.array(
                    [
                        math.ldexp(int(limb), top - (k + 1) * LIMB_BITS)
                        for k, limb in enumerate(found)
                    ]
                )
        return np.asarray(sums.cpu().numpy())

    def _largest(self, flat: Tensors) -> float:
        return float(
            np.max([float(part.abs().max()) for part in flat.parts if part.numel()], initial=0.0)
        )

    def _accumulate(
        self, group: list[NDArray[np.uint8]], bits: int, table: NDArray[np.int64], total: Any
    ) -> None:
        if total.size:
            size, sums = group[0].size, _put(total)
            given = (_put(np.stack(group)), size, len(group), sums, size, total.size, _put(table))
            passes.add_codes[(-(-total.size // 1024),)](*given, BITS=bits, SIZE=1024)
            total[:] = sums.cpu().numpy()

    def _rotate(self, flat: Tensors, factor: float, blocks: Blocks, kind: Any) -> Any:
        """Apply signs, factor and first stages in one pass; return a device tensor for tensors, else an array."""
        like = torch.float32 if np.dtype(kind) == np.float32 else torch.float64
        found = _rotated(flat.joined(), factor, blocks, like, _sign_words(blocks))
        check_finite_rotation(found, self._block_sums(Tensors((found,), found.shape, True), 1, 1.0))
        return found if flat.of_torch else found.cpu().numpy()

    def _rotate_back(self, values: NDArray[Any], blocks: Blocks) -> None:
        signs, there = _sign_words(blocks), _put(values)
        whole, tail = there[: blocks.whole], there[-blocks.block :]
        if blocks.whole < blocks.size:
            hadamard_stages(tail, blocks.block)
            hadamard_stages(tail, 1, tail, signs, blocks.size)
        hadamard_stages(whole, blocks.block)
        hadamard_stages(whole, 1, whole, signs)
        values[:] = there.cpu().numpy()

    def rotated_rows(
        self, inputs: Update, seed: int, factor: float, places: NDArray[np.int64]
    ) -> FloatVector:
        """Return the rows; only they leave the device."""
        rotated = self.rotate(evolve(Tensors.of(inputs), of_torch=True), seed, factor=factor)
        return np.asarray(rotated[_put(places)].double().cpu().numpy())

    def words(self, state: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
        """Expand one block per thread; streams of 128-bit keys, from block number 0 on."""
        require(not np.any(state[12:14]), "block number", state[12:14].tolist(), "0 on a GPU")
        found: NDArray[np.int64] = (
            _expanded(state[None, 4:8], state[None, 14:], count, False).cpu().numpy()[0]
        )
        return found.view(np.uint64)

    def normals(self, seed: bytes, count: int) -> FloatVector:
        """Compute words and normals in registers."""
        state, size = seed_state(seed), check_int(count, "count", 0, MAX_COUNT)
        return np.asarray(
            _expanded(state[None, 4:8], state[None, 14:], size, True).cpu().numpy()[0]
        )

    def _first_accepted(
        self, seeds: Any, words: Any, direction: FloatVector, edges: Any, limits: Any
    ) -> int:
        """Expand all seeds at once."""
        keys = seeds.view("<u4").reshape(-1, 4)
        z = _expanded(keys, np.zeros((len(keys), 2), np.uint32), direction.size, True).cpu().numpy()
        accepted = np.flatnonzero(
            words < limits[np.searchsorted(edges, inner(direction, z), side="right")]
        )
        return int(accepted[0]) if accepted.size else -1

    def _add_seeds(self, nonces: Any, seeds: Any, starts: Any, scale: float, total: Any) -> None:
        tails, keys, sums = _put(nonces.view(np.int32)), _put(seeds.view(np.int32)), _put(total)
        # Key and scale are read from memory: as arguments they would become 64-bit numbers and a
        # float32.
        places, factor = _put(np.frombuffer(ROWS_KEY, dtype="<i4")), _put(np.array([scale]))
        given = (tails, keys, _put(starts), factor, _quantiles(), sums, places, starts.size - 1)
        grid = (len(seeds), -(-(starts.size - 1) // (8 * LANES)))
        passes.add_seeds[grid](*given, LANES=LANES, num_warps=4, enable_fp_fusion=False)
        total[:] = sums.cpu().numpy()


def _flat_there(item: Any) -> Any:
    if (
        item.device.type == DEVICE
        and item.ndim == 1
        and item.is_contiguous()
        and not item.requires_grad
    ):
        return item
    return item.detach().to(DEVICE).contiguous().reshape(-1)


def _put(array: NDArray[Any]) -> Any:
    """Copy an array to the device."""
    return torch.tensor(np.ascontiguousarray(array), device=DEVICE)


@lru_cache(maxsize=1)
def _quantiles() -> Any:
    return _put(quantile_table())


def _expanded(
    keys: NDArray[np.uint32], tails: NDArray[np.uint32], count: int, normals: bool
) -> Any:
    out = torch.empty(
        (len(keys), count), dtype=torch.float64 if normals else torch.int64, device=DEVICE
    )
    if out.numel():
        given, grid = (
            (_put(keys.view(np.int32)), _put(tails.view(np.int32))),
            (len(keys), -(-count // (8 * LANES))),
        )
        shape = {"LANES": LANES, "NORMALS": normals, "num_warps": 4, "enable_fp_fusion": False}
        passes.expand[grid](*given, _quantiles(), out, count, **shape)
    return out


def _sign_words(blocks: Blocks) -> Any:
    """Return the public signs of a rotation, 32 per word."""
    count = -(-blocks.count // 64)
    out = torch.empty(count, dtype=torch.int64, device=DEVICE)
    key = sign_key(blocks.count, blocks.seed).view(np.int64).tolist()
    passes.sign_words[(-(-count // 1024),)](out, *key, count, SIZE=256)
    return out.view(torch.int32)


def _rotated(x: Any, factor: float, blocks: Blocks, kind: Any, signs: Any, start: int = 0) -> Any:
    """Return the rotated numbers from ``start`` on, which is a multiple of the block, as another tensor."""
    out, whole = torch.empty(blocks.size - start, dtype=kind, device=DEVICE), blocks.whole - start
    hadamard_stages(out[:whole], blocks.block, x[start:], signs, start, factor)
    if blocks.whole < blocks.size:
        out[whole:] = x[blocks.whole :].double() * factor
        hadamard_stages(
            out[-blocks.block :], blocks.block, out[-blocks.block :], signs, blocks.size
        )
    return out


def _sampled(job: Job, x: Any) -> float:
    """Run both passes over all of an update, rotated where the job asks for it."""
    blocks = job.blocks
    if blocks is None:
        return float(_passes(job, x) or 0.0)
    signs, whole = (
        _sign_words(blocks),
        blocks.whole - (0 if blocks.whole == blocks.size else blocks.block),
    )
    fused = blocks.block == TILE and whole and threshold_plan(job.sampler).lowered is not None
    total = _passes(job, x, whole, signs=signs) if fused else None
    # What no program can do alone: the last whole block where another overlaps it; everything, if
    # need be.
    start = 0 if total is None else whole
    if start < blocks.size:
        own = _rotated(x, job.factor, blocks, torch.float32, signs, start)
        total = (total or 0.0) + float(_passes(job, own, skip=start // 8) or 0.0)
    return float(total or 0.0)


def _passes(
    job: Job, x: Any, size: int | None = None, *, skip: int = 0, signs: Any = None
) -> float | None:
    """Run both passes over the rows from ``skip`` on, in ``x``; with signs, over ``size`` numbers to be rotated.

    Return the sum that the job asks for; with signs None where too many rows were left to the
    second pass.
    """
    sampler, order, gain, plan = job.sampler, job.order, job.gain, threshold_plan(job.sampler)
    size, rotated = 8 * skip + x.numel() if size is None else size, signs is not None
    rows, rate, given = size // 8, gain.approximate(), not isinstance(job.block, DeviceBlock)
    decidable, (powers, cells, _) = (
        rate == 0.0 or 2.0**-900 < rate < 2.0**900,
        plan.coefficients.shape,
    )
    single = (rotated or x.dtype != torch.float64) and (
        rate == 0 or 2.0**-100 < rate * plan.rate < 2.0**100
    )
    if rotated and not single:
        return None
    doubles = (*gain, *sampler.t_range, rate * plan.rate, plan.offset)
    numbers, tables = (
        torch.tensor((*doubles, job.factor), dtype=torch.float64, device=DEVICE),
        _tables(sampler),
    )
    grid = (-(-(rows - skip) // 512),)
    found = torch.zeros(
        1 + SETTLERS + (grid[0] if order else 0), dtype=torch.float64, device=DEVICE
    )
    room = (
        math.ceil(min(1.0, 16 * sampler.symbols * (2 * plan.half + 2) / 65536) * (rows - skip))
        + ROOM
    )
    capacity, listed = (
        room if decidable else -1,
        torch.empty(room, dtype=torch.int64, device=DEVICE),
    )
    words = _primary_words(job.block, job.flat.size) if given else listed
    keys = [0] * 8 if given else [word - (word >> 31 << 32) for word in job.block.key]  # type: ignore[attr-defined]
    kinds: dict[str, Any] = {
        "BITS": sampler.bits,
        "DEGREE": powers - 1,
        "CELLS": cells,
        "CENTRED": plan.centred,
        "GIVEN": given,
        "DOUBLE": not single,
        "LOOK": order,
        "SECOND": SETTLERS,
        "num_warps": 4,
    }
    searched = (plan.lowest, plan.highest, tables.coefficients, plan.half)
    kept = torch.empty(8 * room, dtype=torch.float32, device=DEVICE) if rotated else x
    if decidable and rows > skip:
        sampling.sample_rows[grid](
            x,
            signs if rotated else listed,
            job.out,
            words,
            *keys,
            kept,
            listed,
            found,
            capacity,
            rows,
            skip,
            numbers,
            tables.falling,
            plan.width,
            PATTERN,
            *searched,
            WIDTH=16 // x.element_size(),
            SCALED=job.factor != 1.0,
            ONE=plan.lowered is not None,
            ROTATED=rotated,
            **kinds,
        )
    ties = _listed_ties(job.block, listed, found, capacity, skip, size) if given else listed
    at_once = max(4, sampling.LIMIT // sampler.symbols)
    sampling.resolve_rows[(min(-(-room // at_once), SETTLERS),)](
        kept,
        job.out,
        words,
        ties,
        *keys,
        listed,
        found,
        capacity,
        size,
        rows,
        skip,
        numbers,
        *tables.knots,
        sampler.levels,
        tables.law,
        int(decidable),
        *searched,
        ROWS=at_once,
        KEPT=rotated,
        **kinds,
        enable_fp_fusion=False,
    )
    if not order:
        return 0.0
    host = found.cpu().numpy()
    overflowed = int(host[:1].view(np.int32)[0]) > capacity
    if overflowed and rotated:
        return None
    return float(np.sum(host[1 : 1 + SETTLERS] if overflowed else host[1:]))


@lru_cache(maxsize=32)
def _tables(sampler: Sampler) -> SimpleNamespace:
    """Return a sampler's tables on the device; the polynomial of one bit as numbers, the highest power first."""
    plan = threshold_plan(sampler)
    law = np.stack([sampler.base, sampler.base_tail, sampler.slope, sampler.slope_tail])
    pairs = (
        np.stack([plan.coefficients[0::2], plan.coefficients[1::2]], axis=-1).copy().view(np.int64)
    )
    knots = tuple(_put(values) for values in level_knots(sampler.levels))
    falling = (*plan.coefficients[:0:-1, 0, 0].tolist(), float(plan.lowered or 0.0) + MAGIC)
    return SimpleNamespace(coefficients=_put(pairs), law=_put(law), knots=knots, falling=falling)


def _primary_words(block: WordBlock, size: int) -> Any:
    """Return given primary words on the device, two per int32, whole rows."""
    padded = np.zeros(-(-size // 8) * 8, dtype="<u2")
    padded[:size] = block.primary(0, size)
    return _put(padded.view("<i4"))


def _listed_ties(
    block: WordBlock, listed: Any, found: Any, capacity: int, skip: int, size: int
) -> Any:
    """Return eight given tie words for every row of the second pass, in its order."""
    count = int(found[:1].view(torch.int32)[0])
    some, rest = (0, skip) if count > capacity else (count, size // 8)
    chosen = np.append(listed[:some].cpu().numpy(), np.arange(rest, -(-size // 8)))
    index = np.minimum(8 * chosen[:, None] + np.arange(8), size - 1).reshape(
        -1
    )  # entries beyond are not used
    return _put((block.ties(index) & np.uint64(2**48 - 1)).astype(np.int64))
