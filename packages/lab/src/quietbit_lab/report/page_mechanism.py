"""Probability tables, bias and variance of the mechanisms of runs, rebuilt from their records.

Idea     a record holds the description of its mechanism, which is built from it again; what it is
         drawn with are its own closed forms. Everything is in units of the clip: inputs from -1 to
         1, one coordinate of an update.
Symbols  bias = expectation - input; a sign has no unit, so it is divided by its slope at zero
         first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.errors import QuietbitError
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.registry import build

__all__ = ["Pictures", "rebuild"]

POINTS = 41  # per curve
MOST_CELLS = 24  # rows or columns of a table that is shown; larger ones are thinned
MOST_PICTURES = 120  # beyond it a page would grow without being read


class Pictures:
    """The pictures of a page: each mechanism once, numbered as it is first asked for."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}

    def place(self, record: Mapping[str, Any]) -> int:
        """Return the number of the record's mechanism, or -1 if there is nothing to draw."""
        described = record.get("mechanism")
        if not described:
            return -1
        key = json.dumps([described, record.get("expectation")])
        if key not in self._places:
            self._places[key] = self._draw(record)
        return self._places[key]

    def _draw(self, record: Mapping[str, Any]) -> int:
        if len(self.found) >= MOST_PICTURES:
            return -1
        mechanism = rebuild(record)
        if mechanism is None:
            return -1
        self.found.append(_picture(mechanism, record["mechanism"], record.get("expectation")))
        return len(self.found) - 1


def rebuild(record: Mapping[str, Any]) -> Mechanism | None:
    """Return the mechanism that a record describes; None if its numbers do not lead to it."""
    try:
        return build(record["mechanism"])
    except (QuietbitError, TypeError):
        return None


def _picture(mechanism: Mechanism, described: Mapping[str, Any], expected: Any) -> dict[str, Any]:
    # A sign is brought to clips by its slope.
    unit = mechanism.error().gain if mechanism.unitless else 1.0
    x = np.linspace(-1.0, 1.0, POINTS)
    mean = np.array([mechanism.expectation(float(u)) for u in x]) / unit
    variance = np.array([mechanism.variance(float(u)) for u in x]) / unit**2
    return {
        "words": _words(described, mechanism.layout.bits)
        + (f" What was to be expected: {expected}" if expected else ""),
        "x": _digits(x, 4),
        "bias": _digits(mean - x),
        "variance": _digits(variance),
        "typical": float(f"{mechanism.ball.dimension**-0.5:.4g}"),
        "table": _table(mechanism, described, unit),
    }


NOISES = {
    "Gaussian": "Gaussian noise of {noise_multiplier:.4g} times the clip on every coordinate.",
    "Laplace": "Laplace noise of scale {scale_multiplier:.4g} times the clip on every coordinate.",
    "Skellam": "Skellam noise of {noise_multiplier:.4g} clips, on integers of {bits} bits.",
    "Sign": "The sign of a noisy coordinate, one bit: {inner}",
    "IndependentSkellam": "{inner} Every coordinate is rounded on its own.",
}


def _words(described: Mapping[str, Any], bits: int) -> str:
    kind = described["kind"]
    if kind in NOISES:
        if "inner" in described:
            inner = _words(described["inner"], bits)
        else:
            inner = ""
        return NOISES[kind].format(**{**described, "bits": bits, "inner": inner})
    if "design" in described:
        design = described["design"]["design"]
        return (
            f"A design of {design['spec']['input_levels']} levels and "
            f"{bits} bit{'s' if bits > 1 else ''}, "
            f"metric epsilon {design['spec']['epsilon']:.4g}; SHA-256 {design['identity'][:12]}…"
        )
    return str(kind)


def _table(mechanism: Any, described: Mapping[str, Any], unit: float) -> dict[str, Any] | None:
    """Probabilities of all symbols at the levels; noise that is a number has no table."""
    if "design" in described:
        design = mechanism.design
        inputs = (2 * design.spec.levels - 1) / described.get("beta", 1.0)
        return _thinned(inputs, mechanism.values, design.probabilities)
    if described["kind"] == "Sign":
        inputs = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
        table = np.stack([mechanism.distribution(float(u)) for u in inputs])
        return _thinned(inputs, mechanism.values / unit, table)
    return None


def _thinned(inputs: FloatVector, values: FloatVector, table: FloatMatrix) -> dict[str, Any]:
    rows = _some(len(inputs))
    columns = _some(len(values))
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
