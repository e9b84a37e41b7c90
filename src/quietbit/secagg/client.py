"""A client of a masked sum: four steps, five where the server may lie, in order, each once.

Idea     every pair of clients that deal with each other shares a mask that one adds and the other
         subtracts; each adds one of its own, too. Shares of both secrets are spread among those a
         client has chosen; of each other client exactly one secret is ever given up: the pair key
         of those who left, the own mask's seed of those who stayed.
Symbols  U0: clients that advertised; U1: those that dealt shares; U2: those whose masked vector
         arrived; t: threshold.
Source   Bonawitz et al. (CCS 2017), Figure 4; Bell et al. (CCS 2020) for clients that choose their
         own neighbours. Both models of the server, and why nothing else helps it, are in
         docs/theory/masked-sums.md.

A client's choice of neighbours is the digest of what it advertises, under the plan's context. The
*roster*, the choices of all U0, fixes the graph; its digest is the description of the round, from
which every seal, share commitment and mask is derived. In the active model a client signs three
things, each once: what it advertises; with its vector, U1; then U1 and U2 together. It gives up
shares only when t members of U2 have signed the same lists as itself, and the seed of a client only
with that client's signature of the same U1. It refuses shares that are not the ones committed to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, final

import numpy as np
from attrs import define, evolve, field

from quietbit.errors import InvalidParameter, check_int, require
from quietbit.secagg import codec, keys
from quietbit.secagg.codec import Advertisement, Roster, Unmasking, as_bytes, check_signature
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


@final
@define(eq=False, repr=False)
class SumClient:
    """Client ``number`` (1 to n) of a plan; holds its secrets, shows none of them, and answers every step once.

    In the active model ``identity`` signs; its public key must be the plan's for this number.
    """

    _plan: SumPlan
    _number: int
    _identity: Identity | None = None
    _step: int = field(default=0, init=False)
    _sealing: bytearray = field(factory=lambda: bytearray(keys.new_private_key()), init=False)
    _secrets: dict[bytes, bytearray] = field(init=False)
    _near: dict[int, Advertisement] = field(factory=dict, init=False)  # those it deals with
    _dealers: frozenset[int] = field(
        factory=frozenset, init=False
    )  # those of them who chose this client
    _received: dict[int, tuple[bytes, bytes]] = field(
        factory=dict, init=False
    )  # shares by dealer: pair key, seed
    _u0: frozenset[int] = field(factory=frozenset, init=False)
    _u1: frozenset[int] = field(factory=frozenset, init=False)
    _description: bytes = field(default=b"", init=False)
    _lists: bytes = field(default=b"", init=False)
    _advertised: Advertisement = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Draw fresh secrets; an identity that is not the plan's is refused."""
        plan = self._plan
        number = check_int(self._number, "number of the client", 1, self._plan.clients)
        own = self._identity.public if self._identity is not None else None
        if plan.members is not None:
            expected = plan.members[number - 1]
        else:
            expected = None
        rule = (
            "the one that the plan names for this client"
            if plan.active
            else "left out: the plan names no members"
        )
        require(own == expected, "identity", "another" if own else None, rule)
        self._secrets = {kind: bytearray(keys.new_secret()) for kind in (PAIR, SEED)}
        public = (
            keys.public_key(self._sealing),
            keys.public_key(masking_key(plan, number, self._secrets[PAIR])),
        )
        found = Advertisement(*public, seed_commitment(plan, number, self._secrets[SEED]))
        self._advertised = evolve(
            found, signature=self._signed(codec.ADVERTISED, found.digest(plan, number))
        )

    @property
    def number(self) -> int:
        """Its number in the plan."""
        return self._number

    def __repr__(self) -> str:
        """Say nothing but the number."""
        return f"SumClient({self._number})"

    def __reduce__(self) -> Any:
        """Refuse: secrets are written by `to_bytes` and by nothing else."""
        raise TypeError("A client of a masked sum is not pickled.")

    def advertise(self) -> Advertisement:
        """Step 1: publish two keys and a commitment, from which the choice of neighbours follows."""
        self._check_next("advertise")
        self._step += 1
        return self._advertised

    def share(self, roster: Roster) -> dict[int, bytes]:
        """Step 2: for every chosen client that advertised, sealed shares of both secrets, and commitments to them."""
        self._check_next("share")
        plan = self._plan
        number = self._number
        mine, dealers = self._checked(roster)
        holders = sorted(mine | {number})
        check_enough(
            len(holders), plan.shares_needed, "holders of this client's shares published keys"
        )
        self._step += 1
        self._u0 = frozenset(roster.choices)
        self._near = dict(roster.near)
        self._dealers = dealers
        self._description = plan.roster_digest(roster.choices)
        shares = {
            kind: keys.share(self._secrets[kind], holders, plan.shares_needed)
            for kind in (PAIR, SEED)
        }
        self._received[number] = shares[PAIR][number], shares[SEED][number]
        found = {}
        for other in sorted(mine):
            parts = shares[PAIR][other], shares[SEED][other]
            sealed = keys.seal(
                self._sealing_key(number, other), b"".join(parts), as_bytes(number, other)
            )
            found[other] = sealed + _commitments(self._description, number, other, parts)
        return found

    def check_shares(
        self, u1: Collection[int], dealt: Mapping[int, bytes]
    ) -> dict[int, tuple[bytes, bytes]]:
        """Return what was dealt, without taking step 3; lists and shares that are not this client's are refused."""
        self._check_next("mask")
        number = self._number
        listed = frozenset(u1)
        if not listed <= self._u0 or number not in listed:
            raise ProtocolError(
                "The list of clients that dealt shares has unknown ones or lacks this one."
            )
        if set(dealt) != (self._dealers & listed):
            raise ProtocolError(
                "Shares must have come from exactly those listed clients that chose this one."
            )
        check_enough(len(listed), self._plan.threshold, "clients shared their secrets")
        holders = self._plan.chosen(number, self._advertised.choice(self._plan, number)) & listed
        needed = self._plan.shares_needed  # holders, itself among them, that can recover a secret
        check_enough(
            len(holders) + 1, needed, "holders of this client's shares shared their secrets"
        )
        return {other: self._opened(other, data) for other, data in dealt.items()}

    def mask(self, codes: Any, u1: Collection[int], dealt: Mapping[int, bytes]) -> bytes:
        """Step 3: the packed masked vector, and in the active model a signature of U1 behind it.

        ``u1`` are all clients that dealt shares, ``dealt`` is what this client was dealt.
        """
        plan = self._plan
        number = self._number
        array = np.asarray(codes)
        require(array.dtype.kind in "iu", "type of the codes", str(array.dtype), "whole numbers")
        require(array.size == plan.dimension, "number of codes", array.size, f"{plan.dimension}")
        rule = f"whole numbers from 0 to {plan.largest_code}"
        require(
            int(array.min()) >= 0 and int(array.max()) <= plan.largest_code,
            "codes",
            "numbers",
            rule,
        )
        self._received.update(self.check_shares(u1, dealt))
        self._step += 1
        self._u1 = frozenset(u1)
        total = np.zeros(plan.width, dtype=np.uint32)
        total[: plan.dimension] = array.reshape(-1)
        total += keys.expand(
            self_mask_key(self._description, number, self._secrets[SEED]), plan.width
        )
        private = masking_key(plan, number, self._secrets[PAIR])
        for other in self._u1 & set(self._near):
            public = self._advertised.masking, self._near[other].masking
            mask = keys.expand(
                pair_mask_key(self._description, number, other, private, *public), plan.width
            )
            if number < other:
                total = total + mask
            else:
                total = total - mask
        # Nothing needs them from here on, and whoever found them beside the masked vector could
        # unmask it.
        for secret in (self._sealing, *self._secrets.values()):
            secret[:] = bytes(len(secret))
        self._sealing = bytearray()
        self._secrets = {PAIR: bytearray(), SEED: bytearray()}
        self._near = {}
        signature = self._signed(codec.MASKED, shares_digest(plan, self._description, self._u1))
        return plan.pack(number, plan.reduce(total)) + signature

    def confirm(self, arrived: Collection[int]) -> bytes:
        """Step 4, where the server may lie: the signature of U1 and U2; never of two different ones."""
        if not self._plan.active:
            raise ProtocolError(
                "Lists are confirmed in sums whose members have identities, and in no others."
            )
        self._check_next("confirm")
        u2 = self._arrived(arrived)
        self._step += 1
        self._lists = lists_digest(self._plan, self._description, self._u1, u2)
        return self._signed(codec.CONFIRMED, self._lists)

    def unmask(
        self, arrived: Collection[int], confirmed: Mapping[int, bytes], masked: Mapping[int, bytes]
    ) -> Unmasking:
        """Take the last step: one share for every secret held, of the seed if its vector arrived, else of the pair key.

        In the active model ``confirmed`` are signatures of the lists by t members of U2, and
        ``masked`` those of U1 that came with the vectors of the clients whose seeds are asked for.
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
        result = Unmasking(
            pair_keys={
                other: self._received[other][0] for other in sorted(set(self._received) - u2)
            },
            seeds={other: self._received[other][1] for other in stayed},
        )
        self._received.clear()
        return result

    def to_bytes(self) -> bytes:
        """Write all secrets and the step, for engines that end the process between messages: to be sealed."""
        return codec.encode(
            [
                self._plan.context,
                self._number,
                self._step,
                bytes(self._sealing),
                bytes(self._secrets[PAIR]),
                bytes(self._secrets[SEED]),
                self._advertised.to_bytes(),
                self._description,
                self._lists,
                *map(self._plan.bitmap, (self._u0, self._u1, self._dealers)),
                {other: one.to_bytes() for other, one in self._near.items()},
                {other: b"".join(pair) for other, pair in self._received.items()},
            ]
        )

    @classmethod
    def from_bytes(cls, plan: SumPlan, data: bytes, identity: Identity | None = None) -> SumClient:
        """Return the client that `to_bytes` was called on, at its next step; another plan is refused."""
        try:
            context, number, step, sealing, pair, seed, advertised, *rest = codec.decode(
                data, "client's secrets"
            )
            if context != plan.context:  # which holds everything that clients must agree on
                raise ProtocolError(
                    "This client is not part of the sum: what was kept of it belongs to another plan."
                )
            client = cls(plan, number, identity)
            client._step = check_int(step, "step", 0, len(STEPS))
            client._sealing = bytearray(sealing)
            client._secrets = {PAIR: bytearray(pair), SEED: bytearray(seed)}
            client._advertised = Advertisement.read(plan, advertised)
            client._description, client._lists, *lists, near, received = rest
            client._u0, client._u1, client._dealers = map(plan.from_bitmap, lists)
            near = codec.numbered(near, plan.advertisement_size, "advertisements")
            client._near = {other: Advertisement.read(plan, one) for other, one in near.items()}
            shares = codec.numbered(received, 2 * keys.SHARE_SIZE, "shares")
            client._received = {
                i: (one[: keys.SHARE_SIZE], one[keys.SHARE_SIZE :]) for i, one in shares.items()
            }
        except (ValueError, TypeError, InvalidParameter) as error:
            raise ProtocolError(
                "What was kept of this client's secrets cannot be read: it leaves the sum."
            ) from error
        return client

    def _signed(self, purpose: bytes, message: bytes) -> bytes:
        if self._identity is None:
            return b""
        return self._identity.sign(purpose, message)

    def _checked(self, roster: Roster) -> tuple[frozenset[int], frozenset[int]]:
        """Return whom this client chose and who chose it; a roster without exactly these near it is refused."""
        plan = self._plan
        number = self._number
        choices = roster.choices
        near = roster.near
        if not all(1 <= other <= plan.clients for other in choices) or not set(near) <= set(
            choices
        ) - {number}:
            raise ProtocolError("The list of advertisements has unknown clients, or this one.")
        every = [
            key for one in (*near.values(), self._advertised) for key in (one.sealing, one.masking)
        ]
        if len(set(every)) != len(every):
            raise ProtocolError("The list of advertisements contains a key twice.")
        for other, advertised in near.items():
            advertised.check(plan, other)
        for other, advertised in {**near, number: self._advertised}.items():
            if choices.get(other) != advertised.choice(plan, other):
                raise ProtocolError(f"The roster does not have what client {other} advertised.")
        check_enough(len(choices), plan.threshold, "clients published keys")
        mine, dealers = plan.near(number, choices)
        if set(near) != mine | dealers:
            raise ProtocolError(
                "The list of advertisements is not of exactly those that this client deals with."
            )
        return mine, dealers

    def _arrived(self, arrived: Collection[int]) -> frozenset[int]:
        """Return U2, of enough clients that dealt shares, and this one."""
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
        """Refuse lists that t of their members, and every client whose seed is asked for, have not signed."""
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
        for other in stayed:
            if other != self._number:
                if other not in masked:
                    raise ProtocolError(
                        f"Client {other}'s signature of who dealt shares is missing."
                    )
                digest = shares_digest(plan, self._description, self._u1)
                check_signature(plan, other, codec.MASKED, digest, masked[other])

    def _opened(self, other: int, data: bytes) -> tuple[bytes, bytes]:
        """Return both shares that another client dealt this one; refused unless they are those it committed to."""
        sealed = data[:SEALED_SIZE]
        committed = data[SEALED_SIZE:]
        way = f"client {other} dealt to client {self._number}"
        try:
            plain = keys.open_sealed(
                self._sealing_key(other, self._number), sealed, as_bytes(other, self._number)
            )
        except InvalidParameter as error:
            raise ProtocolError(f"What {way} is not genuine: {error}") from error
        pair = plain[: keys.SHARE_SIZE], plain[keys.SHARE_SIZE :]
        if _commitments(self._description, other, self._number, pair) != committed:
            raise ProtocolError(f"What {way} is not what it committed to.")
        return pair

    def _check_next(self, step: str) -> None:
        if self._step >= len(STEPS) or STEPS[self._step] != step:
            raise ProtocolError(
                f"A client does each step once and in order; {step} is not the next."
            )

    def _sealing_key(self, sender: int, receiver: int) -> bytes:
        theirs = self._near[receiver if sender == self._number else sender].sealing
        both = b"".join(sorted((theirs, self._advertised.sealing)))
        purpose = b"seal" + as_bytes(sender, receiver) + both
        return keys.derive(keys.agree(self._sealing, theirs), purpose, self._description)


def shares_digest(plan: SumPlan, description: bytes, u1: Collection[int]) -> bytes:
    """Return what a client signs with its vector: the description of the round, and who dealt shares."""
    return digest_of(b"shares", description, plan.bitmap(u1))


def lists_digest(
    plan: SumPlan, description: bytes, u1: Collection[int], u2: Collection[int]
) -> bytes:
    """Return what a client signs before it gives up anything: `shares_digest`'s parts, and whose vectors arrived."""
    return digest_of(b"lists", description, plan.bitmap(u1), plan.bitmap(u2))


