"""The mean of a cohort's releases, drawn from the mechanisms' laws and without payloads.

Idea     a server needs the mean alone, and a simulation only its law. `way_of` says what is drawn
         for a mechanism: the exact mean with one normal on it where the sum's law is normal, or so
         nearly that no training could tell; two gammas for Laplace noise; otherwise a code for
         every client and coordinate from `CodeLaw`. `together` does it for the models of a batch
         whose updates are outer products, `Way.rows` for updates that are written out.
Symbols  G models, K classes, m clients; errors (G, K, m): clipped p - y; features (m, width); a
         client's update is their outer product. rows: m clipped updates, (..., m, d).
Source   `quietbit/mechanism` for the laws; Kotz, Kozubowski, Podgorski (2001), section 2.2, for
         Laplace sums.

What differs from payloads: 32-bit roundings of single floats; Skellam's noise (variance v per
client, in units of its integers) and roundings are replaced by a normal of the same variance, where
the sum's excess kurtosis, at most 1/(m v), is below 1e-6; codes' probabilities are right to 4e-6.
Tests hold means and variances against real payloads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, final

import numpy as np
from attrs import evolve, field, frozen

from quietbit.errors import InvalidParameter, require, require_module
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.rotation import Rotation
from quietbit.target import Trust
from quietbit_lab.baseline.skellam import length_upper
from quietbit_lab.cohort.law import MOST_BITS, CodeLaw, code_law
from quietbit_lab.cohort.moments import Moments, fit_moments, power_sums
from quietbit_lab.cohort.releases import rotated, rotated_back
from quietbit_lab.experiment.grid import DRAWS
from quietbit_lab.experiment.record import EVERY_CLIENT

__all__ = [
    "LAW_OF_THE_SUM",
    "NORMAL_FOR_THE_SUM",
    "OuterMean",
    "Way",
    "again_upper",
    "codes_mean",
    "gaussian_mean",
    "together",
    "unit_mean",
    "way_of",
]

torch: Any = require_module("torch", "lab[torch]")
Tensor: TypeAlias = Any
OuterMean: TypeAlias = Callable[
    [Tensor, Tensor, int], Tensor
]  # errors, features, seed -> (G, K, width) in float32
LAW_OF_THE_SUM = "law of the sum"
NORMAL_FOR_THE_SUM = "normal in place of the sum"
LEAST_VARIANCE = 1e6  # of a cohort's Skellam noise, where a normal replaces it
NEVER = 1e-30  # a chance of drawing MVU's dither again that no simulation meets


@final
@frozen(eq=False)
class Way:
    """How a cohort's mean is drawn; models of one ``kind`` are drawn together.

    ``deviation`` is that of the mean's noise, or its Laplace noise's scale for one client; ``law``
    the codes', of rows that are rotated first where there is a ``rotation``.
    """

    kind: str
    draws: str
    deviation: float = 0.0
    law: CodeLaw | None = None
    moments: Moments | None = None
    mechanism: Any = field(default=None, repr=False)
    rotation: Rotation | None = None
    scale: float = 1.0  # of what moments are in

    def rows(self, rows: Tensor, generator: Any) -> Tensor:
        """Return the mean over clients of releases of clipped updates (..., m, d)."""
        if self.law is not None and self.rotation is not None:
            mean = codes_mean(rotated(rows, self.rotation), self.law, generator)
            return rotated_back(mean, self.rotation)
        if self.law is not None:
            return codes_mean(rows, self.law, generator)
        require(
            self.kind == "normal", "mechanism", self.kind, "one whose sums are normal, or of codes"
        )
        return gaussian_mean(rows, self.deviation * math.sqrt(rows.shape[-2]), generator)


def way_of(
    mechanism: Any,
    cohort: int,
    trust: Trust = Trust.LOCAL,
    share: float = 1.0,
    draw: str = "clients",
    clip: float = 1.0,
) -> Way:
    """Return how a mechanism's means are drawn (None: no privacy); refuse one without a law.

    ``clip`` is the largest norm of an update.
    ``share`` is the largest part of an update's length that one coordinate can have. With ``draw``
    "sums" a normal is drawn in place of the sum of codes where it may stand for it.
    """
    require(draw in DRAWS, "draw", draw, "one of " + ", ".join(DRAWS))
    if mechanism is None:
        return Way("normal", LAW_OF_THE_SUM)
    if trust is Trust.CENTRAL:  # the server adds the noise once, to the sum
        return Way("normal", LAW_OF_THE_SUM, mechanism.unit * clip / cohort)
    name = type(mechanism).__name__
    if name not in WAYS:
        known = "one of " + ", ".join(WAYS)
        raise InvalidParameter.of("mechanism", known, name, "leave out --device")
    way = WAYS[name](mechanism, cohort, share)
    scale = 1.0 if mechanism.unitless else clip
    if way.law is not None:
        way = evolve(way, law=way.law.at_clip(clip, scale))
    else:
        way = evolve(way, deviation=way.deviation * scale)
    if draw == "sums" and way.kind == "laplace":
        normal = _normal(mechanism, cohort)
        return evolve(normal, deviation=normal.deviation * scale)
    if draw == "sums" and way.rotation is None and name in CODED:
        moments = fit_moments(mechanism, share, cohort)
        if moments is not None:
            kind = f"moments {moments.odd} {moments.even} share {share!r}"
            return Way(
                kind, NORMAL_FOR_THE_SUM, share * clip, None, moments, mechanism, scale=scale
            )
    return way


def _normal(mechanism: Any, cohort: int, draws: str = NORMAL_FOR_THE_SUM) -> Way:
    return Way("normal", draws, math.sqrt(mechanism.variance(0.0) / cohort))


def _skellam(mechanism: Any, cohort: int, share: float) -> Way:
    core: Any = mechanism.core
    variance = cohort * core.noise_variance
    if variance < LEAST_VARIANCE:
        raise InvalidParameter.of(
            "variance of a cohort's Skellam noise",
            f"at least {LEAST_VARIANCE:g} squared integers",
            variance,
            "use more bits, or leave out --device",
        )
    return _normal(mechanism, cohort)


def _codes(mechanism: Any, cohort: int, share: float) -> Way:
    law = code_law(mechanism, share)
    if law.bits > MOST_BITS:
        rule = f"at most {MOST_BITS} for many models at once"
        raise InvalidParameter.of("bits", rule, law.bits, "leave out --device")
    return Way(f"codes {law.bits}", EVERY_CLIENT, law=law)


def _interpolated(mechanism: Any, cohort: int, share: float) -> Way:
    way = _codes(mechanism, cohort, share)
    turn = mechanism.rotation
    if turn is None:
        return way
    return evolve(way, kind=f"{way.kind} rotated", rotation=turn)


def _dithered(mechanism: Any, cohort: int, share: float) -> Way:
    if again_upper(mechanism) > NEVER:  # only dithered on its own has a coordinate a law of its own
        raise InvalidParameter.of(
            "levels",
            "odd and many enough that MVU never draws its dither again",
            mechanism.design.spec.input_levels,
            "leave out --device",
        )
    return _codes(mechanism, cohort, share)


CODED = ("Sign", "InterpolatedMVU", "DitheredMVU")
# What only the laboratory knows of a class of mechanisms: how its cohorts are drawn.
WAYS: Mapping[str, Callable[[Any, int, float], Way]] = {
    "Gaussian": lambda mechanism, cohort, share: _normal(mechanism, cohort, LAW_OF_THE_SUM),
    "Laplace": lambda mechanism, cohort, share: Way("laplace", LAW_OF_THE_SUM, mechanism.unit),
    "Skellam": _skellam,
    "IndependentSkellam": _skellam,
    "Sign": _codes,
    "InterpolatedMVU": _interpolated,
    "DitheredMVU": _dithered,
}


def again_upper(mechanism: Any) -> float:
    """Bound the chance that one update's dither is drawn again; 1 for an L1 ball.

    In spacings, with zero a level and updates of length R at most: a rounded square exceeds y^2 by
    min(1/4, |y|) or less on average, so that the sum of squares has mean R^2 + min(d/4, sqrt(d) R)
    at most; and Hoeffding's inequality with the ranges of `quietbit_lab/baseline/skellam.py`.
    """
    ball = mechanism.ball
    cells = mechanism.design.spec.input_levels - 1
    if ball.norm is not Norm.L2 or cells % 2 == 1:
        return 1.0
    radius = cells / 2
    root = math.sqrt(ball.dimension)
    mean = radius**2 + min(ball.dimension / 4, root * radius)
    room = min(length_upper(ball.norm, radius, ball.dimension), ball.dimension * radius**2) - mean
    if room > 0:
        return math.exp(-2 * (room / (2 * radius + root)) ** 2)
    return 1.0


def together(ways: Sequence[Way], cohort: int, device: Any) -> OuterMean:
    """Return what draws the means of models of one kind whose updates are outer products."""

    def column(values: Any, kind: Any) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.float64)).to(device=device, dtype=kind)[
            ..., None, None
        ]

    def generator(seed: int) -> Any:
        return torch.Generator(device=device).manual_seed(seed)

    kind = ways[0].kind
    require(
        ways[0].rotation is None,
        "rotate",
        True,
        "False for linear models on a device",
        "set rotate = false, or leave out --device",
    )
    if kind == "normal":
        deviations = column([way.deviation for way in ways], torch.float32)

        def normal(errors: Tensor, features: Tensor, seed: int) -> Tensor:
            mean = exact_mean(errors, features)
            return mean.addcmul_(
                mean.new_empty(mean.shape).normal_(generator=generator(seed)), deviations
            )

        return normal
    if kind == "laplace":
        scales = column([way.deviation / cohort for way in ways], torch.float64)

        def laplace(errors: Tensor, features: Tensor, seed: int) -> Tensor:
            """Add a sum of m Laplace variables, drawn as a difference of two gammas of shape m."""
            mean = exact_mean(errors, features)
            source = generator(seed)
            shape = errors.new_full((1,), float(errors.shape[2])).expand(mean.shape)
            noise = torch._standard_gamma(shape, generator=source) - torch._standard_gamma(
                shape, generator=source
            )
            return mean.add_((noise * scales).float())

        return laplace
    if kind.startswith("moments"):
        fits = [way.moments for way in ways if way.moments is not None]
        units = np.array([way.scale for way in ways])
        unit = column([1 / way.deviation for way in ways], torch.float64)
        scaled = np.array([fit.mean for fit in fits]) * (units / cohort)[:, None]
        spreads = np.array([fit.variance for fit in fits]) * (units[:, None] / cohort) ** 2
        means = column(scaled.T, torch.float64)
        variances = column(spreads.T[1:], torch.float64)
        constant = column(spreads[:, 0] * cohort, torch.float32)

        def of_moments(errors: Tensor, features: Tensor, seed: int) -> Tensor:
            """Compute a matrix product for each power, and draw one normal for each coordinate."""
            inputs = errors * unit
            mean = power_sums(inputs, features, fits[0].odd, means, signed=True)
            noise = mean.new_empty(mean.shape).normal_(generator=generator(seed))
            spread = constant
            if fits[0].even:
                spread = constant + power_sums(
                    inputs, features, fits[0].even, variances, signed=False
                )
            return mean.addcmul_(noise, spread.clamp(min=0.0).sqrt())

        return of_moments
    laws = [way.law for way in ways if way.law is not None]

    def codes(errors: Tensor, features: Tensor, seed: int) -> Tensor:
        """Draw every client's codes: a class at a time on a CPU, in one kernel on a GPU."""
        source = generator(seed)
        draw = _outer_codes
        step = 1
        if errors.device.type == "cuda":
            draw = _compiled()
            step = errors.shape[1]
        means = []
        for law, model in zip(laws, errors.float(), strict=True):
            tables = _tables(law, str(errors.device))
            for left in model.split(step):
                shape = (*left.shape, features.shape[1])
                uniform = torch.rand(shape, generator=source, device=errors.device)
                means.append(draw(left, features, uniform, *tables))
        return torch.cat(means).reshape(len(laws), -1, features.shape[1])

    return codes


