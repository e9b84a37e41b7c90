"""What the releases of a ledger cost, and whether one more is within the budgets: the run's, and the owner's.

Idea     a run's own cap counts the releases of that run alone, so its outcome tells a server
         nothing about others; the owner's caps count everything that the node has released. Both
         are adaptive accounts of the mechanisms in the ledger, each priced from its description.
         Answers to evaluations that a server sees have a part of the owner's cap set aside for
         them.
Symbols  k: honest clients that a sum is priced at; 0 where the server sees the release.
Source   docs/theory/filters.md, for adaptive accounts and "Setting aside".
"""

from __future__ import annotations

from typing import final

from attrs import evolve, frozen

from quietbit.mechanism.base import core_of
from quietbit.node.ledger import Counts, LedgerError, LedgerState, text_of
from quietbit.node.policy import RESPONSE, SUMMED, Rules
from quietbit.node.prices import Prices
from quietbit.node.refusal import BudgetSpent
from quietbit.node.request import ProposedMechanism, Request
from quietbit.privacy.account import Account
from quietbit.privacy.conversion import round_up
from quietbit.privacy.cost import Bound, Cost
from quietbit.target import Target, Trust

__all__ = ["ANSWERS", "SUMMED_ANSWERS", "Budget", "account_of", "reached"]

ANSWERS = "RandomisedResponse"  # kinds, in a ledger's descriptions, of evaluations
SUMMED_ANSWERS = "SummedResponse"
PACKAGE = "quietbit."  # the code that `pricing_version` is the digest of
MOST_COSTS = 4096
_COSTS: dict[tuple[object, ...], Cost] = {}


@final
@frozen(eq=False)
class Budget:
    """The caps that one more release of a mechanism must stay within."""

    rules: Rules
    prices: Prices | None = None

    def price(self, request: Request, proposed: ProposedMechanism, honest: int) -> None:
        """Price one release under every cap; refuse what no number can price, before the ledger is looked at."""
        for cap in (request.cap, *self.rules.caps):
            floor = 0.0 if cap is request.cap else self.rules.least_epsilon
            clients = honest if cap.trust is Trust.SECURE_AGGREGATION else 0
            _cost(LedgerState(), proposed.identity, proposed, cap, clients, floor, self.prices)

    def check(
        self, state: LedgerState, request: Request, proposed: ProposedMechanism, honest: int
    ) -> None:
        """Raise `BudgetSpent` unless the run's cap and all of the owner's hold after the release."""
        kind = ANSWERS if proposed.family == RESPONSE else None
        run = str(request.run)
        cap = request.cap
        after = account_of(
            state, cap, honest, 0.0, "", proposed, kind=kind, run=run, prices=self.prices
        )
        if not after.holds():
            before = account_of(state, cap, honest, 0.0, "", kind=kind, run=run, prices=self.prices)
            raise BudgetSpent(_in_full(f"run {run}", before, after))
        for cap, kind in self._owner_caps(state, request, proposed):
            floor = self.rules.least_epsilon
            data_set = self.rules.data_set
            after = account_of(
                state, cap, honest, floor, data_set, proposed, kind=kind, prices=self.prices
            )
            if not after.holds():
                before = account_of(
                    state, cap, honest, floor, data_set, kind=kind, prices=self.prices
                )
                raise BudgetSpent(_in_full("this node", before, after), of_node=True)

    def _owner_caps(
        self, state: LedgerState, request: Request, proposed: ProposedMechanism
    ) -> list[tuple[Target, str | None]]:
        """Return the owner's caps on this release, each with the kind of releases that it counts, or None for updates.

        A request brings the run's cap on updates, or that on evaluations; an owner's is divided
        here. Answers that are summed share the account of updates, and have a limit of their own in
        it.
        """
        rules = self.rules
        evaluates = proposed.family == RESPONSE
        kind = ANSWERS if evaluates else None
        caps = [(self._share(state, cap, evaluates), kind) for cap in rules.caps]
        if proposed.family == SUMMED:
            for cap in rules.caps:
                if cap.trust is request.trust:
                    answers = _set_aside(state, cap, rules, rules.least_epsilon)[1]
                    caps.append(
                        (_left(evolve(cap, epsilon=rules.evaluate), answers), SUMMED_ANSWERS)
                    )
        return caps

    def _share(self, state: LedgerState, cap: Target, evaluates: bool) -> Target:
        """Return the part of an owner's cap that is for evaluations, or the one for updates.

        What was answered while a policy allowed more stays set aside; where updates had more,
        nothing is answered.
        """
        rules = self.rules
        floor = rules.least_epsilon
        left = _left(cap, _set_aside(state, cap, rules, floor)[0])
        if not evaluates:
            return left
        updates = account_of(state, left, 0, floor, rules.data_set, prices=self.prices)
        if not updates.holds():
            raise BudgetSpent("Updates have used what is left beside evaluations.", of_node=True)
        limit = evolve(cap, epsilon=rules.evaluate)
        summed = 0.0
        if (
            cap.trust is Trust.SECURE_AGGREGATION
        ):  # under the other cap sums are dearer than their limit is meant for
            sums = account_of(
                state, limit, 0, floor, rules.data_set, kind=SUMMED_ANSWERS, prices=self.prices
            )
            summed = sums.epsilon()
        return evolve(_left(limit, summed), delta=0.0)


