"""A client of a masked sum: four steps, five where the server may lie, in order, each once.

Idea     every pair of clients that deal with each other shares a mask that one adds and the other subtracts; each adds
         one of its own, too. Shares of both secrets are spread among those a client has chosen; of each other client
         exactly one secret is ever given up: the pair key of those who left, the own mask's seed of those who stayed.
Symbols  U1: clients that dealt shares; U2: those whose masked vector arrived; t: threshold.
Source   Bonawitz et al. (CCS 2017), Figure 4; Bell et al. (CCS 2020) for clients that choose their own neighbours.

Without a mask of its own, a server that gets a vector late, after asking for the pair key, could remove all pair masks.

In the active model every client signs three things, each once in a sum: what it advertises; with its vector, U1; and
then U1 and U2 together, which it was told. It gives up shares only when t members of U2 have signed the same lists as
itself, and the seed of a client only with that client's signature of the same U1. So all honest clients that give up
anything do so for one U1 and one U2, and masks that are still there belong to nobody else's idea of who is left.

Commitments. The public masking key and a hash in the advertisement say what a client's two secrets are; a hash for
every share says what each holder was dealt. A holder refuses shares that are not the ones committed to, and the server
can tell who gave up a wrong one (`quietbit.secagg.server`).
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, final

import numpy as np

from quietbit.errors import InvalidParameter, check_int, require
from quietbit.secagg import keys, shamir
from quietbit.secagg.identity import SIGNATURE_SIZE, Identity, verified
from quietbit.secagg.plan import (
    CHOICE_SIZE,
    COMMITMENT_SIZE,
    DEALT_SIZE,
    SEALED_SIZE,
    SEED_COMMITMENT_SIZE,
    ProtocolError,
    SumPlan,
)

__all__ = [
    "Advertisement", "SumClient", "Unmasking", "check_signature", "lists_digest", "masking_key", "pair_mask_key",
    "seed_commitment", "self_mask_key", "share_commitment", "shares_digest",
]  # fmt: skip

STEPS = ("advertise", "share", "mask", "confirm", "unmask")
PAIR, SEED = b"pair", b"seed"  # the two secrets of a client
ADVERTISED, MASKED, CONFIRMED = b"advertisement", b"masked", b"lists"  # what is signed
DOMAIN = b"quietbit/secure/2/"


@final
@dataclass(frozen=True, slots=True)
class Advertisement:
    """What a client publishes: a key to seal shares for it, a key for masks, a commitment to its seed, whom it chose.

    ``signature`` is there in the active model, ``choice`` with neighbours.
    """

    sealing: bytes
    masking: bytes
    seed: bytes
    choice: bytes = b""
    signature: bytes = b""

    def to_bytes(self) -> bytes:
        """All of it, one after the other."""
        return self.sealing + self.masking + self.seed + self.choice + self.signature

    @classmethod
    def read(cls, plan: SumPlan, data: bytes) -> Advertisement:
        """Read `to_bytes`; another length than the plan's is refused."""
        size = plan.advertisement_size
        require(len(data) == size, "length of the advertisement", len(data), f"{size} bytes")
        cuts = [keys.KEY_SIZE, keys.KEY_SIZE, SEED_COMMITMENT_SIZE, CHOICE_SIZE * (plan.neighbours is not None)]
        ends = list(accumulate(cuts))
        sealing, masking, seed, choice = (data[end - cut : end] for end, cut in zip(ends, cuts, strict=True))
        return cls(sealing, masking, seed, choice, data[ends[-1] :])

    def check(self, plan: SumPlan, number: int) -> None:
        """Refuse one that is not client ``number``'s own for this plan, or whose keys are not canonical."""
        for key in (self.sealing, self.masking):
            keys.check_public(key)
        sizes = len(self.seed), len(self.choice), len(self.signature)
        choice, signature = CHOICE_SIZE * (plan.neighbours is not None), SIGNATURE_SIZE * plan.active
        rule = "that of a commitment, a choice and a signature"
        require(sizes == (SEED_COMMITMENT_SIZE, choice, signature), "length of the advertisement", sizes, rule)
        if plan.active:
            check_signature(plan, number, ADVERTISED, self.digest(plan, number), self.signature)

    def digest(self, plan: SumPlan, number: int) -> bytes:
        """What its signature is of."""
        return _digest(b"advertisement", plan, number, self.sealing + self.masking + self.seed + self.choice)


