"""From a cohort to the mean of its updates: through the wire, or in the plain with noise added by the server.

Idea     a problem writes a chunk of updates into rows; every row goes out through `Uplink.send`,
         which clips or refuses it before a bit is drawn, and comes back through the server's own
         aggregator. A round here is a round of any engine, bit for bit. Rows that no mechanism sees
         are checked here instead. A release's seeded bits depend on the seed, the round and the
         client alone, so neither the order of clients nor the number of threads changes a code.
         Memory is threads x chunk rows, their payloads and one sum: nothing grows with the cohort.
Source   Abadi et al. (2016) without amplification by sampling and McMahan et al. (2018), for
         central noise: one client moves the sum by at most the clip, so its account is that of one
         release, under central trust.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeAlias, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, require
from quietbit.kernel.client_rng import CLIENT_BITS, client_rng
from quietbit.kernel.select import default_kernel
from quietbit.local.problem import LocalPlan, Problem, Rows, SampleProblem, clip_outside
from quietbit.mechanism.abilities import ClipMoves, SampleGradients, Scouted
from quietbit.mechanism.adaptive_clip import scout_rank
from quietbit.mechanism.base import Answers, Mechanism
from quietbit.mechanism.expectation import expectation
from quietbit.plan.compare import FLOAT_BYTES, bytes_sent
from quietbit.run.plan import Plan
from quietbit.target import Trust
from quietbit.wire.uplink import Aggregator, Uplink, weight_of

__all__ = ["CentralCollector", "Collector", "UplinkCollector", "make_collector"]

CHUNK_COORDINATES = 1 << 21
MOST_THREADS = 1024
MOST_ROWS = 45  # three groups of the one-bit counter
SERVER = 2**CLIENT_BITS - 1  # whose random bits the server's noise takes: no client has this number

Clients: TypeAlias = NDArray[np.int64]
Found = TypeVar("Found")


def round_bytes(plan: Plan, mechanism: Mechanism | None, each: int) -> int:
    """Return what all clients of a round send, ``each`` an update; scouts send their answers instead."""
    scouts = plan.cohort - plan.updates  # who takes part is an expectation where that is secret
    answers = (
        0
        if mechanism is None or not scouts
        else scouts * bytes_sent(Scouted.of(mechanism).scout(), Trust.LOCAL, 1)
    )
    return plan.updates * each + answers


@final
class UplinkCollector:
    """The real path: `Uplink.send` for every client, an `Aggregator` for the server.

    Behind secure aggregation codes travel masked. Masks cancel exactly, so the mean is computed
    without them. A clip that is ``moving`` is asked for in every round, and told what the scouts of
    the round said: the clients of lowest rank in a run of the plan's seed, who answer instead of
    sending an update.
    """

    def __init__(
        self, problem: Problem, steps: LocalPlan, plan: Plan, mechanism: Mechanism, threads: int = 1
    ) -> None:
        """Refuse a mechanism for another ball than the updates are clipped to."""
        self.moving, self.bytes_per_client = (
            plan.moving_clip(),
            bytes_sent(mechanism, plan.trust, plan.updates),
        )
        self._problem, self._steps, self._plan = problem, steps, plan
        self._rng, self._threads = (
            client_rng(plan.rng, plan.seed),
            check_int(threads, "threads", 1, MOST_THREADS),
        )
        self._uplink = Uplink(mechanism, max_payloads=plan.cohort, unit=plan.unit)
        ball = mechanism.ball
        require(
            ball.dimension == problem.dimension,
            "dimension of the ball",
            ball.dimension,
            "the problem's",
        )
        # Only the mechanism clips to a clip that moves: scouts answer for the update as it was.
        wide = self.moving is not None or ball.radius >= steps.clip
        require(wide, "radius of the ball", ball.radius, "at least the clip")
        require(
            ball.norm is steps.norm,
            "norm of the ball",
            ball.norm.value,
            f"{steps.norm.value}, the clip's",
        )
        shown = SampleGradients.find(mechanism) is None or isinstance(problem, SampleProblem)
        rule = "one with `gradients`, where samples are protected and few rows kept"
        require(shown, "problem", problem.name, rule)

    def mean(self, parameters: Rows, clients: Clients, number: int) -> FloatVector:
        """Return what the server makes of the cohort's payloads."""
        return np.asarray(
            self._collected(self._of_round(number), parameters, clients, number).mean()
        )

    def kept(
        self, parameters: Rows, clients: Clients, number: int
    ) -> tuple[FloatVector, Mechanism]:
        """Return the mean among the rows that all clients kept, and the mechanism of the round, which knows them."""
        uplink = self._of_round(number)
        return self._collected(uplink, parameters, clients, number).kept(), uplink.mechanism

    def _collected(
        self, uplink: Uplink, parameters: Rows, clients: Clients, number: int
    ) -> Aggregator:
        if self.moving is not None:
            chosen = self._scouting(clients, number)
            said = self._answers(uplink.mechanism, parameters, clients[chosen], number)
            clients = clients[~chosen]
        aggregator, lock = uplink.aggregator(), Lock()
        most = None if self._plan.weights is None else self._plan.weights.most_examples

        def work(chunk: Clients) -> None:
            payloads = self._payloads(uplink, parameters, chunk, number)
            weights = [weight_of(size, most) for size in self._problem.sizes[chunk].tolist()]
            with lock:
                for payload, weight in zip(payloads, weights, strict=True):
                    aggregator.add(payload, weight)

        _spread(work, clients, self._problem.dimension, self._threads)
        if self.moving is not None:
            noise = expectation(
                uplink.mechanism, cohort=max(1, clients.size), trust=self._plan.trust
            ).noise
            self.moving.move(said, noise)
        return aggregator

    def _scouting(self, clients: Clients, number: int) -> NDArray[np.bool_]:
        """Return who of a cohort scouts: a fixed number, so that sums are of as many clients as they are priced for."""
        run, scouts = (
            b"simulation/" + str(self._plan.seed).encode(),
            self._plan.cohort - self._plan.updates,
        )
        ranks = [scout_rank(run, number, client) for client in clients.tolist()]
        found = np.zeros(clients.size, dtype=np.bool_)
        found[sorted(range(len(ranks)), key=ranks.__getitem__)[:scouts]] = True
        return found

    def _answers(
        self, mechanism: Mechanism, parameters: Rows, clients: Clients, number: int
    ) -> Answers | None:
        """Return what the scouts of a round say of its clip."""
        uplink = Uplink(Scouted.of(mechanism).scout())
        aggregator = uplink.aggregator()

        def work(chunk: Clients) -> None:
            aggregator.add_all(self._payloads(uplink, parameters, chunk, number))

        _spread(work, clients, self._problem.dimension, 1)
        return aggregator.answers()

    def _payloads(
        self, uplink: Uplink, parameters: Rows, chunk: Clients, number: int
    ) -> list[bytes]:
        """Return what these clients send."""
        if SampleGradients.find(uplink.mechanism) is not None:
            shown = cast(SampleProblem, self._problem).gradients
            return [
                uplink.send_samples(shown(parameters, one), self._rng(number, one))
                for one in chunk.tolist()
            ]
        rows = np.zeros((chunk.size, self._problem.dimension), dtype=np.float32)
        self._problem.updates(parameters, chunk, self._steps, rows)
        pairs = zip(rows, chunk.tolist(), strict=True)
        return [uplink.send(row, self._rng(number, client)) for row, client in pairs]

    def _of_round(self, number: int) -> Uplink:
        """Return the uplink; that of the round where all its clients keep the same coordinates, or the clip moves."""
        uplink = self._uplink
        mechanism = uplink.mechanism.for_round(b"simulation", number)
        if self.moving is not None:
            mechanism = ClipMoves.of(mechanism).at_clip(self.moving.clip)
        if mechanism is uplink.mechanism:
            return uplink
        return Uplink(mechanism, max_payloads=uplink.max_payloads, unit=uplink.unit)


