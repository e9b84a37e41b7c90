"""Float32 stand-ins for the one-bit laws, each with a proved margin: what fast cohort kernels decide from.

Idea     a kernel compares the 16 primary bits w with V, a float32 approximation of G = 65536 F rounded to a whole
         number. Further apart than `width` they decide as the exact law does; closer, the bit goes to
         `law.py` with all 64 bits of its word. G - 32768 is odd in t, so half of a polynomial's terms vanish.
Symbols  R = min(reach, cap); f = left right / (2 R) + 1/2 clamped to [0, 1], which a GPU does for nothing; z = 2 f - 1
         = t / R. odd: V = round(32768 + z (c_0 + c_1 z^2 + ...)). logistic: V = round(65536 / (1 + e^t)). laplace: V =
         round(32768 -+ 32768 (1 - e^-|t|)). Adding 1.5 2^23 makes float32 arithmetic itself round to whole numbers.

Margin. Let m bound |V - G| without the last rounding, which adds 1/2. With D = w - V: D >= m + 1/2 means w >= G, so
the bit is 1 whatever the tie bits; D <= -m - 3/2 means w + 1 <= G, so it is 0. D is whole: |D| > width = ceil(m +
3/2) - 1 decides. m adds up, in units of 2^-16 and with u = 2^-24, for any order of operations, fused or not:

1. cap: for |t| > R clamped at the cap, G moves by less than 65536 q(cap);
2. z: left 1/(2 R) is off by 2 u relatively, the product by u, f by u / 2 more and z by u / 2: in all less than 6 u for
   z; G moves by 65536 R p times that, p the largest density of the noise;
3. odd: the distance from G on a grid of z of spacing h, plus h^2 / 8 times a bound on the second derivatives of both;
   z^2 is off by u, its powers by n u, and Horner's rule rounds 2 n times a number below the sum of the coefficients'
   sizes: 3 n + 4 roundings of that sum in all;
4. exponential: its argument z R log2(e) is off by 3 u R log2(e) more, the exponential by 2^-20 relatively (the GPU's
   ex2.approx: 2^-22; the CPU's polynomial: 2^-21), sum and quotient by 2^-21 in all: F moves by at most a quarter
   (logistic) or half (laplace) of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, log2
from typing import final

import numpy as np

from quietbit._typing import FloatVector
from quietbit_lab.cohort.law import BitLaw, thresholds

__all__ = ["MAGIC", "PATTERN", "BitPlan", "bit_plan"]

MAGIC = 1.5 * 2.0**23
PATTERN = 0x4B400000  # the bits of MAGIC: or-ing w into them gives MAGIC + w
UNIT = 65536.0
ROUNDOFF = 2.0**-24
CAP = {BitLaw.LOGISTIC: 16.0, BitLaw.NORMAL: 5.0, BitLaw.LAPLACE: 16.0, BitLaw.UNIFORM: 1.0}
# 65536 q(cap), rounded up
BEYOND = {BitLaw.LOGISTIC: 0.0074, BitLaw.NORMAL: 0.019, BitLaw.LAPLACE: 0.0037, BitLaw.UNIFORM: 0.0}
DENSITY = {BitLaw.LOGISTIC: 0.25, BitLaw.NORMAL: 0.4, BitLaw.LAPLACE: 0.5, BitLaw.UNIFORM: 0.5}  # its largest value
BEND = {BitLaw.LOGISTIC: 0.0963, BitLaw.NORMAL: 0.242, BitLaw.LAPLACE: 0.5, BitLaw.UNIFORM: 0.0}  # the largest |F''|
TERMS = (2, 3, 4, 6, 8, 10, 12, 14)  # few, because kernels are compiled for each
GOOD = 0.5  # a margin below which another term gains nothing
GRID = 16385


@final
@dataclass(frozen=True, slots=True)
class BitPlan:
    """How to approximate G: ``odd`` with coefficients c_0, c_1, ..., or by an exponential; see the file."""

    form: str
    radius: float
    coefficients: tuple[float, ...]
    margin: float

    @property
    def rate(self) -> float:
        """What left is multiplied by."""
        return 1.0 / (2.0 * self.radius)

    @property
    def turns(self) -> float:
        """R log2(e), for exponentials of base 2."""
        return self.radius * log2(exp(1.0))

    @property
    def width(self) -> int:
        """Words this close to V are undecided."""
        return ceil(self.margin + 1.5) - 1


@lru_cache(maxsize=256)
def bit_plan(law: BitLaw, reach: float, most_terms: int = 14) -> BitPlan:
    """The cheapest odd polynomial of at most so many terms with a small margin, else an exponential.

    The normal law has no exponential form: its polynomial may take all 14 terms. The uniform one is its own polynomial.
    """
    radius = min(reach, CAP[law])
    shared = 6 * ROUNDOFF * UNIT * radius * DENSITY[law] + (BEYOND[law] if reach > CAP[law] else 0.0) + 2.0**-16
    best: BitPlan | None = None
    if law is not BitLaw.LAPLACE:
        for terms in TERMS:
            if terms > most_terms and law is not BitLaw.NORMAL:
                break
            found = _odd(law, radius, terms, shared)
            best = found if best is None or found.margin < best.margin else best
            if found.margin <= GOOD:
                return found
    if law is BitLaw.NORMAL and best is not None:
        return best
    share = 0.5 if law is BitLaw.LAPLACE else 0.25
    relative = 3 * ROUNDOFF * radius + 2.0**-20 + 2.0**-21
    return BitPlan(law.value, radius, (), shared + UNIT * share * relative + UNIT * 2.0**-22)


def _odd(law: BitLaw, radius: float, terms: int, shared: float) -> BitPlan:
    """Least squares on Chebyshev points, with everything that can go wrong added up."""
    powers = 2 * np.arange(terms) + 1
    nodes = np.cos(np.linspace(0.0, np.pi / 2, 200))[:-1]
    solved = np.linalg.lstsq(nodes[:, None] ** powers, _scaled(law, radius * nodes) - 32768.0, rcond=None)[0]
    rounded = solved.astype(np.float32).astype(np.float64)
    z = np.linspace(0.0, 1.0, GRID)
    value = np.zeros_like(z)
    for coefficient in rounded[::-1]:
        value = value * (z * z) + coefficient
    off = float(np.abs(value * z - (_scaled(law, radius * z) - 32768.0)).max())
    sizes = np.abs(rounded)
    curve = UNIT * BEND[law] * radius**2 + float((powers * (powers - 1) * sizes).sum())
    between = (1.0 / (GRID - 1)) ** 2 / 8 * curve
    evaluated = ROUNDOFF * (3 * terms + 4) * float(sizes.sum())
    return BitPlan("odd", radius, tuple(rounded.tolist()), shared + off + between + evaluated)


def _scaled(law: BitLaw, t: FloatVector) -> FloatVector:
    """G at each t."""
    upper, lower = thresholds(law, t, float("inf"))
    scaled: FloatVector = upper + lower / 2.0**48
    return scaled
