"""The blanket of the vector mechanism: N(0, I) under every weight of a seed.

Idea     every weight is at least the profile's smallest level, so N(0, I) is a share of every
         client's law; neighbours are compared by the pair of the profile, opposite updates.
Source   packages/lab/docs/shuffling.md, Theorem 2.
"""

from __future__ import annotations

import math

import numpy as np

from quietbit._typing import FloatVector
from quietbit.design.normal import cell_masses
from quietbit.design.profile import Profile
from quietbit.mechanism.vector import VectorMVU
from quietbit.privacy.profile import BLUR
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency
from quietbit_lab.shuffle.blanket import Blanket, BlanketPair

__all__ = ["profile_blanket", "vector_blanket"]

_CELLS = 1e-13  # relative error of a sum of masses


def vector_blanket(mechanism: VectorMVU, adjacency: Adjacency) -> BlanketPair | None:
    """Return the blanket of a shuffled seed, its sampler's error included.

    A convex function of U - a V that does not decrease, with slope at most 1, is submodular in
    (t, t'): summed by parts, its mean moves by at most (2 + a) n (e + c), its worst pair is t'
    = -t again, and the corners of a rectangle bound what lies inside.
    """
    slack, _ = mechanism.sampling_error()
    error = round_up(1.02 * mechanism.profile.largest * mechanism.law_error, 1e-14)
    return profile_blanket(mechanism.profile, adjacency, BLUR, slack, error)


def profile_blanket(
    profile: Profile,
    adjacency: Adjacency,
    blur: float = BLUR,
    slack: float = 0.0,
    error: float = 0.0,
) -> BlanketPair | None:
    """Return the blanket N(0, I) of a profile; None where its smallest level is 0.

    Every density is at least the profile's smallest level. Weights of a sampler lie between w(t -
    blur) and w(t + blur), their means within a factor of one, which joins its ``slack``. Levels in
    between become mixtures of the smallest and the largest (packages/lab/docs/shuffling.md).
    """
    adjacency = Adjacency(adjacency)
    levels = profile.levels
    if levels[0] == 0:
        return None
    early = np.nextafter(profile.edges - blur, -np.inf)
    late = np.nextafter(profile.edges + blur, np.inf)
    least = float(levels @ _masses(late))
    most = float(levels @ _masses(early))
    slack += math.log(max(1.0, most, 1 / least)) + 1e-12
    make = _zero_out_blanket if adjacency is Adjacency.ZERO_OUT else _replace_one_blanket
    return make(levels, early, late, slack, error)


def _zero_out_blanket(
    levels: FloatVector, early: FloatVector, late: FloatVector, slack: float, error: float
) -> BlanketPair:
    """Return the blankets of an update against the zero update, and of the reverse."""
    low = float(levels[0])
    high = float(levels[-1])
    behind = low * math.exp(-slack) * (1 - 1e-15)
    share = (levels - low) / (high - low)
    above = min(1.0, float(share @ _masses(early)) * (1 + _CELLS))
    below = float(share @ _masses(late)) * (1 - _CELLS)
    ones = (1.0, 1.0, 1.0)
    forward = Blanket(behind, (above, 1 - above, 0.0), (high, low, 1.0), ones, slack, error)
    backward = Blanket(behind, (1 - below, below, 0.0), ones, (low, high, 1.0), slack, error)
    return BlanketPair(forward, backward)


def _replace_one_blanket(
    levels: FloatVector, early: FloatVector, late: FloatVector, slack: float, error: float
) -> BlanketPair:
    """Return the blanket of two opposite updates, the worst pair."""
    low = float(levels[0])
    high = float(levels[-1])
    behind = low * math.exp(-slack) * (1 - 1e-15)
    share = (levels - low) / (high - low)
    cuts = np.union1d(early, -late)
    # h(t) is stepped up at a cell's left end; h(-t) is least at its right end.
    first = share[np.searchsorted(early, np.append(-np.inf, cuts), side="right")]
    second = share[np.searchsorted(late, np.append(-cuts, -np.inf), side="right")]
    cells = _masses(cuts)
    up = float(np.minimum(first, 1 - second) @ cells) * (1 + _CELLS)
    down = float(np.minimum(second, 1 - first) @ cells) * (1 - _CELLS)
    masses = (up, down, max(0.0, 1 - up - down))
    blanket = Blanket(behind, masses, (high, low, low), (low, high, low), slack, error)
    return BlanketPair(blanket, blanket)


def _masses(cuts: FloatVector) -> FloatVector:
    """Return the normal masses of the cells between cuts."""
    return np.array([float(mass) for mass in cell_masses(cuts.tolist())])
