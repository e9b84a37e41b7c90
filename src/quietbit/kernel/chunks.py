"""An update as one flat vector, never copied whole.

Idea     kernels process chunks; a chunk inside one contiguous float32 or float64 array is a view of it, any other
         (half precision, strided arrays, chunks that span several small arrays) is copied, one chunk at a time.
Symbols  bfloat16 comes as a tensor, or as uint16 bit patterns, the upper half of a float32's.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit.arrays import NUMPY_FLOATS, as_array, is_tensor
from quietbit.errors import InvalidParameter

__all__ = ["Flat", "widen"]

ACCEPTED = {*NUMPY_FLOATS, "uint16"}
RULE = "float16, float32, float64, or uint16 for the bits of bfloat16"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """Consecutive arrays as one vector: ``starts[i]`` is the flat position where ``parts[i]`` begins."""

    parts: tuple[NDArray[Any], ...]
    starts: tuple[int, ...]
    size: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, update: Any) -> Flat:
        """Wrap an array, or a list or tuple of arrays, without a copy."""
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
            if part.dtype.name not in ACCEPTED:
                raise InvalidParameter.of("type of the update", RULE, str(part.dtype))
            starts.append(size)
            size += part.size
        return cls(parts, tuple(starts), size, (size,) if several else parts[0].shape)

    def copied(self) -> list[NDArray[Any]]:
        """Return private copies of the arrays."""
        return [np.array(part, copy=True) for part in self.parts]

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Return coordinates ``start .. stop - 1`` as contiguous float32 or float64, a view where possible."""
        if start >= stop:
            return np.empty(0, dtype=np.float32)
        index = bisect_right(self.starts, start) - 1
        found = []
        while start < stop:
            part, begin = self.parts[index], start - self.starts[index]
            end = min(part.size, stop - self.starts[index])
            if end > begin:
                flat = part.reshape(-1) if part.flags.c_contiguous else part.flat
                found.append(widen(flat[begin:end]))
                start += end - begin
            index += 1
        return found[0] if len(found) == 1 else np.concatenate(found)


def widen(values: NDArray[Any]) -> NDArray[Any]:
    """Return half precision as float32 and other types in this machine's byte order; always exact."""
    native = values.dtype.newbyteorder("=")
    if native == np.float16:
        return values.astype(np.float32)
    if native == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.ascontiguousarray(values, dtype=native)
