"""Families with a share to choose: how many candidates, or how much of a sphere, are near.

Idea     papers choose the share (a cap, the k nearest corners) that is best for one purely private
         release. For several releases, a delta, or zero-out neighbours another one is better, and a
         baseline deserves its best: the share is tuned once for the target, on the law that all of
         these tend to in high dimension, and each family is calibrated with that share and with its
         papers'; the smaller error counts.
Symbols  q: share; (low, high): densities off and on it, high = e^eps low; in the limit the gain is
         (high - low) phi(g), g the normal quantile of q.

A poor search costs accuracy, never privacy: the account that meets the target is the mechanism's
own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import final

from attrs import frozen
from scipy.special import ndtri

from quietbit._search import bisect
from quietbit.errors import InvalidParameter, check_real
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.family import Choices, EpsilonOf, Family, SearchedFamily, largest_private
from quietbit.target import Target
from quietbit_lab.baseline.base import LEAST_EPSILON, MOST_EPSILON, likeliest
from quietbit_lab.baseline.tilt import cap_levels, tilt_cost

__all__ = ["TunedFamily", "best_share", "limit_gain", "searched_family"]

LEAST_SHARE = 1e-5
ROUGHLY = 1e-3  # of epsilon and of the share: the error is flat around its best share


@final
@frozen
class TunedFamily(Family):
    """A family of mechanisms with an epsilon and a share; ``usual`` is its papers' share.

    ``build`` makes the mechanism of a ball, an epsilon, a share and choices.
    """

    name: str
    uses: tuple[str, ...]
    build: Callable[[Ball, float, float, Choices], Mechanism]
    usual: Callable[[Ball, float, Choices], float]
    strength: str = "design_epsilon"
    baseline: bool = True

    def given(self, ball: Ball, strength: float, choices: Choices) -> Mechanism:
        """Return the mechanism of this epsilon with its usual share."""
        each = check_real(strength, "design_epsilon")
        return self.build(ball, each, self.usual(ball, each, choices), choices)

    def calibrated(
        self, ball: Ball, choices: Choices, target: Target, account: EpsilonOf
    ) -> Mechanism:
        """Return the better mechanism: with the share tuned for the target, or the usual one."""
        tuned = best_share(target)

        def best(share: Callable[[float], float]) -> Mechanism:
            def made(loss: float) -> Mechanism:
                return self.build(ball, loss, share(loss), choices)

            limits = LEAST_EPSILON, MOST_EPSILON
            return made(
                largest_private(
                    lambda loss: account(made(loss)), *limits, target.epsilon, self.name
                )
            )

        usual = best(lambda loss: self.usual(ball, loss, choices))
        return min(usual, best(lambda loss: tuned), key=lambda one: one.error().squared)


def searched_family(
    name: str,
    build: Callable[[Ball, float, Choices], Mechanism],
    *,
    least: float = LEAST_EPSILON,
) -> SearchedFamily:
    """Return the family of a baseline without a share: epsilon is searched, bits may be set."""
    return SearchedFamily(
        name,
        uses=("bits",),
        strength="design_epsilon",
        build=build,
        limits=lambda ball, choices: (least, MOST_EPSILON),
        baseline=True,
    )


def limit_gain(share: float, epsilon: float) -> float:
    """Return the gain in high dimension, which is that of a step under a normal law."""
    low, high = cap_levels(share, epsilon)
    edge = float(ndtri(share))
    return (high - low) * math.exp(-edge * edge / 2) / math.sqrt(2 * math.pi)


@lru_cache(maxsize=64)
def best_share(target: Target) -> float:
    """Return the share whose largest private epsilon has the largest gain."""

    def gain(share: float) -> float:
        def private(epsilon: float) -> bool:
            try:
                cost = tilt_cost(*cap_levels(share, epsilon), target.adjacency) * target.releases
                return cost.epsilon(target.delta) <= target.epsilon
            except InvalidParameter:  # too revealing for any account
                return False

        if not private(LEAST_EPSILON):
            return 0.0
        most = bisect(private, LEAST_EPSILON, MOST_EPSILON, relative=ROUGHLY, by_ratio=True)
        return limit_gain(share, most)

    return likeliest(gain, LEAST_SHARE, 10 * ROUGHLY)
