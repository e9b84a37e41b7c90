"""The reference kernel against the definition, written once more in plain Python."""

from __future__ import annotations

import math

import numpy as np

from core.kernel.makers import GivenWords, make_design, make_sampler
from quietbit.kernel.reference import ReferenceKernel, cumulative
from quietbit.kernel.sampler import Sampler

KERNEL = ReferenceKernel()


def test_cumulative_probabilities_at_the_levels_are_the_tables() -> None:
    design = make_design(6, 3, 4.0)
    sampler = Sampler.from_design(design, 1.0, 0.0, 1.0)
    t = np.linspace(-0.5, 0.5, 6)
    found = cumulative(sampler, t, np.zeros(6))
    np.testing.assert_allclose(found, np.cumsum(design.probabilities, axis=1)[:, :-1], atol=1e-14)


def test_codes_follow_the_definition() -> None:
    design = make_design(4, 2, 3.0)
    sampler = Sampler.from_design(design, 0.4, -0.2, 1.2)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=500) * 2
    words = rng.integers(0, 2**16, 500)
    codes = KERNEL.sample(sampler, inputs, GivenWords(words, np.zeros(500)), factor=0.5)
    for value, word, code in zip(inputs, words, codes, strict=True):
        x = min(max(0.5 + 0.4 * 0.5 * value, -0.2), 1.2)
        i = min(max(math.floor(x * 3), 0), 2)
        logs = np.log(design.probabilities[i]) * (i + 1 - 3 * x) + np.log(
            design.probabilities[i + 1]
        ) * (3 * x - i)
        weights = np.exp(logs)
        edges = np.cumsum(weights)[:-1] / weights.sum()
        assert code == sum(word / 65536 >= edge for edge in edges)


def test_extreme_words_give_extreme_codes() -> None:
    sampler = make_sampler(2, 3, 2.0)
    inputs = np.linspace(-3, 3, 50)
    assert not KERNEL.sample(sampler, inputs, GivenWords(np.zeros(50), np.zeros(50))).any()
    top = GivenWords(np.full(50, 2**16 - 1), np.full(50, 2**64 - 1, np.uint64))
    assert np.all(KERNEL.sample(sampler, inputs, top) == 7)


def test_only_48_tie_bits_count() -> None:
    sampler = make_sampler()
    rng = np.random.default_rng(0)
    ties = rng.integers(0, 2**48, 200).astype(np.uint64)
    words = np.full(200, 2**15)
    inputs = np.zeros(200)
    plain = KERNEL.sample(sampler, inputs, GivenWords(words, ties))
    dirty = KERNEL.sample(sampler, inputs, GivenWords(words, ties | np.uint64(0xABCD << 48)))
    np.testing.assert_array_equal(plain, dirty)
