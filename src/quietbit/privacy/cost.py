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
from collections.abc import Callable, Iterable
from fractions import Fraction
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
from quietbit.privacy.guarantee import Guarantee
from quietbit.privacy.loss import LossDistribution
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency, Trust, Unit, check_delta

__all__ = ["Bound", "Cost", "Formula", "LossPair", "sample_share", "sampling_slack_upper"]

Bound: TypeAlias = Callable[[float], float]
LossPair: TypeAlias = tuple[LossDistribution, LossDistribution]
MOST_PURE = 700.0  # e^epsilon is still a double
MOST_SLOPE = 1e11
ROUNDING = 2.0**-21  # of the clip: by which the float32 rounding of two updates moves them apart

_IMPLIES = {
    Trust.LOCAL: set(Trust),
    Trust.SECURE_AGGREGATION: {Trust.SECURE_AGGREGATION, Trust.CENTRAL},
    Trust.CENTRAL: {Trust.CENTRAL},
    Trust.SHUFFLED: {Trust.SHUFFLED},
}


@final
@frozen(init=False)
class Formula:
    """``function(*at, *known)``; formulas of equal parts are equal, so that equal releases are counted together."""

    function: Callable[..., Any]
    known: tuple[Any, ...]

    def __init__(self, function: Callable[..., Any], *known: Any) -> None:
        self.__attrs_init__(function, known)

    def __call__(self, *at: float) -> Any:
        """Evaluate the formula; the known arguments follow the order where there is one."""
        return self.function(*at, *self.known)


@final
@frozen
class _Part:
    """The bounds of one release, infinite or None if unknown: of its certified law, but ``pure`` and ``everywhere``."""

    renyi: Bound = field(repr=False)
    label: str
    pure: float = math.inf
    slope: float = math.inf  # D_alpha <= slope * alpha
    pair: float = math.inf  # mu^2 / 2 of a Gaussian pair that dominates
    largest: float = (
        0.0  # of a release of bits with the budget 2 slope: the largest single bit (`gaussian`)
    )
    losses: LossPair | Callable[[], LossPair] | None = field(default=None, repr=False)
    alone: Bound | None = field(
        default=None, repr=False
    )  # epsilon at a delta of a single such release
    slack: float = 0.0
    lost: float = 0.0
    everywhere: Cost | None = field(
        default=None, repr=False
    )  # of the actual release, where mass is lost
    inside: float = (
        math.inf
    )  # max-divergence outside the outputs of lost mass, slack included, where mass is lost

    def divergence(self, alpha: float) -> float:
        """Return D_alpha of the actual release; infinite where mass is lost and no bound covers it."""
        if self.lost > 0:
            if self.everywhere is not None:
                return self.everywhere.rdp(alpha)
            return math.inf
        return self.certified(alpha)

    def certified(self, alpha: float) -> float:
        """Return D_alpha outside the outputs of lost mass: the moment grows by e^((2 alpha - 1) slack) at most."""
        bound = self.renyi(alpha)
        if self.slack:
            return round_up(bound + (2 * alpha - 1) / (alpha - 1) * self.slack, 4e-16)
        return bound

    def pairs(self) -> LossPair | None:
        """Return the losses of the certified law, where a dominating pair is known."""
        if self.losses is not None:
            if callable(self.losses):
                return self.losses()
            return self.losses
        if self.pair > MOST_SLOPE:
            return None
        one = LossDistribution.gaussian(
            math.nextafter(math.sqrt(2 * self.pair), math.inf) if self.pair > 0 else 0.0
        )
        return one, one


