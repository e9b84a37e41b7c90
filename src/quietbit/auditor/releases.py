"""Releases over the real path, and the sums on which the checks are based.

Idea     every update goes through `send`, every payload alone through `receive`; the result is compared with the claim
         at once, so that memory does not grow with the number of releases times the dimension.
Symbols  r = decoded - claimed mean; z = r/s with s^2 = max(V, V(0)/9): at most unit variance, and no value of a
         nearly certain coordinate is out of proportion; c = V/s^2 the variance of z; w = shift/s, so that T = <w, z>
         is the score for a response too strong; Q = ||z||^2; G = <z, z'> of two releases in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Protocol, final

import numpy as np
from attrs import Factory, define
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


class Path(Protocol):
    """The path of an update: `Uplink`, or a replacement."""

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism whose claims are audited."""
        ...

    def send(self, update: Any, rng: Any, /) -> bytes:
        """Return the payload of an update."""
        ...

    def receive(self, payloads: Any, /) -> Any:
        """Return the mean of the decoded updates."""
        ...


@final
@define(eq=False)
class Record:
    """Statistics of one update's releases."""

    probe: Probe
    share: FloatVector  # c
    typical: NDArray[np.bool_]  # coordinates whose claimed variance is nearly that of a zero
    response: FloatVector  # (m(u) - m(0))/s
    weight: FloatVector  # w
    growth: float  # what each further step of a tenth adds to the mean score, relative to the previous step
    first: FloatVector  # sum of z, by coordinate
    second: FloatVector  # sum of z^2, by coordinate
    fourth: float = 0.0  # sum of z^4 over typical coordinates
    reach: float = 0.0  # largest |z|
    repeated: float = 0.0  # largest Q of a payload that was sent before
    # Per release, in batches: T, Q, G of pairs, the first decoded coordinate, and the sum of all.
    scores: list[FloatVector] = Factory(list)
    energies: list[FloatVector] = Factory(list)
    products: list[FloatVector] = Factory(list)
    heads: list[FloatVector] = Factory(list)
    totals: list[FloatVector] = Factory(list)

    @property
    def times(self) -> int:
        """The number of releases."""
        return self.probe.times

    def add(self, decoded: FloatMatrix, standard: FloatMatrix, again: NDArray[np.bool_]) -> None:
        """Add a batch of releases; ``again`` marks payloads that were sent before."""
        squares = np.square(standard)
        energies = squares.sum(axis=1)
        self.first += standard.sum(axis=0)
        self.second += squares.sum(axis=0)
        self.fourth += float(np.square(squares[:, self.typical]).sum())
        self.reach = max(self.reach, float(np.sqrt(squares.max())))
        self.repeated = max(self.repeated, float(energies[again].max(initial=0.0)))
        paired = len(standard) // 2 * 2
        self.scores.append(standard @ self.weight)
        self.energies.append(energies)
        self.products.append(np.einsum("ij,ij->i", standard[0:paired:2], standard[1:paired:2]))
        self.heads.append(decoded[:, 0].copy())
        self.totals.append(decoded.sum(axis=1))


@final
class Shared:
    """Sums over all updates: spectra along coordinates, and some coordinates of every release in order."""

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

    def add(self, standard: FloatMatrix, left: int) -> None:
        """Add a batch of releases, the first ``left`` of them to the spectrum."""
        self.kept.append(standard[:, self.columns].astype(np.float32))
        some = standard[:left] if self.dimension > 1 else standard[:0]
        for row in range(0, len(some), 16):  # a few at a time, so that they stay in the cache
            turned = fft.rfft(some[row : row + 16], self.length, axis=1)
            self.spectrum += np.square(turned.real).sum(axis=0) + np.square(turned.imag).sum(axis=0)
        self.rows += len(some)

    def correlations(self) -> FloatVector:
        """Return sums of z_i z_(i+L) over coordinates and releases, for every lag L from 1 on."""
        return np.asarray(fft.irfft(self.spectrum, self.length)[1 : self.dimension])


def release(path: Path, probe: Probe, claims: Claims, rng: Any, shared: Shared, told: Callable[[int], None]) -> Record:
    """Send one update as often as its probe asks for."""
    target = np.asarray(claims.ball.clip(probe.update), dtype=np.float64)
    mean, variance = claims.mean(target), claims.variance(target)
    spread = np.sqrt(np.maximum(variance, claims.floor))
    typical = np.abs(variance - claims.at_zero) <= TYPICAL * claims.at_zero
    response = (mean - claims.mean(np.zeros_like(target))) / spread
    weight = claims.shift(target) / spread
    # Where a step of a tenth adds less than the one before it, the response saturates.
    before = float(weight @ (claims.shift(target / STRETCH) / spread))
    growth = min(float(weight @ weight) / before if before > 0 else 0.0, STRETCH)
    sums = np.zeros((2, target.size))
    record = Record(probe, variance / np.square(spread), typical, response, weight, growth, *sums)
    rows = max(2, BATCH // target.size // 2 * 2)
    seen: set[bytes] = set()
    for start in range(0, probe.times, rows):
        count = min(rows, probe.times - start)
        decoded, again = np.empty((count, target.size)), np.zeros(count, dtype=bool)
        for row in range(count):
            payload = path.send(probe.update, rng)
            decoded[row] = np.asarray(path.receive([payload]), dtype=np.float64).reshape(-1)
            digest = blake2b(payload, digest_size=16).digest()
            again[row] = digest in seen
            seen.add(digest)
        standard = (decoded - mean) / spread
        record.add(decoded, standard, again)
        shared.add(standard, max(shared.limit - start, 0))
        told(count)
    return record
