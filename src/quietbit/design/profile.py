"""A profile: the one-dimensional design of the vector mechanism, a non-decreasing step function.

Idea     Clients send z with density h(<u, z>) against N(0, I), u the direction of the update. Here h is stored as a
         few doubles and everything said about it is measured from those doubles, in decimal arithmetic that is
         rounded outwards.
Symbols  t_1 < ... < t_{m-1}: edges. w_0 <= ... <= w_{m-1}: levels; h(t) = w_j / Z where j edges are at most t.
         Z = E w(t), t ~ N(0,1). gain = E[t h(t)] = sum_j (w_j - w_{j-1}) phi(t_j) / Z, by parts.
Source   docs/theory/vector-mechanism.md. A step with two levels is PrivUnitG (Asi, Feldman, Talwar 2022).

Normalisation. E h = 1 cannot hold in doubles, and it need not: h is *defined* as w / Z with the real number Z, and that
is what a sampler that accepts with probability proportional to w draws from, exactly. The constructor keeps Z within
2^-40 of one, so levels may be read as values of h. An update of norm r < 1 is sent with weights 1 - r + r w: after
normalisation a mixture of N(0, I) and h with weight r Z / (1 - r + r Z), which lies in [0, 1] whatever Z is; the
account covers all of those, so an inexact Z costs no privacy, only a relative bias of |Z - 1|.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass, field
from decimal import Context, Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np

from quietbit._typing import FloatArray, FloatVector
from quietbit.design.normal import LARGEST, cell_masses, density, float_lower, float_upper
from quietbit.errors import require

__all__ = ["ADJACENCIES", "Profile"]

FORMAT = "quietbit-profile"
VERSION = 1
MOST_LEVELS = 1024
MASS_ERROR = 2.0**-40
ADJACENCIES = ("replace-one", "zero-out")  # the words of quietbit.privacy.guarantee.Adjacency
_DIGITS = Context(prec=130)
# A sum of at most 1,024 products of a level (below 1e60) and a mass or density (within 2e-90), each to 130 digits.
_SUM_ERROR = Decimal("1e-26")
_CELL_ERROR = Decimal("2e-90")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """A non-decreasing step function with mean one under N(0, 1); compare two by ``identity()``.

    ``levels[j]`` holds where exactly j of the ``edges`` are at most t. Arrays are read-only copies.

    >>> pure = Profile.from_weights([0.3975], [1.0, math.e])
    >>> round(pure.gain_lower**-2, 3)
    6.33
    """

    edges: FloatVector
    levels: FloatVector
    _masses: tuple[Decimal, ...] = field(init=False, repr=False)
    _mass: Decimal = field(init=False, repr=False)
    _gain: Decimal = field(init=False, repr=False)
    _identity: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check order, signs and mass, then freeze the arrays."""
        edges, levels = _frozen(self.edges, "edges"), _frozen(self.levels, "levels")
        require(1 <= edges.size < MOST_LEVELS, "number of edges", edges.size, f"from 1 to {MOST_LEVELS - 1}")
        require(
            levels.size == edges.size + 1, "number of levels", levels.size, f"{edges.size + 1}, one above the edges"
        )
        inside = bool(np.all(np.abs(edges) <= LARGEST))
        require(inside, "edges", edges.tolist(), f"finite and within {LARGEST:g} of zero")
        require(bool(np.all(np.diff(edges) > 0)), "edges", edges.tolist(), "strictly increasing")
        require(bool(np.all((levels >= 0) & (levels < 1e60))), "levels", levels.tolist(), "at least 0 and below 1e60")
        require(bool(np.all(np.diff(levels) >= 0)), "levels", levels.tolist(), "non-decreasing")
        require(levels[0] < levels[-1], "levels", levels.tolist(), "not all the same")
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "_masses", tuple(cell_masses(edges.tolist())))
        mass = _weighted(levels.tolist(), self._masses)
        require(abs(mass - 1) <= Decimal(MASS_ERROR), "mean of the levels", float(mass), "within 2^-40 of one")
        jumps = [_DIGITS.subtract(Decimal(b), Decimal(a)) for a, b in pairwise(levels.tolist())]
        gain = _DIGITS.divide(_weighted(jumps, [density(edge) for edge in edges.tolist()]), mass)
        object.__setattr__(self, "_mass", mass)
        object.__setattr__(self, "_gain", gain)
        object.__setattr__(self, "_identity", hashlib.sha256(self.canonical().encode()).hexdigest())

    @classmethod
    def from_weights(cls, edges: Any, weights: Any) -> Profile:
        """Return the profile proportional to ``weights``.

        They are divided by their mean, which leaves Z within rounding of one.
        """
        checked, values = _frozen(edges, "edges"), _frozen(weights, "weights")
        usable = values.size == checked.size + 1 and bool(np.all(np.isfinite(values) & (values >= 0)))
        require(usable, "weights", values.tolist(), f"{checked.size + 1} numbers of at least 0")
        require(bool(np.all(np.abs(checked) <= LARGEST)), "edges", checked.tolist(), f"within {LARGEST:g} of zero")
        require(bool(np.all(np.diff(checked) > 0)), "edges", checked.tolist(), "strictly increasing")
        mean = float(_weighted(values.tolist(), cell_masses(checked.tolist())))
        require(mean > 0, "mean of the weights", mean, "positive")
        return cls(checked, values / mean)

    @property
    def gain_lower(self) -> float:
        """A lower bound on E[t h(t)]: the squared error per coordinate is at most ``gain_lower**-2``."""
        return float_lower(self._gain, _SUM_ERROR)

    @property
    def gain_upper(self) -> float:
        """An upper bound on E[t h(t)]; at most one double above ``gain_lower`` where that is possible."""
        return float_upper(self._gain, _SUM_ERROR)

    @property
    def largest(self) -> float:
        """The largest stored level: expected tries of a sampler that proposes from N(0, I), to within 2^-40."""
        return float(self.levels[-1])

    @property
    def second_moment(self) -> float:
        """E[t^2 h(t)] = 1 + sum_j (h_j - h_{j-1}) t_j phi(t_j): the energy of a release along the update."""
        jumps = np.diff(self.levels)
        densities = np.exp(-0.5 * self.edges**2) / math.sqrt(2 * math.pi)
        return 1.0 + float(np.sum(jumps * self.edges * densities)) / float(self._mass)

    def __call__(self, t: FloatArray) -> FloatVector:
        """Return the stored level at each t; NaN is refused, for it has no place among the edges."""
        values = np.asarray(t, dtype=np.float64)
        require(not bool(np.any(np.isnan(values))), "t", t, "numbers")
        found: FloatVector = self.levels[np.searchsorted(self.edges, values, side="right")]
        return found

    def pairs(self, adjacency: str, blur: float = 0.0) -> list[tuple[FloatVector, FloatVector]]:
        """Return the dominating pairs as finite masses (P, Q), P rounded up and Q down, one entry per direction.

        Replace-one: P has density h(t) and Q h(-t) against N(0,1), constant between the edges and their mirror images;
        swapping the two is reflecting t, so one direction stands for both. Zero-out: (h, 1) and (1, h).
        Rounding moves each mass by a relative 2^-52 or so, and hockey-stick divergences only upwards.

        Args:
            adjacency: "replace-one" or "zero-out".
            blur: how far the <u, z> that a sampler computes may be from the true one. Its weights lie between
                w(t - blur) and w(t + blur): P takes the larger and Q the smaller, each with the worse normalisation.
        """
        require(adjacency in ADJACENCIES, "adjacency", adjacency, " or ".join(ADJACENCIES))
        require(0 <= blur <= 0.01, "blur", blur, "at least 0 and at most 0.01")
        # h(t + blur) has its edges earlier, h(t - blur) later; one more unit covers the rounding of the difference.
        early = np.nextafter(self.edges - blur, -np.inf) if blur else self.edges
        late = np.nextafter(self.edges + blur, np.inf) if blur else self.edges
        apart = bool(np.all(np.diff(early) > 0) and np.all(np.diff(late) > 0))
        require(
            apart and np.abs([early[0], late[-1]]).max() <= LARGEST, "blur", blur, "smaller than the gaps of the edges"
        )
        early_cells, late_cells = cell_masses(early.tolist()), cell_masses(late.tolist())
        most, least = _weighted(self.levels.tolist(), early_cells), _weighted(self.levels.tolist(), late_cells)
        every = list(range(self.levels.size))
        if adjacency == "zero-out":
            higher, _ = self._rounded(every, early_cells, least)
            _, lower = self._rounded(every, late_cells, most)
            base_below = np.array([max(0.0, float_lower(mass, _CELL_ERROR)) for mass in early_cells])
            base_above = np.array([float_upper(mass, _CELL_ERROR) for mass in late_cells])
            return [(higher, base_below), (base_above, lower)]
        cuts = np.union1d(early, -late)
        masses = cell_masses(cuts.tolist())
        left = np.concatenate(([-np.inf], cuts))  # a cell takes its levels from its left end, where h(t) has stepped up
        right = np.concatenate((cuts, [np.inf]))
        here = np.searchsorted(early, left, side="right")
        there = np.searchsorted(
            late, -right, side="right"
        )  # h(-t) steps down going right: its least is at the right end
        higher, _ = self._rounded(here.tolist(), masses, least)
        _, lower = self._rounded(there.tolist(), masses, most)
        return [(higher, lower)]

    def pure_epsilon_upper(self, adjacency: str) -> float:
        """Return the largest privacy loss of one release.

        Replace-one: log(h_max/h_min). Zero-out: the larger of log h_max and -log h_min.
        """
        require(adjacency in ADJACENCIES, "adjacency", adjacency, " or ".join(ADJACENCIES))
        if self.levels[0] == 0:
            return math.inf
        low, high = _DIGITS.ln(Decimal(float(self.levels[0]))), _DIGITS.ln(Decimal(self.largest))
        if adjacency == "replace-one":
            return float_upper(_DIGITS.subtract(high, low), Decimal("1e-100"))
        centre = _DIGITS.ln(self._mass)
        loss = max(_DIGITS.subtract(high, centre), _DIGITS.subtract(centre, low))
        return float_upper(loss, Decimal("1e-25"))

    def identity(self) -> str:
        """SHA-256 of the canonical text, in hexadecimal."""
        return self._identity

    def canonical(self) -> str:
        """Return the one text that stands for this profile: sorted keys, shortest exact decimals, no spaces."""
        content = {"edges": self.edges.tolist(), "format": FORMAT, "levels": self.levels.tolist(), "version": VERSION}
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the profile and its identity; the file appears whole or not at all."""
        from quietbit.design.store import write_profile

        return write_profile(self, Path(path))

    def _rounded(self, index: list[int], masses: list[Decimal], mean: Decimal) -> tuple[FloatVector, FloatVector]:
        """Masses times the levels at ``index`` over their mean: rounded up, and rounded down."""
        levels = [Decimal(level) for level in self.levels.tolist()]
        ups, downs = np.empty(len(masses)), np.empty(len(masses))
        for place, (j, mass) in enumerate(zip(index, masses, strict=True)):
            value = _DIGITS.divide(_DIGITS.multiply(levels[j], mass), mean)
            # The mean is known within 1e-26, a mass within 2e-90: a relative 1e-25 and 1e-89 levels cover both.
            slack = _DIGITS.add(
                _DIGITS.multiply(value, Decimal("1e-25")), _DIGITS.multiply(levels[j], Decimal("1e-89"))
            )
            ups[place], downs[place] = float_upper(value, slack), max(0.0, float_lower(value, slack))
        return ups, downs


def _weighted(values: list[Any], masses: Any) -> Decimal:
    total = Decimal(0)
    for value, mass in zip(values, masses, strict=True):
        total = _DIGITS.add(total, _DIGITS.multiply(Decimal(value), mass))
    return total


def _frozen(values: Any, name: str) -> FloatVector:
    try:
        array = np.array(values, dtype=np.float64, order="C", copy=True)
    except (TypeError, ValueError):
        array = np.empty((0, 0))
    require(array.ndim == 1, name, values, "a list of numbers")
    array.setflags(write=False)
    return array
