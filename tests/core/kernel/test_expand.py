from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from core.kernel import quantile_maker as maker
from core.statistical.kit import assert_binomial, seed
from quietbit.errors import InvalidParameter
from quietbit.kernel import expand
from quietbit.kernel.expand import (
    FAILURE_UPPER,
    acceptance_limits,
    finest_shift,
    stream_words,
    tries_upper,
)
from quietbit.kernel.normals import inner, inner_error_upper, unit
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import chacha_blocks, seeded_rng, start_state
from quietbit.kernel.select import select
from refusals import refuses

RFC_8439 = (
    "e4e7f110 15593bd1 1fdd0f50 c47120a3 c7f4d1c7 0368c033 9aaa2204 4e6cd4c3 "
    "466482d2 09aa9f07 05d7c214 a2028bd9 d19c12b5 b94e16de e883d0cb 4e3c50a2"
)
# draft-strombergson-chacha-test-vectors, 128-bit keys, 20 rounds: test cases 1 and 8
STROMBERGSON = {
    ("00" * 16, "00" * 8): (
        "89670952608364fd00b2f90936f031c8e756e15dba04b8493d00429259b20f46"
        "cc04f111246b6c2ce066be3bfb32d9aa0fddfbc12123d4b9e44f34dca05a103f"
    ),
    ("c46ec1b18ce8a878725a37e780dfb735", "1ada31d5cf688221"): (
        "826abdd84460e2e9349f0ef4af5b179b426e4b2d109a9c5bb44000ae51bea90a"
        "496beeef62a76850ff3f0402c4ddc99f6db07f151c1c0dfac2e56565d6289625"
    ),
}

REFERENCE = ReferenceKernel()
GOLDEN_NORMALS = [
    4596015048186379388,
    4611764748529527958,
    -4624236410913512174,
]  # the bits of the doubles
GOLDEN_ROWS = [95, 217, 444, 723, 855]


@pytest.fixture(params=["reference", "cpu"])
def kernel(request):
    return select(request.param)


def keystream(state, blocks):
    return chacha_blocks(state, np.arange(blocks)).T.astype("<u4").tobytes()


def test_the_block_of_rfc_8439():
    """Section 2.3.2; there the nonce has 96 bits, and its first word stands where ours has half
    of the block number.
    """
    state = start_state(bytes(range(32)))
    state[12:] = [1, 0x09000000, 0x4A000000, 0]
    assert " ".join(f"{word:08x}" for word in chacha_blocks(state, np.arange(1))[:, 0]) == RFC_8439


@pytest.mark.parametrize(("key", "nonce"), STROMBERGSON)
def test_keys_of_128_bits(key, nonce):
    found = keystream(start_state(bytes.fromhex(key), bytes.fromhex(nonce)), 1)
    assert found.hex() == STROMBERGSON[key, nonce]


def test_keys_of_256_bits_are_those_of_another_implementation():
    ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers")
    key, nonce = bytes(range(7, 39)), bytes(range(8))
    other = (
        ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(8) + nonce), None)
        .encryptor()
        .update(bytes(64 * 40))
    )
    assert keystream(start_state(key, nonce), 40) == other


def test_words_are_read_in_tiles(kernel):
    state = start_state(b"a key of 16 byte", b"a nonce.")
    blocks = chacha_blocks(state, np.arange(48)).astype(np.uint64)
    words = kernel.words(state, 300)
    for index in (0, 1, 15, 16, 127, 128, 200, 299):
        tile, j, i = index // 128, index % 128 // 16, index % 16
        low, high = blocks[2 * j : 2 * j + 2, 16 * tile + i]
        assert words[index] == low | (high << np.uint64(32))


