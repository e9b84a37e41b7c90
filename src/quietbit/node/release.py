"""The one way anything leaves a node: a question is accepted and noted, and then exactly one release is made.

Idea     everything that can be refused is refused before the data are touched, from the question, the policy and the
         ledger alone. An accepted question is written into the ledger *before* the app trains. After that one
         thing happens, whatever the app does: one release of the same size as any other, of the zero update if
         something went wrong (an app that raised, a NaN, arrays of other shapes). So a refusal tells nothing about
         the data, and a failure looks like a release. The same code runs in the app's process and in a gatekeeper.
Symbols  k: honest clients that a sum is priced at; 0 where the server sees the release.

What a server still sees is time, and silence: a process that is killed, or a machine that dies, answers nothing. Such
a question was noted all the same, so there are no more silences than releases.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import MutableMapping
from functools import partial
from typing import Any, final

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.base import Batch, summable
from quietbit.mechanism.batch import draw_batch
from quietbit.mechanism.registry import identity_of
from quietbit.node.ledger import (
    Entry,
    Ledger,
    LedgerError,
    LedgerState,
    Moment,
    check_growth,
    mechanism_line,
    release_line,
    step_line,
)
from quietbit.node.policy import ANSWERING, RESPONSE, SCOUT, SUMMED, NotAllowed, PolicyError, Rules
from quietbit.node.pricing import ProposedMechanism, entry, text_of
from quietbit.node.question import (
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
    Question,
    noted_run,
    run_name,
)
from quietbit.node.sums import SumStep, forget
from quietbit.privacy.account import Account
from quietbit.privacy.conversion import round_up
from quietbit.privacy.cost import Cost
from quietbit.target import Target, Trust
from quietbit.wire.uplink import Uplink

__all__ = [
    "Accepted", "BudgetSpent", "LocalGate", "Noted", "Unusable", "account_of", "make_release", "public",
    "reached",
]  # fmt: skip

LOGGER = logging.getLogger(__name__)
ANSWERS, SUMMED_ANSWERS = "RandomisedResponse", "SummedResponse"  # kinds, in a ledger's descriptions, of evaluations
RELEASES = "quietbit.releases"  # the key of a run that says how many releases its epsilon is for


class BudgetSpent(QuietbitError):
    """The next release would exceed a budget; what the sentence says may go to a server: it has no total."""

    def __init__(self, said: str, accounts: tuple[Account, Account] | None = None) -> None:
        """Keep the accounts before the release and after it, for the node's owner."""
        super().__init__(said)
        self.accounts = accounts

    def for_owner(self) -> str:
        """Say how much is spent, and what the release would make of it."""
        if self.accounts is None:
            return str(self)
        cap, (before, after) = self.accounts[0].target, (one.guarantee().epsilon_upper for one in self.accounts)
        return (
            f"The budget of this node is epsilon {cap.epsilon:g} at delta {cap.delta:g} ({cap.adjacency.value}) for "
            f"all releases together: {before:.4g} is spent, and with this release it would be {after:.4g}."
        )


class Noted(QuietbitError):
    """A release that is in the ledger and cannot be made: it counts."""


class Unusable(QuietbitError):
    """This node cannot keep its books, and answers nothing; why is for its owner."""


def public(error: Exception) -> QuietbitError:
    """Return an error in words that a server may hear: no path, no total, nothing of the data."""
    if isinstance(error, LedgerError | PolicyError):
        return Unusable("This node cannot use its policy or its ledger; its owner's log says why.")
    return error if isinstance(error, QuietbitError) else Unusable("This node cannot answer; its owner's log says why.")


