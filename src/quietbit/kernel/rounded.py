"""Real-valued normal or Laplace noise, rounded to a public grid and sampled exactly.

Idea     a release is the multiple of h nearest to x + a g, g a real normal or Laplace number. A
         64-bit word determines the cell of probability 2^-63 in which g lies. Doubles determine the
         nearest multiple unless an edge between two multiples is within reach of the cell and of
         every rounding; then (with probability 2^-25 per coordinate) the word is lengthened by 64
         bits, as often as needed (docs/theory/rounded-noise.md).
Symbols  x = value, a = unit (sigma, or Laplace's scale), h = grid: a power of two in (a 2^-17, a
         2^-16]; t = (x + a g) / h; q = the tail probability of |g| and one sign. A word's top bit
         is the sign; the other 63, made odd, are w: q lies in (w - 1, w + 1) / 2^64, uniformly, and
         a further word is the next 64 bits of the place in there.
Reach    the normal of w is within 2^-48 of the middle's quantile (`normals.py`), a library's
         logarithm of 2^-63 to 1 within 2^-44, and a cell's ends are within 2/w of both for w >= 3;
         w = 1 is never certain. Products and the sum add at most (|x| + 46 a) 2^-51.
Source   Knuth and Yao (1976) for deciding with as many random bits as needed; Mironov (2012) for
         what floats reveal.
"""

from __future__ import annotations

import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri_exp

from quietbit._typing import FloatVector
from quietbit.errors import require
from quietbit.kernel.normals import normals_of_words
from quietbit.kernel.rng import WordBlock

__all__ = ["NoiseLaw", "grid_of", "settle", "steps_of"]

GRID_BITS = 16
LOW = np.uint64(2**63 - 1)
REACH = 46.0  # above any noise of one word, in units
OFF = 2.0**-44  # of a normal or a logarithm, with room


# The most words of one coordinate. All of them are zero with a probability of 2^-1,000,000,
# or where the source is broken.
MOST_WORDS = 2**14


class NoiseLaw(Enum):
    """The law of noise of unit scale."""

    NORMAL = "normal"
    LAPLACE = "laplace"


def grid_of(unit: float) -> float:
    """Return h, the power of two from 2^-17 to 2^-16 of the noise's scale."""
    require(2.0**-900 < unit < 2.0**900, "size of the noise", unit, "from 2^-900 to 2^900")
    return math.ldexp(1.0, math.frexp(unit)[1] - 1 - GRID_BITS)


def steps_of(
    values: FloatVector, unit: float, law: NoiseLaw, words: NDArray[np.uint64]
) -> tuple[FloatVector, NDArray[np.bool_]]:
    """Return the nearest multiples as computed in doubles, and which of them are certain."""
    odd = ((words & LOW) | np.uint64(1)).astype(np.float64)
    if law is NoiseLaw.NORMAL:
        noise = normals_of_words(words)
    else:
        noise = np.log(np.minimum(odd * 2.0**-63, 1.0))
        noise = np.where(words > LOW, noise, -noise)
    grid = grid_of(unit)
    t = (values + unit * noise) / grid
    nearest = np.rint(t)
    noise_error = unit * (OFF + 2.0 / odd)
    rounding = 2.0**-51 * (np.abs(values) + REACH * unit)
    error = (noise_error + rounding) / grid * (1 + 2.0**-20)
    certain = (np.abs(t - nearest) < 0.5 - error) & (odd > 1) & (np.abs(t) < 2.0**51)
    return nearest, certain


def settle(value: float, unit: float, law: NoiseLaw, block: WordBlock, place: int) -> float:
    """Return the multiple of one coordinate, reading as many words as needed."""
    x = Fraction(value)
    a = Fraction(unit)
    h = Fraction(grid_of(unit))
    half = Fraction(1, 2)
    word = int(block.uniform64(0, place, 1)[0])
    negative = word >= 2**63
    number = ((word & (2**63 - 1)) | 1) - 1
    length = 1
    while True:
        number = (number << 64) + 2 * int(block.uniform64(length, place, 1)[0])
        length += 1
        if number == 0 and length < MOST_WORDS:
            continue  # the noise is larger than this many words can express
        # The tail probability q lies between number and number + 2, over 2^(64 length).
        unit_cell = 2 ** (64 * length)
        cell = (Fraction(number, unit_cell), Fraction(number + 2, unit_cell))
        magnitude = Fraction(_size(math.log(number + 1) - 64 * length * math.log(2), law))
        noise = -a * magnitude if negative else a * magnitude
        nearest = math.floor((x + noise) / h + half)
        if length >= MOST_WORDS:
            return float(nearest)
        for step in (nearest, nearest - 1, nearest + 1):
            lower = ((step - half) * h - x) / a
            upper = ((step + half) * h - x) / a
            above_lower = _above(lower, cell, negative, length, law)
            if above_lower and _above(upper, cell, negative, length, law) is False:
                return float(step)


