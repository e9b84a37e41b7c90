"""The one way anything leaves a node: a request is accepted and noted, and then exactly one release is made.

Idea     everything that can be refused is refused before the data are touched, from the request,
         the policy and the ledger alone. First what needs the request and the policy only, whose
         refusals may name the fault; then the ledger, whose refusals are bare values
         (`quietbit.node.refusal`). An accepted request is written into the ledger *before* the app
         trains. After that one thing happens, whatever the app does: one release of the same size
         as any other, of the zero update if something went wrong (an app that raised, a NaN, arrays
         of other shapes). So a refusal tells nothing about the data, and a failure looks like a
         release. The same code runs in the app's process and in a gatekeeper; without an engine,
         `PrivateSender` asks it.
Symbols  k: honest clients that a sum is priced at; 0 where the server sees the release.
Source   docs/explanation/threat-model.md; docs/theory/filters.md for the accounts; Bonawitz et al.
         (CCS 2017), Figure 4, for the steps of a masked sum.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, MutableMapping
from functools import cached_property, partial
from typing import Any, final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.abilities import (
    Batches,
    SharedRows,
    is_turn_of,
    is_unmasked,
    sampling_rate_of,
)
from quietbit.mechanism.base import Batch, Mechanism, core_of, summable
from quietbit.mechanism.batch import draw_batch
from quietbit.mechanism.registry import family_of, identity_of
from quietbit.node.budget import SUMMED_ANSWERS, Budget, epsilon_spent
from quietbit.node.costs import SavedCosts, costs_beside
from quietbit.node.decisions import ACCEPTED, MOST_LETTERS, Decision, Decisions, decisions_beside
from quietbit.node.ledger import (
    Entry,
    FileLedger,
    Ledger,
    LedgerState,
    Moment,
    mechanism_line,
    release_line,
)
from quietbit.node.policy import ANSWERING, SCOUT, SUMMED, Policy, Rules
from quietbit.node.refusal import (
    AnsweredBefore,
    BudgetSpent,
    NotAllowed,
    Noted,
    NotInSum,
    Refused,
    Unusable,
    refusal_of,
)
from quietbit.node.request import (
    ALONE,
    CONFIRM,
    IDENTITY,
    KEYS,
    MOST_ROUNDS,
    SHARES,
    STEPS,
    UNMASK,
    VECTOR,
    Framed,
    ProposedMechanism,
    Request,
    description_of,
    noted_run,
    run_name,
    sum_plan,
)
from quietbit.privacy.guarantee import Guarantee
from quietbit.secagg.client import SumClient
from quietbit.secagg.codec import Roster, decode, encode, read_places, unpack_evidence, unpack_inbox
from quietbit.secagg.plan import ProtocolError
from quietbit.wire.payload import Payload
from quietbit.wire.uplink import Uplink

__all__ = ["LocalAcceptedRequest", "LocalGate", "PrivateSender", "SumStep", "make_release"]

LOGGER = logging.getLogger(__name__)
MOST_SUMS = 64  # that a gatekeeper remembers at once
RACES = 64
TURNS = 10_000  # numbers that a sender looks through for one of its turn


def make_release(uplink: Uplink, update: Any, rng: RandomBits) -> bytes:
    """Encode an update as a payload; encode the zero update where there is none or it cannot be sent."""
    if update is not None:
        try:
            return uplink.send(update, rng)
        except Exception as error:
            LOGGER.error(
                "quietbit: the update cannot be sent; zero is released in its place.",
                exc_info=error,
            )
    if Batches.find(uplink.mechanism) is not None:
        return uplink.send_batch(uplink.batch(rng))
    zeros = np.zeros(uplink.mechanism.ball.dimension, dtype=np.float32)
    return Uplink(uplink.mechanism).send(zeros, rng)


@final
class SumStep:
    """One step of a masked sum that a node was asked for, from secrets that wait where the gate has them.

    The client of `quietbit.secagg` is written down between steps, and restored for the plan that it
    was made for and no other. Steps that hand out shares or sign lists are noted in the ledger
    before they are answered: two processes of a node that were started from the same state cannot
    both seal shares with the same keys, sign two lists, or unmask.
    """

    def __init__(
        self,
        request: Request,
        mechanism: Mechanism,
        secrets: MutableMapping[str, bytes],
        rules: Rules,
    ) -> None:
        """Read the request; refused where the sum does not fit the threshold, the mechanism or the owner's rules."""
        part = request.part
        self._part = part
        self._secrets = secrets
        self._run = str(request.run)
        self._twin: SumClient | None = (
            None  # before its vector was masked, where zero was beforehand
        )
        self._identity = rules.identity(request.client) if part.active else None
        # Who the members are is said with the first step, and kept: a server cannot say it twice.
        self._places: bytes = (
            b"" if not part.active else part.table if part.step == KEYS else self._kept()[0]
        )
        members = rules.members(read_places(self._places, part.clients)) if part.active else None
        self._plan = sum_plan(request, mechanism, members)
        rules.check_sum(self._plan)

    def answer(self, note: Callable[[], object]) -> bytes:
        """Answer a step that needs no training: ``note`` it when it can be answered, before anything is kept or said.

        The first fixes whom this node chooses, so there is one in a round; after the last this node
        is done. Whatever is wrong with a step, seen from the node's secrets, is one refusal.
        """
        try:
            return self._answer(note)
        except (ProtocolError, InvalidParameter) as error:
            raise NotInSum(str(error)) from error

    def _answer(self, note: Callable[[], object]) -> bytes:
        plan = self._plan
        table = self._part.table
        step = self._part.step
        client = (
            SumClient(plan, self._part.number, self._identity) if step == KEYS else self._restored()
        )
        if step == KEYS:
            answer = client.advertise().to_bytes()
        elif step == SHARES:
            answer = encode(client.share(Roster.read(plan, table)))
        elif step == CONFIRM:
            answer = client.confirm(plan.from_bitmap(table))
        else:
            answer = client.unmask(*unpack_evidence(plan, table)).to_bytes()
        note()
        if step == UNMASK:
            self._secrets.pop(self._run, None)
        else:
            self._keep(client)
        return answer

    def check_vector(self) -> None:
        """Refuse, before anything is noted, to send a vector into a sum that this node is not part of."""
        try:
            self._restored().check_shares(*unpack_inbox(self._plan, self._part.table))
        except (ProtocolError, InvalidParameter) as error:
            raise NotInSum(str(error)) from error

    def mask(self, payload: bytes) -> bytes:
        """Return the masked vector of a payload's codes; only when the release is in the ledger."""
        twin = self._twin
        client = self._restored() if twin is None else twin
        codes = Payload.from_bytes(payload).codes()
        masked = client.mask(codes, *unpack_inbox(self._plan, self._part.table))
        if twin is None:
            self._keep(client)
        return masked

    def mask_zero(self, payload: bytes) -> bytes:
        """Return the masked vector that leaves in place of the one of `mask`, and never beside it.

        Both have the same masks. What is kept of the client does not depend on the codes, and is
        kept now: the sum goes on with either.
        """
        twin = self._restored()
        masked = self.mask(payload)
        self._twin = twin
        return masked

    def _keep(self, client: SumClient) -> None:
        while len(self._secrets) >= MOST_SUMS and self._run not in self._secrets:
            del self._secrets[
                next(iter(self._secrets))
            ]  # the oldest: sums that a server began and never finished
        self._secrets[self._run] = encode([self._places, client.to_bytes()])

    def _kept(self) -> list[bytes]:
        """Return places of the members and the client; refused where nothing is kept."""
        if self._run not in self._secrets:
            raise NotInSum("This node has not begun the sum that is asked about, or has left it.")
        return list(decode(self._secrets[self._run], "kept secrets"))

    def _restored(self) -> SumClient:
        client = SumClient.from_bytes(self._plan, self._kept()[1], self._identity)
        if client.number != self._part.number:
            raise NotInSum("This node is not part of the sum under the number that it is asked by.")
        return client


