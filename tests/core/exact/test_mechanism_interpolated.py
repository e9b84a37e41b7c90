"""I-MVU's claims against its own law, enumerated over dense pairs of updates: nothing is sampled
here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.mechanism.makers import design, table
from quietbit import Ball, InterpolatedMVU, Norm
from quietbit.privacy.divergence import (
    lipschitz_upper,
    through_centre_constant_upper,
    zero_out_constant_upper,
)
from quietbit.target import Adjacency
from quietbit_lab.baseline.lemma_1 import paper_constant_upper

DESIGNS = {
    "one bit": design(2, 1, 1.0),
    "one bit, steep": design(2, 1, 2.5),
    "two levels, two bits": table(2, 2, 1.0),
    "three levels": design(3, 1, 2.0),
    "five levels, three bits": table(5, 3, 2.0),
}
ORDERS = (1.01, 1.5, 2.0, 8.0, 64.0, 1000.0)
VARIANTS = [(0.5, False), (1.0, False), (8.0, False), (8.0, True)]


def logs(mechanism: Any, values: Any) -> Any:
    """Log-probabilities of all symbols, a row per value."""
    return np.log(np.stack([mechanism.distribution(float(value)) for value in values]))


def renyi(left: Any, right: Any, alpha: float) -> Any:
    """D_alpha for all pairs of rows."""
    exponent = alpha * left[:, None, :] + (1 - alpha) * right[None, :, :]
    top = exponent.max(axis=-1, keepdims=True)
    return (top[..., 0] + np.log(np.exp(exponent - top).sum(axis=-1))) / (alpha - 1)


def dense(radius: float) -> Any:
    return np.unique(
        np.concatenate([np.linspace(-radius, radius, 161), np.linspace(-0.05, 0.05, 21) * radius])
    )


@pytest.mark.parametrize(("beta", "clamp"), VARIANTS)
@pytest.mark.parametrize("name", DESIGNS)
def test_max_divergence_never_exceeds_the_l1_claim(name: str, beta: float, clamp: bool) -> None:
    mechanism = InterpolatedMVU(DESIGNS[name], Ball(Norm.L1, 1), beta, clamp)
    values = dense(0.7)
    law = logs(mechanism, values)
    apart = np.abs(law[:, None, :] - law[None, :, :]).max(axis=-1)
    assert apart.max() <= mechanism.privacy(Adjacency.REPLACE_ONE).epsilon(0.0)
    centre = int(np.flatnonzero(values == 0.0)[0])
    zero_out = mechanism.privacy(Adjacency.ZERO_OUT).epsilon(0.0)
    assert apart[centre].max() <= zero_out
    assert zero_out <= 2.2 * apart[centre].max() + 1e-9  # and is no wild overestimate
    # Theorem 1 in any dimension: the loss of a coordinate is at most the constant times its
    # distance.
    low, high = mechanism.certified_range
    x = np.clip(0.5 + mechanism.sampler.scale * values, *mechanism.input_range)
    distance = np.abs(x[:, None] - x[None, :])
    constant = lipschitz_upper(DESIGNS[name], low, high)
    assert np.all(apart <= constant * distance + 1e-12)
    assert np.all(
        apart[centre]
        <= zero_out_constant_upper(DESIGNS[name], low, high) * distance[centre] + 1e-12
    )
    assert zero_out_constant_upper(DESIGNS[name], low, high) <= constant
    assert constant <= paper_constant_upper(DESIGNS[name], low, high)


@pytest.mark.parametrize(("beta", "clamp"), VARIANTS)
@pytest.mark.parametrize("name", DESIGNS)
def test_two_vectors_of_an_l1_ball_stay_within_the_constant_through_the_centre(
    name: str, beta: float, clamp: bool
) -> None:
    """Mass spread over many coordinates against mass in few, where the losses of both add up."""
    mechanism = InterpolatedMVU(DESIGNS[name], Ball(Norm.L1, 4000), beta, clamp)
    claim = mechanism.privacy(Adjacency.REPLACE_ONE).epsilon(0.0)
    assert claim <= 2 * mechanism.privacy(Adjacency.ZERO_OUT).epsilon(0.0) + 1e-9
    centre = logs(mechanism, [0.0])[0]
    parts = [(many, sign / many) for many in (1, 2, 3, 5, 10, 100, 1999) for sign in (-1.0, 1.0)]
    away = {part: logs(mechanism, [part[1]])[0] - centre for part in parts}
    # The supports are disjoint, so the worst loss of a pair is a sum over the coordinates of
    # either.
    gain = max(many * float(away[many, value].max()) for many, value in parts)
    loss = max(many * float(-away[many, value].min()) for many, value in parts)
    assert gain + loss <= claim
    if name.startswith("one bit") and beta == 1.0:
        assert gain + loss >= 0.999 * claim  # attained
        low, high = mechanism.certified_range
        both = (
            through_centre_constant_upper(DESIGNS[name], low, high),
            zero_out_constant_upper(DESIGNS[name], low, high),
        )
        assert both[0] < 0.95 * both[1]


@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize(("beta", "clamp"), VARIANTS)
@pytest.mark.parametrize("name", DESIGNS)
def test_renyi_divergence_never_exceeds_the_claim(
    name: str, beta: float, clamp: bool, norm: Norm
) -> None:
    mechanism = InterpolatedMVU(DESIGNS[name], Ball(norm, 1), beta, clamp)
    values = dense(0.7)
    law = logs(mechanism, values)
    centre = np.flatnonzero(values == 0.0)
    for alpha in ORDERS:
        every = renyi(law, law, alpha)
        noise = 1e-12 * alpha / (alpha - 1)
        assert every.max() <= mechanism.privacy(Adjacency.REPLACE_ONE).rdp(alpha) + noise
        zero = max(every[centre].max(), every[:, centre].max())
        assert zero <= mechanism.privacy(Adjacency.ZERO_OUT).rdp(alpha) + noise


@pytest.mark.parametrize("name", ["one bit", "five levels, three bits"])
@pytest.mark.parametrize("norm", Norm)
def test_vectors_on_the_sphere_stay_within_the_claim(name: str, norm: Norm) -> None:
    """Three coordinates: divergences of independent coordinates add up."""
    ball = Ball(norm, 3)
    mechanism = InterpolatedMVU(DESIGNS[name], ball, 3.0)
    rng = np.random.default_rng(0)
    points = rng.normal(size=(40, 3)) * rng.integers(0, 2, size=(40, 3)) + 1e-12
    points = np.array([ball.clip(point * 1e6) for point in points])
    points = np.concatenate([points, -points])
    laws = [logs(mechanism, points[:, k]) for k in range(3)]
    centre = logs(mechanism, [0.0])
    for alpha in (1.01, 2.0, 20.0, 1000.0):
        replaced = sum(renyi(law, law, alpha) for law in laws)
        zeroed = sum(
            np.maximum(renyi(law, centre, alpha), renyi(centre, law, alpha).T) for law in laws
        )
        noise = 1e-12 * alpha / (alpha - 1)
        assert np.max(replaced) <= mechanism.privacy(Adjacency.REPLACE_ONE).rdp(alpha) + noise
        assert np.max(zeroed) <= mechanism.privacy(Adjacency.ZERO_OUT).rdp(alpha) + noise
