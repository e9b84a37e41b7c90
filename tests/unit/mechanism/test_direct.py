from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from attrs import NOTHING
from scipy import stats

from quietbit.errors import InvalidParameter
from quietbit.kernel.expand import inner_error_upper, normal_quantiser, stream_words, unit
from quietbit.kernel.rng import seeded_rng, start_state
from quietbit.kernel.select import select
from quietbit.mechanism import direct
from quietbit.mechanism.direct import code_error_upper, draw_codes, step_cells, step_limits
from refusals import refuses
from statistical.kit import assert_binomial, seed

KERNEL = select("cpu")
EDGES, LEVELS = [-1.0, 0.0, 2.0], [0.1, 0.5, 1.0, 8.0]


class GivenWords:
    """A block whose words are given, stream by stream; a stream that is not given may not be
    read.
    """

    def __init__(self, *streams):
        self.streams = [np.array(words, dtype=np.uint64) for words in streams]

    def uniform64(self, stream, start, count):
        found = self.streams[stream][start : start + count]
        assert found.size == count
        return found


def exactly(vector, block, cells, limits, thresholds):
    """The codes by the book, with 300 bits: step, place, normals from words of 128 bits,
    thresholds.
    """
    first = [int(word) for word in block.uniform64(0, 0, 6)]
    pick, place = first[0] * 2**64 + first[1], first[2] * 2**64 + first[3]
    step = sum(pick >= limit for limit in limits)
    position = cells[step] + (place * (cells[step + 1] - cells[step])) // 2**128
    words = stream_words(start_state(np.array(first[4:], dtype="<u8").tobytes()), len(vector))
    more = block.uniform64(1, 0, len(vector))
    with mpmath.workprec(300):

        def quantile(p):
            return mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1)

        t = quantile(mpmath.mpf(2 * position + 1) / 2**128)
        g = []
        for word, extra in zip(words, more, strict=True):
            number = (int(word) % 2**63) | 1
            q = (number - 1 + 2 * (int(extra) + mpmath.mpf(0.5)) / 2**64) / mpmath.mpf(2) ** 64
            g.append(quantile(q) if int(word) >= 2**63 else -quantile(q))
        norm = mpmath.sqrt(mpmath.fsum(mpmath.mpf(float(v)) ** 2 for v in vector))
        u = [mpmath.mpf(float(v)) / norm for v in vector]
        gap = t - mpmath.fsum(a * b for a, b in zip(u, g, strict=True))
        z = [b + gap * a for a, b in zip(u, g, strict=True)]
        return t, z, [sum(entry >= float(edge) for edge in thresholds) for entry in z]


def test_cells_are_the_normal_shares():
    edges = [-11.0, -6.0, -1.0, 0.0, 0.3, 5.0, 11.0]
    cells = step_cells(edges)
    with mpmath.workprec(300):
        for edge, cell in zip(edges, cells[1:], strict=False):
            assert abs(mpmath.ncdf(edge) * 2**127 - cell) <= mpmath.mpf("0.50001")
            assert abs(cell - mpmath.ncdf(edge) * 2**127) / 2**127 <= 2.0**-38 * mpmath.npdf(
                edge
            )  # in the blur
    for bad in ([11.5], [0.0, 0.0], [1.0, 0.0], [float("nan")]):
        with pytest.raises(InvalidParameter):
            step_cells(bad)


def test_limits_are_exact():
    cells = step_cells(EDGES)
    weights = [
        Fraction(level) * (b - a) for level, a, b in zip(LEVELS, cells, cells[1:], strict=False)
    ]
    expected = [math.floor(2**128 * sum(weights[: s + 1]) / sum(weights)) for s in range(3)]
    assert list(step_limits(cells, LEVELS)) == expected
    assert list(step_limits(cells, [1.0, 0.0, 0.0, 0.0])) == [2**128] * 3
    with refuses("number of weights", 1):
        step_limits(cells, [1.0])
    for bad in ([0.0] * 4, [-1.0, 1.0, 1.0, 1.0], [float("nan"), 1.0, 1.0, 1.0]):
        with pytest.raises(InvalidParameter) as caught:
            step_limits(cells, bad)
        assert caught.value.name == "weights"
        assert caught.value.value is NOTHING  # weights follow from a private update


@pytest.mark.parametrize("length", [1, 2, 33])
def test_codes_are_those_of_exact_arithmetic(length):
    """Words chosen for every step and both ends of it; then the decimal path on the same words."""
    plain = np.random.default_rng(length)
    vector, quantiser = plain.normal(size=length), normal_quantiser(4)
    cells, limits = step_cells(EDGES), step_limits(step_cells(EDGES), LEVELS)
    for step in range(4):
        pick = 0 if step == 0 else limits[step - 1]
        for place in (0, 2**63 + 12345, 2**64 - 1):
            seed_words = plain.integers(0, 2**64, size=2, dtype=np.uint64)
            first = [pick >> 64, pick % 2**64, place, place, *seed_words]
            block = GivenWords(first, plain.integers(0, 2**64, size=length, dtype=np.uint64))
            t, _, expected = exactly(vector, block, cells, limits, quantiser.thresholds)
            assert [-np.inf, *EDGES][step] <= t <= [*EDGES, np.inf][step]
            assert draw_codes(vector, cells, limits, quantiser, block, KERNEL).tolist() == expected
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(direct, "_doubt", lambda u, *_: np.full(u.size, np.inf))
                assert (
                    draw_codes(vector, cells, limits, quantiser, block, KERNEL).tolist() == expected
                )
    with refuses("number of limits", 2):
        draw_codes(vector, cells, limits[:-1], quantiser, block, KERNEL)


