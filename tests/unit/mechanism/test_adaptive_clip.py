"""A clip that is watched: the bit's law word by word, one price for every clip, and nothing outside the inner ball."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from attrs import evolve

from quietbit import Adjacency, Ball, InvalidParameter, InvalidPayload, Norm, Uplink, calibrate, seeded_rng
from quietbit.mechanism.adaptive_clip import AdaptiveClip
from quietbit.mechanism.ball import own_parts, scaled
from quietbit.mechanism.projected import Projected
from quietbit.mechanism.registry import build, describe, family_of, identity_of
from quietbit.wire.payload import Payload
from statistical.kit import seed
from unit.mechanism.makers import MECHANISMS, RADIUS, WIDTH, CountingWords, update
from unit.mechanism.test_projected import Spy

INNER = MECHANISMS["imvu one bit l2"]
PLAIN = [name for name in MECHANISMS if not name.startswith("watched")]
CLIPS = (1e-20, 0.01, RADIUS, 3.3, 1e20)


class OneWord:
    """Random bits of which every full word is the same; other words are seeded."""

    def __init__(self, word: int) -> None:
        self.word, self.inner = word, seeded_rng(1)

    def draw(self, count: int) -> Any:
        block = self.inner.draw(count)
        return block if count > 1 else self

    def uniform64(self, stream: int, start: int, count: int) -> Any:
        return np.full(count, self.word, dtype=np.uint64)


def said(mechanism: Any, vector: Any, rng: Any) -> int:
    return int(Payload.from_bytes(Uplink(mechanism).send(vector, rng)).codes()[-1])


@pytest.mark.parametrize("epsilon", [1e-9, 0.01, 0.3, 1.0, 20.0])
def test_the_price_is_that_of_the_words_that_lie(epsilon: float) -> None:
    mechanism = AdaptiveClip(INNER, 1.0, epsilon)
    lies, short, long = mechanism.lies, np.zeros(WIDTH), np.full(WIDTH, 1.0)
    for word, lie in ((0, True), (lies - 1, True), (lies, False), (2**64 - 1, False)):
        assert said(mechanism, short, OneWord(word)) == (0 if lie else 1)
        assert said(mechanism, long, OneWord(word)) == (1 if lie else 0)
    with mpmath.workdps(60):
        exact = mpmath.log(mpmath.mpf(2**64 - lies) / lies)
        assert exact <= mechanism.bit_epsilon_upper <= exact * (1 + mpmath.mpf(1e-13))
        assert abs(exact - epsilon) <= 1e-9 * epsilon + 2.0**-50  # what was asked for


def test_the_bit_is_about_the_update_before_it_is_clipped() -> None:
    mechanism, one = AdaptiveClip(INNER, 0.25, 20.0), np.eye(1, WIDTH)[0]
    truth = OneWord(2**64 - 1)
    for length, answer in ((0.0, 1), (0.2, 1), (0.25, 1), (0.2500001, 0), (1e6, 0), (1e300, 0)):
        assert said(mechanism, length * one, truth) == answer
        assert said(mechanism, -length * one, truth) == answer


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_one_price_for_every_clip(name: str, adjacency: Adjacency) -> None:
    """The inner account and randomised response's, to the last digit, wherever the clip is."""
    inner = MECHANISMS[name]
    alone = inner.privacy(adjacency)
    for clip in CLIPS:
        mechanism = AdaptiveClip(inner, clip, 0.25)
        assert mechanism.domain == evolve(inner.domain, radius=clip)
        found, bit = mechanism.privacy(adjacency), mechanism.bit_epsilon_upper
        listed = mechanism.priced_as.privacy(adjacency)
        assert found.epsilon(1e-5) == listed.epsilon(1e-5)
        assert (found.adjacency, found.unit, found.trust) == (alone.adjacency, alone.unit, alone.trust)
        assert found.pure_epsilon() == pytest.approx(alone.pure_epsilon() + bit, rel=1e-12)
        for alpha in (1.5, 4.0, 40.0):
            assert found.rdp(alpha) == listed.rdp(alpha)
            answer = math.log((math.exp(alpha * bit) + math.exp((1 - alpha) * bit)) / (1 + math.exp(bit))) / (alpha - 1)
            assert found.rdp(alpha) == pytest.approx(alone.rdp(alpha) + answer, rel=1e-9)


