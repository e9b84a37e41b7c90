"""The mean of a cohort's randomised updates, for many models at once, without the updates themselves.

Idea     the server needs the sum over clients alone. Where its law is known it is drawn once: a sum of normals is
         normal, a sum of m Laplace variables is a difference of two gammas of shape m. One-bit codes are counted by
         the cohort kernel, which randomises every client and keeps only the counts.
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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import InvalidParameter, require_module
from quietbit.kernel.fixed_point import FixedPoint
from quietbit.kernel.sampler import Sampler
from quietbit.mechanism.additive import Gaussian, Laplace, Sign
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.skellam import Skellam
from quietbit.privacy.guarantee import Trust
from quietbit_lab.cohort.codes import sum_codes
from quietbit_lab.cohort.sums import MAX_REACH, BitLaw, count_ones
from quietbit_lab.task.linear_device import Tensor

__all__ = ["EVERY_CLIENT", "LAW_OF_THE_SUM", "NORMAL_FOR_THE_SUM", "CohortMean", "DrawKey", "cohort_mean", "kind_of"]

EVERY_CLIENT, LAW_OF_THE_SUM = "every client", "law of the sum"
NORMAL_FOR_THE_SUM = "normal in place of the sum"
LEAST_VARIANCE = 1e8  # of a cohort's Skellam noise, where a normal replaces it
MOST_BITS = 8  # of the cohort kernel's codes
CENTRED = 1e-12  # a symmetric design's log-odds at 0, roundings aside


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


def kind_of(mechanism: Mechanism | None, cohort: int, trust: Trust = Trust.LOCAL, share: float = 1.0) -> str:
    """Models of one kind are drawn together; a mechanism that has no kind here is refused in one sentence.

    ``share`` is the largest part of an update's length that one coordinate can have. Kinds of one-bit mechanisms end
    with their reach, because the kernel is the quicker the less its law bends within it.
    """
    if trust is Trust.CENTRAL:
        return "central"
    if mechanism is None or isinstance(mechanism, Gaussian | Laplace):
        return "none" if mechanism is None else type(mechanism).__name__.lower()
    if isinstance(mechanism, Sign):
        name = "sign-normal" if isinstance(mechanism.inner, Gaussian) else "sign-laplace"
        return f"{name} {bit_meaning(mechanism, share).reach!r}"
    if isinstance(mechanism, Skellam):
        if cohort * mechanism.noise_variance < LEAST_VARIANCE:
            raise InvalidParameter(
                f"Skellam noise of many models at once needs a cohort's variance of {LEAST_VARIANCE:g} in units of its "
                f"integers, got {cohort * mechanism.noise_variance:g}: use more bits, or leave out --device."
            )
        return "skellam"
    if isinstance(mechanism, InterpolatedMVU) and _logistic(mechanism):
        return f"logistic {bit_meaning(mechanism, share).reach!r}"
    if isinstance(mechanism, InterpolatedMVU) and mechanism.bits <= MOST_BITS:
        # One sampler serves every clip: the scale goes into the errors.
        return f"codes {mechanism.design.identity()} {mechanism.decoder} {mechanism.sampler.t_range}"
    from quietbit_lab.task.linear_rows import check_rows

    check_rows(mechanism)
    return "rows"


def cohort_mean(kind: str, mechanisms: Sequence[Any], numbers: Sequence[int], cohort: int, device: Any) -> CohortMean:
    """What draws the means for models with these mechanisms, all of one kind; ``numbers`` address their words."""
    torch = require_module("torch", "lab")
    if kind == "none":
        return NormalMean(None, LAW_OF_THE_SUM)
    if kind == "central":
        # The server adds the noise once, to the sum.
        each = [mechanism.sigma / cohort for mechanism in mechanisms]
        return NormalMean(_column(each, device, torch.float32), LAW_OF_THE_SUM)
    if kind in ("gaussian", "skellam"):
        deviations = [math.sqrt(mechanism.variance(0.0) / cohort) for mechanism in mechanisms]
        draws = LAW_OF_THE_SUM if kind == "gaussian" else NORMAL_FOR_THE_SUM
        return NormalMean(_column(deviations, device, torch.float32), draws)
    if kind == "laplace":
        return LaplaceMean(_column([mechanism.scale for mechanism in mechanisms], device, torch.float64))
    if kind == "rows":
        from quietbit_lab.task.linear_rows import RowsMean

        return RowsMean(list(mechanisms), device)
    streams = torch.tensor(numbers, dtype=torch.int32, device=device)
    if kind.startswith("codes"):
        samplers = [mechanism.sampler for mechanism in mechanisms]
        gain = _column([sampler.scale / samplers[0].scale for sampler in samplers], device, torch.float64)
        unit = [float(np.abs(mechanism.values).max()) for mechanism in mechanisms]
        point = FixedPoint.of(mechanisms[0].values / unit[0], cohort)
        scale = [value / (cohort * 2.0**point.shift) for value in unit]
        return CodesMean(samplers[0], point.table, gain, _column(scale, device, torch.float64), streams)
    name, reach = kind.split()
    law = {"sign-normal": BitLaw.NORMAL, "sign-laplace": BitLaw.LAPLACE, "logistic": BitLaw.LOGISTIC}[name]
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


def bit_meaning(mechanism: InterpolatedMVU | Sign, share: float = 1.0) -> Meaning:
    """The one-bit law as ``law(gain * u)``: log-odds for I-MVU, standardised means for signs.

    The argument is cut at the reach: where the mechanism clamps, or beyond what any update of the ball can bring.
    """
    radius = mechanism.domain.radius
    if isinstance(mechanism, Sign):
        inner = mechanism.inner
        gain = 1 / (inner.sigma if isinstance(inner, Gaussian) else inner.scale)
        return Meaning(gain, -1.0, 1.0, _beyond(gain * radius * share))
    sampler = mechanism.sampler
    slope = float(sampler.slope[0, 1])
    low, high = mechanism.values.tolist()
    clamped = slope * sampler.t_range[1]
    return Meaning(slope * sampler.scale, low, high, min(clamped, _beyond(slope * sampler.scale * radius * share)))


def _beyond(reach: float) -> float:
    """A little more, in five digits: equal for mechanisms that differ by roundings alone.

    The kernel's largest reach is always enough: beyond it the bit is certain.
    """
    return min(MAX_REACH, float(f"{reach * (1 + 1e-4):.5g}"))


def _logistic(mechanism: InterpolatedMVU) -> bool:
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


def exact_mean(errors: Tensor, features: Tensor) -> Tensor:
    """The mean of outer products, as one matrix product for all models."""
    count, classes, clients = errors.shape
    return (errors.float().reshape(-1, clients) @ features).div_(clients).reshape(count, classes, -1)


def _column(values: Sequence[float], device: Any, kind: Any) -> Tensor:
    """One number per model, ready to be spread over its matrix."""
    torch = require_module("torch", "lab")
    return torch.from_numpy(np.asarray(values, dtype=np.float64)).to(device=device, dtype=kind)[:, None, None]
