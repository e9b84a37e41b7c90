"""The client's half: a Flower mod that lets one private release out and nothing else.

Idea     a question is checked against the owner's policy and noted in the ledger before the app is called; what leaves
         afterwards is one release, whatever the app did (`quietbit.engine.turn`), and the numbers that the policy
         names, 0 where the app has none. Steps of a masked sum that need no update are answered without the app.
         Evaluations and queries without a price are answered with those numbers, or a constant. A node that will not
         answer says so in an error reply; it raises nothing, because Flower forgets the context of an app that raised.

In Flower's simulation runtime there is no owner, and whoever runs it is the server too: without a policy the rules of
`Simulation` hold, and an app that crashed is reported with its traceback. On a SuperNode neither is so. A `lifespan`
of an app runs outside every mod, and Flower tells the server its exceptions: beside this mod it is refused.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from logging import ERROR, INFO
from types import FrameType
from typing import Any, TypeAlias, final

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from quietbit._typing import FloatVector
from quietbit.engine import messages
from quietbit.engine.batch import serving
from quietbit.engine.messages import MODEL, RECORD, SPEED, SUM, question_of
from quietbit.engine.replay import Follower
from quietbit.engine.turn import Turn, gate_for, own_keys, plan_of, refusal
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.node.answer_time import AnswerTime
from quietbit.node.gatekeeper import Gate
from quietbit.node.policy import Simulation
from quietbit.node.question import ALONE, VECTOR, Question
from quietbit.plan.evaluation import Evaluation
from quietbit.plan.plan import Plan

__all__ = ["PrivateUplink"]

ARRAYS = "arrays"  # where Flower's strategies put the model
CallNext: TypeAlias = Callable[[Message, Context], Message]
SIMULATED = (
    "simulated nodes have no owner: they answer whatever the run asks, within the run's own budget. On a SuperNode the "
    "policy of its owner decides, and without one nothing is released (`quietbit node init`)."
)
SIMULATOR = "flwr.simulation.ray_transport.ray_actor"  # where Flower's simulation runtime runs an app


@final
@dataclass(frozen=True)
class PrivateUplink:
    """A mod for `flwr.clientapp.ClientApp(mods=[PrivateUplink()])`: train replies become private releases.

    The node config names the owner's policy or gatekeeper; without one a SuperNode releases nothing. ``simulation``
    changes the rules of nodes in Flower's simulation runtime, which have no owner; on a SuperNode it does nothing.
    Put it first among the mods: it is then the last to touch a reply. ``start`` gives the model of round 0, where the
    app ships with it and rounds are replayed (`quietbit.downlink-start`).
    """

    simulation: Simulation = field(default_factory=Simulation, kw_only=True)
    start: Callable[[Context], ArrayRecord] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what is not a Simulation."""
        require(isinstance(self.simulation, Simulation), "simulation", self.simulation, "a Simulation")

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Answer a message of the server."""
        simulated = not own_keys(context.node_config) and _in_simulation()
        if simulated:
            _say_simulated()
        kind = message.metadata.message_type.partition(".")[0]
        asks = kind == MessageType.EVALUATE and RECORD in message.content and _evaluates(context)
        if kind == MessageType.TRAIN or asks:
            return self._answer(message, context, call_next, simulated, asks)
        names: tuple[str, ...] = ()
        moment = AnswerTime(0.0)
        try:
            gate = self._gate(context, simulated)
            gate.forget(context.run_id)
            names, moment = gate.metrics, AnswerTime(gate.answer_seconds)
        except Exception as error:  # a node without a policy answers with the same constant
            log(ERROR, "quietbit: this node's gate cannot be asked", exc_info=error)
        # Where nothing of the app's answer could leave, the app is not asked: not even its time tells anything.
        if not names:
            return Message(RecordDict(), reply_to=message)
        found = _named_metrics(_run(message, context, call_next, moment, [], simulated), names)
        return _leave(message, Message(found, reply_to=message), moment)

    def _gate(self, context: Context, simulated: bool) -> Gate:
        return gate_for(context.node_config, context.state, ConfigRecord, self.simulation if simulated else None)

    def _answer(
        self, message: Message, context: Context, call_next: CallNext, simulated: bool, evaluates: bool
    ) -> Message:
        """Answer a question with one release: of an update, or of one cell where it ``evaluates`` the model."""
        gate: Gate | None = None
        try:
            settings = plan_of(context.run_config)
            asked = messages.evaluation_of(settings) if evaluates else None
            gate = self._gate(context, simulated)
            partition: Any = context.node_config.get("partition-id")
            question = question_of(message.content, settings, context.run_id, context.node_id, partition, asked)
            if question.sum is not None and question.sum.step not in (VECTOR, ALONE):
                answer = ConfigRecord({"step": question.sum.step, "answer": gate.step(question)})
                return Message(RecordDict({SUM: answer}), reply_to=message)
            if asked is not None:
                turn = Turn.evaluate(gate, question, asked)
            else:
                if MODEL in message.content:
                    message.content = self._model(message.content, context, gate, question, settings)
                turn = Turn.accept(gate, question, _only(message.content, "the message"), settings)
        except Exception as error:
            return _declined(message, context, gate, error)
        crashes: list[BaseException] = []  # from here on the question is noted: it has one release
        with serving(turn.ticket):
            reply = _run(message, context, call_next, turn.moment, crashes, simulated)
        try:
            content = _named_metrics(reply, turn.names)
            read = partial(_difference, reply, turn) if asked is None else partial(_shares, reply, asked)
            for name, piece in messages.split_pieces(turn.release(read, crashes)).items():
                content[name] = ConfigRecord(dict(piece))
            if crashes and simulated:
                shown = "".join(traceback.format_exception(crashes[0]))
                content[messages.CRASHED] = ConfigRecord({"traceback": shown[-messages.MOST_TRACEBACK :]})
            said = Message(content, reply_to=message)
        except Exception as error:
            said = _declined(message, context, gate, error, accepted=True)
        return _leave(message, said, turn.moment)

    def _model(self, content: RecordDict, context: Context, gate: Gate, question: Question, plan: Plan) -> RecordDict:
        """Return the message as it would have come with the whole model, which is kept for the next rounds."""
        started = self.start
        start = None if started is None else lambda: (ARRAYS, started(context))
        follower = Follower(gate.models, context.run_id, plan, start, gate.families)
        said, speed = content[MODEL], content.array_records.get(SPEED)
        rest = RecordDict({name: record for name, record in content.items() if name not in (MODEL, SPEED)})
        if rest.array_records:
            require(len(rest.array_records) == 1, "number of ArrayRecords", len(rest.array_records), "1")
            name, arrays = next(iter(rest.array_records.items()))
            follower.full(said, name, arrays, None if speed is None else speed[SPEED].numpy())
            return rest
        name, found = follower.replayed(said, question)
        return RecordDict({name: ArrayRecord({key: Array(value) for key, value in found.items()}), **rest})


def _only(content: RecordDict | None, where: str) -> ArrayRecord:
    """Return the one ArrayRecord of a message; of none, or of several, it is refused."""
    records = content.array_records if content is not None else {}
    if len(records) != 1:
        raise InvalidParameter.of(f"number of ArrayRecords in {where}", "1", len(records))
    return next(iter(records.values()))


def _difference(reply: RecordDict | None, turn: Turn) -> list[FloatVector]:
    """Return the update that the app's reply holds."""
    return turn.layout.difference(turn.received, _only(reply, "the app's reply"))