def test_both_together_against_another_accountant() -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    mechanism = AdaptiveClip(MECHANISMS["gaussian"], 5.0, 0.4)
    for adjacency, distance in ((Adjacency.ZERO_OUT, 1.0), (Adjacency.REPLACE_ONE, 2.0)):
        ours = (mechanism.privacy(adjacency) * 7).epsilon(1e-5)
        noise = MECHANISMS["gaussian"].noise_multiplier / distance
        whole = {}
        for pessimistic in (False, True):
            gaussian = pld.from_gaussian_mechanism(
                noise, value_discretization_interval=1e-4, pessimistic_estimate=pessimistic
            )
            answer = pld.from_randomized_response(
                2 / (1 + math.exp(0.4)), 2, value_discretization_interval=1e-4, pessimistic_estimate=pessimistic
            )
            both = gaussian.self_compose(7).compose(answer.self_compose(7))
            whole[pessimistic] = both.get_epsilon_for_delta(1e-5)
        assert whole[False] <= ours <= whole[True] * 1.01


@pytest.mark.parametrize("name", PLAIN)
def test_the_release_is_the_inner_one_of_the_rescaled_update(name: str) -> None:
    """Bit for bit, with the same words; the bit takes a draw of its own, after all others."""
    inner, words = MECHANISMS[name], CountingWords(5)
    mechanism = AdaptiveClip(inner, 4 * inner.domain.radius, 1.0)  # a power of two: rescaling is exact
    vector = update(inner.domain, share=0.9)
    sent, plain = Uplink(mechanism).send(4 * vector, words), Uplink(inner).send(vector, seeded_rng(5))
    whole, alone, few = Payload.from_bytes(sent), Payload.from_bytes(plain), CountingWords(5)
    Uplink(inner).send(vector, few)
    assert words.draws == few.draws + 1
    if whole.header.layout.bits:
        assert np.array_equal(whole.codes()[:-1], alone.codes())
    else:
        assert np.array_equal(whole.body[:-1], alone.body)
    ours, theirs = Uplink(mechanism).receive([sent]), Uplink(inner).receive([plain])
    assert np.array_equal(ours, 4 * theirs)
    for value in (0.0, 0.3 * RADIUS, -RADIUS):
        assert mechanism.expectation(4 * value) == pytest.approx(4 * inner.expectation(value), rel=1e-12)
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
@pytest.mark.parametrize(("radius", "clip"), [(1e-30, 1e30), (1e30, 1e-30), (1.0, 1e-25), (0.7, 0.7)])
def test_nothing_outside_the_ball_reaches_the_inner_mechanism(attack: str, radius: float, clip: float) -> None:
    inner = Spy(evolve(MECHANISMS["gaussian"], ball=Ball(Norm.L2, radius, WIDTH)))
    body = np.zeros(4 * (WIDTH + 1), dtype=np.uint8)
    mechanism, kernel = AdaptiveClip(inner, clip, 0.5), Uplink(MECHANISMS["gaussian"])._kernel
    mechanism.write([ATTACKS[attack]], seeded_rng(1), kernel, body)
    (seen,) = inner.seen
    assert np.all(np.isfinite(seen))
    assert np.linalg.norm(seen.astype(np.float64) / radius) <= 1 + 2.0**-20  # and it is clipped there again
    if attack in ("all", "floats near their end", "short floats") and clip < 1e30:
        assert np.linalg.norm(seen.astype(np.float64) / radius) >= 0.999  # nothing is lost that need not be


