"""The client's half: a filter that lets one private release out and nothing else.

Idea     the same filter stands at both ends of a task. On its way in, the server's question is checked against the
         owner's policy and noted in the ledger, before the app is called; on its way out, whatever the app
         answered becomes one release (`quietbit.node.release`), of the zero update if it failed. The reply is written
         anew, so that nothing of the app's own is left in it: no weights, metrics, counts of steps, headers or return
         codes. What has no such answer is not answered, and its app is not run: tasks without a question,
         evaluations and requests for a site's model, unless the policy names numbers that may leave.

NVFlare's own base class for such filters passes data on unfiltered when they are of another kind, when they cannot
be read, when the return code is not OK and when the filter says nothing. This one is not such a class: what it does not
know raises, and NVFlare then sends an error without content. The other ways out are shut by `gate.py`.

Who decides: `properties` of the scope in the site's `privacy.json`, which jobs cannot write, name the owner's policy
(`quietbit.policy`) or gatekeeper (`quietbit.gatekeeper`). Without one nothing is released, but in NVFlare's simulator
and where the job says ``simulation``.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import threading
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np
from attrs import define, field
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException, Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.utils.task_utils import get_filters
from nvflare.app_common.logging.constants import is_log_streaming_allowed
from nvflare.private.fed.simulator.simulator_app_runner import SimulatorClientRunManager
from nvflare.private.privacy_manager import Scope

from quietbit._typing import FloatVector
from quietbit.engine.gate import gate_for
from quietbit.engine.messages import RECORD, finite, question_of
from quietbit.engine.turn import Turn, lost, plan_of, refusal
from quietbit.errors import InvalidParameter, require
from quietbit.node.answer_time import AnswerTime
from quietbit.node.policy import PolicyError, Simulation
from quietbit.node.release import Gate
from quietbit.nvflare.arrays import named
from quietbit.nvflare.gate import DECIDED, TURN, shut
from quietbit.plan.plan import Plan
from quietbit.privacy.guarantee import Trust, Unit

__all__ = ["PrivateUplink", "local_settings", "number_of"]

LOGGER = logging.getLogger(__name__)
TOO = "PrivateUplink must stand among the {} filters of a task, too, and nothing is sent."
LATE = (
    "the run began before the other ways out were shut, and nothing is sent: PrivateUplink must stand among the "
    "components of privacy.json, too, or among the job's own filters."
)
ASKED = {"settings", "request"}  # what stands under RECORD in the data of a task
STARTS = (EventType.ABOUT_TO_START_RUN, EventType.START_RUN)
_STATES: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # by engine: what a keeper remembers of a run


def number_of(name: str) -> int:
    """The number under which ledgers and frames know a job or a client: 64 bits of the SHA-256 of its name."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:8], "little")


def local_settings(values: Mapping[str, Any]) -> Plan:
    """The settings of a job; refused where they count on anybody but the client itself."""
    settings = plan_of(values)
    rule = f"{Trust.LOCAL.value}: over NVFlare the server sees every release"
    require(settings.trust is Trust.LOCAL, "quietbit.trust", settings.trust.value, rule)
    rule = "full: rounds are replayed over Flower alone"
    require(not settings.replayed, "quietbit.downlink", settings.downlink, rule)
    rule = "client over NVFlare, where an app has no way to the batch that its gate draws"
    require(settings.unit is Unit.CLIENT, "quietbit.unit", settings.unit.value, rule)
    rule = "left out: the controller chooses the clients over NVFlare"
    require(not settings.secret_order, "quietbit.participation", settings.participation, rule)
    return settings


