"""How likely a masked sum with few neighbours shows more than it should, from above.

Idea     a client's two secrets, and sums over few honest clients, are exposed in two ways and no
         third. (a) s of the k whom a client chose collude: they hold enough shares of both its
         secrets. (b) A set A of fewer honest clients than the sum is priced at is cut off: all
         masks of its members with honest clients outside A are gone or were never there, and their
         seeds can be recovered. Both are summed over all clients and all sets.
Symbols  n = clients; t = threshold; k = neighbours; s = needed: shares that recover a secret; C =
         colluders; h = honest: clients that a sum is priced at; m = n - C; r = n - t: clients that
         the server may drop, when it knows all choices; H: hypergeometric.
Source   docs/theory/masked-sums.md has the proof; the graphs are those of Bell et al. (CCS 2020).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from quietbit.errors import check_int

__all__ = ["SPARSE_FROM", "exposure_upper", "least_share_threshold", "neighbours_for"]

# clients: fewer deal with all others, which leaves nothing to chance and costs 96 bytes for each
SPARSE_FROM = 100
SLACK = 1e-7  # above every rounding of the logarithm of a chance
Logs: TypeAlias = NDArray[np.float64]


def least_share_threshold(neighbours: int) -> int:
    """Return the smallest share threshold: more than half of a client's holders, itself among them."""
    return (neighbours + 1) // 2 + 1


def exposure_upper(
    clients: int, threshold: int, neighbours: int, needed: int, colluders: int, honest: int
) -> float:
    """Bound the chance of (a) or (b) in one round in which every honest client draws its neighbours uniformly.

    For a set A of a honest clients, ``cut`` and ``held`` are two bounds on the chance that it is
    exposed.
    """
    n = clients
    m = clients - colluders
    r = clients - threshold
    k = neighbours
    every = _log_choose(n - 1, k)
    captured = math.log(m) + _log_tail(n - 1, np.array([float(colluders)]), k, needed)
    a = np.arange(1, honest, dtype=np.float64)
    gone = np.minimum(r, m - a)
    inside = colluders + a - 1
    least = max(0, needed - 1)
    ways = [
        _log_choose(inside, j) + _log_choose(gone, k - j) - every for j in range(least, k + 1)
    ] or [-np.inf + a]
    within = np.minimum(0.0, logsumexp(np.stack(ways), axis=0) + SLACK)
    without = np.minimum(0.0, _log_choose(n - 1 - a, k) - every + SLACK)
    rest = m - a - gone
    apart = np.where(rest > 0, rest * np.where(rest > 0, without, 0.0), 0.0)
    cut = _log_choose(m - a, gone) + a * within + apart
    held = a * _log_tail(n - 1, inside, k, least)
    total = float(logsumexp(np.concatenate([captured, _log_choose(m, a) + np.minimum(cut, held)])))
    if total > -math.inf:
        return math.exp(min(0.0, total + 3 * SLACK))
    return 0.0


def neighbours_for(
    clients: int,
    colluders: int,
    gone: int,
    honest: int | None = None,
    *,
    risk: float = 2.0**-40,
    failures: float = 1e-3,
    active: bool = True,
) -> tuple[int, int] | None:
    """Return the fewest neighbours and their share threshold for which both chances are small; None if all are needed.

    With at most ``colluders`` and a threshold of ``clients`` - ``gone``, `exposure_upper` is at
    most ``risk`` for sums of ``honest`` honest clients (unless given, nine tenths of those who must
    be left), and a round in which that many leave at random fails for want of shares, closed, with
    a chance of at most ``failures``.

    >>> neighbours_for(1000, 50, 50)
    (25, 17)
    """
    count = check_int(clients, "clients", 2)
    missing = check_int(gone, "gone", 0, count)
    bad = check_int(colluders, "colluders", 0, count)
    left = count - missing - bad
    if honest is None:
        counted = max(2, 9 * left // 10)
    else:
        counted = honest
    if active:
        fits = bad < count - 2 * missing
    else:
        fits = bad < count - missing
    if count < SPARSE_FROM or not fits or counted > left:
        return None
    for near in range(2, count // 2):
        for needed in range(least_share_threshold(near), near + 2):
            # A client that has left holds its own share no more, and its pair key is needed all the
            # same.
            few = near + 2 - needed
            marked = np.array([float(missing), max(missing - 1.0, 0.0)])
            stays, leaves = (
                _log_tail(count - 1, marked, near, few - place)[place] for place in (0, 1)
            )
            if (count - missing) * math.exp(stays) + missing * math.exp(leaves) > failures:
                break  # a larger threshold only makes failures likelier
            if exposure_upper(count, count - missing, near, needed, bad, counted) <= risk:
                return near, needed
    return None


def _log_choose(many: Logs | float, few: Logs | float) -> Logs:
    """Return the logarithm of C(many, few), -inf where there is no way."""
    n, k = np.broadcast_arrays(
        np.asarray(many, dtype=np.float64), np.asarray(few, dtype=np.float64)
    )
    fine = (k >= 0) & (k <= n)
    n = np.where(fine, n, 0.0)
    k = np.where(fine, k, 0.0)
    return np.where(fine, gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1), -np.inf)


def _log_tail(others: int, marked: Logs, drawn: int, least: int) -> Logs:
    """Bound log P(at least ``least`` marked ones among ``drawn`` of ``others``), for many numbers of marked ones."""
    inside = np.minimum(marked, others)
    terms = [
        _log_choose(inside, j) + _log_choose(others - inside, drawn - j)
        for j in range(max(0, least), drawn + 1)
    ]
    if not terms:
        return np.full(inside.shape, -np.inf)
    return np.asarray(
        np.minimum(logsumexp(np.stack(terms), axis=0) - _log_choose(others, drawn) + SLACK, 0.0)
    )
