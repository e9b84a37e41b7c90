"""Samplers against their law, at widths that are no multiple of eight; false alarms at 1e-9 per
test. All kernels give the bits of one (`core/laws/test_kernels.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.kernel.makers import make_design
from core.statistical.kit import StatisticalFailure, assert_binomial, assert_frequencies, seed
from quietbit.kernel.base import packed_size
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import secure_rng, seeded_rng
from quietbit.kernel.sampler import Sampler
from quietbit.kernel.select import select

TRIALS, WIDTH = 4000, 67
KERNEL = select("cpu")
SOURCES = pytest.mark.parametrize(
    "rng", [seeded_rng(seed(10)), secure_rng()], ids=["seeded", "secure"]
)


def law_at_levels(levels: int, bits: int, epsilon: float) -> tuple[Any, Any, Any]:
    """A sampler, inputs that sit on input levels, and the table's own rows as their law."""
    design = make_design(levels, bits, epsilon)
    sampler = Sampler.from_design(design, 1.0, 0.0, 1.0)
    index = np.random.default_rng(0).integers(0, levels, WIDTH)
    return sampler, np.linspace(-0.5, 0.5, levels)[index], design.probabilities[index]


def codes_of(sampler: Sampler, inputs: Any, rng: Any) -> Any:
    out = np.empty(packed_size(sampler.bits, inputs.size), np.uint8)
    KERNEL.sample_packed(sampler, inputs, rng, out)
    return ReferenceKernel().unpack(out, sampler.bits, inputs.size).reshape(inputs.shape)


@SOURCES
@pytest.mark.parametrize(
    ("levels", "bits", "epsilon"), [(2, 1, 1.0), (2, 1, 9.0), (3, 2, 3.0), (9, 3, 4.0)]
)
def test_every_coordinate_follows_the_table(
    levels: int, bits: int, epsilon: float, rng: Any
) -> None:
    sampler, row, law = law_at_levels(levels, bits, epsilon)
    codes = codes_of(sampler, np.tile(row, (TRIALS, 1)), rng)
    assert_frequencies(codes, law)
    codes[:, -1] = 0
    with pytest.raises(StatisticalFailure):
        assert_frequencies(codes, law)


@pytest.mark.parametrize("bits", [1, 3])
def test_packed_releases_follow_the_table_one_by_one(bits: int) -> None:
    """One release after the other, unpacked by another kernel: also the padding and the last
    partial byte.
    """
    sampler, row, law = law_at_levels(2, bits, 2.0)
    rng = seeded_rng(seed(11))
    codes = np.stack([codes_of(sampler, row, rng) for _ in range(2000)])
    assert_frequencies(codes, law)


def test_a_fair_coin_is_fair_to_the_third_digit() -> None:
    """Many coordinates at probability one half, where the undecided words sit in the middle of
    the range.
    """
    sampler = Sampler.from_design(make_design(2, 1, 1.0), 1.0, 0.0, 1.0)
    codes = codes_of(sampler, np.zeros(2_000_000, np.float32), seeded_rng(seed(12)))
    assert_binomial(int(codes.sum()), codes.size, 0.5)


@SOURCES
def test_bits_of_words_are_fair_and_draws_independent(rng: Any) -> None:
    count = 200_000
    first, second = rng.draw(count), rng.draw(count)
    indices = np.arange(count)
    primary, ties = first.primary(0, count), first.ties(indices)
    wide = first.uniform64(0, 0, count)
    pairs = [
        (primary, second.primary(0, count)),
        (primary[1:], primary[:-1]),
        (ties, second.ties(indices)),
        (ties[1:], ties[:-1]),
        (ties, primary.astype(np.uint64)),
        (wide, ties),
        (wide, first.uniform64(1, 0, count)),
    ]
    ones = np.concatenate([set_bits(words) for words in (primary, ties, wide)])
    assert_binomial(ones, count, 0.5, 0.5e-9)
    unequal = [set_bits(a ^ b)[0] for a, b in pairs]
    assert_binomial(unequal, [a.size for a, _ in pairs], 0.5, 0.5e-9)
    biased = primary | (primary >> np.uint16(7))
    with pytest.raises(StatisticalFailure):
        assert_binomial(set_bits(biased)[0], count, 0.5)


def set_bits(words: Any) -> Any:
    """How often each bit is set, the lowest first."""
    table = np.ascontiguousarray(words).view(np.uint8).reshape(words.size, -1)
    return np.unpackbits(table, axis=1, bitorder="little").sum(axis=0, dtype=int)
