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

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, require, require_module

__all__ = [
    "KEY_SIZE",
    "TAG_SIZE",
    "Mask",
    "agree",
    "check_public",
    "derive",
    "expand",
    "new_private_key",
    "open_sealed",
    "public_key",
    "seal",
]

Mask: TypeAlias = NDArray[np.uint32]

KEY_SIZE = 32
TAG_SIZE = 16  # what sealing adds
FIELD = 2**255 - 19
_NONCE = bytes(12)
_PROBE = bytes(range(1, 33))  # any private key finds a point of small order


def new_private_key() -> bytes:
    """A fresh X25519 private key of the operating system's randomness."""
    return bytes(_x25519().X25519PrivateKey.generate().private_bytes_raw())


def public_key(private: bytes | bytearray) -> bytes:
    """The public key of a private one."""
    return bytes(_x25519().X25519PrivateKey.from_private_bytes(bytes(private)).public_key().public_bytes_raw())


def check_public(public: bytes) -> None:
    """Refuse a public key of small order, of another length, or in another form than its canonical one."""
    fine = isinstance(public, bytes) and len(public) == KEY_SIZE and int.from_bytes(public, "little") < FIELD
    require(fine, "public key", public, f"{KEY_SIZE} bytes of a number below 2^255 - 19")
    agree(_PROBE, public)


def agree(private: bytes | bytearray, public: bytes) -> bytes:
    """The secret that two clients share; a public key of small order is refused."""
    x25519 = _x25519()
    try:
        theirs = x25519.X25519PublicKey.from_public_bytes(public)
        return bytes(x25519.X25519PrivateKey.from_private_bytes(bytes(private)).exchange(theirs))
    except ValueError as error:
        raise InvalidParameter("public key must be 32 bytes of a point of large order, got another.") from error


def derive(secret: bytes | bytearray, purpose: bytes, context: bytes) -> bytes:
    """A key of 32 bytes for one purpose in one context."""
    hashes = require_module("cryptography.hazmat.primitives.hashes", "all")
    hkdf = require_module("cryptography.hazmat.primitives.kdf.hkdf", "all")
    info = b"quietbit/secure/2/" + purpose + b"/" + context
    return bytes(hkdf.HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(bytes(secret)))


def expand(key: bytes, dimension: int) -> Mask:
    """The mask of a key: ``dimension`` words of 32 bits."""
    ciphers = require_module("cryptography.hazmat.primitives.ciphers", "all")
    encryptor = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(4 * dimension)), dtype="<u4").astype(np.uint32, copy=False)


def seal(key: bytes, plain: bytes, context: bytes) -> bytes:
    """Encrypted and authenticated, together with its context; the key must not seal anything else."""
    return bytes(_aead().ChaCha20Poly1305(key).encrypt(_NONCE, plain, context))


def open_sealed(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """What was sealed; refused if it or its context was changed."""
    exceptions = require_module("cryptography.exceptions", "all")
    try:
        return bytes(_aead().ChaCha20Poly1305(key).decrypt(_NONCE, sealed, context))
    except exceptions.InvalidTag as error:
        raise InvalidParameter("sealed shares must be genuine, got ones that fail their authentication.") from error


def _x25519() -> Any:
    return require_module("cryptography.hazmat.primitives.asymmetric.x25519", "all")


def _aead() -> Any:
    return require_module("cryptography.hazmat.primitives.ciphers.aead", "all")
