"""The client's half: a Flower mod that lets one private release out and nothing else.

Idea     a request is checked against the owner's policy and noted in the ledger before the app is
         called. What leaves afterwards is one release, whatever the app does, and the numbers that
         the policy names, 0 where the app has none. Steps of a masked sum that need no update are
         answered without the app. Evaluations and queries without a price are answered with those
         numbers, or a constant. A node that will not answer says so in an error reply.
Frames   Flower sends the text of whatever this mod raises to the server. So on an owned node the
         engine's thread only waits (`node.guard`): a worker decides and makes the reply, the app
         has a thread of its own, and what the app answers is read there, too. The zero release is
         made before the app begins; it leaves at its moment where no other reply is complete by
         then.

In Flower's simulation runtime there is no owner, and whoever runs it is the server too: without a
policy the rules of `Simulation` hold, an app that crashed is reported with its traceback, and
nothing is guarded.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from logging import ERROR, INFO
from typing import Any, NamedTuple, TypeAlias, final

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import ErrorCode
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.supercore import log

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.flower.patches import in_simulation, refuse_lifespans
from quietbit.node.answer_time import AnswerTime
from quietbit.node.gatekeeper import Gate
from quietbit.node.guard import Outbox, guarded, quiet_handlers
from quietbit.node.policy import Simulation
from quietbit.node.request import ALONE, VECTOR, Request
from quietbit.run import messages
from quietbit.run.batch import serving
from quietbit.run.client import Turn, client_parts, gate_for, own_keys, plan_of, refusal
from quietbit.run.messages import ENCLOSED, MODEL, RECORD, SPEED, SUM, read_request
from quietbit.run.part import Part
from quietbit.run.parts.evaluation import Evaluation
from quietbit.run.parts.replay import Follower
from quietbit.run.parts.subspace import Basis
from quietbit.run.plan import Plan

__all__ = ["PrivateUplink"]

ARRAYS = "arrays"  # where Flower's strategies put the model
OURS = (RECORD, SUM, MODEL)  # our records in a node's state
CallNext: TypeAlias = Callable[[Message, Context], Message]
SIMULATED = (
    "simulated nodes have no owner: they answer whatever the run asks, within the run's own budget. On "
    "a SuperNode the policy of its owner decides, and without one nothing is released (`quietbit node "
    "init`)."
)
FAILED = "This node cannot answer; its owner's log says why."


class _Answer(NamedTuple):
    """A reply, and the state that the node is left with when it leaves."""

    message: Message
    state: RecordDict


class _AppResult(NamedTuple):
    """What was read from an app's answer: plain values, none of which is an object of the app's."""

    update: Any
    metrics: RecordDict
    records: RecordDict | None  # of its state


@final
@dataclass(frozen=True)
class PrivateUplink:
    """A mod for `flwr.clientapp.ClientApp(mods=[PrivateUplink()])`: train replies become private releases.

    The node config names the owner's policy or gatekeeper; without one a SuperNode releases
    nothing. ``simulation`` changes the rules of nodes in Flower's simulation runtime, which have no
    owner; on a SuperNode it does nothing. Put it first among the mods: it is then the last to touch
    a reply. ``start`` gives the model of round 0, where the app ships with it
    (`quietbit.replay.start`). ``basis`` gives the directions of a subspace, where the app has them
    (`quietbit.subspace.basis`): a `Subspace`, a function that makes one, or the path of a file.
    """

    simulation: Simulation = field(default_factory=Simulation, kw_only=True)
    start: Callable[[Context], ArrayRecord] | None = field(default=None, kw_only=True)
    basis: Basis | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what is not a Simulation."""
        is_simulation = isinstance(self.simulation, Simulation)
        require(is_simulation, "simulation", self.simulation, "a Simulation")

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Answer a message of the server."""
        try:
            exchange = _Exchange.of(self, message, context, call_next)
            if not exchange.simulated:
                return exchange.answer_guarded()
        except BaseException:  # before anything was asked or noted
            return _error_reply(message, f"{messages.DECLINED}{FAILED}")
        _say_simulated()
        exchange.answer(exchange.outbox)
        context.state = exchange.outbox.reply.state
        return exchange.outbox.reply.message


@dataclass
class _Exchange:
    """One message and its answer."""

    mod: PrivateUplink
    message: Message
    context: Context
    call_next: CallNext
    outbox: Outbox[_Answer]
    simulated: bool

    @classmethod
    def of(
        cls, mod: PrivateUplink, message: Message, context: Context, call_next: CallNext
    ) -> _Exchange:
        """Prepare an exchange whose reply is a refusal."""
        refusal_reply = _error_reply(message, f"{messages.DECLINED}{FAILED}")
        outbox = Outbox(_Answer(refusal_reply, context.state), partial(_leave_state, context))
        simulated = not own_keys(context.node_config) and in_simulation()
        return cls(mod, message, context, call_next, outbox, simulated)

    def answer_guarded(self) -> Message:
        """Answer for a node that has an owner: whatever happens, the outbox's reply leaves."""
        try:
            return guarded(self.outbox, self.answer).message
        except BaseException:
            return self.outbox.leaving.message

    def answer(self, outbox: Outbox[_Answer]) -> None:
        """Put the reply into the outbox."""
        if not self.simulated:
            quiet_handlers()
        kind = self.message.metadata.message_type.partition(".")[0]
        if kind == MessageType.TRAIN:
            self._answer_request(None)
        elif kind == MessageType.EVALUATE and RECORD in self.message.content:
            evaluation = _evaluation(self.context)
            if evaluation is None:
                self._answer_unpriced()
            else:
                self._answer_request(evaluation)
        else:
            self._answer_unpriced()

    def _gate(self) -> Gate:
        rules = self.mod.simulation if self.simulated else None
        context = self.context
        return gate_for(context.node_config, context.state, ConfigRecord, rules)

    def _answer_request(self, evaluation: Evaluation | None) -> None:
        """Answer a request with one release: of an update, or of one cell of an evaluation."""
        gate: Gate | None = None
        try:
            gate = self._gate()
            plan = plan_of(self.context.run_config)
            request = self._request(plan, evaluation)
            if request.sum is not None and request.sum.step not in (VECTOR, ALONE):
                answer = ConfigRecord({"step": request.sum.step, "answer": gate.step(request)})
                self._put(Message(RecordDict({SUM: answer}), reply_to=self.message))
                return
            turn = self._turn(gate, plan, request, evaluation)
        except Exception as error:
            self._put(self._declined(gate, error))
            return
        self._release(gate, turn, evaluation)

    def _request(self, plan: Plan, evaluation: Evaluation | None) -> Request:
        context = self.context
        partition: Any = context.node_config.get("partition-id")
        content = self.message.content
        return read_request(content, plan, context.run_id, context.node_id, partition, evaluation)

    def _turn(
        self, gate: Gate, plan: Plan, request: Request, evaluation: Evaluation | None
    ) -> Turn:
        """Accept and note a request; from here on it has one release."""
        with_zero = not self.simulated
        if evaluation is not None:
            return Turn.evaluate(gate, request, evaluation, with_zero=with_zero)
        parts = client_parts(plan, self.mod.basis)
        self._unpack(parts, gate)
        if MODEL in self.message.content:
            self.message.content = self._with_model(gate, request, plan, parts)
        arrays = _only(self.message.content, "the message")
        return Turn.accept(gate, request, arrays, plan, parts=parts, with_zero=with_zero)

    def _unpack(self, parts: tuple[Part, ...], gate: Gate) -> None:
        """Let parts read what came beside the request, and leave it out of what the app gets."""
        content = self.message.content
        enclosed: dict[str, Any] = {}
        if ENCLOSED in content:
            record = content.array_records[ENCLOSED]
            enclosed = {name: array.numpy() for name, array in record.items()}
            rest = {name: record for name, record in content.items() if name != ENCLOSED}
            self.message.content = RecordDict(rest)
        for part in parts:
            part.unpack(enclosed, gate.models, self.context.run_id)

    def _release(self, gate: Gate, turn: Turn, evaluation: Evaluation | None) -> None:
        """Call the app and put the one release of an accepted request into the outbox."""
        if turn.zero is not None:
            self._accept(turn.moment, _content(_zeros(turn.names), turn.zero))
        elif not self.simulated:
            noted = f"{messages.ANSWERED}no release was made."
            reply = self._stamped(_error_reply(self.message, noted), turn.moment)
            self.outbox.accept(turn.moment, _Answer(reply, self.context.state))
        crashes: list[BaseException] = []

        def read(content: RecordDict | None) -> Any:
            if evaluation is None:
                return turn.read(lambda: _difference(content, turn), crashes)
            return turn.read(lambda: _shares(content, evaluation), crashes)

        with serving(turn.accepted):
            result = self._run_app(turn.moment, turn.names, read, crashes)
        try:
            if result is None:
                content = _content(_zeros(turn.names), turn.accepted.release(None))
            else:
                content = _content(result.metrics, turn.accepted.release(result.update))
            if crashes and self.simulated:
                shown = "".join(traceback.format_exception(crashes[0]))
                limited = shown[-messages.MOST_TRACEBACK :]
                content[messages.CRASHED] = ConfigRecord({"traceback": limited})
            reply = Message(content, reply_to=self.message)
        except Exception as error:
            if turn.zero is not None:  # which is in the outbox already
                log(ERROR, "quietbit: no release but that of zero can be made", exc_info=error)
                return
            reply = self._declined(gate, error, accepted=True)
        self.outbox.put(_Answer(self._stamped(reply, turn.moment), self._state_after(result)))

    def _answer_unpriced(self) -> None:
        """Answer with the numbers that the owner lets out as they are, or with a constant."""
        names: tuple[str, ...] = ()
        seconds = 0.0
        try:
            gate = self._gate()
            gate.forget(self.context.run_id)
            names = gate.metrics
            seconds = gate.answer_seconds
        except Exception as error:  # a node without a policy answers with the same constant
            log(ERROR, "quietbit: this node's gate cannot be asked", exc_info=error)
        # Where nothing of the app's answer could leave, the app is not asked: its time tells
        # nothing.
        if not names:
            self._put(Message(RecordDict(), reply_to=self.message))
            return
        moment = AnswerTime(seconds)
        self._accept(moment, _zeros(names))
        result = self._run_app(moment, names, lambda content: None, [])
        if result is not None:
            reply = Message(result.metrics, reply_to=self.message)
            self.outbox.put(_Answer(self._stamped(reply, moment), self._state_after(result)))

    def _run_app(
        self,
        moment: AnswerTime,
        names: tuple[str, ...],
        read: Callable[[RecordDict | None], Any],
        crashes: list[BaseException],
    ) -> _AppResult | None:
        """Return what the app answers in time; None where it fails, which only the node's log knows.

        The app gets a message and a context of its own: nothing that it does to them is seen here.
        """
        message = copy.copy(self.message)
        message.__dict__["_metadata"] = copy.copy(self.message.metadata)
        state = {name: record for name, record in self.context.state.items() if name not in OURS}
        context = replace(
            self.context,
            state=RecordDict(state),
            node_config=dict(self.context.node_config),
            run_config=dict(self.context.run_config),
        )

        def call() -> _AppResult:
            reply: object = self.call_next(message, context)
            content = None
            if isinstance(reply, Message) and reply.has_content():
                content = reply.content
            else:
                log(ERROR, "quietbit: the app answered with no content")
            update = read(content)
            return _AppResult(update, _named_metrics(content, names), self._records_of(context))

        return moment.run(call, crashes, simulated=self.simulated)

    def _records_of(self, context: Context) -> RecordDict | None:
        """Return the records of the app's context; None where they cannot be kept."""
        try:
            state = context.state
            if not self.simulated:  # as Flower will write it down: what cannot be is found here
                state = recorddict_from_proto(recorddict_to_proto(state))
            return RecordDict(dict(state))
        except BaseException as error:
            log(ERROR, "quietbit: the app's state cannot be kept; the last one is", exc_info=error)
            return None

    def _state_after(self, result: _AppResult | None) -> RecordDict:
        """Return the node's state: the app's records, and ours as they are now."""
        before = self.context.state
        if result is None or result.records is None:
            return before
        ours = {name: before[name] for name in OURS if name in before}
        return RecordDict({**result.records, **ours})

    def _with_model(
        self, gate: Gate, request: Request, plan: Plan, parts: tuple[Part, ...]
    ) -> RecordDict:
        """Return the message as if it had come with the whole model, which is kept for later rounds."""
        content = self.message.content
        start = None
        given = self.mod.start
        if given is not None:
            start = partial(_start_model, given, self.context)
        follower = Follower(gate.models, self.context.run_id, plan, start, gate.families, parts)
        rounds = content[MODEL]
        rest = {name: record for name, record in content.items() if name not in (MODEL, SPEED)}
        sent = RecordDict(rest).array_records
        if sent:
            require(len(sent) == 1, "number of ArrayRecords", len(sent), "1")
            name, arrays = next(iter(sent.items()))
            speed = content.array_records.get(SPEED)
            momentum = None if speed is None else speed[SPEED].numpy()
            follower.full(rounds, name, arrays, momentum)
            return RecordDict(rest)
        name, replayed = follower.replayed(rounds, request)
        arrays = ArrayRecord({key: Array(value) for key, value in replayed.items()})
        return RecordDict({name: arrays, **rest})

    def _put(self, reply: Message) -> None:
        """Let a reply leave at once that does not depend on the app."""
        self.outbox.put(_Answer(reply, self.context.state))

    def _accept(self, moment: AnswerTime, content: RecordDict) -> None:
        """Let this content leave at the moment, unless another is put in its place."""
        reply = self._stamped(Message(content, reply_to=self.message), moment)
        self.outbox.accept(moment, _Answer(reply, self.context.state))

    def _stamped(self, reply: Message, moment: AnswerTime) -> Message:
        """Return a reply whose stamps say the moment and nothing else."""
        asked = self.message.metadata
        reply.metadata.created_at = moment.stamp
        reply.metadata.ttl = asked.ttl - (reply.metadata.created_at - asked.created_at)
        return reply

    def _declined(self, gate: Gate | None, error: Exception, *, accepted: bool = False) -> Message:
        """Refuse in words made from the request alone; this node has then left the sum, if any."""
        reason, noted = refusal(error, accepted=accepted, gate=gate)
        if gate is not None:
            try:
                gate.forget(self.context.run_id)
            except Exception as failure:
                log(ERROR, "quietbit: the sum could not be left", exc_info=failure)
        # The server must go on counting a release that was made and whose reply may be lost.
        prefix = messages.ANSWERED if noted else messages.DECLINED
        return _error_reply(self.message, f"{prefix}{reason}")


