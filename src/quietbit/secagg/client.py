"""A client of a masked sum: four steps, in order, each once.

Idea     every pair of clients shares a mask that one adds and the other subtracts; each adds one of its own, too.
         Shares of both secrets are spread among all; of each other client exactly one secret is ever given up: the
         pair key of those who left, the own mask's seed of those who stayed.
Symbols  U1: clients whose shares went round (with neighbours: those near this one); U2: those whose masked vector
         arrived; b: seed of the own mask.
Source   Bonawitz et al. (CCS 2017), Figure 4, honest-but-curious server.

Without b, a server that gets a vector late, after asking for the pair key, could remove all pair masks and see it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from quietbit._validate import require, whole_number
from quietbit.secagg import keys, shamir
from quietbit.secagg.plan import ProtocolError, SumPlan

__all__ = ["PublicKeys", "SumClient", "Unmasking", "pair_mask_key", "self_mask_key"]

_STEPS = ("advertise", "share", "mask", "unmask")


@final
@dataclass(frozen=True, slots=True)
class PublicKeys:
    """A client's two public keys: one seals shares, the other makes pair masks."""

    sealing: bytes
    masking: bytes


@final
@dataclass(frozen=True, slots=True)
class Unmasking:
    """Shares given up at the end: of pair keys of clients that left, of seeds of clients that stayed."""

    pair_keys: Mapping[int, bytes]
    seeds: Mapping[int, bytes]


