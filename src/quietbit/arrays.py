"""Nested arrays as one flat vector, and back; the only list of dtypes.

Idea     a nested dict, list or tuple is the concatenation of its arrays, dicts by sorted keys; it
         is walked once, and nothing is copied: kernels read the arrays in turn under one joint
         norm. The receiver says which structure to rebuild, and only shapes and types of that
         structure are kept: never its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

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
CHUNK = 1 << 20
# What torch, Keras and flax call what a normalisation layer notes of the data. With noise on it a
# variance becomes negative, and the model NaN, in a run that otherwise looks well.
STATISTICS = {
    "running_mean",
    "running_var",
    "num_batches_tracked",
    "moving_mean",
    "moving_variance",
    "moving_var",
}
COLLECTION = "batch_stats"
TENSOR_MODULES = (
    "torch",
    "torch._tensor",
)  # what torch.Tensor calls its module when torch is imported, and before
PARAMETERS = (
    "send model.named_parameters() alone, of quietbit.group_norm(model) where it has BatchNorm"
)


@final
@frozen
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
@frozen
class Structure:
    """The shape of an update: what the receiver rebuilds."""

    skeleton: Any
    parts: tuple[Leaf, ...]
    size: int = field(init=False, eq=False)  # entries of all arrays together

    @size.default
    def _size(self) -> int:
        return sum(leaf.size for leaf in self.parts)

    @classmethod
    def of(cls, tree: Any) -> Structure:
        """Look at an update, or at anything with the same shapes, such as the model's parameters."""
        found: list[tuple[str, Any]] = []
        _collect(tree, "update", 0, found)
        check_parameters((path, dtype_name(leaf)) for path, leaf in found)
        leaves = {path: _described(leaf, path) for path, leaf in found}
        return cls(_mapped(tree, lambda path: leaves[path], "update"), tuple(leaves.values()))

    @classmethod
    def flat(cls, dimension: int) -> Structure:
        """Describe one float64 vector."""
        leaf = Leaf("update", (dimension,), "float64", "numpy")
        return cls(leaf, (leaf,))

    def compare(self, found: list[tuple[str, Any]]) -> None:
        """Refuse arrays that are elsewhere or of another shape; types may differ."""
        for (path, leaf), part in zip(found, self.parts, strict=False):
            require(path == part.path, "next array of the update", path, part.path)
            require(
                tuple(leaf.shape) == part.shape,
                f"shape of {path}",
                tuple(leaf.shape),
                f"{part.shape}",
            )
        require(
            len(found) == len(self.parts),
            "number of arrays in the update",
            len(found),
            f"{len(self.parts)}",
        )


def flatten(tree: Any, like: Structure | None = None) -> tuple[list[Any], bool]:
    """Return the arrays of an update in order, as kernels read them, and whether they are tensors on a GPU.

    On the host bfloat16 comes as the uint16 of its bits; an update that lies on a GPU whole stays
    there. Refused with their places: running statistics, integers, sparse tensors, masked arrays,
    whatever is not an array; and another structure than ``like``.
    """
    found: list[tuple[str, Any]] = []
    _collect(tree, "update", 0, found)
    if like is not None:
        like.compare(found)
    kinds = [leaf.dtype.name if type(leaf) is np.ndarray else dtype_name(leaf) for _, leaf in found]
    if like is None or not set(kinds) <= {
        *FLOATS
    }:  # names of a known structure have been looked at
        check_parameters((path, kind) for (path, _), kind in zip(found, kinds, strict=True))
    if found and all(
        not isinstance(leaf, np.ndarray) and is_tensor(leaf) and leaf.is_cuda for _, leaf in found
    ):
        for path, leaf in found:
            _check_tensor(leaf, path)
        return [leaf.detach() for _, leaf in found], True
    if len(found) == 1 and found[0][1] is tree and not tree.shape:
        raise InvalidParameter("update must be at least 1-D, got a 0-D array.")
    return [
        leaf if type(leaf) is np.ndarray and kind in NUMPY_FLOATS else as_array(leaf, path)
        for (path, leaf), kind in zip(found, kinds, strict=True)
    ], False


def restore(structure: Structure, read: Callable[[int, int], FloatVector]) -> Any:
    """Return the structure filled with values, in its own types, a chunk at a time."""
    filled, start = {}, 0
    for leaf in structure.parts:
        filled[leaf.path] = _filled(leaf, read, start)
        start += leaf.size
    return _mapped(structure.skeleton, filled.__getitem__, "update")


def check_parameters(arrays: Iterable[tuple[str, str]], remedy: str = PARAMETERS) -> None:
    """Refuse, all in one sentence, the arrays of these names and dtypes that are not trainable parameters.

    Running statistics are known by their names, counters and masks by their types.

    >>> check_parameters([("weight", "float32"), ("running_var", "float32"), ("i", "int64")], "drop")
    Traceback (most recent call last):
    quietbit.errors.InvalidParameter: 2 arrays are not trainable parameters: running_var (a statistic), i (int64); drop.
    """
    found = []
    for name, kind in arrays:
        words = re.findall(r"\w+", name)
        if COLLECTION in words or (words and words[-1] in STATISTICS):
            found.append(f"{name} (a statistic)")
        elif kind not in FLOATS:
            found.append(f"{name} ({kind})")
    if found:
        many = "1 array is not a trainable parameter"
        many = many if len(found) == 1 else f"{len(found)} arrays are not trainable parameters"
        raise InvalidParameter(f"{many}: {', '.join(found)}; {remedy}.")