@final
@frozen(eq=False)
class LocalGate:
    """Policy, ledger and keys in this process; ``models`` is where models of runs are kept between rounds, if at all.

    ``secrets`` of masked sums wait there between their steps.
    """

    rules: Rules
    ledger: Ledger
    secrets: MutableMapping[str, bytes]
    models: MutableMapping[str, bytes] | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Numbers that the owner lets out as they are."""
        return self.rules.metrics

    @property
    def families(self) -> tuple[str, ...] | None:
        """Families of mechanisms that the owner allows; None allows all."""
        return self.rules.families

    @property
    def answer_seconds(self) -> float:
        """How long after a request is accepted its answer leaves."""
        return self.rules.answer_seconds

    def accept(self, request: Request) -> LocalAcceptedRequest:
        """Check a request, price it and note its release; a `QuietbitError` is a reason not to answer."""
        start = time.monotonic()
        try:
            accepted = self._accept(request)
        except Exception as error:
            self.note_refusal(request, error, time.monotonic() - start)
            raise
        self._note(request, ACCEPTED, "", time.monotonic() - start)
        return accepted

    def _accept(self, request: Request) -> LocalAcceptedRequest:
        proposed, honest = self._propose(request)
        step = None
        if request.sum is not None and not is_unmasked(proposed.mechanism):
            require(
                request.sum.step == VECTOR,
                "step of the sum",
                request.sum.step,
                f"{VECTOR} for a release",
            )
            step = SumStep(request, summable(proposed.mechanism), self.secrets, self.rules)
            # A vector that was sent and lost counts, whatever is left of the sum.
            self.ledger.read().check_round(noted_run(request.run, proposed.family), request.round)
            step.check_vector()
        # Seeded words of an evaluation are others than those of the update of its round.
        seed_round = request.round
        if proposed.family in ANSWERING:
            seed_round += MOST_ROUNDS
        new_rng = partial(self.rules.rng, seed_round, request.client)
        rng = new_rng()
        self._note_release(request, proposed, honest)
        return LocalAcceptedRequest(
            request, proposed.uplink, rng, step, new_rng, self.rules.samples
        )

    def step(self, request: Request) -> bytes:
        """Answer a step of a masked sum that needs no training; what hands out or signs something is noted."""
        start = time.monotonic()
        try:
            return self._step(request)
        except Exception as error:
            self.note_refusal(request, error, time.monotonic() - start)
            raise

    def _step(self, request: Request) -> bytes:
        part = request.part
        require(
            part.step not in (VECTOR, ALONE), "step of the sum", part.step, "one without training"
        )
        if part.step == IDENTITY:
            identity = self.rules.identity(request.client)
            if identity is None:
                raise NotAllowed("The policy names no own-key.", rule="own-key")
            return identity.public
        proposed, honest = self._propose(request)
        run = noted_run(request.run, proposed.family)
        step = SumStep(request, summable(proposed.mechanism), self.secrets, self.rules)
        if part.step == KEYS:  # nobody is kept waiting for a sum that no budget is left for
            self._check_ledger(self.ledger.read(), request, proposed, honest)
        place = STEPS.index(part.step) + 1
        return step.answer(
            lambda: self.ledger.update(lambda state: [state.step(run, request.round, place)])
        )

    def forget(self, run: int) -> None:
        """Leave the sum of a run, if there is one: a node that refuses a step has."""
        if str(run) in self.secrets:
            del self.secrets[str(run)]

    def note_refusal(self, request: Request | None, error: Exception, seconds: float = 0.0) -> None:
        """Tell the owner why a request is not answered: a line of the log, and one of the decisions."""
        if getattr(error, "is_noted_for_owner", False):
            return
        error.is_noted_for_owner = True  # type: ignore[attr-defined]
        text = error.for_owner if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        refused_run = error.refused_run if isinstance(error, BudgetSpent) else ""
        self._note(request, refusal_of(error).reason.value, text, seconds, refused_run)

    def _note(
        self,
        request: Request | None,
        reason: str,
        text: str,
        seconds: float,
        refused_run: str = "",
    ) -> None:
        run = "?"
        number = 0
        if request is not None:
            run = str(request.run)
            number = request.round
        LOGGER.disabled = (
            False  # an engine that reads a logging config file disables every other logger
        )
        if self._decisions is None:  # a simulated node has no owner
            LOGGER.debug("quietbit: run %s, round %d: %s. %s", run, number, reason, text)
            return
        level = logging.INFO if reason == ACCEPTED else logging.WARNING
        LOGGER.log(level, "quietbit: run %s, round %d: %s. %s", run, number, reason, text)
        now = Moment.now()
        decision = Decision(round(now.time, 3), run, number, reason, text[:MOST_LETTERS])
        try:
            self._decisions.add(decision, seconds, refused_run, now)
        except QuietbitError as error:
            LOGGER.error("quietbit: the decision is not kept: %s", error)

    @cached_property
    def _decisions(self) -> Decisions | None:
        return None if self.ledger.path is None else decisions_beside(self.ledger.path)

    @cached_property
    def _saved_costs(self) -> SavedCosts | None:
        return None if self.ledger.path is None else costs_beside(self.ledger.path)

    @property
    def _budget(self) -> Budget:
        return Budget(self.rules, self._saved_costs)

    def _propose(self, request: Request) -> tuple[ProposedMechanism, int]:
        """Return the mechanism that is asked for, if it is allowed and has a price, and the k it is priced at.

        A function of the request and the policy: what it refuses, it may refuse with a sentence.
        """
        rules = self.rules
        part = request.sum
        threshold = None
        run_honest = None
        if part is not None:
            threshold = part.threshold
            run_honest = part.honest
        honest = rules.honest_for(request.trust, threshold, run_honest)
        rules.check_request(str(request.run), request.dimension)
        proposed = ProposedMechanism.read(request.mechanism, rules.families)
        mechanism = proposed.mechanism
        ball = mechanism.ball
        if request.dimension != ball.dimension:
            rule = f"{ball.dimension}, the mechanism's"
            raise InvalidParameter.of("dimension of the request", rule, request.dimension)
        if SharedRows.find(mechanism) is not None:
            of_round = mechanism.for_round(run_name(request.run), request.round)
            same = identity_of(of_round) == identity_of(mechanism)
            require(same, "rows that all clients keep", "those of another round", "this round's")
        if proposed.family in (*ANSWERING, SCOUT) and core_of(mechanism) is not mechanism:
            # The ledger knows answers to evaluations by their kind: one in a wrapper would be in no
            # account of theirs. And what is wrapped around a scout's answer would be priced, in a
            # sum, as if a sum hid it.
            rule = "one that nothing is wrapped around"
            raise InvalidParameter.of("mechanism of an answer", rule, type(mechanism).__name__)
        if proposed.family == SUMMED and part is None:
            rule = "in a masked sum, which hides its few lies"
            raise InvalidParameter.of("mechanism of an answer", rule, SUMMED_ANSWERS)
        if part is not None:
            rule = "alone for what goes into no sum, and for nothing else"
            require(
                (part.step == ALONE) is is_unmasked(mechanism), "step of the sum", part.step, rule
            )
        if not is_turn_of(mechanism, run_name(request.run), request.round, request.node):
            rule = "what it is this node's turn for: an update, or the answer of a scout"
            raise InvalidParameter.of("mechanism", rule, proposed.family)
        rules.check(proposed.family, ball.radius, sampling_rate_of(mechanism))
        self._budget.check_cost(request, proposed, honest)
        return proposed, honest

    def _note_release(self, request: Request, proposed: ProposedMechanism, honest: int) -> None:
        """Check the ledger and write the release into it; nothing is computed while the file is locked."""
        checked = b""
        if self.ledger.path is not None:
            state = self.ledger.read()
            self._check_ledger(state, request, proposed, honest)
            checked = state.head

        def lines(state: LedgerState) -> list[Entry]:
            if state.head != checked:  # another process was quicker, or there is no lock to hold
                self._check_ledger(state, request, proposed, honest)
            run = noted_run(request.run, proposed.family)
            release = release_line(
                proposed.identity, honest, run, request.round, self.rules.data_set
            )
            if proposed.identity in state.mechanisms:
                return [release]
            return [mechanism_line(proposed.identity, proposed.description), release]

        self.ledger.update(lines)

    def _check_ledger(
        self, state: LedgerState, request: Request, proposed: ProposedMechanism, honest: int
    ) -> None:
        """Refuse one more release where a count or a budget does not allow it, in values that name nothing."""
        now = Moment.now()
        run = noted_run(request.run, proposed.family)
        try:
            state.check_round(run, request.round)
            state.check_mechanism(proposed.identity, run, now)
            self.rules.check_counts(state.releases + 1, state.last_day(now) + 1)
            self._check_refusals(run, now)
            self._budget.check(state, request, proposed, honest)
        except BudgetSpent as error:
            if error.of_node:
                error.refused_run = f"{run} {self.rules.mark}"
            raise
        except (
            InvalidParameter
        ) as error:  # a sentence that was made where the ledger is read stays here
            raise Unusable(str(error)) from error
        finally:
            if self._saved_costs is not None:
                self._saved_costs.save()

    def _check_refusals(self, run: str, now: Moment) -> None:
        """Refuse a run that the node's budget has refused today, and all runs when too many were.

        A server that asks for dearer and cheaper releases until one is accepted would learn what is
        left. An owner who changes the policy begins anew.
        """
        most = self.rules.refusals_per_day
        if self._decisions is None or most is None:
            return
        mark = self.rules.mark
        refused = [
            name
            for name in self._decisions.read().recent_refusals(now)
            if name.endswith(f" {mark}")
        ]
        if f"{run} {mark}" in refused:
            raise BudgetSpent(
                f"Run {run} was refused for the budget of this node in the last 24 hours."
            )
        if len(refused) >= most:
            raise BudgetSpent(
                f"{most} runs were refused for the budget of this node in the last 24 hours."
            )


@final
class LocalAcceptedRequest:
    """A request that is in the ledger, and its one release."""

    def __init__(
        self,
        request: Request,
        uplink: Uplink,
        rng: RandomBits,
        step: SumStep | None,
        new_rng: Callable[[], RandomBits],
        samples: int | None = None,
    ) -> None:
        self._request = request
        self._uplink = uplink
        self._rng = rng
        self._step = step
        self._new_rng = new_rng  # for the zero release: other randomness, unless it is seeded
        self._samples = samples
        self._used = False
        self._sum: Batch | None = None
        self._left = 0
        self._drawn = False
        self._guard = threading.Lock()  # an app that is late may go on in its own thread

    def draw(self, count: int) -> NDArray[np.int64]:
        """Draw a batch with this node's randomness; once for each step of the release."""
        mechanism = self._uplink.mechanism
        with self._guard:
            fresh = Batches.find(mechanism) is not None and not self._drawn and not self._used
            require(
                fresh, "batch", "another", "drawn once per step, in a run that protects samples"
            )
            if self._samples is not None:
                require(
                    count == self._samples,
                    "number of samples",
                    count,
                    f"{self._samples}, the policy's",
                )
            drawn = draw_batch(self._rng, sampling_rate_of(mechanism), count)
            self._sum = self._sum or self._uplink.batch(self._rng)
            self._left = drawn.size
            self._drawn = True
        return drawn

    def add(self, rows: NDArray[Any]) -> None:
        """Clip and add gradients of samples that were drawn."""
        with self._guard:
            if self._sum is None or self._used:
                raise InvalidParameter(
                    "gradients must come after the batch is drawn and before the release."
                )
            require(
                len(rows) <= self._left,
                "number of gradients",
                len(rows),
                f"at most {self._left}, as were drawn",
            )
            self._left -= len(rows)  # also of rows that cannot be added: some of them may have been
            self._sum.add(rows)

    def step(self) -> FloatVector | None:
        """Randomise the sum of this batch; the last one's is the release."""
        with self._guard:
            if self._sum is None or self._used or not self._drawn:
                raise InvalidParameter(
                    "step must come after a batch is drawn and before the release."
                )
            change = self._sum.step()
            self._left = 0
            self._drawn = change is None
            return change

    def zero(self) -> bytes:
        """Return the release that leaves where that of the app's update is not made in time.

        To be called before the app is: then whatever it does to the process, this one can leave.
        Only one of the two ever does; this one is of the zero update, with randomness of its own.
        """
        payload = make_release(self._uplink, None, self._new_rng())
        if self._step is not None:
            payload = self._step.mask_zero(payload)
        return self._framed(payload)

    def release(self, update: Any) -> bytes:
        """Return the frame around the payload, which is masked if it goes into a sum."""
        return self._framed(self.payload(update))

    def _framed(self, payload: bytes) -> bytes:
        request = self._request
        return Framed(request.run, request.round, request.node, payload).to_bytes()

    def payload(self, update: Any, uplink: Uplink | None = None) -> bytes:
        """Make the payload, unframed, once; ``uplink`` is one of the same mechanism that knows the update's shape."""
        with self._guard:
            if self._used:
                raise Noted("The release of this round was made already.")
            self._used = True
        try:
            if self._sum is not None:
                made = self._uplink.send_batch(self._sum)
            else:
                made = make_release(uplink or self._uplink, update, self._rng)
            return made if self._step is None else self._step.mask(made)
        except Exception as error:
            LOGGER.error("quietbit: encoding the zero update failed.", exc_info=error)
            raise Noted("The release of this round was noted, and cannot be made.") from error


