"""Release: everything that is proved about one release; the smallest valid answer wins.

Idea     several bounds may be known of one release: its max-divergence, a line or a function of
         Rényi divergences, a Gaussian pair or a pair of loss distributions that dominates it. All
         of them hold, so none is ever given up: `Release.tightened` joins proofs, and whoever adds
         up releases (`cost`) takes the smallest of the accounts that hold for all parts.
Symbols  D_alpha: Rényi divergence between neighbouring worlds, both ways round, alpha > 1; slope: a
         bound slope * alpha on it; mu^2 / 2: the slope of a Gaussian pair N(mu, 1), N(0, 1); slack
         s, lost mass d: a sampler's law is within e^(+-s) of the certified one outside a set of
         outputs that has mass at most d in either world.
Source   Mironov (2017); Dong, Roth, Su (2022); docs/theory/adding-up.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, final

from attrs import evolve, field, frozen

from quietbit.errors import require
from quietbit.privacy.loss import LossDistribution
from quietbit.privacy.rounding import next_up, round_up, sum_upper

__all__ = [
    "EXACT",
    "Bound",
    "Divergence",
    "Formula",
    "GaussianPair",
    "Line",
    "LossPair",
    "Pair",
    "Pure",
    "Release",
    "Renyi",
    "SamplerError",
    "Single",
]

Divergence: TypeAlias = Callable[[float], float]
Pair: TypeAlias = tuple[LossDistribution, LossDistribution]
MOST_PURE = 700.0  # e^epsilon is still a double
MOST_SLOPE = 1e11
_LAST_DIGIT = 4e-16  # more than the rounding of a sum or a product
_BoundT = TypeVar("_BoundT", bound="Bound")


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


class Bound:
    """One proof about a release; what it does not bound is infinite or None."""

    __slots__ = ()
    pure: float = math.inf  # the max-divergence
    slope: float = math.inf  # D_alpha <= slope * alpha at all orders

    def divergence(self, alpha: float) -> float:
        """Return a bound on D_alpha."""
        return self.slope * alpha

    def losses(self) -> Pair | None:
        """Return a dominating pair of loss distributions, both ways round."""
        return None


@final
@frozen
class Pure(Bound):
    """The max-divergence; randomised response attains every divergence that it implies."""

    pure: float

    def divergence(self, alpha: float) -> float:
        """Return D_alpha of randomised response, at most min(eps, alpha eps^2/2).

        It is log((e^(alpha eps) + e^((1-alpha) eps))/(1 + e^eps))/(alpha-1).
        """
        epsilon = self.pure
        # With E = e^-eps: e^((alpha-1) eps) (1 + E^(2 alpha-1)) / (1 + E), stable for all sizes.
        log_moment = (alpha - 1) * epsilon
        log_moment += math.log1p(math.exp(-(2 * alpha - 1) * epsilon))
        log_moment -= math.log1p(math.exp(-epsilon))
        exact = (log_moment + 1e-15 * (1 + abs(log_moment))) / (alpha - 1)
        return round_up(min(epsilon, alpha * epsilon * epsilon / 2, exact))

    def losses(self) -> Pair | None:
        """Return the losses of randomised response."""
        if self.pure > MOST_PURE:
            return None
        response = LossDistribution.pure(self.pure)
        return response, response


@final
@frozen
class Line(Bound):
    """D_alpha <= slope * alpha."""

    slope: float


@final
@frozen
class GaussianPair(Bound):
    """A dominating Gaussian pair; it composes exactly, with itself and with Gaussians.

    Attributes:
        slope: mu^2 / 2 of the pair.
        budget: where the release is a product of bits, the sum of their s_i^2.
        largest: the largest s_i of these bits: several products cost as much as one.
    """

    slope: float
    budget: float = 0.0
    largest: float = 0.0

    def losses(self) -> Pair | None:
        """Return the losses of the pair."""
        if self.slope > MOST_SLOPE:
            return None
        mu = 0.0
        if self.slope > 0:
            mu = next_up(math.sqrt(2 * self.slope))
        gaussian = LossDistribution.gaussian(mu)
        return gaussian, gaussian


@final
@frozen
class LossPair(Bound):
    """A dominating pair of loss distributions, or a formula that makes it, and its largest loss."""

    pair: Pair | Formula = field(repr=False)
    pure: float = math.inf

    def divergence(self, alpha: float) -> float:
        """Return the larger Rényi divergence of the two ways round."""
        return max(losses.rdp_upper(alpha) for losses in set(self.losses()))

    def losses(self) -> Pair:
        """Return the pair."""
        if isinstance(self.pair, tuple):
            return self.pair
        pair: Pair = self.pair()
        return pair


@final
@frozen
class Renyi(Bound):
    """A certified function of the order."""

    bound: Divergence = field(repr=False)

    def divergence(self, alpha: float) -> float:
        """Return the function at an order."""
        return self.bound(alpha)


@final
@frozen
class Single(Bound):
    """Epsilon at a delta, of one release; it does not add up."""

    epsilon: Divergence = field(repr=False)


@final
@frozen
class SamplerError:
    """How far a sampler's law is from the certified one; paid once, at the end.

    Attributes:
        slack: the two densities are within e^(+-slack),
        lost: outside outputs of this mass in either world.
        everywhere: what is proved about the actual release, those outputs included.
    """

    slack: float = 0.0
    lost: float = 0.0
    everywhere: Release | None = None


EXACT = SamplerError()


@final
@frozen
class Release:
    """What is proved of one release; every bound holds, the smallest answer wins."""

    bounds: tuple[Bound, ...]
    sampler: SamplerError = EXACT

    def tightened(self, other: Release) -> Release:
        """Combine proofs about the same release; none is forgotten."""
        rule = "that of the other proof about the same release"
        require(self.sampler == other.sampler, "error of the sampler", other.sampler, rule)
        return evolve(self, bounds=tuple(dict.fromkeys(self.bounds + other.bounds)))

    def either(self, other: Release) -> Release:
        """Return a release of this kind or the other: each bound that both have, the larger.

        Releases of either kind, in any order, are then copies of one.
        """
        bounds: list[Bound] = []
        exact = self.exact
        others = other.exact
        pure = max(exact.pure, others.pure)
        if pure < math.inf:
            bounds.append(Pure(pure))
        slope = max(self.slope, other.slope)
        if slope < math.inf:
            bounds.append(Line(slope))
        pair = max(self.pair_slope, other.pair_slope)
        losses = self.losses()
        other_losses = other.losses()
        if pair < math.inf:
            bounds.append(GaussianPair(pair))
        elif losses is not None and other_losses is not None:
            larger = (losses[0].larger(other_losses[0]), losses[1].larger(other_losses[1]))
            bounds.append(LossPair(larger, pure))
        if slope == math.inf or self.of(Renyi) or other.of(Renyi):
            bounds.append(Renyi(Formula(_larger, exact, others)))
        return Release(tuple(bounds), self._either_sampler(other))

    def _either_sampler(self, other: Release) -> SamplerError:
        slack = max(self.sampler.slack, other.sampler.slack)
        lost = max(self.sampler.lost, other.sampler.lost)
        if not lost:
            return SamplerError(slack)
        everywhere = None
        if self.everywhere is not None and other.everywhere is not None:
            everywhere = self.everywhere.either(other.everywhere)
        return SamplerError(slack, lost, everywhere)

    @property
    def everywhere(self) -> Release | None:
        """What is proved of all outputs, where that is known."""
        return self.sampler.everywhere if self.sampler.lost else self

    @property
    def certified(self) -> Release:
        """What is proved outside the outputs of lost mass."""
        return Release(self.bounds, SamplerError(self.sampler.slack))

    @property
    def exact(self) -> Release:
        """What is proved of the certified law, which an exact sampler would have."""
        return Release(self.bounds)

    def with_slack(self, slack: float) -> Release:
        """Return the release of a sampler whose law is within e^(+-slack) of this one's."""
        known = self.sampler
        lost = 0.0
        if known.lost:
            lost = round_up(known.lost * math.exp(slack), 1e-15)
        everywhere = known.everywhere
        if everywhere is not None:
            everywhere = everywhere.with_slack(slack)
        total = sum_upper([(known.slack, 1), (slack, 1)])
        return evolve(self, sampler=SamplerError(total, lost, everywhere))

    def with_lost(self, lost: float, everywhere: Release | None) -> Release:
        """Return the release of a sampler that is this one but for outputs of mass ``lost``."""
        known = self.sampler
        total = sum_upper([(known.lost, 1), (lost, 1)])
        kept = tuple(bound for bound in self.bounds if not isinstance(bound, Single))
        return Release(kept, SamplerError(known.slack, total, everywhere))

    def of(self, kind: type[_BoundT]) -> list[_BoundT]:
        """Return the bounds of one kind."""
        return [bound for bound in self.bounds if isinstance(bound, kind)]

    @property
    def closed(self) -> bool:
        """Whether lines and Gaussian pairs are all that is known."""
        return all(isinstance(bound, Line | GaussianPair) for bound in self.bounds)

    @property
    def pure(self) -> float:
        """The max-divergence; infinite where lost mass is not covered."""
        everywhere = self.everywhere
        if everywhere is None:
            return math.inf
        if everywhere is not self:
            return everywhere.pure
        law = min(bound.pure for bound in self.bounds)
        return sum_upper([(law, 1), (self.sampler.slack, 2)])

    @property
    def slope(self) -> float:
        """The smallest slope that bounds the certified law at all orders."""
        return min(bound.slope for bound in self.bounds)

    @property
    def pair_slope(self) -> float:
        """mu^2 / 2 of the smallest Gaussian pair that dominates the certified law."""
        return min((pair.slope for pair in self.of(GaussianPair)), default=math.inf)

    def joined(self) -> GaussianPair | None:
        """Return the Gaussian pair of a product of bits, which joins with others."""
        products = [pair for pair in self.of(GaussianPair) if pair.largest]
        return min(products, key=_slope, default=None)

    def losses(self) -> Pair | None:
        """Return losses that dominate the certified law: of the smallest D_2, where several do."""
        candidates = [bound for bound in self.bounds if bound.losses() is not None]
        if len(candidates) > 1:
            candidates.sort(key=_at_order_two)
        return candidates[0].losses() if candidates else None

    def divergence(self, alpha: float) -> float:
        """Return D_alpha; infinite where lost mass is not covered.

        Slack enlarges the moment by e^((2 alpha - 1) slack) at most.
        """
        everywhere = self.everywhere
        if everywhere is None:
            return math.inf
        if everywhere is not self:
            return everywhere.divergence(alpha)
        law = min(bound.divergence(alpha) for bound in self.bounds)
        slack = self.sampler.slack
        if slack == 0:
            return law
        return round_up(law + (2 * alpha - 1) / (alpha - 1) * slack, _LAST_DIGIT)


def _larger(alpha: float, left: Release, right: Release) -> float:
    return max(left.divergence(alpha), right.divergence(alpha))


def _slope(bound: Bound) -> float:
    return bound.slope


def _at_order_two(bound: Bound) -> float:
    return bound.divergence(2.0)
