"""What the auditor asks of the releases: one question per function, each with its own share of the doubt.

Idea     a sampler that follows the claimed law answers all questions rightly but for a stated probability; a
         fault fails at least one. Means and variances are held against the claim, coordinate by coordinate and
         added up along the update (the score test, which is the sharpest for a response that is too strong);
         independence needs no claim.
Symbols  those of `releases.py`; e = `moment_error`, how far a mechanism says its own claim may be off.
Source   limits: `tails.py`. For a fixed lag the terms z_i z_(i+L), taken in order, are martingale differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy import fft
from scipy.special import ndtri

from quietbit._typing import FloatVector
from quietbit.auditor.probes import STRETCH
from quietbit.auditor.releases import Record, Shared
from quietbit.auditor.tails import REACH_MARGIN, bernstein_limit, bernstein_tail, lower_limit

__all__ = ["CHECKS", "Finding", "check_all", "detectable_gain"]

ROUNDING = 1e-3  # of means and variances: 32-bit floats and fixed-point means are far better than this
HEAVIER = 1.5  # how much heavier than seen the tails may be
POWER = float(ndtri(0.9))
STEPS = 50  # of a tenth each: a factor of 117


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question: it failed where ``ratio``, the worst statistic over its limit, is above 1."""

    name: str
    ratio: float
    detail: str

    @property
    def passed(self) -> bool:
        """Whether chance explains what was seen."""
        return self.ratio <= 1  # a NaN is not a pass


def check_all(records: Sequence[Record], shared: Shared, error: float, doubt: float) -> list[Finding]:
    """Every finding; all pass for a sampler that follows its claim, but for a probability of ``doubt``."""
    share = doubt / len(CHECKS)
    inside = [record for record in records if not record.probe.outside]
    outside = [record for record in records if record.probe.outside]
    reach = REACH_MARGIN * max(record.reach for record in records)
    found = [
        means(inside, reach, error, share),
        places(inside, reach, error, share),
        response("response", inside, error, share),
        variances(inside, reach, error, share),
        noise(inside, reach, error, share),
        clipping(outside, reach, error, share),
        neighbours(shared, reach, share),
        pairs(records, reach, share),
        successive(shared, reach, share),
        identical(records, reach, share),
    ]
    return found


CHECKS = (
    *("means", "rungs", "response", "variances", "noise", "clipping"),
    *("coordinates", "pairs", "releases", "payloads"),
)


def _worst(name: str, ratios: Sequence[float], what: Sequence[str]) -> Finding:
    place = int(np.argmax(np.nan_to_num(np.asarray(ratios), nan=np.inf)))
    return Finding(name, float(ratios[place]), what[place])


def _mean_ratio(record: Record, reach: float, error: float, doubt: float) -> FloatVector:
    """By coordinate: how far the sum of z is from zero, over what chance allows."""
    allowed = record.times * (error * np.abs(record.response) + ROUNDING * np.sqrt(record.share))
    variance = record.times * np.maximum(record.share, 1e-6)
    return np.asarray(np.abs(record.first) / (allowed + bernstein_limit(variance, reach, doubt / 2)))


def means(records: Sequence[Record], reach: float, error: float, doubt: float) -> Finding:
    """Every coordinate of every update has the claimed mean."""
    tests = sum(record.first.size for record in records)
    ratios, what = [], []
    for record in records:
        found = _mean_ratio(record, reach, error, doubt / tests)
        place = int(np.argmax(found))
        off = record.first[place] / record.times
        ratios.append(float(found[place]))
        what.append(f"mean of coordinate {place:,} off by {off:+.3f} standard deviations ({record.probe.name})")
    return _worst("means", ratios, what)


def places(records: Sequence[Record], reach: float, error: float, doubt: float) -> Finding:
    """The coordinate that stands out has the claimed mean: fewer comparisons, hence sharper."""
    chosen = [record for record in records if record.probe.place is not None]
    ratios, what = [], []
    for record in chosen:
        place = int(record.probe.place or 0)
        ratios.append(float(_mean_ratio(record, reach, error, doubt / len(chosen))[place]))
        off = record.first[place] / record.times
        what.append(f"mean of the large coordinate off by {off:+.3f} standard deviations ({record.probe.name})")
    return _worst("rungs", ratios, what)


