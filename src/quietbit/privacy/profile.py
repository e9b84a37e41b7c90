"""The account of the vector mechanism: its dominating pair, composed exactly.

Idea     a profile's pair of one-dimensional laws dominates every pair of neighbouring updates, so T
         adaptive releases cost at most the T-fold convolution of its loss: finitely many masses,
         rounded towards privacy.
Symbols  h: the profile; (h(t), h(-t)) under N(0,1) for replace-one, (h(t), 1) both ways round for
         zero-out.
Source   docs/theory/vector-mechanism.md, "The dominating pair".
"""

from __future__ import annotations

from typing import final

from attrs import frozen

from quietbit.design.profile import Profile
from quietbit.errors import check_int, check_real, require
from quietbit.privacy.cost import Cost
from quietbit.privacy.loss import LossDistribution
from quietbit.target import Adjacency

__all__ = [
    "BLUR",
    "ProfileCertificate",
    "certify_profile",
    "profile_cost",
    "profile_losses",
]

# A bound on the error of a sampler's <u, z>: `inner_error_upper` of up to 65,536 coordinates.
BLUR = 2.0**-30
MOST_BLUR = 2.0**-26  # beyond, the masses of P would exceed one by more than rounding


@final
@frozen
class ProfileCertificate:
    """Measured facts about a profile, each rounded towards privacy.

    ``epsilon_upper`` is that of all releases together at the delta asked for;
    ``pure_epsilon_upper`` that at delta = 0. ``squared_error_upper`` bounds v = 1/gain^2, the
    squared error per coordinate for radius 1 in high dimension.
    """

    epsilon_upper: float
    pure_epsilon_upper: float
    squared_error_upper: float


def profile_losses(
    profile: Profile, adjacency: Adjacency, blur: float = BLUR
) -> tuple[LossDistribution, ...]:
    """Return one release's loss in every direction that the adjacency needs.

    Replace-one needs one direction, by symmetry, zero-out two. ``blur`` bounds the error of a
    sampler's <u, z>.
    """
    require(isinstance(profile, Profile), "profile", type(profile).__name__, "a Profile")
    blur = check_real(blur, "blur", at_least=0.0, at_most=MOST_BLUR)
    pairs = profile.pairs(Adjacency(adjacency), blur)
    return tuple(LossDistribution.from_atoms(upper, lower) for upper, lower in pairs)


def profile_cost(profile: Profile, adjacency: Adjacency, blur: float = BLUR) -> Cost:
    """Return the cost of one release of the vector mechanism: all accounts from one pair."""
    return Cost.from_losses(*profile_losses(profile, adjacency, blur))


def certify_profile(
    profile: Profile,
    adjacency: Adjacency,
    releases: int = 1,
    delta: float = 0.0,
) -> ProfileCertificate:
    """Measure the privacy of ``releases`` releases of a profile at ``delta``, and its error."""
    releases = check_int(releases, "releases", 1)
    composed = [loss.repeat(releases) for loss in profile_losses(profile, adjacency)]
    gain = profile.gain_lower
    return ProfileCertificate(
        epsilon_upper=max(losses.epsilon_upper(delta) for losses in composed),
        pure_epsilon_upper=max(losses.epsilon_upper(0.0) for losses in composed),
        squared_error_upper=(1 + 4e-16) / (gain * gain),
    )
