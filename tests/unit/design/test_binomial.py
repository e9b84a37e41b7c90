from __future__ import annotations

import math

import numpy as np
import pytest

from quietbit.design.binomial import binomial_design, binomial_deviation_upper, is_evenly_spaced
from quietbit.design.certify import certify
from quietbit.design.solve import solve
from quietbit.design.spec import DesignSpec
from quietbit.errors import InvalidParameter
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_is_a_certified_unbiased_evenly_spaced_design(bits: int, epsilon: float) -> None:
    design = binomial_design(bits, epsilon)
    measured = certify(design)
    assert measured.meets_spec
    assert measured.bias_upper < 1e-9
    assert is_evenly_spaced(design)


def test_one_bit_is_the_closed_form() -> None:
    ours, theirs = binomial_design(1, 1.0), solve(DesignSpec(2, 1, 1.0), cache=False)
    np.testing.assert_allclose(ours.probabilities, theirs.probabilities, rtol=1e-15)
    np.testing.assert_allclose(ours.alphabet, theirs.alphabet, rtol=1e-15)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_interpolation_is_binomial_at_every_input(bits: int) -> None:
    """Also outside [0, 1], where the end segments continue; and the deviation bound covers what is found."""
    design, count = binomial_design(bits, 2.0), 2**bits - 1
    mechanism = InterpolatedMVU(design, Ball(Norm.L2, 1.0, 4), beta=2.0)
    worst = 0.0
    for u in np.linspace(-1, 1, 9):
        p = 1 / (1 + math.exp(-2.0 / count * 2.0 * u))
        exact = np.array([math.comb(count, j) * p**j * (1 - p) ** (count - j) for j in range(count + 1)])
        worst = max(worst, float(np.abs(np.log(mechanism.distribution(u) / exact)).max()))
    assert worst <= binomial_deviation_upper(design, -0.5, 1.5) < 1e-11


def test_other_designs_are_told_apart() -> None:
    solved = solve(DesignSpec(8, 3, 5.0))
    assert not is_evenly_spaced(solved)
    assert binomial_deviation_upper(solved, 0.0, 1.0) == math.inf
    repeated = solve(DesignSpec(2, 2, 1.0), cache=False)  # two values, each twice
    assert not is_evenly_spaced(repeated)
    assert binomial_deviation_upper(repeated, 0.0, 1.0) > 0.1
    with pytest.raises(InvalidParameter, match="output_bits"):
        binomial_design(5, 1.0)
