"""The server's half: a filter that puts quietbit's request beside the model, and makes differences of releases.

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
from typing import Any, cast, final
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
from quietbit.mechanism.abilities import Scouted, is_unmasked
from quietbit.nvflare.client import ABOUT, TABLE, UPDATE, PrivateUplink, local_settings, number_of
from quietbit.nvflare.task import ANSWER, CRASHED, as_kind, kind_of
from quietbit.run.layout import ModelLayout, named_arrays
from quietbit.run.messages import (
    ENCLOSED,
    MODEL,
    RECORD,
    SPEED,
    evaluation_of,
    numbers_of,
    one_line,
    request_record,
)
from quietbit.run.part import Part
from quietbit.run.parts.evaluation import Evaluation
from quietbit.run.plan import PREFIX
from quietbit.run.server import Round, Run
from quietbit.wire.downlink import Diverged
from quietbit.wire.uplink import EXAMPLES

__all__ = ["NO_WEIGHT", "PrivateReceiver", "add_privacy"]

NO_WEIGHT = 2.0**-100
EVENTS = (
    EventType.END_RUN,
    AppEventType.BEFORE_AGGREGATION,
    AppEventType.AFTER_SHAREABLE_TO_LEARNABLE,
)
REPORT = "quietbit-report.json"
_JOBS: WeakKeyDictionary[Any, _Job] = (
    WeakKeyDictionary()
)  # by engine: NVFlare builds one filter for each chain
_LOCK = threading.RLock()


@final
@define(eq=False, kw_only=True)
class _Evaluation(Round):
    """Requests about one model, whose answers are decoded one by one."""

    request: Evaluation
    _total: Any = field(default=0.0, init=False)

    def answer(self, client: str, data: bytes) -> dict[str, float | list[float]]:
        """Take an answer in; return the metric that it estimates by itself."""
        shares, _ = self.decode(client, number_of(client), data)
        self._total = self._total + shares
        return {self.request.metric: self.request.metric_of(shares)}

    def mean(self) -> FloatVector | None:
        """Return the mean of the answers; None where there is none."""
        return self._total / len(self.answered) if self.answered else None


@final
@define(eq=False)
class _Request:
    """What one client was asked in one task: for an update (``round``), about the model, or both."""

    client: str
    name: str
    cookies: Any
    round: Round | None = None
    evaluation: _Evaluation | None = None
    layout: ModelLayout | None = None
    kind: str = ""
    replayed: bool = False
    missed: int | None = None  # how many rounds came in the model's place
    open: bool = True
    weight: float = 1.0

    def rounds(self) -> list[Round]:
        """Return the rounds that count it."""
        return [current for current in (self.round, self.evaluation) if current is not None]

    def taken(self, current: Round, said: Any, take: Callable[[bytes], Any], late: bool) -> Any:
        """Return what one part of an answer is worth; None, and a line in the report, where it is worth nothing."""
        try:
            if isinstance(said, Mapping) and set(said) == {"declined", "noted"}:
                self.open = False
                # One that has made a release for this round, and says so, has not declined: it
                # counts.
                note = current.decline if said["noted"] is False else current.silent
                note(self.client, said["declined"])
                return None
            if not isinstance(said, bytes):
                refuse_payload("the result", "one release of bytes", one_line(str(said)))
            if late:  # it is in no mean, and hides nobody
                raise InvalidPayload("it came when the round was over.")
            found, self.open = take(said), False
            return found
        except Exception as error:  # whatever a client can make of it: the other part stands
            current.refuse(self.client, error)
            return None

    def update(self, data: bytes, examples: float | None) -> FloatVector:
        """Take a release in; return the estimate that it is by itself, or zero: of a scout, or of a mean taken here."""
        current, layout = cast(Round, self.round), cast(ModelLayout, self.layout)
        release = self.client, number_of(self.client), data, examples
        if is_unmasked(current.mechanism):
            self.weight = NO_WEIGHT
        if self.replayed or is_unmasked(current.mechanism):
            current.add(*release)
            return np.zeros(layout.dimension)
        flat, self.weight = current.decode(*release)
        return current.lift(flat)

    def seen(self, task: str, flat: FloatVector | None, metrics: dict[str, Any]) -> Shareable:
        """Return what the workflow sees of a client: *trained minus received*, as NVFlare counts, and from whom."""
        if self.layout is None:
            found = DXO(DataKind.METRICS, data=metrics).to_shareable()
        else:
            pieces = self.layout.shaped(np.zeros(self.layout.dimension) if flat is None else -flat)
            moved = {
                name: as_kind(pieces[name].astype(dtype), self.kind)
                for name, _, dtype in self.layout.learnt
            }
            meta: dict[str, Any] = {
                MetaKey.NUM_STEPS_CURRENT_ROUND: NO_WEIGHT if flat is None else self.weight
            }
            if metrics:
                meta[MetaKey.INITIAL_METRICS] = {
                    name: one for name, one in metrics.items() if isinstance(one, float)
                }
            found = DXO(DataKind.WEIGHT_DIFF, data=moved, meta=meta).to_shareable()
        found.set_header(ReservedKey.TASK_NAME, self.name)
        found.set_header(ReservedKey.TASK_ID, task)
        if self.round is not None:
            found.set_header(AppConstants.CURRENT_ROUND, self.round.number - 1)
        found.set_peer_props({ReservedKey.IDENTITY_NAME: self.client})
        if self.cookies:
            found.set_cookie_jar(self.cookies)
        return found


@final
@define(eq=False)
class _Job:
    """A job: its run, its requests by task, the round that is open, and the evaluations that are."""

    name: str
    run: Run
    requests: dict[str, _Request] = field(factory=dict)
    current: Round | None = None
    over: bool = False  # whether the workflow has begun to aggregate the round that is open, and
    stepped: bool = False  # whether its step was taken
    sizes: dict[Any, int] = field(
        factory=dict
    )  # of its tasks, by what they hold: the same but for digits
    evaluations: dict[int | str, _Evaluation] = field(factory=dict)  # by round or by model
    asked: int = 0  # the number of the last evaluation

    def evaluate(self, key: int | str, number: int = 0) -> _Evaluation:
        """Return the evaluation of a round or of a model; numbers only grow, as nodes want them to."""
        if key not in self.evaluations:
            about, self.asked = evaluation_of(self.run.plan), max(number, self.asked + 1)
            opened = self.run.open(
                _Evaluation, self.asked, about.mechanism, evaluates=True, request=about
            )
            self.evaluations[key] = opened
        return self.evaluations[key]

    def evaluated(self, key: int | str) -> None:
        """Count an evaluation that is over; what round 3 trains is the model of round 2, and reported as that."""
        one = self.evaluations.pop(key)
        if isinstance(key, str):
            self.run.evaluated(one, len(self.run.rounds), key)
        else:
            self.run.evaluated(one, key - 1)

    def open(self, number: int, model: dict[str, Any], layout: ModelLayout, plain: bool) -> Round:
        """Return the round of this number; a new one closes the one before, after which a clip may have moved."""
        if self.current is None or self.current.number != number:
            self.close()
            run, plan = self.run, self.run.plan
            crashed = run.all_crashed()
            if crashed is not None:
                raise QuietbitError(crashed)
            mechanism = run.mechanism(layout.dimension, number)
            self.current = run.open(Round, number, mechanism)
            if plan.scouts is not None:
                self.current.scouts = run.open(Round, number, Scouted.of(mechanism).scout())
            step = plan.replay.step if plan.replay is not None and plain else None
            run.lead(number, model, layout, step, "the workflow is not NVFlare's plain FedAvg")
        return self.current

    def late(self, request: _Request) -> bool:
        """Return whether what a request is about is over."""
        if request.round is None:
            return request.evaluation not in self.evaluations.values()
        return (
            self.over
            or self.current is None
            or request.round not in (self.current, self.current.scouts)
        )

    def step(self, weights: dict[str, Any]) -> None:
        """Take the step that clients will replay, and put what it leads to into the workflow's model."""
        leader, current = self.run.leader, self.current
        if leader is None or current is None or self.stepped:  # both filters hear every event
            return
        self.stepped = True
        mean, kind = current.kept(), kind_of(weights)
        try:
            if mean is not None:
                leader.advance(mean, current.mechanism, current.number)
        except Diverged as error:
            current.reasons.append(f"the step was not taken: {error}")
        weights.update({name: as_kind(value, kind) for name, value in leader.arrays().items()})

    def close(self) -> None:
        """Count the round that is open, if one is."""
        if self.current is not None:
            self.run.close(self.current)
        for key in list(self.evaluations):
            self.evaluated(key)
        self.current, self.over, self.stepped = None, False, False
        self.sizes.clear()


