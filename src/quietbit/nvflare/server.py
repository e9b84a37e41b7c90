"""The server's half: a filter that asks with every task, and makes differences of releases.

Idea     a release that comes back for a task is taken once, as `run.server` takes it, and becomes
         its own unbiased estimate: a difference of weights, of weight one, which any workflow that
         averages takes as it is. So does an answer about the model, asked for beside an update or
         by itself. Where rounds are replayed (`run.parts.replay`) the step is taken here, as
         clients will take it; the workflow, NVFlare's own FedAvg, adds zeros.

A client that declines, fails or is refused has no difference. NVFlare's averaging ends a job, or
empties its model, where clients send nothing; so the workflow is handed a zero difference of weight
2^-100, which is lost in rounding beside any other client's 1. Only means know weights: give these
filters to no workflow that compares single clients. Weights, headers and round are written from the
request that was asked, and never from what a client sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast, final
from weakref import WeakKeyDictionary

import numpy as np
from attrs import define, field
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException, Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_copy
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.fuel.utils import fobs

from quietbit._typing import FloatVector
from quietbit.errors import InvalidPayload, QuietbitError, check_int, refuse_payload, require
from quietbit.nvflare.client import ABOUT, TABLE, UPDATE, PrivateUplink, local_settings, number_of
from quietbit.nvflare.task import ANSWER, CRASHED, as_kind, kind_of
from quietbit.run import messages
from quietbit.run.layout import named_arrays
from quietbit.run.messages import RECORD, numbers_of, one_line
from quietbit.run.part import Asked, Part, Reply, Step
from quietbit.run.parts.evaluation import Evaluating, Evaluation
from quietbit.run.plan import PREFIX
from quietbit.run.round import Model, Round
from quietbit.run.server import Run
from quietbit.wire.downlink import Diverged

__all__ = ["NO_WEIGHT", "PrivateReceiver", "add_privacy"]

Result = TypeVar("Result")
NO_WEIGHT = 2.0**-100
RELEASE = "release"  # the field of an update in a client's result
EVENTS = (
    EventType.END_RUN,
    AppEventType.BEFORE_AGGREGATION,
    AppEventType.AFTER_SHAREABLE_TO_LEARNABLE,
)
REPORT = "quietbit-report.json"
# By engine, because NVFlare builds one filter for each chain.
_JOBS: WeakKeyDictionary[Any, _Job] = WeakKeyDictionary()
_LOCK = threading.RLock()


@final
@define(eq=False)
class _Request:
    """What one client was asked in one task: for an update, about the model, or both."""

    client: str
    name: str
    cookies: Any
    update: Asked | None = None
    about: Round | None = None  # the evaluation
    model: Model | None = None
    kind: str = ""  # of the model's arrays
    final: bool = False  # whether the step is taken here, so that the workflow must add zeros
    open: bool = True
    weight: float = 1.0

    def rounds(self) -> list[Round]:
        """Return the rounds that count it."""
        rounds = [] if self.update is None else [self.update.round]
        if self.about is not None:
            rounds.append(self.about)
        return rounds

    def take(
        self,
        current: Round,
        reply: Reply | QuietbitError,
        take: Callable[[Reply], Result | None],
    ) -> Result | None:
        """Return what a part of a result is worth; None, with a note, where it is worth nothing."""
        if isinstance(reply, QuietbitError):
            current.refuse(self.client, reply)
            return None
        try:
            result = take(reply)
        except Exception as error:  # whatever a client can make of it: the other part stands
            current.refuse(self.client, error)
            return None
        if result is not None or reply.refusal is not None:
            self.open = False
        return result

    def take_update(self, reply: Reply) -> FloatVector | None:
        """Take a release in; return its own estimate, zero where that is not for the workflow."""
        current: Round = cast(Asked, self.update).round
        if not self.final and not current.section:
            estimate = current.decode(reply)
            if estimate is None:
                return None
            flat, self.weight = estimate
            return current.lift(flat)
        if current.section:  # it has no part in the step
            self.weight = NO_WEIGHT
        if not current.take(reply):
            return None
        return np.zeros(cast(Model, self.model).layout.dimension)

    def seen(self, task: str, flat: FloatVector | None, metrics: dict[str, Any]) -> Shareable:
        """Return what the workflow sees: *trained minus received*, as NVFlare counts."""
        if self.model is None:
            result = DXO(DataKind.METRICS, data=metrics).to_shareable()
        else:
            layout = self.model.layout
            weight = self.weight
            if flat is None:
                flat = np.zeros(layout.dimension)
                weight = NO_WEIGHT
            pieces = layout.shaped(-flat)
            moved = {}
            for name, _, dtype in layout.learnt:
                moved[name] = as_kind(pieces[name].astype(dtype), self.kind)
            meta: dict[str, Any] = {MetaKey.NUM_STEPS_CURRENT_ROUND: weight}
            if metrics:
                numbers = {k: value for k, value in metrics.items() if isinstance(value, float)}
                meta[MetaKey.INITIAL_METRICS] = numbers
            result = DXO(DataKind.WEIGHT_DIFF, data=moved, meta=meta).to_shareable()
        result.set_header(ReservedKey.TASK_NAME, self.name)
        result.set_header(ReservedKey.TASK_ID, task)
        if self.update is not None:
            result.set_header(AppConstants.CURRENT_ROUND, self.update.round.number - 1)
        result.set_peer_props({ReservedKey.IDENTITY_NAME: self.client})
        if self.cookies:
            result.set_cookie_jar(self.cookies)
        return result


@final
@define(eq=False)
class _Job:
    """A job: its run, its requests by task, the round that is open, and open evaluations."""

    name: str
    run: Run
    requests: dict[str, _Request] = field(factory=dict)
    current: Round | None = None
    over: bool = False  # whether the workflow has begun to aggregate the round that is open
    stepped: bool = False  # whether its step was taken
    sizes: dict[Any, int] = field(factory=dict)  # of tasks, by what they hold but for digits
    about: dict[int | str, Round] = field(factory=dict)  # evaluations, by round or by model
    evaluated: int = 0  # the number of the last evaluation

    def open(self, number: int, model: Model) -> Round:
        """Return the round of this number; a new one closes the one before."""
        if self.current is None or self.current.number != number:
            self.close()
            crashed = self.run.all_crashed()
            if crashed is not None:
                raise QuietbitError(crashed)
            self.current = self.run.open(number, model)
        return self.current

    def evaluate(self, key: int | str, number: int = 0) -> Round:
        """Return the evaluation of a round or of a model; nodes want growing numbers."""
        if key not in self.about:
            self.evaluated = max(number, self.evaluated + 1)
            self.about[key] = self._evaluating().begin(self.run, self.evaluated)
        return self.about[key]

    def evaluation(self) -> Evaluation:
        """Return what is asked about models."""
        return self._evaluating().evaluation

    def is_due(self, number: int) -> bool:
        """Return whether a round asks about the model that it trains."""
        if self.run.find(Evaluating) is None:
            return False
        return self.evaluation().due(number, self.run.plan.releases)

    def end_evaluation(self, key: int | str) -> None:
        """Close an evaluation; what round 3 trains is reported as the model of round 2."""
        current = self.about.pop(key)
        if isinstance(key, str):
            self._evaluating().end(self.run, current, len(self.run.rounds), key)
        else:
            self._evaluating().end(self.run, current, key - 1)

    def is_late(self, request: _Request) -> bool:
        """Return whether what a request is about is over."""
        if request.update is None:
            return request.about not in self.about.values()
        if self.over or self.current is None:
            return True
        return request.update.round not in (self.current, *self.current.beside)

    def step(self, weights: dict[str, Any]) -> None:
        """Take the step that clients take themselves, where they do, in the workflow's model."""
        current = self.current
        if current is None or self.stepped or not self.is_final():
            return
        self.stepped = True  # both filters hear every event
        step = Step(None)
        try:
            step = self.run.step(current)
        except Diverged as error:
            current.not_taken(error)
        kind = kind_of(weights)
        for name, value in (step.arrays or {}).items():
            weights[name] = as_kind(value, kind)

    def is_final(self) -> bool:
        """Return whether clients take the steps of this run themselves."""
        return any(part.takes_step for part in self.run.parts)

    def close(self) -> None:
        """Count the round that is open, if one is, and its evaluations."""
        if self.current is not None:
            self.run.over(self.current)
        for key in list(self.about):
            self.end_evaluation(key)
        self.current = None
        self.over = False
        self.stepped = False
        self.sizes.clear()

    def _evaluating(self) -> Evaluating:
        evaluating = self.run.find(Evaluating)
        if evaluating is None:
            raise QuietbitError("Set quietbit.evaluate to have evaluations answered.")
        return evaluating


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
        with _LOCK:
            job = _JOBS.get(fl_ctx.get_engine()) if event_type in EVENTS else None
            if job is None:
                return
            if event_type == EventType.END_RUN:
                self._end(_JOBS.pop(fl_ctx.get_engine()), fl_ctx)
            elif event_type == AppEventType.BEFORE_AGGREGATION:
                job.over = True
            else:
                job.step(fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS])

    def _end(self, job: _Job, fl_ctx: FLContext) -> None:
        """Write the report; a job in which nobody answered ends with an error."""
        job.close()
        report = job.run.report()
        self.log_info(fl_ctx, f"\n{report}")
        report.save(Path(fl_ctx.get_workspace().get_run_dir(job.name)) / self.report)
        unanswered = report.unanswered()
        if unanswered is not None:
            self.system_panic(f"quietbit: {unanswered}", fl_ctx)

    def _ask(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Put the requests of a task beside its model."""
        name = str(fl_ctx.get_prop(FLContextKey.TASK_NAME))
        task = str(fl_ctx.get_prop(FLContextKey.TASK_ID))
        request = _Request(_peer(fl_ctx), name, shareable.get_cookie_jar())
        try:
            if name in (self.validations or ()):
                job = self._job(fl_ctx)
                self._ask_about(job, request, shareable, task)
            else:
                job = self._ask_update(request, shareable, fl_ctx)
        except Exception as error:
            # NVFlare asks again for ever where a filter of tasks fails.
            reason = one_line(str(error))
            self.system_panic(f"quietbit: the request cannot be asked: {reason}", fl_ctx)
            raise
        # A task that a client fetches again is the same request.
        job.requests.setdefault(task, request)
        return shareable

    def _ask_update(self, request: _Request, shareable: Shareable, fl_ctx: FLContext) -> _Job:
        """Ask for an update and, where it is due, about the model that is trained."""
        dxo = from_shareable(shareable)
        kind = dxo.data_kind
        require(kind == DataKind.WEIGHTS, "kind of the task's data", kind, "weights")
        header = shareable.get_header(AppConstants.CURRENT_ROUND)
        number = check_int(header, "round of the task", 0) + 1
        model = self._model(named_arrays(dxo.data), fl_ctx)
        job = self._job(fl_ctx, model, shareable.get_header(AppConstants.NUM_ROUNDS))
        current = job.open(number, model)
        (asked,) = job.run.ask(current, [Asked(request.client)])
        request.update = asked
        request.model = model
        request.kind = kind_of(dxo.data)
        request.final = job.is_final()
        if not asked.carries_model:
            DXO(dxo.data_kind, data={}, meta=dxo.meta).update_shareable(shareable)
        if not self.validations and job.is_due(number):
            request.about = job.evaluate(number, number)
        records = dict(asked.records)
        self._put(shareable, request, {UPDATE: records.pop(RECORD), **records})
        key = (asked.carries_model, *map(id, asked.records.values()))
        if key not in job.sizes:
            job.sizes[key] = _size(shareable)
        asked.size = job.sizes[key]
        asked.round.sent(asked)
        return job

    def _ask_about(self, job: _Job, request: _Request, shareable: Shareable, task: str) -> None:
        """Ask about a model; a client that was asked already is asked about a later state of it."""
        owner = shareable.get_header(AppConstants.MODEL_OWNER)
        if not owner:
            owner = from_shareable(shareable).get_meta_prop(AppConstants.MODEL_OWNER, "")
        model = one_line(str(owner))
        known = job.about.get(model)
        if task not in job.requests and known is not None and known.asked(request.client):
            job.end_evaluation(model)
        request.about = job.evaluate(model)
        self._put(shareable, request, {})

    def _put(self, shareable: Shareable, request: _Request, records: dict[str, Any]) -> None:
        """Put quietbit's record into a task: the settings, and what is asked."""
        record: dict[str, Any] = {"settings": self._plan.to_run_config(), **records}
        if request.about is not None:
            record[ABOUT] = request.about.request
            request.about.sent(Asked(request.client, request.about))
        shareable[RECORD] = record

    def _model(self, arrays: dict[str, Any], fl_ctx: FLContext) -> Model:
        """Return the model of a task, with the step that the workflow takes on a mean."""
        step = None
        if self._plan.replay is not None and _averages(fl_ctx):
            step = self._plan.replay.step
        return Model.of(arrays, self._plan, step, "the workflow is not NVFlare's plain FedAvg")

    def _job(self, fl_ctx: FLContext, model: Model | None = None, rounds: Any = None) -> _Job:
        """Return the job of an engine; a new one says what to expect of it."""
        engine = fl_ctx.get_engine()
        if engine not in _JOBS:
            name = str(fl_ctx.get_job_id())
            number = number_of(name)
            run = Run(self._plan, number, self._say, self.parts, number_of, basis=self.basis)
            if model is not None:
                run.mechanism(model.layout.dimension, 1)
            clients = len(engine.get_clients())
            planned = rounds if isinstance(rounds, int) else self._plan.releases
            run.outlook(asked=clients, nodes=clients, rounds=planned or 1)
            _JOBS[engine] = _Job(name, run)
        return _JOBS[engine]

    def _take(self, result: Any, fl_ctx: FLContext) -> Shareable:
        """Turn a result into a difference of weights, of no weight where the client has none."""
        job = _JOBS.get(fl_ctx.get_engine())
        task = str(fl_ctx.get_prop(FLContextKey.TASK_ID))
        request = None if job is None else job.requests.get(task)
        if job is None or request is None:
            raise ContentBlockedException("quietbit: a result came for a task that was not asked.")
        flat = None
        metrics: dict[str, Any] = {}
        try:
            flat, metrics = _taken(job, request, result, _peer(fl_ctx))
        except Exception as error:  # whatever a client makes its message of: it ends no job
            for current in request.rounds():
                current.refuse(request.client, error)
        seen = request.seen(task, flat, metrics)
        if not isinstance(result, Shareable):
            return seen
        # In place: NVFlare shows some of its components (model selectors) what came, not what
        # filters return.
        result.clear()
        result.update(seen)
        return result

    def _say(self, level: int, line: str) -> None:
        self.logger.log(level, "quietbit: %s", line)


def _taken(
    job: _Job, request: _Request, result: Any, sender: str
) -> tuple[FloatVector | None, dict[str, Any]]:
    """Return the estimate of a result's update, and the metrics that it tells or estimates."""
    late = job.is_late(request)
    request.rounds()[0].arrived(Reply(request.client, _size(result)))
    record = _record(request, result, sender)
    metrics: dict[str, Any] = numbers_of(record.get("metrics"))
    flat = None
    shares = None
    about = request.about
    if about is not None:
        answer = partial(about.decode, add=True)
        shares = request.take(about, _reply(request, record, ANSWER, late), answer)
    if request.update is not None:
        reply = _reply(request, record, RELEASE, late)
        flat = request.take(request.update.round, reply, request.take_update)
    if about is not None and shares is not None:
        evaluation = job.evaluation()
        metrics[evaluation.metric] = evaluation.metric_of(shares[0])
    if flat is None and shares is None:
        metrics = {}
    return flat, metrics


def _reply(
    request: _Request, record: Mapping[str, Any], name: str, late: bool
) -> Reply | QuietbitError:
    """Return one part of a client's result as a reply, or why it is not one."""
    refusal = {key: record[key] for key in ("declined", "noted") if key in record}
    said = record.get(name, refusal)
    try:
        if isinstance(said, Mapping) and set(said) == {"declined", "noted"}:
            # One that has made a release for this round, and says so, has not declined: it counts.
            noted = said["noted"] is not False
            return Reply(request.client, 0, refusal=str(said["declined"]), noted=noted)
        if not isinstance(said, bytes):
            refuse_payload("the result", "one release of bytes", one_line(str(said)))
        if late:  # it is in no mean, and hides nobody
            raise InvalidPayload("it came when the round was over.")
    except QuietbitError as error:
        return error
    records: dict[str, Any] = {RECORD: {messages.FIELD: said}}
    if CRASHED in record:
        records[messages.CRASHED] = {"traceback": record[CRASHED]}
    return Reply(request.client, 0, records, numbers_of(record.get("metrics")))


def _record(request: _Request, result: Any, sender: str) -> Mapping[str, Any]:
    """Return the fields of a client's result; refuse what is not an answer to the request."""
    if not request.open:
        raise InvalidPayload("it has answered this task already.")
    if sender != request.client:
        refuse_payload("client of the result", request.client, one_line(sender))
    record = result.get(RECORD) if isinstance(result, Mapping) else None
    if not isinstance(record, Mapping):
        code = result.get_return_code() if isinstance(result, Shareable) else None
        if code != ReturnCode.OK:  # the engine's word: a release may have been noted, and lost
            return {"declined": str(code), "noted": True}
        raise InvalidPayload(
            "The result must hold one quietbit release, got none "
            "(is PrivateUplink among the client's filters?)."
        )
    known = {"declined", "noted", "metrics", CRASHED}
    if request.update is not None:
        known.add(RELEASE)
    if request.about is not None:
        known.add(ANSWER)
    if not set(record) <= known:
        refuse_payload(
            "the result",
            "one release of bytes",
            f"the fields {one_line(str(sorted(map(str, record))))}",
        )
    return record


def _averages(fl_ctx: FLContext) -> bool:
    """Whether the workflow is NVFlare's own FedAvg with its own mean of all that is learnt."""
    found: Any = getattr(
        getattr(fl_ctx.get_prop(FLContextKey.RUNNER), "current_wf", None), "controller", None
    )
    return (
        isinstance(found, FedAvg)
        and type(found).run is FedAvg.run
        and type(found).update_model is BaseFedAvg.update_model
        and not (found.aggregator or found.exclude_vars or found.aggregation_weights)
    )


def _peer(fl_ctx: FLContext) -> str:
    peer = fl_ctx.get_peer_context()
    return str(peer.get_identity_name()) if isinstance(peer, FLContext) else ""


def _size(shareable: Any) -> int:
    """Return the bytes of a message as NVFlare serialises it.

    Without what the server notes in it when it comes.
    """
    sent = (
        make_copy(shareable, [ReservedHeaderKey.PEER_PROPS])
        if isinstance(shareable, Shareable)
        else shareable
    )
    return len(fobs.dumps(sent))


def add_privacy(
    recipe: Any,
    settings: Mapping[str, Any],
    *,
    tasks: Sequence[str] = ("train",),
    simulation: bool = False,
    seed: int | None = None,
    metrics: Sequence[str] = (),
    validations: Sequence[str] = (),
    basis: str | None = None,
) -> None:
    """Put quietbit's filters around the training ``tasks`` of a recipe.

    ``settings`` are the keys of a run config.

    ``simulation``, ``seed`` and ``metrics`` are for NVFlare's simulator; on a site its owner's
    policy decides. Where the settings evaluate, ``validations`` are the tasks that ask for the
    metric of a model; without any, every training task asks for that of the model it brings, beside
    the update. ``basis`` is the path of an .npy file with the directions of a subspace, on the
    server, and where `quietbit.subspace.basis` says so on sites, too.
    Tasks that are not named, exactly, are not run on the clients. The job carries no
    copy of quietbit: sites use their own.
    """
    known = local_settings(settings)
    names = [*tasks, *validations]
    fine = bool(names) and all(isinstance(name, str) and name and "*" not in name for name in names)
    require(fine, "tasks", names, "names of tasks, without patterns")
    job = recipe._job.job  # there is no public way to it
    job.set_app_packages([*job.app_packages, "quietbit"])
    table: dict[str, Any] = {}
    for key, value in known.to_run_config().items():  # a dot in a key does not survive a deployment
        outer, _, inner = key.removeprefix(PREFIX).partition(".")
        table |= {outer: table.get(outer, {}) | {inner: value}} if inner else {outer: value}
    receiver = partial(
        PrivateReceiver, {TABLE: table}, validations=list(validations) or None, basis=basis
    )
    uplink = partial(
        PrivateUplink,
        simulation,
        seed,
        list(metrics) or None,
        basis if known.app_basis else None,
    )
    recipe.add_server_output_filter(receiver(), tasks=names)
    recipe.add_server_input_filter(receiver(), tasks=names)
    recipe.add_client_input_filter(uplink(), tasks=names)
    recipe.add_client_output_filter(uplink(), tasks=names)
