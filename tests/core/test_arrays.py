"""Updates of several arrays: read in place, in one order, and rebuilt in the receiver's shape."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest

from quietbit.arrays import Structure, flatten, restore
from quietbit.errors import InvalidParameter
from refusals import refuses

torch = pytest.importorskip("torch")


class Pair(NamedTuple):
    weight: Any
    bias: Any


def test_arrays_are_read_in_sorted_order_without_copying():
    first, second, third = np.zeros(2), np.ones((2, 3), np.float32), np.ones(1, np.float16)
    for tree in ({"b": [second, (third,)], "a": first}, {"a": first, "b": [second, (third,)]}):
        found = flatten(tree)[0]
        assert [part.shape for part in found] == [(2,), (2, 3), (1,)]
        assert all(map(np.shares_memory, found, (first, second, third)))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_torch_tensors_of_every_float_type_are_read_in_place(kind):
    tensor = torch.tensor([1.0, -2.5, 3e4], dtype=getattr(torch, kind), requires_grad=True)
    (part,) = flatten([tensor])[0]
    assert part.ctypes.data == tensor.data_ptr()
    if kind == "bfloat16":
        assert part.dtype == np.uint16
        part = (part.astype(np.uint32) << 16).view(np.float32)
    assert part.tolist() == tensor.tolist()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_transposed_tensors_are_read_in_their_own_order(kind):
    tensor = torch.arange(6).reshape(2, 3).T.to(kind)
    (part,) = flatten([tensor])[0]
    assert part.shape == (3, 2)
    assert part.tolist() == flatten(tensor.contiguous())[0][0].tolist()


def test_a_structure_is_rebuilt_with_its_own_types():
    like = OrderedDict(
        b=[np.zeros((2, 2), np.float32), torch.zeros(3, dtype=torch.bfloat16)],
        a=(np.zeros((), np.float64), Pair(torch.zeros(1, 2), np.zeros(0))),
    )
    values = np.arange(10.0)
    structure = Structure.of(like)
    assert structure.size == 10
    rebuilt = restore(structure, lambda start, stop: values[start:stop])
    assert list(rebuilt) == ["b", "a"]
    assert isinstance(rebuilt["a"], tuple)
    assert isinstance(rebuilt["a"][1], Pair)
    assert rebuilt["a"][0].shape == ()
    assert rebuilt["a"][0] == 0.0  # "a" comes first in the flat order
    assert rebuilt["a"][1].weight.tolist() == [[1.0, 2.0]]
    assert rebuilt["a"][1].weight.dtype == torch.float32
    assert rebuilt["a"][1].bias.size == 0
    assert rebuilt["b"][0].dtype == np.float32
    assert rebuilt["b"][0].tolist() == [[3.0, 4.0], [5.0, 6.0]]
    assert rebuilt["b"][1].dtype == torch.bfloat16
    assert rebuilt["b"][1].tolist() == [7.0, 8.0, 9.0]


def test_flattening_reverses_rebuilding():
    like = {"x": {"2": np.zeros(3), "10": np.zeros((2, 2))}, "w": [np.zeros(1), {0: np.zeros(3)}]}
    values = np.arange(11.0)
    rebuilt = restore(Structure.of(like), lambda start, stop: values[start:stop])
    assert np.array_equal(np.concatenate([part.ravel() for part in flatten(rebuilt)[0]]), values)


def test_the_structure_keeps_no_numbers():
    assert "123.456" not in repr(Structure.of({"a": np.full(3, 123.456)}))


ENDLESS = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ([np.zeros(2), 1.5], r"^update\[1\] "),
        ({"a": None}, r"^update\['a'\] "),
        ("word", "^update "),
        ({"a": np.zeros(1), 2: np.zeros(1)}, "^keys of update "),
        ([np.ma.masked_array(np.zeros(2), [True, False])], r"^update\[0\] "),
        ([torch.zeros(4).to_sparse()], r"^layout of update\[0\] "),
        (np.zeros(()), "^update "),
        (np.float32(1.0), "^update "),
        ({"a": np.zeros(3, np.int64)}, r"update\['a'\] \(int64\)"),
        (np.zeros(3, np.uint16), r"update \(uint16\)"),
        ([torch.zeros(2, dtype=torch.int32)], r"update\[0\] \(int32\)"),
        (np.zeros(3, np.complex128), r"update \(complex128\)"),
        (ENDLESS, "^depth of the update "),
    ],
)
def test_what_is_not_an_update_is_refused_with_its_path(tree, sentence):
    with pytest.raises(InvalidParameter, match=sentence):
        flatten(tree)


def test_no_structure_is_endless():
    with refuses("depth of the update"):
        Structure.of(ENDLESS)


@pytest.mark.parametrize(
    ("tree", "name", "value"),
    [
        ({"a": np.zeros((2, 2)), "c": np.zeros(1)}, "next array of the update", "update['c']"),
        ({"a": np.zeros(4), "b": np.zeros(1)}, "shape of update['a']", (4,)),
        ({"a": np.zeros((2, 2))}, "number of arrays in the update", 1),
    ],
)
def test_another_structure_is_refused(tree, name, value):
    structure = Structure.of({"a": np.zeros((2, 2)), "b": np.zeros(1)})
    flatten({"b": torch.zeros(1), "a": np.zeros((2, 2), np.float16)}, structure)
    with refuses(name, value):
        flatten(tree, structure)


@pytest.mark.parametrize("leaf", [np.zeros(2, np.float16), torch.zeros(2, dtype=torch.float16)])
def test_a_mean_too_large_for_its_type_is_refused(leaf):
    with refuses("type of update[0] in `like`", "float16"):
        restore(Structure.of([leaf]), lambda start, stop: np.full(stop - start, 1e6))


def test_numpy_bfloat16_is_read_and_rebuilt():
    kind = pytest.importorskip("ml_dtypes").bfloat16
    array = np.array([1.0, -2.5], dtype=kind)
    assert flatten(array)[0][0].dtype == np.uint16
    rebuilt = restore(Structure.of(array), lambda start, stop: np.array([3.0, 4.0])[start:stop])
    assert rebuilt.dtype == kind
