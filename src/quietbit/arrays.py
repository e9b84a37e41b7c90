"""Nested arrays as one flat vector, and back; the only list of dtypes.

Idea     a nested dict, list or tuple is the concatenation of its arrays, dicts by sorted keys. It
         is walked once and not copied: kernels read the arrays one after the other, under one joint
         norm. The receiver names the structure to rebuild; its shapes and types are stored, its
         numbers never.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, require, require_module

__all__ = [
    "FLOATS",
    "NUMPY_FLOATS",
    "Leaf",
    "Structure",
    "as_array",
    "check_parameters",
    "dtype_name",
    "flatten",
    "is_tensor",
    "restore",
]

NUMPY_FLOATS = ("float16", "float32", "float64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
RULE = "float16, bfloat16, float32 or float64"
MAX_DEPTH = 64
CHUNK = 1 << 16  # coordinates of a mean read at once: they stay in the cache, and so do their steps
# The names of running statistics of normalisation layers in torch, Keras and flax. Noise would make
# a variance negative, and the model NaN, in a run that otherwise looks normal.
STATISTICS = {
    "running_mean",
    "running_var",
    "num_batches_tracked",
    "moving_mean",
    "moving_variance",
    "moving_var",
}
COLLECTION = "batch_stats"
# The module that torch.Tensor states once torch is imported, and while it is being imported.
TENSOR_MODULES = ("torch", "torch._tensor")
PARAMETERS = (
    "send model.named_parameters() alone, of quietbit.group_norm(model) where it has BatchNorm"
)
Leaves: TypeAlias = list[tuple[str, Any]]  # arrays with their paths
Reader: TypeAlias = Callable[[int, int], FloatVector]  # values from a coordinate up to another


@final
@frozen
class Leaf:
    """One array of a structure: its path, shape, dtype, library (numpy or torch) and device."""

    path: str
    shape: tuple[int, ...]
    kind: str
    library: str
    device: str = "cpu"

    @property
    def size(self) -> int:
        """The number of entries of the array."""
        return int(np.prod(self.shape, dtype=np.int64))


@final
@frozen
class Structure:
    """The containers, shapes and types of an update, from which the receiver rebuilds it."""

    skeleton: Any
    parts: tuple[Leaf, ...]
    size: int = field(init=False, eq=False)  # the number of entries of all arrays together

    @size.default
    def _size(self) -> int:
        return sum(leaf.size for leaf in self.parts)

    @classmethod
    def of(cls, tree: Any) -> Structure:
        """Return the structure of an update, or of arrays with the same shapes."""
        arrays = _collected(tree)
        check_parameters((path, dtype_name(array)) for path, array in arrays)
        leaves = {path: _described(array, path) for path, array in arrays}
        skeleton = _mapped(tree, leaves.__getitem__, "update")
        return cls(skeleton, tuple(leaves.values()))

    @classmethod
    def flat(cls, dimension: int) -> Structure:
        """Return the structure of one float64 vector."""
        leaf = Leaf("update", (dimension,), "float64", "numpy")
        return cls(leaf, (leaf,))

    def compare(self, arrays: Leaves) -> None:
        """Refuse arrays whose paths or shapes differ from these; types may differ."""
        for (path, array), part in zip(arrays, self.parts, strict=False):
            require(path == part.path, "next array of the update", path, part.path)
            shape = tuple(array.shape)
            require(shape == part.shape, f"shape of {path}", shape, f"{part.shape}")
        count = len(arrays)
        expected = len(self.parts)
        require(count == expected, "number of arrays in the update", count, f"{expected}")


def flatten(tree: Any, like: Structure | None = None) -> tuple[list[Any], bool]:
    """Return the arrays of an update in order, and whether they are tensors on a GPU.

    On the host bfloat16 comes as the uint16 of its bits. An update whose arrays are all on a GPU
    stays there. Refused with their paths: running statistics, integers, sparse tensors, masked
    arrays, anything that is not an array; also a structure that differs from ``like``.
    """
    arrays = _collected(tree)
    if like is not None:
        like.compare(arrays)
    kinds = [dtype_name(array) for _, array in arrays]
    # The names of a known structure have been checked when it was made.
    if like is None or not set(kinds) <= set(FLOATS):
        check_parameters((path, kind) for (path, _), kind in zip(arrays, kinds, strict=True))
    if arrays and all(_is_on_gpu(array) for _, array in arrays):
        for path, tensor in arrays:
            _check_tensor(tensor, path)
        return [tensor.detach() for _, tensor in arrays], True
    if len(arrays) == 1 and arrays[0][1] is tree and not tree.shape:
        raise InvalidParameter.of("update", "at least 1-D", "a 0-D array")
    return [as_array(array, path) for path, array in arrays], False


def restore(structure: Structure, read: Reader) -> Any:
    """Return the structure filled with what ``read`` returns, in the structure's types."""
    filled = {}
    start = 0
    for leaf in structure.parts:
        filled[leaf.path] = _filled(leaf, read, start)
        start += leaf.size
    return _mapped(structure.skeleton, filled.__getitem__, "update")


def check_parameters(arrays: Iterable[tuple[str, str]], remedy: str = PARAMETERS) -> None:
    """Refuse arrays, given by name and dtype, that are not trainable parameters.

    Running statistics are recognised by their names, counters and masks by their types.

    >>> check_parameters([("weight", "float32"), ("i", "int64")], "drop it")
    Traceback (most recent call last):
    quietbit.errors.InvalidParameter: 1 array is not a trainable parameter: i (int64); drop it.
    """
    refused = []
    for name, kind in arrays:
        words = re.findall(r"\w+", name)
        if COLLECTION in words or (words and words[-1] in STATISTICS):
            refused.append(f"{name} (a statistic)")
        elif kind not in FLOATS:
            refused.append(f"{name} ({kind})")
    if not refused:
        return
    claim = "1 array is not a trainable parameter"
    if len(refused) > 1:
        claim = f"{len(refused)} arrays are not trainable parameters"
    raise InvalidParameter(f"{claim}: {', '.join(refused)}; {remedy}.")


