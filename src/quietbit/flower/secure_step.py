"""The client's half of a masked sum: one step at a time, from secrets that wait in the node's state.

Idea     Flower ends the client's process after every message, so the client of `quietbit.secagg` is written into the
         node's state between steps, and restored for the plan that it was made for and no other. A node answers a
         step once and in order; one that refuses a step forgets its secrets and has left the sum.
Symbols  U1: clients whose shares went round; U2: those whose vector arrived; t: threshold.
Source   Bonawitz et al. (CCS 2017), Figure 4, honest-but-curious server; `quietbit.secagg.client`.

What a node checks without believing the server: the threshold is its own reading of the run config (and at least its
own, `secure_terms`); n < 2 t; at least t distinct pairs of keys, its own among them; t members in U1 and in U2, U2
within U1 and the node within both; shares that were sealed for it in this round; one vector in a round, noted in
its ledger before it leaves; one answer to the last step, so that of no client both secrets are given up. Both steps
that hand out shares are noted in the ledger before they are answered: two processes of a node that were started from
the same state cannot both seal shares with the same keys, or both unmask. That needs a ledger file
(`quietbit.ledger`); **without one a node is protected only as long as its messages are handled one at a time.**

The state stays in the node's memory (the SuperNode's, in a deployment) and is never sent to the server. It is
forgotten with the last step, with a refusal, and with the next message that belongs to no sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, final

import numpy as np
from flwr.app import ConfigRecord, Context, Message

from quietbit._validate import require
from quietbit.flower.job import Books
from quietbit.flower.release import RECORD
from quietbit.flower.request import Request
from quietbit.flower.secure_question import (
    GUARD,
    KEYS,
    SEALED_SIZE,
    SHARES,
    STEPS,
    SUM,
    VECTOR,
    Question,
    pack,
    pack_unmasking,
    sum_plan,
    unpack,
    unpack_keys,
)
from quietbit.flower.settings import RunSettings
from quietbit.secagg.client import SumClient
from quietbit.secagg.plan import ProtocolError, SumPlan
from quietbit.wire.payload import Payload

__all__ = ["SumStep", "forget"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class SumStep:
    """One step that a node was asked for."""

    asked: Question
    plan: SumPlan
    context: Context

    @classmethod
    def of(cls, message: Message, context: Context, settings: RunSettings) -> SumStep:
        """Read the question; refused where it does not fit this node's settings."""
        asked = Question.from_record(message.content.get(SUM))
        plan = sum_plan(settings, context.run_id, asked.round, asked.clients, asked.dimension)
        return cls(asked, plan, context)

    @property
    def trains(self) -> bool:
        """Whether this is the step that brings the model."""
        return self.asked.step == VECTOR

    def answer(self, message: Message, settings: RunSettings, books: Books) -> bytes:
        """The answer to a step that needs no training."""
        asked = self.asked
        if asked.step == KEYS:
            self._check_start(message, settings, books)
            client = SumClient(self.plan, asked.number)
            pair = client.advertise()
            self._keep(client)
            return pair.sealing + pair.masking
        client = self._restored()
        if asked.step == SHARES:
            answer = pack(client.share(unpack_keys(asked.table)))
            self._note(books)
            self._keep(client)
            return answer
        found = client.unmask(unpack(asked.table, 0, "vectors that arrived"))
        self._note(books)
        forget(self.context)
        return pack_unmasking(found)

    def check_vector(self, number: int) -> None:
        """Refuse, before anyone trains, to send a vector into a sum that this node is not part of."""
        require(number == self.asked.round, "round of the model", number, f"{self.asked.round}, the sum's")
        self._restored()
        others = len(self._inbox())
        if others + 1 < self.plan.threshold:
            raise ProtocolError(
                f"Only {others + 1} clients shared their secrets; the threshold is {self.plan.threshold}."
            )

    def mask(self, payload: bytes) -> bytes:
        """The masked vector of a payload's codes; to be called when the release is in the ledger, never before."""
        client, codes = self._restored(), Payload.from_bytes(payload).codes()
        masked = client.mask(np.append(codes, np.zeros(GUARD, codes.dtype)), self._inbox())
        self._keep(client)
        return masked

    def _check_start(self, message: Message, settings: RunSettings, books: Books) -> None:
        """Refuse a second start of the same round, other mechanisms, and a sum that no budget is left for."""
        kept = self.context.state.get(SUM)
        if kept is not None and kept["round"] == self.plan.round_name:
            raise ProtocolError("A client does each step once and in order; keys is not the next.")
        mechanism = settings.mechanism_for(self.asked.dimension)
        request = Request.from_record(message.content.get(RECORD))
        request.expect(mechanism)
        require(request.round == self.asked.round, "round of the sum", self.asked.round, f"{request.round}")
        books.following(books.store.read(), mechanism, self.asked.round)

    def _note(self, books: Books) -> None:
        """Write into the ledger that this step is answered; refused where another process has answered it."""
        place = STEPS.index(self.asked.step) + 1
        books.store.update(lambda ledger: ledger.record_step(books.run, self.asked.round, place))

    def _inbox(self) -> dict[int, bytes]:
        return unpack(self.asked.table, SEALED_SIZE, "sealed shares")

    def _keep(self, client: SumClient) -> None:
        values = {"round": self.plan.round_name, "plan": self.plan.context, "client": client.to_bytes()}
        self.context.state[SUM] = ConfigRecord(dict(values))

    def _restored(self) -> SumClient:
        kept = self.context.state.get(SUM)
        # The plan's context holds the run, the round, n, t and d: a sum that changes any of them midway is another.
        if kept is None or kept["plan"] != self.plan.context:
            raise ProtocolError("This node is not part of the sum that is asked about.")
        return SumClient.from_bytes(self.plan, cast(bytes, kept["client"]))


def forget(context: Context) -> None:
    """Forget the secrets of a sum, if there are any."""
    if SUM in context.state:
        del context.state[SUM]
