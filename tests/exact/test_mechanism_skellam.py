"""Skellam's whole release enumerated: conditional rounding, exact noise, wrapped modulo 2^b."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from quietbit import Ball, Norm, Skellam
from quietbit.kernel.transform import rotate
from quietbit.privacy.guarantee import Adjacency


def release(mechanism: Skellam, update: Any) -> Any:
    """The law of all codes together, by convolution over accepted integer vectors and wrapping."""
    modulus = 2**mechanism.bits
    mean = mechanism.noise_variance / 2
    support = np.arange(-6 * modulus, 6 * modulus)
    pmf = stats.skellam.pmf(support, mean, mean)
    wrapped = np.zeros(modulus)
    np.add.at(wrapped, support % modulus, pmf)
    scaled = rotate(np.asarray(update, dtype=float), mechanism.rotation_seed) * mechanism.scale
    low = np.floor(scaled).astype(int)
    part = scaled - low
    total, law = 0.0, 0.0
    for ups in itertools.product((0, 1), repeat=len(low)):
        integers = low + np.array(ups)
        chance = math.prod(np.where(ups, part, 1 - part))
        if float(integers @ integers) > mechanism.squared_length or chance == 0:
            continue
        joint = np.roll(wrapped, integers[0])
        for value in integers[1:]:
            joint = np.multiply.outer(joint, np.roll(wrapped, value))
        total, law = total + chance, law + chance * joint
    assert total >= 1 - math.exp(-0.5)
    return np.ravel(law / total)


def renyi(p: Any, q: Any, alpha: float) -> float:
    with np.errstate(divide="ignore"):
        exponent = alpha * np.log(p) + (1 - alpha) * np.log(q)
    top = exponent.max()
    return float((top + np.log(np.exp(exponent - top).sum())) / (alpha - 1))


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("size", "bits"), [(1, 6), (1, 9), (2, 7)])
def test_the_release_is_as_private_as_claimed(size: int, bits: int, multiplier: float) -> None:
    ball = Ball(Norm.L2, 1.0, size)
    mechanism = Skellam(ball, multiplier, bits=bits, wrap_probability=0.1)
    rng = np.random.default_rng(bits)
    points = [ball.clip(100 * rng.normal(size=size)) for _ in range(3)]
    points += [np.eye(1, size)[0], -np.eye(1, size)[0], 0.37 * points[0], np.zeros(size)]
    laws = [release(mechanism, point) for point in points]
    assert all(law.sum() == pytest.approx(1.0, rel=1e-9) for law in laws)
    for adjacency in Adjacency:
        claim = mechanism.privacy(adjacency)
        pairs = itertools.permutations(laws, 2)
        if adjacency is Adjacency.ZERO_OUT:
            pairs = itertools.chain(((law, laws[-1]) for law in laws), ((laws[-1], law) for law in laws))
        worst = 0.0
        for p, q in pairs:
            for alpha in (1.3, 2.0, 3.5, 8.0):
                found = renyi(p, q, alpha)
                worst = max(worst, found / claim.rdp(alpha))
                assert found <= claim.rdp(alpha) * (1 + 1e-9)
        assert worst > 0.1  # the claim is about these releases, not about something far away
