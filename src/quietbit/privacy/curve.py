"""Privacy curves: what one release costs, and how costs add up.

Idea     a curve bounds the Rényi divergence of a release at every order, its max-divergence where there is one, and
         knows a dominating pair where it can; releases add, and the adding is written once (`total`). Every
         account that holds is asked, and the smallest epsilon is the answer.
Symbols  rdp(alpha): bound on D_alpha between neighbouring worlds, both ways round, alpha > 1; losses: privacy loss
         distributions, (party's data against the neighbour's, the other way round).
Source   Guo et al. (ICML 2023), section "Rényi DP and composition", Theorem 2; Mironov (2017); Zhu, Dong, Wang (2022),
         Theorem 10. The list of curves is fixed in advance; where it is chosen as one goes, see `Ledger.guarantee`.

Slack and lost mass. A sampler whose law is within e^(+-s) of a certified one outside a set B of outputs, and puts at
most d into B in either world, B depending on what came before and on the two inputs, costs: let S and D be the sums of
s and d over the releases and G the event that no output fell into its B. Outside B densities multiply, so the joint law
M~ is within e^(+-S) of the certified joint law N on G, and M~(not G) <= D. For every set O
    M~(O) <= M~(O and G) + D <= e^S N(O and G) + D <= e^S (e^eps N'(O and G) + delta) + D
          <= e^(eps + 2S) M~'(O) + e^S delta + D.
So slacks and lost masses add up over releases and are paid once, at the end, whatever account answers for N. Laws that
are merely close in total variation do not have this form: they cost (1 + e^eps) D, and `with_delta` is not for them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Protocol, TypeAlias, final, runtime_checkable

from quietbit.errors import check_int, check_real, require
from quietbit.privacy.conversion import epsilon_from_linear, epsilon_from_rdp, round_up
from quietbit.privacy.gaussian import gaussian_epsilon_upper
from quietbit.privacy.guarantee import check_delta
from quietbit.privacy.loss import LossDistribution

__all__ = [
    "ComposedCurve",
    "DeltaCurve",
    "DominatedCurve",
    "FunctionCurve",
    "GaussianCurve",
    "GaussianPairCurve",
    "LinearCurve",
    "LossPair",
    "PrivacyCurve",
    "PureCurve",
    "SlackCurve",
    "loss_epsilon_upper",
    "sampling_slack_upper",
    "split_delta",
    "total",
    "with_delta",
    "with_slack",
]

LossPair: TypeAlias = tuple[LossDistribution, LossDistribution]
"""The losses of the party's data against the neighbour's, and the other way round."""


@runtime_checkable
class PrivacyCurve(Protocol):
    """An immutable upper bound on what a release reveals."""

    def rdp(self, alpha: float) -> float:
        """An upper bound on the Rényi divergence of order ``alpha > 1``."""
        ...

    def pure_epsilon_upper(self) -> float:
        """An upper bound on the max-divergence: epsilon at delta = 0; infinite where none is known."""
        ...

    def repeat(self, times: int) -> PrivacyCurve:
        """The curve of ``times`` independent releases."""
        ...

    def compose(self, other: PrivacyCurve) -> PrivacyCurve:
        """The curve of this release followed by another."""
        ...

    def epsilon_upper(self, delta: float) -> float:
        """The smallest epsilon this curve proves at ``delta`` in [0, 1)."""
        ...


@runtime_checkable
class DominatedCurve(Protocol):
    """A curve that may know a dominating pair of its release."""

    def losses(self) -> LossPair | None:
        """Both ways round, or nothing where no pair is known."""
        ...


class _Curve(ABC):
    """What all curves share; each final class says its divergences and its own conversion."""

    __slots__ = ()

    @abstractmethod
    def rdp(self, alpha: float) -> float:
        """An upper bound on the Rényi divergence of order ``alpha > 1``."""

    @abstractmethod
    def pure_epsilon_upper(self) -> float:
        """An upper bound on the max-divergence; infinite where none is known."""

    @abstractmethod
    def _from_rdp(self, delta: float) -> float:
        """Epsilon from the Rényi divergences alone, delta > 0."""

    def repeat(self, times: int) -> _Curve:
        """The curve of ``times`` independent releases; 0 releases reveal nothing."""
        return total([(self, times)])

    def compose(self, other: PrivacyCurve) -> _Curve:
        """The curve of this release followed by another."""
        return total([(self, 1), (other, 1)])

    def losses(self) -> LossPair | None:
        """Privacy losses both ways round; nothing where no dominating pair is known."""
        return None

    def epsilon_upper(self, delta: float) -> float:
        """The smallest epsilon that an account of this curve proves at ``delta`` in [0, 1)."""
        return min(self.accounts(delta).values())

    def answered_by(self, delta: float) -> str:
        """Which account `epsilon_upper` took: "pure", "Rényi", "privacy-loss distribution", "exact Gaussian"."""
        found = self.accounts(delta)
        return min(found, key=lambda name: found[name])

    def accounts(self, delta: float) -> dict[str, float]:
        """The epsilon of every account that holds for this curve at ``delta``."""
        delta = check_delta(delta)
        found = {"pure": self.pure_epsilon_upper()}
        if delta > 0:
            losses = self.losses()
            if losses is not None:
                found["privacy-loss distribution"] = loss_epsilon_upper(losses, delta)
            found["Rényi"] = self._from_rdp(delta)
        return found


@final
@dataclass(frozen=True, slots=True)
class PureCurve(_Curve):
    """epsilon-DP, with the Rényi divergences that epsilon-DP implies (attained by randomised response).

    >>> PureCurve(0.5).repeat(4).epsilon_upper(0.0)
    2.0
    """

    epsilon: float

    def __post_init__(self) -> None:
        """Refuse an epsilon that is negative or not finite."""
        object.__setattr__(self, "epsilon", _not_negative(self.epsilon, "epsilon"))

    def rdp(self, alpha: float) -> float:
        """log((e^(alpha eps) + e^((1-alpha) eps))/(1 + e^eps))/(alpha-1), at most min(eps, alpha eps^2/2)."""
        _order(alpha)
        eps = self.epsilon
        bound = min(eps, alpha * eps * eps / 2)
        # With E = e^-eps: e^((alpha-1) eps) (1 + E^(2 alpha-1)) / (1 + E), stable for all sizes.
        log_moment = (alpha - 1) * eps + math.log1p(math.exp(-(2 * alpha - 1) * eps)) - math.log1p(math.exp(-eps))
        exact = (log_moment + 1e-15 * (1 + abs(log_moment))) / (alpha - 1)
        return round_up(min(bound, exact))

    def pure_epsilon_upper(self) -> float:
        """Epsilon itself."""
        return self.epsilon

    def losses(self) -> LossPair | None:
        """Those of randomised response, the worst release with this epsilon."""
        if self.epsilon > 700:
            return None
        one = LossDistribution.pure(self.epsilon)
        return one, one

    def _from_rdp(self, delta: float) -> float:
        return epsilon_from_rdp(self.rdp, delta)


@final
@dataclass(frozen=True, slots=True)
class LinearCurve(_Curve):
    """rdp(alpha) = slope * alpha, as Theorem 2 gives it: slope = M S^2 / 2."""

    slope: float

    def __post_init__(self) -> None:
        """Refuse a slope that is negative or not finite."""
        object.__setattr__(self, "slope", _not_negative(self.slope, "slope"))

    def rdp(self, alpha: float) -> float:
        """Slope times order."""
        _order(alpha)
        return self.slope * alpha

    def pure_epsilon_upper(self) -> float:
        """Infinite: a Rényi bound that grows with the order says nothing at delta = 0."""
        return math.inf if self.slope > 0 else 0.0

    def _from_rdp(self, delta: float) -> float:
        return epsilon_from_linear(self.slope, delta)


@final
@dataclass(frozen=True, slots=True)
class GaussianCurve(_Curve):
    """The Gaussian mechanism's curve: slope = (sensitivity / standard deviation)^2 / 2.

    ``epsilon_upper`` is the exact account of Balle and Wang (2018); with a curve that knows only its Rényi
    divergences, the Gaussian is composed by those.
    """

    slope: float

    def __post_init__(self) -> None:
        """Refuse a slope that is negative or not finite."""
        object.__setattr__(self, "slope", _not_negative(self.slope, "slope"))

    def rdp(self, alpha: float) -> float:
        """Slope times order."""
        _order(alpha)
        return self.slope * alpha

    def pure_epsilon_upper(self) -> float:
        """Infinite: Gaussian noise is never purely private."""
        return math.inf if self.slope > 0 else 0.0

    def losses(self) -> LossPair | None:
        """N(mu, 1) against N(0, 1), mu^2 = 2 slope; the pair looks the same both ways round."""
        if self.slope > 1e11:
            return None
        one = LossDistribution.gaussian(math.nextafter(math.sqrt(2 * self.slope), math.inf) if self.slope > 0 else 0.0)
        return one, one

    def accounts(self, delta: float) -> dict[str, float]:
        """The exact account alone: no other can be smaller."""
        return {"exact Gaussian": gaussian_epsilon_upper(self.slope, check_delta(delta))}

    def _from_rdp(self, delta: float) -> float:
        return epsilon_from_linear(self.slope, delta)


@final
@dataclass(frozen=True, slots=True)
class GaussianPairCurve(_Curve):
    """A release that a Gaussian pair dominates: mu-Gaussian differential privacy, mu^2 = 2 ``pair_slope``.

    Its Rényi divergences may be known to be smaller than that Gaussian's: at most ``slope`` times the order. The pair
    composes exactly, with itself and with Gaussians, also when inputs depend on what was released before (Dong, Roth,
    Su 2022); it is infinite where none is known.
    """

    slope: float
    pair_slope: float

    def __post_init__(self) -> None:
        """Refuse a slope that is negative or not finite, and a pair's that is negative or no number."""
        object.__setattr__(self, "slope", _not_negative(self.slope, "slope"))
        require(self.pair_slope >= 0, "pair_slope", self.pair_slope, "a number of at least 0")
        object.__setattr__(self, "pair_slope", float(self.pair_slope))

    def rdp(self, alpha: float) -> float:
        """The smaller slope times the order."""
        _order(alpha)
        return min(self.slope, self.pair_slope) * alpha

    def pure_epsilon_upper(self) -> float:
        """Infinite: neither account says anything at delta = 0."""
        return math.inf if min(self.slope, self.pair_slope) > 0 else 0.0

    def losses(self) -> LossPair | None:
        """Those of the Gaussian pair."""
        return GaussianCurve(self.pair_slope).losses() if self.pair_slope < math.inf else None

    def accounts(self, delta: float) -> dict[str, float]:
        """The pair's exact account, and Rényi, which is smaller where the pair's slope is much the larger."""
        delta = check_delta(delta)
        by_pair = gaussian_epsilon_upper(self.pair_slope, delta)
        return {"exact Gaussian": by_pair, "Rényi": self._from_rdp(delta)}

    def _from_rdp(self, delta: float) -> float:
        return epsilon_from_linear(min(self.slope, self.pair_slope), delta)


