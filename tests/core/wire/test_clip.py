"""The clip beside a mechanism: refused where it is none, applied once, and bound by the payload."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from core.mechanism.makers import MECHANISMS, WIDTH
from quietbit import InvalidParameter, Uplink, seeded_rng
from quietbit.mechanism.registry import build, canonical_text, describe, noted, noted_identity
from quietbit.mechanism.scouts import Scouted
from refusals import refuses

ATTACKS = {
    "zero": np.zeros(WIDTH),
    "one entry": 1e300 * np.eye(1, WIDTH)[0],
    "all": np.full(WIDTH, -1e30),
    "floats near their end": np.full(WIDTH, 3e38, dtype=np.float32),
    "hardly there": np.full(WIDTH, 5e-324),
    "short floats": np.full(WIDTH, 6e4, dtype=np.float16),
    "all sizes": np.logspace(-300, 300, WIDTH),
}


@pytest.mark.parametrize("clip", [0, -1.0, math.nan, math.inf, 1e28, 1e-28, True, "1", None])
def test_what_is_no_clip_is_refused(clip: Any) -> None:
    with refuses("clip"):
        Uplink(MECHANISMS["gaussian"], clip=clip)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("clip", [1e-27, 1e-20, 0.7, 1.0, 1e20, 1e27])
def test_whatever_is_sent_is_within_the_clip(attack: str, clip: float) -> None:
    """Noise of a millionth shows the released vector: in clips, at any clip."""
    from quietbit import Ball, Gaussian

    faint = Gaussian(Ball("l2", WIDTH), 1e-6)
    channel = Uplink(faint, clip=clip)
    found = channel.receive([channel.send(ATTACKS[attack], seeded_rng(1))]) / clip
    assert np.linalg.norm(found) <= 1 + 1e-4
    if attack in ("all", "floats near their end", "short floats") and clip <= 1e4:
        assert np.linalg.norm(found) >= 0.999


def test_floats_of_earlier_versions_are_not_read_in_clips() -> None:
    """They were in the updates' own units: their identity is none of today's, but at clip 1."""
    mechanism = MECHANISMS["gaussian"]
    assert '"lengths":"clips"' in canonical_text(mechanism, 0.5)
    assert "lengths" not in canonical_text(mechanism)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_ball_with_a_radius_is_refused_and_noted_ones_are_read(name: str) -> None:
    mechanism = MECHANISMS[name]
    old = describe(mechanism, 0.7)
    with pytest.raises(InvalidParameter, match="the clip goes beside the mechanism"):
        build(old)
    if type(mechanism.core).__module__.startswith("quietbit."):
        assert noted(old) == mechanism
    else:
        with refuses("ball of the mechanism"):
            noted(old)


def test_a_clip_that_moved_is_read_from_ledgers_of_earlier_versions() -> None:
    inner = MECHANISMS["imvu one bit l2"]
    moved = {"kind": "Watched", "inner": describe(inner, 2.0), "clip": 2.0}
    assert noted(moved) == inner
    assert noted({**moved, "every": 20, "truth": 0.3}) == Scouted(inner, 20, 0.3)
    assert len(noted_identity(moved)) == 64
    with pytest.raises(InvalidParameter):
        build(moved)
