"""Updates and payloads as tensors on the device of the triton kernel.

Idea     a contiguous tensor that is already there is used as it is; everything else is copied once.
Symbols  bfloat16 arrays come as uint16 bit patterns, as for the other kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, final

import numpy as np

from quietbit._validate import require, require_module
from quietbit.kernel.base import check_packed, packed_size
from quietbit.kernel.chunks import Flat

__all__ = ["Parts", "payload_groups"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Flat contiguous tensors on one device, one after the other."""

    parts: tuple[Any, ...]
    size: int
    shape: tuple[int, ...]
    device: Any
    of_torch: bool

    @classmethod
    def of(cls, update: Any, device: str) -> Parts:
        """An array, a tensor, or a list of either, on the device."""
        torch = require_module("torch", "torch")
        several = isinstance(update, list | tuple)
        items = list(update) if several else [update]
        of_torch = any(isinstance(item, torch.Tensor) for item in items)
        if of_torch:
            floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
            for item in items:
                fine = isinstance(item, torch.Tensor) and item.dtype in floats
                require(fine, "type of the update", str(getattr(item, "dtype", type(item))), "floating tensors")
            shape: tuple[int, ...] = tuple(items[0].shape)
        else:
            flat = Flat.of(update)
            several = (several and len(flat.parts) != 1) or isinstance(update, list | tuple)
            items, shape = [_tensor(torch, part) for part in flat.parts], flat.shape
        found = tuple(item.detach().to(device).contiguous().reshape(-1) for item in items)
        size = sum(part.numel() for part in found)
        where = found[0].device if found else torch.device(device)
        return cls(found, size, (size,) if several and of_torch else shape, where, of_torch)

    def joined(self) -> Any:
        """All parts as one tensor whose first entry lies at a multiple of 16 bytes."""
        torch = require_module("torch", "torch")
        filled = [part for part in self.parts if part.numel()]
        if len(filled) == 1:
            return filled[0] if filled[0].data_ptr() % 16 == 0 else filled[0].clone()
        same = len({part.dtype for part in filled}) == 1
        return torch.cat(filled if same else [part.double() for part in filled])


def _tensor(torch: Any, part: Any) -> Any:
    """One array as a tensor of the same values."""
    native = np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("="))
    if native.dtype == np.uint16:
        return torch.tensor(native.view(np.int16)).view(torch.bfloat16)
    return torch.tensor(native)


def payload_groups(payloads: Iterable[Any], bits: int, dimension: int, most: int, device: str) -> Iterator[Any]:
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
