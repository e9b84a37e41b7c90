"""The sum of a cohort's codes as a normal of its own mean and variance, by matrix products.

Idea     mean and variance of a decoded coordinate depend on one number, the update's coordinate u =
         e f. The signed power sgn(u)|u|^k of a product is the product of the signed powers, so that
         a sum over clients of polynomials in u is one matrix product per power, and no client's
         coordinate is ever written.
Symbols  z = u / share, u in clips, at most 1 in size; mean = c_1 z + c_3 z^3 + ..., odd powers
         signed; variance = d_0 + d_2 z^2 + ...; m clients.
Source   central limit theorem; the laws are those of `mechanism/`.

What differs from drawing every client. Each coordinate's expectation is right to the factor 1 +-
TOLERANCE, and so is its variance, on 128 points of the range that the fit did not see, and not
certified between them. The cohort's sum has the excess kurtosis and skewness of a client's code
over m and sqrt(m), which are asked to be at most KURTOSIS and SKEWNESS; the normal has none. Adding
up rounds divides them further. Where a law is too bent for the powers below, or has too heavy
tails, there is no such stand-in, and every client is drawn. Nothing here touches an account: a
simulation draws what clients would have sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias, final

import numpy as np
from attrs import frozen

from quietbit._typing import FloatVector

__all__ = ["Moments", "fit_moments", "power_sums"]

Tensor: TypeAlias = Any
TOLERANCE = 3e-4
# Limits for the sum of a cohort's codes.
KURTOSIS = 0.03
SKEWNESS = 0.1
ODD = ((1,), (1, 3), (1, 2, 3), (1, 3, 5), (1, 2, 3, 4), (1, 3, 5, 7), (1, 2, 3, 4, 5))
EVEN = ((), (2,), (1, 2), (2, 4), (1, 2, 3), (2, 4, 6), (1, 2, 3, 4))
NODES = 128


@final
@frozen
class Moments:
    """Mean and variance of a decoded coordinate as polynomials of z; see the file."""

    odd: tuple[int, ...]
    even: tuple[int, ...]
    mean: FloatVector
    variance: FloatVector  # that of z = 0 first


@lru_cache(maxsize=1024)
def fit_moments(mechanism: Any, share: float, cohort: int) -> Moments | None:
    """Return the polynomials with the fewest powers; None where a normal would not do.

    ``share`` is the largest part of an update's length that one coordinate can have.
    """
    fitted = np.cos((np.arange(NODES) + 0.5) * np.pi / (2 * NODES))
    other = np.linspace(0.0, 1.0, NODES + 1)[1:]
    values = np.asarray(mechanism.values, dtype=np.float64)
    table = np.array([mechanism.distribution(z * share) for z in (*fitted, *other, 0.0, -1.0)])
    mean = table @ values
    spread = values - mean[:, None]
    second, third, fourth = ((table * spread**k).sum(axis=1) for k in (2, 3, 4))
    if np.any(np.abs(fourth / second**2 - 3) > KURTOSIS * cohort):
        return None
    if np.any(np.abs(third) / second**1.5 > SKEWNESS * cohort**0.5):
        return None
    if max(abs(mean[-2]), abs(mean[-1] + mean[-3])) > TOLERANCE * fitted[-1] * mean[-3]:  # not odd
        return None
    odd = _fewest(ODD, fitted, other, mean[:NODES] / fitted, mean[NODES:-2] / other, -1)
    even = _fewest(EVEN, fitted, other, second[:NODES], second[NODES:-2], 0)
    if odd is None or even is None:
        return None
    return Moments(odd[0], even[0][1:], odd[1], even[1])


def _fewest(
    choices: Sequence[tuple[int, ...]],
    fitted: FloatVector,
    other: FloatVector,
    wanted: FloatVector,
    held: FloatVector,
    lower: int,
) -> tuple[tuple[int, ...], FloatVector] | None:
    """Return the first powers whose polynomial is within tolerance on both sets of points.

    ``lower`` -1: what is fitted is the polynomial over z; 0: a constant comes first.
    """
    for powers in choices:
        chosen = powers if lower else (0, *powers)
        rows, checked = (z[:, None] ** (np.array(chosen) + lower) for z in (fitted, other))
        solved = np.linalg.lstsq(rows / wanted[:, None], np.ones_like(wanted), rcond=None)[0]
        off = max(
            np.abs(rows @ solved / wanted - 1).max(), np.abs(checked @ solved / held - 1).max()
        )
        if off <= TOLERANCE:
            return chosen, solved
    return None


def power_sums(
    errors: Tensor, features: Tensor, powers: Sequence[int], columns: Tensor, *, signed: bool
) -> Tensor:
    """Return sums over clients of column_k |u|^k, signed if asked; (G, K, width) in float32.

    ``errors`` (G, K, m) with u = errors features; ``columns`` (len(powers), G, 1, 1).
    """
    count, classes, clients = errors.shape
    total = errors.new_zeros((count * classes, features.shape[1]), dtype=features.dtype)
    for power, column in zip(powers, columns, strict=True):
        left = (_power(errors, power, signed) * column).to(features.dtype).reshape(-1, clients)
        total.addmm_(left, _power(features, power, signed))
    return total.reshape(count, classes, -1)


def _power(values: Tensor, power: int, signed: bool) -> Tensor:
    if power == 1:
        return values if signed else values.abs()
    straight = (power % 2 == 1) == signed
    if straight:
        return values.pow(power)
    return values.pow(power) * values.sign()
