"""One of every mechanism, at a dimension that is no multiple of eight; words that count their
draws.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from quietbit import Ball, Gaussian, InterpolatedMVU, Norm, Uplink
from quietbit.design.profile import Profile
from quietbit.design.table import Design, DesignSpec, exact_row
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.projected import Projected
from quietbit.mechanism.rotation import rotation_for
from quietbit.mechanism.scouts import Scouted
from quietbit.mechanism.vector import VectorMVU
from quietbit.wire.payload import Payload
from quietbit_lab.baseline.dithered import DitheredMVU
from quietbit_lab.baseline.noise import Laplace, Sign
from quietbit_lab.baseline.skellam import IndependentSkellam, Skellam
from quietbit_lab.design.search import solve

WIDTH = 67
ROUND = Ball(Norm.L2, WIDTH)
POINTED = Ball(Norm.L1, WIDTH)


@cache
def design(levels: int = 2, bits: int = 1, epsilon: float = 1.0) -> Design:
    """An optimal design where a formula gives one."""
    return solve(DesignSpec(levels, bits, epsilon), cache=False)


@cache
def table(levels: int, bits: int, epsilon: float, seed: int = 0) -> Design:
    """Any positive table whose log-ratios are about epsilon, with kinks and without symmetry."""
    rng = np.random.default_rng(seed)
    symbols = 2**bits
    x = np.linspace(0.0, 1.0, levels)
    logs = epsilon * (x[:, None] - 0.5) * np.linspace(-1.0, 1.0, symbols) + 0.1 * rng.normal(
        size=symbols
    )
    logs = logs + 0.05 * epsilon * rng.normal(size=(levels, symbols))
    rows = np.exp(logs)
    alphabet = np.sort(0.5 + 1.5 * rng.normal(size=symbols))
    return Design(
        DesignSpec(levels, bits, epsilon), np.stack([exact_row(row) for row in rows]), alphabet
    )


STEP = Profile.from_weights([0.8], [1.0, 12.0])
STAIRS = Profile.from_weights([-1.0, -0.2, 0.5, 1.1], [0.2, 0.5, 1.0, 2.0, 3.0])
CLIFF = Profile.from_weights([4.8], [1.0, 2.0**21])  # too steep for a search

MECHANISMS: dict[str, Any] = {
    "imvu one bit l2": InterpolatedMVU(design(), ROUND),
    "imvu one bit l1 beta 8": InterpolatedMVU(design(), POINTED, beta=8.0),
    "imvu clamped unbiased": InterpolatedMVU(
        design(2, 1, 3.0), ROUND, beta=4.0, clamp=True, decoder="unbiased-at-zero"
    ),
    "imvu three bits five levels": InterpolatedMVU(table(5, 3, 2.0), ROUND, beta=1.5),
    "imvu rotated": InterpolatedMVU(
        design(2, 1, 3.0), ROUND, beta=1.5, clamp=True, rotation=rotation_for(WIDTH)
    ),
    "imvu rotated exactly": InterpolatedMVU(
        design(), ROUND, rotation=rotation_for(WIDTH, exact=True)
    ),
    "mvu nine levels l2": DitheredMVU(design(9, 1, 2.0), ROUND),
    "mvu four levels l1": DitheredMVU(table(4, 2, 2.0), POINTED),
    "gaussian": Gaussian(ROUND, 1.3),
    "laplace": Laplace(POINTED, 1.3),
    "sign of gaussian": Sign(Gaussian(ROUND, 0.8)),
    "sign of laplace": Sign(Laplace(POINTED, 0.8)),
    "skellam 16 bits": Skellam(ROUND, 1.1),
    "skellam 8 bits": Skellam(ROUND, 1.1, bits=8, rotation_seed=5),
    "independent skellam": IndependentSkellam(Skellam(ROUND, 0.3, bits=5, rotation_seed=5)),
    "vmvu seed": VectorMVU(STEP, ROUND, keep=32),
    "vmvu seed all rows": VectorMVU(STAIRS, ROUND, keep=128, rotation_seed=5),
    "vmvu shared rows": VectorMVU(STEP, ROUND, keep=32, rows=7),
}
# The same in a run that clients scout for.
MECHANISMS |= {
    f"scouted {name}": Scouted(MECHANISMS[name], 20, 0.3)
    for name in (
        "imvu one bit l1 beta 8",
        "imvu three bits five levels",
        "gaussian",
        "skellam 8 bits",
        "vmvu seed",
    )
}
MECHANISMS["kept"] = Projected(InterpolatedMVU(design(), Ball(Norm.L2, 16)), ROUND)

# Those of the library alone; the laboratory holds its own to the same laws.
LIBRARY = {
    name: mechanism
    for name, mechanism in MECHANISMS.items()
    if type(mechanism.core).__module__.startswith("quietbit.")
}


class CountingWords:
    """Seeded words that say how often they were drawn from."""

    def __init__(self, seed: int = 0) -> None:
        self.inner, self.draws = seeded_rng(seed), 0

    def draw(self, count: int) -> Any:
        self.draws += 1
        return self.inner.draw(count)


class FullWords:
    """Random bits whose full words are these, drawn once and together."""

    def __init__(self, *words: int) -> None:
        self.words = words

    def draw(self, count: int) -> Any:
        assert count == len(self.words)
        return self

    def uniform64(self, stream: int, start: int, count: int) -> Any:
        return np.array(self.words[start : start + count], dtype=np.uint64)


def answered(mechanism: Any, update: Any, *words: int, clip: float = 1.0) -> int:
    """Return the answer that these words make of an update."""
    data = Uplink(mechanism, clip=clip).send(update, FullWords(*words))
    return int.from_bytes(Payload.from_bytes(data).body.tobytes(), "little")


def update(ball: Ball, seed: int = 0, share: float = 0.9) -> Any:
    """A vector of ``share`` times the clip, with entries of all sizes."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=ball.dimension) * 10.0 ** rng.uniform(-2, 0, size=ball.dimension)
    return values * (share / np.linalg.norm(values, ord=ball.norm.order))
