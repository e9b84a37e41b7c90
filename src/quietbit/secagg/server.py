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

from quietbit.errors import require
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
    read_dealt,
    roster_digest,
    write_tables,
)
from quietbit.secagg.identity import Identity
from quietbit.secagg.plan import (
    COMMITMENT_SIZE,
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
    """One round, whose steps are taken in order; each message is read, or refused, as it comes.

    The steps are `take_keys` and `roster`, `take_shares` and `inboxes`, `receive` and `arrived`,
    in the active model `take_confirmation` and `confirmed`, then `take_unmasking` and `finish`.
    ``liars`` has the clients that were found out in the last one, with what they did.
    """

    _plan: SumPlan
    description: bytes = field(default=b"", init=False)  # the digest of the roster
    liars: dict[int, str] = field(factory=dict, init=False)
    _advertised: dict[int, Advertisement] = field(factory=dict, init=False)
    _keys: set[bytes] = field(factory=set, init=False)
    _dealt: dict[int, dict[int, bytes]] = field(factory=dict, init=False)
    _masked: dict[int, bytes] = field(factory=dict, init=False)  # signatures of U1, by all of U2
    _confirmed: dict[int, bytes] = field(factory=dict, init=False)
    _answers: dict[int, Unmasking] = field(factory=dict, init=False)
    _total: keys.Mask = field(init=False)

    @_total.default
    def _nothing(self) -> keys.Mask:
        return np.zeros(self._plan.width, dtype=np.uint32)

    def take_keys(self, client: int, data: bytes) -> None:
        """Take an advertisement; refuse keys that would make all others leave."""
        advertised = Advertisement.read(self._plan, data)
        advertised.check(self._plan, client)
        own = {advertised.sealing, advertised.masking}
        is_new = len(own) == 2 and not own & self._keys
        require(is_new, "public keys", f"those of client {client}", "advertised by nobody before")
        self._keys |= own
        self._advertised[client] = advertised

    def roster(self) -> dict[int, Advertisement]:
        """Return U0's advertisements, to be sent to all of it; refuse fewer than the threshold."""
        self._enough(len(self._advertised), "published keys")
        self.description = roster_digest(self._plan, self._advertised)
        return dict(self._advertised)

    def take_shares(self, client: int, data: bytes) -> None:
        """Take what a client deals to the others; refuse shares for some of them alone."""
        require(client in self._advertised, "client", client, "one that advertised keys")
        dealt = read_dealt(self._plan, data)
        rule = "exactly the others of the roster"
        is_complete = set(dealt) == set(self._advertised) - {client}
        require(is_complete, "receivers of its shares", sorted(dealt), rule)
        self._dealt[client] = dealt

    def inboxes(self) -> dict[int, dict[int, bytes]]:
        """Return what was dealt to each client of U1; refuse fewer clients than the threshold."""
        self._enough(len(self._dealt), "shared their secrets")
        inboxes: dict[int, dict[int, bytes]] = {holder: {} for holder in self._dealt}
        for dealer, dealt in self._dealt.items():
            for holder in self._dealt.keys() - {dealer}:
                inboxes[holder][dealer] = dealt[holder]
        return inboxes

    def receive(self, client: int, data: bytes) -> None:
        """Add one masked vector, with its signature of U1; refuse a second of the same client."""
        plan = self._plan
        require(client in self._dealt, "client", client, "one that shared its secrets")
        is_new = client not in self._masked
        require(is_new, "client", client, "one whose vector has not arrived yet")
        vector = data[: plan.payload_size]
        signature = data[plan.payload_size :]
        values = plan.unpack(client, vector)
        if plan.active:
            digest = shares_digest(plan, self.description, self._dealt)
            check_signature(plan, client, MASKED, digest, signature)
        else:
            require(not signature, "length of the masked vector", len(data), f"{len(vector)} bytes")
        self._masked[client] = signature
        self._total += values

    def arrived(self) -> frozenset[int]:
        """Return U2, to be sent to its members; no vector may be received after this."""
        self._enough(len(self._masked), "sent their masked vectors")
        return frozenset(self._masked)

    def take_confirmation(self, client: int, data: bytes) -> None:
        """Take a signature of both lists by a member of U2."""
        u2 = self.arrived()
        require(client in u2, "client", client, "one whose vector arrived")
        digest = lists_digest(self._plan, self.description, self._dealt, u2)
        check_signature(self._plan, client, CONFIRMED, digest, data)
        self._confirmed[client] = data

    def confirmed(self) -> dict[int, bytes]:
        """Return signatures of the lists by t members of U2, to be sent to all that are left."""
        self._enough(len(self._confirmed), "confirmed the lists")
        first = sorted(self._confirmed)[: self._plan.threshold]
        return {client: self._confirmed[client] for client in first}

    def masked(self, client: int) -> dict[int, bytes]:
        """Return the signatures of U1 by the other members of U2, to be sent to a client."""
        if not self._plan.active:
            return {}
        return {dealer: signature for dealer, signature in self._masked.items() if dealer != client}

    def take_unmasking(self, client: int, data: bytes) -> None:
        """Take the shares that a member of U2 gives up."""
        require(client in self._masked, "client", client, "one whose vector arrived")
        self._answers[client] = Unmasking.read(self._plan, data)

    def finish(self) -> MaskedSum:
        """Return the sum over U2; refuse fewer answers than the threshold, and a wrong sum."""
        u2 = self.arrived()
        self._enough(len(self._answers), "helped to unmask")
        plan = self._plan
        total = self._total.copy()
        for client in sorted(u2):
            total -= self._self_mask(client)
        for gone in sorted(set(self._dealt) - u2):
            private = self._masking_key(gone)
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

    def _self_mask(self, client: int) -> keys.Mask:
        """Return the own mask of a client that stayed, from shares of its seed."""
        seed = self._recover(client, SEED)
        if seed_commitment(self._plan, client, seed) != self._advertised[client].seed:
            self._lied(client, "it dealt shares of another seed than it advertised")
        return keys.expand(self_mask_key(self.description, client, seed), self._plan.width)

    def _masking_key(self, gone: int) -> bytes:
        """Return the private key for masks of a client that left, from shares of its pair key."""
        private = masking_key(self._plan, gone, self._recover(gone, PAIR))
        if keys.public_key(private) != self._advertised[gone].masking:
            self._lied(gone, "it dealt shares of another key than it advertised")
        return private

    def _pair_mask(self, gone: int, client: int, private: bytes) -> keys.Mask:
        """Return the mask that a client shares with one that left, whose key is ``private``."""
        public = self._advertised[gone].masking
        theirs = self._advertised[client].masking
        key = pair_mask_key(self.description, gone, client, private, public, theirs)
        return keys.expand(key, self._plan.width)

    def _recover(self, dealer: int, kind: bytes) -> bytes:
        """Recover a secret from shares that its dealer committed to; name holders of others."""
        needed = self._plan.threshold
        valid = {}
        for holder, answer in self._answers.items():
            parts = answer.seeds if kind == SEED else answer.pair_keys
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
    for number, client in clients.items():
        server.take_keys(number, client.advertise().to_bytes())
    roster = server.roster()
    left = set(roster) - set(gone_before_sharing)
    for number in sorted(left):
        server.take_shares(number, write_tables(plan, clients[number].share(roster)))
    inboxes = server.inboxes()
    left -= set(gone_before_masking)
    for number in sorted(left):
        server.receive(number, clients[number].mask(codes[number], inboxes, inboxes[number]))
    u2 = server.arrived()
    confirmed: dict[int, bytes] = {}
    left -= set(gone_before_confirming)
    if plan.active:
        for number in sorted(left):
            server.take_confirmation(number, clients[number].confirm(u2))
        confirmed = server.confirmed()
    left -= set(gone_before_unmasking)
    for number in sorted(left):
        unmasking = clients[number].unmask(u2, confirmed, server.masked(number))
        server.take_unmasking(number, unmasking.to_bytes(plan))
    return server.finish()
