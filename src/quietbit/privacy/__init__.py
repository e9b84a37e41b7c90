"""What a release costs: constants of the mechanisms, costs, accounts and guarantees."""

from quietbit.privacy.account import Account
from quietbit.privacy.baselines import (
    dithered_l1_cost,
    dithered_l2_cost,
    reference_row,
    skellam_cost,
    skellam_rdp_upper,
)
from quietbit.privacy.bits import dominated_l2_cost, dominating_square_upper
from quietbit.privacy.blanket import Blanket
from quietbit.privacy.conversion import epsilon_from_linear, epsilon_from_rdp
from quietbit.privacy.cost import Cost, sampling_slack_upper
from quietbit.privacy.divergence import (
    lipschitz_upper,
    max_divergence,
    paper_constant_upper,
    smallest_probability_lower,
    through_centre_constant_upper,
    zero_out_constant_upper,
)
from quietbit.privacy.dp_events import dp_event
from quietbit.privacy.gaussian import gaussian_epsilon_upper
from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit, sensitivity
from quietbit.privacy.interpolated import interpolated_l1_cost, interpolated_l2_cost
from quietbit.privacy.loss import LossDistribution
from quietbit.privacy.observers import GuaranteePair
from quietbit.privacy.renyi import RenyiConstant, fisher_information, fisher_supremum_upper, kappa_upper
from quietbit.privacy.shuffle import BlanketPair, Shuffle, clones, shuffled_cost, through_zero

__all__ = [
    "Account",
    "Adjacency",
    "Blanket",
    "BlanketPair",
    "Cost",
    "Guarantee",
    "GuaranteePair",
    "LossDistribution",
    "RenyiConstant",
    "Shuffle",
    "Trust",
    "Unit",
    "clones",
    "dithered_l1_cost",
    "dithered_l2_cost",
    "dominated_l2_cost",
    "dominating_square_upper",
    "dp_event",
    "epsilon_from_linear",
    "epsilon_from_rdp",
    "fisher_information",
    "fisher_supremum_upper",
    "gaussian_epsilon_upper",
    "interpolated_l1_cost",
    "interpolated_l2_cost",
    "kappa_upper",
    "lipschitz_upper",
    "max_divergence",
    "paper_constant_upper",
    "reference_row",
    "sampling_slack_upper",
    "sensitivity",
    "shuffled_cost",
    "skellam_cost",
    "skellam_rdp_upper",
    "smallest_probability_lower",
    "through_centre_constant_upper",
    "through_zero",
    "zero_out_constant_upper",
]
