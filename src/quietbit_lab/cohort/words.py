"""Words of a simulated cohort: one key, every word at an address of its own.

Idea     a simulation randomises configurations x clients x classes x features bits a round. Each has its own 16
         primary and 48 tie bits, a function of the key and of (stream, client, class, feature), so any kernel finds
         any word and no two bits share one. `stream` is the configuration's number.
philox   Philox4x32 with 10 rounds, as in the kernel's `rng.py`: passes all known statistical tests, and is no cipher. A
         simulation needs no more: the data are the simulator's own.
chacha12 the stream cipher of the kernel's `rng.py`: for a cohort whose randomness must stay unpredictable.
Symbols  row = 32 (f div 256) + f mod 32 and place j = (f mod 256) div 32: a GPU's thread owns a row, its eight places
         and all clients; kind 0 holds primary words, two to a 32-bit word, the lower half first, the others hold ties.

Addresses. philox: counter words (client, row, stream, class + 2^24 kind), xored with four words of the key; primary
word j div 2 of kind 0; ties of place j are words 2 (j mod 2) and the next of kind 1 + j div 2. chacha12: block number
2^32 (class rows + row) + client div 4 and nonce stream + 2^24 kind; primary word 4 (client mod 4) + j div 2 of kind 0;
ties are words 2 j and the next of kind 1, block 2^32 (class rows + row) + client. With client, class rows + row below
2^32 and class, stream below 2^24 no two addresses are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import require
from quietbit.kernel.rng import ROUNDS, chacha_block, philox_rounds

__all__ = ["GENERATORS", "MAX_STREAM", "TILE", "check_generator", "key_numbers", "row_count", "words_of"]

GENERATORS = ("philox", "chacha12")
TILE = 256  # features of 32 rows
MAX_STREAM = 2**24
KIND = 24


def key_numbers(words_key: bytes) -> tuple[int, ...]:
    """The key as eight whole numbers; refused unless it has 32 bytes."""
    fine = isinstance(words_key, bytes | bytearray) and len(words_key) == 32
    require(fine, "words_key", f"{type(words_key).__name__} of another length or type", "32 bytes")
    return tuple(np.frombuffer(bytes(words_key), dtype="<u4").tolist())


def check_generator(generator: str) -> str:
    """One of the generators' names."""
    require(generator in GENERATORS, "generator", generator, "one of " + ", ".join(GENERATORS))
    return generator


def row_count(features: int) -> int:
    """Rows of one class: whole tiles."""
    return 32 * -(-features // TILE)


def words_of(
    key: tuple[int, ...],
    generator: str,
    stream: int,
    clients: NDArray[np.int64],
    classes: int,
    features: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Primary and tie words of some clients of one configuration, each of shape (clients, classes, features)."""
    f = np.arange(features)
    row, place = 32 * (f // TILE) + f % 32, f % TILE // 32
    client, kind, at = np.broadcast_arrays(clients[:, None, None], np.arange(classes)[None, :, None], row)
    place = np.broadcast_to(place, at.shape)
    if generator == "philox":
        first = _philox(key, client, at, stream, kind, 0)
        pairs = np.stack([_philox(key, client, at, stream, kind, 1 + turn) for turn in range(4)])
        word = _pick(first, place // 2)
        chosen = _pick(pairs, place // 2)
        low, high = _pick(chosen, 2 * (place % 2)), _pick(chosen, 2 * (place % 2) + 1)
    else:
        coordinate = (kind * row_count(features) + at).astype(np.int64) << 32
        first = _chacha(key, coordinate + client // 4, stream)
        ties = _chacha(key, coordinate + client, stream + (1 << KIND))
        word = _pick(first, 4 * (client % 4) + place // 2)
        low, high = _pick(ties, 2 * place), _pick(ties, 2 * place + 1)
    primary = (word >> (16 * (place % 2))) & 0xFFFF
    return primary, low | ((high & 0xFFFF) << 32)


def _pick(words: Any, which: Any) -> Any:
    """Along the first axis."""
    return np.take_along_axis(words, which.reshape(1, *(1,) * (words.ndim - 1 - which.ndim), *which.shape), axis=0)[0]


def _philox(key: tuple[int, ...], client: Any, row: Any, stream: int, kind: Any, turn: int) -> Any:
    counter = (client, row, np.full(row.shape, stream), kind + (turn << KIND))
    white = [
        (part ^ np.int64(word)).astype(np.uint32) for part, word in zip(counter, (*key[4:6], *key[2:4]), strict=True)
    ]
    return philox_rounds(white, key[0], key[1], ROUNDS["philox"]).astype(np.int64)


def _chacha(key: tuple[int, ...], block: Any, nonce: int) -> Any:
    flat = chacha_block(key, nonce, block.reshape(-1), ROUNDS["chacha12"])
    return flat.reshape(16, *block.shape).astype(np.int64)
