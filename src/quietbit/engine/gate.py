"""Which keeper a node has: the gatekeeper or the policy that its node config names, or a simulation's rules.

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

from quietbit.engine.messages import MODEL, RECORD, SUM
from quietbit.errors import InvalidParameter
from quietbit.node.gatekeeper import RemoteGate
from quietbit.node.ledger import Change, FileLedger, LedgerError, LedgerState, StateLedger, mark
from quietbit.node.models import ModelFolder
from quietbit.node.policy import Policy, PolicyError, Simulation
from quietbit.node.release import Gate, LocalGate
from quietbit.node.vault import Vault, key_file, simulation_key

__all__ = ["gate_for", "own_keys"]

POLICY, GATEKEEPER = NODE_KEYS = ("quietbit.policy", "quietbit.gatekeeper")
MakeRecord = Callable[[dict[str, Any]], Any]


def gate_for(
    node_config: Mapping[str, Any], state: MutableMapping[str, Any], make: MakeRecord, simulation: Simulation | None
) -> Gate:
    """The node's keeper; ``make`` builds a record of the state. Refused where there is none.

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
    values = _StateRecord(state, RECORD, make)
    sealed = _StateBytes(_StateRecord(state, SUM, make))
    if POLICY in node_config:
        policy = Policy.load(node_config[POLICY])
        secrets = Vault(sealed, lambda: key_file(f"{policy.ledger}.key"))
        folder = None if policy.models is None else ModelFolder(Path(policy.models).expanduser())
        return LocalGate(policy, _Watched(_ledger(policy.ledger, policy.counter), values), secrets, folder)
    if simulation is None:
        raise InvalidParameter(
            "This node has no policy, and releases nothing without one: its owner makes it with `quietbit node init` "
            "and names it as quietbit.policy (or quietbit.gatekeeper, with `quietbit node serve`) in Flower's node "
            "config, or in the properties of NVFlare's privacy.json."
        )
    models = _StateBytes(_StateRecord(state, MODEL, make))
    return LocalGate(simulation, StateLedger(values), Vault(sealed, simulation_key), models)


def own_keys(node_config: Mapping[str, Any]) -> list[str]:
    """Return the keys that are quietbit's; there are none where a node has no owner."""
    return [key for key in node_config if key.lower().startswith("quietbit")]


@lru_cache(maxsize=8)
def _ledger(path: str, counter: str) -> FileLedger:
    """The ledger of a policy, of which a process reads each line once."""
    return FileLedger(path, counter)


@final
class _StateRecord(MutableMapping[str, Any]):
    """One record of Flower's state as a mapping; it is there while it holds something."""

    def __init__(self, state: MutableMapping[str, Any], name: str, make: MakeRecord) -> None:
        self._state, self._name, self._make = state, name, make

    def _values(self) -> dict[str, Any]:
        return dict(self._state[self._name]) if self._name in self._state else {}

    def __getitem__(self, key: str) -> Any:
        return self._values()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def update(self, values: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Set several at once."""
        self._state[self._name] = self._make({**self._values(), **values})

    def __delitem__(self, key: str) -> None:
        rest = self._values()
        del rest[key]
        if rest:
            self._state[self._name] = self._make(rest)
        else:
            del self._state[self._name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())


@final
class _StateBytes(MutableMapping[str, bytes]):
    """Bytes by name in a record of the state: sealed secrets of masked sums, models of simulated nodes."""

    def __init__(self, record: _StateRecord) -> None:
        self._record = record

    def __getitem__(self, run: str) -> bytes:
        found = self._record[run]
        return found if isinstance(found, bytes) else b""

    def __setitem__(self, run: str, value: bytes) -> None:
        self._record[run] = value

    def __delitem__(self, run: str) -> None:
        del self._record[run]

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)


@final
class _Watched:
    """A ledger whose head Flower's state remembers."""

    def __init__(self, ledger: FileLedger, record: _StateRecord) -> None:
        self._ledger, self._record = ledger, record

    def read(self) -> LedgerState:
        """Return the totals; refused where the ledger went back."""
        return self._checked(self._ledger.read())

    def update(self, change: Change) -> LedgerState:
        """Add lines, and remember the last."""
        books = self._ledger.update(lambda books: change(self._checked(books)))
        self._record.update(mark(books))
        return books

    def _checked(self, books: LedgerState) -> LedgerState:
        if books.behind(dict(self._record)):
            raise LedgerError("The ledger is behind what this run has noted in it.")
        return books
