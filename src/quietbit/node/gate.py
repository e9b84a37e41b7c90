"""The gate of a node: a request is checked and noted, then exactly one release is made.

Idea     everything that can be refused is refused before the data are touched, from the request,
         the policy and the ledger alone. First come checks of the request and the policy
         (`propose`), whose refusals may name the fault; then the ledger, whose refusals are bare
         values (`quietbit.node.refusal`). An accepted request is written into the ledger
         *before* the app trains, so a refusal says nothing about the data. The same code runs in
         the app's process and in a gatekeeper; `PrivateSender` uses it without an engine. After
         acceptance one release is made, of the same size as any other: of the zero update if
         something went wrong (an app that raised, a NaN, arrays of other shapes). So a failure
         looks like a release.
Symbols  k: the number of honest clients that a sum's cost assumes; 0 where the server sees the
         release.
Source   docs/explanation/threat-model.md; docs/theory/filters.md for the accounts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, require
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.abilities import summable
from quietbit.mechanism.base import Batch, Mechanism
from quietbit.mechanism.batch import draw_batch
from quietbit.mechanism.registry import identity_of
from quietbit.node.budget import Budget, Proposal, account_of
from quietbit.node.costs import SavedCosts, costs_beside
from quietbit.node.ledger import (
    RESPONSE,
    SCOUT,
    Entry,
    Ledger,
    LedgerState,
    LoggedRefusal,
    Moment,
    mechanism_line,
    release_line,
)
from quietbit.node.policy import Rules
from quietbit.node.refusal import BudgetSpent, NotAllowed, Noted, Refused, Unusable, refusal_of
from quietbit.node.request import (
    MOST_ROUNDS,
    STEPS,
    ProposedMechanism,
    Request,
    Step,
    run_name,
    uplink_of,
)
from quietbit.node.sum_step import SumStep
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink

__all__ = [
    "LocalAcceptedRequest",
    "LocalGate",
    "make_release",
    "propose",
]

LOGGER = logging.getLogger(__name__)
CANNOT_SEND = "quietbit: the update cannot be sent; the zero update is released in its place."
CANNOT_MAKE = "The release of this round is noted in the ledger, and could not be made."
MADE_BEFORE = "The release of this round was made already: accept another request first."


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

    def check(self, request: Request) -> ProposedMechanism:
        """Return the requested mechanism; refuse what the policy does not allow of run and family.

        This comes before models are stored.
        """
        with self._noting(request):
            self.rules.check_request(str(request.run), request.dimension)
            return request.proposed(self.rules.mechanisms)

    def accept(self, request: Request) -> LocalAcceptedRequest:
        """Check a request and note its release; raise a `QuietbitError` where it is refused."""
        with self._noting(request):
            accepted = self._accept(request)
        self._say(logging.INFO, request, "accepted")
        return accepted

    def _accept(self, request: Request) -> LocalAcceptedRequest:
        proposal = self._propose(request)
        mechanism = proposal.mechanism.mechanism
        step = None
        if request.sum is not None and not mechanism.unmasked:
            rule = f"{Step.VECTOR} for a release"
            require(request.sum.step == Step.VECTOR, "step of the sum", request.sum.step, rule)
            step = SumStep(request, summable(mechanism), self.secrets, self.rules)
            # First: a vector that was sent and lost counts, whatever is stored of the sum.
            self.ledger.read().check_round(proposal.run, request.round)
            step.check_vector()
        # With a seed, the evaluation and the update of a round must not share random bits.
        seed_round = request.round
        if proposal.mechanism.family == RESPONSE:
            seed_round += MOST_ROUNDS
        new_rng = partial(self.rules.rng, seed_round, request.client)
        rng = new_rng()
        self._note_release(proposal)
        return LocalAcceptedRequest(
            request, proposal.mechanism, rng, step, new_rng, self.rules.samples
        )

    def step(self, request: Request) -> bytes:
        """Answer a step of a masked sum that needs no training, noted in the ledger first."""
        with self._noting(request):
            return self._step(request)

    def _step(self, request: Request) -> bytes:
        part = request.part
        rule = "one that needs no training"
        require(part.step not in (Step.VECTOR, Step.ALONE), "step of the sum", part.step, rule)
        if part.step == Step.IDENTITY:
            identity = self.rules.identity(request.client)
            if identity is None:
                raise NotAllowed("The policy names no own-key.", rule="own-key")
            return identity.public
        proposal = self._propose(request)
        mechanism = summable(proposal.mechanism.mechanism)
        step = SumStep(request, mechanism, self.secrets, self.rules)
        if part.step == Step.KEYS:  # other clients need not wait for one without budget
            self._check_newest(proposal)
        place = STEPS.index(part.step) + 1
        return step.answer(
            lambda: self.ledger.update(
                lambda state: [state.step(proposal.run, request.round, place)]
            )
        )

    def last_round(self, run: int) -> int:
        """Return the last round of a run that was noted; 0 if there is none."""
        return self.ledger.read().last_round(str(run))

    def spent(self, request: Request) -> float:
        """Return the epsilon of all updates of the request's run that are noted, under its cap."""
        state = self.ledger.read()
        run = str(request.run)
        account = account_of(state, request.cap, run=run, saved=self._saved_costs)
        return account.guarantee().epsilon_upper

    def forget(self, run: int) -> None:
        """Delete the secrets of a run's sum, if there are any: the node has left it."""
        if str(run) in self.secrets:
            del self.secrets[str(run)]

    @contextmanager
    def _noting(self, request: Request) -> Iterator[None]:
        """Note a refusal of the request for the owner, and raise it on."""
        try:
            yield
        except Exception as error:
            self.note_refusal(request, error)
            raise

    def note_refusal(self, request: Request | None, error: Exception) -> None:
        """Write the owner's reason for a refusal to both logs, once per error."""
        if getattr(error, "is_noted_for_owner", False):
            return
        error.is_noted_for_owner = True  # type: ignore[attr-defined]
        reason = refusal_of(error).reason.value
        text = error.for_owner if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        self._say(logging.WARNING, request, reason, text)
        budget_of = error.refused_run if isinstance(error, BudgetSpent) else ""
        now = Moment.now()
        refusal = LoggedRefusal(round(now.time, 3), *_name(request), reason, text)
        try:
            self.ledger.refuse(refusal, budget_of, now)
        except Exception as failure:
            LOGGER.error("quietbit: the refusal is not kept: %s", failure)

    def _say(self, level: int, request: Request | None, reason: str, text: str = "") -> None:
        """Write a decision to the log."""
        # An engine that reads a logging configuration disables every other logger.
        LOGGER.disabled = False
        if self.ledger.path is None:  # a simulated node has no owner
            level = logging.DEBUG
        LOGGER.log(level, "quietbit: run %s, round %d: %s. %s", *_name(request), reason, text)

    @cached_property
    def _saved_costs(self) -> SavedCosts | None:
        return None if self.ledger.path is None else costs_beside(self.ledger.path)

    @cached_property
    def _budget(self) -> Budget:
        return Budget(self.rules, self._saved_costs)

    def _propose(self, request: Request) -> Proposal:
        proposal = propose(request, self.rules)
        self._budget.check_cost(proposal)
        return proposal

    def _note_release(self, proposal: Proposal) -> None:
        """Check the ledger and note the release; accounts are computed before it is locked."""
        checked = b""
        if self.ledger.path is not None:
            checked = self._check_newest(proposal).head

        def lines(state: LedgerState) -> list[Entry]:
            if state.head != checked:  # another process wrote to it, or it is not a file
                self._check_ledger(state, proposal)
            mechanism = proposal.mechanism
            release = release_line(
                mechanism.identity,
                proposal.honest,
                proposal.run,
                proposal.request.round,
                self.rules.data_set,
            )
            if mechanism.identity in state.mechanisms:
                return [release]
            return [mechanism_line(mechanism.identity, mechanism.description), release]

        self.ledger.update(lines)

    def _check_ledger(self, state: LedgerState, proposal: Proposal) -> None:
        """Refuse a release beyond a count or a budget; servers learn neither which nor how much."""
        now = Moment.now()
        run = proposal.run
        try:
            state.check_round(run, proposal.request.round)
            state.check_mechanism(proposal.mechanism.identity, run, now)
            self.rules.check_counts(state.releases + 1, state.last_day(now) + 1)
            self._check_refusals(state, run, now)
            self._budget.check(state, proposal)
        except BudgetSpent as error:
            if error.of_node:
                error.refused_run = f"{run} {self.rules.mark}"
            raise
        except InvalidParameter as error:  # its sentence may depend on the ledger
            raise Unusable(str(error)) from error

    def _check_newest(self, proposal: Proposal) -> LedgerState:
        """Check the ledger as it is now, and save the costs that this takes; return its totals."""
        state = self.ledger.read()
        try:
            self._check_ledger(state, proposal)
        finally:
            if self._saved_costs is not None and self._saved_costs.new:
                self._saved_costs.save()
        return state

    def _check_refusals(self, state: LedgerState, run: str, now: Moment) -> None:
        """Refuse a run that the node's budget refused in the last 24 hours, and all after too many.

        A server could otherwise ask for releases of different costs until one is accepted, and so
        learn the remaining budget. Refusals under an earlier policy do not count.
        """
        most = self.rules.refusals_per_day
        if most is None:
            return
        mark = f" {self.rules.mark}"
        refused = [
            name
            for name, when in state.refused_runs.items()
            if name.endswith(mark) and when.is_within_day(now)
        ]
        if f"{run}{mark}" in refused:
            raise BudgetSpent(
                f"Run {run} was refused for the budget of this node in the last 24 hours."
            )
        if len(refused) >= most:
            raise BudgetSpent(
                f"{most} runs were refused for the budget of this node in the last 24 hours."
            )


