"""The updates that an audit sends over the real path, what is claimed, and what came out.

Idea     each fault shows for certain updates: zero, one coordinate at the boundary and all at once
         (both signs), rungs in between (a design's inner rows), and two far outside the ball, which
         must be released as if clipped. Each goes through `send`, every payload alone through
         `receive`, and is compared with the claim at once, so that memory does not grow with the
         number of releases times the dimension.
Symbols  m, V = claimed mean and variance of a decoded coordinate, for the clipped update u; shift =
         m(u) - m(u/1.1), what a response too strong by a tenth would add, to first order; z =
         (decoded - m)/s with s^2 = max(V, V(0)/9): at most unit variance, and no value of a nearly
         certain coordinate is out of proportion; c = V/s^2 the variance of z; w = shift/s, so that
         T = <w, z> is the score for a response too strong; Q = ||z||^2; G = <z, z'> of two releases
         in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol, TypeAlias, final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray
from scipy import fft

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.errors import require
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Mechanism

__all__ = ["REACH_MARGIN", "STRETCH", "Path", "Progress", "Record", "Releases", "release"]

STRETCH = 1.1  # factor of the excess that the score tests are designed for
OUTSIDE = 3.0  # clips
FEW = {
    1: 4,
    2: 12,
}  # coordinates that share it, by order of the norm: less than the clip each, above the noise
RUNGS = 8
RUNG_SHARE = 4  # a rung gets one part in four of the samples
SIGNS_SEED = 20230723  # public: for the places of rungs and their other signs
BATCH = 1 << 18  # numbers decoded at a time
SPECTRUM = 1 << 21  # numbers of an update, for correlations of coordinates
KEPT = 1 << 22  # numbers kept for correlations of releases
COLUMNS = 64  # coordinates of them
TYPICAL = 0.1
REACH_MARGIN = 1.25

Progress: TypeAlias = Callable[[float, str], None]


class Path(Protocol):
    """The path of an update: `Uplink`, or a replacement."""

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism whose claims are audited."""

    def send(self, update: Any, rng: Any, /) -> bytes:
        """Return the payload of an update."""

    def receive(self, payloads: Any, /) -> Any:
        """Return the mean of the decoded updates."""


class _Probe(NamedTuple):
    """One update and how often to send it; ``place`` is the coordinate that stands out, if any."""

    name: str
    update: FloatVector
    times: int
    place: int | None = None


