"""Moments of a point on the unit sphere along a fixed direction, and of normal order statistics.

Idea     v uniform on the sphere of R^d, t = <v, u>: 1 - t^2 has a beta law, so caps {t >= g} have
         closed forms. Caps are named by their mass, not by g.
Symbols  q: mass of the cap; B = beta(1/2, (d-1)/2); the density of t is (1 - t^2)^((d-3)/2) / B.
         E[t; t >= g] = (1 - g^2)^((d-1)/2) / ((d-1) B). e_i: mean of the i-th largest of M standard
         normals.
Source   Bhowmick et al. (2018), appendix; David and Nagaraja, "Order statistics" (2003), section
         3.1.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import betainc, betaincinv, betaln, gammaln, log_ndtr

from quietbit._typing import FloatVector

__all__ = ["cap_edge", "cap_moments", "chi_mean", "quantile", "top_normals"]

GRID = np.linspace(-12.0, 12.0, 4801)


def quantile(tail: float, dimension: int) -> float:
    """Return the t with P(<v, u> >= t) = tail, accurate where that is small."""
    rarer = min(tail, 1 - tail)
    root = math.sqrt(max(0.0, 1 - float(betaincinv((dimension - 1) / 2, 0.5, 2 * rarer))))
    return root if tail <= 0.5 else -root


@lru_cache(maxsize=256)
def cap_edge(mass: float, dimension: int) -> float:
    """Where the cap of this mass begins."""
    return quantile(mass, dimension)


@lru_cache(maxsize=4096)
def cap_moments(mass: float, dimension: int) -> tuple[float, float]:
    """E[t] and E[t^2] given that v lies in the cap of this mass, at most one half."""
    edge = cap_edge(mass, dimension)
    log_first = (dimension - 1) / 2 * math.log1p(-edge * edge) - math.log(dimension - 1)
    first = math.exp(log_first - float(betaln(0.5, (dimension - 1) / 2))) / mass
    # E[t^2; t >= g]: t^2 f(t) is 1/d times the density of beta(3/2, (d-1)/2) in t^2.
    second = 0.5 * (1 - float(betainc(1.5, (dimension - 1) / 2, edge * edge))) / dimension / mass
    return first, second


def chi_mean(dimension: int) -> float:
    """Return the mean length of a standard normal vector."""
    return math.sqrt(2) * math.exp(float(gammaln((dimension + 1) / 2) - gammaln(dimension / 2)))


@lru_cache(maxsize=64)
def top_normals(count: int) -> tuple[FloatVector, FloatVector]:
    """Means and mean squares of ``count`` standard normals in decreasing order."""
    places = np.arange(count)[:, None]  # how many are larger
    log_choose = gammaln(count + 1) - gammaln(places + 1) - gammaln(count - places)
    below = log_ndtr(GRID)
    above = log_ndtr(-GRID)
    log_density = -0.5 * GRID**2 - 0.5 * math.log(2 * math.pi)
    law = np.exp(log_choose + (count - 1 - places) * below + places * above + log_density) * (
        GRID[1] - GRID[0]
    )
    means = law @ GRID
    squares = law @ GRID**2
    means.setflags(write=False)
    squares.setflags(write=False)
    return means, squares