@final
@define(eq=False)
class Task:
    """What was decided about one task before its app was called; it is answered once.

    With a ``turn`` it is a release; without one it is the numbers called ``names`` that the owner lets out, or else
    ``reason``, and the app is not called (``runs``).
    """

    task: str
    heads: dict[str, Any]
    runs: bool = False
    reason: str = ""
    noted: bool = False
    turn: Turn | None = None
    names: tuple[str, ...] = ()
    moment: AnswerTime = field(factory=lambda: AnswerTime(0.0))
    reply: Shareable | None = None
    _lock: threading.Lock = field(factory=threading.Lock)
    _content: dict[str, Any] = field(factory=dict)

    def answer(self, result: Any) -> Shareable:
        """Return the one thing that leaves for this task; the very same object passes a second time."""
        with self._lock:
            if self.reply is None:
                self.reply = self._made(result)
                content = {key: self.reply[key] for key in self.reply if key != ReservedHeaderKey.HEADERS}
                self._content = deepcopy(content)
            elif result is not self.reply:
                raise ContentBlockedException("quietbit: this task was answered, and what came after it is not sent.")
            return self.reply

    def sealed(self) -> dict[str, Any]:
        """Return what was answered, as it was written; where nothing was, answer now, as for an app that failed."""
        with contextlib.suppress(ContentBlockedException):
            self.answer(None)
        return deepcopy(self._content)

    def _made(self, result: Any) -> Shareable:
        if self.turn is None and self.runs:
            self.heads[ReservedHeaderKey.CONTENT_TYPE] = "DXO"
            return DXO(DataKind.METRICS, data=_numbers(result, self.names)).to_shareable()
        record: dict[str, Any] = {}
        if self.turn is not None:
            turn = self.turn
            try:
                record = {"release": turn.release(lambda: _update(turn, result))}
                if self.names:
                    record["metrics"] = _numbers(result, self.names)
            except Exception as error:
                self.reason, self.noted = refusal(lost(error))
        return Shareable({RECORD: record or {"declined": self.reason, "noted": self.noted}})


@final
class PrivateUplink(Filter):  # type: ignore[misc]
    """A filter for the data and the results of a client's tasks: `add_privacy` or `privacy.json` registers it.

    ``simulation`` is for NVFlare's simulator, whose clients belong to nobody: there the job's own budget holds, and on
    a site it means nothing. With a ``seed`` a simulation can be repeated, and protects nobody. ``metrics`` leave a
    simulation as they are.
    """

    def __init__(self, simulation: bool = False, seed: int | None = None, metrics: list[str] | None = None) -> None:
        """Refuse rules that do not fit together; the names are those that NVFlare writes into the job."""
        super().__init__()
        self.simulation, self.seed, self.metrics = simulation, seed, metrics
        require(isinstance(simulation, bool), "simulation", simulation, "true or false")
        fine = simulation or (seed is None and not metrics)
        require(fine, "seed and metrics", [seed, metrics], "left out unless it is a simulation")
        self._rules = Simulation(seed=seed, metrics=tuple(metrics or ())) if simulation else None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Shut the other ways out when a run starts; `process` raises where that did not happen."""
        if event_type in STARTS:
            try:
                shut(fl_ctx, _task)
            except Exception as error:
                LOGGER.error("quietbit: this engine cannot be watched: nothing will be released.", exc_info=error)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Decide about a task that comes in; answer for one that goes out. Whatever else passes here raises."""
        where = self.get_prop(FilterContextKey.CHAIN_TYPE), fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION)
        if not shut(fl_ctx, _task):
            raise ContentBlockedException(f"quietbit: {LATE}")
        task = _task(fl_ctx)
        if where == (FilterChainType.TASK_DATA_CHAIN, FilterKey.IN):
            if task is None:
                _check_way_out(fl_ctx)
                if not fl_ctx.set_prop(TURN, self._decide(shareable, fl_ctx), private=True, sticky=False):
                    raise ContentBlockedException("quietbit: what was decided about this task cannot be remembered.")
                fl_ctx.get_prop(DECIDED).set()
            return shareable
        if where != (FilterChainType.TASK_RESULT_CHAIN, FilterKey.OUT):
            raise ContentBlockedException(f"quietbit: nothing is sent this way: {where[0]} going {where[1]}.")
        if task is None:
            raise ContentBlockedException(f"quietbit: {TOO.format('data')}")
        return task.answer(shareable)

    def _decide(self, shareable: Any, fl_ctx: FLContext) -> Task:
        """Decide about a task: accepted and noted, or declined with a reason that tells nothing of the data."""
        cookies = shareable.get_cookie_jar() if isinstance(shareable, Shareable) else None
        number, name = fl_ctx.get_prop(FLContextKey.TASK_ID), fl_ctx.get_prop(FLContextKey.TASK_NAME)
        heads = {ReservedHeaderKey.TASK_NAME: name, ReservedHeaderKey.TASK_ID: number}
        task = Task(str(number), heads | ({ReservedHeaderKey.COOKIE_JAR: deepcopy(cookies)} if cookies else {}))
        try:
            keeper = self._keeper(fl_ctx)
            asked, task.names = shareable.get(RECORD), keeper.metrics
            if asked is None and task.names:
                task.moment = AnswerTime(keeper.answer_seconds)
            else:
                settings, question = self._question(asked, fl_ctx)
                dxo = from_shareable(shareable)
                require(dxo.data_kind == DataKind.WEIGHTS, "kind of the server's data", dxo.data_kind, "weights")
                task.turn = Turn.accept(keeper, question, named(dxo.data), settings)
                task.moment = task.turn.moment
            task.runs = True
        except Exception as error:
            task.reason, task.noted = refusal(error)
        return task

    def _question(self, asked: Any, fl_ctx: FLContext) -> tuple[Plan, Any]:
        if not isinstance(asked, Mapping) or set(asked) != ASKED or not isinstance(asked["settings"], Mapping):
            raise InvalidParameter(
                "The server's task must carry quietbit's question, and does not: is PrivateReceiver among its filters?"
            )
        settings = local_settings(asked["settings"])
        name, digits = fl_ctx.get_identity_name(), re.search(r"(\d+)$", fl_ctx.get_identity_name())
        client = int(digits[1]) if digits else None
        run, node = number_of(fl_ctx.get_job_id()), number_of(name)
        return settings, question_of({RECORD: asked["request"]}, settings, run, node, client)

    def _keeper(self, fl_ctx: FLContext) -> Gate:
        simulated = isinstance(fl_ctx.get_engine(), SimulatorClientRunManager)  # and not what a context says
        if not simulated and is_log_streaming_allowed(fl_ctx):
            raise PolicyError(
                "allow_log_streaming must be false in local/resources.json, and is not: this site would stream to the "
                "server what its log says about the data."
            )
        owner = fl_ctx.get_prop(FLContextKey.SCOPE_PROPERTIES) or {}
        require(isinstance(owner, Mapping), "properties of the scope", type(owner).__name__, "a dict")
        state = _STATES.setdefault(fl_ctx.get_engine(), {})
        return gate_for(owner, state, dict, self._rules if simulated else None)


