"""The account of the vector mechanism: its dominating pair, composed exactly.

Idea     a profile's pair of one-dimensional laws dominates every pair of neighbouring updates, so T
         adaptive releases cost at most the T-fold convolution of its loss: finitely many masses,
         rounded towards privacy.
Symbols  h: the profile; (h(t), h(-t)) under N(0,1) for replace-one, (h(t), 1) both ways round for
         zero-out.
Source   docs/theory/vector-mechanism.md, "The dominating pair".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from quietbit._typing import FloatVector
from quietbit.design.normal import cell_masses
from quietbit.design.profile import Profile
from quietbit.errors import check_int, check_real, require
from quietbit.privacy.blanket import Blanket, BlanketPair
from quietbit.privacy.cost import Cost
from quietbit.privacy.loss import LossDistribution
from quietbit.target import Adjacency, check_delta

__all__ = [
    "BLUR",
    "ProfileCertificate",
    "certify_profile",
    "profile_blanket",
    "profile_cost",
    "profile_losses",
]

# A bound on the error of a sampler's <u, z>: `inner_error_upper` of up to 65,536 coordinates.
BLUR = 2.0**-30
MOST_BLUR = 2.0**-26  # beyond, the masses of P would exceed one by more than rounding
_CELLS = 1e-13  # relative error of a sum of masses


@final
@dataclass(frozen=True, slots=True)
class ProfileCertificate:
    """Measured facts about a profile, each rounded towards privacy.

    ``epsilon_upper`` is that of all releases together at ``delta``; ``pure_epsilon_upper`` that at
    delta = 0. ``squared_error_upper`` bounds v = 1/gain^2, the squared error per coordinate for
    radius 1 in high dimension.
    """

    epsilon_upper: float
    pure_epsilon_upper: float
    delta: float
    releases: int
    adjacency: Adjacency
    gain_lower: float
    squared_error_upper: float


def profile_losses(
    profile: Profile, adjacency: Adjacency, blur: float = BLUR
) -> tuple[LossDistribution, ...]:
    """Return one release's loss in every direction that the adjacency needs.

    Replace-one needs one direction, by symmetry, zero-out two. ``blur`` bounds the error of a
    sampler's <u, z>.
    """
    pairs = _check_profile(profile).pairs(Adjacency(adjacency), _check_blur(blur))
    return tuple(LossDistribution.from_atoms(upper, lower) for upper, lower in pairs)


def _check_profile(profile: Profile) -> Profile:
    require(isinstance(profile, Profile), "profile", type(profile).__name__, "a Profile")
    return profile


def _check_blur(blur: float) -> float:
    return check_real(blur, "blur", at_least=0.0, at_most=MOST_BLUR)


def profile_cost(profile: Profile, adjacency: Adjacency, blur: float = BLUR) -> Cost:
    """Return the cost of one release of the vector mechanism: all accounts from one pair."""
    return Cost.from_losses(*profile_losses(profile, adjacency, blur))


def certify_profile(
    profile: Profile,
    adjacency: Adjacency,
    releases: int = 1,
    delta: float = 0.0,
    blur: float = BLUR,
) -> ProfileCertificate:
    """Measure the privacy of ``releases`` releases of a profile at ``delta``, and its error."""
    adjacency = Adjacency(adjacency)
    releases = check_int(releases, "releases", 1)
    delta = check_delta(delta)
    composed = [loss.repeat(releases) for loss in profile_losses(profile, adjacency, blur)]
    gain = profile.gain_lower
    return ProfileCertificate(
        epsilon_upper=max(losses.epsilon_upper(delta) for losses in composed),
        pure_epsilon_upper=max(losses.epsilon_upper(0.0) for losses in composed),
        delta=delta,
        releases=releases,
        adjacency=adjacency,
        gain_lower=gain,
        squared_error_upper=(1 + 4e-16) / (gain * gain),
    )


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
    between become mixtures of the smallest and the largest (docs/theory/shuffling.md).
    """
    adjacency = Adjacency(adjacency)
    blur = _check_blur(blur)
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
