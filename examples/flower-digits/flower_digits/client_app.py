"""What a node does: train on its own digits. One line makes what it sends private."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from flower_digits.task import own_examples, train
from quietbit.flower import PrivateClientApp

app = PrivateClientApp()


@app.train()
def train_on_own_digits(message: Message, context: Context) -> Message:
    """Take the model, train it, send it back: an ordinary Flower train function."""
    received = message.content.array_records["arrays"]
    examples = own_examples(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    )
    steps, rate = int(context.run_config["local-steps"]), float(context.run_config["learning-rate"])
    trained = train(
        {name: array.numpy() for name, array in received.items()}, examples, steps, rate
    )
    arrays = ArrayRecord({name: Array(values) for name, values in trained.items()})
    metrics = MetricRecord({"num-examples": len(examples.digits)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
