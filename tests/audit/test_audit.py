"""The auditor on every shipped mechanism, and on samplers that reveal more than they claim.

The lower bounds hold with confidence 1 - 1e-9 (two per pair of updates, split evenly), so a correct mechanism
fails one of these with a probability of at most 1e-9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from quietbit import Ball, Gaussian, InterpolatedMVU, Norm, audit
from quietbit.kernel.rng import seeded_rng
from quietbit.privacy.guarantee import Adjacency
from statistical.kit import seed
from unit.mechanism.makers import MECHANISMS, design

SURE = 1 - 1e-9


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("name", MECHANISMS)
def test_no_shipped_sampler_is_caught(name: str, adjacency: Adjacency) -> None:
    found = audit(MECHANISMS[name], adjacency, rng=seeded_rng(seed(1)), delta=1e-5, samples=150, confidence=SURE)
    assert found.passed
    assert found.epsilon_lower <= found.epsilon_upper
    assert found.confidence == SURE


@dataclass(frozen=True)
class Revealing:
    """A sampler that uses ``factor`` times the log-odds of the mechanism whose account it shows."""

    honest: InterpolatedMVU
    factor: float

    def __post_init__(self) -> None:
        steep = design(2, 1, self.factor * self.honest.design.spec.epsilon)
        object.__setattr__(self, "steep", InterpolatedMVU(steep, self.honest.ball))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.honest, name)

    def encode(self, update: Any, rng: Any) -> Any:
        return self.steep.encode(update, rng)  # type: ignore[attr-defined]


# One coordinate, zero-out: the claim log((1 + e^eps)/2) is attained, so there is nothing to hide behind.
HONEST = InterpolatedMVU(design(2, 1, 3.0), Ball(Norm.L1, 1.0, 1))


def test_a_sampler_twenty_percent_too_revealing_is_caught() -> None:
    cheat: Any = Revealing(HONEST, 1.2)
    rng = seeded_rng(seed(41))
    found = audit(cheat, Adjacency.ZERO_OUT, rng=rng, delta=0.0, samples=9000, confidence=SURE)
    assert not found.passed
    assert found.epsilon_upper == HONEST.privacy(Adjacency.ZERO_OUT).epsilon_upper(0.0)


def test_the_honest_one_is_not_and_the_bound_is_near() -> None:
    rng = seeded_rng(seed(50))
    found = audit(HONEST, Adjacency.ZERO_OUT, rng=rng, delta=0.0, samples=3000, confidence=SURE)
    assert 0.7 * found.epsilon_upper < found.epsilon_lower <= found.epsilon_upper


def test_noise_of_a_third_of_its_size_is_caught() -> None:
    """The Gaussian's exact account leaves little room either."""

    @dataclass(frozen=True)
    class Quiet:
        honest: Gaussian

        def __getattr__(self, name: str) -> Any:
            return getattr(self.honest, name)

        def encode(self, update: Any, rng: Any) -> Any:
            return Gaussian(self.honest.ball, self.honest.noise_multiplier / 3).encode(update, rng)

    cheat: Any = Quiet(Gaussian(Ball(Norm.L2, 1.0, 1), 1.0))
    rng = seeded_rng(seed(60))
    found = audit(cheat, Adjacency.ZERO_OUT, rng=rng, delta=0.05, samples=3000, confidence=SURE)
    assert not found.passed
