"""Which gate answers on a node: its owner's, or that of a simulation's rules.

Idea     the node config is the owner's, the run config and the app are the run's: only the first
         can name a policy (`quietbit.policy`) or the socket of a gatekeeper
         (`quietbit.gatekeeper`). Without one nothing is released, unless the engine itself runs a
         simulation and the app names its rules.

An engine's state carries the sealed secrets of a sum (`node.stores`), the head of the ledger, so
that one that went back in mid-run is refused, and a simulation's ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, final

from attrs import frozen

from quietbit.errors import InvalidParameter
from quietbit.federation.messages import MODEL, RECORD, SUM
from quietbit.node.gate import LocalGate
from quietbit.node.gatekeeper import RemoteGate
from quietbit.node.ledger import FileLedger, StateLedger
from quietbit.node.policy import Policy, PolicyError, Simulation
from quietbit.node.seam import Gate
from quietbit.node.stores import ModelFolder, Vault, key_file, simulation_key

__all__ = ["GATEKEEPER", "NODE_KEYS", "OURS", "gate_for", "owner_keys"]

OURS = "quietbit"
POLICY = "quietbit.policy"
GATEKEEPER = "quietbit.gatekeeper"
NODE_KEYS = (POLICY, GATEKEEPER)
MakeRecord = Callable[[dict[str, Any]], Any]


def gate_for(
    node_config: Mapping[str, Any],
    state: MutableMapping[str, Any],
    make: MakeRecord,
    simulation: Simulation | None,
) -> Gate:
    """Return the owner's gate or that of a simulation's rules; refuse where there is neither.

    ``make`` builds a record of the engine's ``state``.
    """
    keys = owner_keys(node_config)
    if keys:
        names_one = len(keys) == 1 and keys[0] in NODE_KEYS
        if not names_one or not isinstance(node_config[keys[0]], str):
            raise PolicyError(
                "node config must have exactly one key of quietbit, "
                f"{' or '.join(NODE_KEYS)}, whose value is an absolute path (other settings belong "
                f"into the policy), got the keys {', '.join(keys)}."
            )
    if GATEKEEPER in node_config:
        return RemoteGate(node_config[GATEKEEPER])
    values = _StateRecord(state, RECORD, make)
    sealed = _StateRecord(state, SUM, make)
    if POLICY in node_config:
        policy = Policy.load(node_config[POLICY])
        secrets = Vault(sealed, lambda: key_file(f"{policy.ledger}.key"))
        folder = None
        if policy.models is not None:
            folder = ModelFolder(Path(policy.models).expanduser())
        ledger = FileLedger(policy.ledger, policy.counter, values)
        return LocalGate(policy, ledger, secrets, folder)
    if simulation is None:
        raise InvalidParameter(
            "This node has no policy, and releases nothing without one: its owner makes it with "
            "`quietbit node init` and names it as quietbit.policy (or quietbit.gatekeeper, with "
            "`quietbit node serve`) in Flower's node config, or in the properties of NVFlare's "
            "privacy.json."
        )
    secrets = Vault(sealed, simulation_key)
    return LocalGate(simulation, StateLedger(values), secrets, _StateRecord(state, MODEL, make))


def owner_keys(node_config: Mapping[str, Any]) -> list[str]:
    """Return the keys that are quietbit's; there are none where a node has no owner."""
    return [key for key in node_config if key.lower().startswith(OURS)]


@final
@frozen(eq=False)
class _StateRecord(MutableMapping[str, Any]):
    """One record of the engine's state as a mapping; it is there while it holds something."""

    state: MutableMapping[str, Any]
    name: str
    make: MakeRecord

    def __getitem__(self, key: str) -> Any:
        return (self.state.get(self.name) or {})[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def update(self, values: Mapping[str, Any]) -> None:  # type: ignore[override]
        self.state[self.name] = self.make({**self.state.get(self.name, {}), **values})

    def __delitem__(self, key: str) -> None:
        rest = dict(self.state.get(self.name) or {})
        del rest[key]
        if rest:
            self.state[self.name] = self.make(rest)
        else:
            del self.state[self.name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.state.get(self.name) or {}))

    def __len__(self) -> int:
        return len(self.state.get(self.name) or {})
