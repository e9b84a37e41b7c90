"""Updates made of several arrays: read as one vector where they stand, and put together again.

Idea     a nested dict, list or tuple is the concatenation of its arrays, dicts by sorted keys; nothing is
         copied, the kernels read the arrays in turn under one joint norm. The receiver says which structure
         to rebuild, and only shapes and types of that structure are kept: never its numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, check_parameters, require, require_module
from quietbit.mechanism.base import Reader

__all__ = ["Leaf", "Structure", "device_leaves", "leaves", "restore"]

FLOATS = {np.dtype(kind) for kind in (np.float16, np.float32, np.float64)}
RULE = "float16, bfloat16, float32 or float64"
MAX_DEPTH = 64
CHUNK = 1 << 20


@final
@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a structure: where it is, its shape, its type, and whose array it is."""

    path: str
    shape: tuple[int, ...]
    kind: str
    library: str
    device: str = "cpu"

    @property
    def size(self) -> int:
        """Entries of the array."""
        return int(np.prod(self.shape, dtype=np.int64))


@final
@dataclass(frozen=True, slots=True)
class Structure:
    """The shape of an update: what the receiver rebuilds."""

    skeleton: Any
    parts: tuple[Leaf, ...]

    @classmethod
    def of(cls, tree: Any) -> Structure:
        """Look at an update, or at anything with the same shapes, such as the model's parameters."""
        _arrays(tree)
        skeleton = _mapped(tree, lambda path, leaf: _described(leaf, path), "update", 0)
        return cls(skeleton, tuple(leaf for _, leaf in _walk(skeleton, "update", 0)))

    @property
    def size(self) -> int:
        """Entries of all arrays together."""
        return sum(leaf.size for leaf in self.parts)

    def check(self, tree: Any) -> None:
        """Refuse an update whose arrays are elsewhere or of another shape; types may differ."""
        found = [(path, tuple(leaf.shape)) for path, leaf in _walk(tree, "update", 0)]
        wanted = [(leaf.path, leaf.shape) for leaf in self.parts]
        for (path, shape), (place, size) in zip(found, wanted, strict=False):
            require(path == place, "next array of the update", path, place)
            require(shape == size, f"shape of {path}", shape, f"{size}")
        require(len(found) == len(wanted), "number of arrays in the update", len(found), f"{len(wanted)}")


def leaves(tree: Any) -> list[NDArray[Any]]:
    """The arrays of an update in order, as kernels read them: bfloat16 as the uint16 of its bits.

    Refused with their places: running statistics, integers, sparse tensors, masked arrays, whatever is no array.
    """
    found = [_readable(leaf, path) for path, leaf in _arrays(tree)]
    alone = len(found) == 1 and _is_leaf(tree)
    require(not (alone and found[0].ndim == 0), "update", "an array without axes", "an array with an axis")
    return found


def device_leaves(tree: Any) -> list[Any] | None:
    """The tensors of an update that lies on a GPU whole, where they are; None for any other."""
    found = _arrays(tree)
    if not found or not all(_torch_tensor(leaf) and leaf.is_cuda for _, leaf in found):
        return None
    for path, leaf in found:
        _check_tensor(leaf, path)
    return [leaf.detach() for _, leaf in found]


def restore(structure: Structure, read: Reader) -> Any:
    """The structure filled with values, in its own types, a chunk at a time."""
    starts = np.cumsum([0, *(leaf.size for leaf in structure.parts)]).tolist()
    ranges = iter(pairwise(starts))
    places = {leaf.path: bounds for leaf, bounds in zip(structure.parts, ranges, strict=True)}
    return _mapped(structure.skeleton, lambda path, leaf: _filled(leaf, read, *places[path]), "update", 0)


def _filled(leaf: Leaf, read: Reader, start: int, stop: int) -> Any:
    chunks = [(s, min(stop, s + CHUNK)) for s in range(start, stop, CHUNK)]
    if leaf.library == "torch":
        torch = require_module("torch", "torch")
        tensor = torch.empty(stop - start, dtype=getattr(torch, leaf.kind))
        for s, e in chunks:
            tensor[s - start : e - start] = torch.from_numpy(read(s, e))
        _check_fits(bool(torch.isfinite(tensor).all()), leaf)
        return tensor.reshape(leaf.shape).to(leaf.device)
    array = np.empty(stop - start, dtype=leaf.kind)  # ml_dtypes knows bfloat16 by name
    with np.errstate(over="ignore"):
        for s, e in chunks:
            array[s - start : e - start] = read(s, e)
            _check_fits(bool(np.isfinite(array[s - start : e - start]).all()), leaf)
    return array.reshape(leaf.shape)


