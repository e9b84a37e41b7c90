from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from quietbit._validate import InvalidParameter
from quietbit.kernel.direct import draw_across, draw_along, rounding_mass_upper, step_cells, step_limits
from quietbit.kernel.expand import inner, normals, unit
from quietbit.kernel.quantiser import normal_quantiser
from quietbit.kernel.rng import seeded_rng
from statistical.kit import assert_binomial, seed

EDGES, LEVELS = [-1.0, 0.0, 2.0], [0.1, 0.5, 1.0, 8.0]


class GivenWords:
    """A block whose words are given."""

    def __init__(self, *words):
        self.words = np.array(words, dtype=np.uint64)

    def uniform64(self, stream, start, count):
        return self.words[start : start + count]


def test_cells_are_the_normal_shares():
    edges = [-8.9, -6.0, -1.0, 0.0, 0.3, 5.0, 8.9]
    cells = step_cells(edges)
    with mpmath.workprec(150):
        for edge, cell in zip(edges, cells[1:], strict=False):
            share = mpmath.ncdf(edge) if edge < 0 else mpmath.ncdf(-edge)
            found = mpmath.mpf(cell if edge < 0 else 2**63 - cell) / 2**63
            assert abs(found - share) <= share * 1e-15 + mpmath.mpf(2) ** -63
    for bad in ([9.5], [0.0, 0.0], [1.0, 0.0], [float("nan")]):
        with pytest.raises(InvalidParameter):
            step_cells(bad)


def test_limits_are_exact():
    cells = step_cells(EDGES)
    weights = [Fraction(level) * (b - a) for level, a, b in zip(LEVELS, cells, cells[1:], strict=False)]
    expected = [math.floor(2**64 * sum(weights[: s + 1]) / sum(weights)) for s in range(3)]
    assert step_limits(cells, LEVELS).tolist() == expected
    assert step_limits(cells, [1.0, 0.0, 0.0, 0.0]).tolist() == [2**64 - 1] * 3
    for bad in ([1.0], [0.0] * 4, [-1.0, 1.0, 1.0, 1.0], [float("nan"), 1.0, 1.0, 1.0]):
        with pytest.raises(InvalidParameter, match="levels"):
            step_limits(cells, bad)


def test_words_choose_step_and_cell():
    cells, limits = step_cells(EDGES), step_limits(step_cells(EDGES), LEVELS)
    for step in range(4):
        first = 0 if step == 0 else int(limits[step - 1])
        low, high = (
            draw_along(cells, limits, GivenWords(first, 0)),
            draw_along(cells, limits, GivenWords(first, 2**64 - 1)),
        )
        assert low == pytest.approx([-9.0801551, *EDGES][step], abs=1e-7)
        assert high == pytest.approx([*EDGES, 9.0801551][step], abs=1e-7)
    with pytest.raises(InvalidParameter, match="limits"):
        draw_along(cells, limits[:-1], GivenWords(0, 0))


def test_t_follows_the_profile():
    """False alarms: 1e-9."""
    cells, rng = step_cells(EDGES), seeded_rng(seed(2))
    limits = step_limits(cells, LEVELS)
    t = np.array([draw_along(cells, limits, rng.draw(1)) for _ in range(5000)])
    fine = np.array([-np.inf, -2.0, -1.0, -0.5, 0.0, 1.0, 2.0, 2.3, np.inf])
    weight = np.diff(stats.norm.cdf(fine)) * np.repeat(LEVELS, 2)
    counts = np.bincount(np.searchsorted(fine, t) - 1, minlength=8)
    assert_binomial(counts, t.size, weight / weight.sum())
    with pytest.raises(AssertionError):
        assert_binomial(counts, t.size, np.diff(stats.norm.cdf(fine)))


def test_noise_across_is_plain_and_the_inner_product_is_t():
    """False alarms: 1e-9."""
    plain = np.random.default_rng(1)
    direction = unit(plain.normal(size=33))[0]
    other = plain.normal(size=33)
    other = unit(other - (other @ direction) * direction)[0]
    rng = seeded_rng(seed(3))
    drawn = np.array([draw_across(direction, 1.25, rng.draw(1)) for _ in range(4000)])
    np.testing.assert_allclose(drawn @ direction, 1.25, atol=1e-12)
    across = drawn @ other
    edges = np.array([-2.0, -0.5, 0.0, 1.0])
    assert_binomial([(across <= edge).sum() for edge in edges], across.size, stats.norm.cdf(edges))
    with pytest.raises(AssertionError):
        assert_binomial([(1.2 * across <= edge).sum() for edge in edges], across.size, stats.norm.cdf(edges))
    key = np.array([5, 6], dtype="<u8").tobytes()
    g = normals(key, 33)
    expected = g + (0.5 - inner(direction, g)) * direction
    np.testing.assert_array_equal(draw_across(direction, 0.5, GivenWords(5, 6)), expected)
    with pytest.raises(InvalidParameter, match="direction"):
        draw_across(np.array([np.nan]), 0.0, GivenWords(5, 6))
    with pytest.raises(InvalidParameter, match="t must"):
        draw_across(direction, float("inf"), GivenWords(5, 6))


def test_quantised_draws_are_unbiased_to_first_order():
    """Means of 2,000 decoded vectors along the direction; false alarms: 1e-9 (6.2 standard deviations)."""
    direction, rng, quantiser = unit(np.ones(256))[0], seeded_rng(seed(4)), normal_quantiser(3)
    drawn = [draw_across(direction, 2.0, rng.draw(1)) for _ in range(2000)]
    along = np.array([quantiser.decode(quantiser.encode(z)) @ direction for z in drawn])
    spread = math.sqrt(quantiser.cost / along.size)  # all of z that varies along u is the rounding
    assert abs(along.mean() - 2.0) < 6.2 * spread
    assert abs(along.mean() * quantiser.gain - 2.0) > 6.2 * spread  # levels without the gain would be caught


def test_what_rounding_can_do_to_codes_is_small_and_grows():
    assert 0 < rounding_mass_upper(1024, 4, 5.0) < 1e-8
    assert rounding_mass_upper(1024, 8, 5.0) > rounding_mass_upper(1024, 4, 5.0) > rounding_mass_upper(64, 4, 5.0)
    assert rounding_mass_upper(1024, 4, 50.0) > rounding_mass_upper(1024, 4, 5.0)
    with pytest.raises(InvalidParameter, match="density_upper"):
        rounding_mass_upper(1024, 4, float("nan"))


def test_entries_are_within_the_error_that_bound_assumes():
    """z recomputed with 200 bits from the same t and normals."""
    from quietbit.kernel.expand import inner_error_upper

    y = np.random.default_rng(7).normal(size=200)
    direction = unit(y)[0]
    rng = seeded_rng(9)
    found = draw_across(direction, 3.3, rng.draw(1))
    key = seeded_rng(9).draw(1).uniform64(1, 0, 2).astype("<u8").tobytes()
    with mpmath.workprec(200):
        g = [mpmath.mpf(float(value)) for value in normals(key, 200)]
        norm = mpmath.sqrt(mpmath.fsum(mpmath.mpf(float(v)) ** 2 for v in y))
        u = [mpmath.mpf(float(v)) / norm for v in y]
        gap = mpmath.mpf(3.3) - mpmath.fsum(a * b for a, b in zip(u, g, strict=True))
        errors = [abs(float(z) - (a + gap * b)) for z, a, b in zip(found, g, u, strict=True)]
    assert max(errors) < 2.0**-49 + inner_error_upper(200)
