"""Which gate a node has: the gatekeeper or the policy that its node config names, or a simulation's rules.

Idea     the node config is the owner's, the run config and the app are the run's: only the first can name a policy.
         Without one nothing is released, unless the engine itself runs a simulation and the app names its rules.

| node config | meaning |
|---|---|
| `quietbit.policy` | the absolute path of the owner's policy: this process keeps the ledger itself |
| `quietbit.gatekeeper` | the absolute path of the socket of `quietbit node serve`, which keeps it outside the app |

Secrets of masked sums wait in Flower's state between steps, sealed with a key beside the ledger (`node.vault`). The
state also carries the head of the ledger through a run: a ledger that went back in mid-run is refused. Of a simulation
it carries the whole ledger, which is gone with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import Any, final

from attrs import frozen

from quietbit.engine.messages import MODEL, RECORD, SUM
from quietbit.errors import InvalidParameter
from quietbit.node.gatekeeper import Gate, RemoteGate
from quietbit.node.ledger import FileLedger, StateLedger, WatchedLedger
from quietbit.node.models import ModelFolder
from quietbit.node.policy import Policy, PolicyError, Simulation
from quietbit.node.release import LocalGate
from quietbit.node.vault import Vault, key_file, simulation_key

__all__ = ["gate_for", "own_keys"]

POLICY, GATEKEEPER = NODE_KEYS = ("quietbit.policy", "quietbit.gatekeeper")
MakeRecord = Callable[[dict[str, Any]], Any]


def gate_for(
    node_config: Mapping[str, Any], state: MutableMapping[str, Any], make: MakeRecord, simulation: Simulation | None
) -> Gate:
    """Return the node's gate; ``make`` builds a record of the state. Refused where there is none.

    ``simulation`` are the app's rules where the engine has made sure that this is a simulation, and None elsewhere.
    """
    own = own_keys(node_config)
    for key in own:
        if key not in NODE_KEYS or len(own) > 1 or not isinstance(node_config[key], str):
            raise PolicyError(
                f"node config must name one of {' and '.join(NODE_KEYS)}, an absolute path, and nothing else of "
                f"quietbit's (that is in the policy), got {', '.join(own)}."
            )
    if GATEKEEPER in node_config:
        return RemoteGate(node_config[GATEKEEPER])
    values, sealed = _StateRecord(state, RECORD, make), _StateRecord(state, SUM, make)
    if POLICY in node_config:
        policy = Policy.load(node_config[POLICY])
        secrets = Vault(sealed, lambda: key_file(f"{policy.ledger}.key"))
        folder = None if policy.models is None else ModelFolder(Path(policy.models).expanduser())
        return LocalGate(policy, WatchedLedger(_ledger(policy.ledger, policy.counter), values), secrets, folder)
    if simulation is None:
        raise InvalidParameter(
            "This node has no policy, and releases nothing without one: its owner makes it with `quietbit node init` "
            "and names it as quietbit.policy (or quietbit.gatekeeper, with `quietbit node serve`) in Flower's node "
            "config, or in the properties of NVFlare's privacy.json."
        )
    models = _StateRecord(state, MODEL, make)
    return LocalGate(simulation, StateLedger(values), Vault(sealed, simulation_key), models)


def own_keys(node_config: Mapping[str, Any]) -> list[str]:
    """Return the keys that are quietbit's; there are none where a node has no owner."""
    return [key for key in node_config if key.lower().startswith("quietbit")]


@lru_cache(maxsize=8)
def _ledger(path: str, counter: str) -> FileLedger:
    """Return the ledger of a policy, of which a process reads each line once."""
    return FileLedger(path, counter)


@final
@frozen(eq=False)
class _StateRecord(MutableMapping[str, Any]):
    """One record of Flower's state as a mapping; it is there while it holds something."""

    state: MutableMapping[str, Any]
    name: str
    make: MakeRecord

    def __getitem__(self, key: str) -> Any:
        return (self.state.get(self.name) or {})[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def update(self, values: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Set several at once."""
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