def is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor, by the names of its classes alone.

    The module is never looked at: another thread may be importing it, and then has only half of it.
    """
    return any(
        base.__name__ == "Tensor" and base.__module__ in TENSOR_MODULES
        for base in type(value).__mro__
    )


def dtype_name(leaf: Any) -> str:
    """Return the name of an array's or a tensor's dtype, whatever the byte order."""
    kind = leaf.dtype
    return kind.name if isinstance(kind, np.dtype) else str(kind).removeprefix("torch.")


def as_array(leaf: Any, path: str = "update") -> NDArray[Any]:
    """Return an array or tensor as kernels on the host read it: in place where possible, bfloat16 as uint16."""
    if not isinstance(leaf, np.ndarray) and is_tensor(leaf):
        torch = _check_tensor(leaf, path)
        here = leaf.detach().resolve_neg().cpu()
        short = here.dtype is torch.bfloat16
        array: NDArray[Any] = (
            here.view(torch.int16).numpy().view(np.uint16) if short else here.numpy()
        )
        return array
    if isinstance(leaf, np.ma.MaskedArray):
        raise InvalidParameter.of(path, "an array without a mask", "a masked array")
    array = np.asarray(leaf)
    if array.dtype.name in NUMPY_FLOATS:
        return array
    require(array.dtype.name == "bfloat16", f"type of {path}", str(array.dtype), RULE)
    return array.view(np.uint16)


def _check_tensor(tensor: Any, path: str) -> Any:
    torch: Any = require_module("torch", "torch")
    require(dtype_name(tensor) in FLOATS, f"type of {path}", str(tensor.dtype), RULE)
    require(
        tensor.layout is torch.strided, f"layout of {path}", str(tensor.layout), "strided (dense)"
    )
    return torch


def _collect(node: Any, path: str, depth: int, found: list[tuple[str, Any]]) -> None:
    """Add the arrays below a node with their paths, dicts by sorted keys."""
    if hasattr(node, "shape") and hasattr(node, "dtype"):
        found.append((path, node))
        return
    require(depth <= MAX_DEPTH, "depth of the update", depth, f"at most {MAX_DEPTH}")
    if isinstance(node, Mapping):
        kinds = {type(key) for key in node}
        require(
            kinds <= {str} or kinds <= {int},
            f"keys of {path}",
            [*node][:4],
            "all words or all whole numbers",
        )
        for key in sorted(node):
            _collect(node[key], f"{path}[{key!r}]", depth + 1, found)
    elif isinstance(node, list | tuple):
        for index, part in enumerate(node):
            _collect(part, f"{path}[{index}]", depth + 1, found)
    else:
        raise InvalidParameter(
            f"{path} must be an array, or a dict, list or tuple of arrays, got a {type(node).__name__}."
        )


def _mapped(node: Any, leaf_of: Callable[[str], Any], path: str) -> Any:
    """Return the same containers with other leaves; dicts keep their own order."""
    if isinstance(node, Mapping):
        return {key: _mapped(part, leaf_of, f"{path}[{key!r}]") for key, part in node.items()}
    if isinstance(node, list | tuple):
        parts = [_mapped(part, leaf_of, f"{path}[{i}]") for i, part in enumerate(node)]
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            return type(node)(*parts)
        return parts if isinstance(node, list) else tuple(parts)
    return leaf_of(path)


def _described(leaf: Any, path: str) -> Leaf:
    as_array(leaf, path)  # refuses what cannot be read
    place = ("torch", str(leaf.device)) if is_tensor(leaf) else ("numpy",)
    return Leaf(path, tuple(leaf.shape), dtype_name(leaf), *place)


def _filled(leaf: Leaf, read: Callable[[int, int], FloatVector], start: int) -> Any:
    own = leaf.library == "numpy"
    library: Any = np if own else require_module("torch", "torch")
    whole = library.empty(
        leaf.size, dtype=getattr(library, leaf.kind, leaf.kind)
    )  # ml_dtypes knows bfloat16 by name
    with np.errstate(over="ignore"):
        for low in range(0, leaf.size, CHUNK):
            high = min(leaf.size, low + CHUNK)
            values = read(start + low, start + high)
            whole[low:high] = values if own else library.from_numpy(values)
            fits = bool(library.isfinite(whole[low:high]).all())
            require(
                fits,
                f"type of {leaf.path} in `like`",
                leaf.kind,
                "one that holds the mean, such as float32",
            )
    return whole.reshape(leaf.shape) if own else whole.reshape(leaf.shape).to(leaf.device)
