"""The server's half: a filter that asks with every task, and makes differences of releases.

Idea     NVFlare asks clients one at a time. What a task asks, and what becomes of its result, is in
         `run.exchange`; this filter puts the request into the task (`transport`), and hands the
         workflow what the result contributes: a difference of weights, which any workflow that
         averages takes as it is. Where rounds are replayed the step is taken in `run`, as clients
         will take it, and put into the workflow's model; NVFlare's own FedAvg adds zeros.

NVFlare's averaging ends a job, or empties its model, where clients send nothing; so a client
without a release has a difference of zero, of hardly any weight. Only means know weights: give
these filters to no workflow that compares single clients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, final
from weakref import WeakKeyDictionary

from attrs import define, field
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException, Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.private.privacy_manager import Scope

from quietbit.errors import check_int, one_line, require
from quietbit.federation.exchange import Exchanges
from quietbit.federation.layout import named_arrays
from quietbit.federation.part import Model, Part
from quietbit.federation.server import Run
from quietbit.nvflare.client import local_settings, number_of
from quietbit.nvflare.task import as_kind, has_filter, kind_of
from quietbit.nvflare.transport import SentTask, peer_of, put_request, read_result, wire_size

__all__ = ["PrivateReceiver"]

SENDING = (EventType.BEFORE_TASK_DATA_FILTER, EventType.BEFORE_TASK_RESULT_FILTER)
EVENTS = (
    EventType.ABOUT_TO_END_RUN,
    EventType.END_RUN,
    AppEventType.BEFORE_AGGREGATION,
    AppEventType.AFTER_SHAREABLE_TO_LEARNABLE,
)
REPORT = "quietbit-report.json"
PROTECT = (
    "Build the job with quietbit.nvflare.add_privacy, and have all sites run it as it was built."
)
# By engine, because NVFlare builds one filter for each chain.
_JOBS: WeakKeyDictionary[Any, _Job] = WeakKeyDictionary()
_LOCK = threading.RLock()


@final
@define(eq=False)
class _Job:
    """A job: its requests, and the tasks that were sent, by NVFlare's id."""

    exchanges: Exchanges
    tasks: dict[str, SentTask] = field(factory=dict)
    is_over: bool = False  # whether the workflows are, and clients are only told to end

    def clients(self, known: Callable[[], list[Any]]) -> list[Any]:
        """Return the engine's clients, but for those that sent unprotected replies.

        If all did it returns them all: the workflow asks, and the job ends with a sentence.
        """
        everybody = known()
        run = self.exchanges.run
        protected = [client for client in everybody if not run.excludes(client.name)]
        return everybody if self.is_over else protected or everybody


