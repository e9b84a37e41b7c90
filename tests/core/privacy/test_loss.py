"""Privacy loss distributions against sums in 40 digits, the Gaussian's closed form, and
dp_accounting.
"""

import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as oracle
from scipy import fft

from quietbit import QuietbitError
from quietbit.privacy import convolution
from quietbit.privacy.conversion import gaussian_epsilon_upper
from quietbit.privacy.loss import LossDistribution
from refusals import refuses


def binomial_delta(one, times, epsilon):
    """Delta of ``times`` randomised responses, in 40 digits."""
    with mpmath.workdps(40):
        high = 1 / (1 + mpmath.exp(-mpmath.mpf(one)))
        whole = mpmath.mpf(0)
        for ones in range(times + 1):
            value = (2 * ones - times) * mpmath.mpf(one)
            if value > epsilon:
                mass = mpmath.binomial(times, ones) * high**ones * (1 - high) ** (times - ones)
                whole += mass * (1 - mpmath.exp(mpmath.mpf(epsilon) - value))
        return whole


def enumerated_delta(pairs, epsilon):
    """Delta of a product of finite pairs.

    The sum over all outputs of (P - e^eps Q)_+, in 40 digits.
    """
    with mpmath.workdps(40):
        factor, whole = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(0)
        for outputs in itertools.product(*(range(len(first)) for first, _ in pairs)):
            first = mpmath.fprod(
                mpmath.mpf(float(pair[0][j])) for pair, j in zip(pairs, outputs, strict=True)
            )
            second = mpmath.fprod(
                mpmath.mpf(float(pair[1][j])) for pair, j in zip(pairs, outputs, strict=True)
            )
            whole += max(mpmath.mpf(0), first - factor * second)
        return whole


@pytest.mark.parametrize(("one", "times"), [(1.0, 1), (1.0, 10), (0.1, 100), (0.02, 1500)])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_randomised_response_is_private_and_tight(one, times, delta):
    epsilon = LossDistribution.pure(one).repeat(times).epsilon_upper(delta)
    assert binomial_delta(one, times, epsilon) <= delta
    assert binomial_delta(one, times, epsilon * (1 - 1e-7)) >= delta * (1 - 1e-3)
    assert float(binomial_delta(one, times, epsilon)) <= LossDistribution.pure(one).repeat(
        times
    ).delta_upper(epsilon)


@pytest.mark.parametrize("seed", range(6))
def test_three_valued_pairs_are_enumerated(seed):
    rng = np.random.default_rng(seed)
    pairs = [(rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3))) for _ in range(2)]
    whole = (
        LossDistribution.from_atoms(*pairs[0])
        .repeat(4)
        .compose(LossDistribution.from_atoms(*pairs[1]).repeat(2))
    )
    releases = [pairs[0]] * 4 + [pairs[1]] * 2
    for epsilon in (0.0, 0.5, 2.0):
        exact = float(enumerated_delta(releases, epsilon))
        assert exact <= whole.delta_upper(epsilon) <= exact * (1 + 1e-5) + 1e-14
    for delta in (1e-1, 1e-3, 1e-6):
        epsilon = whole.epsilon_upper(delta)
        assert enumerated_delta(releases, epsilon) <= delta
        assert epsilon == 0 or enumerated_delta(releases, epsilon * (1 - 1e-4) - 1e-9) >= delta * (
            1 - 1e-3
        )


def test_a_mass_without_a_counterpart_is_an_infinite_loss():
    once = LossDistribution.from_atoms([0.5, 0.49, 0.01], [0.5, 0.5, 0.0])
    assert once.epsilon_upper(0.0) == once.repeat(3).epsilon_upper(0.02) == math.inf
    assert once.rdp_upper(2.0) == math.inf
    exact = float(
        enumerated_delta([(np.array([0.5, 0.49, 0.01]), np.array([0.5, 0.5, 0.0]))] * 3, 0.0)
    )
    assert exact <= once.repeat(3).delta_upper(0.0) <= exact + 3e-4  # 3 p for 1 - (1 - p)^3
    assert once.repeat(200).delta_upper(1.0) == 1.0


@pytest.mark.parametrize("mu", [0.001, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-10])
def test_the_gaussian_pair_meets_its_closed_form(mu, delta):
    exact = gaussian_epsilon_upper(mu * mu / 2, delta)
    assert (
        exact * (1 - 1e-10)
        <= LossDistribution.gaussian(mu).epsilon_upper(delta)
        <= exact * (1 + 1e-6)
    )


