"""Mechanisms that differ in anything have different identities; equal ones have the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import attrs
import numpy as np
import pytest

from core.mechanism.makers import MECHANISMS, ROUND
from quietbit.design.table import Design, DesignSpec
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.batch import LocalSteps, PoissonBatch
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.projected import Projected, ProjectedSamples
from quietbit.mechanism.registry import build, canonical_text, describe, family_of, identity_of
from quietbit.mechanism.response import RandomisedResponse
from quietbit.mechanism.scouts import Scout, Scouted
from quietbit_lab.baseline.noise import Sign
from refusals import refuses


def test_every_parameter_matters() -> None:
    mechanism = MECHANISMS["imvu one bit l2"]
    ball, design = mechanism.ball, mechanism.design
    moved = Design(design.spec, design.probabilities, design.alphabet + 2.0**-30)
    changes: list[dict[str, Any]] = [
        {"beta": np.nextafter(mechanism.beta, 2.0)},
        {"clamp": True},
        {"decoder": "alphabet"},
        {"ball": Ball(ball.norm, ball.dimension + 1)},
        {"ball": Ball(Norm.L1, ball.dimension)},
        {"design": moved},
        {},
    ]
    assert len({identity_of(attrs.evolve(mechanism, **change)) for change in changes}) == 7
    assert len({identity_of(mechanism, clip) for clip in (0.5, 1.0, 2.0)}) == 3


def test_the_canonical_text_is_what_the_documentation_shows() -> None:
    ball = Ball(Norm.L2, 5)
    assert canonical_text(Sign(Gaussian(ball, 2.0))) == (
        '{"format":"quietbit-mechanism","mechanism":{"inner":{"ball":{"dimension":5,"kind":"Ball","norm":"l2",'
        '"radius":1.0},"kind":"Gaussian","noise_multiplier":2.0},"kind":"Sign"},"version":1}'
    )
    design = Design(
        DesignSpec(2, 1, 1.0), np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([0.0, 1.0])
    )
    text = json.loads(canonical_text(InterpolatedMVU(design, ball)))
    assert text["mechanism"]["design"] == {"design": design.identity()}
    assert set(text["mechanism"]) == {"kind", "design", "ball", "beta", "clamp", "decoder"}


def test_something_without_an_identity_is_refused() -> None:
    @dataclass
    class Odd:
        table: Any

    with refuses("mechanism.table", "ndarray"):
        identity_of(Odd(np.zeros(3)))  # type: ignore[arg-type]


BATCH = PoissonBatch(Gaussian(ROUND, 1.0), 10, 0.1)
SCOUTED = MECHANISMS["scouted imvu one bit l1 beta 8"]
# What the laws of mechanisms do not know: they take no update as it is, or answer in its place.
OTHERS: dict[str, tuple[Any, str]] = {
    "batch": (BATCH, "gaussian"),
    "batch of codes": (PoissonBatch(MECHANISMS["imvu one bit l2"], 10, 0.2), "imvu"),
    "steps": (LocalSteps(BATCH, 5, 0.25, 3), "gaussian"),
    "samples": (ProjectedSamples(Projected(Gaussian(Ball("l2", 8), 1.0), ROUND)), "gaussian"),
    "shared rows": (MECHANISMS["kept"].at(3), "imvu"),
    "response": (RandomisedResponse(4, 0.5), "response"),
    "scouted": (Scouted(MECHANISMS["kept"], 20, 0.125), "imvu"),
    "scout": (Scout(SCOUTED), "scout"),
    "scout of others": (Scout(attrs.evolve(SCOUTED, every=21)), "scout"),
    "scout of the more truthful": (Scout(attrs.evolve(SCOUTED, truth=0.4)), "scout"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_description_of_what_takes_no_update_leads_back(name: str) -> None:
    mechanism, family = OTHERS[name]
    again = build(describe(mechanism))
    assert again == mechanism
    assert identity_of(again) == identity_of(mechanism)
    assert family_of(mechanism) == family


def test_all_mechanisms_have_different_identities_of_32_bytes() -> None:
    every = [*MECHANISMS.values(), *(mechanism for mechanism, _ in OTHERS.values())]
    identities = {identity_of(mechanism) for mechanism in every}
    assert len(identities) == len(every)
    assert {len(identity) for identity in identities} == {32}
