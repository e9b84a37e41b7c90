"""The auditor's checks of the releases: one request per function, each with its share of the doubt.

Idea     a sampler that follows the claimed law passes every check except with a stated probability;
         a fault fails at least one. Means and variances are compared with the claim, per coordinate
         and added up along the update (the score test, sharpest for a response that is too strong);
         independence needs no claim. A check yields statistics over their limits; the worst is its
         answer. Limits hold for finitely many draws; variances come from the claim, the reach of
         values from the largest seen, widened.
Symbols  those of `releases.py`; v = variance of a sum; b = reach: no term is larger in magnitude.
Source   Bernstein (1924), and Freedman (1975) for martingales: P(S >= t) <= exp(-t^2/(2 (v + b
         t/3))). For a fixed lag the terms z_i z_(i+L), taken in order, are martingale differences.
         For sums of non-negative terms Maurer (2003): P(S <= E S - t) <= exp(-t^2/(2 sum E X^2)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy import fft
from scipy.special import ndtri

from quietbit._typing import FloatVector
from quietbit_lab.auditor.releases import REACH_MARGIN, STRETCH, Record, Releases

__all__ = [
    "CHECKS",
    "Finding",
    "bernstein_limit",
    "bernstein_tail",
    "check_all",
    "detectable_gain",
    "lower_limit",
]

ROUNDING = (
    1e-3  # of means and variances: 32-bit floats and fixed-point means are far better than this
)
HEAVIER = 1.5  # factor by which tails may be heavier than seen
POWER = float(ndtri(0.9))
STEPS = 50  # of a tenth each: a factor of 117

Answers: TypeAlias = Iterator[tuple[float, str]]


def bernstein_limit(variance: Any, reach: Any, doubt: float) -> Any:
    """Return a limit that a centred sum exceeds with probability at most ``doubt``.

    >>> round(bernstein_limit(100.0, 0.0, 1e-9), 1), round(bernstein_limit(100.0, 1.0, 1e-9), 1)
    (64.4, 71.7)
    """
    level = -math.log(doubt)
    linear = np.asarray(reach, dtype=np.float64) * (level / 3)
    limit = linear + np.sqrt(np.square(linear) + 2 * level * np.asarray(variance, dtype=np.float64))
    if np.ndim(limit) == 0:
        return float(limit)
    return limit


def bernstein_tail(excess: float, variance: float, reach: float) -> float:
    """Return the logarithm of the probability bound for a sum of mean zero to reach ``excess``."""
    if excess > 0:
        return -(excess**2) / (2 * (variance + reach * excess / 3))
    return 0.0


def lower_limit(second_moment: Any, doubt: float) -> Any:
    """Return how far a sum of non-negative terms falls short, with chance ``doubt``."""
    return np.sqrt(-2 * math.log(doubt) * np.asarray(second_moment, dtype=np.float64))


class Finding(NamedTuple):
    """The answer to one check; it failed if ``ratio``, statistic over limit, is above 1."""

    name: str
    ratio: float
    detail: str

    @property
    def passed(self) -> bool:
        """Whether chance explains the statistics."""
        return self.ratio <= 1  # NaN fails


def _moments(seen: Releases, record: Record) -> FloatVector:
    """Return E z^4 per coordinate: observed for typical ones, bounded for the others."""
    plain = int(np.count_nonzero(record.typical)) * record.times
    if plain:
        fourth = HEAVIER * max(record.fourth / plain, 1.0)
    else:
        fourth = 0.0
    return np.where(record.typical, fourth, seen.reach**2 * record.share)


def check_all(seen: Releases, doubt: float) -> tuple[Finding, ...]:
    """Return every finding; an honest sampler passes all but with probability ``doubt``."""
    findings = []
    for name, check in CHECKS.items():
        answers = list(check(seen, doubt / len(CHECKS)))
        worst = np.argmax(np.nan_to_num([ratio for ratio, _ in answers], nan=np.inf))
        findings.append(Finding(name, *answers[worst]))
    return tuple(findings)


def _mean(
    seen: Releases, record: Record, doubt: float, place: int | None = None
) -> tuple[float, str]:
    """Compare the mean of one coordinate, the worst unless given, with the claim."""
    allowed = record.times * (
        seen.error * np.abs(record.response) + ROUNDING * np.sqrt(record.share)
    )
    variance = record.times * np.maximum(record.share, 1e-6)
    ratios = np.abs(record.first) / (allowed + bernstein_limit(variance, seen.reach, doubt / 2))
    if place is None:
        worst = int(np.argmax(ratios))
    else:
        worst = place
    off = record.first[worst] / record.times
    return float(
        ratios[worst]
    ), f"mean of coordinate {worst:,} off by {off:+.3f} standard deviations ({record.name})"


def means(seen: Releases, doubt: float, chosen: Sequence[Record] | None = None) -> Answers:
    """Ask whether every coordinate of every update (or of the ``chosen``) has the claimed mean."""
    records: Sequence[Record] = seen.inside
    if chosen is not None:
        records = chosen
    return (_mean(seen, record, doubt / (len(records) * seen.dimension)) for record in records)


def rungs(seen: Releases, doubt: float) -> Answers:
    """Check the mean of the prominent coordinate: fewer comparisons, hence sharper."""
    chosen = [record for record in seen.inside if record.place is not None]
    return (_mean(seen, record, doubt / len(chosen), record.place) for record in chosen)


def _score(
    records: Sequence[Record], error: float, doubt: float
) -> tuple[float, float, float, float]:
    """Return the sum of scores, its limit, its deviation, and what a tenth more would add."""
    total = variance = reach = signal = allowed = 0.0
    for record in records:
        scores = record.scores
        squared = np.square(record.weight)
        total += float(scores.sum())
        # Coordinates need not be independent: use the observed variance where it is larger.
        variance += record.times * max(float(squared @ record.share), float(scores.var()))
        reach = max(reach, REACH_MARGIN * float(np.abs(scores).max()))
        signal += record.times * float(squared.sum())
        size = np.abs(record.weight) @ (error * np.abs(record.response))
        allowed += record.times * (float(size) + ROUNDING * float(squared.sum()))
    return total, allowed + bernstein_limit(variance, reach, doubt / 2), math.sqrt(variance), signal


def response(seen: Releases, doubt: float, chosen: Sequence[Record] | None = None) -> Answers:
    """Check that releases follow each update, and all of them, as strongly as claimed."""
    moving = [
        record for record in (seen.inside if chosen is None else chosen) if np.any(record.weight)
    ]
    yield 0.0, "no update moves the claimed mean"
    # Half the doubt for all updates together, which is sharpest, half for the single ones.
    if moving:
        groups = [
            (moving, doubt / 2),
            *(([record], doubt / (2 * len(moving))) for record in moving),
        ]
    else:
        groups = []
    for group, part in groups:
        total, limit, _, signal = _score(group, seen.error, part)
        if len(group) == 1:
            where = group[0].name
        else:
            where = f"{len(group)} updates together"
        off = 100 * (STRETCH - 1) * total / signal
        yield abs(total) / limit if limit > 0 else 0.0, f"response off by {off:+.1f} % ({where})"


def clipping(seen: Releases, doubt: float) -> Answers:
    """Ask whether an update far outside the ball is released like its clipped version."""
    yield from response(seen, doubt / 2, seen.outside)
    yield from means(seen, doubt / 2, seen.outside)


def variances(seen: Releases, doubt: float) -> Answers:
    """Check the variance of every coordinate; too small is the worse fault."""
    part = doubt / (2 * len(seen.inside) * seen.dimension)
    for record in seen.inside:
        moment = record.times * _moments(seen, record)
        off = record.second - record.times * record.share
        above = bernstein_limit(moment, seen.reach**2, part)
        below = lower_limit(moment, part)
        limit = record.times * (seen.error + ROUNDING) * record.share + np.where(
            off > 0, above, below
        )
        ratios = np.abs(off) / np.maximum(limit, 1e-300)
        place = int(np.argmax(ratios))
        if record.share[place]:
            measured = record.second[place] / (record.times * record.share[place])
        else:
            measured = math.inf
        yield (
            float(ratios[place]),
            f"variance of coordinate {place:,} is {measured:.3f} of the claim ({record.name})",
        )


def noise(seen: Releases, doubt: float) -> Answers:
    """Ask of all variances together whether the noise has the claimed size."""
    off = variance = claimed = 0.0
    for record in seen.inside:
        energies = record.energies
        expected = record.times * float(record.share.sum())
        off += float(energies.sum()) - expected
        claimed += expected
        variance += record.times * max(float(_moments(seen, record).sum()), float(energies.var()))
    limit = (seen.error + ROUNDING) * claimed + bernstein_limit(variance, seen.reach**2, doubt / 2)
    if claimed:
        measured = 1 + off / claimed
    else:
        measured = math.inf
    yield (
        abs(off) / limit if limit > 0 else 0.0,
        f"variance over all is {measured:.4f} of the claim",
    )


def _lags(
    power: FloatVector, length: int, terms: FloatVector, allowed: float, reach: float, doubt: float
) -> Answers:
    """Compare sums of products at every distance with limits of uncorrelated ones."""
    lags = fft.irfft(power, length)[1 : terms.size + 1]
    limits = allowed * terms + bernstein_limit(terms, reach**2, doubt / (2 * lags.size))
    ratios = np.abs(lags) / limits
    place = int(np.argmax(ratios))
    yield (
        float(ratios[place]),
        f"correlation {lags[place] / terms[place]:+.4f} at a distance of {place + 1:,}",
    )


def coordinates(seen: Releases, doubt: float) -> Answers:
    """Ask whether coordinates of a release are uncorrelated, at every distance from one another."""
    if seen.dimension == 1:
        return iter([(0.0, "there is one coordinate")])
    terms = seen.rows * (seen.dimension - np.arange(1.0, seen.dimension))
    return _lags(seen.spectrum, seen.length, terms, 0.0, seen.reach, doubt)


def pairs(seen: Releases, doubt: float) -> Answers:
    """Check that <z, z'> of consecutive releases varies as for independent coordinates."""
    total = variance = widest = count = 0.0
    for record in seen.records:
        expected = float(np.square(record.share).sum())
        squares = np.square(record.products) / max(expected, 1e-300)
        if expected <= 0 or squares.size == 0:
            continue
        total += float(squares.sum()) - squares.size
        # For independent coordinates: 2, and what heavy tails add, which matters where there are
        # few coordinates.
        variance += squares.size * (
            2 + float(np.square(_moments(seen, record)).sum()) / expected**2
        )
        widest = max(widest, float(squares.max()))
        count += squares.size
    limit = ROUNDING * count + bernstein_limit(variance, REACH_MARGIN * widest, doubt)
    measured = 1 + total / count if count else 1.0
    yield (
        total / limit if limit > 0 else 0.0,
        f"products of releases vary {measured:.3f} times as claimed",
    )