@final
@dataclass(frozen=True, slots=True)
class FunctionCurve(_Curve):
    """Any certified function of the order; ``pure`` is its max-divergence where one is known."""

    bound: Callable[[float], float] = field(repr=False)
    label: str
    pure: float = math.inf

    def rdp(self, alpha: float) -> float:
        """The function at ``alpha``."""
        _order(alpha)
        return self.bound(alpha)

    def pure_epsilon_upper(self) -> float:
        """The max-divergence given, infinite by default."""
        return self.pure

    def _from_rdp(self, delta: float) -> float:
        return epsilon_from_rdp(self.rdp, delta)


@final
@dataclass(frozen=True, slots=True)
class ComposedCurve(_Curve):
    """Independent releases: ``parts`` are (curve, times); made by `total`."""

    parts: tuple[tuple[PrivacyCurve, int], ...]

    def rdp(self, alpha: float) -> float:
        """The sum of the parts' divergences (Mironov 2017, Proposition 1)."""
        return round_up(math.fsum(times * curve.rdp(alpha) for curve, times in self.parts), 4e-16)

    def pure_epsilon_upper(self) -> float:
        """The sum of the parts' max-divergences, rounded up from the exact sum."""
        return _exact_sum_up((curve.pure_epsilon_upper(), times) for curve, times in self.parts)

    def losses(self) -> LossPair | None:
        """Those of all parts together, where every part has them."""
        forward, backward = LossDistribution(), LossDistribution()
        for curve, times in self.parts:
            own = curve.losses() if isinstance(curve, DominatedCurve) else None
            if own is None:
                return None
            forward, backward = forward.compose(own[0].repeat(times)), backward.compose(own[1].repeat(times))
        return forward, backward

    def _from_rdp(self, delta: float) -> float:
        return epsilon_from_rdp(self.rdp, delta)


