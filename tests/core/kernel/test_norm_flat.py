"""An update as one flat vector."""

from __future__ import annotations

import numpy as np
import pytest

from quietbit.errors import InvalidParameter
from quietbit.kernel.norm import Flat, widen


def test_contiguous_pieces_are_views() -> None:
    for kind in (np.float32, np.float64):
        array = np.arange(24, dtype=kind).reshape(4, 6)
        piece = Flat.of(array).piece(5, 20)
        assert np.shares_memory(piece, array)
        np.testing.assert_array_equal(piece, np.arange(5, 20))


def test_pieces_of_anything_are_the_flat_vector() -> None:
    parts = [
        np.arange(6.0).reshape(2, 3).T,
        np.empty((0, 4)),
        np.float32(7.5),
        np.arange(5, dtype=np.float16)[::-1],
    ]
    flat = Flat.of(parts)
    whole = np.concatenate([np.asarray(part, np.float64).reshape(-1) for part in parts])
    assert flat.size == whole.size
    for start in range(flat.size + 1):
        for stop in range(start, flat.size + 1):
            np.testing.assert_array_equal(flat.piece(start, stop), whole[start:stop])


def test_half_precisions_are_widened_exactly() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    np.testing.assert_array_equal(widen(halves).astype(np.float64), halves.astype(np.float64))
    assert widen(np.array([0x3FC0, 0xC000, 0x0001], np.uint16)).tolist() == [1.5, -2.0, 2.0**-133]


@pytest.mark.parametrize(
    "kind", [np.int8, np.uint8, np.int64, np.bool_, np.complex128, np.longdouble, object]
)
def test_other_types_are_refused(kind: type) -> None:
    with pytest.raises(InvalidParameter, match=r"of (the )?update must be"):
        Flat.of(np.zeros(3, dtype=kind))


def test_tensors_are_read_where_they_are() -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([1.5, -2.0, 0.25, 7.0], requires_grad=True)
    flat = Flat.of(values)
    np.testing.assert_array_equal(flat.piece(0, 4), [1.5, -2.0, 0.25, 7.0])
    with torch.no_grad():
        values[0] = 3.0
    assert flat.piece(0, 1)[0] == 3.0  # no copy was made
    half = Flat.of([values.bfloat16(), values.half().reshape(2, 2).T])
    np.testing.assert_array_equal(half.piece(0, 8), [3.0, -2.0, 0.25, 7.0, 3.0, 0.25, -2.0, 7.0])
    assert Flat.of(values.reshape(2, 2)).shape == (2, 2)
    for bad in (
        torch.ones(3, dtype=torch.int32),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3).to_sparse(),
    ):
        with pytest.raises(InvalidParameter, match=r"of (the )?update must be"):
            Flat.of(bad)
