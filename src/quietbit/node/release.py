"""The one way anything leaves a node: a question is accepted and noted, and then exactly one release is made.

Idea     everything that can be refused is refused before the data are touched, from the question, the policy and the
         ledger alone. An accepted question is written into the ledger *before* the app trains. After that one
         thing happens, whatever the app does: one release of the same size as any other, of the zero update if
         something went wrong (an app that raised, a NaN, arrays of other shapes). So a refusal tells nothing about
         the data, and a failure looks like a release. The same code runs in the app's process and in a gatekeeper;
         without an engine, `PrivateSender` asks it.
Symbols  k: honest clients that a sum is priced at; 0 where the server sees the release.
Source   docs/explanation/threat-model.md, "What a node promises"; docs/theory/filters.md for the accounts; Bonawitz et
         al. (CCS 2017), Figure 4, for the steps of a masked sum.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, final

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.base import Batch, Mechanism, summable
from quietbit.mechanism.batch import draw_batch
from quietbit.mechanism.registry import family_of, identity_of
from quietbit.node.ledger import (
    AnsweredBefore,
    Entry,
    FileLedger,
    Ledger,
    LedgerError,
    LedgerState,
    Moment,
    mechanism_line,
    release_line,
    text_of,
)
from quietbit.node.policy import ANSWERING, RESPONSE, SCOUT, SUMMED, NotAllowed, Policy, PolicyError, Rules
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
    ProposedMechanism,
    Question,
    description_of,
    noted_run,
    run_name,
    sum_plan,
)
from quietbit.privacy.account import Account
from quietbit.privacy.conversion import round_up
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee
from quietbit.secagg.client import SumClient
from quietbit.secagg.codec import Roster, decode, encode, read_places, unpack_evidence, unpack_inbox
from quietbit.secagg.plan import ProtocolError
from quietbit.target import Target, Trust
from quietbit.wire.payload import Payload
from quietbit.wire.uplink import Uplink

__all__ = [
    "Accepted", "BudgetSpent", "LocalGate", "Noted", "PrivateSender", "SumStep", "Unusable", "account_of",
    "make_release", "public", "reached",
]  # fmt: skip

LOGGER = logging.getLogger(__name__)
ANSWERS, SUMMED_ANSWERS = "RandomisedResponse", "SummedResponse"  # kinds, in a ledger's descriptions, of evaluations
MOST_COSTS = 4096
MOST_SUMS = 64  # that a gatekeeper remembers at once
_COSTS: dict[tuple[Any, ...], Cost] = {}
RACES = 64
TURNS = 10_000  # numbers that a sender looks through for one of its turn
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
class SumStep:
    """One step of a masked sum that a node was asked for, from secrets that wait where the gate has them.

    The client of `quietbit.secagg` is written down between steps, and restored for the plan that it was made for and no
    other. Steps that hand out shares or sign lists are noted in the ledger before they are answered: two processes of a
    node that were started from the same state cannot both seal shares with the same keys, sign two lists, or unmask.
    """

    def __init__(
        self, question: Question, mechanism: Mechanism, secrets: MutableMapping[str, bytes], rules: Rules
    ) -> None:
        """Read the question; refused where the sum does not fit the threshold, the mechanism or the owner's rules."""
        part = question.part
        self._part, self._secrets, self._run = part, secrets, str(question.run)
        self._twin: SumClient | None = None  # before its vector was masked, where zero was beforehand
        self._identity = rules.identity(question.client) if part.active else None
        # Who the members are is said with the first step, and kept: a server cannot say it twice.
        self._places: bytes = b"" if not part.active else part.table if part.step == KEYS else self._kept()[0]
        members = rules.members(read_places(self._places, part.clients)) if part.active else None
        self._plan = sum_plan(question, mechanism, members)
        rules.check_sum(self._plan)

    def answer(self, note: Callable[[], object]) -> bytes:
        """Answer a step that needs no training: ``note`` it when it can be answered, before anything is kept or said.

        The first fixes whom this node chooses, so there is one in a round; after the last this node is done.
        """
        plan, table, step = self._plan, self._part.table, self._part.step
        client = SumClient(plan, self._part.number, self._identity) if step == KEYS else self._restored()
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
        self._restored().check_shares(*unpack_inbox(self._plan, self._part.table))

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

        Both have the same masks. What is kept of the client does not depend on the codes, and is kept
        now: the sum goes on with either.
        """
        twin = self._restored()
        masked = self.mask(payload)
        self._twin = twin
        return masked

    def _keep(self, client: SumClient) -> None:
        while len(self._secrets) >= MOST_SUMS and self._run not in self._secrets:
            del self._secrets[next(iter(self._secrets))]  # the oldest: sums that a server began and never finished
        self._secrets[self._run] = encode([self._places, client.to_bytes()])

    def _kept(self) -> list[bytes]:
        """Return places of the members and the client; refused where nothing is kept."""
        if self._run not in self._secrets:
            raise ProtocolError("This node is not part of the sum that is asked about.")
        return list(decode(self._secrets[self._run], "kept secrets"))

    def _restored(self) -> SumClient:
        client = SumClient.from_bytes(self._plan, self._kept()[1], self._identity)
        if client.number != self._part.number:
            raise ProtocolError("This node is not part of the sum under the number that it is asked by.")
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
        number = question.round + MOST_ROUNDS * (offer.family in ANSWERING)
        new_rng = partial(self.rules.rng, number, question.client)
        rng = new_rng()
        self.ledger.update(lambda books: self._following(books, question, offer, honest))
        return Accepted(question, offer.uplink, rng, step, new_rng)

    def step(self, question: Question) -> bytes:
        """Answer a step of a masked sum that needs no training; what hands out or signs something is noted."""
        part = question.part
        require(part.step not in (VECTOR, ALONE), "step of the sum", part.step, "one without training")
        if part.step == IDENTITY:
            identity = self.rules.identity(question.client)
            if identity is None:
                raise NotAllowed("This node's policy names no identity to take part in such sums with.")
            return identity.public
        offer, honest = self._offer(question)
        run = noted_run(question.run, offer.family)
        step = SumStep(question, summable(offer.mechanism), self.secrets, self.rules)
        if part.step == KEYS:  # nobody is kept waiting for a sum that no budget is left for
            self._following(self.ledger.read(), question, offer, honest)
        place = STEPS.index(part.step) + 1
        return step.answer(lambda: self.ledger.update(lambda books: [books.step(run, question.round, place)]))

    def forget(self, run: int) -> None:
        """Leave the sum of a run, if there is one: a node that refuses a step has."""
        if str(run) in self.secrets:
            del self.secrets[str(run)]

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
        caps += [(_share(books, cap, rules, evaluates), least, own) for cap in rules.caps]
        if offer.family == SUMMED:
            for cap in (cap for cap in rules.caps if cap.trust is question.trust):
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

    With ``data_set``, of what may have been released of it: releases of no named one may have been of any. With
    ``more``, and of one release of that mechanism. The first in the books is the first that was released, which is what
    an adaptive account goes by. Answers to evaluations that the server sees are left out: docs/theory/filters.md,
    "Setting aside". With ``kind``, the account is that of this kind alone.
    """
    most = (honest or 2**31) if cap.trust is Trust.SECURE_AGGREGATION else 0
    counts: dict[Cost, int] = {}
    for (name, own, of), times in books.counts.items():
        family = books.mechanisms[name].get("kind")
        if (of in ("", data_set) or not data_set) and (family != ANSWERS if kind is None else family == kind):
            cost = _cost(books, name, more, cap, min(own, most), floor)
            counts[cost] = counts.get(cost, 0) + times
    if more is not None:
        cost = _cost(books, more.identity, more, cap, min(honest, most), floor)
        counts[cost] = counts.get(cost, 0) + 1
    return Account(cap, "adaptive", tuple(counts.items()))


