"""A client of a masked sum: four steps, or five in the active model, in order and each once.

Idea     every two clients share a mask that one adds and the other subtracts; each client adds a
         mask of its own, too. Each deals shares of two secrets, the pair key and the seed of its
         own mask, to all others. Of every client exactly one of the two is ever revealed: the pair
         key of those that left, the seed of those that stayed.
Symbols  U0: clients that advertised; U1: those that dealt shares; U2: those whose masked vector
         arrived; t: threshold.
Source   Bonawitz et al. (CCS 2017), Figure 4. docs/theory/secure-aggregation.md, "Masks", has both
         server models and the proofs.

The digest of the *roster*, the advertisements of all U0 under the plan's context, is the
description of the round, from which every seal, share commitment and mask is derived. In the active
model a client signs three things, each once: its advertisement; with its vector, U1; then U1 and U2
together. It reveals shares only when t members of U2 have signed the same lists, and the seed of a
client only with that client's signature of the same U1. It refuses shares that their dealer did not
commit to.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Any, final

import numpy as np
from attrs import define, evolve, field

from quietbit.errors import InvalidParameter, check_int, require
from quietbit.secagg import codec, keys
from quietbit.secagg.codec import Advertisement, Unmasking, as_bytes, check_signature
from quietbit.secagg.identity import Identity
from quietbit.secagg.plan import (
    COMMITMENT_SIZE,
    SEALED_SIZE,
    ProtocolError,
    SumPlan,
    check_enough,
    digest_of,
)

__all__ = [
    "SumClient",
    "lists_digest",
    "masking_key",
    "pair_mask_key",
    "seed_commitment",
    "self_mask_key",
    "share_commitment",
    "shares_digest",
]

STEPS = ("advertise", "share", "mask", "confirm", "unmask")
PAIR = b"pair"  # the two secrets of a client
SEED = b"seed"
# The plan's context, number, step, three secrets, description, digest of lists.
STATE = struct.Struct(">32sII32s16s16s32s32s")


@final
@define(eq=False, repr=False)
class SumClient:
    """Client ``number`` (1 to n) of a plan, with its secrets; answers every step once.

    In the active model ``identity`` signs; the plan must have its public key for this number.
    """

    _plan: SumPlan
    _number: int
    _identity: Identity | None = None
    _step: int = field(default=0, init=False)
    _sealing: bytearray = field(factory=lambda: bytearray(keys.new_private_key()), init=False)
    _secrets: dict[bytes, bytearray] = field(init=False)
    _others: dict[int, Advertisement] = field(factory=dict, init=False)  # of U0
    # Shares by dealer: of the pair key, and of the seed.
    _received: dict[int, tuple[bytes, bytes]] = field(factory=dict, init=False)
    _u1: frozenset[int] = field(factory=frozenset, init=False)
    _description: bytes = field(default=bytes(32), init=False)
    _lists: bytes = field(default=bytes(32), init=False)
    _advertised: Advertisement = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Draw new secrets; refuse an identity that is not the plan's."""
        plan = self._plan
        number = check_int(self._number, "number of the client", 1, self._plan.clients)
        public = None if self._identity is None else self._identity.public
        expected = None
        rule = "left out: the plan has no members"
        if plan.members is not None:
            expected = plan.members[number - 1]
            rule = f"{expected.hex()}, that of client {number} in the plan"
        require(public == expected, "identity", public and public.hex(), rule)
        self._secrets = {kind: bytearray(keys.new_secret()) for kind in (PAIR, SEED)}
        unsigned = Advertisement(
            keys.public_key(self._sealing),
            keys.public_key(masking_key(plan, number, self._secrets[PAIR])),
            seed_commitment(plan, number, self._secrets[SEED]),
        )
        signature = self._signed(codec.ADVERTISED, unsigned.digest(plan, number))
        self._advertised = evolve(unsigned, signature=signature)

    @property
    def number(self) -> int:
        """The client's number in the plan."""
        return self._number

    def __repr__(self) -> str:
        """Show the number only."""
        return f"SumClient({self._number})"

    def __reduce__(self) -> Any:
        """Refuse to pickle secrets."""
        raise TypeError("A SumClient cannot be pickled: write it with to_bytes, and seal that.")

    def advertise(self) -> Advertisement:
        """Take step 1: return two public keys and a commitment."""
        self._check_next("advertise")
        self._step += 1
        return self._advertised

    def share(self, roster: Mapping[int, Advertisement]) -> dict[int, bytes]:
        """Take step 2: return, for each other client, sealed shares and commitments to them."""
        self._check_next("share")
        plan = self._plan
        number = self._number
        self._check_roster(roster)
        self._step += 1
        self._others = {other: roster[other] for other in sorted(roster) if other != number}
        self._description = codec.roster_digest(plan, roster)
        holders = sorted(roster)
        pair_shares = keys.share(self._secrets[PAIR], holders, plan.threshold)
        seed_shares = keys.share(self._secrets[SEED], holders, plan.threshold)
        self._received[number] = (pair_shares[number], seed_shares[number])
        dealt = {}
        for other in self._others:
            shares = (pair_shares[other], seed_shares[other])
            key = self._sealing_key(number, other)
            sealed = keys.seal(key, b"".join(shares), as_bytes(number, other))
            dealt[other] = sealed + _commitments(self._description, number, other, shares)
        return dealt

    def check_shares(
        self, u1: Collection[int], dealt: Mapping[int, bytes]
    ) -> dict[int, tuple[bytes, bytes]]:
        """Return the dealt shares without taking step 3; refuse wrong lists and shares."""
        self._check_next("mask")
        number = self._number
        listed = frozenset(u1)
        if not listed <= {number, *self._others} or number not in listed:
            raise ProtocolError(
                "The list of clients that dealt shares has unknown clients, or lacks this one."
            )
        if set(dealt) != listed - {number}:
            raise ProtocolError("The shares are not from exactly the listed clients.")
        check_enough(len(listed), self._plan.threshold, "clients shared their secrets")
        return {other: self._opened(other, data) for other, data in dealt.items()}

    def mask(self, codes: Any, u1: Collection[int], dealt: Mapping[int, bytes]) -> bytes:
        """Take step 3: return the masked vector and, in the active model, a signature of U1.

        ``u1`` are all clients that dealt shares, ``dealt`` is what was dealt to this client.
        """
        plan = self._plan
        number = self._number
        array = np.asarray(codes)
        require(array.dtype.kind in "iu", "type of the codes", str(array.dtype), "whole numbers")
        require(array.size == plan.dimension, "number of codes", array.size, f"{plan.dimension}")
        if int(array.min()) < 0 or int(array.max()) > 1:
            # The codes are private: the refusal does not show them.
            raise InvalidParameter.of("codes", "0 or 1")
        self._received.update(self.check_shares(u1, dealt))
        self._step += 1
        self._u1 = frozenset(u1)
        total = np.zeros(plan.width, dtype=np.uint32)
        total[: plan.dimension] = array.reshape(-1)
        total += keys.expand(
            self_mask_key(self._description, number, self._secrets[SEED]), plan.width
        )
        private = masking_key(plan, number, self._secrets[PAIR])
        for other in sorted(self._u1 - {number}):
            public = self._advertised.masking, self._others[other].masking
            mask = keys.expand(
                pair_mask_key(self._description, number, other, private, *public), plan.width
            )
            if number < other:
                total = total + mask
            else:
                total = total - mask
        # No later step needs these secrets; with the masked vector they would unmask it.
        for secret in (self._sealing, *self._secrets.values()):
            secret[:] = bytes(len(secret))
        self._others = {}
        signature = self._signed(codec.MASKED, shares_digest(plan, self._description, self._u1))
        return plan.pack(number, plan.reduce(total)) + signature

    def confirm(self, arrived: Collection[int]) -> bytes:
        """Take step 4 of the active model: return a signature of U1 and U2, once."""
        if not self._plan.active:
            raise ProtocolError("Only sums of the active model have a step that confirms lists.")
        self._check_next("confirm")
        u2 = self._arrived(arrived)
        self._step += 1
        self._lists = lists_digest(self._plan, self._description, self._u1, u2)
        return self._signed(codec.CONFIRMED, self._lists)

    def unmask(
        self, arrived: Collection[int], confirmed: Mapping[int, bytes], masked: Mapping[int, bytes]
    ) -> Unmasking:
        """Take the last step: return one share per dealer.

        It is a share of the dealer's seed if its vector arrived, and of its pair key otherwise. In
        the active model, ``confirmed`` are signatures of the lists by t members of U2, and
        ``masked`` the signatures of U1 by the clients whose seeds are revealed.
        """
        plan = self._plan
        if not plan.active and self._step == STEPS.index("confirm"):
            self._step += 1
        self._check_next("unmask")
        u2 = self._arrived(arrived)
        stayed = sorted(dealer for dealer in self._received if dealer in u2)
        if plan.active:
            self._check_lists(u2, confirmed, masked, stayed)
        self._step += 1
        left = sorted(set(self._received) - u2)
        unmasking = Unmasking(
            pair_keys={other: self._received[other][0] for other in left},
            seeds={other: self._received[other][1] for other in stayed},
        )
        self._received.clear()
        return unmasking

    def to_bytes(self) -> bytes:
        """Return all secrets and the step, to be sealed and stored between messages."""
        plan = self._plan
        head = STATE.pack(
            plan.context,
            self._number,
            self._step,
            self._sealing,
            self._secrets[PAIR],
            self._secrets[SEED],
            self._description,
            self._lists,
        )
        others = {other: self._others[other].to_bytes() for other in self._others}
        received = {other: b"".join(shares) for other, shares in self._received.items()}
        tables = codec.write_tables(plan, dict.fromkeys(self._u1, b""), others, received)
        return head + self._advertised.to_bytes() + tables

    @classmethod
    def from_bytes(cls, plan: SumPlan, data: bytes, identity: Identity | None = None) -> SumClient:
        """Return the client of `to_bytes`, at its next step; refuse one of another plan."""
        size = keys.SHARE_SIZE
        end = STATE.size + plan.advertisement_size
        try:
            head = STATE.unpack(data[: STATE.size])
            context, number, step, sealing, pair, seed, *digests = head
            if context != plan.context:  # which holds everything that clients must agree on
                raise ProtocolError(
                    "The stored secrets belong to a different plan: this client is not part of "
                    "the sum."
                )
            client = cls(plan, number, identity)
            client._step = check_int(step, "step", 0, len(STEPS))
            client._sealing = bytearray(sealing)
            client._secrets = {PAIR: bytearray(pair), SEED: bytearray(seed)}
            client._description, client._lists = digests
            client._advertised = Advertisement.read(plan, data[STATE.size : end])
            u1, others, received = codec.read_tables(
                plan, data[end:], "tables", 0, plan.advertisement_size, 2 * size
            )
        except (struct.error, InvalidParameter) as error:
            raise ProtocolError(
                "The stored secrets cannot be read: this client leaves the sum."
            ) from error
        client._u1 = frozenset(u1)
        client._others = {other: Advertisement.read(plan, others[other]) for other in others}
        client._received = {other: (both[:size], both[size:]) for other, both in received.items()}
        return client

    def _signed(self, purpose: bytes, message: bytes) -> bytes:
        if self._identity is None:
            return b""
        return self._identity.sign(purpose, message)

    def _check_roster(self, roster: Mapping[int, Advertisement]) -> None:
        """Refuse advertisements that are not genuine, of too few, or without this client's own."""
        plan = self._plan
        are_clients = all(1 <= other <= plan.clients for other in roster)
        if not are_clients or roster.get(self._number) != self._advertised:
            raise ProtocolError("The roster has unknown clients, or lacks this one.")
        public_keys = []
        for advertised in roster.values():
            public_keys += [advertised.sealing, advertised.masking]
        if len(set(public_keys)) != len(public_keys):
            raise ProtocolError("The roster contains a key twice.")
        for other, advertised in roster.items():
            advertised.check(plan, other)
        check_enough(len(roster), plan.threshold, "clients published keys")

    def _arrived(self, arrived: Collection[int]) -> frozenset[int]:
        """Return U2; refuse one that is too small, has clients outside U1, or lacks this one."""
        u2 = frozenset(arrived)
        if not u2 <= self._u1 or self._number not in u2:
            raise ProtocolError(
                "The list of arrived vectors has unknown clients or lacks this one."
            )
        check_enough(len(u2), self._plan.threshold, "clients sent their masked vectors")
        return u2

    def _check_lists(
        self,
        u2: frozenset[int],
        confirmed: Mapping[int, bytes],
        masked: Mapping[int, bytes],
        stayed: Iterable[int],
    ) -> None:
        """Refuse lists without the signatures of t members and of every client in ``stayed``."""
        plan = self._plan
        if self._lists != lists_digest(plan, self._description, self._u1, u2):
            raise ProtocolError(
                "The list of arrived vectors is not the one that this client has signed."
            )
        if not set(confirmed) <= u2:
            raise ProtocolError(
                "The list of arrived vectors is signed by clients that are not on it."
            )
        check_enough(len(confirmed), plan.threshold, "clients confirmed the lists")
        for other, signature in confirmed.items():
            check_signature(plan, other, codec.CONFIRMED, self._lists, signature)
        digest = shares_digest(plan, self._description, self._u1)
        for other in stayed:
            if other == self._number:
                continue
            if other not in masked:
                raise ProtocolError(f"Client {other}'s signature of who dealt shares is missing.")
            check_signature(plan, other, codec.MASKED, digest, masked[other])

    def _opened(self, other: int, data: bytes) -> tuple[bytes, bytes]:
        """Return both shares that another client dealt; refuse those it did not commit to."""
        sealed = data[:SEALED_SIZE]
        committed = data[SEALED_SIZE:]
        number = self._number
        try:
            plain = keys.open_sealed(
                self._sealing_key(other, number), sealed, as_bytes(other, number)
            )
        except InvalidParameter as error:
            raise ProtocolError(
                f"What client {other} dealt to client {number} is not genuine: {error}"
            ) from error
        shares = (plain[: keys.SHARE_SIZE], plain[keys.SHARE_SIZE :])
        if _commitments(self._description, other, number, shares) != committed:
            raise ProtocolError(
                f"What client {other} dealt to client {number} is not what it committed to."
            )
        return shares

    def _check_next(self, step: str) -> None:
        if self._step >= len(STEPS) or STEPS[self._step] != step:
            raise ProtocolError(f"A client takes each step once, in order; {step} is not the next.")

    def _sealing_key(self, sender: int, receiver: int) -> bytes:
        other = receiver if sender == self._number else sender
        theirs = self._others[other].sealing
        both = b"".join(sorted((theirs, self._advertised.sealing)))
        purpose = b"seal" + as_bytes(sender, receiver) + both
        return keys.derive(keys.agree(self._sealing, theirs), purpose, self._description)


