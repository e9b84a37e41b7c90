"""Amplification by secret cohorts: what is gained when nobody learns which clients took part.

Idea     a secret cohort of m among N clients, all cohorts equally likely, contains a given client with probability m/N;
         an observer of the result alone learns less about it. If the server learns who took part, nothing is gained.
Symbols  g = m/N; near(j): the cohort's Rényi curve at order j under the adjacency asked about, near(inf) its
         max-divergence; far(j): the same curve under replace-one (equal to near for that adjacency).
Source   Wang, Balle, Kasiviswanathan (AISTATS 2019), Theorem 9, here for both adjacencies: for whole alpha >= 2
         (alpha - 1) eps'(alpha) <= log(1 + sum_{j=2}^alpha g^j C(alpha, j) z_j), where z_j is the least of
         e^((j-1) near(j)) (e^near(inf) - 1)^j,  e^((j-1) far(j)) + e^((j-1) near(j)),  and for j = 2 also
         (sqrt(e^far(2) - 1) + sqrt(e^near(2) - 1))^2. With near = far it is their theorem.

Proof. Couple a cohort S + x that holds the client with S + y, another in its place: p = law(S + x), q = law(S + x'),
r = law(S + y). Expand E_Q[(1 + g (p - q)/Q)^alpha], Q = g q + (1-g) r: the first-order term is 0; |a|^j / b^(j-1) is
jointly convex, so the j-th term is at most the larger of int |p-q|^j/q^(j-1) and int |p-q|^j/r^(j-1). p and q are
neighbours; q and r too (for zero-out x' is zero); p and r are replace-one neighbours. |p-q| <= q (e^near(inf) - 1),
|p-q|^j <= p^j + q^j, and Minkowski's inequality in L2(r) give the three terms; with p and q exchanged likewise.

Two more bounds hold at every real order, by joint convexity of the moment: the cohort is the same in both worlds, and
differs in content only when the client is in it, so the moment is at most 1 + g (e^((alpha-1) near(alpha)) - 1); the
divergence is at most near(alpha). Between whole orders (alpha - 1) eps' is bounded by its chord, being convex.

At delta = 0, P/Q = 1 + g (p - q)/(g q + (1-g) r). With p <= e^E q and p <= e^E r it is at most 1 + g (e^E - 1): E is
far(inf), since p and r are far. From p <= e^N q and r >= e^-N q, N = near(inf), it is at most
1 + g (e^N - 1)/(g + (1-g) e^-N). The least of these and N counts.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from quietbit.errors import InvalidParameter, check_int, require
from quietbit.privacy.conversion import chord_upper, round_up
from quietbit.privacy.cost import Cost, Formula
from quietbit.target import Adjacency

__all__ = ["secret_cohort_cost"]

MOST_ORDER = 512  # larger whole orders use the two simple bounds


def secret_cohort_cost(
    curve: Cost,
    cohort: int,
    population: int,
    adjacency: Adjacency,
    *,
    server_learns_cohort: bool,
    replace_one: Cost | None = None,
) -> Cost:
    """Return the curve of one release by a uniformly random cohort that stays secret.

    ``curve`` is that of the release for a given cohort, for instance `sum_privacy(cohort, adjacency)`.

    Args:
        curve: the account when it is known who took part, under ``adjacency``.
        cohort: how many clients take part, exactly. A random number that becomes public, as with Poisson sampling and a
            published count, is covered at the largest rate and the fewest clients it allows.
        population: how many clients the cohort is drawn from.
        adjacency: which two data sets are neighbours.
        server_learns_cohort: whether an observer of the result also learns who took part. Then nothing is amplified,
            and this is refused: pairwise masks, as in `quietbit.secagg`, need the server to know who takes part.
        replace_one: for zero-out, the same release's replace-one curve: a client that sits out is replaced by another.
    """
    if server_learns_cohort:
        raise InvalidParameter(
            "Subsampling amplifies nothing when the server learns who took part: account each client's own releases."
        )
    require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
    if adjacency is Adjacency.ZERO_OUT and replace_one is None:
        raise InvalidParameter(
            "replace_one must be given for zero-out: another client takes the place of one left out."
        )
    total = check_int(population, "population", 1)
    chosen = check_int(cohort, "cohort", 1, total)
    far = curve if adjacency is Adjacency.REPLACE_ONE or replace_one is None else replace_one
    rate = chosen / total * (1 + 1e-15)
    pure = _pure(curve.pure_epsilon(), far.pure_epsilon(), rate)
    return Cost.renyi(Formula(_divergence, curve, far, rate), f"secret cohort of {chosen} among {total}", pure)


def _pure(near: float, far: float, rate: float) -> float:
    """Return the max-divergence: that of ``near``, or amplified as in the module header."""
    bounds = [near]
    if far < math.inf:
        bounds.append(round_up(_log_mix(far, rate)))
    if near < math.inf:
        rest = max(1 - rate, 0.0) * math.exp(-near)
        bounds.append(round_up(_log_mix(near, rate / (rate + rest) * (1 + 1e-15))))
    return min(bounds)


def _log_mix(exponent: float, rate: float) -> float:
    """Return log(1 + g (e^x - 1)) without overflow."""
    if exponent < 30:
        return math.log1p(rate * math.expm1(exponent))
    return exponent + math.log(rate) + math.log1p((1 - rate) / rate * math.exp(-exponent))


def _divergence(alpha: float, near: Cost, far: Cost, rate: float) -> float:
    """Return eps'(alpha): the two simple bounds, and up to order 512 the theorem's."""
    alone = near.rdp(alpha)
    bound = min(alone, _log_mix((alpha - 1) * alone, rate) / (alpha - 1)) if alone < math.inf else math.inf
    if alpha <= MOST_ORDER:
        below = math.floor(alpha)
        bound = min(bound, chord_upper(lambda order: _whole(int(order), near, far, rate), alpha, below, below + 1))
    return round_up(bound)


def _whole(alpha: int, near: Cost, far: Cost, rate: float) -> float:
    """Return eps'(alpha) at an integer order of at least 2: the theorem, in logarithms."""
    j = np.arange(2, alpha + 1)
    close, apart = (np.array([(order - 1) * one.rdp(float(order)) for order in j]) for one in (near, far))
    if not max(close.max(), apart.max()) < math.inf:
        return math.inf
    size = np.minimum(np.logaddexp(apart, close), close + j * _log_expm1(near.pure_epsilon()))
    size[0] = min(size[0], 2 * np.logaddexp(_log_expm1(apart[0]) / 2, _log_expm1(close[0]) / 2))
    choose = gammaln(alpha + 1) - gammaln(j + 1) - gammaln(alpha - j + 1)
    terms = j * math.log(rate) + choose + 1e-12 * (1 + choose) + size
    return float(np.logaddexp(0.0, logsumexp(terms) + 1e-9)) / (alpha - 1)


def _log_expm1(value: float) -> float:
    """Return log(e^x - 1) for x >= 0, infinity for infinity."""
    return value + math.log(-math.expm1(-value)) if value > 0 else -math.inf