def _cost(
    books: LedgerState, name: str, more: ProposedMechanism | None, cap: Target, honest: int, floor: float
) -> Cost:
    """Return what a release of a mechanism, in the books or asked for, costs: a pure epsilon of ``floor`` at least.

    An identity names a mechanism. It is built and priced anew in every process, once: prices are not kept on disk,
    where a wrong one would outlive the release that corrects it. An account knows a cost by its being one object.
    """
    key = name, cap.adjacency, cap.unit, cap.trust, honest, floor
    found = _COSTS.get(key)
    if found is None:
        offer = more
        if offer is None or offer.identity != name:
            offer = ProposedMechanism.read(text_of(books.mechanisms[name]))
        if offer.identity != name:
            raise LedgerError(f"A mechanism of the ledger is not the one it was noted as ({name[:16]}...).")
        cost = offer.cost(cap.adjacency, honest, cap.unit).at_least(floor)
        found = Account(cap, "adaptive").spend(cost).entries[0][0]
        if len(_COSTS) >= MOST_COSTS:
            _COSTS.clear()
        _COSTS[key] = found
    return found


@final
class Accepted:
    """A question that is in the ledger, and its one release."""

    def __init__(
        self,
        question: Question,
        uplink: Uplink,
        rng: RandomBits,
        step: SumStep | None,
        new_rng: Callable[[], RandomBits],
    ) -> None:
        self._question, self._uplink, self._rng, self._step = question, uplink, rng, step
        self._new_rng = new_rng  # for the zero release: other randomness, unless it is seeded
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

    def zero(self) -> bytes:
        """Return the release that leaves where that of the app's update is not made in time.

        To be called before the app is: then whatever it does to the process, this one can leave. Only one
        of the two ever does; this one is of the zero update, with randomness of its own.
        """
        payload = make_release(self._uplink, None, self._new_rng())
        if self._step is not None:
            payload = self._step.mask_zero(payload)
        return self._framed(payload)

    def release(self, update: Any) -> bytes:
        """Return the frame around the payload, which is masked if it goes into a sum."""
        return self._framed(self.payload(update))

    def _framed(self, payload: bytes) -> bytes:
        question = self._question
        return Framed(question.run, question.round, question.node, payload).to_bytes()

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
            LOGGER.error("quietbit: not even zero can be released.", exc_info=error)
            raise Noted("The release of this round was noted, and cannot be made.") from error


