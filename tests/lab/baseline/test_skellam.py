from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from core.mechanism.makers import update
from path import decode, encode
from quietbit import Ball, Gaussian, Norm
from quietbit.errors import InvalidParameter
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.transform import rotate
from quietbit.mechanism.registry import build, describe, family_of, identity_of
from quietbit.privacy.cost import Cost, sample_share
from quietbit.target import Adjacency
from quietbit_lab.baseline.skellam import (
    IndependentSkellam,
    Skellam,
    conditional_rounding,
)
from quietbit_lab.baseline.skellam_noise import skellam_noise
from refusals import refuses

BALL = Ball(Norm.L2, 100)


def test_the_noise_has_the_variance_it_says_and_not_twice_that() -> None:
    mechanism = Skellam(BALL, 1.5)
    assert math.sqrt(mechanism.noise_variance) == pytest.approx(1.5 * mechanism.scale)
    assert mechanism.variance(0.0) == pytest.approx(1.5**2, rel=1e-3)


def test_codes_wrap_modulo_a_power_of_two_exactly() -> None:
    """Adding the codes of a noise-free part shifts by exactly that part, modulo 2^b."""
    mechanism = Skellam(BALL, 1.0, bits=8)
    vector = update(BALL)
    zero = encode(mechanism, np.zeros(100), seeded_rng(5)).astype(int)
    moved = encode(mechanism, vector, seeded_rng(5)).astype(int)
    integers = ((moved - zero + 128) % 256) - 128
    rotated = rotate(vector, 0) * mechanism.scale
    assert np.all(np.abs(integers - rotated) < 1)
    assert float(integers @ integers) <= mechanism.squared_length


def test_the_release_covers_the_padded_length() -> None:
    mechanism = Skellam(BALL, 1.0)
    assert mechanism.layout.count == 128
    codes = encode(mechanism, np.zeros((4, 25)), seeded_rng(1))
    assert codes.shape == (128,)
    assert codes.dtype == np.uint16
    assert decode(mechanism, codes).shape == (100,)


@pytest.mark.parametrize("bits", [6, 8, 12, 16])
@pytest.mark.parametrize("multiplier", [0.2, 1.0, 20.0])
def test_the_scale_leaves_room_for_signal_and_noise(bits: int, multiplier: float) -> None:
    try:
        mechanism = Skellam(BALL, multiplier, bits=bits)
    except InvalidParameter as refusal:
        assert bits == 6
        assert "more bits" in str(refusal)  # noqa: PT017
        return
    half, mean = 2 ** (bits - 1), mechanism.noise_variance / 2
    signal = min(1.0, math.sqrt(2 * math.log(4 * 128 / 1e-6) / 128)) * mechanism.scale + 1
    room = half - 1 - signal
    assert 128 * 2 * stats.skellam.sf(math.floor(room), mean, mean) <= 0.5e-6
    bolder = Skellam(BALL, multiplier, bits=bits, wrap_probability=0.1)
    assert bolder.scale > mechanism.scale


def test_wrapping_is_as_rare_as_promised() -> None:
    """The same words by hand: how often a release leaves the modulus, and that codes wrap."""
    mechanism = Skellam(Ball(Norm.L2, 64), 0.5, bits=8, wrap_probability=0.1)
    vector, rng, again = update(mechanism.ball), seeded_rng(3), seeded_rng(3)
    wrapped = 0
    for _ in range(400):
        codes, block = encode(mechanism, vector, rng), again.draw(64)
        scaled = rotate(vector, 0) * mechanism.scale
        whole = conditional_rounding(scaled, Norm.L2, mechanism.squared_length, block) // 2
        whole = whole + skellam_noise(mechanism.noise_variance, mechanism._words, block, 64)
        assert np.array_equal(codes, whole % 256)
        wrapped += bool(np.any((whole < -128) | (whole >= 128)))
    assert wrapped <= 400 * 0.1 + 6 * math.sqrt(400 * 0.09)


def test_sensitivities_double_when_replacing() -> None:
    mechanism = Skellam(BALL, 1.0)
    (l1, l2), (l1_twice, l2_twice) = (
        mechanism.sensitivities(a) for a in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)
    )
    assert (l1_twice, l2_twice) == pytest.approx((2 * l1, 2 * l2))
    assert l2 <= l1 <= l2**2
    assert l1 <= math.sqrt(128) * l2 * (1 + 1e-12)
    reach = mechanism.scale
    assert reach <= l2 <= reach + math.sqrt(128)


