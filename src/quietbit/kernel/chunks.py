"""An update as one flat vector that is never copied whole.

Idea     kernels walk through chunks; a chunk inside one contiguous float32 or float64 array is a view of it,
         any other (half precisions, strided arrays, chunks that span several small arrays) is copied, one
         chunk at a time. Torch kernels leave tensors on their device.
Symbols  bfloat16 comes as a tensor, or as uint16 bit patterns, the upper half of a float32's.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit.arrays import NUMPY_FLOATS, as_array, is_tensor
from quietbit.errors import require, require_module

__all__ = ["Flat", "Tensors", "widen"]

ACCEPTED = {*NUMPY_FLOATS, "uint16"}
RULE = "float16, float32, float64, or uint16 for the bits of bfloat16"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """Arrays one after the other: ``starts[i]`` is the flat position where ``parts[i]`` begins."""

    parts: tuple[NDArray[Any], ...]
    starts: tuple[int, ...]
    size: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, update: Any) -> Flat:
        """Look at an array, or a list or tuple of arrays; nothing is copied."""
        if isinstance(update, Flat):
            return update
        several = isinstance(update, list | tuple) and all(hasattr(part, "__array__") for part in update)
        given = update if several else (update,)
        parts = tuple(
            part if type(part) is np.ndarray else as_array(part) if is_tensor(part) else np.asarray(part)
            for part in given
        )
        starts, size = [], 0
        for part in parts:
            require(part.dtype.name in ACCEPTED, "type of the update", str(part.dtype), RULE)
            starts.append(size)
            size += part.size
        return cls(parts, tuple(starts), size, (size,) if several else parts[0].shape)

    def copied(self) -> list[NDArray[Any]]:
        """The arrays again, where nobody else can write to them."""
        return [np.array(part, copy=True) for part in self.parts]

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Coordinates ``start .. stop - 1`` as contiguous float32 or float64, a view where possible."""
        if start >= stop:
            return np.empty(0, dtype=np.float32)
        index = bisect_right(self.starts, start) - 1
        found = []
        while start < stop:
            part, begin = self.parts[index], start - self.starts[index]
            end = min(part.size, stop - self.starts[index])
            if end > begin:
                found.append(widen(_slice(part, begin, end)))
                start += end - begin
            index += 1
        return found[0] if len(found) == 1 else np.concatenate(found)


def _slice(part: NDArray[Any], begin: int, end: int) -> NDArray[Any]:
    if part.flags.c_contiguous:
        return part.reshape(-1)[begin:end]
    copied: NDArray[Any] = part.flat[begin:end]
    return copied


def widen(values: NDArray[Any]) -> NDArray[Any]:
    """Half precisions as float32, the others as they are in this machine's byte order; always exact."""
    native = values.dtype.newbyteorder("=")
    if native == np.float16:
        return values.astype(np.float32)
    if native == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.ascontiguousarray(values, dtype=native)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """The same for torch: flat tensors on one device, one after the other.

    ``private`` says for each part whether it is a copy that nobody else can write to; ``of_torch`` whether the
    update came as tensors.
    """

    parts: tuple[Any, ...]
    starts: tuple[int, ...]
    size: int
    shape: tuple[int, ...]
    device: Any
    of_torch: bool
    private: tuple[bool, ...]

    @classmethod
    def of(cls, update: Any, device: str | None = None) -> Tensors:
        """Arrays or tensors, brought to ``device``, by default the tensors' own; arrays are copied."""
        if isinstance(update, Tensors):
            return update
        torch = require_module("torch", "torch")
        several = isinstance(update, list | tuple)
        items = list(update) if several else [update]
        of_torch = any(isinstance(item, torch.Tensor) for item in items)
        if of_torch:
            floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
            for item in items:
                fine = isinstance(item, torch.Tensor) and item.dtype in floats and item.layout == torch.strided
                require(fine, "type of the update", str(getattr(item, "dtype", type(item))), "dense floating tensors")
            where = torch.device(device) if device is not None else items[0].device
            same = device is not None or all(item.device == where for item in items)
            require(same, "device of the update", "several devices", "one device")
            shape = tuple(items[0].shape)
        else:
            flat = Flat.of(update)
            items, shape = [_tensor(torch, part) for part in flat.parts], flat.shape
            where = torch.device(device or "cpu")
        found = tuple(item.detach().to(where).contiguous().reshape(-1) for item in items)
        private = tuple(
            not of_torch or part.untyped_storage().data_ptr() != item.untyped_storage().data_ptr()
            for part, item in zip(found, items, strict=True)
        )
        sizes = [part.numel() for part in found]
        starts = tuple(sum(sizes[:i]) for i in range(len(sizes)))
        where = found[0].device if found else where  # with its number, which "cuda" alone lacks
        return cls(found, starts, sum(sizes), (sum(sizes),) if several else shape, where, of_torch, private)

    def piece(self, start: int, stop: int) -> Any:
        """Coordinates ``start .. stop - 1`` as float32 or float64."""
        torch = require_module("torch", "torch")
        found = []
        for base, part in zip(self.starts, self.parts, strict=True):
            chosen = part[max(0, start - base) : max(0, stop - base)]
            if chosen.numel():
                half = chosen.dtype in (torch.float16, torch.bfloat16)
                found.append(chosen.float() if half else chosen)
        if not found:
            return torch.empty(0, device=self.device)
        return torch.cat([item.double() for item in found]) if len(found) > 1 else found[0]

    def joined(self) -> Tensors:
        """All parts as one tensor whose first entry lies at a multiple of 16 bytes."""
        torch = require_module("torch", "torch")
        filled = [(part, private) for part, private in zip(self.parts, self.private, strict=True) if part.numel()]
        if len(filled) == 1:
            part, private = filled[0]
            if part.data_ptr() % 16:
                part, private = part.clone(), True
        else:
            same = len({part.dtype for part, _ in filled}) == 1
            part = torch.cat([part if same else part.double() for part, _ in filled])
            private = True
        return replace(self, parts=(part,), starts=(0,), private=(private,))

    def copied(self) -> Tensors:
        """The same values where nobody else can write to them."""
        parts = zip(self.parts, self.private, strict=True)
        return replace(
            self,
            parts=tuple(part if private else part.clone() for part, private in parts),
            private=(True,) * len(self.parts),
        )


def _tensor(torch: Any, part: NDArray[Any]) -> Any:
    """A copy of one array as a tensor of the same values."""
    native = np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("="))
    if native.dtype == np.uint16:
        return torch.tensor(native.view(np.int16)).view(torch.bfloat16)
    return torch.tensor(native)
