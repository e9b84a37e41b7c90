"""The clients of a simulation: what each of them replies, and the mean of updates in the plain.

Idea     a problem writes a chunk of updates into rows; every row goes out through `Uplink.send`,
         which clips or refuses it before a bit is drawn, and in a frame, as a node sends it: a
         round here is a round of any engine, bit for bit. Without privacy, or with a server that
         clients trust, rows are replies of their own kind, which have no frame, and `Rows` adds
         them. A release's seeded bits depend on the seed, the round and the client alone, so
         neither the order of clients nor the number of threads changes a code; replies are handed
         over in the order of clients. Memory is threads x chunk rows, their payloads and one sum:
         nothing of a cohort is kept but who is in it.
Exact    rounding a sum of many updates could move it by more than one client may. So updates are
         cut towards zero, which lengthens none, to a grid on which sums of all clients are doubles.
Source   Abadi et al. (2016) without amplification by sampling and McMahan et al. (2018), for
         central noise: one client moves the sum by at most the clip, so its account is that of one
         release, under central trust.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar, cast, final

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, require
from quietbit.federation.collectors import Collector, Plain
from quietbit.federation.compare import FLOAT_BYTES, bytes_sent
from quietbit.federation.messages import FIELD, RECORD, Node, Release, Reply
from quietbit.federation.part import Scope
from quietbit.federation.parts.weights import EXAMPLES
from quietbit.federation.simulate.plan import SimulatedPlan
from quietbit.federation.simulate.problem import (
    LocalPlan,
    Problem,
    Rows,
    SampleProblem,
    clip_outside,
)
from quietbit.kernel.client_rng import CLIENT_BITS, client_rng
from quietbit.kernel.select import default_kernel
from quietbit.mechanism.abilities import SampleGradients
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.scouts import Scout, Scouted
from quietbit.target import Trust
from quietbit.wire.payload import Framed, Header
from quietbit.wire.uplink import Uplink

__all__ = ["ClientSide", "Clients", "PlainRows"]

Clients: TypeAlias = NDArray[np.int64]
CHUNK_COORDINATES = 1 << 21
DIGITS_OF_DOUBLES = 53
MOST_THREADS = 1024
MOST_ROWS = 45  # three groups of the one-bit counter
SERVER = 2**CLIENT_BITS - 1  # whose random bits the server's noise takes: no client has this number
ROW = "row"  # the record of an update in the plain

Result = TypeVar("Result")


@final
@define(eq=False)
class PlainRows(Collector):
    """The mean of clipped updates in the plain, plus what ``noise`` makes of their sum.

    Updates are cut to multiples of ``grid``, so that their sum is exact.
    ``count`` is what the sum is divided by where it is secret who took part; else by those who did.
    """

    dimension: int
    grid: float
    noise: Callable[[FloatVector], FloatVector] | None = None
    count: int | None = None
    _total: FloatVector = field(init=False)
    _added: int = field(default=0, init=False)

    @_total.default
    def _nothing(self) -> FloatVector:
        return np.zeros(self.dimension)

    def read(self, scope: Scope, reply: Reply) -> Any:
        """Return the row of a reply, which has no frame, on the grid."""
        return cut_to_grid(reply.records[ROW], self.grid)

    def decode(self, payload: Any) -> FloatVector:
        """Return a row as it is."""
        return np.asarray(payload, dtype=np.float64)

    def add(self, release: Release) -> None:
        """Add a row."""
        self._total += release.payload
        self._added += 1

    def mean(self) -> FloatVector | None:
        """Return the mean, noisy where there is noise: even of nobody, which is secret."""
        count = self._added if self.count is None else self.count
        if not count:
            return None
        total = self._total if self.noise is None else self.noise(self._total)
        return np.asarray(total / count)


@final
class ClientSide:
    """All clients of a simulation, in one process."""

    def __init__(
        self,
        problem: Problem,
        steps: LocalPlan,
        plan: SimulatedPlan,
        mechanism: Mechanism | None,
        threads: int = 1,
    ) -> None:
        """Refuse a mechanism for other updates than the problem's."""
        self._problem = problem
        self._sizes = problem.sizes
        self._steps = steps
        self._plan = plan
        self.clip = plan.clip  # of the first round of updates
        self._rng = client_rng(plan.rng, plan.seed)
        self._threads = check_int(threads, "threads", 1, MOST_THREADS)
        self._channel: Uplink | None = None
        if mechanism is None or plan.trust is Trust.CENTRAL:
            # An expectation, where it is secret who takes part.
            self.bytes_per_client = FLOAT_BYTES * problem.dimension
            self.round_bytes = plan.cohort * self.bytes_per_client
            return
        self.bytes_per_client = bytes_sent(mechanism, plan.trust, plan.updates)
        self.round_bytes = plan.updates * self.bytes_per_client
        scouts = plan.cohort - plan.updates
        if scouts:
            scout = Scout(cast(Scouted, mechanism))
            self.round_bytes += scouts * bytes_sent(scout, Trust.LOCAL, 1)
        self._channel = self._channel_of(mechanism, self.clip)
        self._check(mechanism)

    def collector(self, scope: Scope) -> Collector:
        """Return the collector of a round's replies."""
        if self._channel is None:
            return self._rows(scope)
        return Plain(self._channel_of(scope.mechanism, scope.clip))

    def replies(self, scope: Scope, nodes: Sequence[Node], parameters: Rows) -> Iterator[Reply]:
        """Return what clients reply in a round, in their order."""
        clients = np.array(nodes, dtype=np.int64)
        size = self._problem.dimension
        work = self._plain_replies
        if self._channel is not None:
            work = self._framed_replies
        for chunk in _spread(
            lambda chunk: work(scope, parameters, chunk), clients, size, self._threads
        ):
            yield from chunk

    def _framed_replies(self, scope: Scope, parameters: Rows, chunk: Clients) -> list[Reply]:
        """Return the framed releases of some clients."""
        channel = self._channel_of(scope.mechanism, scope.clip)
        payloads = self._payloads(channel, parameters, chunk, scope.number - 1)
        size = self.bytes_per_client
        if scope.section:
            size = Header.of(scope.mechanism).size
        replies = []
        for client, payload in zip(chunk.tolist(), payloads, strict=True):
            frame = Framed(scope.run, scope.number, client, payload).to_bytes()
            records = {RECORD: {FIELD: frame}}
            replies.append(Reply(client, size, records, self._public_numbers(client)))
        return replies

    def _plain_replies(self, scope: Scope, parameters: Rows, chunk: Clients) -> list[Reply]:
        """Return the clipped updates of some clients."""
        rows = np.zeros((chunk.size, self._problem.dimension), dtype=np.float32)
        self._problem.updates(parameters, chunk, self._steps, rows)
        clip_outside(rows, self._steps.norm, self._steps.clip)
        replies = []
        for client, row in zip(chunk.tolist(), rows, strict=True):
            reply = Reply(client, row.nbytes, {ROW: row}, self._public_numbers(client))
            replies.append(reply)
        return replies

    def _public_numbers(self, client: int) -> Mapping[str, float]:
        return {EXAMPLES: int(self._sizes[client])}

    def _payloads(
        self, channel: Uplink, parameters: Rows, chunk: Clients, number: int
    ) -> list[bytes]:
        """Return what these clients release."""
        clients = chunk.tolist()
        if SampleGradients.find(channel.mechanism) is not None:
            problem = cast(SampleProblem, self._problem)
            payloads = []
            for client in clients:
                gradients = problem.gradients(parameters, client)
                payloads.append(channel.send_samples(gradients, self._rng(number, client)))
            return payloads
        rows = np.zeros((chunk.size, self._problem.dimension), dtype=np.float32)
        self._problem.updates(parameters, chunk, self._steps, rows)
        pairs = zip(rows, clients, strict=True)
        return [channel.send(row, self._rng(number, client)) for row, client in pairs]

    def _rows(self, scope: Scope) -> PlainRows:
        """Return the collector of updates in the plain; a trusted server adds noise once.

        A plan has no other than Gaussian noise under central trust (`quietbit.federation.plan`).
        """
        size = self._problem.dimension
        grid = grid_of_sums(self._steps.clip, self._sizes.size)
        if scope.released is None:
            return PlainRows(size, grid)
        gaussian: Any = scope.mechanism
        unit = gaussian.unit * scope.clip

        def noisy(total: FloatVector) -> FloatVector:
            block = self._rng(scope.number - 1, SERVER).draw(size)
            return default_kernel().rounded_noise(total, unit, gaussian.LAW, block, 0)

        return PlainRows(size, grid, noisy, self._plan.cohort)

    def _channel_of(self, mechanism: Mechanism, clip: float) -> Uplink:
        known = self._channel
        if known is not None and known.mechanism is mechanism and known.clip == clip:
            return known
        return Uplink(mechanism, clip=clip, max_payloads=self._plan.cohort, unit=self._plan.unit)

    def _check(self, mechanism: Mechanism) -> None:
        """Refuse a mechanism for other updates than the problem's."""
        problem = self._problem
        steps = self._steps
        ball = mechanism.ball
        rule = f"{problem.dimension}, the problem's"
        fits = ball.dimension == problem.dimension
        require(fits, "dimension of the ball", ball.dimension, rule)
        # Only the mechanism clips to a clip that moves: scouts answer for the update as it was.
        fits = self._plan.adaptive_clip is not None or self.clip >= steps.clip
        require(fits, "clip", self.clip, f"at least {steps.clip}, to which updates are clipped")
        rule = f"{steps.norm.value}, the clip's"
        require(ball.norm is steps.norm, "norm of the ball", ball.norm.value, rule)
        fits = SampleGradients.find(mechanism) is None or isinstance(problem, SampleProblem)
        rule = "one with `gradients`, where samples are protected and few rows kept"
        require(fits, "problem", problem.name, rule)


def grid_of_sums(clip: float, clients: int) -> float:
    """Return a power of two, of which doubles hold every multiple up to ``clip * clients``.

    >>> 2.0**52 <= 1.0 * 2**20 / grid_of_sums(1.0, 2**20) <= 2.0**53
    True
    """
    _, exponent = math.frexp(clip * clients)
    return math.ldexp(1.0, exponent - DIGITS_OF_DOUBLES)


def cut_to_grid(rows: Rows, grid: float) -> NDArray[np.float64]:
    """Return rows with every number cut, towards zero, to a multiple of a power of two."""
    return np.asarray(np.trunc(rows.astype(np.float64) / grid) * grid)


def _spread(
    work: Callable[[Clients], Result], clients: Clients, size: int, threads: int
) -> Iterator[Result]:
    """Work on chunks of a cohort that fit in memory, in threads; return results in their order."""
    count = min(MOST_ROWS, max(1, CHUNK_COORDINATES // size), max(1, -(-clients.size // threads)))
    chunks = (clients[start : start + count] for start in range(0, clients.size, count))
    if threads == 1:
        yield from map(work, chunks)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(work, chunk))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
