"""From a cohort to the sum of its updates: through the wire, or in the plain with central noise.

Idea     a problem writes a chunk of updates into rows; every row goes out through `Uplink.send`,
         which clips or refuses it before a bit is drawn, and comes back through the server's own
         aggregator. A round here is a round of any engine, bit for bit. Rows that no mechanism sees
         are checked here instead. A release's seeded bits depend on the seed, the round and the
         client alone, so neither the order of clients nor the number of threads changes a code.
         Memory is threads x chunk rows, their payloads and one sum: nothing grows with the cohort.
Exact    rounding a sum of many updates could move it by more than one client may. So updates are
         cut towards zero, which lengthens none, to a grid on which sums of all clients are doubles.
Source   Abadi et al. (2016) without amplification by sampling and McMahan et al. (2018), for
         central noise: one client moves the sum by at most the clip, so its account is that of one
         release, under central trust.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeAlias, TypeVar, cast, final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, require
from quietbit.kernel.client_rng import CLIENT_BITS, client_rng
from quietbit.kernel.select import default_kernel
from quietbit.local.problem import LocalPlan, Problem, Rows, SampleProblem, clip_outside
from quietbit.local.round import Clients, LocalRound
from quietbit.mechanism.abilities import SampleGradients, Scouted
from quietbit.mechanism.base import Mechanism
from quietbit.plan.compare import FLOAT_BYTES, bytes_sent
from quietbit.run.plan import Plan
from quietbit.target import Trust
from quietbit.wire.uplink import Aggregator, Uplink

__all__ = ["CentralCollector", "Collector", "UplinkCollector", "make_collector"]

CHUNK_COORDINATES = 1 << 21
DIGITS_OF_DOUBLES = 53
MOST_THREADS = 1024
MOST_ROWS = 45  # three groups of the one-bit counter
SERVER = 2**CLIENT_BITS - 1  # whose random bits the server's noise takes: no client has this number

Result = TypeVar("Result")


@final
class UplinkCollector:
    """The real path: `Uplink.send` for every client, an `Aggregator` for the server.

    Behind secure aggregation codes travel masked. Masks cancel exactly, so the mean is computed
    without them.
    """

    def __init__(
        self, problem: Problem, steps: LocalPlan, plan: Plan, mechanism: Mechanism, threads: int = 1
    ) -> None:
        """Refuse a mechanism for another ball than the updates are clipped to."""
        self.bytes_per_client = bytes_sent(mechanism, plan.trust, plan.updates)
        self.round_bytes = plan.updates * self.bytes_per_client
        scouts = plan.cohort - plan.updates
        if scouts:
            self.round_bytes += scouts * bytes_sent(Scouted.of(mechanism).scout(), Trust.LOCAL, 1)
        self._problem = problem
        self._steps = steps
        self._plan = plan
        self._rng = client_rng(plan.rng, plan.seed)
        self._threads = check_int(threads, "threads", 1, MOST_THREADS)
        self._uplink = self._uplink_of(mechanism)
        ball = mechanism.ball
        rule = f"{problem.dimension}, the problem's"
        fits = ball.dimension == problem.dimension
        require(fits, "dimension of the ball", ball.dimension, rule)
        # Only the mechanism clips to a clip that moves: scouts answer for the update as it was.
        fits = plan.scouts is not None or ball.radius >= steps.clip
        require(fits, "radius of the ball", ball.radius, f"at least {steps.clip}, the clip")
        rule = f"{steps.norm.value}, the clip's"
        require(ball.norm is steps.norm, "norm of the ball", ball.norm.value, rule)
        fits = SampleGradients.find(mechanism) is None or isinstance(problem, SampleProblem)
        rule = "one with `gradients`, where samples are protected and few rows kept"
        require(fits, "problem", problem.name, rule)

    def collect(self, current: LocalRound, parameters: Rows) -> None:
        """Collect the releases of a round, and of those beside it."""
        for member in (*current.beside, current):
            member.collected = self._aggregated(member, parameters)

    def _aggregated(self, current: LocalRound, parameters: Rows) -> Aggregator:
        uplink = self._uplink
        if current.mechanism is not uplink.mechanism:
            uplink = self._uplink_of(cast(Mechanism, current.mechanism))
        aggregator = uplink.aggregator()
        lock = Lock()

        def work(chunk: Clients) -> None:
            payloads = self._payloads(uplink, parameters, chunk, current.number - 1)
            sizes = self._problem.sizes[chunk].tolist()
            with lock:
                for client, size, payload in zip(chunk.tolist(), sizes, payloads, strict=True):
                    aggregator.add(payload, current.weigh(client, size))

        _spread(work, current.clients, self._problem.dimension, self._threads)
        return aggregator

    def _payloads(
        self, uplink: Uplink, parameters: Rows, chunk: Clients, number: int
    ) -> list[bytes]:
        """Return what these clients send."""
        clients = chunk.tolist()
        if SampleGradients.find(uplink.mechanism) is not None:
            problem = cast(SampleProblem, self._problem)
            payloads = []
            for client in clients:
                gradients = problem.gradients(parameters, client)
                payloads.append(uplink.send_samples(gradients, self._rng(number, client)))
            return payloads
        rows = np.zeros((chunk.size, self._problem.dimension), dtype=np.float32)
        self._problem.updates(parameters, chunk, self._steps, rows)
        pairs = zip(rows, clients, strict=True)
        return [uplink.send(row, self._rng(number, client)) for row, client in pairs]

    def _uplink_of(self, mechanism: Mechanism) -> Uplink:
        return Uplink(mechanism, max_payloads=self._plan.cohort, unit=self._plan.unit)


@final
@frozen(eq=False)
class PlainSum:
    """A sum of updates, and how many its mean is taken over."""

    total: FloatVector
    count: int

    def mean(self) -> FloatVector:
        """Return the mean."""
        return np.asarray(self.total / self.count)


@final
class CentralCollector:
    """The sum of clipped updates, with which clients trust the server: with noise, or without.

    The mechanism of a round adds Gaussian noise once, as a plan has no other under central trust
    (`quietbit.run.plan`), or is None.
    """

    def __init__(self, problem: Problem, steps: LocalPlan, plan: Plan, threads: int = 1) -> None:
        """Clients send 32-bit floats."""
        self.bytes_per_client = FLOAT_BYTES * problem.dimension
        # An expectation, where it is secret who takes part.
        self.round_bytes = plan.cohort * self.bytes_per_client
        self._problem = problem
        self._steps = steps
        self._plan = plan
        self._rng = client_rng(plan.rng, plan.seed)
        self._threads = check_int(threads, "threads", 1, MOST_THREADS)

    def collect(self, current: LocalRound, parameters: Rows) -> None:
        """Sum the updates; a noisy mean is over the plan's cohort: who was drawn is secret."""
        size = self._problem.dimension
        steps = self._steps

        def work(chunk: Clients) -> FloatVector:
            rows = np.zeros((chunk.size, size), dtype=np.float32)
            self._problem.updates(parameters, chunk, steps, rows)
            clip_outside(rows, steps.norm, steps.clip)
            return np.asarray(cut_to_grid(rows, grid).sum(axis=0))

        grid = grid_of_sums(steps.clip, self._problem.sizes.size)
        total = np.zeros(size)
        for chunk_sum in _spread(work, current.clients, size, self._threads):
            total += chunk_sum
        count = current.clients.size
        if current.mechanism is not None:
            gaussian: Any = current.mechanism
            block = self._rng(current.number - 1, SERVER).draw(size)
            total = default_kernel().rounded_noise(total, gaussian.unit, gaussian.LAW, block, 0)
            count = self._plan.cohort
        current.collected = PlainSum(total, count)


