"""From a privacy target to a profile of the vector mechanism: the catalogue, the cache, or a search.

Idea     every path to a profile ends in the same step: its cost is certified from the stored doubles, with room for the
         sampler's rounding, and the profile is flattened until the certified epsilon is within the target.
Symbols  h: the profile that the search proposed; x: the fraction of N(0, I) mixed into it.
Source   docs/theory/vector-mechanism.md, "Design".
"""

from __future__ import annotations

import math
from functools import lru_cache

from quietbit.design.profile import Profile
from quietbit.design.profile_search import Proposal, propose
from quietbit.design.profiles import shipped_profile
from quietbit.design.store import cached, remember
from quietbit.errors import QuietbitError, check_int, check_real, require
from quietbit.privacy.profile import certify_profile
from quietbit.target import Adjacency, Target

__all__ = ["meets", "solve_profile", "solve_profile_anew"]

ROOM = 1e-8  # relative: the certified epsilon stays this far below the one asked for
TRIES = 60
MOST_EPSILON = 60.0  # of one release; beyond, a step at e^epsilon lies ten deviations out and nothing is left to design


def solve_profile(epsilon: float, delta: float, releases: int, adjacency: Adjacency) -> Profile:
    """Return the profile of largest known gain whose releases together are certified (epsilon, delta)-private.

    The profile is shipped, cached, or else solved now, in seconds, and cached. Deterministic: the same target gives the
    same profile on the same kind of machine.

    >>> profile = solve_profile(1.0, 1e-5, 1, Adjacency.REPLACE_ONE)
    >>> round(profile.gain_lower**-2, 2)
    6.33
    """
    require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
    times = check_int(releases, "releases", 1, 10**6)
    asked = check_real(epsilon, "epsilon", at_most=MOST_EPSILON * times)
    return _solved(Target(asked, delta, adjacency, releases=times))


@lru_cache(maxsize=64)
def _solved(target: Target) -> Profile:
    shipped = shipped_profile(target)
    if shipped is not None:
        return shipped
    kept = cached(Profile, target)
    if kept is not None and meets(kept, target):
        return kept
    profile = solve_profile_anew(target)
    remember(profile, target)
    return profile


def meets(profile: Profile, target: Target) -> bool:
    """Return whether the certified cost of a profile is within a target."""
    found = certify_profile(profile, target.adjacency, target.releases, target.delta)
    return found.epsilon_upper <= target.epsilon


def solve_profile_anew(target: Target) -> Profile:
    """Solve without the catalogue and the cache."""
    return _certified(propose(target), target)


def _certified(proposal: Proposal, target: Target) -> Profile:
    """Mix the proposal with N(0, I) until its certified epsilon is within the target.

    Mixing, h to h - x (h - 1), gives the law of a slightly shorter update: more private whatever h is, at the cost of a
    fraction x of the gain. A step of x lowers epsilon by about x times the smaller of epsilon and the releases, mostly
    more; every step is certified rather than trusted.
    """
    profile = proposed = Profile.from_weights(proposal.edges, proposal.weights())
    wanted, mixed = target.epsilon * (1 - ROOM), 0.0
    for _ in range(TRIES):
        found = certify_profile(profile, target.adjacency, target.releases, target.delta).epsilon_upper
        if found <= wanted:
            return profile
        excess = found - wanted if math.isfinite(found) else 0.1 * wanted
        mixed = min(0.9, mixed + (1 + ROOM) * excess / min(wanted, target.releases))
        profile = Profile.from_weights(proposal.edges, mixed + (1 - mixed) * proposed.levels)
    raise QuietbitError(f"No profile was certified for {target}: after {TRIES} attempts epsilon was still {found:.6g}.")
