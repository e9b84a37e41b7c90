"""Noise on a grid: decided as the real number would be, by every kernel, however close an edge
is.
"""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from core.statistical.kit import assert_binomial, seed
from quietbit.kernel import rounded
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.rounded import NoiseLaw, grid_of, settle, steps_of
from quietbit.kernel.select import select
from refusals import refuses

UNIT = 1.3
H = grid_of(UNIT)


@pytest.fixture(params=["reference", "cpu"])
def kernel(request):
    return select(request.param)


class Streams:
    """A block whose first words are given, stream by stream, for one coordinate; the rest are a
    seed's.
    """

    def __init__(self, *words):
        self.words, self.rest = words, seeded_rng(0).draw(1)

    def uniform64(self, stream, start, count):
        if stream >= len(self.words):
            return self.rest.uniform64(stream, start, count)
        return np.full(count, self.words[stream], np.uint64)


def tail(law, size):
    """The probability that noise of unit size is beyond a magnitude, on one side."""
    return (
        mpmath.erfc(size / mpmath.sqrt(2)) / 2 if law is NoiseLaw.NORMAL else mpmath.exp(-size) / 2
    )


@pytest.mark.parametrize("law", NoiseLaw)
def test_fast_and_slow_ways_agree(kernel, law):
    block = seeded_rng(5).draw(1)
    values = np.random.default_rng(1).normal(size=2000) * 10.0 ** np.random.default_rng(2).uniform(
        -3, 5, 2000
    )
    found = kernel.rounded_noise(values, UNIT, law, block, 7)
    assert np.all(found / H == np.rint(found / H))
    for i in range(60):
        assert found[i] == settle(float(values[i]), UNIT, law, block, 7 + i) * H
    np.testing.assert_array_equal(
        found[300:400], kernel.rounded_noise(values[300:400], UNIT, law, block, 307)
    )


@pytest.mark.parametrize("law", NoiseLaw)
@pytest.mark.parametrize("value", [0.0, 0.7, -123.456])
@pytest.mark.parametrize("step", [1, -20_000, 300_000])
@pytest.mark.parametrize("beyond", [1, -1])
def test_an_edge_inside_the_cell_is_decided_by_the_next_words(kernel, law, value, step, beyond):
    """Words aimed at an edge to 2^-127: one more or less in the second word is one side or the
    other.
    """
    with mpmath.workprec(400):
        edge = (
            (step + mpmath.mpf(0.5)) * H
        ) / UNIT  # of the noise, between two multiples seen from 0
        at = value + edge * UNIT
        # The nearest edge of the grid for this value.
        number = mpmath.floor(at / H)
        edge = ((number + mpmath.mpf(0.5)) * H - mpmath.mpf(value)) / UNIT
        q = tail(law, abs(edge)) * mpmath.mpf(2) ** 128
        whole = int(mpmath.floor(q)) + 2 * beyond
    negative = edge < 0
    first, second = whole >> 64, (whole & (2**64 - 1)) >> 1
    # The cell of a word is two wide: its lowest bit is the highest of the next word.
    second |= (first & 1) << 63
    first &= ~1
    block = Streams(first | (2**63 if negative else 0), second)
    _, sure = steps_of(np.array([value]), UNIT, law, block.uniform64(0, 0, 1))
    assert not sure[0]
    found = float(kernel.rounded_noise(np.array([value]), UNIT, law, block, 0)[0] / H)
    # A larger tail probability is nearer to zero.
    outside = beyond < 0
    assert found == (int(number) + 1 if outside != negative else int(number))


def test_words_without_an_end_are_settled(kernel, monkeypatch):
    """All bits zero is the farthest tail, and no number of them says how far; a broken source
    does not hang.
    """
    for law, low, high in ((NoiseLaw.NORMAL, 72.0, 74.0), (NoiseLaw.LAPLACE, 2600.0, 2750.0)):
        found = kernel.rounded_noise(np.zeros(1), 1.0, law, Streams(*[0] * 60), 0)
        assert low < found[0] < high
        monkeypatch.setattr(rounded, "MOST_WORDS", 50)
        assert (
            found[0]
            > kernel.rounded_noise(np.zeros(1), 1.0, law, Streams(*[0] * 60), 0)[0]
            > low / 2
        )
        monkeypatch.undo()


