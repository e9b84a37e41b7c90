"""The Triton kernel: packed codes on an NVIDIA GPU at the speed of reading the update.

Idea     one pass decides almost every coordinate in float32 and lists the rest; a second, small one settles
         those by the exact law in float64. With `device_rng` the random words are made in registers, nothing
         waits for the host, and no memory moves but the update and its codes. With any other words the primary
         ones are copied to the device first, which is slow and is how the kernel is tested against the reference:
         same words, same codes, bit for bit.
Symbols  d = dimension; a row is eight coordinates; see `base.py`, `tables.py` and `triton_sampling.py`.

Without a GPU this kernel refuses in one sentence, unless ``TRITON_INTERPRET=1`` was set before triton was
imported: then everything runs on the CPU in Triton's interpreter, thousands of times slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import SimpleNamespace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import InvalidParameter, MissingDependency, require, require_module
from quietbit.kernel.base import Order, Update, check_output, check_packed, check_table, code_type, packed_size
from quietbit.kernel.chunks import Tensors
from quietbit.kernel.law import Gain
from quietbit.kernel.norm import BLOCK, Clip, joint_norm
from quietbit.kernel.reference import check_factor
from quietbit.kernel.rng import LANES, DeviceBlock, RandomBits, WordBlock
from quietbit.kernel.sampler import Sampler, level_knots
from quietbit.kernel.tables import Thresholds, thresholds_on_device
from quietbit.kernel.torch import TorchKernel

__all__ = ["TritonKernel", "tables_on_device"]

GIVEN, CHACHA = 0, 2
DRAWN = {"philox": 1, "chacha12": CHACHA, "philox7": 3}
REFUSED = "update must be finite everywhere, got a NaN or infinite entry."
ROOM = 1024  # rows the list holds beyond twice as many as are expected
SETTLERS = 1056  # programs of the second pass: eight per multiprocessor of an H200
MAGIC, PATTERN = 2.0**23, 0x4B000000
GROUPS = {1: 2, 2: 2, 3: 2, 4: 2}  # rows per thread by bits, else 1; one bit of a 2-byte type and chacha12 have four
THREADS = {1: 128}  # threads per program by bits, else 128; chacha12 always has 128


@lru_cache(maxsize=1)
def _machine_code() -> SimpleNamespace:
    """The compiled functions, with ``device``: where they run, and ``interpreted``."""
    triton = require_module("triton", "gpu")
    torch = require_module("torch", "torch")
    interpreted = bool(triton.knobs.runtime.interpret)
    if not interpreted and not torch.cuda.is_available():
        raise MissingDependency("The triton kernel needs an NVIDIA GPU, and torch sees none here.")
    from quietbit.kernel import triton_sampling, triton_sums

    found = vars(triton_sampling) | vars(triton_sums)
    return SimpleNamespace(**found | {"device": "cpu" if interpreted else "cuda", "interpreted": interpreted})


@final
@dataclass(frozen=True, slots=True)
class TritonKernel:
    """Sampling at the speed of memory on a GPU; see `Kernel` for what each method promises.

    Updates may be arrays, which are copied to the device, or torch tensors of float16, bfloat16, float32 or
    float64; one contiguous tensor on the device is read where it is. ``out`` of `sample_packed` may be a uint8
    tensor on the device, ``total`` of `accumulate` a tensor of int32 or int64, and its payloads one uint8
    tensor with a payload per row.
    """

    def __post_init__(self) -> None:
        """Refuse a machine without triton or without a GPU."""
        _machine_code()

    @property
    def name(self) -> str:
        """The name `select` knows this kernel by."""
        return "triton"

    def sample(
        self,
        sampler: Sampler,
        inputs: Update,
        rng: RandomBits,
        *,
        factor: float = 1.0,
        verified: bool = False,
    ) -> Any:
        """One code per coordinate; a tensor on the device for tensors, else an array."""
        torch, parts = require_module("torch", "torch"), Tensors.of(inputs, _machine_code().device)
        packed = torch.empty(packed_size(sampler.bits, parts.size), dtype=torch.uint8, device=parts.device)
        self._sample(sampler, parts, rng, packed, factor, verified)
        codes = torch.zeros(parts.size, dtype=torch.int32, device=parts.device)
        if parts.size:
            every = torch.arange(sampler.symbols, dtype=torch.int64, device=parts.device)
            _add_codes(packed[None, :], sampler.bits, every, codes)
        codes = codes.to(torch.uint8).reshape(parts.shape)
        return codes if parts.of_torch else codes.cpu().numpy()

    def sample_packed(
        self,
        sampler: Sampler,
        inputs: Update,
        rng: RandomBits,
        out: Any,
        *,
        factor: float = 1.0,
        verified: bool = False,
    ) -> None:
        """One code per coordinate, packed into ``out``, an array or a tensor on the device."""
        torch, parts = require_module("torch", "torch"), Tensors.of(inputs, _machine_code().device)
        _check_output(out, sampler.bits, parts.size)
        of_torch, size = isinstance(out, torch.Tensor), out.shape[0]
        here = of_torch and out.device == parts.device and out.is_contiguous() and out.data_ptr() % 16 == 0
        packed = out if here else torch.empty(size, dtype=torch.uint8, device=parts.device)
        self._sample(sampler, parts, rng, packed, factor, verified)
        if of_torch and not here:
            out.copy_(packed)
        elif not of_torch:
            out[:] = packed.cpu().numpy()

    def sample_clipped(
        self, sampler: Sampler, inputs: Update, order: Order, radius: float, rng: RandomBits, out: Any
    ) -> None:
        """Copy the update on the device, measure the copy, sample the copy."""
        own = Tensors.of(inputs, _machine_code().device).copied()
        _check_output(out, sampler.bits, own.size)
        clip = Clip.of(self.norm(own, order), radius, order)
        self.sample_packed(sampler, own, rng, out, factor=clip.factor, verified=True)

    def pack(self, codes: Any, bits: int) -> bytes:
        """Codes, an array or a tensor, as bytes."""
        return TorchKernel().pack(codes, bits)

    def unpack(self, data: Any, bits: int, dimension: int) -> Any:
        """Bytes as codes, an array on the host; a uint8 tensor becomes a tensor where it is."""
        torch = require_module("torch", "torch")
        if not isinstance(data, torch.Tensor):
            return TorchKernel().unpack(data, bits, dimension)
        total = torch.zeros(dimension, dtype=torch.int32, device=data.device)
        self.accumulate(data[None, :], bits, np.arange(2**bits), total)
        return total.to(torch.uint8 if code_type(bits) is np.uint8 else torch.uint16)

    def norm(self, inputs: Update, order: Order) -> float:
        """The norm, in the fixed order of `norm.py`."""
        parts = Tensors.of(inputs, _machine_code().device)
        return joint_norm(parts, order, _exact_block_sums, _largest)  # type: ignore[arg-type]

    def accumulate(self, payloads: Iterable[Any], bits: int, table: Any, total: Any) -> int:
        """Count in bit planes for one bit, by look-up for more; up to 252 payloads are held at a time."""
        torch, code = require_module("torch", "torch"), _machine_code()
        of_torch = isinstance(total, torch.Tensor)
        if of_torch:
            fine = total.ndim == 1 and total.dtype in (torch.int32, torch.int64) and total.is_contiguous()
            require(fine, "total", str(total.dtype), "a flat tensor of int32 or int64")
        values = check_table(table, bits, np.empty(0, dtype=np.int64) if of_torch else total)
        sums = total.to(code.device) if of_torch else torch.tensor(total, device=code.device)
        looked_up, added = torch.tensor(values, device=code.device), 0
        try:
            for group in _payload_groups(payloads, bits, sums.numel(), code.MAX_GROUP, code.device):
                if sums.numel():
                    (_count_ones if bits == 1 else _add_codes)(group, bits, looked_up, sums)
                added += len(group)
        finally:
            if not of_torch:
                total[:] = sums.cpu().numpy()
            elif sums is not total:
                total.copy_(sums)
        return added

    def _sample(
        self, sampler: Sampler, parts: Tensors, rng: RandomBits, out: Any, factor: float, verified: bool
    ) -> None:
        gain = Gain.of(check_factor(factor), sampler.scale)
        if not verified:
            _check_finite(parts)
        block = rng.draw(parts.size)
        if parts.size:
            _sample_rows(sampler, gain, parts.joined().parts[0], block, out)


def _check_output(out: Any, bits: int, dimension: int) -> None:
    """Refuse an array or tensor that does not hold exactly the packed codes."""
    torch = require_module("torch", "torch")
    if isinstance(out, torch.Tensor):
        size = packed_size(bits, dimension)
        fine = tuple(out.shape) == (size,) and out.dtype == torch.uint8
        require(fine, "output buffer", (tuple(out.shape), str(out.dtype)), f"{size} bytes")
    else:
        check_output(out, bits, dimension)


def _sample_rows(sampler: Sampler, gain: Gain, x: Any, block: WordBlock, out: Any) -> None:
    """Both passes over one contiguous tensor on the device."""
    torch, code = require_module("torch", "torch"), _machine_code()
    size, plan, tables = x.numel(), thresholds_on_device(sampler), tables_on_device(sampler, str(x.device))
    rows = size // 8
    rate = gain.approximate()
    decidable = rate == 0.0 or 2.0**-900 < rate < 2.0**900
    room = math.ceil(min(1.0, 16 * sampler.symbols * (2 * plan.half + 2) / 65536) * rows) + ROOM
    capacity = room if decidable else 0
    listed = torch.empty(room, dtype=torch.int64, device=x.device)
    # One more than the capacity tells the second pass to do everything.
    count = torch.full((1,), 0 if decidable else 1, dtype=torch.int32, device=x.device)
    doubles = (gain.first, gain.second, gain.high, gain.low, *sampler.t_range, rate * plan.rate, plan.offset)
    numbers = np.array(doubles).view(np.int64).tolist()
    given = not isinstance(block, DeviceBlock)
    words = _primary_words(block, size, x.device) if given else count
    keys = [0] * 8 if given else [word - (word >> 31 << 32) for word in block.key]  # type: ignore[attr-defined]
    generator = GIVEN if given else DRAWN[block.generator]  # type: ignore[attr-defined]
    single = x.dtype != torch.float64 and (rate == 0.0 or 2.0**-100 < rate * plan.rate < 2.0**100)
    scalars = (rate * plan.rate, plan.offset) if single else (0.0, 0.0)
    searched = (plan.lowest, plan.highest, tables.coefficients, plan.half)
    shape = {"BITS": sampler.bits, "DEGREE": plan.degree, "CELLS": plan.cells}
    kinds = {"GENERATOR": generator, "DOUBLE": not single, "CENTRED": plan.centred}
    if decidable and rows:
        four = generator == CHACHA or (sampler.bits == 1 and x.element_size() == 2)
        groups = 4 if four else GROUPS.get(sampler.bits, 1)
        lanes = LANES if generator == CHACHA else THREADS.get(sampler.bits, LANES)
        kinds |= {"GROUPS": groups, "LANES": lanes, "EVEN": rows % (lanes * groups) == 0, "num_warps": lanes // 32}
        common = (x, out, words, *keys, listed, count, capacity, rows, *numbers[6:], *scalars)
        grid = (-(-rows // (lanes * groups)),)
        if plan.lowered is not None:
            rest = {"DEGREE": plan.degree, "WIDTH": 16 // x.element_size()}
            code.sample_one_bit[grid](*common, _falling(plan), plan.width, PATTERN, **rest, **kinds)
        else:
            code.sample_thresholds[grid](*common, *searched, **shape, **kinds)
    ties = count
    if given:
        listed, ties = _listed_ties(block, listed, count, capacity, size)
        capacity = listed.numel()
        count.fill_(capacity)
        if capacity == 0:
            return
    at_once = max(4, code.LIMIT // sampler.symbols)
    programs = min(-(-room // at_once), 4 if code.interpreted else SETTLERS)
    code.resolve_rows[(programs,)](
        x, out, words, ties, *keys, listed, count, capacity, size, rows, *numbers[:6], *tables.knots, sampler.levels,
        tables.law, int(decidable), *numbers[6:], *scalars, *searched, ROWS=at_once, num_warps=4, **shape,
        GENERATOR=generator, DOUBLE=not single, CENTRED=plan.centred, enable_fp_fusion=False,
    )  # fmt: skip


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


def _count_ones(group: Any, bits: int, table: Any, total: Any) -> None:
    """Add one-bit payloads, the rows of a tensor."""
    torch, code = require_module("torch", "torch"), _machine_code()
    if group.shape[1] % 4 or group.stride(0) % 4 or group.data_ptr() % 4:
        group = torch.nn.functional.pad(group, (0, -group.shape[1] % 4))
    words = group.view(torch.int32)
    grid = (-(-words.shape[1] // 128),)
    code.count_ones[grid](words, words.stride(0), len(words), total, words.shape[1], total.numel(), table, LANES=128)


def _add_codes(group: Any, bits: int, table: Any, total: Any) -> None:
    """Add wider codes, the rows of a tensor, by look-up."""
    code, size = _machine_code(), group.shape[1]
    grid = (-(-total.numel() // 1024),)
    code.add_codes[grid](group, group.stride(0), len(group), total, size, total.numel(), table, BITS=bits, SIZE=1024)


def _block_sums(parts: Tensors, order: int, scale: float) -> Any:
    """The block sums of all parts, on the device."""
    torch, code = require_module("torch", "torch"), _machine_code()
    blocks = [-(-part.numel() // BLOCK) for part in parts.parts]
    sums = torch.empty(sum(blocks), dtype=torch.float64, device=parts.device)
    power, begin = torch.full((1,), scale, dtype=torch.float64, device=parts.device), 0
    for part, many in zip(parts.parts, blocks, strict=True):
        if many:
            target = sums[begin : begin + many]
            grid, shape = (-(-many // 8),), {"ORDER": order, "BLOCKS": 8}
            code.block_sums[grid](part, target, part.numel(), many, power, **shape, num_warps=8, enable_fp_fusion=False)
        begin += many
    return sums


def _exact_block_sums(parts: Tensors, order: int, scale: float) -> NDArray[np.float64]:
    """A few doubles whose sum is exactly that of the block sums, or the block sums themselves."""
    torch, code = require_module("torch", "torch"), _machine_code()
    sums = _block_sums(parts, order, scale)
    if sums.numel() > 64:
        limbs = torch.zeros(code.LIMBS + 2, dtype=torch.int64, device=sums.device)
        limbs[-1:] = sums.max().reshape(1).view(torch.int64)
        grid = (-(-sums.numel() // 1024),)
        shape = {"SIZE": 1024, "LIMBS": code.LIMBS, "LIMB_BITS": code.LIMB_BITS}
        code.add_limbs[grid](sums, sums.numel(), limbs[-1:].view(torch.float64), limbs, **shape, enable_fp_fusion=False)
        *found, unfit, peak = limbs.cpu().numpy()
        highest = float(peak.view(np.float64))
        if unfit == 0 and 2.0**-400 < highest < 2.0**400:
            top = math.frexp(highest)[1]
            return np.array([math.ldexp(int(limb), top - (k + 1) * code.LIMB_BITS) for k, limb in enumerate(found)])
    host: NDArray[np.float64] = sums.cpu().numpy()
    return host


def _largest(parts: Tensors) -> float:
    """The largest absolute value; NaN if there is one."""
    peaks = [float(part.abs().max()) for part in parts.parts if part.numel()]
    return float(np.max(peaks, initial=0.0))


def _check_finite(parts: Tensors) -> None:
    torch = require_module("torch", "torch")
    if not bool(torch.isfinite(_block_sums(parts, 1, 1.0)).all()) and not math.isfinite(_largest(parts)):
        raise InvalidParameter(REFUSED)


def _payload_groups(payloads: Iterable[Any], bits: int, dimension: int, most: int, device: str) -> Iterator[Any]:
    """Payloads as tensors of bytes on the device, at most so many rows each, lengths and padding checked."""
    torch = require_module("torch", "torch")
    if isinstance(payloads, torch.Tensor):
        size, used = packed_size(bits, dimension), (bits * dimension) % 8
        shape = tuple(payloads.shape)
        fine = payloads.dtype == torch.uint8 and len(shape) == 2 and shape[1] == size
        require(fine, "length of the packed codes", shape, f"{size} bytes in each row of a tensor of bytes")
        rows = payloads.to(device)
        rows = rows if size == 0 or rows.stride(1) == 1 else rows.contiguous()
        if used and len(rows):
            require(int(rows[:, -1].max()) >> used == 0, "padding bits", "something else", "zero")
        yield from (rows[start : start + most] for start in range(0, len(rows), most))
        return
    stream = iter(payloads)
    while group := list(islice(stream, most)):
        checked = [check_packed(_host(torch, data), bits, dimension) for data in group]
        yield torch.tensor(np.stack(checked), device=device)


def _host(torch: Any, data: Any) -> Any:
    return data.cpu().numpy() if isinstance(data, torch.Tensor) else data
