"""The mean of a cohort's randomised updates, for many models at once, without the updates themselves.

Idea     the server needs the sum over clients alone. Where its law is known it is drawn once: a sum of normals is
         normal, a sum of m Laplace variables is a difference of two gammas of shape m. One-bit codes are counted by
         the cohort kernel, which randomises every client and keeps only the counts. Where asked to, codes are not
         drawn but their sum is, as a normal (`linear_law.py`).
Symbols  G models, K classes, m clients; errors (G, K, m): clipped p - y; features (m, width); a client's update is
         their outer product. gain: what one unit of an update adds to the argument of the bit's law.
Source   `mechanism/` for the laws; Kotz, Kozubowski, Podgorski (2001), section 2.2, for sums of Laplace variables.

The server's mean has the law of the per-client path, 32-bit roundings of single clients' floats aside. Skellam is
the exception: its noise (variance v per client, in units of the integers) and the clients' roundings (at most 1/4)
are replaced by a normal of the same variance. The sum's excess kurtosis is below 1/(m v), which is asked to be
below 1e-8: no training could tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, require, require_module
from quietbit.kernel.fixed_point import FixedPoint
from quietbit.kernel.sampler import Sampler
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.dithered import DitheredMVU
from quietbit.mechanism.rounding import TRIES, length_upper
from quietbit.privacy.guarantee import Trust
from quietbit_lab.cohort.codes import sum_codes
from quietbit_lab.cohort.sums import MAX_REACH, BitLaw, count_ones
from quietbit_lab.task.linear_device import Tensor
from quietbit_lab.task.linear_law import Moments, fit_moments, power_sums

__all__ = [
    "DRAWS", "EVERY_CLIENT", "LAW_OF_THE_SUM", "NORMAL_FOR_THE_SUM", "CohortMean", "DrawKey", "again_upper",
    "cohort_mean", "kind_of",
]  # fmt: skip

EVERY_CLIENT, LAW_OF_THE_SUM = "every client", "law of the sum"
NORMAL_FOR_THE_SUM = "normal in place of the sum"
DRAWS = ("clients", "sums")  # what a caller may ask for
LEAST_VARIANCE = 1e8  # of a cohort's Skellam noise, where a normal replaces it
ROWS_GPU, ROWS_CPU = 1 << 25, 1 << 20  # coordinates written out at once
MOST_BITS = 8  # of the cohort kernel's codes
CENTRED = 1e-12  # a symmetric design's log-odds at 0, roundings aside
LEAST_REACH = 0.25  # below it no law is cheaper to draw
NEVER = 1e-30  # a chance of drawing MVU's dither again that no simulation meets


@final
@dataclass(frozen=True, slots=True, eq=False)
class DrawKey:
    """What one draw depends on: 32 bytes, here and on the device."""

    words: bytes
    on_device: Tensor

    @classmethod
    def several(cls, words: Sequence[bytes], device: Any) -> list[DrawKey]:
        """Keys that go to the device together: a copy waits for the work before it, so fewer are better."""
        torch = require_module("torch", "lab")
        numbers = torch.from_numpy(np.frombuffer(b"".join(words), dtype="<i4").astype(np.int32).reshape(-1, 8))
        return [cls(word, row) for word, row in zip(words, numbers.to(device), strict=True)]

    def generator(self, device: Any) -> Any:
        """Torch's own generator for noise that is drawn as a whole: statistical, not cryptographic."""
        torch = require_module("torch", "lab")
        return torch.Generator(device=device).manual_seed(int.from_bytes(self.words[:8], "little") >> 1)


class CohortMean(Protocol):
    """Draws the mean of the cohort's updates for some models of a batch."""

    @property
    def draws(self) -> str:
        """What was drawn: a word for records."""
        ...

    def mean(self, errors: Tensor, features: Tensor, key: DrawKey) -> Tensor:
        """(G, K, width) in float32; two calls never share a key."""
        ...