def make_release(uplink: Uplink, update: Any, rng: RandomBits) -> bytes:
    """Encode an update as a payload; encode the zero update where there is none or it cannot be sent."""
    if update is not None:
        try:
            return uplink.send(update, rng)
        except Exception as error:
            LOGGER.error("quietbit: the update cannot be sent; zero is released in its place.", exc_info=error)
    if uplink.mechanism.batch:
        return uplink.send_batch(uplink.batch(rng))
    zeros = np.zeros(uplink.mechanism.domain.dimension, dtype=np.float32)
    return Uplink(uplink.mechanism).send(zeros, rng)


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
    def answer_seconds(self) -> float:
        """How long after a question its answer leaves."""
        return self.rules.answer_seconds

    def accept(self, question: Question) -> Accepted:
        """Check a question, price it and note its release; a `QuietbitError` is a reason not to answer."""
        offer, honest = self._offer(question)
        step = None
        if question.sum is not None and not offer.mechanism.unmasked:
            require(question.sum.step == VECTOR, "step of the sum", question.sum.step, f"{VECTOR} for a release")
            step = SumStep(question, summable(offer.mechanism), self.secrets, self.rules)
            self._following(self.ledger.read(), question, offer, honest)
            step.check_vector()
        # Seeded words of an evaluation are others than those of the update of its round.
        rng = self.rules.rng(question.round + MOST_ROUNDS * (offer.family in ANSWERING), question.client)
        self.ledger.update(lambda books: self._following(books, question, offer, honest))
        return Accepted(question, offer.uplink, rng, step)

    def step(self, question: Question) -> bytes:
        """Answer a step of a masked sum that needs no training; what hands out or signs something is noted."""
        part = question.sum
        if part is None or part.step in (VECTOR, ALONE):
            raise InvalidParameter("The question must be a step of a masked sum without training, and is not.")
        if part.step == IDENTITY:
            identity = self.rules.identity(question.client)
            if identity is None:
                raise NotAllowed("This node's policy names no identity to take part in such sums with.")
            return identity.public
        offer, honest = self._offer(question)
        run = noted_run(question.run, offer.family)
        step = SumStep(question, summable(offer.mechanism), self.secrets, self.rules)
        place = STEPS.index(part.step) + 1

        def following(books: LedgerState) -> list[Entry]:
            check_growth(books)
            books.check_step(run, question.round, place)
            return [step_line(run, question.round, place)]

        if part.step == KEYS:
            # Nobody is kept waiting for a sum that no budget is left for.
            self._following(self.ledger.read(), question, offer, honest)
        answers = {KEYS: step.keys, SHARES: step.shares, CONFIRM: step.confirm, UNMASK: step.unmask}
        return answers[part.step](lambda: self.ledger.update(following))

    def forget(self, run: int) -> None:
        """Leave the sum of a run, if there is one."""
        forget(self.secrets, run)

    def _offer(self, question: Question) -> tuple[ProposedMechanism, int]:
        """Return the mechanism that is asked for, if it is allowed, and the k it is priced at."""
        part, rules = question.sum, self.rules
        honest = rules.honest_for(question.trust, part.threshold if part else None, part.honest if part else None)
        offer = ProposedMechanism.read(question.mechanism)
        mechanism = offer.mechanism
        own = mechanism.domain
        if question.dimension != own.dimension:
            rule = f"{own.dimension}, the mechanism's"
            raise InvalidParameter.of("dimension of the question", rule, question.dimension)
        if mechanism.shared_rows:
            same = identity_of(mechanism.for_round(run_name(question.run), question.round)) == identity_of(mechanism)
            require(same, "rows that all clients keep", "others", "this round's")
        if offer.family in (*ANSWERING, SCOUT) and mechanism.core is not mechanism:
            # The ledger knows answers to evaluations by their kind: one in a wrapper would be in no account of theirs.
            # And what is wrapped around a scout's answer would be priced, in a sum, as if a sum hid it.
            rule = "one that nothing is wrapped around"
            raise InvalidParameter.of("mechanism of an answer", rule, type(mechanism).__name__)
        if offer.family == SUMMED and part is None:
            rule = "in a masked sum, which hides its few lies"
            raise InvalidParameter.of("mechanism of an answer", rule, SUMMED_ANSWERS)
        if part is not None:
            rule = "alone for what goes into no sum, and for nothing else"
            require((part.step == ALONE) is mechanism.unmasked, "step of the sum", part.step, rule)
        if not mechanism.is_turn_of(run_name(question.run), question.round, question.node):
            rule = "what it is this node's turn for: an update, or the answer of a scout"
            raise InvalidParameter.of("mechanism", rule, offer.family)
        rules.check(offer.family, own.radius, str(question.run), mechanism.sampling_rate)
        return offer, honest

    def _following(self, books: LedgerState, question: Question, offer: ProposedMechanism, honest: int) -> list[Entry]:
        """Return the lines of one more release; refused where a rule or a budget does not allow it."""
        run, rules, evaluates = noted_run(question.run, offer.family), self.rules, offer.family == RESPONSE
        books.check_round(run, question.round)
        books.check_mechanism(offer.identity)
        rules.check_counts(books.releases + 1, books.last_day(Moment.now()) + 1)
        # Every cap that must hold: the run's own, and those of the node, under which a release counts a floor at least.
        # A question brings the run's cap on updates, or that on evaluations; an owner's is divided here.
        # Answers that are summed share the account of updates, and have a limit of their own in it.
        own, least = ANSWERS if evaluates else None, rules.least_epsilon
        caps = [(question.cap, 0.0, own)]
        caps += [(_share(books, cap, rules, evaluates), least, own) for cap in rules.caps()]
        if offer.family == SUMMED:
            for cap in (cap for cap in rules.caps() if cap.trust is question.trust):
                limit = _left(evolve(cap, epsilon=rules.evaluate), _aside(books, cap, rules, least)[1])
                caps.append((limit, least, SUMMED_ANSWERS))
        for cap, floor, kind in caps:
            of_books = books, cap, honest, floor, rules.data_set
            after = account_of(*of_books, offer, kind=kind)
            if not after.holds():
                said = "The budget of this node is spent."
                if cap is question.cap:
                    said = (
                        f"The budget of the run is spent: epsilon {cap.epsilon:g} allows no further release, counting "
                        f"those that a node made for other runs. Run fewer rounds, or raise {RELEASES}."
                    )
                raise BudgetSpent(said, (account_of(*of_books, kind=kind), after))
        lines = [] if offer.identity in books.mechanisms else [mechanism_line(offer.identity, offer.description)]
        return [*lines, release_line(offer.identity, honest, run, question.round, rules.data_set)]


