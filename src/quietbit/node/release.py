"""The only way out of a node: a request is checked and noted, then exactly one release is made.

Idea     everything that can be refused is refused before the data are touched, from the request,
         the policy and the ledger alone. First come checks of the request and the policy, whose
         refusals may name the fault; then the ledger, whose refusals are bare values
         (`quietbit.node.refusal`). An accepted request is written into the ledger *before* the app
         trains. After that one release is made, whatever the app does, of the same size as any
         other: of the zero update if something went wrong (an app that raised, a NaN, arrays of
         other shapes). So a refusal says nothing about the data, and a failure looks like a
         release. The same code runs in the app's process and in a gatekeeper; `PrivateSender` uses
         it without an engine.
Symbols  k: the number of honest clients that a sum's cost assumes; 0 where the server sees the
         release.
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
from quietbit.errors import InvalidParameter, require
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
from quietbit.node.decisions import ACCEPTED, MOST_LETTERS, Decision, Decisions
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
from quietbit.secagg.codec import (
    decode,
    encode,
    read_places,
    unpack_evidence,
    unpack_inbox,
    unpack_roster,
)
from quietbit.secagg.identity import Identity
from quietbit.secagg.plan import ProtocolError
from quietbit.wire.payload import Payload
from quietbit.wire.uplink import Uplink

__all__ = ["LocalAcceptedRequest", "LocalGate", "PrivateSender", "SumStep", "make_release"]

LOGGER = logging.getLogger(__name__)
MOST_SUMS = 64  # sums whose secrets a node keeps at once
MOST_RACES = 64  # attempts of a sender to note a round before another process does
MOST_TURNS = 10_000  # rounds in which a sender looks for one of its turn
CANNOT_SEND = "quietbit: the update cannot be sent; the zero update is released in its place."
CANNOT_MAKE = "The release of this round is noted in the ledger, and could not be made."
MADE_BEFORE = "The release of this round was made already: accept another request first."


def make_release(uplink: Uplink, update: Any, rng: RandomBits) -> bytes:
    """Return the payload of an update, or of the zero update where it is None or cannot be sent."""
    if update is not None:
        try:
            return uplink.send(update, rng)
        except Exception as error:
            LOGGER.error(CANNOT_SEND, exc_info=error)
    if Batches.find(uplink.mechanism) is not None:
        return uplink.send_batch(uplink.batch(rng))
    zeros = np.zeros(uplink.mechanism.ball.dimension, dtype=np.float32)
    return Uplink(uplink.mechanism).send(zeros, rng)


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
            self._places = part.table if part.step == KEYS else self._stored()[0]
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
        if step == KEYS:
            client = SumClient(plan, self._part.number, self._identity)
            answer = client.advertise().to_bytes()
        else:
            client = self._restored()
            if step == SHARES:
                answer = encode(client.share(unpack_roster(plan, table)))
            elif step == CONFIRM:
                answer = client.confirm(plan.from_bitmap(table))
            else:
                answer = client.unmask(*unpack_evidence(plan, table)).to_bytes()
        note()
        if step == UNMASK:
            self._secrets.pop(self._run, None)
        else:
            self._store(client)
        return answer

    def check_vector(self) -> None:
        """Refuse a vector for a sum that this node is not part of; nothing is noted yet."""
        try:
            self._restored().check_shares(*unpack_inbox(self._plan, self._part.table))
        except (ProtocolError, InvalidParameter) as error:
            raise NotInSum(str(error)) from error

    def mask(self, payload: bytes) -> bytes:
        """Return the masked vector of a payload's codes; call it after the release is noted."""
        client = self._unmasked_client
        is_first = client is None
        if client is None:
            client = self._restored()
        codes = Payload.from_bytes(payload).codes()
        masked = client.mask(codes, *unpack_inbox(self._plan, self._part.table))
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
        self._secrets[self._run] = encode([self._places, client.to_bytes()])

    def _stored(self) -> list[bytes]:
        """Return the members' places and the client, as stored; refuse where nothing is."""
        if self._run not in self._secrets:
            raise NotInSum(f"This node has not begun the sum of run {self._run}, or has left it.")
        return list(decode(self._secrets[self._run], "stored secrets"))

    def _restored(self) -> SumClient:
        client = SumClient.from_bytes(self._plan, self._stored()[1], self._identity)
        if client.number != self._part.number:
            raise NotInSum(
                f"This node is client {client.number} of the sum, and was asked as client "
                f"{self._part.number}."
            )
        return client


