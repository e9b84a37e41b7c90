"""A cohort's payloads and their mean: a chunk of clients at a time, on as many threads as there are.

Idea     bodies are made by the transport's own code and added by its own accumulator, so a round here and a
         round through `Uplink` have the same bits. Only the interpolated mechanism is treated apart: rows of
         several clients go through the kernel in one call, which changes no bit (see `client_rng`).
Symbols  d = dimension; rows are padded to a multiple of eight coordinates, so that each begins at a byte.

Memory: threads x chunk rows of d floats, and one whole number per coordinate; nothing grows with the cohort.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from threading import Lock, local
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit._validate import require, whole_number
from quietbit.kernel.base import Kernel
from quietbit.kernel.select import default_kernel, select
from quietbit.mechanism.base import Accumulator, Body, Mechanism
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.plan.problem import LocalPlan, Problem, Rows
from quietbit.secagg.plan import masked_size
from quietbit.simulate.client_rng import ClientRng, RowRng
from quietbit.wire.header import Header

__all__ = ["Collector", "PlainCollector", "PrivateCollector", "release_bodies"]

CHUNK_COORDINATES = 1 << 21
MOST_ROWS = 45  # three groups of the one-bit counter


class Collector(Protocol):
    """Turns a cohort into the mean of its updates."""

    @property
    def bytes_per_client(self) -> int:
        """What one client sends."""
        ...

    def mean(self, parameters: Rows, clients: NDArray[np.int64], number: int) -> FloatVector:
        """The mean of the updates of ``clients`` in round ``number``."""
        ...


@final
@dataclass(frozen=True, slots=True, eq=False)
class PrivateCollector:
    """Clip, randomise, pack, count: what clients and server do in a private round.

    With ``masked`` clients to a sum, codes travel behind masks: what a client sends is as wide as the largest sum, and
    the server learns the sum of the codes alone. Masks cancel exactly, so the mean is computed without them.
    """

    problem: Problem
    plan: LocalPlan
    mechanism: Mechanism
    rng: ClientRng
    threads: int = 1
    masked: int | None = None
    kernel: Kernel = field(init=False, repr=False)
    header: Header = field(init=False, repr=False)
    _kept: local = field(default_factory=local, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a mechanism for another ball than the updates are clipped to."""
        ball = self.mechanism.domain
        require(ball.dimension == self.problem.dimension, "dimension of the ball", ball.dimension, "the problem's")
        require(ball.radius >= self.plan.clip, "radius of the ball", ball.radius, "at least the clip")
        require(ball.norm is self.plan.norm, "norm of the ball", ball.norm.value, f"{self.plan.norm.value}, the clip's")
        object.__setattr__(self, "threads", whole_number(self.threads, "threads", 1, 1024))
        object.__setattr__(self, "kernel", _kernel())
        object.__setattr__(self, "header", Header.of(self.mechanism))

    @property
    def bytes_per_client(self) -> int:
        """Header and body of a payload, or of a masked vector (keys and shares, which do not grow with d, apart)."""
        if self.masked is None:
            return self.header.size
        return masked_size(self.masked, self.problem.dimension, 2**self.header.layout.bits - 1)

    def mean(self, parameters: Rows, clients: NDArray[np.int64], number: int) -> FloatVector:
        """The server's mean of the decoded payloads."""
        total: Accumulator = self.mechanism.accumulator(self.kernel, clients.size)
        lock = Lock()

        def work(chunk: NDArray[np.int64]) -> None:
            rows = self._rows(chunk.size)
            self.problem.updates(parameters, chunk, self.plan, rows[:, : self.problem.dimension])
            bodies = release_bodies(self.mechanism, rows, chunk, number, self.rng, self.kernel, self.header)
            for body in bodies:
                total.check(body)
            with lock:
                total.add(bodies)

        _spread(work, _chunks(clients, self.problem.dimension, self.threads), self.threads)
        return total.reader(clients.size)(0, self.problem.dimension)

    def _rows(self, count: int) -> Rows:
        """This thread's rows, kept between calls; their padding stays zero."""
        return _kept_rows(self._kept, count, self.problem.dimension)


@final
@dataclass(frozen=True, slots=True, eq=False)
class PlainCollector:
    """The mean of clipped updates without any privacy: the line that private runs are held against."""

    problem: Problem
    plan: LocalPlan
    threads: int = 1
    _kept: local = field(default_factory=local, init=False, repr=False)

    @property
    def bytes_per_client(self) -> int:
        """32-bit floats."""
        return 4 * self.problem.dimension

    def mean(self, parameters: Rows, clients: NDArray[np.int64], number: int) -> FloatVector:
        """The mean in double precision; chunks are added in order, so that threads change nothing."""
        size = self.problem.dimension

        def work(chunk: NDArray[np.int64]) -> FloatVector:
            rows = _kept_rows(self._kept, chunk.size, size)[:, :size]
            self.problem.updates(parameters, chunk, self.plan, rows)
            return np.asarray(rows.sum(axis=0, dtype=np.float64))

        total = np.zeros(size)
        for part in _spread(work, _chunks(clients, size, self.threads), self.threads):
            total += part
        return total / clients.size


def release_bodies(
    mechanism: Mechanism,
    rows: Rows,
    clients: NDArray[np.int64],
    number: int,
    rng: ClientRng,
    kernel: Kernel,
    header: Header,
) -> list[Body]:
    """The payload bodies of clipped updates, bit for bit those that `Uplink.send` frames.

    ``rows`` are padded with zeros to a multiple of eight coordinates.
    """
    size = mechanism.domain.dimension
    if not isinstance(mechanism, InterpolatedMVU):
        bodies = [np.zeros(header.length, dtype=np.uint8) for _ in clients]
        for row, client, body in zip(rows, clients.tolist(), bodies, strict=True):
            mechanism.write([row[:size]], rng(number, client), kernel, body)
        return bodies
    width, bits = rows.shape[1], mechanism.bits
    block = rng.rows(number, clients.tolist(), size, width)
    packed = np.empty(rows.size * bits // 8, dtype=np.uint8)
    kernel.sample_packed(mechanism.sampler, rows.reshape(-1), RowRng(block), packed, verified=True)
    table = packed.reshape(clients.size, width * bits // 8)[:, : header.length]
    spare = bits * size % 8
    if spare:
        table[:, -1] &= np.uint8((1 << spare) - 1)
    return list(table)


def _kernel() -> Kernel:
    """The usual kernel; without numba torch's, which gives the same codes five times as fast as the reference."""
    usual = default_kernel()
    return select("torch") if usual.name == "reference" and find_spec("torch") is not None else usual


def _kept_rows(kept: Any, count: int, size: int) -> Rows:
    rows: Rows | None = getattr(kept, "rows", None)
    if rows is None or rows.shape[0] < count:
        rows = np.zeros((count, -(-size // 8) * 8), dtype=np.float32)
        kept.rows = rows
    return rows[:count]


def _chunks(clients: NDArray[np.int64], size: int, threads: int) -> Iterator[NDArray[np.int64]]:
    count = min(MOST_ROWS, max(1, CHUNK_COORDINATES // size), max(1, -(-clients.size // threads)))
    for start in range(0, clients.size, count):
        yield clients[start : start + count]


def _spread(work: Any, chunks: Iterator[NDArray[np.int64]], threads: int) -> Iterator[Any]:
    """Results in the order of the chunks; with one thread nothing is started."""
    if threads == 1:
        return iter([work(chunk) for chunk in chunks])
    with ThreadPoolExecutor(threads) as pool:
        return iter(list(pool.map(work, chunks)))
