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
    found = audit(HONEST, Adjacency.ZERO_OUT, rng=rng, delta=0.0, samples=1500, confidence=SURE)
    assert 0.5 * found.epsilon_upper < found.epsilon_lower <= found.epsilon_upper
    assert found.verdict == "passed"
    assert 0 < found.detectable < 0.3 * found.epsilon_upper
    assert found.epsilon_upper < found.measurable < math.log(1500)


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


def test_it_finds_a_good_part_of_a_gaussians_epsilon() -> None:
    mechanism = Gaussian(Ball(Norm.L2, 1), 0.5)
    found = audit(mechanism, Adjacency.REPLACE_ONE, rng=seeded_rng(1), delta=1e-3, samples=1000)
    exact = mechanism.privacy(Adjacency.REPLACE_ONE).epsilon(1e-3)
    assert 0.15 * exact < found.epsilon_lower < exact
    assert (found.delta, found.adjacency, found.samples) == (1e-3, Adjacency.REPLACE_ONE, 1000)


def test_an_adjacency_may_be_a_word() -> None:
    """The word was checked, and the pairs then taken for those of zero-out."""
    given: dict[str, Any] = {"delta": 0.0, "samples": 100, "confidence": SURE}
    word, member = (
        audit(HONEST, one, rng=seeded_rng(5), **given)
        for one in ("replace-one", Adjacency.REPLACE_ONE)
    )
    assert word == member


def test_an_uplink_with_a_structure_is_audited_like_its_mechanism() -> None:
    mechanism = Gaussian(Ball(Norm.L2, 4), 0.5)
    uplink = Uplink(mechanism, like={"a": np.zeros((2, 2), dtype=np.float16)})
    found = [
        audit(one, Adjacency.ZERO_OUT, rng=seeded_rng(3), samples=100)
        for one in (mechanism, uplink)
    ]
    assert found[0] == found[1]


def test_progress_is_told() -> None:
    told: list[tuple[float, str]] = []
    mechanism = Gaussian(Ball(Norm.L2, 2), 0.5)
    audit(
        mechanism,
        Adjacency.ZERO_OUT,
        rng=seeded_rng(1),
        samples=100,
        progress=lambda *one: told.append(one),
    )
    assert [fraction for fraction, _ in told] == sorted(fraction for fraction, _ in told)
    assert told[-1] == (1.0, "done")
    assert {"zero", "outside the ball"} <= {message for _, message in told}


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


@pytest.mark.long  # a power study
def test_what_is_detectable_is_detected_nine_times_in_ten() -> None:
    """A response too strong is found in 4 of 6 tries or more; fewer have a chance of 0.016."""
    mechanism = InterpolatedMVU(design(2, 1, 2.0), Ball(Norm.L1, 1))
    usual = {"delta": 0.0, "samples": 250, "confidence": 0.99}
    claim = audit(mechanism, Adjacency.ZERO_OUT, rng=seeded_rng(seed(1)), **usual)  # type: ignore[arg-type]
    gain = 1 + claim.detectable / claim.epsilon_upper
    cheat = stronger(mechanism, gain)
    found = [audit(cheat, Adjacency.ZERO_OUT, rng=seeded_rng(seed(k)), **usual) for k in range(6)]  # type: ignore[arg-type]
    assert sum(not one.passed for one in found) >= 4


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


@pytest.mark.parametrize(
    "claim", [{"mean": math.nan}, {"spread": math.inf}, {"spread": -1.0}, {"moment_error": 2.0}]
)
def test_claims_that_are_none_are_refused(claim: dict[str, float]) -> None:
    inner = Gaussian(Ball(Norm.L2, 2), 0.5)

    class Standing:
        mechanism = Claiming(inner, **claim)
        send, receive = Uplink(inner).send, Uplink(inner).receive

    with pytest.raises(InvalidParameter):
        audit(Standing(), Adjacency.ZERO_OUT, rng=seeded_rng(1), samples=100)  # type: ignore[arg-type]


def test_a_mechanism_may_say_how_good_its_moments_are() -> None:
    inner = Gaussian(Ball(Norm.L2, 40), 0.5)
    verdicts = []
    for error in (0.0, 0.2):

        class Standing:
            mechanism = Claiming(inner, spread=1.2, moment_error=error)
            send, receive = Uplink(inner).send, Uplink(inner).receive

        verdicts.append(
            audit(Standing(), Adjacency.ZERO_OUT, rng=seeded_rng(1), samples=100).passed
        )  # type: ignore[arg-type]
    assert verdicts == [False, True]
