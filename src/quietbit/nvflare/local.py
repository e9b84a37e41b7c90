"""One line in a job: every result of a client becomes a private release, decoded on the client.

Idea     whatever the workflow is, a client's result comes from an executor. When a run starts, this
         filter stands around the executors of its job. A task that the filter is listed for is
         noted in the ledger before the app is called; what the app answers is clipped, randomised
         and decoded again on this site (`federation.own_round`), into the same kind of DXO, with
         nothing else in it. NVFlare's own chains of filters are not enough: in swarm learning and
         the cyclic workflow an update leaves a client as the data of another client's task, and
         passes no filter of results.
Refused  results of any other task that hold data, and a run that began before the filter was there.
Account  one release per task, ``epsilon`` for all ``releases`` of a job. The ledger is the owner's
         where privacy.json names a policy, and else a file in the site's workspace, which survives
         restarts of the site.
"""

from __future__ import annotations

import contextlib
import csv
import logging
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import numpy as np
from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.utils.analytix_utils import create_analytic_dxo
from nvflare.apis.utils.task_utils import materialize_lazy_download_refs
from nvflare.app_common.ccwf.client_ctl import ClientSideController
from nvflare.app_common.widgets.convert_to_fed_event import FED_EVENT_PREFIX
from nvflare.fuel.utils.fobs import FOBSContextKey
from nvflare.widgets.widget import WidgetID

from quietbit.errors import check_known, require
from quietbit.federation.batch import share_batches
from quietbit.federation.client import (
    Turn,
    gate_for,
    owner_keys,
    refusal,
    serving,
)
from quietbit.federation.layout import NamedArray, named_arrays
from quietbit.federation.own_round import DELTA, EPSILON, GAUSSIAN, OwnRound
from quietbit.federation.plan import Plan
from quietbit.node.gate import LocalGate
from quietbit.node.gatekeeper import Gate
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import Simulation
from quietbit.nvflare.client import node_name
from quietbit.nvflare.task import app_answer, as_kind, kind_of

__all__ = ["LocalPrivacy"]

LOGGER = logging.getLogger(__name__)
OUT = FilterKey.DELIMITER + FilterKey.OUT
Execute = Callable[[str, Shareable, FLContext, Signal], Any]


