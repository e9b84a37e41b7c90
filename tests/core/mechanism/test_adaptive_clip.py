"""A clip that moves and its scouts: an answer's law word by word, one price for all, nothing
outside the inner ball.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from attrs import evolve
from scipy import stats

from core.mechanism.makers import MECHANISMS, RADIUS, WIDTH, CountingWords, update
from core.mechanism.test_projected import Spy
from core.statistical.kit import seed
from quietbit import Adjacency, Ball, InvalidParameter, InvalidPayload, Norm, Uplink, seeded_rng
from quietbit.mechanism.abilities import Scouted
from quietbit.mechanism.adaptive_clip import AdaptiveClip, Scout, _answer_cost, scout_rank
from quietbit.mechanism.ball import own_parts, scaled
from quietbit.mechanism.projected import Projected
from quietbit.mechanism.registry import build, describe, family_of, identity_of
from quietbit.mechanism.response import RandomisedResponse
from quietbit.wire.payload import Payload
from refusals import refuses

INNER = MECHANISMS["imvu one bit l2"]
PLAIN = [name for name in MECHANISMS if not name.startswith("watched")]
CLIPS = (1e-20, 0.01, RADIUS, 3.3, 1e20)


class Words:
    """Random bits whose two full words are these."""

    def __init__(self, *words: int) -> None:
        self.words = words

    def draw(self, count: int) -> Any:
        assert count == len(self.words)
        return self

    def uniform64(self, stream: int, start: int, count: int) -> Any:
        return np.array(self.words[start : start + count], dtype=np.uint64)


def said(scout: Scout, vector: Any, rng: Any) -> int:
    return int(Payload.from_bytes(Uplink(scout).send(vector, rng)).body[0])


def moving(clip: float = 1.0, truth: float = 0.3, every: int = 20) -> AdaptiveClip:
    return AdaptiveClip(INNER, clip, every, truth)


@pytest.mark.parametrize("truth", [1e-4, 0.3, 0.999])
def test_an_answer_is_true_for_the_words_that_are_priced_and_else_a_coin(truth: float) -> None:
    scout = moving(0.25, truth).scout()
    last, one = math.floor(truth * 2**64), np.eye(1, WIDTH)[0]
    for coin, other in ((0, 0), (2**63 - 1, 0), (2**63, 1), (2**64 - 1, 1)):
        for length, answer in ((0.2, 0), (0.25, 0), (0.2500001, 1), (1e6, 1), (1e300, 1)):
            assert said(scout, length * one, Words(0, coin)) == answer
            assert said(scout, -length * one, Words(last - 1, coin)) == answer
            assert said(scout, length * one, Words(last, coin)) == other
        assert said(scout, 0 * one, Words(0, coin)) == other  # nothing has no length


@pytest.mark.parametrize("truth", [1e-4, 0.3, 0.9, 1 - 1e-9])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_what_is_known_of_an_answer_holds(truth: float, adjacency: Adjacency) -> None:
    """Against 60 digits: its max-divergence, its divergences, and the Gaussian pair whose sign
    it is.
    """
    response = RandomisedResponse(2, truth)
    found = _answer_cost(response, adjacency)
    with mpmath.workdps(60):
        t = mpmath.mpf(response.threshold) / 2**64
        here, there = (
            (1 + t) / 2,
            mpmath.mpf(0.5) if adjacency is Adjacency.ZERO_OUT else (1 - t) / 2,
        )
        laws = [((here, 1 - here), (there, 1 - there)), ((there, 1 - there), (here, 1 - here))]
        pure = max(mpmath.log(p / q) for one, two in laws for p, q in zip(one, two, strict=True))
        assert pure <= found.pure_epsilon() <= pure * (1 + mpmath.mpf(1e-9)) + mpmath.mpf(1e-12)
        assert pure <= response.epsilon_upper(adjacency) * (1 + mpmath.mpf(1e-15))
        for alpha in (1.01, 2, 30):
            exact = max(
                mpmath.log(sum(p * (p / q) ** (alpha - 1) for p, q in zip(one, two, strict=True)))
                / (alpha - 1)
                for one, two in laws
            )
            assert exact <= found.rdp(alpha)
            assert exact <= found.slope * alpha
        normal = mpmath.sqrt(2) * mpmath.erfinv(t)
        square = normal**2 / 2 if adjacency is Adjacency.ZERO_OUT else 2 * normal**2
        assert square <= found.pair_slope <= square * (1 + mpmath.mpf(1e-9))


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_one_price_for_every_clip_and_for_updates_and_answers(
    name: str, adjacency: Adjacency
) -> None:
    """No account of a release is below that of the inner update, nor below that of the answer."""
    inner = MECHANISMS[name]
    alone = inner.privacy(adjacency)
    listed = AdaptiveClip(inner, 1.0, 20, 0.3).priced_as
    answer = _answer_cost(RandomisedResponse(2, 0.3), adjacency)
    for clip in CLIPS:
        mechanism = AdaptiveClip(inner, clip, 20, 0.3)
        found = mechanism.privacy(adjacency)
        assert mechanism.priced_as == mechanism.scout().priced_as == listed
        assert mechanism.scout().privacy(adjacency) == found == listed.privacy(adjacency)
        assert AdaptiveClip(inner, clip).privacy(adjacency) == alone
    assert (found.adjacency, found.unit, found.trust) == (alone.adjacency, alone.unit, alone.trust)
    assert found.pure_epsilon() == max(alone.pure_epsilon(), answer.pure_epsilon())
    for alpha in (1.5, 4.0, 40.0):
        assert found.rdp(alpha) >= max(alone.rdp(alpha), answer.rdp(alpha)) * (1 - 1e-12)
    for times in (1, 7):
        for mixed in range(times + 1):
            either = (found * times).epsilon(1e-5)
            assert either >= (alone * (times - mixed) + answer.like(alone) * mixed).epsilon(
                1e-5
            ) * (1 - 1e-9)


def test_who_scouts_follows_from_run_round_and_number_alone_and_is_checked_both_ways() -> None:
    update_of, answer_of = moving(every=10), moving(every=10).scout()
    turns = [answer_of.is_turn_of(b"run", 3, node) for node in range(2000)]
    assert turns == [not update_of.is_turn_of(b"run", 3, node) for node in range(2000)]
    assert turns == [
        moving(9.0, 0.9, 10).scout().is_turn_of(b"run", 3, node) for node in range(2000)
    ]
    low, high = stats.binom.ppf([5e-10, 1 - 5e-10], 2000, 0.1)
    assert low <= sum(turns) <= high
    for other in ((b"ruin", 3), (b"run", 4)):
        assert turns != [answer_of.is_turn_of(*other, node) for node in range(2000)]
    assert AdaptiveClip(INNER, 1.0).is_turn_of(b"run", 3, 1)  # nobody scouts
    assert len({scout_rank(b"run", 3, node) for node in range(2000)}) == 2000


@pytest.mark.parametrize("name", PLAIN)
def test_the_release_is_the_inner_one_of_the_rescaled_update(name: str) -> None:
    """Bit for bit, with the same words, whether or not others scout."""
    inner, words, few = MECHANISMS[name], CountingWords(5), CountingWords(5)
    mechanism = AdaptiveClip(
        inner, 4 * inner.ball.radius, 20, 0.4
    )  # a power of two: rescaling is exact
    vector = update(inner.ball, share=0.9)
    sent, plain = Uplink(mechanism).send(4 * vector, words), Uplink(inner).send(vector, few)
    assert words.draws == few.draws
    assert np.array_equal(Payload.from_bytes(sent).body, Payload.from_bytes(plain).body)
    ours, theirs = Uplink(mechanism).receive([sent]), Uplink(inner).receive([plain])
    assert np.array_equal(ours, 4 * theirs)
    for value in (0.0, 0.3 * RADIUS, -RADIUS):
        assert mechanism.expectation(4 * value) == pytest.approx(
            4 * inner.expectation(value), rel=1e-12
        )
        assert mechanism.variance(4 * value) == pytest.approx(16 * inner.variance(value), rel=1e-12)
    assert mechanism.error().squared == pytest.approx(16 * inner.error().squared)


ATTACKS = {
    "zero": np.zeros(WIDTH),
    "one entry": 1e300 * np.eye(1, WIDTH)[0],
    "all": np.full(WIDTH, -1e30),
    "floats near their end": np.full(WIDTH, 3e38, dtype=np.float32),
    "hardly there": np.full(WIDTH, 5e-324),
    "short floats": np.full(WIDTH, 6e4, dtype=np.float16),
    "all sizes": np.logspace(-300, 300, WIDTH),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(
    ("radius", "clip"), [(1e-30, 1e30), (1e30, 1e-30), (1.0, 1e-25), (0.7, 0.7)]
)
def test_nothing_outside_the_ball_reaches_the_inner_mechanism(
    attack: str, radius: float, clip: float
) -> None:
    inner = Spy(evolve(MECHANISMS["gaussian"], ball=Ball(Norm.L2, radius, WIDTH)))
    body = np.zeros(4 * WIDTH, dtype=np.uint8)
    mechanism, kernel = AdaptiveClip(inner, clip), Uplink(MECHANISMS["gaussian"])._kernel
    mechanism.write([ATTACKS[attack]], seeded_rng(1), kernel, body)
    (seen,) = inner.seen
    assert np.all(np.isfinite(seen))
    assert (
        np.linalg.norm(seen.astype(np.float64) / radius) <= 1 + 2.0**-20
    )  # and it is clipped there again
    if attack in ("all", "floats near their end", "short floats") and clip < 1e30:
        assert (
            np.linalg.norm(seen.astype(np.float64) / radius) >= 0.999
        )  # nothing is lost that need not be


def test_a_share_is_estimated_without_bias() -> None:
    """6,000 answers: beyond 6.2 of the deviation that is told, 1e-9, it is no chance; another
    share is another.
    """
    count, truth, rng = 6000, 0.5, seeded_rng(seed(7))
    uplink = Uplink(AdaptiveClip(evolve(INNER, ball=Ball(Norm.L2, 1.0, 1)), 0.5, 20, truth).scout())
    counted = uplink.aggregator()
    assert counted.answers() is None
    counted.add_all(
        [uplink.send(length, rng) for length in np.linspace(1e-3, 1.0, count).reshape(-1, 1)]
    )
    answers = counted.answers()
    assert answers is not None
    assert answers.deviation == pytest.approx(0.5 / (truth * math.sqrt(count)))
    assert abs(answers.share - 0.5) < 6.2 * answers.deviation < 0.1
    assert not abs(answers.share - 0.75) < 6.2 * answers.deviation
    with refuses("mechanism", "Scout"):
        counted.mean()


def test_an_answer_that_is_none_is_refused_and_so_is_the_error_of_one() -> None:
    scout = moving().scout()
    counts = scout.accumulator(Uplink(scout)._kernel, 10)
    counts.check(np.array([1], dtype=np.uint8))
    with pytest.raises(InvalidPayload, match="cell of the answer must be below 2, got 2"):
        counts.check(np.array([2], dtype=np.uint8))
    with refuses("mechanism", "Scout"):
        scout.error()


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_are_scaled_where_they_are_and_rounded_once(kind: str) -> None:
    """Tensors of the host stand for those of a GPU, which are handed to mechanisms as they are."""
    torch = pytest.importorskip("torch")
    values = torch.tensor([0.1, -3.0, 7e-3]).to(getattr(torch, kind))
    (kept,) = own_parts([values])
    assert kept is values
    (found,) = scaled([kept], 1 / 3)
    wide = torch.float64 if kind == "float64" else torch.float32
    assert found.dtype == wide
    assert torch.equal(found, (values.double() * (1 / 3)).to(wide))


def test_a_description_leads_back_and_names_the_clip() -> None:
    mechanism = AdaptiveClip(
        Projected(evolve(INNER, ball=Ball(Norm.L2, RADIUS, 16)), INNER.ball), 2.5, 20, 0.125
    )
    for one, word in ((mechanism, "imvu"), (mechanism.scout(), "scout")):
        assert identity_of(build(describe(one))) == identity_of(one)
        assert family_of(one) == word
    names = [
        mechanism,
        mechanism.at_clip(2.6),
        evolve(mechanism, truth=0.2),
        evolve(mechanism, every=21),
    ]
    names += [one.scout() for one in names]
    assert len({identity_of(one) for one in names}) == 8
    assert identity_of(mechanism.at_clip(9.0).priced_as) == identity_of(mechanism.priced_as)
    assert mechanism.scout().at_clip(9.0) == mechanism.at_clip(9.0).scout()


@pytest.mark.parametrize(
    "given",
    [
        (0.0, 20, 0.5),
        (math.nan, 20, 0.5),
        (math.inf, 20, 0.5),
        (1.0, 1, 0.5),
        (1.0, 20, 0.0),
        (1.0, 20, 1.0),
        (1.0, 20, math.nan),
        (1.0, 20, None),
        (1.0, None, 0.5),
    ],
)
def test_numbers_without_a_meaning_are_refused(given: Any) -> None:
    with pytest.raises(InvalidParameter):
        AdaptiveClip(INNER, *given)


def test_only_a_mechanism_has_a_clip_that_moves_and_only_one() -> None:
    with refuses("mechanism", "Ball"):
        AdaptiveClip(INNER.ball, 1.0)
    for twice in (AdaptiveClip(INNER, 1.0), moving().scout()):
        with refuses("inner"):
            AdaptiveClip(twice, 1.0)
    with refuses("every", None):
        AdaptiveClip(INNER, 1.0).scout()
    with refuses("mechanism", "InterpolatedMVU"):
        Scouted.of(INNER)