def test_a_share_is_estimated_without_bias() -> None:
    """Hoeffding's bound on the mean of bits, false alarm 1e-9; another share is seen to be another."""
    count, mechanism = 6000, AdaptiveClip(MECHANISMS["imvu one bit l2"], 0.5, 1.0)
    uplink, rng = Uplink(evolve(mechanism, inner=small())), seeded_rng(seed(7))
    lengths = np.linspace(0.0, 1.0, count).reshape(-1, 1)
    found = uplink.collect([uplink.send(length, rng) for length in lengths])
    answers = found.answers
    lie = 1 / (1 + math.e)
    reach = math.sqrt(math.log(2e9) / (2 * count)) / (1 - 2 * lie)
    assert abs(answers.share - 0.5) < reach < 0.1
    assert not abs(answers.share - 0.75) < reach
    assert answers.deviation == pytest.approx(math.sqrt(lie * (1 - lie) / count) / (1 - 2 * lie), rel=1e-9)


def small() -> Any:
    return evolve(INNER, ball=Ball(Norm.L2, 1.0, 1))


@pytest.mark.parametrize("name", ["imvu three bits five levels", "gaussian", "skellam 16 bits", "vmvu seed"])
def test_an_answer_that_is_none_is_refused(name: str) -> None:
    mechanism = AdaptiveClip(MECHANISMS[name], 1.0, 0.5)
    kernel = Uplink(mechanism)._kernel
    body = np.zeros(mechanism.layout.size, dtype=np.uint8)
    mechanism.write([update(mechanism.domain)], seeded_rng(3), kernel, body)
    counts: Any = mechanism.accumulator(kernel, 10)
    counts.check(body)
    place = (
        8 * (body.size - 1) if not mechanism.layout.bits else mechanism.inner.layout.bits * (mechanism.layout.count - 1)
    )
    body[(place + 1) // 8] |= 1 << (place + 1) % 8
    with pytest.raises(InvalidPayload, match=r"answer of the payload must be 0 or 1, got [23]"):
        counts.check(body)
    assert counts.ones == 0


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
    mechanism = AdaptiveClip(Projected(evolve(INNER, ball=Ball(Norm.L2, RADIUS, 16)), INNER.ball), 2.5, 0.125)
    again = build(describe(mechanism))
    assert identity_of(again) == identity_of(mechanism)
    assert family_of(mechanism) == "imvu"
    names = {
        identity_of(mechanism),
        identity_of(mechanism.at_clip(2.6)),
        identity_of(evolve(mechanism, bit_epsilon=0.2)),
    }
    assert len(names) == 3
    assert identity_of(mechanism.at_clip(9.0).priced_as) == identity_of(mechanism.priced_as)


@pytest.mark.parametrize(
    ("clip", "epsilon"),
    [(0.0, 1.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, 0.0), (1.0, math.nan), (1.0, 21.0), (1.0, 1e-20)],
)
def test_numbers_without_a_meaning_are_refused(clip: float, epsilon: float) -> None:
    with pytest.raises(InvalidParameter):
        AdaptiveClip(INNER, clip, epsilon)


def test_only_a_mechanism_is_watched_and_only_once() -> None:
    with pytest.raises(InvalidParameter, match="expected a Mechanism, got a Ball"):
        AdaptiveClip(INNER.ball, 1.0, 1.0)
    with pytest.raises(InvalidParameter, match="whose clip does not move"):
        AdaptiveClip(AdaptiveClip(INNER, 1.0, 1.0), 1.0, 1.0)


@pytest.mark.parametrize("name", ["imvu", "vmvu", "gaussian"])
def test_a_budget_is_met_for_both_together(name: str) -> None:
    given: Any = {
        "ball": Ball(Norm.L2, 2.0, 300),
        "epsilon": 4.0,
        "delta": 1e-5,
        "adjacency": "zero-out",
        "releases": 3,
    }
    plain, both = calibrate(name, **given), calibrate(name, **given, bit_epsilon=0.1)
    assert isinstance(both.mechanism, AdaptiveClip)
    assert both.guarantee.epsilon_upper <= 4.0
    assert both.guarantee.epsilon_upper >= 3.99
    assert plain.squared_error < both.squared_error < 1.2 * plain.squared_error
    spent = (both.mechanism.privacy(Adjacency.ZERO_OUT) * 3).guarantee(1e-5)
    assert spent == both.guarantee
    inside = (both.mechanism.inner.privacy(Adjacency.ZERO_OUT) * 3).guarantee(1e-5)
    assert inside.epsilon_upper < 4.0
