"""Lemma 3 of the paper's appendix, item by item: what holds for anadromic rows."""

from __future__ import annotations

import numpy as np
import pytest

from core.exact.privacy_kit import fisher_information, summing_to_one
from quietbit.design.solve import catalogue
from quietbit.design.table import Design, DesignSpec
from quietbit.privacy.fisher import fisher_supremum_upper

X = np.linspace(-3.0, 4.0, 57)


def anadromic(seed: int, bits: int) -> Design:
    """Random rows, each the mirror image of the other; the largest slope is unique."""
    row = summing_to_one([np.random.default_rng(seed).dirichlet(np.full(2**bits, 2.0))])[0]
    alphabet = np.linspace(-0.5, 1.5, 2**bits)
    return Design(DesignSpec(2, bits, 20.0), np.stack([row, row[::-1]]), alphabet)


EVERY = pytest.mark.parametrize(
    "design", [anadromic(seed, bits) for seed in range(3) for bits in (1, 2, 3)]
)


def eta(design: Design, x: float) -> np.ndarray:
    low, high = np.log(design.probabilities)
    return (1 - x) * low + x * high


def law(design: Design, x: float) -> np.ndarray:
    weights = np.exp(eta(design, x) - eta(design, x).max())
    return weights / weights.sum()


def slope(design: Design) -> np.ndarray:
    return np.diff(np.log(design.probabilities), axis=0)[0]


def test_shipped_two_level_designs_are_anadromic():
    shipped = [design for design in catalogue() if design.spec.input_levels == 2]
    assert len(shipped) == 104
    for design in shipped:
        assert np.array_equal(design.probabilities[0], design.probabilities[1][::-1])


@EVERY
def test_i_and_ii_slopes_are_antisymmetric_and_natural_parameters_mirror(design):
    assert np.array_equal(slope(design), -slope(design)[::-1])
    for x in X:
        assert eta(design, x) == pytest.approx(eta(design, 1 - x)[::-1], abs=1e-12)


@EVERY
def test_iii_far_out_one_symbol_remains(design):
    theta = slope(design)
    far = 50 / np.diff(np.sort(theta)).min()
    assert law(design, far)[theta.argmax()] == pytest.approx(1)
    assert law(design, -far)[theta.argmin()] == pytest.approx(1)


@EVERY
def test_iv_and_v_fisher_information_mirrors_and_the_centre_is_stationary(design):
    for x in X:
        mirrored = fisher_information(design, 1 - x)
        assert fisher_information(design, x) == pytest.approx(mirrored, rel=1e-9, abs=1e-12)
    step, scale = 1e-4, float(np.ptp(slope(design))) ** 3
    change = fisher_information(design, 0.5 + step) - fisher_information(design, 0.5)
    assert abs(change) <= scale * step**2 * 10


@EVERY
def test_vi_the_bound_on_the_tail_holds(design):
    theta = slope(design)
    top = theta.argmax()
    for x in np.linspace(0.0, 20.0, 101):
        share = law(design, x)[top]
        if share >= 0.5:
            bound = 4 * theta[top] ** 2 * share * (1 - share)
            assert fisher_information(design, x) <= bound * (1 + 1e-9) + 1e-12


@EVERY
def test_the_supremum_is_one(design):
    assert fisher_supremum_upper(design) >= max(fisher_information(design, x) for x in X)
