"""Noise on a grid: decided as the real number would be, however close an edge is."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from quietbit.kernel import rounded
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.rounded import NoiseLaw, grid_of, settle, steps_of
from quietbit.kernel.select import select
from refusals import refuses

UNIT = 1.3
H = grid_of(UNIT)
every_law = pytest.mark.parametrize("law", NoiseLaw)


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


def noisy(kernel, value, unit, law, *words):
    """One number with the noise of these words."""
    found = kernel.rounded_noise(np.array([value]), unit, law, Streams(*words), 0)
    return float(found[0])


def tail(law, size):
    """The probability that noise of unit size is beyond a magnitude, on one side."""
    if law is NoiseLaw.NORMAL:
        return mpmath.erfc(size / mpmath.sqrt(2)) / 2
    return mpmath.exp(-size) / 2


@every_law
def test_fast_and_slow_ways_agree(law):
    block, rng = seeded_rng(5).draw(1), np.random.default_rng(1)
    values = rng.normal(size=200) * 10.0 ** rng.uniform(-3, 5, 200)
    found = ReferenceKernel().rounded_noise(values, UNIT, law, block, 7)
    for i, value in enumerate(values.tolist()):
        assert found[i] == settle(value, UNIT, law, block, 7 + i) * H


@every_law
@pytest.mark.parametrize("value", [0.0, 0.7, -123.456])
@pytest.mark.parametrize("step", [1, -20_000, 300_000])
@pytest.mark.parametrize("beyond", [1, -1])
def test_an_edge_inside_the_cell_is_decided_by_the_next_words(kernel, law, value, step, beyond):
    """Words aimed at an edge to 2^-127: one more or less in the second word is one side or the
    other.
    """
    with mpmath.workprec(400):
        number = mpmath.floor(value / mpmath.mpf(H) + step + mpmath.mpf(0.5))
        edge = ((number + mpmath.mpf(0.5)) * H - mpmath.mpf(value)) / UNIT
        whole = int(mpmath.floor(tail(law, abs(edge)) * mpmath.mpf(2) ** 128)) + 2 * beyond
    negative = edge < 0
    first, second = whole >> 64, (whole & (2**64 - 1)) >> 1
    # The cell of a word is two wide: its lowest bit is the highest of the next word.
    second |= (first & 1) << 63
    first = first & ~1 | negative << 63
    sure = steps_of(np.array([value]), UNIT, law, np.array([first], np.uint64))[1]
    assert not sure[0]
    # A larger tail probability is nearer to zero.
    outside = beyond < 0
    expected = int(number) + (outside != negative)
    assert noisy(kernel, value, UNIT, law, first, second) / H == expected


@pytest.mark.parametrize(
    ("law", "low", "high"), [(NoiseLaw.NORMAL, 72.0, 74.0), (NoiseLaw.LAPLACE, 2600.0, 2750.0)]
)
def test_words_without_an_end_are_settled(kernel, monkeypatch, law, low, high):
    """All bits zero is the farthest tail, and no number of them says how far; a broken source
    does not hang.
    """
    zeros = [0] * 60
    found = noisy(kernel, 0.0, 1.0, law, *zeros)
    assert low < found < high
    monkeypatch.setattr(rounded, "MOST_WORDS", 50)
    assert low / 2 < noisy(kernel, 0.0, 1.0, law, *zeros) < found


@every_law
@pytest.mark.parametrize("size", [0.0, 0.3, 2.0, 9.0, 18.7, 25.0, 40.0])
@pytest.mark.parametrize("length", [2, 3, 5, 21])
def test_tails_are_bounded_at_any_length(law, size, length):
    with mpmath.workdps(900):
        ends = rounded._tail(Fraction(size), length, law)
        low, high = (mpmath.mpf(end.numerator) / end.denominator for end in ends)
        assert low <= tail(law, mpmath.mpf(size)) <= high
        assert high - low < mpmath.mpf(2) ** (-64 * length - 2)


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
    with mpmath.workdps(700):
        # Of the update 0; its neighbour is 1.
        for noise in np.linspace(-farthest, farthest, 9).tolist():
            step = round(noise * unit / grid)
            edge = abs(1 - (step + mpmath.mpf("0.2")) * mpmath.mpf(grid)) / mpmath.mpf(unit)
            length = 4 + int(-mpmath.log(tail(law, edge), 2)) // 64
            bits = int(tail(law, edge) * mpmath.mpf(2) ** (64 * length - 1))
            words = [bits >> (64 * (length - 1 - k)) & (2**64 - 1) for k in range(length)]
            # The lowest bit of the first word is not read.
            words[0] = words[0] << 1 | (step * grid < 1) << 63
            assert noisy(kernel, 1.0, unit, law, *words) / grid == step


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_what_floats_reveal_is_gone(kernel, value):
    """Mironov's attack: a float sum has low digits that some updates cannot make; a multiple of
    the grid has none.
    """

    def multiples(outputs):
        return float(np.mean(outputs / grid_of(1.0) == np.rint(outputs / grid_of(1.0))))

    # The attack can succeed.
    assert multiples(value + np.random.default_rng(0).laplace(size=5000)) < 0.1
    given = np.full(5000, value), 1.0, NoiseLaw.LAPLACE, seeded_rng(0).draw(5000)
    assert multiples(kernel.rounded_noise(*given, 0)) == 1


def test_grids():
    for unit in (1e-6, 0.7, 1.0, 3.0, 1e7):
        assert 2.0**-17 * unit < grid_of(unit) <= 2.0**-16 * unit
        assert math.frexp(grid_of(unit))[0] == 0.5
    for bad in (0.0, -1.0, math.nan, math.inf):
        with refuses("size of the noise"):
            grid_of(bad)
