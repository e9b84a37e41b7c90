"""One round of a simulation, as its parts see it.

Idea     parts get the hooks that a round on an engine gives them (`quietbit.run.round`), in the
         same order: `prepare`, `ask` and `sent` before clients answer; `weight` for every release;
         `take`, `advance`, `lift` and `close`, in reverse, afterwards. Nothing is framed, sent or
         lost here: every client that is asked answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, final

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import require
from quietbit.mechanism.base import Answers, Mechanism
from quietbit.run.messages import ENCLOSED, MODEL, SPEED, Asked, Reply
from quietbit.run.part import Part, Step, lifted
from quietbit.run.record import RoundReport
from quietbit.run.round import Model
from quietbit.wire.payload import Header
from quietbit.wire.uplink import EXAMPLES

__all__ = ["Clients", "LocalRound", "open_round"]

Clients: TypeAlias = NDArray[np.int64]
RUN = b"simulation"  # the name of all runs, from which the rows of a round follow


@final
@define(eq=False)
class LocalRound:
    """A round from the first request to the last release; ``number`` counts from 1.

    ``mechanism`` is None without privacy. ``release_bytes`` is the size of a client's release, and
    ``unit`` what lengths are measured in: the clip of the round, where it moves. ``collected`` is
    the sum that a collector has made of the releases of ``clients``.
    """

    number: int
    clients: Clients
    mechanism: Mechanism | None
    parts: tuple[Part, ...] = ()
    model: Model | None = None
    release_bytes: int = 0
    unit: float = 1.0
    section: str = ""  # of the part that asks for something else than an update
    beside: list[LocalRound] = field(factory=list, init=False)
    weights: list[float] = field(factory=list, init=False)
    collected: Any = field(default=None, init=False)
    model_bytes: int = field(default=0, init=False)  # sent down: models, or rounds to replay
    enclosed_bytes: int = field(default=0, init=False)  # sent down by parts beside these
    needing: tuple[int, ...] = field(default=(), init=False)  # every client keeps its model
    request: Mapping[str, Any] = field(factory=dict, init=False)  # nothing has to be described

    def ask(self) -> None:
        """Let parts complete the requests, and choose who is asked for something else."""
        if not self.parts:
            return
        requests = [Asked(client, self) for client in self.clients.tolist()]
        for part in self.parts:
            part.ask(self, requests, None)
        for asked in requests:
            self._sent(asked)
        for member in (*self.beside, self):
            clients = [asked.node for asked in requests if asked.round is member]
            member.clients = np.array(clients, dtype=np.int64)

    def _sent(self, asked: Asked) -> None:
        """Count the bytes of a request, and show it to parts."""
        model_bytes = _model_bytes(asked, self.model)
        enclosed_bytes = _size(asked.records.get(ENCLOSED, {}).values())
        asked.size = model_bytes + enclosed_bytes
        self.model_bytes += model_bytes
        self.enclosed_bytes += enclosed_bytes
        for part in self.parts:
            part.sent(asked.round, asked)

    def side(self, mechanism: Mechanism, section: str) -> LocalRound:
        """Return a round beside this one, in which some clients are asked for something else."""
        side = LocalRound(
            self.number,
            self.clients[:0],
            mechanism,
            self.parts,
            release_bytes=Header.of(mechanism).size,
            section=section,
        )
        self.beside.append(side)
        return side

    def weigh(self, client: int, examples: int) -> float:
        """Return the weight of a client's release in the mean, and note it."""
        weight = 1.0
        if not self.parts:
            return weight
        reply = Reply(client, self.release_bytes, metrics={EXAMPLES: examples})
        for part in self.parts:
            weight *= part.weight(self, reply)
        self.weights.append(weight)
        return weight

    def take(self) -> None:
        """Show the replies of all clients to parts."""
        for part in reversed(self.parts):
            for member in (*self.beside, self):
                for client in member.clients.tolist():
                    part.take(member, Reply(client, member.release_bytes))

    def mean(self) -> FloatVector:
        """Return the mean of the releases."""
        return np.asarray(self.collected.mean())

    def kept(self) -> FloatVector:
        """Return the mean on the rows that all clients keep, in the round's unit."""
        mean: FloatVector = self.collected.kept()
        return mean / self.unit

    def answers(self) -> Answers | None:
        """Return what clients answered about the clip; None where nobody did."""
        answers: Answers | None = self.collected.answers()
        return answers

    def lift(self, mean: FloatVector) -> FloatVector:
        """Return the mean of the model's numbers that a mean of releases stands for."""
        return lifted(self.parts, mean)

    def advance(self) -> Step | None:
        """Return the step of a part that takes it as clients do; None to step on the mean."""
        for part in reversed(self.parts):
            step = part.advance(self)
            if step is not None:
                return step
        return None

    def close(self) -> dict[str, Any]:
        """Close the round in all parts; return the records of those that have one."""
        records = {}
        for part in reversed(self.parts):
            record = part.close(self)
            if record and not part.in_columns:
                records[part.section] = dict(record)
        return records

    @property
    def answered(self) -> set[int]:
        """The clients whose release was taken in: all that were asked."""
        return set(self.clients.tolist())

    def report(self) -> RoundReport:
        """Return the counts, as parts read them."""
        count = self.clients.size
        return RoundReport(
            round=self.number,
            asked=count,
            answered=count,
            declined=0,
            failed=0,
            refused=0,
            skipped=not count,
            uplink_payload=count * self.release_bytes,
            uplink=count * self.release_bytes,
            downlink=self.model_bytes + self.enclosed_bytes,
            reasons=(),
        )


def open_round(
    number: int, clients: Clients, mechanism: Mechanism | None, **fields: Any
) -> LocalRound:
    """Return a round of these clients, with the mechanism that the parts in ``fields`` prepare.

    ``mechanism`` is the run's, whose cost is accounted: one at another cost is refused.
    """
    prepared = mechanism
    if mechanism is not None:
        prepared = mechanism.for_round(RUN, number - 1)
        for part in fields.get("parts", ()):
            prepared = part.prepare(prepared, number)
        if prepared is not mechanism:
            rule = "one at the cost of the run's mechanism"
            same_cost = prepared.priced_as == mechanism.priced_as
            require(same_cost, "mechanism of a round", type(prepared).__name__, rule)
    return LocalRound(number, clients, prepared, **fields)


def _model_bytes(asked: Asked, model: Model | None) -> int:
    """Return the bytes of a request's model, or of the rounds that lead to it."""
    if not asked.carries_model:
        return sum(map(len, asked.records[MODEL]["broadcasts"]))
    arrays = []
    if model is not None:
        arrays = [array.value for array in model.arrays.values()]
    if SPEED in asked.records:
        arrays.append(asked.records[SPEED])
    return _size(arrays)


def _size(arrays: Any) -> int:
    return sum(int(array.nbytes) for array in arrays)
