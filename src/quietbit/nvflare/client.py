"""The client's half: a filter that lets one private release out and nothing else.

Idea     the same filter stands at both ends of a task. On its way in, the server's request is
         checked against the owner's policy and noted in the ledger, before the app is called; on
         its way out, whatever the app answered becomes one release (`quietbit.run.client`), in a
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
from nvflare.apis.utils.task_utils import get_filters
from nvflare.app_common.logging.constants import is_log_streaming_allowed
from nvflare.private.fed.simulator.simulator_app_runner import SimulatorClientRunManager
from nvflare.private.privacy_manager import Scope

from quietbit.errors import InvalidParameter, require
from quietbit.node.answer_time import AnswerTime
from quietbit.node.gatekeeper import Gate
from quietbit.node.policy import PolicyError, Simulation
from quietbit.node.request import Request
from quietbit.nvflare.patches import shut
from quietbit.nvflare.task import (
    ANSWER,
    DECIDED,
    TURN,
    NamedArray,
    Task,
    as_kind,
    kind_of,
    named,
    refused,
    task_of,
)
from quietbit.run.client import Turn, client_parts, gate_for, own_keys, plan_of
from quietbit.run.messages import ENCLOSED, MODEL, RECORD, SPEED, evaluation_of, read_request
from quietbit.run.part import Part
from quietbit.run.parts.replay import APP, Follower
from quietbit.run.plan import PREFIX, Plan
from quietbit.target import Trust

__all__ = ["ABOUT", "TABLE", "UPDATE", "PrivateUplink", "local_settings", "number_of"]

LOGGER = logging.getLogger(__name__)
TOO = "PrivateUplink must stand among the {} filters of a task, too, and nothing is sent."
LATE = (
    "the run began before the other ways out were shut, and nothing is sent: PrivateUplink must stand among the "
    "components of privacy.json, too, or among the job's own filters."
)
UPDATE, ABOUT = (
    "request",
    "evaluation",
)  # what is asked under RECORD in the data of a task: one of them, or both
KNOWN = {"settings", UPDATE, ABOUT, MODEL, SPEED, ENCLOSED}  # from MODEL on, where parts need them
TABLE = PREFIX.removesuffix(".")
STARTS = (EventType.ABOUT_TO_START_RUN, EventType.START_RUN)
_STATES: WeakKeyDictionary[Any, dict[str, Any]] = (
    WeakKeyDictionary()
)  # by engine: what a gate remembers of a run


def number_of(name: str) -> int:
    """Return the number of a job or a client in ledgers and frames: 64 bits of the SHA-256 of its name."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:8], "little")


def local_settings(values: Mapping[str, Any]) -> Plan:
    """Return the settings of a job; refuse those that count on anybody but the client itself."""
    table = values.get(TABLE)  # NVFlare's servers take a dot in a key for a table in a table
    if isinstance(table, Mapping):
        values = {f"{PREFIX}{key}": value for key, value in table.items()}
    settings = plan_of(values)
    rule = f"{Trust.LOCAL.value}: over NVFlare the server sees every release"
    require(settings.trust is Trust.LOCAL, "quietbit.trust", settings.trust.value, rule)
    given = settings.replay is not None and settings.replay.start == APP
    require(
        not given,
        "quietbit.replay.start",
        APP,
        "server: over NVFlare the first model comes in full",
    )
    rule = "left out: over NVFlare the controller says when a round ends, and late results are in no mean"
    require(settings.arrivals is None, "quietbit.arrivals", True, rule)
    rule = "left out: the controller chooses the clients over NVFlare"
    require(not settings.secret_order, "quietbit.participation", settings.participation, rule)
    return settings