@final
class PrivateSender:
    """``PrivateSender(uplink, "/var/lib/quietbit/policy.toml").send(update)``: a payload, or a reason why not.

    `Uplink.send` randomises; it does not count. A sender ties an uplink to the owner's policy and ledger, so that
    release 51 of a guarantee for 50 is refused, whichever program asks, also after a restart. ``run`` keeps apart what
    is sent to several servers; everything counts together. An update that cannot be sent (a NaN, another shape) becomes
    the zero update, because *no answer* would be an answer about the data.
    """

    def __init__(self, uplink: Uplink, policy: str | os.PathLike[str] | Policy, run: int = 0) -> None:
        """Read the policy; the ledger must have been made by `quietbit node init`."""
        require(isinstance(uplink, Uplink), "uplink", type(uplink).__name__, "an Uplink")
        self._uplink, self._run = uplink, run
        self._policy = policy if isinstance(policy, Policy) else Policy.load(policy)
        self._ledger = FileLedger(self._policy.ledger, self._policy.counter)
        self._gate = LocalGate(self._policy, self._ledger, {})
        self._question()  # whatever is wrong with the ledger or the run is said now

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
        cap, mechanism = self._policy.caps[-1], self._uplink.mechanism
        first = self._ledger.read().last_round(noted_run(self._run, family_of(mechanism))) + 1
        # Rounds are the sender's own numbers: where some clients scout, the next one of its turn.
        turns = (one for one in range(first, first + TURNS) if mechanism.is_turn_of(run_name(self._run), one, 0))
        return Question(
            run=self._run, round=next(turns, first), node=0, client=0, dimension=mechanism.domain.dimension,
            mechanism=description_of(mechanism), epsilon=cap.epsilon, delta=cap.delta,
            adjacency=cap.adjacency.value, unit=cap.unit.value,
        )  # fmt: skip

    def guarantee(self) -> Guarantee:
        """Return what this node's releases have cost so far, all runs together, as if the server saw each."""
        cap = self._policy.caps[-1]
        return Guarantee(reached(self._ledger.read(), cap, self._policy), cap.delta, cap.unit, cap.adjacency, cap.trust)