def masking_key(plan: SumPlan, number: int, secret: bytes | bytearray) -> bytes:
    """Derive the private key for masks from a client's first secret."""
    return keys.derive(secret, b"masking" + as_bytes(number), plan.context)


def pair_mask_key(
    description: bytes, number: int, other: int, private: bytes, own: bytes, theirs: bytes
) -> bytes:
    """Derive the key of the mask that two clients share, from one's private key and both public ones."""
    purpose = (
        b"pair" + as_bytes(min(number, other), max(number, other)) + b"".join(sorted((own, theirs)))
    )
    return keys.derive(keys.agree(private, theirs), purpose, description)


def self_mask_key(description: bytes, number: int, seed: bytes | bytearray) -> bytes:
    """Derive the key of a client's own mask."""
    return keys.derive(seed, b"self" + as_bytes(number), description)


def seed_commitment(plan: SumPlan, number: int, seed: bytes | bytearray) -> bytes:
    """Return what a client publishes of its seed."""
    return digest_of(SEED, plan.context, as_bytes(number), bytes(seed))


def share_commitment(
    description: bytes, dealer: int, holder: int, kind: bytes, share: bytes
) -> bytes:
    """Return what a dealer publishes of a share; a share is as hard to guess as the secret."""
    return digest_of(b"share" + kind, description, as_bytes(dealer, holder), share)[
        :COMMITMENT_SIZE
    ]


def _commitments(description: bytes, dealer: int, holder: int, pair: tuple[bytes, bytes]) -> bytes:
    return b"".join(
        share_commitment(description, dealer, holder, kind, part)
        for kind, part in zip((PAIR, SEED), pair, strict=True)
    )
