"""Privacy curves: what one release costs, and how costs add up.

Idea     a curve bounds the Rényi divergence of a release at every order, and its max-divergence where there
         is one; independent releases add, and the adding is written once (`total`).
Symbols  rdp(alpha): bound on D_alpha between neighbouring worlds, both ways round, alpha > 1.
Source   Guo et al. (ICML 2023), section "Rényi DP and composition", Theorem 2; Mironov (2017).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, final, runtime_checkable

from quietbit._validate import finite_real, require, whole_number
from quietbit.privacy.conversion import epsilon_from_linear, epsilon_from_rdp, round_up
from quietbit.privacy.gaussian import gaussian_epsilon_upper
from quietbit.privacy.guarantee import check_delta

__all__ = [
    "ComposedCurve",
    "FunctionCurve",
    "GaussianCurve",
    "GaussianPairCurve",
    "LinearCurve",
    "PrivacyCurve",
    "PureCurve",
    "SlackCurve",
    "sampling_slack_upper",
    "total",
    "with_slack",
]


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

    def epsilon_upper(self, delta: float) -> float:
        """The smaller of the pure and the Rényi epsilon at ``delta`` in [0, 1)."""
        delta = check_delta(delta)
        pure = self.pure_epsilon_upper()
        return pure if delta == 0 else min(pure, self._from_rdp(delta))


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

    ``epsilon_upper`` is the Rényi account, comparable with every other mechanism's here;
    ``analytic_epsilon_upper`` is the exact one, which only the Gaussian has.
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

    def analytic_epsilon_upper(self, delta: float) -> float:
        """The exact epsilon of Balle and Wang (2018), rounded up; not a Rényi account."""
        return gaussian_epsilon_upper(self.slope, delta)

    def _from_rdp(self, delta: float) -> float:
        return epsilon_from_linear(self.slope, delta)


@final
@dataclass(frozen=True, slots=True)
class GaussianPairCurve(_Curve):
    """A release that a Gaussian pair dominates: mu-Gaussian differential privacy, mu^2 = 2 ``pair_slope``.

    Its Rényi divergences may be known to be smaller than that Gaussian's: at most ``slope`` times the order. The pair
    composes exactly, with itself and with Gaussians, also when inputs depend on what was released before (Dong, Roth,
    Su 2022, Corollary 2); it is infinite where none is known.
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

    def answered_by(self, delta: float) -> str:
        """Which account gives `epsilon_upper` at ``delta``: ``exact Gaussian`` or ``Rényi``."""
        delta = check_delta(delta)
        by_pair = gaussian_epsilon_upper(self.pair_slope, delta)
        return "exact Gaussian" if by_pair == self.epsilon_upper(delta) else "Rényi"

    def _from_rdp(self, delta: float) -> float:
        by_pair = gaussian_epsilon_upper(self.pair_slope, delta)
        return min(by_pair, epsilon_from_linear(min(self.slope, self.pair_slope), delta))


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
        """The sum of the parts' max-divergences."""
        return math.fsum(times * curve.pure_epsilon_upper() for curve, times in self.parts)

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
        return self.inner.pure_epsilon_upper() + 2 * self.slack

    def _from_rdp(self, delta: float) -> float:
        # P~(O) <= e^s P(O) <= e^s (e^eps P'(O) + delta') <= e^(eps + 2s) P~'(O) + e^s delta'.
        return round_up(self.inner.epsilon_upper(delta * math.exp(-self.slack)) + 2 * self.slack, 4e-16)


def total(releases: Iterable[tuple[PrivacyCurve, int]]) -> _Curve:
    """The curve of all releases together: the only place that adds and multiplies.

    Gaussian curves stay Gaussian, what Gaussian pairs dominate stays so, linear ones stay linear, slacks add up, the
    rest is kept part by part.
    """
    gaussian, linear, slack, pair = 0.0, 0.0, 0.0, 0.0
    has_linear, has_pair = False, False
    rest: dict[PrivacyCurve, int] = {}
    for curve, times in _flat(releases):
        if isinstance(curve, SlackCurve):  # its inner curve follows by itself
            slack = _sum_up(slack, curve.slack, times)
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
    return SlackCurve(whole, slack) if slack > 0 else whole


def with_slack(curve: PrivacyCurve, slack: float) -> _Curve:
    """The curve of a sampler whose law is, output by output, within a factor e^(+-slack) of the certified."""
    slack = _not_negative(slack, "slack")
    return total([(SlackCurve(curve, slack), 1)])


def sampling_slack_upper(dimension: int, smallest_probability: float, error: float) -> float:
    """The slack of ``dimension`` symbols, each drawn with a law within ``error`` of one bounded below.

    |p~ - p| <= error gives p/p~ <= 1/(1 - error/p), the larger of the two factors. Refused when a symbol's
    probability is not above the error: the sampler could then miss it altogether.
    """
    dimension = whole_number(dimension, "dimension", 1)
    smallest = finite_real(smallest_probability, "smallest_probability", at_most=1.0)
    require(0 <= error < smallest, "sampling error", error, f"below the smallest probability, {smallest:g}")
    return round_up(-dimension * math.log1p(-error / smallest))


def _flat(releases: Iterable[tuple[PrivacyCurve, int]]) -> Iterable[tuple[PrivacyCurve, int]]:
    for curve, times in releases:
        times = whole_number(times, "times", 0)
        require(isinstance(curve, PrivacyCurve), "curve", curve, "a PrivacyCurve")
        if times == 0:
            continue
        if isinstance(curve, ComposedCurve):
            yield from _flat((part, times * count) for part, count in curve.parts)
        elif isinstance(curve, SlackCurve):
            yield curve, times
            yield from _flat([(curve.inner, times)])
        else:
            yield curve, times


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


def _not_negative(value: float, name: str) -> float:
    return 0.0 if not isinstance(value, bool | str) and value == 0 else finite_real(value, name)


def _order(alpha: float) -> None:
    require(alpha > 1, "alpha", alpha, "a number above 1")