@final
@dataclass(frozen=True, slots=True)
class SlackCurve(_Curve):
    """A release whose law is within a factor e^(+-slack) of the certified one; made by `with_slack`."""

    inner: PrivacyCurve
    slack: float

    def rdp(self, alpha: float) -> float:
        """The moment sum p^alpha p'^(1-alpha) grows by at most e^((2 alpha - 1) slack)."""
        return round_up(self.inner.rdp(alpha) + (2 * alpha - 1) / (alpha - 1) * self.slack, 4e-16)

    def pure_epsilon_upper(self) -> float:
        """Each world moves by one slack."""
        return _exact_sum_up([(self.inner.pure_epsilon_upper(), 1), (self.slack, 2)])

    def accounts(self, delta: float) -> dict[str, float]:
        """The inner curve's accounts at e^-slack delta, each with two slacks (proof at the head of this file)."""
        delta = check_delta(delta)
        if delta == 0:
            return {"pure": self.pure_epsilon_upper()}
        found = _accounts(self.inner, delta * math.exp(-self.slack) * (1 - 4e-16))
        return {name: round_up(epsilon + 2 * self.slack, 4e-16) for name, epsilon in found.items()}

    def _from_rdp(self, delta: float) -> float:
        return epsilon_from_rdp(self.rdp, delta)


