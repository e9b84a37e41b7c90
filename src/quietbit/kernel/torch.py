"""The torch kernel: the same codes through torch operations, on whatever device the tensors live.

Idea     decide from the cell table by gathers, products and comparisons; send the undecided coordinates
         through `law.py` in float64 on the same device. Operations run one by one, so nothing is fused and
         the roundings are those of the reference. The device needs float64.
Symbols  as in `tables.py` and `norm.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, require, require_module
from quietbit.kernel import law
from quietbit.kernel.base import (
    ByteBuffer,
    Order,
    Update,
    check_output,
    check_packed,
    check_table,
    code_type,
    packed_size,
)
from quietbit.kernel.chunks import Tensors
from quietbit.kernel.norm import BLOCK, LANES, ROWS, Clip, joint_norm
from quietbit.kernel.reference import check_factor
from quietbit.kernel.rng import RandomBits, WordBlock
from quietbit.kernel.sampler import Sampler, level_knots
from quietbit.kernel.tables import cell_table

__all__ = ["TorchKernel"]

CHUNK = 1 << 20
WORKING_SET = 1 << 23  # coordinates times thresholds looked at together
REFUSED = "update must be finite everywhere, got a NaN or infinite entry."


@final
@dataclass(frozen=True, slots=True)
class TorchKernel:
    """Sampling where the tensors are; see `Kernel` for what each method promises.

    Updates may also be torch tensors, of bfloat16 too; `sample` then answers with a uint8 tensor on their
    device. ``total`` of `accumulate` may be a tensor of int32 or int64.
    """

    def __post_init__(self) -> None:
        """Refuse a machine without torch."""
        require_module("torch", "torch")

    @property
    def name(self) -> str:
        """The name `select` knows this kernel by."""
        return "torch"

    def sample(
        self,
        sampler: Sampler,
        inputs: Update,
        rng: RandomBits,
        *,
        factor: float = 1.0,
        verified: bool = False,
    ) -> Any:
        """One code per coordinate."""
        torch = require_module("torch", "torch")
        parts, gain = Tensors.of(inputs), law.Gain.of(check_factor(factor), sampler.scale)
        if not verified and not np.isfinite(_largest(parts)):
            raise InvalidParameter(REFUSED)
        block = rng.draw(parts.size)
        codes = torch.empty(parts.size, dtype=torch.uint8, device=parts.device)
        chunk = max(1024, min(CHUNK, WORKING_SET // sampler.symbols))
        device_tables = _DeviceTables(sampler, parts.device)
        for start in range(0, parts.size, chunk):
            stop = min(parts.size, start + chunk)
            codes[start:stop] = device_tables.codes(parts.piece(start, stop), gain, block, start)
        codes = codes.reshape(parts.shape)
        return codes if parts.of_torch else codes.numpy()

    def sample_packed(
        self,
        sampler: Sampler,
        inputs: Update,
        rng: RandomBits,
        out: NDArray[np.uint8],
        *,
        factor: float = 1.0,
        verified: bool = False,
    ) -> None:
        """One code per coordinate, packed on the device and copied into ``out``."""
        inputs = Tensors.of(inputs)
        check_output(out, sampler.bits, inputs.size)
        codes = self.sample(sampler, inputs, rng, factor=factor, verified=verified)
        out[:] = np.frombuffer(self.pack(codes, sampler.bits), dtype=np.uint8)

    def sample_clipped(
        self,
        sampler: Sampler,
        inputs: Update,
        order: Order,
        radius: float,
        rng: RandomBits,
        out: NDArray[np.uint8],
    ) -> None:
        """Copy the update where it is, measure the copy, sample the copy."""
        own = Tensors.of(inputs).copied()
        check_output(out, sampler.bits, own.size)
        clip = Clip.of(self.norm(own, order), radius, order)
        self.sample_packed(sampler, own, rng, out, factor=clip.factor, verified=True)

    def pack(self, codes: Any, bits: int) -> bytes:
        """Codes, an array or a tensor, as bytes."""
        torch = require_module("torch", "torch")
        wide = codes if isinstance(codes, torch.Tensor) else torch.tensor(np.asarray(codes).astype(np.int64))
        flat = wide.reshape(-1).to(torch.int32)
        size = packed_size(bits, flat.numel())
        if flat.numel():
            require(int(flat.min()) >= 0, "smallest code", int(flat.min()), "at least 0")
            require(int(flat.max()) < 2**bits, "largest code", int(flat.max()), f"below 2^{bits}")
        out = np.empty(size, dtype=np.uint8)
        places = torch.arange(bits, dtype=torch.int32, device=flat.device)
        weights = 2 ** torch.arange(8, dtype=torch.int32, device=flat.device)
        for start in range(0, flat.numel(), CHUNK):
            lifted = ((flat[start : start + CHUNK, None] >> places) & 1).reshape(-1)
            lifted = torch.nn.functional.pad(lifted, (0, -lifted.numel() % 8)).reshape(-1, 8)
            packed = (lifted * weights).sum(dim=1).to(torch.uint8).cpu().numpy()
            out[start * bits // 8 : start * bits // 8 + packed.size] = packed
        return out.tobytes()

    def unpack(self, data: ByteBuffer, bits: int, dimension: int) -> Any:
        """Bytes as codes, an array on the host."""
        flat = check_packed(data, bits, dimension)
        return _unpack(flat, bits, dimension, "cpu").numpy().astype(code_type(bits))

    def norm(self, inputs: Update, order: Order) -> float:
        """The norm, in the fixed order of `norm.py`."""
        return joint_norm(Tensors.of(inputs), order, _block_sums, _largest)  # type: ignore[arg-type]

    def accumulate(self, payloads: Iterable[ByteBuffer], bits: int, table: Any, total: Any) -> int:
        """Unpack, look up, add, where ``total`` lives."""
        torch = require_module("torch", "torch")
        plain = np.empty(0, dtype=np.int64) if isinstance(total, torch.Tensor) else total
        values = check_table(table, bits, plain)
        sums = total if isinstance(total, torch.Tensor) else torch.from_numpy(total)
        looked_up = torch.tensor(values, device=sums.device).to(sums.dtype)
        added = 0
        for payload in payloads:
            codes = _unpack(check_packed(payload, bits, sums.numel()), bits, sums.numel(), sums.device)
            sums += looked_up[codes.long()]
            added += 1
        return added


class _DeviceTables:
    """A sampler's tables on a device."""

    def __init__(self, sampler: Sampler, device: Any) -> None:
        torch = require_module("torch", "torch")

        def put(array: Any) -> Any:
            return torch.tensor(np.asarray(array), device=device)

        self.sampler, self.cells, self.device = sampler, cell_table(sampler), device
        self.start, self.step = put(self.cells.start), put(self.cells.step)
        tables = (sampler.base, sampler.base_tail, sampler.slope, sampler.slope_tail)
        self.tables = tuple(put(table) for table in tables)
        self.knots = tuple(put(knots) for knots in level_knots(sampler.levels))
        self.powers = put(law.POWERS)

    def codes(self, values: Any, gain: law.Gain, block: WordBlock, first: int) -> Any:
        """Codes of one chunk: by table, then by law where the table is not sure."""
        torch = require_module("torch", "torch")
        count = values.numel()
        primary = torch.tensor(block.primary(first, count).astype(np.int32), device=self.device)
        values, cells = values.double(), self.cells
        rate = gain.approximate()
        if rate == 0.0 or 2.0**-900 < rate < 2.0**900:
            low, high = self.sampler.t_range
            at = _clamp(torch, values * rate, low, high) * cells.inverse + cells.offset
            at = _clamp(torch, at, 0.0, float(np.nextafter(len(cells.start), 0)))
            cell = at.long()
            part = (at - cell).float()[:, None]
            distance = primary.float()[:, None] - (self.start[cell] + self.step[cell] * part)
            codes = (distance > 0).sum(dim=1).to(torch.uint8)
            # NaN marks rows that decide nothing, so ask for certainty rather than for its absence.
            open_ = (~(distance.abs() >= cells.half + 2.0**-20).all(dim=1)).nonzero()[:, 0]
        else:
            codes = torch.empty(count, dtype=torch.uint8, device=self.device)
            open_ = torch.arange(count, device=self.device)
        if open_.numel():
            ties = block.ties(first + open_.cpu().numpy()) & np.uint64(2**48 - 1)
            second = torch.tensor(ties.astype(np.int64), device=self.device)
            codes[open_] = self._exact(values[open_], gain, primary[open_].long(), second)
        return codes

    def _exact(self, values: Any, gain: law.Gain, first: Any, second: Any) -> Any:
        """The law as the reference evaluates it, operation by operation."""
        torch = require_module("torch", "torch")
        scaled = _clamp(torch, values * gain.first * gain.second, -law.CEILING, law.CEILING)
        t, t_low = law.shift(scaled, gain.high, gain.low)
        low, high = self.sampler.t_range
        below, above = ((t - low) + t_low) < 0, ((t - high) + t_low) > 0
        t_low = torch.where(below | above, torch.zeros_like(t), t_low)
        t = torch.where(below, torch.full_like(t, low), torch.where(above, torch.full_like(t, high), t))
        segment = self._segment(t, t_low)
        base, base_tail, slope, slope_tail = (table[segment] for table in self.tables)
        total, tail = law.log_weight(base, base_tail, slope, slope_tail, t[:, None], t_low[:, None])
        difference, lost = law.two_sum(total, -total.amax(dim=1, keepdim=True))
        difference = difference.clamp(min=law.FLOOR)
        exponent, remainder = law.reduce_exponent(difference, tail + lost)
        sums = law.exponential(remainder) * self.powers[exponent.long() + law.POWER_OFFSET]
        half, symbols = 1, self.sampler.symbols
        while half < symbols:
            view = sums.view(t.numel(), symbols // (2 * half), 2, half)
            view[:, :, 1, :] += view[:, :, 0, -1:].clone()
            half *= 2
        scaled_up = sums[:, :-1] / sums[:, -1:] * 65536.0
        upper = scaled_up.floor()
        lower = ((scaled_up - upper) * 2.0**48).floor().long()
        same = first[:, None] == upper.long()
        reached = (first[:, None] > upper.long()) | (same & (second[:, None] >= lower))
        return reached.sum(dim=1).to(torch.uint8)

    def _segment(self, t: Any, t_low: Any) -> Any:
        last, (knots, tails) = self.sampler.levels - 2, self.knots
        index = ((t + 0.5) * (last + 1)).floor().long().clamp(0, last)
        below = ((t - knots[index]) + (t_low - tails[index])) < 0
        above = ((t - knots[index + 1]) + (t_low - tails[index + 1])) >= 0
        return (index - below.long() + above.long()).clamp(0, last)


def _clamp(torch: Any, values: Any, low: float, high: float) -> Any:
    """Values inside [low, high]; a NaN becomes the low end."""
    values = torch.where(values > low, values, torch.full_like(values, low))
    return torch.where(values < high, values, torch.full_like(values, high))


def _unpack(data: NDArray[np.uint8], bits: int, dimension: int, device: Any) -> Any:
    torch = require_module("torch", "torch")
    codes = torch.empty(dimension, dtype=torch.int32, device=device)
    places = torch.arange(8, dtype=torch.uint8, device=device)
    weights = 2 ** torch.arange(bits, dtype=torch.int32, device=device)
    for start in range(0, dimension, CHUNK):
        stop = min(dimension, start + CHUNK)
        piece = torch.tensor(data[start * bits // 8 : (stop * bits + 7) // 8], device=device)
        lifted = ((piece[:, None] >> places) & 1).reshape(-1)[: (stop - start) * bits]
        codes[start:stop] = (lifted.reshape(-1, bits).to(torch.int32) * weights).sum(dim=1).to(torch.int32)
    return codes


def _block_sums(parts: Tensors, order: int, scale: float) -> NDArray[np.float64]:
    torch = require_module("torch", "torch")
    found = []
    for base, part in zip(parts.starts, parts.parts, strict=True):
        size = part.numel()
        for start in range(0, size, CHUNK):
            values = parts.piece(base + start, base + min(size, start + CHUNK)).double() * scale
            terms = values * values if order == 2 else values.abs()
            terms = torch.nn.functional.pad(terms, (0, -terms.numel() % BLOCK)).reshape(-1, ROWS, LANES)
            lanes = torch.zeros_like(terms[:, 0])
            for row in range(ROWS):
                lanes = lanes + terms[:, row]
            while lanes.shape[1] > 1:
                half = lanes.shape[1] // 2
                lanes = lanes[:, :half] + lanes[:, half:]
            found.append(lanes[:, 0].cpu().numpy())
    return np.concatenate(found) if found else np.empty(0)


def _largest(parts: Tensors) -> float:
    """The largest absolute value; NaN if there is one."""
    peaks = [float(parts.piece(s, min(parts.size, s + CHUNK)).abs().max()) for s in range(0, parts.size, CHUNK)]
    return float(np.max(peaks, initial=0.0))
