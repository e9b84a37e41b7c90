"""Releases within an owner's budget, without an engine."""

from __future__ import annotations

import os
from typing import Any, final

from quietbit.errors import require
from quietbit.mechanism.registry import family_of
from quietbit.node.budget import epsilon_spent
from quietbit.node.gate import LocalGate
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import Policy
from quietbit.node.refusal import AnsweredBefore, BudgetSpent, Unusable
from quietbit.node.request import Request, description_of, noted_run, run_name
from quietbit.privacy.guarantee import Guarantee
from quietbit.wire.uplink import Uplink

__all__ = ["PrivateSender"]

MOST_RACES = 64  # attempts of a sender to note a round before another process does
MOST_TURNS = 10_000  # rounds in which a sender looks for one of its turn


@final
class PrivateSender:
    """``PrivateSender(uplink, "/var/lib/quietbit/policy.toml").send(update)`` returns a payload.

    `Uplink.send` randomises; it does not count. A sender ties an uplink to the owner's policy and
    ledger, so that release 51 of a guarantee for 50 is refused, whichever program sends it, also
    after a restart. ``run`` numbers the server that releases are for; releases of all runs count
    together. An update that cannot be sent (a NaN, another shape) becomes the zero update, because
    a missing answer would say something about the data.
    """

    def __init__(
        self, uplink: Uplink, policy: str | os.PathLike[str] | Policy, run: int = 0
    ) -> None:
        """Read the policy; its ledger must have been made by `quietbit node init`."""
        require(isinstance(uplink, Uplink), "uplink", type(uplink).__name__, "an Uplink")
        self._uplink = uplink
        self._run = run
        self._policy = policy if isinstance(policy, Policy) else Policy.load(policy)
        self._ledger = FileLedger(self._policy.ledger, self._policy.counter)
        self._gate = LocalGate(self._policy, self._ledger, {})
        self._request()  # raises now what is wrong with the ledger or the run

    def send(self, update: Any) -> bytes:
        """Note one release, then clip, randomise and pack the update, as `Uplink.send` does."""
        for _ in range(MOST_RACES):
            try:
                return self._gate.accept(self._request()).payload(update, self._uplink)
            except BudgetSpent as error:
                raise error.in_full() from None  # the caller is on the owner's device
            except AnsweredBefore:
                continue  # another process noted this round first: take the next
        raise Unusable(
            f"Other programs took {MOST_RACES} rounds of run {self._run} first: send again, or "
            "give each program a run of its own."
        )

    def _request(self) -> Request:
        cap = self._policy.caps[-1]
        mechanism = self._uplink.mechanism
        first = self._ledger.read().last_round(noted_run(self._run, family_of(mechanism))) + 1
        number = first
        # Where some clients scout, the next round that is this sender's turn.
        for candidate in range(first, first + MOST_TURNS):
            if mechanism.is_turn_of(run_name(self._run), candidate, 0):
                number = candidate
                break
        return Request(
            run=self._run,
            round=number,
            node=0,
            client=0,
            dimension=mechanism.ball.dimension,
            mechanism=description_of(mechanism),
            clip=self._uplink.clip,
            epsilon=cap.epsilon,
            delta=cap.delta,
            adjacency=cap.adjacency.value,
            unit=cap.unit.value,
        )

    def guarantee(self) -> Guarantee:
        """Return the guarantee of all releases of this node so far, as if the server saw each."""
        cap = self._policy.caps[-1]
        epsilon = epsilon_spent(self._ledger.read(), cap, self._policy)
        return Guarantee(epsilon, cap.delta, cap.unit, cap.adjacency, cap.trust)
