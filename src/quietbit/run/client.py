"""One client turn: which gate answers, a request accepted and noted, then exactly one release.

Idea     the request is compared with the model that came and accepted (`quietbit.node.release`),
         and the moment of the answer is fixed before the app begins (`quietbit.node.answer_time`).
         Whatever the app answers becomes one release: of the zero update, or of no cell, where
         nothing can be read from it.

The node config is the owner's, the run config and the app are the run's: only the first can name a
policy (`quietbit.policy`) or the socket of a gatekeeper (`quietbit.gatekeeper`). Without one
nothing is released, unless the engine itself runs a simulation and the app names its rules. An
engine's state carries the sealed secrets of a sum (`node.stores`), the head of the ledger, so that
one that went back in mid-run is refused, and a simulation's ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast, final

import numpy as np
from attrs import field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, require
from quietbit.mechanism.abilities import steps_of
from quietbit.mechanism.registry import identity_of
from quietbit.node.answer_time import AnswerTime
from quietbit.node.gatekeeper import AcceptedRequest, Gate, RemoteGate
from quietbit.node.ledger import FileLedger, StateLedger, WatchedLedger
from quietbit.node.policy import ANSWERING, Policy, PolicyError, Simulation
from quietbit.node.refusal import Reason, Refusal, refusal_of
from quietbit.node.release import LocalGate
from quietbit.node.request import ProposedMechanism, Request
from quietbit.node.stores import ModelFolder, Vault, key_file, simulation_key
from quietbit.run.layout import ModelLayout
from quietbit.run.messages import MODEL, RECORD, SUM
from quietbit.run.part import Part
from quietbit.run.parts.evaluation import Evaluation
from quietbit.run.parts.subspace import Basis, ClientCoordinates
from quietbit.run.parts.weights import Weighting
from quietbit.run.plan import Plan
from quietbit.target import Unit

__all__ = ["Turn", "client_parts", "gate_for", "own_keys", "plan_of", "refusal"]

LOGGER = logging.getLogger(__name__)
PARTS: tuple[Part, ...] = (Weighting(),)  # that have a say before a request is accepted
OURS = "quietbit"
POLICY, GATEKEEPER = NODE_KEYS = ("quietbit.policy", "quietbit.gatekeeper")
MakeRecord = Callable[[dict[str, Any]], Any]
Result = TypeVar("Result")
_ledger = lru_cache(maxsize=8)(FileLedger)  # of which a process reads each line once
_plan = lru_cache(maxsize=32)(
    lambda items, kinds: Plan.from_run_config(dict(items))
)  # by values and their types


@final
@frozen(eq=False)
class Turn:
    """An accepted request: which numbers the owner lets out, when the answer leaves, and its one release."""

    names: tuple[str, ...]
    moment: AnswerTime
    accepted: AcceptedRequest
    layout: ModelLayout = field(default=ModelLayout((), ()))  # of the model to update, and
    received: list[FloatVector] = field(factory=list)  # its arrays as they came
    of_samples: bool = False
    parts: tuple[Part, ...] = ()  # that change an update before it is released
    zero: bytes | None = None  # the release that leaves where no other is made in time

    @classmethod
    def accept(
        cls,
        gate: Gate,
        request: Request,
        arrays: Mapping[str, Any],
        plan: Plan,
        *,
        parts: tuple[Part, ...] = (),
        with_zero: bool = False,
    ) -> Turn:
        """Refuse a model that does not fit the request, before anything is noted; then accept and note it.

        ``with_zero`` makes the zero release beforehand. The clock of the answer starts when all of
        this is done: what compiles or is priced for the first time costs the app no time.
        """
        layout = ModelLayout.of(arrays, plan)
        dimension = layout.dimension
        for part in parts:
            dimension = part.dimension(dimension)
        if dimension != request.dimension:
            rule = f"{request.dimension}, the server's mechanism's"
            raise InvalidParameter.of("number of learnt parameters", rule, dimension)
        received = [
            np.array(part) for part in layout.values(arrays)
        ]  # an app may train in the arrays that came
        offer = ProposedMechanism.read(request.mechanism, gate.families)
        require(
            offer.family not in ANSWERING,
            "mechanism of an update",
            offer.family,
            "another: answers have a cap",
        )
        left_out = (steps_of(offer.mechanism) - 1) * request.dimension
        names = gate.metrics
        seconds = gate.answer_seconds
        AnswerTime.check(seconds, left_out)
        for part in PARTS:
            if getattr(plan, part.section) is not None:  # a section that is absent is off
                part.accept(request, plan, names)
        accepted = gate.accept(request)
        zero = accepted.zero() if with_zero else None
        moment = AnswerTime(seconds, left_out)
        of_samples = plan.unit is Unit.SAMPLE
        return cls(names, moment, accepted, layout, received, of_samples, parts, zero)

    @classmethod
    def evaluate(
        cls, gate: Gate, request: Request, asked: Evaluation, *, with_zero: bool = False
    ) -> Turn:
        """Refuse a mechanism that is not the plan's own for evaluations; then accept and note the request."""
        found = ProposedMechanism.read(request.mechanism, gate.families).mechanism
        same = identity_of(found) == identity_of(asked.mechanism)
        require(
            same,
            "mechanism of the evaluation",
            type(found).__name__,
            "the one of quietbit.evaluate",
        )
        names = gate.metrics
        seconds = gate.answer_seconds
        accepted = gate.accept(request)
        zero = accepted.zero() if with_zero else None
        return cls(names, AnswerTime(seconds), accepted, zero=zero)

    def read(self, reader: Callable[[], Result], crashes: list[BaseException]) -> Result | None:
        """Return what ``reader`` gets from the app's answer; None where it cannot be read, which is a crash, too.

        The app's objects may do anything when they are looked at, and take any time: this belongs
        into the thread of the app. Where samples are protected the answer plays no part: the
        gradients were handed over (`run.batch`).
        """
        if self.of_samples or crashes:
            return None
        try:
            return cast(Result, self._projected(reader()))
        except BaseException as error:
            crashes.append(error)
            LOGGER.error(
                "quietbit: the app's answer is not what was asked for; zero is released",
                exc_info=error,
            )
            return None

    def _projected(self, update: Any) -> Any:
        """Return what the mechanism gets of an update, in one vector where a part changes it."""
        if not self.parts:
            return update
        vector = np.concatenate(update)
        for part in self.parts:
            vector = part.project(vector)
        return vector


