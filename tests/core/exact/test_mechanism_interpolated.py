"""I-MVU's claims against its own law, enumerated over dense pairs of updates: nothing is sampled
here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.exact.privacy_kit import renyi_grid
from core.mechanism.makers import design, table
from quietbit import Ball, InterpolatedMVU, Norm
from quietbit.privacy.divergence import (
    lipschitz_upper,
    through_centre_constant_upper,
    zero_out_constant_upper,
)
from quietbit.target import Adjacency
from quietbit_lab.baseline.lemma_1 import paper_constant_upper

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
DESIGNS = {
    "one bit": design(2, 1, 1.0),
    "one bit, steep": design(2, 1, 2.5),
    "two levels, two bits": table(2, 2, 1.0),
    "three levels": design(3, 1, 2.0),
    "five levels, three bits": table(5, 3, 2.0),
}
EVERY = pytest.mark.parametrize("name", DESIGNS)
VARIANTS = pytest.mark.parametrize(
    ("beta", "clamp"), [(0.5, False), (1.0, False), (8.0, False), (8.0, True)]
)
ORDERS = (1.01, 1.5, 2.0, 8.0, 64.0, 1000.0)
DENSE = np.union1d(np.linspace(-0.7, 0.7, 161), np.linspace(-0.035, 0.035, 21))
CENTRE = int(np.flatnonzero(DENSE == 0.0)[0])


def logs(mechanism: Any, values: Any) -> Any:
    """Log-probabilities of all symbols, a row per value."""
    return np.log(np.stack([mechanism.distribution(float(value)) for value in values]))


@EVERY
@VARIANTS
def test_max_divergence_never_exceeds_the_l1_claim(name: str, beta: float, clamp: bool) -> None:
    mechanism = InterpolatedMVU(DESIGNS[name], Ball(Norm.L1, 1), beta, clamp)
    law = logs(mechanism, DENSE)
    apart = np.abs(law[:, None, :] - law[None, :, :]).max(axis=-1)
    zero_out = mechanism.privacy(ZERO).epsilon(0.0)
    assert apart.max() <= mechanism.privacy(REPLACE).epsilon(0.0)
    assert apart[CENTRE].max() <= zero_out <= 2.2 * apart[CENTRE].max() + 1e-9
    # Theorem 1 in any dimension: the loss of a coordinate is at most the constant times its
    # distance.
    known = DESIGNS[name], *mechanism.certified_range
    x = np.clip(0.5 + mechanism.sampler.scale * DENSE, *mechanism.input_range)
    distance = np.abs(x[:, None] - x[None, :])
    assert np.all(apart <= lipschitz_upper(*known) * distance + 1e-12)
    from_centre = zero_out_constant_upper(*known) * distance[CENTRE]
    assert np.all(apart[CENTRE] <= from_centre + 1e-12)
    assert (
        zero_out_constant_upper(*known) <= lipschitz_upper(*known) <= paper_constant_upper(*known)
    )


@EVERY
@VARIANTS
def test_two_vectors_of_an_l1_ball_stay_within_the_constant_through_the_centre(
    name: str, beta: float, clamp: bool
) -> None:
    """Mass spread over many coordinates against mass in few, where the losses of both add up."""
    mechanism = InterpolatedMVU(DESIGNS[name], Ball(Norm.L1, 4000), beta, clamp)
    claim = mechanism.privacy(REPLACE).epsilon(0.0)
    assert claim <= 2 * mechanism.privacy(ZERO).epsilon(0.0) + 1e-9
    counts = np.repeat([1, 2, 3, 5, 10, 100, 1999], 2)
    shares = np.tile([-1.0, 1.0], 7) / counts
    away = logs(mechanism, shares) - logs(mechanism, [0.0])
    # The supports are disjoint, so the worst loss of a pair is a sum over the coordinates of
    # either.
    worst = (counts * away.max(axis=1)).max() + (counts * -away.min(axis=1)).max()
    assert worst <= claim
    if name.startswith("one bit") and beta == 1.0:
        assert worst >= 0.999 * claim  # attained
        known = DESIGNS[name], *mechanism.certified_range
        assert through_centre_constant_upper(*known) < 0.95 * zero_out_constant_upper(*known)


@pytest.mark.parametrize("norm", Norm)
@EVERY
@VARIANTS
def test_renyi_divergence_never_exceeds_the_claim(
    name: str, beta: float, clamp: bool, norm: Norm
) -> None:
    mechanism = InterpolatedMVU(DESIGNS[name], Ball(norm, 1), beta, clamp)
    law = logs(mechanism, DENSE[::3])
    centre = logs(mechanism, [0.0])
    for alpha in ORDERS:
        noise = 1e-12 * alpha / (alpha - 1)
        assert renyi_grid(law, law, alpha).max() <= mechanism.privacy(REPLACE).rdp(alpha) + noise
        zero = max(renyi_grid(law, centre, alpha).max(), renyi_grid(centre, law, alpha).max())
        assert zero <= mechanism.privacy(ZERO).rdp(alpha) + noise


@pytest.mark.parametrize("name", ["one bit", "five levels, three bits"])
@pytest.mark.parametrize("norm", Norm)
def test_vectors_on_the_sphere_stay_within_the_claim(name: str, norm: Norm) -> None:
    """Three coordinates: divergences of independent coordinates add up."""
    ball = Ball(norm, 3)
    mechanism = InterpolatedMVU(DESIGNS[name], ball, 3.0)
    rng = np.random.default_rng(0)
    points = rng.normal(size=(40, 3)) * rng.integers(0, 2, size=(40, 3)) + 1e-12
    points = np.array([ball.clip(sign * 1e6 * point) for point in points for sign in (1, -1)])
    laws = [logs(mechanism, column) for column in points.T]
    centre = logs(mechanism, [0.0])
    for alpha in (1.01, 2.0, 20.0, 1000.0):
        noise = 1e-12 * alpha / (alpha - 1)
        replaced = sum(renyi_grid(law, law, alpha) for law in laws)
        assert replaced.max() <= mechanism.privacy(REPLACE).rdp(alpha) + noise
        for pair in (lambda law: (law, centre), lambda law: (centre, law)):
            zeroed = sum(renyi_grid(*pair(law), alpha) for law in laws)
            assert zeroed.max() <= mechanism.privacy(ZERO).rdp(alpha) + noise
