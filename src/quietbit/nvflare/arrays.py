"""NVFlare's weights, numpy arrays or torch tensors, as the named arrays that a layout reads, and differences back.

Idea     a layout asks an array for its type, its shape and its values and for nothing else. Tensors are read where they
         are; a difference goes back as the kind that the server's model has, so that adding it is what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from attrs import frozen

from quietbit._typing import FloatVector
from quietbit.arrays import is_tensor
from quietbit.engine.layout import STYPE, ModelLayout
from quietbit.errors import require, require_module

__all__ = ["NamedArray", "as_kind", "differences", "kind_of", "named"]

NUMPY, TORCH = "numpy", "torch"


@final
@frozen
class NamedArray:
    """One array or tensor as a layout wants to see it."""

    value: Any

    @property
    def stype(self) -> str:
        """What a layout calls an array."""
        return STYPE

    @property
    def dtype(self) -> str:
        """The name of the entries' type; that of the value's own where it is not an array at all."""
        if isinstance(self.value, np.ndarray):
            return str(self.value.dtype)
        return str(self.value.dtype).removeprefix("torch.") if is_tensor(self.value) else type(self.value).__name__

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its sides."""
        return tuple(getattr(self.value, "shape", ()))

    def numpy(self) -> Any:
        """Return the entries as a numpy array."""
        return self.value.detach().cpu().numpy() if is_tensor(self.value) else np.asarray(self.value)


def named(weights: Any) -> dict[str, NamedArray]:
    """Return the arrays of a model by name."""
    require(isinstance(weights, Mapping), "weights", type(weights).__name__, "a dict of arrays")
    for name in weights:
        require(isinstance(name, str), "name of an array", type(name).__name__, "text")
    return {name: NamedArray(value) for name, value in weights.items()}


def kind_of(weights: Mapping[str, Any]) -> str:
    """Return what a model's arrays are: torch's tensors, or numpy's arrays."""
    return TORCH if any(is_tensor(value) for value in weights.values()) else NUMPY


def as_kind(array: Any, kind: str) -> Any:
    """Return an array as the kind that the server's model has, in memory of its own."""
    return require_module("torch", "torch").from_numpy(np.array(array)) if kind == TORCH else np.array(array)


def differences(layout: ModelLayout, flat: FloatVector, kind: str) -> dict[str, Any]:
    """Return a vector as named arrays of the model's types and kind."""
    found: dict[str, Any] = {}
    start = 0
    for name, shape, dtype in layout.learnt:
        stop = start + int(np.prod(shape, dtype=np.int64))
        found[name], start = as_kind(flat[start:stop].astype(dtype).reshape(shape), kind), stop
    return found
