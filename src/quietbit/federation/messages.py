"""What travels in an engine's messages: the server's request beside the model, and a node's answer.

Idea     the server says which round it is and which mechanism it will decode with, in full; the
         node builds and prices that mechanism itself. A release travels as one value of a
         ConfigRecord, which no strategy takes for weights: averaging it is an error, not a number.
         Releases beyond 16 MiB are cut into several records, as Flower cuts large arrays.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeAlias, final

from attrs import define, field, frozen

from quietbit.errors import (
    InvalidParameter,
    InvalidPayload,
    QuietbitError,
    check_int,
    one_line,
    refuse_payload,
    require,
)
from quietbit.mechanism.base import Mechanism
from quietbit.node.request import MOST_ROUNDS, description_of

__all__ = [
    "ABOUT",
    "ANSWERED",
    "CRASHED",
    "DECLINED",
    "ENCLOSED",
    "METRICS",
    "MODEL",
    "MOST_TRACEBACK",
    "RECORD",
    "SPEED",
    "SUM",
    "UPDATE",
    "Ask",
    "Asked",
    "BatchFault",
    "Node",
    "NodeName",
    "Release",
    "Reply",
    "UnusedBatch",
    "answer_of",
    "asked_fields",
    "crash_text",
    "finite",
    "join_pieces",
    "numbers_of",
    "of_gate",
    "pieces_of",
    "read_fields",
    "request_record",
    "split_pieces",
    "sum_request",
]

Node: TypeAlias = int | str
RECORD = "quietbit"  # the name of our record in a message, and the prefix of its continuations
SUM = "quietbit-sum"  # that of a masked sum
MODEL = "quietbit-model"  # that of rounds to replay, and of a simulated node's model
ENCLOSED = "quietbit-enclosed"  # that of arrays which parts of a run send beside a request
SPEED = "quietbit-speed"  # that of the momentum beside a full model
METRICS = "quietbit-metrics"  # that of numbers which the owner lets out
CRASHED = (
    "quietbit.crashed"  # that of the traceback of an app that crashed, of simulated nodes alone
)
UPDATE = "request"  # for an update, in a record that may ask for both
ABOUT = "evaluation"  # for an answer about the model
DECLINED = "quietbit: "  # how the reason of an error reply begins when nothing was released
# and when this round's release was noted, whether or not it arrived
ANSWERED = "quietbit, answered before: "
FIELD = "release"
STEP = {"step", "answer"}  # the fields of an answer to a step of a sum
PIECE = 16 * 2**20
VERSION = 3
FIELDS = {"version", "round", "clip", "dimension", "mechanism"}  # of a request
MOST_TRACEBACK = 4000  # characters of a simulated node's


class BatchFault(Enum):
    """Why nothing of an app is in the release of a batch of samples."""

    NOT_DRAWN = "no batch drawn"
    NOTHING_ADDED = "no gradients added"

    @classmethod
    def told(cls, text: str) -> BatchFault | None:
        """Return the fault that a simulated node tells of; None for a traceback."""
        return {fault.value: fault for fault in cls}.get(text)

    @property
    def sentence(self) -> str:
        """What the app did, and what to do."""
        if self is BatchFault.NOT_DRAWN:
            return "drew no batch: call dp_sgd_step in the train function"
        return "drew a batch and added no gradients: call add(rows), or use dp_sgd_step"


@final
class UnusedBatch(QuietbitError):
    """Raised for an app that the gate has no gradients of."""

    def __init__(self, fault: BatchFault) -> None:
        """Keep the fault, which travels by its value."""
        super().__init__(f"The app {fault.sentence}.")
        self.fault = fault


def crash_text(error: BaseException) -> str:
    """Return what a simulated node tells of an app's failure: a fault's value, or a traceback."""
    if isinstance(error, UnusedBatch):
        return error.fault.value
    return "".join(traceback.format_exception(error))[-MOST_TRACEBACK:]


@final
@frozen
class NodeName:
    """How frames and ledgers call a node: the run, its number in it, and which client it is."""

    run: int
    node: int
    client: int | None = None


@final
@define(eq=False)
class Asked:
    """A request to one node: the records beside the model.

    ``records`` may be shared with requests to other nodes; those of ``own_records`` are for this
    node alone. ``size`` is the length of the message, known when it is sent.
    """

    node: Node
    place: int = 0  # of the engine's message among those that are sent together
    records: dict[str, Any] = field(factory=dict)
    own_records: dict[str, Any] = field(factory=dict)
    carries_model: bool = True
    size: int = 0


@final
@frozen
class Ask:
    """What a round asks now: requests of round ``number`` that an engine sends together.

    ``releases`` says that each reply is a release, for which the nodes' apps are called; else it is
    a step that needs no app, which ends after ``timeout`` seconds.
    """

    number: int
    requests: tuple[Asked, ...]
    releases: bool = True
    timeout: float | None = None


@final
@frozen
class Reply:
    """A node that replied, the bytes of its message, and what it says; nothing is checked yet.

    ``records`` are quietbit's, by name, and ``metrics`` the numbers that the node's owner lets out.
    Where there is no answer ``refusal`` says why, and ``noted`` whether a release may have been
    made all the same. A message is ``unprotected`` if it holds what no gate lets out, such as a
    trained model; nothing else of it is read. ``size`` is 0 where it was noted as arrived before.
    """

    node: Node
    size: int
    records: Mapping[str, Any] = field(factory=dict)
    metrics: Mapping[str, float] = field(factory=dict)
    refusal: str | None = None
    noted: bool = False
    unprotected: bool = False


@final
@frozen(eq=False)
class Release:
    """A release that was taken in: its node, its payload, and its weight in the mean.

    ``decode`` returns the estimate that it is by itself.
    """

    node: Node
    payload: Any
    weight: float
    decode: Callable[[], Any]


def request_record(number: int, mechanism: Mechanism, clip: float = 1.0) -> dict[str, Any]:
    """Return what the server asks in round ``number``, from 1 on: the values of a ConfigRecord."""
    number = check_int(number, "round", 1, MOST_ROUNDS)
    described = {"dimension": mechanism.ball.dimension, "mechanism": description_of(mechanism)}
    return {"version": VERSION, "round": number, "clip": clip, **described}


def sum_request(step: str, clients: int, number: int, table: bytes = b"") -> dict[str, Any]:
    """Return what the server asks client ``number`` in one step of a sum.

    ``table`` is what it forwards from the other clients.
    """
    return {
        "version": VERSION,
        "step": str(step),
        "clients": clients,
        "number": number,
        "table": table,
    }


def answer_of(record: Mapping[str, Any] | None, step: str) -> bytes:
    """Return the bytes with which a node answered a step."""
    if record is None or set(record) != STEP:
        raise InvalidParameter(
            "The reply must hold an answer to a step of a masked sum, and does not."
        )
    require(record["step"] == step, "step of the answer", record["step"], step)
    require(isinstance(record["answer"], bytes), "answer", type(record["answer"]).__name__, "bytes")
    return bytes(record["answer"])


def split_pieces(data: bytes) -> dict[str, dict[str, bytes]]:
    """Split a release into records by name: one, or several where it is long."""
    pieces = [data[start : start + PIECE] for start in range(0, max(1, len(data)), PIECE)]
    return {
        RECORD if place == 0 else f"{RECORD}-{place}": {FIELD: piece}
        for place, piece in enumerate(pieces)
    }


def join_pieces(records: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return the bytes of a release from a reply's records; refuse what is not one release."""
    pieces: list[bytes] = []
    while (name := RECORD if not pieces else f"{RECORD}-{len(pieces)}") in records:
        record = records[name]
        value = record.get(FIELD)
        if set(record) != {FIELD} or not isinstance(value, bytes):
            refuse_payload(
                f"record {name} of the reply",
                f"the field {FIELD} alone, which holds bytes",
                f"the fields {sorted(record)}",
            )
        pieces.append(value)
    if not pieces:
        raise InvalidPayload("The reply must hold one quietbit release, got none.")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def pieces_of(records: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return what may be a release in a reply's records, valid or not; empty where none can be."""
    pieces = []
    for name, record in records.items():
        value = record.get(FIELD) if name.startswith(RECORD) else None
        if isinstance(value, bytes):
            pieces.append(value)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def of_gate(records: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether these records are one release as it is cut, one answer to a step, or none."""
    if set(records) <= {SUM}:
        return all(set(record) == STEP for record in records.values())
    try:
        return records == split_pieces(join_pieces(records))
    except InvalidPayload:
        return False


def finite(value: Any) -> float | None:
    """Return a number as a float; None for what is not a finite number (10**400 is not)."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def numbers_of(values: Any) -> dict[str, float]:
    """Return the finite numbers of a mapping that somebody else sent, by names of one line."""
    numbers: dict[str, float] = {}
    if isinstance(values, Mapping):
        for name, value in values.items():
            number = finite(value)
            if number is not None:
                numbers[one_line(str(name))] = number
    return numbers


def asked_fields(records: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a message's request holds; refuse a message without one."""
    record = records.get(RECORD)
    if isinstance(record, Mapping) and set(record) == FIELDS - {"clip"}:
        remedy = "use the same version of quietbit on server and nodes"
        raise InvalidParameter.of("clip", "given beside the mechanism", None, remedy)
    return read_fields(
        record,
        FIELDS,
        "The server's message must carry quietbit's request, and does not: wrap its strategy in a "
        "PrivateStrategy, or put PrivateReceiver among the filters of its tasks.",
    )


def read_fields(record: Any, names: set[str], missing: str) -> Mapping[str, Any]:
    """Return a record of these fields and this version; refuse others with ``missing``."""
    if not isinstance(record, Mapping) or set(record) != names:
        raise InvalidParameter(missing)
    if record["version"] != VERSION:
        raise InvalidParameter.of(
            "version of the server's quietbit", f"{VERSION}", record["version"]
        )
    return record
