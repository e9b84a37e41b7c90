from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from core.mechanism.makers import update
from path import encode
from quietbit import Ball, Gaussian, Norm
from quietbit.errors import InvalidParameter
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.transform import rotate
from quietbit.mechanism.registry import build, describe, family_of
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency
from quietbit_lab.baseline.skellam import (
    IndependentSkellam,
    Skellam,
    conditional_rounding,
)
from quietbit_lab.baseline.skellam_noise import skellam_noise
from refusals import refuses

BALL = Ball(Norm.L2, 100)


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


@pytest.mark.parametrize("bounded", [True, False])
def test_codes_are_rounded_updates_and_noise_modulo_a_power_of_two(bounded: bool) -> None:
    """The same words by hand: rounding by the first stream, noise by its own."""
    inner = Skellam(BALL, 0.1, bits=8, rotation_seed=5, wrap_probability=0.1)
    mechanism = inner if bounded else IndependentSkellam(inner)
    vector, rng, again = update(BALL), seeded_rng(3), seeded_rng(3)
    place = rotate(vector, 5) * inner.scale
    wraps = 0
    for _ in range(30):
        codes, block = encode(mechanism, vector, rng), again.draw(128)
        if bounded:
            whole = conditional_rounding(place, Norm.L2, inner.squared_length, block) // 2
        else:
            drawn = (block.uniform64(0, 0, 128) >> np.uint64(11)) * 2.0**-53
            whole = np.floor(place).astype(int) + (drawn < place - np.floor(place))
        whole = whole + skellam_noise(inner.noise_variance, inner._words, block, 128)
        assert np.array_equal(codes, whole % 256)
        wraps += bool(np.any((whole < -128) | (whole >= 128)))
    assert wraps < 13  # a tenth is promised: more with a chance of 1e-6
    assert family_of(mechanism) == "skellam"
    assert build(describe(mechanism)) == mechanism


def test_with_many_bits_the_account_comes_near_the_gaussians() -> None:
    for adjacency in Adjacency:
        ours = (Skellam(BALL, 2.0).privacy(adjacency) * 20).epsilon(1e-5)
        theirs = (Cost.linear(Gaussian(BALL, 2.0).privacy(adjacency).rdp(2.0) / 2) * 20).epsilon(
            1e-5
        )
        assert theirs < ours < 1.02 * theirs


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


def test_noise_that_is_too_little_or_takes_too_long_to_draw_is_refused() -> None:
    """Little noise in 16 bits: tails of thousands of words, a table that took ten minutes."""
    with refuses("standard deviation of the integer noise"):
        IndependentSkellam(Skellam(BALL, 0.02, bits=6))
    with refuses("inner"):
        IndependentSkellam(Gaussian(BALL, 1.0))  # type: ignore[arg-type]
    ball = Ball(Norm.L2, 1000)
    with refuses("random words of a draw"):
        Skellam(ball, 3e-4, bits=16)
    assert Skellam(ball, 1e-2, bits=16)._words <= 64


@pytest.mark.parametrize("multiplier", [0.3, 3.0])
def test_a_release_is_longer_than_an_honest_one_with_the_stated_chance_at_most(
    multiplier: float,
) -> None:
    """Of eight coordinates, each rounded away from zero, by the exact law of every square."""
    mechanism, risk = Skellam(Ball(Norm.L2, 8), multiplier, bits=6), 2.0**-40
    places, half = np.arange(-400, 401), mechanism.noise_variance / 2
    each = math.ceil(mechanism.scale / math.sqrt(8))
    squares = ((each + places + 32) % 64 - 32) ** 2
    law = np.bincount(squares, stats.skellam.pmf(places, half, half))
    for _ in range(3):
        law = np.convolve(law, law)
    lengths = np.sqrt(np.arange(law.size)) / mechanism.scale
    assert law[lengths > mechanism.honest_length].sum() <= risk
    assert law[lengths > mechanism.honest_length / 4].sum() > risk
