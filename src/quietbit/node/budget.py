"""The cost of a ledger's releases, and whether one more is within the run's and owner's budgets.

Idea     a run's own cap counts the releases of that run alone, so its outcome tells a server
         nothing about other runs; the owner's caps count everything that the node has released.
         Both are adaptive accounts of the mechanisms in the ledger. The cost of each is computed
         from its description. A part of the owner's cap is set aside for answers to evaluations
         that a server sees.
Symbols  k: the number of honest clients that a sum's cost assumes; 0 where the server sees the
         release.
Source   docs/theory/filters.md, for adaptive accounts and "Setting aside".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

from attrs import evolve, frozen

from quietbit.node.costs import SavedCosts
from quietbit.node.ledger import RESPONSE, LedgerError, LedgerState
from quietbit.node.policy import Rules
from quietbit.node.refusal import BudgetSpent
from quietbit.node.request import ProposedMechanism, Request, noted_run
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.privacy.release import Divergence
from quietbit.privacy.rounding import round_up
from quietbit.target import Target, Trust

__all__ = ["ANSWERS", "Budget", "Proposal", "account_of", "epsilon_spent"]

ANSWERS = "RandomisedResponse"  # the kind of answers to evaluations, in a ledger's descriptions
PACKAGE = "quietbit."  # only costs of this package's code are saved: see `cost_version`
MOST_COSTS = 4096
_COSTS: dict[tuple[object, ...], Cost] = {}


@final
@frozen(eq=False)
class Proposal:
    """The release that a request asks for: its mechanism, and k."""

    request: Request
    mechanism: ProposedMechanism
    honest: int

    @property
    def run(self) -> str:
        """The name that its run is noted by."""
        return noted_run(self.request.run, self.mechanism.family)


@final
@frozen(eq=False)
class Budget:
    """The caps that one more release must stay within: the run's, and the owner's."""

    rules: Rules
    saved: SavedCosts | None = None

    def check_cost(self, proposal: Proposal) -> None:
        """Refuse a release that has no cost under one of the caps; the ledger is not read."""
        self._cost(proposal, proposal.request.cap, 0.0)
        for cap in self.rules.caps:
            self._cost(proposal, cap, self.rules.least_epsilon)

    def check(self, state: LedgerState, proposal: Proposal) -> None:
        """Raise `BudgetSpent` unless the run's cap and the owner's caps hold after the release."""
        run = str(proposal.request.run)
        cap = proposal.request.cap
        honest = proposal.honest
        kind = ANSWERS if proposal.mechanism.family == RESPONSE else None
        account = partial(account_of, state, cap, honest, kind=kind, run=run, saved=self.saved)
        _check_after(self._cost(proposal, cap, 0.0), account, f"run {run}")
        floor = self.rules.least_epsilon
        account = partial(account_of, state, data_set=self.rules.data_set, saved=self.saved)
        for owners in self.rules.caps:
            # A request carries the run's cap on updates or that on evaluations; the owner's cap is
            # divided here.
            cap = self._share(state, owners, kind == ANSWERS)
            cost = self._cost(proposal, cap, floor)
            of_cap = partial(account, cap, honest, floor, kind=kind)
            _check_after(cost, of_cap, "this node", of_node=True)

    def _cost(self, proposal: Proposal, cap: Target, floor: float) -> Cost:
        """Return the cost of the release under a cap; sums are hidden among honest clients."""
        clients = proposal.honest if cap.trust is Trust.SECURE_AGGREGATION else 0
        return _release_cost(proposal.mechanism, cap, clients, floor, self.saved)

    def _share(self, state: LedgerState, cap: Target, evaluates: bool) -> Target:
        """Return the part of an owner's cap that evaluations have, or the part that updates have.

        Answers given while an earlier policy allowed more stay set aside. Where updates have used
        more than their part, evaluations are refused.
        """
        rules = self.rules
        floor = rules.least_epsilon
        for_updates = _remaining(cap, _set_aside(state, cap, rules, floor)[0])
        if not evaluates:
            return for_updates
        updates = account_of(state, for_updates, 0, floor, rules.data_set, saved=self.saved)
        if not updates.holds():
            raise BudgetSpent(
                "Updates have used more than the budget that evaluations leave them.", of_node=True
            )
        return evolve(cap, epsilon=rules.evaluate, delta=0.0)


def _check_after(
    cost: Cost, account: Callable[..., Account], whose: str, *, of_node: bool = False
) -> None:
    """Refuse one more release of this cost where the account would not hold with it."""
    after = account(plus=cost)
    if after.holds():
        return
    cap = after.target
    spent = account().guarantee().epsilon_upper
    total = after.guarantee().epsilon_upper
    raise BudgetSpent(
        f"The budget of {whose} for all releases is epsilon {cap.epsilon:g} at delta "
        f"{cap.delta:g} ({cap.adjacency.value}): {spent:.4g} is spent, and this release would make "
        f"it {total:.4g}.",
        of_node=of_node,
    )


def _remaining(cap: Target, aside: float) -> Target:
    """Return a cap less what is set aside; refuse where nothing remains."""
    if not aside < cap.epsilon:
        raise BudgetSpent(
            f"All of epsilon {cap.epsilon:g} is set aside for evaluations, or used by them.",
            of_node=True,
        )
    return cap.without(aside) if aside else cap


def epsilon_spent(
    state: LedgerState,
    cap: Target,
    rules: Rules,
    honest: int = 0,
    floor: float = 0.0,
    saved: SavedCosts | None = None,
) -> float:
    """Return the epsilon of the whole ledger under an owner's cap: updates and evaluations."""
    aside, answers = _set_aside(state, cap, rules, floor)
    if aside < cap.epsilon:
        cap = cap.without(aside)
    updates = account_of(state, cap, honest, floor, rules.data_set, saved=saved)
    return round_up(updates.epsilon() + answers, 4e-16 if answers else 0.0)