@final
@frozen(eq=False)
class LocalGate:
    """Policy, ledger and keys in this process.

    ``secrets`` holds those of masked sums between their steps, ``models`` the models of runs
    between rounds; None stores no models.
    """

    rules: Rules
    ledger: Ledger
    secrets: MutableMapping[str, bytes]
    models: MutableMapping[str, bytes] | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that leave the node as they are, without privacy."""
        return self.rules.metrics

    @property
    def families(self) -> tuple[str, ...] | None:
        """Families of mechanisms that the policy allows; None allows all."""
        return self.rules.families

    @property
    def answer_seconds(self) -> float:
        """Seconds from accepting a request to its answer."""
        return self.rules.answer_seconds

    def check(self, request: Request) -> None:
        """Refuse a run and a dimension that the policy does not allow, before models are stored."""
        try:
            self.rules.check_request(str(request.run), request.dimension)
        except NotAllowed as error:
            self.note_refusal(request, error)
            raise

    def accept(self, request: Request) -> LocalAcceptedRequest:
        """Check a request and note its release; raise a `QuietbitError` where it is refused."""
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
            rule = f"{VECTOR} for a release"
            require(request.sum.step == VECTOR, "step of the sum", request.sum.step, rule)
            step = SumStep(request, summable(proposed.mechanism), self.secrets, self.rules)
            # First: a vector that was sent and lost counts, whatever is stored of the sum.
            self.ledger.read().check_round(noted_run(request.run, proposed.family), request.round)
            step.check_vector()
        # With a seed, the evaluation and the update of a round must not share random bits.
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
        """Answer a step of a masked sum that needs no training, noted in the ledger first."""
        start = time.monotonic()
        try:
            return self._step(request)
        except Exception as error:
            self.note_refusal(request, error, time.monotonic() - start)
            raise

    def _step(self, request: Request) -> bytes:
        part = request.part
        rule = "one that needs no training"
        require(part.step not in (VECTOR, ALONE), "step of the sum", part.step, rule)
        if part.step == IDENTITY:
            identity = self.rules.identity(request.client)
            if identity is None:
                raise NotAllowed("The policy names no own-key.", rule="own-key")
            return identity.public
        proposed, honest = self._propose(request)
        run = noted_run(request.run, proposed.family)
        step = SumStep(request, summable(proposed.mechanism), self.secrets, self.rules)
        if part.step == KEYS:  # other clients need not wait for one without budget
            self._check_newest(request, proposed, honest)
        place = STEPS.index(part.step) + 1
        return step.answer(
            lambda: self.ledger.update(lambda state: [state.step(run, request.round, place)])
        )

    def forget(self, run: int) -> None:
        """Delete the secrets of a run's sum, if there are any: the node has left it."""
        if str(run) in self.secrets:
            del self.secrets[str(run)]

    def note_refusal(self, request: Request | None, error: Exception, seconds: float = 0.0) -> None:
        """Write the owner's reason for a refusal to the log and the decisions, once per error."""
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
        # An engine that reads a logging configuration disables every other logger.
        LOGGER.disabled = False
        if self._decisions is None:  # a simulated node has no owner
            LOGGER.debug("quietbit: run %s, round %d: %s. %s", run, number, reason, text)
            return
        level = logging.INFO if reason == ACCEPTED else logging.WARNING
        LOGGER.log(level, "quietbit: run %s, round %d: %s. %s", run, number, reason, text)
        now = Moment.now()
        decision = Decision(round(now.time, 3), run, number, reason, text[:MOST_LETTERS])
        try:
            self._decisions.add(decision, seconds, refused_run, now)
        except Exception as error:  # an accepted release is in the ledger, and must be made
            LOGGER.error("quietbit: the decision is not kept: %s", error)

    @cached_property
    def _decisions(self) -> Decisions | None:
        return None if self.ledger.path is None else Decisions(self.ledger.path)

    @cached_property
    def _saved_costs(self) -> SavedCosts | None:
        return None if self.ledger.path is None else costs_beside(self.ledger.path)

    @property
    def _budget(self) -> Budget:
        return Budget(self.rules, self._saved_costs)

    def _propose(self, request: Request) -> tuple[ProposedMechanism, int]:
        """Return the requested mechanism, if it is allowed and has a cost, and the k of that cost.

        The ledger is not read: what this raises may tell the server what is wrong.
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
            rule = f"{ball.dimension}, as in the description of the mechanism"
            raise InvalidParameter.of("dimension of the request", rule, request.dimension)
        if SharedRows.find(mechanism) is not None:
            of_round = mechanism.for_round(run_name(request.run), request.round)
            identity = identity_of(mechanism)
            rule = f"the one whose shared rows are of round {request.round}, run {request.run}"
            require(identity_of(of_round) == identity, "mechanism", identity.hex()[:16], rule)
        if proposed.family in (*ANSWERING, SCOUT) and core_of(mechanism) is not mechanism:
            # The ledger finds answers to evaluations by their kind: a wrapped one would be missing
            # in their account. And whatever wraps a scout's answer would have the cost of a sum.
            rule = "a plain one, without a wrapper"
            raise InvalidParameter.of("mechanism of an answer", rule, type(mechanism).__name__)
        if proposed.family == SUMMED and part is None:
            rule = "one that the server may see"
            remedy = f"{SUMMED_ANSWERS} is private within a masked sum only"
            raise InvalidParameter.of("mechanism of an answer", rule, SUMMED_ANSWERS, remedy)
        if part is not None:
            is_unmasked_step = part.step == ALONE
            rule = f"{ALONE} for a release outside the sum, and only for one"
            require(is_unmasked_step is is_unmasked(mechanism), "step of the sum", part.step, rule)
        if not is_turn_of(mechanism, run_name(request.run), request.round, request.node):
            rule = f"one that is the turn of node {request.node} in round {request.round}"
            raise InvalidParameter.of("mechanism", rule, proposed.family)
        rules.check(proposed.family, ball.radius, sampling_rate_of(mechanism))
        self._budget.check_cost(request, proposed, honest)
        return proposed, honest

    def _note_release(self, request: Request, proposed: ProposedMechanism, honest: int) -> None:
        """Check the ledger and note the release; accounts are computed before it is locked."""
        checked = b""
        if self.ledger.path is not None:
            checked = self._check_newest(request, proposed, honest).head

        def lines(state: LedgerState) -> list[Entry]:
            if state.head != checked:  # another process wrote to it, or it is not a file
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
        """Refuse a release beyond a count or a budget; servers learn neither which nor how much."""
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
        except InvalidParameter as error:  # its sentence may depend on the ledger
            raise Unusable(str(error)) from error

    def _check_newest(
        self, request: Request, proposed: ProposedMechanism, honest: int
    ) -> LedgerState:
        """Check the ledger as it is now, and save the costs that this takes; return its totals."""
        state = self.ledger.read()
        try:
            self._check_ledger(state, request, proposed, honest)
        finally:
            if self._saved_costs is not None:
                self._saved_costs.save()
        return state

    def _check_refusals(self, run: str, now: Moment) -> None:
        """Refuse a run that the node's budget refused in the last 24 hours, and all after too many.

        A server could otherwise ask for releases of different costs until one is accepted, and so
        learn the remaining budget. Refusals under an earlier policy do not count.
        """
        most = self.rules.refusals_per_day
        if self._decisions is None or most is None:
            return
        mark = self.rules.mark
        refused = [name for name in self._decisions.refused_runs(now) if name.endswith(f" {mark}")]
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
    """A request that is noted in the ledger, and its one release."""

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
        #: Samples that were drawn (None before any batch was) and rows that were added.
        self.drawn: int | None = None
        self.added = 0
        self._batch: Batch | None = None
        self._rows_left = 0
        self._drawn = False
        self._guard = threading.Lock()  # a late app may still be running in its own thread

    def draw(self, count: int) -> NDArray[np.int64]:
        """Draw a batch of ``count`` samples' places, once per step of the release."""
        mechanism = self._uplink.mechanism
        with self._guard:
            if Batches.find(mechanism) is None:
                raise InvalidParameter(
                    "A batch is drawn in a run that protects samples, and this one protects "
                    "clients: set quietbit.samples.dataset-size, or train without drawing.",
                    name="batch",
                )
            if self._drawn or self._used:
                raise InvalidParameter(
                    "A batch is drawn once per step: call step or release first.", name="batch"
                )
            if self._samples is not None:
                rule = f"{self._samples}, as in the node's policy"
                require(count == self._samples, "number of samples", count, rule)
            places = draw_batch(self._rng, sampling_rate_of(mechanism), count)
            if self._batch is None:
                self._batch = self._uplink.batch(self._rng)
            self._rows_left = places.size
            self.drawn = (self.drawn or 0) + places.size
            self._drawn = True
        return places

    def add(self, rows: NDArray[Any]) -> None:
        """Clip gradients of the samples that were drawn, one per row, and add them to the batch."""
        with self._guard:
            if self._batch is None or self._used:
                raise InvalidParameter(
                    "Gradients are added after a batch is drawn and before the release.",
                    name="gradients",
                )
            rule = f"at most {self._rows_left}, one per sample that was drawn"
            require(len(rows) <= self._rows_left, "number of gradients", len(rows), rule)
            # Rows that are refused count, too: some of them may have been added.
            self._rows_left -= len(rows)
            self.added += len(rows)
            self._batch.add(rows)

    def step(self) -> FloatVector | None:
        """Return the randomised sum of this batch; None for the last, which is the release."""
        with self._guard:
            if self._batch is None or self._used or not self._drawn:
                raise InvalidParameter(
                    "A step is taken after a batch is drawn and before the release.", name="step"
                )
            change = self._batch.step()
            self._rows_left = 0
            self._drawn = change is None
            return change

    def zero(self) -> bytes:
        """Return the release of the zero update, which leaves if the app's is not made in time.

        Call it before the app: then it can leave whatever the app does to the process. Only one of
        the two releases ever leaves, and each has randomness of its own.
        """
        try:
            payload = make_release(self._uplink, None, self._new_rng())
            if self._step is not None:
                payload = self._step.mask_zero(payload)
        except Exception as error:  # the ledger has the release, and the server must count it
            LOGGER.error("quietbit: encoding the zero update failed.", exc_info=error)
            raise Noted(CANNOT_MAKE) from error
        return self._framed(payload)

    def release(self, update: Any) -> bytes:
        """Return the framed payload of an update, masked if it goes into a sum."""
        return self._framed(self.payload(update))

    def _framed(self, payload: bytes) -> bytes:
        request = self._request
        return Framed(request.run, request.round, request.node, payload).to_bytes()

    def payload(self, update: Any, uplink: Uplink | None = None) -> bytes:
        """Return the payload without a frame, once.

        ``uplink`` is one of the same mechanism that knows the update's shape.
        """
        with self._guard:
            if self._used:
                raise Noted(MADE_BEFORE)
            self._used = True
        try:
            if self._batch is not None:
                payload = self._uplink.send_batch(self._batch)
            else:
                payload = make_release(uplink or self._uplink, update, self._rng)
            if self._step is not None:
                payload = self._step.mask(payload)
        except Exception as error:
            LOGGER.error("quietbit: encoding the zero update failed.", exc_info=error)
            raise Noted(CANNOT_MAKE) from error
        return payload


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
            if is_turn_of(mechanism, run_name(self._run), candidate, 0):
                number = candidate
                break
        return Request(
            run=self._run,
            round=number,
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
        """Return the guarantee of all releases of this node so far, as if the server saw each."""
        cap = self._policy.caps[-1]
        epsilon = epsilon_spent(self._ledger.read(), cap, self._policy)
        return Guarantee(epsilon, cap.delta, cap.unit, cap.adjacency, cap.trust)
