"""Bounds on the length of an honest payload; a server refuses longer ones.

Idea     a payload longer than noise makes it, except with probability 2^-40, was not made by the mechanism. Leaving it
         out is post-processing: it costs no privacy and, but for that probability, no honest client. So a malicious
         client adds to a mean no more than noise adds anyway. This helps only where payloads differ in length, as
         floats and wide codes do; bits all have one length, and a seed always expands to noise.
Symbols  d coordinates; C: radius; T = log 2^40; X: the sum of d squares or magnitudes.
Source   Birge (2001), Lemma 8.1, for noncentral chi-square variables; Boucheron, Lugosi, Massart (2013), section 2.4,
         for gamma variables, and Theorem 2.10 for Bernstein's inequality.

Normal noise. |x + sigma z|^2 / sigma^2 is chi-square with d degrees and noncentrality |x|^2 / sigma^2 <= l = (C /
sigma)^2, and grows with it: P(X >= d + l + 2 sqrt((d + 2 l) T) + 2 T) <= e^-T.
Laplace noise. The L1 length is at most C and d exponential variables: P(X >= d + sqrt(2 d T) + T) <= e^-T.
Bounded noise. Squares of mean at most m, second moment at most s and at most b: P(X >= d m + sqrt(2 d s T) + b T / 3)
<= e^-T.
"""

from __future__ import annotations

import math

from quietbit.errors import Outlier

__all__ = ["DOUBT", "exponential_length_upper", "normal_length_upper", "refuse_longer", "squares_upper"]

DOUBT = 40 * math.log(2)  # T: an honest payload is refused with probability at most 2^-40
ROUNDING = 1 + 2.0**-16  # more than the roundings of noise to its grid and to 32 bits, and of sums of squares


def normal_length_upper(dimension: int, radius: float, deviation: float, doubt: float = DOUBT) -> float:
    """Return a length that an update in the ball plus normal noise exceeds with probability at most e^-doubt.

    >>> round(normal_length_upper(1000, 1.0, 1.0), 1), 1000**0.5
    (37.3, 31.622776601683793)
    """
    each, signal = dimension * deviation**2, radius**2
    square = each + signal + 2 * deviation * math.sqrt((each + 2 * signal) * doubt) + 2 * deviation**2 * doubt
    return math.sqrt(square) * ROUNDING


def exponential_length_upper(dimension: int, radius: float, scale: float, doubt: float = DOUBT) -> float:
    """Return the same bound on the L1 length of an update plus Laplace noise."""
    return (radius + scale * (dimension + math.sqrt(2 * dimension * doubt) + doubt)) * ROUNDING


def squares_upper(count: int, mean: float, second: float, largest: float, doubt: float = DOUBT) -> float:
    """Return a bound that the sum of ``count`` independent squares exceeds with probability at most e^-doubt."""
    return (count * mean + math.sqrt(2 * count * second * doubt) + largest * doubt / 3) * ROUNDING


def refuse_longer(length: float, honest: float) -> None:
    """Refuse a payload that is longer than an honest one, or whose length is NaN."""
    if not length <= honest:
        raise Outlier(f"length of the payload must be at most {honest:g}, as for honest clients, got {length:g}.")
