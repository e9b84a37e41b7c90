"""The client: one clipped step on its own examples; the outermost mod notes what leaves the app."""

import json
import logging
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import message_size_mod
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from private_digits.task import problem, to_vector
from quietbit.federation.simulate.problem import LocalPlan
from quietbit.flower import PrivateClientApp, Simulation
from quietbit.mechanism.ball import Norm


class Listener(logging.Handler):
    """Keeps what Flower's own message_size_mod says."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.sizes = []

    def emit(self, record):
        if "essage size" in str(record.msg):
            self.sizes.append(int(record.args[0]))


def watch(message, context, call_next):
    """The outermost mod: sizes by Flower's own measures, and the node's ledger after the answer."""
    listener, logger = Listener(), logging.getLogger("flwr")
    level = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    try:
        reply = call_next(message, context)
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)
    note = {
        "kind": message.metadata.message_type,
        "node": str(context.node_id),
        "partition": context.node_config["partition-id"],
        "records": {name: sorted(record) for name, record in reply.content.items()},
        "incoming": listener.sizes[0],
        "outgoing": listener.sizes[1],
        "serialised": sum(len(part.deflate()) for part in get_all_nested_objects(reply).values()),
        "ledger": context.state["quietbit"]["ledger"],
    }
    with (Path(context.run_config["results"]) / f"node-{note['partition']}.jsonl").open(
        "a"
    ) as file:
        file.write(json.dumps(note) + "\n")
    return reply


private = PrivateClientApp(simulation=Simulation(seed=0))
app = ClientApp(mods=[watch, message_size_mod])  # around the gate: what leaves it is watched
app.train()(private)
app.evaluate()(private)


@private.train()
def train(message, context):
    config, partition = context.run_config, context.node_config["partition-id"]
    task, arrays = problem(config["samples"]), message.content["arrays"]
    received, row = to_vector(arrays), np.zeros((1, 650), dtype=np.float32)
    task.updates(received, np.array([partition]), LocalPlan(Norm.L2, config["quietbit.clip"]), row)
    after, start, moved = received.astype(np.float64) - row[0].astype(np.float64), 0, {}
    for name, array in arrays.items():
        size = int(np.prod(array.shape))
        moved[name], start = Array(after[start : start + size].reshape(array.shape)), start + size
    metrics = MetricRecord({"num-examples": int(task.sizes[partition]), "train_loss": 0.5})
    return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)


@private.evaluate()
def evaluate(message, context):
    score = problem(context.run_config["samples"]).evaluate(to_vector(message.content["arrays"]))
    metrics = MetricRecord({"num-examples": 7, "loss": score.loss})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
