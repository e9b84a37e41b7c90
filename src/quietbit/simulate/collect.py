"""From a cohort to the mean of its updates: through the wire, in the plain, or with noise added by the server.

Idea     a problem writes a chunk of updates into rows; every row goes out through `Uplink.send`, which clips or
         refuses it before a bit is drawn, and comes back through the server's own aggregator. A round here is a round
         of any engine, bit for bit. Rows that no mechanism sees are checked here instead.
Symbols  d = dimension; m = cohort.
Source   Abadi et al. (2016) without amplification by sampling and McMahan et al. (2018), for central noise: one client
         moves the sum by at most the clip, so its account is that of one release, under central trust.

Memory: threads x chunk rows of d floats, their payloads, and one whole number per coordinate; nothing grows with m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, Protocol, TypeAlias, TypeVar, cast, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, require
from quietbit.mechanism.adaptive_clip import scout_rank
from quietbit.mechanism.base import Answers, Mechanism
from quietbit.plan.clip import MovingClip
from quietbit.plan.compare import FLOAT_BYTES, bytes_sent
from quietbit.plan.plan import Plan
from quietbit.simulate.client_rng import CLIENT_BITS, ClientRng, client_rng
from quietbit.simulate.problem import LocalPlan, Problem, Rows, SampleProblem, clip_outside
from quietbit.target import Trust
from quietbit.wire.uplink import Aggregator, Uplink, pooled, weight_of

__all__ = [
    "CentralCollector", "Collector", "PlainCollector", "UplinkCollector", "chunks", "make_collector", "payload_bytes",
    "round_bytes", "spread",
]  # fmt: skip

CHUNK_COORDINATES = 1 << 21
MOST_ROWS = 45  # three groups of the one-bit counter
SERVER = 2**CLIENT_BITS - 1  # whose random bits the server's noise takes: no client has this number

Clients: TypeAlias = NDArray[np.int64]
Found = TypeVar("Found")


class Collector(Protocol):
    """Turns a cohort into the mean of its updates."""

    @property
    def bytes_per_client(self) -> int:
        """What one client sends."""
        ...

    def mean(self, parameters: Rows, clients: Clients, number: int) -> FloatVector:
        """Return the mean of the updates of ``clients`` in round ``number``."""
        ...


def make_collector(
    problem: Problem, steps: LocalPlan, plan: Plan, mechanism: Mechanism | None, threads: int
) -> Collector:
    """Make the collector that a plan asks for."""
    if mechanism is None:
        return PlainCollector(problem, steps, threads)
    rng = client_rng(plan.rng, plan.seed)
    if plan.trust is Trust.CENTRAL:
        return CentralCollector(PlainCollector(problem, steps, threads), mechanism, rng, plan.cohort)
    uplink = Uplink(mechanism, max_payloads=plan.cohort, unit=plan.unit)
    sizes, scouts = (payload_bytes(plan, mechanism), threads), plan.cohort - plan.updates
    return UplinkCollector(
        problem, steps, uplink, rng, *sizes, plan.moving_clip(), scouts, plan.most_examples, plan.staleness or 0,
        plan.seed,
    )  # fmt: skip


def payload_bytes(plan: Plan, mechanism: Mechanism) -> int:
    """Return what a client sends in a round of a plan."""
    return bytes_sent(mechanism, plan.trust, plan.updates)


def round_bytes(plan: Plan, mechanism: Mechanism | None, each: int) -> int:
    """Return what all clients of a round send, ``each`` an update; scouts send their answers instead."""
    scouts = plan.cohort - plan.updates  # who takes part is an expectation where that is secret
    answers = 0 if mechanism is None or not scouts else scouts * bytes_sent(mechanism.scout(), Trust.LOCAL, 1)
    return plan.updates * each + answers


def _threads(count: int) -> int:
    return check_int(count, "threads", 1, 1024)


@final
@frozen(eq=False)
class UplinkCollector:
    """The real path: `Uplink.send` for every client, an `Aggregator` for the server.

    Behind secure aggregation codes travel masked. Masks cancel exactly, so the mean is computed without them.
    A clip that is ``moving`` is asked for in every round, and told what the scouts of the round said: the
    ``scouts`` clients of lowest rank in a run of this ``seed``, who answer instead of sending an update. Releases
    are weighted by the problem's public sizes, up to ``most_examples``, where that is given. A release
    arrives up to ``staleness`` rounds late, all equally likely, and is decoded as one of the round it was asked for in.
    """

    problem: Problem
    steps: LocalPlan
    uplink: Uplink
    rng: ClientRng
    bytes_per_client: int
    threads: int = field(default=1, converter=_threads)
    moving: MovingClip | None = None
    scouts: int = 0
    most_examples: int | None = None
    staleness: int = 0
    seed: int = 0
    _coming: dict[int, list[Aggregator]] = field(factory=dict, init=False)  # by the round that they arrive in

    def __attrs_post_init__(self) -> None:
        """Refuse a mechanism for another ball than the updates are clipped to."""
        ball, norm = self.uplink.mechanism.domain, self.steps.norm
        require(ball.dimension == self.problem.dimension, "dimension of the ball", ball.dimension, "the problem's")
        # Only the mechanism clips to a clip that moves: scouts answer for the update as it was.
        wide = self.moving is not None or ball.radius >= self.steps.clip
        require(wide, "radius of the ball", ball.radius, "at least the clip")
        require(ball.norm is norm, "norm of the ball", ball.norm.value, f"{norm.value}, the clip's")
        shown = not self.uplink.mechanism.takes_samples or isinstance(self.problem, SampleProblem)
        rule = "one with `gradients`, where samples are protected and few rows kept"
        require(shown, "problem", self.problem.name, rule)

    def mean(self, parameters: Rows, clients: Clients, number: int) -> FloatVector:
        """Return what the server makes of the payloads that have arrived; zero where none have."""
        if not self.staleness:
            return np.asarray(self._collected(self._of_round(number), parameters, clients, number).mean())
        late = np.random.default_rng([self.seed, number, 3]).integers(0, self.staleness + 1, clients.size)
        for one in np.unique(late).tolist():
            found = self._collected(self._of_round(number), parameters, clients[late == one], number)
            self._coming.setdefault(number + one, []).append(found)
        mean = pooled(self._coming.pop(number, []))
        return np.zeros(self.problem.dimension) if mean is None else np.asarray(mean)

    def kept(self, parameters: Rows, clients: Clients, number: int) -> tuple[FloatVector, Mechanism]:
        """Return the mean among the rows that all clients kept, and the mechanism of the round, which knows them."""
        uplink = self._of_round(number)
        return self._collected(uplink, parameters, clients, number).kept(), uplink.mechanism

    def _collected(self, uplink: Uplink, parameters: Rows, clients: Clients, number: int) -> Aggregator:
        if self.moving is not None:
            chosen = self._scouting(clients, number)
            said = self._answers(uplink.mechanism, parameters, clients[chosen], number)
            clients = clients[~chosen]
        aggregator, lock = uplink.aggregator(), Lock()

        def work(chunk: Clients) -> None:
            payloads = self._payloads(uplink, parameters, chunk, number)
            weights = [weight_of(size, self.most_examples) for size in self.problem.sizes[chunk].tolist()]
            with lock:
                for payload, weight in zip(payloads, weights, strict=True):
                    aggregator.add(payload, weight)

        for _ in spread(work, chunks(clients, self.problem.dimension, self.threads), self.threads):
            pass
        if self.moving is not None:
            self.moving.move(said)
        return aggregator

    def _scouting(self, clients: Clients, number: int) -> NDArray[np.bool_]:
        """Return who of a cohort scouts: a fixed number, so that sums are of as many clients as they are priced for."""
        run = b"simulation/" + str(self.seed).encode()
        ranks = [scout_rank(run, number, client) for client in clients.tolist()]
        found = np.zeros(clients.size, dtype=np.bool_)
        found[sorted(range(len(ranks)), key=ranks.__getitem__)[: self.scouts]] = True
        return found

    def _answers(self, mechanism: Mechanism, parameters: Rows, clients: Clients, number: int) -> Answers | None:
        """Return what the scouts of a round say of its clip."""
        uplink = Uplink(mechanism.scout())
        aggregator = uplink.aggregator()
        for chunk in chunks(clients, self.problem.dimension, 1):
            aggregator.add_all(self._payloads(uplink, parameters, chunk, number))
        return aggregator.answers()

    def _payloads(self, uplink: Uplink, parameters: Rows, chunk: Clients, number: int) -> list[bytes]:
        """Return what these clients send."""
        if uplink.mechanism.takes_samples:
            shown = cast(SampleProblem, self.problem).gradients
            return [uplink.send_samples(shown(parameters, one), self.rng(number, one)) for one in chunk.tolist()]
        rows = np.zeros((chunk.size, self.problem.dimension), dtype=np.float32)
        self.problem.updates(parameters, chunk, self.steps, rows)
        pairs = zip(rows, chunk.tolist(), strict=True)
        return [uplink.send(row, self.rng(number, client)) for row, client in pairs]

    def _of_round(self, number: int) -> Uplink:
        """Return the uplink; that of the round where all its clients keep the same coordinates, or the clip moves."""
        mechanism = self.uplink.mechanism.for_round(b"simulation", number)
        if self.moving is not None:
            mechanism = mechanism.at_clip(self.moving.clip)
        if mechanism is self.uplink.mechanism:
            return self.uplink
        return Uplink(mechanism, max_payloads=self.uplink.max_payloads, unit=self.uplink.unit)


@final
@frozen(eq=False)
class PlainCollector:
    """The mean of clipped updates without any privacy: the line that private runs are held against."""

    problem: Problem
    steps: LocalPlan
    threads: int = field(default=1, converter=_threads)

    @property
    def bytes_per_client(self) -> int:
        """32-bit floats."""
        return FLOAT_BYTES * self.problem.dimension

    def mean(self, parameters: Rows, clients: Clients, number: int) -> FloatVector:
        """Return the mean in double precision."""
        return self.total(parameters, clients) / clients.size

    def total(self, parameters: Rows, clients: Clients) -> FloatVector:
        """Return the sum of the updates; chunks are added in order, so that threads change nothing."""
        size = self.problem.dimension

        def work(chunk: Clients) -> FloatVector:
            rows = np.zeros((chunk.size, size), dtype=np.float32)
            self.problem.updates(parameters, chunk, self.steps, rows)
            clip_outside(rows, self.steps.norm, self.steps.clip)
            return np.asarray(rows.sum(axis=0, dtype=np.float64))

        total = np.zeros(size)
        for part in spread(work, chunks(clients, size, self.threads), self.threads):
            total += part
        return total


@final
@frozen(eq=False)
class CentralCollector:
    """The mean of clipped updates with noise added once; clients trust the server with what they send."""

    plain: PlainCollector
    mechanism: Any  # Gaussian noise: a plan has no other under central trust (`quietbit.plan.rules`)
    rng: ClientRng
    cohort: int

    @property
    def bytes_per_client(self) -> int:
        """32-bit floats."""
        return self.plain.bytes_per_client

    def mean(self, parameters: Rows, clients: Clients, number: int) -> FloatVector:
        """Return the noisy sum over the plan's cohort, which is public; how many were drawn in secret is not."""
        exact = self.plain.total(parameters, clients)
        block = self.rng(number, SERVER).draw(exact.size)
        return np.asarray(self.mechanism.noisy(exact, block, 0) / self.cohort)


def chunks(clients: Clients, size: int, threads: int) -> Iterator[Clients]:
    """Cut a cohort into pieces that fit in memory and keep every thread busy."""
    count = min(MOST_ROWS, max(1, CHUNK_COORDINATES // size), max(1, -(-clients.size // threads)))
    for start in range(0, clients.size, count):
        yield clients[start : start + count]


def spread(work: Callable[[Clients], Found], pieces: Iterator[Clients], threads: int) -> Iterator[Found]:
    """Return results in the order of the pieces; with one thread nothing is started."""
    if threads == 1:
        return iter([work(piece) for piece in pieces])
    with ThreadPoolExecutor(threads) as pool:
        return iter(list(pool.map(work, pieces)))