def is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor, by the names of its classes alone.

    The torch module is not touched: another thread may have imported only half of it.
    """
    return any(
        base.__name__ == "Tensor" and base.__module__ in TENSOR_MODULES
        for base in type(value).__mro__
    )


def dtype_name(array: Any) -> str:
    """Return the name of an array's or a tensor's dtype, whatever the byte order."""
    kind = array.dtype
    if isinstance(kind, np.dtype):
        return kind.name
    return str(kind).removeprefix("torch.")


def as_array(value: Any, path: str = "update") -> NDArray[Any]:
    """Return an array or tensor as host kernels read it, bfloat16 as uint16; no needless copy."""
    if type(value) is np.ndarray and value.dtype.name in NUMPY_FLOATS:
        return value
    if not isinstance(value, np.ndarray) and is_tensor(value):
        torch = _check_tensor(value, path)
        tensor = value.detach().resolve_neg().cpu()
        if tensor.dtype is torch.bfloat16:
            bits: NDArray[Any] = tensor.view(torch.int16).numpy().view(np.uint16)
            return bits
        plain: NDArray[Any] = tensor.numpy()
        return plain
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidParameter.of(path, "an array without a mask", "a masked array")
    array = np.asarray(value)
    if array.dtype.name in NUMPY_FLOATS:
        return array
    require(array.dtype.name == "bfloat16", f"type of {path}", str(array.dtype), RULE)
    return array.view(np.uint16)


def _is_on_gpu(array: Any) -> bool:
    return not isinstance(array, np.ndarray) and is_tensor(array) and array.is_cuda


def _check_tensor(tensor: Any, path: str) -> Any:
    """Refuse a tensor that is not dense or not floating; return torch."""
    torch: Any = require_module("torch", "torch")
    require(dtype_name(tensor) in FLOATS, f"type of {path}", str(tensor.dtype), RULE)
    dense = tensor.layout is torch.strided
    require(dense, f"layout of {path}", str(tensor.layout), "strided (dense)")
    return torch


def _collected(tree: Any) -> Leaves:
    """Return the arrays of a tree with their paths, dicts by sorted keys."""
    arrays: Leaves = []
    _collect(tree, "update", 0, arrays)
    return arrays


def _collect(node: Any, path: str, depth: int, arrays: Leaves) -> None:
    """Append the arrays below a node with their paths."""
    if hasattr(node, "shape") and hasattr(node, "dtype"):
        arrays.append((path, node))
        return
    require(depth <= MAX_DEPTH, "depth of the update", depth, f"at most {MAX_DEPTH}")
    if isinstance(node, Mapping):
        kinds = {type(key) for key in node}
        alike = kinds <= {str} or kinds <= {int}
        require(alike, f"keys of {path}", [*node][:4], "all words or all whole numbers")
        for key in sorted(node):
            _collect(node[key], f"{path}[{key!r}]", depth + 1, arrays)
    elif isinstance(node, list | tuple):
        for index, part in enumerate(node):
            _collect(part, f"{path}[{index}]", depth + 1, arrays)
    else:
        rule = "an array, or a dict, list or tuple of arrays"
        raise InvalidParameter.of(path, rule, type(node).__name__)


def _mapped(node: Any, leaf_of: Callable[[str], Any], path: str) -> Any:
    """Return the same containers with ``leaf_of(path)`` as leaves; dicts keep their order."""
    if isinstance(node, Mapping):
        return {key: _mapped(part, leaf_of, f"{path}[{key!r}]") for key, part in node.items()}
    if isinstance(node, list | tuple):
        parts = [_mapped(part, leaf_of, f"{path}[{i}]") for i, part in enumerate(node)]
        if isinstance(node, list):
            return parts
        if hasattr(node, "_fields"):  # a named tuple
            return type(node)(*parts)
        return tuple(parts)
    return leaf_of(path)


def _described(array: Any, path: str) -> Leaf:
    as_array(array, path)  # refuses what cannot be read
    shape = tuple(array.shape)
    kind = dtype_name(array)
    if is_tensor(array):
        return Leaf(path, shape, kind, "torch", str(array.device))
    return Leaf(path, shape, kind, "numpy")


def _filled(leaf: Leaf, read: Reader, start: int) -> Any:
    """Return an array of a leaf's type and shape, with the values from coordinate ``start`` on."""
    is_numpy = leaf.library == "numpy"
    library: Any = np if is_numpy else require_module("torch", "torch")
    kind = getattr(library, leaf.kind, leaf.kind)  # ml_dtypes knows bfloat16 by name
    array = library.empty(leaf.size, dtype=kind)
    with np.errstate(over="ignore"):
        for low in range(0, leaf.size, CHUNK):
            high = min(leaf.size, low + CHUNK)
            values: Any = read(start + low, start + high)
            if not is_numpy:
                values = library.from_numpy(values)
            array[low:high] = values
            fits = bool(library.isfinite(array[low:high]).all())
            rule = "one that holds the mean, such as float32"
            require(fits, f"type of {leaf.path} in `like`", leaf.kind, rule)
    array = array.reshape(leaf.shape)
    return array if is_numpy else array.to(leaf.device)
