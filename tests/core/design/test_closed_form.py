from __future__ import annotations

import math

import numpy as np
import pytest

from quietbit.design.certify import certify
from quietbit.design.closed_form import (
    binomial_design,
    binomial_deviation_upper,
    closed_form,
    is_evenly_spaced,
)
from quietbit.design.solve import search, solve
from quietbit.design.table import DesignSpec
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from refusals import refuses


@pytest.mark.parametrize("epsilon", [0.01, 0.25, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("levels", [2, 3, 8, 100])
def test_one_bit_exact_is_the_published_formula(levels, epsilon):
    """mathematics.md section 1: z = 1/2 + h/(e^(eps h) - 1), P[i, 2] = 1/2 + (x_i - 1/2)/(2 z)."""
    design = solve(DesignSpec(levels, 1, epsilon), cache=False)
    h = 1 / (levels - 1)
    z = 0.5 + h / math.expm1(epsilon * h)
    if levels == 2:
        assert z == pytest.approx(0.5 / math.tanh(epsilon / 2), rel=1e-12)
    assert np.abs(design.alphabet - [0.5 - z, 0.5 + z]).max() <= 1e-9 * max(1, z)
    x = np.linspace(0, 1, levels)
    assert np.abs(design.probabilities[:, 1] - (0.5 + (x - 0.5) / (2 * z))).max() <= 1e-9


@pytest.mark.parametrize("levels", [2, 5])
@pytest.mark.parametrize("privacy", ["metric-l1", "metric-l2", "strict"])
def test_the_general_solver_finds_the_one_bit_formula(levels, privacy):
    spec = DesignSpec(levels, 1, 2.0, privacy)
    formula = closed_form(spec)
    assert formula is not None
    table, alphabet = search(spec)  # knows nothing of the formula but the width it starts from
    assert np.abs(alphabet - formula[1]).max() < 1e-5
    assert np.abs(table - formula[0]).max() < 1e-5


@pytest.mark.parametrize(("epsilon", "penalty"), [(0.5, 100.0), (1.0, 100.0), (5.0, 3.0)])
def test_two_levels_with_penalty_are_optimal(epsilon, penalty):
    spec = DesignSpec(2, 3, epsilon, "metric-l1", penalty)
    measured = certify(solve(spec, cache=False))
    table, alphabet = search(spec)
    x = spec.levels[:, None]
    mse = (table * (alphabet - x) ** 2).sum() / 2
    searched = mse + penalty * np.mean((table @ alphabet - x[:, 0]) ** 2)
    assert measured.objective <= searched * (1 + 1e-9)
    assert measured.gap < 1e-3


def test_nothing_else_has_a_formula():
    assert closed_form(DesignSpec(3, 2, 1.0)) is None
    assert closed_form(DesignSpec(3, 1, 1.0, bias=100.0)) is None


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
    """Also outside [0, 1], where the end segments continue; and the deviation bound covers what
    is found.
    """
    design, count = binomial_design(bits, 2.0), 2**bits - 1
    mechanism = InterpolatedMVU(design, Ball(Norm.L2, 1.0, 4), beta=2.0)
    worst = 0.0
    for u in np.linspace(-1, 1, 9):
        p = 1 / (1 + math.exp(-2.0 / count * 2.0 * u))
        exact = np.array(
            [math.comb(count, j) * p**j * (1 - p) ** (count - j) for j in range(count + 1)]
        )
        worst = max(worst, float(np.abs(np.log(mechanism.distribution(u) / exact)).max()))
    assert worst <= binomial_deviation_upper(design, -0.5, 1.5) < 1e-11


def test_other_designs_are_told_apart() -> None:
    solved = solve(DesignSpec(8, 3, 5.0))
    assert not is_evenly_spaced(solved)
    assert binomial_deviation_upper(solved, 0.0, 1.0) == math.inf
    repeated = solve(DesignSpec(2, 2, 1.0), cache=False)  # two values, each twice
    assert not is_evenly_spaced(repeated)
    assert binomial_deviation_upper(repeated, 0.0, 1.0) > 0.1
    with refuses("output_bits"):
        binomial_design(5, 1.0)
