"""The cryptography of a masked sum: key agreement, masks, sealed shares and secret sharing.

Idea     two clients agree on a secret by X25519; HKDF turns it into a key for one purpose in one
         round; AES-256 in counter mode expands a key into a mask; ChaCha20-Poly1305 seals shares,
         bound to who sends them to whom. A shared secret is the value at 0 of a random polynomial
         of degree t - 1; any t values determine it, fewer say nothing about it.
Symbols  a mask is a vector of whole numbers below 2^32, used modulo 2^bits. Shares and secrets are
         modulo 2^128 - 159, the largest prime below 2^128; holder i has the value at i.
Source   RFC 7748 (X25519), RFC 5869 (HKDF), NIST SP 800-38A (counter mode), RFC 8439
         (ChaCha20-Poly1305); Shamir, "How to share a secret" (CACM 1979).

Every key is used once: a mask key expands one mask from counter 0, a sealing key seals one message
with nonce 0. X25519 reads several byte strings as one public key (the unused top bit, numbers above
its prime): only the canonical one is accepted here, and both public keys of a pair go into every
key that is derived from its secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, check_int, require
from quietbit.secagg.identity import primitive
from quietbit.target import MOST_CLIENTS

__all__ = [
    "KEY_SIZE",
    "PRIME",
    "SHARE_SIZE",
    "Mask",
    "agree",
    "check_public",
    "derive",
    "expand",
    "new_private_key",
    "new_secret",
    "open_sealed",
    "public_key",
    "recover",
    "seal",
    "share",
]

KEY_SIZE = 32
SECRET_SIZE = 16
SHARE_SIZE = 16
PRIME = 2**128 - 159
FIELD = 2**255 - 19
_NONCE = bytes(12)
_PROBE = bytes(range(1, 33))  # any private key detects a point of small order
Secret: TypeAlias = bytes | bytearray
Mask: TypeAlias = NDArray[np.uint32]


def new_private_key() -> bytes:
    """Return a new X25519 private key from the operating system's randomness."""
    return bytes(primitive("asymmetric.x25519").X25519PrivateKey.generate().private_bytes_raw())


def public_key(private: Secret) -> bytes:
    """Return the public key of a private one."""
    key = primitive("asymmetric.x25519").X25519PrivateKey.from_private_bytes(bytes(private))
    return bytes(key.public_key().public_bytes_raw())


def check_public(public: bytes) -> None:
    """Refuse a public key of small order, of another length, or not in canonical form."""
    is_key = isinstance(public, bytes) and len(public) == KEY_SIZE
    is_canonical = is_key and int.from_bytes(public, "little") < FIELD
    rule = f"{KEY_SIZE} bytes of a number below 2^255 - 19"
    require(is_canonical, "public key", public, rule)
    _probe(public)


@lru_cache(maxsize=1 << 14)  # a simulation checks each key once per client
def _probe(public: bytes) -> None:
    agree(_PROBE, public)


def agree(private: Secret, public: bytes) -> bytes:
    """Return the secret that two clients share; refuse a public key of small order."""
    x25519 = primitive("asymmetric.x25519")
    try:
        theirs = x25519.X25519PublicKey.from_public_bytes(public)
        return bytes(x25519.X25519PrivateKey.from_private_bytes(bytes(private)).exchange(theirs))
    except ValueError as error:
        rule = f"{KEY_SIZE} bytes of a point of large order"
        raise InvalidParameter.of("public key", rule, public) from error


def derive(secret: Secret, purpose: bytes, context: bytes) -> bytes:
    """Return a key of 32 bytes that is derived from a secret for one purpose in one context."""
    info = b"quietbit/secure/2/" + purpose + b"/" + context
    hkdf = primitive("kdf.hkdf").HKDF(
        algorithm=primitive("hashes").SHA256(), length=32, salt=None, info=info
    )
    return bytes(hkdf.derive(bytes(secret)))


def expand(key: bytes, dimension: int) -> Mask:
    """Return the mask of a key: ``dimension`` words of 32 bits."""
    cipher = primitive("ciphers.algorithms").AES(key)
    mode = primitive("ciphers.modes").CTR(bytes(16))
    words = primitive("ciphers").Cipher(cipher, mode).encryptor().update(bytes(4 * dimension))
    return np.frombuffer(words, dtype="<u4").astype(np.uint32, copy=False)


def seal(key: bytes, plain: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate a message with its context; a key must seal one message only."""
    return bytes(primitive("ciphers.aead").ChaCha20Poly1305(key).encrypt(_NONCE, plain, context))


def open_sealed(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Return the sealed message; refuse it if it or its context was changed."""
    from cryptography.exceptions import InvalidTag

    try:
        return bytes(
            primitive("ciphers.aead").ChaCha20Poly1305(key).decrypt(_NONCE, sealed, context)
        )
    except InvalidTag as error:
        raise InvalidParameter(
            "The sealed message fails its authentication.", name="sealed message"
        ) from error


def new_secret() -> bytes:
    """Return a new secret from the operating system's randomness, uniform below the prime."""
    return secrets.randbelow(PRIME).to_bytes(SECRET_SIZE, "big")


def share(secret: Secret, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Return a share of a secret for every holder, numbered from 1; ``threshold`` recover it."""
    require(len(secret) == SECRET_SIZE, "length of the secret", len(secret), f"{SECRET_SIZE} bytes")
    number = int.from_bytes(secret, "big")
    if not number < PRIME:
        raise InvalidParameter.of("secret", "below the prime of the shares")
    threshold = check_int(threshold, "threshold", 1, len(holders))
    are_distinct = len(set(holders)) == len(holders)
    are_numbers = all(1 <= holder <= MOST_CLIENTS for holder in holders)
    rule = f"distinct whole numbers from 1 to {MOST_CLIENTS}"
    require(are_distinct and are_numbers, "holders", list(holders), rule)
    polynomial = [secrets.randbelow(PRIME) for _ in range(threshold - 1)] + [number]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in polynomial:
            value = (value * holder + coefficient) % PRIME
        shares[holder] = value.to_bytes(SHARE_SIZE, "big")
    return shares


def recover(shares: Mapping[int, bytes], threshold: int, left_out: int | None = None) -> bytes:
    """Return the secret of ``threshold`` shares or more, of which one can be ``left_out``.

    All shares must be genuine. Whichever one is left out, the weights of all are computed once.
    """
    count = len(shares) - (left_out in shares)
    require(count >= threshold, "number of shares", count, f"at least {threshold}, the threshold")
    holders = tuple(sorted(shares))
    values = [int.from_bytes(shares[holder], "big") for holder in holders]
    have_size = all(len(shares[holder]) == SHARE_SIZE for holder in holders)
    if not have_size or max(values) >= PRIME:
        raise InvalidParameter.of("shares", f"numbers of {SHARE_SIZE} bytes below the prime")
    secret = 0
    if left_out is not None and left_out in shares:
        for holder, weight, value in zip(holders, _at_zero(holders), values, strict=True):
            secret += weight * (holder - left_out) % PRIME * value
        secret = secret * pow(-left_out, -1, PRIME)
    else:
        secret = sum(w * v for w, v in zip(_at_zero(holders), values, strict=True))
    return (secret % PRIME).to_bytes(SECRET_SIZE, "big")


@lru_cache(maxsize=64)
def _at_zero(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange's coefficients at 0, which are the same for many secrets."""
    coefficients = []
    for i in holders:
        above = 1
        below = 1
        for j in holders:
            if j != i:
                above = above * -j % PRIME
                below = below * (i - j) % PRIME
        coefficients.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(coefficients)