def kind_of(
    mechanism: Mechanism | None, cohort: int, trust: Trust = Trust.LOCAL, share: float = 1.0, draw: str = "clients"
) -> str:
    """Models of one kind are drawn together; a mechanism that has no kind here is refused in one sentence.

    ``share`` is the largest part of an update's length that one coordinate can have. Kinds of one-bit mechanisms end
    with their reach, because the kernel is the quicker the less its law bends within it. With ``draw`` "sums" a normal
    is drawn in place of the sum of codes where it may stand for it.
    """
    require(draw in DRAWS, "draw", draw, "one of " + ", ".join(DRAWS))
    if trust is Trust.CENTRAL:
        return "central"
    if mechanism is None:
        return "none"
    name = type(mechanism).__name__
    if name not in KINDS:
        raise InvalidParameter(f"{name} is not made for many models at once: leave out --device.")
    if draw == "sums" and name == "Laplace":
        return "normal"
    if draw == "sums" and hasattr(mechanism, "values"):
        codes: Any = mechanism  # a frozen one: it can be a key
        moments = fit_moments(codes, share, cohort)
        if moments is not None:
            return f"moments {moments.odd} {moments.even} share {share!r}"
    return KINDS[name](mechanism, cohort, share)


def _sign(mechanism: Any, cohort: int, share: float) -> str:
    return f"{SIGNS[type(mechanism.inner).__name__]} {bit_meaning(mechanism, share).reach!r}"


def _skellam(mechanism: Any, cohort: int, share: float) -> str:
    variance = cohort * mechanism.noise_variance
    if variance < LEAST_VARIANCE:
        raise InvalidParameter(
            f"Skellam noise of many models at once needs a cohort's variance of {LEAST_VARIANCE:g} in units of its "
            f"integers, got {variance:g}: use more bits, or leave out --device."
        )
    return "skellam"


def _interpolated(mechanism: Any, cohort: int, share: float) -> str:
    if _logistic(mechanism):
        return f"logistic {bit_meaning(mechanism, share).reach!r}"
    if mechanism.bits > MOST_BITS:
        raise InvalidParameter(f"Codes of {mechanism.bits} bits are not made for many models: leave out --device.")
    # One sampler serves every clip: the scale goes into the errors.
    return f"codes {mechanism.design.identity()} {mechanism.decoder} {mechanism.sampler.t_range}"


def again_upper(mechanism: DitheredMVU) -> float:
    """A bound on the chance that one update's dither is drawn again; 1 for an L1 ball, which nobody needed.

    In spacings, with zero a level and updates of length R at most: a rounded square exceeds y^2 by min(1/4, |y|) or
    less on average, so that the sum of squares has mean R^2 + min(d/4, sqrt(d) R) at most; and Hoeffding's inequality
    with the ranges of `mechanism/rounding.py`.
    """
    ball, cells = mechanism.ball, mechanism.design.spec.input_levels - 1
    if ball.norm is not Norm.L2 or cells % 2 == 1:
        return 1.0
    radius, root = cells / 2, math.sqrt(ball.dimension)
    mean = radius**2 + min(ball.dimension / 4, root * radius)
    room = min(length_upper(ball.norm, radius, ball.dimension), ball.dimension * radius**2) - mean
    return math.exp(-2 * (room / (2 * radius + root)) ** 2) if room > 0 else 1.0


def _straight(design: Any) -> bool:
    """Whether the chance of code 1 is a straight line through 1/2 in the middle."""
    ones = design.probabilities[:, 1]
    line = np.linspace(ones[0], ones[-1], ones.size)
    return bool(np.abs(ones - line).max() <= CENTRED and abs(ones[0] + ones[-1] - 1) <= CENTRED)


def _dithered(mechanism: Any, cohort: int, share: float) -> str:
    # Dithered on its own, a coordinate of one bit has a straight line for its chance of a one.
    if mechanism.bits == 1 and again_upper(mechanism) <= NEVER and _straight(mechanism.design):
        return f"uniform {bit_meaning(mechanism, share).reach!r}"
    if mechanism.design.spec.input_levels % 2 == 0:
        raise InvalidParameter("MVU of many models at once needs an odd number of levels: leave out --device.")
    return "rows"


# What only the laboratory knows of a class of mechanisms: how its cohorts are drawn together.
KINDS: Mapping[str, Callable[[Any, int, float], str]] = {
    "Gaussian": lambda mechanism, cohort, share: "gaussian",
    "Laplace": lambda mechanism, cohort, share: "laplace",
    "Sign": _sign,
    "Skellam": _skellam,
    "InterpolatedMVU": _interpolated,
    "DitheredMVU": _dithered,
}
SIGNS = {"Gaussian": "sign-normal", "Laplace": "sign-laplace"}
LAWS = {
    "sign-normal": BitLaw.NORMAL,
    "sign-laplace": BitLaw.LAPLACE,
    "logistic": BitLaw.LOGISTIC,
    "uniform": BitLaw.UNIFORM,
}


