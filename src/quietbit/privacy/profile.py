"""The account of the vector mechanism: its dominating pair, composed exactly.

Idea     a profile's pair of one-dimensional laws dominates every pair of neighbouring updates, so T adaptive releases
         cost at most the T-fold convolution of its loss: finitely many masses, rounded towards privacy.
Symbols  h: the profile; (h(t), h(-t)) under N(0,1) for replace-one, (h(t), 1) both ways round for zero-out.
Source   docs/theory/vector-mechanism.md, "The dominating pair".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from quietbit._validate import require, whole_number
from quietbit.design.profile import Profile
from quietbit.privacy.dominating import DominatingCurve
from quietbit.privacy.guarantee import Adjacency, check_delta
from quietbit.privacy.loss import LossDistribution

__all__ = ["BLUR", "ProfileCertificate", "certify_profile", "profile_curve", "profile_losses"]

MOST_BLUR = 2.0**-26  # beyond, the masses of P would exceed one by more than rounding
BLUR = 2.0**-30  # room for what a sampler's <u, z> may be off: `inner_error_upper` of up to 65,536 coordinates


@final
@dataclass(frozen=True, slots=True)
class ProfileCertificate:
    """Measured facts about a profile, each rounded towards privacy.

    ``epsilon_upper`` is that of all releases together at ``delta``; ``pure_epsilon_upper`` that at delta = 0.
    ``squared_error_upper`` bounds v = 1/gain^2, the squared error per coordinate for radius 1 in high dimension.
    """

    epsilon_upper: float
    pure_epsilon_upper: float
    delta: float
    releases: int
    adjacency: Adjacency
    gain_lower: float
    squared_error_upper: float


def profile_losses(profile: Profile, adjacency: Adjacency, blur: float = BLUR) -> tuple[LossDistribution, ...]:
    """The loss of one release in every direction that counts: one for replace-one, by symmetry, two for zero-out.

    ``blur`` bounds how far the <u, z> that a sampler compares with the edges is from the exact one.
    """
    require(isinstance(profile, Profile), "profile", profile, "a Profile")
    require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
    require(0 <= blur <= MOST_BLUR, "blur", blur, "at least 0 and at most 2^-26")
    pairs = profile.pairs(adjacency.value, blur)
    return tuple(LossDistribution.from_atoms(upper, lower) for upper, lower in pairs)


def profile_curve(profile: Profile, adjacency: Adjacency, blur: float = BLUR) -> DominatingCurve:
    """The privacy curve of one release of the vector mechanism: pure, Rényi and exact accounts from one pair."""
    return DominatingCurve(*profile_losses(profile, adjacency, blur))


def certify_profile(
    profile: Profile, adjacency: Adjacency, releases: int = 1, delta: float = 0.0, blur: float = BLUR
) -> ProfileCertificate:
    """Measure a profile from its stored numbers: privacy of ``releases`` releases at ``delta``, and its error."""
    releases, delta = whole_number(releases, "releases", 1), check_delta(delta)
    composed = [loss.repeat(releases) for loss in profile_losses(profile, adjacency, blur)]
    gain = profile.gain_lower
    return ProfileCertificate(
        epsilon_upper=max(loss.epsilon_upper(delta) for loss in composed),
        pure_epsilon_upper=max(loss.pure_epsilon_upper() for loss in composed),
        delta=delta,
        releases=releases,
        adjacency=adjacency,
        gain_lower=gain,
        squared_error_upper=(1 + 4e-16) / (gain * gain),
    )
