import mpmath
import numpy as np
import pytest
from scipy import stats

from core.kernel import quantile_maker as maker
from core.statistical.kit import seed
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
from quietbit.kernel.rounded import NoiseLaw, steps_of
from quietbit.kernel.select import select
from refusals import refuses

EXTREME = [0, 1, 2, 3, 7, 2**62 - 1, 2**62, 2**63 - 1025, 2**63 - 513, 2**63 - 2, 2**63 - 1]


def spread_words(count):
    """Words of every octave, both signs."""
    rng = np.random.default_rng(seed(4))
    words = EXTREME + (rng.integers(0, 2**63, count) >> rng.integers(0, 63, count)).tolist()
    return words + [2**63 + w for w in words]


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
        abs(maker.normal_of(int(word)) - float(z))
        for word, z in zip(words, normals_of_words(words), strict=True)
    ]
    assert max(errors) > EXPANSION_ERROR


def test_normals_are_within_the_stated_error_of_the_exact_quantile():
    words = spread_words(300)
    found = normals_of_words(np.array(words, dtype=np.uint64))
    errors = [
        abs(mpmath.mpf(float(z)) - maker.normal_of(word))
        for word, z in zip(words, found, strict=True)
    ]
    assert max(errors) < EXPANSION_ERROR
    assert np.max(np.abs(found)) <= LARGEST
    assert float(maker.normal_of(0)) < LARGEST < float(maker.normal_of(0)) + 1e-4


def test_the_law_is_symmetric_and_decreasing():
    words = np.array(sorted(w for w in spread_words(500) if w < 2**63), dtype=np.uint64)
    above, below = normals_of_words(words), normals_of_words(words + np.uint64(2**63))
    np.testing.assert_array_equal(above, -below)
    assert np.all(np.diff(above) <= EXPANSION_ERROR)


def test_kolmogorov_distance_of_the_exact_law():
    """P(z* <= x) jumps by 2^-63 at the middle of a cell: enumerate a law of 4 bits in the same
    way.
    """
    above = [float(maker.tail_quantile(w / 16)) for w in range(1, 8, 2)]
    points = np.sort([*above, *(-z for z in above)])
    x = np.linspace(-3, 3, 2001)
    below = np.searchsorted(points, x, side="right") / points.size
    half_a_cell = 1 / 16
    assert np.max(np.abs(below - stats.norm.cdf(x))) <= half_a_cell + 1e-12
    assert law_error_upper(1024) == 1024 * 2.0**-63
    with refuses("count"):
        law_error_upper(-1)


def test_compiled_code_has_the_same_bits():
    """Words that reach every row of the table, as rounded noise."""
    words = np.array(spread_words(2000), dtype=np.uint64)
    given = np.zeros(words.size), 1.0, NoiseLaw.NORMAL, words
    steps, sure = select("cpu")._noise_steps(*given)
    plain, certain = steps_of(*given)
    assert sure.tolist() == certain.tolist()
    assert steps[certain].tobytes() == plain[certain].tobytes()


def test_another_table_is_refused(monkeypatch):
    monkeypatch.setitem(quantile.PROVED, "quantile.bin", ("<f8", "0" * 64))
    quantile_table.cache_clear()
    with pytest.raises(InvalidDesignFile, match="proved right"):
        quantile_table()
    monkeypatch.undo()
    quantile_table.cache_clear()
    assert quantile_table().shape == (ROWS, 8)