@final
@frozen
class Cost:
    """The cost of some releases; ``a + b`` is the cost of both, ``cost * n`` that of n such releases.

    A bare cost has no adjacency, unit and trust yet (`of` adds them); `Cost()` is the cost of no
    release.

    >>> once = Cost.pure(0.25).of(Adjacency.REPLACE_ONE, Unit.CLIENT, Trust.LOCAL)
    >>> (once * 4).under(adjacency=Adjacency.ZERO_OUT).guarantee(0.0).epsilon_upper
    1.0
    """

    parts: tuple[tuple[_Part, int], ...] = ()
    adjacency: Adjacency | None = None
    unit: Unit | None = None
    trust: Trust | None = None

    @classmethod
    def pure(cls, epsilon: float) -> Cost:
        """Return epsilon-DP with the Rényi divergences that it implies, attained by randomised response."""
        value = _size(epsilon, "epsilon")
        if value <= MOST_PURE:
            losses = (LossDistribution.pure(value),) * 2
        else:
            losses = None
        return cls._one(
            _Part(Formula(_response, value), f"{value:g}-DP", value, losses=losses)
            if value
            else None
        )

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

        ``pure``: the max-divergence; ``losses`` makes dominating pairs; ``alone``: epsilon at a
        delta, of one release.
        """
        require(pure >= 0, "pure", pure, "a number of at least 0")
        return cls._one(_Part(bound, label, pure, losses=losses, alone=alone))

    @classmethod
    def per_square(cls, kappa: Bound, distance: float, label: str) -> Cost:
        """Return D_alpha <= kappa(alpha) distance^2, as in Theorem 2 for more than two levels."""
        return cls.renyi(Formula(_squared, kappa, distance), label)

    @classmethod
    def linear(cls, slope: float) -> Cost:
        """Return D_alpha <= slope * alpha, as in Theorem 2: slope = M S^2 / 2."""
        return cls.gaussian(math.inf, _size(slope, "slope"))

    @classmethod
    def gaussian(cls, pair_slope: float, slope: float = math.inf, largest: float = 0.0) -> Cost:
        """Price a release that a Gaussian pair dominates, mu^2 = 2 ``pair_slope``; Gaussian noise is one.

        Its Rényi divergences may be known to be smaller than that Gaussian's, at most ``slope``
        times the order. The pair composes exactly, with itself and with Gaussians, also when inputs
        depend on earlier releases (Dong, Roth, Su 2022). ``pair_slope`` is infinite where no pair
        is known. ``largest``: the release is a product of bits of the budget 2 ``slope``, none
        above this, so that several are priced as one product.
        """
        if pair_slope == math.inf:
            pair = math.inf
        else:
            pair = _size(pair_slope, "pair_slope")
        line = min(pair, math.inf if slope == math.inf else _size(slope, "slope"))
        require(line < math.inf, "pair_slope", pair_slope, "finite where no slope is given")
        label = f"slope {line:g}"
        return cls._one(
            _Part(Formula(operator.mul, line), label, slope=line, pair=pair, largest=largest)
            if line
            else None
        )

    @classmethod
    def from_losses(
        cls,
        forward: LossDistribution,
        backward: LossDistribution | None = None,
        *,
        pair: float = math.inf,
    ) -> Cost:
        """Price a release with a known dominating pair; without ``backward``, ``forward`` serves both ways round.

        ``pair`` is mu^2 / 2 of a Gaussian pair that also dominates it, where one is known. One pair
        may serve both ways where the adjacency is symmetric (replace-one). For zero-out a party is
        in the same world in all its releases, so forward losses add to forward ones (Zhu, Dong,
        Wang 2022, Definition 7).
        """
        both = forward, forward if backward is None else backward
        for name, one in zip(("forward", "backward"), both, strict=True):
            require(isinstance(one, LossDistribution), name, one, "a LossDistribution")
        pure = max(one.pure_epsilon_upper() for one in both)
        return cls._one(
            _Part(Formula(_loss_divergence, both), "dominating pair", pure, pair, pair, losses=both)
        )

    @classmethod
    def from_masses(
        cls,
        first: ArrayLike,
        second: ArrayLike,
        *,
        relative_error: float = 0.0,
        pair: float = math.inf,
    ) -> Cost:
        """Price a finite dominating pair, each mass known up to ``relative_error``; ``pair`` as in `from_losses`.

        >>> response = Cost.from_masses([0.75, 0.25], [0.25, 0.75])
        >>> round(response.epsilon(0.0), 6), (response * 50).answered_by(1e-6)
        (1.098612, 'privacy-loss distribution')
        """
        relative_error = check_delta(relative_error)
        laws = [np.array(law, dtype=np.float64) for law in (first, second)]
        tops = [
            np.nextafter(law * (1 + relative_error), law if relative_error == 0 else 2.0)
            for law in laws
        ]
        lows = [
            np.nextafter(law * (1 - relative_error), law if relative_error == 0 else -1.0)
            for law in laws
        ]
        both = zip(tops, reversed(lows), strict=True)
        return cls.from_losses(
            *(LossDistribution.from_atoms(top, np.maximum(low, 0.0)) for top, low in both),
            pair=pair,
        )

    @classmethod
    def _one(cls, part: _Part | None) -> Cost:
        return cls(((part, 1),) if part is not None else ())

    def of(
        self, adjacency: Adjacency, unit: Unit, trust: Trust, samples: int | None = None
    ) -> Cost:
        """Add terms to a bare cost; refuse one that has terms, and a sample level without a theorem.

        ``samples`` is the number of the client's samples that the cost is for, at the sample level
        only.
        """
        require(self.adjacency is None, "words of the cost", self.adjacency, "left as they are")
        require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
        require(isinstance(unit, Unit), "unit", unit, "a Unit")
        require(isinstance(trust, Trust), "trust", trust, "a Trust")
        if unit is Unit.SAMPLE:
            rule = "the number of the client's samples for unit sample, whose cost is not that of the client's update"
            require(samples is not None, "samples", samples, rule)
            check_int(samples, "samples", 1)
        else:
            require(samples is None, "samples", samples, "left out unless the unit is a sample")
        return evolve(self, adjacency=adjacency, unit=unit, trust=trust)

    def like(self, other: Cost) -> Cost:
        """Give this bare cost the terms of another, which it is to become a part of."""
        require(self.adjacency is None, "words of the cost", self.adjacency, "left out")
        return evolve(other, parts=self.parts)

    def or_else(self, other: Cost, label: str) -> Cost:
        """Combine two costs of the same release: the smaller divergence at every order, and the smaller pure one."""
        pure = min(self.pure_epsilon(), other.pure_epsilon())
        return Cost.renyi(Formula(_smaller, self, other), label, pure)

    def either(self, other: Cost) -> Cost:
        """Return the cost of one release that is of this cost or of the bare other one, whichever is asked for.

        Every bound is the larger of the two, so releases of either kind, in any order, are copies
        of one cost.
        """
        both = [
            part
            for one in (self, other)
            for part, times in one.parts
            if times == 1 and len(one.parts) == 1
        ]
        require(
            len(both) == 2,
            "cost",
            "of several releases",
            "that of one release, to be of one of two kinds",
        )
        one, two = both
        losses = None
        left = one.pairs()
        right = two.pairs()
        if left is not None and right is not None and max(one.pair, two.pair) == math.inf:
            losses = left[0].larger(right[0]), left[1].larger(right[1])
        wholes = [part.everywhere if part.lost else Cost._one(part) for part in both]
        lost, (near, far) = max(one.lost, two.lost), wholes
        part = _Part(
            Formula(_larger, one.renyi, two.renyi),
            f"{one.label}, or {two.label}",
            max(one.pure, two.pure),
            max(one.slope, two.slope),
            max(one.pair, two.pair),
            losses=losses,
            slack=max(one.slack, two.slack),
            lost=lost,
            inside=max(part.inside if part.lost else part.pure for part in both),
            everywhere=near.either(far) if lost and near is not None and far is not None else None,
        )
        return Cost._one(part).like(self)

    def bare(self) -> Cost:
        """Return this cost without its terms."""
        return Cost(self.parts)

    def under(self, *, adjacency: Adjacency | None = None, trust: Trust | None = None) -> Cost:
        """Return the same cost under another adjacency or trust, where it holds there too."""
        own, seen_by = self._words()[::2]
        near = own if adjacency is None else adjacency
        seen = seen_by if trust is None else trust
        require(isinstance(near, Adjacency), "adjacency", near, "an Adjacency")
        require(isinstance(seen, Trust), "trust", seen, "a Trust")
        covered = near is own or own is Adjacency.REPLACE_ONE
        rule = f"{own.value}, the release's: an account for zero-out does not cover replacing an update"
        require(covered, "adjacency", near.value, rule)
        known = " or ".join(sorted(word.value for word in _IMPLIES[seen_by]))
        rule = f"{known} for a release accounted under {seen_by.value} trust"
        require(seen in _IMPLIES[seen_by], "trust", seen.value, rule)
        return evolve(self, adjacency=near, trust=seen)

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
            rule = f"{mine and mine.value}, as in this cost: two kinds of costs do not add up"
            require(theirs is mine, f"{name} of the other cost", theirs and theirs.value, rule)
        counts = dict(self.parts)
        for part, times in other.parts:
            counts[part] = counts.get(part, 0) + times
        return evolve(self, parts=tuple(counts.items()))

    def __mul__(self, times: int) -> Cost:
        """Return the cost of ``times`` such releases of the same party."""
        times = check_int(times, "times", 0)
        return evolve(
            self, parts=tuple((part, times * count) for part, count in self.parts) if times else ()
        )

    def with_slack(self, slack: float) -> Cost:
        """Return the cost of a sampler whose law is, output by output, within e^(+-slack) of the certified one."""
        value = _size(slack, "slack")
        if not value or not self.parts:
            if not value:
                return self
            return evolve(self, parts=Cost.pure(2 * value).parts)
        part, others = self._apart()
        rule = "0 where slack is added to several releases at once"
        require(not others or not self.lost, "lost mass", self.lost, rule)
        slackened = evolve(
            part,
            slack=_total([(part.slack, 1), (value, 1)]),
            pure=_total([(part.pure, 1), (value, 2)]),
            lost=round_up(part.lost * math.exp(value), 1e-15) if part.lost else 0.0,
            everywhere=part.everywhere.with_slack(value) if part.everywhere is not None else None,
            inside=_total([(part.inside, 1), (value, 2)]),
        )
        return evolve(self, parts=(*others, (slackened, 1)))

    def with_lost(self, lost: float, everywhere: Cost | None = None) -> Cost:
        """Price a release that is the certified one but for outputs of mass at most ``lost``, in either world.

        For every pair of neighbours there are two laws that this cost covers and a set of outputs
        outside which the release has exactly these; laws that are merely close in total variation
        do not have this form. ``everywhere`` is a cost of the actual release, where one is known.
        """
        value = check_delta(lost)
        if not value or not self.parts:
            return self
        part, others = self._apart()
        if everywhere is None:
            whole = math.inf
        else:
            whole = everywhere.pure_epsilon()
        inside = part.inside if part.lost else part.pure
        lost = _total([(part.lost, 1), (value, 1)])
        lossy = evolve(
            part, lost=lost, pure=whole, everywhere=everywhere, inside=inside, alone=None
        )
        return evolve(self, parts=(*others, (lossy, 1)))

    def _apart(self) -> tuple[_Part, tuple[tuple[_Part, int], ...]]:
        """Return one release, and the others."""
        *others, (part, times) = self.parts
        return part, (*others, (part, times - 1)) if times > 1 else tuple(others)

    def at_least(self, epsilon: float) -> Cost:
        """Return this cost of one release, or that of an epsilon-private release if that is larger at order 2."""
        floor = Cost.pure(epsilon)
        if not floor.parts or self.certified_rdp(2.0) >= floor.rdp(2.0):
            return self
        return evolve(
            self,
            parts=floor.parts if self.pure_epsilon() <= epsilon else (self.bare() + floor).parts,
        )

    def remembering(self, remember: Callable[[int, Bound], Bound]) -> Cost:
        """Return the same cost with every Rényi bound that has no closed form replaced by ``remember(place, bound)``.

        What ``remember`` returns must have the values of the bound; it may keep those that it has
        computed.
        """
        parts = []
        for place, (part, times) in enumerate(self.parts):
            closed = part.slope < math.inf or part.pair < math.inf or part.losses is not None
            slow = not closed and part.alone is None
            parts.append((evolve(part, renyi=remember(place, part.renyi)) if slow else part, times))
        return evolve(self, parts=tuple(parts))

    def rdp(self, alpha: float) -> float:
        """Return an upper bound on the Rényi divergence of order ``alpha > 1`` of the actual releases."""
        return self._sum(alpha, _Part.divergence)

    def certified_rdp(self, alpha: float) -> float:
        """Return the same as `rdp` outside the outputs of lost mass, whose probability is at most `lost`."""
        return self._sum(alpha, _Part.certified)

    def _sum(self, alpha: float, bound: Callable[[_Part, float], float]) -> float:
        """Add up the parts' divergences (Mironov 2017, Proposition 1)."""
        require(alpha > 1, "alpha", alpha, "a number above 1")
        if len(self.parts) == 1 and self.parts[0][1] == 1:
            return bound(self.parts[0][0], alpha)
        return round_up(math.fsum(times * bound(part, alpha) for part, times in self.parts), 4e-16)

    def pure_epsilon(self) -> float:
        """Return an upper bound on the max-divergence, epsilon at delta = 0; infinite where none is known."""
        return _total((part.pure, times) for part, times in self.parts)

    def certified_pure(self) -> float:
        """Return the same as `pure_epsilon` outside the outputs of lost mass."""
        return _total(
            (part.inside if part.lost else part.pure, times) for part, times in self.parts
        )

    @property
    def slack(self) -> float:
        """The distance of all samplers together from their certified laws, in logarithms of densities."""
        return _total((part.slack, times) for part, times in self.parts)

    @property
    def lost(self) -> float:
        """The total mass of outputs outside the certified laws."""
        return _total((part.lost, times) for part, times in self.parts)

    @property
    def pair_slope(self) -> float:
        """mu^2 / 2 of a Gaussian pair that dominates the certified laws; infinite where none is known."""
        return _total((part.pair, times) for part, times in self.parts)

    def _planned_pair(self) -> float:
        """Return `pair_slope` for a list of releases fixed in advance: all its products of bits are one product."""
        bits = [(part, times) for part, times in self.parts if part.largest]
        others = _total((part.pair, times) for part, times in self.parts if not part.largest)
        if not bits:
            return others
        budget = _total((2 * part.slope, times) for part, times in bits)
        square = dominating_square_upper(
            budget, max(part.largest for part, _ in bits), one_bit=True
        )
        return min(self.pair_slope, _total([(others, 1), (square / 2, 1)]))

    @property
    def slope(self) -> float:
        """The slope of a line that bounds the certified divergences at all orders; infinite where there is none."""
        return _total((part.slope, times) for part, times in self.parts)

    @property
    def paired(self) -> bool:
        """Whether every part has a dominating pair."""
        return all(part.losses is not None or part.pair <= MOST_SLOPE for part, _ in self.parts)

    @property
    def joins(self) -> bool:
        """Whether several of these releases, fixed in advance, are dominated by less than their pairs."""
        return any(part.largest for part, _ in self.parts)

    def losses(self) -> LossPair | None:
        """Return the losses of the certified laws, both ways round, where every part has a dominating pair."""
        forward = LossDistribution()
        backward = LossDistribution()
        for part, times in self.parts:
            own = part.pairs()
            if own is None:
                return None
            forward = forward.compose(own[0].repeat(times))
            backward = backward.compose(own[1].repeat(times))
        return forward, backward

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon that an account of these releases proves at ``delta`` in [0, 1)."""
        return min(self.accounts(delta).values())

    def answered_by(self, delta: float) -> str:
        """Return which account `epsilon` used: "pure", "Rényi", "privacy-loss distribution" or "exact Gaussian"."""
        return min(self.accounts(delta).items(), key=operator.itemgetter(1))[0]

    def accounts(self, delta: float) -> dict[str, float]:
        """Return the epsilon of every account that holds for all parts at ``delta``."""
        delta = check_delta(delta)
        slack = self.slack
        lost = self.lost
        if lost:
            left = math.nextafter(delta - lost, 0.0)
        else:
            left = delta
        found = {"pure": self.pure_epsilon()}
        if left > 0:
            left *= math.exp(-slack) * (1 - 4e-16) if slack else 1.0
            certified = self._certified(left)
            found |= {
                name: round_up(value + 2 * slack, 4e-16) if slack else value
                for name, value in certified.items()
            }
        return found

    def guarantee(self, delta: float) -> Guarantee:
        """Return the smallest epsilon proved at ``delta``, with the cost's terms."""
        adjacency, unit, trust = self._words()
        return Guarantee(self.epsilon(delta), delta, unit, adjacency, trust)

    def _certified(self, delta: float) -> dict[str, float]:
        """Return the accounts of the certified laws, delta > 0."""
        if len(self.parts) == 1 and self.parts[0][1] == 1 and self.parts[0][0].alone is not None:
            return {"shuffle": self.parts[0][0].alone(delta)}
        pair = self._planned_pair()
        slope = self.slope
        found = {}
        if pair < math.inf:
            found["exact Gaussian"] = gaussian_epsilon_upper(pair, delta)
            if slope >= pair:  # no Rényi account is below the exact one
                return found
        elif (losses := self.losses()) is not None:
            found["privacy-loss distribution"] = max(
                _loss_epsilon(one, delta) for one in set(losses)
            )
        if slope < math.inf:
            found["Rényi"] = epsilon_from_linear(slope, delta)
        else:
            found["Rényi"] = epsilon_from_rdp(
                lambda alpha: self._sum(alpha, lambda part, at: part.renyi(at)), delta
            )
        return found

    def _words(self) -> tuple[Adjacency, Unit, Trust]:
        if self.adjacency is None or self.unit is None or self.trust is None:
            rule = "one that says its adjacency, unit and trust (`Cost.of`)"
            raise InvalidParameter.of("cost", rule, "a bare one")
        return self.adjacency, self.unit, self.trust


