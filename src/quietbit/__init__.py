"""Updates that leave a device differentially private and packed to about one bit per parameter.

Idea     this list is the whole public surface; what is not in it may change. A name is imported when it is
         first used, so that ``import quietbit`` is instant and needs numpy and scipy at most.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quietbit._validate import InvalidDesignFile, InvalidParameter, MissingDependency, QuietbitError
    from quietbit.design.binomial import binomial_design
    from quietbit.design.catalogue import catalogue
    from quietbit.design.certify import Certificate, certify
    from quietbit.design.solve import solve
    from quietbit.design.spec import DesignSpec
    from quietbit.design.table import Design
    from quietbit.federation.settings import Settings
    from quietbit.federation.simulate import simulate
    from quietbit.kernel.words import RandomWords, secure_words, seeded_words
    from quietbit.mechanism.audit import Audit, audit
    from quietbit.mechanism.base import Mechanism
    from quietbit.mechanism.calibrate import Calibration, calibrate
    from quietbit.mechanism.central_sum import SumCalibration, calibrate_sum, mean_from_sum
    from quietbit.mechanism.clipping import Ball, Norm
    from quietbit.mechanism.dithered import DitheredMVU
    from quietbit.mechanism.gaussian import Gaussian
    from quietbit.mechanism.interpolated import InterpolatedMVU
    from quietbit.mechanism.laplace import Laplace
    from quietbit.mechanism.sign import Sign
    from quietbit.mechanism.skellam import Skellam
    from quietbit.mechanism.sum_comparison import SumRow, compare_sums
    from quietbit.payload.header import InvalidPayload
    from quietbit.privacy.curve import (
        ComposedCurve,
        FunctionCurve,
        GaussianCurve,
        LinearCurve,
        PrivacyCurve,
        PureCurve,
    )
    from quietbit.privacy.divergence import (
        lipschitz_upper,
        paper_constant_upper,
        through_centre_constant_upper,
        zero_out_constant_upper,
    )
    from quietbit.privacy.dp_events import dp_event
    from quietbit.privacy.fisher import fisher_supremum_upper
    from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit
    from quietbit.privacy.ledger import Ledger
    from quietbit.privacy.renyi import kappa_upper
    from quietbit.privacy.subsampling import secret_cohort_curve
    from quietbit.report.bias_variance import plot_bias_variance
    from quietbit.report.design_plot import plot_design
    from quietbit.report.figure import save_figure
    from quietbit.report.page import render_page, save_page
    from quietbit.report.runs import read_placed_runs
    from quietbit.report.secure_aggregation import plot_secure_aggregation
    from quietbit.report.training import plot_training
    from quietbit.secure.plan import ProtocolError, SumPlan
    from quietbit.secure.server import MaskedSum, masked_sum
    from quietbit.task.linear_batch import train_many
    from quietbit.task.registry import TaskSpec, build_task
    from quietbit.transport.aggregate import Aggregator, Received
    from quietbit.transport.uplink import Uplink

    __version__: str

# Where each public name lives; a test holds it against the imports above and against ``__all__``.
_HOMES = {
    "_validate": ("InvalidDesignFile", "InvalidParameter", "MissingDependency", "QuietbitError"),
    "design.binomial": ("binomial_design",),
    "design.catalogue": ("catalogue",),
    "design.certify": ("Certificate", "certify"),
    "design.solve": ("solve",),
    "design.spec": ("DesignSpec",),
    "design.table": ("Design",),
    "federation.settings": ("Settings",),
    "federation.simulate": ("simulate",),
    "kernel.words": ("RandomWords", "secure_words", "seeded_words"),
    "mechanism.audit": ("Audit", "audit"),
    "mechanism.base": ("Mechanism",),
    "mechanism.calibrate": ("Calibration", "calibrate"),
    "mechanism.central_sum": ("SumCalibration", "calibrate_sum", "mean_from_sum"),
    "mechanism.clipping": ("Ball", "Norm"),
    "mechanism.dithered": ("DitheredMVU",),
    "mechanism.gaussian": ("Gaussian",),
    "mechanism.interpolated": ("InterpolatedMVU",),
    "mechanism.laplace": ("Laplace",),
    "mechanism.sign": ("Sign",),
    "mechanism.skellam": ("Skellam",),
    "mechanism.sum_comparison": ("SumRow", "compare_sums"),
    "payload.header": ("InvalidPayload",),
    "privacy.curve": ("ComposedCurve", "FunctionCurve", "GaussianCurve", "LinearCurve", "PrivacyCurve", "PureCurve"),
    "privacy.divergence": (
        "lipschitz_upper",
        "paper_constant_upper",
        "through_centre_constant_upper",
        "zero_out_constant_upper",
    ),
    "privacy.dp_events": ("dp_event",),
    "privacy.fisher": ("fisher_supremum_upper",),
    "privacy.guarantee": ("Adjacency", "Guarantee", "Trust", "Unit"),
    "privacy.ledger": ("Ledger",),
    "privacy.renyi": ("kappa_upper",),
    "privacy.subsampling": ("secret_cohort_curve",),
    "report.bias_variance": ("plot_bias_variance",),
    "report.design_plot": ("plot_design",),
    "report.figure": ("save_figure",),
    "report.page": ("render_page", "save_page"),
    "report.runs": ("read_placed_runs",),
    "report.secure_aggregation": ("plot_secure_aggregation",),
    "report.training": ("plot_training",),
    "secure.plan": ("ProtocolError", "SumPlan"),
    "secure.server": ("MaskedSum", "masked_sum"),
    "task.linear_batch": ("train_many",),
    "task.registry": ("TaskSpec", "build_task"),
    "transport.aggregate": ("Aggregator", "Received"),
    "transport.uplink": ("Uplink",),
}

__all__ = [
    "Adjacency",
    "Aggregator",
    "Audit",
    "Ball",
    "Calibration",
    "Certificate",
    "ComposedCurve",
    "Design",
    "DesignSpec",
    "DitheredMVU",
    "FunctionCurve",
    "Gaussian",
    "GaussianCurve",
    "Guarantee",
    "InterpolatedMVU",
    "InvalidDesignFile",
    "InvalidParameter",
    "InvalidPayload",
    "Laplace",
    "Ledger",
    "LinearCurve",
    "MaskedSum",
    "Mechanism",
    "MissingDependency",
    "Norm",
    "PrivacyCurve",
    "ProtocolError",
    "PureCurve",
    "QuietbitError",
    "RandomWords",
    "Received",
    "Settings",
    "Sign",
    "Skellam",
    "SumCalibration",
    "SumPlan",
    "SumRow",
    "TaskSpec",
    "Trust",
    "Unit",
    "Uplink",
    "__version__",
    "audit",
    "binomial_design",
    "build_task",
    "calibrate",
    "calibrate_sum",
    "catalogue",
    "certify",
    "compare_sums",
    "dp_event",
    "fisher_supremum_upper",
    "kappa_upper",
    "lipschitz_upper",
    "masked_sum",
    "mean_from_sum",
    "paper_constant_upper",
    "plot_bias_variance",
    "plot_design",
    "plot_secure_aggregation",
    "plot_training",
    "read_placed_runs",
    "render_page",
    "save_figure",
    "save_page",
    "secret_cohort_curve",
    "secure_words",
    "seeded_words",
    "simulate",
    "solve",
    "through_centre_constant_upper",
    "train_many",
    "zero_out_constant_upper",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and so refuses names that do not exist

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            value: Any = importlib.import_module("importlib.metadata").version("quietbit")
        else:
            home = next((home for home, names in _HOMES.items() if name in names), None)
            if home is None:
                raise AttributeError(f"module 'quietbit' has no attribute {name!r}")
            value = getattr(importlib.import_module(f"quietbit.{home}"), name)
        globals()[name] = value  # looked up once
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
