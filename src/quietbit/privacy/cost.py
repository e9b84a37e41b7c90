"""Cost: what releases reveal, as upper bounds that add up.

Idea     several bounds may be known of one release: its max-divergence, its Rényi divergences, a
         Gaussian pair or a pair of loss distributions that dominates it. Each adds up over
         releases, and the smallest epsilon among the accounts that hold for all parts is the
         answer. The list of releases is fixed in advance here, while inputs may depend on anything;
         `account` treats lists that are chosen along the way.
Symbols  D_alpha: Rényi divergence between neighbouring worlds, both ways round, alpha > 1; slope: a
         bound slope * alpha on it; mu^2 / 2: the slope of a Gaussian pair N(mu, 1), N(0, 1); slack
         s, lost mass d: a sampler's law is within e^(+-s) of the certified one outside a set of
         outputs that has mass at most d in either world.
Source   Mironov (2017); Zhu, Dong, Wang (2022), Theorem 10. docs/theory/adding-up.md: slack and
         lost mass add up and are paid once, at the end: (eps + 2 sum s)-privacy at e^(sum s) delta
         + sum d.

Terms. A cost carries the adjacency, unit and trust that it was found under; costs under different
terms do not add up. The zero vector lies in every ball, so a replace-one cost holds for zero-out,
not the reverse. What a server publishes, or the sum that it sees, is computed from the payloads, so
a local cost holds under every trust, and the cost of a sum under central trust; one under shuffled
trust relies on a secret order, and holds under no other. A client's cost says nothing in general
about one of its samples, nor the reverse.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias, final

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import ArrayLike

from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.privacy.conversion import (
    dominating_square_upper,
    epsilon_from_linear,
    epsilon_from_rdp,
    gaussian_epsilon_upper,
)
from quietbit.privacy.guarantee import Guarantee, check_terms
from quietbit.privacy.loss import LossDistribution
from quietbit.privacy.rounding import next_up, round_up, sum_upper
from quietbit.target import Adjacency, Trust, Unit, check_delta

__all__ = ["Bound", "Cost", "Formula", "LossPair", "sample_share", "sampling_slack_upper"]

Bound: TypeAlias = Callable[[float], float]
LossPair: TypeAlias = tuple[LossDistribution, LossDistribution]
MOST_PURE = 700.0  # e^epsilon is still a double
MOST_SLOPE = 1e11
ROUNDING = 2.0**-21  # of the clip: by which the float32 rounding of two updates moves them apart
_LAST_DIGIT = 4e-16  # more than the rounding of a sum or a product

_IMPLIES = {
    Trust.LOCAL: set(Trust),
    Trust.SECURE_AGGREGATION: {Trust.SECURE_AGGREGATION, Trust.CENTRAL},
    Trust.CENTRAL: {Trust.CENTRAL},
    Trust.SHUFFLED: {Trust.SHUFFLED},
}


@final
@frozen(init=False)
class Formula:
    """``function(*at, *known)``, equal to every formula of equal parts.

    Equal releases are counted together.
    """

    function: Callable[..., Any]
    known: tuple[Any, ...]

    def __init__(self, function: Callable[..., Any], *known: Any) -> None:
        self.__attrs_init__(function, known)

    def __call__(self, *at: float) -> Any:
        """Evaluate the formula; the known arguments follow the order where there is one."""
        return self.function(*at, *self.known)


@final
@frozen
class _Release:
    """The bounds of one release, infinite or None where unknown.

    They are bounds of its certified law, but for ``pure`` and ``everywhere``, which hold for the
    actual release.
    """

    renyi: Bound = field(repr=False)
    label: str
    pure: float = math.inf
    slope: float = math.inf  # D_alpha <= slope * alpha
    pair: float = math.inf  # mu^2 / 2 of a Gaussian pair that dominates
    largest: float = 0.0  # the largest bit of a release of bits with the budget 2 slope
    losses: LossPair | Callable[[], LossPair] | None = field(default=None, repr=False)
    alone: Bound | None = field(default=None, repr=False)  # epsilon at a delta, of one release
    slack: float = 0.0
    lost: float = 0.0
    everywhere: Cost | None = field(default=None, repr=False)  # known where mass is lost
    inside: float = math.inf  # max-divergence where no mass is lost, slack included

    def divergence(self, alpha: float) -> float:
        """Return D_alpha of the actual release; infinite where lost mass is not covered."""
        if self.lost == 0:
            return self.certified(alpha)
        if self.everywhere is None:
            return math.inf
        return self.everywhere.rdp(alpha)

    def certified(self, alpha: float) -> float:
        """Return D_alpha outside the outputs of lost mass.

        The moment grows by e^((2 alpha - 1) slack) at most.
        """
        bound = self.renyi(alpha)
        if self.slack == 0:
            return bound
        return round_up(bound + (2 * alpha - 1) / (alpha - 1) * self.slack, _LAST_DIGIT)

    def of_law(self, alpha: float) -> float:
        """Return D_alpha of the certified law, without slack."""
        return self.renyi(alpha)

    def certified_pure(self) -> float:
        """Return the max-divergence outside the outputs of lost mass."""
        return self.inside if self.lost else self.pure

    def pairs(self) -> LossPair | None:
        """Return the losses of the certified law, where a dominating pair is known."""
        if callable(self.losses):
            return self.losses()
        if self.losses is not None:
            return self.losses
        if self.pair > MOST_SLOPE:
            return None
        mu = 0.0
        if self.pair > 0:
            mu = next_up(math.sqrt(2 * self.pair))
        gaussian = LossDistribution.gaussian(mu)
        return gaussian, gaussian


@final
@frozen
class Cost:
    """The cost of releases; ``a + b`` is the cost of both, ``cost * n`` that of n such releases.

    A bare cost has no adjacency, unit and trust yet (`of` adds them); `Cost()` is the cost of no
    release.

    >>> once = Cost.pure(0.25).of(Adjacency.REPLACE_ONE, Unit.CLIENT, Trust.LOCAL)
    >>> (once * 4).under(adjacency=Adjacency.ZERO_OUT).guarantee(0.0).epsilon_upper
    1.0
    """

    parts: tuple[tuple[_Release, int], ...] = ()
    adjacency: Adjacency | None = None
    unit: Unit | None = None
    trust: Trust | None = None

    @classmethod
    def pure(cls, epsilon: float) -> Cost:
        """Return epsilon-DP with the Rényi divergences that it implies.

        Randomised response attains them.
        """
        value = _check_size(epsilon, "epsilon")
        if value == 0:
            return cls()
        losses = None
        if value <= MOST_PURE:
            response = LossDistribution.pure(value)
            losses = (response, response)
        return cls._once(_Release(Formula(_response, value), f"{value:g}-DP", value, losses=losses))

    @classmethod
    def renyi(
        cls,
        bound: Bound,
        label: str,
        pure: float = math.inf,
        losses: Callable[[], LossPair] | None = None,
        alone: Bound | None = None,
    ) -> Cost:
        """Return a cost from a certified function of the order, and further bounds.

        Args:
            bound: D_alpha at every order alpha > 1, from above.
            label: what the release is, for people.
            pure: its max-divergence.
            losses: makes dominating pairs.
            alone: epsilon at a delta, of one release.
        """
        require(pure >= 0, "pure", pure, "a number of at least 0")
        return cls._once(_Release(bound, label, pure, losses=losses, alone=alone))

    @classmethod
    def per_square(cls, kappa: Bound, distance: float, label: str) -> Cost:
        """Return D_alpha <= kappa(alpha) distance^2, as in Theorem 2 for more than two levels."""
        return cls.renyi(Formula(_squared, kappa, distance), label)

    @classmethod
    def linear(cls, slope: float) -> Cost:
        """Return D_alpha <= slope * alpha, as in Theorem 2: slope = M S^2 / 2."""
        return cls.gaussian(math.inf, _check_size(slope, "slope"))

    @classmethod
    def gaussian(cls, pair_slope: float, slope: float = math.inf, largest: float = 0.0) -> Cost:
        """Return the cost of a release that a Gaussian pair dominates; Gaussian noise is one.

        The pair composes exactly, with itself and with Gaussians, also when inputs depend on
        earlier releases (Dong, Roth, Su 2022).

        Args:
            pair_slope: mu^2 / 2 of the pair; infinite where no pair is known.
            slope: Rényi divergences are at most this times the order, where that is smaller.
            largest: the release is a product of bits of the budget 2 ``slope``, none above this, so
                that several cost as much as one product.
        """
        pair = _check_bound(pair_slope, "pair_slope")
        line = min(pair, _check_bound(slope, "slope"))
        require(line < math.inf, "pair_slope", pair_slope, "finite where no slope is given")
        if line == 0:
            return cls()
        bound = Formula(operator.mul, line)
        return cls._once(_Release(bound, f"slope {line:g}", slope=line, pair=pair, largest=largest))

    @classmethod
    def from_losses(
        cls,
        forward: LossDistribution,
        backward: LossDistribution | None = None,
        *,
        pair: float = math.inf,
    ) -> Cost:
        """Return the cost of a release with a known dominating pair.

        For zero-out a client is in the same world in all its releases, so forward losses add to
        forward ones (Zhu, Dong, Wang 2022, Definition 7).

        Args:
            forward: losses of the client's data against the neighbour's.
            backward: the reverse; without it ``forward`` serves both ways round, as it may where
                the adjacency is symmetric (replace-one).
            pair: mu^2 / 2 of a Gaussian pair that also dominates it, where one is known.
        """
        both = (forward, forward if backward is None else backward)
        for name, losses in zip(("forward", "backward"), both, strict=True):
            valid = isinstance(losses, LossDistribution)
            require(valid, name, type(losses).__name__, "a LossDistribution")
        pure = max(losses.pure_epsilon_upper() for losses in both)
        bound = Formula(_loss_divergence, both)
        return cls._once(_Release(bound, "dominating pair", pure, pair, pair, losses=both))

    @classmethod
    def from_masses(
        cls,
        first: ArrayLike,
        second: ArrayLike,
        *,
        relative_error: float = 0.0,
        pair: float = math.inf,
    ) -> Cost:
        """Return the cost of a finite dominating pair, its masses known up to ``relative_error``.

        ``pair`` is as in `from_losses`.

        >>> response = Cost.from_masses([0.75, 0.25], [0.25, 0.75])
        >>> round(response.epsilon(0.0), 6), (response * 50).answered_by(1e-6)
        (1.098612, 'privacy-loss distribution')
        """
        error = check_real(relative_error, "relative_error", at_least=0.0, at_most=1.0)
        losses = []
        for law, other in ((first, second), (second, first)):
            upper = np.array(law, dtype=np.float64)
            lower = np.array(other, dtype=np.float64)
            if error:
                upper = np.nextafter(upper * (1 + error), 2.0)
                lower = np.nextafter(lower * (1 - error), -1.0)
            losses.append(LossDistribution.from_atoms(upper, np.maximum(lower, 0.0)))
        return cls.from_losses(*losses, pair=pair)

    @classmethod
    def _once(cls, release: _Release) -> Cost:
        return cls(((release, 1),))

    def of(
        self, adjacency: Adjacency, unit: Unit, trust: Trust, samples: int | None = None
    ) -> Cost:
        """Add terms to a bare cost; refuse a cost that has terms already.

        ``samples`` is the number of the client's samples that the cost is for, at the sample level
        only.
        """
        self._check_bare()
        check_terms(adjacency, unit, trust)
        if unit is Unit.SAMPLE:
            rule = "the number of the client's samples where the unit is a sample"
            require(samples is not None, "samples", samples, rule)
            check_int(samples, "samples", 1)
        else:
            require(samples is None, "samples", samples, "left out unless the unit is a sample")
        return evolve(self, adjacency=adjacency, unit=unit, trust=trust)

    def like(self, other: Cost) -> Cost:
        """Give this bare cost the terms of another, which it is to become a part of."""
        self._check_bare()
        return evolve(other, parts=self.parts)

    def _check_bare(self) -> None:
        rule = "unset in a cost that is to be given its terms"
        remedy = "this cost already has terms; change them with Cost.under"
        require(self.adjacency is None, "adjacency", self.adjacency, rule, remedy)

    def or_else(self, other: Cost, label: str) -> Cost:
        """Combine two costs of the same release: the smaller bound at every order."""
        pure = min(self.pure_epsilon(), other.pure_epsilon())
        return Cost.renyi(Formula(_smaller, self, other), label, pure)

    def either(self, other: Cost) -> Cost:
        """Return the cost of one release that is of this cost or of the bare other one.

        Every bound is the larger of the two, so releases of either kind, in any order, are copies
        of one cost.
        """
        first = self._single()
        second = other._single()
        pair = max(first.pair, second.pair)
        losses = None
        if pair == math.inf:
            losses = _larger_losses(first.pairs(), second.pairs())
        lost = max(first.lost, second.lost)
        everywhere = None
        if lost:
            actual = first.everywhere if first.lost else Cost._once(first)
            other_actual = second.everywhere if second.lost else Cost._once(second)
            if actual is not None and other_actual is not None:
                everywhere = actual.either(other_actual)
        release = _Release(
            Formula(_larger, first.renyi, second.renyi),
            f"{first.label}, or {second.label}",
            max(first.pure, second.pure),
            max(first.slope, second.slope),
            pair,
            losses=losses,
            slack=max(first.slack, second.slack),
            lost=lost,
            everywhere=everywhere,
            inside=max(first.certified_pure(), second.certified_pure()),
        )
        return Cost._once(release).like(self)

    def _single(self) -> _Release:
        """Return the only release; refuse none, and several."""
        releases = sum(times for _, times in self.parts)
        require(releases == 1, "releases of the cost", releases, "1 to be of one of two kinds")
        return self.parts[0][0]

    def bare(self) -> Cost:
        """Return this cost without its terms."""
        return Cost(self.parts)

    def under(self, *, adjacency: Adjacency | None = None, trust: Trust | None = None) -> Cost:
        """Return the same cost under another adjacency or trust, where it holds there too."""
        known_adjacency, unit, known_trust = self._terms()
        adjacency = known_adjacency if adjacency is None else adjacency
        trust = known_trust if trust is None else trust
        if adjacency is known_adjacency and trust is known_trust:
            return self
        check_terms(adjacency, unit, trust)
        covered = adjacency is known_adjacency or known_adjacency is Adjacency.REPLACE_ONE
        remedy = "a cost for zero-out does not cover replacing an update"
        require(covered, "adjacency", adjacency.value, f"{known_adjacency.value} here", remedy)
        implied = " or ".join(sorted(trust.value for trust in _IMPLIES[known_trust]))
        rule = f"{implied} for a release whose cost holds under {known_trust.value} trust"
        require(trust in _IMPLIES[known_trust], "trust", trust.value, rule)
        return evolve(self, adjacency=adjacency, trust=trust)

    def __add__(self, other: Cost) -> Cost:
        """Return the cost of these releases and the other's; refuse to mix terms."""
        if not isinstance(other, Cost):
            return NotImplemented
        if self.adjacency is None and not self.parts:
            return other
        if other.adjacency is None and not other.parts:
            return self
        for name in ("unit", "adjacency", "trust"):
            mine = getattr(self, name)
            theirs = getattr(other, name)
            rule = f"{mine and mine.value}, the same as in the other cost"
            remedy = "costs under different terms do not add up"
            require(theirs is mine, name, theirs and theirs.value, rule, remedy)
        counts = dict(self.parts)
        for release, times in other.parts:
            counts[release] = counts.get(release, 0) + times
        return evolve(self, parts=tuple(counts.items()))

    def __mul__(self, times: int) -> Cost:
        """Return the cost of ``times`` such releases of the same client."""
        times = check_int(times, "times", 0)
        if times == 0:
            return evolve(self, parts=())
        parts = tuple((release, times * count) for release, count in self.parts)
        return evolve(self, parts=parts)

    def with_slack(self, slack: float) -> Cost:
        """Return the cost of a sampler whose law is within e^(+-slack) of the certified one."""
        value = _check_size(slack, "slack")
        if value == 0:
            return self
        if not self.parts:
            return evolve(self, parts=Cost.pure(2 * value).parts)
        release, others = self._split()
        rule = "0 where slack is added to several releases at once"
        require(not others or not self.lost, "lost mass", self.lost, rule)
        lost = 0.0
        if release.lost:
            lost = round_up(release.lost * math.exp(value), 1e-15)
        everywhere = release.everywhere
        if everywhere is not None:
            everywhere = everywhere.with_slack(value)
        slackened = evolve(
            release,
            slack=sum_upper([(release.slack, 1), (value, 1)]),
            pure=sum_upper([(release.pure, 1), (value, 2)]),
            lost=lost,
            everywhere=everywhere,
            inside=sum_upper([(release.inside, 1), (value, 2)]),
        )
        return evolve(self, parts=(*others, (slackened, 1)))

    def with_lost(self, lost: float, everywhere: Cost | None = None) -> Cost:
        """Return the cost of a release that is the certified one but for outputs of mass ``lost``.

        For every pair of neighbours there are two laws that this cost covers and a set of outputs,
        of mass at most ``lost`` in either world, outside which the release has exactly these; laws
        that are merely close in total variation do not have this form. ``everywhere`` is a cost of
        the actual release, where one is known.
        """
        require(0 <= lost < 1, "lost mass", lost, "at least 0 and below 1")
        value = float(lost)
        if not value or not self.parts:
            return self
        release, others = self._split()
        lossy = evolve(
            release,
            lost=sum_upper([(release.lost, 1), (value, 1)]),
            pure=math.inf if everywhere is None else everywhere.pure_epsilon(),
            everywhere=everywhere,
            inside=release.certified_pure(),
            alone=None,
        )
        return evolve(self, parts=(*others, (lossy, 1)))

    def _split(self) -> tuple[_Release, tuple[tuple[_Release, int], ...]]:
        """Return one release, and the others."""
        *others, (release, times) = self.parts
        if times > 1:
            others.append((release, times - 1))
        return release, tuple(others)

    def at_least(self, epsilon: float) -> Cost:
        """Return the larger at order 2: this cost of one release, or that of an epsilon-DP one."""
        floor = Cost.pure(epsilon)
        if not floor.parts or self.certified_rdp(2.0) >= floor.rdp(2.0):
            return self
        if self.pure_epsilon() > epsilon:
            floor = self.bare() + floor
        return evolve(self, parts=floor.parts)

    def remembering(self, remember: Callable[[int, Bound], Bound]) -> Cost:
        """Return this cost with every slow Rényi bound replaced by ``remember(place, bound)``.

        Slow bounds are those without a closed form. What ``remember`` returns must have the values
        of the bound; it may store those that it has computed.
        """
        parts = []
        for place, (release, times) in enumerate(self.parts):
            closed = release.slope < math.inf or release.pair < math.inf
            if not closed and release.losses is None and release.alone is None:
                release = evolve(release, renyi=remember(place, release.renyi))
            parts.append((release, times))
        return evolve(self, parts=tuple(parts))

    def rdp(self, alpha: float) -> float:
        """Return an upper bound on the Rényi divergence of order ``alpha > 1`` of the releases."""
        return self._sum(alpha, _Release.divergence)

    def certified_rdp(self, alpha: float) -> float:
        """Return `rdp` outside the outputs of lost mass, whose probability is at most `lost`."""
        return self._sum(alpha, _Release.certified)

    def _law_rdp(self, alpha: float) -> float:
        """Return the Rényi divergence of the certified laws, without slack."""
        return self._sum(alpha, _Release.of_law)

    def _sum(self, alpha: float, bound: Callable[[_Release, float], float]) -> float:
        """Add up the parts' divergences (Mironov 2017, Proposition 1)."""
        require(alpha > 1, "alpha", alpha, "a number above 1")
        if len(self.parts) == 1 and self.parts[0][1] == 1:
            return bound(self.parts[0][0], alpha)
        terms = [times * bound(release, alpha) for release, times in self.parts]
        return round_up(math.fsum(terms), _LAST_DIGIT)

    def _total(self, bound: Callable[[_Release], float]) -> float:
        """Add up a bound of all releases, rounded up once; infinite where one is unknown."""
        return sum_upper((bound(release), times) for release, times in self.parts)

    def pure_epsilon(self) -> float:
        """Return epsilon at delta = 0, a bound on the max-divergence; infinite if unknown."""
        return self._total(operator.attrgetter("pure"))

    def certified_pure(self) -> float:
        """Return the same as `pure_epsilon` outside the outputs of lost mass."""
        return self._total(_Release.certified_pure)

    @property
    def slack(self) -> float:
        """The distance of all samplers from their certified laws, in logarithms of densities."""
        return self._total(operator.attrgetter("slack"))

    @property
    def lost(self) -> float:
        """The total mass of outputs outside the certified laws."""
        return self._total(operator.attrgetter("lost"))

    @property
    def pair_slope(self) -> float:
        """mu^2 / 2 of a Gaussian pair that dominates the certified laws; infinite if unknown."""
        return self._total(operator.attrgetter("pair"))

    @property
    def slope(self) -> float:
        """A slope that bounds the certified divergences at all orders; infinite if unknown."""
        return self._total(operator.attrgetter("slope"))

    def _planned_pair(self) -> float:
        """Return `pair_slope` of a list fixed in advance: all its products of bits are one."""
        if not self.joins:
            return self.pair_slope
        pairs = []
        budgets = []
        for release, times in self.parts:
            if release.largest:
                budgets.append((2 * release.slope, times))
            else:
                pairs.append((release.pair, times))
        largest = max(release.largest for release, _ in self.parts)
        square = dominating_square_upper(sum_upper(budgets), largest, one_bit=True)
        joined = sum_upper([(sum_upper(pairs), 1), (square / 2, 1)])
        return min(self.pair_slope, joined)

    @property
    def paired(self) -> bool:
        """Whether every part has a dominating pair."""
        return all(
            release.losses is not None or release.pair <= MOST_SLOPE for release, _ in self.parts
        )

    @property
    def joins(self) -> bool:
        """Whether several of these, fixed in advance, are dominated by less than their pairs."""
        return any(release.largest for release, _ in self.parts)

    def losses(self) -> LossPair | None:
        """Return the losses both ways round, where every part has a dominating pair."""
        forward = LossDistribution()
        backward = LossDistribution()
        for release, times in self.parts:
            pairs = release.pairs()
            if pairs is None:
                return None
            forward = forward.compose(pairs[0].repeat(times))
            backward = backward.compose(pairs[1].repeat(times))
        return forward, backward

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon that an account of these releases proves at ``delta``."""
        return min(self.accounts(delta).values())

    def answered_by(self, delta: float) -> str:
        """Return the name of the account whose answer `epsilon` is, a key of `accounts`."""
        return min(self.accounts(delta).items(), key=operator.itemgetter(1))[0]

    def accounts(self, delta: float) -> dict[str, float]:
        """Return the epsilon of every account that holds for all parts at ``delta`` in [0, 1).

        They are "pure", "Rényi", "privacy-loss distribution", "exact Gaussian" and "shuffle".
        """
        delta = check_delta(delta)
        slack = self.slack
        lost = self.lost
        left = delta
        if lost:
            left = math.nextafter(delta - lost, 0.0)
        accounts = {"pure": self.pure_epsilon()}
        if left <= 0:
            return accounts
        if slack:
            left *= math.exp(-slack) * (1 - 4e-16)
        for name, epsilon in self._certified(left).items():
            accounts[name] = round_up(epsilon + 2 * slack, _LAST_DIGIT) if slack else epsilon
        return accounts

    def guarantee(self, delta: float) -> Guarantee:
        """Return the smallest epsilon proved at ``delta``, with the cost's terms."""
        adjacency, unit, trust = self._terms()
        return Guarantee(self.epsilon(delta), delta, unit, adjacency, trust)

    def _certified(self, delta: float) -> dict[str, float]:
        """Return the accounts of the certified laws, delta > 0."""
        if len(self.parts) == 1:
            release, times = self.parts[0]
            if times == 1 and release.alone is not None:
                return {"shuffle": release.alone(delta)}
        pair = self._planned_pair()
        slope = self.slope
        accounts = {}
        if pair < math.inf:
            accounts["exact Gaussian"] = gaussian_epsilon_upper(pair, delta)
            if slope >= pair:  # no Rényi account is below the exact one
                return accounts
        else:
            losses = self.losses()
            if losses is not None:
                epsilons = [_loss_epsilon(direction, delta) for direction in set(losses)]
                accounts["privacy-loss distribution"] = max(epsilons)
        if slope < math.inf:
            accounts["Rényi"] = epsilon_from_linear(slope, delta)
        else:
            accounts["Rényi"] = epsilon_from_rdp(self._law_rdp, delta)
        return accounts

    def _terms(self) -> tuple[Adjacency, Unit, Trust]:
        if self.adjacency is None or self.unit is None or self.trust is None:
            rule = "given, with unit and trust, for a guarantee"
            remedy = "make the cost with Cost.of, which takes all three"
            raise InvalidParameter.of("adjacency", rule, self.adjacency, remedy)
        return self.adjacency, self.unit, self.trust


