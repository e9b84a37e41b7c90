"""Words made inside kernels: published test vectors, addressing, keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quietbit.kernel.rng import DeviceBlock, chacha_blocks, device_rng, start_state
from refusals import refuses

KEY = tuple(0x9E3779B9 * (k + 1) & 0xFFFFFFFF for k in range(8))
ZERO = (0,) * 8


def chacha_block(key: tuple[int, ...], stream: int, block: Any, rounds: int) -> Any:
    state = start_state(np.array(key, "<u4").tobytes(), stream.to_bytes(8, "little"))
    return chacha_blocks(state, block, rounds)


@pytest.mark.parametrize(
    ("rounds", "text"),
    [
        (
            20,
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7",
        ),  # RFC 8439, appendix A.1, vector 1
        (
            12,
            "9bf49a6a0755f953811fce125f2683d50429c3bb49e074147e0089a52eae155f",
        ),  # draft-strombergson, TC1
    ],
)
def test_chacha_of_the_zero_key(rounds: int, text: str) -> None:
    block = chacha_block(ZERO, 0, np.array([0]), rounds)[:, 0]
    assert block.astype("<u4").tobytes().hex().startswith(text)


def test_chacha_block_numbers_of_more_than_32_bits() -> None:
    far = chacha_block(KEY, 3, np.array([2**32, 2**32 + 1, 0, 1]), 12)
    assert len({row.tobytes() for row in far.T}) == 4


def test_reading_in_pieces_and_from_the_middle() -> None:
    block = DeviceBlock(10_000, KEY)
    whole = block.primary(0, 10_000)
    np.testing.assert_array_equal(block.primary(4095, 1030), whole[4095 : 4095 + 1030])
    out = np.empty(77, np.uint16)
    read = block.reader(8191)
    read(out[:40])
    read(out[40:])
    np.testing.assert_array_equal(out, whole[8191 : 8191 + 77])
    ties = block.ties(np.arange(10_000))
    np.testing.assert_array_equal(block.ties(np.array([9_999, 0, 17])), ties[[9_999, 0, 17]])
    assert int(ties.max()) < 2**48
    np.testing.assert_array_equal(block.uniform64(0, 3, 5), block.uniform64(0, 0, 8)[3:])


def test_no_word_is_used_twice() -> None:
    """Pairs of neighbouring primary words are the 32-bit words: with 8,192 of them, repeats mean
    reuse.
    """
    block = DeviceBlock(1 << 14, KEY)
    words = block.primary(0, 1 << 14).view(np.uint32)
    ties, own = block.ties(np.arange(1 << 12)), block.uniform64(0, 0, 1 << 12)
    assert np.unique(words).size > words.size - 5  # about 0.008 repeats are expected
    assert np.unique(ties).size == ties.size
    assert np.unique(own).size == own.size
    assert np.intersect1d(own & np.uint64(2**48 - 1), ties).size == 0


def test_bits_are_balanced() -> None:
    """Each of the 16 bits of 2^18 words within 7 standard deviations of a half: false alarm
    below 1e-10.
    """
    words = DeviceBlock(1 << 18, KEY).primary(0, 1 << 18)
    for bit in range(16):
        ones = int(((words >> np.uint16(bit)) & np.uint16(1)).sum())
        assert abs(ones - 2**17) < 7 * 2**8


def test_keys_come_fresh_and_stay_hidden() -> None:
    words = device_rng()
    first, second = words.draw(8), words.draw(8)
    assert isinstance(first, DeviceBlock)
    assert isinstance(second, DeviceBlock)
    assert first.key != second.key
    assert str(first.key[0]) not in repr(first)
    assert repr(words) == "device_rng()"


def test_refusals() -> None:
    block = DeviceBlock(10, KEY)
    for call in (
        lambda: block.primary(5, 6),
        lambda: block.reader(11),
        lambda: block.ties(np.array([10])),
    ):
        with refuses("range of coordinates"):
            call()
    with refuses("count"):
        device_rng().draw(-1)


def test_any_stream_that_a_mechanism_asks_for() -> None:
    """Streams beyond 64, as a mechanism that tries again and again needs them; 32 words of 64
    bits do not repeat.
    """
    block = DeviceBlock(10, KEY)
    streams = (
        0,
        1,
        63,
        64,
        65,
        253,
        254,
        255,
        256,
        510,
        4096,
        2**24,
        2**31,
        2**32 - 3,
        2**32 - 2,
        2**32,
    )
    found = np.concatenate([block.uniform64(stream, 5, 32) for stream in streams])
    assert np.unique(found).size == found.size
    for stream in (-1, 2**32 + 1, 1.5):
        with refuses("stream"):
            block.uniform64(stream, 0, 1)  # type: ignore[arg-type]
    with refuses("start"):
        block.uniform64(0, 2**61, 1)