@final
@dataclass(frozen=True, slots=True)
class DeltaCurve(_Curve):
    """A release with the certified law but for a set of outputs of mass ``lost``; made by `with_delta`.

    ``everywhere`` is a curve that holds for all outputs, those of the lost mass included; None where none does.
    """

    inner: PrivacyCurve
    lost: float
    everywhere: PrivacyCurve | None = None

    def rdp(self, alpha: float) -> float:
        """That of the curve for all outputs; the inner curve says nothing about the outputs of the lost mass."""
        _order(alpha)
        return self.everywhere.rdp(alpha) if self.everywhere is not None else math.inf

    def pure_epsilon_upper(self) -> float:
        """The max-divergence that holds for all outputs."""
        return self.everywhere.pure_epsilon_upper() if self.everywhere is not None else math.inf

    def accounts(self, delta: float) -> dict[str, float]:
        """The inner curve's accounts at what the lost mass leaves of ``delta``, and the pure one of all outputs."""
        left = math.nextafter(check_delta(delta) - self.lost, 0.0)
        found = _accounts(self.inner, left) if left > 0 else {"lost mass": math.inf}
        return {**found, "pure": self.pure_epsilon_upper()}

    def _from_rdp(self, delta: float) -> float:
        return epsilon_from_rdp(self.rdp, delta) if self.everywhere is not None else math.inf