@final
class PrivateReceiver(Filter):  # type: ignore[misc]
    """A filter for the data and the results of the server's training task; see `add_privacy`.

    ``settings`` are the keys of a run config (docs/reference/plan.md). The report is written into
    the job's folder when the job ends, under the name ``report``. ``validations`` are tasks that
    ask about a model and for no update. ``basis`` is the path of an .npy file with the directions
    of a subspace, where the plan has one.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        report: str = REPORT,
        validations: list[str] | None = None,
        basis: str | None = None,
    ) -> None:
        """Read the settings; those of another trust than local are refused."""
        super().__init__()
        self.settings = dict(settings)
        self.report = report
        self.validations = validations
        self.basis = basis
        self.parts: tuple[Part, ...] = ()  # capabilities of your own, given before the job starts
        self._plan = local_settings(settings)
        require(Path(report).name == report, "report", report, "the name of a file")
        evaluates = not validations or self._plan.evaluate is not None
        rule = "left out unless quietbit.evaluate is set"
        require(evaluates, "validations", validations, rule)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Ask with a task that goes out, decode one that comes back; anything else raises."""
        chain = self.get_prop(FilterContextKey.CHAIN_TYPE)
        direction = fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION)
        with _LOCK:
            if (chain, direction) == (FilterChainType.TASK_DATA_CHAIN, FilterKey.OUT):
                return self._ask(shareable, fl_ctx)
            if (chain, direction) == (FilterChainType.TASK_RESULT_CHAIN, FilterKey.IN):
                return self._take(shareable, fl_ctx)
        raise ContentBlockedException(
            f"quietbit: nothing is received this way: {chain} going {direction}."
        )

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Follow the workflow's rounds; write the report when the job ends."""
        if event_type in SENDING:
            self._check_covered(event_type, fl_ctx)
            return
        with _LOCK:
            job = _JOBS.get(fl_ctx.get_engine()) if event_type in EVENTS else None
            if job is None:
                return
            if event_type == EventType.ABOUT_TO_END_RUN:
                job.is_over = True
            elif event_type == EventType.END_RUN:
                self._end(_JOBS.pop(fl_ctx.get_engine()), fl_ctx)
            elif event_type == AppEventType.BEFORE_AGGREGATION:
                reason = job.exchanges.aggregates()
                if reason is not None:
                    self._panic(reason, fl_ctx)
            else:
                weights = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS]
                kind = kind_of(weights)
                for name, value in job.exchanges.step().items():
                    weights[name] = as_kind(value, kind)

    def _check_covered(self, event_type: str, fl_ctx: FLContext) -> None:
        """End a job that sends a task past these filters; empty what is sent, or came for it."""
        if _covers(fl_ctx):
            return
        name = fl_ctx.get_prop(FLContextKey.TASK_NAME)
        sends = event_type == EventType.BEFORE_TASK_DATA_FILTER
        message = fl_ctx.get_prop(FLContextKey.TASK_DATA if sends else FLContextKey.TASK_RESULT)
        for key in set(message) - {ReservedHeaderKey.HEADERS}:
            del message[key]
        self._panic(
            f"The workflow sends the task {name!r} past quietbit's filters: name it in tasks of "
            "add_privacy, or leave out what sends it.",
            fl_ctx,
        )

    def _end(self, job: _Job, fl_ctx: FLContext) -> None:
        """Write the report; a job in which nobody answered ends with an error."""
        job.exchanges.close()
        report = job.exchanges.run.report()
        self.log_info(fl_ctx, f"\n{report}")
        report.save(Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id())) / self.report)
        reason = report.unanswered()
        if reason is not None:
            self._panic(reason, fl_ctx)

    def _panic(self, reason: str, fl_ctx: FLContext) -> None:
        """End the job with a sentence, the first one that there is."""
        if not fl_ctx.get_prop(FLContextKey.FATAL_SYSTEM_ERROR):
            self.system_panic(f"quietbit: the job ends: {one_line(reason)}", fl_ctx)

    def _ask(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Put the requests of a task beside its model."""
        try:
            if fl_ctx.get_prop(FLContextKey.TASK_NAME) in (self.validations or ()):
                task = self._ask_about(shareable, fl_ctx)
            else:
                task = self._ask_update(shareable, fl_ctx)
            job = self._job(fl_ctx)
            put_request(shareable, self._plan.to_run_config(), task.exchange)
            job.exchanges.sent(task.exchange, partial(wire_size, shareable))
        except Exception as error:
            # NVFlare asks again for ever where a filter of tasks fails.
            self._panic(str(error), fl_ctx)
            raise
        # A task that a client fetches again is the same request.
        job.tasks.setdefault(task.number, task)
        return shareable

    def _ask_update(self, shareable: Shareable, fl_ctx: FLContext) -> SentTask:
        """Ask for an update and, where it is due, about the model that is trained."""
        dxo = from_shareable(shareable)
        kind = dxo.data_kind
        require(kind == DataKind.WEIGHTS, "kind of the task's data", kind, "weights")
        header = shareable.get_header(AppConstants.CURRENT_ROUND)
        number = check_int(header, "round of the task", 0) + 1
        model = self._model(named_arrays(dxo.data), fl_ctx)
        job = self._job(fl_ctx, model, shareable.get_header(AppConstants.NUM_ROUNDS))
        exchange = job.exchanges.ask_update(
            peer_of(fl_ctx), number, model, evaluates=not self.validations
        )
        if exchange.update is not None and not exchange.update.carries_model:
            DXO(dxo.data_kind, data={}, meta=dxo.meta).update_shareable(shareable)
        return SentTask.of(exchange, shareable, fl_ctx, kind_of(dxo.data))

    def _ask_about(self, shareable: Shareable, fl_ctx: FLContext) -> SentTask:
        """Ask about a model, which is named by its owner."""
        owner = shareable.get_header(AppConstants.MODEL_OWNER)
        if not owner:
            owner = from_shareable(shareable).get_meta_prop(AppConstants.MODEL_OWNER, "")
        job = self._job(fl_ctx)
        again = str(fl_ctx.get_prop(FLContextKey.TASK_ID)) in job.tasks
        exchange = job.exchanges.ask_about(peer_of(fl_ctx), one_line(str(owner)), again=again)
        return SentTask.of(exchange, shareable, fl_ctx)

    def _model(self, arrays: dict[str, Any], fl_ctx: FLContext) -> Model:
        """Return the model of a task, with the step that the workflow takes on a mean."""
        step = None
        if self._plan.replay is not None and _averages(fl_ctx):
            step = self._plan.replay.step
        return Model.of(
            arrays, self._plan.local_arrays, step, "the workflow is not NVFlare's plain FedAvg"
        )

    def _job(self, fl_ctx: FLContext, model: Model | None = None, rounds: Any = None) -> _Job:
        """Return the job of an engine; a new one says what to expect of it."""
        engine = fl_ctx.get_engine()
        if engine not in _JOBS:
            number = number_of(str(fl_ctx.get_job_id()))
            run = Run(
                self._plan, number, self._say, self.parts, number_of, PROTECT, basis=self.basis
            )
            if model is not None:
                run.mechanism(model.layout.dimension, 1)
            clients = len(engine.get_clients())
            planned = rounds if isinstance(rounds, int) else self._plan.releases
            run.forecast(asked=clients, nodes=clients, rounds=planned or 1)
            job = _Job(Exchanges(run))
            engine.get_clients = partial(job.clients, engine.get_clients)
            _JOBS[engine] = job
        return _JOBS[engine]

    def _take(self, result: Any, fl_ctx: FLContext) -> Shareable:
        """Turn a result into a difference of weights, of no weight where the client has none."""
        job = _JOBS.get(fl_ctx.get_engine())
        task = None
        if job is not None:
            task = job.tasks.get(str(fl_ctx.get_prop(FLContextKey.TASK_ID)))
            exchange = None if task is None else task.exchange
            answer = read_result(result, peer_of(fl_ctx))
            contribution = job.exchanges.take(answer, exchange)
        if task is None:
            raise ContentBlockedException("quietbit: a result came for a task that was not asked.")
        seen = task.seen(contribution)
        if not isinstance(result, Shareable):
            return seen
        # In place: NVFlare shows some of its components (model selectors) what came, not what
        # filters return.
        result.clear()
        result.update(seen)
        return result

    def _say(self, level: int, line: str) -> None:
        self.logger.log(level, "quietbit: %s", line)


def _covers(fl_ctx: FLContext) -> bool:
    """Return whether quietbit's filters stand before and after a context's task."""
    config = fl_ctx.get_prop(FLContextKey.RUNNER).config
    chains = (
        (Scope.TASK_DATA_FILTERS_NAME, config.task_data_filters, FilterKey.OUT),
        (Scope.TASK_RESULT_FILTERS_NAME, config.task_result_filters, FilterKey.IN),
    )
    return all(has_filter(PrivateReceiver, *chain, fl_ctx) for chain in chains)


def _averages(fl_ctx: FLContext) -> bool:
    """Return whether the workflow is NVFlare's own FedAvg, with its mean of all that is learnt."""
    runner = fl_ctx.get_prop(FLContextKey.RUNNER)
    workflow: Any = getattr(getattr(runner, "current_wf", None), "controller", None)
    return (
        isinstance(workflow, FedAvg)
        and type(workflow).run is FedAvg.run
        and type(workflow).update_model is BaseFedAvg.update_model
        and not (workflow.aggregator or workflow.exclude_vars or workflow.aggregation_weights)
    )
