"""Arrays in the server's order: differences, steps, kept arrays, refusals."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Array

from quietbit import Plan
from quietbit.errors import InvalidParameter
from quietbit.federation.layout import ModelLayout, NotFinite
from refusals import refuses

GIVEN = {"clip": 1.0, "epsilon": 3.0, "adjacency": "zero-out", "releases": 1}
SETTINGS = Plan("imvu", **GIVEN, local_arrays="*.count")


def arrays(**values):
    return {name.replace("__", "."): Array(np.asarray(value)) for name, value in values.items()}


OLD = arrays(
    b=np.array([[1, 2], [3, 4]], dtype=np.float32),
    a=np.array(5.0),
    bn__count=np.array(7),
    half=np.array([1.5], dtype=np.float16),
)
LAYOUT = ModelLayout.of(OLD, SETTINGS.local_arrays)


def test_the_order_is_the_servers():
    assert [name for name, _, _ in LAYOUT.learnt] == ["b", "a", "half"]
    assert LAYOUT.kept == ("bn.count",)
    assert LAYOUT.dimension == 6


def test_the_difference_is_received_minus_trained_in_double_precision():
    new = arrays(
        half=np.array([1.0], dtype=np.float16),
        bn__count=np.array(9),
        a=np.array(4.0),
        b=np.array([[1, 2], [3, 3.5]], dtype=np.float32),
    )
    parts = LAYOUT.difference(LAYOUT.values(OLD), new)
    assert np.concatenate(parts).tolist() == [0, 0, 0, 0.5, 1.0, 0.5]
    assert {part.dtype for part in parts} == {np.dtype(np.float64)}
    small = arrays(x=np.array([1.0], dtype=np.float32)), arrays(x=np.array([1.0 - 2.0**-40]))
    layout = ModelLayout.of(small[0], SETTINGS.local_arrays)
    assert layout.difference(layout.values(small[0]), small[1])[0].tolist() == [2.0**-40]


def test_a_step_subtracts_the_mean_and_keeps_types():
    moved = LAYOUT.stepped(OLD, np.array([1, 0, 0, 0, 0.5, 0.25]))
    assert list(moved) == ["b", "a", "half"]
    assert moved["b"].tolist() == [[0, 2], [3, 4]]
    assert moved["a"].tolist() == 4.5
    assert moved["half"].dtype == np.float16


@pytest.mark.parametrize(
    ("trained", "says"),
    [
        (arrays(a=np.array(1.0)), "'b'"),
        (OLD | arrays(extra=np.array(1.0)), "'extra'"),
        (OLD | arrays(b=np.zeros(4, dtype=np.float32)), "array 'b' must be floats of shape"),
        (OLD | arrays(a=np.array(3)), "array 'a' must be floats"),
    ],
)
def test_another_shape_is_refused(trained, says):
    with pytest.raises(InvalidParameter, match=says):
        LAYOUT.difference(LAYOUT.values(OLD), trained)


def test_counters_are_refused_unless_they_are_kept():
    others = arrays(
        steps=np.array([1]), w=np.zeros(2), bn__running_var=np.ones(2), mask=np.array([True])
    )
    with pytest.raises(
        InvalidParameter, match=r"3 arrays are not trainable .*quietbit\.local-arrays"
    ) as refused:
        ModelLayout.of(others, SETTINGS.local_arrays)
    assert "steps (int64), bn.running_var (a statistic), mask (bool)" in str(refused.value)
    allowed = Plan("imvu", **GIVEN, local_arrays="*.running_*, steps, mask")
    assert ModelLayout.of(others, allowed.local_arrays).kept == ("steps", "bn.running_var", "mask")
    with refuses("number of trainable parameters", 0):
        ModelLayout.of(arrays(x__count=np.array([1])), SETTINGS.local_arrays)


@pytest.mark.parametrize("data", [b"", b"....", b"\x93NUMPY\x01\x00"])
def test_arrays_that_cannot_be_read_are_refused_without_their_bytes(data):
    layout = ModelLayout.of(arrays(x=np.array([1.0])), SETTINGS.local_arrays)
    with pytest.raises(InvalidParameter, match=r"array 'x' must be readable, got \w+\."):
        layout.values({"x": Array("float64", (1,), "numpy.ndarray", data)})
    with pytest.raises(InvalidParameter, match="type of array 'x'"):  # of another serialisation
        ModelLayout.of({"x": Array("float64", (1,), "pickle", data)}, SETTINGS.local_arrays)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_model_that_is_not_finite_is_refused_and_a_difference_may_be(value):
    """The first is the server's doing; the second may be the data's, and is dealt with where it
    is sent.
    """
    old = arrays(x=np.array([1.0]))
    layout = ModelLayout.of(old, SETTINGS.local_arrays)
    with pytest.raises(NotFinite, match="in x"):
        layout.values(arrays(x=np.array([value])))
    (found,) = layout.difference(layout.values(old), arrays(x=np.array([value])))
    assert not np.isfinite(found).any()