@final
class PrivateSender:
    """``PrivateSender(uplink, "/var/lib/quietbit/policy.toml").send(update)``: a payload, or a reason why not.

    `Uplink.send` randomises; it does not count. A sender ties an uplink to the owner's policy and
    ledger, so that release 51 of a guarantee for 50 is refused, whichever program asks, also after
    a restart. ``run`` keeps apart what is sent to several servers; everything counts together. An
    update that cannot be sent (a NaN, another shape) becomes the zero update, because *no answer*
    would be an answer about the data.
    """

    def __init__(
        self, uplink: Uplink, policy: str | os.PathLike[str] | Policy, run: int = 0
    ) -> None:
        """Read the policy; the ledger must have been made by `quietbit node init`."""
        require(isinstance(uplink, Uplink), "uplink", type(uplink).__name__, "an Uplink")
        self._uplink = uplink
        self._run = run
        self._policy = policy if isinstance(policy, Policy) else Policy.load(policy)
        self._ledger = FileLedger(self._policy.ledger, self._policy.counter)
        self._gate = LocalGate(self._policy, self._ledger, {})
        self._request()  # whatever is wrong with the ledger or the run is said now

    def send(self, update: Any) -> bytes:
        """Note one release, then clip, randomise and pack the update: the bytes of `Uplink.send`."""
        for _ in range(RACES):
            try:
                return self._gate.accept(self._request()).payload(update, self._uplink)
            except (
                BudgetSpent
            ) as error:  # the caller is on the device: the owner may know the totals
                raise error.in_full() from None
            except (
                AnsweredBefore
            ):  # another process of this node was quicker: the next number is ours
                continue
        raise Unusable("Too many programs send with this policy at once.")

    def _request(self) -> Request:
        cap = self._policy.caps[-1]
        mechanism = self._uplink.mechanism
        first = self._ledger.read().last_round(noted_run(self._run, family_of(mechanism))) + 1
        # Rounds are the sender's own numbers: where some clients scout, the next one of its turn.
        turns = (
            one
            for one in range(first, first + TURNS)
            if is_turn_of(mechanism, run_name(self._run), one, 0)
        )
        return Request(
            run=self._run,
            round=next(turns, first),
            node=0,
            client=0,
            dimension=mechanism.ball.dimension,
            mechanism=description_of(mechanism),
            epsilon=cap.epsilon,
            delta=cap.delta,
            adjacency=cap.adjacency.value,
            unit=cap.unit.value,
        )

    def guarantee(self) -> Guarantee:
        """Return what this node's releases have cost so far, all runs together, as if the server saw each."""
        cap = self._policy.caps[-1]
        return Guarantee(
            epsilon_spent(self._ledger.read(), cap, self._policy),
            cap.delta,
            cap.unit,
            cap.adjacency,
            cap.trust,
        )