def _score(records: Sequence[Record], error: float, doubt: float) -> tuple[float, float, float, float]:
    """(sum of scores, its limit, its standard deviation, what a response stronger by a tenth would add)."""
    total = variance = reach = signal = allowed = 0.0
    for record in records:
        scores = np.concatenate(record.scores)
        claimed = float(np.square(record.weight) @ record.share)
        total += float(scores.sum())
        # Coordinates need not be independent: what was seen counts where it is more.
        variance += record.times * max(claimed, float(scores.var()))
        reach = max(reach, REACH_MARGIN * float(np.abs(scores).max()))
        signal += record.times * float(np.square(record.weight).sum())
        size = np.abs(record.weight) @ (error * np.abs(record.response))
        allowed += record.times * (float(size) + ROUNDING * float(np.square(record.weight).sum()))
    return total, allowed + bernstein_limit(variance, reach, doubt / 2), math.sqrt(variance), signal


def response(name: str, records: Sequence[Record], error: float, doubt: float) -> Finding:
    """The score: releases follow the update exactly as strongly as claimed, over each update and over all."""
    groups = [[record] for record in records if np.any(record.weight)]
    together = [record for group in groups for record in group]
    ratios, what = [0.0], ["no update moves the claimed mean"]
    # Half the doubt for all together, which is the sharpest, half for the single ones.
    shares = [(together, doubt / 2)] + [(group, doubt / (2 * len(groups))) for group in groups]
    for group, part in shares if groups else []:
        total, limit, _, signal = _score(group, error, part)
        ratios.append(abs(total) / limit if limit > 0 else 0.0)
        gain = (STRETCH - 1) * total / signal
        where = group[0].probe.name if len(group) == 1 else f"{len(group)} updates together"
        what.append(f"response off by {100 * gain:+.1f} % ({where})")
    return _worst(name, ratios, what)


def clipping(records: Sequence[Record], reach: float, error: float, doubt: float) -> Finding:
    """An update far outside the ball is released like its clipped version."""
    score = response("clipping", records, error, doubt / 2)
    single = means(records, reach, error, doubt / 2)
    worse = max((score, single), key=lambda one: one.ratio if one.ratio == one.ratio else math.inf)
    return Finding("clipping", worse.ratio, worse.detail)


def _fourth(record: Record) -> float:
    """The fourth moment of z over typical coordinates, as heavy as it may be."""
    plain = int(np.count_nonzero(record.typical)) * record.times
    return HEAVIER * max(record.fourth / plain, 1.0) if plain else 0.0


def _moments(record: Record, reach: float) -> FloatVector:
    """E z^4 by coordinate: what was seen of typical ones, and for others what the reach allows."""
    return np.where(record.typical, _fourth(record), reach**2 * record.share)


def variances(records: Sequence[Record], reach: float, error: float, doubt: float) -> Finding:
    """Every coordinate of every update has the claimed variance; one that is too small is the worse fault."""
    part = doubt / (2 * sum(record.first.size for record in records))
    ratios, what = [], []
    for record in records:
        moment = record.times * _moments(record, reach)
        off = record.second - record.times * record.share
        above, below = bernstein_limit(moment, reach**2, part), lower_limit(moment, part)
        limit = record.times * (error + ROUNDING) * record.share + np.where(off > 0, above, below)
        found = np.abs(off) / np.maximum(limit, 1e-300)
        place = int(np.argmax(found))
        seen = record.second[place] / (record.times * record.share[place]) if record.share[place] else math.inf
        ratios.append(float(found[place]))
        what.append(f"variance of coordinate {place:,} is {seen:.3f} of the claim ({record.probe.name})")
    return _worst("variances", ratios, what)


def noise(records: Sequence[Record], reach: float, error: float, doubt: float) -> Finding:
    """All variances together: the noise has the claimed size."""
    off = variance = claimed = 0.0
    for record in records:
        energies = np.concatenate(record.energies)
        expected = float(record.share.sum())
        off += float(energies.sum()) - record.times * expected
        claimed += record.times * expected
        variance += record.times * max(float(_moments(record, reach).sum()), float(energies.var()))
    limit = (error + ROUNDING) * claimed + bernstein_limit(variance, reach**2, doubt / 2)
    seen = 1 + off / claimed if claimed else math.inf
    return Finding("noise", abs(off) / limit if limit > 0 else 0.0, f"variance over all is {seen:.4f} of the claim")