def _shares(reply: RecordDict | None, asked: Evaluation) -> FloatVector:
    """Return what the app's metric is of cells; one that is not there is refused."""
    name, records = asked.metric, (reply or RecordDict()).metric_records.values()
    found = [record[name] for record in records if name in record]
    require(len(found) == 1, f"number of metrics {name!r} in the app's reply", len(found), "1")
    return asked.shares(found[0])


def _named_metrics(content: RecordDict | None, names: tuple[str, ...]) -> RecordDict:
    """Return one number for each of the names, 0 where there is none; all else, arrays included, is dropped."""
    found: dict[str, float] = {}
    dropped: set[str] = set()
    try:
        for name, record in (content or {}).items():
            if not isinstance(record, MetricRecord):
                dropped.add(name)
                continue
            dropped |= record.keys() - set(names)
            numbers = {key: number for key in names if (number := messages.finite(record.get(key))) is not None}
            found = numbers | found
        if dropped:
            log(INFO, "quietbit: not sent to the server: %s", messages.one_line(", ".join(sorted(dropped))))
    except BaseException as error:  # whatever an app's objects do when they are looked at
        log(ERROR, "quietbit: the app's metrics cannot be read", exc_info=error)
    return RecordDict({messages.METRICS: MetricRecord({name: found.get(name, 0.0) for name in names})} if names else {})


