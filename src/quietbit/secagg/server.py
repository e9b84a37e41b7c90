"""The server of a masked sum: it forwards, adds up, and removes masks; it learns the sum and who took part.

Idea     pair masks cancel between clients that stayed; for one that left, its pair key is recovered from shares and its
         half of the masks removed; for one that stayed, its own mask is removed. Too few answers: nothing is returned.
Symbols  U1, U2 as in `client`.
Source   Bonawitz et al. (CCS 2017), Figure 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from quietbit._validate import require
from quietbit.secagg import keys, shamir
from quietbit.secagg.client import PublicKeys, SumClient, Unmasking, pair_mask_key, self_mask_key
from quietbit.secagg.keys import Mask
from quietbit.secagg.plan import ProtocolError, SumPlan

__all__ = ["MaskedSum", "SumServer", "masked_sum"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class MaskedSum:
    """The sum of the bits per coordinate, and the clients it is over: their number is what privacy is accounted at."""

    total: Mask
    clients: tuple[int, ...]


@final
class SumServer:
    """One round: `keys`, `shares_for`, `receive`, `finish`, in this order."""

    __slots__ = ("_arrived", "_keys", "_plan", "_sealed", "_total")

    def __init__(self, plan: SumPlan) -> None:
        """Start a round."""
        self._plan = plan
        self._keys: dict[int, PublicKeys] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._arrived: set[int] = set()
        self._total = np.zeros(plan.dimension, dtype=np.uint32)

    def keys(self, published: Mapping[int, PublicKeys]) -> dict[int, PublicKeys]:
        """The list of keys to send to all; refused below the threshold."""
        self._enough(len(published), "published keys")
        self._keys = dict(published)
        return dict(published)

    def shares_for(self, sealed: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """What to forward to each client of U1, from what each sent; refused below the threshold."""
        self._enough(len(sealed), "shared their secrets")
        require(set(sealed) <= set(self._keys), "clients that shared", sorted(sealed), "among those with keys")
        for sender, parts in sealed.items():
            known = set(self._plan.holders(sender, self._keys)) - {sender}
            require(set(parts) == known, f"receivers of client {sender}'s shares", len(parts), f"those {len(known)}")
        self._sealed = {sender: dict(parts) for sender, parts in sealed.items()}
        return {
            receiver: {
                sender: self._sealed[sender][receiver]
                for sender in self._plan.holders(receiver, self._sealed)
                if sender != receiver
            }
            for receiver in self._sealed
        }

    def receive(self, client: int, data: bytes) -> None:
        """Take in one masked vector; a second one of the same client is refused."""
        require(client in self._sealed, "client", client, "one of those who shared their secrets")
        require(client not in self._arrived, "client", client, "one whose vector has not arrived yet")
        values = self._plan.unpack(client, data)
        self._arrived.add(client)
        self._total += values

    def arrived(self) -> frozenset[int]:
        """U2, to send to its members; refused below the threshold. Later vectors must not be taken in."""
        self._enough(len(self._arrived), "sent their masked vectors")
        return frozenset(self._arrived)

    def finish(self, answers: Mapping[int, Unmasking]) -> MaskedSum:
        """The sum over U2, from the answers of at least the threshold; anything short of that is refused."""
        u2 = self.arrived()
        require(set(answers) <= u2, "clients that answered", sorted(answers), "among those whose vectors arrived")
        self._enough(len(answers), "helped to unmask")
        plan, total = self._plan, self._total.copy()
        for client in sorted(u2):
            seed = self._recover({i: answer.seeds for i, answer in answers.items()}, client)
            total -= keys.expand(self_mask_key(plan, client, seed), plan.dimension)
        for gone in sorted(set(self._sealed) - u2):
            private = self._recover({i: answer.pair_keys for i, answer in answers.items()}, gone)
            if keys.public_key(private) != self._keys[gone].masking:
                raise ProtocolError(f"The recovered key of client {gone} is not the one it published.")
            for client in plan.holders(gone, u2):
                key = pair_mask_key(plan, gone, client, keys.agree(private, self._keys[client].masking))
                # The client added this mask if its number is the smaller one, and subtracted it otherwise.
                if client < gone:
                    total -= keys.expand(key, plan.dimension)
                else:
                    total += keys.expand(key, plan.dimension)
        return MaskedSum(plan.reduce(total), tuple(sorted(u2)))

    def _recover(self, shares: Mapping[int, Mapping[int, bytes]], client: int) -> bytes:
        found = {holder: parts[client] for holder, parts in shares.items() if client in parts}
        needed = self._plan.shares_needed
        if len(found) < needed:
            raise ProtocolError(
                f"Only {len(found)} clients gave a share of client {client}'s secret, of {needed} needed."
            )
        return shamir.recover(found, needed)

    def _enough(self, count: int, what: str) -> None:
        if count < self._plan.threshold:
            raise ProtocolError(f"Only {count} clients {what}; the threshold is {self._plan.threshold}.")


def masked_sum(
    plan: SumPlan,
    codes: Mapping[int, Mask],
    *,
    gone_before_sharing: Iterable[int] = (),
    gone_before_masking: Iterable[int] = (),
    gone_before_unmasking: Iterable[int] = (),
) -> MaskedSum:
    """A whole round in one process, with clients that leave at each stage: for simulations and tests.

    ``codes`` holds the bits of each client, numbered from 1. Fails with `ProtocolError` where a real round would.
    """
    early, middle, late = set(gone_before_sharing), set(gone_before_masking), set(gone_before_unmasking)
    clients = {number: SumClient(plan, number) for number in codes}
    server = SumServer(plan)
    published = server.keys({number: client.advertise() for number, client in clients.items()})
    staying = [number for number in codes if number not in early]
    inboxes = server.shares_for({number: clients[number].share(published) for number in staying})
    for number in staying:
        if number not in middle:
            server.receive(number, clients[number].mask(codes[number], inboxes[number]))
    u2 = server.arrived()
    return server.finish({number: clients[number].unmask(u2) for number in sorted(u2 - late)})
