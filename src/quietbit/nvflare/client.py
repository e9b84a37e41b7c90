"""The client's half: a filter that lets one private release out and nothing else.

Idea     the same filter stands at both ends of a task. On its way in, the server's request is
         checked against the owner's policy and noted in the ledger, before the app is called; on
         its way out, whatever the app answered becomes one release (`federation.client`), in a
         reply that is written anew: nothing of the app's own is left in it. A request about the
         model (`quietbit.evaluate`), beside an update's or by itself, is answered with one cell of
         randomised response. Tasks without a request are not run, unless the policy names numbers
         that may leave. What passes here and is not known raises: NVFlare then sends an error
         without content, where its own base class of filters would pass data on. The other ways out
         are shut by `patches.py`.

Who decides: `properties` of the scope in the site's `privacy.json`, which jobs cannot write, name
the owner's policy or gatekeeper. Without one nothing is released, but in NVFlare's simulator and
where the job says ``simulation``.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, final
from weakref import WeakKeyDictionary

from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException, Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.app_common.logging.constants import is_log_streaming_allowed
from nvflare.private.fed.simulator.simulator_app_runner import SimulatorClientRunManager
from nvflare.private.privacy_manager import Scope

from quietbit.errors import InvalidParameter, require
from quietbit.federation.client import (
    OpenRequest,
    Subject,
    gate_for,
    owner_keys,
    plan_of,
    refusal,
)
from quietbit.federation.layout import named_arrays
from quietbit.federation.messages import ABOUT, ENCLOSED, MODEL, RECORD, SPEED, UPDATE, NodeName
from quietbit.federation.part import Arrival
from quietbit.federation.parts.replay import APP
from quietbit.federation.plan import Plan
from quietbit.federation.terms import PREFIX
from quietbit.node.gate import LocalGate
from quietbit.node.gatekeeper import Gate
from quietbit.node.guard import AnswerTime
from quietbit.node.policy import PolicyError, Simulation
from quietbit.nvflare.patches import shut
from quietbit.nvflare.task import DECIDED, TURN, Task, as_kind, has_filter, kind_of, task_of
from quietbit.target import Trust

__all__ = ["TABLE", "PrivateUplink", "local_settings", "node_name", "number_of"]

LOGGER = logging.getLogger(__name__)
TOO = "PrivateUplink must stand among the {} filters of a task, too, and nothing is sent."
LATE = (
    "the run began before the other ways out were shut, and nothing is sent: PrivateUplink must "
    "stand among the components of privacy.json, too, or among the job's own filters."
)
SUBJECTS = {UPDATE: Subject.UPDATE, ABOUT: Subject.EVALUATION}
BESIDE = (MODEL, SPEED, ENCLOSED)  # what parts need beside a request for an update
KNOWN = {"settings", UPDATE, ABOUT, *BESIDE}
TABLE = PREFIX.removesuffix(".")
STARTS = (EventType.ABOUT_TO_START_RUN, EventType.START_RUN)
# By engine: what a gate remembers of a run, and the gate of the policy that was in force last.
_STATES: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
_GATES: WeakKeyDictionary[Any, LocalGate] = WeakKeyDictionary()


def number_of(name: str) -> int:
    """Return the number of a job or client in ledgers and frames: 64 bits of its name's SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:8], "little")


def local_settings(values: Mapping[str, Any], allowed: tuple[str, ...] | None = None) -> Plan:
    """Return the settings of a job; refuse those that count on anybody but the client itself.

    With ``allowed``, names of families, any other family is refused before it is imported.
    """
    table = values.get(TABLE)  # NVFlare's servers take a dot in a key for a table in a table
    if isinstance(table, Mapping):
        values = {f"{PREFIX}{key}": value for key, value in table.items()}
    plan = plan_of(values, allowed)
    require(
        plan.trust is Trust.LOCAL,
        "quietbit.trust",
        plan.trust.value,
        f"{Trust.LOCAL.value}: over NVFlare the server sees every release",
    )
    require(
        plan.replay is None or plan.replay.start != APP,
        "quietbit.replay.start",
        APP,
        "server: over NVFlare the first model comes in full",
    )
    require(
        plan.stragglers is None,
        "quietbit.stragglers",
        True,
        "left out: over NVFlare the controller says when a round ends, and late results are in "
        "no mean",
    )
    return plan


