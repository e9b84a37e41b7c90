"""One federation, three adapters: nodes, a server, a plan and an app, played round by round.

Idea     a test says what every node's app does, and plays rounds; an adapter carries the messages
         as its engine would: `FlowerFederation` in a hand-driven grid, `FlareFederation` through
         NVFlare's runner and filters, `LocalFederation` through the simulator, which has no nodes
         and no owners. Node k is ``k`` for all of them, and its seeded randomness is the same.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from quietbit import Plan
from quietbit.federation import Part
from quietbit.federation.messages import ANSWERED, DECLINED
from quietbit.federation.simulate import Score, SimulatedPlan, Training, simulate
from quietbit.gradients.subspace import Subspace
from quietbit.kernel.client_rng import seeded_client_rng
from quietbit.mechanism.registry import build
from quietbit.node.ledger import FileLedger, LedgerState, StateLedger
from quietbit.node.refusal import Reason, Refusal
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink

SEED = 7
COLUMNS = 7
RELEASE = "release"  # of an update
ANSWER = "answer"  # of an evaluation


@dataclass(frozen=True)
class Work:
    """What an app does in a round: the update that it has learnt, and its metrics."""

    update: Any = None
    metrics: Mapping[str, Any] = field(default_factory=dict)


App = Callable[[int, Any], Work]  # of a node and the model that it was given
Change = Callable[[int, dict[str, Any]], None]  # of a node and the request that it gets


def still(node: int, model: Any) -> Work:
    """Learn nothing."""
    return Work(np.zeros(model.size))


def walk(node: int, model: Any) -> Work:
    """Learn something of one's own; every other node more than a clip of 1 allows."""
    direction = np.random.default_rng(node).normal(size=model.size)
    length = 0.5 + 2.0 * (node % 2)
    return Work(length * direction / np.linalg.norm(direction), {"accuracy": 1.0})


class Federation(ABC):
    """Nodes 0 to ``nodes`` - 1 of one engine; the model is a table and a row of float32 numbers.

    ``owners`` are policies, by node; a node without one is simulated, and shows its ``metrics``.
    ``parts`` and a subspace's ``basis`` are handed to the server.
    After a round ``releases`` has the framed releases that arrived, by kind and node, ``reasons``
    why others did not, ``noted`` whether a node says that a release was noted nevertheless, and
    ``seen`` the models that the apps were given.
    """

    name: ClassVar[str]

    def __init__(
        self,
        config: Mapping[str, Any],
        app: App = walk,
        nodes: int = 3,
        *,
        rows: int = 5,
        folder: Path,
        owners: Mapping[int, str] | None = None,
        metrics: Collection[str] = (),
        parts: Sequence[Part] = (),
        basis: Subspace | None = None,
    ) -> None:
        self.config = dict(config)
        self.app = app
        self.nodes = nodes
        self.rows = rows
        self.folder = folder
        self.owners = owners or {}
        self.metrics = tuple(metrics)
        self.parts = tuple(parts)
        self.basis = basis
        self.number = 0
        self.model = np.random.default_rng(3).normal(size=COLUMNS * (rows + 1)).astype(np.float32)
        self.releases: dict[str, dict[int, bytes]] = {RELEASE: {}, ANSWER: {}}
        self.reasons: dict[int, Reason | None] = {}
        self.noted: dict[int, bool] = {}
        self.seen: dict[int, Any] = {}
        self.requests: dict[int, Any] = {}  # that nodes were asked for an update with
        self.start()

    @property
    def dimension(self) -> int:
        return int(self.model.size)

    @property
    def plan(self) -> Plan:
        return Plan.from_run_config(self.config)

    @abstractmethod
    def start(self) -> None:
        """Start the server and the nodes."""

    @abstractmethod
    def play(
        self,
        *,
        lost: Collection[int] = (),
        twice: Collection[int] = (),
        change: Change | None = None,
        alter: Callable[[int, bytes], bytes] | None = None,
    ) -> None:
        """Play a round: replies of ``lost`` nodes do not arrive, those of ``twice`` do so twice.

        ``change`` may tamper with the requests that nodes get, ``alter`` with their releases.
        """

    @abstractmethod
    def ask_again(self, node: int) -> Reason | None:
        """Send a node its last request once more; return why it declines."""

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """End the run and return its report as plain values."""

    @abstractmethod
    def state_ledger(self, node: int) -> LedgerState:
        """Return what a simulated node has noted."""

    def ledger(self, node: int) -> LedgerState:
        if node not in self.owners:
            return self.state_ledger(node)
        folder = Path(self.owners[node]).parent
        return FileLedger(folder / "ledger", folder / "counter").read()

    def work(self, node: int, model: Any) -> Work:
        self.seen[node] = model
        return self.app(node, model)

    def arrays(self, vector: Any) -> dict[str, Any]:
        """Return the model's arrays of a vector."""
        table = np.asarray(vector[:-COLUMNS]).reshape(self.rows, COLUMNS)
        return {"weight": table, "bias": np.asarray(vector[-COLUMNS:])}

    def payload(self, node: int, kind: str = RELEASE) -> bytes:
        return bytes(Framed.from_bytes(self.releases[kind][node]).payload)

    def expected(self, node: int, update: Any, mechanism: Any, number: int) -> bytes:
        """Return the payload that a seeded node makes of an update."""
        return Uplink(mechanism).send([update], seeded_client_rng(SEED)(number - 1, node))

    def asked_mechanism(self, node: int) -> Any:
        """Return the mechanism that a node was asked for an update with, from its request."""
        return build(json.loads(self.requests[node]["mechanism"]))

    def asked_uplink(self, node: int) -> Uplink:
        """Return the way of what a node was asked for, at the clip of its request."""
        return Uplink(self.asked_mechanism(node), clip=self.requests[node]["clip"])


