"""One client turn: a request read, accepted and noted, then exactly one release.

Idea     a request is read and checked by the parts of the plan, in their order, and accepted by the
         gate (`quietbit.node.gate`); the moment of the answer is fixed before the app begins
         (`quietbit.node.guard`). Whatever the app answers becomes one release: of the zero
         update, or of no cell, where nothing can be read from it. An adapter of an engine hands
         over what arrived, calls the app and carries what leaves.
Gate     the node config is the owner's, the run config and the app are the run's: only the first
         can name a policy (`quietbit.policy`) or the socket of a gatekeeper
         (`quietbit.gatekeeper`). Without one nothing is released, unless the engine itself runs a
         simulation and the app names its rules. An engine's state carries the sealed secrets of a
         sum (`node.stores`), the head of the ledger, so that one that went back in mid-run is
         refused, and a simulation's ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import numpy as np
from attrs import frozen

from quietbit.errors import InvalidParameter, one_line
from quietbit.federation.messages import (
    MODEL,
    RECORD,
    SUM,
    NodeName,
    UnusedBatch,
    asked_fields,
    finite,
)
from quietbit.federation.part import AppAnswer, Arrival, Part
from quietbit.federation.parts.evaluation import Evaluate
from quietbit.federation.parts.update import Updating
from quietbit.federation.plan import Plan, named_mechanisms
from quietbit.federation.terms import Terms
from quietbit.mechanism.registry import AUTO
from quietbit.node.gate import LocalGate
from quietbit.node.gatekeeper import AcceptedRequest, Gate, RemoteGate
from quietbit.node.guard import AnswerTime
from quietbit.node.ledger import FileLedger, StateLedger
from quietbit.node.policy import Policy, PolicyError, Simulation
from quietbit.node.refusal import NotAllowed, Reason, Refusal, refusal_of
from quietbit.node.request import Request, Step
from quietbit.node.stores import ModelFolder, Vault, key_file, simulation_key

__all__ = [
    "GATEKEEPER",
    "NODE_KEYS",
    "OURS",
    "OpenRequest",
    "Subject",
    "Turn",
    "evaluates",
    "gate_for",
    "named_numbers",
    "owner_keys",
    "plan_of",
    "read_request",
    "refusal",
    "served",
    "serving",
    "shared",
]

LOGGER = logging.getLogger(__name__)
EVALUATE = "quietbit.evaluate"


class Subject(Enum):
    """What a request asks for; its value is the section of the round (`run.part.Scope`)."""

    UPDATE = ""
    EVALUATION = Evaluate.title

    def parts(self, plan: Plan) -> tuple[Part, ...]:
        """Make the parts of one turn: those of the plan's sections, and the update itself."""
        parts = [section.client(plan, self.value) for section in plan.sections_of_clients]
        if self is Subject.UPDATE:
            parts.append(Updating(plan))
        elif plan.evaluate is None:
            raise InvalidParameter(
                "This run asks for no evaluations: set quietbit.evaluate to have them answered."
            )
        return tuple(part for part in parts if part is not None)


