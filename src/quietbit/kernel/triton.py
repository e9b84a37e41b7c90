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
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar, final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, check_real, require, require_module
from quietbit.kernel.base import (
    Kernel,
    Order,
    Update,
    check_in_place,
    check_output,
    check_packed,
    check_table,
    code_type,
    packed_size,
)
from quietbit.kernel.chunks import Tensors
from quietbit.kernel.expand import MAX_COUNT, ROWS_KEY, SUMS, check_seeds, seed_state, strata
from quietbit.kernel.law import Gain
from quietbit.kernel.norm import BLOCK, LOOK_ROOM, NORM_ERROR, Clip, check_rotated, joint_norm, rotated_factor
from quietbit.kernel.quantile import quantile_table_torch
from quietbit.kernel.reference import check_factor
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.sampler import Sampler
from quietbit.kernel.tables import thresholds_on_device
from quietbit.kernel.transform import BlockSigns, check_finite_rotation, padded_size, scale_of, sign_words
from quietbit.kernel.triton_launch import DRAWN, SETTLERS, Launch, machine_code, sample_rows

__all__ = ["TritonKernel", "enqueue"]

REFUSED = "update must be finite everywhere, got a NaN or infinite entry."
NORM_SHAPE = {"BLOCKS": 8, "SPLIT": True, "num_warps": 8}  # blocks of a norm per program
HEAD, LOOKS = 32, 128  # of the numbers that come back to the host: scalars, then sums of a second look


