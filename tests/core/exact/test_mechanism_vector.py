"""The law that the vector mechanism really samples, for one and two rows, against what is claimed
for it.

`write` is run on real updates, and the acceptance limits and directions that it hands to the search
(or the limits that it draws steps with) are caught: whole numbers out of 2^64. Their hockey-stick
divergences are integrated by quadrature, or summed over all codes, with nothing of the library in
the integral. Seeds are replaced by the normal law they stand for; what that may cost is part of the
claim.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.special import ndtr

from core.design.profile_kit import correlated_hockey_stick, normal_grid, profiles
from quietbit.design.profile import Profile
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.select import select
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.vector import VectorMVU
from quietbit.target import Adjacency

KERNEL = select("cpu")
DELTAS = (0.0, 1e-9, 1e-4, 0.01, 0.1, 0.4)
ANGLES = (0.0, 0.7, 1.9, math.pi)
NORMS = (0.0, 0.3, 1.0, 50.0)
STEP = Profile.from_weights([0.8], [1.0, 12.0])


def caught(mechanism: Any, update: Any) -> tuple[Any, Any]:
    """The direction and the acceptance probabilities, step by step, that a release of this
    update searches with.
    """
    found: list[Any] = []

    def search(direction: Any, edges: Any, limits: Any, block: Any, **_: Any) -> tuple[bytes, int]:
        assert np.array_equal(edges, mechanism.profile.edges)
        found.append(
            (direction, np.array([int(limit) for limit in limits], dtype=np.float64) * 2.0**-64)
        )
        return bytes(16), 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(KERNEL), "search", staticmethod(search))
        mechanism.write([np.asarray(update)], 1.0, seeded_rng(0), KERNEL, np.zeros(24, np.uint8))
    return found[0]


def hockey_stick(edges: Any, one: tuple[Any, Any], other: tuple[Any, Any], ratios: Any) -> Any:
    """E (p - a q)_+ over normal z at all ratios a, p and q the normalised acceptance probabilities
    of two updates.
    """
    masses = np.diff(ndtr([-np.inf, *edges, np.inf]))
    p, q = (levels / (levels @ masses) for _, levels in (one, other))
    rho = float(np.clip(one[0] @ other[0], -1.0, 1.0))
    return correlated_hockey_stick(edges, p, q, rho, ratios)


def updates(dimension: int) -> list[Any]:
    """Of all norms, inside the ball and out; in one dimension both signs, in two at several
    angles.
    """
    directions = [np.array([1.0]), np.array([-1.0])]
    if dimension == 2:
        directions = [np.array([math.cos(angle), math.sin(angle)]) for angle in ANGLES]
    return [norm * direction for norm in NORMS for direction in directions]


def worst_excess(mechanism: Any, adjacency: Adjacency, sampled: Any = None) -> float:
    """By how much a hockey-stick divergence exceeds delta at the claimed epsilon, at most, over all
    neighbours.

    ``sampled`` is what is really sent where that is another mechanism than the one that claims.
    """
    release = mechanism.privacy(adjacency)
    ratios = [math.exp(release.epsilon(delta)) for delta in DELTAS]
    sampler = mechanism if sampled is None else sampled
    laws = [caught(sampler, update) for update in updates(mechanism.ball.dimension)]
    zero = caught(sampler, np.zeros(mechanism.ball.dimension))
    pairs = [(p, q) for p in laws for q in laws]
    if adjacency is Adjacency.ZERO_OUT:
        pairs = [pair for law in laws for pair in ((law, zero), (zero, law))]
    edges = sampler.profile.edges
    return max((hockey_stick(edges, p, q, ratios) - DELTAS).max() for p, q in pairs)


def made(profile: Profile, dimension: int, keep: int) -> VectorMVU:
    return VectorMVU(profile, Ball(Norm.L2, dimension), keep)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(("dimension", "keep"), [(1, 1), (2, 1), (2, 2)])
def test_a_step_keeps_its_claim_and_hardly_more(
    adjacency: Adjacency, dimension: int, keep: int
) -> None:
    assert -1e-6 < worst_excess(made(STEP, dimension, keep), adjacency) < 1e-9


@pytest.mark.parametrize("adjacency", Adjacency)
@settings(max_examples=3, deadline=None)
@given(profile=profiles(most=5, spread=5.0))
def test_any_profile_keeps_its_claim(adjacency: Adjacency, profile: Profile) -> None:
    for dimension, keep in ((1, 1), (2, 2)):
        assert worst_excess(made(profile, dimension, keep), adjacency) < 1e-8


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_profile_a_tenth_too_steep_breaks_it(adjacency: Adjacency) -> None:
    steep = Profile.from_weights([0.8], [1.0, 12.0**1.1])
    assert worst_excess(made(STEP, 2, 2), adjacency, made(steep, 2, 2)) > 0.01


def test_acceptance_from_an_unclipped_length_breaks_it() -> None:
    """1 - r + r h with r = 1.05 is too steep, however little the second clip seems to do."""
    honest = made(STEP, 2, 2)
    (u, _), (v, _) = (caught(honest, np.array([sign, 0.0])) for sign in (1.0, -1.0))
    unclipped = 1 - 1.05 + 1.05 * STEP.levels
    ratio = [math.exp(honest.privacy(Adjacency.REPLACE_ONE).epsilon(1e-9))]
    assert hockey_stick(STEP.edges, (u, STEP.levels), (v, STEP.levels), ratio) < 1e-9
    assert hockey_stick(STEP.edges, (u, unclipped), (v, unclipped), ratio) > 0.01


def test_zero_is_noise_whatever_the_profile() -> None:
    for profile in (STEP, Profile.from_weights([-1.0, 0.1, 2.0], [0.1, 0.9, 2.0, 30.0])):
        _, limits = caught(made(profile, 2, 2), np.zeros(2))
        assert np.all(limits == limits[0])


def test_acceptance_is_the_stated_one() -> None:
    """Of a long update h/h_max, of a short one the mixture; to 2^-50."""
    for norm in (0.3, 1.0, 7.0):
        share = min(norm, 1.0)
        _, limits = caught(made(STEP, 2, 2), norm * np.array([0.6, 0.8]))
        expected = (1 - share + share * STEP.levels) / STEP.largest
        # The update is rotated in single precision before its length is taken.
        assert limits == pytest.approx(expected, rel=3e-7 if norm < 1 else 2.0**-50)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_divergences_of_all_orders_stay_within_the_claim(adjacency: Adjacency) -> None:
    """Rényi moments of the caught limits: below the claim, and equal to it for the worst pair."""
    stairs = Profile.from_weights([-1.0, 0.2, 1.3], [0.2, 0.7, 2.0, 5.0])
    mechanism = made(stairs, 1, 1)
    points, weights = normal_grid(stairs.edges)

    def law(value: float) -> Any:
        direction, limits = caught(mechanism, np.array([value]))
        density = limits[np.searchsorted(stairs.edges, direction[0] * points, side="right")]
        return density / (weights @ density)

    laws = {value: law(value) for value in (0.0, 0.4, -0.4, 1.0, -1.0)}
    pairs = [(p, q) for p in laws.values() for q in laws.values()]
    if adjacency is Adjacency.ZERO_OUT:
        pairs = [pair for p in laws.values() for pair in ((p, laws[0.0]), (laws[0.0], p))]
    release = mechanism.privacy(adjacency)
    for alpha in (1.01, 1.5, 3.0, 8.0):
        moments = [float(weights @ (p**alpha * q ** (1 - alpha))) for p, q in pairs]
        assert release.rdp(alpha) == pytest.approx(math.log(max(moments)) / (alpha - 1), rel=1e-6)
    assert release.rdp(500.0) <= release.pure_epsilon()
