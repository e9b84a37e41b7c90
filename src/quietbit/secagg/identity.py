"""Who takes part in masked sums: long-term signing keys, and a list of them that an operator vouches for.

Idea     a server that could invent clients, or put its own keys in the place of theirs, would see
         everything. So every node has an Ed25519 key of its own, and a directory, signed by an
         operator whom the nodes' owners trust and whose public key they have written down (pinned),
         says which keys belong to nodes. The server only carries it. The operator must not be the
         server: what a directory is worth is that its members are distinct and real.
Symbols  an identity is a private key; a member is a name and a public key; the operator is an
         identity, too.
Source   RFC 8032 (Ed25519); Bonawitz et al. (CCS 2017), section 6.2, which needs such an
         infrastructure.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from functools import cache, cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, final

from attrs import field, frozen

from quietbit.errors import InvalidParameter, QuietbitError, require

__all__ = [
    "PUBLIC_SIZE",
    "SIGNATURE_SIZE",
    "Directory",
    "Identity",
    "Member",
    "primitive",
    "read_file",
    "verified",
]

FORMAT = "quietbit-directory"
VERSION = 1
MOST_MEMBERS = 100_000
MOST_BYTES = 32 * 2**20
PUBLIC_SIZE = 32
SIGNATURE_SIZE = 64
PRIVATE = 0o077  # permission bits
OTHERS_WRITE = 0o022
DOMAIN = b"quietbit/identity/1/"


@final
class Identity:
    """A private signing key; it signs, says its public key, and shows nothing else."""

    __slots__ = ("_key", "public")

    def __init__(self, private: bytes) -> None:
        """Take 32 private bytes."""
        require(
            len(private) == PUBLIC_SIZE,
            "length of the private key",
            len(private),
            f"{PUBLIC_SIZE} bytes",
        )
        self._key: Any = primitive("asymmetric.ed25519").Ed25519PrivateKey.from_private_bytes(
            private
        )
        self.public: bytes = bytes(self._key.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        """Show the public key alone."""
        return f"Identity({self.public.hex()})"

    def __reduce__(self) -> Any:
        """Refuse: a private key is written by `save` and by nothing else."""
        raise TypeError("An identity is not pickled.")

    @classmethod
    def new(cls) -> Identity:
        """Return a fresh key of the operating system's randomness."""
        return cls(primitive("asymmetric.ed25519").Ed25519PrivateKey.generate().private_bytes_raw())

    def sign(self, purpose: bytes, message: bytes) -> bytes:
        """Sign a message for one purpose."""
        return bytes(self._key.sign(_bound(purpose, message)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the private key to a new file that only its owner can read; nothing is overwritten."""
        forms = primitive("serialization")
        data = self._key.private_bytes(
            forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
        )
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
        except OSError as error:
            raise QuietbitError(
                f"Cannot write the key {os.fspath(path)}: {error.strerror}."
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Identity:
        """Read what `save` wrote; a file that others than its owner can read is refused."""
        data = read_file(path, 4096, "key", PRIVATE)
        try:
            return cls(
                bytes(
                    primitive("serialization")
                    .load_pem_private_key(data, password=None)
                    .private_bytes_raw()
                )
            )
        except Exception as error:  # the library has no one family of errors for what is not a key
            raise InvalidParameter(
                f"{os.fspath(path)} must be a private Ed25519 key in PEM, and is none."
            ) from error


class Member(NamedTuple):
    """A name that means something to the operator, and the public key it vouches for."""

    name: str
    key: bytes


@final
@frozen
class Directory:
    """The members that an operator vouches for; a sum's members are named by their places in it, from 0."""

    members: tuple[Member, ...] = field()

    @members.validator
    def _check(self, _: Any, members: tuple[Member, ...]) -> None:
        """Refuse names and keys that are none, or are there twice: two members must be two nodes."""
        for name, key in members:
            fine = isinstance(name, str) and 1 <= len(name) <= 200 and name.isprintable()
            require(fine, "name of the member", name, "1 to 200 printable characters")
            fine = isinstance(key, bytes) and len(key) == PUBLIC_SIZE
            require(fine, "key of the member", key, f"{PUBLIC_SIZE} bytes")
        count = len(members)
        require(1 <= count <= MOST_MEMBERS, "number of members", count, f"from 1 to {MOST_MEMBERS}")
        for what in ("name", "key"):
            distinct = len({getattr(member, what) for member in members})
            require(
                distinct == count,
                f"{what}s of the members",
                f"{count - distinct} twice",
                "all different",
            )

    @cached_property
    def _places(self) -> dict[bytes, int]:
        return {member.key: place for place, member in enumerate(self.members)}

    @classmethod
    def of(cls, members: Iterable[tuple[str, bytes]]) -> Directory:
        """Make one from names and public keys."""
        return cls(tuple(Member(name, key) for name, key in members))

    def place(self, key: bytes) -> int | None:
        """Return where the member of this key is; None for a stranger."""
        return self._places.get(key)

    def keys(self, places: Iterable[int]) -> tuple[bytes, ...]:
        """Return the public keys of the members at these places; places that there are not are refused."""
        found = list(places)
        fine = all(0 <= place < len(self.members) for place in found)
        require(fine, "places in the directory", "others", f"from 0 to {len(self.members) - 1}")
        return tuple(self.members[place].key for place in found)

    def signed(self, operator: Identity) -> str:
        """Return the text of the file that nodes and the server read, with the operator's signature."""
        signature = operator.sign(b"directory", self._text()).hex()
        return json.dumps({**self._values(), "signature": signature}, indent=1) + "\n"

    @classmethod
    def read(cls, text: str | bytes, operator: bytes) -> Directory:
        """Read such a text; one that the operator with this public key has not signed is refused."""
        try:
            values = json.loads(text)
            known = {"format", "version", "members", "signature"}
            if set(values) != known or (values["format"], values["version"]) != (FORMAT, VERSION):
                raise ValueError("another format")
            found = cls.of(
                (entry["name"], bytes.fromhex(entry["key"])) for entry in values["members"]
            )
            signature = bytes.fromhex(values["signature"])
        except QuietbitError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidParameter(
                "The directory must be one of quietbit's, and cannot be read."
            ) from error
        genuine = verified(operator, b"directory", found._text(), signature)
        require(
            genuine, "directory", "another", "signed by the operator whose key was written down"
        )
        return found

    @classmethod
    def load(cls, path: str | os.PathLike[str], operator: bytes) -> Directory:
        """Read a directory file; one that the operator has not signed is refused."""
        return cls.read(read_file(path, MOST_BYTES, "directory"), operator)

    def _values(self) -> dict[str, Any]:
        members = [{"name": member.name, "key": member.key.hex()} for member in self.members]
        return {"format": FORMAT, "version": VERSION, "members": members}

    def _text(self) -> bytes:
        return json.dumps(self._values(), sort_keys=True, separators=(",", ":")).encode("ascii")


@lru_cache(maxsize=1 << 16)
def verified(public: bytes, purpose: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether a signature is this key's of this message for this purpose; found out once in a process."""
    from cryptography.exceptions import InvalidSignature

    try:
        key = primitive("asymmetric.ed25519").Ed25519PublicKey.from_public_bytes(public)
        key.verify(signature, _bound(purpose, message))
    except (InvalidSignature, ValueError):
        return False
    return True


def _bound(purpose: bytes, message: bytes) -> bytes:
    return DOMAIN + purpose + b"/" + message


def read_file(path: str | os.PathLike[str], most: int, what: str, barred: int = 0) -> bytes:
    """Read a regular file of at most ``most`` bytes, none of whose permission bits are ``barred``."""
    try:
        with os.fdopen(
            os.open(Path(path).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb"
        ) as file:
            mode = os.fstat(file.fileno()).st_mode
            require(stat.S_ISREG(mode), what, os.fspath(path), "a regular file")
            rule = "read (chmod go=)" if barred == PRIVATE else "write (chmod go-w)"
            require(
                not mode & barred, what, os.fspath(path), f"a file that only its owner can {rule}"
            )
            data = file.read(most + 1)
    except OSError as error:
        raise QuietbitError(
            f"Cannot read the {what} {os.fspath(path)}: {error.strerror}."
        ) from error
    require(len(data) <= most, f"size of the {what}", len(data), f"at most {most} bytes")
    return data


@cache
def primitive(name: str) -> Any:
    """Import a module of cryptography's when it is first used: the rest of quietbit does without."""
    return import_module(f"cryptography.hazmat.primitives.{name}")
