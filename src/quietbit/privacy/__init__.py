"""What a release costs: constants of the mechanisms, curves, ledgers and guarantees."""

from quietbit.privacy.baselines import (
    dithered_l1_curve,
    dithered_l2_curve,
    reference_row,
    skellam_curve,
    skellam_rdp_upper,
)
from quietbit.privacy.bits import dominated_l2_curve, dominating_square_upper
from quietbit.privacy.blanket import Blanket
from quietbit.privacy.conversion import epsilon_from_linear, epsilon_from_rdp
from quietbit.privacy.curve import (
    ComposedCurve,
    DeltaCurve,
    FunctionCurve,
    GaussianCurve,
    GaussianPairCurve,
    LinearCurve,
    PrivacyCurve,
    PureCurve,
    SlackCurve,
    sampling_slack_upper,
    total,
    with_delta,
    with_slack,
)
from quietbit.privacy.divergence import (
    lipschitz_upper,
    max_divergence,
    paper_constant_upper,
    smallest_probability_lower,
    through_centre_constant_upper,
    zero_out_constant_upper,
)
from quietbit.privacy.dominating import DominatingCurve
from quietbit.privacy.dp_events import dp_event
from quietbit.privacy.filter import filter_epsilon_upper
from quietbit.privacy.gaussian import gaussian_epsilon_upper
from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit, sensitivity
from quietbit.privacy.interpolated import interpolated_l1_curve, interpolated_l2_curve
from quietbit.privacy.ledger import Ledger
from quietbit.privacy.loss import LossDistribution
from quietbit.privacy.observers import GuaranteePair
from quietbit.privacy.release import Release
from quietbit.privacy.renyi import RenyiConstant, fisher_information, fisher_supremum_upper, kappa_upper
from quietbit.privacy.shuffle import BlanketPair, ShuffledCurve, clones, shuffled_curve, through_zero

__all__ = [
    "Adjacency",
    "Blanket",
    "BlanketPair",
    "ComposedCurve",
    "DeltaCurve",
    "DominatingCurve",
    "FunctionCurve",
    "GaussianCurve",
    "GaussianPairCurve",
    "Guarantee",
    "GuaranteePair",
    "Ledger",
    "LinearCurve",
    "LossDistribution",
    "PrivacyCurve",
    "PureCurve",
    "Release",
    "RenyiConstant",
    "ShuffledCurve",
    "SlackCurve",
    "Trust",
    "Unit",
    "clones",
    "dithered_l1_curve",
    "dithered_l2_curve",
    "dominated_l2_curve",
    "dominating_square_upper",
    "dp_event",
    "epsilon_from_linear",
    "epsilon_from_rdp",
    "filter_epsilon_upper",
    "fisher_information",
    "fisher_supremum_upper",
    "gaussian_epsilon_upper",
    "interpolated_l1_curve",
    "interpolated_l2_curve",
    "kappa_upper",
    "lipschitz_upper",
    "max_divergence",
    "paper_constant_upper",
    "reference_row",
    "sampling_slack_upper",
    "sensitivity",
    "shuffled_curve",
    "skellam_curve",
    "skellam_rdp_upper",
    "smallest_probability_lower",
    "through_centre_constant_upper",
    "through_zero",
    "total",
    "with_delta",
    "with_slack",
    "zero_out_constant_upper",
]
