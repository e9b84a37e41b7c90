"""The node's half of a masked sum: one step at a time, from secrets that wait where the gate has them.

Idea     engines end the client's process after every message, so the client of `quietbit.secagg` is written down
         between steps, and restored for the plan that it was made for and no other. A node answers a step once and
         in order; one that refuses a step forgets its secrets and has left the sum.
Symbols  U1: clients whose shares went round; U2: those whose vector arrived; t: threshold.
Source   Bonawitz et al. (CCS 2017), Figure 4; `quietbit.secagg.client`.

What a node checks without believing the server: t is at least its policy's; n < 2 t, or n < 3 t / 2 where the server
may lie; every advertisement of those it deals with, signed by a member of its directory where the server may lie; t
members in U1 and in U2, U2 within U1 and the node within both; shares that were sealed for it in this round and are
those committed to, all opened *before* its release is noted, so that garbage in one of them costs nobody a release; one
vector in a round; signatures of t members under the very lists it was told; one answer to the last step, so that of no
client both secrets are given up. All steps that hand out shares or signatures of lists are noted in the ledger
before they are answered: two processes of a node that were started from the same state cannot both seal shares with the
same keys, sign two lists, or both unmask.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import final

from quietbit.errors import InvalidParameter
from quietbit.mechanism.base import Mechanism
from quietbit.node.policy import Rules
from quietbit.node.question import KEYS, Question, SumPart, sum_plan
from quietbit.secagg.client import SumClient
from quietbit.secagg.codec import (
    Roster,
    decode,
    encode,
    read_places,
    unpack_evidence,
    unpack_inbox,
)
from quietbit.secagg.plan import ProtocolError, SumPlan
from quietbit.wire.payload import Payload

__all__ = ["SumStep", "forget"]

MOST_SUMS = 64  # that a gatekeeper remembers at once


@final
class SumStep:
    """One step that a node was asked for."""

    def __init__(
        self, question: Question, mechanism: Mechanism, secrets: MutableMapping[str, bytes], rules: Rules
    ) -> None:
        """Read the question; refused where the sum does not fit the threshold, the mechanism or the owner's rules."""
        if question.sum is None:
            raise InvalidParameter("The question must be about a masked sum, and is not.")
        part: SumPart = question.sum
        self._part, self._secrets, self._run = part, secrets, str(question.run)
        self._identity = rules.identity(question.client) if part.active else None
        # Who the members are is said with the first step, and kept: a server cannot say it twice.
        self._places: bytes = b"" if not part.active else part.table if part.step == KEYS else self._kept()[0]
        members = rules.members(read_places(self._places, part.clients)) if part.active else None
        if members is not None and self._identity is not None and members[part.number - 1] != self._identity.public:
            raise ProtocolError("The list of members does not have this node in its place.")
        self._plan: SumPlan = sum_plan(question, mechanism, members)
        rules.check_sum(self._plan)

    def keys(self, note: Callable[[], object]) -> bytes:
        """Step 1: an advertisement. It fixes whom this node chooses, so there is one in a round, and it is noted."""
        client = SumClient(self._plan, self._part.number, self._identity)
        advertised = client.advertise()
        note()
        self._keep(client)
        return advertised.to_bytes()

    def shares(self, note: Callable[[], object]) -> bytes:
        """Step 2: sealed shares of both secrets, for those this node has chosen."""
        client = self._restored()
        answer = encode(client.share(Roster.read(self._plan, self._part.table)))
        note()
        self._keep(client)
        return answer

    def check_vector(self) -> None:
        """Refuse, before anything is noted, to send a vector into a sum that this node is not part of."""
        self._restored().check_shares(*unpack_inbox(self._plan, self._part.table))

    def mask(self, payload: bytes) -> bytes:
        """Step 3: the masked vector of a payload's codes; only when the release is in the ledger."""
        client, codes = self._restored(), Payload.from_bytes(payload).codes()
        masked = client.mask(codes, *unpack_inbox(self._plan, self._part.table))
        self._keep(client)
        return masked

    def confirm(self, note: Callable[[], object]) -> bytes:
        """Step 4, where the server may lie: a signature of the lists."""
        client = self._restored()
        signature = client.confirm(self._plan.from_bitmap(self._part.table))
        note()
        self._keep(client)
        return signature

    def unmask(self, note: Callable[[], object]) -> bytes:
        """Take the last step: give one share of every client that dealt to this one; then this node is done."""
        found = self._restored().unmask(*unpack_evidence(self._plan, self._part.table))
        note()
        forget(self._secrets, int(self._run))
        return found.to_bytes()

    def _keep(self, client: SumClient) -> None:
        while len(self._secrets) >= MOST_SUMS and self._run not in self._secrets:
            del self._secrets[next(iter(self._secrets))]  # the oldest: sums that a server began and never finished
        self._secrets[self._run] = encode([self._places, self._plan.context, client.to_bytes()])

    def _kept(self) -> tuple[bytes, bytes, bytes]:
        """Places of the members, context of the plan, and the client; refused where nothing is kept."""
        if self._run not in self._secrets:
            raise ProtocolError("This node is not part of the sum that is asked about.")
        places, context, client = decode(self._secrets[self._run], "kept secrets")
        return places, context, client

    def _restored(self) -> SumClient:
        # The plan's context holds everything that clients must agree on: a sum that changes any of it is another.
        _, context, client = self._kept()
        if context != self._plan.context:
            raise ProtocolError("This node is not part of the sum that is asked about.")
        return SumClient.from_bytes(self._plan, client, self._identity)


def forget(secrets: MutableMapping[str, bytes], run: int) -> None:
    """Forget the secrets of a sum, if there are any."""
    if str(run) in secrets:
        del secrets[str(run)]
