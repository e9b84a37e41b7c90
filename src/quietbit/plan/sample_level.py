"""What a release costs one sample of a client, when the client's update is a mean of clipped gradients.

Idea     n_c gradients of norm at most C are averaged: zeroing one sample's contribution moves the update by at
         most C / n_c, replacing it by 2 C / n_c, from wherever the other samples have put it. So constants
         that hold between any two inputs are needed, at that distance: those of replace-one.
Symbols  C = clip = radius of the ball; n_c = samples of the client, public.
Source   Guo et al. (ICML 2023), section "Sample-level DP"; Theorems 1 and 2 for the interpolated mechanism.

Rounding. Updates are float32, and two neighbouring ones are rounded apart: each entry by 2^-24 of itself, up to three
times (the mean, a factor that undoes the first rounding, its product), so each update by 3 x 2^-24 C and their
distance by less than 2^-21 C. That is no small part of C / n_c when clients are large, so it is added to it.

Refused: MVU and Skellam. Both round at random before they add noise, which is not a contraction: two close
updates can round to grid vectors that are far apart, and their accounts cover whole updates only.
"""

from __future__ import annotations

from quietbit._validate import InvalidParameter, whole_number
from quietbit.mechanism.base import Mechanism, check_adjacency
from quietbit.mechanism.clipping import Ball, Norm
from quietbit.mechanism.gaussian import MAX_MULTIPLIER, Gaussian
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.laplace import Laplace
from quietbit.mechanism.sign import Sign
from quietbit.privacy.conversion import round_up
from quietbit.privacy.curve import PrivacyCurve, with_slack
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.interpolated import interpolated_l1_curve, interpolated_l2_curve

__all__ = ["ROUNDING", "sample_curve"]

ROUNDING = 2.0**-21  # of the clip


def sample_curve(mechanism: Mechanism, samples: int, adjacency: Adjacency) -> PrivacyCurve:
    """The curve of one release for one of ``samples`` samples; mechanisms without a theorem are refused."""
    check_adjacency(adjacency)
    count = whole_number(samples, "samples of a client", 1)
    moved = (1.0 if adjacency is Adjacency.ZERO_OUT else 2.0) / count
    share = round_up(moved + ROUNDING, 1e-15)  # in units of the clip
    if isinstance(mechanism, Sign):
        return sample_curve(mechanism.inner, count, adjacency)
    if isinstance(mechanism, Gaussian | Laplace):
        return _noise_curve(mechanism, share)
    if isinstance(mechanism, InterpolatedMVU):
        return _interpolated_curve(mechanism, share)
    raise InvalidParameter(
        f"mechanism must be imvu, gaussian, laplace or sign for sample-level privacy, "
        f"got {type(mechanism).__name__}, which rounds at random before its noise."
    )


def _noise_curve(mechanism: Gaussian | Laplace, share: float) -> PrivacyCurve:
    """Additive noise sees distances only: that of a ball smaller by the share, with the same noise."""
    ball = mechanism.ball
    smaller = Ball(ball.norm, round_up(ball.radius * share, 1e-15), ball.dimension)
    noise = mechanism.sigma if isinstance(mechanism, Gaussian) else mechanism.scale
    multiplier = min(noise / smaller.radius * (1 - 1e-15), MAX_MULTIPLIER)  # less noise than there is never costs less
    kind = Gaussian if isinstance(mechanism, Gaussian) else Laplace
    return kind(smaller, multiplier).privacy(Adjacency.ZERO_OUT)


def _interpolated_curve(mechanism: InterpolatedMVU, share: float) -> PrivacyCurve:
    scaling, ball, design = mechanism.scaling, mechanism.ball, mechanism.design
    low, high = scaling.certified_range
    # A sample moves x by at most its share of the reach, and no two inputs are further apart than the range.
    widest = scaling.distance(Adjacency.REPLACE_ONE, ball)
    distance = min(round_up(scaling.reach * share, 1e-14), widest)
    between = Adjacency.REPLACE_ONE  # constants between any two inputs of the range
    curve: PrivacyCurve
    if ball.norm is Norm.L1:
        curve = interpolated_l1_curve(design, distance, between, low, high, with_renyi=True)
    else:
        curve = interpolated_l2_curve(design, distance, between, low, high)
    return with_slack(curve, scaling.slack_upper(design, ball))
