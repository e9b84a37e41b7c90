import pytest

from exact.privacy_kit import rough, sigmoid_bit
from quietbit.privacy.cost import Cost
from quietbit.privacy.divergence import lipschitz_upper, zero_out_constant_upper
from quietbit.privacy.interpolated import interpolated_l1_cost, interpolated_l2_cost
from quietbit.target import Adjacency
from refusals import refuses


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
@pytest.mark.parametrize("beta", [1.0, 4.0])
def test_one_bit_is_a_gaussian_of_noise_multiplier_2_over_epsilon_beta(epsilon, beta):
    curve = interpolated_l2_cost(sigmoid_bit(epsilon), beta / 2, Adjacency.ZERO_OUT)
    assert curve.slope == pytest.approx((epsilon * beta / 2) ** 2 / 2, rel=1e-9)
    whole = interpolated_l2_cost(sigmoid_bit(epsilon), beta, Adjacency.REPLACE_ONE)
    assert whole.slope == pytest.approx(4 * curve.slope, rel=1e-12)


def test_l1_uses_the_constant_of_its_adjacency():
    design = rough(5, 2, 5.0, 0)
    zero_out = interpolated_l1_cost(design, 0.5, Adjacency.ZERO_OUT)
    assert zero_out.pure_epsilon() == pytest.approx(zero_out_constant_upper(design) / 2, rel=1e-12)
    replace = interpolated_l1_cost(design, 1.0, Adjacency.REPLACE_ONE)
    assert replace.pure_epsilon() == pytest.approx(lipschitz_upper(design), rel=1e-12)


def test_the_renyi_account_of_an_l1_ball_helps_at_positive_delta_only():
    design = rough(5, 2, 1.0, 0)
    both = interpolated_l1_cost(design, 0.5, Adjacency.ZERO_OUT)
    plain = Cost.pure(both.pure_epsilon())
    assert both.epsilon(0.0) == plain.epsilon(0.0)
    assert (both * 50).epsilon(1e-5) < 0.9 * (plain * 50).epsilon(1e-5)


def test_more_levels_give_a_finite_curve_that_grows_with_the_distance():
    design = rough(5, 2, 5.0, 0)
    small, large = (interpolated_l2_cost(design, d, Adjacency.REPLACE_ONE) for d in (0.5, 1.0))
    assert large.rdp(3.0) == pytest.approx(4 * small.rdp(3.0), rel=1e-12)
    assert (small * 20).epsilon(1e-5) < (large * 20).epsilon(1e-5) < 1e4


def test_refuses_a_distance_that_is_none():
    for function in (interpolated_l1_cost, interpolated_l2_cost):
        with refuses("distance", 0.0):
            function(sigmoid_bit(1.0), 0.0, Adjacency.ZERO_OUT)