def _share(books: LedgerState, cap: Target, rules: Rules, evaluates: bool) -> Target:
    """Return the part of an owner's cap that is for evaluations, or the one for updates.

    What was answered while a policy allowed more stays set aside; where updates had more, nothing is answered.
    """
    floor = rules.least_epsilon
    left = _left(cap, _aside(books, cap, rules, floor)[0])
    if not evaluates:
        return left
    if not account_of(books, left, 0, floor, rules.data_set).holds():
        raise BudgetSpent("The budget of this node is spent.")
    limit, summed = evolve(cap, epsilon=rules.evaluate), 0.0
    if cap.trust is Trust.SECURE_AGGREGATION:  # under the other cap sums are dearer than their limit is meant for
        summed = account_of(books, limit, 0, floor, rules.data_set, kind=SUMMED_ANSWERS).epsilon()
    return evolve(_left(limit, summed), delta=0.0)


def _left(cap: Target, aside: float) -> Target:
    """Return a cap less what is set aside, refused where nothing is left, without a number."""
    if not aside < cap.epsilon:
        raise BudgetSpent("The budget of this node is spent.")
    return cap.without(aside)


def reached(books: LedgerState, cap: Target, rules: Rules, honest: int = 0, floor: float = 0.0) -> float:
    """Return the epsilon of everything in the books under an owner's cap: updates, and answers to evaluations."""
    aside, answers = _aside(books, cap, rules, floor)
    updates = account_of(books, cap.without(aside) if aside < cap.epsilon else cap, honest, floor, rules.data_set)
    return round_up(updates.epsilon() + answers, 4e-16 if answers else 0.0)


def _aside(books: LedgerState, cap: Target, rules: Rules, floor: float) -> tuple[float, float]:
    """Return what is set aside for answers that a server sees, and the pure epsilon of those in the books."""
    answers = account_of(books, cap, 0, floor, rules.data_set, kind=ANSWERS).total().pure_epsilon()
    return max(rules.evaluate if Trust.LOCAL in rules.trust else 0.0, answers), answers


