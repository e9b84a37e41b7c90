"""Account: the releases of one client, compared with a target; the only ledger arithmetic.

Idea     a plan fixes its list of releases in advance, and every account of `Cost` holds for it:
         *planned*. A node answers servers that see every answer before they ask again, and may
         choose the next mechanism, and when to stop, based on it: *adaptive*. Accounts j with
         shares delta_j are then fixed before the first output, and a release is made only while one
         of them proves epsilon at its share: what was released when it stops is (epsilon, lost +
         sum_j delta_j)-private, whatever was chosen. Nearly all of delta goes to the account that
         is best if every release is like the first. A filter protects the target's epsilon; the
         account's own number says how much of it is used.
Source   docs/theory/filters.md has the proofs, and the table of accounts with their shares. Feldman
         and Zrnic (2021), Theorem 4.3: Rényi filters; Smith and Thakurta (2022): Gaussian ones;
         Rogers et al. (2016): pure ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, final

import numpy as np
from attrs import evolve, field, frozen

from quietbit._search import bisect
from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, require
from quietbit.privacy.conversion import (
    epsilon_from_linear,
    gaussian_epsilon_upper,
)
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee
from quietbit.privacy.release import GaussianPair, Line, LossPair, Pure, Release
from quietbit.privacy.rounding import ROUNDING_MARGIN, round_up
from quietbit.target import Target

__all__ = ["FEW", "LOST", "MAIN", "ORDERS", "SECOND", "Account", "Mode"]

Mode = Literal["planned", "adaptive"]
ORDERS = tuple(1.0 + 2.0 ** (place / 3) for place in range(-12, 37))
MAIN = 0.90  # shares of delta: MAIN + SECOND + 2 FEW + LOST = 1
SECOND = 0.07
FEW = 0.01
LOST = 0.01
SLACK_RATE = 1e-4  # of mu^2 / 2
SHARPER = 0.995  # so much smaller an epsilon is worth nearly all of delta
MOST_COPIES = 1e6
_ORDERS = np.array(ORDERS)


@final
@frozen
class Account:
    """The releases of one client so far, under the terms of ``target``.

    Spending returns a new account. The order of spending matters to an adaptive account: its first
    cost is that of the client's first release.

    Attributes:
        target: what all releases together may cost.
        mode: "planned" where the list of mechanisms was fixed before the first release (inputs may
            depend on anything), "adaptive" where mechanisms, or the time to stop, may depend on
            earlier releases.
        entries: costs, and how often each was spent.

    >>> from quietbit.target import Adjacency, Trust, Unit
    >>> once = Cost.pure(0.25).of(Adjacency.REPLACE_ONE, Unit.CLIENT, Trust.LOCAL)
    >>> account = Account(Target(1.0, 0.0, "zero-out"), "adaptive").spend(once, times=4)
    >>> account.guarantee().epsilon_upper, account.allows(once)
    (1.0, False)
    """

    target: Target
    mode: Mode = "planned"
    entries: tuple[tuple[Cost, int], ...] = field(default=(), repr=False)

    def __attrs_post_init__(self) -> None:
        target = self.target
        require(isinstance(target, Target), "target", type(target).__name__, "a Target")
        require(self.mode in ("planned", "adaptive"), "mode", self.mode, "planned or adaptive")
        if self.mode == "adaptive":
            # Without a limit, shares of delta would be undefined.
            check_real(target.epsilon, "epsilon")

    def spend(self, cost: Cost, times: int = 1) -> Account:
        """Return the account after ``times`` more releases of this cost.

        A cost under other terms is converted where it covers the target's (`Cost.under`), else
        refused; so is a bare cost, whose terms are unknown.
        """
        times = check_int(times, "times", 0)
        rule = "a Cost with adjacency, unit and trust"
        require(isinstance(cost, Cost), "cost", type(cost).__name__, rule)
        target = self.target
        converted = cost.under(adjacency=target.adjacency, trust=target.trust)
        rule = f"{target.unit.value}, the unit of the account"
        require(converted.unit is target.unit, "unit of the cost", converted.unit, rule)
        if times == 0:
            return self
        bare = converted.bare()
        counts = dict(self.entries)
        counts[bare] = counts.get(bare, 0) + times
        return evolve(self, entries=tuple(counts.items()))

    def allows(self, cost: Cost, times: int = 1) -> bool:
        """Return whether ``times`` more releases of this cost stay within the target."""
        return self.spend(cost, times).holds()

    def holds(self) -> bool:
        """Return whether the releases so far stay within the target."""
        if self.mode == "adaptive" and len(self.entries) == 1:
            first, times = self.entries[0]
            return _copies(first, self.target).allow(times)
        return self.epsilon() <= self.target.epsilon

    def total(self) -> Cost:
        """Return the cost of all releases together, under the target's terms."""
        total = Cost()
        for cost, times in self.entries:
            total += cost * times
        target = self.target
        return evolve(total, adjacency=target.adjacency, unit=target.unit, trust=target.trust)

    def epsilon(self) -> float:
        """Return the smallest epsilon proved at the target's delta."""
        total = self.total()
        delta = self.target.delta
        if self.mode == "planned":
            return total.epsilon(delta)
        pure = total.pure_epsilon()
        if delta == 0 or not self.entries:
            return pure
        first, times = self.entries[0]
        shares = _shares(first, self.target.epsilon, delta)
        if len(self.entries) == 1 and shares.copies:
            return min(pure, (first * times).epsilon(shares.copies))
        if total.lost > delta * LOST:
            return pure
        pair = max(total.pair_slope, total.slack / SLACK_RATE)
        return min(
            pure,
            total.certified().pure_epsilon(),
            _gaussian(pair, shares.gaussian),
            _renyi(self.entries, shares, self.target.epsilon),
        )

    def guarantee(self) -> Guarantee:
        """Return the smallest epsilon proved at the target's delta, with the target's terms."""
        target = self.target
        return Guarantee(self.epsilon(), target.delta, target.unit, target.adjacency, target.trust)