def gaussian_profile(mu, count):
    nodes = np.linspace(mu * mu / 2 - 14 * mu, mu * mu / 2 + 14 * mu, count)
    with mpmath.workdps(25):
        deltas = [
            float(
                mpmath.ncdf(mu / 2 - node / mu)
                - mpmath.exp(node) * mpmath.ncdf(-mu / 2 - node / mu)
            )
            * (1 + 1e-15)
            for node in map(mpmath.mpf, nodes)
        ]
    return nodes, np.clip(deltas, 0, 1)


@pytest.mark.parametrize(
    ("mu", "times", "tightness"),
    [
        (0.3, 10, 3e-5),
        (0.002, 10**5, 5e-5),
        pytest.param(0.001, 10**6, 1e-4, marks=pytest.mark.long),
    ],
)
def test_many_releases_of_a_profile(mu, times, tightness):
    """A spacing of mu/71 alone adds 3e-5 to the variance.

    The bound is above the truth and not far.
    """
    one = LossDistribution.from_profile(*gaussian_profile(mu, 2001))
    exact = gaussian_epsilon_upper(times * mu * mu / 2, 1e-5)
    assert exact <= one.repeat(times).epsilon_upper(1e-5) <= exact * (1 + tightness)


def test_a_symmetric_profile_knows_negative_epsilons():
    mu, times = 0.2, 20
    nodes, deltas = gaussian_profile(mu, 801)
    half = LossDistribution.from_profile(nodes[nodes >= 0], deltas[nodes >= 0], symmetric=True)
    without = LossDistribution.from_profile(nodes[nodes >= 0], deltas[nodes >= 0])
    exact = gaussian_epsilon_upper(times * mu * mu / 2, 1e-5)
    assert exact <= half.repeat(times).epsilon_upper(1e-5) <= exact * (1 + 1e-3)
    assert without.repeat(times).epsilon_upper(1e-5) > exact * 1.05


def test_a_profile_that_is_not_convex_is_replaced_by_its_hull():
    nodes = np.array([0.0, 0.5, 1.0, 1.5])
    bent = LossDistribution.from_profile(nodes, [0.3, 0.29, 0.05, 0.05])
    for node, bound in ((0.0, 0.3), (1.0, 0.05), (3.0, 0.05)):
        assert bound <= bent.delta_upper(node) <= bound * (1 + 1e-6)
    share = (math.exp(0.5) - 1) / (math.e - 1)
    assert bent.delta_upper(0.5) == pytest.approx(0.3 * (1 - share) + 0.05 * share, rel=1e-6)


def laplace_profile(one, count):
    nodes = np.linspace(-one, one, count)
    return nodes, np.nextafter(-np.expm1((nodes - one) / 2), 1)


@pytest.mark.parametrize(("one", "times"), [(1.0, 5), (0.1, 200)])
def test_laplace_against_dp_accounting(one, times):
    ours = LossDistribution.from_profile(*laplace_profile(one, 3001)).repeat(times)
    theirs = oracle.from_laplace_mechanism(
        1 / one, value_discretization_interval=one / 3000
    ).self_compose(times)
    lower = oracle.from_laplace_mechanism(
        1 / one, value_discretization_interval=one / 3000, pessimistic_estimate=False
    ).self_compose(times)
    for delta in (1e-3, 1e-6):
        assert lower.get_epsilon_for_delta(delta) * (1 - 1e-9) <= ours.epsilon_upper(delta)
        assert ours.epsilon_upper(delta) <= theirs.get_epsilon_for_delta(delta) * (1 + 1e-5)


def test_discrete_pairs_and_gaussians_against_dp_accounting():
    first, second = [0.5, 0.3, 0.2], [0.3, 0.3, 0.4]
    ours = (
        LossDistribution.from_atoms(first, second)
        .repeat(30)
        .compose(LossDistribution.gaussian(0.5))
    )
    masses = {
        value: (math.log(p), math.log(q))
        for value, (p, q) in enumerate(zip(first, second, strict=True))
    }
    theirs = oracle.from_two_probability_mass_functions(
        {value: pair[1] for value, pair in masses.items()},
        {value: pair[0] for value, pair in masses.items()},
        value_discretization_interval=1e-4,
    ).self_compose(30)
    theirs = theirs.compose(oracle.from_gaussian_mechanism(2.0, value_discretization_interval=1e-4))
    for delta in (1e-3, 1e-7):
        rounded_up = theirs.get_epsilon_for_delta(delta)  # each of 31 losses by at most 1e-4
        assert rounded_up - 31e-4 <= ours.epsilon_upper(delta) <= rounded_up