def test_doubles_are_as_close_as_codes_assume():
    """The exact z differs from the computed one by less than the doubt, for words in the middle
    and in the tails.
    """
    plain = np.random.default_rng(7)
    vector, quantiser = plain.normal(size=200), normal_quantiser(4)
    direction = unit(vector)[0]
    cells, limits = step_cells(EDGES), step_limits(step_cells(EDGES), LEVELS)
    for case in range(4):
        first = plain.integers(0, 2**64, size=6, dtype=np.uint64)
        block = GivenWords(first, [[0] * 200, [2**64 - 1] * 200][case % 2])
        _, z, _ = exactly(vector, block, cells, limits, quantiser.thresholds)
        words = stream_words(start_state(first[4:].astype("<u8").tobytes()), 200)
        place = direct._place(cells, limits, [int(word) for word in first])
        along = direct._word_of(place)
        g = direct.normals_of_words(words)
        t = direct.normals_of_words(np.array([along], dtype=np.uint64))[0]
        computed = g + (t - direct.inner(direction, g)) * direction
        doubt = direct._doubt(direction, words, along)
        off = np.array(
            [abs(float(exact - value)) for exact, value in zip(z, computed, strict=True)]
        )
        assert np.all(off <= doubt)
        assert np.median(doubt) < 2 * inner_error_upper(200)


def test_the_last_cells_are_never_certain():
    assert direct._doubt(unit(np.ones(2))[0], np.array([1, 3], dtype=np.uint64), 5)[0] == np.inf
    assert np.all(
        direct._doubt(unit(np.ones(2))[0], np.array([9, 3], dtype=np.uint64), 2**63) == np.inf
    )
    with mpmath.workprec(200):
        for number in (3, 5, 2**20 + 1, 2**63 - 1):
            ends = [
                -mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(q) / 2**64 - 1)
                for q in (number - 1, number, number + 1)
            ]
            assert max(ends[0] - ends[1], ends[1] - ends[2]) <= mpmath.mpf(2) / number


def test_t_and_noise_follow_the_profile():
    """One coordinate tells t, an orthogonal one plain noise. False alarms: 1e-9."""
    cells, rng, quantiser = step_cells(EDGES), seeded_rng(seed(2)), normal_quantiser(3)
    limits = step_limits(cells, LEVELS)
    codes = np.stack(
        [
            draw_codes(np.array([-2.0, 0.0]), cells, limits, quantiser, rng.draw(1), KERNEL)
            for _ in range(5000)
        ]
    )
    fine = np.unique(np.concatenate([[-40.0, 40.0], quantiser.thresholds, -np.array(EDGES)]))
    middle = fine[:-1] + np.diff(fine) / 2
    weight = (
        np.diff(stats.norm.cdf(fine)) * np.array(LEVELS)[np.searchsorted(EDGES, -middle)]
    )  # u: minus the first axis
    law = np.bincount(np.searchsorted(quantiser.thresholds, middle), weight) / weight.sum()
    assert_binomial(np.bincount(codes[:, 0], minlength=8), 5000, law)
    with pytest.raises(AssertionError):
        assert_binomial(np.bincount(codes[:, 1], minlength=8), 5000, law)
    edges = np.concatenate([[-np.inf], quantiser.thresholds, [np.inf]])
    assert_binomial(np.bincount(codes[:, 1], minlength=8), 5000, np.diff(stats.norm.cdf(edges)))


def test_quantised_draws_are_unbiased_to_first_order():
    """Means of 2,000 decoded vectors along the direction; false alarms: 1e-9 (6.2 standard
    deviations).
    """
    vector, rng, quantiser = np.ones(256), seeded_rng(seed(4)), normal_quantiser(3)
    cells = step_cells([1.9, 2.1])
    limits = step_limits(cells, [0.0, 1.0, 0.0])
    drawn = [draw_codes(vector, cells, limits, quantiser, rng.draw(1), KERNEL) for _ in range(2000)]
    along = np.array([quantiser.levels[codes].sum() / 16.0 for codes in drawn])
    spread = math.sqrt(
        (quantiser.cost + 0.2**2 / 12) / along.size
    )  # of rounding, and of t between the edges
    middle = (stats.norm.pdf(1.9) - stats.norm.pdf(2.1)) / (
        stats.norm.cdf(2.1) - stats.norm.cdf(1.9)
    )
    assert abs(along.mean() - middle) < 6.2 * spread
    assert (
        abs(along.mean() * quantiser.gain - middle) > 6.2 * spread
    )  # levels without the gain would be caught


def test_what_is_left_of_the_error_is_nothing_to_speak_of():
    assert 0 < code_error_upper(1024, 4, 1e6) < 1e-24
    assert (
        code_error_upper(65536, 4, 1e6)
        > code_error_upper(1024, 4, 1e6)
        > code_error_upper(1024, 2, 1e6)
    )
    assert code_error_upper(1024, 4, 1e9) > code_error_upper(1024, 4, 1e6)
    with refuses("largest"):
        code_error_upper(1024, 4, float("nan"))