def flat(arrays: Mapping[str, Any]) -> Any:
    return np.concatenate([np.asarray(arrays[name]).reshape(-1) for name in ("weight", "bias")])


class FlowerFederation(Federation):
    """Flower's strategy and mod, with a grid whose messages are carried by hand."""

    name = "flower"
    FIRST = 101

    def start(self) -> None:
        pytest.importorskip("flwr", reason="needs the flower extra")
        from flwr.serverapp.strategy import FedAvg

        from engines.flower.kit import HandGrid, be_the_server, context, gated, simulated
        from quietbit.flower import PrivateStrategy, Simulation

        be_the_server()
        rules = Simulation(seed=SEED, metrics=self.metrics)
        self._mod = simulated(gated(simulation=rules))
        inner = FedAvg(min_train_nodes=1, min_available_nodes=1, min_evaluate_nodes=1)
        self.strategy = PrivateStrategy(inner, self.config, parts=self.parts, basis=self.basis)
        self._grid = HandGrid(range(self.FIRST, self.FIRST + self.nodes))
        self._asked: dict[int, Any] = {}
        self.contexts = {}
        for node in range(self.nodes):
            owner = {}
            if node in self.owners:
                owner["quietbit_policy"] = self.owners[node]
            self.contexts[node] = context(self.FIRST + node, node, self.config, **owner)

    def play(self, *, lost=(), twice=(), change=None, alter=None):
        self.number += 1
        self._round(
            self.strategy.configure_train, self._step, RELEASE, (lost, twice, change, alter)
        )
        if any(key.startswith("quietbit.evaluate") for key in self.config):
            self._round(
                self.strategy.configure_evaluate,
                self.strategy.aggregate_evaluate,
                ANSWER,
                (lost, (), None, None),
            )

    def _step(self, number, replies):
        arrays, _ = self.strategy.aggregate_train(number, replies)
        self.model = flat({name: array.numpy() for name, array in arrays.items()})

    def _round(self, configure, aggregate, kind, tampering):
        from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

        lost, twice, change, alter = tampering
        arrays = ArrayRecord({k: Array(np.array(v)) for k, v in self.arrays(self.model).items()})
        replies = []
        self.releases[kind] = {}
        for message in configure(self.number, arrays, ConfigRecord(), self._grid):
            node = message.metadata.dst_node_id - self.FIRST
            if kind == RELEASE:
                self._asked[node] = message
                self.requests[node] = dict(message.content["quietbit"])
            if change is not None:
                record = dict(message.content["quietbit"])
                change(node, record)
                # Anew: the messages of a round share what they hold.
                changed = {**message.content, "quietbit": ConfigRecord(record)}
                message.content = RecordDict(changed)
            reply = self._answer(node, message)
            if not reply.has_error():
                release = reply.content["quietbit"]["release"]
                if alter is not None:
                    reply.content["quietbit"]["release"] = alter(node, release)
                self.releases[kind][node] = release
            if node not in lost:
                replies += [reply] * (2 if node in twice else 1)
        aggregate(self.number, replies)

    def _answer(self, node, message):
        reply = self._mod(message, self.contexts[node], self._app(node))
        self.reasons[node] = None
        self.noted[node] = not reply.has_error()
        if reply.has_error():
            text = reply.error.reason
            self.noted[node] = text.startswith(ANSWERED)
            known = text.removeprefix(ANSWERED).removeprefix(DECLINED)
            self.reasons[node] = Refusal.read_reason(known)
        return reply

    def _app(self, node):
        from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

        def call(message, _):
            sent = {name: a.numpy() for name, a in message.content["arrays"].items()}
            work = self.work(node, flat(sent))
            content = {"metrics": MetricRecord(dict(work.metrics))}
            if work.update is not None:
                trained = self.arrays(flat(sent).astype(np.float64) - work.update)
                content["arrays"] = ArrayRecord({k: Array(v) for k, v in trained.items()})
            return Message(RecordDict(content), reply_to=message)

        return call

    def ask_again(self, node):
        self._answer(node, self._asked[node])
        return self.reasons[node]

    def report(self):
        return self.strategy.report().to_json()

    def state_ledger(self, node):
        state = self.contexts[node].state
        return StateLedger(dict(state["quietbit"]) if "quietbit" in state else {}).read()


