"""The server of a masked sum: it forwards, adds and removes masks, and learns only the sum.

Idea     pair masks cancel between clients that stayed. The pair key of a client that left is
         recovered from shares, and its half of the masks removed; the seed of a client that stayed
         is recovered, and its own mask removed. With too few answers, nothing is returned. The
         server also learns which clients took part.
Symbols  U0, U1, U2 as in `client`.
Source   Bonawitz et al. (CCS 2017), Figure 4.

A sum is right or is refused. Every share is compared with its dealer's commitment, every secret
with the advertisement, and the guard of the sum must be zero. A share that was not dealt is left
out, and its holder named in ``liars``; a secret that was not advertised names its dealer and ends
the round. A client that masks other numbers than its codes is not noticed: it shifts the sum, or
makes it useless.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

import numpy as np
from attrs import define, field, frozen

from quietbit.errors import QuietbitError, require
from quietbit.secagg import keys
from quietbit.secagg.client import (
    PAIR,
    SEED,
    SumClient,
    lists_digest,
    masking_key,
    pair_mask_key,
    seed_commitment,
    self_mask_key,
    share_commitment,
    shares_digest,
)
from quietbit.secagg.codec import (
    CONFIRMED,
    MASKED,
    Advertisement,
    Unmasking,
    check_signature,
    roster_digest,
)
from quietbit.secagg.identity import Identity
from quietbit.secagg.plan import (
    COMMITMENT_SIZE,
    DEALT_SIZE,
    SEALED_SIZE,
    ProtocolError,
    SumPlan,
    check_enough,
)

__all__ = ["MaskedSum", "SumServer", "simulate_secure_sum"]


@final
@frozen(eq=False)
class MaskedSum:
    """The sum of the codes per coordinate, and the clients whose vectors are in it."""

    total: keys.Mask
    clients: tuple[int, ...]


@final
@define(eq=False, repr=False)
class SumServer:
    """One round. Call `advertise`, `deal`, `receive`, `arrived`, `confirm` and `finish`, in order.

    `confirm` is for the active model only. ``liars`` has the clients that broke the protocol, with
    what they did.
    """

    _plan: SumPlan
    description: bytes = field(default=b"", init=False)  # the digest of the roster
    liars: dict[int, str] = field(factory=dict, init=False)
    _advertised: dict[int, Advertisement] = field(factory=dict, init=False)
    _dealt: dict[int, dict[int, bytes]] = field(factory=dict, init=False)
    _arrived: set[int] = field(factory=set, init=False)
    _masked: dict[int, bytes] = field(factory=dict, init=False)
    _confirmed: dict[int, bytes] = field(factory=dict, init=False)
    _total: keys.Mask = field(init=False)

    @_total.default
    def _nothing(self) -> keys.Mask:
        return np.zeros(self._plan.width, dtype=np.uint32)

    def advertise(self, published: Mapping[int, Advertisement]) -> dict[int, Advertisement]:
        """Return the roster, to be forwarded to all in it; refuse fewer than the threshold."""
        plan = self._plan
        valid = dict[int, Advertisement]()
        seen = set[bytes]()
        for number, advertised in published.items():
            public_keys = {advertised.sealing, advertised.masking}
            try:
                advertised.check(plan, number)
            except QuietbitError as error:
                self.liars[number] = str(error)
                continue
            if len(public_keys) < 2 or public_keys & seen:
                self.liars[number] = "it advertised a public key that was advertised before"
                continue
            seen |= public_keys
            valid[number] = advertised
        self._enough(len(valid), "published keys")
        self._advertised = valid
        self.description = roster_digest(plan, valid)
        return dict(valid)

    def holders(self, number: int) -> frozenset[int]:
        """Return the clients that a client must deal shares to: all others of the roster."""
        return frozenset(self._advertised) - {number}

    def deal(self, dealt: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Return what was dealt to each client of U1; refuse fewer clients than the threshold."""
        strangers = sorted(set(dealt) - set(self._advertised))
        require(not strangers, "clients that dealt", strangers, "among those that advertised keys")
        for dealer, parts in dealt.items():
            have_size = all(len(data) == DEALT_SIZE for data in parts.values())
            if set(parts) != self.holders(dealer) or not have_size:
                self.liars[dealer] = "it has not dealt to exactly all others"
                continue
            self._dealt[dealer] = dict(parts)
        self._enough(len(self._dealt), "shared their secrets")
        inboxes: dict[int, dict[int, bytes]] = {number: {} for number in self._dealt}
        for dealer, parts in self._dealt.items():
            for holder, data in parts.items():
                if holder in inboxes:
                    inboxes[holder][dealer] = data
        return inboxes

    def dealers(self) -> frozenset[int]:
        """Return U1, to be sent to its members."""
        return frozenset(self._dealt)

    def receive(self, client: int, data: bytes) -> None:
        """Add one masked vector, with its signature of U1; refuse a second of the same client."""
        plan = self._plan
        require(client in self._dealt, "client", client, "one that shared its secrets")
        is_new = client not in self._arrived
        require(is_new, "client", client, "one whose vector has not arrived yet")
        vector = data
        if plan.active:
            vector = data[: plan.payload_size]
        values = plan.unpack(client, vector)
        if plan.active:
            signature = data[plan.payload_size :]
            digest = shares_digest(plan, self.description, self._dealt)
            check_signature(plan, client, MASKED, digest, signature)
            self._masked[client] = signature
        self._arrived.add(client)
        self._total += values

    def arrived(self) -> frozenset[int]:
        """Return U2, to be sent to its members; no vector may be received after this."""
        self._enough(len(self._arrived), "sent their masked vectors")
        return frozenset(self._arrived)

    def confirm(self, signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        """Return signatures of the lists by t members of U2, to be sent to all that are left."""
        u2 = self.arrived()
        digest = lists_digest(self._plan, self.description, self._dealt, u2)
        for client, signature in sorted(signatures.items()):
            if client not in u2:
                self.liars[client] = "it confirmed the lists, and its vector has not arrived"
                continue
            try:
                check_signature(self._plan, client, CONFIRMED, digest, signature)
            except ProtocolError as error:
                self.liars[client] = str(error)
                continue
            self._confirmed[client] = signature
        self._enough(len(self._confirmed), "confirmed the lists")
        first = sorted(self._confirmed)[: self._plan.threshold]
        return {client: self._confirmed[client] for client in first}

    def masked(self, client: int) -> dict[int, bytes]:
        """Return the signatures of U1 by the other members of U2, to be sent to a client."""
        return {
            dealer: signature
            for dealer, signature in sorted(self._masked.items())
            if dealer != client
        }

    def finish(self, answers: Mapping[int, Unmasking]) -> MaskedSum:
        """Return the sum over U2; refuse fewer answers than the threshold, and a wrong sum."""
        u2 = self.arrived()
        strangers = sorted(set(answers) - u2)
        rule = "among those whose vectors arrived"
        require(not strangers, "clients that answered", strangers, rule)
        self._enough(len(answers), "helped to unmask")
        plan = self._plan
        total = self._total.copy()
        seeds = {holder: answer.seeds for holder, answer in answers.items()}
        for client in sorted(u2):
            total -= self._self_mask(client, seeds)
        pair_keys = {holder: answer.pair_keys for holder, answer in answers.items()}
        for gone in sorted(set(self._dealt) - u2):
            private = self._masking_key(gone, pair_keys)
            for client in sorted(u2):
                mask = self._pair_mask(gone, client, private)
                # The client with the smaller number has added this mask; the other subtracts.
                if client < gone:
                    total -= mask
                else:
                    total += mask
        total = plan.reduce(total)
        if total[plan.dimension :].any():
            raise ProtocolError(
                "The guard of the sum is not zero: some vector was not masked by the protocol."
            )
        return MaskedSum(total[: plan.dimension], tuple(sorted(u2)))

    def _self_mask(self, client: int, shares: Mapping[int, Mapping[int, bytes]]) -> keys.Mask:
        """Return the own mask of a client that stayed, from shares of its seed."""
        seed = self._recover(shares, client, SEED)
        if seed_commitment(self._plan, client, seed) != self._advertised[client].seed:
            self._lied(client, "it dealt shares of another seed than it advertised")
        return keys.expand(self_mask_key(self.description, client, seed), self._plan.width)

    def _masking_key(self, gone: int, shares: Mapping[int, Mapping[int, bytes]]) -> bytes:
        """Return the private key for masks of a client that left, from shares of its pair key."""
        private = masking_key(self._plan, gone, self._recover(shares, gone, PAIR))
        if keys.public_key(private) != self._advertised[gone].masking:
            self._lied(gone, "it dealt shares of another key than it advertised")
        return private

    def _pair_mask(self, gone: int, client: int, private: bytes) -> keys.Mask:
        """Return the mask that a client shares with one that left, whose key is ``private``."""
        public = self._advertised[gone].masking
        theirs = self._advertised[client].masking
        key = pair_mask_key(self.description, gone, client, private, public, theirs)
        return keys.expand(key, self._plan.width)

    def _recover(
        self, shares: Mapping[int, Mapping[int, bytes]], dealer: int, kind: bytes
    ) -> bytes:
        """Recover a secret from shares that its dealer committed to; name holders of others."""
        needed = self._plan.threshold
        valid = {}
        for holder, parts in shares.items():
            if dealer not in parts:
                continue
            if holder == dealer or self._committed(dealer, holder, kind, parts[dealer]):
                valid[holder] = parts[dealer]
            else:
                self.liars[holder] = (
                    f"it sent a share of client {dealer}'s secret that it was not dealt"
                )
        what = f"clients sent a share of client {dealer}'s secret"
        check_enough(len(valid), needed, what, self._named())
        # The dealer's own share has no commitment, so it is used only where the others are too few.
        others = len(valid) - (dealer in valid)
        return keys.recover(valid, needed, dealer if others >= needed else None)

    def _committed(self, dealer: int, holder: int, kind: bytes, share: bytes) -> bool:
        data = self._dealt[dealer].get(holder)
        if data is None:
            return False
        start = SEALED_SIZE
        if kind == SEED:
            start += COMMITMENT_SIZE
        commitment = data[start : start + COMMITMENT_SIZE]
        return share_commitment(self.description, dealer, holder, kind, share) == commitment

    def _lied(self, client: int, what: str) -> None:
        self.liars[client] = what
        raise ProtocolError(f"The sum is refused because of client {client}: {what}.")

    def _named(self) -> str:
        if not self.liars:
            return ""
        liars = [f"client {number}: {what}" for number, what in sorted(self.liars.items())]
        return " Refused: " + "; ".join(liars)

    def _enough(self, count: int, what: str) -> None:
        check_enough(count, self._plan.threshold, f"clients {what}", self._named())


def simulate_secure_sum(
    plan: SumPlan,
    codes: Mapping[int, keys.Mask],
    *,
    identities: Mapping[int, Identity] | None = None,
    gone_before_sharing: Iterable[int] = (),
    gone_before_masking: Iterable[int] = (),
    gone_before_confirming: Iterable[int] = (),
    gone_before_unmasking: Iterable[int] = (),
) -> MaskedSum:
    """Run all clients and the server in one process, for simulations and tests.

    ``codes`` has the codes of each client, numbered from 1, and ``identities`` the identities of
    clients in a plan with members. The other arguments name clients that leave before a step. Raise
    `ProtocolError` where a real round would.
    """
    identities = identities or {}
    clients = {number: SumClient(plan, number, identities.get(number)) for number in codes}
    server = SumServer(plan)
    roster = server.advertise({number: client.advertise() for number, client in clients.items()})
    left = set(roster) - set(gone_before_sharing)
    inboxes = server.deal({number: clients[number].share(roster) for number in sorted(left)})
    left -= set(gone_before_masking)
    u1 = server.dealers()
    for number in sorted(left):
        server.receive(number, clients[number].mask(codes[number], u1, inboxes[number]))
    u2 = server.arrived()
    confirmed: dict[int, bytes] = {}
    left -= set(gone_before_confirming)
    if plan.active:
        confirmed = server.confirm({number: clients[number].confirm(u2) for number in sorted(left)})
    left -= set(gone_before_unmasking)
    answers = {
        number: clients[number].unmask(u2, confirmed, server.masked(number))
        for number in sorted(left)
    }
    return server.finish(answers)
