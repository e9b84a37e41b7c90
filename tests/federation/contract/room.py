"""A run and its nodes without an engine: the real client half behind a gate; tests carry messages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from quietbit import Plan
from quietbit.federation.client import OpenRequest, Subject, gate_for, refusal
from quietbit.federation.layout import named_arrays
from quietbit.federation.messages import SUM, Ask, Asked, NodeName, Reply, split_pieces
from quietbit.federation.part import Arrival, Model
from quietbit.federation.round import Round
from quietbit.federation.server import Run
from quietbit.node.policy import Simulation
from quietbit.secagg.identity import MemberList

RUN = 7
DIMENSION = 24
NODES = (11, 12, 13, 14, 15)
WEIGHTS = np.linspace(-1, 1, DIMENSION).astype(np.float32)
SEED = 3


class Answer:
    """An app that has learnt these numbers, and is right."""

    def __init__(self, learnt: Any) -> None:
        self.learnt = learnt

    def update(self, layout: Any, received: list[Any]) -> list[Any]:
        return [self.learnt]

    def metric(self, name: str) -> float:
        return 1.0


class Node:
    """A node, whose state lasts from message to message; simulated, unless it has an owner."""

    def __init__(
        self, number: int, plan: Plan, *, seed: int = SEED, owner: str | None = None
    ) -> None:
        self.number = number
        self.plan = plan
        self.config = {} if owner is None else {"quietbit.policy": owner}
        self.rules = Simulation(seed=seed)
        self.state: dict[str, Any] = {}
        self.learnt = np.full(DIMENSION, 0.1)
        self.models: list[Any] = []  # that its app was given

    def answers(self, asked: Asked, subject: Subject = Subject.UPDATE, run: int = RUN) -> Reply:
        arrays = named_arrays({"weight": WEIGHTS}) if asked.carries_model else {}
        arrival = Arrival({**asked.records, **asked.own_records}, arrays)
        # A name of its own in seeds: the number of a node's partition.
        name = NodeName(run, self.number, self.number)
        gate = None
        try:
            gate = gate_for(self.config, self.state, dict, self.rules)
            opened = OpenRequest.read(gate, self.plan, subject, arrival, name)
            data = opened.step()
            if data is not None:
                record = {"step": opened.request.part.step, "answer": data}
                return Reply(self.number, len(data), {SUM: record})
            opened.check()
            turn = opened.accept()
        except Exception as error:
            public = refusal(error, gate)
            return Reply(self.number, 1, refusal=public.to_text(), noted=public.reason.counts)
        self.models.append(arrival.arrays)
        data = turn.release(turn.read(lambda: Answer(self.learnt), []))
        return Reply(self.number, len(data), split_pieces(data))


class Room:
    """A run and its nodes; a test says who is silent, and may look at what is asked."""

    def __init__(self, plan: Plan, members: MemberList | None = None) -> None:
        self.run = Run(plan, RUN, lambda level, line: None, members=members)
        self.nodes = {number: Node(number, plan) for number in NODES}
        self.asks: list[Ask] = []
        self.replies: list[Reply] = []

    def open(self, number: int = 1, nodes: Collection[int] = NODES) -> Round:
        model = Model.of(named_arrays({"weight": WEIGHTS}))
        current = self.run.open(number, model)
        current.start([Asked(node) for node in nodes])
        return current

    def play(
        self,
        current: Round,
        silent: Callable[[int, int], bool] = lambda trip, node: False,
        subject: Subject = Subject.UPDATE,
    ) -> None:
        """Carry messages until the round is over; ``silent`` nodes lose them, by trip."""
        for trip in range(1, 10):
            ask = current.next()
            if ask is None:
                return
            self.asks.append(ask)
            for asked in ask.requests:
                if not silent(trip, int(asked.node)):
                    reply = self.nodes[int(asked.node)].answers(asked, subject)
                    self.replies.append(reply)
                    current.take(reply)
        raise AssertionError("a round that never ends")


def all_asks(room: Room) -> list[Ask]:
    """Return what was asked for releases, by trip."""
    return [ask for ask in room.asks if ask.releases]


def releases(room: Room) -> list[int]:
    return [room.run.updates[node].releases for node in NODES]