def _name(request: Request | None) -> tuple[str, int]:
    """Return the run and the round of a request, as logs name them."""
    if request is None:
        return "?", 0
    return str(request.run), request.round


def propose(request: Request, rules: Rules) -> Proposal:
    """Return the release that a request asks for, without reading the ledger.

    Raises:
        NotAllowed: the owner's policy excludes the run, family, clip, rate or trust.
        InvalidParameter: the request contradicts itself; the sentence may leave.
    """
    part = request.sum
    threshold = None if part is None else part.threshold
    run_honest = None if part is None else part.honest
    honest = rules.honest_for(request.trust, threshold, run_honest)
    rules.check_request(str(request.run), request.dimension)
    proposed = request.proposed(rules.mechanisms)
    mechanism = proposed.mechanism
    dimension = mechanism.ball.dimension
    if request.dimension != dimension:
        rule = f"{dimension}, as in the description of the mechanism"
        raise InvalidParameter.of("dimension of the request", rule, request.dimension)
    _check_rows_of_round(proposed, request)
    _check_answer(proposed, request)
    _check_visibility(mechanism, request)
    if proposed.takes_turns:
        is_turn = mechanism.is_turn_of(run_name(request.run), request.round, request.node)
        rule = f"one that is the turn of node {request.node} in round {request.round}"
        require(is_turn, "mechanism", proposed.family, rule)
    rules.check(proposed.family, request.clip, proposed.sampling_rate)
    return Proposal(request, proposed, honest)