@final
@frozen
class _Shares:
    """The shares of delta of the accounts, rounded down."""

    copies: float
    gaussian: float
    order: float  # fixed in advance,
    at_order: float  # and its share
    each: float  # for every one of `ORDERS`


@lru_cache(maxsize=256)
def _shares(first: Cost, epsilon: float, delta: float) -> _Shares:
    """Share out delta, before the first output: by the first cost and the target alone."""
    main = delta * MAIN
    few = delta * FEW
    each = delta * FEW / len(ORDERS) * (1 - 1e-12)
    share = delta * (MAIN + SECOND) * (1 - 1e-12)
    divergence = first.certified().rdp
    order = math.nan
    if not first.closed:
        order = _best_order(divergence, epsilon, share)
    # Whether the Gaussian pair allows more releases like the first than its divergences do.
    exact = False
    if 0 < first.pair_slope < math.inf:
        pair = _largest_slope(gaussian_epsilon_upper, epsilon, main)
        if first.closed:
            line = _largest_slope(epsilon_from_linear, epsilon, main)
            copies = line / first.slope
        else:
            copies = _copies_at(order, divergence, epsilon, share)
        exact = pair / first.pair_slope >= copies
    if exact or _is_sharp(first, order, epsilon, delta):
        second = delta * SECOND
        line_order = _best_order(float, epsilon, second)  # for divergences that grow as the order
        if exact:
            return _Shares(0.0, main, line_order, second, each)
        return _Shares(main, few, line_order, second, each)
    if first.closed:
        order = _best_order(divergence, epsilon, share)
    return _Shares(0.0, few, order, share, each)


def _is_sharp(cost: Cost, order: float, epsilon: float, delta: float) -> bool:
    """Return whether loss distributions allow more copies of a cost than its divergences do.

    They do where the divergences are made from loss distributions; else both are computed.
    """
    if cost.closed or not cost.paired:
        return cost.joins
    if all(_is_by_losses(release) for release, _ in cost.parts):
        return True
    share = delta * (MAIN + SECOND)
    divergence = cost.certified().rdp
    copies = int(min(max(1.0, _copies_at(order, divergence, epsilon, share)), MOST_COPIES))
    by_order = _epsilon_at(order, copies * divergence(order), share)
    accounts = (cost * copies).accounts(delta * MAIN)
    by_losses = accounts.get("privacy-loss distribution", math.inf)
    return by_losses < SHARPER * min(by_order, accounts["pure"])  # a pure account needs no share


def _is_by_losses(release: Release) -> bool:
    """Return whether the losses that are known of a release imply its divergences."""
    kinds = {type(bound) for bound in release.bounds}
    return LossPair in kinds or kinds == {Pure} or kinds <= {GaussianPair, Line}


