from __future__ import annotations

from itertools import pairwise

import mpmath
import numpy as np
import pytest

from quietbit.kernel.expand import normal_quantiser, proved_table
from refusals import refuses

# Max (1960), Table I: mean squared errors of 2 to 32 levels, to the digits given there.
DISTORTIONS = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497, 5: 0.002499}


def density(x):
    return mpmath.npdf(x)


def cell_moments(low, high):
    """Mass and first moment of N(0,1) between two thresholds, from the nearer tail."""
    root = mpmath.sqrt(2)
    return (mpmath.erfc(low / root) - mpmath.erfc(high / root)) / 2, density(low) - density(high)


@pytest.mark.parametrize("bits", range(1, 9))
def test_levels_are_the_means_of_their_cells(bits):
    """Max's conditions, with mpmath; the normal density is log-concave, so they have one
    solution (Fleischer 1964).
    """
    numbers = proved_table("levels.bin")[2 ** (bits - 1) - 1 : 2**bits - 1]
    with mpmath.workprec(150):
        levels = [mpmath.mpf(int(number)) / 2**32 for number in numbers]
        edges = [mpmath.mpf(0), *((a + b) / 2 for a, b in pairwise(levels)), mpmath.inf]
        for level, low, high in zip(levels, edges, edges[1:], strict=False):
            mass, moment = cell_moments(low, high)
            assert abs(moment / mass - level) < 2.0**-31
        moved = levels[0] + mpmath.mpf(2) ** -28
        mass, moment = cell_moments(edges[0], edges[1])
        assert abs(moment / mass - moved) > 2.0**-31


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_decoder_keeps_small_means_and_costs_what_it_says(bits):
    quantiser = normal_quantiser(bits)
    with mpmath.workprec(120):
        edges = [-mpmath.inf, *(mpmath.mpf(float(t)) for t in quantiser.thresholds), mpmath.inf]
        levels = [mpmath.mpf(float(level)) for level in quantiser.levels]

        def mean(shift, power):
            masses = [mpmath.ncdf(b - shift) - mpmath.ncdf(a - shift) for a, b in pairwise(edges)]
            return mpmath.fsum(
                level**power * mass for level, mass in zip(levels, masses, strict=True)
            )

        small = mpmath.mpf(2) ** -16
        assert abs(mean(small, 1) / small - 1) < 1e-9  # O(small^2)
        assert abs(mean(0, 1)) < 1e-15
        variance = mean(0, 2)
        assert abs(variance - 1 - quantiser.cost) < 1e-8
    if bits in DISTORTIONS:
        assert 1 - quantiser.gain == pytest.approx(DISTORTIONS[bits], rel=3e-3)
    assert quantiser.levels.size == 2**bits == quantiser.thresholds.size + 1
    np.testing.assert_array_equal(quantiser.levels, -quantiser.levels[::-1])


def test_codes_are_cells():
    quantiser = normal_quantiser(3)
    codes = quantiser.encode(np.array([-50.0, -1e-9, 0.0, 0.3, 50.0]))
    assert codes.tolist() == [0, 3, 4, 4, 7]
    assert quantiser.encode(quantiser.thresholds).tolist() == list(range(1, 8))
    np.testing.assert_array_equal(quantiser.encode(quantiser.levels), np.arange(8))
    with refuses("values"):
        quantiser.encode(np.array([np.nan]))
    with refuses("bits"):
        normal_quantiser(9)