def sample_share(adjacency: Adjacency, samples: int) -> float:
    """Return how far one of ``samples`` samples can move a mean of clipped gradients, in units of the clip, rounded up.

    From any point that the other samples determine, so accounts must hold between any two inputs at
    that distance: constants of replace-one. Updates are float32 or wider, each entry rounded up to
    three times (the mean, a factor that undoes the first rounding, its product): their distance
    moves by less than `ROUNDING`, which is added.

    >>> 0.5 < sample_share(Adjacency.ZERO_OUT, 2) < 0.5000005
    True
    """
    count = check_int(samples, "samples of a client", 1)
    return round_up(adjacency.radii / count + ROUNDING, 1e-15)


def sampling_slack_upper(dimension: int, smallest_probability: float, error: float) -> float:
    """Bound the slack of ``dimension`` symbols, each drawn with a law within ``error`` of one bounded below.

    |p~ - p| <= error gives p/p~ <= 1/(1 - error/p). Refused where a symbol is as rare as the error.
    """
    dimension = check_int(dimension, "dimension", 1)
    smallest = check_real(smallest_probability, "smallest_probability", at_most=1.0)
    rule = f"above {error:.3g}, what the sampler resolves (a smaller epsilon of the design or beta makes it so)"
    require(0 <= error < smallest, "smallest probability of a symbol", smallest, rule)
    return round_up(-dimension * math.log1p(-error / smallest))


