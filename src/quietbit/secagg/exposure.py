"""An upper bound on the chance that a masked sum with few neighbours exposes too much.

Idea     a client's two secrets, and sums over few honest clients, are exposed in exactly two ways.
         (a) s of the k neighbours of a client collude: they hold enough shares of both its secrets.
         (b) A set A of fewer honest clients than the sum's cost assumes is cut off: every mask that
         its members share with honest clients outside A is removed or never existed, and their
         seeds can be recovered. The bound is a sum over all clients and all sets.
Symbols  n = clients; t = threshold; k = neighbours; s = needed: shares that recover a secret; C =
         colluders; h = honest: clients that the sum's cost assumes; m = n - C; r = n - t: clients
         that the server may drop, when it knows all choices.
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

# Below this number each client deals with all others: nothing is left to chance, for 96 bytes per
# client.
SPARSE_FROM = 100
SLACK = 1e-7  # above every rounding error of the logarithm of a chance
Logs: TypeAlias = NDArray[np.float64]


def least_share_threshold(neighbours: int) -> int:
    """Return the smallest share threshold: more than half of a client's neighbours and itself."""
    return (neighbours + 1) // 2 + 1


def exposure_upper(
    clients: int, threshold: int, neighbours: int, needed: int, colluders: int, honest: int
) -> float:
    """Bound the chance of (a) or (b) in a round whose honest clients draw neighbours uniformly.

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
    ways = [_log_choose(inside, j) + _log_choose(gone, k - j) - every for j in range(least, k + 1)]
    if not ways:
        ways = [np.full(a.shape, -np.inf)]
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
    """Return the fewest neighbours, with a share threshold, that suffice; None if all are needed.

    With at most ``colluders`` and a threshold of ``clients`` - ``gone``, `exposure_upper` is at
    most ``risk`` for sums of ``honest`` honest clients (unless given, nine tenths of those that
    must stay). A round that ``gone`` random clients leave fails for lack of shares, and reveals
    nothing, with a chance of at most ``failures``.

    >>> neighbours_for(1000, 50, 50)
    (25, 17)
    """
    check_int(clients, "clients", 2)
    check_int(gone, "gone", 0, clients)
    check_int(colluders, "colluders", 0, clients)
    threshold = clients - gone
    left = threshold - colluders
    if honest is None:
        honest = max(2, 9 * left // 10)
    most_colluders = threshold - 1
    if active:
        most_colluders -= gone
    if clients < SPARSE_FROM or colluders > most_colluders or honest > left:
        return None
    for neighbours in range(2, clients // 2):
        for needed in range(least_share_threshold(neighbours), neighbours + 2):
            if _failure_upper(clients, gone, neighbours, needed) > failures:
                break  # a larger share threshold only makes failures likelier
            if exposure_upper(clients, threshold, neighbours, needed, colluders, honest) <= risk:
                return neighbours, needed
    return None


def _failure_upper(clients: int, gone: int, neighbours: int, needed: int) -> float:
    """Bound the chance that some secret cannot be recovered after ``gone`` random clients left."""
    missing = neighbours + 2 - needed  # holders, of the neighbours and the client itself
    stays = _log_tail(clients - 1, np.array([float(gone)]), neighbours, missing)[0]
    # A client that has left holds no share of its own pair key, which is needed nevertheless.
    others_gone = np.array([max(gone - 1.0, 0.0)])
    leaves = _log_tail(clients - 1, others_gone, neighbours, missing - 1)[0]
    return float((clients - gone) * math.exp(stays) + gone * math.exp(leaves))


def _log_choose(total: Logs | float, drawn: Logs | float) -> Logs:
    """Return the logarithm of the binomial coefficient, -inf where it is 0."""
    n, k = np.broadcast_arrays(
        np.asarray(total, dtype=np.float64), np.asarray(drawn, dtype=np.float64)
    )
    is_possible = (k >= 0) & (k <= n)
    n = np.where(is_possible, n, 0.0)
    k = np.where(is_possible, k, 0.0)
    return np.where(is_possible, gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1), -np.inf)


def _log_tail(others: int, marked: Logs, drawn: int, least: int) -> Logs:
    """Bound log P(at least ``least`` of ``marked`` are among ``drawn`` of ``others``)."""
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
