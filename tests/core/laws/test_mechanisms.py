"""Laws of mechanisms: whatever the noise, what a client sends and what is claimed for it hang
together.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from core.mechanism.makers import LIBRARY, WIDTH, CountingWords, update
from path import body, codes_of, decode, encode, many, width
from quietbit import Mechanism, Trust, Unit, Uplink
from quietbit.errors import InvalidParameter, InvalidPayload
from quietbit.kernel.rng import secure_rng, seeded_rng
from quietbit.kernel.select import select
from quietbit.mechanism.abilities import SharedRows
from quietbit.mechanism.projected import Projected
from quietbit.mechanism.registry import build, canonical_text, describe, identity_of
from quietbit.mechanism.response import RandomisedResponse
from quietbit.mechanism.scouts import Scout
from quietbit.target import Adjacency
from quietbit.wire.payload import Header, Payload
from quietbit.wire.payload import build as framed
from refusals import refuses

KERNEL = select("cpu")

ORDERS = (1.01, 2.0, 7.3, 900.0)


@pytest.fixture(params=LIBRARY.values(), ids=LIBRARY.keys())
def mechanism(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_it_is_a_mechanism(mechanism: Any) -> None:
    assert isinstance(mechanism, Mechanism)
    assert mechanism.ball.dimension == WIDTH
    assert 0 <= mechanism.layout.bits <= 32
    assert mechanism.layout.size == -(-many(mechanism) * width(mechanism) // 8)


def test_codes_are_those_of_the_words(mechanism: Any) -> None:
    vector = update(mechanism.ball)
    sources = (seeded_rng(3), seeded_rng(3), seeded_rng(4), secure_rng(), secure_rng())
    first, again, other, one, two = (encode(mechanism, vector, rng).tobytes() for rng in sources)
    assert first == again != other
    assert one != two


def test_codes_are_unsigned_and_fit_their_bits(mechanism: Any) -> None:
    codes = encode(mechanism, update(mechanism.ball), seeded_rng(1))
    assert codes.dtype.kind == "u"
    assert codes.size == many(mechanism)
    assert int(codes.max()) < 2 ** width(mechanism)


def test_the_update_is_not_changed(mechanism: Any) -> None:
    vector = 5 * update(mechanism.ball)
    kept = vector.copy()
    vector.setflags(write=False)
    encode(mechanism, vector, seeded_rng(1))
    assert np.array_equal(vector, kept)


def test_decoding_needs_nothing_but_codes(mechanism: Any) -> None:
    codes = encode(mechanism, update(mechanism.ball), seeded_rng(1))
    copied = np.frombuffer(codes.tobytes(), dtype=codes.dtype)
    decoded = decode(mechanism, copied)
    assert decoded.shape == (WIDTH,)
    assert np.all(np.isfinite(decoded))
    assert np.array_equal(decoded, decode(mechanism, codes.astype(np.int64)))


def test_decoding_refuses_what_are_not_its_codes(mechanism: Any) -> None:
    codes = encode(mechanism, update(mechanism.ball), seeded_rng(1)).astype(np.int64)
    wrong = [codes[:-1], np.append(codes, 0)]
    if 0 < mechanism.layout.bits < 32:
        fifth = np.arange(codes.size) == 5
        beyond = 2**mechanism.layout.bits
        wrong += [
            codes.astype(np.float64),
            np.where(fifth, -1, codes),
            np.where(fifth, beyond, codes),
        ]
    for bad in wrong:
        with pytest.raises((InvalidParameter, InvalidPayload)):
            decode(mechanism, bad)


REFUSED = {
    "NaN": lambda ball: np.where(np.arange(WIDTH) == WIDTH - 1, np.nan, update(ball)),
    "infinity": lambda ball: np.where(np.arange(WIDTH) == 0, np.inf, update(ball)),
    "minus infinity": lambda ball: np.where(np.arange(WIDTH) == 9, -np.inf, update(ball)),
    "one entry too few": lambda ball: update(ball)[:-1],
    "one entry too many": lambda ball: np.append(update(ball), 0.0),
    "integers": lambda ball: np.zeros(WIDTH, dtype=np.int64),
    "complex numbers": lambda ball: np.zeros(WIDTH, dtype=np.complex128),
    "long doubles": lambda ball: np.zeros(WIDTH, dtype=np.longdouble),
    "bit patterns": lambda ball: np.zeros(WIDTH, dtype=np.uint16),
    "objects": lambda ball: np.full(WIDTH, None),
    "0-d": lambda ball: np.array(0.0),
    "empty": lambda ball: np.empty((0,)),
}


def test_a_refusal_is_one_sentence_and_draws_no_word(mechanism: Any) -> None:
    for case, make in REFUSED.items():
        rng = CountingWords()
        try:
            encode(mechanism, make(mechanism.ball), rng)
        except InvalidParameter as refusal:
            sentence = str(refusal)
        else:
            pytest.fail(f"{case} is not refused")
        assert rng.draws == 0, case
        assert sentence.endswith("."), case
        assert "\n" not in sentence, case
        assert len(sentence) < 200, case


@pytest.mark.parametrize(
    "answer", [RandomisedResponse(WIDTH, 0.5), Scout(LIBRARY["scouted gaussian"])]
)
def test_answers_are_refused_alike(answer: Any) -> None:
    test_a_refusal_is_one_sentence_and_draws_no_word(answer)


def test_a_seed_is_not_random_words(mechanism: Any) -> None:
    with refuses("rng", 7):
        encode(mechanism, update(mechanism.ball), 7)


def test_the_boundary_itself_is_inside(mechanism: Any) -> None:
    ball = mechanism.ball
    for sign in (1.0, -1.0):
        encode(mechanism, sign * np.eye(1, WIDTH)[0], seeded_rng(1))
    encode(mechanism, ball.clip(100 * update(ball)), seeded_rng(1))
    encode(mechanism, np.zeros(WIDTH), seeded_rng(1))


def test_replacing_costs_at_least_as_much_as_zeroing_and_grows_with_the_order(
    mechanism: Any,
) -> None:
    zero, replace = (mechanism.privacy(adjacency) for adjacency in ("zero-out", "replace-one"))
    assert all(0 < zero.rdp(alpha) <= replace.rdp(alpha) for alpha in ORDERS)
    assert zero.pure_epsilon() <= replace.pure_epsilon()
    assert zero.epsilon(1e-5) <= replace.epsilon(1e-5)
    # Sampling slack is dearer at orders near 1, where nothing is decided.
    values = [replace.certified().rdp(alpha) for alpha in ORDERS]
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(values))


def test_moments_are_those_of_a_coordinate_in_the_ball(mechanism: Any) -> None:
    radius = 1.0
    means = [mechanism.expectation(value) for value in np.linspace(-radius, radius, 9)]
    assert means[0] < means[-1]  # flat where a clamp cuts
    assert all(a <= b for a, b in pairwise(means))
    assert mechanism.variance(0.3 * radius) > 0
    for value in (1.01 * radius, float("nan")):
        with refuses("value of a coordinate"):
            mechanism.expectation(value)


def test_a_repr_shows_public_choices_only(mechanism: Any) -> None:
    before = repr(mechanism)
    encode(mechanism, update(mechanism.ball), seeded_rng(1))
    assert repr(mechanism) == before
    assert "dimension=67" in before


def test_a_description_leads_back(mechanism: Any) -> None:
    again = build(json.loads(json.dumps(describe(mechanism))))
    assert again == mechanism
    assert canonical_text(again) == canonical_text(mechanism)
    assert identity_of(again) == identity_of(mechanism)


def sampled(mechanism: Any, parts: list[Any], seed: int = 1, kernel: Any = KERNEL) -> Any:
    data = framed(
        Header.of(mechanism), lambda out: mechanism.write(parts, 1.0, seeded_rng(seed), kernel, out)
    )
    return codes_of(data)


# Arrays that together, in order, are the vector.
FORMS: dict[str, Any] = {
    "spread": lambda vector: [np.repeat(vector, 3)[::3]],
    "shaped": lambda vector: [vector.reshape(1, WIDTH, 1)],
    "parts": lambda vector: [vector[:3], vector[3:3], vector[3:35].reshape(4, 8), vector[35:]],
    "one part in doubles": lambda vector: [vector[:3].astype(np.float64), vector[3:]],
}


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("form", FORMS)
def test_every_float_type_and_layout_is_taken(mechanism: Any, form: str, kind: Any) -> None:
    vector = update(mechanism.ball, share=0.6).astype(kind)
    whole = vector.astype(np.float64) if "doubles" in form else vector
    assert np.array_equal(sampled(mechanism, FORMS[form](vector)), sampled(mechanism, [whole]))


def test_bfloat16_is_read_from_its_bits(mechanism: Any) -> None:
    vector = update(mechanism.ball, share=0.6).astype(np.float32)
    bits = (vector.view(np.uint32) >> 16).astype(np.uint16)
    cut = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(sampled(mechanism, [bits]), sampled(mechanism, [cut]))


def test_a_long_update_is_clipped_with_all_its_parts_under_one_norm(mechanism: Any) -> None:
    vector = update(mechanism.ball, share=0.9)
    # Far outside: the clipped vector is (nearly) that of the ball's own clip, so for the same words
    # hardly a code differs; without the joint norm the parts would be clipped apart, and nearly all
    # floats differ.
    found = sampled(mechanism, [50 * vector[:40], 50 * vector[40:]])
    expected = encode(mechanism, mechanism.ball.clip(50 * vector), seeded_rng(1)).reshape(-1)
    if mechanism.layout.bits == 32:
        assert np.allclose(found.view(np.float32), expected.view(np.float32), rtol=1e-6)
    else:
        assert np.array_equal(found, expected)


def many_codes(mechanism: Any, count: int) -> list[Any]:
    rng = seeded_rng(5)
    return [encode(mechanism, update(mechanism.ball, seed), rng) for seed in range(count)]


@pytest.mark.parametrize("count", [1, 15, 37])
def test_the_mean_is_the_mean_of_decoded_codes(mechanism: Any, count: int) -> None:
    codes = many_codes(mechanism, count)
    sums = mechanism.accumulator(KERNEL, 2**24)
    sums.add([body(mechanism, code) for code in codes])
    decoded = np.array(
        [np.asarray(decode(mechanism, code), dtype=np.float64).reshape(-1) for code in codes]
    )
    expected = decoded.mean(axis=0)
    found = sums.reader(count)(0, mechanism.ball.dimension)
    assert found.shape == expected.shape
    largest = sums.reach if mechanism.layout.bits == 32 else max(1.0, float(np.abs(expected).max()))
    exact = 2.0**-36 * largest
    if SharedRows.find(mechanism):
        # Spread and rotated back in single precision, so that clients who replay a round get the
        # same bits: a product and seven stages of sums (67 is padded to 128), each rounded by 2^-24
        # of a number of about this size.
        exact = 2.0**-21 * float(np.abs(decoded).max())
    assert np.abs(found - expected).max() <= exact


def test_neither_order_nor_grouping_nor_range_matters(mechanism: Any) -> None:
    bodies = [body(mechanism, code) for code in many_codes(mechanism, 20)]
    together, apart = (mechanism.accumulator(KERNEL, 100) for _ in range(2))
    together.add(bodies)
    for found in reversed(bodies):
        apart.add([found])
    read, other = together.reader(20), apart.reader(20)
    mean = read(0, WIDTH)
    assert np.array_equal(np.concatenate([read(0, 9), read(9, WIDTH)]), mean)
    # Of kept coordinates decoded numbers are added, not codes.
    room = 2.0**-44 if isinstance(mechanism, Projected) else 0
    assert np.abs(other(0, WIDTH) - mean).max() <= room


def test_an_update_is_scaled_to_the_clip_and_the_mean_from_it(mechanism: Any) -> None:
    """Bit for bit at powers of two, with the same words."""
    few, others = CountingWords(5), CountingWords(5)
    vector = update(mechanism.ball, share=0.9)
    plain, scaled = Uplink(mechanism), Uplink(mechanism, clip=4)
    one, other = plain.send(vector, few), scaled.send(4 * vector, others)
    assert few.draws == others.draws
    assert np.array_equal(Payload.from_bytes(one).body, Payload.from_bytes(other).body)
    factor = 1 if mechanism.unitless else 4
    assert np.array_equal(scaled.receive([other]), factor * plain.receive([one]))


def test_a_payload_of_one_clip_is_in_no_mean_of_another(mechanism: Any) -> None:
    made = Uplink(mechanism, clip=0.5).send(update(mechanism.ball), seeded_rng(1))
    for clip in (1.0, 0.25, np.nextafter(0.5, 1.0)):
        with pytest.raises(InvalidPayload, match="another mechanism or clip"):
            Uplink(mechanism, clip=clip).receive([made])


def test_prices_wear_their_words_and_take_no_others(mechanism: Any) -> None:
    """`cost` and `sample_cost` are bare: the base class checks what is asked for and says what a
    price is of.
    """
    for adjacency in Adjacency:
        asked = mechanism.privacy(adjacency.value)
        assert (asked.adjacency, asked.unit, asked.trust) == (adjacency, Unit.CLIENT, Trust.LOCAL)
        assert mechanism.cost(adjacency).adjacency is None
    with refuses("adjacency", "neighbours"):
        mechanism.privacy("neighbours")