@final
@frozen(eq=False)
class OpenRequest:
    """A request that was read and is not noted yet."""

    gate: Gate
    request: Request
    arrival: Arrival
    parts: tuple[Part, ...]

    @classmethod
    def read(
        cls, gate: Gate, plan: Plan, subject: Subject, arrival: Arrival, name: NodeName
    ) -> OpenRequest:
        """Read the request of a message; refuse a message without one."""
        parts = subject.parts(plan)
        arrival.parts = parts
        return cls(gate, read_request(arrival.records, plan, parts, name), arrival, parts)

    def step(self) -> bytes | None:
        """Return the answer where none of the app is needed; None where a release is asked for."""
        part = self.request.sum
        if part is None or part.step in (Step.VECTOR, Step.ALONE):
            return None
        return self.gate.step(self.request)

    def check(self) -> None:
        """Let every part refuse the request or complete what arrived; nothing is noted."""
        gate = self.gate
        request = self.request
        self.arrival.proposed = gate.check(request)
        self.arrival.store = gate.models
        self.arrival.metrics = gate.rules.metrics
        for part in self.parts:
            part.accept(request, self.arrival)

    def accept(self, *, with_zero: bool = False) -> Turn:
        """Accept and note the request: from here on it has one release.

        ``with_zero`` makes the zero release beforehand. The clock of the answer starts when all of
        this is done: what compiles or is priced for the first time costs the app no time.
        """
        gate = self.gate
        request = self.request
        left_to_draw = (self.arrival.proposed.steps - 1) * request.dimension
        names = gate.rules.metrics
        seconds = gate.rules.response_seconds
        if left_to_draw:
            AnswerTime.check(seconds, left_to_draw)
        accepted = gate.accept(request)
        zero = None
        if with_zero:
            zero = accepted.zero()
        moment = AnswerTime(seconds, left_to_draw)
        return Turn(names, moment, accepted, self.parts, request.dimension, zero)


@final
@frozen(eq=False)
class Turn:
    """An accepted request: which numbers may leave, when the answer does, and its one release."""

    names: tuple[str, ...]
    moment: AnswerTime
    accepted: AcceptedRequest
    parts: tuple[Part, ...]
    dimension: int
    zero: bytes | None = None  # the release that leaves where no other is made in time

    def read(self, answer: Callable[[], AppAnswer], crashes: list[BaseException]) -> Any:
        """Return what is released of the app's answer; None, and a crash, if it cannot be read.

        The app's objects may do anything when they are read, and take any time: this belongs into
        the thread of the app.
        """
        if crashes:
            return None
        try:
            for part in self.parts:
                if part.handed_over(self.accepted.drawn, self.accepted.added):
                    return None
            app = answer()
            update = None
            for part in reversed(self.parts):
                update = part.answer(app, update)
            _check_finite(update)
            return update
        except UnusedBatch as error:
            crashes.append(error)
            LOGGER.error("quietbit: the app %s; noise alone is released.", error.fault.sentence)
            return None
        except BaseException as error:
            crashes.append(error)
            LOGGER.error(
                "quietbit: the app's answer is not what was asked for; zero is released",
                exc_info=error,
            )
            return None

    def release(self, update: Any) -> bytes:
        """Return the one release: the zero one where no other can be made, or else raise."""
        try:
            return self.accepted.release(update)
        except Exception as error:
            if self.zero is None:
                raise
            LOGGER.error("quietbit: no release but that of zero can be made.", exc_info=error)
            return self.zero


def _check_finite(update: Any) -> None:
    """Refuse an update with a NaN or an infinity, of which zero is released."""
    for values in update if isinstance(update, list) else [update]:
        if isinstance(values, np.ndarray) and not np.isfinite(values).all():
            raise InvalidParameter("The update of the app holds a NaN or an infinity.")


def read_request(
    records: Mapping[str, Any], terms: Terms, parts: Iterable[Part], name: NodeName
) -> Request:
    """Read a message's request, with the fields that parts read; refuse a message without one."""
    asked = asked_fields(records)
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


def plan_of(config: Mapping[str, Any], allowed: tuple[str, ...] | None = None) -> Plan:
    """Return the plan that a run config or a job's settings hold; the same ones are read once.

    With ``allowed``, names of families, any other family is refused before it is imported.
    """
    ours = tuple((key, value) for key, value in config.items() if key.lower().startswith(OURS))
    try:
        return _plan(ours, allowed, tuple(type(value) for _, value in ours))
    except TypeError:  # values that cannot be remembered, and that no plan has
        return _read_plan(dict(ours), allowed)


@lru_cache(maxsize=32)
def _plan(
    items: tuple[tuple[str, Any], ...], allowed: tuple[str, ...] | None, kinds: tuple[type, ...]
) -> Plan:
    """Read a plan; ``kinds`` keeps equal values of several types apart, as 1 and True."""
    return _read_plan(dict(items), allowed)