def test_block_numbers_carry_into_their_upper_half(kernel):
    state = start_state(bytes(16))
    state[12] = 0xFFFFFFFE
    plain = start_state(bytes(16))
    plain[13] = 1
    np.testing.assert_array_equal(
        chacha_blocks(state, np.arange(2, 5)), chacha_blocks(plain, np.arange(3))
    )
    whole = kernel.words(state, 128)[2]
    low, high = chacha_blocks(plain, np.arange(1))[:2, 0].astype(np.uint64)
    assert whole == low | (high << np.uint64(32))


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 1000])
def test_normals_do_not_depend_on_the_kernel_or_the_count(count, kernel):
    for key in (bytes(16), bytes(range(16))):
        found = kernel.normals(key, count)
        assert (
            found.tobytes()
            == kernel.normals(key, 1024)[:count].tobytes()
            == REFERENCE.normals(key, count).tobytes()
        )


def test_golden_normals_and_rows(kernel):
    """Payloads are decoded with these for ever; a change here is a change of the wire format."""
    np.testing.assert_array_equal(
        kernel.normals(bytes(range(16)), 3).view(np.int64), GOLDEN_NORMALS
    )
    assert kernel.rows(bytes(range(8)), 5, 1000).tolist() == GOLDEN_ROWS


def test_rows_are_one_of_each_stratum_and_uniform(kernel):
    """False alarms: 1e-9."""
    size, count = 100, 7
    edges = [j * size // count for j in range(count + 1)]
    trials = 4000 if kernel.name == "cpu" else 40
    rng = np.random.default_rng(seed(1))
    found = np.array([kernel.rows(rng.bytes(8), count, size) for _ in range(trials)])
    for j in range(count):
        width = edges[j + 1] - edges[j]
        hits = np.bincount(found[:, j] - edges[j], minlength=width)
        assert hits.size == width
        if kernel.name == "cpu":
            assert_binomial(hits, trials, 1 / width)
            with pytest.raises(AssertionError):
                assert_binomial(
                    np.concatenate([[0], hits[:-1] + hits[0] // (width - 1)]), trials, 1 / width
                )


def test_rows_are_multiples_of_a_word_in_exact_arithmetic():
    starts = expand.strata(3, 1 << 20)
    words = np.array([0, 2**64 - 1, 0x123456789ABCDEF0], dtype=np.uint64)
    found = expand.row_numbers(words, starts)
    expected = [
        int(a) + (int(w) * int(b - a) >> 64)
        for w, a, b in zip(words, starts, starts[1:], strict=False)
    ]
    assert found.tolist() == expected
    assert REFERENCE.rows(bytes(8), 8, 8).tolist() == list(range(8))
    assert REFERENCE.rows(bytes(8), 1, 1).tolist() == [0]


def test_the_inner_product_keeps_its_promise():
    rng = np.random.default_rng(2)
    for count in (1, 63, 64, 65, 1000, 5000):
        y = rng.normal(size=count) * 10.0 ** rng.uniform(-3, 3, count)
        direction, length = unit(y)
        key = rng.bytes(16)
        words = stream_words(start_state(key), count)
        with mpmath.workprec(200):
            some = [mpmath.mpf(float(value)) for value in y]
            norm = mpmath.sqrt(mpmath.fsum(v * v for v in some))
            if count <= 65:  # exact quantiles
                z = [
                    maker.tail_quantile(mpmath.mpf((int(w) % 2**63) | 1) / 2**64)
                    * (-1 if w >> np.uint64(63) else 1)
                    for w in words
                ]
            else:
                z = [mpmath.mpf(float(v)) for v in REFERENCE.normals(key, count)]
            true = mpmath.fsum(a * b for a, b in zip(some, z, strict=True)) / norm
            assert abs(
                mpmath.mpf(inner(direction, REFERENCE.normals(key, count))) - true
            ) < inner_error_upper(count)
            assert abs(length / norm - 1) <= (count / 64 + 10) * 2.0**-53
    assert inner_error_upper(1024) < 2e-12


@pytest.mark.parametrize("count", [1, 64, 100, 1024])
def test_compiled_inner_products_add_in_the_same_order(count):
    """A single edge at the reference's own sum: one unit in the last place below it, the
    candidate is refused.
    """
    kernel = select("cpu")
    direction = unit(np.random.default_rng(count).normal(size=count))[0]
    seed = bytes(range(16))
    product = inner(direction, REFERENCE.normals(seed, count))
    seeds = np.frombuffer(seed, "<u8")
    limits = acceptance_limits([0.0, 1.0])
    for edge, accepted in ((product, 0), (np.nextafter(product, np.inf), -1)):
        assert (
            kernel._first_accepted(
                seeds, np.zeros(1, np.uint64), direction, np.array([edge]), limits
            )
            == accepted
        )


def test_extreme_vectors_have_directions():
    tiny, huge = np.full(10, 1e-300), np.full(10, 1e300)
    for vector in (tiny, huge, np.full(10, 5e-324)):
        direction, length = unit(vector)
        np.testing.assert_allclose(direction, 1 / math.sqrt(10), rtol=1e-15)
        assert length == pytest.approx(vector[0] * math.sqrt(10), rel=1e-15) or vector[0] == 5e-324
    zero, length = unit(np.zeros(4))
    assert length == 0.0
    assert zero.tolist() == [1.0, 0.0, 0.0, 0.0]
    for bad in (np.nan, np.inf):
        with refuses("update"):
            unit(np.array([0.0, bad]))
    with refuses("vector"):
        unit(np.zeros(0))


def test_limits_are_exact_and_never_above():
    values = [0.0, 2.0**-80, 1e-9, 0.1, 1 / 3, 1 - 2.0**-53, 1.0]
    for value, limit in zip(values, acceptance_limits(values), strict=True):
        assert int(limit) == min(math.floor(Fraction(value) * 2**64), 2**64 - 1)
    for bad in (-0.1, 1.1, float("nan")):
        with refuses("acceptance probability"):
            acceptance_limits([bad])


def test_giving_up_is_rare_enough():
    for chance in (1.0, 0.9, 0.1, 1e-3, 1e-6):
        tries = tries_upper(chance)
        with mpmath.workprec(200):
            assert (1 - mpmath.mpf(chance)) ** tries <= FAILURE_UPPER
        assert tries <= 42 / chance + 2
    for bad in (0.0, 1e-12, 2.0, float("nan")):
        with refuses("acceptance_lower"):
            tries_upper(bad)


EDGES = np.array([-1.0, 0.0, 1.5])
CHANCES = [0.01, 0.05, 0.2, 1.0]


def test_the_first_accepted_seed_is_found(kernel):
    direction = unit(np.random.default_rng(1).normal(size=150))[0]
    limits = acceptance_limits(CHANCES)
    for start in range(8):
        block = seeded_rng(start).draw(1)
        found, tries = kernel.search(
            direction, EDGES, limits, seeded_rng(start).draw(1), acceptance_lower=0.1
        )
        for candidate in range(tries):
            key = block.uniform64(0, 2 * candidate, 2).astype("<u8").tobytes()
            step = int(
                np.searchsorted(EDGES, inner(direction, REFERENCE.normals(key, 150)), side="right")
            )
            accepted = block.uniform64(1, candidate, 1)[0] < limits[step]
            assert accepted == (candidate == tries - 1)
        assert found == key


def test_accepted_seeds_follow_the_profile():
    """False alarms: 1e-9."""
    direction = unit(np.random.default_rng(1).normal(size=130))[0]
    limits, rng = acceptance_limits(CHANCES), seeded_rng(seed(6))
    kernel = select("cpu")
    keys = [
        kernel.search(direction, EDGES, limits, rng.draw(1), acceptance_lower=0.1)[0]
        for _ in range(1500)
    ]
    t = np.array([inner(direction, REFERENCE.normals(key, 130)) for key in keys])
    weight = np.diff(stats.norm.cdf([-np.inf, *EDGES, np.inf])) * CHANCES
    counts = np.bincount(np.searchsorted(EDGES, t, side="right"), minlength=4)
    assert_binomial(counts, len(keys), weight / weight.sum())
    with pytest.raises(AssertionError):
        assert_binomial(counts, len(keys), np.diff(stats.norm.cdf([-np.inf, *EDGES, np.inf])))


def test_after_the_cap_a_fresh_candidate_is_released(kernel):
    """A profile that accepts nothing shows it: the answer is the candidate after the last one."""
    limits = acceptance_limits([0.0])
    for direction in (np.eye(1, 9)[0], -np.eye(1, 9)[0]):
        found, tries = kernel.search(
            direction, np.empty(0), limits, seeded_rng(1).draw(1), acceptance_lower=0.5
        )
        assert tries == tries_upper(0.5) + 1
        assert (
            found == seeded_rng(1).draw(1).uniform64(0, 2 * (tries - 1), 2).astype("<u8").tobytes()
        )


def test_payloads_add_up_in_any_order(kernel):
    rng = np.random.default_rng(3)
    size, count, shift = 1 << 12, 200, finest_shift(40)
    seeds = rng.integers(0, 256, (20, 16), dtype=np.uint8)
    nonces = rng.integers(0, 256, (20, 8), dtype=np.uint8)
    expected = [0] * size  # whole numbers of any length
    for key, nonce in zip(seeds, nonces, strict=True):
        for row, z in zip(
            REFERENCE.rows(nonce.tobytes(), count, size),
            REFERENCE.normals(key.tobytes(), count),
            strict=True,
        ):
            expected[int(row)] += round(Fraction(float(z)) * 2**shift)
    total, backwards, parts = (np.zeros(size, np.int64) for _ in range(3))
    kernel.add_seeds(nonces, seeds, total, count=count, shift=shift)
    kernel.add_seeds(nonces[::-1], seeds[::-1], backwards, count=count, shift=shift)
    for piece in (slice(0, 7), slice(7, 20)):
        kernel.add_seeds(nonces[piece], seeds[piece], parts, count=count, shift=shift)
    for found in (total, backwards, parts):
        assert found.tolist() == expected


def test_sums_fit():
    for most in (1, 2, 3, 1000, 2**20, 10**9):
        shift = finest_shift(most)
        assert most * math.ceil(9.0802 * 2**shift) < 2**62
    with refuses("most"):
        finest_shift(0)


def test_refusals(kernel):
    with refuses("seed"):
        kernel.normals(bytes(15), 1)
    with refuses("count"):
        kernel.normals(bytes(16), -1)
    with refuses("nonce"):
        kernel.rows(bytes(9), 1, 1)
    with refuses("count"):
        kernel.rows(bytes(8), 9, 8)
    with refuses("size"):
        kernel.rows(bytes(8), 1, 2**25)
    good = (np.zeros((2, 8), np.uint8), np.zeros((2, 16), np.uint8), np.zeros(64, np.int64))
    for nonces, seeds, total in (
        (good[0][:1], *good[1:]),
        (good[0], good[1][:, :8], good[2]),
        (*good[:2], np.zeros(64)),
    ):
        with pytest.raises(InvalidParameter):
            kernel.add_seeds(nonces, seeds, total, count=4, shift=40)
    with refuses("shift"):
        kernel.add_seeds(*good, count=4, shift=60)
    block, one = seeded_rng(0).draw(1), np.ones(1)
    with refuses("direction"):
        kernel.search(
            np.array([np.nan]), np.empty(0), acceptance_limits([1.0]), block, acceptance_lower=1.0
        )
    with refuses("limits"):
        kernel.search(one, np.empty(0), acceptance_limits([1.0, 1.0]), block, acceptance_lower=1.0)
    with refuses("edges"):
        kernel.search(
            one, np.array([0.0, np.nan]), acceptance_limits([1.0] * 3), block, acceptance_lower=1.0
        )