def _check_fits(fits: bool, leaf: Leaf) -> None:
    require(fits, f"type of {leaf.path} in `like`", leaf.kind, "one that holds the mean, such as float32")


def _arrays(tree: Any) -> list[tuple[str, Any]]:
    """The arrays of an update with their paths; those that are no parameters are refused together."""
    found = list(_walk(tree, "update", 0))
    check_parameters((path, _kind(leaf)) for path, leaf in found)
    return found


def _kind(leaf: Any) -> str:
    return str(getattr(leaf.dtype, "name", leaf.dtype)).removeprefix("torch.")


def _walk(node: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Leaves with their paths, dicts by sorted keys."""
    if _is_leaf(node):
        yield path, node
        return
    require(depth <= MAX_DEPTH, "depth of the update", depth, f"at most {MAX_DEPTH}")
    if isinstance(node, Mapping):
        for key in _sorted_keys(node, path):
            yield from _walk(node[key], f"{path}[{key!r}]", depth + 1)
    elif isinstance(node, list | tuple):
        for index, part in enumerate(node):
            yield from _walk(part, f"{path}[{index}]", depth + 1)
    else:
        raise InvalidParameter(
            f"{path} must be an array, or a dict, list or tuple of arrays, got a {type(node).__name__}."
        )


def _mapped(node: Any, function: Callable[[str, Any], Any], path: str, depth: int) -> Any:
    """The same containers with every leaf replaced; dicts keep their own order."""
    require(depth <= MAX_DEPTH, "depth of the update", depth, f"at most {MAX_DEPTH}")
    if isinstance(node, Mapping):
        _sorted_keys(node, path)
        return {key: _mapped(part, function, f"{path}[{key!r}]", depth + 1) for key, part in node.items()}
    if isinstance(node, list | tuple):
        parts = [_mapped(part, function, f"{path}[{i}]", depth + 1) for i, part in enumerate(node)]
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            return type(node)(*parts)
        return parts if isinstance(node, list) else tuple(parts)
    return function(path, node)


def _sorted_keys(node: Mapping[Any, Any], path: str) -> list[Any]:
    kinds = {type(key) for key in node}
    require(kinds <= {str} or kinds <= {int}, f"keys of {path}", [*node][:4], "all words or all whole numbers")
    return sorted(node)


def _torch_tensor(leaf: Any) -> bool:
    torch = sys.modules.get("torch")  # whoever made a tensor has imported it
    return torch is not None and isinstance(leaf, torch.Tensor)


def _is_leaf(node: Any) -> bool:
    return isinstance(node, Leaf) or (hasattr(node, "shape") and hasattr(node, "dtype"))


def _described(leaf: Any, path: str) -> Leaf:
    _readable(leaf, path)
    kind = str(leaf.dtype).removeprefix("torch.")
    if _torch_tensor(leaf):
        return Leaf(path, tuple(leaf.shape), kind, "torch", str(leaf.device))
    return Leaf(path, tuple(leaf.shape), np.dtype(leaf.dtype).newbyteorder("=").name, "numpy")


def _readable(leaf: Any, path: str) -> NDArray[Any]:
    if not _is_leaf(leaf):
        raise InvalidParameter(f"{path} must be an array, got a {type(leaf).__name__}.")
    if _torch_tensor(leaf):
        return _from_torch(leaf, path)
    require(not isinstance(leaf, np.ma.MaskedArray), path, "a masked array", "an array without a mask")
    array = np.asarray(leaf)
    if array.dtype in FLOATS or array.dtype.newbyteorder("=") in FLOATS:
        return array
    require(array.dtype.name == "bfloat16", f"type of {path}", str(array.dtype), RULE)
    return array.view(np.uint16)


def _check_tensor(tensor: Any, path: str) -> Any:
    torch: Any = require_module("torch", "torch")
    known = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    require(tensor.dtype in known, f"type of {path}", str(tensor.dtype), RULE)
    require(tensor.layout is torch.strided, f"layout of {path}", str(tensor.layout), "strided (dense)")
    return torch


def _from_torch(tensor: Any, path: str) -> NDArray[Any]:
    torch = _check_tensor(tensor, path)
    here = tensor.detach().resolve_neg().cpu()
    if here.dtype is torch.bfloat16:
        bits: NDArray[Any] = here.view(torch.int16).numpy().view(np.uint16)
        return bits
    array: NDArray[Any] = here.numpy()
    return array