@final
@frozen
class TritonKernel(Kernel):
    """Sampling at the speed of memory on a GPU; see `Kernel` for what each method promises.

    Updates may be arrays, which are copied to the device, or torch tensors of float16, bfloat16, float32 or
    float64; one contiguous tensor on the device is read where it is. ``out`` of `sample_packed` may be a uint8
    tensor on the device, ``total`` of `accumulate` a tensor of int32 or int64, and its payloads one uint8
    tensor with a payload per row.
    """

    name: ClassVar[str] = "triton"

    def __attrs_post_init__(self) -> None:
        """Refuse a machine without triton or without a GPU."""
        machine_code()

    def sample(
        self, sampler: Sampler, inputs: Update, rng: RandomBits, *, factor: float = 1.0, verified: bool = False
    ) -> Any:
        """One code per coordinate; a tensor on the device for tensors, else an array."""
        torch, parts = require_module("torch", "torch"), Tensors.of(inputs, machine_code().device)
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
        parts = Tensors.of(inputs, machine_code().device)
        _check_output(out, sampler.bits, parts.size)
        with _on_device(out, parts.device) as packed:
            self._sample(sampler, parts, rng, packed, factor, verified)

    def sample_clipped(
        self, sampler: Sampler, inputs: Update, order: Order, radius: float, rng: RandomBits, out: Any
    ) -> None:
        """Norm, factor and codes in one go where the words are made on the device; else codes of a private copy.

        With `device_rng` nothing waits for the host until all is done, so a key is drawn before the norm is known; if
        the update then turns out to be refused, or to have changed, ``out`` is wiped. Tensors in several pieces are
        joined on the device first.
        """
        given = Tensors.of(inputs, machine_code().device)
        _check_output(out, sampler.bits, given.size)
        check_real(radius, "radius")
        require(order in (1, 2), "order of the norm", order, "1 or 2")
        joined = given.joined() if given.size else given
        with _on_device(out, given.device) as packed:
            if getattr(rng, "generator", None) in DRAWN and given.size:
                if _sample_at_once(sampler, joined, given, order, radius, rng, packed):
                    return
                packed.zero_()
            own = joined.copied()
            factor = Clip.of(self.norm(_pieces(own, given), order), radius, order).factor
            self._sample(sampler, own, rng, packed, factor, True)

    def sample_rotated(
        self, sampler: Sampler, inputs: Update, seed: int, block: int, radius: float, rng: RandomBits, out: Any
    ) -> None:
        """As every kernel does it; the rotated vector stays on the device."""
        given = Tensors.of(inputs, machine_code().device)
        _check_output(out, sampler.bits, given.size)
        factor = rotated_factor(self.norm(given, 2), radius)
        own = replace(given, of_torch=True)
        rotated = self.block_rotate(own, seed, block, factor=factor)
        check_rotated(self.norm(rotated, 2), radius)
        self.sample_packed(sampler, rotated, rng, out, verified=True)

    def pack(self, codes: Any, bits: int) -> bytes:
        """Codes, an array or a tensor, as bytes."""
        torch = require_module("torch", "torch")
        wide = codes if isinstance(codes, torch.Tensor) else torch.tensor(np.asarray(codes).astype(np.int64))
        flat = wide.reshape(-1).to(torch.int32).to(machine_code().device)
        size = packed_size(bits, flat.numel())
        if flat.numel():
            require(int(flat.min()) >= 0, "smallest code", int(flat.min()), "at least 0")
            require(int(flat.max()) < 2**bits, "largest code", int(flat.max()), f"below 2^{bits}")
        lifted = ((flat[:, None] >> torch.arange(bits, dtype=torch.int32, device=flat.device)) & 1).reshape(-1)
        lifted = torch.nn.functional.pad(lifted, (0, 8 * size - lifted.numel())).reshape(-1, 8)
        weights = 2 ** torch.arange(8, dtype=torch.int32, device=flat.device)
        packed: NDArray[np.uint8] = (lifted * weights).sum(dim=1).to(torch.uint8).cpu().numpy()
        return packed.tobytes()

    def unpack(self, data: Any, bits: int, dimension: int) -> Any:
        """Bytes as codes: an array on the host, or a tensor where a uint8 tensor was given."""
        torch, of_torch = require_module("torch", "torch"), hasattr(data, "is_cuda")
        given = data if of_torch else torch.tensor(check_packed(data, bits, dimension))
        total = torch.zeros(dimension, dtype=torch.int32, device=machine_code().device)
        self.accumulate(given[None, :], bits, np.arange(2**bits), total)
        codes = total.to(torch.uint8 if code_type(bits) is np.uint8 else torch.uint16)
        return codes if of_torch else codes.cpu().numpy()

    def norm(self, inputs: Update, order: Order) -> float:
        """The norm, in the fixed order of `norm.py`."""
        parts = Tensors.of(inputs, machine_code().device)
        return joint_norm(parts, order, _exact_block_sums, _largest)  # type: ignore[arg-type]

    def accumulate(self, payloads: Iterable[Any], bits: int, table: Any, total: Any) -> int:
        """Count in bit planes for one bit, by look-up for more; up to 252 payloads are held at a time."""
        torch, code = require_module("torch", "torch"), machine_code()
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

    def hadamard(self, values: Any) -> Any:
        """Few visits of memory; an array is copied to the device and back."""
        with _transformed(values) as tensor:
            machine_code().hadamard_stages(tensor, tensor.numel(), *scale_of(tensor.numel()))
        return values

    def rotate(self, inputs: Update, seed: int, *, factor: float = 1.0, kind: Any = np.float32) -> Any:
        """Signs, factor and first stages in one visit; a tensor on the device for tensors, else an array."""
        parts = Tensors.of(inputs, machine_code().device).joined()
        size = padded_size(parts.size)
        out = _empty(size, kind, parts.device)
        words = _to_device(sign_words(size, seed).view(np.int32), parts.device)
        machine_code().hadamard_stages(out, size, *scale_of(size), parts.parts[0], words, check_factor(factor))
        return _given_back(out, parts)

    def rotate_back(self, values: Any, seed: int) -> Any:
        """Transform, then flip."""
        with _transformed(values) as tensor:
            machine_code().hadamard_stages(tensor, tensor.numel(), *scale_of(tensor.numel()))
            tensor.mul_(_signs(sign_words(tensor.numel(), seed), tensor))
        return values

    def block_rotate(
        self, inputs: Update, seed: int, block: int, *, factor: float = 1.0, kind: Any = np.float32
    ) -> Any:
        """Signs, factor and stages in one visit for blocks of up to 4,096."""
        parts, code = Tensors.of(inputs, machine_code().device).joined(), machine_code()
        chosen, x = BlockSigns.of(parts.size, block, seed), parts.parts[0]
        out, number = _empty(parts.size, kind, parts.device), check_factor(factor)
        words = _to_device(chosen.first.view(np.int32), parts.device)
        code.hadamard_stages(out[: chosen.whole], block, *scale_of(block), x, words, number)
        if chosen.last is not None:
            out[chosen.whole :] = x[chosen.whole :].double() * number
            tail, words = out[-block:], _to_device(chosen.last.view(np.int32), parts.device)
            code.hadamard_stages(tail, block, *scale_of(block), tail, words)
        return _given_back(out, parts)

    def block_rotate_back(self, values: Any, seed: int, block: int) -> Any:
        """The transposes in reverse order."""
        code = machine_code()
        with _transformed(values, block) as tensor:
            chosen = BlockSigns.of(tensor.numel(), block, seed)
            if chosen.last is not None:
                tail = tensor[-block:]
                code.hadamard_stages(tail, block, *scale_of(block))
                tail.mul_(_signs(chosen.last, tail))
            code.hadamard_stages(tensor[: chosen.whole], block, *scale_of(block))
            tensor.mul_(_signs(chosen.first, tensor))
        return values

    def rotated_rows(self, inputs: Update, seed: int, factor: float, places: NDArray[np.int64]) -> FloatVector:
        """Only the rows leave the device."""
        parts = replace(Tensors.of(inputs, machine_code().device), of_torch=True)
        rotated = self.rotate(parts, seed, factor=factor)
        kept: FloatVector = rotated[_to_device(places, rotated.device)].double().cpu().numpy()
        return kept

    def words(self, state: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
        """A block per thread; streams of 128-bit keys, from block number 0 on."""
        require(not np.any(state[12:14]), "block number", state[12:14].tolist(), "0 on a GPU")
        found: NDArray[np.int64] = self._expand(state[None, 4:8], state[None, 14:], count, False).cpu().numpy()[0]
        return found.view(np.uint64)

    def normals(self, seed: bytes, count: int) -> FloatVector:
        """Words and normals in registers."""
        state, size = seed_state(seed), check_int(count, "count", 0, MAX_COUNT)
        found: FloatVector = self._expand(state[None, 4:8], state[None, 14:], size, True).cpu().numpy()[0]
        return found

    def first_accepted(
        self,
        seeds: NDArray[np.uint64],
        words: NDArray[np.uint64],
        direction: FloatVector,
        edges: FloatVector,
        limits: NDArray[np.uint64],
    ) -> int:
        """Expand all seeds at once; their inner products are added up in the order of `expand.inner`."""
        torch = require_module("torch", "torch")
        keys = seeds.view("<u4").reshape(-1, 4)
        z = self._expand(keys, np.zeros((len(keys), 2), np.uint32), direction.size, True)
        product = z * _to_device(np.ascontiguousarray(direction), z.device)
        product = torch.nn.functional.pad(product, (0, -direction.size % SUMS)).reshape(len(keys), -1, SUMS)
        sums = torch.zeros_like(product[:, 0])
        for row in range(product.shape[1]):
            sums = sums + product[:, row]
        while sums.shape[1] > 1:
            sums = sums[:, : sums.shape[1] // 2] + sums[:, sums.shape[1] // 2 :]
        steps = np.searchsorted(edges, sums[:, 0].cpu().numpy(), side="right")
        accepted = np.flatnonzero(words < limits[steps])
        return int(accepted[0]) if accepted.size else -1

    def add_seeds(
        self, nonces: Any, seeds: Any, total: Any, *, count: int, shift: int, weights: Any | None = None
    ) -> None:
        """Expand in registers, add by atomic operations, which commute exactly; arrays or tensors of the device."""
        torch, code = require_module("torch", "torch"), machine_code()
        payloads, device = check_seeds(nonces, seeds, weights, total), machine_code().device

        def put(part: Any) -> Any:
            return part.to(device).contiguous() if isinstance(part, torch.Tensor) else _to_device(part, device)

        if not payloads:
            return
        each = torch.ones(payloads, dtype=torch.int64, device=device) if weights is None else put(weights)
        scale, starts = math.ldexp(1.0, check_int(shift, "shift", 0, 48)), strata(count, total.shape[0])
        with _transformed(total, None) as sums:
            keys, tails = (put(part).view(torch.int32) for part in (seeds, nonces))
            table = quantile_table_torch(str(sums.device))
            code.add_payloads(tails, keys, each, _to_device(starts, device), count, scale, table, ROWS_KEY, sums)

    def _expand(self, keys: NDArray[np.uint32], tails: NDArray[np.uint32], count: int, normals: bool) -> Any:
        code = machine_code()
        given = (_to_device(np.ascontiguousarray(part).view(np.int32), code.device) for part in (keys, tails))
        return code.expand(*given, count, quantile_table_torch(code.device), normals)

    def _sample(
        self, sampler: Sampler, parts: Tensors, rng: RandomBits, out: Any, factor: float, verified: bool
    ) -> None:
        gain = Gain.of(check_factor(factor), sampler.scale)
        if not verified:
            _check_finite(parts)
        block = rng.draw(parts.size)
        if parts.size:
            sample_rows(sampler, gain, parts.joined().parts[0], block, out)


def _to_device(array: NDArray[Any], device: Any) -> Any:
    """A copy of an array on the device."""
    return require_module("torch", "torch").tensor(array, device=device)


def _empty(size: int, kind: Any, device: Any) -> Any:
    torch = require_module("torch", "torch")
    return torch.empty(size, dtype=torch.float32 if np.dtype(kind) == np.float32 else torch.float64, device=device)


def _signs(words: NDArray[np.uint32], like: Any) -> Any:
    """Signs as a tensor of another's length, type and device."""
    torch, given = require_module("torch", "torch"), _to_device(words.view(np.int32), like.device)
    places = torch.arange(32, dtype=torch.int32, device=like.device)
    minus = ((given[:, None] >> places) & 1).reshape(-1)[: like.numel()]
    return (1 - 2 * minus).to(like.dtype)


def _given_back(rotated: Any, parts: Tensors) -> Any:
    """A rotated update, refused unless it is finite; an array where an array was given."""
    torch = require_module("torch", "torch")
    check_finite_rotation(rotated, np.array(0.0 if bool(torch.isfinite(rotated).all()) else np.nan))
    return rotated if parts.of_torch else rotated.cpu().numpy()


@contextmanager
def _transformed(values: Any, block: int | None = 0) -> Iterator[Any]:
    """Values as a tensor on the device, written back in the end.

    They are refused unless they can be transformed in place: whole (block 0), in blocks, or not at all (None).
    """
    torch, device = require_module("torch", "torch"), machine_code().device
    of_torch = isinstance(values, torch.Tensor)
    if of_torch and block is not None:
        fine = values.dtype in (torch.float32, torch.float64) and values.dim() == 1 and values.is_contiguous()
        require(fine, "tensor", (str(values.dtype), tuple(values.shape)), "flat, contiguous, of float32 or float64")
        size = values.numel()
        require(block or (size > 0 and size & (size - 1) == 0), "length", size, "a power of two")
    elif block == 0:
        check_in_place(values)
    there = values if of_torch and values.is_cuda == (device == "cuda") else _copied(values, device)
    yield there
    if there is not values:
        values[:] = there.to(values.device) if of_torch else there.cpu().numpy()


def _copied(values: Any, device: Any) -> Any:
    return values.to(device) if hasattr(values, "is_cuda") else _to_device(values, device)


def _check_output(out: Any, bits: int, dimension: int) -> None:
    """Refuse an array or tensor that does not hold exactly the packed codes."""
    torch = require_module("torch", "torch")
    if isinstance(out, torch.Tensor):
        size = packed_size(bits, dimension)
        fine = tuple(out.shape) == (size,) and out.dtype == torch.uint8
        require(fine, "output buffer", (tuple(out.shape), str(out.dtype)), f"{size} bytes")
    else:
        check_output(out, bits, dimension)


@contextmanager
def _on_device(out: Any, device: Any) -> Iterator[Any]:
    """``out`` itself if kernels can write to it, else bytes on the device that are copied to it in the end.

    Whatever goes wrong, nothing that was sampled stays in it.
    """
    torch = require_module("torch", "torch")
    of_torch = isinstance(out, torch.Tensor)
    here = of_torch and out.device == device and out.is_contiguous() and out.data_ptr() % 16 == 0
    packed = out if here else torch.empty(out.shape[0], dtype=torch.uint8, device=device)
    try:
        yield packed
    except BaseException:
        packed.zero_()
        out[:] = 0
        raise
    if of_torch and not here:
        out.copy_(packed)
    elif not of_torch:
        # Straight into the caller's memory, which torch may write to as `check_output` saw.
        torch.from_numpy(out).copy_(packed)


def _pieces(joined: Tensors, given: Tensors) -> Tensors:
    """A joined update in the pieces that it came in: blocks of a norm begin with each of them."""
    if len(given.parts) == len(joined.parts):
        return joined
    ends = [start + part.numel() for start, part in zip(given.starts, given.parts, strict=True)]
    parts = tuple(joined.parts[0][start:end] for start, end in zip(given.starts, ends, strict=True))
    return replace(given, parts=parts, private=joined.private * len(parts))


def _sample_at_once(
    sampler: Sampler, joined: Tensors, given: Tensors, order: int, radius: float, rng: RandomBits, out: Any
) -> bool:
    """Norm, clip factor and both passes without waiting for the host; False where the host must decide.

    The factor that the device found is compared with the host's in the end, and the second look with its limit.
    """
    buffer, capacity = enqueue(sampler, joined, given, order, radius, rng, out)
    host = buffer.cpu().numpy()
    norm, factor = host[24:26].view(np.float64).tolist()
    if not math.isfinite(norm):
        return False
    clip = Clip.of(norm, radius, order)
    if clip.limit is None or clip.factor != factor:
        return False
    first = HEAD + LOOKS if int(host[10:11].view(np.int32)[0]) > capacity else HEAD
    found = host[first:].view(np.float64)
    clip.check(math.fsum(found.tolist()) if np.all(np.isfinite(found)) else math.inf)
    return True


def enqueue(
    sampler: Sampler, joined: Tensors, given: Tensors, order: int, radius: float, rng: RandomBits, out: Any
) -> tuple[Any, int]:
    """Everything that the device does to clip and sample, in its queue; what the host will look at, and the capacity.

    The key is drawn when the norm is already in the queue.
    """
    torch, code = require_module("torch", "torch"), machine_code()
    x = joined.parts[0]
    buffer = torch.zeros(HEAD + LOOKS + SETTLERS, dtype=torch.int64, device=x.device)
    limbs, peak, count = buffer[: code.LIMBS + 1], buffer[9:10], buffer[10:11].view(torch.int32)[:1]
    numbers, looks = buffer[16:26].view(torch.float64), buffer[HEAD:].view(torch.float64)
    sums = _block_sums(_pieces(joined, given), order, 1.0, peak)
    shape = {"SIZE": 1024, "LIMBS": code.LIMBS, "LIMB_BITS": code.LIMB_BITS, "enable_fp_fusion": False}
    code.add_limbs[(-(-sums.numel() // 1024),)](sums, sums.numel(), peak, limbs, **shape)
    plan = _clip_plan(sampler, radius, str(x.device))
    few = {"num_warps": 1, "enable_fp_fusion": False}
    code.clip_numbers[(1,)](limbs, peak, plan, numbers, ORDER=order, LIMBS=code.LIMBS, **few)
    launch = Launch(sampler, x, rng.draw(x.numel()), out, True, x.dtype != torch.float64)
    capacity, first = launch.run(numbers, count, order, looks[LOOKS:])
    if first.numel():
        each = 1 << max(5, (-(-first.numel() // LOOKS) - 1).bit_length())
        code.add_looks[(-(-first.numel() // each),)](first, first.numel(), looks, SIZE=each)
    return buffer, capacity


@lru_cache(maxsize=64)
def _clip_plan(sampler: Sampler, radius: float, device: str) -> Any:
    """What `clip_numbers` needs to know, on the device."""
    torch = require_module("torch", "torch")
    left = Fraction(radius) * (1 - Fraction(LOOK_ROOM)) * (1 - Fraction(NORM_ERROR))
    pieces = []
    for _ in range(3):  # 53 + 86 bits
        pieces.append(float(left))
        left -= Fraction(pieces[-1])
    mantissa, exponent = math.frexp(sampler.scale)
    plan = thresholds_on_device(sampler)
    values = (*pieces, 2 * mantissa, exponent - 1, *sampler.t_range, plan.rate, plan.offset)
    return torch.tensor(values, dtype=torch.float64, device=device)


def _count_ones(group: Any, bits: int, table: Any, total: Any) -> None:
    """Add one-bit payloads, the rows of a tensor."""
    torch, code = require_module("torch", "torch"), machine_code()
    if group.shape[1] % 4 or group.stride(0) % 4 or group.data_ptr() % 4:
        group = torch.nn.functional.pad(group, (0, -group.shape[1] % 4))
    words = group.view(torch.int32)
    grid = (-(-words.shape[1] // 128),)
    code.count_ones[grid](words, words.stride(0), len(words), total, words.shape[1], total.numel(), table, LANES=128)


def _add_codes(group: Any, bits: int, table: Any, total: Any) -> None:
    """Add wider codes, the rows of a tensor, by look-up."""
    code, size = machine_code(), group.shape[1]
    grid = (-(-total.numel() // 1024),)
    code.add_codes[grid](group, group.stride(0), len(group), total, size, total.numel(), table, BITS=bits, SIZE=1024)


def _block_sums(parts: Tensors, order: int, scale: float, peak: Any) -> Any:
    """The block sums of all parts, on the device; ``peak`` becomes the largest, as the bits of a double."""
    torch, code = require_module("torch", "torch"), machine_code()
    blocks = [-(-part.numel() // BLOCK) for part in parts.parts]
    sums = torch.empty(sum(blocks), dtype=torch.float64, device=parts.device)
    scaled, begin = scale != 1.0, 0
    power = torch.full((1,), scale, dtype=torch.float64, device=parts.device) if scaled else sums
    shape = {"ORDER": order, "SCALED": scaled, **NORM_SHAPE, "enable_fp_fusion": False}
    each = NORM_SHAPE["BLOCKS"]
    for part, many in zip(parts.parts, blocks, strict=True):
        whole, target = part.numel() // BLOCK // each, sums[begin : begin + many]
        if whole:
            code.block_sums[(whole,)](part, target, peak, 0, part.numel(), many, power, EVEN=True, **shape)
        if whole * each < many:
            rest = (-(-(many - whole * each) // each),)
            code.block_sums[rest](part, target, peak, whole * each, part.numel(), many, power, EVEN=False, **shape)
        begin += many
    return sums


def _exact_block_sums(parts: Tensors, order: int, scale: float) -> NDArray[np.float64]:
    """A few doubles whose sum is exactly that of the block sums, or the block sums themselves."""
    torch, code = require_module("torch", "torch"), machine_code()
    limbs = torch.zeros(code.LIMBS + 2, dtype=torch.int64, device=parts.device)
    sums = _block_sums(parts, order, scale, limbs[-1:])
    if sums.numel() > 64:
        grid = (-(-sums.numel() // 1024),)
        shape = {"SIZE": 1024, "LIMBS": code.LIMBS, "LIMB_BITS": code.LIMB_BITS}
        code.add_limbs[grid](sums, sums.numel(), limbs[-1:], limbs, **shape, enable_fp_fusion=False)
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
    peak = torch.zeros(1, dtype=torch.int64, device=parts.device)
    if not bool(torch.isfinite(_block_sums(parts, 1, 1.0, peak)).all()) and not math.isfinite(_largest(parts)):
        raise InvalidParameter(REFUSED)


def _payload_groups(payloads: Iterable[Any], bits: int, dimension: int, most: int, device: str) -> Iterator[Any]:
    """Payloads as tensors of bytes on the device, at most ``most`` rows each, lengths and padding checked."""
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
