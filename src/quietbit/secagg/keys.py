"""Key agreement, masks and sealed shares.

Idea     two clients agree on a secret by X25519; HKDF turns it into a key for one purpose in one round; AES-256 in
         counter mode expands a key into a mask; ChaCha20-Poly1305 seals shares, bound to who sends them to whom.
Symbols  k: bits per coordinate; a mask is a vector of whole numbers below 2^32, used modulo 2^k.
Source   RFC 7748 (X25519), RFC 5869 (HKDF), NIST SP 800-38A (counter mode), RFC 8439 (ChaCha20-Poly1305).

Every key is used once: a mask key expands one mask from counter 0, a sealing key seals one message with nonce 0. The
two directions of a pair have different sealing keys. X25519 ignores the top bit of a public key and reads numbers above
its prime as others; so several byte strings would be one key. Only the canonical one is accepted here, and both public
keys of a pair go into every key that is derived from its secret.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from quietbit.errors import InvalidParameter, require
from quietbit.secagg.plan import KEY_SIZE, Mask

__all__ = ["agree", "check_public", "derive", "expand", "new_private_key", "open_sealed", "public_key", "seal"]

FIELD = 2**255 - 19
_NONCE = bytes(12)
_PROBE = bytes(range(1, 33))  # any private key finds a point of small order
Secret: TypeAlias = bytes | bytearray


def new_private_key() -> bytes:
    """Return a fresh X25519 private key of the operating system's randomness."""
    return bytes(_x25519().X25519PrivateKey.generate().private_bytes_raw())


def public_key(private: Secret) -> bytes:
    """Return the public key of a private one."""
    return bytes(_x25519().X25519PrivateKey.from_private_bytes(bytes(private)).public_key().public_bytes_raw())


def check_public(public: bytes) -> None:
    """Refuse a public key of small order, of another length, or in another form than its canonical one."""
    fine = isinstance(public, bytes) and len(public) == KEY_SIZE and int.from_bytes(public, "little") < FIELD
    require(fine, "public key", public, f"{KEY_SIZE} bytes of a number below 2^255 - 19")
    _probe(public)


@lru_cache(maxsize=1 << 14)  # public: one process that plays server and clients asks for each of them again
def _probe(public: bytes) -> None:
    agree(_PROBE, public)


def agree(private: Secret, public: bytes) -> bytes:
    """Return the secret that two clients share; a public key of small order is refused."""
    x25519 = _x25519()
    try:
        theirs = x25519.X25519PublicKey.from_public_bytes(public)
        return bytes(x25519.X25519PrivateKey.from_private_bytes(bytes(private)).exchange(theirs))
    except ValueError as error:
        raise InvalidParameter("public key must be 32 bytes of a point of large order, got another.") from error


def derive(secret: Secret, purpose: bytes, context: bytes) -> bytes:
    """Return a key of 32 bytes for one purpose in one context."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"quietbit/secure/2/" + purpose + b"/" + context
    return bytes(HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(bytes(secret)))


def expand(key: bytes, dimension: int) -> Mask:
    """Return the mask of a key: ``dimension`` words of 32 bits."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    words = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(4 * dimension))
    return np.frombuffer(words, dtype="<u4").astype(np.uint32, copy=False)


def seal(key: bytes, plain: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate, together with its context; the key must not seal anything else."""
    return bytes(_sealer(key).encrypt(_NONCE, plain, context))


def open_sealed(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Return what was sealed; refused if it or its context was changed."""
    from cryptography.exceptions import InvalidTag

    try:
        return bytes(_sealer(key).decrypt(_NONCE, sealed, context))
    except InvalidTag as error:
        raise InvalidParameter("sealed shares must be genuine, got ones that fail their authentication.") from error


def _x25519() -> Any:
    from cryptography.hazmat.primitives.asymmetric import x25519  # imported when it is first used

    return x25519


def _sealer(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key)
