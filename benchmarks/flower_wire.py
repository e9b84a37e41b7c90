"""Flower's uplink three ways: plain FedAvg, Flower's own local DP mod, and quietbit's one bit, under the same clip.

Idea     the same app (digits, linear softmax, 50 nodes, 20 rounds, all in one process) is run with
         each; messages are the engine's own, and their bytes are those of every object that Flower
         would send. Epsilons are counted by quietbit's account for all of them: per release and for
         a client's 20 releases, at delta 1e-5, zero-out.
Source   flwr.clientapp.mod.LocalDpMod: noise sensitivity * sqrt(2 ln(1.25 / delta)) / epsilon,
         which is proved for an epsilon below 1 and for one release (Dwork and Roth 2014, theorem
         A.1).

    python benchmarks/flower_wire.py
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.simulation.ray_transport.ray_actor import VirtualClientEngineActor
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from quietbit import Plan
from quietbit.federation.simulate.problem import MAX_CLIP, LocalPlan
from quietbit.flower import PrivateClientApp, PrivateStrategy
from quietbit.flower.transport import wire_sizes
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.calibrate import calibrate
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency
from quietbit_lab.task.dataset import Partition
from quietbit_lab.task.images import load_digits
from quietbit_lab.task.linear import LinearSoftmax

NODES, ROUNDS, CLIP, EPSILON, DELTA = 50, 20, 0.5, 20.0, 1e-5
STEPS, RATE, RUN = 10, 0.5, 1
CLASSIC = math.sqrt(2 * math.log(1.25 / DELTA))
ADJACENCY = Adjacency.ZERO_OUT
Train = Callable[[Message, Context], Message]


@dataclass(frozen=True)
class Way:
    """A way to send: the mods, the strategy, and what one release costs."""

    name: str
    mods: list[Any]
    strategy: Callable[[], Strategy]
    noise: float | None = None  # standard deviation in units of the clip, where noise is Gaussian
    kind: type[ClientApp] = ClientApp


@dataclass
class InProcess(Grid):
    """A grid without a network: nodes answer when they are asked, and the bytes of replies are counted."""

    app: ClientApp
    contexts: dict[int, Context]
    uplink: list[int] = field(default_factory=list)

    @property
    def run(self) -> Run:
        """A run with a number and nothing else."""
        return Run.create_empty(run_id=RUN)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes."""
        return list(self.contexts)

    def _unused(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("This grid asks and is answered in one call.")

    set_run = create_message = push_messages = pull_messages = _unused

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Ask every node in turn."""
        # As the simulation runtime calls an app: elsewhere a node without a policy releases
        # nothing.
        actor = VirtualClientEngineActor()
        places = ((message, self.contexts[message.metadata.dst_node_id]) for message in messages)
        with mock.patch("quietbit.flower.client.in_simulation", return_value=True):
            replies = [
                actor.run(lambda: self.app, message, "0", place)[1] for message, place in places
            ]
        self.uplink += wire_sizes(replies)
        return replies


def federate(
    way: Way, train: Train, initial: ArrayRecord, nodes: int, rounds: int
) -> tuple[ArrayRecord, int]:
    """The final model, and the bytes of a reply on average."""
    app = way.kind(mods=way.mods)
    app.train()(train)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1
    contexts = {
        node: Context(RUN, node, {"partition-id": node - 2}, RecordDict(), dict(SETTINGS))
        for node in range(2, nodes + 2)
    }
    grid = InProcess(app, contexts)
    result = way.strategy().start(grid=grid, initial_arrays=initial, num_rounds=rounds)
    return result.arrays, round(sum(grid.uplink) / len(grid.uplink))


SETTINGS = Plan(
    "imvu",
    clip=CLIP,
    epsilon=EPSILON,
    adjacency=ADJACENCY,
    delta=DELTA,
    releases=ROUNDS,
).to_run_config()


def ways(nodes: int) -> list[Way]:
    def fedavg() -> FedAvg:
        return FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)

    ball = Ball(Norm.L2, 650)
    gaussian = calibrate(
        "gaussian", ball=ball, epsilon=EPSILON, delta=DELTA, adjacency=ADJACENCY, releases=ROUNDS
    ).mechanism
    fitting = gaussian.noise_multiplier if isinstance(gaussian, Gaussian) else math.nan
    told = CLASSIC / fitting
    return [
        Way("FedAvg, nothing private", [], fedavg),
        Way(
            f"LocalDpMod(epsilon={EPSILON:g})",
            [LocalDpMod(CLIP, CLIP, EPSILON, DELTA)],
            fedavg,
            CLASSIC / EPSILON,
        ),
        Way(
            f"LocalDpMod(epsilon={told:.3f})",
            [LocalDpMod(CLIP, CLIP, told, DELTA)],
            fedavg,
            fitting,
        ),
        Way(
            "quietbit, one bit",
            [],
            lambda: PrivateStrategy(fedavg(), SETTINGS),
            kind=PrivateClientApp,
        ),
    ]


def account(way: Way) -> tuple[str, str, str]:
    """Epsilon of one release and of all of them, and the squared error of a decoded coordinate, in clips squared."""
    if way.kind is ClientApp and not way.mods:
        return "infinite", "infinite", "0"
    if way.noise is None:
        mechanism = Plan.from_run_config(SETTINGS).mechanism_for(650)
        curve: Any = mechanism.privacy(ADJACENCY)
        error = mechanism.variance(0.0)
        spent = [(curve * times).epsilon(DELTA) for times in (1, ROUNDS)]
    else:
        curves = [Cost.gaussian(times / (2 * way.noise**2)) for times in (1, ROUNDS)]
        spent = [one.epsilon(DELTA) for one in curves]
        error = way.noise**2
    return f"{spent[0]:.2f}", f"{spent[1]:.2f}", f"{error:.3f}"


def digits() -> None:
    size = 1437 // NODES
    problem = LinearSoftmax(load_digits(), Partition.groups(NODES * size, size, 0))
    plan = LocalPlan(Norm.L2, MAX_CLIP, steps=STEPS, rate=RATE)

    def train(message: Message, context: Context) -> Message:
        parameters = message.content.array_records["arrays"]["model"].numpy()
        row = np.zeros((1, parameters.size), dtype=np.float32)
        client = int(str(context.node_config["partition-id"]))
        problem.updates(parameters, np.array([client]), plan, row)
        arrays = ArrayRecord({"model": Array(parameters - np.float32(RATE) * row[0])})
        metrics = MetricRecord({"num-examples": int(problem.sizes[client])})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    print(f"Digits, 650 parameters, {NODES} nodes, {ROUNDS} rounds, clip {CLIP}\n")
    print(
        "| | bytes per client and round | epsilon of one release | of all 20 | squared error / clip^2 | accuracy |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    for way in ways(NODES):
        scores, size = [], 0
        for _ in range(3):
            initial = ArrayRecord({"model": Array(problem.initial(0))})
            found, size = federate(way, train, initial, NODES, ROUNDS)
            scores.append(problem.evaluate(found["model"].numpy()).accuracy)
        one, every, error = account(way)
        shown = ", ".join(f"{score:.2f}" for score in sorted(scores))
        print(f"| {way.name} | {size:,} | {one} | {every} | {error} | {shown} |", flush=True)


def sizes() -> None:
    """The same mods on models of other sizes; what is sent does not depend on what was learnt."""

    def train(message: Message, context: Context) -> Message:
        arrays = ArrayRecord(
            {"model": Array(message.content.array_records["arrays"]["model"].numpy() + 1)}
        )
        return Message(
            RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}),
            reply_to=message,
        )

    print(
        "\n| bytes per client and round | d = 650 | d = 100,000 | d = 1,000,000 |\n|---|---:|---:|---:|"
    )
    for way in ways(2):
        found = []
        for dimension in (650, 100_000, 1_000_000):
            initial = ArrayRecord({"model": Array(np.zeros(dimension, np.float32))})
            found.append(federate(way, train, initial, 2, 1)[1])
        print(f"| {way.name} | " + " | ".join(f"{size:,}" for size in found) + " |", flush=True)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    digits()
    sizes()
