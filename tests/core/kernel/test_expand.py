"""Expansion: words, rows, searches and sums against their definitions, on the reference."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from core.kernel import quantile_maker as maker
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

REFERENCE = ReferenceKernel()
EDGES = np.array([-1.0, 0.0, 1.5])
CHANCES = [0.01, 0.05, 0.2, 1.0]


def direction_of(size):
    return unit(np.random.default_rng(1).normal(size=size))[0]


def test_words_are_read_in_tiles():
    """The same with block numbers that carry into their upper half."""
    state = start_state(b"a key of 16 byte", b"a nonce.")
    for first in (0, 0xFFFFFFF0):
        state[12] = first
        blocks = chacha_blocks(state, np.arange(48)).astype(np.uint64)
        words = stream_words(state, 300)
        for index in (0, 1, 15, 16, 127, 128, 200, 299):
            tile, j, i = index // 128, index % 128 // 16, index % 16
            low, high = blocks[2 * j : 2 * j + 2, 16 * tile + i]
            assert words[index] == low | (high << np.uint64(32))
        np.testing.assert_array_equal(select("cpu").words(state, 300), words)


def test_rows_are_multiples_of_a_word_in_exact_arithmetic():
    starts = expand.strata(3, 1 << 20)
    words = np.array([0, 2**64 - 1, 0x123456789ABCDEF0], dtype=np.uint64)
    found = expand.row_numbers(words, starts).tolist()
    for word, row, start, end in zip(words, found, starts, starts[1:], strict=False):
        assert row == int(start) + (int(word) * int(end - start) >> 64)
    assert REFERENCE.rows(bytes(8), 8, 8).tolist() == list(range(8))
    assert REFERENCE.rows(bytes(8), 1, 1).tolist() == [0]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000, 5000])
def test_the_inner_product_keeps_its_promise(count):
    rng = np.random.default_rng(count)
    y = rng.normal(size=count) * 10.0 ** rng.uniform(-3, 3, count)
    direction, length = unit(y)
    key = rng.bytes(16)
    normals = REFERENCE.normals(key, count)
    with mpmath.workprec(200):
        z = [mpmath.mpf(float(value)) for value in normals]
        if count <= 65:
            z = [maker.normal_of(word) for word in stream_words(start_state(key), count).tolist()]
        some = [mpmath.mpf(float(value)) for value in y]
        norm = mpmath.sqrt(mpmath.fsum(v * v for v in some))
        true = mpmath.fsum(a * b for a, b in zip(some, z, strict=True)) / norm
        assert abs(mpmath.mpf(inner(direction, normals)) - true) < inner_error_upper(count)
        assert abs(length / norm - 1) <= (count / 64 + 10) * 2.0**-53
    assert inner_error_upper(1024) < 2e-12


@pytest.mark.parametrize("count", [1, 64, 100, 1024])
def test_compiled_inner_products_add_in_the_same_order(count):
    """A single edge at the reference's own sum: one unit in the last place above it, the
    candidate is refused.
    """
    direction, key = direction_of(count), bytes(range(16))
    product = inner(direction, REFERENCE.normals(key, count))
    given = np.frombuffer(key, "<u8"), np.zeros(1, np.uint64), direction
    limits = acceptance_limits([0.0, 1.0])
    for edge, accepted in ((product, 0), (np.nextafter(product, np.inf), -1)):
        found = select("cpu")._first_accepted(*given, np.array([edge]), limits)
        assert found == accepted


@pytest.mark.parametrize("entry", [1e-300, 1e300, 5e-324])
def test_extreme_vectors_have_directions(entry):
    direction, length = unit(np.full(10, entry))
    np.testing.assert_allclose(direction, 1 / math.sqrt(10), rtol=1e-15)
    assert length == pytest.approx(entry * math.sqrt(10), rel=1e-15) or entry == 5e-324


def test_zero_has_a_direction_and_what_is_no_vector_has_none():
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


@pytest.mark.parametrize("number", range(8))
def test_the_first_accepted_seed_is_found(number):
    direction, limits = direction_of(150), acceptance_limits(CHANCES)
    block = seeded_rng(number).draw(1)
    found, tries = REFERENCE.search(direction, EDGES, limits, block, acceptance_lower=0.1)
    for candidate in range(tries):
        key = block.uniform64(0, 2 * candidate, 2).astype("<u8").tobytes()
        t = inner(direction, REFERENCE.normals(key, 150))
        limit = limits[np.searchsorted(EDGES, t, side="right")]
        assert (block.uniform64(1, candidate, 1)[0] < limit) == (candidate == tries - 1)
    assert found == key


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_after_the_cap_a_fresh_candidate_is_released(name):
    """A profile that accepts nothing shows it: the answer is the candidate after the last one."""
    limits, block = acceptance_limits([0.0]), seeded_rng(1).draw(1)
    for direction in (np.eye(1, 9)[0], -np.eye(1, 9)[0]):
        found, tries = select(name).search(
            direction, np.empty(0), limits, block, acceptance_lower=0.5
        )
        assert tries == tries_upper(0.5) + 1
        assert found == block.uniform64(0, 2 * (tries - 1), 2).astype("<u8").tobytes()


@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("cut", [0, 7])
def test_payloads_add_up_in_any_order(name, order, cut):
    rng, kernel = np.random.default_rng(3), select(name)
    size, count, shift = 1 << 12, 200, finest_shift(40)
    seeds = rng.integers(0, 256, (20, 16), dtype=np.uint8)
    nonces = rng.integers(0, 256, (20, 8), dtype=np.uint8)
    expected = [0] * size  # whole numbers of any length
    for key, nonce in zip(seeds, nonces, strict=True):
        rows = REFERENCE.rows(nonce.tobytes(), count, size).tolist()
        for row, z in zip(rows, REFERENCE.normals(key.tobytes(), count), strict=True):
            expected[row] += round(Fraction(float(z)) * 2**shift)
    total = np.zeros(size, np.int64)
    for some in (slice(0, cut), slice(cut, 20)):
        chosen = nonces[::order][some], seeds[::order][some]
        kernel.add_seeds(*chosen, total, count=count, shift=shift)
    assert total.tolist() == expected


def test_sums_fit():
    for most in (1, 2, 3, 1000, 2**20, 10**9):
        shift = finest_shift(most)
        assert most * math.ceil(9.0802 * 2**shift) < 2**62
    with refuses("most"):
        finest_shift(0)