@final
class PrivateUplink(Filter):  # type: ignore[misc]
    """A filter for the data and the results of a client's tasks: `add_privacy` or `privacy.json` registers it.

    ``simulation`` is for NVFlare's simulator, where the job's own budget holds; on a site it means
    nothing. With a ``seed`` a simulation can be repeated, and protects nobody. ``metrics`` leave a
    simulation as they are. ``basis`` is the path of an .npy file with the directions of a
    subspace, where the site has them (`quietbit.subspace.basis`).
    """

    def __init__(
        self,
        simulation: bool = False,
        seed: int | None = None,
        metrics: list[str] | None = None,
        basis: str | None = None,
    ) -> None:
        """Refuse rules that do not fit together; the names are those that NVFlare writes into the job."""
        super().__init__()
        self.simulation = simulation
        self.seed = seed
        self.metrics = metrics
        self.basis = basis
        require(isinstance(simulation, bool), "simulation", simulation, "true or false")
        fits = simulation or (seed is None and not metrics)
        require(fits, "seed and metrics", [seed, metrics], "left out unless it is a simulation")
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
        """Decide about a task that comes in; answer for one that goes out. Whatever else passes here raises."""
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
        """Decide about a task: accepted and noted, or declined for a reason that tells nothing of the data."""
        number = fl_ctx.get_prop(FLContextKey.TASK_ID)
        heads = {
            ReservedHeaderKey.TASK_NAME: fl_ctx.get_prop(FLContextKey.TASK_NAME),
            ReservedHeaderKey.TASK_ID: number,
        }
        cookies = shareable.get_cookie_jar() if isinstance(shareable, Shareable) else None
        if cookies:
            heads[ReservedHeaderKey.COOKIE_JAR] = deepcopy(cookies)
        task = Task(str(number), heads)
        try:
            gate, task.shows = self._gate(fl_ctx)
            task.names = gate.metrics
            request = shareable.get(RECORD)
            if request is None and task.names:
                task.moment = AnswerTime(gate.answer_seconds)
            else:
                self._accept(task, gate, request, shareable, fl_ctx)
            task.runs = True
        except Exception as error:
            task.refused = refused(error)
        return task

    def _accept(
        self, task: Task, gate: Gate, record: Any, shareable: Shareable, fl_ctx: FLContext
    ) -> None:
        """Accept and note what is asked: an update, which fixes the answer's moment, or an answer about the model."""
        if not _is_request(record):
            raise InvalidParameter(
                "The server's task must carry quietbit's request, and does not: is PrivateReceiver among its filters?"
            )
        plan = local_settings(record["settings"])
        name = fl_ctx.get_identity_name()
        digits = re.search(r"(\d+)$", name)
        partition = int(digits[1]) if digits else None
        node = (number_of(fl_ctx.get_job_id()), number_of(name), partition)
        with_zero = not task.shows
        if UPDATE in record:
            request = read_request({RECORD: record[UPDATE]}, plan, *node)
            parts = client_parts(plan, self.basis)
            for part in parts:
                part.unpack(record.get(ENCLOSED, {}), gate.models, request.run)
            model = _model(shareable, gate, request, plan, parts)
            turn = Turn.accept(gate, request, model, plan, parts=parts, with_zero=with_zero)
            task.turn = turn
            task.moment = task.turn.moment
        if ABOUT in record:
            try:
                evaluation = evaluation_of(plan)
                request = read_request({RECORD: record[ABOUT]}, plan, *node, evaluation)
                turn = Turn.evaluate(gate, request, evaluation, with_zero=with_zero)
                task.evaluation = (turn, evaluation)
                if task.turn is None:
                    task.moment = turn.moment
            except Exception as error:
                if task.turn is None:
                    raise
                task.refused = {ANSWER: refused(error)}

    def _gate(self, fl_ctx: FLContext) -> tuple[Gate, bool]:
        """Return this site's gate, and whether it is a simulated site that has no owner."""
        simulated = isinstance(
            fl_ctx.get_engine(), SimulatorClientRunManager
        )  # and not what a context says
        if not simulated and is_log_streaming_allowed(fl_ctx):
            raise PolicyError(
                "allow_log_streaming must be false in local/resources.json, and is not: this site would stream to the "
                "server what its log says about the data."
            )
        owner = fl_ctx.get_prop(FLContextKey.SCOPE_PROPERTIES) or {}
        require(
            isinstance(owner, Mapping), "properties of the scope", type(owner).__name__, "a dict"
        )
        state = _STATES.setdefault(fl_ctx.get_engine(), {})
        gate = gate_for(owner, state, dict, self._rules if simulated else None)
        return gate, simulated and not own_keys(owner)


def _is_request(request: Any) -> bool:
    """Return whether a task's record has the fields of a request, and no others."""
    if not isinstance(request, Mapping) or not isinstance(request.get("settings"), Mapping):
        return False
    return set(request) <= KNOWN and (UPDATE in request or ABOUT in request)


def _check_way_out(fl_ctx: FLContext) -> None:
    """Refuse a task whose result no filter of ours would see."""
    table = fl_ctx.get_prop(FLContextKey.RUNNER).task_result_filters
    task_name = fl_ctx.get_prop(FLContextKey.TASK_NAME)
    filters = get_filters(Scope.TASK_RESULT_FILTERS_NAME, fl_ctx, table, task_name, FilterKey.OUT)
    if not any(isinstance(member, PrivateUplink) for member in filters):
        raise ContentBlockedException(f"quietbit: {TOO.format('result')}")


def _model(
    shareable: Any, gate: Gate, request: Request, plan: Plan, parts: tuple[Part, ...]
) -> dict[str, NamedArray]:
    """Return the round's arrays; where rounds came in their place, replay these and let the app see whole arrays."""
    dxo = from_shareable(shareable)
    require(
        dxo.data_kind == DataKind.WEIGHTS, "kind of the server's data", dxo.data_kind, "weights"
    )
    rounds = shareable[RECORD].get(MODEL)
    if rounds is not None:
        follower = Follower(gate.models, request.run, plan, families=gate.families, parts=parts)
        if dxo.data:
            momentum = shareable[RECORD].get(SPEED)
            follower.full(rounds, kind_of(dxo.data), named(dxo.data), momentum)
        else:
            kind, arrays = follower.replayed(rounds, request)
            dxo.data = {name: as_kind(array, kind) for name, array in arrays.items()}
            dxo.update_shareable(shareable)
    return named(dxo.data)
