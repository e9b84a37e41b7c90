"""Error and bias of whole releases of the vector mechanism: d = 1,000, updates of three norms and
three kinds.

Along the update a decoded release is s = <x/|x|, decoded>. Its mean over N releases is normal to
high accuracy and must be the update's length, but for what the second clip takes, which is computed
from the lengths that rows give; 6.2 standard deviations are a false-alarm rate of 6e-10. Squared
errors of d coordinates average d nearly independent terms, so 6.2 of their standard deviations are
a few per mille.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from core.statistical.kit import seed
from quietbit import Ball, Norm, Uplink
from quietbit.design.profile import Profile
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.select import select
from quietbit.kernel.transform import rotate
from quietbit.mechanism.solve_profile import solve_profile
from quietbit.mechanism.vector import VectorMVU
from quietbit.target import Adjacency

SIZE, TIMES, SIGMAS = 1000, 300, 6.2
STEEP = Profile.from_weights([2.5], [1.0, 2.0**9])


def kinds() -> dict[str, Any]:
    plain = np.random.default_rng(5)
    spiky = np.zeros(SIZE)
    spiky[[3, 500]] = 1.0, -0.5
    wave = np.sin(np.arange(SIZE) / 40.0) * np.where(np.arange(SIZE) < 300, 3.0, 0.1)
    found = {"flat": plain.choice([-1.0, 1.0], SIZE), "spiky": spiky, "structured": wave}
    return {name: value / np.linalg.norm(value) for name, value in found.items()}


UPDATES = kinds()


def mechanism(name: str) -> VectorMVU:
    profile = STEEP if name == "steep" else solve_profile(4.0, 1e-5, 1, Adjacency.REPLACE_ONE)
    return VectorMVU(profile, Ball(Norm.L2, SIZE), 256 if name == "few rows" else 1024)


def decoded(made: VectorMVU, update: Any, rng: Any) -> Any:
    """Every release on its own, decoded by the server's half."""
    uplink = Uplink(made, max_payloads=16)
    return np.stack([uplink.receive([uplink.send(update, rng)]) for _ in range(TIMES)])


@cache
def picked(keep: int, padded: int) -> Any:
    plain = np.random.default_rng(1)
    return [select("cpu").rows(plain.bytes(8), keep, padded) for _ in range(1000)]


def lengths(made: VectorMVU, update: Any) -> Any:
    """|y| over many choices of rows: what the second clip sees, by the definition."""
    turned = rotate(update, made.rotation_seed)
    scale = math.sqrt(made.padded / made.keep)
    return np.array(
        [scale * np.linalg.norm(turned[pick]) for pick in picked(made.keep, made.padded)]
    )


def shrunk(made: VectorMVU, update: Any) -> float:
    """What the second clip takes of an update: 1 - E min(1, 1/|y|) |y|^2 / E |y|^2."""
    seen = lengths(made, update)
    return 1 - float((np.minimum(seen, 1.0) * seen).mean() / (seen**2).mean())


def judge(made: VectorMVU, update: Any, releases: Any, shrink: float) -> tuple[float, float]:
    """How many standard deviations mean and squared error are off their claims, ``shrink`` of
    the mean allowed for.
    """
    profile, norm = made.profile, float(np.linalg.norm(update))
    along = update / norm if norm else UPDATES["flat"]
    scores = releases @ along
    spread = math.sqrt((scores.var() + 1e-12) / TIMES)
    mean_off = (scores.mean() - norm * (1 - shrink)) / spread
    # Exact for all rows; a projection adds |x|^2 (1/k - 1/p) a coordinate, less what the second
    # clip takes.
    left = 1 - made.keep / made.padded
    energy = norm * (profile.second_moment - 1) - norm**2 * profile.gain_lower**2
    total = made.error().squared - (1 - norm**2) * left / made.keep
    total += energy / profile.gain_lower**2 / made.padded
    squares = np.square(releases - update).mean(axis=1)
    error_off = (squares.mean() / total - 1) / (squares.std() / squares.mean() / math.sqrt(TIMES))
    return float(mean_off), float(error_off)


SAMPLE = [("flat", 0.0), ("structured", 0.3), ("spiky", 1.0)]
OTHERS = [(kind, norm) for kind in UPDATES for norm in (0.3, 1.0) if (kind, norm) not in SAMPLE]


@pytest.mark.parametrize("name", ["all rows", "few rows", "steep"])
@pytest.mark.parametrize(
    ("kind", "norm"), [*SAMPLE, *(pytest.param(*one, marks=pytest.mark.long) for one in OTHERS)]
)
def test_error_and_bias_are_the_claimed_ones(name: str, kind: str, norm: float) -> None:
    made, update = mechanism(name), norm * UPDATES[kind]
    releases = decoded(made, update, seeded_rng(seed(41)))
    shrink = shrunk(made, update) if norm else 0.0
    if made.keep == made.padded or norm < 0.5:
        assert abs(shrink) < 1e-3
    assert max(map(abs, judge(made, update, releases, shrink))) < SIGMAS
    if norm:  # a gain a fifth too small is seen
        mean_off, error_off = map(abs, judge(made, update, 1.2 * releases, shrink))
        assert mean_off > SIGMAS or error_off > 3 * SIGMAS


@pytest.mark.parametrize("keep", [64, 256])
def test_the_second_clip_takes_what_is_said_of_it(keep: int) -> None:
    """1 / sqrt(4 pi k) of an update that fills the ball, nothing of one that does not nearly."""
    made = VectorMVU(STEEP, Ball(Norm.L2, 10 * SIZE), keep)
    update = np.resize(UPDATES["structured"], 10 * SIZE) / math.sqrt(10)
    assert shrunk(made, update) == pytest.approx(1 / math.sqrt(4 * math.pi * keep), rel=0.15)
    shorter = lengths(made, 0.6 * update)
    assert float((np.maximum(shorter - 1, 0) * shorter).mean()) < 1e-4