def _probes(ball: Ball, samples: int) -> list[_Probe]:
    """Return all updates to send: zero, then pairs of opposites for the bound on epsilon."""
    size = ball.dimension
    order = ball.norm.order
    edge = np.eye(1, size)[0]
    probes = [
        _Probe("zero", np.zeros(size), samples),
        _Probe("one coordinate", edge, samples, 0),
        _Probe("one coordinate, negative", -edge, samples, 0),
    ]
    signs = np.where(np.random.default_rng(SIGNS_SEED).random(size) < 0.5, -1.0, 1.0)
    outside = OUTSIDE * np.ones(1)
    if size > 1:
        even = size ** (-1 / order)
        every = np.asarray(ball.clip(np.full(size, even)), dtype=np.float64)
        probes += [
            _Probe("every coordinate", every, samples),
            _Probe("every coordinate, negative", -every, samples),
        ]
        outside = OUTSIDE * even * signs
        few = np.zeros(size)
        count = min(size, FEW[order])
        few[-count:] = OUTSIDE / count ** (1 / order) * signs[-count:]
        probes.append(_Probe("outside the ball, few coordinates", few, samples))
    probes.append(_Probe("outside the ball", outside, samples))
    for part in (sign * step / RUNGS for step in range(1, RUNGS) for sign in (1, -1)):
        place = int(np.random.default_rng((SIGNS_SEED, round(RUNGS * (1 + part)))).integers(size))
        rest = (1 - abs(part) ** order) ** (
            1 / order
        )  # of the norm, which the other coordinates share
        rung = signs * (rest / max(size - 1, 1) ** (1 / order))
        rung[place] = part
        rung = np.asarray(ball.clip(rung), dtype=np.float64)
        probes.append(_Probe(f"rung {part:g}", rung, max(samples // RUNG_SHARE, 1), place))
    return probes


def _claims(
    decoded: Callable[[float], tuple[float, float]], values: FloatVector
) -> tuple[FloatVector, FloatVector]:
    """Return claimed mean and variance of every coordinate, looked up once per value."""
    different, places = np.unique(values, return_inverse=True)
    answers = np.array([decoded(value) for value in different.tolist()], dtype=np.float64)
    broken = int(np.count_nonzero(~np.isfinite(answers)))
    value = f"{broken} that are NaN or infinite"
    require(broken == 0, "claimed means and variances", value, "finite")
    require(answers[:, 1].min() >= 0, "claimed variance", float(answers[:, 1].min()), "at least 0")
    mean, variance = answers[places.reshape(-1)].T
    return mean, variance


@final
@frozen(eq=False)
class Record:
    """Statistics of one update's releases."""

    name: str
    times: int
    place: int | None
    share: FloatVector  # c
    typical: NDArray[np.bool_]  # coordinates whose claimed variance is nearly that of a zero
    response: FloatVector  # (m(u) - m(0))/s
    weight: FloatVector  # w
    # what each further step of a tenth adds to the mean score, relative to the previous step
    growth: float
    first: FloatVector  # sum of z, by coordinate
    second: FloatVector  # sum of z^2, by coordinate
    fourth: float  # sum of z^4 over typical coordinates
    reach: float  # largest |z|
    repeated: float  # largest Q of a payload that was sent before
    products: FloatVector  # G, per pair of releases
    scores: FloatVector  # T, per release, and so are the following:
    energies: FloatVector  # Q
    heads: FloatVector  # the first decoded coordinate
    totals: FloatVector  # the sum of all decoded coordinates


@final
class Releases:
    """All releases of an audit: a record per update, spectra, and some coordinates in order.

    ``error`` is the mechanism's own bound on the error of its claims.
    """

    def __init__(self, dimension: int, error: float, total: int) -> None:
        self.dimension = dimension
        self.error = error
        self.total = total
        self.sent = 0
        self.inside: list[Record] = []
        self.outside: list[Record] = []  # of updates outside the ball
        self.length = fft.next_fast_len(2 * dimension, real=True)
        self.spectrum = np.zeros(self.length // 2 + 1)
        self.rows = 0
        count = int(np.clip(KEPT // max(total, 1), 1, min(dimension, COLUMNS)))
        random = np.random.default_rng(dimension).choice(dimension, size=count, replace=False)
        ends = [0, dimension - 1, 1, dimension - 2][: count // 2]
        self.columns = np.unique(np.concatenate([np.array(ends, dtype=np.int64), random]))[:count]
        self.kept: list[NDArray[np.float32]] = []

    @property
    def records(self) -> list[Record]:
        """All records."""
        return self.inside + self.outside

    @property
    def reach(self) -> float:
        """The largest |z| seen, widened, since a larger one may exist."""
        return REACH_MARGIN * max(record.reach for record in self.records)

    def add(self, standard: FloatMatrix, left: int) -> None:
        """Add a batch of releases to the sums, at most ``left`` of them to the spectrum."""
        self.sent += len(standard)
        self.kept.append(standard[:, self.columns].astype(np.float32))
        if self.dimension > 1:
            some = standard[: max(left, 0)]
        else:
            some = standard[:0]
        for row in range(0, len(some), 16):  # a few at a time, so that they stay in the cache
            turned = fft.rfft(some[row : row + 16], self.length, axis=1)
            self.spectrum += np.square(turned.real).sum(axis=0) + np.square(turned.imag).sum(axis=0)
        self.rows += len(some)


def release(path: Path, rng: Any, samples: int, progress: Progress) -> Releases:
    """Send every update as often as its probe asks for, the main ones ``samples`` times."""
    mechanism = path.mechanism
    ball = mechanism.ball
    error = float(mechanism.moment_error)
    require(0 <= error < 1, "moment_error of the mechanism", error, "from 0 to below 1")
    decoded = cache(
        lambda value: (float(mechanism.expectation(value)), float(mechanism.variance(value)))
    )
    probes = _probes(ball, samples)
    releases = Releases(ball.dimension, error, sum(probe.times for probe in probes))
    for probe in probes:
        if probe.name.startswith("outside"):
            place = releases.outside
        else:
            place = releases.inside
        place.append(_record(path, rng, probe, decoded, releases, progress))
    progress(1.0, "done")
    return releases


def _record(
    path: Path, rng: Any, probe: _Probe, claimed: Any, releases: Releases, progress: Progress
) -> Record:
    ball = path.mechanism.ball
    target = np.asarray(ball.clip(probe.update), dtype=np.float64)
    # The mean, and what it is for an update shorter by one step of a tenth, and by two.
    mean, less, least = (_claims(claimed, target / STRETCH**step)[0] for step in range(3))
    variance = _claims(claimed, target)[1]
    mean_at_zero, at_zero = claimed(0.0)
    # A nearly certain coordinate has a tiny variance; one at zero shows how far values spread.
    spread = np.sqrt(np.maximum(variance, max(at_zero / 9, 1e-24)))
    typical = np.abs(variance - at_zero) <= TYPICAL * at_zero
    response = (mean - mean_at_zero) / spread
    weight = (mean - less) / spread
    # Where a step of a tenth adds less than the one before it, the response saturates.
    before = float(weight @ ((less - least) / spread))
    growth = min(float(weight @ weight) / before if before > 0 else 0.0, STRETCH)
    first, second = np.zeros((2, target.size))
    fourth = reach = repeated = 0.0
    products = []
    each = []
    seen = set[bytes]()
    rows = max(2, BATCH // target.size // 2 * 2)
    for start in range(0, probe.times, rows):
        count = min(rows, probe.times - start)
        decoded = np.empty((count, target.size))
        again = np.zeros(count, dtype=bool)
        for row in range(count):
            payload = path.send(probe.update, rng)
            decoded[row] = np.asarray(path.receive([payload]), dtype=np.float64).reshape(-1)
            digest = blake2b(payload, digest_size=16).digest()
            again[row] = digest in seen
            seen.add(digest)
        standard = (decoded - mean) / spread
        squares = np.square(standard)
        energies = squares.sum(axis=1)
        first += standard.sum(axis=0)
        second += squares.sum(axis=0)
        fourth += float(np.square(squares[:, typical]).sum())
        reach = max(reach, float(np.sqrt(squares.max())))
        repeated = max(repeated, float(energies[again].max(initial=0.0)))
        paired = count // 2 * 2
        products.append(np.einsum("ij,ij->i", standard[0:paired:2], standard[1:paired:2]))
        each.append(np.stack([standard @ weight, energies, decoded[:, 0], decoded.sum(axis=1)]))
        releases.add(standard, max(SPECTRUM // target.size, 16) - start)
        progress(releases.sent / releases.total, probe.name)
    share = variance / np.square(spread)
    pairs = np.concatenate(products)
    per_release = np.concatenate(each, axis=1)
    return Record(
        probe.name,
        probe.times,
        probe.place,
        share,
        typical,
        response,
        weight,
        growth,
        first,
        second,
        fourth,
        reach,
        repeated,
        pairs,
        *per_release,
    )
