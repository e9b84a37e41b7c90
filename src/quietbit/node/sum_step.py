"""One requested step of a masked sum on a node, with the secrets of the steps before.

Source   Bonawitz et al. (CCS 2017), Figure 4, for the steps.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import final

from quietbit.errors import InvalidParameter
from quietbit.mechanism.base import Mechanism
from quietbit.node.policy import Rules
from quietbit.node.refusal import NotInSum
from quietbit.node.request import Request, Step, sum_plan
from quietbit.secagg.client import SumClient
from quietbit.secagg.codec import (
    read_evidence,
    read_inbox,
    read_places,
    read_roster,
    write_tables,
)
from quietbit.secagg.identity import Identity
from quietbit.secagg.plan import ProtocolError
from quietbit.wire.payload import Payload

__all__ = ["SumStep"]

PLACES_SIZE = 4  # bytes that say how long the list of places is
MOST_SUMS = 64  # sums whose secrets a node keeps at once


@final
class SumStep:
    """One requested step of a masked sum, with the client's secrets of the earlier steps.

    The client of `quietbit.secagg` is stored between steps, and restored only for the plan that it
    was made for. Steps that hand out shares or sign lists are noted in the ledger before they are
    answered: two processes of a node that were started from the same state cannot both seal shares
    with the same keys, sign two lists, or unmask.
    """

    def __init__(
        self,
        request: Request,
        mechanism: Mechanism,
        secrets: MutableMapping[str, bytes],
        rules: Rules,
    ) -> None:
        """Refuse a sum that does not fit the threshold, the mechanism or the owner's rules."""
        part = request.part
        self._part = part
        self._secrets = secrets
        self._run = str(request.run)
        self._unmasked_client: SumClient | None = None  # as it was before `mask_zero`
        self._identity: Identity | None = None
        # The first step names the members, and the node stores them: the server cannot change them.
        self._places = b""
        members = None
        if part.active:
            self._identity = rules.identity(request.client)
            self._places = part.table if part.step == Step.KEYS else self._stored()[0]
            members = rules.members(read_places(self._places, part.clients))
        self._plan = sum_plan(request, mechanism, members)
        rules.check_sum(self._plan)

    def answer(self, note: Callable[[], object]) -> bytes:
        """Answer a step that needs no training; call ``note`` before anything is stored or sent.

        The first step draws the client's secrets, so there is one per round; the last deletes them.
        Whatever is wrong with a step is one refusal, because the node's secrets enter the checks.
        """
        try:
            return self._answer(note)
        except (ProtocolError, InvalidParameter) as error:
            raise NotInSum(str(error)) from error

    def _answer(self, note: Callable[[], object]) -> bytes:
        plan = self._plan
        table = self._part.table
        step = self._part.step
        if step == Step.KEYS:
            client = SumClient(plan, self._part.number, self._identity)
            answer = client.advertise().to_bytes()
        else:
            client = self._restored()
            if step == Step.SHARES:
                answer = write_tables(plan, client.share(read_roster(plan, table)))
            elif step == Step.CONFIRM:
                answer = client.confirm(plan.from_bitmap(table))
            else:
                answer = client.unmask(*read_evidence(plan, table)).to_bytes(plan)
        note()
        if step == Step.UNMASK:
            self._secrets.pop(self._run, None)
        else:
            self._store(client)
        return answer

    def check_vector(self) -> None:
        """Refuse a vector for a sum that this node is not part of; nothing is noted yet."""
        try:
            self._restored().check_shares(*read_inbox(self._plan, self._part.table))
        except (ProtocolError, InvalidParameter) as error:
            raise NotInSum(str(error)) from error

    def mask(self, payload: bytes) -> bytes:
        """Return the masked vector of a payload's codes; call it after the release is noted."""
        client = self._unmasked_client
        is_first = client is None
        if client is None:
            client = self._restored()
        codes = Payload.from_bytes(payload).codes()
        masked = client.mask(codes, *read_inbox(self._plan, self._part.table))
        if is_first:
            self._store(client)
        return masked

    def mask_zero(self, payload: bytes) -> bytes:
        """Return a masked vector that leaves in place of the one from `mask`, and never beside it.

        Both have the same masks. What is stored of the client does not depend on the codes, and is
        stored now: the sum can go on with either vector.
        """
        unmasked_client = self._restored()
        masked = self.mask(payload)
        self._unmasked_client = unmasked_client
        return masked

    def _store(self, client: SumClient) -> None:
        while len(self._secrets) >= MOST_SUMS and self._run not in self._secrets:
            oldest = next(iter(self._secrets))  # of a sum that a server began and never finished
            del self._secrets[oldest]
        head = len(self._places).to_bytes(PLACES_SIZE, "big") + self._places
        self._secrets[self._run] = head + client.to_bytes()

    def _stored(self) -> tuple[bytes, bytes]:
        """Return the members' places and the client, as stored; refuse where nothing is."""
        if self._run not in self._secrets:
            raise NotInSum(f"This node has not begun the sum of run {self._run}, or has left it.")
        stored = self._secrets[self._run]
        end = PLACES_SIZE + int.from_bytes(stored[:PLACES_SIZE], "big")
        return stored[PLACES_SIZE:end], stored[end:]

    def _restored(self) -> SumClient:
        client = SumClient.from_bytes(self._plan, self._stored()[1], self._identity)
        if client.number != self._part.number:
            raise NotInSum(
                f"This node is client {client.number} of the sum, and was asked as client "
                f"{self._part.number}."
            )
        return client