@final
class PrivateReceiver(Filter):  # type: ignore[misc]
    """A filter for the data and the results of the server's training task: `add_privacy` registers it.

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
        self.settings, self.report, self.validations = dict(settings), report, validations
        self.basis = basis
        self._settings = local_settings(settings)
        self.parts: tuple[Part, ...] = ()  # capabilities of your own, given before the job starts
        require(Path(report).name == report, "report", report, "the name of a file")
        rule = "left out unless quietbit.evaluate is set"
        require(
            not validations or self._settings.evaluation is not None,
            "validations",
            validations,
            rule,
        )

    def _say(self, level: int, line: str) -> None:
        self.logger.log(level, "quietbit: %s", line)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Ask with a task that goes out, decode one that comes back; anything else raises."""
        where = (
            self.get_prop(FilterContextKey.CHAIN_TYPE),
            fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION),
        )
        with _LOCK:
            if where == (FilterChainType.TASK_DATA_CHAIN, FilterKey.OUT):
                return self._ask(shareable, fl_ctx)
            if where == (FilterChainType.TASK_RESULT_CHAIN, FilterKey.IN):
                return self._take(shareable, fl_ctx)
        raise ContentBlockedException(
            f"quietbit: nothing is received this way: {where[0]} going {where[1]}."
        )

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Follow the workflow's rounds; write the report when the job ends, with an error where nobody answered."""
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
        job.close()
        found = job.run.report()
        self.log_info(fl_ctx, f"\n{found}")
        found.save(Path(fl_ctx.get_workspace().get_run_dir(job.name)) / self.report)
        if (nobody := found.unanswered()) is not None:
            self.system_panic(f"quietbit: {nobody}", fl_ctx)

    def _ask(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        name, task = (
            str(fl_ctx.get_prop(key)) for key in (FLContextKey.TASK_NAME, FLContextKey.TASK_ID)
        )
        request = _Request(_peer(fl_ctx), name, shareable.get_cookie_jar())
        asked: dict[str, Any] = {"settings": self._settings.to_run_config()}
        try:
            if name in (self.validations or ()):
                job = self._validation(request, shareable, fl_ctx, task)
            else:
                job = self._training(request, shareable, fl_ctx, asked)
        except Exception as error:
            # NVFlare asks again for ever where a filter of tasks fails.
            self.system_panic(
                f"quietbit: the request cannot be asked: {one_line(str(error))}", fl_ctx
            )
            raise
        if (about := request.evaluation) is not None:
            asked[ABOUT] = request_record(about.number, about.mechanism)
            about.sent(request.client, 0)
        shareable[RECORD] = asked
        if request.round is not None:
            what = request.missed, request.round is job.current, ENCLOSED in asked
            if what not in job.sizes:
                job.sizes[what] = _size(shareable)
            request.round.sent(request.client, job.sizes[what])
        job.requests.setdefault(
            task, request
        )  # a task that a client fetches again is the same request
        return shareable

    def _training(
        self, request: _Request, shareable: Shareable, fl_ctx: FLContext, asked: dict[str, Any]
    ) -> _Job:
        """Ask for an update and, where it is due, about the model that is trained; a replayed one is left out."""
        dxo, evaluates = from_shareable(shareable), self._settings.evaluation
        require(
            dxo.data_kind == DataKind.WEIGHTS, "kind of the task's data", dxo.data_kind, "weights"
        )
        model = named_arrays(dxo.data)
        layout = ModelLayout.of(model, self._settings)
        number = (
            check_int(shareable.get_header(AppConstants.CURRENT_ROUND), "round of the task", 0) + 1
        )
        job = self._job(fl_ctx, layout.dimension, shareable.get_header(AppConstants.NUM_ROUNDS))
        current = job.open(number, model, layout, _averages(fl_ctx))
        if (
            not self.validations
            and evaluates is not None
            and evaluates.due(number, self._settings.releases)
        ):
            request.evaluation = job.evaluate(number, number)
        if current.scouts is not None and job.run.scouts(
            current.mechanism, number, number_of(request.client)
        ):
            current = current.scouts
        asked[UPDATE], leader = request_record(number, current.mechanism), job.run.leader
        request.round, request.layout, request.kind = current, layout, kind_of(dxo.data)
        enclosed = job.run.enclosed(request.client)
        if enclosed:
            asked[ENCLOSED] = enclosed
        if leader is not None:
            request.replayed, missed = True, leader.missed(request.client)
            asked[MODEL], request.missed = (
                leader.record(missed),
                None if missed is None else len(missed),
            )
            if missed is not None:
                DXO(dxo.data_kind, data={}, meta=dxo.meta).update_shareable(shareable)
            elif leader.speed is not None:
                asked[SPEED] = leader.speed
        return job

    def _validation(
        self, request: _Request, shareable: Shareable, fl_ctx: FLContext, task: str
    ) -> _Job:
        """Ask about a model; a client that was asked about it in another task is asked about a later state of it."""
        said = from_shareable(shareable).get_meta_prop(AppConstants.MODEL_OWNER, "")
        model, job = (
            one_line(str(shareable.get_header(AppConstants.MODEL_OWNER) or said)),
            self._job(fl_ctx),
        )
        if (
            task not in job.requests
            and model in job.evaluations
            and job.evaluations[model].asked(request.client)
        ):
            job.evaluated(model)
        request.evaluation = job.evaluate(model)
        return job

    def _job(self, fl_ctx: FLContext, dimension: int | None = None, rounds: Any = None) -> _Job:
        engine = fl_ctx.get_engine()
        if engine not in _JOBS:
            name = str(fl_ctx.get_job_id())
            run = Run(self._settings, number_of(name), self._say, self.parts, self.basis)
            if dimension is not None:
                run.mechanism(dimension, 1)
            clients, planned = (
                len(engine.get_clients()),
                rounds if isinstance(rounds, int) else self._settings.releases,
            )
            run.outlook(asked=clients, nodes=clients, rounds=planned or 1)
            _JOBS[engine] = _Job(name, run)
        return _JOBS[engine]

    def _take(self, result: Any, fl_ctx: FLContext) -> Shareable:
        """Turn a result into a difference of weights, of no weight where the client has none to give."""
        job, task = _JOBS.get(fl_ctx.get_engine()), str(fl_ctx.get_prop(FLContextKey.TASK_ID))
        request = job.requests.get(task) if job is not None else None
        if job is None or request is None:
            raise ContentBlockedException("quietbit: a result came for a task that was not asked.")
        flat, metrics, late = None, dict[str, Any](), job.late(request)
        try:
            first = request.rounds()[0]
            first.arrived(request.client, _size(result))
            record = _record(request, result, _peer(fl_ctx))
            refusal = {name: record[name] for name in ("declined", "noted") if name in record}
            told, about = numbers_of(record.get("metrics")), None
            if (evaluation := request.evaluation) is not None:
                answer = partial(evaluation.answer, request.client)
                about = request.taken(evaluation, record.get(ANSWER, refusal), answer, late)
            if request.round is not None:
                update = partial(request.update, examples=told.get(EXAMPLES))
                flat = request.taken(request.round, record.get("release", refusal), update, late)
            if flat is not None or about is not None:
                metrics = told | (about or {})
                first.crashed(record.get(CRASHED))
        except (
            Exception
        ) as error:  # whatever a client can make its message of: nothing of it ends the job
            for current in request.rounds():
                current.refuse(request.client, error)
        found = request.seen(task, flat, metrics)
        if not isinstance(result, Shareable):
            return found
        # In place: NVFlare shows some of its components (model selectors) what came, not what
        # filters return.
        result.clear()
        result.update(found)
        return result


def _record(request: _Request, result: Any, sender: str) -> Mapping[str, Any]:
    """Return what a client says to a request, part by part; what is not an answer to it is refused."""
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
            "The result must hold one quietbit release, got none (is PrivateUplink among the client's filters?)."
        )
    parts = {"release": request.round, ANSWER: request.evaluation}
    asked = {name for name, part in parts.items() if part is not None}
    if not set(record) <= asked | {"declined", "noted", "metrics", CRASHED}:
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
    """Return the bytes of a message as NVFlare serialises it, without what the server notes in it when it comes."""
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
    """Put quietbit's filters around the training ``tasks`` of a recipe; ``settings`` are the keys of a run config.

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
