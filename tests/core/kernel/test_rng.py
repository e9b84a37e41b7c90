"""Words: addressed by coordinate, never shared between coordinates, draws or processes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from quietbit.kernel import rng as module
from quietbit.kernel.rng import (
    ChaChaBlock,
    RandomBits,
    chacha_blocks,
    secure_rng,
    seeded_rng,
    start_state,
)
from refusals import refuses

SOURCES = [secure_rng, lambda: seeded_rng(2**200 + 3)]
KEY = tuple(0x9E3779B9 * (k + 1) & 0xFFFFFFFF for k in range(8))


@pytest.mark.parametrize("source", SOURCES)
def test_words_are_addressed_by_coordinate(source: Any) -> None:
    block = source().draw(20_001)
    whole = block.primary(0, 20_001)
    assert whole.dtype == np.uint16
    for start, count in ((0, 1), (1, 9), (7, 300), (4095, 4099), (333, 19_668), (20_001, 0)):
        np.testing.assert_array_equal(block.primary(start, count), whole[start : start + count])


@pytest.mark.parametrize("source", SOURCES)
def test_ties_are_addressed_by_coordinate(source: Any) -> None:
    block = source().draw(1000)
    whole = block.ties(np.arange(1000))
    assert whole.dtype == np.uint64
    assert np.unique(whole).size == 1000
    chosen = np.array([999, 0, 1, 0, 500])
    np.testing.assert_array_equal(block.ties(chosen), whole[chosen])
    assert block.ties(np.empty(0, np.int64)).size == 0


@pytest.mark.parametrize("source", SOURCES)
def test_threads_may_share_a_block(source: Any) -> None:
    block = source().draw(1 << 12)
    indices = np.arange(1 << 12)

    def read(_: int) -> bytes:
        words = (block.ties(indices), block.primary(0, 1 << 12), block.uniform64(0, 0, 1 << 12))
        return b"".join(array.tobytes() for array in words)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(read, range(12)))) == 1


@pytest.mark.parametrize("source", SOURCES)
def test_streams_are_distinct_and_addressed(source: Any) -> None:
    block = source().draw(64)
    streams = [block.uniform64(k, 0, 64) for k in range(3)]
    streams += [block.ties(np.arange(64)), block.primary(0, 64).astype(np.uint64)]
    assert np.unique(np.concatenate(streams[:4])).size == 4 * 64
    for start in (0, 1, 3, 17):
        np.testing.assert_array_equal(block.uniform64(1, start, 40), streams[1][start : start + 40])
    raw = {stream.tobytes()[:16] for stream in streams}
    assert len(raw) == 5


@pytest.mark.parametrize("source", SOURCES)
def test_two_draws_share_nothing(source: Any) -> None:
    rng = source()
    first, second = rng.draw(4096), rng.draw(4096)
    assert np.mean(first.primary(0, 4096) == second.primary(0, 4096)) < 0.01
    assert not np.intersect1d(first.ties(np.arange(4096)), second.ties(np.arange(4096))).size
    assert not np.intersect1d(first.uniform64(0, 0, 4096), second.uniform64(0, 0, 4096)).size


@pytest.mark.parametrize(
    ("rounds", "text"),
    [
        # RFC 8439, appendix A.1, vector 1; draft-strombergson, TC1
        (20, "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"),
        (12, "9bf49a6a0755f953811fce125f2683d50429c3bb49e074147e0089a52eae155f"),
    ],
)
def test_chacha_of_the_zero_key(rounds: int, text: str) -> None:
    block = chacha_blocks(start_state(bytes(32)), np.array([0]), rounds)[:, 0]
    assert block.astype("<u4").tobytes().hex().startswith(text)


def test_chacha_counts_blocks_in_64_bits() -> None:
    far = chacha_blocks(start_state(bytes(32)), np.array([2**32, 2**32 + 1, 0, 1]), 12)
    assert len({row.tobytes() for row in far.T}) == 4


def test_a_stream_is_chacha_with_its_number_as_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    block = ChaChaBlock(10, KEY)
    # Mechanisms that try again and again ask for streams far beyond 64.
    for stream in (0, 1, 64, 2**24, 2**32):
        nonce = (2 + stream).to_bytes(8, "little")
        state = start_state(np.array(KEY, "<u4").tobytes(), nonce)
        octets = chacha_blocks(state, np.arange(100), 12).T.astype("<u4").tobytes()
        for start, count in ((0, 800), (5, 32), (131, 17), (7, 0)):
            found = block.uniform64(stream, start, count)
            assert found.astype("<u8").tobytes() == octets[8 * start : 8 * (start + count)]
            with monkeypatch.context() as patch:  # without a C library
                patch.setattr(module, "_library", lambda: None)
                np.testing.assert_array_equal(block.uniform64(stream, start, count), found)


def test_no_word_of_a_key_is_used_twice() -> None:
    """Pairs of neighbouring primary words are the 32-bit words: with 8,192 of them, repeats mean
    reuse.
    """
    block = ChaChaBlock(1 << 14, KEY)
    words = block.primary(0, 1 << 14).view(np.uint32)
    ties = block.ties(np.arange(1 << 12))
    own = block.uniform64(0, 0, 1 << 12)
    assert np.unique(words).size > words.size - 5  # about 0.008 repeats are expected
    assert np.unique(ties).size == ties.size
    assert np.intersect1d(own, ties).size == 0


def test_bits_are_balanced() -> None:
    """Each of the 16 bits of 2^18 words within 7 standard deviations of a half: false alarm
    below 1e-10.
    """
    words = ChaChaBlock(1 << 18, KEY).primary(0, 1 << 18)
    for bit in range(16):
        ones = int(((words >> np.uint16(bit)) & np.uint16(1)).sum())
        assert abs(ones - 2**17) < 7 * 2**8


def test_reading_outside_a_draw_is_refused() -> None:
    for rng in (secure_rng(), seeded_rng(0)):
        block = rng.draw(10)
        for start, count in ((-1, 2), (0, 11), (11, 0), (5, -1)):
            with refuses("range of coordinates"):
                block.primary(start, count)
        for index in (-1, 10):
            with refuses("range of coordinates"):
                block.ties(np.array([index]))
        for stream in (-1, 2**32 + 1, 1.5):
            with refuses("stream"):
                block.uniform64(stream, 0, 1)  # type: ignore[arg-type]
        with refuses("start"):
            block.uniform64(0, 2**61, 1)
        with refuses("count"):
            rng.draw(-1)


def test_seeds_reproduce_and_differ() -> None:
    def read(seed: int) -> bytes:
        rng = seeded_rng(seed)
        rng.draw(5)
        block = rng.draw(50)
        return (
            block.primary(0, 50).tobytes()
            + block.ties(np.arange(50)).tobytes()
            + block.uniform64(4, 0, 5).tobytes()
        )

    seeds = [0, 1, 2**32, 2**64 + 1, 2**300]
    assert [read(seed) for seed in seeds] == [read(seed) for seed in seeds]
    assert len({read(seed) for seed in seeds}) == len(seeds)
    for bad in (-1, 0.5, True, "3", None):
        with refuses("seed"):
            seeded_rng(bad)  # type: ignore[arg-type]


def test_seeded_words_are_pinned() -> None:
    """The same seed gives the same simulation for ever."""
    block = seeded_rng(2023).draw(4)
    assert block.primary(0, 4).tolist() == [8253, 28570, 64348, 46039]
    assert block.ties(np.arange(2)).tolist() == [11652192114499978566, 7903116987267568745]
    assert block.uniform64(0, 0, 2).tolist() == [7878538738359267357, 14314710695162573468]


def test_a_repr_says_whether_words_are_private_and_leaks_no_key() -> None:
    assert "NOT private" in repr(seeded_rng(3))
    assert repr(secure_rng()) == "secure_rng()"
    block: Any = secure_rng().draw(3)
    assert str(block.key[0]) not in repr(block)


def _draw_into(rng: RandomBits, pipe: Any) -> None:
    pipe.send_bytes(rng.draw(64).primary(0, 64).tobytes())
    pipe.close()


def test_a_fork_does_not_repeat_words() -> None:
    rng = secure_rng()
    rng.draw(64)
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.write(write_end, rng.draw(64).primary(0, 64).tobytes())
        os._exit(0)
    os.close(write_end)
    mine = rng.draw(64).primary(0, 64).tobytes()
    theirs = os.read(read_end, 4096)
    os.close(read_end)
    assert os.waitpid(child, 0)[1] == 0
    assert len(theirs) == 128
    assert theirs != mine


def test_processes_of_a_pool_do_not_share_words() -> None:
    rng, context, seen = secure_rng(), multiprocessing.get_context("fork"), set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for _ in range(3):
            near, far = context.Pipe(duplex=False)
            process = context.Process(target=_draw_into, args=(rng, far))
            process.start()
            seen.add(near.recv_bytes())
            process.join()
            assert process.exitcode == 0
    assert len(seen) == 3


def test_words_need_no_torch() -> None:
    code = (
        "import sys; from quietbit.kernel import rng, sampler, reference, select, tables, base\n"
        "rng.secure_rng().draw(3).primary(0, 3)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