def account_of(
    books: LedgerState, cap: Target, honest: int = 0, floor: float = 0.0, data_set: str = "",
    more: ProposedMechanism | None = None, *, kind: str | None = None,
) -> Account:  # fmt: skip
    """Return the account of updates in the books under a cap, sums at no more than ``honest`` clients (0: as noted).

    With ``data_set``, of what may have been released of it; with ``more``, and of one release of that mechanism.
    Mechanisms are built and priced anew from their descriptions, once in a process. The first in the books is the
    first that was released, which is what an adaptive account goes by. Answers to evaluations that the server sees are
    left out: docs/theory/filters.md, "Setting aside". With ``kind``, the account is that of this kind alone.
    """
    listed = books.views(cap.trust, honest or 2**31, data_set)
    of_kind = ((entry, books.mechanisms[entry[0]].get("kind")) for entry in listed)
    listed = [entry for entry, own in of_kind if (own != ANSWERS if kind is None else own == kind)]
    listed += [] if more is None else [(more.identity, honest, 1)]
    counts: dict[Cost, int] = {}
    releases: dict[tuple[str, int], int] = {}
    for name, own, times in listed:
        releases[name, own] = releases.get((name, own), 0) + times
    for (name, own), times in releases.items():
        cost = entry(name, partial(_noted, books, name, more), cap, own, floor)
        counts[cost] = counts.get(cost, 0) + times
    return Account(cap, "adaptive", tuple(counts.items()))


def _noted(books: LedgerState, name: str, more: ProposedMechanism | None) -> ProposedMechanism:
    """Return the mechanism of this identity: the one that is asked for, or as the books have it."""
    if more is not None and more.identity == name:
        return more
    offer = ProposedMechanism.read(text_of(books.mechanisms[name]))
    if offer.identity != name:
        raise LedgerError(f"A mechanism of the ledger is not the one it was noted as ({name[:16]}...).")
    return offer


@final
class Accepted:
    """A question that is in the ledger, and its one release."""

    def __init__(self, question: Question, uplink: Uplink, rng: RandomBits, step: SumStep | None) -> None:
        self._question, self._uplink, self._rng, self._step = question, uplink, rng, step
        self._used = False
        self._sum: Batch | None = None
        self._left, self._drawn = 0, False
        self._guard = threading.Lock()  # an app that is late may go on in its own thread

    def draw(self, count: int) -> NDArray[np.int64]:
        """Draw a batch with this node's randomness; once for each step of the release."""
        mechanism = self._uplink.mechanism
        with self._guard:
            fresh = mechanism.batch and not self._drawn and not self._used
            require(fresh, "batch", "another", "drawn once per step, in a run that protects samples")
            drawn = draw_batch(self._rng, mechanism.sampling_rate, count)
            self._sum = self._sum or self._uplink.batch(self._rng)
            self._left, self._drawn = drawn.size, True
        return drawn

    def add(self, rows: NDArray[Any]) -> None:
        """Clip and add gradients of samples that were drawn."""
        with self._guard:
            if self._sum is None or self._used:
                raise InvalidParameter("gradients must come after the batch is drawn and before the release.")
            require(len(rows) <= self._left, "number of gradients", len(rows), f"at most {self._left}, as were drawn")
            self._left -= len(rows)  # also of rows that cannot be added: some of them may have been
            self._sum.add(rows)

    def step(self) -> FloatVector | None:
        """Randomise the sum of this batch; the last one's is the release."""
        with self._guard:
            if self._sum is None or self._used or not self._drawn:
                raise InvalidParameter("step must come after a batch is drawn and before the release.")
            change = self._sum.step()
            self._left, self._drawn = 0, change is None
            return change

    def release(self, update: Any) -> bytes:
        """Return the frame around the payload, which is masked if it goes into a sum."""
        payload = self.payload(update)
        try:
            body = payload if self._step is None else self._step.mask(payload)
        except Exception as error:
            LOGGER.error("quietbit: the release cannot be masked.", exc_info=error)
            raise Noted("The release of this round was noted, and cannot be made.") from error
        return Framed(self._question.run, self._question.round, self._question.node, body).to_bytes()

    def payload(self, update: Any, uplink: Uplink | None = None) -> bytes:
        """Make the payload, unframed, once; ``uplink`` is one of the same mechanism that knows the update's shape."""
        with self._guard:
            if self._used:
                raise Noted("The release of this round was made already.")
            self._used = True
        try:
            if self._sum is not None:
                return self._uplink.send_batch(self._sum)
            return make_release(uplink or self._uplink, update, self._rng)
        except Exception as error:
            LOGGER.error("quietbit: not even zero can be released.", exc_info=error)
            raise Noted("The release of this round was noted, and cannot be made.") from error
