"""One task of a client: what was decided about it before its app was called, and the one answer that leaves for it.

Idea     a decision is made once, from the request, the policy and the ledger; an answer is made
         once, from whatever the app did, and is written anew: a release, a private answer about the
         model, the numbers that the owner names, or a refusal. It is kept as it was written, so
         that nothing that happens to it afterwards leaves.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, final

import numpy as np
from attrs import define, field, frozen
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable

from quietbit._typing import FloatVector
from quietbit.arrays import dtype_name, is_tensor
from quietbit.errors import require, require_module
from quietbit.node.answer_time import AnswerTime
from quietbit.run.batch import serving
from quietbit.run.client import Turn, refusal
from quietbit.run.layout import STYPE
from quietbit.run.messages import MOST_TRACEBACK, RECORD, finite
from quietbit.run.parts.evaluation import Evaluation

__all__ = [
    "ANSWER",
    "CRASHED",
    "DECIDED",
    "TURN",
    "NamedArray",
    "Task",
    "as_kind",
    "kind_of",
    "named",
    "refused",
    "task_of",
]

LOGGER = logging.getLogger(__name__)
TURN = "quietbit.turn"  # the property of a context that holds its task
DECIDED = "quietbit.decided"  # and the one that is called when it is decided about
ANSWER = "answer"  # about the model, or why there is none
CRASHED = "crashed"  # of simulated sites alone: why an app has no update
NUMPY = "numpy"
TORCH = "torch"


@final
@define(eq=False)
class Task:
    """A task that was decided about; it is answered once.

    With a ``turn`` it is a release, with an ``evaluation`` a private answer about the model, or
    both; without either it is the numbers called ``names`` that the owner lets out, or else
    ``refused``, and the app is not called (``runs``). Where ``shows`` is set, the site is a
    simulated one, and the server is told why an app has no update.
    """

    number: str
    heads: dict[str, Any]
    runs: bool = False
    refused: dict[str, Any] = field(
        factory=dict
    )  # why there is no answer, or none about the model beside a release
    turn: Turn | None = None
    evaluation: tuple[Turn, Evaluation] | None = None
    names: tuple[str, ...] = ()
    moment: AnswerTime = field(factory=lambda: AnswerTime(0.0))
    shows: bool = False
    crash: str = ""
    reply: Shareable | None = None
    leaving: Shareable | None = None  # the whole result, once it is final
    _lock: threading.Lock = field(factory=threading.Lock)
    _content: dict[str, Any] = field(factory=dict)

    @property
    def props(self) -> dict[str, Any]:
        """What a context must have for `task_of` to find this task."""
        name = self.heads[ReservedHeaderKey.TASK_NAME]
        return {TURN: self, FLContextKey.TASK_ID: self.number, FLContextKey.TASK_NAME: name}

    def serving(self) -> contextlib.AbstractContextManager[None]:
        """Let the app find the batch of its round, in whichever thread, or process that this one started, it runs."""
        if self.turn is None:
            return contextlib.nullcontext()
        return serving(self.turn.accepted, dimension=self.turn.layout.dimension)

    def answer(self, result: Any) -> Shareable:
        """Return the one thing that leaves for this task; the very same object passes a second time."""
        with self._lock:
            if self.reply is None:
                reply = self._made(result)
                self._content = deepcopy(_without_head(reply))
                self.reply = reply
            elif result is not self.reply:
                raise ContentBlockedException(
                    "quietbit: this task was answered, and what came after it is not sent."
                )
            return self.reply

    def sealed(self) -> dict[str, Any]:
        """Return what was answered, as it was written; where nothing was, answer now, as for an app that failed."""
        with contextlib.suppress(ContentBlockedException):
            self.answer(None)
        return deepcopy(self._content)

    def zero(self) -> dict[str, Any]:
        """Return the content that leaves where no other is ready; nothing is computed for it now."""
        if self.turn is None and self.evaluation is None:
            self.heads[ReservedHeaderKey.CONTENT_TYPE] = "DXO"
            numbers = dict.fromkeys(self.names, 0.0)
            reply = DXO(DataKind.METRICS, data=numbers).to_shareable()
            return _without_head(reply)
        record = dict(self.refused)
        noted = {"declined": "no release was made.", "noted": True}
        if self.turn is not None:
            record |= noted if self.turn.zero is None else {"release": self.turn.zero}
        if self.evaluation is not None:
            zero = self.evaluation[0].zero
            record |= {ANSWER: noted} if zero is None else {ANSWER: zero}
        if self.names and record.keys() & {"release", ANSWER}:
            record["metrics"] = dict.fromkeys(self.names, 0.0)
        return {RECORD: record}

    def _made(self, result: Any) -> Shareable:
        if self.turn is None and self.evaluation is None and self.runs:
            self.heads[ReservedHeaderKey.CONTENT_TYPE] = "DXO"
            return DXO(DataKind.METRICS, data=_numbers(result, self.names)).to_shareable()
        record = dict(self.refused)
        if self.turn is not None:
            record |= self._released("release", self.turn, partial(_update, result, self.turn))
        if self.evaluation is not None:
            turn, evaluation = self.evaluation
            answer = self._released(ANSWER, turn, partial(_shares, result, evaluation))
            record |= answer if ANSWER in answer else {ANSWER: answer}
        if self.names and record.keys() & {"release", ANSWER}:
            record["metrics"] = _numbers(result, self.names)
        if self.shows and self.crash:
            record[CRASHED] = self.crash[-MOST_TRACEBACK:]
        return Shareable({RECORD: record})

    def _released(self, key: str, turn: Turn, read: Callable[[], Any]) -> dict[str, Any]:
        """Return the one release of a request that was noted, under its key, or why it cannot be made."""
        crashes: list[BaseException] = []
        try:
            release = turn.accepted.release(turn.read(read, crashes))
            if crashes and self.shows and not self.crash:
                self.crash = f"{type(crashes[0]).__name__}: {crashes[0]}"
            return {key: release}
        except Exception as error:
            if turn.zero is not None:
                LOGGER.error("quietbit: no release but that of zero can be made.", exc_info=error)
                return {key: turn.zero}
            return refused(error, accepted=True)


def _without_head(reply: Shareable) -> dict[str, Any]:
    return {key: value for key, value in reply.items() if key != ReservedHeaderKey.HEADERS}


def task_of(fl_ctx: FLContext) -> Task | None:
    """Return what was decided about the task of a context, if it was."""
    task = fl_ctx.get_prop(TURN)
    if not isinstance(task, Task) or task.number != str(fl_ctx.get_prop(FLContextKey.TASK_ID)):
        return None
    return task


def refused(error: Exception, *, accepted: bool = False) -> dict[str, Any]:
    """Return why there is no release, as it is sent."""
    reason, noted = refusal(error, accepted=accepted)
    return {"declined": reason, "noted": noted}


def _answered(result: Any) -> DXO:
    """Return what the app answered with; a failure is refused."""
    code = result.get_return_code()
    require(code == ReturnCode.OK, "return code of the app", code, "OK")
    return from_shareable(result)


def _update(result: Any, turn: Turn) -> list[FloatVector]:
    """Return *received minus trained* of the app's answer, weights or NVFlare's differences."""
    dxo = _answered(result)
    arrays: dict[str, Any] = dict.fromkeys(turn.layout.kept)  # which are never read
    arrays |= named(dxo.data)
    if dxo.data_kind == DataKind.WEIGHTS:
        return turn.layout.difference(turn.received, arrays)
    require(
        dxo.data_kind == DataKind.WEIGHT_DIFF, "kind of the app's answer", dxo.data_kind, "weights"
    )
    # NVFlare's difference is *trained minus received*: taken from zero it is ours.
    return turn.layout.difference([np.zeros_like(part) for part in turn.received], arrays)


def _shares(result: Any, asked: Evaluation) -> FloatVector:
    """Return what the app's metric, alone or beside the weights, is of cells; one that is not there is refused."""
    metrics = _metrics(_answered(result))
    name = asked.metric
    require(name in metrics, f"metric {name!r} of the app", "missing", "in what it answers")
    return asked.shares(metrics[name])