def client_parts(plan: Plan, basis: Basis | None = None) -> tuple[Part, ...]:
    """Return the parts that change an update before it is released; made for one request."""
    if plan.subspace is None:  # a section that is absent is off
        return ()
    return (ClientCoordinates(plan, plan.subspace, basis),)


def plan_of(config: Mapping[str, Any]) -> Plan:
    """Return the plan that a run config or a job's settings hold; the same ones are read once."""
    ours = tuple((key, value) for key, value in config.items() if key.lower().startswith(OURS))
    try:
        return _plan(ours, tuple(type(value) for _, value in ours))
    except TypeError:  # values that cannot be remembered, and that no plan has
        return Plan.from_run_config(dict(ours))


def refusal(
    error: Exception,
    *,
    accepted: bool = False,
    gate: Gate | None = None,
    request: Request | None = None,
) -> tuple[str, bool]:
    """Return why there is no release, as a server may read it, and whether one was noted: an ``accepted`` one is.

    The owner's log has the reason in full; with ``gate``, so have the node's decisions.
    """
    if accepted:  # no decision: what happens from here on may depend on data, and is in no count
        LOGGER.error("quietbit: a release that was noted cannot be made", exc_info=error)
        return Refusal(Reason.NOTED).to_text(), True
    public = refusal_of(error)
    if isinstance(gate, LocalGate):
        gate.note_refusal(request, error)
    elif not getattr(error, "is_noted_for_owner", False):
        text = getattr(error, "for_owner", f"{type(error).__name__}: {error}")
        LOGGER.warning("quietbit: %s. %s", public.reason.value, text)
    return public.to_text(), public.reason.counts


def gate_for(
    node_config: Mapping[str, Any],
    state: MutableMapping[str, Any],
    make: MakeRecord,
    simulation: Simulation | None,
) -> Gate:
    """Return the owner's gate, or that of a simulation's rules, or refuse; ``make`` builds a record of the state."""
    own = own_keys(node_config)
    if own and not (len(own) == 1 and own[0] in NODE_KEYS and isinstance(node_config[own[0]], str)):
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
        return LocalGate(
            policy, WatchedLedger(_ledger(policy.ledger, policy.counter), values), secrets, folder
        )
    if simulation is None:
        raise InvalidParameter(
            "This node has no policy, and releases nothing without one: its owner makes it with `quietbit node init` "
            "and names it as quietbit.policy (or quietbit.gatekeeper, with `quietbit node serve`) in Flower's node "
            "config, or in the properties of NVFlare's privacy.json."
        )
    return LocalGate(
        simulation,
        StateLedger(values),
        Vault(sealed, simulation_key),
        _StateRecord(state, MODEL, make),
    )


def own_keys(node_config: Mapping[str, Any]) -> list[str]:
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