@lru_cache(maxsize=128)
def _largest_slope(account: Callable[[float, float], float], epsilon: float, delta: float) -> float:
    """Return the largest slope whose account stays within epsilon at ``delta``."""

    def fits(slope: float) -> bool:
        return account(slope, delta) <= epsilon

    return bisect(fits, 1e-30, 1e30, relative=1e-6, by_ratio=True)


def _gaussian(pair_slope: float, delta: float) -> float:
    """Return epsilon of a dominating Gaussian pair with a slack of `SLACK_RATE` times its slope."""
    if not pair_slope < math.inf:
        return math.inf
    slack = SLACK_RATE * pair_slope
    epsilon = gaussian_epsilon_upper(pair_slope, delta * math.exp(-slack) * (1 - 4e-16))
    return round_up(epsilon + 2 * slack, 4e-16)


def _best_order(divergence: Callable[[float], float], epsilon: float, delta: float) -> float:
    """Return the order at which the most copies of a release stay within epsilon at ``delta``."""

    def copies(step: float) -> float:
        return _copies_at(1 + step, divergence, epsilon, delta)

    steps = _ORDERS - 1
    for _ in range(3):
        place = int(np.argmax([copies(step) for step in steps.tolist()]))
        best = float(steps[place])
        below = steps[max(place - 1, 0)]
        above = steps[min(place + 1, len(steps) - 1)]
        steps = np.geomspace(below, above, 9)
    return 1 + best


def _epsilon_at(alpha: float, divergence: float, delta: float) -> float:
    """Return about the epsilon that a divergence of one order proves at ``delta``."""
    return divergence + float(_conversion(np.array([alpha]), delta)[0])


def _copies_at(
    alpha: float, divergence: Callable[[float], float], epsilon: float, delta: float
) -> float:
    """Return about how many copies of a release stay within epsilon at ``delta`` by one order."""
    each = divergence(alpha)
    if 0 < each < math.inf:
        return (epsilon - _epsilon_at(alpha, 0.0, delta)) / each
    return -math.inf


def _conversion(orders: FloatVector, delta: float) -> FloatVector:
    """Return what the bound at each order adds to the divergence, rounded up.

    It holds outcome by outcome.
    """
    shift = np.log1p(-1 / orders)
    tail = -(np.log(delta) + np.log(orders)) / (orders - 1)
    return np.asarray(shift + tail + ROUNDING_MARGIN * (np.abs(shift) + np.abs(tail)))


@lru_cache(maxsize=1024)
def _divergences(cost: Cost, order: float) -> FloatVector:
    """Return the divergence at the order fixed in advance, then at `ORDERS`."""
    certified = cost.certified()
    return np.array([certified.rdp(alpha) for alpha in (order, *ORDERS)])


def _renyi(entries: tuple[tuple[Cost, int], ...], shares: _Shares, epsilon: float) -> float:
    """Return the smallest epsilon from sums of divergences, at the fixed order or at another."""
    sums = [times * _divergences(cost, shares.order) for cost, times in entries]
    total = np.sum(sums, axis=0) * (1 + 4e-16 * (len(entries) + 1))
    orders = np.append(shares.order, _ORDERS)
    at_share = (total + _conversion(orders, shares.at_order)) * (1 + ROUNDING_MARGIN)
    fixed = float(at_share[0])
    best = float(np.min(at_share))
    # Other orders count only on the same side of the target as the fixed one.
    if best <= epsilon < fixed:
        best = fixed
    among_many = float(np.min(total[1:] + _conversion(_ORDERS, shares.each)))
    return max(0.0, min(best, among_many))


@final
class _Copies:
    """The number of releases of one cost that an adaptive account allows, found on demand."""

    def __init__(self, cost: Cost, target: Target) -> None:
        self._cost = cost
        self._target = target
        self._fit = 0
        self._too_many = 2**62

    def allow(self, times: int) -> bool:
        """Return whether that many fit; searches ahead, so that a run builds few accounts."""
        if self._fit < times < self._too_many:
            for trial in (min(2 * times, (times + self._too_many) // 2), times):
                account = Account(self._target, "adaptive", ((self._cost, trial),))
                if account.epsilon() <= self._target.epsilon:
                    self._fit = max(self._fit, trial)
                    break
                self._too_many = trial
        return times <= self._fit


_copies = lru_cache(maxsize=256)(_Copies)
