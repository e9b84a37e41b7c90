"""Random attacks on the bounds of shuffling: what is asked next depends on every output before.

Idea     draw tables of few outputs and what the others hold; enumerate all orders and outputs in
         rational numbers. The others are then moved, one by one, towards what makes the exact
         delta larger: it stays below the bound.
"""

from fractions import Fraction

import numpy as np
import pytest

from lab.exact.shuffle_kit import hockey_stick, largest_ratio, power_of_e, transcripts
from quietbit.target import Adjacency
from quietbit_lab.shuffle.amplification import clones, through_zero

INPUTS = 4  # the first is the zero update
SHARES = (0.02, 0.2, 0.5, 0.8)  # of the local epsilon
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 60))]


def drawn(rng, outputs):
    """Return a table whose rows differ by less than a ratio, and mostly by nearly as much."""
    base = rng.integers(1, 65, outputs)
    ratio = int(rng.integers(2, 56))
    steep = rng.random((INPUTS, outputs)) < rng.random()
    weights = np.where(steep, ratio * base, base).tolist()
    return [tuple(Fraction(weight, sum(row)) for weight in row) for row in weights]


def shuffled(tables, held):
    """Return the law of all outputs in turn; which table answers depends on their sum so far."""

    def law(seen, client):
        return tables[sum(seen) % len(tables)][held[client]]

    return transcripts(None, len(held), law)


def reached(tables, others):
    """Return the largest share of its bound that an exact delta has; fail above 1."""
    far = max(largest_ratio(table) for table in tables)
    near = max(largest_ratio([table[0], row]) for table in tables for row in table)
    laws = [shuffled(tables, [held, *others]) for held in range(3)]
    worst = 0.0
    for one, two, local, bound in (
        (1, 2, far, clones(far)),
        (1, 2, near, through_zero(near, Adjacency.REPLACE_ONE)),
        (0, 1, near, through_zero(near, Adjacency.ZERO_OUT)),
    ):
        for share in SHARES:
            epsilon = share * local
            factor = power_of_e(epsilon)
            ways = ((laws[one], laws[two]), (laws[two], laws[one]))
            exact = max(hockey_stick(*way, factor) for way in ways)
            upper = bound.delta_upper(len(others) + 1, epsilon)
            assert exact <= upper
            worst = max(worst, float(exact) / upper)
    return worst


@pytest.mark.parametrize("seed", SEEDS)
def test_no_shuffle_exceeds_its_bound(seed):
    rng = np.random.default_rng(seed)
    outputs = int(rng.integers(2, 4))
    tables = [drawn(rng, outputs) for _ in range(rng.integers(1, 4))]
    others = rng.integers(INPUTS, size=rng.integers(1, 4)).tolist()
    for place in range(len(others)):
        ways = [[*others[:place], held, *others[place + 1 :]] for held in range(INPUTS)]
        others = max(ways, key=lambda way: reached(tables, way))
    assert reached(tables, others) <= 1


def test_a_bound_for_twice_the_crowd_is_exceeded():
    row = (Fraction(9, 10), Fraction(1, 10))
    first, second = (shuffled([[row, row[::-1]]], [held, 0]) for held in (0, 1))
    exact = hockey_stick(first, second, power_of_e(0.5))
    assert clones(largest_ratio([row, row[::-1]])).delta_upper(32, 0.5) < exact