@pytest.mark.parametrize("law", NoiseLaw)
@pytest.mark.parametrize("sizes", [(0.0, 0.3, 2.0), (9.0, 18.7, 25.0, 40.0)])
def test_tails_are_bounded_at_any_length(law, sizes):
    with mpmath.workdps(900):
        for size in sizes:
            for length in (2, 3, 5, 21):
                low, high = rounded._tail(Fraction(size), length, law)
                exact = tail(law, mpmath.mpf(size))
                at_most = mpmath.mpf(high.numerator) / high.denominator
                assert mpmath.mpf(low.numerator) / low.denominator <= exact <= at_most
                assert at_most - mpmath.mpf(low.numerator) / low.denominator < mpmath.mpf(2) ** (
                    -64 * length - 2
                )


@pytest.mark.parametrize(
    ("law", "unit", "farthest"),
    [(NoiseLaw.NORMAL, 0.066, 9.25), (NoiseLaw.LAPLACE, 1 / 800, 44.75)],
)
def test_no_mass_is_without_a_counterpart(kernel, law, unit, farthest):
    """Little noise: whatever an update can become, its neighbour, one clip away, can become too,
    from some words.

    At 0.066 of the clip four words of normal noise ended 18.63 deviations from the neighbour: of
    the update's mass 2.5e-4 lay beyond, at a claim of (178.5, 1e-5). The words are computed here;
    all bits beyond them are a seed's.
    """
    grid = grid_of(unit)
    missed = 0.0
    with mpmath.workdps(700):
        for noise in np.linspace(
            -farthest, farthest, 9
        ).tolist():  # of the update 0; its neighbour is 1
            step = round(noise * unit / grid)
            edge = abs(1 - (step + mpmath.mpf("0.2")) * mpmath.mpf(grid)) / mpmath.mpf(unit)
            length = 4 + int(-mpmath.log(tail(law, edge), 2)) // 64
            bits = int(tail(law, edge) * mpmath.mpf(2) ** (64 * length - 1))
            words = [bits >> (64 * (length - 1 - k)) & (2**64 - 1) for k in range(length)]
            words[0] = words[0] << 1 | (
                2**63 if step * grid < 1 else 0
            )  # the lowest bit of the first word is not read
            reached = kernel.rounded_noise(np.ones(1), unit, law, Streams(*words), 0)[0] / grid
            if reached != step:
                missed += float(tail(law, abs(noise)))
    assert missed == 0.0


@pytest.mark.parametrize("law", NoiseLaw)
def test_the_law_is_the_real_one(law):
    """False alarms: 1e-9. Coarse cells of noise around a value that is not on the grid."""
    count, value = 200_000, 0.123456789
    found = select("cpu").rounded_noise(
        np.full(count, value), 1.0, law, seeded_rng(seed(3)).draw(count), 0
    )
    edges = np.linspace(-4, 4, 33)
    below = [float(1 - tail(law, e - value) if e > value else tail(law, value - e)) for e in edges]
    masses = np.diff([0.0, *below, 1.0])
    hits = np.bincount(np.searchsorted(edges, found), minlength=masses.size)
    assert_binomial(hits, count, masses)
    with pytest.raises(AssertionError):
        assert_binomial(hits, count, np.diff([0.0, *(b * 0.98 for b in below), 1.0]))


def test_what_floats_reveal_is_gone(kernel):
    """Mironov's attack: a float sum has low digits that some updates cannot make; a multiple of
    the grid has none.
    """
    zero, one = (
        kernel.rounded_noise(
            np.full(5000, value), 1.0, NoiseLaw.LAPLACE, seeded_rng(k).draw(5000), 0
        )
        for k, value in enumerate((0.0, 1.0))
    )
    floats = 1.0 + np.random.default_rng(0).laplace(size=5000)
    assert (
        np.mean(floats / grid_of(1.0) != np.rint(floats / grid_of(1.0))) > 0.9
    )  # the attack can succeed
    for outputs in (zero, one):
        assert np.all(outputs / grid_of(1.0) == np.rint(outputs / grid_of(1.0)))


def test_grids():
    for unit in (1e-6, 0.7, 1.0, 3.0, 1e7):
        assert 2.0**-17 * unit < grid_of(unit) <= 2.0**-16 * unit
        assert math.frexp(grid_of(unit))[0] == 0.5
    for bad in (0.0, -1.0, math.nan, math.inf):
        with refuses("size of the noise"):
            grid_of(bad)
