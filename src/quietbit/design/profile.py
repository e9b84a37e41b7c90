"""A profile: the one-dimensional design of the vector mechanism, a non-decreasing step function.

Idea     clients send z with density h(<u, z>) against N(0, I), u the direction of the update. h is
         stored as a few doubles, from which its properties are computed in outward-rounded decimal
         arithmetic. It is *defined* as w / Z, the exact law of a sampler that accepts with
         probability proportional to w; an inexact Z costs no privacy, only a relative bias of |Z -
         1|, at most 2^-40.
Symbols  t_1 < ... < t_{m-1}: edges. w_0 <= ... <= w_{m-1}: levels; h(t) = w_j / Z where j edges are
         at most t. Z = E w(t), t ~ N(0,1). gain = E[t h(t)] = sum_j (w_j - w_{j-1}) phi(t_j) / Z,
         by parts.
Source   docs/theory/vector-mechanism.md. A step with two levels is PrivUnitG (Asi, Feldman, Talwar
         2022).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Context, Decimal
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, ClassVar, final

import numpy as np
from attrs import field, frozen

from quietbit._typing import FloatArray, FloatVector
from quietbit.design.normal import LARGEST, cell_masses, density, float_lower, float_upper
from quietbit.design.store import Stored, frozen_array
from quietbit.errors import require
from quietbit.target import Adjacency, Target

__all__ = ["Profile", "shipped_profile"]

MOST_LEVELS = 1024
MASS_ERROR = 2.0**-40
_DIGITS = Context(prec=130)
# Of a sum of at most 1,024 products of a level (below 1e60) and a mass or density (within 2e-90),
# each to 130 digits.
_SUM_ERROR = Decimal("1e-26")
_CELL_ERROR = Decimal("2e-90")


def _vector(values: Any, name: str) -> FloatVector:
    try:
        array = frozen_array(values)
    except (TypeError, ValueError):
        array = np.empty((0, 0))
    require(array.ndim == 1, name, values, "a list of numbers")
    return array


@final
@frozen(eq=False)
class Profile(Stored):
    """A non-decreasing step function with mean one under N(0, 1).

    Its value at t is ``levels[j]``, where j of the ``edges`` are at most t. Arrays are read-only
    copies. Profiles with equal ``identity()`` are equal.

    >>> pure = Profile.from_weights([0.3975], [1.0, math.e])
    >>> round(pure.gain_lower**-2, 3)
    6.33
    """

    WORD: ClassVar[str] = "profile"
    SUFFIX: ClassVar[str] = "profile"
    MOST_BYTES: ClassVar[int] = 2**20
    edges: FloatVector
    levels: FloatVector
    _mass: Decimal = field(init=False, repr=False)
    _gain: Decimal = field(init=False, repr=False)
    _identity: str = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        edges = _vector(self.edges, "edges")
        levels = _vector(self.levels, "levels")
        count = edges.size
        usable = 1 <= count < MOST_LEVELS
        require(usable, "number of edges", count, f"from 1 to {MOST_LEVELS - 1}")
        matching = levels.size == count + 1
        require(matching, "number of levels", levels.size, f"{count + 1}, one more than the edges")
        _check_edges(edges)
        values = levels.tolist()
        inside = bool(np.all((levels >= 0) & (levels < 1e60)))
        require(inside, "levels", values, "at least 0 and below 1e60")
        require(bool(np.all(np.diff(levels) >= 0)), "levels", values, "non-decreasing")
        require(values[0] < values[-1], "levels", values, "not all the same")
        mass = _weighted(values, cell_masses(edges.tolist()))
        normalised = abs(mass - 1) <= Decimal(MASS_ERROR)
        require(normalised, "mean of the levels", float(mass), "within 2^-40 of one")
        jumps = [_DIGITS.subtract(Decimal(b), Decimal(a)) for a, b in pairwise(values)]
        densities = [density(edge) for edge in edges.tolist()]
        gain = _DIGITS.divide(_weighted(jumps, densities), mass)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "_mass", mass)
        object.__setattr__(self, "_gain", gain)
        self._seal()

    @classmethod
    def from_weights(cls, edges: Any, weights: Any) -> Profile:
        """Return the profile proportional to ``weights``, divided by their mean."""
        checked = _vector(edges, "edges")
        values = _vector(weights, "weights")
        count = checked.size + 1
        positive = bool(np.all(np.isfinite(values) & (values >= 0)))
        usable = values.size == count and positive
        require(usable, "weights", values.tolist(), f"{count} numbers of at least 0")
        _check_edges(checked)
        mean = float(_weighted(values.tolist(), cell_masses(checked.tolist())))
        require(mean > 0, "mean of the weights", mean, "positive")
        return cls(checked, values / mean)

    @property
    def gain_lower(self) -> float:
        """A lower bound on E[t h(t)]; its inverse square bounds the error per coordinate."""
        return float_lower(self._gain, _SUM_ERROR)

    @property
    def largest(self) -> float:
        """The largest level: the expected tries of a sampler that proposes from N(0, I)."""
        return float(self.levels[-1])

    @property
    def second_moment(self) -> float:
        """The energy of a release along the update: 1 + sum_j (h_j - h_{j-1}) t_j phi(t_j)."""
        jumps = np.diff(self.levels)
        densities = np.exp(-0.5 * self.edges**2) / math.sqrt(2 * math.pi)
        return 1.0 + float(np.sum(jumps * self.edges * densities)) / float(self._mass)

    def __call__(self, t: FloatArray) -> FloatVector:
        """Return the stored level at each t; NaN is refused."""
        values = np.asarray(t, dtype=np.float64)
        require(not bool(np.any(np.isnan(values))), "t", "a NaN", "numbers")
        levels: FloatVector = self.levels[np.searchsorted(self.edges, values, side="right")]
        return levels

    def pairs(
        self, adjacency: Adjacency | str, blur: float = 0.0
    ) -> list[tuple[FloatVector, FloatVector]]:
        """Return the dominating pairs as finite masses (P, Q), P rounded up and Q down.

        The list has one entry per direction.

        Replace-one: P has density h(t) and Q h(-t) against N(0,1), constant between the edges and
        their mirror images; swapping the two reflects t, so one direction stands for both.
        Zero-out: (h, 1) and (1, h). Rounding moves each mass by a relative 2^-52 or so, and
        hockey-stick divergences only upwards.

        ``blur`` bounds the error of the <u, z> that a sampler computes. Its weights lie between w(t
        - blur) and w(t + blur): P takes the larger and Q the smaller, each with the worse
        normalisation.
        """
        require(0 <= blur <= 0.01, "blur", blur, "at least 0 and at most 0.01")
        # h(t + blur) has its edges earlier, h(t - blur) later; one more unit in the last place
        # covers the rounding of the difference.
        early = self.edges
        late = self.edges
        if blur:
            early = np.nextafter(self.edges - blur, -np.inf)
            late = np.nextafter(self.edges + blur, np.inf)
        apart = bool(np.all(np.diff(early) > 0) and np.all(np.diff(late) > 0))
        apart &= np.abs([early[0], late[-1]]).max() <= LARGEST
        require(apart, "blur", blur, "smaller than the gaps of the edges")
        early_cells = cell_masses(early.tolist())
        late_cells = cell_masses(late.tolist())
        most = _weighted(self.levels.tolist(), early_cells)
        least = _weighted(self.levels.tolist(), late_cells)
        every = list(range(self.levels.size))
        if Adjacency(adjacency) is Adjacency.ZERO_OUT:
            higher, _ = self._rounded(every, early_cells, least)
            _, lower = self._rounded(every, late_cells, most)
            below = [max(0.0, float_lower(mass, _CELL_ERROR)) for mass in early_cells]
            above = [float_upper(mass, _CELL_ERROR) for mass in late_cells]
            return [(higher, np.array(below)), (np.array(above), lower)]
        cuts = np.union1d(early, -late)
        masses = cell_masses(cuts.tolist())
        # h(t) steps up going right: a cell takes its level from its left end.
        left = np.concatenate(([-np.inf], cuts))
        right = np.concatenate((cuts, [np.inf]))
        here = np.searchsorted(early, left, side="right")
        # h(-t) steps down going right: its least is at the right end.
        there = np.searchsorted(late, -right, side="right")
        higher, _ = self._rounded(here.tolist(), masses, least)
        _, lower = self._rounded(there.tolist(), masses, most)
        return [(higher, lower)]

    def _values(self) -> dict[str, Any]:
        return {"edges": self.edges.tolist(), "levels": self.levels.tolist()}

    @classmethod
    def _of_values(cls, values: Mapping[str, Any]) -> Profile:
        return cls(values["edges"], values["levels"])

    def _rounded(
        self, index: list[int], masses: list[Decimal], mean: Decimal
    ) -> tuple[FloatVector, FloatVector]:
        """Return masses times the levels at ``index`` over their mean, rounded up and down."""
        levels = [Decimal(level) for level in self.levels.tolist()]
        ups = np.empty(len(masses))
        downs = np.empty(len(masses))
        for place, (j, mass) in enumerate(zip(index, masses, strict=True)):
            value = _DIGITS.divide(_DIGITS.multiply(levels[j], mass), mean)
            # The mean is known within 1e-26, a mass within 2e-90: a relative 1e-25 and 1e-89 levels
            # cover both.
            of_mass = _DIGITS.multiply(levels[j], Decimal("1e-89"))
            slack = _DIGITS.fma(value, Decimal("1e-25"), of_mass)
            ups[place] = float_upper(value, slack)
            downs[place] = max(0.0, float_lower(value, slack))
        return ups, downs


def _weighted(values: list[Any], masses: Any) -> Decimal:
    total = Decimal(0)
    for value, mass in zip(values, masses, strict=True):
        total = _DIGITS.add(total, _DIGITS.multiply(Decimal(value), mass))
    return total


def _check_edges(edges: FloatVector) -> None:
    inside = bool(np.all(np.abs(edges) <= LARGEST))
    require(inside, "edges", edges.tolist(), f"finite and within {LARGEST:g} of zero")
    require(bool(np.all(np.diff(edges) > 0)), "edges", edges.tolist(), "strictly increasing")


def shipped_profile(target: Target) -> Profile | None:
    """Return the shipped profile for exactly this target, or ``None``."""
    entry = _catalogue(target.adjacency).get((target.epsilon, target.delta, target.releases))
    if entry is None:
        return None
    return Profile.restored(entry, f"the catalogue's profile for {target}")


@lru_cache(maxsize=len(Adjacency))
def _catalogue(adjacency: Adjacency) -> dict[tuple[float, float, int], dict[str, Any]]:
    source = files("quietbit.design") / "profiles" / f"{adjacency.value}.jsonl"
    profiles = {}
    for line in source.read_text(encoding="ascii").splitlines():
        entry = json.loads(line)
        key = (entry["epsilon"], entry["delta"], entry["releases"])
        profiles[key] = {**entry["profile"], "identity": entry["identity"]}
    return profiles
