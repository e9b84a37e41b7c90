"""The server's half: a filter that puts quietbit's question beside the model, and makes differences of releases.

Idea     a task that goes out says which round it is, which mechanism the server will decode with and what the run
         promises. A release that comes back is taken only if it is the first for the task that it answers, made for
         this job, this round and this client, by this mechanism, whole to its last bit. It becomes its own unbiased
         estimate: a difference of weights, of weight one, which any workflow that averages takes as it is. The mean of
         estimates is the estimate of the mean, so that nothing is lost by decoding clients one by one.

A client that declines, fails or is refused has no difference. NVFlare's averaging ends a job, or empties its model,
where clients send nothing; so the workflow is handed a zero difference of weight 2^-100, which is lost in rounding
beside any other client's 1, and leaves the model as it is where nobody sent anything. Only means know weights: give
these filters to a workflow that averages, and to none that compares single clients.

Weights, headers and round are written from the question that was asked, and never from what a client sent.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np
from attrs import define, field
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException, Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_copy
from nvflare.app_common.app_constant import AppConstants
from nvflare.fuel.utils import fobs

from quietbit._typing import FloatVector
from quietbit.arrays import is_tensor
from quietbit.engine.layout import Layout
from quietbit.engine.messages import RECORD, Request, finite, one_line
from quietbit.engine.outlook import outlook
from quietbit.engine.report import NodeCounts, NodeReport, Report, RoundReport
from quietbit.errors import InvalidPayload, check_int, refuse_payload, require
from quietbit.mechanism.base import Answers, Mechanism
from quietbit.mechanism.registry import identity_of
from quietbit.node.question import Framed, run_name
from quietbit.nvflare.arrays import differences, named
from quietbit.nvflare.client import local_settings, number_of
from quietbit.plan.clip import MovingClip
from quietbit.plan.plan import Plan
from quietbit.wire.uplink import Uplink

__all__ = ["NO_WEIGHT", "PrivateReceiver"]

NO_WEIGHT = 2.0**-100
REPORT = "quietbit-report.json"
_RUNS: WeakKeyDictionary[Any, _Run] = WeakKeyDictionary()  # by engine: NVFlare builds one filter for each chain
_LOCK = threading.RLock()


@final
@define(eq=False)
class _Question:
    """What one client was asked in one task."""

    client: str
    round: _Round
    name: str
    cookies: Any
    layout: Layout
    tensors: frozenset[str]
    open: bool = True


@final
@define(eq=False)
class _Round:
    """A round: its mechanism, its counts, why some have no answer, and what answers say about a clip that moves."""

    number: int
    mechanism: Mechanism
    clip: float | None
    counts: Counter[str] = field(factory=Counter)
    reasons: list[str] = field(factory=list)
    task_size: int | None = None
    answers: list[Answers] = field(factory=list)
    releases: int | None = None  # the most of one client when the round was over

    def about_clip(self) -> Answers | None:
        """The mean of what single clients said; their bits are independent and lie equally often."""
        if not self.answers:
            return None
        count = len(self.answers)
        share = sum(answer.share for answer in self.answers) / count
        return Answers(share, self.answers[0].deviation / math.sqrt(count))


@final
@define(eq=False)
class _Run:
    """All questions and answers of a job."""

    settings: Plan
    job: str
    mechanism: Mechanism
    account: NodeCounts
    moving: MovingClip | None
    questions: dict[str, _Question] = field(factory=dict)
    rounds: dict[int, _Round] = field(factory=dict)

    def open(self, number: int) -> _Round:
        """The round of this number; a new one closes the one before, after which a clip may have moved."""
        if number not in self.rounds:
            mechanism, clip = self.mechanism.for_round(run_name(number_of(self.job)), number), None
            last = next(reversed(self.rounds.values())) if self.rounds else None
            if last is not None:
                last.releases = self.most()
            if self.moving is not None:
                if last is not None:
                    self.moving.move(last.about_clip())
                clip = self.moving.clip
                mechanism = mechanism.at_clip(clip)
            self.rounds[number] = _Round(number, mechanism, clip)
        return self.rounds[number]

    def most(self) -> int:
        """Return the most releases that one client can have made so far."""
        return max((node.releases for node in self.account.nodes.values()), default=0)

    def note(self, question: _Question, what: str, reason: str = "") -> None:
        """Count an answer, with the reason why it is none."""
        question.round.counts[what] += 1
        if what in ("answered", "declined", "refused"):
            counts = self.account.node(question.client)
            setattr(counts, what, getattr(counts, what) + 1)
        if reason:
            question.round.reasons.append(f"{question.client} {reason}")

    def report(self) -> Report:
        """Rounds, clients, bytes and the guarantee of the worst client."""
        cost = self.settings.release(self.mechanism)

        def upper(releases: int) -> float:
            return self.account.guarantee(cost, releases).epsilon_upper

        rounds = tuple(
            RoundReport(
                number, entry.counts["asked"], entry.counts["answered"], entry.counts["declined"],
                _failed(entry.counts), entry.counts["refused"], not entry.counts["answered"], entry.counts["payload"],
                entry.counts["uplink"], entry.counts["downlink"], tuple(entry.reasons), clip=entry.clip,
                epsilon_upper=upper(self.most() if entry.releases is None else entry.releases),
            )
            for number, entry in sorted(self.rounds.items())
        )  # fmt: skip
        nodes = tuple(
            NodeReport(
                name, counts.asked, counts.answered, counts.declined, _failed(asdict(counts)), counts.refused,
                counts.releases, upper(counts.releases),
            )
            for name, counts in sorted(self.account.nodes.items(), key=lambda entry: str(entry[0]))
        )  # fmt: skip
        identity, dimension = identity_of(self.mechanism).hex(), self.mechanism.domain.dimension
        run, worst = number_of(self.job), self.account.worst(cost)
        return Report(self.settings, run, identity, dimension, rounds, nodes, worst)


@final
class PrivateReceiver(Filter):  # type: ignore[misc]
    """A filter for the data and the results of the server's training task: `add_privacy` registers it.

    ``settings`` are the keys of a run config (`quietbit.plan.plan` has the table). The report is written into the
    job's folder when the job ends, under the name ``report``, and logged.
    """

    def __init__(self, settings: dict[str, Any], report: str = REPORT) -> None:
        """Read the settings; those of another trust than local are refused."""
        super().__init__()
        self.settings, self.report = dict(settings), report
        self._settings = local_settings(settings)
        require(Path(report).name == report, "report", report, "the name of a file")

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Ask with a task that goes out, decode one that comes back; anything else raises."""
        where = self.get_prop(FilterContextKey.CHAIN_TYPE), fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION)
        with _LOCK:
            if where == (FilterChainType.TASK_DATA_CHAIN, FilterKey.OUT):
                return self._ask(shareable, fl_ctx)
            if where == (FilterChainType.TASK_RESULT_CHAIN, FilterKey.IN):
                return self._take(shareable, fl_ctx)
        raise ContentBlockedException(f"quietbit: nothing is received this way: {where[0]} going {where[1]}.")

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Write the report when the job ends."""
        if event_type != EventType.END_RUN:
            return
        with _LOCK:
            run = _RUNS.pop(fl_ctx.get_engine(), None)
        if run is not None:
            found = run.report()
            self.log_info(fl_ctx, f"\n{found}")
            found.save(Path(fl_ctx.get_workspace().get_run_dir(run.job)) / self.report)

    def _ask(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        try:
            dxo = from_shareable(shareable)
            require(dxo.data_kind == DataKind.WEIGHTS, "kind of the task's data", dxo.data_kind, "weights")
            layout = Layout.of(named(dxo.data), self._settings)
            number = check_int(shareable.get_header(AppConstants.CURRENT_ROUND), "round of the task", 0) + 1
            run = self._run(fl_ctx, layout.dimension, shareable.get_header(AppConstants.NUM_ROUNDS))
        except Exception as error:
            # NVFlare asks again for ever where a filter of tasks fails.
            self.system_panic(f"quietbit: the question cannot be asked: {one_line(str(error))}", fl_ctx)
            raise
        task, client = str(fl_ctx.get_prop(FLContextKey.TASK_ID)), _peer(fl_ctx)
        current = run.open(number)
        shareable[RECORD] = {
            "settings": self._settings.to_run_config(),
            "request": Request.of(number, current.mechanism).to_record(),
        }
        if current.task_size is None:
            current.task_size = _size(shareable)  # the same for all clients, but for digits
        current.counts["downlink"] += current.task_size
        if task not in run.questions:  # a task that a client fetches again is the same question
            tensors = frozenset(name for name, value in dxo.data.items() if is_tensor(value))
            name, cookies = fl_ctx.get_prop(FLContextKey.TASK_NAME), shareable.get_cookie_jar()
            question = _Question(client, current, str(name), cookies, layout, tensors)
            run.questions[task] = question
            run.account.node(client).asked += 1
            run.note(question, "asked")
        return shareable

    def _run(self, fl_ctx: FLContext, dimension: int, rounds: Any) -> _Run:
        engine = fl_ctx.get_engine()
        run = _RUNS.get(engine)
        if run is None:
            mechanism = self._settings.mechanism_for(dimension)
            job = str(fl_ctx.get_job_id())
            moving = self._settings.moving_clip()
            run = _RUNS[engine] = _Run(self._settings, job, mechanism, NodeCounts(self._settings.target), moving)
            clients, planned = len(engine.get_clients()), rounds if isinstance(rounds, int) else self._settings.releases
            for level, line in outlook(self._settings, mechanism, asked=clients, nodes=clients, rounds=planned or 1):
                (self.log_warning if level > logging.INFO else self.log_info)(fl_ctx, f"quietbit: {line}")
        known = run.mechanism.domain.dimension
        require(dimension == known, "number of parameters", dimension, f"{known}, as in earlier rounds")
        return run

    def _take(self, result: Any, fl_ctx: FLContext) -> Shareable:
        """A difference of weights; of no weight where the client has none to give."""
        run, task = _RUNS.get(fl_ctx.get_engine()), str(fl_ctx.get_prop(FLContextKey.TASK_ID))
        question = run.questions.get(task) if run is not None else None
        if run is None or question is None:
            raise ContentBlockedException("quietbit: a result came for a task that was not asked.")
        flat: FloatVector | None = None
        metrics: dict[str, float] = {}
        try:
            question.round.counts["uplink"] += _size(result)
            flat, metrics = self._decoded(run, question, result, fl_ctx)
        except Exception as error:  # whatever a client can make its message of: nothing of it ends the job
            run.note(question, "refused", f"was refused: {one_line(str(error))}")
        found = _difference(question, task, flat, metrics)
        if not isinstance(result, Shareable):
            return found
        # In place: NVFlare shows some of its components (model selectors) what came, not what filters return.
        result.clear()
        result.update(found)
        return result

    def _decoded(
        self, run: _Run, question: _Question, result: Any, fl_ctx: FLContext
    ) -> tuple[FloatVector | None, dict[str, float]]:
        """The estimate in a result, and the numbers beside it; None where the client said why there is none."""
        if not question.open:
            raise InvalidPayload("it has answered this task already.")
        name = _peer(fl_ctx)
        if name != question.client:
            refuse_payload("client of the result", question.client, one_line(name))
        record = result.get(RECORD) if isinstance(result, Mapping) else None
        if not isinstance(record, Mapping):
            code = result.get_return_code() if isinstance(result, Shareable) else None
            if code != ReturnCode.OK:  # the engine's word: a release may have been noted, and lost
                question.open = False
                question.round.reasons.append(f"{question.client} did not answer: {one_line(str(code))}")
                return None, {}
            raise InvalidPayload(
                "The result must hold one quietbit release, got none (is PrivateUplink among the client's filters?)."
            )
        if set(record) == {"declined", "noted"}:
            question.open = False
            said = one_line(str(record["declined"]))
            if record["noted"] is False:
                run.note(question, "declined", f"did not answer: {said}")
            else:  # it has made a release for this round, which counts
                question.round.reasons.append(f"{question.client} did not answer: {said}")
            return None, {}
        if not set(record) <= {"release", "metrics"} or not isinstance(record.get("release"), bytes):
            refuse_payload(
                "the result", "one release of bytes", f"the fields {one_line(str(sorted(map(str, record))))}"
            )
        release = Framed.from_bytes(record["release"])
        release.expect(number_of(run.job), question.round.number, number_of(question.client))
        received = Uplink(question.round.mechanism).collect([release.payload])
        metrics = _metrics(record.get("metrics"))
        question.open = False
        run.note(question, "answered")
        question.round.counts["payload"] += len(release.payload)
        if received.answers is not None:
            question.round.answers.append(received.answers)
        return received.mean, metrics


def _failed(counts: Mapping[str, int]) -> int:
    """How many questions were neither answered nor declined, nor had an answer that was refused."""
    return max(0, counts["asked"] - counts["answered"] - counts["declined"] - counts["refused"])


def _difference(question: _Question, task: str, flat: FloatVector | None, metrics: dict[str, float]) -> Shareable:
    """What the workflow sees of a client: *trained minus received*, as NVFlare counts, and who it is from."""
    dimension = question.layout.dimension
    moved = differences(question.layout, np.zeros(dimension) if flat is None else -flat, question.tensors)
    meta: dict[str, Any] = {MetaKey.NUM_STEPS_CURRENT_ROUND: NO_WEIGHT if flat is None else 1.0}
    if metrics:
        meta[MetaKey.INITIAL_METRICS] = metrics
    found = DXO(DataKind.WEIGHT_DIFF, data=moved, meta=meta).to_shareable()
    found.set_header(ReservedKey.TASK_NAME, question.name)
    found.set_header(ReservedKey.TASK_ID, task)
    found.set_header(AppConstants.CURRENT_ROUND, question.round.number - 1)
    found.set_peer_props({ReservedKey.IDENTITY_NAME: question.client})
    if question.cookies:
        found.set_cookie_jar(question.cookies)
    return found


def _peer(fl_ctx: FLContext) -> str:
    peer = fl_ctx.get_peer_context()
    return str(peer.get_identity_name()) if isinstance(peer, FLContext) else ""


def _metrics(numbers: Any) -> dict[str, float]:
    """Return the finite numbers that a client let through."""
    found = numbers if isinstance(numbers, Mapping) else {}
    values = {one_line(str(name)): finite(value) for name, value in found.items()}
    return {name: value for name, value in values.items() if value is not None}


def _size(shareable: Any) -> int:
    """Bytes of a message as NVFlare serialises it, without what the server notes in it when it comes."""
    sent = make_copy(shareable, [ReservedHeaderKey.PEER_PROPS]) if isinstance(shareable, Shareable) else shareable
    return len(fobs.dumps(sent))
