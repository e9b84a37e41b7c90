"""What a node does: a gradient step on its own text. One line makes what it sends private."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from flower_language.task import Choice, author, train
from quietbit.flower import PrivateClientApp

app = PrivateClientApp()


@app.train()
def train_on_own_text(message: Message, context: Context) -> Message:
    """Take the trained numbers, step, send them back: an ordinary Flower train function."""
    choice = Choice.of(context.run_config)
    ids = author(choice, int(context.node_config["partition-id"]))
    received = {
        name: array.numpy() for name, array in message.content.array_records["arrays"].items()
    }
    steps = int(context.run_config["local-steps"])
    trained = train(choice, received, ids, float(context.run_config["learning-rate"]), steps)
    arrays = ArrayRecord({name: Array(values) for name, values in trained.items()})
    return Message(RecordDict({"arrays": arrays}), reply_to=message)