def _start_model(
    start: Callable[[Context], ArrayRecord], context: Context
) -> tuple[str, ArrayRecord]:
    return ARRAYS, start(context)


def _error_reply(message: Message, reason: str) -> Message:
    error = Error(ErrorCode.MOD_FAILED_PRECONDITION, messages.one_line(reason))
    return Message(error, reply_to=message)


def _leave_state(context: Context, answer: _Answer) -> None:
    context.state = answer.state


def _only(content: RecordDict | None, where: str) -> ArrayRecord:
    """Return the one ArrayRecord of a message; of none, or of several, it is refused."""
    records = content.array_records if content is not None else {}
    if len(records) != 1:
        raise InvalidParameter.of(f"number of ArrayRecords in {where}", "1", len(records))
    return next(iter(records.values()))


def _difference(content: RecordDict | None, turn: Turn) -> list[FloatVector]:
    """Return the update that the app's reply holds."""
    return turn.layout.difference(turn.received, _only(content, "the app's reply"))


def _shares(content: RecordDict | None, evaluation: Evaluation) -> FloatVector:
    """Return what the app's metric is of cells; one that is not there is refused."""
    name = evaluation.metric
    records = (content or RecordDict()).metric_records.values()
    values = [record[name] for record in records if name in record]
    require(len(values) == 1, f"number of metrics {name!r} in the app's reply", len(values), "1")
    return evaluation.shares(values[0])


