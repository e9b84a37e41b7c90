"""Skellam's whole release enumerated: both ways of rounding, exact noise, wrapped modulo 2^b."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lab.exact.release_kit import neighbours, renyi, rounded
from quietbit import Ball, Norm
from quietbit.kernel.transform import rotate, rotate_back
from quietbit.target import Adjacency
from quietbit_lab.baseline.skellam import IndependentSkellam, Skellam
from quietbit_lab.baseline.skellam_cost import rounded_skellam_rdp_upper


def release(mechanism: Skellam, update: Any, *, bounded: bool = True) -> Any:
    """The law of all codes together, by convolution over accepted integer vectors and wrapping."""
    modulus = 2**mechanism.bits
    mean = mechanism.noise_variance / 2
    support = np.arange(-6 * modulus, 6 * modulus)
    wrapped = np.zeros(modulus)
    np.add.at(wrapped, support % modulus, stats.skellam.pmf(support, mean, mean))
    place = rotate(np.asarray(update, dtype=float), mechanism.rotation_seed) * mechanism.scale

    def rows(integers: Any) -> list[Any]:
        return [np.roll(wrapped, integer) for integer in integers]

    def accepts(integers: Any) -> bool:
        return not bounded or float(integers @ integers) <= mechanism.squared_length

    return rounded(place, np.floor(place).astype(int), rows, accepts)


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("size", "bits"), [(1, 6), (1, 9), (2, 7)])
def test_the_release_is_as_private_as_claimed(size: int, bits: int, multiplier: float) -> None:
    ball = Ball(Norm.L2, size)
    mechanism = Skellam(ball, multiplier, bits=bits, wrap_probability=0.1)
    rng = np.random.default_rng(bits)
    points = [ball.clip(100 * rng.normal(size=size)) for _ in range(3)]
    points += [np.eye(1, size)[0], -np.eye(1, size)[0], 0.37 * points[0], np.zeros(size)]
    laws = [release(mechanism, point) for point in points]
    assert all(law.sum() == pytest.approx(1.0, rel=1e-9) for law in laws)
    for adjacency in Adjacency:
        claim = mechanism.privacy(adjacency)
        worst = 0.0
        for p, q in neighbours(laws, adjacency):
            for alpha in (1.3, 2.0, 3.5, 8.0):
                worst = max(worst, renyi(p, q, alpha) / claim.rdp(alpha))
        assert 0.1 < worst <= 1 + 1e-9  # of these releases, not of something far away


def close_updates(mechanism: Skellam, share: float) -> list[tuple[Any, Any]]:
    """Pairs of updates ``share`` radii apart, along rotated coordinates and not, from points on
    the grid and off it.
    """
    size, step = mechanism.ball.dimension, 1 / mechanism.scale
    rng, found = np.random.default_rng(size), []
    along = [rotate_back(row, mechanism.rotation_seed) for row in np.eye(mechanism.code_count)]
    starts = [np.zeros(size), 0.5 * step * along[0], 1.49 * step * along[-1]]
    starts.append(0.3 * rng.normal(size=size))
    for direction, start in itertools.product([*along, rng.normal(size=size)], starts):
        moved = share * direction[:size] / np.linalg.norm(direction[:size])
        for other in (start + moved, start - moved):
            if max(np.linalg.norm(start), np.linalg.norm(other)) <= 1:
                found.append((start, other))
    return found


@pytest.mark.parametrize(
    ("size", "bits", "multiplier"), [(1, 6, 0.3), (1, 8, 0.1), (2, 6, 0.4), (2, 7, 0.2)]
)
@pytest.mark.parametrize("samples", [None, 2, 9])
def test_rounded_on_its_own_a_release_is_as_private_as_claimed(
    size: int, bits: int, multiplier: float, samples: int | None
) -> None:
    mechanism = Skellam(Ball(Norm.L2, size), multiplier, bits=bits, wrap_probability=0.1)
    claim = IndependentSkellam(mechanism).privacy(Adjacency.ZERO_OUT, samples)
    pairs = close_updates(mechanism, 1 / (samples or 1))
    assert len(pairs) >= 4
    worst = 0.0
    for one, other in pairs:
        p, q = (release(mechanism, update, bounded=False) for update in (one, other))
        for alpha in (1.3, 2.0, 3.0, 5.0):
            worst = max(worst, max(renyi(p, q, alpha), renyi(q, p, alpha)) / claim.rdp(alpha))
    assert 0.5 < worst <= 1 + 1e-9


def test_replacing_a_sample_costs_four_times_zeroing_it() -> None:
    mechanism = IndependentSkellam(Skellam(Ball(Norm.L2, 8), 0.1))
    zeroed, replaced = (
        mechanism.privacy(which, 20).rdp(4.0)
        for which in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)
    )
    assert replaced == pytest.approx(4 * zeroed, rel=1e-4)


def test_drawing_again_until_the_vector_is_short_breaks_the_claim() -> None:
    """Why rounding within bounds has no price per sample: its chance of acceptance tells two
    close updates apart.
    """
    mechanism = Skellam(Ball(Norm.L2, 2), 0.2, bits=6, wrap_probability=0.1)
    claim = rounded_skellam_rdp_upper(2.0, 0.05, mechanism.noise_variance)
    edge = np.array([math.cos(1.412), math.sin(1.412)])
    moved = edge - np.array([0.05 / mechanism.scale, 0.0])  # a twentieth of a step of the grid
    shares = {}
    for bounded in (True, False):
        p, q = (
            release(mechanism, rotate_back(place, 0), bounded=bounded) for place in (edge, moved)
        )
        shares[bounded] = max(renyi(p, q, 2.0), renyi(q, p, 2.0)) / claim
    assert shares[False] <= 1
    assert shares[True] > 2.5
