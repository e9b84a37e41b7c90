"""A shortcut for cohorts: rows of several clients through the kernel in one call. Training here takes it.

Idea     what `Uplink.send` does for one client is done for a chunk of them, without framing payloads: clipped rows lie
         side by side, `RowBlock` hands the kernel every client's own random bits, and the bodies go straight to the
         server's accumulator. With a seed the bodies are those of one `send` per client, bit for bit; secure bits have
         nothing to repeat, so a chunk takes one key, and every coordinate of it has bits of its own. A row that is
         not certain to lie in the ball goes to `Mechanism.write`, which clips it or refuses it; so does every row of a
         mechanism that the shortcut is not made for.
Symbols  d = dimension; rows are padded to a multiple of eight coordinates, so that each begins at a byte.

Memory: threads x chunk rows of d floats, and one whole number per coordinate; nothing grows with the cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from threading import Lock, local
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import WordBlock, WordReader
from quietbit.kernel.select import default_kernel, select
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Accumulator, Body, Mechanism
from quietbit.plan.plan import Plan
from quietbit.privacy.guarantee import Trust
from quietbit.simulate.client_rng import ClientRng, client_rng
from quietbit.simulate.collect import Collector, check_ball, chunks, make_collector, payload_bytes, spread
from quietbit.simulate.loop import Progress, Run, simulate
from quietbit.simulate.problem import LocalPlan, Problem, Rows
from quietbit.simulate.training import Training

__all__ = ["QuickCollector", "RowBlock", "quick_collector", "release_bodies", "row_bits", "train"]

LONG = 4096  # coordinates of a row that the kernel measures sooner than numpy
ROUNDINGS = 2.0**-32  # more than those of a norm, and far less than the margin that problems keep
ROWS_TOGETHER = ("imvu",)  # families whose codes come from one sampler, coordinate by coordinate


def train(
    problem: Problem, plan: Plan, training: Training, *, threads: int = 1, progress: Progress | None = None
) -> Run:
    """`simulate` with the shortcut: the same run, sooner."""
    return simulate(problem, plan, training, collector=quick_collector, threads=threads, progress=progress)


def quick_collector(
    problem: Problem, steps: LocalPlan, plan: Plan, mechanism: Mechanism | None, threads: int
) -> Collector:
    """The shortcut where payloads leave clients; where none do, what the simulator itself would take."""
    if mechanism is None or plan.trust is Trust.CENTRAL or plan.keep is not None or plan.clip_quantile is not None:
        return make_collector(problem, steps, plan, mechanism, threads)
    return QuickCollector(problem, steps, plan, mechanism, threads)


@final
@dataclass(frozen=True, slots=True, eq=False)
class QuickCollector:
    """Clip, randomise, pack, count: a private round without payloads."""

    problem: Problem
    steps: LocalPlan
    plan: Plan
    mechanism: Mechanism
    threads: int = 1
    rng: ClientRng = field(init=False, repr=False)
    kernel: Kernel = field(init=False, repr=False)
    bytes_per_client: int = field(init=False)
    _kept: local = field(default_factory=local, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a mechanism for another ball than the updates are clipped to."""
        check_ball(self.mechanism.domain, self.problem, self.steps)
        put = object.__setattr__
        put(self, "threads", check_int(self.threads, "threads", 1, 1024))
        put(self, "rng", client_rng(self.plan.rng, self.plan.seed))
        put(self, "kernel", _kernel())
        put(self, "bytes_per_client", payload_bytes(self.plan, self.mechanism))

    def mean(self, parameters: Rows, clients: NDArray[np.int64], number: int) -> FloatVector:
        """The server's mean of the decoded payloads."""
        total: Accumulator = self.mechanism.accumulator(self.kernel, self.plan.cohort)
        size, lock = self.problem.dimension, Lock()

        def work(chunk: NDArray[np.int64]) -> None:
            rows = self._rows(chunk.size)
            self.problem.updates(parameters, chunk, self.steps, rows[:, :size])
            bodies = self._bodies(rows, chunk, number)
            for body in bodies:
                total.check(body)
            with lock:
                total.add(bodies)

        for _ in spread(work, chunks(clients, size, self.threads), self.threads):
            pass
        return total.reader(clients.size)(0, size)

    def _bodies(self, rows: Rows, clients: NDArray[np.int64], number: int) -> list[Body]:
        if self.plan.mechanism not in ROWS_TOGETHER:
            return [_alone(self.mechanism, *pair, self.rng, number, self.kernel) for pair in _pairs(rows, clients)]

        def draw() -> WordBlock:
            return row_bits(self.plan, self.rng, number, clients.tolist(), self.problem.dimension, rows.shape[1])

        return release_bodies(self.mechanism, rows, clients, number, self.rng, draw, self.kernel)

    def _rows(self, count: int) -> Rows:
        """This thread's rows, kept between calls; their padding stays zero."""
        rows: Rows | None = getattr(self._kept, "rows", None)
        if rows is None or rows.shape[0] < count:
            rows = np.zeros((count, -(-self.problem.dimension // 8) * 8), dtype=np.float32)
            self._kept.rows = rows
        return rows[:count]


def release_bodies(
    mechanism: Any,
    rows: Rows,
    clients: NDArray[np.int64],
    number: int,
    rng: ClientRng,
    draw: Callable[[], WordBlock],
    kernel: Kernel,
) -> list[Body]:
    """The payload bodies of updates, bit for bit those that `Uplink.send` frames.

    ``rows`` are padded with zeros to a multiple of eight coordinates; ``draw`` gives the random bits of all of them.
    """
    layout, pairs = mechanism.layout, _pairs(rows, clients)
    # Whoever is outside is clipped or refused by the mechanism itself, before a bit is drawn for the others.
    apart = {k: _alone(mechanism, *pairs[k], rng, number, kernel) for k in _outside(rows, mechanism.domain, kernel)}
    if apart:
        rows = rows.copy()
        rows[list(apart)] = 0
    packed = np.empty(rows.size * layout.bits // 8, dtype=np.uint8)
    kernel.sample_packed(mechanism.sampler, rows.reshape(-1), _RowRng(draw()), packed, verified=True)
    table = packed.reshape(len(pairs), -1)[:, : layout.size]
    spare = layout.bits * layout.count % 8
    if spare:
        table[:, -1] &= np.uint8((1 << spare) - 1)
    return [apart.get(place, body) for place, body in enumerate(table)]


def _outside(rows: Rows, ball: Ball, kernel: Kernel) -> list[int]:
    """The rows that are not certain to lie in the ball: numpy is quicker for many short rows, the kernel for long."""
    if rows.shape[1] < LONG:
        wide = rows.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.abs(wide).sum(axis=1) if ball.norm is Norm.L1 else np.sqrt((wide * wide).sum(axis=1))
    else:
        lengths = np.array([kernel.norm([row], ball.norm.order) for row in rows])
    inside: list[bool] = (lengths <= ball.radius * (1 - ROUNDINGS)).tolist()
    return [place for place, certain in enumerate(inside) if not certain]


def _pairs(rows: Rows, clients: NDArray[np.int64]) -> list[tuple[Rows, int]]:
    return list(zip(rows, clients.tolist(), strict=True))


def _alone(mechanism: Mechanism, row: Rows, client: int, rng: ClientRng, number: int, kernel: Kernel) -> Body:
    """One client's body, as `Uplink.send` has it written."""
    body = np.zeros(mechanism.layout.size, dtype=np.uint8)
    mechanism.write([row[: mechanism.domain.dimension]], rng(number, client), kernel, body)
    return body


def _kernel() -> Kernel:
    """The usual kernel; without numba torch's, which gives the same codes five times as fast as the reference."""
    usual = default_kernel()
    return select("torch") if usual.name == "reference" and find_spec("torch") is not None else usual


def row_bits(plan: Plan, rng: ClientRng, number: int, clients: Sequence[int], used: int, width: int) -> WordBlock:
    """The random bits of several clients' releases of ``used`` coordinates, laid out in rows of ``width``."""
    if plan.rng == "secure":
        # One draw for all rows: no two coordinates of it share a bit, and setting up a key takes as long as
        # sampling a row.
        return rng(number, clients[0]).draw(len(clients) * width)
    return RowBlock([rng(number, client).draw(used) for client in clients], used, width)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _RowRng:
    """A source whose one draw is a block made beforehand."""

    block: WordBlock

    def draw(self, count: int) -> WordBlock:
        """The block itself; a kernel draws once."""
        return self.block


@final
@dataclass(frozen=True, slots=True, eq=False)
class RowBlock:
    """Blocks of ``used`` coordinates each, read as rows of ``width``; the padding's words are zero.

    What the padding is given does not matter: its codes are cleared before anything leaves the client.
    """

    blocks: Sequence[WordBlock]
    used: int
    width: int

    def primary(self, start: int, count: int) -> NDArray[np.uint16]:
        """Primary words of coordinates ``start .. start + count - 1`` of the rows."""
        out = np.zeros(count, dtype="<u2")
        self.reader(start).fill(out)
        return out

    def reader(self, start: int) -> WordReader:
        """A reader that walks through the rows."""
        return _RowReader(self, start)

    def ties(self, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Tie words of the given coordinates, each from its own row's block."""
        chosen = np.asarray(indices, dtype=np.int64)
        out = np.zeros(chosen.size, dtype=np.uint64)
        row, place = np.divmod(chosen, self.width)
        for number in np.unique(row).tolist():
            here = (row == number) & (place < self.used)
            out[here] = self.blocks[number].ties(place[here])
        return out

    def uniform64(self, stream: int, start: int, count: int) -> NDArray[np.uint64]:
        """Full words; streams are not laid out in rows, so a single row is needed."""
        check_int(len(self.blocks), "rows of full words", 1, 1)
        return self.blocks[0].uniform64(stream, start, count)


@final
@dataclass(slots=True, eq=False)
class _RowReader:
    _rows: RowBlock
    _position: int
    _row: int = -1
    _reader: Any = None

    def fill(self, out: NDArray[np.uint16]) -> None:
        rows, done = self._rows, 0
        while done < out.size:
            row, place = divmod(self._position, rows.width)
            if row != self._row and place < rows.used:
                self._row, self._reader = row, rows.blocks[row].reader(place)
            stop = rows.used if place < rows.used else rows.width
            count = min(stop - place, out.size - done)
            if place < rows.used:
                self._reader.fill(out[done : done + count])
            else:
                out[done : done + count] = 0
            done += count
            self._position += count