@final
class SumClient:
    """Client ``number`` (1 to n) of a plan; holds its secrets, shows none of them, and answers every step once."""

    __slots__ = ("_keys", "_masking", "_number", "_plan", "_received", "_sealing", "_seed", "_step", "_u1")

    def __init__(self, plan: SumPlan, number: int) -> None:
        """Draw fresh secrets."""
        self._plan = plan
        self._number = whole_number(number, "number of the client", 1, plan.clients)
        self._sealing, self._masking = keys.new_private_key(), keys.new_private_key()
        self._seed = os.urandom(shamir.SECRET_SIZE)
        self._keys: dict[int, PublicKeys] = {}
        self._received: dict[int, bytes] = {}
        self._u1: frozenset[int] = frozenset()
        self._step = 0

    def __repr__(self) -> str:
        """Nothing but the number."""
        return f"SumClient({self._number})"

    def advertise(self) -> PublicKeys:
        """Step 1: publish two keys."""
        self._enter("advertise")
        return PublicKeys(keys.public_key(self._sealing), keys.public_key(self._masking))

    def share(self, published: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """Step 2: shares of both secrets, sealed for every other client that published keys."""
        self._enter("share")
        plan = self._plan
        mine = PublicKeys(keys.public_key(self._sealing), keys.public_key(self._masking))
        if published.get(self._number) != mine or not all(1 <= i <= plan.clients for i in published):
            raise ProtocolError("The list of public keys does not contain this client's own, or has unknown clients.")
        every = [key for pair in published.values() for key in (pair.sealing, pair.masking)]
        if len(set(every)) != len(every):
            raise ProtocolError("The list of public keys contains one twice.")
        self._enough(len(published), "published keys")
        holders = plan.holders(self._number, published)
        self._near(len(holders), "published keys")
        self._keys = {holder: published[holder] for holder in holders}
        key_shares = shamir.share(self._masking, holders, plan.shares_needed)
        seed_shares = shamir.share(self._seed, holders, plan.shares_needed)
        self._received[self._number] = key_shares[self._number] + seed_shares[self._number]
        return {
            other: keys.seal(
                self._sealing_key(self._number, other),
                key_shares[other] + seed_shares[other],
                _direction(self._number, other),
            )
            for other in holders
            if other != self._number
        }

    def check_shares(self, sealed: Mapping[int, bytes]) -> None:
        """Refuse, before step 3 and without taking it, shares that were not sealed for this client in this round."""
        self._check_next("mask")
        if self._number in sealed or not set(sealed) <= set(self._keys):
            raise ProtocolError("Shares arrived from clients that published no keys.")
        for other, data in sealed.items():
            keys.open_sealed(self._sealing_key(other, self._number), data, _direction(other, self._number))

    def mask(self, codes: Any, sealed: Mapping[int, bytes]) -> bytes:
        """Step 3: the packed masked vector; ``sealed`` are the others' shares for this client.

        ``codes`` are the client's, ``dimension`` of them, none above the plan's largest. Only clients whose shares
        arrived count.
        """
        array = np.asarray(codes)
        require(array.dtype.kind in "iu", "type of the codes", str(array.dtype), "whole numbers")
        require(array.size == self._plan.dimension, "number of codes", array.size, f"{self._plan.dimension}")
        most = self._plan.largest_code
        require(
            int(array.min()) >= 0 and int(array.max()) <= most, "codes", "numbers", f"whole numbers from 0 to {most}"
        )
        self._enter("mask")
        u1 = frozenset(sealed) | {self._number}
        if self._number in sealed or not u1 <= set(self._keys):
            raise ProtocolError("Shares arrived from clients that published no keys.")
        self._near(len(u1), "shared their secrets")
        for other, data in sealed.items():
            key = self._sealing_key(other, self._number)
            self._received[other] = keys.open_sealed(key, data, _direction(other, self._number))
        self._u1 = u1
        plan = self._plan
        total = array.reshape(-1).astype(np.uint32)
        total += keys.expand(self_mask_key(plan, self._number, self._seed), plan.dimension)
        for other in u1 - {self._number}:
            key = pair_mask_key(plan, self._number, other, keys.agree(self._masking, self._keys[other].masking))
            if self._number < other:
                total += keys.expand(key, plan.dimension)
            else:
                total -= keys.expand(key, plan.dimension)
        # Nothing needs them from here on, and whoever found them beside the masked vector could unmask it.
        self._seed = self._sealing = self._masking = b""
        return plan.pack(self._number, plan.reduce(total))

    def unmask(self, arrived: Collection[int]) -> Unmasking:
        """Step 4: one share for every client: of the seed if its vector arrived, of the pair key if not.

        Refused when fewer than the threshold arrived: the sum would be of too few. Afterwards the client is done;
        it never answers twice, so that no client's two secrets can both be asked of it.
        """
        self._enter("unmask")
        u2 = frozenset(arrived)
        near = u2 if self._plan.neighbours is None else u2 & set(self._keys)
        if not near <= self._u1 or self._number not in u2 or not all(1 <= i <= self._plan.clients for i in u2):
            raise ProtocolError("The list of arrived vectors has unknown clients or lacks this one.")
        self._enough(len(u2), "sent their masked vectors")
        cut = shamir.SHARE_SIZE
        result = Unmasking(
            pair_keys={other: self._received[other][:cut] for other in sorted(self._u1 - near)},
            seeds={other: self._received[other][cut:] for other in sorted(near)},
        )
        self._received.clear()
        return result

    def to_bytes(self) -> bytes:
        """All secrets and the step, for engines that end the process between messages; never to leave the client."""
        return json.dumps(
            {
                "plan": self._plan.context.hex(),
                "number": self._number,
                "step": self._step,
                "secrets": [part.hex() for part in (self._sealing, self._masking, self._seed)],
                "keys": {str(i): [pair.sealing.hex(), pair.masking.hex()] for i, pair in self._keys.items()},
                "received": {str(i): part.hex() for i, part in self._received.items()},
                "u1": sorted(self._u1),
            }
        ).encode()

    @classmethod
    def from_bytes(cls, plan: SumPlan, data: bytes) -> SumClient:
        """The client that `to_bytes` was called on; its next step is the one that was next, another plan is refused."""
        try:
            kept = json.loads(data)
            if kept["plan"] != plan.context.hex():
                raise ProtocolError("What was kept of this client's secrets belongs to another plan.")
            client = cls(plan, kept["number"])
            client._step = whole_number(kept["step"], "step", 0, len(_STEPS))
            client._sealing, client._masking, client._seed = (bytes.fromhex(part) for part in kept["secrets"])
            client._keys = {int(i): PublicKeys(*map(bytes.fromhex, pair)) for i, pair in kept["keys"].items()}
            client._received = {int(i): bytes.fromhex(part) for i, part in kept["received"].items()}
            client._u1 = frozenset(kept["u1"])
        except (ValueError, TypeError, KeyError) as error:
            raise ProtocolError("What was kept of this client's secrets cannot be read: it leaves the sum.") from error
        return client

    def _enter(self, step: str) -> None:
        self._check_next(step)
        self._step += 1

    def _check_next(self, step: str) -> None:
        if self._step >= len(_STEPS) or _STEPS[self._step] != step:
            raise ProtocolError(f"A client does each step once and in order; {step} is not the next.")

    def _enough(self, count: int, what: str) -> None:
        if count < self._plan.threshold:
            raise ProtocolError(f"Only {count} clients {what}; the threshold is {self._plan.threshold}.")

    def _near(self, count: int, what: str) -> None:
        """Refuse to go on with fewer neighbours, itself among them, than can recover a secret."""
        needed = self._plan.shares_needed
        if count < needed:
            raise ProtocolError(f"Only {count} clients near this one {what}; the threshold is {needed}.")

    def _sealing_key(self, sender: int, receiver: int) -> bytes:
        other = receiver if sender == self._number else sender
        secret = keys.agree(self._sealing, self._keys[other].sealing)
        return keys.derive(secret, b"seal" + _direction(sender, receiver), self._plan.context)


def pair_mask_key(plan: SumPlan, one: int, other: int, secret: bytes) -> bytes:
    """The key of the mask that two clients share."""
    return keys.derive(secret, b"pair" + _direction(min(one, other), max(one, other)), plan.context)


def self_mask_key(plan: SumPlan, number: int, seed: bytes) -> bytes:
    """The key of a client's own mask."""
    return keys.derive(seed, b"self" + _direction(number, number), plan.context)


def _direction(sender: int, receiver: int) -> bytes:
    return sender.to_bytes(4, "big") + receiver.to_bytes(4, "big")
