"""Numbers, tables and terms that no account takes: one table over all functions of the folder."""

import math

import pytest

from core.exact.privacy_kit import rough, sigmoid_bit
from quietbit.design.profile import Profile
from quietbit.design.solve import closed_design
from quietbit.design.table import DesignSpec
from quietbit.privacy.account import Account
from quietbit.privacy.aggregate import AggregateConstant
from quietbit.privacy.conversion import (
    dominating_square_upper,
    epsilon_from_linear,
    epsilon_from_rdp,
    gaussian_epsilon_upper,
)
from quietbit.privacy.cost import Cost, sampling_slack_upper
from quietbit.privacy.divergence import (
    lipschitz_upper,
    smallest_probability_lower,
    zero_out_constant_upper,
)
from quietbit.privacy.fisher import fisher_supremum_upper
from quietbit.privacy.guarantee import Guarantee
from quietbit.privacy.interpolated import (
    dominated_l2_cost,
    interpolated_l1_cost,
    interpolated_l2_cost,
)
from quietbit.privacy.loss import LossDistribution
from quietbit.privacy.profile import certify_profile, profile_cost
from quietbit.privacy.renyi import RenyiConstant
from quietbit.target import Adjacency, Target, Trust, Unit, check_delta
from quietbit_lab.baseline.lemma_1 import paper_constant_upper
from refusals import refuses

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
TERMS = (ZERO, Unit.CLIENT, Trust.LOCAL)
DESIGN, THREE = sigmoid_bit(1.0), rough(3, 2, 2.0, 0)
GAUSSIAN, PAIR = Cost.gaussian(0.02), Cost.from_masses([0.6, 0.4], [0.4, 0.6])
PROFILE = Profile.from_weights([-0.6, 0.9], [1.0, 1.2, 1.6])
CONSTANT = RenyiConstant(THREE, 0.0, 1.0, ZERO)
NORMAL = LossDistribution.gaussian(1.0)

NUMBERS = [-1.0, math.nan, math.inf, "1", None, True]
BELOW_ZERO = [-1.0, math.nan]
DELTAS = [-1e-9, 1.0, math.nan]
RANGES = [(1.0, 0.0), (0.5, 0.5), (math.nan, 1.0), (0.0, math.inf)]

