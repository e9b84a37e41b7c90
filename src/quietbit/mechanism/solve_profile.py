"""Profiles of the vector mechanism that meet a target: shipped, cached, or solved and certified.

Idea     `propose` searches for a profile of large gain without proofs. What it finds is certified,
         and mixed with N(0, I) until the certified epsilon is within the target: whatever the
         search does, a profile that is returned keeps its claim.
Symbols  h: the profile; x: the share of N(0, I) that is mixed in.
Source   docs/theory/vector-mechanism.md, on the design of profiles.
"""

from __future__ import annotations

import math
from functools import lru_cache

from quietbit.design.profile import Profile, shipped_profile
from quietbit.design.profile_search import Proposal, propose
from quietbit.design.store import cached, remember
from quietbit.errors import QuietbitError, check_int, check_real, require
from quietbit.privacy.profile import certify_profile
from quietbit.target import Adjacency, Target

__all__ = ["certified_profile", "meets", "solve_profile", "solve_profile_anew"]

# The relative distance of a solved profile's certified epsilon from the target.
ROOM = 1e-8
TRIES = 60
# Of one release; beyond, a step at e^epsilon lies ten deviations out and nothing is left to design.
MOST_EPSILON = 60.0


def solve_profile(epsilon: float, delta: float, releases: int, adjacency: Adjacency) -> Profile:
    """Return the profile of largest known gain whose releases together meet (epsilon, delta).

    The profile is certified. It is shipped or cached, or else solved now, in seconds, and cached;
    machines of one kind find the same profile.

    >>> profile = solve_profile(1.0, 1e-5, 1, Adjacency.REPLACE_ONE)
    >>> round(profile.gain_lower**-2, 2)
    6.33
    """
    require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
    times = check_int(releases, "releases", 1, 10**6)
    total = check_real(epsilon, "epsilon", at_most=MOST_EPSILON * times)
    return _solved(Target(total, delta, adjacency, releases=times))


@lru_cache(maxsize=64)
def _solved(target: Target) -> Profile:
    profile = shipped_profile(target)
    if profile is not None:
        return profile
    profile = cached(Profile, target)
    if profile is not None and meets(profile, target):
        return profile
    profile = solve_profile_anew(target)
    remember(profile, target)
    return profile


def meets(profile: Profile, target: Target) -> bool:
    """Return whether the certified cost of a profile is within a target."""
    return _certified_epsilon(profile, target) <= target.epsilon


def _certified_epsilon(profile: Profile, target: Target) -> float:
    certificate = certify_profile(profile, target.adjacency, target.releases, target.delta)
    return certificate.epsilon_upper


def solve_profile_anew(target: Target) -> Profile:
    """Solve without the catalogue and the cache."""
    return certified_profile(propose(target), target)


def certified_profile(proposal: Proposal, target: Target) -> Profile:
    """Mix a proposal with N(0, I), h to h - x (h - 1), until its certified epsilon fits.

    A step of x costs a fraction x of the gain and lowers epsilon by about x times the smaller of
    epsilon and releases.
    """
    profile = proposed = Profile.from_weights(proposal.edges, proposal.weights())
    wanted = target.epsilon * (1 - ROOM)
    mixed = 0.0
    for _ in range(TRIES):
        epsilon = _certified_epsilon(profile, target)
        if epsilon <= wanted:
            return profile
        excess = 0.1 * wanted
        if math.isfinite(epsilon):
            excess = epsilon - wanted
        mixed = min(0.9, mixed + (1 + ROOM) * excess / min(wanted, target.releases))
        profile = Profile.from_weights(proposal.edges, mixed + (1 - mixed) * proposed.levels)
    raise QuietbitError(
        f"No profile was certified for {target}: after {TRIES} attempts epsilon was still "
        f"{epsilon:.6g}."
    )
