"""Random words made inside a GPU kernel, keyed per draw by the operating system; the same words in numpy.

Idea     a draw takes 256 fresh bits from the operating system; every word is a function of that key and of
         the coordinate's number, so a kernel makes its words in registers and nothing is read from memory.
         The functions here make the same words on the host: they are what the kernels are tested against.
chacha12 Bernstein's ChaCha with 12 rounds, 256-bit key and 64-bit block number: a stream cipher. Nobody who
         lacks the key can tell its words from uniform ones; the best published attacks reach 7 rounds. This is
         the default.
philox   Philox4x32 with 10 rounds: a generator that passes all known statistical tests and is about three
         times cheaper. It is NOT a cipher: nobody has shown it hard to predict. The privacy guarantee then
         holds against observers who do not attack the generator. It uses 192 bits of the key (its own 64, and
         128 that whiten and extend its counter).
philox7  The same with 7 rounds, the fewest with which its authors found it to pass every test of BigCrush; they
         added three for safety. For simulations, and where the last tenth of speed counts more than that margin.
Symbols  i the coordinate; primary words are 16 bits, two to a 32-bit word, the lower half first; tie words are
         48 bits. Streams 0 and 1 hold primary and tie words, mechanisms' own streams start at 2.
Source   Bernstein, "ChaCha, a variant of Salsa20" (2008); RFC 8439 for the rounds; Salmon et al., "Parallel
         random numbers" (SC 2011) for Philox.

Addressing. chacha12: stream s of a draw is the block sequence with nonce (s, 0). One block is 16 words, hence 32
primary words; a GPU thread owns 8 neighbouring coordinates in each of four rows 1,024 coordinates apart, so
coordinate i reads block 128 (i div 4096) + (i mod 1024) div 8, word 4 ((i mod 4096) div 1024) + (i mod 8) div
2. philox: coordinate i reads counter i div 8, word (i mod 8) div 2. Both maps use every word once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import require, whole_number
from quietbit.kernel.rng import MAX_COUNT, OTHER, PRIMARY, TIES, Indices, RandomBits, WordReader, Words16, Words64

__all__ = ["GENERATORS", "DeviceBlock", "chacha_block", "device_words", "philox_block"]

ROUNDS = {"chacha12": 12, "philox": 10, "philox7": 7}
GENERATORS = tuple(ROUNDS)
SIGMA = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
PHILOX_M0, PHILOX_M1 = 0xD2511F53, 0xCD9E8D57
PHILOX_W0, PHILOX_W1 = 0x9E3779B9, 0xBB67AE85
LANES = 128  # chacha12: GPU threads that share a tile of 4,096 coordinates
TILE = 32 * LANES
Words32: TypeAlias = NDArray[np.uint32]


def device_words(generator: str = "chacha12") -> RandomBits:
    """Words that GPU kernels make themselves: ``chacha12`` (cryptographic), ``philox`` or ``philox7`` (faster, not).

    Every draw is keyed by 32 fresh bytes of the operating system. Other kernels accept them too and get the
    same words from numpy, slowly.

    >>> device_words()
    device_words('chacha12')
    """
    require(generator in GENERATORS, "generator", generator, "one of " + ", ".join(GENERATORS))
    return _DeviceWords(generator)


@final
@dataclass(frozen=True, slots=True)
class _DeviceWords:
    generator: str

    def draw(self, count: int) -> DeviceBlock:
        size = whole_number(count, "count", 0, MAX_COUNT)
        return DeviceBlock(size, self.generator, tuple(np.frombuffer(os.urandom(32), dtype="<u4").tolist()))

    def __repr__(self) -> str:
        return f"device_words({self.generator!r})"


@final
@dataclass(frozen=True, slots=True)
class DeviceBlock:
    """One draw: a generator and its key of eight 32-bit words, which `repr` does not show."""

    count: int
    generator: str
    key: tuple[int, ...] = field(repr=False)

    def primary(self, start: int, count: int) -> Words16:
        """The primary words of some coordinates."""
        _inside(start, count, self.count)
        i = np.arange(start, start + count, dtype=np.int64)
        if self.generator != "chacha12":
            block, word = i // 8, (i % 8) // 2
        else:
            block, word = LANES * (i // TILE) + (i % (8 * LANES)) // 8, 4 * (i % TILE // (8 * LANES)) + (i % 8) // 2
        chosen = self._words(PRIMARY, block, word)
        return ((chosen >> (16 * (i % 2)).astype(np.uint32)) & np.uint32(0xFFFF)).astype(np.uint16)

    def reader(self, start: int) -> WordReader:
        """A reader of primary words."""
        _inside(start, 0, self.count)
        return _Reader(self, start)

    def ties(self, indices: Indices) -> Words64:
        """The tie words of some coordinates: 48 bits each."""
        i = np.asarray(indices, dtype=np.int64)
        if i.size:
            _inside(int(i.min()), 0, self.count)
            _inside(int(i.max()), 1, self.count)
        return self._pairs(TIES, i) & np.uint64(2**48 - 1)

    def uniform64(self, stream: int, start: int, count: int) -> Words64:
        """Full words of a mechanism's own stream."""
        number = whole_number(stream, "stream", 0, 64)
        first, size = whole_number(start, "start", 0, MAX_COUNT), whole_number(count, "count", 0, MAX_COUNT)
        return self._pairs(OTHER + number, np.arange(first, first + size, dtype=np.int64))

    def _pairs(self, stream: int, i: Indices) -> Words64:
        """64 bits for each i: words 2 i and 2 i + 1 of a stream, the lower half first."""
        per_block = 8 if self.generator == "chacha12" else 2
        block, word = i // per_block, 2 * (i % per_block)
        low, high = self._words(stream, block, word), self._words(stream, block, word + 1)
        return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))

    def _words(self, stream: int, block: Indices, word: Indices) -> Words32:
        expand: Callable[..., Words32] = chacha_block if self.generator == "chacha12" else philox_block
        distinct, where = np.unique(block, return_inverse=True)
        return expand(self.key, stream, distinct, ROUNDS[self.generator])[word, where.reshape(-1)]