REFUSED = [
    ("epsilon", Cost.pure, NUMBERS),
    ("slope", Cost.linear, NUMBERS),
    ("pair_slope", Cost.gaussian, NUMBERS),
    ("pair_slope", lambda bad: Cost.gaussian(bad, 0.1), BELOW_ZERO),
    ("pure", lambda bad: Cost.renyi(float, bad), BELOW_ZERO),
    ("alpha", GAUSSIAN.rdp, [1.0, 0.5, math.nan]),
    ("times", GAUSSIAN.__mul__, [-1, 1.5, "3", True, math.nan]),
    ("lost mass", PAIR.with_lost, DELTAS),
    ("slack", PAIR.with_slack, [-1e-9, math.inf, math.nan]),
    ("delta", PAIR.epsilon, DELTAS),
    ("smallest probability of a symbol", lambda bad: sampling_slack_upper(9, bad, bad), [1e-9]),
    ("releases of the cost", GAUSSIAN.tightened, [PAIR * 2]),
    ("error of the sampler", GAUSSIAN.tightened, [PAIR.with_slack(1e-9)]),
    ("adjacency", GAUSSIAN.guarantee, [1e-5]),
    ("adjacency", lambda trust: GAUSSIAN.under(trust=trust), [Trust.LOCAL]),
    ("adjacency", lambda terms: GAUSSIAN.of(*terms).of(*terms), [TERMS]),
    ("adjacency", lambda bad: GAUSSIAN.of(bad, *TERMS[1:]), ["zero-out"]),
    ("unit", lambda bad: GAUSSIAN.of(ZERO, bad, Trust.LOCAL), ["client"]),
    ("trust", lambda bad: GAUSSIAN.of(*TERMS[:2], bad), ["local"]),
    ("samples", lambda bad: GAUSSIAN.of(ZERO, Unit.SAMPLE, Trust.LOCAL, bad), [None, 0]),
    ("samples", lambda bad: GAUSSIAN.of(*TERMS, bad), [3]),
    ("times", lambda bad: Account(Target(1.0, 0.1, ZERO)).spend(GAUSSIAN.of(*TERMS), bad), [-1]),
    ("mode", lambda bad: Account(Target(1.0, 1e-5, ZERO), bad), ["hopeful"]),
    ("epsilon", lambda bad: Account(Target(bad, 1e-5, ZERO), "adaptive"), [math.inf]),
    ("epsilon_upper", lambda bad: Guarantee(bad, 0.0, Unit.CLIENT, ZERO, Trust.LOCAL), BELOW_ZERO),
    ("unit", lambda bad: Guarantee(1.0, 0.0, bad, ZERO, Trust.LOCAL), ["client"]),
    ("delta", check_delta, [*DELTAS, 2, math.inf, "0.1", None, True]),
    ("slope", lambda bad: epsilon_from_linear(bad, 1e-5), BELOW_ZERO),
    ("slope", lambda bad: gaussian_epsilon_upper(bad, 1e-5), BELOW_ZERO),
    ("delta", lambda bad: epsilon_from_linear(1.0, bad), DELTAS),
    ("delta", lambda bad: gaussian_epsilon_upper(1.0, bad), DELTAS),
    ("orders", lambda bad: epsilon_from_rdp(float, 1e-5, bad), [[0.5], []]),
    ("budget", lambda bad: dominating_square_upper(bad, 0.1, one_bit=True), BELOW_ZERO),
    ("largest", lambda bad: dominating_square_upper(1.0, bad, one_bit=True), BELOW_ZERO),
    ("distance", lambda bad: dominated_l2_cost(DESIGN, bad, 0.1, 0.4, 0.6), [0.0, math.nan]),
    ("largest", lambda bad: dominated_l2_cost(DESIGN, 0.5, bad, 0.4, 0.6), BELOW_ZERO),
    ("input_levels", lambda bad: dominated_l2_cost(bad, 0.5, 0.1, 0.4, 0.6), [THREE]),
    ("input_levels", fisher_supremum_upper, [THREE]),
    ("distance", lambda bad: interpolated_l1_cost(DESIGN, bad, ZERO), [0.0]),
    ("distance", lambda bad: interpolated_l2_cost(DESIGN, bad, ZERO), [0.0]),
    ("input range", lambda bad: lipschitz_upper(THREE, *bad), RANGES),
    ("input range", lambda bad: paper_constant_upper(THREE, *bad), RANGES),
    ("input range", lambda bad: smallest_probability_lower(THREE, *bad), RANGES),
    ("input range", lambda bad: zero_out_constant_upper(THREE, *bad), [*RANGES, (0.6, 1.0)]),
    ("input range", lambda bad: RenyiConstant(THREE, *bad, ZERO), [(0.6, 1.0)]),
    ("input range", lambda bad: RenyiConstant(THREE, *bad, REPLACE), RANGES),
    ("adjacency", lambda bad: RenyiConstant(THREE, 0.0, 1.0, bad), ["nearby"]),
    ("alpha", CONSTANT.upper, [1.0, 0.2, math.nan, math.inf, "2"]),
    ("alpha", CONSTANT, [1.0, math.nan]),
    ("clients", lambda bad: AggregateConstant(DESIGN, 0, 1, bad, ZERO), [1, 100_001, 2.5]),
    ("input range", lambda bad: AggregateConstant(DESIGN, *bad, 10, ZERO), [(0.6, 1)]),
    ("input range", lambda bad: AggregateConstant(DESIGN, *bad, 10, REPLACE), RANGES),
    (
        "output bits of the design",
        lambda bad: AggregateConstant(bad, 0, 1, 10, ZERO),
        [closed_design(DesignSpec(2, 2, 1.0))],
    ),
    ("sum of upper", lambda bad: LossDistribution.from_atoms(bad, [0.5, 0.5]), [[0.5, 0.4]]),
    ("lower", lambda bad: LossDistribution.from_atoms([0.5, 0.5], bad), [[0.5], [math.nan, 0.5]]),
    ("lower", lambda bad: LossDistribution.from_atoms([1.0], bad), [[-1.0]]),
    ("upper", lambda bad: LossDistribution.from_atoms(bad, [0.5, 0.5]), [[math.nan, 1.0], []]),
    ("epsilons", lambda bad: LossDistribution.from_profile(bad, [0.1, 0.1]), [[0.0, 0.0]]),
    ("deltas", lambda bad: LossDistribution.from_profile([0.0, 1.0], bad), [[0.1, math.nan]]),
    (
        "epsilons",
        lambda bad: LossDistribution.from_profile(bad, [0.1, 0.0], symmetric=True),
        [[-1.0, 1.0]],
    ),
    ("mu", LossDistribution.gaussian, BELOW_ZERO),
    ("epsilon", LossDistribution.pure, BELOW_ZERO),
    ("epsilon", NORMAL.delta_upper, [*BELOW_ZERO, math.inf]),
    ("delta", NORMAL.epsilon_upper, DELTAS),
    ("alpha", NORMAL.rdp_upper, [1.0, math.nan]),
    ("times", NORMAL.repeat, [-1]),
    ("adjacency", lambda bad: certify_profile(PROFILE, bad), ["nearby"]),
    ("releases", lambda bad: certify_profile(PROFILE, ZERO, bad), [0]),
    ("delta", lambda bad: certify_profile(PROFILE, ZERO, 1, bad), DELTAS),
    ("profile", lambda bad: certify_profile(bad, ZERO), ["profile"]),
    ("blur", lambda bad: profile_cost(PROFILE, ZERO, bad), [1e-3, -1e-9]),
]


@pytest.mark.parametrize(
    ("name", "function", "bad"),
    [(name, function, bad) for name, function, values in REFUSED for bad in values],
)
def test_refuses(name, function, bad):
    with refuses(name):
        function(bad)


def test_only_costs_add_up():
    with pytest.raises(TypeError, match="unsupported operand"):
        GAUSSIAN + 3.0