def total(releases: Iterable[tuple[PrivacyCurve, int]]) -> _Curve:
    """The curve of all releases together: the only place that adds and multiplies.

    Gaussian curves stay Gaussian, what Gaussian pairs dominate stays so, linear ones stay linear, slacks and lost
    masses add up, the rest is kept part by part.
    """
    releases = list(releases)
    gaussian, linear, slack, lost, pair = 0.0, 0.0, 0.0, 0.0, 0.0
    has_linear, has_pair = False, False
    rest: dict[PrivacyCurve, int] = {}
    for curve, times, factor in _flat(releases):
        if isinstance(curve, SlackCurve):  # its inner curve follows by itself, as that of the next
            slack = _sum_up(slack, curve.slack, times)
        elif isinstance(curve, DeltaCurve):
            lost = _sum_up(lost, round_up(curve.lost * factor, 1e-15 if factor > 1 else 0.0), times)
        elif isinstance(curve, GaussianCurve):
            gaussian, pair = _sum_up(gaussian, curve.slope, times), _sum_up(pair, curve.slope, times)
        elif isinstance(curve, GaussianPairCurve):
            has_pair = True
            gaussian, pair = _sum_up(gaussian, curve.slope, times), _sum_up(pair, curve.pair_slope, times)
        elif isinstance(curve, LinearCurve):
            has_linear, linear = True, _sum_up(linear, curve.slope, times)
        else:
            rest[curve] = rest.get(curve, 0) + times
    if has_linear:
        rest[LinearCurve(_sum_up(gaussian, linear, 1))] = 1
    elif has_pair and pair > 0:
        rest[GaussianPairCurve(gaussian, pair)] = 1
    elif gaussian > 0:
        rest[GaussianCurve(gaussian)] = 1
    whole = _joined(tuple(rest.items()))
    whole = SlackCurve(whole, slack) if slack > 0 else whole
    if lost == 0:
        return whole
    known = [(plain, times) for curve, times in releases if (plain := _everywhere(curve)) is not None]
    return DeltaCurve(whole, lost, total(known) if len(known) == len(releases) else None)


def with_delta(
    curve: PrivacyCurve, lost: float, pure: float = math.inf, everywhere: PrivacyCurve | None = None
) -> _Curve:
    """The curve of a release that is the certified one but for outputs of mass at most ``lost``, in either world.

    For every pair of neighbours there are two laws that ``curve`` covers and a set of outputs outside which the
    release has exactly these; the head of this file has the proof, for adaptive compositions too. ``pure`` is a
    max-divergence of the release as it is, where one is known; ``everywhere`` a whole curve of it, where more is known.
    """
    require(pure >= 0, "pure", pure, "a number of at least 0")
    plain = PureCurve(pure) if everywhere is None and pure < math.inf else everywhere
    return total([(DeltaCurve(curve, check_delta(lost), plain), 1)])


def split_delta(curve: PrivacyCurve) -> tuple[PrivacyCurve, float]:
    """The certified curve without lost mass, and the mass lost in all."""
    whole = total([(curve, 1)])
    return (whole.inner, whole.lost) if isinstance(whole, DeltaCurve) else (whole, 0.0)


def loss_epsilon_upper(losses: LossPair, delta: float) -> float:
    """The larger epsilon of the two ways round."""
    forward, backward = losses
    found = _loss_epsilon(forward, delta)
    return found if backward == forward else max(found, _loss_epsilon(backward, delta))


@lru_cache(maxsize=1024)
def _loss_epsilon(losses: LossDistribution, delta: float) -> float:
    return losses.epsilon_upper(delta)


def _accounts(curve: PrivacyCurve, delta: float) -> dict[str, float]:
    return curve.accounts(delta) if isinstance(curve, _Curve) else {"its own": curve.epsilon_upper(delta)}


