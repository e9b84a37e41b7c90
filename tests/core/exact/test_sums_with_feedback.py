"""Several secure sums of clients whose next input depends on the bit they drew: the account does
not cover them.

Idea     a client that corrects its last error sends a one after a zero and a zero after a one, so
         the bits of two rounds hide less than those of two clients. The exact joint law of two sums
         shows by how much; with inputs that do not depend on bits drawn the account holds.
"""

from __future__ import annotations

import numpy as np

from quietbit.design.solve import closed_design
from quietbit.design.table import DesignSpec
from quietbit.privacy.aggregate import AggregateConstant
from quietbit.target import Adjacency

EPSILON, OTHERS = 2.5, 49
SHIFT = 0.1
LOW, HIGH, NEAR = (1 / (1 + np.exp(EPSILON * (1 - 2 * x))) for x in (0.0, 1.0, 0.5 + SHIFT))


def with_one_more(law: np.ndarray, one: np.ndarray) -> np.ndarray:
    """The law of both sums with one more client, whose two bits have the law ``one``."""
    found = np.zeros(np.add(law.shape, 1))
    for (first, second), mass in np.ndenumerate(one):
        rows, columns = law.shape
        found[first : first + rows, second : second + columns] += mass * law
    return found


def pair(first: float, after_one: float, after_zero: float) -> np.ndarray:
    """The law of a client's two bits."""
    zero, one = (1 - first, first)
    return np.array(
        [
            [zero * (1 - after_zero), zero * after_zero],
            [one * (1 - after_one), one * after_one],
        ]
    )


def divergence(other: np.ndarray) -> float:
    """D_2 of two sums among such others, zero-out: the client's input is 0.5 + SHIFT, or 0.5, in
    both.
    """
    law = np.ones((1, 1))
    for _ in range(OTHERS):
        law = with_one_more(law, other)
    world, neighbour = (with_one_more(law, pair(p, p, p)) for p in (NEAR, 0.5))
    return float(max(np.log((a**2 / b).sum()) for a, b in ((world, neighbour), (neighbour, world))))


def test_feedback_breaks_the_account_of_several_sums_and_nothing_else_does():
    design = closed_design(DesignSpec(2, 1, EPSILON))
    constant = AggregateConstant(design, 0.0, 1.0, OTHERS + 1, Adjacency.ZERO_OUT)
    claimed = 2 * constant.upper(2.0) * SHIFT**2
    ends = (LOW, 0.5, HIGH)
    assert max(divergence(pair(p, after, after)) for p in ends for after in ends) <= claimed
    assert max(divergence(pair(p, LOW, HIGH)) for p in ends) > 1.6 * claimed