def test_repeating_is_composing_and_parts_are_merged():
    once = LossDistribution.from_atoms([0.7, 0.3], [0.4, 0.6])
    again = LossDistribution.from_atoms([0.7, 0.3], [0.4, 0.6])
    assert once == again
    assert once.compose(again).compose(once) == once.repeat(3)
    assert once.repeat(0) == LossDistribution()
    assert LossDistribution().epsilon_upper(1e-5) == LossDistribution().epsilon_upper(0.0) == 0
    assert LossDistribution().delta_upper(0.0) == 0
    twice = LossDistribution.gaussian(0.3).repeat(2)
    assert 0.18 <= twice.squared_mu <= 0.18 * (1 + 1e-15)


def test_renyi_and_pure_of_finite_pairs():
    first, second = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])
    once = LossDistribution.from_atoms(first, second)
    for alpha in (1.001, 2.0, 50.0):
        with mpmath.workdps(40):
            terms = (
                mpmath.mpf(p) ** alpha * mpmath.mpf(q) ** (1 - alpha)
                for p, q in zip(first, second, strict=True)
            )
            exact = 5 * mpmath.log(mpmath.fsum(terms)) / (alpha - 1)
        assert exact <= once.repeat(5).rdp_upper(alpha) <= exact * (1 + 1e-9) + 1e-9
    assert (
        math.log(5 / 3) * 7
        <= once.repeat(7).pure_epsilon_upper()
        <= math.log(5 / 3) * 7 * (1 + 1e-14)
    )