@final
@dataclass(frozen=True, slots=True, repr=False)
class Unmasking:
    """Shares given up at the end: of pair keys of clients that left, of seeds of clients that stayed."""

    pair_keys: Mapping[int, bytes]
    seeds: Mapping[int, bytes]

    def __repr__(self) -> str:
        """Whose, and not what."""
        return f"Unmasking(pair_keys of {sorted(self.pair_keys)}, seeds of {sorted(self.seeds)})"


@final
class SumClient:
    """Client ``number`` (1 to n) of a plan; holds its secrets, shows none of them, and answers every step once.

    In the active model ``identity`` signs; its public key must be the plan's for this number.
    """

    __slots__ = (
        "_advertised", "_choice", "_dealers", "_identity", "_lists", "_masking", "_near", "_number", "_plan",
        "_received", "_sealing", "_secrets", "_step", "_u1",
    )  # fmt: skip

    def __init__(self, plan: SumPlan, number: int, identity: Identity | None = None) -> None:
        """Draw fresh secrets."""
        self._plan, self._identity = plan, identity
        self._number = check_int(number, "number of the client", 1, plan.clients)
        own = identity.public if identity is not None else None
        expected = plan.members[self._number - 1] if plan.members is not None else None
        rule = "the one that the plan names for this client" if plan.active else "left out: the plan names no members"
        require(own == expected, "identity", "another" if own else None, rule)
        self._sealing = bytearray(keys.new_private_key())
        self._secrets = {kind: bytearray(shamir.new_secret()) for kind in (PAIR, SEED)}
        self._choice = os.urandom(CHOICE_SIZE) if plan.neighbours is not None else b""
        self._near: dict[int, Advertisement] = {}
        self._dealers: frozenset[int] = frozenset()  # those who chose this client
        self._received: dict[int, tuple[bytes, bytes]] = {}  # shares by dealer: of the pair key, of the seed
        self._u1: frozenset[int] = frozenset()
        self._lists = b""
        self._step = 0
        self._advertised = self._advertisement()

    def __repr__(self) -> str:
        """Nothing but the number."""
        return f"SumClient({self._number})"

    def __reduce__(self) -> Any:
        """Refused: secrets are written by `to_bytes` and by nothing else."""
        raise TypeError("A client of a masked sum is not pickled.")

    def advertise(self) -> Advertisement:
        """Step 1: publish two keys, a commitment and the choice of neighbours."""
        self._enter("advertise")
        return self._advertised

    def share(self, near: Mapping[int, Advertisement]) -> dict[int, bytes]:
        """Step 2: for every chosen client that advertised, sealed shares of both secrets, and commitments to them.

        ``near`` is what those advertised whom this client chose, and those who chose it.
        """
        self._check_next("share")
        plan, number = self._plan, self._number
        if not all(1 <= other <= plan.clients and other != number for other in near):
            raise ProtocolError("The list of advertisements has unknown clients, or this one.")
        every = [key for one in (*near.values(), self._advertised) for key in (one.sealing, one.masking)]
        if len(set(every)) != len(every):
            raise ProtocolError("The list of advertisements contains a key twice.")
        for other, advertised in near.items():
            advertised.check(plan, other)
        mine = plan.chosen(number, self._choice)
        dealers = frozenset(other for other, one in near.items() if number in plan.chosen(other, one.choice))
        if not set(near) <= mine | dealers:
            raise ProtocolError("The list of advertisements has clients that this one does not deal with.")
        holders = sorted((mine & set(near)) | {number})
        self._enough_shares(len(holders), "published keys")
        self._step += 1
        self._near, self._dealers = dict(near), dealers
        shares = {kind: shamir.share(self._secrets[kind], holders, plan.shares_needed) for kind in (PAIR, SEED)}
        self._received[number] = shares[PAIR][number], shares[SEED][number]
        found = {}
        for other in holders:
            if other != number:
                parts = shares[PAIR][other], shares[SEED][other]
                sealed = keys.seal(self._sealing_key(number, other), b"".join(parts), _direction(number, other))
                found[other] = sealed + _commitments(plan, number, other, parts)
        return found

    def check_shares(self, u1: Collection[int], dealt: Mapping[int, bytes]) -> None:
        """Refuse, before step 3 and without taking it, lists and shares that are not those of this client's sum."""
        self._check_next("mask")
        plan, number, listed = self._plan, self._number, frozenset(u1)
        if not all(1 <= other <= plan.clients for other in listed) or number not in listed:
            raise ProtocolError("The list of clients that dealt shares has unknown ones or lacks this one.")
        if set(dealt) != (self._dealers & listed):
            raise ProtocolError("Shares must have come from exactly those listed clients that chose this one.")
        self._enough(len(listed), "shared their secrets")
        chosen = plan.chosen(number, self._choice) & set(self._near) & listed
        self._enough_shares(len(chosen) + 1, "shared their secrets")
        for other, data in dealt.items():
            self._opened(other, data)

    def mask(self, codes: Any, u1: Collection[int], dealt: Mapping[int, bytes]) -> bytes:
        """Step 3: the packed masked vector, and in the active model a signature of U1 behind it.

        ``codes`` are the client's, ``dimension`` of them, none above the plan's largest; ``u1`` are all clients that
        dealt shares, ``dealt`` is what this client was dealt.
        """
        plan, number = self._plan, self._number
        array = np.asarray(codes)
        require(array.dtype.kind in "iu", "type of the codes", str(array.dtype), "whole numbers")
        require(array.size == plan.dimension, "number of codes", array.size, f"{plan.dimension}")
        rule = f"whole numbers from 0 to {plan.largest_code}"
        require(int(array.min()) >= 0 and int(array.max()) <= plan.largest_code, "codes", "numbers", rule)
        self.check_shares(u1, dealt)
        self._step += 1
        self._u1 = frozenset(u1)
        self._received.update({other: self._opened(other, data) for other, data in dealt.items()})
        total = np.zeros(plan.width, dtype=np.uint32)
        total[: plan.dimension] = array.reshape(-1)
        total += keys.expand(self_mask_key(plan, number, self._secrets[SEED]), plan.width)
        private = masking_key(plan, number, self._secrets[PAIR])
        for other in self._u1 & set(self._near):
            key = pair_mask_key(plan, number, other, private, self._advertised.masking, self._near[other].masking)
            if number < other:
                total += keys.expand(key, plan.width)
            else:
                total -= keys.expand(key, plan.width)
        # Nothing needs them from here on, and whoever found them beside the masked vector could unmask it.
        for secret in (self._sealing, *self._secrets.values()):
            secret[:] = bytes(len(secret))
        self._sealing, self._secrets = bytearray(), {PAIR: bytearray(), SEED: bytearray()}
        self._near = {}
        return plan.pack(number, plan.reduce(total)) + self._signed(MASKED, shares_digest(plan, self._u1))

    def confirm(self, arrived: Collection[int]) -> bytes:
        """Step 4, where the server may lie: the signature of U1 and U2; never of two different ones."""
        if not self._plan.active:
            raise ProtocolError("Lists are confirmed in sums whose members have identities, and in no others.")
        self._check_next("confirm")
        u2 = self._arrived(arrived)
        self._step += 1
        self._lists = lists_digest(self._plan, self._u1, u2)
        return self._signed(CONFIRMED, self._lists)

    def unmask(
        self,
        arrived: Collection[int],
        confirmed: Mapping[int, bytes] | None = None,
        masked: Mapping[int, bytes] | None = None,
    ) -> Unmasking:
        """The last step: one share for every secret held: of the seed if its vector arrived, of the pair key if not.

        In the active model ``confirmed`` are signatures of the lists by t members of U2, and ``masked`` those of U1
        that came with the vectors of the clients whose seeds are asked for. Afterwards the client is done; it never
        answers twice, so that no client's two secrets can both be asked of it.
        """
        plan = self._plan
        if not plan.active and self._step == STEPS.index("confirm"):
            self._step += 1
        self._check_next("unmask")
        u2 = self._arrived(arrived)
        stayed = sorted(dealer for dealer in self._received if dealer in u2)
        if plan.active:
            self._check_lists(u2, confirmed or {}, masked or {}, stayed)
        self._step += 1
        result = Unmasking(
            pair_keys={other: self._received[other][0] for other in sorted(set(self._received) - u2)},
            seeds={other: self._received[other][1] for other in stayed},
        )
        self._received.clear()
        return result

    def to_bytes(self) -> bytes:
        """All secrets and the step, for engines that end the process between messages: to be sealed where it is kept.

        One after the other, with their numbers: nothing of it is text.
        """
        parts = [
            struct.pack("<II", self._number, self._step), self._plan.context, bytes(self._sealing),
            *(bytes(self._secrets[kind]) for kind in (PAIR, SEED)), self._choice, self._lists,
            self._advertised.to_bytes(), self._plan.bitmap(self._u1), self._plan.bitmap(self._dealers),
            *(_numbered(other, one.to_bytes()) for other, one in sorted(self._near.items())), b"",
            *(_numbered(other, b"".join(pair)) for other, pair in sorted(self._received.items())),
        ]  # fmt: skip
        return b"".join(len(part).to_bytes(4, "little") + part for part in parts)

    @classmethod
    def from_bytes(cls, plan: SumPlan, data: bytes, identity: Identity | None = None) -> SumClient:
        """The client that `to_bytes` was called on; its next step is the one that was next, another plan is refused."""
        try:
            parts = _parts(data)
            number, step = struct.unpack("<II", parts[0])
            if parts[1] != plan.context:
                raise ProtocolError("What was kept of this client's secrets belongs to another plan.")
            client = cls(plan, number, identity)
            client._step = check_int(step, "step", 0, len(STEPS))
            client._sealing = bytearray(parts[2])
            client._secrets = {PAIR: bytearray(parts[3]), SEED: bytearray(parts[4])}
            client._choice, client._lists = parts[5], parts[6]
            client._advertised = Advertisement.read(plan, parts[7])
            client._u1, client._dealers = plan.from_bitmap(parts[8]), plan.from_bitmap(parts[9])
            cut = parts.index(b"", 10)
            client._near = {other: Advertisement.read(plan, one) for other, one in map(_unnumbered, parts[10:cut])}
            size = shamir.SHARE_SIZE
            received = dict(map(_unnumbered, parts[cut + 1 :]))
            client._received = {other: (pair[:size], pair[size:]) for other, pair in received.items()}
        except (ValueError, TypeError, IndexError, struct.error, InvalidParameter) as error:
            raise ProtocolError("What was kept of this client's secrets cannot be read: it leaves the sum.") from error
        return client

    def _advertisement(self) -> Advertisement:
        plan, number = self._plan, self._number
        public = keys.public_key(self._sealing), keys.public_key(masking_key(plan, number, self._secrets[PAIR]))
        found = Advertisement(*public, seed_commitment(plan, number, self._secrets[SEED]), self._choice)
        signature = self._signed(ADVERTISED, found.digest(plan, number))
        return Advertisement(found.sealing, found.masking, found.seed, found.choice, signature)

    def _signed(self, purpose: bytes, message: bytes) -> bytes:
        return b"" if self._identity is None else self._identity.sign(purpose, message)

    def _arrived(self, arrived: Collection[int]) -> frozenset[int]:
        """U2, of enough clients that dealt shares, and this one."""
        u2 = frozenset(arrived)
        if not u2 <= self._u1 or self._number not in u2:
            raise ProtocolError("The list of arrived vectors has unknown clients or lacks this one.")
        self._enough(len(u2), "sent their masked vectors")
        return u2

    def _check_lists(
        self, u2: frozenset[int], confirmed: Mapping[int, bytes], masked: Mapping[int, bytes], stayed: Iterable[int]
    ) -> None:
        """Refuse lists that t of their members, and every client whose seed is asked for, have not signed."""
        plan = self._plan
        if self._lists != lists_digest(plan, self._u1, u2):
            raise ProtocolError("The list of arrived vectors is not the one that this client has signed.")
        if not set(confirmed) <= u2:
            raise ProtocolError("The list of arrived vectors is signed by clients that are not on it.")
        self._enough(len(confirmed), "confirmed the lists")
        for other, signature in confirmed.items():
            check_signature(plan, other, CONFIRMED, self._lists, signature)
        for other in stayed:
            if other != self._number:
                if other not in masked:
                    raise ProtocolError(f"Client {other}'s signature of who dealt shares is missing.")
                check_signature(plan, other, MASKED, shares_digest(plan, self._u1), masked[other])

    def _opened(self, other: int, data: bytes) -> tuple[bytes, bytes]:
        """Both shares that another client dealt this one; refused unless they are those it committed to."""
        require(len(data) == DEALT_SIZE, f"length of what client {other} dealt", len(data), f"{DEALT_SIZE} bytes")
        sealed, committed = data[:SEALED_SIZE], data[SEALED_SIZE:]
        try:
            plain = keys.open_sealed(self._sealing_key(other, self._number), sealed, _direction(other, self._number))
        except InvalidParameter as error:
            raise ProtocolError(
                f"What client {other} dealt to client {self._number} is not genuine: {error}"
            ) from error
        pair = plain[: shamir.SHARE_SIZE], plain[shamir.SHARE_SIZE :]
        if _commitments(self._plan, other, self._number, pair) != committed:
            raise ProtocolError(f"What client {other} dealt to client {self._number} is not what it committed to.")
        return pair

    def _check_next(self, step: str) -> None:
        if self._step >= len(STEPS) or STEPS[self._step] != step:
            raise ProtocolError(f"A client does each step once and in order; {step} is not the next.")

    def _enter(self, step: str) -> None:
        self._check_next(step)
        self._step += 1

    def _enough(self, count: int, what: str) -> None:
        if count < self._plan.threshold:
            raise ProtocolError(f"Only {count} clients {what}; the threshold is {self._plan.threshold}.")

    def _enough_shares(self, count: int, what: str) -> None:
        """Refuse to go on with fewer holders of this client's shares, itself among them, than can recover a secret."""
        needed = self._plan.shares_needed
        if count < needed:
            raise ProtocolError(f"Only {count} holders of this client's shares {what}; the threshold is {needed}.")

    def _sealing_key(self, sender: int, receiver: int) -> bytes:
        other = receiver if sender == self._number else sender
        theirs = self._near[other].sealing
        secret = keys.agree(self._sealing, theirs)
        both = b"".join(sorted((theirs, self._advertised.sealing)))
        return keys.derive(secret, b"seal" + _direction(sender, receiver) + both, self._plan.context)