def _check_way_out(fl_ctx: FLContext) -> None:
    """Refuse a task whose result no filter of ours would see."""
    table, task = fl_ctx.get_prop(FLContextKey.RUNNER).task_result_filters, fl_ctx.get_prop(FLContextKey.TASK_NAME)
    ahead = get_filters(Scope.TASK_RESULT_FILTERS_NAME, fl_ctx, table, task, FilterKey.OUT)
    if not any(isinstance(one, PrivateUplink) for one in ahead):
        raise ContentBlockedException(f"quietbit: {TOO.format('result')}")


def _task(fl_ctx: FLContext) -> Task | None:
    """Return what was decided about the task of a context, if it was."""
    found = fl_ctx.get_prop(TURN)
    same = isinstance(found, Task) and found.task == str(fl_ctx.get_prop(FLContextKey.TASK_ID))
    return found if same else None


def _update(turn: Turn, result: Any) -> list[FloatVector]:
    """Return *received minus trained* of the app's answer, weights or NVFlare's differences."""
    code = result.get_return_code()
    require(code == ReturnCode.OK, "return code of the app", code, "OK")
    dxo = from_shareable(result)
    arrays: dict[str, Any] = {**dict.fromkeys(turn.layout.kept), **named(dxo.data)}  # kept ones are never read
    if dxo.data_kind == DataKind.WEIGHTS:
        return turn.difference(arrays)
    require(dxo.data_kind == DataKind.WEIGHT_DIFF, "kind of the app's answer", dxo.data_kind, "weights")
    # NVFlare's difference is *trained minus received*: taken from zero it is ours.
    return turn.layout.difference([np.zeros_like(part) for part in turn.received], arrays)


def _numbers(result: Any, names: tuple[str, ...]) -> dict[str, float]:
    """One number for each of the names, 0 where the app has none; everything else is dropped."""
    found: Any = {}
    try:
        dxo = from_shareable(result)
        found = dxo.data if dxo.data_kind == DataKind.METRICS else dxo.get_meta_prop(MetaKey.INITIAL_METRICS, {})
    except BaseException as error:
        LOGGER.error("quietbit: the app's answer holds no metrics", exc_info=error)
    values = {name: found.get(name) for name in names} if isinstance(found, Mapping) else {}
    return {name: _number(values.get(name)) for name in names}


def _number(value: Any) -> float:
    try:
        return finite(float(value)) or 0.0
    except BaseException:  # whatever an app's object does, 10**400 among it
        return 0.0
