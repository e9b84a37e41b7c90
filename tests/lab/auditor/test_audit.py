"""The auditor's lower bound, its verdict, and what it needs; tests/attack has its catches.

The lower bounds hold with confidence 1 - 1e-9 (two per pair of updates, split evenly), so a correct
mechanism fails one of these with a probability of at most 1e-9.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from attrs import evolve, frozen

from attack.faults import stronger
from core.mechanism.makers import design
from core.statistical.kit import seed
from quietbit import Ball, Gaussian, InterpolatedMVU, Norm
from quietbit.errors import InvalidParameter
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.base import Wrapper
from quietbit.target import Adjacency
from quietbit.wire.uplink import Uplink
from quietbit_lab.auditor.audit import Audit, audit
from quietbit_lab.auditor.checks import Finding

SURE = 1 - 1e-9

# One coordinate, zero-out: the claim log((1 + e^eps)/2) is attained, so there is nothing to hide
# behind.
HONEST = InterpolatedMVU(design(2, 1, 3.0), Ball(Norm.L1, 1))


@pytest.mark.long  # a tenth is caught in tests/attack/test_audit_power.py
def test_a_sampler_twenty_percent_too_revealing_is_caught() -> None:
    rng = seeded_rng(seed(41))
    found = audit(
        stronger(HONEST, 1.2), Adjacency.ZERO_OUT, rng=rng, delta=0.0, samples=1800, confidence=SURE
    )
    assert found.verdict == "failed"
    assert found.failures
    assert found.epsilon_upper == HONEST.privacy(Adjacency.ZERO_OUT).epsilon(0.0)


def test_the_honest_one_is_not_and_the_bound_is_near() -> None:
    rng = seeded_rng(seed(50))
    found = audit(HONEST, Adjacency.ZERO_OUT, rng=rng, delta=0.0, samples=1000, confidence=SURE)
    assert 0.4 * found.epsilon_upper < found.epsilon_lower <= found.epsilon_upper
    assert found.verdict == "passed"
    assert 0 < found.detectable < 0.5 * found.epsilon_upper
    assert found.epsilon_upper < found.measurable < math.log(1000)


def test_noise_of_a_fifth_of_its_size_exceeds_the_claimed_epsilon() -> None:
    """Its lower bound alone does: the Gaussian's account leaves little room."""
    cheat = stronger(Gaussian(Ball(Norm.L2, 1), 1.0), 5.0)
    found = audit(
        cheat,
        Adjacency.ZERO_OUT,
        rng=seeded_rng(seed(60)),
        delta=0.05,
        samples=500,
        confidence=SURE,
    )
    assert found.epsilon_lower > found.epsilon_upper
    assert found.failures[0].startswith("epsilon: at least")


def test_a_word_and_an_uplink_with_a_structure_are_audited_alike() -> None:
    """The word was checked once, and the pairs then taken for those of zero-out."""
    mechanism = Gaussian(Ball(Norm.L2, 4), 0.5)
    uplink = Uplink(mechanism, like={"a": np.zeros((2, 2), dtype=np.float16)})
    member, word, structured = (
        audit(one, adjacency, rng=seeded_rng(3), samples=100)  # type: ignore[arg-type]
        for one, adjacency in (
            (mechanism, Adjacency.REPLACE_ONE),
            (mechanism, "replace-one"),
            (uplink, Adjacency.REPLACE_ONE),
        )
    )
    assert member == word == structured


def test_progress_is_told() -> None:
    told: list[tuple[float, str]] = []
    audit(
        Gaussian(Ball(Norm.L2, 2), 0.5),
        Adjacency.ZERO_OUT,
        rng=seeded_rng(1),
        samples=100,
        progress=lambda *one: told.append(one),
    )
    fractions, messages = zip(*told, strict=True)
    assert list(fractions) == sorted(fractions)
    assert told[-1] == (1.0, "done")
    assert {"zero", "outside the ball"} <= set(messages)


USUAL = Audit(
    0.5, 1.0, 0.0, Adjacency.ZERO_OUT, 0.99, 400, 0.1, 5.0, (Finding("means", 0.4, "fine"),)
)


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "passed"),
        ({"epsilon_lower": 1.1}, "failed"),
        ({"epsilon_lower": math.nan}, "failed"),
        ({"findings": (Finding("means", 1.1, "off"),)}, "failed"),
        ({"findings": (Finding("means", math.nan, "off"),)}, "failed"),
        ({"measurable": 0.9}, "inconclusive"),
        ({"detectable": 1.2}, "inconclusive"),
        ({"detectable": math.inf}, "inconclusive"),
    ],
)
def test_verdicts(changed: dict[str, Any], verdict: str) -> None:
    found = evolve(USUAL, **changed)
    assert found.verdict == verdict
    assert found.passed is (verdict != "failed")
    assert bool(found.failures) is (verdict == "failed")


@pytest.mark.parametrize(
    "changed",
    [{"samples": 10}, {"confidence": 0.3}, {"confidence": 1.0}, {"delta": -1.0}, {"rng": 3}],
)
def test_refusals(changed: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"rng": seeded_rng(1), "samples": 100}
    with pytest.raises(InvalidParameter):
        audit(Gaussian(Ball(Norm.L2, 1), 0.5), Adjacency.ZERO_OUT, **(usual | changed))


@frozen
class Claiming(Wrapper):
    """A Gaussian that claims something else of its decoded values."""

    inner: Gaussian
    mean: float = 0.0
    spread: float = 1.0
    moment_error: float = 0.0  # type: ignore[assignment]

    def cost(self, adjacency: Adjacency) -> Any:
        return self.inner.cost(adjacency)

    def decoded(self, value: float) -> tuple[float, float]:
        mean, variance = self.inner.decoded(value)
        return mean + self.mean, variance * self.spread


def audited(dimension: int, **claim: float) -> Audit:
    inner = Gaussian(Ball(Norm.L2, dimension), 0.5)

    class Standing:
        mechanism = Claiming(inner, **claim)
        send, receive = Uplink(inner).send, Uplink(inner).receive

    return audit(Standing(), Adjacency.ZERO_OUT, rng=seeded_rng(1), samples=100)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "claim", [{"mean": math.nan}, {"spread": math.inf}, {"spread": -1.0}, {"moment_error": 2.0}]
)
def test_claims_that_are_none_are_refused(claim: dict[str, float]) -> None:
    with pytest.raises(InvalidParameter):
        audited(2, **claim)


@pytest.mark.parametrize(("error", "passes"), [(0.0, False), (0.2, True)])
def test_a_mechanism_may_say_how_good_its_moments_are(error: float, passes: bool) -> None:
    assert audited(40, spread=1.2, moment_error=error).passed is passes
