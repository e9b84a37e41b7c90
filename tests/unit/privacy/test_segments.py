import numpy as np
import pytest

from exact.privacy_kit import law, rough, summing_to_one
from quietbit.design.spec import DesignSpec
from quietbit.design.table import Design
from quietbit.privacy.segments import Segments, log_softmax


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-2.0, 3.0), (0.1, 0.4), (0.26, 0.3), (1.2, 1.9), (-3.0, -1.0)])
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
    base = rough(4, 1, 3.0, 0)
    table = np.concatenate((base.probabilities / 4, base.probabilities * 0.75), axis=1)
    design = Design(DesignSpec(4, 2, 5.0), summing_to_one(table), np.arange(4.0))
    wide, merged = Segments.over(design, 0.0, 1.0, merge=False), Segments.over(design, 0.0, 1.0)
    assert wide.slope.shape == (3, 4)
    assert merged.slope.shape[1] <= 4
    exact = Design(
        DesignSpec(2, 2, 5.0),
        np.array([[0.25, 0.25, 0.125, 0.375], [0.125, 0.125, 0.25, 0.5]]),
        np.arange(4.0),
    )
    assert Segments.over(exact, 0.0, 1.0).slope.shape == (1, 3)


def test_an_odd_grid_has_its_centre_at_one_half():
    for levels in (3, 99, 4095):
        segments = Segments.over(rough(levels, 1, 2.0, 0), 0.5, 1.0)
        assert segments.left[0] == 0.5
        assert len(segments.left) == (levels - 1) // 2
