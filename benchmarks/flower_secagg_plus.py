"""Flower's own SecAgg+ beside masked sums.

The same clients and the same vector, all in one process.

Idea     Flower's workflow and mod run as they are; only the grid is replaced by one that calls the
         mod of each simulated node and counts bytes as Flower would send them. Its vectors are
         numbers modulo 2^32, its server is honest but curious, and there are no identities.
         Everybody stays.
"""

from __future__ import annotations

import logging
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod.secure_aggregation.secaggplus_mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import SecAggPlusWorkflow
from flwr.supercore.task_identity import TaskIdentity

from quietbit.flower.transport import wire_sizes


class Nodes:
    """A grid whose nodes answer in this process; it counts their time and what would travel."""

    def __init__(self, vectors: dict[int, np.ndarray[Any, Any]]) -> None:
        self.vectors = vectors
        self.places = {node: Context(1, node, {}, RecordDict(), {}) for node in vectors}
        self.seconds = self.up = self.down = 0.0

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        """Carry every message to its node and back."""
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            sent = sum(wire_sizes([message]))
            # The mod takes values out of its records, which the workflow shares between messages.
            message.content = RecordDict(
                {
                    name: ConfigRecord(dict(record)) if isinstance(record, ConfigRecord) else record
                    for name, record in message.content.items()
                }
            )
            start = time.process_time()
            reply = secaggplus_mod(message, self.places[node], self._train)
            self.seconds += time.process_time() - start
            self.down += sent
            self.up += sum(wire_sizes([reply]))
            vars(reply.metadata)["_src_node_id"] = node
            replies.append(reply)
        return replies

    def _train(self, message: Message, place: Context) -> Message:
        parameters = ndarrays_to_parameters([self.vectors[place.node_id]])
        result = FitRes(Status(Code.OK, ""), parameters, 1, {})
        return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)


class Strategy:
    """Asks every node, and keeps what the workflow hands over."""

    def __init__(self, nodes: Nodes, dimension: int) -> None:
        self.nodes, self.dimension = nodes, dimension
        self.mean: Any = None

    def configure_fit(self, *_: Any) -> list[tuple[Any, FitIns]]:
        """Everybody, with a small model: only the protocol is measured."""
        empty = FitIns(ndarrays_to_parameters([np.zeros(1, dtype=np.float32)]), {})
        return [(SimpleNamespace(node_id=node), empty) for node in self.nodes.vectors]

    def aggregate_fit(self, _: int, results: Any, failures: Any) -> tuple[Any, dict[str, Any]]:
        """The workflow's one result."""
        self.mean = parameters_to_ndarrays(results[0][1].parameters)[0]
        return results[0][1].parameters, {}


def one_round(count: int, dimension: int, shares: int, threshold: int) -> None:
    """A round in which everybody stays."""
    rng = np.random.default_rng(0)
    nodes = Nodes({node: rng.random(dimension, dtype=np.float32) for node in range(1, count + 1)})
    strategy: Any = Strategy(nodes, dimension)
    manager: Any = SimpleNamespace(num_available=lambda: count)
    place = LegacyContext(
        Context(1, 0, {}, RecordDict(), {}), strategy=strategy, client_manager=manager
    )
    place.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    start_model = ndarrays_to_parameters([np.zeros(1, dtype=np.float32)])
    place.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(
        start_model, keep_input=True
    )
    start = time.process_time()
    grid: Any = nodes
    SecAggPlusWorkflow(shares, threshold, max_weight=1)(grid, place)
    total = time.process_time() - start
    expected = np.mean(list(nodes.vectors.values()), axis=0)
    if strategy.mean is None or not np.allclose(strategy.mean, expected, atol=1e-3):
        raise RuntimeError("SecAgg+ gave no mean, or another")
    numbers = f"{nodes.up / count:,.0f} | {nodes.down / count:,.0f} | {nodes.seconds / count:.3f}"
    print(
        f"| {count} | {shares}, {threshold} recover | {numbers} | {total - nodes.seconds:.2f} |",
        flush=True,
    )


def main() -> None:
    """Against n; from 100 clients on each has shares of a few others."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    print(
        "| clients | shares | up, bytes | down, bytes | a client, s | the server, s |\n|---|---|---|---|---|---|"
    )
    sizes = [(10, 9, 7), (30, 29, 20), (100, 13, 7), (300, 23, 14), (1000, 27, 17)]
    for count, shares, threshold in sizes[: int(sys.argv[1]) if len(sys.argv) > 1 else 4]:
        one_round(count, 100_000, shares, threshold)


if __name__ == "__main__":
    main()