def _read_plan(config: Mapping[str, Any], allowed: tuple[str, ...] | None) -> Plan:
    """Read a plan, unless it names a family that is not allowed."""
    if allowed is not None:
        for name in named_mechanisms(config):
            if name not in (*allowed, AUTO):
                raise NotAllowed(f"The run's mechanism is {str(name)[:40]!r}.", rule="mechanisms")
    return Plan.from_run_config(config)


def evaluates(config: Mapping[str, Any]) -> bool:
    """Return whether a run asks for private answers about its model; nothing else is read."""
    is_named = any(key.startswith(EVALUATE) for key in config)
    return is_named and config.get(EVALUATE) is not False


def named_numbers(
    tables: Callable[[], Iterable[Mapping[str, Any]]], names: tuple[str, ...]
) -> dict[str, float]:
    """Return one number for each of the names, 0 where the app has none; drop everything else.

    ``tables`` reads the app's metrics, which may do anything when they are read.
    """
    numbers: dict[str, float] = {}
    dropped: set[str] = set()
    try:
        for table in tables():
            dropped |= {str(name) for name in table if name not in names}
            for name in names:
                if name in table and name not in numbers:
                    _put_number(numbers, name, table)
        if dropped:
            listed = one_line(", ".join(sorted(dropped)))
            LOGGER.info("quietbit: kept on this node, as they should be: %s", listed)
    except BaseException as error:
        LOGGER.error("quietbit: the app's metrics cannot be read.", exc_info=error)
    return {name: numbers.get(name, 0.0) for name in names}


def _put_number(numbers: dict[str, float], name: str, table: Mapping[str, Any]) -> None:
    """Take over a number that is finite; whatever else an app has there leaves the others alone."""
    try:
        number = finite(float(table[name]))
    except BaseException as error:
        LOGGER.error("quietbit: the app's metric %s is not a number.", name, exc_info=error)
        return
    if number is not None:
        numbers[name] = number


def refusal(error: Exception, gate: Gate | None = None, *, accepted: bool = False) -> Refusal:
    """Return why there is no release, as a server may read it; an ``accepted`` one counts.

    The owner's log has the reason in full; with ``gate``, so has its log of refusals.
    """
    if accepted:  # no decision: what happens from here on may depend on data, and is in no count
        LOGGER.error("quietbit: a release that was noted cannot be made", exc_info=error)
        return Refusal(Reason.NOTED)
    public = refusal_of(error)
    if isinstance(gate, LocalGate):
        gate.note_refusal(None, error)
    elif not getattr(error, "is_noted_for_owner", False):
        text = getattr(error, "for_owner", f"{type(error).__name__}: {error}")
        LOGGER.warning("quietbit: %s. %s", public.reason.value, one_line(text))
    return public


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


_ACCEPTED: ContextVar[AcceptedRequest | None] = ContextVar("quietbit_accepted", default=None)
# For apps in threads and processes of their own: at most one request, with its dimension.
_SHARED: list[tuple[AcceptedRequest, int]] = []


@contextmanager
def serving(accepted: AcceptedRequest, *, dimension: int | None = None) -> Iterator[None]:
    """Let the app that is called inside find its batch.

    With the ``dimension``, it is found in all threads and child processes of this process.
    """
    token = _ACCEPTED.set(accepted)
    shared = []
    if dimension is not None:
        shared.append((accepted, dimension))
    _SHARED[:] = shared
    try:
        yield
    finally:
        _ACCEPTED.reset(token)
        if shared == _SHARED:  # and not that of a later round, where this one's app was abandoned
            _SHARED.clear()


def shared() -> tuple[AcceptedRequest, int] | None:
    """Return the request that all threads and child processes find, with its dimension."""
    return next(iter(_SHARED), None)


def served() -> AcceptedRequest | None:
    """Return the request that this app is called for; None outside a round."""
    accepted = _ACCEPTED.get()
    if accepted is None and _SHARED:
        accepted = _SHARED[0][0]
    return accepted
