"""Whichever way an update takes into a payload, its codes are those of the mechanism."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.mechanism.makers import MECHANISMS, update
from path import codes_of, encode
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.select import select
from quietbit.mechanism import additive
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.wire.payload import Header, build
from quietbit_lab.baseline.noise import Sign

KERNEL = select("cpu")


def codes(mechanism: Any, parts: list[Any], seed: int = 1, kernel: Any = KERNEL) -> Any:
    data = build(
        Header.of(mechanism), lambda out: mechanism.write(parts, 1.0, seeded_rng(seed), kernel, out)
    )
    return codes_of(data)


@pytest.fixture(params=MECHANISMS.values(), ids=MECHANISMS.keys())
def mechanism(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_parts_are_their_concatenation(mechanism: Any) -> None:
    vector = update(mechanism.ball, share=0.6).astype(np.float32)
    parts = [vector[:3], vector[3:3], vector[3:35].reshape(4, 8), vector[35:]]
    assert np.array_equal(codes(mechanism, parts), codes(mechanism, [vector]))
    mixed = [vector[:3].astype(np.float64), *parts[1:]]
    assert np.array_equal(codes(mechanism, mixed), codes(mechanism, [vector.astype(np.float64)]))


def test_bfloat16_is_read_from_its_bits(mechanism: Any) -> None:
    vector = update(mechanism.ball, share=0.6).astype(np.float32)
    bits = (vector.view(np.uint32) >> 16).astype(np.uint16)
    cut = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(codes(mechanism, [bits]), codes(mechanism, [cut]))


def test_a_long_update_is_clipped_with_all_its_parts_under_one_norm(mechanism: Any) -> None:
    vector = update(mechanism.ball, share=0.9)
    # Far outside: the clipped vector is (nearly) that of the ball's own clip, so for the same words
    # hardly a code differs; without the joint norm the parts would be clipped apart, and nearly all
    # floats differ.
    found = codes(mechanism, [50 * vector[:40], 50 * vector[40:]])
    expected = encode(mechanism, mechanism.ball.clip(50 * vector), seeded_rng(1)).reshape(-1)
    if mechanism.layout.bits == 32:
        assert np.allclose(found.view(np.float32), expected.view(np.float32), rtol=1e-6)
    else:
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", ["gaussian", "sign of gaussian", "laplace"])
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = MECHANISMS[name]
    vector = [update(mechanism.ball)]
    whole = codes(mechanism, vector)
    monkeypatch.setattr(additive, "CHUNK", 16)
    assert np.array_equal(codes(mechanism, vector), whole)


def test_noisy_values_are_those_of_a_vector_in_the_ball() -> None:
    """With hardly any noise the floats show the clipped vector: its norm is at most the radius."""
    ball = Ball(Norm.L2, 10)
    vector = np.linspace(1.0, 2.0, 10)
    noisy = codes(Gaussian(ball, 1e-6), [vector]).view(np.float32)
    assert np.allclose(noisy, vector / np.linalg.norm(vector), atol=1e-4)
    signs = codes(Sign(Gaussian(ball, 1e-6)), [vector * np.array([1, -1] * 5)])
    assert signs.tolist() == [1, 0] * 5
