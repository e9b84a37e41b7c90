"""An update as one flat vector."""

from __future__ import annotations

import numpy as np
import pytest

from quietbit.errors import InvalidParameter
from quietbit.kernel.norm import Flat


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
