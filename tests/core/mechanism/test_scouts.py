"""Scouts: an answer's law word by word, and one price for updates and answers."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from attrs import evolve
from scipy import stats

from core.mechanism.makers import MECHANISMS, WIDTH, answered
from core.statistical.kit import seed
from quietbit import Adjacency, Ball, InvalidPayload, Norm, Uplink, seeded_rng
from quietbit.mechanism.response import RandomisedResponse
from quietbit.mechanism.scouts import Scout, Scouted, _answer_cost, scout_rank
from refusals import refuses

INNER = MECHANISMS["imvu one bit l2"]


def scouted(truth: float = 0.3, every: int = 20) -> Scouted:
    return Scouted(INNER, every, truth)


@pytest.mark.parametrize("truth", [1e-4, 0.3, 0.999])
def test_an_answer_is_true_for_the_words_that_are_priced_and_else_a_coin(truth: float) -> None:
    def said(length: float, *words: int) -> int:
        return answered(Scout(scouted(truth)), length * np.eye(1, WIDTH)[0], *words, clip=0.25)

    last = math.floor(truth * 2**64)
    for coin, other in ((0, 0), (2**63 - 1, 0), (2**63, 1), (2**64 - 1, 1)):
        for length, answer in ((0.2, 0), (0.25, 0), (0.2500001, 1), (1e6, 1), (1e300, 1)):
            assert said(length, 0, coin) == answer
            assert said(-length, last - 1, coin) == answer
            assert said(length, last, coin) == other
        assert said(0, 0, coin) == other  # nothing has no length


@pytest.mark.parametrize("truth", [1e-4, 0.3, 0.9, 1 - 1e-9])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_what_is_known_of_an_answer_holds(truth: float, adjacency: Adjacency) -> None:
    """Against 60 digits: its max-divergence, and the Gaussian pair whose sign it is; other
    divergences are those of finite laws.
    """
    response = RandomisedResponse(2, truth)
    found = _answer_cost(response, adjacency)
    with mpmath.workdps(60):
        t = mpmath.mpf(response.threshold) / 2**64
        other = 0.5 if adjacency is Adjacency.ZERO_OUT else (1 - t) / 2
        pure = max(mpmath.log((1 + t) / 2 / other), mpmath.log((1 - other) / (1 - t) * 2))
        assert pure <= found.pure_epsilon() <= pure * (1 + mpmath.mpf(1e-9)) + mpmath.mpf(1e-12)
        assert pure <= response.epsilon_upper(adjacency) * (1 + mpmath.mpf(1e-15))
        square = (mpmath.erfinv(t) * adjacency.radii) ** 2
        assert square <= found.pair_slope <= square * (1 + mpmath.mpf(1e-9))
        assert square <= found.slope * (1 + mpmath.mpf(1e-9))


def test_who_scouts_follows_from_run_round_and_number_alone_and_is_checked_both_ways() -> None:
    update_of, answer_of = scouted(every=10), Scout(scouted(every=10))
    turns = [answer_of.is_turn_of(b"run", 3, node) for node in range(2000)]
    assert turns == [not update_of.is_turn_of(b"run", 3, node) for node in range(2000)]
    assert turns == [Scout(scouted(0.9, 10)).is_turn_of(b"run", 3, node) for node in range(2000)]
    low, high = stats.binom.ppf([5e-10, 1 - 5e-10], 2000, 0.1)
    assert low <= sum(turns) <= high
    for other in ((b"ruin", 3), (b"run", 4)):
        assert turns != [answer_of.is_turn_of(*other, node) for node in range(2000)]
    assert INNER.is_turn_of(b"run", 3, 1)  # nobody scouts
    assert len({scout_rank(b"run", 3, node) for node in range(2000)}) == 2000


def test_a_share_is_estimated_without_bias() -> None:
    """4,500 answers: beyond 6.2 of the deviation that is told, 1e-9, it is no chance; another
    share is another.
    """
    count, truth, rng = 4500, 0.5, seeded_rng(seed(7))
    uplink = Uplink(Scout(Scouted(evolve(INNER, ball=Ball(Norm.L2, 1)), 20, truth)), clip=0.5)
    counted = uplink.aggregator()
    with pytest.raises(InvalidPayload):
        counted.answers()
    counted.add_all(
        [uplink.send(length, rng) for length in np.linspace(1e-3, 1.0, count).reshape(-1, 1)]
    )
    answers = counted.answers()
    assert answers.deviation == pytest.approx(0.5 / (truth * math.sqrt(count)))
    assert abs(answers.share - 0.5) < 6.2 * answers.deviation < 0.1
    assert not abs(answers.share - 0.75) < 6.2 * answers.deviation
    with refuses("mechanism", "Scout"):
        counted.mean()


def test_an_answer_that_is_none_is_refused_and_so_is_the_error_of_one() -> None:
    scout = Scout(scouted())
    counts = scout.accumulator(Uplink(scout)._kernel, 10)
    counts.check(np.array([1], dtype=np.uint8))
    with pytest.raises(InvalidPayload, match="cell of the answer must be below 2, got 2"):
        counts.check(np.array([2], dtype=np.uint8))
    with refuses("mechanism", "Scout"):
        scout.error()
