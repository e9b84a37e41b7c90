"""Exact hockey-stick divergences of products of bits, by enumeration, and random spreads of a
budget.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from quietbit._typing import FloatVector
from quietbit.privacy.conversion import gaussian_log_delta


def log_odds_losses(upper: FloatVector, lower: FloatVector) -> tuple[FloatVector, FloatVector]:
    """log(P/Q) of the symbols 1 and 0 for bits with these log-odds under P and under Q."""
    return np.logaddexp(0, -lower) - np.logaddexp(0, -upper), np.logaddexp(0, lower) - np.logaddexp(
        0, upper
    )


def group_atoms(
    counts: list[int], upper: FloatVector, lower: FloatVector
) -> tuple[FloatVector, FloatVector]:
    """Probability under P and loss of all outputs of a product of bits, of which ``counts[g]``
    share the log-odds of group g.

    Only the numbers of ones matter.
    """
    mass, loss = np.ones(1), np.zeros(1)
    one, zero = log_odds_losses(upper, lower)
    for place, count in enumerate(counts):
        ones = np.arange(count + 1.0)
        log_mass = gammaln(count + 1) - gammaln(ones + 1) - gammaln(count - ones + 1)
        log_mass -= ones * np.logaddexp(0, -upper[place]) + (count - ones) * np.logaddexp(
            0, upper[place]
        )
        mass = np.multiply.outer(mass, np.exp(log_mass)).ravel()
        loss = np.add.outer(loss, ones * one[place] + (count - ones) * zero[place]).ravel()
    return mass, loss


def exact_excess(mass: FloatVector, loss: FloatVector, epsilon: FloatVector) -> FloatVector:
    """delta(epsilon) less max(0, 1 - e^epsilon), which every pair has: the sum of (p - e^epsilon
    q)_+ or of (...)_-.

    A sum of positive terms, so that its relative error is that of the masses also far out in either
    tail.
    """
    gap = epsilon[:, None] - loss[None, :]
    above = -np.expm1(np.minimum(gap, 0.0)) @ mass
    below = np.expm1(np.minimum(np.maximum(gap, 0.0), 700.0)) @ mass
    return np.asarray(np.where(epsilon >= 0, above, below))


def gaussian_excess(epsilon: FloatVector, square: float) -> FloatVector:
    """The same of the Gaussian pair, by Balle and Wang.

    At -e it is e^-e times that at e, as the pair is symmetric.
    """
    mu = float(np.sqrt(square))
    log_delta = np.array([gaussian_log_delta(abs(float(value)), mu) for value in epsilon])
    return np.asarray(np.exp(log_delta + np.minimum(epsilon, 0.0)))


def random_case(
    rng: np.random.Generator, most: int
) -> tuple[list[int], FloatVector, FloatVector, float, float]:
    """Counts, log-odds in both worlds, budget and largest half difference of a random product of
    bits.

    Half of the cases have a few groups of many equal bits, half up to ``most`` bits of their own.
    The spreads are equal, one large coordinate among small ones, or anything between; worlds are
    zero-out either way round, or replace-one.
    """
    largest = 10 ** rng.uniform(-2.5, 0) if rng.random() < 0.9 else 1.0
    if rng.random() < 0.5:
        counts = [1] * int(rng.integers(1, most + 1))
    else:
        counts = [
            int(rng.integers(1, ceiling))
            for ceiling in ((400,), (60, 30), (20, 12, 6))[rng.integers(3)]
        ]
    kind = rng.integers(3)
    half = np.full(len(counts), largest)
    if kind == 1:
        half *= rng.random(len(counts)) ** rng.choice([0.3, 1.0, 3.0])
    elif kind == 2:
        half[1:] *= rng.random()
    sign = rng.choice([-1.0, 1.0], len(counts))
    world = rng.integers(3)
    if world == 2:  # replace-one: any middle
        middle = rng.normal(size=len(counts)) * rng.choice([0.0, 0.2, 1.0, 4.0])
    else:  # zero-out: one of the two log-odds is 0
        middle = sign * half * (1 if world else -1)
    budget = float(np.array(counts) @ np.square(half))
    return counts, middle + sign * half, middle - sign * half, budget, float(half.max())


def probing_epsilons(
    rng: np.random.Generator, square: float, loss: FloatVector, count: int
) -> FloatVector:
    """Where a bound is most likely to fail.

    Around 0, in the tail, and at the kinks of the exact profile.
    """
    mu = float(np.sqrt(square))
    spread = square / 2 + mu * rng.normal(size=count) * rng.choice([0.3, 1.0, 3.0], count)
    spread[: count // 3] = rng.choice(loss, count // 3)
    spread[count // 3 : count // 2] = rng.normal(size=count // 2 - count // 3) * 0.1 * mu
    return np.clip(spread, -4 * mu - square, 8 * mu + square)
