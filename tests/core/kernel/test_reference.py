"""The reference kernel against the definition, written once more in plain Python."""

import math

import numpy as np

from core.kernel.makers import make_design, make_sampler
from quietbit.kernel.reference import exact_codes, thresholds
from quietbit.kernel.sampler import Gain, Sampler


def codes_of(sampler, inputs, primary, ties=0, factor=1.0):
    words = [np.full(inputs.size, part).astype(np.uint64) for part in (primary, ties)]
    gain = Gain.of(factor, sampler.scale)
    return exact_codes(sampler, inputs, gain, words[0].astype(np.uint16), words[1])


def test_codes_follow_the_definition():
    design = make_design(4, 2, 3.0)
    sampler = Sampler.from_design(design, 0.4, -0.2, 1.2)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=500) * 2
    words = rng.integers(0, 2**16, 500)
    codes = codes_of(sampler, inputs, words, factor=0.5)
    logs = np.log(design.probabilities)
    for value, word, code in zip(inputs, words, codes, strict=True):
        place = 3 * min(max(0.5 + 0.4 * 0.5 * value, -0.2), 1.2)
        i = min(max(math.floor(place), 0), 2)
        weights = np.exp(logs[i] * (i + 1 - place) + logs[i + 1] * (place - i))
        edges = np.cumsum(weights)[:-1] / weights.sum()
        assert code == sum(word / 65536 >= edge for edge in edges)


def test_a_code_is_the_number_of_thresholds_that_its_word_reaches():
    """In whole numbers of 64 bits, with words at the thresholds themselves and next to them."""
    sampler = make_sampler(5, 3, 3.0)
    inputs = np.random.default_rng(3).normal(size=300)
    found = thresholds(sampler, inputs, Gain.of(1.0, sampler.scale))
    edges = found[0].astype(object) * 2**48 + found[1]
    words = edges[np.arange(300), np.arange(300) % 7] + np.arange(300) % 3 - 1
    words = np.minimum(words, 2**64 - 1)
    codes = codes_of(sampler, inputs, words >> 48, words % 2**48)
    np.testing.assert_array_equal(codes, (words[:, None] >= edges).sum(axis=1))


def test_extreme_words_give_extreme_codes_and_only_48_tie_bits_count():
    sampler, inputs = make_sampler(2, 3, 2.0), np.linspace(-3, 3, 50)
    assert not codes_of(sampler, inputs, 0).any()
    assert (codes_of(sampler, inputs, 2**16 - 1, np.uint64(2**48 - 1)) == 7).all()
    ties = np.random.default_rng(0).integers(0, 2**48, 50).astype(np.uint64)
    plain, dirty = (
        codes_of(make_sampler(), np.zeros(50), 2**15, ties | np.uint64(upper << 48))
        for upper in (0, 0xABCD)
    )
    np.testing.assert_array_equal(plain, dirty)
