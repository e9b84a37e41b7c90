import numpy as np
import pytest

from core.exact.privacy_kit import flat, law, rough, summing_to_one
from quietbit.design.table import Design, DesignSpec
from quietbit.privacy.divergence import (
    Segments,
    lipschitz_upper,
    log_softmax,
    smallest_probability_lower,
    zero_out_constant_upper,
)
from quietbit_lab.baseline.lemma_1 import paper_constant_upper


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-2.0, 3.0), (0.1, 0.4), (0.26, 0.3), (1.2, 1.9), (-3.0, -1.0)]
)
def test_lines_are_the_interpolation(low, high):
    design = rough(5, 2, 6.0, 0)
    segments = Segments.over(design, low, high)
    assert segments.left[0] == low
    assert segments.right[-1] == high
    assert np.array_equal(segments.left[1:], segments.right[:-1])
    for x in np.linspace(low, high, 23):
        index = np.array([max(int(np.searchsorted(segments.left, x, side="right")) - 1, 0)])
        logs = log_softmax(segments.eta(index, np.array([x])))[0]
        assert np.allclose(np.exp(logs), [float(p) for p in law(design, x)], rtol=1e-11)


def test_symbols_of_equal_slopes_are_merged():
    rows = [[0.25, 0.25, 0.125, 0.375], [0.125, 0.125, 0.25, 0.5]]
    twins = Design(DesignSpec(2, 2, 5.0), summing_to_one(rows), np.arange(4.0))
    assert Segments.over(twins, 0.0, 1.0).slope.shape == (1, 3)
    assert Segments.over(twins, 0.0, 1.0, merge=False).slope.shape == (1, 4)


@pytest.mark.parametrize("levels", [3, 99, 4095])
def test_an_odd_grid_has_its_centre_at_one_half(levels):
    segments = Segments.over(rough(levels, 1, 2.0, 0), 0.5, 1.0)
    assert segments.left[0] == 0.5
    assert len(segments.left) == (levels - 1) // 2


def test_a_constant_table_reveals_nothing():
    assert lipschitz_upper(flat(4, 2)) <= 1e-12
    assert zero_out_constant_upper(flat(4, 2)) <= 1e-12
    assert smallest_probability_lower(flat(4, 2)) == pytest.approx(0.25)


@pytest.mark.parametrize("levels", [99, 2048])
def test_many_levels(levels):
    design = rough(levels, 2, 4.0, 1)
    zero_out, lipschitz = zero_out_constant_upper(design), lipschitz_upper(design)
    assert 0 < zero_out <= lipschitz <= paper_constant_upper(design)