def _metrics(dxo: DXO) -> Mapping[str, Any]:
    metrics: Any = dxo.get_meta_prop(MetaKey.INITIAL_METRICS, {})
    if dxo.data_kind == DataKind.METRICS:
        metrics = dxo.data
    return metrics if isinstance(metrics, Mapping) else {}


def _numbers(result: Any, names: tuple[str, ...]) -> dict[str, float]:
    """Return one number for each of the names, 0 where the app has none; everything else is dropped."""
    numbers = dict.fromkeys(names, 0.0)
    for name in names:
        try:
            numbers[name] = finite(float(_metrics(from_shareable(result))[name])) or 0.0
        except (
            BaseException
        ) as error:  # whatever an app's objects do when they are looked at, 10**400 among them
            LOGGER.error("quietbit: the app's answer holds no number %s", name, exc_info=error)
    return numbers


@final
@frozen
class NamedArray:
    """One array or tensor as a layout wants to see it; of what is neither, the dtype is the name of its class."""

    value: Any
    dtype: str
    shape: tuple[int, ...]
    stype: str = STYPE

    def numpy(self) -> Any:
        """Return the entries as a numpy array."""
        if is_tensor(self.value):
            return self.value.detach().cpu().numpy()
        return np.asarray(self.value)


def named(weights: Any) -> dict[str, NamedArray]:
    """Return the arrays of a model by name."""
    require(isinstance(weights, Mapping), "weights", type(weights).__name__, "a dict of arrays")
    arrays = {}
    for name, value in weights.items():
        require(isinstance(name, str), "name of an array", type(name).__name__, "text")
        if isinstance(value, np.ndarray) or is_tensor(value):
            arrays[name] = NamedArray(value, dtype_name(value), tuple(value.shape))
        else:
            arrays[name] = NamedArray(value, type(value).__name__, ())
    return arrays


def kind_of(weights: Mapping[str, Any]) -> str:
    """Return what a model's arrays are: torch's tensors, or numpy's arrays."""
    return TORCH if any(is_tensor(value) for value in weights.values()) else NUMPY


def as_kind(array: Any, kind: str) -> Any:
    """Return an array as the kind that the server's model has, in memory of its own."""
    copied = np.array(array)
    if kind == TORCH:
        return require_module("torch", "torch").from_numpy(copied)
    return copied