def test_with_many_bits_the_account_comes_near_the_gaussians() -> None:
    for adjacency in Adjacency:
        ours = (Skellam(BALL, 2.0).privacy(adjacency) * 20).epsilon(1e-5)
        theirs = (Cost.linear(Gaussian(BALL, 2.0).privacy(adjacency).rdp(2.0) / 2) * 20).epsilon(
            1e-5
        )
        assert theirs < ours < 1.02 * theirs


def test_few_bits_cost_privacy_for_rounding() -> None:
    fine = Skellam(BALL, 1.0).privacy(Adjacency.ZERO_OUT).epsilon(1e-5)
    coarse = Skellam(BALL, 1.0, bits=8).privacy(Adjacency.ZERO_OUT).epsilon(1e-5)
    assert coarse > fine


def test_seeds_of_the_rotation_change_codes_not_the_account() -> None:
    one, other = Skellam(BALL, 1.0), Skellam(BALL, 1.0, rotation_seed=9)
    vector = update(BALL)
    assert not np.array_equal(
        encode(one, vector, seeded_rng(1)), encode(other, vector, seeded_rng(1))
    )
    assert one.privacy(Adjacency.ZERO_OUT) == other.privacy(Adjacency.ZERO_OUT)


@pytest.mark.parametrize(
    "arguments",
    [
        {"ball": Ball(Norm.L1, 5)},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
        {"bits": 1},
        {"bits": 17},
        {"bits": 2},
        {"rotation_seed": -1},
        {"wrap_probability": 0.0},
        {"wrap_probability": 0.9},
    ],
)
def test_wrong_fields_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        Skellam(**({"ball": BALL, "noise_multiplier": 1.0} | arguments))


def test_rounded_on_its_own_the_codes_are_mixtures_of_two_neighbours() -> None:
    """The same words by hand: rounding by the first stream, noise by its own."""
    mechanism = IndependentSkellam(Skellam(BALL, 0.1, bits=8))
    vector = update(BALL)
    codes, block = encode(mechanism, vector, seeded_rng(3)), seeded_rng(3).draw(128)
    place = rotate(vector, 0) * mechanism.inner.scale
    up = (block.uniform64(0, 0, 128) >> np.uint64(11)) * 2.0**-53 < place - np.floor(place)
    whole = np.floor(place).astype(int) + up
    whole += skellam_noise(mechanism.inner.noise_variance, mechanism.inner._words, block, 128)
    assert np.array_equal(codes, whole % 256)
    assert 0 < up.sum() < 128
    assert family_of(mechanism) == "skellam"
    assert build(describe(mechanism)) == mechanism
    assert identity_of(mechanism) != identity_of(mechanism.inner)


def test_distances_before_rounding_are_those_of_the_updates() -> None:
    mechanism = IndependentSkellam(Skellam(BALL, 0.1))
    steps = mechanism.inner.scale
    zero, other = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
    assert steps <= mechanism.grid_steps(zero.radii) <= steps * (1 + 1e-12)
    assert mechanism.grid_steps(other.radii) == pytest.approx(2 * steps, rel=1e-12)
    assert (
        steps / 50 * (1 + 50 * 2.0**-21)
        <= mechanism.grid_steps(sample_share(zero, 50))
        <= steps / 50 * (1 + 51 * 2.0**-21)
    )
    assert mechanism.grid_steps(sample_share(other, 50)) > 2 * steps / 50


def test_noise_too_little_for_independent_rounding_is_refused() -> None:
    with refuses("standard deviation of the integer noise"):
        IndependentSkellam(Skellam(BALL, 0.02, bits=6))
    with refuses("inner"):
        IndependentSkellam(Gaussian(BALL, 1.0))  # type: ignore[arg-type]


def test_noise_that_takes_too_long_to_draw_is_refused() -> None:
    """Little noise in 16 bits: tails of thousands of words, a table that took ten minutes."""
    ball = Ball(Norm.L2, 1000)
    with refuses("random words of a draw"):
        Skellam(ball, 3e-4, bits=16)
    assert Skellam(ball, 1e-2, bits=16)._words <= 64