def shares_digest(plan: SumPlan, description: bytes, u1: Collection[int]) -> bytes:
    """Return the digest that a client signs with its vector: of the round and U1."""
    return digest_of(b"shares", description, plan.bitmap(u1))


def lists_digest(
    plan: SumPlan, description: bytes, u1: Collection[int], u2: Collection[int]
) -> bytes:
    """Return the digest that a client signs before it reveals shares: of the round, U1 and U2."""
    return digest_of(b"lists", description, plan.bitmap(u1), plan.bitmap(u2))


def masking_key(plan: SumPlan, number: int, secret: bytes | bytearray) -> bytes:
    """Derive a client's private key for masks from its secret."""
    return keys.derive(secret, b"masking" + as_bytes(number), plan.context)


def pair_mask_key(
    description: bytes, number: int, other: int, private: bytes, own: bytes, theirs: bytes
) -> bytes:
    """Derive the key of the mask that two clients share, from a private and both public keys."""
    numbers = as_bytes(min(number, other), max(number, other))
    purpose = b"pair" + numbers + b"".join(sorted((own, theirs)))
    return keys.derive(keys.agree(private, theirs), purpose, description)


def self_mask_key(description: bytes, number: int, seed: bytes | bytearray) -> bytes:
    """Derive the key of a client's own mask."""
    return keys.derive(seed, b"self" + as_bytes(number), description)


def seed_commitment(plan: SumPlan, number: int, seed: bytes | bytearray) -> bytes:
    """Return the commitment to a seed that a client publishes."""
    return digest_of(SEED, plan.context, as_bytes(number), bytes(seed))


def share_commitment(
    description: bytes, dealer: int, holder: int, kind: bytes, share: bytes
) -> bytes:
    """Return the commitment to a share that its dealer publishes; shares are too long to guess."""
    digest = digest_of(b"share" + kind, description, as_bytes(dealer, holder), share)
    return digest[:COMMITMENT_SIZE]


def _commitments(
    description: bytes, dealer: int, holder: int, shares: tuple[bytes, bytes]
) -> bytes:
    pair_share, seed_share = shares
    to_pair = share_commitment(description, dealer, holder, PAIR, pair_share)
    to_seed = share_commitment(description, dealer, holder, SEED, seed_share)
    return to_pair + to_seed
