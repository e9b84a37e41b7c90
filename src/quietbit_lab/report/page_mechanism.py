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
from quietbit.design.solve import solve
from quietbit.design.spec import DesignSpec
from quietbit.design.table import Design
from quietbit.errors import QuietbitError
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.registry import build

__all__ = ["Pictures", "rebuild"]

POINTS = 41  # per curve
MOST_CELLS = 24  # rows or columns of a table that is shown; larger ones are thinned
MOST_PICTURES = 120  # beyond it a page would grow without being read
CODED = ("Skellam",)  # whose bits are a choice of its own, not that of a design
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
        facts = [settings.get("norm"), settings.get("clip"), record.get("dimension"), record.get("expectation")]
        key = json.dumps([described, *facts])
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
    """The mechanism that a record describes; nothing where its numbers do not lead to it."""
    settings = record["settings"]
    try:
        ball = Ball(Norm(settings["norm"]), float(settings["clip"]), int(record["dimension"]))
        return _built(record["mechanism"], ball)
    except (QuietbitError, KeyError, TypeError, ValueError):
        return None


def _built(described: Mapping[str, Any], ball: Ball) -> Mechanism | None:
    """From the numbers of a record to the description that the registry reads."""
    shape = {"kind": "Ball", "norm": ball.norm.value, "radius": ball.radius, "dimension": ball.dimension}
    full = _full(described, shape)
    return None if full is None else build(full)


def _full(described: Mapping[str, Any], ball: Mapping[str, Any]) -> dict[str, Any] | None:
    kept = {name: value for name, value in described.items() if name not in ("bits", "design", "inner")}
    if "inner" in described:
        return {**kept, "inner": _full(described["inner"], ball)}
    if "design" in described:
        design = _design(described)
        if design is None:
            return None
        kept["design"] = {"design": {**json.loads(design.canonical()), "identity": design.identity()}}
    elif described["kind"] in CODED:
        kept["bits"] = described["bits"]
    return {**kept, "ball": dict(ball)}


def _design(described: Mapping[str, Any]) -> Design | None:
    """The design of these numbers, if its digest is the one of the record."""
    said, bits = described["design"], int(described["bits"])
    if int(said["levels"]) * 2**bits > MOST_SOLVED:
        return None
    design = solve(DesignSpec(int(said["levels"]), bits, float(said["epsilon"])))
    return design if design.identity() == said["identity"] else None


def _picture(mechanism: Mechanism, described: Mapping[str, Any], expected: Any) -> dict[str, Any]:
    clip, unit = mechanism.domain.radius, _unit(mechanism)
    x = np.linspace(-1.0, 1.0, POINTS)
    mean = np.array([mechanism.expectation(float(clip * u)) for u in x]) / unit
    variance = np.array([mechanism.variance(float(clip * u)) for u in x]) / unit**2
    return {
        "words": _words(described) + (f" What was to be expected: {expected}" if expected else ""),
        "x": _digits(x, 4),
        "bias": _digits(mean - x),
        "variance": _digits(variance),
        "typical": float(f"{mechanism.domain.dimension**-0.5:.4g}"),
        "table": _table(mechanism, unit),
    }


def _unit(mechanism: Any) -> float:
    """What a decoded value is divided by to be in units of the clip.

    A sign has no unit: it is brought to that of an update as a server would, by its slope at zero.
    """
    slope = getattr(mechanism, "slope_at_zero", None)
    return float(mechanism.domain.radius * (1.0 if slope is None else slope))


def _words(described: Mapping[str, Any]) -> str:
    kind = described["kind"]
    if kind == "Sign":
        return f"The sign of a noisy coordinate, one bit: {_words(described['inner'])}"
    if kind == "Gaussian":
        return f"Gaussian noise of {described['noise_multiplier']:.4g} times the clip on every coordinate."
    if kind == "Laplace":
        return f"Laplace noise of scale {described['scale_multiplier']:.4g} times the clip on every coordinate."
    if kind == "Skellam":
        noise = f"{described['noise_multiplier']:.4g} times the clip"
        return f"Skellam noise of {noise}, on integers of {described['bits']} bits."
    if kind == "IndependentSkellam":
        return f"{_words(described['inner'])} Every coordinate is rounded on its own."
    if "design" in described:
        said, count = described["design"], described["bits"]
        bits = f"{count} bit{'s' if count > 1 else ''}"
        return (
            f"A design of {said['levels']} levels and {bits}, metric epsilon {said['epsilon']:.4g}; "
            f"SHA-256 {said['identity'][:12]}…"
        )
    return str(kind)


def _table(mechanism: Any, unit: float) -> dict[str, Any] | None:
    """Probabilities of all symbols at the levels; noise that is a number has no table."""
    clip, design = mechanism.domain.radius, getattr(mechanism, "design", None)
    if design is not None:
        inputs = (2 * design.spec.levels - 1) / getattr(mechanism, "beta", 1.0)
        return _thinned(inputs, np.asarray(mechanism.values, dtype=np.float64) / clip, design.probabilities)
    if mechanism.layout.bits == 1:  # two codes of opposite values: the mean says how likely they are
        inputs = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
        plus = np.array([(1 + mechanism.expectation(float(clip * u))) / 2 for u in inputs])
        return _thinned(inputs, np.array([-1.0, 1.0]) / unit, np.stack([1 - plus, plus], axis=1))
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
