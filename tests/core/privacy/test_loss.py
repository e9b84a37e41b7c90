"""Privacy loss distributions against sums in 60 digits and the Gaussian's closed form; whole
accounts are in `core/exact/test_privacy_accounts.py`.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy import fft

from core.exact.privacy_kit import exact_delta, gaussian_delta, renyi
from quietbit.privacy import convolution
from quietbit.privacy.conversion import gaussian_epsilon_upper
from quietbit.privacy.loss import LossDistribution
from refusals import refuses

NOTHING = LossDistribution()


def composed(*releases):
    """Our losses of releases (masses of P, masses of Q, how often)."""
    whole = NOTHING
    for first, second, times in releases:
        whole = whole.compose(LossDistribution.from_atoms(first, second).repeat(times))
    return whole


def three_valued(seed):
    rng = np.random.default_rng(seed)
    laws = rng.dirichlet(np.ones(3), 4)
    return [(*laws[:2], 4), (*laws[2:], 2)]


# Releases, and how much too large delta may be: relative, and absolute.
ENUMERATED = {
    **{f"three outputs, {seed}": (three_valued(seed), 1e-5, 1e-14) for seed in range(3)},
    # What the grid spreads must not wrap round its window: delta(0) was 175 times too large.
    "a rare large loss": ([((3.2e-5, 1 - 3.2e-5), (3.1e-5, 1 - 3.1e-5), 8)], 1e-4, 0.0),
    "one loss": ([((1.0, 0.0), (0.25, 0.75), 3)], 1e-8, 0.0),
    # 3 p for 1 - (1 - p)^3
    "a mass without a counterpart": ([((0.5, 0.49, 0.01), (0.5, 0.5, 0.0), 3)], 0.0, 3e-4),
}


@pytest.mark.parametrize("name", ENUMERATED)
def test_three_valued_pairs_are_enumerated(name):
    releases, relative, absolute = ENUMERATED[name]
    whole, exact = composed(*releases), exact_delta(*releases)
    for epsilon in (0.0, 0.5, 2.0):
        found = whole.delta_upper(epsilon)
        assert exact(epsilon) <= found <= exact(epsilon) * (1 + relative) + absolute
    for delta in (1e-1, 1e-3, 1e-6):
        epsilon = whole.epsilon_upper(delta)
        assert epsilon == math.inf or exact(epsilon) <= delta


def test_an_infinite_loss_leaves_no_epsilon_at_its_mass():
    once = LossDistribution.from_atoms([0.5, 0.49, 0.01], [0.5, 0.5, 0.0])
    assert once.epsilon_upper(0.0) == once.repeat(3).epsilon_upper(0.02) == math.inf
    assert once.rdp_upper(2.0) == math.inf
    assert once.repeat(200).delta_upper(1.0) == 1.0


def random_law(rng, size):
    """Even, lopsided, tiny, nearly uniform, or with masses that are exactly 0."""
    kind = rng.integers(5)
    weights = (
        rng.gamma(1.0, size=size),
        rng.gamma(0.1, size=size) + 1e-30,
        10.0 ** rng.uniform(-12, 0, size),
        np.exp(rng.normal(0, rng.choice([1e-6, 1e-3, 0.1, 3.0]), size)),
        np.append(1.0, rng.integers(0, 3, size - 1)),
    )[kind]
    return weights / weights.sum()


@pytest.mark.parametrize("seed", range(40))
def test_random_pairs_are_never_below_the_truth(seed):
    """Rare outputs, losses of very different sizes, degenerate laws.

    22,691 other seeds were tried, none below.
    """
    rng = np.random.default_rng(seed)
    size, times = int(rng.integers(2, 4)), int(rng.integers(1, 6))
    release = (random_law(rng, size), random_law(rng, size), times)
    whole, exact = composed(release), exact_delta(release)
    for epsilon in (0.0, 10.0 ** rng.uniform(-6, 1.3)):
        # doubles may sum to a little more than 1
        assert min(1, exact(epsilon)) <= whole.delta_upper(epsilon)
    for delta in (10.0 ** rng.uniform(-12, -4), 0.1):
        epsilon = whole.epsilon_upper(delta)
        assert epsilon == math.inf or exact(epsilon) <= delta


def test_the_oracle_would_catch_losses_rounded_down(monkeypatch):
    """The enumeration above has teeth.

    Without the upward share of the chord, delta falls below the truth.
    """
    honest = convolution._on_grid

    def optimistic(losses, masses, step):
        places, spread = honest(losses, masses, step)
        return places[: losses.size], masses[: losses.size] + 0 * spread[: losses.size]

    release = (np.array([0.5, 0.3, 0.2]), np.array([0.31, 0.29, 0.4]), 4)
    monkeypatch.setattr(convolution, "_on_grid", optimistic)
    monkeypatch.setattr(convolution, "LEAST_POINTS", 16)
    monkeypatch.setattr(convolution, "MOST_POINTS", 16)
    assert composed(release).delta_upper(0.5) < float(exact_delta(release)(0.5))


@pytest.mark.parametrize("mu", [0.001, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-10])
def test_the_gaussian_pair_meets_its_closed_form(mu, delta):
    exact = gaussian_epsilon_upper(mu * mu / 2, delta)
    found = LossDistribution.gaussian(mu).epsilon_upper(delta)
    assert exact * (1 - 1e-10) <= found <= exact * (1 + 1e-6)


def gaussian_profile(mu, count):
    nodes = np.linspace(mu * mu / 2 - 14 * mu, mu * mu / 2 + 14 * mu, count)
    deltas = [float(gaussian_delta(node, mu * mu / 2)) for node in nodes]
    return nodes, np.clip(np.multiply(deltas, 1 + 1e-15), 0, 1)


@pytest.mark.parametrize(
    ("mu", "times", "tightness"),
    [
        (0.3, 10, 1.2e-4),
        (0.002, 10**5, 1.5e-4),
        pytest.param(0.001, 10**6, 2e-4, marks=pytest.mark.long),
    ],
)
def test_many_releases_of_a_profile(mu, times, tightness):
    """A spacing of mu/36 alone adds 1.2e-4 to the variance.

    The bound is above the truth and not far.
    """
    one = LossDistribution.from_profile(*gaussian_profile(mu, 1001))
    exact = gaussian_epsilon_upper(times * mu * mu / 2, 1e-5)
    assert exact <= one.repeat(times).epsilon_upper(1e-5) <= exact * (1 + tightness)


def test_a_symmetric_profile_knows_negative_epsilons():
    mu, times = 0.2, 20
    nodes, deltas = gaussian_profile(mu, 401)
    points = nodes[nodes >= 0], deltas[nodes >= 0]
    exact = gaussian_epsilon_upper(times * mu * mu / 2, 1e-5)
    half, without = (
        LossDistribution.from_profile(*points, symmetric=symmetric)
        .repeat(times)
        .epsilon_upper(1e-5)
        for symmetric in (True, False)
    )
    assert exact <= half <= exact * (1 + 2e-3)
    assert without > exact * 1.05


def test_a_profile_that_is_not_convex_is_replaced_by_its_hull():
    nodes = np.array([0.0, 0.5, 1.0, 1.5])
    bent = LossDistribution.from_profile(nodes, [0.3, 0.29, 0.05, 0.05])
    share = (math.exp(0.5) - 1) / (math.e - 1)
    chord = 0.3 * (1 - share) + 0.05 * share
    for node, bound in ((0.0, 0.3), (0.5, chord), (1.0, 0.05), (3.0, 0.05)):
        assert bound * (1 - 1e-15) <= bent.delta_upper(node) <= bound * (1 + 1e-6)


def test_repeating_is_composing_and_parts_are_merged():
    once = LossDistribution.from_atoms([0.7, 0.3], [0.4, 0.6])
    again = LossDistribution.from_atoms([0.7, 0.3], [0.4, 0.6])
    assert once.compose(again).compose(once) == once.repeat(3)
    assert once.repeat(0) == NOTHING
    assert (
        NOTHING.epsilon_upper(1e-5) == NOTHING.epsilon_upper(0.0) == NOTHING.delta_upper(0.0) == 0
    )
    twice = LossDistribution.gaussian(0.3).repeat(2)
    assert 0.18 <= twice.squared_mu <= 0.18 * (1 + 1e-15)


@pytest.mark.parametrize("alpha", [1.001, 2.0, 50.0])
def test_renyi_and_pure_of_finite_pairs(alpha):
    first, second = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])
    five = LossDistribution.from_atoms(first, second).repeat(5)
    exact = 5 * renyi([mpmath.mpf(p) for p in first], [mpmath.mpf(q) for q in second], alpha)
    assert exact <= five.rdp_upper(alpha) <= exact * (1 + 1e-9) + 1e-9
    largest = 5 * math.log(5 / 3)
    assert largest <= five.pure_epsilon_upper() <= largest * (1 + 1e-14)


def test_the_rounding_of_transforms_is_inside_its_bound():
    """10 t u of the 2-norm, against sums in long double (which rounds 2000 times finer).

    The bound is not idle.
    """
    if np.finfo(np.longdouble).eps > 1e-18:
        pytest.skip("this platform's long double is a double")
    rng = np.random.default_rng(11)
    turn = 2 * np.longdouble("3.14159265358979323846264338327950288")
    for bits in (6, 10):
        places = np.arange(2**bits)
        values = rng.random(2**bits)
        table = np.exp(-1j * turn * places.astype(np.longdouble) / 2**bits)
        rows = range(2 ** (bits - 1) + 1)
        exact = np.array([np.sum(values * table[(row * places) % 2**bits]) for row in rows])
        error = np.linalg.norm((fft.rfft(values) - exact).astype(np.complex128))
        allowed = 10 * bits * 2.0**-53 * np.linalg.norm(exact.astype(np.complex128))
        assert 0 < error <= allowed


KINDS = [
    ([0.55, 0.45], [0.5, 0.5]),
    ([0.3, 0.4, 0.3], [0.2, 0.3, 0.5]),
    ([0.9, 0.1], [0.8, 0.2]),
]


def best_of_all_choices(left: int, p: float, q: float, factor: float) -> float:
    """The most that P(O) - factor Q(O) can be, with densities so far."""
    if not left:
        return max(0.0, p - factor * q)
    return max(
        sum(
            best_of_all_choices(left - 1, p * one, q * other, factor)
            for one, other in zip(*pair, strict=True)
        )
        for pair in KINDS
    )


def test_the_larger_of_two_covers_a_server_that_chooses_between_them_as_it_goes() -> None:
    """The best of all choices over four releases, by dynamic programming.

    No delta is above that of four copies.
    """
    singles = [LossDistribution.from_atoms(*pair) for pair in KINDS]
    whole = singles[0].larger(singles[1]).larger(singles[2])
    for epsilon in (0.0, 0.1, 0.4, 0.8, 1.2):
        found = whole.repeat(4).delta_upper(epsilon)
        best = best_of_all_choices(4, 1.0, 1.0, math.exp(epsilon))
        assert best <= found * (1 + 1e-9) + 1e-12
        for one in singles:
            assert one.delta_upper(epsilon) <= whole.delta_upper(epsilon) * (1 + 1e-9) + 1e-15
    # The chord between two losses, where the pairs cross, is all that it adds to the larger.
    assert whole.delta_upper(0.0) < 1.03 * max(one.delta_upper(0.0) for one in singles)
    assert singles[0].larger(singles[0]) == singles[0]
    with refuses("releases", 2):
        singles[0].larger(singles[1].repeat(2))
