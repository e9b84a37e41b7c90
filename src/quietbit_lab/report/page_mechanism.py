"""Probability tables, bias and variance of the mechanisms of runs, rebuilt from their records.

Idea     a record names its mechanism by numbers; the mechanism is built from them again, and what it is drawn
         with are its own closed forms. Everything is in units of the clip: inputs from -1 to 1, one coordinate
         of an update. A design is accepted only if its digest is the record's.
Symbols  bias = expectation - input; a sign has no unit, so it is divided by its slope at zero first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit._validate import QuietbitError
from quietbit.design.solve import solve
from quietbit.design.spec import DesignSpec
from quietbit.design.table import Design
from quietbit.mechanism.additive import Gaussian, Laplace, Sign
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.dithered import DitheredMVU
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.skellam import Skellam

__all__ = ["Pictures", "rebuild"]

POINTS = 41  # per curve
MOST_CELLS = 24  # rows or columns of a table that is shown; larger ones are thinned
MOST_PICTURES = 120  # beyond it a page would grow without being read
MOST_SOLVED = 128  # levels times symbols of a design that is solved anew for a picture


class Pictures:
    """The pictures of a page: each mechanism once, numbered as it is first asked for."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}

    def place(self, record: Mapping[str, Any]) -> int:
        """The number of the record's mechanism, or -1 where there is nothing to draw."""
        described = record.get("mechanism")
        settings = record["settings"]
        if not described:
            return -1
        key = json.dumps([described, settings.get("norm"), settings.get("clip"), record.get("dimension")])
        if key not in self._places:
            self._places[key] = self._draw(record)
        return self._places[key]

    def _draw(self, record: Mapping[str, Any]) -> int:
        if len(self.found) >= MOST_PICTURES:
            return -1
        mechanism = rebuild(record)
        if mechanism is None:
            return -1
        self.found.append(_picture(mechanism))
        return len(self.found) - 1


def rebuild(record: Mapping[str, Any]) -> Mechanism | None:
    """The mechanism that a record describes; nothing where its numbers do not lead to it."""
    settings = record["settings"]
    try:
        ball = Ball(Norm(settings["norm"]), float(settings["clip"]), int(record["dimension"]))
        return _built(record["mechanism"], ball)
    except (QuietbitError, KeyError, TypeError, ValueError):
        return None


def _built(described: Mapping[str, Any], ball: Ball) -> Mechanism | None:
    kind = described["kind"]
    if kind == "Gaussian":
        return Gaussian(ball, described["noise_multiplier"])
    if kind == "Laplace":
        return Laplace(ball, described["scale_multiplier"])
    if kind == "Skellam":
        return Skellam(ball, described["noise_multiplier"], described["bits"])
    if kind == "Sign":
        inner = _built(described["inner"], ball)
        return Sign(inner) if isinstance(inner, Gaussian | Laplace) else None
    design = _design(described) if kind in ("InterpolatedMVU", "DitheredMVU") else None
    if design is None:
        return None
    if kind == "DitheredMVU":
        return DitheredMVU(design, ball)
    return InterpolatedMVU(design, ball, described["beta"], described["clamp"], described["decoder"])


def _design(described: Mapping[str, Any]) -> Design | None:
    """The design of these numbers, if its digest is the one of the record."""
    said, bits = described["design"], int(described["bits"])
    if int(said["levels"]) * 2**bits > MOST_SOLVED:
        return None
    design = solve(DesignSpec(int(said["levels"]), bits, float(said["epsilon"])))
    return design if design.identity() == said["identity"] else None


def _picture(mechanism: Mechanism) -> dict[str, Any]:
    clip = mechanism.domain.radius
    # A sign is brought to the units of an update as a server would; all others have them already.
    unit = clip * mechanism.slope_at_zero if isinstance(mechanism, Sign) else 1.0
    x = np.linspace(-1.0, 1.0, POINTS)
    mean = np.array([mechanism.expectation(float(clip * u)) for u in x]) / (unit if unit != 1.0 else clip)
    variance = np.array([mechanism.variance(float(clip * u)) for u in x]) / (unit if unit != 1.0 else clip) ** 2
    return {
        "words": _words(mechanism),
        "x": _digits(x, 4),
        "bias": _digits(mean - x),
        "variance": _digits(variance),
        "typical": float(f"{mechanism.domain.dimension**-0.5:.4g}"),
        "table": _table(mechanism),
    }


def _words(mechanism: Mechanism) -> str:
    if isinstance(mechanism, Sign):
        return f"The sign of a noisy coordinate, one bit: {_words(mechanism.inner)}"
    if isinstance(mechanism, Gaussian):
        return f"Gaussian noise of {mechanism.noise_multiplier:.4g} times the clip on every coordinate."
    if isinstance(mechanism, Laplace):
        return f"Laplace noise of scale {mechanism.scale_multiplier:.4g} times the clip on every coordinate."
    if isinstance(mechanism, Skellam):
        noise = f"{mechanism.noise_multiplier:.4g} times the clip"
        return f"Skellam noise of {noise}, on integers of {mechanism.bits} bits."
    if isinstance(mechanism, InterpolatedMVU | DitheredMVU):
        spec = mechanism.design.spec
        bits = f"{spec.output_bits} bit{'s' if spec.output_bits > 1 else ''}"
        return (
            f"A design of {spec.input_levels} levels and {bits}, metric epsilon {spec.epsilon:.4g}; "
            f"SHA-256 {mechanism.design.identity()[:12]}…"
        )
    return type(mechanism).__name__


def _table(mechanism: Mechanism) -> dict[str, Any] | None:
    """Probabilities of all symbols at the levels; noise that is a number has no table."""
    clip = mechanism.domain.radius
    if isinstance(mechanism, Sign):
        inputs = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
        plus = np.array([(1 + mechanism.expectation(float(clip * u))) / 2 for u in inputs])
        value = 1 / (clip * mechanism.slope_at_zero)
        return _thinned(inputs, np.array([-value, value]), np.stack([1 - plus, plus], axis=1))
    if isinstance(mechanism, InterpolatedMVU | DitheredMVU):
        beta = mechanism.beta if isinstance(mechanism, InterpolatedMVU) else 1.0
        inputs = (2 * mechanism.design.spec.levels - 1) / beta
        values = np.asarray(mechanism.values, dtype=np.float64) / clip
        return _thinned(inputs, values, mechanism.design.probabilities)
    return None


def _thinned(inputs: FloatVector, values: FloatVector, table: FloatMatrix) -> dict[str, Any]:
    rows, columns = _some(len(inputs)), _some(len(values))
    return {
        "inputs": _digits(inputs[rows], 4),
        "values": _digits(values[columns], 4),
        "probabilities": [_digits(row[columns]) for row in table[rows]],
        "levels": len(inputs),
        "symbols": len(values),
    }


def _some(count: int) -> list[int]:
    if count <= MOST_CELLS:
        return list(range(count))
    return [round(k * (count - 1) / (MOST_CELLS - 1)) for k in range(MOST_CELLS)]


def _digits(values: FloatVector, digits: int = 5) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values.tolist()]
