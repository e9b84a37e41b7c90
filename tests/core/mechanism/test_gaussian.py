from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from core.laws.test_mechanisms import sampled
from core.mechanism.makers import MECHANISMS, update
from quietbit import Ball, Gaussian, Norm
from quietbit.kernel.select import select
from quietbit.mechanism import additive
from quietbit.mechanism.family import Choices
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency

BALL = Ball(Norm.L2, 5)


def test_the_curve_is_the_textbook_one() -> None:
    mechanism = Gaussian(BALL, 1.5)
    zero, replace = mechanism.privacy(Adjacency.ZERO_OUT), mechanism.privacy(Adjacency.REPLACE_ONE)
    assert zero.rdp(3.0) == pytest.approx(3.0 / (2 * 1.5**2), rel=1e-12)
    assert replace.rdp(3.0) == pytest.approx(4 * zero.rdp(3.0), rel=1e-12)
    assert zero.slope >= 1 / (2 * 1.5**2)
    assert math.isinf(zero.epsilon(0.0))
    assert zero.epsilon(1e-5) < Cost.linear(zero.slope).epsilon(1e-5)


KERNEL = select("cpu")


@pytest.mark.parametrize("name", ["gaussian", "sign of gaussian", "laplace"])
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = MECHANISMS[name]
    vector = [update(mechanism.ball)]
    whole = sampled(mechanism, vector)
    monkeypatch.setattr(additive, "CHUNK", 16)
    assert np.array_equal(sampled(mechanism, vector), whole)


def test_a_multiplier_that_is_given_is_the_mechanisms_to_the_last_bit() -> None:
    """Its reciprocal's reciprocal is another double for 0.11 and for 154 of the first 1,000
    hundredths.
    """
    assert 1 / (1 / 0.11) != 0.11
    mechanism: Any = additive.FAMILY.given(BALL, 0.11, Choices())
    assert mechanism.noise_multiplier == 0.11
