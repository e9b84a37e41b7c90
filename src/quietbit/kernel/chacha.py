"""ChaCha, in numpy: what every other ChaCha of the library is held to.

Idea     a stream is sixteen words to start from (constants, key, block number, nonce); block n of it is a function of
         those words with n added to the block number, so any part can be made anywhere.
Symbols  a state is (constants 4, key 8, block number 2, nonce 2), words of 32 bits, the lower half first.
Source   Bernstein, "ChaCha, a variant of Salsa20" (2008): 64-bit block number and nonce; keys of 128 bits are repeated
         and marked by the constants TAU. RFC 8439 for its test vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter

__all__ = ["SIGMA", "TAU", "chacha_blocks", "start_state"]

SIGMA = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
TAU = (0x61707865, 0x3120646E, 0x79622D36, 0x6B206574)  # "expand 16-byte k"
LOW32, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def start_state(key: bytes, nonce: bytes = bytes(8)) -> NDArray[np.uint32]:
    """Return the sixteen words a stream starts from, at block number 0."""
    if not (isinstance(key, bytes) and len(key) in (16, 32)):
        raise InvalidParameter.of("key", "16 or 32 bytes", _length(key))
    if not (isinstance(nonce, bytes) and len(nonce) == 8):
        raise InvalidParameter.of("nonce", "8 bytes", _length(nonce))
    words = np.frombuffer(key if len(key) == 32 else key + key, dtype="<u4")
    constants = SIGMA if len(key) == 32 else TAU
    tail = np.frombuffer(nonce, dtype="<u4")
    return np.concatenate([np.array(constants, np.uint32), words, np.zeros(2, np.uint32), tail]).astype(np.uint32)


def chacha_blocks(state: NDArray[np.uint32], blocks: NDArray[Any], rounds: int = 20) -> NDArray[np.uint32]:
    """Return the sixteen words of each block, counted from the one ``state`` names: (..., 16, blocks).

    ``state`` may have leading axes, one stream each.
    """
    number = (state[..., 12] | (state[..., 13].astype(np.uint64) << HALF))[..., None] + blocks.astype(np.uint64)
    start = [np.broadcast_to(state[..., word, None], number.shape) for word in range(16)]
    start[12], start[13] = (number & LOW32).astype(np.uint32), (number >> HALF).astype(np.uint32)
    x = [word.copy() for word in start]
    for turn in range(rounds):
        for column in range(4):
            a, b, c, d = (4 * row + (column + row * (turn % 2)) % 4 for row in range(4))
            x[a] += x[b]
            x[d] = _turn(x[d] ^ x[a], 16)
            x[c] += x[d]
            x[b] = _turn(x[b] ^ x[c], 12)
            x[a] += x[b]
            x[d] = _turn(x[d] ^ x[a], 8)
            x[c] += x[d]
            x[b] = _turn(x[b] ^ x[c], 7)
    return np.stack([word + begin for word, begin in zip(x, start, strict=True)], axis=-2)


def _turn(word: Any, by: int) -> Any:
    return (word << np.uint32(by)) | (word >> np.uint32(32 - by))


def _length(value: Any) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes | bytearray) else type(value).__name__