class FlareFederation(Federation):
    """NVFlare's client runner and both halves' filters, and the arithmetic of its FedAvg."""

    name = "nvflare"

    def start(self) -> None:
        pytest.importorskip("nvflare", reason="needs the nvflare extra")
        from nvflare.apis.fl_constant import FLContextKey
        from nvflare.app_common.workflows.fedavg import FedAvg

        from engines.nvflare.kit import Server, Site

        path = None
        if self.basis is not None:
            path = str(self.folder / "basis.npy")
            np.save(path, self.basis.directions)
        self.server = Server(self.config, self.folder, basis=path)
        self.server.data.parts = self.parts
        context = self.server.engine.manager.new_context()
        runner = SimpleNamespace(current_wf=SimpleNamespace(controller=FedAvg()))
        context.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=True)
        self._tasks: dict[int, Any] = {}
        self.sites = {}
        for node in range(self.nodes):
            rules: dict[str, Any] = {"seed": SEED, "metrics": list(self.metrics)}
            if node in self.owners:
                rules["properties"] = {"quietbit.policy": self.owners[node]}
            self.sites[node] = Site(self._app(node), f"site-{node}", **rules)

    def play(self, *, lost=(), twice=(), change=None, alter=None):
        from nvflare.app_common.abstract.model import make_model_learnable
        from nvflare.app_common.app_event_type import AppEventType

        self.number += 1
        self.releases = {RELEASE: {}, ANSWER: {}}
        seen = []
        for node in self.sites:
            reply = self._answer(node, self._ask(node, change))
            record = reply["quietbit"]
            if alter is not None and RELEASE in record:
                record[RELEASE] = alter(node, record[RELEASE])
            for _ in range(0 if node in lost else 2 if node in twice else 1):
                seen.append(self._take(node, reply))
        self.server.hears(AppEventType.BEFORE_AGGREGATION)
        weights = [entry["meta"]["NUM_STEPS_CURRENT_ROUND"] for entry in seen]
        if seen:
            moved = np.average([flat(entry["data"]) for entry in seen], axis=0, weights=weights)
            self.model = (self.model + moved).astype(np.float32)
        learnt = {name: np.array(value) for name, value in self.arrays(self.model).items()}
        self.server.hears(
            AppEventType.AFTER_SHAREABLE_TO_LEARNABLE, global_model=make_model_learnable(learnt, {})
        )
        self.model = flat(learnt)  # replaced where rounds are replayed

    def _ask(self, node, change):
        arrays = {name: np.array(value) for name, value in self.arrays(self.model).items()}
        task = self.server.asks(f"site-{node}", self.number - 1, arrays)
        self._tasks[node] = task
        self.requests[node] = dict(task["quietbit"]["request"])
        if change is not None:
            change(node, task["quietbit"]["request"])
        return task

    def _take(self, node, reply):
        from engines.nvflare.kit import carried

        return self.server.takes(carried(reply), f"site-{node}", self.number - 1)["DXO"]

    def _answer(self, node, task):
        reply = self.sites[node].does(task)
        record = reply["quietbit"]
        self.reasons[node] = None
        self.noted[node] = record.get("noted", True)
        if "declined" in record:
            self.reasons[node] = Refusal.read_reason(record["declined"])
        for kind in (RELEASE, ANSWER):
            if isinstance(record.get(kind), bytes):
                self.releases[kind][node] = record[kind]
        return reply

    def _app(self, node):
        from nvflare.apis.dxo import DXO, DataKind

        def answer(task_name, shareable, fl_ctx):
            sent = flat(shareable["DXO"]["data"])
            work = self.work(node, sent)
            trained = {}
            if work.update is not None:
                trained = self.arrays(sent.astype(np.float64) - work.update)
            meta = {"initial_metrics": dict(work.metrics)}
            return DXO(DataKind.WEIGHTS, data=trained, meta=meta).to_shareable()

        return answer

    def ask_again(self, node):
        self._answer(node, self._tasks[node])
        return self.reasons[node]

    def report(self):
        return self.server.report(self.folder)

    def state_ledger(self, node):
        from quietbit.nvflare.client import _STATES

        state = _STATES[self.sites[node].engine]
        return StateLedger(dict(state.get("quietbit", {}))).read()


