"""No product of bits beats the Gaussian pair that dominates it.

Enumerated, to 60 digits and on random spreads.
"""

import math

import mpmath as mp
import numpy as np
import pytest

from attack.bits_campaign import campaign
from core.exact.bits_kit import (
    exact_excess,
    gaussian_excess,
    group_atoms,
    log_odds_losses,
    product_atoms,
    sixty_digit_delta,
)
from core.exact.privacy_kit import fisher_information, one_bit, rough, sigmoid_bit
from quietbit.errors import InvalidParameter
from quietbit.kernel.sampler import SAMPLING_ERROR
from quietbit.privacy.conversion import gaussian_epsilon_upper
from quietbit.privacy.cost import Cost, sampling_slack_upper
from quietbit.privacy.fisher import fisher_supremum_upper
from quietbit.privacy.interpolated import dominated_l2_cost, dominating_square_upper
from refusals import refuses


def gaussian_delta(epsilon: mp.mpf, square: mp.mpf) -> mp.mpf:
    """Balle and Wang (2018), Theorem 8."""
    mu = mp.sqrt(square)
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("products", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_no_violation_in_thousands_of_products(products):
    violations, closest = campaign(products, seed=20231)
    assert violations == 0
    assert closest > 0


@pytest.mark.parametrize(("share", "least"), [(0.0, 300), (0.3, 30)])
def test_the_campaign_finds_accounts_that_are_too_small(share, least):
    assert campaign(1_000, seed=5, share=share)[0] >= least


def chosen_as_one_goes(rng, half, releases):
    """Probability under P and loss of releases of one bit each, whose middle depends on all bits
    before it.
    """
    mass, loss = np.ones(1), np.zeros(1)
    for _ in range(releases):
        middle = rng.choice([-half, half, 0.0, rng.normal()], size=mass.size)
        one, zero = log_odds_losses(middle + half, middle - half)
        chance = 1 / (1 + np.exp(-middle - half))
        mass, loss = (
            np.append(mass * chance, mass * (1 - chance)),
            np.append(loss + one, loss + zero),
        )
    return mass, loss


@pytest.mark.parametrize("half", [0.05, 0.3, 1.0])
def test_releases_that_depend_on_earlier_ones_pay_once(half):
    """A planned list of releases of a single bit each, whichever inputs follow whichever bits."""
    rng, releases = np.random.default_rng(8), 9
    bit = Cost.gaussian(dominating_square_upper(half**2, half, one_bit=True) / 2, half**2 / 2, half)
    budget = (bit * releases).slope * 2
    square = dominating_square_upper(budget, half, one_bit=True)
    delta = 1e-4
    assert (bit * releases).accounts(delta)["exact Gaussian"] == gaussian_epsilon_upper(
        square / 2, delta
    )
    assert (
        square < 0.8 * 2 * (bit * releases).pair_slope
    )  # each release for itself is what an adaptive account adds up
    epsilon = np.linspace(-2, 4, 40) * math.sqrt(square)
    for _ in range(60):
        excess = exact_excess(*chosen_as_one_goes(rng, half, releases), epsilon)
        assert np.all(excess <= gaussian_excess(epsilon, square) + 1e-14)
    symmetric = exact_excess(*group_atoms([releases], np.array([half]), np.array([-half])), epsilon)
    assert np.any(
        symmetric > gaussian_excess(epsilon, budget) + 1e-9
    )  # the budget alone is not enough


def test_groups_are_products():
    upper, lower = np.array([0.3, -0.1]), np.array([0.0, 0.2])
    epsilon = np.linspace(-0.5, 0.7, 25)
    grouped = exact_excess(*group_atoms([3, 4], upper, lower), epsilon)
    whole = exact_excess(
        *product_atoms(np.repeat(upper, [3, 4]), np.repeat(lower, [3, 4])), epsilon
    )
    np.testing.assert_allclose(grouped, whole, rtol=1e-11, atol=1e-17)
    for value in (0.0, 0.1, 0.4):
        oracle = sixty_digit_delta(np.repeat(upper, [3, 4]), np.repeat(lower, [3, 4]), value)
        found = exact_excess(*group_atoms([3, 4], upper, lower), np.array([value]))[0]
        assert found == pytest.approx(float(oracle), rel=1e-11, abs=1e-17)


@pytest.mark.parametrize("dimension", [1, 2, 3, 4, 6])
def test_sixty_digits_stay_below_for_random_spreads(dimension):
    rng = np.random.default_rng(dimension)
    with mp.workdps(60):
        for _ in range(25):
            half = rng.random(dimension) ** 2 * 10 ** rng.uniform(-1.5, 0)
            middle = rng.choice([-half, half, rng.normal(size=dimension)])
            upper, lower = middle + half, middle - half
            budget, largest = float(half @ half) * (1 + 1e-15), float(half.max()) * (1 + 1e-15)
            square = dominating_square_upper(budget, largest, one_bit=True)
            for place in (-1.0, 0.0, 0.3, 1.0, 2.0, 4.0):
                epsilon = mp.mpf(place * math.sqrt(square))
                assert sixty_digit_delta(upper, lower, float(epsilon)) < gaussian_delta(
                    epsilon, mp.mpf(square)
                )


def test_the_step_of_the_proof_to_fifty_digits():
    """A bit and a Gaussian of square v are dominated by one of v + x^2 (1 + x^2/(6 v)), x^2 <= v
    and x <= 1.
    """
    rng = np.random.default_rng(11)
    least = mp.inf
    with mp.workdps(50):
        for _ in range(400):
            half, ratio = mp.mpf(10) ** rng.uniform(-2, 0), mp.mpf(10) ** rng.uniform(-2, 0)
            square = half**2 / ratio
            middle = mp.mpf(rng.choice([0.0, float(half), rng.normal(), 4 * rng.normal()]))
            p, q = 1 / (1 + mp.exp(-middle - half)), 1 / (1 + mp.exp(-middle + half))
            more = square + half**2 * (1 + ratio / 6)
            epsilon = mp.sqrt(more) * rng.normal() * rng.choice([0.1, 1, 3])
            both = p * gaussian_delta(epsilon - mp.log(p / q), square)
            both += (1 - p) * gaussian_delta(epsilon - mp.log((1 - p) / (1 - q)), square)
            bound, alone = gaussian_delta(epsilon, more), gaussian_delta(epsilon, square)
            least = min(least, (bound - both) / (bound - alone))
    assert 0 < least < 1e-3  # never below, and the constant 1/6 is nearly needed


def code_laws(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Two laws of a random two-level code of two or three bits, and M (x - x')^2 from above and
    from below.
    """
    design = rough(
        2, int(rng.integers(2, 4)), float(rng.choice([0.3, 1.0, 3.0])), int(rng.integers(1 << 30))
    )
    eta = np.log(design.probabilities)
    here, there = rng.random(2)
    weights = np.exp(eta[0] + np.array([[here], [there]]) * (eta[1] - eta[0]))
    laws = weights / weights.sum(axis=1, keepdims=True)
    least = max(fisher_information(design, x) for x in np.linspace(-5, 6, 23)) * (here - there) ** 2
    return laws[0], laws[1], fisher_supremum_upper(design) * (here - there) ** 2, least


@pytest.mark.parametrize("codes", [100, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize(("share", "expected"), [(1.0, 0), (0.7, 1 / 15)])
def test_the_step_of_the_proof_for_codes(share, expected, codes):
    """A code and a Gaussian of square v are dominated by one of v^2/(v - s^2).

    Not so with much less than s^2.
    """
    rng = np.random.default_rng(8)
    violated = 0
    for _ in range(codes):
        upper, lower, largest, least = code_laws(rng)
        assert least <= largest
        square = largest * (1 + 10 ** rng.uniform(-1.5, 2.5))
        more = square**2 / (square - largest)
        more = square + share * (more - square)
        epsilon = np.concatenate((np.linspace(-3, 5, 33) * math.sqrt(more), [0.0]))
        loss = np.log(upper / lower)
        both = np.zeros(len(epsilon))
        for mass, value in zip(
            upper, loss, strict=True
        ):  # H(epsilon) is a mixture of the Gaussian's
            both += mass * hockey(epsilon - value, square)
        violated += bool((both > hockey(epsilon, more) * (1 + 1e-9) + 1e-15).any())
    assert (violated == 0) if expected == 0 else (violated >= expected * codes)


def hockey(epsilon: np.ndarray, square: float) -> np.ndarray:
    """delta(epsilon) of the Gaussian pair at any epsilon, negative ones too."""
    return gaussian_excess(epsilon, square) + np.maximum(-np.expm1(epsilon), 0.0)


def test_products_of_codes_stay_below():
    rng = np.random.default_rng(2)
    for _ in range(60):
        design = rough(2, 2, float(rng.choice([0.3, 1.0, 3.0])), int(rng.integers(1 << 30)))
        eta = np.log(design.probabilities)
        worlds = rng.random((2, 5))
        distance, single = (
            np.linalg.norm(worlds[0] - worlds[1]),
            np.abs(worlds[0] - worlds[1]).max(),
        )
        curve = dominated_l2_cost(design, float(distance), float(single), 0.0, 1.0)
        laws = np.exp(eta[0] + worlds[..., None] * (eta[1] - eta[0]))
        laws /= laws.sum(axis=2, keepdims=True)
        mass, loss = np.ones(1), np.zeros(1)
        for upper, lower in zip(*laws, strict=True):
            mass = np.multiply.outer(mass, upper).ravel()
            loss = np.add.outer(loss, np.log(upper / lower)).ravel()
        epsilon = np.linspace(-1, 3, 41)
        assert (
            exact_excess(mass, loss, epsilon) <= gaussian_excess(epsilon, 2 * curve.pair_slope)
        ).all()


def test_equal_bits_in_many_dimensions_come_close_to_the_fisher_budget():
    """At a share of a twentieth the pair is 0.53 % above the budget, and exact lattices stay below
    it.
    """
    for count in (399, 400, 1_600, 6_400):
        half = 1 / math.sqrt(count)
        square = dominating_square_upper(1.0, 1 / 20, one_bit=True)
        assert 1 < square < 1.0053
        for middle in (0.0, half, -half):
            atoms = group_atoms([count], np.array([middle + half]), np.array([middle - half]))
            epsilon = np.linspace(-3.0, 5.0, 161)
            assert (exact_excess(*atoms, epsilon) < gaussian_excess(epsilon, square)).all()


@pytest.mark.parametrize("releases", [1, 10, 50, 1_000])
@pytest.mark.parametrize("target", [1.0, 3.0, 8.0])
@pytest.mark.parametrize(
    "adjacency", [1, 2]
)  # 1: zero-out; 2: replace-one, twice as far in every coordinate
@pytest.mark.parametrize(("share", "ratio"), [(1 / 8, 1.03), (1 / 10, 1.02), (1 / 20, 1.006)])
def test_squared_error_is_within_three_percent_of_the_exact_gaussian(
    releases, target, adjacency, share, ratio
):
    """Decoded with the alphabet 1/2 -+ 1/epsilon a coordinate's squared error is (2 C / design
    epsilon)^2.
    """
    dimension, delta = 10_000, 1e-5

    def account(strength: float) -> float:
        design = sigmoid_bit(strength)
        reach = 0.5 * share  # of inputs from the centre
        curve = dominated_l2_cost(
            design, 0.5 * adjacency, reach * adjacency, 0.5 - reach, 0.5 + reach
        )
        slack = sampling_slack_upper(dimension, 0.25, SAMPLING_ERROR)
        return (curve.with_slack(slack) * releases).epsilon(delta)

    private, revealing = 1e-4, 20.0
    while revealing - private > 1e-7 * private:
        middle = 0.5 * (private + revealing)
        private, revealing = (middle, revealing) if account(middle) <= target else (private, middle)
    low, high = 1e-9, 100.0  # the Gaussian's slope for all releases together
    while high - low > 1e-9 * low:
        middle = 0.5 * (low + high)
        low, high = (
            (middle, high) if gaussian_epsilon_upper(middle, delta) <= target else (low, middle)
        )
    gaussian_error = releases / (2 * low) * adjacency**2
    assert 1 <= (2 / private) ** 2 / gaussian_error < ratio


def test_the_curve_of_a_design_covers_its_bits():
    """Brute force over vectors of the ball, with the design's own numbers."""
    rng = np.random.default_rng(3)
    for design in (sigmoid_bit(2.0), one_bit(3.0, levels=5), one_bit(1.5), rough(2, 1, 1.0, 4)):
        eta = np.log(design.probabilities)
        grid = np.linspace(0, 1, len(eta))
        reach, dimension = 0.25, 8
        curve = dominated_l2_cost(design, 2 * reach, 2 * reach * 0.6, 0.5 - reach, 0.5 + reach)
        for _ in range(40):
            worlds = rng.normal(size=(2, dimension))
            worlds *= reach / np.linalg.norm(worlds, axis=1, keepdims=True)
            worlds = 0.5 + np.clip(worlds, -0.6 * reach, 0.6 * reach)
            upper, lower = (
                np.interp(x, grid, eta[:, 1]) - np.interp(x, grid, eta[:, 0]) for x in worlds
            )
            epsilon = np.linspace(0, 3, 31)
            exact = exact_excess(*product_atoms(upper, lower), epsilon)
            assert (exact <= gaussian_excess(epsilon, 2 * curve.pair_slope)).all()


def test_two_levels_have_the_fisher_budget():
    """reach^2 M with M = epsilon^2 for the sigmoid.

    Theorem 2's slope, now with a pair beside it.
    """
    curve = dominated_l2_cost(sigmoid_bit(2.0), 0.5, 0.05, 0.45, 0.55)
    assert curve.slope == pytest.approx(0.5, rel=1e-9)
    assert curve.slope >= 0.5
    assert curve.pair_slope == pytest.approx(0.5 * 1.018839, rel=1e-5)
    assert curve.answered_by(1e-5) == "exact Gaussian"
    assert curve.epsilon(1e-5) < Cost.linear(curve.slope).epsilon(1e-5)


def test_without_a_clamp_renyi_answers():
    curve = dominated_l2_cost(sigmoid_bit(2.0), 0.5, 0.5, 0.0, 1.0)
    assert curve.answered_by(1e-5) == "Rényi"
    assert curve.epsilon(1e-5) == Cost.linear(curve.slope).epsilon(1e-5)
    wild = dominated_l2_cost(sigmoid_bit(8.0), 0.5, 0.5, 0.0, 1.0)
    assert wild.answered_by(1e-5) == "Rényi"
    assert (Cost.gaussian(math.inf, 0.5) * 3).epsilon(1e-5) == Cost.linear(1.5).epsilon(1e-5)


def test_pairs_add_up_with_themselves_and_with_gaussians():
    curve = Cost.gaussian(0.011, 0.01)
    many = curve * 40 + Cost.gaussian(0.1) * 2
    assert many.slope == pytest.approx(0.6)
    assert many.pair_slope == pytest.approx(0.64)
    assert many.epsilon(1e-6) == pytest.approx(gaussian_epsilon_upper(0.64, 1e-6), rel=1e-12)
    assert (curve * 3).pair_slope >= 0.033
    slack = curve.with_slack(1e-9) * 40
    assert slack.epsilon(1e-6) >= gaussian_epsilon_upper(0.44, 1e-6)
    assert slack.epsilon(1e-6) == pytest.approx(gaussian_epsilon_upper(0.44, 1e-6), rel=1e-6)


def test_beside_a_curve_that_knows_only_renyi_the_account_is_renyi():
    curve, other = Cost.gaussian(0.011, 0.01), Cost.linear(0.02)
    together = curve * 3 + other
    assert together.epsilon(1e-6) == pytest.approx(Cost.linear(0.05).epsilon(1e-6), rel=1e-12)
    assert together.epsilon(1e-6) > gaussian_epsilon_upper(0.053, 1e-6)
    mixed = curve + Cost.renyi(lambda alpha: 0.02 * alpha)
    assert mixed.rdp(3.0) == pytest.approx(0.09)


def test_what_a_square_is_at_its_ends():
    assert dominating_square_upper(0.0, 0.5, one_bit=True) == 0
    assert dominating_square_upper(0.5, 0.0, one_bit=True) == 0
    wide = 4.0 + 1.21 * (
        2.5 + math.log(1 + 4 / 1.21)
    )  # outside the theorem for bits that for codes answers
    assert dominating_square_upper(4.0, 1.1, one_bit=True) == pytest.approx(wide, rel=1e-12)
    assert dominating_square_upper(4.0, 1.1, one_bit=False) == pytest.approx(wide, rel=1e-12)
    assert dominating_square_upper(4.0, 0.1, one_bit=True) < dominating_square_upper(
        4.0, 0.1, one_bit=False
    )
    assert dominating_square_upper(math.inf, 0.1, one_bit=True) == math.inf
    assert dominating_square_upper(1e-3, 7.0, one_bit=True) == pytest.approx(
        1e-3 * (2 + math.log(3) / 6), rel=1e-9
    )
    assert 1 <= dominating_square_upper(1.0, 1e-200, one_bit=True) < 1 + 1e-12
    assert dominating_square_upper(1e-320, 1.0, one_bit=True) > 0
    squares = [
        dominating_square_upper(0.7, largest, one_bit=True)
        for largest in np.linspace(1e-3, 0.8, 50)
    ]
    assert squares == sorted(squares)


@pytest.mark.parametrize(
    ("budget", "largest"), [(-1.0, 0.1), (math.nan, 0.1), (1.0, math.nan), (1.0, -0.1)]
)
def test_numbers_that_are_none_are_refused(budget, largest):
    with pytest.raises(InvalidParameter, match="at least 0"):
        dominating_square_upper(budget, largest, one_bit=True)


def test_more_levels_and_wrong_distances_are_refused():
    with refuses("input_levels", 3):
        dominated_l2_cost(rough(3, 2, 1.0, 1), 0.5, 0.1, 0.4, 0.6)
    for distance, largest in ((math.nan, 0.1), (0.5, math.nan), (0.0, 0.1), (0.5, -1.0)):
        with pytest.raises(InvalidParameter):
            dominated_l2_cost(sigmoid_bit(1.0), distance, largest, 0.4, 0.6)
    with refuses("pair_slope"):
        Cost.gaussian(math.nan, 0.1)