def _in_full(whose: str, before: Account, after: Account) -> str:
    """Say how much is spent, and what the release would make of it, for the node's owner."""
    cap = after.target
    return (
        f"The budget of {whose} is epsilon {cap.epsilon:g} at delta {cap.delta:g} ({cap.adjacency.value}) for all its "
        f"releases together: {before.guarantee().epsilon_upper:.4g} is spent, and with this release it would be "
        f"{after.guarantee().epsilon_upper:.4g}."
    )


def _left(cap: Target, aside: float) -> Target:
    """Return a cap less what is set aside, refused where nothing is left."""
    if not aside < cap.epsilon:
        raise BudgetSpent(
            f"All of epsilon {cap.epsilon:g} is set aside for, or used by, evaluations.",
            of_node=True,
        )
    return cap.without(aside)


def reached(
    state: LedgerState,
    cap: Target,
    rules: Rules,
    honest: int = 0,
    floor: float = 0.0,
    prices: Prices | None = None,
) -> float:
    """Return the epsilon of everything in the ledger under an owner's cap: updates, and answers to evaluations."""
    aside, answers = _set_aside(state, cap, rules, floor)
    rest = cap.without(aside) if aside < cap.epsilon else cap
    updates = account_of(state, rest, honest, floor, rules.data_set, prices=prices)
    return round_up(updates.epsilon() + answers, 4e-16 if answers else 0.0)


def _set_aside(state: LedgerState, cap: Target, rules: Rules, floor: float) -> tuple[float, float]:
    """Return what is set aside for answers that a server sees, and the pure epsilon of those in the ledger."""
    answers = 0.0
    if any(description.get("kind") == ANSWERS for description in state.mechanisms.values()):
        answers = (
            account_of(state, cap, 0, floor, rules.data_set, kind=ANSWERS).total().pure_epsilon()
        )
    allowed = rules.evaluate if Trust.LOCAL in rules.trust else 0.0
    return max(allowed, answers), answers


def account_of(
    state: LedgerState,
    cap: Target,
    honest: int = 0,
    floor: float = 0.0,
    data_set: str = "",
    more: ProposedMechanism | None = None,
    *,
    kind: str | None = None,
    run: str | None = None,
    prices: Prices | None = None,
) -> Account:
    """Return the account of updates in a ledger under a cap, sums at no more than ``honest`` clients (0: as noted).

    With ``run``, of the releases of that run alone. With ``data_set``, of what may have been
    released of it: releases of no named one may have been of any. With ``more``, and of one release
    of that mechanism. The first in the account is the first that was released, which is what an
    adaptive account goes by. Answers to evaluations that the server sees are left out
    (docs/theory/filters.md, "Setting aside"); with ``kind``, the account is that of this kind
    alone.
    """
    most = (honest or 2**31) if cap.trust is Trust.SECURE_AGGREGATION else 0
    releases: Counts = state.counts
    if run is not None:
        releases = state.run_counts.get(run, {})
    counts: dict[Cost, int] = {}
    for (name, noted_honest, noted_data_set), times in releases.items():
        noted_kind = state.mechanisms[name].get("kind")
        is_counted = noted_kind != ANSWERS if kind is None else noted_kind == kind
        if is_counted and (not data_set or noted_data_set in ("", data_set)):
            cost = _cost(state, name, more, cap, min(noted_honest, most), floor, prices)
            counts[cost] = counts.get(cost, 0) + times
    if more is not None:
        cost = _cost(state, more.identity, more, cap, min(honest, most), floor, prices)
        counts[cost] = counts.get(cost, 0) + 1
    return Account(cap, "adaptive", tuple(counts.items()))


def _cost(
    state: LedgerState,
    name: str,
    more: ProposedMechanism | None,
    cap: Target,
    honest: int,
    floor: float,
    prices: Prices | None,
) -> Cost:
    """Return what a release of a mechanism, in the ledger or asked for, costs: a pure epsilon of ``floor`` at least.

    An identity names a mechanism, which is built once per process; what takes long to compute of
    its cost is in ``prices``. An account knows a cost by its being one object.
    """
    key = name, cap.adjacency, cap.unit, cap.trust, honest, floor
    known = _COSTS.get(key)
    if known is not None:
        return known
    proposed = more
    if proposed is None or proposed.identity != name:
        proposed = ProposedMechanism.read(text_of(state.mechanisms[name]))
    if proposed.identity != name:
        raise LedgerError(
            f"A mechanism of the ledger is not the one it was noted as ({name[:16]}...)."
        )
    cost = proposed.cost(cap.adjacency, honest, cap.unit)
    if prices is not None and type(core_of(proposed.mechanism)).__module__.startswith(PACKAGE):
        book = prices
        terms = f"{name} {cap.adjacency.value} {cap.unit.value} {honest}"

        def remember(place: int, bound: Bound) -> Bound:
            return book.remember(f"{terms} {place}", bound)

        cost = cost.remembering(remember)
    cost = Account(cap, "adaptive").spend(cost.at_least(floor)).entries[0][0]
    if len(_COSTS) >= MOST_COSTS:
        _COSTS.clear()
    _COSTS[key] = cost
    return cost
