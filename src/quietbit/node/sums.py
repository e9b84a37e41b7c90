"""The node's half of a masked sum: one step at a time, from secrets that wait where the keeper has them.

Idea     engines end the client's process after every message, so the client of `quietbit.secagg` is written down
         between steps, and restored for the plan that it was made for and no other. A node answers a step once and
         in order; one that refuses a step forgets its secrets and has left the sum.
Symbols  U1: clients whose shares went round; U2: those whose vector arrived; t: threshold.
Source   Bonawitz et al. (CCS 2017), Figure 4, honest-but-curious server; `quietbit.secagg.client`.

What a node checks without believing the server: t is at least its policy's; n < 2 t; at least t distinct pairs of keys,
its own among them; t members in U1 and in U2, U2 within U1 and the node within both; shares that were sealed for it in
this round, all opened *before* its release is noted, so that garbage in one of them costs nobody a release; one vector
in a round; one answer to the last step, so that of no client both secrets are given up. Both steps that hand out shares
are noted in the ledger before they are answered: two processes of a node that were started from the same state
cannot both seal shares with the same keys, or both unmask.
"""

from __future__ import annotations

import json
from collections.abc import Callable, MutableMapping
from typing import final

import numpy as np

from quietbit._validate import InvalidParameter
from quietbit.mechanism.base import Summable
from quietbit.node.question import (
    GUARD,
    SEALED_SIZE,
    Question,
    SumPart,
    pack,
    pack_unmasking,
    sum_plan,
    unpack,
    unpack_keys,
)
from quietbit.secagg.client import SumClient
from quietbit.secagg.plan import ProtocolError, SumPlan
from quietbit.wire.payload import Payload

__all__ = ["SumStep", "forget"]

MOST_SUMS = 64  # that a gatekeeper remembers at once


@final
class SumStep:
    """One step that a node was asked for."""

    def __init__(self, question: Question, mechanism: Summable, secrets: MutableMapping[str, bytes]) -> None:
        """Read the question; refused where the sum does not fit the threshold or the mechanism."""
        if question.sum is None:
            raise InvalidParameter("The question must be about a masked sum, and is not.")
        part: SumPart = question.sum
        self._part, self._secrets, self._run = part, secrets, str(question.run)
        self._plan: SumPlan = sum_plan(
            question.run, question.round, part.threshold, part.clients, question.dimension, mechanism.bits
        )

    def check_start(self) -> None:
        """Refuse a second start of the same round."""
        kept = self._kept()
        if kept is not None and kept["round"] == self._plan.round_name.hex():
            raise ProtocolError("A client does each step once and in order; keys is not the next.")

    def keys(self) -> bytes:
        """Step 1: two public keys."""
        client = SumClient(self._plan, self._part.number)
        pair = client.advertise()
        self._keep(client)
        return pair.sealing + pair.masking

    def shares(self, note: Callable[[], None]) -> bytes:
        """Step 2: sealed shares of both secrets, for the others."""
        client = self._restored()
        answer = pack(client.share(unpack_keys(self._part.table)))
        note()
        self._keep(client)
        return answer

    def check_vector(self) -> None:
        """Refuse, before anything is noted, to send a vector into a sum that this node is not part of."""
        client, inbox = self._restored(), self._inbox()
        if len(inbox) + 1 < self._plan.threshold:
            raise ProtocolError(
                f"Only {len(inbox) + 1} clients shared their secrets; the threshold is {self._plan.threshold}."
            )
        client.check_shares(inbox)

    def mask(self, payload: bytes) -> bytes:
        """Step 3: the masked vector of a payload's codes; only when the release is in the ledger."""
        client, codes = self._restored(), Payload.from_bytes(payload).codes()
        masked = client.mask(np.append(codes, np.zeros(GUARD, codes.dtype)), self._inbox())
        self._keep(client)
        return masked

    def unmask(self, note: Callable[[], None]) -> bytes:
        """Step 4: one share for every client; then this node is done."""
        found = self._restored().unmask(unpack(self._part.table, 0, "vectors that arrived"))
        note()
        forget(self._secrets, int(self._run))
        return pack_unmasking(found)

    def _inbox(self) -> dict[int, bytes]:
        return unpack(self._part.table, SEALED_SIZE, "sealed shares")

    def _keep(self, client: SumClient) -> None:
        while len(self._secrets) >= MOST_SUMS and self._run not in self._secrets:
            del self._secrets[next(iter(self._secrets))]  # the oldest: sums that a server began and never finished
        values = {"round": self._plan.round_name.hex(), "plan": self._plan.context.hex()}
        self._secrets[self._run] = json.dumps({**values, "client": client.to_bytes().hex()}).encode("ascii")

    def _kept(self) -> dict[str, str] | None:
        try:
            found: dict[str, str] | None = json.loads(self._secrets[self._run]) if self._run in self._secrets else None
        except ValueError as error:
            raise ProtocolError("What was kept of this client's secrets cannot be read: it leaves the sum.") from error
        return found

    def _restored(self) -> SumClient:
        kept = self._kept()
        # The plan's context holds the run, the round, n, t and d: a sum that changes any of them midway is another.
        if kept is None or kept["plan"] != self._plan.context.hex():
            raise ProtocolError("This node is not part of the sum that is asked about.")
        return SumClient.from_bytes(self._plan, bytes.fromhex(kept["client"]))


def forget(secrets: MutableMapping[str, bytes], run: int) -> None:
    """Forget the secrets of a sum, if there are any."""
    if str(run) in secrets:
        del secrets[str(run)]
