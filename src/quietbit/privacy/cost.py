"""Cost: what releases reveal, as upper bounds that add up.

Idea     a release carries everything that is proved about it (`release`). Each kind of bound adds
         up over releases, and the smallest epsilon among the accounts that hold for all parts is
         the answer. The list of releases is fixed in advance here, while inputs may depend on
         anything; `account` treats lists that are chosen along the way.
Symbols  as in `release`.
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
from typing import final

import numpy as np
from attrs import evolve, frozen
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
from quietbit.privacy.release import (
    Bound,
    Divergence,
    Formula,
    GaussianPair,
    Line,
    LossPair,
    Pair,
    Pure,
    Release,
    Renyi,
    Single,
)
from quietbit.privacy.rounding import round_up, sum_upper
from quietbit.target import Adjacency, Trust, Unit, check_delta

__all__ = ["Cost", "sample_share", "sampling_slack_upper"]

ROUNDING = 2.0**-21  # of the clip: by which the float32 rounding of two updates moves them apart
_LAST_DIGIT = 4e-16  # more than the rounding of a sum or a product

_IMPLIES = {
    Trust.LOCAL: set(Trust),
    Trust.SECURE_AGGREGATION: {Trust.SECURE_AGGREGATION, Trust.CENTRAL},
    Trust.CENTRAL: {Trust.CENTRAL},
    Trust.SHUFFLED: {Trust.SHUFFLED},
}


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

    parts: tuple[tuple[Release, int], ...] = ()
    adjacency: Adjacency | None = None
    unit: Unit | None = None
    trust: Trust | None = None

    @classmethod
    def proved(cls, *bounds: Bound) -> Cost:
        """Return the cost of one release about which all these bounds are proved."""
        return cls(((Release(bounds), 1),))

    @classmethod
    def pure(cls, epsilon: float) -> Cost:
        """Return epsilon-DP, with the divergences of randomised response, which attains them."""
        value = _check_size(epsilon, "epsilon")
        if value == 0:
            return cls()
        return cls.proved(Pure(value))

    @classmethod
    def renyi(cls, bound: Divergence, pure: float = math.inf) -> Cost:
        """Return a cost from a certified function of the order.

        Args:
            bound: D_alpha at every order alpha > 1, from above.
            pure: its max-divergence, where it is known.
        """
        require(pure >= 0, "pure", pure, "a number of at least 0")
        cost = cls.proved(Renyi(bound))
        if pure < math.inf:
            cost = cost.tightened(cls.proved(Pure(pure)))
        return cost

    @classmethod
    def per_square(cls, kappa: Divergence, distance: float) -> Cost:
        """Return D_alpha <= kappa(alpha) distance^2, as in Theorem 2 for more than two levels."""
        return cls.renyi(Formula(_squared, kappa, distance))

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
        bounds: list[Bound] = []
        if line < pair:
            bounds.append(Line(line))
        if pair < math.inf:
            budget = 2 * line if largest else 0.0
            bounds.append(GaussianPair(pair, budget, largest))
        return cls.proved(*bounds)

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
        pure = max(losses.pure_epsilon_upper() for losses in both)
        bounds: list[Bound] = [LossPair(both, pure)]
        if pair < math.inf:
            bounds.append(GaussianPair(pair))
        return cls.proved(*bounds)

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

    def tightened(self, other: Cost) -> Cost:
        """Combine two bare costs of the same release; no proof is forgotten."""
        if not self.parts or not other.parts:  # one of them proves that nothing is revealed
            return Cost()
        release = self._single().tightened(other._single())
        return Cost(((release, 1),))

    def either(self, other: Cost) -> Cost:
        """Return the cost of one release that is of this cost or of the bare other one.

        Releases of either kind, in any order, are copies of it.
        """
        release = self._single().either(other._single())
        return evolve(self, parts=((release, 1),))

    def _single(self) -> Release:
        """Return the only release; refuse none, and several."""
        releases = sum(times for _, times in self.parts)
        require(releases == 1, "releases of the cost", releases, "1")
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
        return evolve(self, parts=(*others, (release.with_slack(value), 1)))

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
        actual = None if everywhere is None else everywhere._single()
        return evolve(self, parts=(*others, (release.with_lost(value, actual), 1)))

    def _split(self) -> tuple[Release, tuple[tuple[Release, int], ...]]:
        """Return one release, and the others."""
        *others, (release, times) = self.parts
        if times > 1:
            others.append((release, times - 1))
        return release, tuple(others)

    def at_least(self, epsilon: float) -> Cost:
        """Return the larger at order 2: this cost of one release, or that of an epsilon-DP one."""
        floor = Cost.pure(epsilon)
        if not floor.parts or self.certified().rdp(2.0) >= floor.rdp(2.0):
            return self
        if self.pure_epsilon() > epsilon:
            floor = self.bare() + floor
        return evolve(self, parts=floor.parts)

    def remembering(self, remember: Callable[[int, Divergence], Divergence]) -> Cost:
        """Return this cost with every function of the order replaced by ``remember(place, bound)``.

        These are the bounds that may take long. What ``remember`` returns must have the values of
        the bound; it may store those that it has computed.
        """
        parts = []
        place = 0
        for release, times in self.parts:
            bounds: list[Bound] = []
            for bound in release.bounds:
                if isinstance(bound, Renyi):
                    bound = Renyi(remember(place, bound.bound))
                    place += 1
                bounds.append(bound)
            parts.append((evolve(release, bounds=tuple(bounds)), times))
        return evolve(self, parts=tuple(parts))

    def certified(self) -> Cost:
        """Return the cost outside the outputs of lost mass, whose probability is at most `lost`."""
        parts = tuple((release.certified, times) for release, times in self.parts)
        return evolve(self, parts=parts)

    def rdp(self, alpha: float) -> float:
        """Return an upper bound on the Rényi divergence of order ``alpha > 1`` of the releases.

        The parts' divergences add up (Mironov 2017, Proposition 1).
        """
        require(alpha > 1, "alpha", alpha, "a number above 1")
        terms = [times * release.divergence(alpha) for release, times in self.parts]
        if sum(times for _, times in self.parts) == 1:
            return terms[0]
        return round_up(math.fsum(terms), _LAST_DIGIT)

    def _total(self, bound: Callable[[Release], float]) -> float:
        """Add up a bound of all releases, rounded up once; infinite where one is unknown."""
        return sum_upper((bound(release), times) for release, times in self.parts)

    def pure_epsilon(self) -> float:
        """Return epsilon at delta = 0, a bound on the max-divergence; infinite if unknown."""
        return self._total(operator.attrgetter("pure"))

    @property
    def slack(self) -> float:
        """The distance of all samplers from their certified laws, in logarithms of densities."""
        return self._total(operator.attrgetter("sampler.slack"))

    @property
    def lost(self) -> float:
        """The total mass of outputs outside the certified laws."""
        return self._total(operator.attrgetter("sampler.lost"))

    @property
    def pair_slope(self) -> float:
        """mu^2 / 2 of a Gaussian pair that dominates the certified laws; infinite if unknown."""
        return self._total(operator.attrgetter("pair_slope"))

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
        largest = 0.0
        for release, times in self.parts:
            product = release.joined()
            if product is None:
                pairs.append((release.pair_slope, times))
            else:
                budgets.append((product.budget, times))
                largest = max(largest, product.largest)
        square = dominating_square_upper(sum_upper(budgets), largest, one_bit=True)
        joined = sum_upper([(sum_upper(pairs), 1), (square / 2, 1)])
        return min(self.pair_slope, joined)

    @property
    def closed(self) -> bool:
        """Whether lines and Gaussian pairs are all that is known of every part."""
        return all(release.closed for release, _ in self.parts)

    @property
    def paired(self) -> bool:
        """Whether every part has a dominating pair."""
        return all(release.losses() is not None for release, _ in self.parts)

    @property
    def joins(self) -> bool:
        """Whether several of these, fixed in advance, are dominated by less than their pairs."""
        return any(release.joined() for release, _ in self.parts)

    def losses(self) -> Pair | None:
        """Return the losses both ways round, where every part has a dominating pair."""
        forward = LossDistribution()
        backward = LossDistribution()
        for release, times in self.parts:
            pairs = release.losses()
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

        They may be "pure", "Rényi", "privacy-loss distribution", "exact Gaussian" and "shuffle".
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
        if len(self.parts) == 1 and self.parts[0][1] == 1:
            for single in self.parts[0][0].of(Single):  # its other bounds were made from it
                return {"shuffle": single.epsilon(delta)}
        accounts = {}
        pair = self._planned_pair()
        slope = self.slope
        if pair < math.inf:
            accounts["exact Gaussian"] = gaussian_epsilon_upper(pair, delta)
            if self.closed and pair <= slope:  # no Rényi account is below the exact one
                return accounts
        if any(release.of(Pure) or release.of(LossPair) for release, _ in self.parts):
            losses = self.losses()
            if losses is not None:
                epsilons = [_loss_epsilon(direction, delta) for direction in set(losses)]
                accounts["privacy-loss distribution"] = max(epsilons)
        accounts["Rényi"] = epsilon_from_linear(slope, delta) if slope < math.inf else math.inf
        if not self.closed:
            exact = Cost(tuple((release.exact, times) for release, times in self.parts))
            by_order = epsilon_from_rdp(exact.rdp, delta)
            accounts["Rényi"] = min(by_order, accounts["Rényi"])
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


def _squared(alpha: float, kappa: Divergence, distance: float) -> float:
    return round_up(kappa(alpha) * distance * distance, 1e-15)


_loss_epsilon = lru_cache(maxsize=1024)(LossDistribution.epsilon_upper)


def _check_size(value: float, name: str) -> float:
    """Return a finite number of at least 0."""
    return check_real(value, name, at_least=0.0)


def _check_bound(value: float, name: str) -> float:
    """Return a number of at least 0; it may be infinite."""
    if value == math.inf:
        return math.inf
    return _check_size(value, name)
