from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from path import decode, encode
from quietbit import Ball, Gaussian, Norm
from quietbit.kernel.rng import seeded_rng
from quietbit.target import Adjacency
from quietbit_lab.baseline.noise import Laplace, Sign
from refusals import refuses

GAUSSIAN = Gaussian(Ball(Norm.L2, 9), 1.0)
LAPLACE = Laplace(Ball(Norm.L1, 9), 1.0)


@pytest.mark.parametrize("inner", [GAUSSIAN, LAPLACE])
def test_it_is_the_sign_of_the_inner_release_with_its_account(inner: Gaussian | Laplace) -> None:
    mechanism = Sign(inner)
    update = np.linspace(-0.1, 0.1, 9)
    noisy = decode(inner, encode(inner, update, seeded_rng(4)))
    codes = encode(mechanism, update, seeded_rng(4))
    assert np.array_equal(codes, noisy >= 0)
    assert np.array_equal(decode(mechanism, codes), np.where(noisy >= 0, 1.0, -1.0))
    assert mechanism.layout.bits == 1
    for adjacency in Adjacency:
        ours, theirs = mechanism.privacy(adjacency), inner.privacy(adjacency)
        assert theirs.epsilon(1e-5) < ours.epsilon(1e-5) < theirs.epsilon(1e-5) + 1e-9
        assert ours.pure_epsilon() >= theirs.pure_epsilon()


STRONG = [Gaussian(Ball(Norm.L2, 9), 0.007), Laplace(Ball(Norm.L1, 9), 0.01)]


@pytest.mark.parametrize("inner", STRONG)
def test_a_sign_of_little_noise_is_cut_where_the_sampler_still_draws_both(
    inner: Gaussian | Laplace,
) -> None:
    """One word's noise ends at 9.2 deviations or 44.4 scales: uncut, a sign would never occur."""
    mechanism = Sign(inner)
    far = mechanism.tail(mechanism.cut)
    assert 1e-7 < far < 1e-6
    assert mechanism.expectation(1.0) == mechanism.expectation(mechanism.cut) == 1 - 2 * far
    ours, theirs = (
        mechanism.privacy(Adjacency.ZERO_OUT, 200),
        inner.privacy(Adjacency.ZERO_OUT, 200),
    )
    assert theirs.epsilon(1e-5) < ours.epsilon(1e-5) < theirs.epsilon(1e-5) + 1e-9


@pytest.mark.parametrize("inner", STRONG)
def test_the_smallest_tail_flips_the_sign_of_the_largest_coordinate(
    inner: Gaussian | Laplace,
) -> None:
    """A word whose tail is below the cut's flips a coordinate at the radius; above, it does not."""
    update = np.zeros(9)
    update[0] = 1.0
    tails = 2 * Sign(inner).tail(Sign(inner).cut)  # of |noise|
    for factor, code in ((0.999, 0), (1.001, 1)):
        word = (1 << 63) + int(factor * tails * 2.0**63)  # top bit 1: negative noise
        assert encode(Sign(inner), update, _Words(word))[0] == code


class _Words:
    """Random bits that are chosen: every word the same."""

    def __init__(self, word: int) -> None:
        self.word = word

    def draw(self, count: int) -> _Words:
        return self

    def uniform64(self, stream: int, start: int, count: int) -> NDArray[np.uint64]:
        return np.full(count, self.word, dtype=np.uint64)


@pytest.mark.parametrize("inner", [GAUSSIAN, LAPLACE])
def test_the_slope_at_zero_is_the_derivative(inner: Gaussian | Laplace) -> None:
    mechanism = Sign(inner)
    step = 1e-6
    slope = (mechanism.expectation(step) - mechanism.expectation(-step)) / (2 * step)
    assert mechanism.slope_at_zero == pytest.approx(slope, rel=1e-5)
    assert mechanism.expectation(0.4) == -mechanism.expectation(-0.4)
    assert mechanism.variance(0.0) == 1.0


def test_only_a_noisy_inner_mechanism_is_taken() -> None:
    with refuses("inner"):
        Sign(Sign(GAUSSIAN))  # type: ignore[arg-type]
