"""Releases of the real path, and the sums that the checks are made of.

Idea     every update goes through `send`, every payload alone through `receive`; what comes out is compared with
         the claim while it is at hand, so that memory does not grow with the number of releases times the
         dimension.
Symbols  r = decoded - claimed mean; z = r/s with s^2 = max(V, V(0)/9): at most unit variance, and no value of a
         nearly certain coordinate is out of proportion; c = V/s^2 the variance of z; w = shift/s, so that T = <w, z>
         is the score for a response too strong; Q = ||z||^2; G = <z, z'> of two releases in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.auditor.probes import STRETCH, Claims, Probe
from quietbit.mechanism.base import Mechanism

__all__ = ["Path", "Record", "Shared", "release"]

BATCH = 1 << 18  # numbers decoded at a time
SPECTRUM = 1 << 21  # numbers of each update's releases that go into correlations of coordinates
KEPT = 1 << 22  # numbers kept for correlations of releases
COLUMNS = 64
TYPICAL = 0.1

Told = Callable[[int], None]


class Path(Protocol):
    """The way of an update: what `Uplink` does, or something that stands in for it."""

    @property
    def mechanism(self) -> Mechanism:
        """Whose claims are audited."""
        ...

    def send(self, update: Any, rng: Any, /) -> bytes:
        """From an update to its payload."""
        ...

    def receive(self, payloads: Any, /) -> Any:
        """From payloads to the mean of the decoded updates."""
        ...


@final
@dataclass(slots=True, eq=False)
class Record:
    """What was seen of one update's releases."""

    probe: Probe
    share: FloatVector  # c
    typical: NDArray[np.bool_]  # coordinates whose claimed variance is nearly that of a zero
    response: FloatVector  # (m(u) - m(0))/s
    weight: FloatVector  # w
    growth: float  # what each further step of a tenth adds to the mean score, relative to the step before
    first: FloatVector  # sum of z, by coordinate
    second: FloatVector  # sum of z^2, by coordinate
    fourth: float = 0.0  # sum of z^4 over typical coordinates
    reach: float = 0.0  # largest |z|
    scores: list[FloatVector] = field(default_factory=list)
    energies: list[FloatVector] = field(default_factory=list)
    products: list[FloatVector] = field(default_factory=list)
    heads: list[FloatVector] = field(default_factory=list)  # first decoded coordinate
    totals: list[FloatVector] = field(default_factory=list)  # sum of decoded coordinates
    repeated: float = 0.0  # largest Q of a payload that was sent before

    @property
    def times(self) -> int:
        """How many releases there were."""
        return self.probe.times


@final
class Shared:
    """What is summed over all updates: spectra along coordinates, and some coordinates of every release in order."""

    def __init__(self, dimension: int, total: int) -> None:
        self.dimension = dimension
        self.length = fft.next_fast_len(2 * dimension, real=True)
        self.spectrum = np.zeros(self.length // 2 + 1)
        self.rows = 0
        self.limit = max(SPECTRUM // dimension, 16)
        count = int(np.clip(KEPT // max(total, 1), 1, min(dimension, COLUMNS)))
        random = np.random.default_rng(dimension).choice(dimension, size=count, replace=False)
        ends = [0, dimension - 1, 1, dimension - 2][: count // 2]
        self.columns = np.unique(np.concatenate([np.array(ends, dtype=np.int64), random]))[:count]
        self.kept: list[NDArray[np.float32]] = []

    def correlations(self) -> FloatVector:
        """Sums of z_i z_(i+L) over coordinates and releases, for every lag L from 1 on."""
        return np.asarray(fft.irfft(self.spectrum, self.length)[1 : self.dimension])


def release(path: Path, probe: Probe, claims: Claims, rng: Any, shared: Shared, told: Told) -> Record:
    """Send one update as often as its probe says."""
    target = probe.target(claims.ball)
    mean, variance = claims.mean(target), claims.variance(target)
    spread = np.sqrt(np.maximum(variance, claims.floor))
    response = (mean - claims.mean(np.zeros_like(target))) / spread
    zeros = np.zeros(target.size)
    share = variance / np.square(spread)
    typical = np.abs(variance - claims.at_zero) <= TYPICAL * claims.at_zero
    weight = claims.shift(target) / spread
    before = float(weight @ (claims.earlier_shift(target) / spread))
    growth = float(weight @ weight) / before if before > 0 else 0.0
    record = Record(probe, share, typical, response, weight, min(growth, STRETCH), zeros.copy(), zeros.copy())
    rows = max(2, BATCH // target.size // 2 * 2)
    seen: set[bytes] = set()
    left = shared.limit
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
        _add(record, decoded, standard, again)
        _add_shared(shared, standard, left)
        left = max(left - count, 0)
        told(count)
    return record


def _add(record: Record, decoded: FloatMatrix, standard: FloatMatrix, again: NDArray[np.bool_]) -> None:
    squares = np.square(standard)
    energies = squares.sum(axis=1)
    record.first += standard.sum(axis=0)
    record.second += squares.sum(axis=0)
    record.fourth += float(np.square(squares[:, record.typical]).sum())
    record.reach = max(record.reach, float(np.sqrt(squares.max())))
    record.scores.append(standard @ record.weight)
    record.energies.append(energies)
    paired = len(standard) // 2 * 2
    record.products.append(np.einsum("ij,ij->i", standard[0:paired:2], standard[1:paired:2]))
    record.heads.append(decoded[:, 0].copy())
    record.totals.append(decoded.sum(axis=1))
    if again.any():
        record.repeated = max(record.repeated, float(energies[again].max()))


def _add_shared(shared: Shared, standard: FloatMatrix, left: int) -> None:
    shared.kept.append(standard[:, shared.columns].astype(np.float32))
    if left > 0 and standard.shape[1] > 1:
        some = standard[:left]
        for row in range(0, len(some), 16):  # a few at a time, so that they stay in the cache
            turned = fft.rfft(some[row : row + 16], shared.length, axis=1)
            shared.spectrum += np.square(turned.real).sum(axis=0) + np.square(turned.imag).sum(axis=0)
        shared.rows += len(some)
