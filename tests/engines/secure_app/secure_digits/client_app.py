"""The client: one clipped step; the outermost mod loses requests and answers, and notes what
leaves the node.
"""

import json
from pathlib import Path

from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from quietbit.flower import PrivateClientApp, Simulation
from secure_digits.task import LOST, UNHEARD, to_arrays, to_vector, update


def watch(message, context, call_next):
    """What a step brought and took, and what the node keeps of it."""
    asked, partition = message.content["quietbit-sum"], context.node_config["partition-id"]
    number = message.content["quietbit"]["round"]
    key = number, asked["step"]
    if partition in LOST.get(key, ()):
        return Message(Error(1, "the request was lost"), reply_to=message)
    reply = call_next(message, context)
    answered, ledger = not reply.has_error(), context.state.get("quietbit")
    note = {
        "round": number,
        "step": asked["step"],
        "partition": partition,
        "error": "" if answered else reply.error.reason,
        "records": {name: sorted(record) for name, record in reply.content.items()}
        if answered
        else {},
        "serialised": sum(len(part.deflate()) for part in get_all_nested_objects(reply).values()),
        "state": sorted(context.state),
        "ledger": "" if ledger is None else ledger["ledger"],
    }
    with (Path(context.run_config["results"]) / f"node-{partition}.jsonl").open("a") as file:
        file.write(json.dumps(note) + "\n")
    if partition in UNHEARD.get(key, ()):
        return Message(Error(1, "the answer was lost"), reply_to=message)
    return reply


private = PrivateClientApp(simulation=Simulation(seed=3))
app = ClientApp(mods=[watch])  # around the gate: what leaves it is watched
app.train()(private)


@private.train()
def train(message, context):
    received = to_vector(message.content["arrays"])
    after = received.astype("float64") - update(received, context.node_config["partition-id"])
    metrics = MetricRecord({"num-examples": 1, "train_loss": 0.5})
    return Message(RecordDict({"arrays": to_arrays(after), "metrics": metrics}), reply_to=message)
