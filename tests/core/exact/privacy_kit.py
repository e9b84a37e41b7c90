"""Designs made by hand and a 60-digit oracle that shares no code with the package."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath as mp
import numpy as np

from quietbit.design.table import Design, DesignSpec, exact_row

DIGITS = 60
ORDERS = (1.01, 1.25, 2.0, 3.7, 16.0, 128.0, 1000.0)


def one_bit(epsilon: float, levels: int = 2) -> Design:
    """The closed form of one bit, metric-L1.

    P(2|x) linear in x at the levels, alphabet 1/2 -+ z.
    """
    x = np.linspace(0, 1, levels)
    h = 1 / (levels - 1)
    z = 0.5 + h / np.expm1(epsilon * h)
    one = 0.5 + (x - 0.5) / (2 * z)
    table = np.stack((1 - one, one), axis=1)
    return Design(
        DesignSpec(levels, 1, epsilon), summing_to_one(table), np.array([0.5 - z, 0.5 + z])
    )


def sigmoid_bit(epsilon: float) -> Design:
    """P(2|x) = sigmoid(epsilon (2x - 1)): the two-level, one-bit mechanism."""
    high, low = 1 / (1 + np.exp(-epsilon)), 1 / (1 + np.exp(epsilon))
    table = summing_to_one([[high, low], [low, high]])
    return Design(DesignSpec(2, 1, epsilon), table, np.array([0.0, 1.0]))


def own_epsilon(design: Design) -> float:
    """Half the difference of the two log-odds of a one-bit table, in 60 digits.

    The epsilon that it really has.
    """
    with mp.workdps(60):
        odds = [mp.log(mp.mpf(row[1]) / mp.mpf(row[0])) for row in design.probabilities.tolist()]
        return float((odds[1] - odds[0]) / 2)


def summing_to_one(weights: Any) -> Any:
    """Rows of probabilities whose rational sums are one."""
    return np.stack([exact_row(row) for row in np.asarray(weights, dtype=np.float64)])


def rough(levels: int, bits: int, strength: float, seed: int) -> Design:
    """A random positive table.

    A peak that follows the level, plus noise, so that every kink is real.
    """
    rng = np.random.default_rng(seed)
    symbols = 2**bits
    place = np.linspace(-0.2, 1.2, symbols)
    x = np.linspace(0, 1, levels)
    eta = -strength * np.abs(place - x[:, None]) + 0.4 * strength / levels * rng.normal(
        size=(levels, symbols)
    )
    table = np.exp(eta)
    return Design(DesignSpec(levels, bits, 5.0), summing_to_one(table), place)


def flat(levels: int, bits: int) -> Design:
    """Rows that do not depend on the level: nothing is revealed."""
    table = np.full((levels, 2**bits), 0.5**bits)
    return Design(DesignSpec(levels, bits, 1.0), summing_to_one(table), np.arange(2.0**bits))


def law(design: Design, x: float) -> list[mp.mpf]:
    """P(. | x) to 60 digits, straight from the definition of the interpolation."""
    with mp.workdps(DIGITS):
        cells = design.spec.input_levels - 1
        t = mp.mpf(x) * cells
        index = min(max(int(mp.floor(t)), 0), cells - 1)
        below, above = design.probabilities[index : index + 2].tolist()
        weights = [
            mp.mpf(a) ** (1 - t + index) * mp.mpf(b) ** (t - index)
            for a, b in zip(below, above, strict=True)
        ]
        mass = mp.fsum(weights)
        return [w / mass for w in weights]


def log_laws(design: Design, points: Any) -> np.ndarray:
    """Log-probabilities in doubles, a row per point."""
    return np.array([[math.log(p) for p in law(design, float(x))] for x in points])


def renyi(left: list[mp.mpf], right: list[mp.mpf], alpha: float) -> mp.mpf:
    """D_alpha(left || right) to 60 digits."""
    with mp.workdps(DIGITS):
        a = mp.mpf(alpha)
        moment = mp.fsum(p**a * q ** (1 - a) for p, q in zip(left, right, strict=True))
        return mp.log(moment) / (a - 1)


def renyi_grid(left: np.ndarray, right: np.ndarray, alpha: float) -> np.ndarray:
    """D_alpha for all pairs of rows of log-probabilities, in doubles."""
    exponent = alpha * left[:, None, :] + (1 - alpha) * right[None, :, :]
    return np.logaddexp.reduce(exponent, axis=-1) / (alpha - 1)


def max_ratio(left: list[mp.mpf], right: list[mp.mpf]) -> mp.mpf:
    """max |log(left/right)| to 60 digits."""
    with mp.workdps(DIGITS):
        return max(abs(mp.log(p / q)) for p, q in zip(left, right, strict=True))


def fisher_information(design: Design, x: float) -> float:
    """I(x), the expected squared derivative of log P(J|x) in x (Definition 2), in doubles.

    At a kink between two levels the derivative from the right is meant.
    """
    eta, cells = np.log(design.probabilities), design.spec.input_levels - 1
    index = min(max(int(np.floor(x * cells)), 0), cells - 1)
    slope = (eta[index + 1] - eta[index]) * cells
    exponent = eta[index] + slope * (x - index / cells)
    weights = np.exp(exponent - exponent.max())
    weights /= weights.sum()
    return float(weights @ np.square(slope - weights @ slope))


def probing_pairs(
    low: float, high: float, levels: int, count: int, seed: int
) -> list[tuple[float, float]]:
    """Random pairs, close pairs, pairs across a kink at every scale, and the ends of the range."""
    rng = np.random.default_rng(seed)
    kinks = np.append(np.linspace(0, 1, levels), [0.5, low, high])
    pairs = [np.array([low, high])]
    for _ in range(count):
        pairs.append(rng.uniform(low, high, 2))
        scale = 10 ** rng.uniform(-4, 0)
        for centre in (rng.choice(kinks), rng.uniform(low, high)):
            pairs.append(np.clip(centre + scale * rng.uniform(-1, 1, 2), low, high))
    return [(float(a), float(b)) for a, b in pairs if abs(a - b) > 1e-6]


def exact_delta(*releases: tuple[Sequence[float], Sequence[float], int]) -> Callable[..., mp.mpf]:
    """delta(epsilon) of releases (masses of P, masses of Q, how often), all outputs enumerated to
    60 digits.

    Outputs of equal releases are counted by how often each symbol occurs.
    """
    with mp.workdps(DIGITS):
        outputs = [(mp.mpf(1), mp.mpf(1))]
        for first, second, times in releases:
            kinds = _kinds(list(map(mp.mpf, first)), list(map(mp.mpf, second)), times)
            outputs = [(a * p, b * q) for a, b in outputs for p, q in kinds]

    def delta(epsilon: float) -> mp.mpf:
        with mp.workdps(DIGITS):
            factor = mp.exp(mp.mpf(epsilon))
            return mp.fsum(max(p - factor * q, mp.mpf(0)) for p, q in outputs)

    return delta


def _kinds(p: list[mp.mpf], q: list[mp.mpf], times: int) -> list[tuple[mp.mpf, mp.mpf]]:
    """The masses of both laws of every multiset of outputs."""
    kinds = []
    for outputs in itertools.combinations_with_replacement(range(len(p)), times):
        counts = [outputs.count(symbol) for symbol in range(len(p))]
        ways = mp.factorial(times) / mp.fprod(mp.factorial(count) for count in counts)
        laws = (mp.fprod(map(mp.power, law, counts)) for law in (p, q))
        kinds.append(tuple(ways * mass for mass in laws))
    return kinds


def bit(odds: float) -> list[mp.mpf]:
    """The law of a bit with these log-odds."""
    with mp.workdps(DIGITS):
        return [1 / (1 + mp.exp(-mp.mpf(odds))), 1 / (1 + mp.exp(mp.mpf(odds)))]


def gaussian_delta(epsilon: Any, slope: Any) -> mp.mpf:
    """Balle and Wang (2018), Theorem 8, to 60 digits; ``slope``: mu^2 / 2."""
    with mp.workdps(DIGITS):
        mu, eps = mp.sqrt(2 * mp.mpf(slope)), mp.mpf(epsilon)
        return mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(-mu / 2 - eps / mu)