def _check_rows_of_round(proposed: ProposedMechanism, request: Request) -> None:
    """Refuse rows that all clients share unless they are those of this round."""
    if proposed.rows is None:
        return
    mechanism = proposed.mechanism
    of_round = mechanism.for_round(run_name(request.run), request.round)
    identity = identity_of(mechanism)
    rule = f"the one whose shared rows are of round {request.round}, run {request.run}"
    require(identity_of(of_round) == identity, "mechanism", identity.hex()[:16], rule)


def _check_answer(proposed: ProposedMechanism, request: Request) -> None:
    """Refuse answers to evaluations and scouts in a form that would be missing in their account.

    The ledger finds answers by their kind, which a wrapped one hides; and whatever wraps a scout's
    answer would have the cost of a sum.
    """
    mechanism = proposed.mechanism
    name = type(mechanism).__name__
    if proposed.family in (RESPONSE, SCOUT) and mechanism.core is not mechanism:
        rule = "a plain one, without a wrapper"
        raise InvalidParameter.of("mechanism of an answer", rule, name)


def _check_visibility(mechanism: Mechanism, request: Request) -> None:
    """Refuse a release beside a sum that belongs into it, and the other way round."""
    if request.sum is None:
        return
    is_unmasked_step = request.sum.step == Step.ALONE
    rule = f"{Step.ALONE} for a release outside the sum, and only for one"
    name = "step of the sum"
    require(is_unmasked_step is mechanism.unmasked, name, request.sum.step, rule)


def make_release(
    proposed: ProposedMechanism,
    clip: float,
    update: Any,
    rng: RandomBits,
    shaped: Uplink | None = None,
) -> bytes:
    """Return the payload of an update, or of the zero update where it is None or cannot be sent.

    ``shaped`` is an uplink of the same mechanism and clip that knows the update's shape.
    """
    uplink = uplink_of(proposed, clip)
    if update is not None:
        try:
            return (shaped or uplink).send(update, rng)
        except Exception as error:
            LOGGER.error(CANNOT_SEND, exc_info=error)
    if proposed.batches is not None:
        return uplink.send_batch(uplink.batch(rng))
    zeros = np.zeros(uplink.mechanism.ball.dimension, dtype=np.float32)
    return uplink.send(zeros, rng)


@final
class LocalAcceptedRequest:
    """A request that is noted in the ledger, and its one release."""

    def __init__(
        self,
        request: Request,
        proposed: ProposedMechanism,
        rng: RandomBits,
        step: SumStep | None,
        new_rng: Callable[[], RandomBits],
        samples: int | None = None,
    ) -> None:
        self._request = request
        self._proposed = proposed
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

    @property
    def _uplink(self) -> Uplink:
        """The way of the release, at the clip of the request."""
        return uplink_of(self._proposed, self._request.clip)

    def draw(self, count: int) -> NDArray[np.int64]:
        """Draw a batch of ``count`` samples' places, once per step of the release."""
        proposed = self._proposed
        with self._guard:
            if proposed.batches is None:
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
            places = draw_batch(self._rng, proposed.sampling_rate, count)
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
            payload = make_release(self._proposed, self._request.clip, None, self._new_rng())
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

    def payload(self, update: Any, shaped: Uplink | None = None) -> bytes:
        """Return the payload without a frame, once; ``shaped`` is as in `make_release`."""
        with self._guard:
            if self._used:
                raise Noted(MADE_BEFORE)
            self._used = True
        try:
            if self._batch is not None:
                payload = self._uplink.send_batch(self._batch)
            else:
                payload = make_release(
                    self._proposed, self._request.clip, update, self._rng, shaped
                )
            if self._step is not None:
                payload = self._step.mask(payload)
        except Exception as error:
            LOGGER.error("quietbit: encoding the zero update failed.", exc_info=error)
            raise Noted(CANNOT_MAKE) from error
        return payload