def cohort_mean(kind: str, mechanisms: Sequence[Any], numbers: Sequence[int], cohort: int, device: Any) -> CohortMean:
    """What draws the means for models with these mechanisms, all of one kind; ``numbers`` address their words."""
    torch = require_module("torch", "lab")
    if kind == "none":
        return NormalMean(None, LAW_OF_THE_SUM)
    if kind == "central":
        # The server adds the noise once, to the sum.
        each = [mechanism.sigma / cohort for mechanism in mechanisms]
        return NormalMean(_column(each, device, torch.float32), LAW_OF_THE_SUM)
    if kind in ("gaussian", "skellam", "normal"):
        deviations = [math.sqrt(mechanism.variance(0.0) / cohort) for mechanism in mechanisms]
        draws = LAW_OF_THE_SUM if kind == "gaussian" else NORMAL_FOR_THE_SUM
        return NormalMean(_column(deviations, device, torch.float32), draws)
    if kind == "laplace":
        return LaplaceMean(_column([mechanism.scale for mechanism in mechanisms], device, torch.float64))
    if kind == "rows":
        return RowsMean(list(mechanisms), device)
    if kind.startswith("moments"):
        return MomentsMean.of(mechanisms, float(kind.split()[-1]), cohort, device)
    streams = torch.tensor(numbers, dtype=torch.int32, device=device)
    if kind.startswith("codes"):
        samplers = [mechanism.sampler for mechanism in mechanisms]
        gain = _column([sampler.scale / samplers[0].scale for sampler in samplers], device, torch.float64)
        unit = [float(np.abs(mechanism.values).max()) for mechanism in mechanisms]
        point = FixedPoint.of(mechanisms[0].values / unit[0], cohort)
        scale = [value / (cohort * 2.0**point.shift) for value in unit]
        return CodesMean(samplers[0], point.table, gain, _column(scale, device, torch.float64), streams)
    name, reach = kind.split()
    law = LAWS[name]
    meanings = [bit_meaning(mechanism) for mechanism in mechanisms]
    return BitMean(
        law,
        float(reach),
        _column([meaning.gain for meaning in meanings], device, torch.float64),
        _column([meaning.low for meaning in meanings], device, torch.float32),
        _column([(meaning.high - meaning.low) / cohort for meaning in meanings], device, torch.float32),
        streams,
    )


@final
@dataclass(frozen=True, slots=True)
class Meaning:
    """A one-bit mechanism in numbers: gain, the values of codes 0 and 1, and where the law's argument is cut."""

    gain: float
    low: float
    high: float
    reach: float


def bit_meaning(mechanism: Any, share: float = 1.0) -> Meaning:
    """The one-bit law as ``law(gain * u)``: log-odds for I-MVU, standardised means for signs and MVU.

    The argument is cut at the reach: where the mechanism clamps, or beyond what any update of the ball can bring.
    """
    radius = mechanism.domain.radius
    inner = getattr(mechanism, "inner", None)
    if inner is not None:  # a sign of something noisy
        gain = 1 / (inner.sigma if hasattr(inner, "sigma") else inner.scale)
        # Rounded, so that clips of one noise are of one kind.
        return Meaning(gain, -1.0, 1.0, min(float(f"{gain * mechanism.cut:.9g}"), _beyond(gain * radius * share)))
    low, high = mechanism.values.tolist()
    if isinstance(mechanism, DitheredMVU):  # a straight line that is unbiased: (1 + u / high) / 2
        return Meaning(1 / high, low, high, _beyond(radius * share / high))
    sampler = mechanism.sampler
    slope = float(sampler.slope[0, 1])
    clamped = slope * sampler.t_range[1]
    return Meaning(slope * sampler.scale, low, high, min(clamped, _beyond(slope * sampler.scale * radius * share)))


def _beyond(reach: float) -> float:
    """A power of two that is more, so that a few kinds serve many strengths: each costs the host its time in a round.

    The kernel's largest reach is always enough: beyond it the bit is certain.
    """
    return min(MAX_REACH, max(LEAST_REACH, 2.0 ** math.ceil(math.log2(reach * (1 + 1e-4)))))


def _logistic(mechanism: Any) -> bool:
    """Whether a code is one bit whose log-odds are proportional to the update, up to a cut at both ends."""
    sampler = mechanism.sampler
    symmetric = abs(float(sampler.base[0, 1])) <= CENTRED and sampler.t_range[0] == -sampler.t_range[1]
    return mechanism.bits == 1 and sampler.levels == 2 and symmetric