def _response(alpha: float, eps: float) -> float:
    """Return log((e^(alpha eps) + e^((1-alpha) eps))/(1 + e^eps))/(alpha-1), at most min(eps, alpha eps^2/2)."""
    # With E = e^-eps: e^((alpha-1) eps) (1 + E^(2 alpha-1)) / (1 + E), stable for all sizes.
    log_moment = (
        (alpha - 1) * eps
        + math.log1p(math.exp(-(2 * alpha - 1) * eps))
        - math.log1p(math.exp(-eps))
    )
    exact = (log_moment + 1e-15 * (1 + abs(log_moment))) / (alpha - 1)
    return round_up(min(eps, alpha * eps * eps / 2, exact))


def _squared(alpha: float, kappa: Bound, distance: float) -> float:
    return round_up(kappa(alpha) * distance * distance, 1e-15)


def _loss_divergence(alpha: float, both: LossPair) -> float:
    """Return the larger Rényi divergence of the two ways round."""
    return max(one.rdp_upper(alpha) for one in set(both))


def _smaller(alpha: float, left: Cost, right: Cost) -> float:
    return min(left.rdp(alpha), right.rdp(alpha))


def _larger(alpha: float, left: Bound, right: Bound) -> float:
    return max(left(alpha), right(alpha))


_loss_epsilon = lru_cache(maxsize=1024)(LossDistribution.epsilon_upper)


def _total(terms: Iterable[tuple[float, int]]) -> float:
    """Sum number times count in exact arithmetic, and round up at the end."""
    whole = Fraction(0)
    for number, times in terms:
        if times and not number < math.inf:
            return math.inf
        whole += Fraction(number) * times
    near = float(whole)
    if Fraction(near) >= whole:
        return near
    return math.nextafter(near, math.inf)


def _size(value: float, name: str) -> float:
    if not isinstance(value, bool | str) and value == 0:
        return 0.0
    return check_real(value, name)
