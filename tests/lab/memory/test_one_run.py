"""The one-run audit: below and near the truth for honest mechanisms, above a broken claim."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from quietbit import Ball, calibrate
from quietbit_lab.memory import chance_upper, guesses, lower_bound
from refusals import refuses

CANARIES = 2_000
DELTA = 1e-5


def coins(rng: np.random.Generator) -> np.ndarray:
    return rng.random(CANARIES) < 0.5


def test_the_chance_is_the_binomial_tail_without_delta_and_larger_with_it() -> None:
    for epsilon in (0.0, 1.0, 3.0):
        q = math.exp(epsilon) / (1 + math.exp(epsilon))
        by_hand = sum(math.comb(20, k) * q**k * (1 - q) ** (20 - k) for k in range(15, 21))
        assert chance_upper(100, 20, 15, epsilon, 0.0) == pytest.approx(by_hand, rel=1e-12)
        assert chance_upper(100, 20, 15, epsilon, 1e-3) > by_hand
    assert chance_upper(100, 20, 0, 1.0, 1e-3) == 1.0


def test_what_delta_adds_is_the_steepest_slope_of_the_tail() -> None:
    r, v, epsilon, delta, m = 12, 9, 0.7, 1e-4, 40
    q = 1 / (1 + math.exp(-epsilon))
    tail = [float(binom.sf(value - 1, r, q)) for value in range(v + 1)]
    slope = max((tail[v - i] - tail[v]) / i for i in range(1, v + 1))
    assert chance_upper(m, r, v, epsilon, delta) == pytest.approx(
        tail[v] + 2 * m * delta * slope, rel=1e-10
    )


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_randomised_response_is_found_to_its_epsilon(epsilon: float) -> None:
    """The audit is tight: above the truth in at most ``doubt`` of trainings, and near it."""
    rng = np.random.default_rng(3)
    bounds = []
    for _ in range(60):
        present = coins(rng)
        flipped = rng.random(CANARIES) < 1 / (1 + math.exp(epsilon))
        scores = np.where(present ^ flipped, 1.0, 0.0) + 1e-9 * rng.random(CANARIES)
        bounds.append(lower_bound(scores, present, delta=0.0, numbers=(CANARIES,)).epsilon_lower)
    above = sum(bound > epsilon for bound in bounds)
    assert binom.sf(above - 1, len(bounds), 0.05) > 1e-9
    assert np.mean(bounds) > 0.75 * epsilon


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_gaussian_noise_stays_below_its_claim_and_reaches_a_fair_share(epsilon: float) -> None:
    ball = Ball("l2", dimension=CANARIES)
    claimed = calibrate(
        "gaussian", ball=ball, epsilon=epsilon, delta=DELTA, releases=1, adjacency="zero-out"
    )
    sigma = float(claimed.mechanism.noise_multiplier)  # type: ignore[attr-defined]
    rng = np.random.default_rng(4)
    present = coins(rng)
    bound = lower_bound(present + sigma * rng.normal(size=CANARIES), present, delta=DELTA)
    assert bound.epsilon_lower < epsilon
    assert bound.epsilon_lower > 0.15 * epsilon
    assert bound.epsilon_lower <= claimed.guarantee.epsilon_upper


@pytest.mark.parametrize("leak", [0.02, 1.0])
def test_a_leak_is_found(leak: float) -> None:
    """The noise of epsilon 1, but a share of canaries is released without any."""
    sigma = 3.73
    rng = np.random.default_rng(5)
    present = coins(rng)
    noise = sigma * rng.normal(size=CANARIES)
    bare = rng.random(CANARIES) < leak
    scores = np.where(bare, np.where(present, 50.0, -50.0), present + noise)
    bound = lower_bound(scores, present, delta=DELTA, numbers=(32, 256, CANARIES))
    assert bound.epsilon_lower > 1.0


def test_nothing_is_claimed_of_scores_that_know_nothing() -> None:
    rng = np.random.default_rng(6)
    assert lower_bound(rng.normal(size=CANARIES), coins(rng), delta=DELTA).epsilon_lower == 0.0


def test_guesses_are_of_both_ends() -> None:
    scores = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]
    assert guesses(scores, [True, True, False, True, False, False], 4) == (4, 4)
    assert guesses(scores, [False, True, False, True, False, True], 5) == (4, 2)


@pytest.mark.parametrize(
    ("scores", "name"), [([1.0], "number of scores"), ([np.nan, 1.0], "scores")]
)
def test_scores_that_cannot_be_ranked_are_refused(scores: list[float], name: str) -> None:
    with refuses(name):
        lower_bound(scores, [True, False], delta=0.0)