@final
@dataclass(frozen=True, slots=True, eq=False)
class BitMean:
    """One bit per coordinate and client, counted by the cohort kernel."""

    law: BitLaw
    reach: float
    gain: Tensor
    low: Tensor
    step: Tensor
    numbers: Tensor
    draws: str = EVERY_CLIENT

    def mean(self, errors: Tensor, features: Tensor, key: DrawKey) -> Tensor:
        """Counts of ones, turned into means of decoded values."""
        left = (errors * self.gain).transpose(1, 2).float().contiguous()
        counts = count_ones(self.law, left, features, words_key=key.on_device, reach=self.reach, streams=self.numbers)
        return counts.float().mul_(self.step).add_(self.low)


@final
@dataclass(frozen=True, slots=True, eq=False)
class CodesMean:
    """A code of several bits per coordinate and client; the cohort kernel adds what the codes stand for."""

    sampler: Sampler
    table: NDArray[np.int64]
    gain: Tensor
    scale: Tensor
    numbers: Tensor
    draws: str = EVERY_CLIENT

    def mean(self, errors: Tensor, features: Tensor, key: DrawKey) -> Tensor:
        """Sums of fixed-point values, turned into means."""
        left = (errors * self.gain).transpose(1, 2).float().contiguous()
        sums = sum_codes(self.sampler, left, features, table=self.table, words_key=key.on_device, streams=self.numbers)
        return (sums.double() * self.scale).float()


@final
@dataclass(frozen=True, slots=True, eq=False)
class NormalMean:
    """The exact mean of the clipped updates, with one normal of the mean's deviation on it."""

    deviations: Tensor | None
    draws: str

    def mean(self, errors: Tensor, features: Tensor, key: DrawKey) -> Tensor:
        """A matrix product, and noise where there is any."""
        found = exact_mean(errors, features)
        if self.deviations is not None:
            found.addcmul_(found.new_empty(found.shape).normal_(generator=key.generator(found.device)), self.deviations)
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class LaplaceMean:
    """The exact mean with a sum of m Laplace variables on it, drawn as a difference of two gammas."""

    scales: Tensor
    draws: str = LAW_OF_THE_SUM

    def mean(self, errors: Tensor, features: Tensor, key: DrawKey) -> Tensor:
        """A matrix product and two gammas of shape m."""
        torch, clients = require_module("torch", "lab"), errors.shape[2]
        found, generator = exact_mean(errors, features), key.generator(errors.device)
        shape = errors.new_full((1,), float(clients)).expand(found.shape)
        noise = torch._standard_gamma(shape, generator=generator) - torch._standard_gamma(shape, generator=generator)
        return found.add_((noise * (self.scales / clients)).float())


@final
@dataclass(frozen=True, slots=True, eq=False)
class MomentsMean:
    """A normal of the mean and the variance that the cohort's decoded sum has; see `linear_law.py`."""

    powers: Moments  # whose powers all models share
    unit: Tensor
    means: Tensor
    variances: Tensor
    constant: Tensor
    draws: str = NORMAL_FOR_THE_SUM

    @classmethod
    def of(cls, mechanisms: Sequence[Any], share: float, cohort: int, device: Any) -> MomentsMean:
        """The fits of these mechanisms, which are of one kind."""
        torch = require_module("torch", "lab")
        found = [moments for one in mechanisms if (moments := fit_moments(one, share, cohort)) is not None]
        radii = np.array([mechanism.domain.radius for mechanism in mechanisms])
        means = np.array([moments.mean for moments in found]) * (radii / cohort)[:, None]
        variances = np.array([moments.variance for moments in found]) * (radii[:, None] / cohort) ** 2

        def column(values: Any, kind: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=kind)[..., None, None]

        return cls(
            found[0],
            column(1 / (radii * share), torch.float64),
            column(means.T, torch.float64),
            column(variances.T[1:], torch.float64),
            column(variances[:, 0] * cohort, torch.float32),
        )

    def mean(self, errors: Tensor, features: Tensor, key: DrawKey) -> Tensor:
        """A matrix product for each power, and one normal for each coordinate."""
        inputs = errors * self.unit
        found = power_sums(inputs, features, self.powers.odd, self.means, signed=True)
        noise = found.new_empty(found.shape).normal_(generator=key.generator(found.device))
        if not self.powers.even:
            return found.addcmul_(noise, self.constant.sqrt())
        spread = power_sums(inputs, features, self.powers.even, self.variances, signed=False)
        return found.addcmul_(noise, spread.add_(self.constant).clamp_(min=0.0).sqrt_())


