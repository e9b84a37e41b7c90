"""The members of masked sums: their signing keys, and a directory that an operator signs.

Idea     a server that could invent clients, or replace their keys with its own, could unmask
         everything. So every node has an Ed25519 key, and a directory lists the keys of all nodes.
         It is signed by an operator whom the nodes' owners trust and whose public key their
         policies hold; the server only forwards it. The operator must not be the server, and
         vouches that the members are different nodes.
Symbols  an identity is a private key; a member is a name and a public key; the operator has an
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

from quietbit._files import PRIVATE, others
from quietbit.errors import InvalidParameter, QuietbitError, require

__all__ = [
    "PUBLIC_SIZE",
    "SIGNATURE_SIZE",
    "Identity",
    "Member",
    "MemberList",
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
DOMAIN = b"quietbit/identity/1/"


@final
class Identity:
    """A private signing key, which `repr` does not show and pickling refuses."""

    __slots__ = ("_key", "public")

    def __init__(self, private: bytes) -> None:
        """Make an identity from 32 private bytes."""
        size = len(private)
        require(size == PUBLIC_SIZE, "length of the private key", size, f"{PUBLIC_SIZE} bytes")
        ed25519 = primitive("asymmetric.ed25519")
        self._key: Any = ed25519.Ed25519PrivateKey.from_private_bytes(private)
        self.public: bytes = bytes(self._key.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        """Show the public key only."""
        return f"Identity({self.public.hex()})"

    def __reduce__(self) -> Any:
        """Refuse to pickle a private key."""
        raise TypeError("An Identity cannot be pickled: write its key with save.")

    @classmethod
    def new(cls) -> Identity:
        """Return a new identity from the operating system's randomness."""
        return cls(primitive("asymmetric.ed25519").Ed25519PrivateKey.generate().private_bytes_raw())

    def sign(self, purpose: bytes, message: bytes) -> bytes:
        """Sign a message for one purpose."""
        return bytes(self._key.sign(_bound(purpose, message)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the private key to a new file that only its owner can read."""
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
        """Read the file of `save`; refuse one that users other than its owner can read."""
        data = read_file(path, 4096, "key", PRIVATE)
        try:
            key = primitive("serialization").load_pem_private_key(data, password=None)
            return cls(bytes(key.private_bytes_raw()))
        except Exception as error:  # the library has no common error for what is not a key
            remedy = "make one with quietbit node keys"
            raise InvalidParameter.of(
                "key", "a private Ed25519 key in PEM", os.fspath(path), remedy
            ) from error


class Member(NamedTuple):
    """A node's name, which the operator chooses, and its public key."""

    name: str
    key: bytes


@final
@frozen
class MemberList:
    """The members that an operator vouches for; requests name them by their places, from 0."""

    members: tuple[Member, ...] = field()

    @members.validator
    def _check(self, _: Any, members: tuple[Member, ...]) -> None:
        """Refuse names and keys of the wrong form, and those that two members share."""
        for name, key in members:
            is_name = isinstance(name, str) and 1 <= len(name) <= 200 and name.isprintable()
            require(is_name, "name of the member", name, "1 to 200 printable characters")
            is_key = isinstance(key, bytes) and len(key) == PUBLIC_SIZE
            require(is_key, "key of the member", key, f"{PUBLIC_SIZE} bytes")
        count = len(members)
        require(1 <= count <= MOST_MEMBERS, "number of members", count, f"from 1 to {MOST_MEMBERS}")
        for what in ("name", "key"):
            distinct = len({getattr(member, what) for member in members})
            repeated = f"{count - distinct} repeated"
            require(distinct == count, f"{what}s of the members", repeated, "all different")

    @cached_property
    def _places(self) -> dict[bytes, int]:
        return {member.key: place for place, member in enumerate(self.members)}

    @classmethod
    def of(cls, members: Iterable[tuple[str, bytes]]) -> MemberList:
        """Return the directory of these names and public keys."""
        return cls(tuple(Member(name, key) for name, key in members))

    def place(self, key: bytes) -> int | None:
        """Return the place of the member with this key; None if there is none."""
        return self._places.get(key)

    def keys(self, places: Iterable[int]) -> tuple[bytes, ...]:
        """Return the public keys of the members at these places; refuse places beyond the list."""
        keys = []
        for place in places:
            if not 0 <= place < len(self.members):
                rule = f"from 0 to {len(self.members) - 1}"
                raise InvalidParameter.of("place in the directory", rule, place)
            keys.append(self.members[place].key)
        return tuple(keys)

    def signed(self, operator: Identity) -> str:
        """Return the text of the directory's file, with the operator's signature."""
        signature = operator.sign(b"directory", self._text()).hex()
        return json.dumps({**self._values(), "signature": signature}, indent=1) + "\n"

    @classmethod
    def read(cls, text: str | bytes, operator: bytes) -> MemberList:
        """Read a text of `signed`; refuse one that the operator of this public key did not sign."""
        try:
            values = json.loads(text)
            known = {"format", "version", "members", "signature"}
            if set(values) != known or (values["format"], values["version"]) != (FORMAT, VERSION):
                raise ValueError("another format")
            directory = cls.of(
                (entry["name"], bytes.fromhex(entry["key"])) for entry in values["members"]
            )
            signature = bytes.fromhex(values["signature"])
        except QuietbitError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            remedy = "make one with quietbit node directory"
            raise InvalidParameter(
                f"The directory cannot be read ({type(error).__name__}): {remedy}.",
                name="directory",
                remedy=remedy,
            ) from error
        if not verified(operator, b"directory", directory._text(), signature):
            rule = f"signed by the operator with the public key {operator.hex()}"
            raise InvalidParameter.of("directory", rule)
        return directory

    @classmethod
    def load(cls, path: str | os.PathLike[str], operator: bytes) -> MemberList:
        """Read a directory file; refuse one that the operator did not sign."""
        return cls.read(read_file(path, MOST_BYTES, "directory"), operator)

    def _values(self) -> dict[str, Any]:
        members = [{"name": member.name, "key": member.key.hex()} for member in self.members]
        return {"format": FORMAT, "version": VERSION, "members": members}

    def _text(self) -> bytes:
        return json.dumps(self._values(), sort_keys=True, separators=(",", ":")).encode("ascii")


@lru_cache(maxsize=1 << 16)
def verified(public: bytes, purpose: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether this key signed the message for this purpose; cached per process."""
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
    """Read a regular file of at most ``most`` bytes of which others have no ``barred`` right."""
    try:
        with os.fdopen(
            os.open(Path(path).expanduser(), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb"
        ) as file:
            status = os.fstat(file.fileno())
            require(stat.S_ISREG(status.st_mode), what, os.fspath(path), "a regular file")
            problem = others(status, what, path, barred) if barred else ""
            if problem:
                raise InvalidParameter(problem, name=what)
            data = file.read(most + 1)
    except OSError as error:
        raise QuietbitError(
            f"Cannot read the {what} {os.fspath(path)}: {error.strerror}."
        ) from error
    require(len(data) <= most, f"size of the {what}", len(data), f"at most {most} bytes")
    return data


@cache
def primitive(name: str) -> Any:
    """Import a module of the cryptography package when it is first used: most code needs none."""
    return import_module(f"cryptography.hazmat.primitives.{name}")
