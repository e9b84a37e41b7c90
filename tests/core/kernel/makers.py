"""Designs, samplers and words for the kernel tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quietbit.design.table import Design, DesignSpec, exact_row
from quietbit.kernel.rng import ChaChaBlock
from quietbit.kernel.sampler import Sampler


def make_design(
    levels: int, bits: int, epsilon: float, seed: int = 0, kinks: float = 0.05
) -> Design:
    """A positive table whose log-ratios are about ``epsilon``; with kinks when there are inner
    levels.
    """
    rng = np.random.default_rng(seed)
    symbols = 2**bits
    x = np.linspace(0.0, 1.0, levels)
    logs = epsilon * (x[:, None] - 0.5) * np.linspace(-1.0, 1.0, symbols)
    if bits > 1:
        logs = logs + 0.2 * rng.normal(size=symbols)
    if levels > 2:
        logs = logs + kinks * epsilon * rng.normal(size=(levels, symbols))
    table = np.exp(logs)
    table /= table.sum(axis=1, keepdims=True)
    return Design(
        DesignSpec(levels, bits, epsilon),
        np.stack([exact_row(row) for row in table]),
        np.linspace(-0.3, 1.3, symbols),
    )


def make_sampler(
    levels: int = 2,
    bits: int = 1,
    epsilon: float = 1.0,
    scale: float = 0.5,
    low: float = 0.0,
    high: float = 1.0,
    seed: int = 0,
) -> Sampler:
    return Sampler.from_design(make_design(levels, bits, epsilon, seed), scale, low, high)


@dataclass
class GivenWords:
    """Words chosen by a test; counts the draws."""

    words: Any
    tie_words: Any
    draws: list[int] = field(default_factory=list)

    def draw(self, count: int) -> GivenBlock:
        self.draws.append(count)
        return GivenBlock(np.asarray(self.words, np.uint16), np.asarray(self.tie_words, np.uint64))


@dataclass
class GivenBlock:
    words: Any
    tie_words: Any

    def primary(self, start: int, count: int):
        return self.words[start : start + count]

    def ties(self, indices):
        return self.tie_words[indices]

    def uniform64(self, stream: int, start: int, count: int):
        return np.zeros(count, np.uint64)


class FixedKey:
    """Words of one key of ChaCha, in every draw."""

    def draw(self, count: int) -> ChaChaBlock:
        return ChaChaBlock(count, tuple(0x9E3779B9 * (k + 1) & 0xFFFFFFFF for k in range(8)))
