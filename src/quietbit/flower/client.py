"""The client's half: a Flower app that lets one private release out and nothing else.

Idea     the app's call is the gate: whatever is registered with it (functions, mods, a lifespan)
         runs inside, so no order of mods can be wrong. A request is checked against the owner's
         policy and noted in the ledger before the app's own code is called. What leaves afterwards
         is one release, whatever that code does, and the numbers that the policy names, 0 where the
         app has none. Steps of a masked sum that need no update are answered without it.
         Evaluations and queries without a price are answered with those numbers, or a constant. A
         node that will not answer says so in an error reply.
Frames   Flower sends the text of whatever an app raises to the server. So on an owned node the
         engine's thread only waits (`node.guard`): a worker decides and makes the reply, the app
         has a thread of its own, and what the app answers is read there, too. The zero release is
         made before the app begins; it leaves at its moment where no other reply is complete by
         then.

Line     an app with numbers of its own (``epsilon``, ``clip``, ...) also answers a server that has
         not heard of quietbit: it asks itself, by the same gate and ledger, and sends the decoded
         release in the place of the model (`federation.own_round`).

In Flower's simulation runtime there is no owner, and whoever runs it is the server too: without a
policy the rules of `Simulation` hold, an app that crashed is reported with its traceback, and
nothing is guarded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from logging import ERROR, INFO
from typing import Any, NamedTuple, TypeAlias, final

from attrs import frozen
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
from flwr.client import ClientFnExt
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.supercore import log

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, one_line, require
from quietbit.federation import messages
from quietbit.federation.client import (
    OpenRequest,
    Subject,
    Turn,
    evaluates,
    gate_for,
    named_numbers,
    owner_keys,
    plan_of,
    refusal,
    serving,
)
from quietbit.federation.layout import ModelLayout
from quietbit.federation.messages import ENCLOSED, MODEL, RECORD, SPEED, SUM, NodeName
from quietbit.federation.own_round import DELTA, EPSILON, GAUSSIAN, OwnRound
from quietbit.federation.part import Arrival
from quietbit.federation.plan import Plan
from quietbit.flower.patches import in_simulation
from quietbit.node.gatekeeper import Gate
from quietbit.node.guard import AnswerTime, Outbox, guarded, quiet_handlers
from quietbit.node.policy import Simulation
from quietbit.node.refusal import Reason, Refusal

__all__ = ["PrivateClientApp"]

ARRAYS = "arrays"  # where Flower's strategies put the model
WEIGHT = "num-examples"  # what they weigh replies by: the number of examples is the node's secret
OURS = (RECORD, SUM, MODEL)  # our records in a node's state
BESIDE = (MODEL, SPEED, ENCLOSED)  # our records in a message that no app is shown
Register: TypeAlias = Callable[[ClientAppCallable], ClientAppCallable]
Start: TypeAlias = Callable[[Context], ArrayRecord]
SIMULATED = (
    "simulated nodes have no owner: they answer whatever the run asks, within the run's own "
    "budget. On a SuperNode the policy of its owner decides, and without one this app releases "
    "nothing (`quietbit node init`)."
)


class _Answer(NamedTuple):
    """A reply, and the state that the node is left with when it leaves."""

    message: Message
    state: RecordDict


class _AppResult(NamedTuple):
    """What was read from an app's answer: plain values, none of which is an object of the app's."""

    update: Any
    numbers: dict[str, float]
    records: RecordDict | None  # of its state


@final
class PrivateClientApp(ClientApp):
    """``app = PrivateClientApp()``: a `ClientApp` of which nothing leaves but private releases.

    Functions, mods and a lifespan are registered as with any `ClientApp`, and all of them run
    inside the gate: what they see and send stays on the node. The node config names the owner's
    policy or gatekeeper; without one a SuperNode releases nothing. ``simulation`` changes the rules
    of nodes in Flower's simulation runtime, which have no owner; on a SuperNode it does nothing.
    ``start`` gives the model of round 0, where the app ships with it (`quietbit.replay.start`).

    With an ``epsilon``, for all ``releases`` of a node in a run, the app also answers strategies
    other than `PrivateStrategy`: with the decoded release in the place of the trained model, and
    with one example as its weight. ``samples`` has the keys of a plan's ``[samples]``.
    """

    def __init__(
        self,
        client_fn: ClientFnExt | None = None,
        mods: list[Mod] | None = None,
        *,
        simulation: Simulation | None = None,
        start: Start | None = None,
        epsilon: float | None = None,
        delta: float = DELTA,
        clip: float | None = None,
        releases: int | None = None,
        adjacency: str | None = None,
        mechanism: str = GAUSSIAN,
        samples: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep the rules of a simulation; refuse a gate inside this one, and half a line."""
        super().__init__(client_fn, mods)
        rules = Simulation() if simulation is None else simulation
        require(isinstance(rules, Simulation), "simulation", simulation, "a Simulation")
        for inner in (client_fn, *(mods or ())):
            _refuse_gate(inner)
        self.simulation = rules
        self.start = start
        self.plan = None
        line = {
            "epsilon": epsilon,
            "clip": clip,
            "releases": releases,
            "adjacency": adjacency,
            "samples": samples,
        }
        given = {name: value for name, value in line.items() if value is not None}
        if given:
            self.plan = Plan.read({"mechanism": mechanism, "delta": delta, **given})

    def __init_subclass__(cls) -> None:
        """Refuse a class that could answer in another way."""
        raise TypeError("PrivateClientApp cannot be subclassed: its call is the gate.")

    def __call__(self, message: Message, context: Context, *more: object) -> Message:
        """Answer a message of the server."""
        try:
            rule = "left out: PrivateClientApp is an app, not a mod"
            require(not more, "call_next", len(more), rule)
            exchange = _Exchange.of(self, message, context, super().__call__)
            if not exchange.simulated:
                return exchange.answer_guarded()
        except BaseException as error:  # before anything was asked or noted
            if more:
                log(ERROR, "quietbit: %s", error)
            return Message(CANNOT_ANSWER, reply_to=message)
        _say(SIMULATED)
        exchange.answer(exchange.outbox)
        context.state = exchange.outbox.reply.state
        return exchange.outbox.reply.message

    def train(self, action: str = "default", *, mods: list[Mod] | None = None) -> Register:
        """Register a train function, which runs inside the gate."""
        return _registering(super().train(action, mods=mods), mods)

    def evaluate(self, action: str = "default", *, mods: list[Mod] | None = None) -> Register:
        """Register an evaluate function, which runs inside the gate."""
        return _registering(super().evaluate(action, mods=mods), mods)

    def query(self, action: str = "default", *, mods: list[Mod] | None = None) -> Register:
        """Register a query function, which runs inside the gate."""
        return _registering(super().query(action, mods=mods), mods)