class LocalFederation(Federation):
    """The simulator: the same updates without nodes; every round plays the run from its start."""

    name = "local"
    dimension = 0

    def start(self) -> None:
        self.initial = self.model
        self.dimension = int(self.model.size)  # as a problem says it, too
        self.sizes = np.ones(self.nodes, dtype=np.int64)
        self.run: Any = None

    @property
    def plan(self) -> SimulatedPlan:
        return SimulatedPlan.read(
            self.config, "quietbit.", cohort=self.nodes, rng="seeded", seed=SEED
        )

    def play(self, *, lost=(), twice=(), change=None, alter=None):
        if lost or twice or change or alter:
            raise NotImplementedError("the simulator has no messages")
        self.number += 1
        self.run = simulate(
            _Problem(self),
            self.plan,
            Training(lr=1.0, rounds=self.number, momentum=0.0),
            parts=self.parts,
            basis=self.basis,
        )
        assert self.run.status == "finished", self.run.reason
        self.model = self.run.parameters

    def ask_again(self, node):
        raise NotImplementedError

    def report(self):
        return self.run.report().to_json()

    def state_ledger(self, node):
        raise NotImplementedError


class _Problem:
    """What the simulator asks of a task, answered by the app of a federation."""

    name = "contract"

    def __init__(self, federation: LocalFederation) -> None:
        self._federation = federation
        self.dimension = federation.dimension
        self.sizes = federation.sizes

    def initial(self, seed: int) -> Any:
        return self._federation.initial

    def updates(self, parameters: Any, clients: Any, plan: Any, out: Any) -> None:
        for row, client in zip(out, clients.tolist(), strict=True):
            row[:] = self._federation.work(client, np.array(parameters)).update
        from quietbit.federation.simulate.problem import clip_outside

        clip_outside(out, plan.norm, plan.clip)

    def evaluate(self, parameters: Any) -> Score:
        return Score(0.5, 1.0)


ENGINES = (FlowerFederation, FlareFederation)
ADAPTERS = (*ENGINES, LocalFederation)
