"""A lower bound on epsilon from one training: canaries by coin flips, and guesses of the flips.

Idea     every one of m canaries takes part with probability 1/2, on its own coin. Whoever sees the
         result gives each a score, large where it looks present, and guesses: present for the
         largest scores, absent for the smallest, nothing for the rest. Under epsilon the number of
         right guesses is hardly above a binomial's; where it is far above, epsilon cannot be that
         small. The bound holds with confidence 1 - doubt, whatever the scores are.
Symbols  m canaries, r guesses, v right ones; q = 1 / (1 + e^-epsilon); f(v) = P(Binomial(r, q) >=
         v). P(at least v right) <= f(v) + 2 m delta max_i (f(v - i) - f(v)) / i, i = 1 ... v.
Source   Steinke, Nasr, Jagielski (NeurIPS 2023), Theorem 5.2. The unit is what the coin adds or
         removes: zero-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from attrs import frozen
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

from quietbit.errors import check_int, check_real, require

__all__ = ["LowerBound", "chance_upper", "guesses", "lower_bound"]

MOST_EPSILON = 60.0
HALVINGS = 60


@final
@frozen
class LowerBound:
    """What one training shows: epsilon >= ``epsilon_lower``, wrong with chance ``doubt``."""

    epsilon_lower: float
    delta: float
    doubt: float
    canaries: int
    guessed: int
    right: int


def guesses(scores: ArrayLike, present: ArrayLike, number: int) -> tuple[int, int]:
    """Return (guessed, right): largest scores are called present, as many smallest absent.

    >>> guesses([3.0, 2.0, 1.0, 0.0], [True, False, True, False], 2)
    (2, 2)
    """
    values = np.asarray(scores, dtype=np.float64).reshape(-1)
    truth = np.asarray(present, dtype=np.bool_).reshape(-1)
    rule = f"{truth.size}, the number of coins"
    require(values.size == truth.size, "number of scores", values.size, rule)
    broken = int(np.count_nonzero(~np.isfinite(values)))
    require(broken == 0, "scores", f"{broken} that are NaN or infinite", "finite numbers")
    each = check_int(number, "number of guesses", 2, values.size) // 2
    order = np.argsort(values, kind="stable")
    right = int(truth[order[-each:]].sum()) + int((~truth[order[:each]]).sum())
    return 2 * each, right


def lower_bound(
    scores: ArrayLike,
    present: ArrayLike,
    *,
    delta: float,
    doubt: float = 0.05,
    numbers: Sequence[int] | None = None,
) -> LowerBound:
    """Return the largest epsilon that one training refutes with confidence 1 - ``doubt``.

    Args:
        scores: of every canary: how much the result looks as if it had taken part.
        present: the coins.
        delta: of the guarantee under test.
        doubt: the probability with which the bound may be wrong.
        numbers: how many guesses to make, fixed before scores are seen. With several, each gets its
            share of the doubt and the best bound counts. By default an eighth, a quarter, half and
            all of the canaries.
    """
    count = int(np.asarray(present).size)
    if numbers is not None:
        sizes = tuple(numbers)
    else:
        sizes = tuple(max(2, count // part) for part in (8, 4, 2, 1))
    require(len(sizes) > 0, "numbers", sizes, "at least one number of guesses")
    failure = check_real(doubt, "doubt", at_most=0.5)
    best = None
    for number in sizes:
        guessed, right = guesses(scores, present, number)
        epsilon = _largest_refuted(count, guessed, right, delta, failure / len(sizes))
        bound = LowerBound(epsilon, delta, failure, count, guessed, right)
        if best is None or bound.epsilon_lower > best.epsilon_lower:
            best = bound
    if best is not None:
        return best
    return LowerBound(0.0, delta, failure, count, 0, 0)


def chance_upper(canaries: int, guessed: int, right: int, epsilon: float, delta: float) -> float:
    """Bound the probability of at least ``right`` right guesses under (epsilon, delta)."""
    quality = 1 / (1 + np.exp(-epsilon))
    tail = float(binom.sf(right - 1, guessed, quality))
    if delta == 0:
        return min(1.0, tail)
    steps: NDArray[np.float64] = np.arange(1, right + 1, dtype=np.float64)
    sums = np.cumsum(binom.pmf(right - steps, guessed, quality))
    if right:
        slope = float((sums / steps).max())
    else:
        slope = 0.0
    return min(1.0, tail + 2 * canaries * delta * slope)


def _largest_refuted(canaries: int, guessed: int, right: int, delta: float, doubt: float) -> float:
    """Return the largest epsilon that is refuted at ``doubt``, rounded down; 0 if none is."""
    if chance_upper(canaries, guessed, right, 0.0, delta) > doubt:
        return 0.0
    low = 0.0
    high = MOST_EPSILON
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if chance_upper(canaries, guessed, right, middle, delta) <= doubt:
            low = middle
        else:
            high = middle
    return low
