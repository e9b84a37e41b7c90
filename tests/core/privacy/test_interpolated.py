import pytest

from core.exact.privacy_kit import rough, sigmoid_bit
from quietbit.design.table import DesignSpec
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.privacy.divergence import lipschitz_upper, zero_out_constant_upper
from quietbit.privacy.interpolated import interpolated_l1_cost, interpolated_l2_cost
from quietbit.target import Adjacency, Target, Trust, Unit
from quietbit_lab.design.search import solve
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("epsilon", "adjacency", "distance"),
    [
        (0.5, Adjacency.ZERO_OUT, 0.5),
        (1.0, Adjacency.REPLACE_ONE, 1.0),
        (2.0, Adjacency.ZERO_OUT, 1.0),
    ],
)
def test_an_l1_ball_never_costs_more_than_one_of_its_bounds_alone(epsilon, adjacency, distance):
    """Four levels, two bits, fifty releases: no account of a part is below that of the whole."""
    design = solve(DesignSpec(4, 2, epsilon), cache=False)
    once = interpolated_l1_cost(design, distance, adjacency)
    both = once * 50
    alone = Cost.pure(once.pure_epsilon()) * 50
    renyi = interpolated_l2_cost(design, distance, adjacency) * 50
    assert both.epsilon(1e-5) <= min(alone.epsilon(1e-5), renyi.epsilon(1e-5))


def test_fifty_releases_of_an_l1_ball_cost_what_the_pure_bound_proves():
    design = solve(DesignSpec(4, 2, 1.0), cache=False)
    cost = interpolated_l1_cost(design, 0.5, Adjacency.ZERO_OUT) * 50
    assert cost.epsilon(1e-5) == pytest.approx(21.0392, abs=1e-4)
    assert cost.answered_by(1e-5) == "privacy-loss distribution"
    assert cost.accounts(1e-5)["Rényi"] == pytest.approx(21.9065, abs=1e-4)
    alone = Cost.pure(interpolated_l1_cost(design, 0.5, Adjacency.ZERO_OUT).pure_epsilon())
    assert cost.epsilon(1e-5) <= (alone * 50).epsilon(1e-5)
    adaptive = Account(Target(22.0, 1e-5, Adjacency.ZERO_OUT), "adaptive").spend(_of_client(cost))
    assert 21.0392 < adaptive.epsilon() < 21.2


def _of_client(cost: Cost) -> Cost:
    return cost.of(Adjacency.ZERO_OUT, Unit.CLIENT, Trust.LOCAL)


def test_more_levels_give_a_finite_curve_that_grows_with_the_distance():
    design = rough(5, 2, 5.0, 0)
    small, large = (interpolated_l2_cost(design, d, Adjacency.REPLACE_ONE) for d in (0.5, 1.0))
    assert large.rdp(3.0) == pytest.approx(4 * small.rdp(3.0), rel=1e-12)
    assert (small * 20).epsilon(1e-5) < (large * 20).epsilon(1e-5) < 1e4


def test_refuses_a_distance_that_is_none():
    for function in (interpolated_l1_cost, interpolated_l2_cost):
        with refuses("distance", 0.0):
            function(sigmoid_bit(1.0), 0.0, Adjacency.ZERO_OUT)