def _registering(register: Register, mods: list[Mod] | None) -> Register:
    """Return a decorator that refuses a gate as a function, or among its mods."""
    for mod in mods or ():
        _refuse_gate(mod)

    def checked(function: ClientAppCallable) -> ClientAppCallable:
        _refuse_gate(function)
        return register(function)

    return checked


def _refuse_gate(inner: object) -> None:
    rule = "a function: one PrivateClientApp cannot stand inside another"
    require(not isinstance(inner, PrivateClientApp), "what runs in the app", inner, rule)


@dataclass
class _Exchange:
    """One message and its answer."""

    app: PrivateClientApp
    message: Message
    context: Context
    call: ClientAppCallable  # the app's own functions, with its mods and lifespan around them
    outbox: Outbox[_Answer]
    simulated: bool
    own: OwnRound | None = None  # where the app asks itself
    record: str = ARRAYS  # the name of the model's record
    spent: float = 0.0  # the epsilon of the run's releases, this one among them

    @classmethod
    def of(
        cls, app: PrivateClientApp, message: Message, context: Context, call: ClientAppCallable
    ) -> _Exchange:
        """Prepare an exchange whose reply is a refusal."""
        cannot = Message(CANNOT_ANSWER, reply_to=message)
        outbox = Outbox(_Answer(cannot, context.state), partial(_leave_state, context))
        simulated = not owner_keys(context.node_config) and in_simulation()
        return cls(app, message, context, call, outbox, simulated)

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
            self._answer_request(Subject.UPDATE)
        elif kind == MessageType.EVALUATE and self._is_priced():
            self._answer_request(Subject.EVALUATION)
        else:
            self._answer_unpriced()

    def _is_priced(self) -> bool:
        return RECORD in self.message.content and evaluates(self.context.run_config)

    def _gate(self) -> Gate:
        rules = self.app.simulation if self.simulated else None
        context = self.context
        return gate_for(context.node_config, context.state, ConfigRecord, rules)

    def _answer_request(self, subject: Subject) -> None:
        """Answer a request with one release: of an update, or of one cell of an evaluation."""
        gate: Gate | None = None
        try:
            gate = self._gate()
            opened = self._opened(gate, subject)
            answer = opened.step()
            if answer is not None:
                record = ConfigRecord({"step": opened.request.part.step, "answer": answer})
                self.outbox.put(self._answer(RecordDict({SUM: record})))
                return
            opened.check()
            self.message.content = _with_model(self.message.content, opened.arrival)
            turn = opened.accept(with_zero=not self.simulated)
            if self.own is not None:
                self.spent = gate.spent(opened.request)
        except Exception as error:
            self.outbox.put(self._answer(self._declined(gate, error)))
            return
        self._release(gate, turn)

    def _opened(self, gate: Gate, subject: Subject) -> OpenRequest:
        """Read the server's request; where a plain strategy sends none, that of the app's line."""
        arrival = self._arrival(subject)
        name = self._name()
        line = self.app.plan
        if line is None or RECORD in self.message.content:
            plan = plan_of(self.context.run_config, gate.rules.mechanisms)
            if line is not None and plan.target != line.target:
                rule = f"{line.target}, the app's own"
                raise InvalidParameter.of("budget of the run", rule, str(plan.target))
            _say("updates leave in quietbit's own messages, which its strategy decodes.")
            return OpenRequest.read(gate, plan, subject, arrival, name)
        _say("updates leave as decoded releases, in the place of trained models.")
        self.own = OwnRound.begin(line, gate, name, arrival.arrays)
        self.record = arrival.kind
        return self.own.opened

    def _content(self, numbers: dict[str, float], release: bytes) -> RecordDict:
        """Return what a reply holds: the release, or what it decodes to, and the numbers."""
        if self.own is None:
            return _content(numbers, release)
        weights = self.own.stepped(self.own.arrays, release)
        arrays = ArrayRecord({key: Array(value) for key, value in weights.items()})
        spent = {EPSILON: self.spent} if EPSILON in numbers else {}
        metrics = MetricRecord({WEIGHT: 1.0, **numbers, **spent})
        return RecordDict({self.record: arrays, messages.METRICS: metrics})

    def _name(self) -> NodeName:
        context = self.context
        partition: Any = context.node_config.get("partition-id")
        return NodeName(context.run_id, context.node_id, partition)

    def _arrival(self, subject: Subject) -> Arrival:
        """Return what a message brings: our records, and the model where it is to be trained."""
        content = self.message.content
        records: dict[str, Any] = dict(content.config_records)
        speed = content.array_records.get(SPEED)
        if speed is not None:
            records[SPEED] = speed[SPEED].numpy()
        enclosed = content.array_records.get(ENCLOSED)
        if enclosed is not None:
            records[ENCLOSED] = {name: array.numpy() for name, array in enclosed.items()}
        arrival = Arrival(records, {})
        if subject is Subject.UPDATE:
            records_of_arrays = content.array_records.items()
            models = {name: model for name, model in records_of_arrays if name not in BESIDE}
            if len(models) > 1:
                raise InvalidParameter.of("number of ArrayRecords in the message", "1", len(models))
            if models:
                arrival.kind, arrival.arrays = next(iter(models.items()))
        given = self.app.start
        if given is not None:
            arrival.start = partial(_start_model, given, self.context)
        return arrival

    def _release(self, gate: Gate, turn: Turn) -> None:
        """Call the app and put the one release of an accepted request into the outbox."""
        moment = turn.moment
        if turn.zero is not None:
            zeros = dict.fromkeys(turn.names, 0.0)
            self._accept(moment, self._content(zeros, turn.zero))
        elif not self.simulated:
            self._accept(moment, _error(Refusal(Reason.NOTED)))
        crashes: list[BaseException] = []

        def read(content: RecordDict | None) -> Any:
            return turn.read(partial(_FlowerAnswer, content), crashes)

        with serving(turn.accepted):
            result = self._run_app(moment, turn.names, read, crashes)
        content: RecordDict | Error
        try:
            content = self._content(result.numbers, turn.release(result.update))
            if crashes and self.simulated and self.own is None:
                shown = messages.crash_text(crashes[0])
                content[messages.CRASHED] = ConfigRecord({"traceback": shown})
            if self.own is not None:
                log(INFO, "quietbit: %s", self.own.sentence(self.spent))
        except Exception as error:
            content = self._declined(gate, error, accepted=True)
        self.outbox.put(self._answer(content, moment, result.records))

    def _answer_unpriced(self) -> None:
        """Answer with the numbers that the owner lets out as they are, or with a constant."""
        names: tuple[str, ...] = ()
        seconds = 0.0
        try:
            gate = self._gate()
            gate.forget(self.context.run_id)
            names = gate.rules.metrics
            seconds = gate.rules.response_seconds
        except Exception as error:  # a node without a policy answers with the same constant
            log(ERROR, "quietbit: this node's gate cannot be asked", exc_info=error)
        # Where nothing of the app's answer could leave, the app is not asked: its time tells
        # nothing.
        if not names:
            self.outbox.put(self._answer(self._numbers({})))
            return
        moment = AnswerTime(seconds)
        self._accept(moment, self._numbers(dict.fromkeys(names, 0.0)))
        result = self._run_app(moment, names, lambda content: None, [])
        self.outbox.put(self._answer(self._numbers(result.numbers), moment, result.records))

    def _numbers(self, numbers: dict[str, float]) -> RecordDict:
        """Return the numbers that the owner lets out, and what a plain strategy weighs them by."""
        return _metrics(numbers if self.app.plan is None else {WEIGHT: 1.0, **numbers})

    def _run_app(
        self,
        moment: AnswerTime,
        names: tuple[str, ...],
        read: Callable[[RecordDict | None], Any],
        crashes: list[BaseException],
    ) -> _AppResult:
        """Return what the app answers in time; zeros where it fails, which only the log says.

        The app gets a message and a context of its own: nothing that it does to them is seen here.
        """
        message = copy.copy(self.message)
        message.__dict__["_metadata"] = copy.copy(self.message.metadata)
        context = replace(
            self.context,
            state=_of_the_app(self.context.state),
            node_config=dict(self.context.node_config),
            run_config=dict(self.context.run_config),
        )

        def call() -> _AppResult:
            reply: object = self.call(message, context)
            content = None
            if isinstance(reply, Message) and reply.has_content():
                content = reply.content
            else:
                log(ERROR, "quietbit: the app answered with no content")
            update = read(content)
            numbers = named_numbers(partial(_tables, content), names)
            return _AppResult(update, numbers, self._records_of(context))

        result = moment.run(call, crashes, simulated=self.simulated)
        return result or _AppResult(None, dict.fromkeys(names, 0.0), None)

    def _records_of(self, context: Context) -> RecordDict | None:
        """Return the records of the app's context; None where they cannot be kept."""
        try:
            state = context.state
            if not self.simulated:  # as Flower will write it down: what cannot be is found here
                state = recorddict_from_proto(recorddict_to_proto(state))
            return _of_the_app(state)
        except BaseException as error:
            log(ERROR, "quietbit: the app's state cannot be kept; the last one is", exc_info=error)
            return None

    def _accept(self, moment: AnswerTime, content: RecordDict | Error) -> None:
        """Let this content leave at the moment, unless another is put in its place."""
        self.outbox.accept(moment, self._answer(content, moment))

    def _answer(
        self,
        content: RecordDict | Error,
        moment: AnswerTime | None = None,
        records: RecordDict | None = None,
    ) -> _Answer:
        """Return a reply, and the node's state: the app's ``records``, and ours as they are now.

        Where the app was asked, the stamps of the reply say the ``moment`` and nothing else.
        """
        reply = Message(content, reply_to=self.message)
        if moment is not None:
            asked = self.message.metadata
            reply.metadata.created_at = moment.stamp
            reply.metadata.ttl = asked.ttl - (reply.metadata.created_at - asked.created_at)
        state = self.context.state
        if records is not None:
            ours = {name: state[name] for name in OURS if name in state}
            state = RecordDict({**records, **ours})
        return _Answer(reply, state)

    def _declined(self, gate: Gate | None, error: Exception, *, accepted: bool = False) -> Error:
        """Refuse in words made from the request alone; this node has then left the sum, if any."""
        public = refusal(error, gate, accepted=accepted)
        if gate is not None:
            try:
                gate.forget(self.context.run_id)
            except Exception as failure:
                log(ERROR, "quietbit: the sum could not be left", exc_info=failure)
        return _error(public)


