"""The costs of a run: counted per client, and reported for the worst client and for either observer.

Idea     a client's own releases compose. Clients of the same size with the same number of releases have equal ledgers,
         so counts are enough to rebuild any of them; the guarantee of the run is the largest over all clients,
         computed from their ledgers alone.
         An observer of models alone learns less than the server: a model is computed from means, and a mean does not
         reveal whose release was which. Within a round a release is one of the cohort's, whoever chose the cohort;
         where the order of clients is drawn in secret, once per epoch, all rounds of the epoch together are one
         shuffle of all clients. No other randomness is counted on.
Symbols  crowd: clients of the shuffle; shuffles: of the worst client, each with an independent order.
Source   Guo et al. (ICML 2023), section "Rényi DP and composition"; docs/theory/shuffling.md. An unfinished epoch is
         part of a finished one, and costs no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import QuietbitError, require
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.shuffled import shuffled_privacy
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee, GuaranteePair
from quietbit.target import Trust, Unit

if TYPE_CHECKING:
    from quietbit.plan.plan import Plan

__all__ = ["SCOUTS", "ClientCosts", "observers", "spread"]

SCOUTS = "the answers of scouts"

Pair = tuple[int, int]  # (kind of client, releases)
_CostOf: TypeAlias = Callable[[int | None], Cost]  # of one release: to a client, or to one of this many samples


@final
@dataclass(slots=True, eq=False)
class ClientCosts:
    """The releases of every client so far; ``sizes`` are the samples of each. `Plan.account` opens one.

    With clients as the privacy unit, all are of one kind; with samples (``by_size``), a client's size is its kind, and
    the smallest clients are the most exposed. Adjacency, unit and trust are those of the cost.
    """

    price: _CostOf
    sizes: NDArray[np.int64]
    by_size: bool = False
    counts: NDArray[np.int64] = field(init=False)
    _releases: dict[int, Cost] = field(init=False, default_factory=dict, repr=False)
    _answers: dict[tuple[Pair, float], Guarantee] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Start with no releases; refuse a mechanism without an account."""
        self.counts = np.zeros(self.sizes.size, dtype=np.int64)
        require(self.sizes.size > 0 and int(self.sizes.min()) > 0, "sizes of the clients", self.sizes, "all positive")
        self._release(int(self._kinds().min()))

    def record(self, clients: NDArray[np.int64]) -> None:
        """Record one more release of each of these clients."""
        self.counts[clients] += 1

    def fresh(self) -> ClientCosts:
        """Return the same account without releases."""
        return ClientCosts(self.price, self.sizes, self.by_size)

    def cost(self, client: int) -> Cost:
        """Return the cost of one client's releases."""
        return self._cost((int(self._kinds()[client]), int(self.counts[client])))

    def spread(self, delta: float) -> str:
        """Describe how unequal participation was: the releases and epsilons of some clients."""
        order = np.argsort(self.counts, kind="stable")
        return spread([(int(self.counts[one]), self.cost(int(one)).epsilon(delta)) for one in _places(order)])

    def worst(self, delta: float, after: NDArray[np.int64] | None = None) -> Guarantee:
        """Return the guarantee that holds for every client, now or once the clients of ``after`` have sent."""
        counts = self.counts
        if after is not None:
            counts = counts.copy()
            counts[after] += 1
        answers = [self._answer(pair, delta) for pair in _exposed(self._kinds(), counts)]
        return max(answers, key=lambda guarantee: guarantee.epsilon_upper)

    def _kinds(self) -> NDArray[np.int64]:
        return self.sizes if self.by_size else np.ones_like(self.sizes)

    def _answer(self, pair: Pair, delta: float) -> Guarantee:
        key = (pair, delta)
        if key not in self._answers:
            self._answers[key] = self._cost(pair).guarantee(delta)  # one mechanism, fixed in the plan
        return self._answers[key]

    def _cost(self, pair: Pair) -> Cost:
        return self._release(pair[0]) * pair[1]

    def _release(self, kind: int) -> Cost:
        if kind not in self._releases:
            self._releases[kind] = self.price(kind if self.by_size else None)
        return self._releases[kind]


def spread(clients: Sequence[tuple[int, float]]) -> str:
    """Describe the releases and epsilon of the clients with the fewest, the median and the most releases.

    >>> spread([(0, 0.0), (7, 3.5), (1, 1.25), (2, 1.5)])
    'fewest 0 (epsilon 0), median 2 (epsilon 1.5), most 7 (epsilon 3.5)'
    """
    told = zip(("fewest", "median", "most"), _places(sorted(clients)), strict=True)
    return ", ".join(f"{word} {times} (epsilon {epsilon:.4g})" for word, (times, epsilon) in told)


def _places(ordered: Any) -> list[Any]:
    return [ordered[place] for place in (0, len(ordered) // 2, len(ordered) - 1)]


def _exposed(kinds: NDArray[np.int64], counts: NDArray[np.int64]) -> list[Pair]:
    """Return the smallest kind for each number of releases: no other client of that number is worse off."""
    found: list[Pair] = []
    for times in np.unique(counts).tolist():
        found.append((int(kinds[counts == times].min()), int(times)))
    # A client with fewer releases and more samples than another has the smaller epsilon: leave it out.
    return [pair for pair in found if not any(o[0] <= pair[0] and o[1] > pair[1] for o in found)]


def observers(plan: Plan, mechanism: Mechanism, account: ClientCosts) -> GuaranteePair:
    """Return both guarantees of a run in which every client takes part as planned and none drops out."""
    server = account.worst(plan.delta)
    if plan.trust is not Trust.LOCAL:
        return GuaranteePair(server, None, reason=f"shuffling is accounted beside local trust, not {plan.trust.value}")
    if plan.clip_scouts is not None:
        return GuaranteePair(server, None, reason=f"the account of the crowd does not have {SCOUTS}")
    if plan.most_examples is not None:
        return GuaranteePair(server, None, reason="releases are weighted, and weights tell whose release is which")
    if plan.staleness:
        return GuaranteePair(server, None, reason="releases come when they like, and not with those of their round")
    if plan.unit is Unit.SAMPLE:
        return GuaranteePair(server, None, reason="shuffling is accounted for clients, not for single samples")
    secret = plan.secret_order
    crowd, shuffles = int(account.counts.size) if secret else plan.cohort, int(account.counts.max())
    try:
        release = shuffled_privacy(mechanism, plan.adjacency, crowd)
    except QuietbitError as error:
        reason = str(error).rstrip(".")
        return GuaranteePair(server, None, reason=reason[0].lower() + reason[1:])
    result = (release * shuffles).guarantee(plan.delta)
    return GuaranteePair(server, result, crowd, shuffles, secret)
