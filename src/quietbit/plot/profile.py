"""One profile at a glance: the density along the update's direction, and the privacy loss it leads to.

Idea     left, h over t with N(0,1) beneath and what a client sends along its update; right, how the privacy loss is
         distributed, for one release and for all of them together, with the epsilon that is promised.
"""

from __future__ import annotations

import math

import numpy as np

from quietbit._typing import FloatVector
from quietbit.design.profile import Profile
from quietbit.errors import check_int, require
from quietbit.plot.figure import GREY, INK, PAPER, Axes, Figure, blank_figure, plain_axes
from quietbit.privacy.guarantee import rounded_up
from quietbit.privacy.profile import ProfileCertificate, certify_profile
from quietbit.target import Adjacency

__all__ = ["plot_profile"]

POINTS = 2001
REACH = 4.5
GRID = 4096
SENT, LOSS, LIMIT = "#2f6fde", "#12805c", "#c2410c"


def plot_profile(profile: Profile, adjacency: Adjacency, releases: int = 1, delta: float = 0.0) -> Figure:
    """Draw the profile beside the distribution of its privacy loss, for one release and for all together."""
    require(isinstance(profile, Profile), "profile", profile, "a Profile")
    releases = check_int(releases, "releases", 1)
    certificate = certify_profile(profile, adjacency, releases, delta)
    words = (
        f"{adjacency.value}",
        f"{releases} release{'s' if releases > 1 else ''}",
        f"epsilon ≤ {_shown(certificate.epsilon_upper)} at delta {delta:g}",
        f"squared error ≤ {_shown(certificate.squared_error_upper)} per coordinate",
    )
    figure = blank_figure(11.5, 4.6, "   ·   ".join(words), f"profile {profile.identity()}")
    height, density, losses = figure.subplots(1, 3, width_ratios=(1.0, 1.0, 1.1))
    _height(height, profile)
    _density(density, profile)
    _losses(losses, profile, certificate)
    figure.get_layout_engine().set(rect=(0.0, 0.045, 1.0, 0.955))
    return figure


def _height(axes: Axes, profile: Profile) -> None:
    ends = np.concatenate(([-REACH], np.clip(profile.edges, -REACH, REACH), [REACH]))
    plain_axes(axes, "profile h", "t, along the update", "h(t)")
    axes.stairs(profile.levels, ends, baseline=None, color=SENT, linewidth=1.8)
    axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    if profile.levels[0] > 0 and profile.levels[-1] / profile.levels[0] > 20:
        axes.set_yscale("log")
    axes.set_xlim(-REACH, REACH)


def _density(axes: Axes, profile: Profile) -> None:
    t = np.linspace(-REACH, REACH, POINTS)
    base = np.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)
    plain_axes(axes, "density of what is sent", "t, along the update")
    axes.fill_between(t, base, color=GREY, alpha=0.25, linewidth=0, label="zero update")
    axes.plot(t, base * profile(t), color=SENT, linewidth=1.6, label="full-length update")
    axes.axvline(profile.gain_lower, color=INK, linewidth=0.9, linestyle=(0, (2, 2)), label="its mean, the gain")
    axes.set_xlim(-REACH, REACH)
    axes.set_ylim(0.0, 1.36 * float((base * profile(t)).max()))
    axes.legend(facecolor=PAPER, edgecolor=PAPER, framealpha=1.0, fontsize=8, labelcolor=INK, loc="upper left")


def _losses(axes: Axes, profile: Profile, certificate: ProfileCertificate) -> None:
    """Draw tails P(L > x) of the loss in the direction that costs most: a discrete law has no density to draw."""
    plain_axes(axes, "privacy loss beyond x", "x", "probability")
    releases = certificate.releases
    upper, lower = profile.pairs(certificate.adjacency)[0]
    kept = (upper > 0) & (lower > 0)
    loss, mass = np.log(upper[kept] / lower[kept]), upper[kept]
    for times in sorted({1, releases}):
        x, tail = _tail(loss, mass, times)
        label = "one release" if times == 1 else f"all {times} releases"
        axes.step(x, tail, where="post", linewidth=1.6, color=LOSS if times == releases else GREY, label=label)
    limit = certificate.epsilon_upper
    if math.isfinite(limit):
        axes.axvline(limit, color=LIMIT, linewidth=1.1, linestyle=(0, (4, 2)), label=f"epsilon {_shown(limit)}")
    axes.set_yscale("log")
    floor = min(certificate.delta, 1e-3) / 30 if certificate.delta > 0 else 1e-4
    axes.set_ylim(floor, 2.0)
    right = 1.25 * limit if math.isfinite(limit) else 1.1 * releases * float(loss.max())
    axes.set_xlim(-0.6 * right, right)
    axes.locator_params(axis="x", nbins=6)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK, loc="lower left")


def _shown(value: float) -> str:
    """Show a bound rounded up to four digits."""
    return f"{rounded_up(value, 4).normalize():f}"


def _tail(loss: FloatVector, mass: FloatVector, times: int) -> tuple[FloatVector, FloatVector]:
    """Return P(L > x) on a grid that holds the sum of ``times`` losses; for the eye, not for an account."""
    mean = float(np.sum(mass * loss))
    spread = math.sqrt(times * max(float(np.sum(mass * (loss - mean) ** 2)), 1e-30))
    low = max(times * float(loss.min()), times * mean - 12 * spread)
    high = min(times * float(loss.max()), times * mean + 12 * spread)
    step = max(high - low, 1e-9) / (GRID - 2 * times if 4 * times < GRID else GRID // 2)
    law = np.bincount(np.rint(loss / step).astype(np.int64) % GRID, mass, GRID)
    composed = np.maximum(np.fft.irfft(np.fft.rfft(law) ** times, GRID), 0.0)
    first = math.floor(low / step) - times // 2 - 1
    composed = np.roll(composed, -(first % GRID))
    x: FloatVector = (first + np.arange(GRID, dtype=np.float64)) * step
    beyond: FloatVector = np.maximum(np.cumsum(composed[::-1])[::-1] - composed, 1e-300)
    return x, beyond