@final
@frozen
class _FlowerAnswer:
    """The content of an app's reply, as the parts of a turn read it."""

    content: RecordDict | None

    def update(self, layout: ModelLayout, received: list[FloatVector]) -> list[FloatVector]:
        """Return *received minus trained* of the one ArrayRecord."""
        records: Mapping[str, ArrayRecord] = {}
        if self.content is not None:
            records = self.content.array_records
        if len(records) != 1:
            name = "number of ArrayRecords in the app's reply"
            raise InvalidParameter.of(name, "1", len(records))
        return layout.difference(received, next(iter(records.values())))

    def metric(self, name: str) -> Any:
        """Return the metric of this name, which one MetricRecord must have."""
        records = (self.content or RecordDict()).metric_records.values()
        values = [record[name] for record in records if name in record]
        rule = "1"
        require(
            len(values) == 1, f"number of metrics {name!r} in the app's reply", len(values), rule
        )
        return values[0]


def _of_the_app(state: RecordDict) -> RecordDict:
    """Return the records of a state without ours."""
    return RecordDict({name: record for name, record in state.items() if name not in OURS})


def _start_model(start: Start, context: Context) -> tuple[str, ArrayRecord]:
    return ARRAYS, start(context)


def _error(public: Refusal) -> Error:
    """Return a refusal as an error, whose first words say whether a release was noted.

    The server must go on counting a release that was made and whose reply may be lost.
    """
    prefix = messages.ANSWERED if public.reason.counts else messages.DECLINED
    text = one_line(f"{prefix}{public.to_text()}")
    return Error(ErrorCode.MOD_FAILED_PRECONDITION, text)