def test_the_rounding_of_transforms_is_inside_its_bound():
    """10 t u of the 2-norm, against sums in long double (which rounds 2000 times finer).

    The bound is not idle.
    """
    rng = np.random.default_rng(11)
    for bits in (6, 10):
        size = 2**bits
        values = rng.random(size)
        angles = 2 * np.pi * np.arange(size, dtype=np.longdouble) / size
        if np.finfo(np.longdouble).eps > 1e-18:
            pytest.skip("this platform's long double is a double")
        angles = (
            2
            * np.longdouble("3.14159265358979323846264338327950288")
            * np.arange(size, dtype=np.longdouble)
            / size
        )
        table = np.exp(-1j * angles)
        exact = np.array(
            [np.sum(values * table[(row * np.arange(size)) % size]) for row in range(size // 2 + 1)]
        )
        error = np.linalg.norm((fft.rfft(values) - exact).astype(np.complex128))
        allowed = 10 * bits * 2.0**-53 * np.linalg.norm(exact.astype(np.complex128))
        assert 0 < error <= allowed


def test_the_oracle_would_catch_losses_rounded_down(monkeypatch):
    """The enumeration above has teeth.

    Without the upward share of the chord, delta falls below the truth.
    """
    honest = convolution._on_grid

    def optimistic(losses, masses, step):
        places, spread = honest(losses, masses, step)
        return places[: losses.size], masses[: losses.size] + 0 * spread[: losses.size]

    first, second = np.array([0.5, 0.3, 0.2]), np.array([0.31, 0.29, 0.4])
    monkeypatch.setattr(convolution, "_on_grid", optimistic)
    monkeypatch.setattr(convolution, "LEAST_POINTS", 16)
    monkeypatch.setattr(convolution, "MOST_POINTS", 16)
    wrong = LossDistribution.from_atoms(first, second).repeat(4)
    assert wrong.delta_upper(0.5) < float(enumerated_delta([(first, second)] * 4, 0.5))


@pytest.mark.parametrize(
    "make",
    [
        lambda: LossDistribution.from_atoms([0.5, 0.4], [0.5, 0.5]),
        lambda: LossDistribution.from_atoms([0.5, 0.5], [0.5]),
        lambda: LossDistribution.from_atoms([math.nan, 1.0], [0.5, 0.5]),
        lambda: LossDistribution.from_atoms([1.0], [-1.0]),
        lambda: LossDistribution.from_profile([0.0, 0.0], [0.1, 0.1]),
        lambda: LossDistribution.from_profile([0.0, 1.0], [0.1, math.nan]),
        lambda: LossDistribution.from_profile([-1.0, 1.0], [0.1, 0.0], symmetric=True),
        lambda: LossDistribution.gaussian(math.nan),
        lambda: LossDistribution.pure(-1.0),
        lambda: LossDistribution.gaussian(1.0).delta_upper(math.nan),
        lambda: LossDistribution.gaussian(1.0).epsilon_upper(1.0),
        lambda: LossDistribution.gaussian(1.0).repeat(-1),
    ],
)
def test_refusals(make):
    with pytest.raises(QuietbitError):
        make()


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
    first, second = random_law(rng, size), random_law(rng, size)
    whole = LossDistribution.from_atoms(first, second).repeat(times)
    releases = [(first, second)] * times
    for epsilon in (0.0, 10.0 ** rng.uniform(-6, 1.3)):
        exact = min(
            1, enumerated_delta(releases, epsilon)
        )  # doubles may sum to a little more than 1
        assert exact <= whole.delta_upper(epsilon)
    for delta in (10.0 ** rng.uniform(-12, -4), 0.1):
        epsilon = whole.epsilon_upper(delta)
        assert epsilon == math.inf or enumerated_delta(releases, epsilon) <= delta


def test_a_sum_of_tiny_losses_beside_a_rare_large_one_stays_sharp():
    """What the grid spreads must not wrap round its window: delta(0) was 175 times too large."""
    first, second = np.array([3.2e-5, 1 - 3.2e-5]), np.array([3.1e-5, 1 - 3.1e-5])
    exact = float(enumerated_delta([(first, second)] * 8, 0.0))
    assert (
        exact
        <= LossDistribution.from_atoms(first, second).repeat(8).delta_upper(0.0)
        <= exact * (1 + 1e-4)
    )


def test_one_loss_only():
    """P sits on one output of Q.

    The window is a point, and epsilons below it are asked about too.
    """
    once = LossDistribution.from_atoms([1.0, 0.0], [0.25, 0.75])
    assert 1 - 0.25**3 <= once.repeat(3).delta_upper(0.0) <= (1 - 0.25**3) * (1 + 1e-8)
    assert once.repeat(3).epsilon_upper(0.5) == pytest.approx(
        3 * math.log(4) + math.log(0.5), rel=1e-7
    )


@pytest.mark.parametrize("mu", [0.05, 0.7, 3.0])
def test_a_gaussian_with_finite_pairs_is_a_mixture_of_closed_forms(mu):
    """Given the loss l of the finite releases, delta of the Gaussian at epsilon - l, averaged over
    P.
    """
    one, times = 0.3, 6
    whole = LossDistribution.pure(one).repeat(times).compose(LossDistribution.gaussian(mu))
    with mpmath.workdps(40):
        size, high = mpmath.mpf(mu), 1 / (1 + mpmath.exp(-mpmath.mpf(one)))
        for epsilon in (0.0, 0.4, 2.5, 8.0):
            exact = mpmath.mpf(0)
            for ones in range(times + 1):
                left = mpmath.mpf(epsilon) - (2 * ones - times) * mpmath.mpf(one)
                mass = mpmath.binomial(times, ones) * high**ones * (1 - high) ** (times - ones)
                tail = mpmath.ncdf(size / 2 - left / size) - mpmath.exp(left) * mpmath.ncdf(
                    -size / 2 - left / size
                )
                exact += mass * tail
            assert (
                exact
                <= whole.delta_upper(epsilon)
                <= exact * (1 + mpmath.mpf("1e-4")) + mpmath.mpf("1e-30")
            )


def test_the_larger_of_two_covers_a_server_that_chooses_between_them_as_it_goes() -> None:
    """The best of all choices over four releases, by dynamic programming.

    No delta is above that of four copies.
    """
    kinds = [
        ([0.55, 0.45], [0.5, 0.5]),
        ([0.3, 0.4, 0.3], [0.2, 0.3, 0.5]),
        ([0.9, 0.1], [0.8, 0.2]),
    ]
    singles = [LossDistribution.from_atoms(*pair) for pair in kinds]
    whole = singles[0].larger(singles[1]).larger(singles[2])

    def best(left: int, one: float, other: float, factor: float) -> float:
        """The most that P(O) - factor Q(O) can be, with densities so far."""
        if not left:
            return max(0.0, one - factor * other)
        return max(
            sum(best(left - 1, one * p, other * q, factor) for p, q in zip(*pair, strict=True))
            for pair in kinds
        )

    for epsilon in (0.0, 0.1, 0.4, 0.8, 1.2):
        found = whole.repeat(4).delta_upper(epsilon)
        assert best(4, 1.0, 1.0, math.exp(epsilon)) <= found * (1 + 1e-9) + 1e-12
        for one in singles:
            assert one.delta_upper(epsilon) <= whole.delta_upper(epsilon) * (1 + 1e-9) + 1e-15
    # The chord between two losses, where the pairs cross, is all that it adds to the larger.
    assert whole.delta_upper(0.0) < 1.03 * max(one.delta_upper(0.0) for one in singles)
    assert singles[0].larger(singles[0]) == singles[0]
    with refuses("releases", 2):
        singles[0].larger(singles[1].repeat(2))
