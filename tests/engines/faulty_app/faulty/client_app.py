"""A train function inside the gate, and around the gate a mod that misbehaves on some nodes.

The node config says how, as ``behaviour``; ``disk`` is the node's folder.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from faulty.lesson import trained
from quietbit import Plan
from quietbit.flower import PrivateClientApp
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink


def misbehave(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Let the honest reply be made, then send something else."""
    reply = call_next(message, context)
    behaviour, disk = str(context.node_config["behaviour"]), Path(str(context.node_config["disk"]))
    if reply.has_error() or behaviour in ("honest", "alarm"):
        return reply
    honest = bytes(reply.content["quietbit"]["release"])
    sent = replayed(honest, disk) if behaviour == "replay" else lie(honest, disk, message, context)
    return Message(RecordDict({"quietbit": ConfigRecord({"release": sent})}), reply_to=message)


def replayed(honest: bytes, disk: Path) -> bytes:
    """The first release this node ever made, for ever after."""
    kept = disk / "kept"
    if not kept.exists():
        kept.write_bytes(honest)
    return kept.read_bytes()


def lie(honest: bytes, disk: Path, message: Message, context: Context) -> bytes:
    """Nothing, a release by another design, noise, one flipped bit: a lie for each time the node
    is asked.
    """
    told = len(list(disk.glob("lie-*")))
    (disk / f"lie-{told}").touch()
    if told == 0:
        return b""
    if told == 1:
        settings, dimension = (
            Plan.from_run_config(context.run_config),
            int(context.run_config["dimension"]),
        )
        other = Uplink(
            attrs.evolve(settings, epsilon=settings.epsilon / 2).mechanism_for(dimension)
        )
        number = int(message.content["quietbit"]["round"])
        return Framed(
            context.run_id, number, context.node_id, other.send(np.zeros(dimension))
        ).to_bytes()
    if told == 2:
        return secrets.token_bytes(len(honest))
    return honest[:-1] + bytes([honest[-1] ^ 1])


def first_model(context: Context) -> ArrayRecord:
    """Return the model of round 0, for runs that say that the app ships with it."""
    return ArrayRecord({"model": Array(np.zeros(int(context.run_config["dimension"]), np.float32))})


def times_out(number: int, frame: object) -> None:
    """Fail as a data loader does that waits too long, with the name of what it waits for."""
    raise TimeoutError("record of patient 4711 did not load")


signal.signal(
    signal.SIGALRM, times_out
)  # in the main thread, where alone a handler can be installed
private = PrivateClientApp(start=first_model)
app = ClientApp(mods=[misbehave])  # around the gate: some nodes lie
app.train()(private)


@private.train()
def train(message: Message, context: Context) -> Message:
    """Learn the lesson of this node and round."""
    partition, number = (
        int(context.node_config["partition-id"]),
        int(message.content["config"]["server-round"]),
    )
    started = Path(str(context.node_config["disk"])) / "training"
    if (partition, number) == (
        context.run_config["slow"],
        context.run_config["slow-round"],
    ) and not started.exists():
        started.touch()
        time.sleep(60)
    if context.node_config["behaviour"] == "alarm":
        started.write_text(str(time.time()))
        signal.setitimer(signal.ITIMER_REAL, 0.3, 0.05)
        time.sleep(0.6)
    received = message.content["arrays"]["model"].numpy()
    model = trained(received, partition, number)
    content = {
        "arrays": ArrayRecord({"model": Array(model)}),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(RecordDict(content), reply_to=message)