CANNOT_ANSWER = _error(Refusal(Reason.UNUSABLE))


def _leave_state(context: Context, answer: _Answer) -> None:
    context.state = answer.state


def _with_model(content: RecordDict, arrival: Arrival) -> RecordDict:
    """Return the message as if it had come with the whole model and nothing beside it."""
    if not any(name in content for name in BESIDE):
        return content
    records = {name: record for name, record in content.items() if name not in BESIDE}
    if not arrival.replayed:
        return RecordDict(records)
    arrays = {name: Array(array.numpy()) for name, array in arrival.arrays.items()}
    return RecordDict({arrival.kind: ArrayRecord(arrays), **records})


def _content(numbers: dict[str, float], release: bytes) -> RecordDict:
    """Return what a reply holds: the numbers that the owner lets out, and the release in pieces."""
    content = _metrics(numbers)
    for name, piece in messages.split_pieces(release).items():
        content[name] = ConfigRecord(dict(piece))
    return content


def _metrics(numbers: dict[str, float]) -> RecordDict:
    if not numbers:
        return RecordDict()
    return RecordDict({messages.METRICS: MetricRecord(dict(numbers))})


def _tables(content: RecordDict | None) -> Iterable[Mapping[str, Any]]:
    """Return the metrics of an app's reply, and the names of its other records."""
    if content is None:
        return []
    metrics = content.metric_records
    others = [name for name in content if name not in metrics]
    return [dict.fromkeys(others), *metrics.values()]


@cache
def _say(sentence: str) -> None:
    """Say something once per process."""
    log(INFO, "quietbit: %s", sentence)
