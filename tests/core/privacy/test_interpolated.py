import pytest

from core.exact.privacy_kit import rough, sigmoid_bit
from quietbit.design.table import DesignSpec
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.privacy.divergence import lipschitz_upper, zero_out_constant_upper
from quietbit.privacy.interpolated import interpolated_l1_cost, interpolated_l2_cost
from quietbit.target import Adjacency, Target, Trust, Unit
from quietbit_lab.design.search import solve

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
@pytest.mark.parametrize("beta", [1.0, 4.0])
def test_one_bit_is_a_gaussian_of_noise_multiplier_2_over_epsilon_beta(epsilon, beta):
    curve = interpolated_l2_cost(sigmoid_bit(epsilon), beta / 2, ZERO)
    assert curve.slope == pytest.approx((epsilon * beta / 2) ** 2 / 2, rel=1e-9)
    whole = interpolated_l2_cost(sigmoid_bit(epsilon), beta, REPLACE)
    assert whole.slope == pytest.approx(4 * curve.slope, rel=1e-12)


def test_l1_uses_the_constant_of_its_adjacency():
    design = rough(5, 2, 5.0, 0)
    for adjacency, constant in ((ZERO, zero_out_constant_upper), (REPLACE, lipschitz_upper)):
        pure = interpolated_l1_cost(design, 0.5, adjacency).pure_epsilon()
        assert pure == pytest.approx(constant(design) / 2, rel=1e-12)


def test_an_l1_ball_never_costs_more_than_one_of_its_bounds_alone():
    """At delta = 0 the pure bound answers, at a positive one the Rényi account helps."""
    once = interpolated_l1_cost(rough(5, 2, 1.0, 0), 0.5, ZERO)
    alone = Cost.pure(once.pure_epsilon())
    assert once.epsilon(0.0) == alone.epsilon(0.0)
    assert (once * 50).epsilon(1e-5) < 0.9 * (alone * 50).epsilon(1e-5)


def test_fifty_releases_of_an_l1_ball_cost_what_the_pure_bound_proves():
    design = solve(DesignSpec(4, 2, 1.0), cache=False)
    many = interpolated_l1_cost(design, 0.5, ZERO) * 50
    assert many.answered_by(1e-5) == "privacy-loss distribution"
    assert many.epsilon(1e-5) == pytest.approx(21.0392, abs=1e-4)
    spent = many.of(ZERO, Unit.CLIENT, Trust.LOCAL)
    adaptive = Account(Target(22.0, 1e-5, ZERO), "adaptive").spend(spent)
    assert 21.0392 < adaptive.epsilon() < 21.2


def test_more_levels_give_a_curve_that_grows_with_the_squared_distance():
    small, large = (interpolated_l2_cost(rough(5, 2, 5.0, 0), d, REPLACE) for d in (0.5, 1.0))
    assert large.rdp(3.0) == pytest.approx(4 * small.rdp(3.0), rel=1e-12)
