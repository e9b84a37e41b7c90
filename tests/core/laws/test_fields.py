"""Laws of fields: what no mechanism can be is refused when it is made, by the field's name."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from attrs import evolve

from core.mechanism.makers import CLIFF, MECHANISMS, POINTED, ROUND
from quietbit import Ball, Gaussian, Norm
from quietbit.design.profile import Profile
from quietbit.mechanism.base import Layout
from quietbit.mechanism.batch import LocalSteps, PoissonBatch
from quietbit.mechanism.projected import Projected, ProjectedSamples
from quietbit.mechanism.response import RandomisedResponse
from quietbit.mechanism.rotation import Rotation
from quietbit.mechanism.scouts import Scout
from quietbit_lab.baseline.noise import Laplace
from refusals import refuses

BATCH = PoissonBatch(Gaussian(ROUND, 1.0), 50, 0.1)
BUSY = Profile.from_weights([4.2], [1e-4, 60_000.0])  # hours of a device, if it keeps many rows
ALL = {
    **MECHANISMS,
    "ball": ROUND,
    "batch": BATCH,
    "steps": LocalSteps(BATCH, 2, 1.0),
    "most steps": LocalSteps(PoissonBatch(Gaussian(Ball(Norm.L2, 2**28), 0.1), 50, 0.1), 64, 1.0),
    "rotation": Rotation(64),
    "response": RandomisedResponse(3, 0.5),
    "scouted": MECHANISMS["scouted gaussian"],
    "scout": Scout(MECHANISMS["scouted gaussian"]),
    "busy": evolve(MECHANISMS["vmvu seed"], profile=BUSY, ball=Ball(Norm.L2, 10**6), keep=1024),
}
# Of which mechanism, its field, the name in the refusal, and the values.
BAD: list[tuple[str, str, str, list[Any]]] = [
    ("ball", "dimension", "dimension", [0, -1, 2.5, True]),
    ("ball", "norm", "norm", ["linf"]),
    ("gaussian", "noise_multiplier", "noise_multiplier", [0, -1.0, nan, inf, 1e-7, 1e8, "1", True]),
    ("gaussian", "ball", "ball", [3.0]),
    ("gaussian", "ball", "norm of the ball", [POINTED]),
    ("imvu one bit l2", "design", "design", ["a table"]),
    ("imvu one bit l2", "ball", "ball", [1.0]),
    ("imvu one bit l2", "beta", "beta", [0.0, -1.0, nan]),
    ("imvu one bit l2", "clamp", "clamp", [1]),
    ("imvu one bit l2", "decoder", "decoder", ["sign"]),
    ("imvu one bit l2", "rotation", "block of the rotation", [Rotation(128)]),
    ("imvu one bit l1 beta 8", "rotation", "norm of the ball", [Rotation(64)]),
    ("rotation", "block", "block", [0, 48, 2.5]),
    ("rotation", "seed", "rotation_seed", [-1]),
    ("vmvu seed", "profile", "profile", ["steep"]),
    ("vmvu seed", "profile", "largest level of the profile", [CLIFF]),
    (
        "vmvu seed",
        "profile",
        "smallest level of the profile",
        [Profile.from_weights([0.0], [0.0, 1.0])],
    ),
    ("vmvu seed", "ball", "ball", [3]),
    ("vmvu seed", "ball", "norm of the ball", [POINTED]),
    ("vmvu seed", "keep", "coordinates", [3, 0, 256, 2.5]),
    ("vmvu seed", "rotation_seed", "rotation_seed", [-1]),
    ("vmvu seed", "rows", "rows", [-1, 2**64]),
    ("busy", "keep", "coordinates", [65_536]),
    ("kept", "inner", "coordinates", [Gaussian(Ball(Norm.L2, 3), 1.0)]),
    ("kept", "inner", "norm of the ball", [Laplace(Ball(Norm.L1, 16), 1.0)]),
    ("batch", "inner", "norm of the ball", [Laplace(POINTED, 1.0)]),
    ("batch", "inner", "inner", [BATCH, MECHANISMS["kept"]]),
    ("batch", "expected", "expected", [0]),
    ("batch", "rate", "rate", [0.0, 1.1, nan]),
    ("steps", "inner", "mechanism", [Gaussian(ROUND, 0.1)]),
    ("steps", "inner", "inner", [LocalSteps(BATCH, 2, 1.0)]),
    (
        "steps",
        "inner",
        "rows",
        [
            evolve(
                BATCH, inner=ProjectedSamples(Projected(Gaussian(Ball("l2", 8), 1), ROUND, rows=1))
            )
        ],
    ),
    ("steps", "steps", "local_steps", [0]),
    ("most steps", "steps", "local_steps", [65]),
    ("steps", "step_size", "local_rate", [0.0]),
    ("steps", "bits", "local_bits", [9]),
    ("response", "cells", "cells", [1, 2**16 + 1]),
    ("response", "truth", "truth", [0.0, 1.0, nan]),
    ("scouted", "every", "every", [1, None]),
    ("scouted", "truth", "truth", [0.0, 1.0, nan, None]),
    ("scouted", "inner", "mechanism", [ROUND]),
    ("scouted", "inner", "inner", [ALL["scouted"], ALL["scout"]]),
    ("scout", "scouted", "scouted", [MECHANISMS["gaussian"]]),
]


@pytest.mark.parametrize(
    ("mechanism", "field", "name", "value"),
    [(*row, value) for *row, values in BAD for value in values],
)
def test_a_field_is_refused_by_its_name(mechanism: str, field: str, name: str, value: Any) -> None:
    with refuses(name):
        evolve(ALL[mechanism], **{field: value})


@pytest.mark.parametrize(("bits", "count", "size"), [(1, 9, 2), (3, 11, 5), (16, 3, 6), (32, 2, 8)])
def test_a_layout_of_codes_has_whole_bytes(bits: int, count: int, size: int) -> None:
    assert Layout.codes(bits, count) == Layout(bits, count, size)


@pytest.mark.parametrize(
    ("bits", "count", "name"),
    [
        (0, 3, "bits"),
        (17, 3, "bits"),
        (33, 3, "bits"),
        (1, 0, "number of codes"),
        (1, 2.5, "number of codes"),
    ],
)
def test_layouts_that_are_none_are_refused(bits: int, count: Any, name: str) -> None:
    with refuses(name):
        Layout.codes(bits, count)
