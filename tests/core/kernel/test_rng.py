"""Words: addressed by coordinate, never shared between draws or processes."""

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

from quietbit.errors import InvalidParameter
from quietbit.kernel.rng import RandomBits, secure_rng, seeded_rng
from refusals import refuses

SOURCES = [secure_rng, lambda: seeded_rng(2**200 + 3)]


@pytest.mark.parametrize("source", SOURCES)
def test_any_chunking_reads_the_same_words(source: Any) -> None:
    block = source().draw(700_001)
    whole = block.primary(0, 700_001)
    assert whole.dtype == np.uint16
    for start, count in ((0, 1), (1, 9), (7, 300), (1 << 17, 5), (333_333, 300_000), (700_001, 0)):
        np.testing.assert_array_equal(block.primary(start, count), whole[start : start + count])
    read, buffer, at = block.reader(13), np.empty(200_000, np.uint16), 13
    for size in (3, 70_000, 8, 200_000, 100_001):
        read(buffer[:size])
        np.testing.assert_array_equal(buffer[:size], whole[at : at + size])
        at += size


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
    block = source().draw(1 << 18)
    indices = np.arange(1 << 18)
    ties, primary = block.ties(indices), block.primary(0, 1 << 18)

    def read(_: int) -> bool:
        same = np.array_equal(block.ties(indices), ties)
        return same and np.array_equal(block.primary(0, 1 << 18), primary)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(24)))


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


def test_secure_words_are_aes_in_counter_mode() -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    block: Any = secure_rng().draw(100)
    for stream, found in (
        (0, block.primary(0, 96)),
        (1, block.ties(np.arange(24))),
        (2, block.uniform64(0, 0, 24)),
    ):
        counter = stream.to_bytes(8, "big") + bytes(8)
        expected = (
            Cipher(algorithms.AES(block._key), modes.CTR(counter)).encryptor().update(bytes(192))
        )
        assert found.tobytes() == expected


def test_reading_outside_a_draw_is_refused() -> None:
    for rng in (secure_rng(), seeded_rng(0)):
        block = rng.draw(10)
        for start, count in ((-1, 2), (0, 11), (11, 0), (5, -1)):
            with refuses("range of coordinates"):
                block.primary(start, count)
        for index in (-1, 10):
            with refuses("range of coordinates"):
                block.ties(np.array([index]))
        with pytest.raises(InvalidParameter):
            block.reader(4)(np.empty(7, np.uint16))
        with refuses("stream"):
            block.uniform64(-1, 0, 1)
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
    assert repr(block._key) not in repr(block)


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
