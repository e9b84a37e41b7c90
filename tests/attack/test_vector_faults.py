"""Faults of the vector mechanism that an audit of the real path must see, and none where there is
none.

False alarms: 1e-9 per audit, so a fault that is "caught" was not caught by chance. Seeds are fixed:
whether a fault is found is then a fact.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from attrs import evolve

from attack.faults import RepeatedBits, Tampered, names
from core.statistical.kit import seed
from quietbit import Ball, Norm
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism import vector as module
from quietbit.mechanism.solve_profile import solve_profile
from quietbit.mechanism.vector import VectorMVU
from quietbit.target import Adjacency
from quietbit.wire.uplink import Uplink
from quietbit_lab.auditor.audit import audit

SURE = 1 - 1e-9
LONG = pytest.mark.long
BALL = Ball(Norm.L2, 30)


def honest(keep=32, epsilon=4.0):
    """Purely private at this epsilon, replace-one: a two-level profile."""
    return VectorMVU(solve_profile(epsilon, 0.0, 1, Adjacency.REPLACE_ONE), BALL, keep)


def look(target, samples, rng=None, delta=1e-5):
    source = seeded_rng(seed(1)) if rng is None else rng
    return audit(
        target, Adjacency.REPLACE_ONE, rng=source, samples=samples, confidence=SURE, delta=delta
    )


@pytest.mark.parametrize("keep", [pytest.param(32, marks=LONG), 8, pytest.param(1, marks=LONG)])
def test_nothing_is_found_without_a_fault(keep):
    found = look(honest(keep), 300)
    assert found.failures == ()
    assert found.epsilon_lower <= found.epsilon_upper <= 4.0


@LONG
def test_the_bound_on_epsilon_is_not_far_below_the_claim():
    """Against a step at epsilon 2 half of what there is to see is seen: the audit has power
    here.
    """
    found = look(honest(32, 2.0), 1000, delta=0.0)
    assert 1.0 < found.epsilon_lower <= found.epsilon_upper <= 2.0


def test_a_profile_a_tenth_too_steep():
    """Sampled at 1.1 times the epsilon and decoded with the gain of the claim, as the two ends
    would.
    """
    claimed, steep = honest(), honest(epsilon=4.4)
    factor = steep.profile.gain_lower / claimed.profile.gain_lower

    @dataclass(frozen=True)
    class Decoding(Tampered):
        def receive(self, payloads):
            return super().receive(payloads) * factor

    found = look(Decoding(claimed, steep), 800)
    assert "response" in names(found)
    assert found.verdict == "failed"


def test_a_profile_far_too_steep_exceeds_the_claim_itself():
    """The empirical bound on epsilon alone, without any claim about means: 4 where 1 is claimed."""
    found = look(Tampered(honest(epsilon=1.0), honest()), 300)
    assert found.epsilon_lower > found.epsilon_upper


def test_acceptance_computed_from_the_unclipped_update(monkeypatch):
    """Neither clip: an update three times too long is tilted three times too far."""

    def unclipped(value, most):
        return value if most == 1.0 else min(value, most)  # the second clip alone is left out

    mechanism = honest(epsilon=2.0)
    levels = mechanism.profile.levels
    monkeypatch.setattr(module, "clip_factor", lambda norm, radius: 1.0)
    monkeypatch.setattr(module, "min", unclipped, raising=False)
    # Weights below zero would be refused: the faulty client cuts them off at nothing, as a careless
    # one would.
    real = module.acceptance_limits
    monkeypatch.setattr(
        module, "acceptance_limits", lambda chances: real(np.clip(chances, 0.0, 1.0))
    )
    assert (1 - 3 + 3 * levels[0]) < 0
    found = look(mechanism, 300)
    assert "clipping" in names(found)


def test_a_seed_used_again():
    """The same random bits for every release, or for every seventh: candidates and acceptance
    repeat.
    """
    for period in (1, 7):
        found = look(honest(), 100, RepeatedBits(seed(5), period))
        assert {"releases", "payloads"} & names(found)


@pytest.mark.parametrize("period", [1, 7])
def test_a_seed_used_again_on_the_rows_of_other_rounds(period):
    """Rows differ from release to release, so that their noise does; that bodies repeat is seen
    all the same.
    """
    profile = solve_profile(4.0, 0.0, 1, Adjacency.REPLACE_ONE)
    mechanism = VectorMVU(profile, Ball(Norm.L2, 3000), 16, rows=3)
    assert "payloads" in names(look(mechanism, 100, RepeatedBits(seed(5), period)))


def test_shared_rows_are_audited_with_those_of_many_rounds():
    """No alarm without a fault, of a mechanism or an uplink."""
    assert look(honest(8).at(3), 100).failures == ()
    assert look(Uplink(honest(8).at(3)), 100).failures == ()


@pytest.mark.parametrize(
    ("by", "shared"),
    [(1, None), (-1, 3), pytest.param(-1, None, marks=LONG), pytest.param(1, 3, marks=LONG)],
)
def test_one_row_too_many_or_too_few(by, shared, monkeypatch):
    """The client cuts the rotated update into k + 1 or k - 1 strata where the server has k."""
    real, rotated, asked = Kernel.rows, VectorMVU.project, []

    def off_by_one(kernel, nonce, count, size):
        found = real(kernel, nonce, count + by, size)
        return found[:count] if by > 0 else np.append(found, size - 1)

    def project(mechanism, *given):
        """The client alone: the server's rows stay what they are."""
        asked.append(1)
        with monkeypatch.context() as inside:
            inside.setattr(Kernel, "rows", off_by_one)
            return rotated(mechanism, *given)

    monkeypatch.setattr(VectorMVU, "project", project)
    found = look(evolve(honest(8), rows=shared), 200)
    assert asked
    assert "response" in names(found)
    assert found.verdict == "failed"


def test_a_stream_of_normals_shifted_by_one(monkeypatch):
    """The client looks at normals 1 .. k where the server takes 0 .. k - 1: what is sent is
    noise, and is found out.
    """
    real = Kernel.search

    def shifted(kernel, direction, *rest, **more):
        return real(kernel, np.roll(direction, 1), *rest, **more)

    monkeypatch.setattr(Kernel, "search", shifted)
    assert "response" in names(look(honest(), 100))
