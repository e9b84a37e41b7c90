"""Randomised response: the law word by word, the price of exactly that law, and answers that
nobody else could give.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product

import mpmath
import numpy as np
import pytest

from core.mechanism.makers import answered
from core.statistical.kit import assert_binomial, seed
from quietbit import Adjacency, InvalidPayload, Uplink, seeded_rng
from quietbit.mechanism.response import WORDS, RandomisedResponse
from refusals import refuses

CELLS = (2, 3, 7, 256, 257)
EPSILONS = (1e-6, 0.01, 0.5, 2.0, 9.0)


def law(mechanism: RandomisedResponse, cell: int | None) -> list[Fraction]:
    """Count words: how many of 2^64 thresholds tell the truth, how many of 2^64 lies name each
    cell.
    """
    cells, truth = mechanism.cells, Fraction(mechanism.threshold, WORDS)
    edges = [
        -(-WORDS * j // cells) for j in range(cells + 1)
    ]  # the first word whose product reaches j 2^64
    lies = [Fraction(right - left, WORDS) for left, right in pairwise(edges)]
    if cell is None:
        return lies
    return [truth * (j == cell) + (1 - truth) * lie for j, lie in enumerate(lies)]


@pytest.mark.parametrize(("cells", "epsilon", "adjacency"), [*product(CELLS, EPSILONS, Adjacency)])
def test_the_price_bounds_the_law_that_is_sampled_and_is_what_was_asked_for(
    cells: int, epsilon: float, adjacency: Adjacency
) -> None:
    mechanism = RandomisedResponse.within(epsilon, cells, adjacency)
    rows = [law(mechanism, cell) for cell in (0, 1, cells - 1)]
    none = law(mechanism, None)
    pairs = list(product(rows, rows))
    if adjacency is Adjacency.ZERO_OUT:
        pairs = [(none, row) for row in rows]
    ratios = [a / b for first, second in pairs for a, b in zip(first, second, strict=True)]
    worst = max(max(ratios), 1 / min(ratios))
    with mpmath.workdps(60):
        exact = mpmath.log(mpmath.mpf(worst.numerator) / worst.denominator)
        upper = mechanism.privacy(adjacency).pure_epsilon()
        assert exact <= upper <= epsilon
        assert epsilon <= upper * (1 + 1e-6)
        assert upper <= exact * (1 + mpmath.mpf(1e-9))


@pytest.mark.parametrize("cells", CELLS)
def test_words_become_cells_as_the_law_says(cells: int) -> None:
    mechanism = RandomisedResponse.within(1.0, cells, "replace-one")
    truth, own = mechanism.threshold, cells - 2
    shares = np.eye(cells)[own]
    for word in (0, truth - 1):
        assert answered(mechanism, shares, 2**64 - 1, word, 5) == own
    for lie in (0, 2**63, 2**64 - 1):
        cell = lie * cells >> 64
        assert answered(mechanism, shares, 0, truth, lie) == cell
        assert answered(mechanism, shares, 0, 2**64 - 1, lie) == cell
        assert answered(mechanism, np.zeros(cells), 0, 0, lie) == cell  # no cell: never the truth


def test_shares_become_the_cell_of_an_example_that_is_drawn() -> None:
    mechanism = RandomisedResponse(4, 0.9)
    shares = np.array([0.25, 0.0, 0.5, 0.25])
    assert [answered(mechanism, shares, place << 62, 0, 0) for place in range(4)] == [0, 2, 2, 3]
    # Longer vectors are shares all the same, and nothing is in a negative cell: a lie.
    assert answered(mechanism, shares * 1e9, 3 << 62, 0, 0) == 3
    assert answered(mechanism, -shares, 1 << 62, 0, 2**63) == 2


def test_the_decoded_mean_is_the_share_of_every_cell() -> None:
    mechanism = RandomisedResponse.within(1.5, 3, "replace-one")
    rng, shares, count = seeded_rng(seed(5)), np.array([0.6, 0.3, 0.1]), 4000
    uplink = Uplink(mechanism)
    payloads = [uplink.send(shares, rng) for _ in range(count)]
    mean = uplink.receive(payloads)
    named = [round(count * mechanism.frequency(share)) for share in mean]
    assert sum(named) == count
    assert_binomial(named, count, [mechanism.frequency(share) for share in shares])
    assert mechanism.share(mechanism.frequency(0.3)) == pytest.approx(0.3)


def test_a_cell_that_there_is_not_is_refused() -> None:
    other = Uplink(RandomisedResponse(4, 0.5)).send(np.eye(4)[3])
    with pytest.raises(InvalidPayload):
        Uplink(RandomisedResponse(3, 0.5)).receive([other])
    with pytest.raises(InvalidPayload, match="cell of the answer"):
        RandomisedResponse(3, 0.5).accumulator(None, 9).check(np.array([3], dtype=np.uint8))


def test_an_epsilon_that_no_answer_depends_on_is_refused() -> None:
    with refuses("epsilon", 1e-12):
        RandomisedResponse.within(1e-12, 2, "zero-out")


def test_a_sample_can_change_the_answer_as_well_as_all_of_them() -> None:
    mechanism = RandomisedResponse.within(0.5, 2, "zero-out")
    whole = mechanism.privacy(Adjacency.REPLACE_ONE).pure_epsilon()
    for adjacency in Adjacency:
        assert mechanism.privacy(adjacency, 10).pure_epsilon() == whole
