"""What a client may spend: an epsilon with its delta and adjacency, the run's and the node's own.

Idea     a budget is a limit on the whole ledger of a node, whatever runs and mechanisms are in it. The run names
         one and the node may name another in its node config; both must hold, so neither can raise the other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from quietbit._validate import InvalidParameter, finite_real, require
from quietbit.privacy.guarantee import Adjacency, Trust, check_delta

__all__ = ["Budget", "node_budget", "read_adjacency", "read_trust"]

NODE_KEYS = ("quietbit.epsilon", "quietbit.delta", "quietbit.adjacency")


@final
@dataclass(frozen=True, slots=True)
class Budget:
    """At most ``epsilon`` at ``delta`` under ``adjacency`` for all releases of a node; ``owner`` names who says so.

    Under local ``trust`` every release counts as if the server saw it; under secure aggregation those that went into
    sums count as parts of sums.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    owner: str
    trust: Trust = Trust.LOCAL

    def __post_init__(self) -> None:
        """Refuse numbers that are no budget."""
        object.__setattr__(self, "epsilon", finite_real(self.epsilon, "epsilon of the budget"))
        object.__setattr__(self, "delta", check_delta(self.delta))
        require(isinstance(self.adjacency, Adjacency), "adjacency of the budget", self.adjacency, "an Adjacency")
        require(isinstance(self.trust, Trust), "trust of the budget", self.trust, "a Trust")


def node_budget(node_config: Mapping[str, Any]) -> Budget | None:
    """The node's own cap, or None; it is named in full or not at all, and needs a ledger file to be a cap."""
    given = [key for key in NODE_KEYS if key in node_config]
    if not given:
        return None
    for key in NODE_KEYS:
        if key not in node_config:
            raise InvalidParameter(f"node config must have the key {key} beside {given[0]}, and it is missing.")
    if "quietbit.ledger" not in node_config:
        raise InvalidParameter(
            "node config must have the key quietbit.ledger beside quietbit.epsilon: without a file, a new run or a "
            "restart would start from nothing."
        )
    adjacency = read_adjacency(node_config["quietbit.adjacency"], "quietbit.adjacency of the node")
    trust = read_trust(node_config.get("quietbit.trust", Trust.LOCAL.value), "quietbit.trust of the node")
    return Budget(node_config["quietbit.epsilon"], node_config["quietbit.delta"], adjacency, "this node", trust)


def read_adjacency(word: Any, name: str) -> Adjacency:
    """The adjacency of that name; any other word is refused."""
    known = {member.value: member for member in Adjacency}
    require(word in known, name, word, "one of " + ", ".join(known))
    return known[word]


def read_trust(word: Any, name: str) -> Trust:
    """The trust of that name: local, or secure aggregation; any other word is refused."""
    known = {member.value: member for member in (Trust.LOCAL, Trust.SECURE_AGGREGATION)}
    require(word in known, name, word, "one of " + ", ".join(known))
    return known[word]
