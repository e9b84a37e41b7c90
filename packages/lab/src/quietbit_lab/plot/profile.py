"""One profile at a glance: the density along the update's direction, and the privacy it leads to.

Idea     left, h over t; in the middle, what a client sends along its update, with N(0,1) beneath;
         right, delta at every epsilon, for one release and for all of them together, with the
         epsilon that is promised.
"""

from __future__ import annotations

import math

import numpy as np

from quietbit.design.profile import Profile
from quietbit.privacy.guarantee import rounded_up
from quietbit.privacy.profile import ProfileCertificate, certify_profile, profile_losses
from quietbit.target import Adjacency
from quietbit_lab.plot.figure import GREY, INK, PAPER, Axes, Figure, blank_figure, plain_axes

__all__ = ["plot_profile"]

POINTS = 2001
SHARES = np.concatenate(
    (np.linspace(0.0, 0.99, 150), 1 - np.geomspace(0.01, 1e-6, 40), [1.0])
)  # of the last epsilon
REACH = 4.5
SENT = "#2f6fde"
DELTA = "#12805c"
LIMIT = "#c2410c"


def plot_profile(
    profile: Profile, adjacency: Adjacency, releases: int = 1, delta: float = 0.0
) -> Figure:
    """Draw the profile beside delta over epsilon, for one release and for all together."""
    certificate = certify_profile(profile, adjacency, releases, delta)
    words = (
        f"{adjacency.value}",
        f"{releases} release{'s' if releases > 1 else ''}",
        f"epsilon ≤ {_shown(certificate.epsilon_upper)} at delta {delta:g}",
        f"squared error ≤ {_shown(certificate.squared_error_upper)} per coordinate",
    )
    figure = blank_figure(11.5, 4.6, "   ·   ".join(words), f"profile {profile.identity()}")
    height, density, privacy = figure.subplots(1, 3, width_ratios=(1.0, 1.0, 1.1))
    _height(height, profile)
    _density(density, profile)
    _privacy(privacy, profile, certificate)
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
    axes.axvline(
        profile.gain_lower,
        color=INK,
        linewidth=0.9,
        linestyle=(0, (2, 2)),
        label="its mean, the gain",
    )
    axes.set_xlim(-REACH, REACH)
    axes.set_ylim(0.0, 1.36 * float((base * profile(t)).max()))
    axes.legend(
        facecolor=PAPER,
        edgecolor=PAPER,
        framealpha=1.0,
        fontsize=8,
        labelcolor=INK,
        loc="upper left",
    )


def _privacy(axes: Axes, profile: Profile, certificate: ProfileCertificate) -> None:
    plain_axes(axes, "delta at every epsilon", "epsilon", "delta")
    limit = certificate.epsilon_upper
    promised = certificate.delta
    releases = certificate.releases
    if math.isfinite(limit):
        right = 1.25 * limit
    else:
        right = 10.0
    for times in sorted({1, releases}):
        losses = [loss.repeat(times) for loss in profile_losses(profile, certificate.adjacency)]
        pure = max(loss.pure_epsilon_upper() for loss in losses)  # beyond it delta is 0
        epsilons = min(right, pure) * SHARES
        deltas = [
            max(loss.delta_upper(epsilon) for loss in losses) for epsilon in epsilons.tolist()
        ]
        if times == 1:
            label = "one release"
        else:
            label = f"all {times} releases"
        color = DELTA if times == releases else GREY
        # Delta never grows with epsilon: steps that fall at the next point show no less than there
        # is.
        axes.plot(epsilons, deltas, drawstyle="steps-post", linewidth=1.6, color=color, label=label)
    if math.isfinite(limit):
        label = f"epsilon {_shown(limit)} at delta {promised:g}"
        axes.axvline(limit, color=LIMIT, linewidth=1.1, linestyle=(0, (4, 2)), label=label)
    axes.set_yscale("log")
    axes.set_ylim(min(promised, 1e-3) / 30 if promised > 0 else 1e-4, 2.0)
    axes.set_xlim(0.0, right)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK, loc="lower left")


def _shown(value: float) -> str:
    """Show a bound rounded up to four digits."""
    return f"{rounded_up(value, 4).normalize():f}"