@final
@dataclass(slots=True, eq=False)
class _Reader:
    _block: DeviceBlock
    _position: int

    def fill(self, out: Words16) -> None:
        out[:] = self._block.primary(self._position, out.size)
        self._position += out.size


def chacha_block(key: tuple[int, ...], stream: int, block: Indices, rounds: int) -> Words32:
    """The 16 words of each block, one row per word."""
    number = block.astype(np.uint64)
    low, high = (number & np.uint64(0xFFFFFFFF)).astype(np.uint32), (number >> np.uint64(32)).astype(np.uint32)
    fixed = [np.full(block.shape, value, np.uint32) for value in (*SIGMA, *key)]
    start = [*fixed, low, high, np.full(block.shape, stream, np.uint32), np.zeros(block.shape, np.uint32)]
    x = [word.copy() for word in start]
    for turn in range(rounds):
        for column in range(4):
            a, b, c, d = (4 * row + (column + row * (turn % 2)) % 4 for row in range(4))
            x[a] = x[a] + x[b]
            x[d] = _rotate(x[d] ^ x[a], 16)
            x[c] = x[c] + x[d]
            x[b] = _rotate(x[b] ^ x[c], 12)
            x[a] = x[a] + x[b]
            x[d] = _rotate(x[d] ^ x[a], 8)
            x[c] = x[c] + x[d]
            x[b] = _rotate(x[b] ^ x[c], 7)
    return np.stack([word + first for word, first in zip(x, start, strict=True)])


def philox_block(key: tuple[int, ...], stream: int, block: Indices, rounds: int) -> Words32:
    """The 4 words of each counter, one row per word."""
    number = block.astype(np.uint64)
    low = (number & np.uint64(0xFFFFFFFF)).astype(np.uint32) ^ np.uint32(key[4])
    high = ((number >> np.uint64(32)).astype(np.uint32) | np.uint32(stream << 24)) ^ np.uint32(key[5])
    counter = [low, high, *(np.full(block.shape, value, np.uint32) for value in key[2:4])]
    return philox_rounds(counter, key[0], key[1], rounds)


def philox_rounds(counter: list[Any], key_0: int, key_1: int, rounds: int) -> Words32:
    """Philox4x32 itself, on arrays of counter words."""
    c0, c1, c2, c3 = counter
    for turn in range(rounds):
        k0, k1 = (key_0 + turn * PHILOX_W0) & 0xFFFFFFFF, (key_1 + turn * PHILOX_W1) & 0xFFFFFFFF
        first = c0.astype(np.uint64) * np.uint64(PHILOX_M0)
        second = c2.astype(np.uint64) * np.uint64(PHILOX_M1)
        c0 = (second >> np.uint64(32)).astype(np.uint32) ^ c1 ^ np.uint32(k0)
        c2 = (first >> np.uint64(32)).astype(np.uint32) ^ c3 ^ np.uint32(k1)
        c1, c3 = second.astype(np.uint32), first.astype(np.uint32)
    return np.stack([c0, c1, c2, c3])


def _rotate(word: Words32, by: int) -> Words32:
    return (word << np.uint32(by)) | (word >> np.uint32(32 - by))


def _inside(start: int, count: int, size: int) -> None:
    fits = start >= 0 and count >= 0 and start + count <= size
    require(fits, "coordinates asked for", (start, start + count), f"inside the draw's 0 .. {size}")