def sample_share(adjacency: Adjacency, samples: int) -> float:
    """Return how far one of ``samples`` samples can move a mean of clipped gradients, in clips.

    It moves from any point that the other samples determine, so accounts must hold between any two
    inputs at that distance: constants of replace-one. Updates are float32 or wider, each entry
    rounded up to three times (the mean, a factor that undoes the first rounding, its product):
    their distance moves by less than `ROUNDING`, which is added.

    >>> 0.5 < sample_share(Adjacency.ZERO_OUT, 2) < 0.5000005
    True
    """
    count = check_int(samples, "samples of a client", 1)
    return round_up(adjacency.radii / count + ROUNDING, 1e-15)


def sampling_slack_upper(dimension: int, smallest_probability: float, error: float) -> float:
    """Bound the slack of ``dimension`` symbols whose laws are within ``error`` of certified ones.

    |p~ - p| <= error gives p/p~ <= 1/(1 - error/p). Refused where a symbol is as rare as the error.
    """
    dimension = check_int(dimension, "dimension", 1)
    smallest = check_real(smallest_probability, "smallest_probability", at_most=1.0)
    rule = f"above {error:.3g}, the resolution of the sampler"
    remedy = "use a design of smaller epsilon, or a smaller beta"
    require(0 <= error < smallest, "smallest probability of a symbol", smallest, rule, remedy)
    return round_up(-dimension * math.log1p(-error / smallest))