@final
class PrivateUplink(Filter):  # type: ignore[misc]
    """A filter for data and results of a client's tasks, set by `add_privacy` or `privacy.json`.

    ``simulation`` is for NVFlare's simulator, where the job's own budget holds; on a site it means
    nothing. With a ``seed`` a simulation can be repeated, and protects nobody. ``metrics`` leave a
    simulation as they are.
    """

    def __init__(
        self,
        simulation: bool = False,
        seed: int | None = None,
        metrics: list[str] | None = None,
    ) -> None:
        """Refuse rules that do not fit together; NVFlare writes them into jobs by these names."""
        super().__init__()
        self.simulation = simulation
        self.seed = seed
        self.metrics = metrics
        require(isinstance(simulation, bool), "simulation", simulation, "true or false")
        rule = "left out unless simulation is true"
        require(simulation or seed is None, "seed", seed, rule)
        require(simulation or not metrics, "metrics", metrics, rule)
        self._rules: Simulation | None = None
        if simulation:
            self._rules = Simulation(seed=seed, metrics=tuple(metrics or ()))

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Shut the other ways out when a run starts; `process` raises where that did not happen."""
        if event_type in STARTS:
            try:
                shut(fl_ctx)
            except Exception as error:
                LOGGER.error(
                    "quietbit: this engine cannot be watched: nothing will be released.",
                    exc_info=error,
                )

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Decide about a task that comes in, answer for one that goes out, and raise otherwise."""
        chain = self.get_prop(FilterContextKey.CHAIN_TYPE)
        direction = fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION)
        if not shut(fl_ctx):
            raise ContentBlockedException(f"quietbit: {LATE}")
        task = task_of(fl_ctx)
        if (chain, direction) == (FilterChainType.TASK_DATA_CHAIN, FilterKey.IN):
            if task is None:
                self._take(shareable, fl_ctx)
            return shareable
        if (chain, direction) != (FilterChainType.TASK_RESULT_CHAIN, FilterKey.OUT):
            raise ContentBlockedException(
                f"quietbit: nothing is sent this way: {chain} going {direction}."
            )
        if task is None:
            raise ContentBlockedException(f"quietbit: {TOO.format('data')}")
        return task.answer(shareable)

    def _take(self, shareable: Any, fl_ctx: FLContext) -> None:
        """Decide about a task, and let the engine know before the app is called."""
        _check_way_out(fl_ctx)
        task = self._decide(shareable, fl_ctx)
        if not fl_ctx.set_prop(TURN, task, private=True, sticky=False):
            raise ContentBlockedException(
                "quietbit: what was decided about this task cannot be remembered."
            )
        fl_ctx.get_prop(DECIDED)(task)

    def _decide(self, shareable: Any, fl_ctx: FLContext) -> Task:
        """Accept and note a task, or decline it for a reason that tells nothing of the data."""
        heads = {
            ReservedHeaderKey.TASK_NAME: fl_ctx.get_prop(FLContextKey.TASK_NAME),
            ReservedHeaderKey.TASK_ID: fl_ctx.get_prop(FLContextKey.TASK_ID),
        }
        cookies = shareable.get_cookie_jar() if isinstance(shareable, Shareable) else None
        if cookies:
            heads[ReservedHeaderKey.COOKIE_JAR] = deepcopy(cookies)
        task = Task(heads)
        gate: Gate | None = None
        try:
            gate, task.shows = self._gate(fl_ctx)
            task.names = gate.rules.metrics
            record = shareable.get(RECORD)
            if record is None and task.names:
                task.moment = AnswerTime(gate.rules.response_seconds)
            else:
                self._accept(task, gate, record, shareable, fl_ctx)
            task.runs = True
        except Exception as error:
            task.refuse(UPDATE, refusal(error, gate))
        return task

    def _accept(
        self, task: Task, gate: Gate, record: Any, shareable: Shareable, fl_ctx: FLContext
    ) -> None:
        """Accept and note what is asked: an update, an answer about the model, or both.

        The first fixes the answer's moment. Where the second is refused, the first stands.
        """
        if not _is_request(record):
            raise InvalidParameter(
                "The server's task must carry quietbit's request, and does not: put "
                "PrivateReceiver among its filters."
            )
        plan = local_settings(record["settings"], gate.rules.mechanisms)
        name = node_name(fl_ctx)
        for key, subject in SUBJECTS.items():
            if key not in record:
                continue
            try:
                arrival = _arrival(record, key, shareable)
                opened = OpenRequest.read(gate, plan, subject, arrival, name)
                opened.check()
                if arrival.replayed:
                    _show_model(shareable, arrival)
                turn = opened.accept(with_zero=not task.shows)
            except Exception as error:
                if not task.turns:
                    raise
                task.refuse(key, refusal(error, gate))
                continue
            task.add(key, turn)

    def _gate(self, fl_ctx: FLContext) -> tuple[Gate, bool]:
        """Return this site's gate, and whether it is a simulated site that has no owner."""
        # The engine is asked, and not the context, which a component may have changed.
        simulated = isinstance(fl_ctx.get_engine(), SimulatorClientRunManager)
        if not simulated and is_log_streaming_allowed(fl_ctx):
            raise PolicyError(
                "allow_log_streaming must be false in local/resources.json, and is not: this site "
                "would stream to the server what its log says about the data."
            )
        owner = fl_ctx.get_prop(FLContextKey.SCOPE_PROPERTIES) or {}
        kind = type(owner).__name__
        require(isinstance(owner, Mapping), "properties of the scope", kind, "a dict")
        state = _STATES.setdefault(fl_ctx.get_engine(), {})
        rules = self._rules if simulated else None
        gate = gate_for(owner, state, dict, rules)
        if isinstance(gate, LocalGate):
            kept = _GATES.get(fl_ctx.get_engine())
            if kept is not None and kept.rules is gate.rules:
                gate = kept  # which has read the ledger before
            _GATES[fl_ctx.get_engine()] = gate
        return gate, simulated and not owner_keys(owner)