def with_slack(curve: PrivacyCurve, slack: float) -> _Curve:
    """The curve of a sampler whose law is, output by output, within a factor e^(+-slack) of the certified."""
    slack = _not_negative(slack, "slack")
    return total([(SlackCurve(curve, slack), 1)])


def sampling_slack_upper(dimension: int, smallest_probability: float, error: float) -> float:
    """The slack of ``dimension`` symbols, each drawn with a law within ``error`` of one bounded below.

    |p~ - p| <= error gives p/p~ <= 1/(1 - error/p), the larger of the two factors. Refused when a symbol's
    probability is not above the error: the sampler could then miss it altogether.
    """
    dimension = check_int(dimension, "dimension", 1)
    smallest = check_real(smallest_probability, "smallest_probability", at_most=1.0)
    rule = f"above {error:.3g}, what the sampler resolves (a smaller epsilon of the design or beta makes it so)"
    require(0 <= error < smallest, "smallest probability of a symbol", smallest, rule)
    return round_up(-dimension * math.log1p(-error / smallest))


def _flat(
    releases: Iterable[tuple[PrivacyCurve, int]], factor: float = 1.0
) -> Iterable[tuple[PrivacyCurve, int, float]]:
    """Every curve inside, its times, and by how much slack around it may enlarge its lost mass."""
    for curve, times in releases:
        times = check_int(times, "times", 0)
        require(isinstance(curve, PrivacyCurve), "curve", curve, "a PrivacyCurve")
        require(
            not hasattr(curve, "adjacency"), "curve", curve, "a curve without words: releases compose by themselves"
        )
        if times == 0:
            continue
        if isinstance(curve, ComposedCurve):
            yield from _flat(((part, times * count) for part, count in curve.parts), factor)
        elif isinstance(curve, SlackCurve | DeltaCurve):
            yield curve, times, factor
            around = factor * math.exp(curve.slack) if isinstance(curve, SlackCurve) else factor
            yield from _flat([(curve.inner, times)], around)
        else:
            yield curve, times, factor


def _everywhere(curve: PrivacyCurve) -> PrivacyCurve | None:
    """The curve that holds for all outputs, lost mass included."""
    if isinstance(curve, DeltaCurve):
        return curve.everywhere
    if isinstance(curve, SlackCurve):
        inside = _everywhere(curve.inner)
        return SlackCurve(inside, curve.slack) if inside is not None else None
    if isinstance(curve, ComposedCurve):
        known = [(plain, times) for part, times in curve.parts if (plain := _everywhere(part)) is not None]
        return ComposedCurve(tuple(known)) if len(known) == len(curve.parts) else None
    return curve


def _joined(parts: tuple[tuple[PrivacyCurve, int], ...]) -> _Curve:
    parts = tuple((curve, times) for curve, times in parts if curve != PureCurve(0.0))
    if not parts:
        return PureCurve(0.0)
    curve, times = parts[0]
    return curve if len(parts) == 1 and times == 1 and isinstance(curve, _Curve) else ComposedCurve(parts)


def _sum_up(left: float, right: float, times: int) -> float:
    """The sum left + times * right, rounded up wherever it is not exact."""
    product = right if times == 1 else math.nextafter(times * right, math.inf) if right else 0.0
    return left + product if left == 0 or product == 0 else math.nextafter(left + product, math.inf)


def _exact_sum_up(terms: Iterable[tuple[float, int]]) -> float:
    """The sum of number times count in exact arithmetic, rounded up at the end."""
    whole = Fraction(0)
    for number, times in terms:
        if times and not number < math.inf:
            return math.inf
        whole += Fraction(number) * times
    near = float(whole)
    return near if Fraction(near) >= whole else math.nextafter(near, math.inf)


def _not_negative(value: float, name: str) -> float:
    return 0.0 if not isinstance(value, bool | str) and value == 0 else check_real(value, name)


def _order(alpha: float) -> None:
    require(alpha > 1, "alpha", alpha, "a number above 1")