def _evaluates(context: Context) -> bool:
    """Whether the run asks for private answers to evaluations; a config that cannot be read does not."""
    try:
        return plan_of(context.run_config).evaluation is not None
    except QuietbitError:
        return False


def _run(
    message: Message, context: Context, call_next: CallNext, moment: AnswerTime, crashes: list[BaseException],
    simulated: bool,
) -> RecordDict | None:  # fmt: skip
    """Return what the app answers in time; None where it fails, which the node's log knows and the server does not."""
    own = replace(context, state=RecordDict(dict(context.state)))  # what an abandoned app does to it is lost
    reply: object = moment.run(lambda: call_next(message, own), crashes, simulated=simulated)
    if reply is None:
        return None
    ours = {name: context.state[name] for name in (RECORD, SUM, MODEL) if name in context.state}
    context.state.clear()
    context.state.update({**own.state, **ours})
    if isinstance(reply, Message) and reply.has_content():
        return reply.content
    log(ERROR, "quietbit: the app answered with no content")
    return None


def _leave(message: Message, reply: Message, moment: AnswerTime) -> Message:
    """Hold a reply back until its moment, which is all that its stamps say."""
    asked, meta = message.metadata, reply.metadata
    meta.created_at = moment.wait()
    meta.ttl = asked.ttl - (meta.created_at - asked.created_at)
    return reply


def _in_simulation() -> bool:
    """Whether Flower's simulation runtime is what calls the app: its own frame is among those of this call.

    A SuperNode has no such frame, and neither has a runtime that we do not know: there an owner's policy decides.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != SIMULATOR:
        frame = frame.f_back
    return frame is not None


@cache
def _say_simulated() -> None:
    """Say once per process which rules hold in a simulation."""
    log(INFO, "quietbit: %s", SIMULATED)


def _refuse_lifespan(register: Callable[[ClientApp], Any]) -> Callable[[ClientApp], Any]:
    def lifespan(app: ClientApp) -> Any:
        if any(isinstance(mod, PrivateUplink) for mod in app._mods):
            raise InvalidParameter(
                "An app with PrivateUplink among its mods cannot have a lifespan: it runs outside every mod, and "
                "Flower sends the text of its exceptions to the server. Do its work in the train function."
            )
        return register(app)

    return lifespan


def _declined(
    message: Message, context: Context, gate: Gate | None, error: Exception, *, accepted: bool = False
) -> Message:
    """Refuse in words made from the question alone; this node has then left the sum, if there was one."""
    said, noted = refusal(error, accepted=accepted, gate=gate)
    if gate is not None:
        try:
            gate.forget(context.run_id)
        except Exception as failure:
            log(ERROR, "quietbit: the sum could not be left", exc_info=failure)
    # The server must go on counting a release that was made and whose reply may be lost.
    reason = messages.one_line(f"{messages.ANSWERED if noted else messages.DECLINED}{said}")
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=message)


ClientApp.lifespan = _refuse_lifespan(ClientApp.lifespan)  # type: ignore[method-assign, assignment]