def _size(log_tail: float, law: NoiseLaw) -> float:
    """Return approximately the magnitude of noise with this one-sided tail probability."""
    below_half = min(log_tail, -math.log(2))
    if law is NoiseLaw.LAPLACE:
        return -(below_half + math.log(2))
    return -float(ndtri_exp(below_half))


def _above(
    edge: Fraction, cell: tuple[Fraction, Fraction], negative: bool, length: int, law: NoiseLaw
) -> bool | None:
    """Return whether the noise is at least the edge; None where the cell contains the edge."""
    if negative != (edge < 0):
        return not negative  # they have different signs
    low, high = _tail(abs(edge), length, law)
    if cell[0] >= high:
        return negative  # nearer to zero than the edge
    if cell[1] <= low:
        return not negative
    return None


def _tail(size: Fraction, length: int, law: NoiseLaw) -> tuple[Fraction, Fraction]:
    """Return bounds on the tail probability of a magnitude, tight for cells of ``length`` words."""
    if law is NoiseLaw.NORMAL:
        return _normal_tail(size, length)
    digits = Context(prec=40 + 20 * length)
    exact = digits.divide(Decimal(size.numerator), Decimal(size.denominator))
    # The argument's error is a unit in the last place times its size; the exponential adds a unit.
    probability = Fraction(digits.exp(exact.copy_negate())) / 2
    off = probability * (Fraction(size) + 2) * Fraction(1, 10 ** (digits.prec - 1))
    return probability - off, probability + off


def _normal_tail(size: Fraction, length: int) -> tuple[Fraction, Fraction]:
    """Return the bounds for the normal law, by the series of `design.normal` in enough digits.

    Each of n terms is off by at most 5 n units in its last place, and what the series leaves out is
    below the last term; n and the exponent are below 10^5 for every magnitude computed here.
    """
    bits = 64 * length
    # Q(s) <= e^(-s^2/2) / 2, and 18/25 < log2(e) / 2
    if size * size * Fraction(18, 25) > bits + 80:
        return Fraction(0), Fraction(1, 2 ** (bits + 80))
    digits = Context(prec=40 + 20 * length, Emin=MIN_EMIN, Emax=MAX_EMAX)
    exact = digits.divide(Decimal(size.numerator), Decimal(size.denominator))
    square = digits.multiply(exact, exact)
    least = Decimal(10) ** -digits.prec
    term = exact
    total = exact
    n = 1
    while term > digits.multiply(total, least) or n < 2 * square:
        n += 2
        term = digits.divide(digits.multiply(term, square), Decimal(n))
        total = digits.add(total, term)
    peak = digits.exp(digits.divide(square, Decimal(-2)))
    density = digits.divide(peak, _root_of_two_pi(digits.prec))
    probability = Fraction(1, 2) - Fraction(digits.multiply(density, total))
    off = Fraction(1, 10 ** (digits.prec - 12))
    return probability - off, probability + off


@lru_cache(maxsize=64)
def _root_of_two_pi(precision: int) -> Decimal:
    """Return sqrt(2 pi) to this many digits, from Machin's formula."""
    one: int = 10 ** (precision + 10)

    def inverse_tangent(cotangent: int) -> int:
        power = one // cotangent
        total = power
        divisor = 1
        while power:
            power //= -cotangent * cotangent
            divisor += 2
            total += power // divisor
        return total

    two_pi = 8 * (4 * inverse_tangent(5) - inverse_tangent(239))
    digits = Context(prec=precision + 5, Emin=MIN_EMIN, Emax=MAX_EMAX)
    return digits.sqrt(digits.divide(Decimal(two_pi), Decimal(one)))
