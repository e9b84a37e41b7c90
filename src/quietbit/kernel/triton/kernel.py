"""The Triton kernel: packed codes on an NVIDIA GPU at the speed of reading the update.

Idea     one pass decides almost every coordinate in float32 and lists the others; a second, small
         pass decides those by the exact law in float64. With `secure_rng` the random words are made
         in registers, and only the update and its codes move through memory. Words of other sources
         are copied to the device first, so that seeded runs give the same payloads on every device.
         One bit of an update rotated in blocks of 4,096 is sampled from registers as well.

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
from quietbit.kernel.base import Job, Kernel, Update
from quietbit.kernel.expand import ROWS_KEY, seed_state
from quietbit.kernel.norm import BLOCK, Flat, widen
from quietbit.kernel.normals import MAX_COUNT, inner, quantile_table
from quietbit.kernel.rng import TILE, ChaChaBlock, WordBlock
from quietbit.kernel.sampler import Sampler, level_knots
from quietbit.kernel.tables import threshold_plan
from quietbit.kernel.transform import Blocks, check_finite_rotation, sign_key
from quietbit.kernel.triton import passes, sampling
from quietbit.kernel.triton.passes import LANES, LIMB_BITS, LIMBS, hadamard_stages

__all__ = ["TritonKernel"]

DEVICE = "cpu" if sampling.INTERPRETED.value else "cuda"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NORM_BLOCKS = 8  # blocks of a norm per program
ROOM = 1024  # rows in the list beyond twice the expected number
# Programs of the second pass: eight per multiprocessor of an H200.
SETTLERS = 4 if sampling.INTERPRETED.value else 1056
MAGIC = 2.0**23
PATTERN = 0x4B000000  # the bits of MAGIC as a float32


@final
@frozen(eq=False)
class Tensors:
    """An update as consecutive flat tensors on the device; ``of_torch`` if it came as tensors."""

    parts: tuple[Any, ...]
    shape: tuple[int, ...]
    of_torch: bool

    @classmethod
    def of(cls, update: Update) -> Tensors:
        """Bring arrays or tensors to the device; contiguous 1-D tensors there are not copied."""
        if isinstance(update, Tensors):
            return update
        several = isinstance(update, list | tuple)
        items = list(update) if several else [update]
        of_torch = any(isinstance(item, torch.Tensor) for item in items)
        if of_torch:
            for item in items:
                floating = isinstance(item, torch.Tensor) and item.dtype in FLOATS
                dense = floating and item.layout == torch.strided
                kind = str(getattr(item, "dtype", type(item)))
                require(dense, "type of the update", kind, "dense floating tensors")
            size = sum(item.numel() for item in items)
            shape = (size,) if several else tuple(update.shape)
        else:
            flat = Flat.of(update)
            items = [_put(widen(part)) for part in flat.parts]
            shape = flat.shape
        return cls(tuple(_flat_there(item) for item in items), shape, of_torch)

    @property
    def size(self) -> int:
        """The number of coordinates of all parts."""
        return sum(part.numel() for part in self.parts)

    def joined(self) -> Any:
        """Return all parts as one tensor whose first entry is aligned to 16 bytes."""
        filled = [part for part in self.parts if part.numel()]
        if len(filled) == 1:
            part = filled[0]
            aligned = part.data_ptr() % 16 == 0
            return part if aligned else part.clone()
        if len({part.dtype for part in filled}) > 1:
            filled = [part.double() for part in filled]
        return torch.cat(filled)

    def copied(self) -> Self:
        """Return the same values in private memory."""
        return evolve(self, parts=tuple(part.clone() for part in self.parts))


@final
@frozen
class TritonKernel(Kernel):
    """Sampling at memory speed on a GPU; `Kernel` documents the methods.

    Updates may be arrays, which are copied to the device, or floating torch tensors; a contiguous
    tensor on the device is read in place. The ``out`` of sampling may be a uint8 tensor on the
    device.
    """

    name: ClassVar[str] = "triton"
    GROUP: ClassVar[int] = passes.MAX_GROUP

    def _flat(self, inputs: Update) -> Tensors:
        return Tensors.of(inputs)

    def _check_output(self, out: Any, size: int) -> None:
        if not isinstance(out, torch.Tensor):
            return super()._check_output(out, size)
        shape = tuple(out.shape)
        fits = shape == (size,) and out.dtype == torch.uint8
        require(fits, "output buffer", f"{out.dtype} of shape {shape}", f"{size} bytes")

    def _sample(self, job: Job) -> float:
        out = job.out
        is_tensor = isinstance(out, torch.Tensor)
        if (
            is_tensor
            and out.device.type == DEVICE
            and out.is_contiguous()
            and out.data_ptr() % 16 == 0
        ):
            packed = out
        else:
            packed = torch.empty(out.shape[0], dtype=torch.uint8, device=DEVICE)
        total = 0.0
        if job.flat.size:
            total = _sampled(evolve(job, out=packed), job.flat.joined())
        if packed is not out:
            target = out if is_tensor else torch.from_numpy(out)
            target.copy_(packed)
        return total

    def _block_sums(self, flat: Tensors, order: int, scale: float) -> NDArray[np.float64]:
        """Return a few doubles with exactly the sum of the block sums, or the block sums."""
        counts = [-(-part.numel() // BLOCK) for part in flat.parts]
        sums = torch.empty(sum(counts), dtype=torch.float64, device=DEVICE)
        limbs = torch.zeros(LIMBS + 2, dtype=torch.int64, device=DEVICE)
        scaled = scale != 1.0
        power = torch.full((1,), scale, dtype=torch.float64, device=DEVICE) if scaled else sums
        begin = 0
        for part, count in zip(flat.parts, counts, strict=True):
            if count:
                target = sums[begin:] if begin else sums
                passes.block_sums[(-(-count // NORM_BLOCKS),)](
                    part,
                    target,
                    limbs,
                    part.numel(),
                    count,
                    power,
                    ORDER=order,
                    SCALED=scaled,
                    BLOCKS=NORM_BLOCKS,
                    LIMBS=LIMBS,
                    num_warps=8,
                    enable_fp_fusion=False,
                )
            begin += count
        if len(sums) > 64:
            passes.add_limbs[(-(-len(sums) // 1024),)](
                sums,
                len(sums),
                limbs,
                SIZE=1024,
                LIMBS=LIMBS,
                LIMB_BITS=LIMB_BITS,
                enable_fp_fusion=False,
            )
            *digits, misfits, largest = limbs.cpu().numpy()
            highest = float(largest.view(np.float64))
            if misfits == 0 and 2.0**-400 < highest < 2.0**400:
                top = math.frexp(highest)[1]
                places = [top - (k + 1) * LIMB_BITS for k in range(LIMBS)]
                return np.ldexp(np.array(digits, dtype=np.float64), places)
        return np.asarray(sums.cpu().numpy())

    def _largest(self, flat: Tensors) -> float:
        peaks = [float(part.abs().max()) for part in flat.parts if part.numel()]
        return float(np.max(peaks, initial=0.0))

    def _accumulate(
        self, group: list[NDArray[np.uint8]], bits: int, table: NDArray[np.int64], total: Any
    ) -> None:
        if not total.size:
            return
        size = group[0].size
        sums = _put(total)
        passes.add_codes[(-(-total.size // 1024),)](
            _put(np.stack(group)),
            size,
            len(group),
            sums,
            size,
            total.size,
            _put(table),
            BITS=bits,
            SIZE=1024,
        )
        total[:] = sums.cpu().numpy()

    def _rotate(self, flat: Tensors, factor: float, blocks: Blocks, kind: Any) -> Any:
        """Return the rotated update: a tensor on the device for tensors, else an array."""
        like = torch.float32 if np.dtype(kind) == np.float32 else torch.float64
        rotated = _rotated(flat.joined(), factor, blocks, like, _sign_words(blocks))
        sums = self._block_sums(Tensors((rotated,), rotated.shape, True), 1, 1.0)
        check_finite_rotation(rotated, sums)
        return rotated if flat.of_torch else rotated.cpu().numpy()

    def _rotate_back(self, values: NDArray[Any], blocks: Blocks) -> None:
        signs = _sign_words(blocks)
        there = _put(values)
        whole = there[: blocks.whole]
        tail = there[-blocks.block :]
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
        """Return ChaCha20 words, one block per thread, of a 128-bit key from block number 0 on."""
        require(not np.any(state[12:14]), "block number", state[12:14].tolist(), "0 on a GPU")
        expanded = _expanded(state[None, 4:8], state[None, 14:], count, False)
        words: NDArray[np.int64] = expanded.cpu().numpy()[0]
        return words.view(np.uint64)

    def normals(self, seed: bytes, count: int) -> FloatVector:
        """Compute words and normals in registers."""
        state = seed_state(seed)
        size = check_int(count, "count", 0, MAX_COUNT)
        expanded = _expanded(state[None, 4:8], state[None, 14:], size, True)
        return np.asarray(expanded.cpu().numpy()[0])

    def _first_accepted(
        self, seeds: Any, words: Any, direction: FloatVector, edges: Any, limits: Any
    ) -> int:
        """Expand all seeds at once."""
        keys = seeds.view("<u4").reshape(-1, 4)
        nonces = np.zeros((len(keys), 2), np.uint32)
        z = _expanded(keys, nonces, direction.size, True).cpu().numpy()
        steps = np.searchsorted(edges, inner(direction, z), side="right")
        accepted = np.flatnonzero(words < limits[steps])
        return int(accepted[0]) if accepted.size else -1

    def _add_seeds(self, nonces: Any, seeds: Any, starts: Any, scale: float, total: Any) -> None:
        count = starts.size - 1
        sums = _put(total)
        # Key and scale are read from memory: as arguments they would become 64-bit numbers and a
        # float32.
        passes.add_seeds[(len(seeds), -(-count // (8 * LANES)))](
            _put(nonces.view(np.int32)),
            _put(seeds.view(np.int32)),
            _put(starts),
            _put(np.array([scale])),
            _quantiles(),
            sums,
            _put(np.frombuffer(ROWS_KEY, dtype="<i4")),
            count,
            LANES=LANES,
            num_warps=4,
            enable_fp_fusion=False,
        )
        total[:] = sums.cpu().numpy()


def _flat_there(tensor: Any) -> Any:
    """Return a tensor as a flat, contiguous one on the device."""
    flat = tensor.ndim == 1 and tensor.is_contiguous()
    if flat and tensor.device.type == DEVICE and not tensor.requires_grad:
        return tensor
    return tensor.detach().to(DEVICE).contiguous().reshape(-1)


def _put(array: NDArray[Any]) -> Any:
    """Copy an array to the device."""
    return torch.tensor(np.ascontiguousarray(array), device=DEVICE)


@lru_cache(maxsize=1)
def _quantiles() -> Any:
    return _put(quantile_table())


def _expanded(
    keys: NDArray[np.uint32], tails: NDArray[np.uint32], count: int, normals: bool
) -> Any:
    """Return ``count`` normals, or words, of each key and nonce (``tails``)."""
    kind = torch.float64 if normals else torch.int64
    out = torch.empty((len(keys), count), dtype=kind, device=DEVICE)
    if out.numel():
        passes.expand[(len(keys), -(-count // (8 * LANES)))](
            _put(keys.view(np.int32)),
            _put(tails.view(np.int32)),
            _quantiles(),
            out,
            count,
            LANES=LANES,
            NORMALS=normals,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out


def _sign_words(blocks: Blocks) -> Any:
    """Return the public signs of a rotation, 32 per word."""
    count = -(-blocks.count // 64)
    out = torch.empty(count, dtype=torch.int64, device=DEVICE)
    key = sign_key(blocks.count, blocks.seed).view(np.int64).tolist()
    passes.sign_words[(-(-count // 1024),)](out, *key, count, SIZE=256)
    return out.view(torch.int32)


def _rotated(x: Any, factor: float, blocks: Blocks, kind: Any, signs: Any, start: int = 0) -> Any:
    """Return the rotated numbers from ``start`` on, a multiple of the block, in a new tensor."""
    out = torch.empty(blocks.size - start, dtype=kind, device=DEVICE)
    whole = blocks.whole - start
    hadamard_stages(out[:whole], blocks.block, x[start:], signs, start, factor)
    if blocks.whole < blocks.size:
        out[whole:] = x[blocks.whole :].double() * factor
        last = out[-blocks.block :]
        hadamard_stages(last, blocks.block, last, signs, blocks.size)
    return out


def _sampled(job: Job, x: Any) -> float:
    """Run both passes over all of an update, rotated where the job asks for it."""
    blocks = job.blocks
    if blocks is None:
        return float(_passes(job, x) or 0.0)
    signs = _sign_words(blocks)
    # Blocks that one program can rotate and sample: all complete ones that no other overlaps.
    whole = blocks.whole
    if whole < blocks.size:
        whole -= blocks.block
    total = None
    if blocks.block == TILE and whole and threshold_plan(job.sampler).lowered is not None:
        total = _passes(job, x, whole, signs=signs)
    start = whole
    if total is None:  # nothing was rotated and sampled at once
        start = 0
        total = 0.0
    if start < blocks.size:
        rotated = _rotated(x, job.factor, blocks, torch.float32, signs, start)
        total += float(_passes(job, rotated, skip=start // 8) or 0.0)
    return float(total)


def _passes(
    job: Job, x: Any, size: int | None = None, *, skip: int = 0, signs: Any = None
) -> float | None:
    """Run both passes over the rows of eight numbers from ``skip`` on, which ``x`` begins with.

    With signs, ``x`` has ``size`` numbers that the first pass rotates. Return the sum that the job
    asks for; with signs None where too many rows were left to the second pass.
    """
    sampler = job.sampler
    order = job.order
    gain = job.gain
    plan = threshold_plan(sampler)
    tables = _tables(sampler)
    rotated = signs is not None
    if size is None:
        size = 8 * skip + x.numel()
    rows = size // 8
    rate = gain.approximate()
    slope = rate * plan.rate
    decidable = rate == 0.0 or 2.0**-900 < rate < 2.0**900
    in_range = rate == 0 or 2.0**-100 < slope < 2.0**100
    single = in_range and (rotated or x.dtype != torch.float64)
    if rotated and not single:
        return None
    doubles = (*gain, *sampler.t_range, slope, plan.offset, job.factor)
    numbers = torch.tensor(doubles, dtype=torch.float64, device=DEVICE)
    programs = -(-(rows - skip) // 512)
    sums = programs if order else 0
    found = torch.zeros(1 + SETTLERS + sums, dtype=torch.float64, device=DEVICE)
    share = min(1.0, 16 * sampler.symbols * (2 * plan.half + 2) / 65536)
    room = math.ceil(share * (rows - skip)) + ROOM
    capacity = room if decidable else -1
    listed = torch.empty(room, dtype=torch.int64, device=DEVICE)
    given = not isinstance(job.block, ChaChaBlock)
    if given:
        words = _primary_words(job.block, job.flat.size)
        keys = [0] * 8
    else:
        words = listed
        keys = [word - (word >> 31 << 32) for word in job.block.key]  # type: ignore[attr-defined]
    powers, cells, _ = plan.coefficients.shape
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
        sampling.sample_rows[(programs,)](
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
    if overflowed:
        return float(np.sum(host[1 : 1 + SETTLERS]))
    return float(np.sum(host[1:]))


@lru_cache(maxsize=32)
def _tables(sampler: Sampler) -> SimpleNamespace:
    """Return a sampler's tables on the device, and one bit's polynomial, highest power first."""
    plan = threshold_plan(sampler)
    law = np.stack([sampler.base, sampler.base_tail, sampler.slope, sampler.slope_tail])
    even = plan.coefficients[0::2]
    odd = plan.coefficients[1::2]
    pairs = np.stack([even, odd], axis=-1).copy().view(np.int64)
    knots = tuple(_put(values) for values in level_knots(sampler.levels))
    falling = (*plan.coefficients[:0:-1, 0, 0].tolist(), float(plan.lowered or 0.0) + MAGIC)
    return SimpleNamespace(coefficients=_put(pairs), law=_put(law), knots=knots, falling=falling)


def _primary_words(block: WordBlock, size: int) -> Any:
    """Return the primary words of a host's source on the device, two per int32, full rows."""
    padded = np.zeros(-(-size // 8) * 8, dtype="<u2")
    padded[:size] = block.primary(0, size)
    return _put(padded.view("<i4"))


def _listed_ties(
    block: WordBlock, listed: Any, found: Any, capacity: int, skip: int, size: int
) -> Any:
    """Return eight tie words of a host's source for every row of the second pass, in its order."""
    count = int(found[:1].view(torch.int32)[0])
    first_unlisted = size // 8
    if count > capacity:  # the second pass takes all rows
        count = 0
        first_unlisted = skip
    unlisted = np.arange(first_unlisted, -(-size // 8))
    chosen = np.append(listed[:count].cpu().numpy(), unlisted)
    # Words of coordinates beyond the end are not used.
    index = np.minimum(8 * chosen[:, None] + np.arange(8), size - 1).reshape(-1)
    return _put((block.ties(index) & np.uint64(2**48 - 1)).astype(np.int64))
