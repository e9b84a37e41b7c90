"""What the server asks beside the model, written by the server and read by a node.

Idea     the server says which round it is, at which clip, and which mechanism it will decode with,
         in full; the node builds and prices that mechanism itself. Everything else of a request
         follows from the plan, which both sides have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quietbit.errors import InvalidParameter, check_int
from quietbit.federation.messages import RECORD, VERSION, NodeName, read_fields
from quietbit.federation.part import Part
from quietbit.federation.terms import Terms
from quietbit.mechanism.base import Mechanism
from quietbit.node.request import MOST_ROUNDS, Request, description_of

__all__ = ["read_request", "request_record"]

FIELDS = {"version", "round", "clip", "dimension", "mechanism"}


def request_record(number: int, mechanism: Mechanism, clip: float = 1.0) -> dict[str, Any]:
    """Return what the server asks in round ``number``, from 1 on: the values of a ConfigRecord."""
    number = check_int(number, "round", 1, MOST_ROUNDS)
    described = {"dimension": mechanism.ball.dimension, "mechanism": description_of(mechanism)}
    return {"version": VERSION, "round": number, "clip": clip, **described}


def read_request(
    records: Mapping[str, Any], terms: Terms, parts: Iterable[Part], name: NodeName
) -> Request:
    """Read a message's request, with the fields that parts read; refuse a message without one."""
    record = records.get(RECORD)
    if isinstance(record, Mapping) and set(record) == FIELDS - {"clip"}:
        remedy = "use the same version of quietbit on server and nodes"
        raise InvalidParameter.of("clip", "given beside the mechanism", None, remedy)
    asked = read_fields(
        record,
        FIELDS,
        "The server's message must carry quietbit's request, and does not: wrap its strategy in a "
        "PrivateStrategy, or put PrivateReceiver among the filters of its tasks.",
    )
    fields: dict[str, Any] = {}
    for part in parts:
        fields |= part.read(records)
    # The budget is that of updates, unless a part says other.
    target = terms.update_target
    budget = {"epsilon": target.epsilon, "delta": target.delta}
    return Request(
        run=name.run,
        round=asked["round"],
        node=name.node,
        dimension=asked["dimension"],
        mechanism=asked["mechanism"],
        clip=asked["clip"],
        adjacency=terms.adjacency.value,
        unit=terms.unit.value,
        client=name.client,
        **budget | fields,
    )
