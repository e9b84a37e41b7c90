"""Secret cohorts: what is gained when nobody, the server included, learns who took part in a sum.

Idea     a secret cohort of m among N clients, all cohorts equally likely, contains a given client
         with probability m/N: who sees the sum alone learns less about it. If the server learns who
         took part, as it does with the pairwise masks of `quietbit.secagg`, nothing is gained, and
         amplification is refused.
Symbols  g = m/N; near, far: the cohort's Rényi curve under the adjacency asked about, and under
         replace-one.
Source   Wang, Balle, Kasiviswanathan (AISTATS 2019), Theorem 9;
         packages/lab/docs/secret-cohorts.md has it for both adjacencies.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from quietbit.errors import InvalidParameter, check_int, require
from quietbit.privacy.cost import Cost
from quietbit.privacy.orders import chord_upper
from quietbit.privacy.release import Formula
from quietbit.privacy.rounding import round_up
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

    ``curve`` is the account under ``adjacency`` when it is known who took part. ``cohort`` is
    exact: a random number that becomes public, as with Poisson sampling and a published count, is
    covered at the largest rate and the fewest clients it allows. Zero-out needs the ``replace_one``
    curve of the release too: who sits out is replaced by another client. Refused where the server
    learns the cohort, as with the pairwise masks of `quietbit.secagg`.
    """
    if server_learns_cohort:
        remedy = "account each client's own releases: a known cohort amplifies nothing"
        raise InvalidParameter.of("server_learns_cohort", "False", True, remedy)
    require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
    if adjacency is Adjacency.ZERO_OUT and replace_one is None:
        remedy = "another client takes the place of one that is left out"
        raise InvalidParameter.of("replace_one", "given for zero-out", None, remedy)
    total = check_int(population, "population", 1)
    chosen = check_int(cohort, "cohort", 1, total)
    if adjacency is Adjacency.REPLACE_ONE or replace_one is None:
        far = curve
    else:
        far = replace_one
    rate = chosen / total * (1 + 1e-15)
    pure = _pure(curve.pure_epsilon(), far.pure_epsilon(), rate)
    return Cost.renyi(
        Formula(_cohort_divergence, curve, far, rate),
        pure,
    )


def _pure(near: float, far: float, rate: float) -> float:
    """Return the max-divergence: that of ``near``, or amplified as on the page."""
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


def _cohort_divergence(alpha: float, near: Cost, far: Cost, rate: float) -> float:
    """Return eps'(alpha): the two simple bounds, and up to order 512 the theorem's."""
    alone = near.rdp(alpha)
    if alone < math.inf:
        bound = min(alone, _log_mix((alpha - 1) * alone, rate) / (alpha - 1))
    else:
        bound = math.inf
    if alpha <= MOST_ORDER:
        below = math.floor(alpha)
        bound = min(
            bound,
            chord_upper(lambda order: _whole(int(order), near, far, rate), alpha, below, below + 1),
        )
    return round_up(bound)


@lru_cache(maxsize=128)
def _whole(alpha: int, near: Cost, far: Cost, rate: float) -> float:
    """Return eps'(alpha) at an integer order of at least 2: the theorem, in logarithms."""
    j = np.arange(2, alpha + 1)
    close, apart = (
        np.array([(order - 1) * one.rdp(float(order)) for order in j]) for one in (near, far)
    )
    if not max(close.max(), apart.max()) < math.inf:
        return math.inf
    size = np.minimum(np.logaddexp(apart, close), close + j * _log_expm1(near.pure_epsilon()))
    size[0] = min(size[0], 2 * np.logaddexp(_log_expm1(apart[0]) / 2, _log_expm1(close[0]) / 2))
    choose = gammaln(alpha + 1) - gammaln(j + 1) - gammaln(alpha - j + 1)
    terms = j * math.log(rate) + choose + 1e-12 * (1 + choose) + size
    return float(np.logaddexp(0.0, logsumexp(terms) + 1e-9)) / (alpha - 1)


def _log_expm1(value: float) -> float:
    """Return log(e^x - 1) for x >= 0, infinity for infinity."""
    if value > 0:
        return value + math.log(-math.expm1(-value))
    return -math.inf
