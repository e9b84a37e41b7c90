import math

import numpy as np
import pytest

from core.exact.privacy_kit import flat, rough
from quietbit.target import Adjacency
from quietbit_lab.baseline.dithered_cost import dithered_l1_cost, dithered_l2_cost, reference_row


def test_the_reference_is_the_centre_of_the_table():
    odd, even = rough(5, 2, 4.0, 0), rough(4, 2, 4.0, 0)
    assert np.array_equal(reference_row(odd), odd.probabilities[2])
    assert np.allclose(reference_row(even), (even.probabilities[1] + even.probabilities[2]) / 2)


@pytest.mark.parametrize("levels", [2, 5, 8])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_radius_enters_squared_for_l2_and_plainly_for_l1(levels, adjacency):
    design = rough(levels, 2, 4.0, 1)
    small, large = (
        dithered_l2_cost(design, 0.5, adjacency),
        dithered_l2_cost(design, 1.0, adjacency),
    )
    assert large.rdp(5.0) == pytest.approx(4 * small.rdp(5.0), rel=1e-12)
    pure = [dithered_l1_cost(design, radius, adjacency).pure_epsilon() for radius in (0.5, 1.0)]
    assert pure[1] == pytest.approx(2 * pure[0], rel=1e-12)
    assert math.isfinite((large * 100).epsilon(1e-5))


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_constant_table_costs_almost_nothing(adjacency):
    assert dithered_l1_cost(flat(3, 2), 1.0, adjacency).pure_epsilon() < 1e-12
    assert dithered_l2_cost(flat(3, 2), 1.0, adjacency).rdp(2.0) < 1e-11