def exact_mean(errors: Tensor, features: Tensor) -> Tensor:
    """Return the mean of outer products, as one matrix product for all models."""
    count, classes, clients = errors.shape
    return (
        (errors.float().reshape(-1, clients) @ features).div_(clients).reshape(count, classes, -1)
    )


def gaussian_mean(rows: Tensor, deviation: float, generator: Any) -> Tensor:
    """Return the mean of rows with normal noise of this deviation, drawn as one sum."""
    mean = rows.mean(dim=-2)
    if deviation == 0:
        return mean
    noise = torch.randn(mean.shape, generator=generator, device=rows.device)
    return mean + noise * (deviation / math.sqrt(rows.shape[-2]))


def codes_mean(rows: Tensor, law: CodeLaw, generator: Any) -> Tensor:
    """Return the mean over clients of decoded codes of rows (..., m, d); a NaN gets some code."""
    uniform = torch.rand(rows.shape, generator=generator, device=rows.device)
    return _mean(rows, uniform, *_tables(law, str(rows.device)))


def _mean(rows: Tensor, uniform: Tensor, table: Tensor, values: Tensor, place: Tensor) -> Tensor:
    """Return the mean of the codes that uniform numbers draw; see `CodeLaw`."""
    cells = table.shape[0] - 1
    count = table.shape[1]
    x = ((rows - place[0]) * place[1]).clamp(0.0, cells - 1e-3)
    cell = x.nan_to_num(0.0).int()
    part = x - cell
    flat = table.reshape(-1)
    code = torch.zeros_like(cell)
    step = (count + 1) // 2
    while step > 0:
        here = cell * count + code + (step - 1)
        code += step * (uniform >= torch.lerp(flat[here], flat[here + count], part))
        step //= 2
    return values[code].mean(dim=-2)


def _outer_codes(left: Tensor, right: Tensor, uniform: Tensor, *tables: Tensor) -> Tensor:
    """Return the means of codes of outer products: left (K, m), right (m, F)."""
    return _mean(left[..., None] * right, uniform, *tables)


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Tensor]:
    """Return the same in one kernel, which writes neither products nor codes."""
    made: Callable[..., Tensor] = torch.compile(_outer_codes)
    return made


@lru_cache(maxsize=64)
def _tables(law: CodeLaw, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return a law's probabilities, values and range on a device; laws compare by identity."""

    def moved(array: Any) -> Tensor:
        return torch.tensor(array, dtype=torch.float32, device=device)

    return moved(law.cumulative), moved(law.values), moved([law.low, law.inverse])


def unit_mean(rows: Tensor, mechanism: Any, generator: Any) -> Tensor:
    """Return the mean of releases of rows in the unit ball; signs by their slope."""
    return way_of(mechanism, rows.shape[-2]).rows(rows, generator) / _slope(mechanism)


@lru_cache(maxsize=64)
def _slope(mechanism: Any) -> float:
    return float(mechanism.error().gain) if mechanism.unitless else 1.0
