"""The server of a masked sum: it forwards, adds up, and removes masks; it learns the sum and who took part.

Idea     pair masks cancel between clients that stayed; for one that left, its pair key is recovered
         from shares and its half of the masks removed; for one that stayed, its own mask is
         removed. Too few answers: nothing is returned.
Symbols  U0, U1, U2 as in `client`.
Source   Bonawitz et al. (CCS 2017), Figure 4.

A sum is right or it is none. Every share is held against its dealer's commitment, every secret
against what was advertised, and the guard of the sum must be zero. A share that was not dealt is
left out and its holder named; a secret that is not the advertised one names its dealer, and ends
the round. A client that masks other numbers than its codes is not seen: it shifts the sum, or
spoils it.
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
    Roster,
    Unmasking,
    check_signature,
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

__all__ = ["MaskedSum", "SumServer", "masked_sum"]


@final
@frozen(eq=False)
class MaskedSum:
    """The sum of the codes per coordinate, and the clients it is over: their number is what privacy is accounted at."""

    total: keys.Mask
    clients: tuple[int, ...]


@final
@define(eq=False, repr=False)
class SumServer:
    """One round: `advertise`, `deal`, `receive`, `arrived`, in the active model `confirm`, and `finish`, in this order.

    ``liars`` says of clients that were found out what they did.
    """

    _plan: SumPlan
    description: bytes = field(default=b"", init=False)  # the digest of the roster
    liars: dict[int, str] = field(factory=dict, init=False)
    _advertised: dict[int, Advertisement] = field(factory=dict, init=False)
    _chosen: dict[int, frozenset[int]] = field(factory=dict, init=False)
    _dealt: dict[int, dict[int, bytes]] = field(factory=dict, init=False)
    _arrived: set[int] = field(factory=set, init=False)
    _masked: dict[int, bytes] = field(factory=dict, init=False)
    _confirmed: dict[int, bytes] = field(factory=dict, init=False)
    _total: keys.Mask = field(init=False)

    @_total.default
    def _nothing(self) -> keys.Mask:
        return np.zeros(self._plan.width, dtype=np.uint32)

    def advertise(self, published: Mapping[int, Advertisement]) -> dict[int, Roster]:
        """Return, to forward to each, all choices and its neighbours' advertisements; refuse below the threshold."""
        plan = self._plan
        good = dict[int, Advertisement]()
        seen = set[bytes]()
        for number, one in published.items():
            try:
                one.check(plan, number)
                fresh = not {one.sealing, one.masking} & seen and one.sealing != one.masking
                require(fresh, "public key", "one that was sent before", "this client's own")
            except QuietbitError as error:
                self.liars[number] = str(error)
                continue
            seen |= {one.sealing, one.masking}
            good[number] = one
        self._enough(len(good), "published keys")
        self._advertised = good
        choices = {number: one.choice(plan, number) for number, one in good.items()}
        self.description = plan.roster_digest(choices)
        self._chosen = {
            number: plan.chosen(number, choice) & set(good) for number, choice in choices.items()
        }
        near = {number: set(chosen) for number, chosen in self._chosen.items()}
        for number, chosen in self._chosen.items():
            for other in chosen:
                near[other].add(number)
        return {
            number: Roster(choices, {i: good[i] for i in sorted(others)})
            for number, others in near.items()
        }

    def holders(self, number: int) -> frozenset[int]:
        """To whom a client must deal shares."""
        return self._chosen[number]

    def deal(self, dealt: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Return what to forward to each client of U1, from what each dealt; refuse below the threshold."""
        require(
            set(dealt) <= set(self._advertised),
            "clients that dealt",
            sorted(dealt),
            "among those with keys",
        )
        for dealer, parts in dealt.items():
            fine = set(parts) == self._chosen[dealer] and all(
                len(data) == DEALT_SIZE for data in parts.values()
            )
            if not fine:
                self.liars[dealer] = "it has not dealt to exactly those whom it chose"
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
        """U1, to send to its members."""
        return frozenset(self._dealt)

    def receive(self, client: int, data: bytes) -> None:
        """Take in one masked vector, and its signature of U1; a second one of the same client is refused."""
        plan = self._plan
        require(client in self._dealt, "client", client, "one of those who shared their secrets")
        require(
            client not in self._arrived, "client", client, "one whose vector has not arrived yet"
        )
        cut = plan.payload_size
        values = plan.unpack(client, data[:cut] if plan.active else data)
        if plan.active:
            check_signature(
                plan, client, MASKED, shares_digest(plan, self.description, self._dealt), data[cut:]
            )
            self._masked[client] = data[cut:]
        self._arrived.add(client)
        self._total += values

    def arrived(self) -> frozenset[int]:
        """U2, to send to its members; refused below the threshold. Later vectors must not be taken in."""
        self._enough(len(self._arrived), "sent their masked vectors")
        return frozenset(self._arrived)

    def confirm(self, signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        """Signatures of the lists by t members of U2, to send to all who are left; refused where there are fewer."""
        u2 = self.arrived()
        digest = lists_digest(self._plan, self.description, self._dealt, u2)
        for client, signature in sorted(signatures.items()):
            try:
                require(client in u2, "client that confirmed", client, "one whose vector arrived")
                check_signature(self._plan, client, CONFIRMED, digest, signature)
                self._confirmed[client] = signature
            except QuietbitError as error:
                self.liars[client] = str(error)
        self._enough(len(self._confirmed), "confirmed the lists")
        return {
            client: self._confirmed[client]
            for client in sorted(self._confirmed)[: self._plan.threshold]
        }

    def masked(self, client: int) -> dict[int, bytes]:
        """Return the signatures of U1 by those of U2 who dealt to a client, to send to it with `confirm`'s."""
        return {
            dealer: signature
            for dealer, signature in sorted(self._masked.items())
            if client in self._dealt[dealer] and dealer != client
        }

    def finish(self, answers: Mapping[int, Unmasking]) -> MaskedSum:
        """Return the sum over U2, from the answers of at least the threshold; refuse anything short of that."""
        u2 = self.arrived()
        require(
            set(answers) <= u2,
            "clients that answered",
            sorted(answers),
            "among those whose vectors arrived",
        )
        self._enough(len(answers), "helped to unmask")
        plan = self._plan
        total = self._total.copy()
        seeds = {holder: answer.seeds for holder, answer in answers.items()}
        for client in sorted(u2):
            seed = self._recover(seeds, client, SEED)
            if seed_commitment(plan, client, seed) != self._advertised[client].seed:
                self._lied(client, "it dealt shares of another seed than it advertised")
            total -= keys.expand(self_mask_key(self.description, client, seed), plan.width)
        pair_keys = {holder: answer.pair_keys for holder, answer in answers.items()}
        for gone in sorted(set(self._dealt) - u2):
            private = masking_key(plan, gone, self._recover(pair_keys, gone, PAIR))
            own = self._advertised[gone].masking
            if keys.public_key(private) != own:
                self._lied(gone, "it dealt shares of another key than it advertised")
            for client in sorted(u2):
                if client in self._dealt[gone] or gone in self._dealt[client]:
                    key = pair_mask_key(
                        self.description,
                        gone,
                        client,
                        private,
                        own,
                        self._advertised[client].masking,
                    )
                    mask = keys.expand(key, plan.width)
                    # The client added this mask if its number is the smaller one, and subtracted it
                    # otherwise.
                    if client < gone:
                        total = total - mask
                    else:
                        total = total + mask
        found = plan.reduce(total)
        if found[plan.dimension :].any():
            raise ProtocolError(
                "The guard of the sum is not zero: a vector was not masked as the protocol says."
            )
        return MaskedSum(found[: plan.dimension], tuple(sorted(u2)))

    def _recover(
        self, shares: Mapping[int, Mapping[int, bytes]], dealer: int, kind: bytes
    ) -> bytes:
        """Recover a secret from shares that its dealer committed to; whoever gave another is named and not counted."""
        plan = self._plan
        found = {}
        for holder, parts in shares.items():
            if dealer not in parts:
                continue
            if holder == dealer or self._committed(dealer, holder, kind, parts[dealer]):
                found[holder] = parts[dealer]
            else:
                self.liars[holder] = (
                    f"it gave a share of client {dealer}'s secret that it was not dealt"
                )
        check_enough(
            len(found),
            plan.shares_needed,
            f"clients gave a share of client {dealer}'s secret",
            self._named(),
        )
        # A client's word on its own secret counts last: without it a false one cannot spoil what
        # others hold.
        others = {holder: part for holder, part in found.items() if holder != dealer}
        return keys.recover(
            others if len(others) >= plan.shares_needed else found, plan.shares_needed
        )

    def _committed(self, dealer: int, holder: int, kind: bytes, share: bytes) -> bool:
        data = self._dealt[dealer].get(holder)
        if data is None:
            return False
        start = SEALED_SIZE + (0 if kind == PAIR else COMMITMENT_SIZE)
        return (
            share_commitment(self.description, dealer, holder, kind, share)
            == data[start : start + COMMITMENT_SIZE]
        )

    def _lied(self, client: int, what: str) -> None:
        self.liars[client] = what
        raise ProtocolError(f"There is no sum: {what} (client {client}).")

    def _named(self) -> str:
        if not self.liars:
            return ""
        return " Found out: " + "; ".join(
            f"client {number}: {what}" for number, what in sorted(self.liars.items())
        )

    def _enough(self, count: int, what: str) -> None:
        check_enough(count, self._plan.threshold, f"clients {what}", self._named())


def masked_sum(
    plan: SumPlan,
    codes: Mapping[int, keys.Mask],
    *,
    identities: Mapping[int, Identity] | None = None,
    gone_before_sharing: Iterable[int] = (),
    gone_before_masking: Iterable[int] = (),
    gone_before_confirming: Iterable[int] = (),
    gone_before_unmasking: Iterable[int] = (),
) -> MaskedSum:
    """Run a whole round in one process, with clients that leave at each stage: for simulations and tests.

    ``codes`` holds the codes of each client, numbered from 1, and ``identities`` who they are,
    where the plan has members. Fails with `ProtocolError` where a real round would.
    """
    own = identities or {}
    clients = {number: SumClient(plan, number, own.get(number)) for number in codes}
    server = SumServer(plan)
    near = server.advertise({number: client.advertise() for number, client in clients.items()})
    left = set(near) - set(gone_before_sharing)
    inboxes = server.deal({number: clients[number].share(near[number]) for number in sorted(left)})
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