def check_signature(plan: SumPlan, number: int, purpose: bytes, message: bytes, signature: bytes) -> None:
    """Refuse what the member of this number has not signed for this purpose."""
    if plan.members is None or not 1 <= number <= plan.clients:
        raise ProtocolError(f"Client {number} is no member of this sum.")
    if not verified(plan.members[number - 1], purpose, message, signature):
        raise ProtocolError(f"The signature of client {number} ({purpose.decode()}) is not genuine.")


def shares_digest(plan: SumPlan, u1: Collection[int]) -> bytes:
    """What a client signs with its vector: who dealt shares."""
    return _digest(b"shares", plan, 0, plan.bitmap(u1))


def lists_digest(plan: SumPlan, u1: Collection[int], u2: Collection[int]) -> bytes:
    """What a client signs before it gives up anything: who dealt shares, and whose vectors arrived."""
    return _digest(b"lists", plan, 0, plan.bitmap(u1) + plan.bitmap(u2))


def masking_key(plan: SumPlan, number: int, secret: bytes | bytearray) -> bytes:
    """The private key for masks that comes from a client's first secret."""
    return keys.derive(secret, b"masking" + _direction(number, number), plan.context)


def pair_mask_key(plan: SumPlan, number: int, other: int, private: bytes, own: bytes, theirs: bytes) -> bytes:
    """The key of the mask that two clients share, from one's private key and both public ones."""
    purpose = b"pair" + _direction(min(number, other), max(number, other)) + b"".join(sorted((own, theirs)))
    return keys.derive(keys.agree(private, theirs), purpose, plan.context)