def neighbours(shared: Shared, reach: float, doubt: float) -> Finding:
    """Coordinates of a release are uncorrelated, at every distance from one another."""
    if shared.dimension == 1:
        return Finding("coordinates", 0.0, "there is one coordinate")
    lags = shared.correlations()
    terms = shared.rows * (shared.dimension - np.arange(1.0, shared.dimension))
    ratios = np.abs(lags) / bernstein_limit(terms, reach**2, doubt / (2 * lags.size))
    place = int(np.argmax(ratios))
    detail = f"correlation {lags[place] / terms[place]:+.4f} of coordinates {place + 1:,} apart"
    return Finding("coordinates", float(ratios[place]), detail)


def pairs(records: Sequence[Record], reach: float, doubt: float) -> Finding:
    """Releases in a row share no structure: <z, z'> varies as for independent coordinates, whichever are paired.

    With covariance Sigma the variance of <z, z'> is the sum of all squared entries of Sigma, so any dependence between
    any two coordinates makes it larger.
    """
    total = variance = widest = count = 0.0
    for record in records:
        expected = float(np.square(record.share).sum())
        squares = np.square(np.concatenate(record.products)) / max(expected, 1e-300)
        if expected <= 0 or squares.size == 0:
            continue
        total += float(squares.sum()) - squares.size
        # For independent coordinates: 2, and what heavy tails add, which matters where there are few coordinates.
        tails = float(np.square(_moments(record, reach)).sum()) / expected**2
        variance += squares.size * (2 + tails)
        widest = max(widest, float(squares.max()))
        count += squares.size
    limit = ROUNDING * count + bernstein_limit(variance, REACH_MARGIN * widest, doubt)
    seen = 1 + total / count if count else 1.0
    return Finding(
        "pairs", total / limit if limit > 0 else 0.0, f"products of releases vary {seen:.3f} times as claimed"
    )


def successive(shared: Shared, reach: float, doubt: float) -> Finding:
    """Releases are uncorrelated, at every distance in time."""
    rows = sum(len(block) for block in shared.kept)
    if rows < 2:
        return Finding("releases", 0.0, "there is one release")
    kept = np.concatenate(shared.kept)
    length = fft.next_fast_len(2 * rows, real=True)
    power = np.zeros(length // 2 + 1)
    for column in kept.T:
        turned = fft.rfft(column.astype(np.float64), length)
        power += np.square(turned.real) + np.square(turned.imag)
    lags = fft.irfft(power, length)[1:rows]
    terms = kept.shape[1] * (rows - np.arange(1.0, rows))
    allowed = ROUNDING * terms
    ratios = np.abs(lags) / (allowed + bernstein_limit(terms, reach**2, doubt / (2 * lags.size)))
    place = int(np.argmax(ratios))
    detail = f"correlation {lags[place] / terms[place]:+.4f} of releases {place + 1:,} apart"
    return Finding("releases", float(ratios[place]), detail)


def identical(records: Sequence[Record], reach: float, doubt: float) -> Finding:
    """No payload came twice, unless there are so few that chance repeats them."""
    ratios, what = [0.0], ["no payload came twice that chance would not repeat"]
    for record in records:
        if record.repeated > 0:
            count = 0.5 * record.times**2 * len(records)
            variance = float(np.square(record.share).sum())
            chance = math.log(count) + bernstein_tail(record.repeated, variance, reach**2)
            ratios.append(chance / math.log(doubt))
            what.append(f"the same payload twice ({record.probe.name}), chance below 10^{chance / math.log(10):.0f}")
    return _worst("payloads", ratios, what)


def detectable_gain(records: Sequence[Record], error: float, doubt: float) -> float:
    """By which factor the response must be too strong to be found by the score with probability 0.9.

    Step k of a tenth adds ``growth^k`` times the first to the mean: a response that levels off at the boundary shows
    a fault less than in proportion. Infinite where no strength would be found.
    """
    chosen = [record for record in records if not record.probe.outside and np.any(record.weight)]
    if not chosen:
        return math.inf
    _, limit, deviation, _ = _score(chosen, error, doubt / (2 * len(CHECKS)))
    needed, reached = limit + POWER * deviation, 0.0
    for step in range(1, STEPS + 1):
        added = sum(record.times * float(np.square(record.weight).sum()) * record.growth**step for record in chosen)
        if reached + added >= needed:
            return float(STRETCH ** (step - 1 + (needed - reached) / added))
        reached += added
    return math.inf
