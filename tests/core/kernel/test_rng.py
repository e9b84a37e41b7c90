"""Words: those of published ciphers, addressed by coordinate, and none of them used twice."""

import multiprocessing
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from core.kernel.makers import FixedKey
from quietbit.kernel import rng as module
from quietbit.kernel.rng import chacha_blocks, secure_rng, seeded_rng, start_state
from refusals import refuses

every_source = pytest.mark.parametrize(
    "source", [secure_rng, lambda: seeded_rng(2**200 + 3), FixedKey], ids=["secure", "seed", "key"]
)
PUBLISHED = {
    "draft-strombergson, 128 bits, test case 1": (
        20,
        "00" * 16,
        "00" * 8,
        "89670952608364fd00b2f90936f031c8e756e15dba04b8493d00429259b20f46"
        "cc04f111246b6c2ce066be3bfb32d9aa0fddfbc12123d4b9e44f34dca05a103f",
    ),
    "draft-strombergson, 128 bits, test case 8": (
        20,
        "c46ec1b18ce8a878725a37e780dfb735",
        "1ada31d5cf688221",
        "826abdd84460e2e9349f0ef4af5b179b426e4b2d109a9c5bb44000ae51bea90a"
        "496beeef62a76850ff3f0402c4ddc99f6db07f151c1c0dfac2e56565d6289625",
    ),
    "draft-strombergson, 256 bits, 12 rounds, test case 1": (
        12,
        "00" * 32,
        "00" * 8,
        "9bf49a6a0755f953811fce125f2683d50429c3bb49e074147e0089a52eae155f",
    ),
}


def keystream(state, blocks, rounds=20):
    return chacha_blocks(state, np.arange(blocks), rounds).T.astype("<u4").tobytes()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_keystreams(name):
    rounds, key, nonce, text = PUBLISHED[name]
    state = start_state(bytes.fromhex(key), bytes.fromhex(nonce))
    assert keystream(state, 1, rounds).hex().startswith(text)


def test_keys_of_256_bits_are_those_of_another_implementation():
    ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers")
    key, nonce = bytes(range(7, 39)), bytes(range(8))
    cipher = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(8) + nonce), None)
    assert keystream(start_state(key, nonce), 40) == cipher.encryptor().update(bytes(64 * 40))


def test_blocks_are_counted_in_64_bits():
    first, second = start_state(bytes(16)), start_state(bytes(16))
    first[12] = 0xFFFFFFFE
    second[13] = 1
    later = chacha_blocks(first, np.arange(2, 5))
    np.testing.assert_array_equal(later, chacha_blocks(second, np.arange(3)))
    far = chacha_blocks(start_state(bytes(32)), np.array([2**32, 2**32 + 1, 0, 1]), 12)
    assert len({row.tobytes() for row in far.T}) == 4


@every_source
def test_words_are_addressed_by_coordinate(source):
    """Threads that read at the same time see the same words."""
    block = source().draw(20_001)
    primary, ties = block.primary(0, 20_001), block.ties(np.arange(20_001))
    stream = block.uniform64(1, 0, 20_001)

    def read(start, count):
        some = slice(start, start + count)
        backwards = np.arange(20_001)[some][::-1]
        return (
            np.array_equal(block.primary(start, count), primary[some])
            and np.array_equal(block.ties(backwards), ties[backwards])
            and np.array_equal(block.uniform64(1, start, count), stream[some])
        )

    starts, counts = (0, 1, 3, 7, 4095, 333, 20_001), (1, 9, 40, 300, 4099, 19_668, 0)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, starts * 4, counts * 4))
    assert (primary.dtype, ties.dtype, stream.dtype) == (np.uint16, np.uint64, np.uint64)


@every_source
def test_no_word_is_used_twice(source):
    """Not by two coordinates, two streams or two draws. Pairs of neighbouring primary words are
    the 32-bit words: with 8,192 of them, about 0.008 repeats are expected.
    """
    rng, size, several = source(), 1 << 14, np.arange(1 << 12)
    draws = [rng.draw(size) for _ in range(1 if source is FixedKey else 2)]
    primary = [block.primary(0, size).view(np.uint32) for block in draws]
    words = [block.ties(several) for block in draws]
    words += [block.uniform64(stream, 0, 1 << 12) for block in draws for stream in (0, 1, 2**32)]
    words += [block.primary(0, size).view(np.uint64) for block in draws]
    for some in (np.concatenate(primary), np.concatenate(words)):
        assert np.unique(some).size > some.size - 5


@pytest.mark.parametrize("stream", [0, 1, 64, 2**24, 2**32])
def test_a_stream_is_chacha_with_its_number_as_nonce(monkeypatch, stream):
    """With the C library and without; mechanisms that try again ask for streams far beyond 64."""
    block = FixedKey().draw(10)
    state = start_state(np.array(block.key, "<u4").tobytes(), (2 + stream).to_bytes(8, "little"))
    octets = keystream(state, 100, 12)
    for library in (module._library(), None):
        monkeypatch.setattr(module, "_library", lambda library=library: library)
        for start, count in ((0, 800), (5, 32), (131, 17), (7, 0)):
            found = block.uniform64(stream, start, count).astype("<u8").tobytes()
            assert found == octets[8 * start : 8 * (start + count)]


@every_source
def test_reading_outside_a_draw_is_refused(source):
    block = source().draw(10)
    for start, count in ((-1, 2), (0, 11), (11, 0), (5, -1)):
        with refuses("range of coordinates"):
            block.primary(start, count)
    for index in (-1, 10):
        with refuses("range of coordinates"):
            block.ties(np.array([index]))
    for stream in (-1, 2**32 + 1, 1.5):
        with refuses("stream"):
            block.uniform64(stream, 0, 1)
    with refuses("start"):
        block.uniform64(0, 2**61, 1)


def test_draws_and_seeds_are_whole_numbers():
    with refuses("count"):
        secure_rng().draw(-1)
    for bad in (-1, 0.5, True, "3", None):
        with refuses("seed"):
            seeded_rng(bad)


def test_seeds_reproduce_and_differ():
    def read(seed):
        rng = seeded_rng(seed)
        rng.draw(5)
        block = rng.draw(50)
        words = (block.primary(0, 50), block.ties(np.arange(50)), block.uniform64(4, 0, 5))
        return b"".join(array.tobytes() for array in words)

    seeds = [0, 1, 2**32, 2**64 + 1, 2**300]
    assert [read(seed) for seed in seeds] == [read(seed) for seed in seeds]
    assert len({read(seed) for seed in seeds}) == len(seeds)


def test_a_repr_says_whether_words_are_private_and_leaks_no_key():
    assert "NOT private" in repr(seeded_rng(3))
    assert repr(secure_rng()) == "secure_rng()"
    block = secure_rng().draw(3)
    assert str(block.key[0]) not in repr(block)


def _draw_into(rng, pipe):
    pipe.send_bytes(rng.draw(64).primary(0, 64).tobytes())


def test_a_fork_does_not_repeat_words():
    """Nor do two children of the same process."""
    rng, context = secure_rng(), multiprocessing.get_context("fork")
    rng.draw(64)
    near, far = context.Pipe(duplex=False)
    seen = set()
    for _ in range(3):
        process = context.Process(target=_draw_into, args=(rng, far))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        seen.add(near.recv_bytes())
        process.join()
        assert process.exitcode == 0
    _draw_into(rng, far)
    seen.add(near.recv_bytes())
    assert len(seen) == 4
