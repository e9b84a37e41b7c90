"""How a node reads the server's request in a message; a masked sum's server reads its own alike.

Idea     the fields that every request has are read here, and each part adds those of its section.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, final

from attrs import frozen

from quietbit.node.request import Request
from quietbit.run.messages import RECORD, read_fields
from quietbit.run.part import Part

if TYPE_CHECKING:
    from quietbit.run.plan import Plan

__all__ = ["NodeName", "read_request"]


@final
@frozen
class NodeName:
    """How frames and ledgers call a node: the run, its number in it, and which client it is."""

    run: int
    node: int
    client: int | None = None


def read_request(
    records: Mapping[str, Any], plan: Plan, parts: Iterable[Part], name: NodeName
) -> Request:
    """Read a message's request, with the fields that parts read; refuse a message without one."""
    asked = read_fields(
        records.get(RECORD),
        {"version", "round", "dimension", "mechanism"},
        "The server's message must carry quietbit's request, and does not: wrap its strategy in a "
        "PrivateStrategy, or put PrivateReceiver among the filters of its tasks.",
    )
    target = plan.update_target
    fields: dict[str, Any] = {"epsilon": target.epsilon, "delta": target.delta}
    for part in parts:
        fields |= part.read(records)
    return Request(
        run=name.run,
        round=asked["round"],
        node=name.node,
        dimension=asked["dimension"],
        mechanism=asked["mechanism"],
        adjacency=plan.adjacency.value,
        unit=plan.unit.value,
        client=name.client,
        **fields,
    )