@final
class CentralCollector:
    """The mean of clipped updates, which clients trust the server with: with noise added once, or without privacy.

    ``mechanism`` adds Gaussian noise, as a plan has no other under central trust
    (`quietbit.run.plan`), or is None.
    """

    def __init__(
        self, problem: Problem, steps: LocalPlan, plan: Plan, mechanism: Any, threads: int = 1
    ) -> None:
        """Clients send 32-bit floats."""
        self.bytes_per_client = FLOAT_BYTES * problem.dimension
        self._problem, self._steps, self._plan, self._mechanism = problem, steps, plan, mechanism
        self._rng, self._threads = (
            client_rng(plan.rng, plan.seed),
            check_int(threads, "threads", 1, MOST_THREADS),
        )

    def mean(self, parameters: Rows, clients: Clients, number: int) -> FloatVector:
        """Return the mean; a noisy one is over the plan's cohort, which is public: how many were drawn is not."""
        size, steps = self._problem.dimension, self._steps

        def work(chunk: Clients) -> FloatVector:
            rows = np.zeros((chunk.size, size), dtype=np.float32)
            self._problem.updates(parameters, chunk, steps, rows)
            clip_outside(rows, steps.norm, steps.clip)
            return np.asarray(rows.sum(axis=0, dtype=np.float64))

        total = np.zeros(size)
        for part in _spread(
            work, clients, size, self._threads
        ):  # in order, so that threads change nothing
            total += part
        if self._mechanism is None:
            return total / clients.size
        noise = self._mechanism
        block = self._rng(number, SERVER).draw(size)
        noisy = default_kernel().rounded_noise(total, noise.unit, noise.LAW, block, 0)
        return np.asarray(noisy / self._plan.cohort)


Collector: TypeAlias = UplinkCollector | CentralCollector


def make_collector(
    problem: Problem, steps: LocalPlan, plan: Plan, mechanism: Mechanism | None, threads: int
) -> Collector:
    """Make the collector that a plan asks for."""
    if mechanism is None or plan.trust is Trust.CENTRAL:
        return CentralCollector(problem, steps, plan, mechanism, threads)
    return UplinkCollector(problem, steps, plan, mechanism, threads)


def _spread(
    work: Callable[[Clients], Found], clients: Clients, size: int, threads: int
) -> list[Found]:
    """Work on pieces of a cohort that fit in memory and keep every thread busy; return results in their order."""
    count = min(MOST_ROWS, max(1, CHUNK_COORDINATES // size), max(1, -(-clients.size // threads)))
    pieces = [clients[start : start + count] for start in range(0, clients.size, count)]
    if threads == 1:
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, pieces))