def _set_aside(state: LedgerState, cap: Target, rules: Rules, floor: float) -> tuple[float, float]:
    """Return what is set aside for answers that a server sees, and the epsilon they have used."""
    answers = 0.0
    if any(description.get("kind") == ANSWERS for description in state.mechanisms.values()):
        account = account_of(state, cap, 0, floor, rules.data_set, kind=ANSWERS)
        answers = account.total().pure_epsilon()
    allowed = rules.evaluate if Trust.LOCAL in rules.trust else 0.0
    return max(allowed, answers), answers


def account_of(
    state: LedgerState,
    cap: Target,
    honest: int = 0,
    floor: float = 0.0,
    data_set: str = "",
    *,
    kind: str | None = None,
    run: str | None = None,
    saved: SavedCosts | None = None,
    plus: Cost | None = None,
) -> Account:
    """Return the account of a ledger's updates under a cap, and of one more release of ``plus``.

    Sums count at ``honest`` clients, or fewer where the ledger says fewer (0: as noted). Each
    release costs a pure epsilon of ``floor`` at least. With ``run``, only that run's releases
    count. With ``data_set``, only releases of it count, and those of no named data set, which may
    have been of it. Answers to evaluations that the server sees are left out
    (docs/theory/filters.md, "Setting aside"); with ``kind``, only mechanisms of that kind count.
    The first entry is the first release, which an adaptive account goes by.
    """
    most = (honest or 2**31) if cap.trust is Trust.SECURE_AGGREGATION else 0
    counts: dict[Cost, int] = {}
    for (name, noted_honest, noted_data_set), times in state.counts(run).items():
        noted_kind = state.mechanisms[name].get("kind")
        is_counted = noted_kind != ANSWERS if kind is None else noted_kind == kind
        if is_counted and (not data_set or noted_data_set in ("", data_set)):
            cost = _noted_cost(state, name, cap, min(noted_honest, most), floor, saved)
            counts[cost] = counts.get(cost, 0) + times
    if plus is not None:
        counts[plus] = counts.get(plus, 0) + 1
    return Account(cap, "adaptive", tuple(counts.items()))


def _noted_cost(
    state: LedgerState,
    name: str,
    cap: Target,
    honest: int,
    floor: float,
    saved: SavedCosts | None,
) -> Cost:
    """Return the cost of a release that the ledger notes, from the description that it holds."""
    known = _COSTS.get(_key(name, cap, honest, floor))
    if known is not None:
        return known
    proposed = ProposedMechanism.noted(state.mechanisms[name])
    if proposed.identity != name:
        raise LedgerError(
            f"The ledger's description of mechanism {name[:16]}... is of another mechanism, "
            f"{proposed.identity[:16]}...: restore the ledger from its newest copy."
        )
    return _release_cost(proposed, cap, honest, floor, saved)


def _release_cost(
    proposed: ProposedMechanism, cap: Target, honest: int, floor: float, saved: SavedCosts | None
) -> Cost:
    """Return the cost of one release under a cap: a pure epsilon of ``floor`` at least.

    Costs are cached by the mechanism's identity: equal releases must have one `Cost` object, by
    which an account counts them. Divergences that take long to compute come from ``saved``.
    """
    name = proposed.identity
    key = _key(name, cap, honest, floor)
    known = _COSTS.get(key)
    if known is not None:
        return known
    cost = proposed.cost(cap.adjacency, honest, cap.unit)
    if saved is not None and type(proposed.mechanism.core).__module__.startswith(PACKAGE):
        terms = f"{name} {cap.adjacency.value} {cap.unit.value} {honest}"

        def cached(place: int, bound: Divergence) -> Divergence:
            return saved.cached(f"{terms} {place}", bound)

        cost = cost.remembering(cached)
    cost = Account(cap, "adaptive").spend(cost.at_least(floor)).entries[0][0]
    if len(_COSTS) >= MOST_COSTS:
        _COSTS.clear()
    _COSTS[key] = cost
    return cost


def _key(name: str, cap: Target, honest: int, floor: float) -> tuple[object, ...]:
    """Return everything that the cost of a mechanism depends on."""
    return name, cap.adjacency, cap.unit, cap.trust, honest, floor
