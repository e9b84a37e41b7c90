"""A model's named arrays as one vector, and back: the server's order, at both ends.

Idea     the arrays that are learnt, in the order in which the server sent them, are one vector. The
         update is ``received - trained``, in double precision, as a gradient points: the server
         *subtracts* its mean. Arrays that are kept (`quietbit.local-arrays`) are never read on the
         client, and the server's stay as they are.

Refused, all by name: arrays that are not trainable parameters and are not kept (running statistics,
counters, masks); a reply with other names or shapes; a model without a learnt entry. No value is
ever put into a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import Any, final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.arrays import NUMPY_FLOATS, check_parameters, dtype_name, is_tensor
from quietbit.errors import InvalidParameter, require

__all__ = ["ModelLayout", "NamedArray", "NotFinite", "named_arrays"]

STYPE = "numpy.ndarray"
REMEDY = (
    "replace BatchNorm by GroupNorm in the model of server and nodes (quietbit.group_norm), or "
    "list the arrays that no node sends in quietbit.local-arrays, for example "
    '"*.running_*, *.num_batches_tracked"'
)


class NotFinite(InvalidParameter):
    """A model with a NaN or an infinity in it."""


@final
@frozen
class NamedArray:
    """An array or tensor as layouts read it; of anything else, the dtype is the class's name."""

    value: Any
    dtype: str
    shape: tuple[int, ...]
    stype: str = STYPE

    def numpy(self) -> Any:
        """Return the entries as a numpy array."""
        if is_tensor(self.value):
            return self.value.detach().cpu().numpy()
        return np.asarray(self.value)


def named_arrays(weights: Any) -> dict[str, NamedArray]:
    """Return the arrays of a model by name; refuse what is not a mapping of names."""
    require(isinstance(weights, Mapping), "weights", type(weights).__name__, "a dict of arrays")
    arrays = {}
    for name, value in weights.items():
        require(isinstance(name, str), "name of an array", type(name).__name__, "text")
        if isinstance(value, np.ndarray) or is_tensor(value):
            arrays[name] = NamedArray(value, dtype_name(value), tuple(value.shape))
        else:
            arrays[name] = NamedArray(value, type(value).__name__, ())
    return arrays


