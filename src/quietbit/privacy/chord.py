r"""The chord identity: what every bound on a Rényi divergence of the interpolated mechanism starts from.

Idea     two inputs span a straight line of log-probabilities, the chord, and a divergence is an average of
         variances along it; an average of variances is easy to bound.
Symbols  r = |x - x'|; v = (eta(x) - eta(x'))/r, the chord's direction; p_s = softmax((1-s) eta(x') +
         s eta(x)), so p_0, p_1 are the two laws and q = p_alpha; F = D_alpha(x || x')/r^2;
         R_i = max slope_i - min slope_i.
Source   Guo et al. (ICML 2023), proof of Lemma 2, where v is the same for all pairs.

K(s) = log sum_j p_0^(1-s) p_1^s is convex with K(0) = K(1) = 0, K'' = r^2 Var_{p_s}(v) and D_alpha =
K(alpha)/(alpha-1). Solving for K(alpha), with triangular weights w on [0, alpha] (peak at s = 1, total 1),

    F = (alpha/2) \int w(s) Var_{p_s}(v) ds.                                                        (*)

Hence F <= alpha max_i R_i^2/8 (a variance is at most a quarter of the squared range, and v averages slopes),
and F <= L/r because D_alpha <= D_inf <= L r. Under w the mean of s is (alpha+1)/3.

Tilting: moving a law along e^(tf) changes the variance of a fixed vector at a rate within +-(max f - min f)
of itself, as the rate is a covariance with f. In general, for laws with exponent E(t) and a vector v(t),
d/dt Var(v) = 2 Cov(v, v') + k3(E', v, v) and
d2/dt2 Var(v) = 2 Var(v') + 2 Cov(v, v'') + 4 k3(E', v, v') + k3(E'', v, v) + k4(E', E', v, v),
with joint cumulants |k3(f, v, w)| <= range(f) sd(v) sd(w) and k4(f, f, v, v) <= range(f)^2 Var(v).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.privacy.segments import Segments, mean_and_law

__all__ = ["MOST_SEGMENTS", "ULP", "Indices", "Problem", "chord", "dot", "grown_by", "simple_bound"]

MOST_SEGMENTS = 256  # beyond it the pairs of segments alone are too many to look at
ULP = 2.0**-50
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One order over one set of segments, with what every cell bound needs."""

    segments: Segments
    alpha: float
    lipschitz: float
    span: FloatVector
    kinks: FloatMatrix  # per kink, l below and u above: Var l, Cov, Var u, k3(lll), k3(llu), k3(luu), k3(uuu)
    hull: FloatMatrix  # largest span among segments i..j; empty when there are too many

    @classmethod
    def of(cls, segments: Segments, alpha: float, lipschitz: float) -> Problem:
        """Precompute the moments of the slopes at every kink."""
        slope = segments.slope
        law = mean_and_law(segments.start[1:], slope[1:])[1]
        lower, upper = (part - dot(law, part)[:, None] for part in (slope[:-1], slope[1:]))
        products = (lower * lower, lower * upper, upper * upper)
        third = (products[0] * lower, products[0] * upper, products[2] * lower, products[2] * upper)
        kinks = np.stack([dot(law, product) for product in (*products, *third)], axis=1)
        span, count = segments.span, len(segments.left)
        hull = np.zeros((0, 0))
        if count <= MOST_SEGMENTS:
            hull = np.maximum.accumulate(np.triu(np.broadcast_to(span, (count, count))), axis=1)
        return cls(segments, alpha, lipschitz, span, kinks, hull)


def dot(weights: FloatMatrix, vector: FloatMatrix) -> FloatVector:
    """Row by row, the sum of products."""
    return np.asarray(np.einsum("ij,ij->i", weights, vector))


def grown_by(value: FloatVector, exponent: FloatVector) -> FloatVector:
    """The product value e^exponent as an upper bound: infinite where the exponent is too large to mean anything."""
    factor = np.where(exponent < 300.0, np.exp(np.minimum(exponent, 300.0)), np.inf)
    return np.asarray(np.maximum(value, 1e-300) * factor)  # a value that underflowed still counts


def simple_bound(problem: Problem, span: FloatVector, nearest: FloatVector) -> FloatVector:
    """min(alpha R^2/8, L/r): the bounds that need no evaluation."""
    with np.errstate(divide="ignore"):
        return np.minimum(problem.alpha * span**2 / 8 * (1 + 8 * ULP), problem.lipschitz / nearest)


def chord(
    law: FloatMatrix, v: FloatMatrix, r: FloatVector, alpha: float, span: FloatVector
) -> tuple[FloatVector, FloatVector, FloatMatrix, FloatMatrix, FloatMatrix]:
    """F, a bound on its rounding error, and p_0, p_1, q, from log p_0 and the chord's direction."""
    p_0 = np.exp(law)
    u = (v - dot(p_0, v)[:, None]) * r[:, None]
    p_0, scale = p_0 / p_0.sum(axis=1)[:, None], alpha * np.abs(u).max(axis=1)
    logs, laws = [], []
    for s in (1.0, alpha):
        exponent = law + s * u
        top = exponent.max(axis=1)
        weights = np.exp(exponent - top[:, None])
        mass = weights.sum(axis=1)
        weights /= mass[:, None]
        logs.append(top + np.log(mass))
        laws.append(weights)
    phi = (logs[1] - alpha * logs[0]) / (alpha - 1)
    # A term's exponent z = log q_j + log-sum errs by an ulp of z; averaged over q: its entropy and the sum.
    error = ULP * (1 + alpha) * (16 + alpha * r * span) / (alpha - 1) / (r * r)
    small = scale < 0.5
    if small.any():
        # u has mean 0, so log E e^(su) = log1p(E[e^(su) - 1 - su]): nothing of first order to cancel.
        first, second = (np.log1p(dot(p_0[small], _second_order(s * u[small]))) for s in (1.0, alpha))
        phi[small] = (second - alpha * first) / (alpha - 1)
        error[small] = phi[small] / np.square(r[small]) * (64 * ULP * alpha / (alpha - 1))
    return phi / (r * r), error, p_0, laws[0], laws[1]


def _second_order(z: FloatMatrix) -> FloatMatrix:
    """e^z - 1 - z for |z| <= 1/2, by its series: the terms left out are below 2^-53 of the first."""
    total = np.full_like(z, 1 / 15)
    for k in range(14, 2, -1):
        total = (1 + total * z) / k
    return np.asarray(z * z / 2 * (1 + total * z))
