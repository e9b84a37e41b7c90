"""Updates that leave a device differentially private and packed to about one bit per parameter.

Idea     this list is the whole public surface; what is not in it may change. A name is imported when it is
         first used, so that ``import quietbit`` is instant and needs numpy and scipy at most.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quietbit.auditor.audit import Audit, audit
    from quietbit.design.catalogue import catalogue
    from quietbit.design.certify import Certificate, certify
    from quietbit.design.solve import solve
    from quietbit.design.spec import DesignSpec
    from quietbit.design.table import Design
    from quietbit.errors import InvalidDesignFile, InvalidParameter, InvalidPayload, MissingDependency, QuietbitError
    from quietbit.kernel.rng import RandomBits, secure_rng, seeded_rng
    from quietbit.mechanism.additive import Gaussian, Laplace, Sign
    from quietbit.mechanism.ball import Ball, Norm
    from quietbit.mechanism.base import Mechanism
    from quietbit.mechanism.calibrate import Calibration, calibrate
    from quietbit.mechanism.central_sum import SumCalibration, calibrate_sum
    from quietbit.mechanism.dithered import DitheredMVU
    from quietbit.mechanism.expectation import Expectation, expectation
    from quietbit.mechanism.interpolated import InterpolatedMVU
    from quietbit.mechanism.shuffled import shuffled_privacy
    from quietbit.mechanism.skellam import Skellam
    from quietbit.mechanism.vector import VectorMVU
    from quietbit.mechanism.watched import Watched
    from quietbit.plan.clip import MovingClip
    from quietbit.plan.compare import Comparison, compare
    from quietbit.plan.plan import Plan
    from quietbit.privacy.curve import PrivacyCurve
    from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit
    from quietbit.privacy.ledger import Ledger
    from quietbit.privacy.observers import GuaranteePair
    from quietbit.privacy.release import Release
    from quietbit.secagg.identity import Directory, Identity
    from quietbit.secagg.plan import ProtocolError, SumPlan
    from quietbit.secagg.server import MaskedSum, masked_sum
    from quietbit.target import Target
    from quietbit.wire.aggregate import Aggregator, Received
    from quietbit.wire.group_norm import group_norm
    from quietbit.wire.uplink import Uplink

    __version__: str

# Where each public name lives; a test holds it against the imports above and against ``__all__``.
_HOMES = {
    "errors": (
        "InvalidDesignFile",
        "InvalidParameter",
        "InvalidPayload",
        "MissingDependency",
        "QuietbitError",
    ),
    "auditor.audit": (
        "Audit",
        "audit",
    ),
    "design.catalogue": ("catalogue",),
    "design.certify": (
        "Certificate",
        "certify",
    ),
    "design.solve": ("solve",),
    "design.spec": ("DesignSpec",),
    "design.table": ("Design",),
    "kernel.rng": (
        "RandomBits",
        "secure_rng",
        "seeded_rng",
    ),
    "mechanism.additive": (
        "Gaussian",
        "Laplace",
        "Sign",
    ),
    "mechanism.ball": (
        "Ball",
        "Norm",
    ),
    "mechanism.base": ("Mechanism",),
    "mechanism.calibrate": (
        "Calibration",
        "calibrate",
    ),
    "mechanism.central_sum": (
        "SumCalibration",
        "calibrate_sum",
    ),
    "mechanism.dithered": ("DitheredMVU",),
    "mechanism.expectation": (
        "Expectation",
        "expectation",
    ),
    "mechanism.interpolated": ("InterpolatedMVU",),
    "mechanism.shuffled": ("shuffled_privacy",),
    "mechanism.skellam": ("Skellam",),
    "mechanism.vector": ("VectorMVU",),
    "mechanism.watched": ("Watched",),
    "plan.clip": ("MovingClip",),
    "plan.compare": (
        "Comparison",
        "compare",
    ),
    "plan.plan": ("Plan",),
    "privacy.curve": ("PrivacyCurve",),
    "privacy.guarantee": (
        "Adjacency",
        "Guarantee",
        "Trust",
        "Unit",
    ),
    "privacy.ledger": ("Ledger",),
    "privacy.observers": ("GuaranteePair",),
    "privacy.release": ("Release",),
    "secagg.identity": (
        "Directory",
        "Identity",
    ),
    "secagg.plan": (
        "ProtocolError",
        "SumPlan",
    ),
    "secagg.server": (
        "MaskedSum",
        "masked_sum",
    ),
    "target": ("Target",),
    "wire.aggregate": (
        "Aggregator",
        "Received",
    ),
    "wire.group_norm": ("group_norm",),
    "wire.uplink": ("Uplink",),
}

__all__ = [
    "Adjacency",
    "Aggregator",
    "Audit",
    "Ball",
    "Calibration",
    "Certificate",
    "Comparison",
    "Design",
    "DesignSpec",
    "Directory",
    "DitheredMVU",
    "Expectation",
    "Gaussian",
    "Guarantee",
    "GuaranteePair",
    "Identity",
    "InterpolatedMVU",
    "InvalidDesignFile",
    "InvalidParameter",
    "InvalidPayload",
    "Laplace",
    "Ledger",
    "MaskedSum",
    "Mechanism",
    "MissingDependency",
    "MovingClip",
    "Norm",
    "Plan",
    "PrivacyCurve",
    "ProtocolError",
    "QuietbitError",
    "RandomBits",
    "Received",
    "Release",
    "Sign",
    "Skellam",
    "SumCalibration",
    "SumPlan",
    "Target",
    "Trust",
    "Unit",
    "Uplink",
    "VectorMVU",
    "Watched",
    "__version__",
    "audit",
    "calibrate",
    "calibrate_sum",
    "catalogue",
    "certify",
    "compare",
    "expectation",
    "group_norm",
    "masked_sum",
    "secure_rng",
    "seeded_rng",
    "shuffled_privacy",
    "solve",
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