@final
class LocalPrivacy(Filter):  # type: ignore[misc]
    """A filter among a client's ``task_result_filters``: private results in any workflow.

    ``epsilon`` is what all ``releases`` of a site in this job may cost together. ``samples`` has
    the keys of a plan's ``[samples]``, where a sample (a patient) is protected and not the whole
    site: the app then calls `dp_sgd_step`. When the budget is used up, a task is answered with an
    error, or with the model as it came where ``spent`` is ``zero``. With ``stream`` the epsilon so
    far goes to NVFlare's stream of metrics, where the site's policy names `quietbit.epsilon` or
    there is none.
    """

    def __init__(
        self,
        epsilon: float,
        clip: float,
        releases: int,
        adjacency: str,
        delta: float = DELTA,
        mechanism: str = GAUSSIAN,
        samples: Mapping[str, Any] | None = None,
        spent: str = "error",
        stream: bool = False,
    ) -> None:
        """Refuse numbers that make no plan; NVFlare writes them into jobs by these names."""
        super().__init__()
        self.epsilon = epsilon
        self.clip = clip
        self.releases = releases
        self.adjacency = adjacency
        self.delta = delta
        self.mechanism = mechanism
        self.samples = samples
        self.spent = spent
        self.stream = stream
        check_known(spent, ["error", "zero"], "spent")
        line = {
            "mechanism": mechanism,
            "clip": clip,
            "epsilon": epsilon,
            "delta": delta,
            "adjacency": adjacency,
            "releases": releases,
            "samples": samples or False,
        }
        self._plan = Plan.read(line)
        self._tasks: list[str] = []  # that are private, once this filter stands
        self._metric: Shareable | None = None  # the newest of our own
        self._state: dict[str, Any] = {}
        self._kind: str | None = None  # of the results of this job, once one was seen

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Stand around the job's executors before any of them is asked."""
        if event_type == EventType.ABOUT_TO_START_RUN and not self._tasks:
            try:
                self._stand(fl_ctx)
            except Exception as error:
                LOGGER.error("quietbit: nothing will be released: %s", error)
                self.system_panic(f"quietbit: {error}", fl_ctx)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Let a result pass that was made behind this filter; refuse all others."""
        if not self._tasks or fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) != FilterKey.OUT:
            raise ContentBlockedException(
                "quietbit: LocalPrivacy must stand among the task_result_filters of a client."
            )
        return shareable

    def _stand(self, fl_ctx: FLContext) -> None:
        """Cover every executor first: tasks that are not listed then let no data out."""
        runner = fl_ctx.get_prop(FLContextKey.RUNNER)
        trainers = {}
        for executor in runner.task_router.task_table.values():
            if not isinstance(executor, ClientSideController):  # which hands tasks to the others
                trainers[id(executor)] = executor
        for executor in trainers.values():
            inner = executor.execute
            is_first = not isinstance(getattr(inner, "func", None), type(self._execute))
            require(is_first, "LocalPrivacy", "two", "one for all tasks of a job")
            executor.execute = partial(self._execute, inner)
        events = fl_ctx.get_engine().get_widget(WidgetID.FED_EVENT_RUNNER)
        send = events.fire_and_forget_request
        events.fire_and_forget_request = partial(self._send_event, send)
        listed = [
            key.removesuffix(OUT)
            for key, chain in runner.task_result_filters.items()
            if key.endswith(OUT) and any(member is self for member in chain)
        ]
        for task in listed:
            rule = "the exact name of a task that an executor of this job trains in"
            trains = id(runner.find_executor(task)) in trainers
            require(trains and "*" not in task, "tasks", task, rule)
        require(listed, "tasks", listed, "the names of the tasks whose results are updates")
        self._tasks = listed
        share_batches()

    def _execute(
        self, inner: Execute, name: str, data: Shareable, fl_ctx: FLContext, abort: Signal
    ) -> Shareable:
        """Answer a task: with a release where the filter is listed for it, else without data."""
        if name not in self._tasks:
            return _without_data(inner(name, data, fl_ctx, abort), name)
        gate: Gate | None = None
        received = Shareable()
        try:
            received = _whole(data, fl_ctx, abort)
            gate = self._gate(fl_ctx)
            own, turn, spent = self._accept(gate, received, fl_ctx)
            library = kind_of(from_shareable(received).data)
        except Exception as error:
            public = refusal(error, gate)
            LOGGER.error("quietbit: task %s is declined: %s.", name, public.reason.value)
            return self._declined(received)

        # NVFlare sends the cookies of a task back: the app gets heads of its own.
        shown = Shareable(received)
        shown[ReservedHeaderKey.HEADERS] = deepcopy(received[ReservedHeaderKey.HEADERS])
        # A trainer in a process of its own waits until those who are named here have its result.
        shown.set_header(FOBSContextKey.RECEIVER_IDS, [fl_ctx.get_engine().get_cell().get_fqcn()])

        def call() -> Shareable:
            with serving(turn.accepted, dimension=turn.dimension):
                return _whole(inner(name, shown, fl_ctx, abort), fl_ctx, abort)

        crashes: list[BaseException] = []
        result = turn.moment.run(call, crashes)
        update = turn.read(partial(app_answer, result), crashes)
        release = turn.release(update)
        reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)  # to a job whose first app failed
        self._kind = self._kind or _kind_of_result(result)
        if self._kind is not None:
            reply = self._result(own.stepped(self._base(own.arrays), release), library)
        try:
            self._report(own, spent, gate, fl_ctx)
        except Exception as error:  # the release is noted, and leaves
            LOGGER.error("quietbit: what it cost is not reported: %s", error)
        time.sleep(max(0.0, turn.moment.left()))
        return reply

    def _gate(self, fl_ctx: FLContext) -> Gate:
        """Return the gate of the site's owner; without one, that of a ledger in the workspace."""
        owner = fl_ctx.get_prop(FLContextKey.SCOPE_PROPERTIES) or {}
        kind = type(owner).__name__
        require(isinstance(owner, Mapping), "properties of the scope", kind, "a dict")
        if owner_keys(owner):
            return gate_for(owner, self._state, dict, None)
        ledger = _ledger(Path(fl_ctx.get_engine().get_workspace().get_root_dir()), self._state)
        return LocalGate(Simulation(metrics=(EPSILON,)), ledger, {})

    def _accept(
        self, gate: Gate, received: Shareable, fl_ctx: FLContext
    ) -> tuple[OwnRound, Turn, float]:
        """Note the next release of this job in the ledger; return what all of them cost, too."""
        dxo = from_shareable(received)
        is_model = dxo.data_kind == DataKind.WEIGHTS
        require(is_model, "kind of the task's data", dxo.data_kind, "weights")
        own = OwnRound.begin(self._plan, gate, node_name(fl_ctx), named_arrays(dxo.data))
        own.opened.check()
        turn = own.opened.accept(with_zero=True)
        return own, turn, gate.spent(own.opened.request)

    def _declined(self, received: Shareable) -> Shareable:
        """Return what leaves where nothing is released: the same whatever the data are."""
        if self.spent == "error" or self._kind is None:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        model = from_shareable(received).data
        base = self._base(named_arrays(model))
        return self._result({name: array.numpy() for name, array in base.items()}, kind_of(model))

    def _base(self, received: Mapping[str, NamedArray]) -> Mapping[str, NamedArray]:
        """Return what a result of the job's kind is where nothing was learnt."""
        if self._kind == DataKind.WEIGHTS:
            return received
        return named_arrays({name: np.zeros_like(a.numpy()) for name, a in received.items()})

    def _result(self, arrays: Mapping[str, Any], library: str) -> Shareable:
        """Return a result of the job's kind, with arrays or tensors as they came."""
        data = {name: as_kind(array, library) for name, array in arrays.items()}
        return DXO(self._kind, data=data).to_shareable()

    def _report(self, own: OwnRound, spent: float, gate: Gate, fl_ctx: FLContext) -> None:
        """Say what this job has cost the site so far: in the log, a table and the metrics."""
        LOGGER.info("quietbit: %s", own.sentence(spent))
        target = own.plan.target
        folder = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))
        row = [own.number, spent, target.delta, target.unit.value, target.adjacency.value]
        with (folder / "quietbit-epsilon.csv").open("a", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            if file.tell() == 0:
                table.writerow(["release", "epsilon", "delta", "unit", "adjacency"])
            table.writerow(row)
        if self.stream and EPSILON in gate.rules.metrics:
            dxo = create_analytic_dxo(
                EPSILON, spent, AnalyticsDataType.SCALAR, global_step=own.number
            )
            self._metric = dxo.to_shareable()
            self.fire_fed_event(f"{FED_EVENT_PREFIX}{ANALYTIC_EVENT_TYPE}", self._metric, fl_ctx)

    def _send_event(self, send: Callable[..., None], request: Shareable, **named: Any) -> None:
        """Send the server an event that holds no data, or this filter's metric; drop all others."""
        if request is self._metric or set(request) <= {ReservedHeaderKey.HEADERS}:
            send(request=request, **named)
        else:
            LOGGER.info("quietbit: kept on this site, as it should be: a metric of the job")


def _ledger(workspace: Path, known: dict[str, Any]) -> FileLedger:
    """Return the ledger in a site's workspace, which the site's first job makes.

    Its folder comes into being with both files in it, whatever other jobs do meanwhile.
    """
    folder = workspace.resolve() / "quietbit"
    if not folder.exists():
        with TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as made:
            new = Path(made) / folder.name
            new.mkdir(mode=0o700)
            FileLedger.create(new / "ledger", new / "counter")
            with contextlib.suppress(OSError):  # another job was quicker
                new.rename(folder)
    return FileLedger(folder / "ledger", folder / "counter", known)


def _whole(shareable: Any, fl_ctx: FLContext, abort: Signal) -> Any:
    """Return a message with the arrays that NVFlare left in another process."""
    engine = fl_ctx.get_engine()
    return materialize_lazy_download_refs(shareable, engine.get_cell(), abort)


def _kind_of_result(result: Any) -> str | None:
    """Return whether an app answers with weights or their difference; None with neither."""
    try:
        kind = from_shareable(result).data_kind
    except Exception:
        return None
    return kind if kind in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF) else None


def _without_data(result: Any, task: str) -> Shareable:
    """Return an answer without data; refuse one that holds any."""
    if isinstance(result, Shareable) and set(result) <= {ReservedHeaderKey.HEADERS}:
        if result.get_return_code() == ReturnCode.OK:
            return make_reply(ReturnCode.OK)
        return make_reply(ReturnCode.EXECUTION_EXCEPTION)
    LOGGER.error(
        "quietbit: the result of task %s is not sent: LocalPrivacy is not listed for it.", task
    )
    return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)
