"""The table `kernel/quantile.bin` of `kernel/normals.py`, made from scratch with mpmath, and the
proof of its error.

    PYTHONPATH=src:tests python -m core.kernel.quantile_maker     writes the table into the package

With w an odd whole number below 2^63 the tail probability is q = w / 2^64 and f(q) the normal
quantile of 1 - q. Row 16 e + s covers w from 2^e (1 + s/16) to 2^e (1 + (s+1)/16); its polynomial
in t from -1 to 1 interpolates f at the eight Chebyshev points, and its coefficients are rounded to
doubles. The last row, w = 2^63, is zero.

Proof of `row_error_upper`. f' = -1/phi(f), and with P_1 = 1, P_{n+1} = P_n' + n f P_n one has f^(n) = (-1)^n P_n(f) /
phi(f)^n: differentiate once more and use phi' = -f phi. All coefficients of P_n are non-negative and f >= 0, so
|f^(n)| decreases in q, and its largest value on a row is at the row's left end. The interpolation error is at most
|f^(8)| h^8 / (2^7 8!), h = half the row's width. To it are added the rounding of coefficients (u |c_k| each, u =
2^-53), of Horner's scheme (at most (2 k + 1) u |c_k| per term, |t| <= 1, with 1 + 2^-40 for higher orders) and of w
to a double (relative 2^-53 of q, so |f'| q 2^-53).
"""

from functools import cache
from pathlib import Path

import mpmath
import numpy as np
from scipy import stats

from quietbit.kernel import normals as quantile

NODES = 8
mpmath.mp.prec = 200


def tail_quantile(q):
    """The normal quantile of 1 - q, to about 200 bits: Newton's method on log(upper tail)."""
    q = mpmath.mpf(q)
    if q == mpmath.mpf(1) / 2:
        return mpmath.mpf(0)
    z = mpmath.mpf(float(stats.norm.isf(float(q))))
    root = mpmath.sqrt(2)
    for _ in range(4):
        tail = mpmath.erfc(z / root) / 2
        density = mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mpmath.pi)
        z = z + tail * mpmath.log(tail / q) / density
    return z


def normal_of(word):
    """The normal that a word stands for: the top bit is the sign, the others are made odd."""
    size = tail_quantile(mpmath.mpf((word % 2**63) | 1) / mpmath.mpf(2) ** 64)
    return -size if word >= 2**63 else size


def row_ends(row):
    """The tail probabilities where a row begins and ends."""
    scale = mpmath.mpf(2) ** (row // quantile.PARTS - 64)
    part = row % quantile.PARTS
    return scale * (1 + mpmath.mpf(part) / quantile.PARTS), scale * (
        1 + mpmath.mpf(part + 1) / quantile.PARTS
    )


@cache
def _to_coefficients():
    points = [mpmath.cos(mpmath.pi * (2 * k + 1) / (2 * NODES)) for k in range(NODES)]
    vandermonde = mpmath.matrix(NODES, NODES)
    for i, point in enumerate(points):
        for k in range(NODES):
            vandermonde[i, k] = point**k
    return points, vandermonde**-1


def make_row(row):
    """Coefficients of a row, the constant first."""
    if row == quantile.ROWS - 1:
        return np.zeros(NODES)
    low, high = row_ends(row)
    points, inverse = _to_coefficients()
    values = mpmath.matrix(
        [tail_quantile((low + high) / 2 + point * (high - low) / 2) for point in points]
    )
    return np.array([float(c) for c in inverse * values])


@cache
def _derivative_polynomial(order):
    """Coefficients of P_n, lowest first."""
    if order == 1:
        return (1,)
    inner = _derivative_polynomial(order - 1)
    result = [0] * (len(inner) + 1)
    for k, value in enumerate(inner):
        result[k + 1] += (order - 1) * value
        if k:
            result[k - 1] += k * value
    return tuple(result)


def row_error_upper(row, coefficients):
    """A bound on the error of every normal drawn from a row: see the head of this file."""
    if row == quantile.ROWS - 1:  # only w = 2^63 exactly, rounded up from at most 2^9 below
        return float(mpmath.sqrt(2 * mpmath.pi) * mpmath.mpf(2) ** -54)
    low, high = row_ends(row)
    z = tail_quantile(low)
    density = mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mpmath.pi)
    largest = sum(c * z**k for k, c in enumerate(_derivative_polynomial(NODES))) / density**NODES
    half = (high - low) / 2
    error = largest * half**NODES / (mpmath.mpf(2) ** (NODES - 1) * mpmath.factorial(NODES))
    unit = mpmath.mpf(2) ** -53
    terms = sum((2 * k + 2) * unit * abs(mpmath.mpf(float(c))) for k, c in enumerate(coefficients))
    return float(
        (error + terms * (1 + mpmath.mpf(2) ** -40) + low * 2 / density * unit)
        * (1 + mpmath.mpf(2) ** -40)
    )


if __name__ == "__main__":
    table = np.stack([make_row(row) for row in range(quantile.ROWS)])
    Path(quantile.__file__).with_name("quantile.bin").write_bytes(table.astype("<f8").tobytes())
    print(max(row_error_upper(row, table[row]) for row in range(quantile.ROWS)))