def exact_mean(errors: Tensor, features: Tensor) -> Tensor:
    """The mean of outer products, as one matrix product for all models."""
    count, classes, clients = errors.shape
    return (errors.float().reshape(-1, clients) @ features).div_(clients).reshape(count, classes, -1)


def _column(values: Sequence[float], device: Any, kind: Any) -> Tensor:
    """One number per model, ready to be spread over its matrix."""
    torch = require_module("torch", "lab")
    return torch.from_numpy(np.asarray(values, dtype=np.float64)).to(device=device, dtype=kind)[:, None, None]


@final
@dataclass(frozen=True, slots=True, eq=False)
class RowsMean:
    """MVU: symbols drawn for every client and coordinate, a few clients at a time.

    The length of a dithered vector decides whether it is drawn again, so the cohort kernel, which never sees a whole
    vector, does not fit. Rows are made from their two factors, and a symbol is drawn by comparing a uniform with F_k,
    the probability of a symbol of at most k: the sum of values is m v_0 + sum_k (v_{k+1} - v_k) #{U >= F_k}. Plain
    torch operations in float32, whose roundings move probabilities by about 1e-7: slower than the cohort kernel by an
    order of magnitude.
    """

    mechanisms: Sequence[Any]
    device: Any
    draws: str = "every client"

    def mean(self, errors: Tensor, features: Tensor, key: DrawKey) -> Tensor:
        """Model after model."""
        torch, generator = require_module("torch", "lab"), key.generator(self.device)
        means = [
            _rows_mean(mechanism, errors[place].float(), features, generator)
            for place, mechanism in enumerate(self.mechanisms)
        ]
        return torch.stack(means)


def _rows_mean(mechanism: Any, errors: Tensor, features: Tensor, generator: Any) -> Tensor:
    """The mean for one model, errors (K, m)."""
    torch, (clients, width), classes = require_module("torch", "lab"), features.shape, errors.shape[0]
    most = max(1, (ROWS_GPU if features.is_cuda else ROWS_CPU) // (classes * width))
    steps = np.diff(mechanism.values)
    total = torch.zeros((classes, width), dtype=torch.float64, device=features.device)
    for start in range(0, clients, most):
        rows = errors[:, start : start + most].T[:, :, None] * features[start : start + most, None, :]
        bounds = dithered(mechanism, rows, generator)
        uniform = torch.rand(rows.shape, generator=generator, device=rows.device)
        for step, bound in zip(steps.tolist(), bounds, strict=True):
            total.add_((uniform >= bound).sum(dim=0), alpha=step)
    return (total / clients + float(mechanism.values[0])).float()


def dithered(mechanism: Any, rows: Tensor, generator: Any) -> list[Tensor]:
    """F_k of the level that every coordinate was dithered to."""
    torch, norm = require_module("torch", "lab"), mechanism.ball.norm
    cells = mechanism.design.spec.input_levels - 1
    half, limit = cells / 2, (mechanism.reach * cells) ** norm.order
    grid = (rows * (half / mechanism.ball.radius)).clamp_(-half, half)
    floor = grid.floor()
    part = grid - floor
    points = floor + (torch.rand(rows.shape, generator=generator, device=rows.device) < part)
    for _ in range(TRIES):
        again = (lengths(points, norm) > limit).nonzero()[:, 0]
        if again.numel() == 0:
            break
        fresh = torch.rand((again.numel(), *rows.shape[1:]), generator=generator, device=rows.device)
        points[again] = floor[again] + (fresh < part[again])
    else:
        points[again] = grid[again].trunc()
    cumulative = _table(np.cumsum(mechanism.design.probabilities, axis=1), rows.device)
    place = (points + half).long()
    return [cumulative[place, symbol] for symbol in range(cumulative.shape[1] - 1)]


def lengths(points: Tensor, norm: Norm) -> Tensor:
    torch = require_module("torch", "lab")
    each = points.abs() if norm is Norm.L1 else points.square()
    return each.sum(dim=(1, 2), dtype=torch.float64)


def _table(values: Any, device: Any) -> Tensor:
    torch = require_module("torch", "lab")
    return torch.from_numpy(np.array(values, dtype=np.float32)).to(device)
