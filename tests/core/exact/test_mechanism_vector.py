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

from core.design.profile_kit import profiles
from quietbit.design.profile import Profile
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.select import select
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.vector import VectorMVU
from quietbit.target import Adjacency

KERNEL = select("cpu")
NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(24)
REACH = 9.0
DELTAS = (0.0, 1e-9, 1e-4, 0.01, 0.1, 0.4)
ANGLES = (0.0, 0.7, 1.9, math.pi)
NORMS = (0.0, 0.3, 1.0, 50.0)
STEP = Profile.from_weights([0.8], [1.0, 12.0])
CLIFF = Profile.from_weights([4.8], [1.0, 2.0**21])


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


def hockey_stick(edges: Any, one: tuple[Any, Any], other: tuple[Any, Any], a: float) -> float:
    """E (p - a q)_+ over normal z, p and q the normalised acceptance probabilities of two
    updates.
    """
    masses = np.diff(np.concatenate([[0.0], ndtr(edges), [1.0]]))
    p, q = (levels / (levels @ masses) for _, levels in (one, other))
    rho = float(np.clip(one[0] @ other[0], -1.0, 1.0))
    pieces = np.unique(
        np.concatenate(([-REACH, REACH], edges, -np.asarray(edges), np.linspace(-REACH, REACH, 37)))
    )
    half = np.diff(pieces)[:, None] / 2
    t = (pieces[:-1, None] + half * (1 + NODES)).ravel()
    w = (half * NODE_WEIGHTS).ravel() * np.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)
    here = p[np.searchsorted(edges, t, side="right")]
    if abs(rho) > 1 - 1e-12:
        there = q[np.searchsorted(edges, rho * t, side="right")]
        return float(np.sum(w * np.maximum(here - a * there, 0.0)))
    spread = math.sqrt(1 - rho * rho)
    tails = np.concatenate(
        (np.zeros((t.size, 1)), ndtr((edges - rho * t[:, None]) / spread), np.ones((t.size, 1))),
        axis=1,
    )
    return float(
        np.sum(w * np.sum(np.diff(tails, axis=1) * np.maximum(here[:, None] - a * q, 0.0), axis=1))
    )


def updates(dimension: int) -> list[Any]:
    """Of all norms, inside the ball and out; in one dimension both signs, in two at several
    angles.
    """
    if dimension == 1:
        return [np.array([sign * norm]) for norm in NORMS for sign in (1.0, -1.0)]
    return [
        norm * np.array([math.cos(angle), math.sin(angle)]) for norm in NORMS for angle in ANGLES
    ]


def worst_excess(mechanism: Any, adjacency: Adjacency, sampled: Any = None) -> float:
    """By how much a hockey-stick divergence exceeds delta at the claimed epsilon, at most, over all
    neighbours.

    ``sampled`` is what is really sent where that is another mechanism than the one that claims.
    """
    release = mechanism.privacy(adjacency)
    ratios = [(delta, math.exp(release.epsilon(delta))) for delta in DELTAS]
    sampler = mechanism if sampled is None else sampled
    laws = [caught(sampler, update) for update in updates(mechanism.ball.dimension)]
    zero = caught(sampler, np.zeros(mechanism.ball.dimension))
    pairs = [(p, q) for p in laws for q in laws]
    if adjacency is Adjacency.ZERO_OUT:
        pairs = [pair for law in laws for pair in ((law, zero), (zero, law))]
    edges = sampler.profile.edges
    return max(hockey_stick(edges, p, q, a) - delta for p, q in pairs for delta, a in ratios)


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
    a = math.exp(honest.privacy(Adjacency.REPLACE_ONE).epsilon(1e-9))
    assert hockey_stick(STEP.edges, (u, STEP.levels), (v, STEP.levels), a) < 1e-9
    assert hockey_stick(STEP.edges, (u, unclipped), (v, unclipped), a) > 0.01


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
    """Rényi moments of the caught limits: below the claim, and equal to it for opposite
    full-length updates.
    """
    stairs = Profile.from_weights([-1.0, 0.2, 1.3], [0.2, 0.7, 2.0, 5.0])
    mechanism = made(stairs, 1, 1)
    release = mechanism.privacy(adjacency)
    masses = np.diff(np.concatenate([[0.0], ndtr(stairs.edges), [1.0]]))
    cuts = np.unique(np.concatenate([stairs.edges, -stairs.edges]))
    ends = np.concatenate([[-np.inf], cuts, [np.inf]])
    share, places = (
        np.diff(ndtr(ends)),
        np.concatenate([[cuts[0] - 1], (cuts[1:] + cuts[:-1]) / 2, [cuts[-1] + 1]]),
    )

    def law(value: float) -> Any:
        direction, limits = caught(mechanism, np.array([value]))
        return (limits / (limits @ masses))[
            np.searchsorted(stairs.edges, direction[0] * places, side="right")
        ]

    laws = {value: law(value) for value in (0.0, 0.4, -0.4, 1.0, -1.0)}
    worlds = [
        (a, b) for a in laws for b in laws if adjacency is Adjacency.REPLACE_ONE or 0.0 in (a, b)
    ]
    for alpha in (1.01, 1.5, 3.0, 8.0):
        claim = release.rdp(alpha)
        found = {
            pair: math.log(float(share @ (laws[pair[0]] ** alpha * laws[pair[1]] ** (1 - alpha))))
            / (alpha - 1)
            for pair in worlds
        }
        assert max(found.values()) <= claim * (1 + 1e-9) + 1e-11
        worst = (
            (1.0, -1.0)
            if adjacency is Adjacency.REPLACE_ONE
            else max(found, key=lambda pair: found[pair])
        )
        assert claim == pytest.approx(found[worst], rel=1e-6)
    assert release.rdp(500.0) <= release.pure_epsilon()