@final
@frozen
class ModelLayout:
    """The learnt arrays of a model, in order: names, shapes, types; and the names that are kept."""

    learnt: tuple[tuple[str, tuple[int, ...], str], ...]
    kept: tuple[str, ...]

    @classmethod
    def of(cls, arrays: Mapping[str, Any], local_arrays: str = "") -> ModelLayout:
        """Return the layout of a model; only descriptions are read, and the same ones once.

        ``local_arrays`` are patterns of names, with commas between them, that are never sent.
        """
        described = []
        for name, array in arrays.items():
            described.append((name, tuple(array.shape), array.dtype, array.stype))
        return _layout(tuple(described), local_arrays)

    def nameless(self, arrays: Mapping[str, Any]) -> bool:
        """Whether arrays have numbers for names, and a counter is among them."""
        kinds = [str(arrays[name].dtype) for name in self.kept]
        has_counters = any(kind.startswith(("int", "uint")) for kind in kinds)
        return has_counters and all(name.isdigit() for name in arrays)

    @cached_property
    def dimension(self) -> int:
        """Entries of all learnt arrays together."""
        return sum(_size(shape) for _, shape, _ in self.learnt)

    @property
    def single(self) -> bool:
        """Whether everything that is learnt is float32."""
        return all(kind == "float32" for _, _, kind in self.learnt)

    def flat(self, arrays: Mapping[str, Any]) -> NDArray[np.float32]:
        """Return a model as one vector; refuse one that is not float32."""
        for name, _, kind in self.learnt:
            require(
                kind == "float32",
                f"type of array {name!r}",
                kind,
                "float32, to be replayed",
                "convert the model, or leave quietbit.replay out",
            )
        parts = [_flat(arrays[name], name, shape, np.float32) for name, shape, _ in self.learnt]
        return np.concatenate(parts)

    def shaped(self, flat: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the learnt arrays of one vector; they are views of it."""
        stops = np.cumsum([_size(shape) for _, shape, _ in self.learnt])[:-1]
        pieces = zip(self.learnt, np.split(flat, stops), strict=True)
        return {name: piece.reshape(shape) for (name, shape, _), piece in pieces}

    def values(self, arrays: Mapping[str, Any]) -> list[FloatVector]:
        """Return every learnt array in double precision; refuse a NaN or an infinity among them."""
        values = {name: _flat(arrays[name], name, shape) for name, shape, _ in self.learnt}
        not_finite = [name for name, part in values.items() if not np.isfinite(part).all()]
        if not_finite:
            raise NotFinite(
                f"The model has a NaN or infinite entry in {', '.join(not_finite)}: lower the "
                "learning rate, or start from a finite model."
            )
        return list(values.values())

    def check_finite(self, arrays: Mapping[str, Any]) -> None:
        """Refuse a model with a NaN or an infinity among what is learnt; name all such arrays."""
        self.values(arrays)

    def difference(
        self, received: list[FloatVector], trained: Mapping[str, Any]
    ) -> list[FloatVector]:
        """Return ``received - trained`` of every learnt array; refuse other names and shapes."""
        names = {name for name, _, _ in self.learnt} | set(self.kept)
        if set(trained) != names:
            odd = sorted(set(trained) ^ names)[0]
            raise InvalidParameter(
                "The trained arrays must have the names of the received ones: "
                f"{odd!r} is among only one of the two."
            )
        parts = zip(received, self.learnt, strict=True)
        with np.errstate(all="ignore"):  # what overflows is not finite, which `send` deals with
            return [old - _flat(trained[name], name, shape) for old, (name, shape, _) in parts]

    def stepped(self, arrays: Mapping[str, Any], mean: FloatVector) -> dict[str, Any]:
        """Return the learnt arrays less the mean, in their own dtypes."""
        pieces = self.shaped(mean)
        stepped = {}
        with np.errstate(over="ignore"):  # beyond a type's range is infinite: see `check_finite`
            for name, shape, kind in self.learnt:
                old = _flat(arrays[name], name, shape).reshape(shape)
                stepped[name] = np.asarray(old - pieces[name], dtype=kind)  # one number, too
        return stepped


@lru_cache(maxsize=64)
def _layout(
    described: tuple[tuple[str, tuple[int, ...], str, str], ...], local_arrays: str
) -> ModelLayout:
    patterns = [pattern.strip() for pattern in local_arrays.split(",") if pattern.strip()]
    kept = []
    for name, *_ in described:
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            kept.append(name)
    learnt = [entry for entry in described if entry[0] not in kept]
    check_parameters(((name, kind) for name, _, kind, _ in learnt), REMEDY)
    for name, _, kind, stored in learnt:
        is_known = kind in NUMPY_FLOATS and stored == STYPE
        require(is_known, f"type of array {name!r}", f"{kind} ({stored})", ", ".join(NUMPY_FLOATS))
    layout = ModelLayout(tuple((name, shape, kind) for name, shape, kind, _ in learnt), tuple(kept))
    require(layout.dimension > 0, "number of trainable parameters", layout.dimension, "at least 1")
    return layout


def _flat(
    array: Any, name: str, shape: tuple[int, ...], kind: type[np.floating] = np.float64
) -> NDArray[Any]:
    try:
        values: NDArray[Any] = array.numpy()
    except Exception as error:  # whatever numpy makes of bytes that are not an array
        raise InvalidParameter(
            f"array {name!r} must be readable, got {type(error).__name__}."
        ) from error
    if values.shape != shape or values.dtype.name not in NUMPY_FLOATS:
        rule = f"floats of shape {shape}"
        raise InvalidParameter.of(f"array {name!r}", rule, f"{values.dtype} {values.shape}")
    return np.asarray(values, dtype=kind).reshape(-1)


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))