def releases(seen: Releases, doubt: float) -> Answers:
    """Ask whether releases are uncorrelated, at every distance in time."""
    standard = np.concatenate(seen.kept)
    rows, columns = standard.shape
    length = fft.next_fast_len(2 * rows, real=True)
    power = np.zeros(length // 2 + 1)
    for column in standard.T:
        power += np.square(np.abs(fft.rfft(column.astype(np.float64), length)))
    terms = columns * (rows - np.arange(1.0, rows))
    return _lags(power, length, terms, ROUNDING, seen.reach, doubt)


def payloads(seen: Releases, doubt: float) -> Answers:
    """Ask whether no payload was repeated, unless there are so few that chance repeats them."""
    yield 0.0, "no payload came twice that chance would not repeat"
    for record in seen.records:
        if record.repeated > 0:
            count = 0.5 * record.times**2 * len(seen.records)
            variance = float(np.square(record.share).sum())
            chance = math.log(count) + bernstein_tail(record.repeated, variance, seen.reach**2)
            chance_shown = f"chance below 10^{chance / math.log(10):.0f}"
            detail = f"the same payload twice ({record.name}), {chance_shown}"
            yield chance / math.log(doubt), detail


ALL = (means, rungs, response, variances, noise, clipping, coordinates, pairs, releases, payloads)
CHECKS: dict[str, Callable[[Releases, float], Answers]] = {check.__name__: check for check in ALL}


def detectable_gain(seen: Releases, doubt: float) -> float:
    """Return the smallest factor of too strong a response that is found 9 times in 10.

    Step k of a tenth adds ``growth^k`` times the first to the mean: a response that saturates at
    the boundary shows a fault less than in proportion. Infinite where no strength would be found.
    """
    chosen = [record for record in seen.inside if np.any(record.weight)]
    if not chosen:
        return math.inf
    _, limit, deviation, _ = _score(chosen, seen.error, doubt / (2 * len(CHECKS)))
    needed = limit + POWER * deviation
    reached = 0.0
    for step in range(1, STEPS + 1):
        added = sum(
            record.times * float(np.square(record.weight).sum()) * record.growth**step
            for record in chosen
        )
        if reached + added >= needed:
            return float(STRETCH ** (step - 1 + (needed - reached) / added))
        reached += added
    return math.inf
