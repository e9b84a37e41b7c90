"""Updates that leave a device differentially private and packed to about one bit per parameter.

Idea     this list is the whole public surface; what is not in it may change. A name is imported when it is
         first used, so that ``import quietbit`` is instant and needs numpy and scipy at most.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quietbit._validate import InvalidDesignFile, InvalidParameter, MissingDependency, QuietbitError
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
    from quietbit.mechanism.clipping import Ball, Norm
    from quietbit.mechanism.dithered import DitheredMVU
    from quietbit.mechanism.gaussian import Gaussian
    from quietbit.mechanism.interpolated import InterpolatedMVU
    from quietbit.mechanism.laplace import Laplace
    from quietbit.mechanism.sign import Sign
    from quietbit.mechanism.skellam import Skellam
    from quietbit.payload.header import InvalidPayload
    from quietbit.privacy.curve import (
        ComposedCurve,
        FunctionCurve,
        GaussianCurve,
        LinearCurve,
        PrivacyCurve,
        PureCurve,
    )
    from quietbit.privacy.divergence import lipschitz_upper, paper_constant_upper, zero_out_constant_upper
    from quietbit.privacy.dp_events import dp_event
    from quietbit.privacy.fisher import fisher_supremum_upper
    from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit
    from quietbit.privacy.ledger import Ledger
    from quietbit.privacy.renyi import kappa_upper
    from quietbit.report.bias_variance import plot_bias_variance
    from quietbit.report.design_plot import plot_design
    from quietbit.report.figure import save_figure
    from quietbit.report.training import plot_training
    from quietbit.task.registry import TaskSpec, build_task
    from quietbit.transport.aggregate import Aggregator, Received
    from quietbit.transport.uplink import Uplink

    __version__: str

# Where each public name lives; a test holds it against the imports above and against ``__all__``.
_HOMES = {
    "_validate": ("InvalidDesignFile", "InvalidParameter", "MissingDependency", "QuietbitError"),
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
    "mechanism.clipping": ("Ball", "Norm"),
    "mechanism.dithered": ("DitheredMVU",),
    "mechanism.gaussian": ("Gaussian",),
    "mechanism.interpolated": ("InterpolatedMVU",),
    "mechanism.laplace": ("Laplace",),
    "mechanism.sign": ("Sign",),
    "mechanism.skellam": ("Skellam",),
    "payload.header": ("InvalidPayload",),
    "privacy.curve": ("ComposedCurve", "FunctionCurve", "GaussianCurve", "LinearCurve", "PrivacyCurve", "PureCurve"),
    "privacy.divergence": ("lipschitz_upper", "paper_constant_upper", "zero_out_constant_upper"),
    "privacy.dp_events": ("dp_event",),
    "privacy.fisher": ("fisher_supremum_upper",),
    "privacy.guarantee": ("Adjacency", "Guarantee", "Trust", "Unit"),
    "privacy.ledger": ("Ledger",),
    "privacy.renyi": ("kappa_upper",),
    "report.bias_variance": ("plot_bias_variance",),
    "report.design_plot": ("plot_design",),
    "report.figure": ("save_figure",),
    "report.training": ("plot_training",),
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
    "Mechanism",
    "MissingDependency",
    "Norm",
    "PrivacyCurve",
    "PureCurve",
    "QuietbitError",
    "RandomWords",
    "Received",
    "Settings",
    "Sign",
    "Skellam",
    "TaskSpec",
    "Trust",
    "Unit",
    "Uplink",
    "__version__",
    "audit",
    "build_task",
    "calibrate",
    "catalogue",
    "certify",
    "dp_event",
    "fisher_supremum_upper",
    "kappa_upper",
    "lipschitz_upper",
    "paper_constant_upper",
    "plot_bias_variance",
    "plot_design",
    "plot_training",
    "save_figure",
    "secure_words",
    "seeded_words",
    "simulate",
    "solve",
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
