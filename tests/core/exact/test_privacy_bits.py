"""No product of bits beats the Gaussian pair that dominates it.

Enumerated, to 60 digits and on random spreads.
"""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import brentq

from attack.bits_campaign import campaign
from core.exact.bits_kit import exact_excess, gaussian_excess, group_atoms, log_odds_losses
from core.exact.privacy_kit import (
    DIGITS,
    bit,
    exact_delta,
    fisher_information,
    gaussian_delta,
    one_bit,
    rough,
    sigmoid_bit,
)
from quietbit.kernel.sampler import SAMPLING_ERROR
from quietbit.privacy.conversion import gaussian_epsilon_upper
from quietbit.privacy.cost import Cost, sampling_slack_upper
from quietbit.privacy.fisher import fisher_supremum_upper
from quietbit.privacy.interpolated import dominated_l2_cost, dominating_square_upper


@pytest.mark.parametrize("products", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_no_violation_in_thousands_of_products(products):
    violations, closest = campaign(products, seed=20231)
    assert violations == 0
    assert closest > 0


@pytest.mark.parametrize(("share", "least"), [(0.0, 300), (0.3, 30)])
def test_the_campaign_finds_accounts_that_are_too_small(share, least):
    assert campaign(1_000, seed=5, share=share)[0] >= least


def exceeds(mass, loss, epsilon, square):
    return np.any(exact_excess(mass, loss, epsilon) > gaussian_excess(epsilon, square) + 1e-14)


def chosen_as_one_goes(rng, half, releases):
    """Probability under P and loss of releases of one bit each, whose middle depends on all bits
    before it.
    """
    mass, loss = np.ones(1), np.zeros(1)
    for _ in range(releases):
        middle = rng.choice([-half, half, 0.0, rng.normal()], size=mass.size)
        one, zero = log_odds_losses(middle + half, middle - half)
        chance = 1 / (1 + np.exp(-middle - half))
        mass = np.append(mass * chance, mass * (1 - chance))
        loss = np.append(loss + one, loss + zero)
    return mass, loss


@pytest.mark.parametrize("half", [0.05, 0.3, 1.0])
def test_releases_that_depend_on_earlier_ones_pay_once(half):
    """A planned list of releases of a single bit each, whichever inputs follow whichever bits."""
    rng, releases, delta = np.random.default_rng(8), 9, 1e-4
    bits = dominated_l2_cost(sigmoid_bit(1.0), half, half, 0.0, 1.0, together=True) * releases
    budget = releases * half**2
    square = dominating_square_upper(budget, half, one_bit=True)
    exact = gaussian_epsilon_upper(square / 2, delta)
    assert bits.accounts(delta)["exact Gaussian"] == pytest.approx(exact, rel=1e-6)
    # Each release for itself is what an adaptive account adds up.
    assert square < 0.8 * 2 * bits.pair_slope
    epsilon = np.linspace(-2, 4, 40) * math.sqrt(square)
    for _ in range(60):
        assert not exceeds(*chosen_as_one_goes(rng, half, releases), epsilon, square)
    symmetric = group_atoms([releases], np.array([half]), np.array([-half]))
    assert exceeds(*symmetric, epsilon, budget)  # the budget alone is not enough


def test_groups_are_enumerated():
    counts, upper, lower = [3, 4], np.array([0.3, -0.1]), np.array([0.0, 0.2])
    exact = exact_delta(*zip(map(bit, upper), map(bit, lower), counts, strict=True))
    for epsilon in (0.0, 0.1, 0.4):
        found = exact_excess(*group_atoms(counts, upper, lower), np.array([epsilon]))[0]
        assert found == pytest.approx(float(exact(epsilon)), rel=1e-11, abs=1e-17)


@pytest.mark.parametrize("dimension", [1, 3, 6])
def test_sixty_digits_stay_below_for_random_spreads(dimension):
    rng = np.random.default_rng(dimension)
    for _ in range(20):
        half = rng.random(dimension) ** 2 * 10 ** rng.uniform(-1.5, 0)
        middle = rng.choice([-half, half, rng.normal(size=dimension)])
        laws = [(bit(m + h), bit(m - h), 1) for m, h in zip(middle, half, strict=True)]
        exact = exact_delta(*laws)
        budget, largest = float(half @ half) * (1 + 1e-15), float(half.max()) * (1 + 1e-15)
        square = dominating_square_upper(budget, largest, one_bit=True)
        for place in (-1.0, 0.0, 0.3, 1.0, 4.0):
            epsilon = place * math.sqrt(square)
            assert exact(epsilon) < gaussian_delta(epsilon, square / 2)


def test_the_step_of_the_proof_to_sixty_digits():
    """A bit and a Gaussian of square v are dominated by one of v + x^2 (1 + x^2/(6 v)), x^2 <= v
    and x <= 1.
    """
    rng = np.random.default_rng(11)
    least = mp.inf
    with mp.workdps(DIGITS):
        for _ in range(250):
            half, ratio = mp.mpf(10) ** rng.uniform(-2, 0), mp.mpf(10) ** rng.uniform(-2, 0)
            square = half**2 / ratio
            more = square + half**2 * (1 + ratio / 6)
            middle = mp.mpf(rng.choice([0.0, float(half), rng.normal(), 4 * rng.normal()]))
            epsilon = mp.sqrt(more) * rng.normal() * rng.choice([0.1, 1, 3])
            both = mp.mpf(0)
            for p, q in zip(bit(middle + half), bit(middle - half), strict=True):
                both += p * gaussian_delta(epsilon - mp.log(p / q), square / 2)
            bound, alone = (gaussian_delta(epsilon, each / 2) for each in (more, square))
            least = min(least, (bound - both) / (bound - alone))
    assert 0 < least < 2e-3  # never below, and the constant 1/6 is nearly needed


def laws_at(design, x):
    """The laws of the codes at every entry of x, in doubles."""
    levels = np.linspace(0, 1, design.spec.input_levels)
    columns = np.log(design.probabilities).T
    weights = np.exp(np.stack([np.interp(x, levels, column) for column in columns], axis=-1))
    return weights / weights.sum(axis=-1, keepdims=True)


def random_code(rng):
    strength = float(rng.choice([0.3, 1.0, 3.0]))
    return rough(2, int(rng.integers(2, 4)), strength, int(rng.integers(1 << 30)))


@pytest.mark.parametrize("codes", [100, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize(("share", "expected"), [(1.0, 0), (0.7, 1 / 15)])
def test_the_step_of_the_proof_for_codes(share, expected, codes):
    """A code and a Gaussian of square v are dominated by one of v^2/(v - s^2).

    Not so with much less than s^2.
    """
    rng = np.random.default_rng(8)
    violated = 0
    for _ in range(codes):
        design, places = random_code(rng), rng.random(2)
        apart = (places[0] - places[1]) ** 2
        largest = fisher_supremum_upper(design) * apart
        assert max(fisher_information(design, x) for x in np.linspace(-5, 6, 23)) * apart <= largest
        square = largest * (1 + 10 ** rng.uniform(-1.5, 2.5))
        more = square + share * (square**2 / (square - largest) - square)
        epsilon = np.append(np.linspace(-3, 5, 33) * math.sqrt(more), 0.0)
        upper, lower = laws_at(design, places)
        # H(epsilon) is a mixture of the Gaussian's.
        both = sum(
            mass * hockey(epsilon - loss, square)
            for mass, loss in zip(upper, np.log(upper / lower), strict=True)
        )
        violated += bool((both > hockey(epsilon, more) * (1 + 1e-9) + 1e-15).any())
    assert (violated == 0) if expected == 0 else (violated >= expected * codes)


def hockey(epsilon: np.ndarray, square: float) -> np.ndarray:
    """delta(epsilon) of the Gaussian pair at any epsilon, negative ones too."""
    return gaussian_excess(epsilon, square) + np.maximum(-np.expm1(epsilon), 0.0)


@pytest.mark.parametrize(
    "design",
    [sigmoid_bit(2.0), one_bit(1.5), one_bit(3.0, levels=5), rough(2, 1, 1.0, 4)]
    + [rough(2, 2, strength, 7) for strength in (0.3, 1.0, 3.0)],
    ids=["sigmoid", "one bit", "five levels", "rough bit", "weak code", "code", "strong code"],
)
def test_the_curve_of_a_design_covers_products_of_its_codes(design):
    rng = np.random.default_rng(2)
    epsilon = np.linspace(-1, 3, 41)
    for reach in (0.1, 0.5):
        for _ in range(20):
            worlds = 0.5 + rng.uniform(-reach, reach, (2, 5))
            apart = worlds[0] - worlds[1]
            distance, largest = float(np.linalg.norm(apart)), float(np.abs(apart).max())
            curve = dominated_l2_cost(design, distance, largest, 0.5 - reach, 0.5 + reach)
            mass, loss = np.ones(1), np.zeros(1)
            for upper, lower in zip(*laws_at(design, worlds), strict=True):
                mass = np.multiply.outer(mass, upper).ravel()
                loss = np.add.outer(loss, np.log(upper / lower)).ravel()
            assert not exceeds(mass, loss, epsilon, 2 * curve.pair_slope)


@pytest.mark.parametrize("count", [399, 400, 1_600, 6_400])
def test_equal_bits_in_many_dimensions_come_close_to_the_fisher_budget(count):
    """At a share of a twentieth the pair is 0.53 % above the budget, and exact lattices stay below
    it.
    """
    half = 1 / math.sqrt(count)
    square = dominating_square_upper(1.0, 1 / 20, one_bit=True)
    assert 1 < square < 1.0053
    for middle in (0.0, half, -half):
        atoms = group_atoms([count], np.array([middle + half]), np.array([middle - half]))
        assert not exceeds(*atoms, np.linspace(-3.0, 5.0, 161), square)


@pytest.mark.parametrize("releases", [1, 50, 1_000])
@pytest.mark.parametrize("target", [1.0, 8.0])
# 2: replace-one, twice as far in every coordinate
@pytest.mark.parametrize("radii", [1, 2])
@pytest.mark.parametrize(("share", "ratio"), [(1 / 8, 1.03), (1 / 10, 1.02), (1 / 20, 1.006)])
def test_squared_error_is_within_three_percent_of_the_exact_gaussian(
    releases, target, radii, share, ratio
):
    """Decoded with the alphabet 1/2 -+ 1/epsilon a coordinate's squared error is (2 C / design
    epsilon)^2.
    """
    delta, reach = 1e-5, 0.5 * share  # of inputs from the centre
    slack = sampling_slack_upper(10_000, 0.25, SAMPLING_ERROR)

    def excess(strength: float) -> float:
        curve = dominated_l2_cost(
            sigmoid_bit(strength), 0.5 * radii, reach * radii, 0.5 - reach, 0.5 + reach
        )
        return (curve.with_slack(slack) * releases).epsilon(delta) - target

    strength = brentq(excess, 1e-4, 20.0, rtol=1e-8)
    # The Gaussian's slope for all releases together.
    slope = brentq(lambda slope: gaussian_epsilon_upper(slope, delta) - target, 1e-9, 100.0)
    gaussian_error = releases / (2 * slope) * radii**2
    assert 1 <= (2 / strength) ** 2 / gaussian_error < ratio


def test_two_levels_have_the_fisher_budget():
    """reach^2 M with M = epsilon^2 for the sigmoid.

    Theorem 2's slope, now with a pair beside it.
    """
    curve = dominated_l2_cost(sigmoid_bit(2.0), 0.5, 0.05, 0.45, 0.55)
    assert 0.5 <= curve.slope <= 0.5 * (1 + 1e-9)
    assert curve.pair_slope == pytest.approx(0.5 * 1.018839, rel=1e-5)
    assert curve.answered_by(1e-5) == "exact Gaussian"


@pytest.mark.parametrize("strength", [2.0, 8.0])
def test_without_a_clamp_renyi_answers(strength):
    curve = dominated_l2_cost(sigmoid_bit(strength), 0.5, 0.5, 0.0, 1.0)
    assert curve.answered_by(1e-5) == "Rényi"
    assert curve.epsilon(1e-5) == Cost.linear(curve.slope).epsilon(1e-5)


WIDE = 4.0 + 1.21 * (2.5 + math.log(1 + 4 / 1.21))


@pytest.mark.parametrize(
    ("budget", "largest", "square"),
    [
        (0.0, 0.5, 0.0),
        (0.5, 0.0, 0.0),
        (4.0, 1.1, WIDE),  # outside the theorem for bits that for codes answers
        (math.inf, 0.1, math.inf),
        (1e-3, 7.0, 1e-3 * (2 + math.log(3) / 6)),
        (1.0, 1e-200, 1.0),
    ],
)
def test_what_a_square_is_at_its_ends(budget, largest, square):
    found = dominating_square_upper(budget, largest, one_bit=True)
    assert found == pytest.approx(square, rel=1e-9)
    assert found >= square * (1 - 1e-15)
    assert dominating_square_upper(budget, largest, one_bit=False) >= found


def test_a_square_grows_with_the_largest_bit_and_never_underflows():
    largest = np.linspace(1e-3, 0.8, 50).tolist()
    squares = [dominating_square_upper(0.7, each, one_bit=True) for each in largest]
    assert squares == sorted(squares)
    assert dominating_square_upper(1e-320, 1.0, one_bit=True) > 0