def self_mask_key(plan: SumPlan, number: int, seed: bytes | bytearray) -> bytes:
    """The key of a client's own mask."""
    return keys.derive(seed, b"self" + _direction(number, number), plan.context)


def seed_commitment(plan: SumPlan, number: int, seed: bytes | bytearray) -> bytes:
    """What a client publishes of its seed."""
    return _digest(b"seed", plan, number, bytes(seed))


def share_commitment(plan: SumPlan, dealer: int, holder: int, kind: bytes, share: bytes) -> bytes:
    """What a dealer publishes of a share; a share is as hard to guess as the secret."""
    return _digest(b"share" + kind, plan, dealer, holder.to_bytes(4, "big") + share)[:COMMITMENT_SIZE]


def _commitments(plan: SumPlan, dealer: int, holder: int, pair: tuple[bytes, bytes]) -> bytes:
    return b"".join(
        share_commitment(plan, dealer, holder, kind, part) for kind, part in zip((PAIR, SEED), pair, strict=True)
    )


def _digest(purpose: bytes, plan: SumPlan, number: int, data: bytes) -> bytes:
    return hashlib.sha256(DOMAIN + purpose + b"/" + plan.context + number.to_bytes(4, "big") + data).digest()


def _direction(sender: int, receiver: int) -> bytes:
    return sender.to_bytes(4, "big") + receiver.to_bytes(4, "big")


def _numbered(number: int, data: bytes) -> bytes:
    return number.to_bytes(4, "little") + data


def _unnumbered(data: bytes) -> tuple[int, bytes]:
    return int.from_bytes(data[:4], "little"), data[4:]


def _parts(data: bytes) -> list[bytes]:
    """The strings that were written with their lengths; anything that does not fit is refused."""
    found, start = [], 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 4], "little")
        if start + 4 + size > len(data):
            raise ValueError("cut off")
        found.append(bytes(data[start + 4 : start + 4 + size]))
        start += 4 + size
    return found