def _response(alpha: float, epsilon: float) -> float:
    """Return D_alpha of randomised response, at most min(eps, alpha eps^2/2).

    It is log((e^(alpha eps) + e^((1-alpha) eps))/(1 + e^eps))/(alpha-1).
    """
    # With E = e^-eps: e^((alpha-1) eps) (1 + E^(2 alpha-1)) / (1 + E), stable for all sizes.
    log_moment = (alpha - 1) * epsilon
    log_moment += math.log1p(math.exp(-(2 * alpha - 1) * epsilon))
    log_moment -= math.log1p(math.exp(-epsilon))
    exact = (log_moment + 1e-15 * (1 + abs(log_moment))) / (alpha - 1)
    return round_up(min(epsilon, alpha * epsilon * epsilon / 2, exact))


def _squared(alpha: float, kappa: Bound, distance: float) -> float:
    return round_up(kappa(alpha) * distance * distance, 1e-15)


def _loss_divergence(alpha: float, both: LossPair) -> float:
    """Return the larger Rényi divergence of the two ways round."""
    return max(losses.rdp_upper(alpha) for losses in set(both))


def _smaller(alpha: float, left: Cost, right: Cost) -> float:
    return min(left.rdp(alpha), right.rdp(alpha))


def _larger(alpha: float, left: Bound, right: Bound) -> float:
    return max(left(alpha), right(alpha))


def _larger_losses(left: LossPair | None, right: LossPair | None) -> LossPair | None:
    """Return pairs that dominate both, where both are known."""
    if left is None or right is None:
        return None
    return left[0].larger(right[0]), left[1].larger(right[1])


_loss_epsilon = lru_cache(maxsize=1024)(LossDistribution.epsilon_upper)


def _check_size(value: float, name: str) -> float:
    """Return a finite number of at least 0."""
    return check_real(value, name, at_least=0.0)


def _check_bound(value: float, name: str) -> float:
    """Return a number of at least 0; it may be infinite."""
    if value == math.inf:
        return math.inf
    return _check_size(value, name)
