"""Random bits: from a key of the operating system, or from a seed for simulations.

Idea     a release of d coordinates draws one block of words and reads it by coordinate number, so
         that tiles, threads and devices see the same words. Coordinate k has 16 primary bits, 48
         tie bits that are read only when the primary ones leave the code undecided, and as many
         64-bit words in numbered streams as a mechanism needs.
Secure   a draw takes 256 fresh bits from the operating system; every word is ChaCha with 12 rounds
         of that key and the coordinate's number. Stream s is the block sequence with nonce s, so no
         two words of a draw share a block. No state is stored between draws, so a fork repeats no
         words. C and GPUs make the words where they are used, to the same bits.
Primary  coordinate i has 16 bits, lower half first, of word 4 ((i mod 4096) div 1024) + (i mod 8)
         div 2 of block 128 (i div 4096) + (i mod 1024) div 8 of stream 0: a thread of a GPU has 8
         neighbours in each of four rows. 64-bit word i is words 2 i and 2 i + 1 of its stream.
Cipher   a stream of ChaCha starts from sixteen 32-bit words (constants 4, key 8, block number 2,
         nonce 2, lower halves first); block n is a function of those with n added to the block
         number. Keys of 128 bits are repeated and marked by the constants TAU. Every other ChaCha
         of the library is tested against `chacha_blocks`.
Source   Bernstein (2008) and RFC 8439 for ChaCha, of which the best published attacks reach 7
         rounds; Salmon et al. (SC 2011) for Philox; Steele, Lea, Flood (OOPSLA 2014) for the seeded
         tie words.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, MissingDependency, check_int
from quietbit.kernel import c as native

__all__ = [
    "ChaChaBlock",
    "PhiloxBlock",
    "RandomBits",
    "WordBlock",
    "check_rng",
    "secure_rng",
    "seeded_rng",
    "start_state",
]

Words16: TypeAlias = NDArray[np.uint16]
Words64: TypeAlias = NDArray[np.uint64]
Indices: TypeAlias = NDArray[np.int64]

PRIMARY = 0  # the streams of primary bits and of tie bits; those of mechanisms start at OTHER
TIES = 1
OTHER = 2
MAX_COUNT = 2**60
MAX_STREAM = 2**32  # of a mechanism
ROUNDS = 12
SIGMA = b"expand 32-byte k"
TAU = b"expand 16-byte k"
LOW16 = np.uint32(0xFFFF)
LOW32 = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
LANES = 128  # GPU threads that share a tile of 4,096 coordinates
ROW = 8 * LANES  # coordinates of a tile that take the same words of their blocks
TILE = 4 * ROW


@frozen(eq=False)
class WordBlock(ABC):
    """The words of one release, addressed by coordinate; reading twice gives the same words."""

    count: int

    @final
    def primary(self, start: int, count: int) -> Words16:
        """Return the 16 primary bits of coordinates ``start .. start + count - 1``."""
        _check_range(start, count, self.count)
        return self._primary(start, count)

    @final
    def ties(self, indices: Indices) -> Words64:
        """Return the tie words of the given coordinates; only their low 48 bits are used."""
        chosen = np.asarray(indices, dtype=np.int64)
        if chosen.size:
            _check_range(int(chosen.min()), 0, self.count)
            _check_range(int(chosen.max()), 1, self.count)
        return self._ties(chosen)

    @final
    def uniform64(self, stream: int, start: int, count: int) -> Words64:
        """Return ``count`` 64-bit words of a stream from ``start`` on; streams are independent."""
        limits = (("stream", stream, MAX_STREAM), ("start", start, MAX_COUNT))
        for name, value, most in (*limits, ("count", count, MAX_COUNT)):
            if type(value) is not int or not 0 <= value <= most:
                raise InvalidParameter.of(name, f"an int from 0 to {most}", value)
        return self._words(OTHER + stream, start, count)

    @abstractmethod
    def _primary(self, start: int, count: int) -> Words16: ...

    @abstractmethod
    def _ties(self, chosen: Indices) -> Words64: ...

    @abstractmethod
    def _words(self, stream: int, start: int, count: int) -> Words64: ...


class RandomBits(Protocol):
    """A source of words; two draws never share any."""

    def draw(self, count: int) -> WordBlock:
        """Return a block for ``count`` coordinates."""


def check_rng(rng: Any) -> None:
    """Refuse anything that is not a source of random bits, such as a seed."""
    if not hasattr(rng, "draw"):
        rule = "a source of random bits, from secure_rng() or seeded_rng(seed)"
        raise InvalidParameter.of("rng", rule, rng)


def secure_rng() -> RandomBits:
    """Return unpredictable random bits: each draw expands a fresh key of the operating system."""
    return _Source("secure_rng()", ChaChaBlock)


def seeded_rng(seed: int) -> RandomBits:
    """Return reproducible random bits for tests and simulations, which give no privacy.

    Draw number k depends on the seed and k alone.

    >>> seeded_rng(7).draw(3).primary(0, 3).tolist() == seeded_rng(7).draw(3).primary(0, 3).tolist()
    True
    >>> seeded_rng(7)
    seeded_rng(7)  # reproducible, NOT private
    """
    key = check_int(seed, "seed", 0)
    numbers = count()
    name = f"seeded_rng({key})  # reproducible, NOT private"
    return _Source(name, lambda size: PhiloxBlock(size, key, next(numbers)))


@final
@frozen(eq=False, repr=False)
class _Source:
    name: str
    block: Callable[[int], WordBlock]

    def draw(self, count: int) -> WordBlock:
        return self.block(check_int(count, "count", 0, MAX_COUNT))

    def __repr__(self) -> str:
        return self.name


@final
@frozen(eq=False)
class PhiloxBlock(WordBlock):
    """Draw ``number`` of a seed: Philox4x64 with ten rounds, and a mixer for single tie words."""

    seed: int
    number: int

    def _primary(self, start: int, count: int) -> Words16:
        first = start // 4  # four primary words per 64-bit word
        last = (start + count + 3) // 4
        words = _philox(self.key(PRIMARY), first, last - first).astype("<u8", copy=False)
        return words.view("<u2")[start - 4 * first :][:count]

    def _ties(self, chosen: Indices) -> Words64:
        key = self.key(TIES)
        state = (chosen.astype(np.uint64) ^ key[0]) * np.uint64(0x9E3779B97F4A7C15) + key[1]
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: Words64 = state ^ (state >> np.uint64(31))
        return mixed

    def _words(self, stream: int, start: int, count: int) -> Words64:
        return _philox(self.key(stream), start, count)

    def key(self, stream: int) -> Words64:
        """Return the two words that a stream is made from."""
        sequence = np.random.SeedSequence(self.seed, spawn_key=(self.number, stream))
        return sequence.generate_state(2, np.uint64).astype(np.uint64)


def _philox(key: Words64, start: int, count: int) -> Words64:
    """Return words of numpy's Philox from ``start`` on; it makes four per step of its counter."""
    generator = np.random.Philox(key=key)
    generator.advance(start // 4)
    words: Words64 = generator.random_raw(start % 4 + count)[start % 4 :]
    return words


@final
@frozen(eq=False)
class ChaChaBlock(WordBlock):
    """One draw from a key of eight 32-bit words, which `repr` does not show."""

    key: tuple[int, ...] = field(repr=False)

    @key.default
    def _fresh_key(self) -> tuple[int, ...]:
        return tuple(np.frombuffer(os.urandom(32), "<u4").tolist())

    def _primary(self, start: int, count: int) -> Words16:
        i = np.arange(start, start + count, dtype=np.int64)
        block = LANES * (i // TILE) + (i % ROW) // 8
        word = 4 * (i % TILE // ROW) + (i % 8) // 2
        half = (16 * (i % 2)).astype(np.uint32)
        return ((self._chosen(PRIMARY, block, word) >> half) & LOW16).astype(np.uint16)

    def _ties(self, chosen: Indices) -> Words64:
        return self._pairs(TIES, chosen)

    def _words(self, stream: int, start: int, count: int) -> Words64:
        library = _library()
        if library is None:
            return self._pairs(stream, np.arange(start, start + count, dtype=np.int64))
        key = np.array(self.key, np.uint32)
        out = np.empty(count, np.uint64)
        library.qb_stream_words(native.address(key), stream, start, count, native.address(out))
        return out

    def _pairs(self, stream: int, i: Indices) -> Words64:
        """Return 64 bits for each i: words 2 i and 2 i + 1 of a stream, the lower half first."""
        low = self._chosen(stream, i // 8, 2 * (i % 8)).astype(np.uint64)
        high = self._chosen(stream, i // 8, 2 * (i % 8) + 1).astype(np.uint64)
        return low | (high << HALF)

    def _chosen(self, stream: int, block: Indices, word: Indices) -> NDArray[np.uint32]:
        """Return one 32-bit word from each of the given blocks of a stream."""
        distinct, where = np.unique(block, return_inverse=True)
        state = start_state(np.array(self.key, "<u4").tobytes(), stream.to_bytes(8, "little"))
        return chacha_blocks(state, distinct, ROUNDS)[word, where.reshape(-1)]


@lru_cache(maxsize=1)
def _library() -> Any:
    """Return the C kernel, which makes words a hundred times faster, or None without it."""
    try:
        return native.library()
    except MissingDependency:
        return None


def _check_range(start: int, count: int, size: int) -> None:
    """Refuse coordinates ``start .. start + count - 1`` that are not in ``0 .. size - 1``."""
    if not (start >= 0 and count >= 0 and start + count <= size):
        given = (start, start + count)
        raise InvalidParameter.of("range of coordinates", f"within the draw's 0 .. {size}", given)


def check_bytes(value: Any, name: str, *sizes: int) -> None:
    """Refuse anything but bytes of one of these lengths; the refusal never shows the bytes."""
    if isinstance(value, bytes) and len(value) in sizes:
        return
    rule = " or ".join(str(size) for size in sizes) + " bytes"
    given = type(value).__name__
    if isinstance(value, bytes | bytearray):
        given = f"{given} of length {len(value)}"
    raise InvalidParameter.of(name, rule, given)


def start_state(key: bytes, nonce: bytes = bytes(8)) -> NDArray[np.uint32]:
    """Return the sixteen words that a stream starts from, at block number 0."""
    check_bytes(key, "key", 16, 32)
    check_bytes(nonce, "nonce", 8)
    start = SIGMA + key if len(key) == 32 else TAU + key + key
    return np.frombuffer(start + bytes(8) + nonce, dtype="<u4").astype(np.uint32)


def chacha_blocks(
    state: NDArray[np.uint32], blocks: NDArray[Any], rounds: int = 20
) -> NDArray[np.uint32]:
    """Return the sixteen words of each block, numbered from the one in ``state`` on.

    The result has shape (16, blocks), after the leading axes of ``state``.
    """
    first = state[..., 12] | (state[..., 13].astype(np.uint64) << HALF)
    number = first[..., None] + blocks.astype(np.uint64)
    start = [np.broadcast_to(state[..., word, None], number.shape) for word in range(16)]
    start[12] = (number & LOW32).astype(np.uint32)
    start[13] = (number >> HALF).astype(np.uint32)
    x = [word.copy() for word in start]
    for turn in range(rounds):
        for column in range(4):
            a, b, c, d = (4 * row + (column + row * (turn % 2)) % 4 for row in range(4))
            x[a] += x[b]
            x[d] = _rotate_bits(x[d] ^ x[a], 16)
            x[c] += x[d]
            x[b] = _rotate_bits(x[b] ^ x[c], 12)
            x[a] += x[b]
            x[d] = _rotate_bits(x[d] ^ x[a], 8)
            x[c] += x[d]
            x[b] = _rotate_bits(x[b] ^ x[c], 7)
    return np.stack([word + begin for word, begin in zip(x, start, strict=True)], axis=-2)


def _rotate_bits(word: Any, by: int) -> Any:
    return (word << np.uint32(by)) | (word >> np.uint32(32 - by))