def _is_request(request: Any) -> bool:
    """Return whether a task's record has the fields of a request, and no others."""
    if not isinstance(request, Mapping) or not isinstance(request.get("settings"), Mapping):
        return False
    return set(request) <= KNOWN and (UPDATE in request or ABOUT in request)


def _check_way_out(fl_ctx: FLContext) -> None:
    """Refuse a task whose result no filter of ours would see."""
    table = fl_ctx.get_prop(FLContextKey.RUNNER).task_result_filters
    chain = Scope.TASK_RESULT_FILTERS_NAME
    if not has_filter(PrivateUplink, chain, table, FilterKey.OUT, fl_ctx):
        raise ContentBlockedException(f"quietbit: {TOO.format('result')}")


def node_name(fl_ctx: FLContext) -> NodeName:
    """Return how ledgers and frames call this client; its place among clients ends its name."""
    name = fl_ctx.get_identity_name()
    digits = re.search(r"(\d+)$", name)
    place = int(digits[1]) if digits else None
    return NodeName(number_of(fl_ctx.get_job_id()), number_of(name), place)


def _arrival(record: Mapping[str, Any], key: str, shareable: Shareable) -> Arrival:
    """Return what a task brings: one request, and beside that for an update the model."""
    records = {RECORD: record[key]}
    if key != UPDATE:
        return Arrival(records, {})
    dxo = from_shareable(shareable)
    is_model = dxo.data_kind == DataKind.WEIGHTS
    require(is_model, "kind of the server's data", dxo.data_kind, "weights")
    for name in BESIDE:
        if record.get(name) is not None:
            records[name] = record[name]
    return Arrival(records, named_arrays(dxo.data), kind_of(dxo.data))


def _show_model(shareable: Shareable, arrival: Arrival) -> None:
    """Let the app see the replayed model as if it had come in full."""
    dxo = from_shareable(shareable)
    dxo.data = {
        name: as_kind(array.numpy(), arrival.kind) for name, array in arrival.arrays.items()
    }
    dxo.update_shareable(shareable)
