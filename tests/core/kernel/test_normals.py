from __future__ import annotations

import mpmath
import numpy as np
import pytest

from core.kernel import quantile_maker as maker
from core.statistical.kit import assert_binomial, seed
from quietbit.errors import InvalidDesignFile
from quietbit.kernel import normals as quantile
from quietbit.kernel.normals import (
    EXPANSION_ERROR,
    LARGEST,
    ROWS,
    law_error_upper,
    normals_of_words,
    quantile_table,
)
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rounded import NoiseLaw, steps_of
from quietbit.kernel.select import select
from refusals import refuses

EXTREME = [0, 1, 2, 3, 7, 2**62 - 1, 2**62, 2**63 - 1025, 2**63 - 513, 2**63 - 2, 2**63 - 1]


def exact(word):
    """The quantile that a word stands for, in 200 bits."""
    size = maker.tail_quantile(mpmath.mpf((word % 2**63) | 1) / mpmath.mpf(2) ** 64)
    return -size if word >= 2**63 else size


def spread_words(count):
    """Words of every octave, both signs."""
    rng = np.random.default_rng(seed(4))
    words = [
        int(w) >> int(s)
        for w, s in zip(rng.integers(0, 2**63, count), rng.integers(0, 63, count), strict=True)
    ]
    return EXTREME + [w + 2**63 for w in EXTREME] + words + [2**63 + w for w in words]


def test_rows_are_those_that_mpmath_makes():
    rows = [*range(0, ROWS, 41), ROWS - 2, ROWS - 1]
    np.testing.assert_array_equal(quantile_table()[rows], [maker.make_row(row) for row in rows])


def test_the_stated_error_is_proved_for_every_row():
    worst = max(maker.row_error_upper(row, quantile_table()[row]) for row in range(ROWS))
    assert 2e-15 < worst < EXPANSION_ERROR


def test_a_changed_coefficient_breaks_the_bound(monkeypatch):
    words = np.arange(2**62, 2**62 + 2**58, 2**54, dtype=np.uint64)  # one row
    table = quantile_table().copy()
    table[62 * 16, 3] *= 1 + 1e-9
    monkeypatch.setattr(quantile, "quantile_table", lambda: table)
    errors = [
        abs(exact(int(word)) - float(z))
        for word, z in zip(words, normals_of_words(words), strict=True)
    ]
    assert max(errors) > EXPANSION_ERROR


def test_normals_are_within_the_stated_error_of_the_exact_quantile():
    words = spread_words(300)
    found = normals_of_words(np.array(words, dtype=np.uint64))
    errors = [abs(mpmath.mpf(float(z)) - exact(word)) for word, z in zip(words, found, strict=True)]
    assert max(errors) < EXPANSION_ERROR
    assert np.max(np.abs(found)) <= LARGEST
    assert float(exact(0)) < LARGEST < float(exact(0)) + 1e-4


def test_the_law_is_symmetric_and_decreasing():
    words = np.array(sorted(w for w in spread_words(500) if w < 2**63), dtype=np.uint64)
    above, below = normals_of_words(words), normals_of_words(words + np.uint64(2**63))
    np.testing.assert_array_equal(above, -below)
    assert np.all(np.diff(above) <= EXPANSION_ERROR)


def test_frequencies_are_normal():
    """False alarms: 1e-9."""
    from scipy import stats

    edges = np.array([-3.0, -1.0, -0.1, 0.0, 0.5, 2.0, 4.0])
    words = np.random.default_rng(seed(5)).integers(0, 2**64, 200_000, dtype=np.uint64)
    found = normals_of_words(words)
    assert_binomial([(found <= edge).sum() for edge in edges], found.size, stats.norm.cdf(edges))
    with pytest.raises(AssertionError):
        assert_binomial(
            [(1.02 * found <= edge).sum() for edge in edges], found.size, stats.norm.cdf(edges)
        )


def test_kolmogorov_distance_of_the_exact_law():
    """P(z* <= x) jumps by 2^-63 at the middle of a cell: enumerate a law of 4 bits in the same
    way.
    """
    w = np.arange(1, 8, 2) / 16
    points = np.sort(
        np.concatenate(
            [
                [float(maker.tail_quantile(q)) for q in w],
                [-float(maker.tail_quantile(q)) for q in w],
            ]
        )
    )
    x = np.linspace(-3, 3, 2001)
    below = np.searchsorted(points, x, side="right") / points.size
    from scipy import stats

    assert (
        np.max(np.abs(below - stats.norm.cdf(x))) <= 1 / 16 + 1e-12
    )  # half a cell of probability 1/8
    assert law_error_upper(1024) == 1024 * 2.0**-63
    with refuses("count"):
        law_error_upper(-1)


def test_compiled_code_has_the_same_bits():
    """Words that reach every row of the table, as rounded noise; normals of a seed, as they are."""
    words = np.array(spread_words(2000), dtype=np.uint64)
    zeros = np.zeros(words.size)
    compiled = select("cpu")._noise_steps(zeros, 1.0, NoiseLaw.NORMAL, words)
    plain = steps_of(zeros, 1.0, NoiseLaw.NORMAL, words)
    assert compiled[1].tolist() == plain[1].tolist()
    assert compiled[0][plain[1]].tobytes() == plain[0][plain[1]].tobytes()
    key = bytes(range(16))
    assert (
        select("cpu").normals(key, 5000).tobytes() == ReferenceKernel().normals(key, 5000).tobytes()
    )


def test_another_table_is_refused(monkeypatch):
    monkeypatch.setitem(quantile.PROVED, "quantile.bin", ("<f8", "0" * 64))
    quantile_table.cache_clear()
    with pytest.raises(InvalidDesignFile, match="proved right"):
        quantile_table()
    monkeypatch.undo()
    quantile_table.cache_clear()
    assert quantile_table().shape == (ROWS, 8)