def _content(metrics: RecordDict, release: bytes) -> RecordDict:
    """Return what a reply holds: the numbers that the owner lets out, and the release in pieces."""
    content = RecordDict(dict(metrics))
    for name, piece in messages.split_pieces(release).items():
        content[name] = ConfigRecord(dict(piece))
    return content


def _zeros(names: tuple[str, ...]) -> RecordDict:
    """Return the numbers of an app that has none."""
    return _metrics(dict.fromkeys(names, 0.0))


def _metrics(numbers: dict[str, float]) -> RecordDict:
    if not numbers:
        return RecordDict()
    return RecordDict({messages.METRICS: MetricRecord(dict(numbers))})


def _named_metrics(content: RecordDict | None, names: tuple[str, ...]) -> RecordDict:
    """Return one number for each of the names, 0 where there is none; everything else is dropped."""
    numbers: dict[str, float] = {}
    dropped: set[str] = set()
    try:
        for name, record in (content or {}).items():
            if not isinstance(record, MetricRecord):
                dropped.add(name)
                continue
            dropped |= record.keys() - set(names)
            for key in names:
                number = messages.finite(record.get(key))
                if number is not None:
                    numbers.setdefault(key, number)
        if dropped:
            listed = messages.one_line(", ".join(sorted(dropped)))
            log(INFO, "quietbit: kept on this node, as they should be: %s", listed)
    except BaseException as error:  # whatever an app's objects do when they are looked at
        log(ERROR, "quietbit: the app's metrics cannot be read", exc_info=error)
    return _metrics({name: numbers.get(name, 0.0) for name in names})


def _evaluation(context: Context) -> Evaluation | None:
    """Return what the run asks about the model; of a config that cannot be read, nothing."""
    try:
        return plan_of(context.run_config).evaluation
    except QuietbitError:
        return None


@cache
def _say_simulated() -> None:
    """Say once per process which rules hold in a simulation."""
    log(INFO, "quietbit: %s", SIMULATED)


refuse_lifespans(PrivateUplink)
