import numpy as np
import pytest
import torch

import quietbit
from quietbit.mechanism.ball import Ball, Norm
from quietbit_lab.task.linear_sums import dithered, lengths


@pytest.mark.parametrize("norm", list(Norm))
def test_dithered_points_are_levels_beside_the_value_and_in_bounds(norm):
    table = quietbit.solve(quietbit.DesignSpec(9, 1, 2.0))
    mechanism = quietbit.DitheredMVU(table, Ball(norm, 0.5, 30))
    rng = np.random.default_rng(0)
    values = rng.standard_normal((50, 30))
    values *= 0.5 / np.linalg.norm(values, norm.order, axis=1, keepdims=True)
    rows = torch.tensor(values, dtype=torch.float32).reshape(50, 3, 10)
    generator = torch.Generator().manual_seed(1)
    bounds = dithered(mechanism, rows, generator)[0].reshape(50, 30).numpy()
    column = table.probabilities[:, 0].astype(np.float32)
    levels = np.abs(bounds[..., None] - column).argmin(axis=-1)
    np.testing.assert_allclose(column[levels], bounds, atol=1e-7)
    points = levels - 4
    assert np.all(np.abs(points - values * 8) < 1 + 1e-5)
    found = lengths(torch.tensor(points, dtype=torch.float32).reshape(50, 3, 10), norm)
    assert float(found.max()) <= (mechanism.reach * 8) ** norm.order * (1 + 1e-12)