def grid_of_sums(clip: float, clients: int) -> float:
    """Return a power of two, of which doubles hold every multiple up to ``clip * clients``.

    >>> 2.0**52 <= 1.0 * 2**20 / grid_of_sums(1.0, 2**20) <= 2.0**53
    True
    """
    _, exponent = math.frexp(clip * clients)
    return math.ldexp(1.0, exponent - DIGITS_OF_DOUBLES)


def cut_to_grid(rows: Rows, grid: float) -> NDArray[np.float64]:
    """Return the rows with every number cut, towards zero, to a multiple of a power of two."""
    return np.asarray(np.trunc(rows.astype(np.float64) / grid) * grid)


Collector: TypeAlias = UplinkCollector | CentralCollector


def make_collector(
    problem: Problem, steps: LocalPlan, plan: Plan, mechanism: Mechanism | None, threads: int
) -> Collector:
    """Make the collector that a plan asks for."""
    if mechanism is None or plan.trust is Trust.CENTRAL:
        return CentralCollector(problem, steps, plan, threads)
    return UplinkCollector(problem, steps, plan, mechanism, threads)


def _spread(
    work: Callable[[Clients], Result], clients: Clients, size: int, threads: int
) -> list[Result]:
    """Work on chunks of a cohort that fit in memory, in threads; return results in their order."""
    count = min(MOST_ROWS, max(1, CHUNK_COORDINATES // size), max(1, -(-clients.size // threads)))
    chunks = [clients[start : start + count] for start in range(0, clients.size, count)]
    if threads == 1:
        return [work(chunk) for chunk in chunks]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, chunks))
