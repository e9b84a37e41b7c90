"""Random profiles, and hockey-stick divergences of finite pairs and of correlated normals."""

import math

import mpmath
import numpy as np
from hypothesis import strategies as st
from scipy.special import ndtr

from quietbit.design.profile import Profile

NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)
REACH = 9.0


@st.composite
def profiles(draw, most=8, spread=6.0):
    count = draw(st.integers(1, most - 1))
    gaps = draw(st.lists(st.floats(1e-3, 1.5), min_size=count, max_size=count))
    start = draw(st.floats(-4.0, 1.0))
    rises = draw(st.lists(st.floats(0.0, spread / count), min_size=count, max_size=count))
    rises[draw(st.integers(0, count - 1))] += 0.05
    return Profile.from_weights(
        start + np.cumsum(gaps), np.exp(np.concatenate(([0.0], np.cumsum(rises))))
    )


def hockey_stick(upper, lower, a):
    return float(np.maximum(upper - a * lower, 0.0).sum())


def pure_epsilon_upper(profile: Profile, adjacency: str) -> float:
    """The largest privacy loss of one release, from the stored levels in fifty digits."""
    if profile.levels[0] == 0:
        return math.inf
    with mpmath.workdps(50):
        low, high = (mpmath.log(mpmath.mpf(float(profile.levels[end]))) for end in (0, -1))
        centre = mpmath.log(mpmath.mpf(str(profile._mass)))
        loss = high - low if adjacency == "replace-one" else max(high - centre, centre - low)
        return math.nextafter(float(loss), math.inf)


def largest_gain(profile: Profile) -> float:
    """At most one double above the certified lower bound."""
    return math.nextafter(profile.gain_lower, math.inf)


def normal_grid(edges):
    """Points and weights that integrate over a normal variable what is smooth between the edges and
    their mirror images.
    """
    cuts = np.concatenate((edges, np.negative(edges), np.linspace(-REACH, REACH, 37)))
    pieces = np.unique(cuts)
    half = np.diff(pieces)[:, None] / 2
    points = (pieces[:-1, None] + half * (1 + NODES)).ravel()
    weights = (half * WEIGHTS).ravel() * np.exp(-0.5 * points**2) / math.sqrt(2 * math.pi)
    return points, weights


def correlated_hockey_stick(edges, p, q, rho, ratios):
    """E (p(t) - a q(t'))_+ at all ratios a, for step functions of two normal variables of
    correlation ``rho``.

    Gauss-Legendre nodes inside every cell of the first variable, normal tails of the second given
    the first.
    """
    points, weights = normal_grid(edges)
    here = p[np.searchsorted(edges, points, side="right")][:, None]
    ends = np.concatenate(([-np.inf], edges, [np.inf]))
    with np.errstate(divide="ignore"):
        tails = ndtr((ends - rho * points[:, None]) / np.sqrt(max(0.0, 1 - rho * rho)))
    shares = weights[:, None] * np.diff(tails, axis=1)
    return np.array([np.sum(shares * np.maximum(here - a * q, 0.0)) for a in ratios])
