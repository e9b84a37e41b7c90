"""Uplink without an engine, within a policy: every payload is noted in the ledger before it is made.

Idea     `Uplink.send` randomises; it does not count. A sender ties an uplink to the owner's policy and ledger, so that
         release 51 of a guarantee for 50 is refused, whichever program asks, also after a restart.
"""

from __future__ import annotations

import os
from typing import Any, final

from quietbit.errors import check_int, require
from quietbit.mechanism.registry import family_of
from quietbit.node.ledger import AnsweredBefore, FileLedger
from quietbit.node.policy import Policy
from quietbit.node.pricing import description_of
from quietbit.node.question import MOST_ID, Question, noted_run, run_name
from quietbit.node.release import BudgetSpent, LocalGate, Unusable, reached
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import Target
from quietbit.wire.uplink import Uplink

__all__ = ["PrivateSender"]

RACES = 64
TURNS = 10_000  # numbers that are looked through for one


@final
class PrivateSender:
    """``PrivateSender(uplink, "/var/lib/quietbit/policy.toml").send(update)``: a payload, or a reason why not.

    ``run`` keeps apart what is sent to several servers; everything counts together. An update that cannot be sent (a
    NaN, another shape) becomes the zero update, because *no answer* would be an answer about the data.
    """

    def __init__(self, uplink: Uplink, policy: str | os.PathLike[str] | Policy, run: int = 0) -> None:
        """Read the policy; the ledger must have been made by `quietbit node init`."""
        require(isinstance(uplink, Uplink), "uplink", type(uplink).__name__, "an Uplink")
        self._uplink = uplink
        self._policy = policy if isinstance(policy, Policy) else Policy.load(policy)
        self._run = check_int(run, "run", 0, MOST_ID)
        self._ledger = FileLedger(self._policy.ledger, self._policy.counter)
        self._gate = LocalGate(self._policy, self._ledger, {})
        self._ledger.read()

    def send(self, update: Any) -> bytes:
        """Note one release, then clip, randomise and pack the update: the bytes of `Uplink.send`."""
        for _ in range(RACES):
            try:
                return self._gate.accept(self._question()).payload(update, self._uplink)
            except BudgetSpent as error:  # the caller is on the device: the owner may know the totals
                raise BudgetSpent(error.for_owner()) from None
            except AnsweredBefore:  # another process of this node was quicker: the next number is ours
                continue
        raise Unusable("Too many programs send with this policy at once.")

    def _question(self) -> Question:
        policy = self._policy
        mechanism = self._uplink.mechanism
        first = self._ledger.read().last_round(noted_run(self._run, family_of(mechanism))) + 1
        # Rounds are the sender's own numbers: where some clients scout, the next one of its turn.
        turns = (one for one in range(first, first + TURNS) if mechanism.is_turn_of(run_name(self._run), one, 0))
        number = next(turns, first)
        return Question(
            run=self._run, round=number, node=0, client=0, dimension=mechanism.domain.dimension,
            mechanism=description_of(mechanism), epsilon=policy.local_epsilon or policy.epsilon, delta=policy.delta,
            adjacency=policy.adjacency.value, unit=policy.unit.value,
        )  # fmt: skip

    def guarantee(self) -> Guarantee:
        """Return what this node's releases have cost so far, all runs together, as if the server saw each."""
        policy = self._policy
        cap = Target(policy.local_epsilon or policy.epsilon, policy.delta, policy.adjacency, unit=policy.unit)
        return Guarantee(reached(self._ledger.read(), cap, policy), cap.delta, cap.unit, cap.adjacency, cap.trust)
