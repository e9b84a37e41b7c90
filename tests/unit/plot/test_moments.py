import numpy as np
import pytest

from quietbit import DesignSpec, solve
from quietbit.plot.moments import dithered_moments, interpolated_moments

X = np.linspace(0, 1, 21)


@pytest.fixture(scope="module")
def design():
    return solve(DesignSpec(8, 2, 3.0))


def test_dithering_has_no_bias_and_the_table_s_variance(design):
    moments = dithered_moments(design, design.spec.levels)
    table, alphabet = design.probabilities, design.alphabet
    assert np.abs(moments.mean - design.spec.levels).max() < 1e-9
    assert moments.variance == pytest.approx(table @ alphabet**2 - (table @ alphabet) ** 2)
    assert np.abs(dithered_moments(design, X).mean - X).max() < 1e-9


def test_both_mechanisms_agree_at_the_levels(design):
    levels = design.spec.levels
    interpolated, dithered = interpolated_moments(design, levels), dithered_moments(design, levels)
    assert interpolated.mean == pytest.approx(dithered.mean, abs=1e-12)
    assert interpolated.variance == pytest.approx(dithered.variance)


def test_one_bit_interpolation_is_a_logistic_curve():
    moments = interpolated_moments(solve(DesignSpec(2, 1, 1.0)), X)
    z = 0.5 / np.tanh(0.5)
    assert moments.mean == pytest.approx(0.5 + z * np.tanh((2 * X - 1) / 2))
