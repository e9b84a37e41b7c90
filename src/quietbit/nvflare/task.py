"""One task of a client: what was decided before its app was called, and its one answer.

Idea     a decision is made once, from the request, the policy and the ledger; an answer is made
         once, from whatever the app did, and is written anew: a release, a private answer about the
         model, the numbers that the owner names, or a refusal. It is kept as it was written, so
         that nothing that happens to it afterwards leaves.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, final

import numpy as np
from attrs import define, field, frozen
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.utils.task_utils import get_filters

from quietbit._typing import FloatVector
from quietbit.arrays import is_tensor
from quietbit.errors import InvalidParameter, require, require_module
from quietbit.federation.client import Turn, named_numbers, refusal, serving
from quietbit.federation.layout import ModelLayout, named_arrays
from quietbit.federation.messages import MOST_TRACEBACK, RECORD, UPDATE, crash_text
from quietbit.node.guard import AnswerTime
from quietbit.node.refusal import Reason, Refusal

__all__ = [
    "ANSWER",
    "CRASHED",
    "DECIDED",
    "TURN",
    "Task",
    "app_answer",
    "as_kind",
    "has_filter",
    "kind_of",
    "task_of",
]

LOGGER = logging.getLogger(__name__)
TURN = "quietbit.turn"  # the property of a context that holds its task
DECIDED = "quietbit.decided"  # and the one that is called when it is decided about
RELEASE = "release"  # the release of an update, in the record of a result
ANSWER = "answer"  # about the model, or why there is none
CRASHED = "crashed"  # of simulated sites alone: why an app has no update
NUMPY = "numpy"
TORCH = "torch"


@final
@define(eq=False)
class Task:
    """A task that was decided about; it is answered once.

    ``turns`` are its accepted requests, by `UPDATE` and `ABOUT`, and each has one release. Without
    any it is the numbers called ``names`` that the owner lets out, or else refused, and the app is
    not called (``runs``). Where ``shows`` is set, the site is a simulated one, and the server is
    told why an app has no update.
    """

    heads: dict[str, Any]
    runs: bool = False
    turns: dict[str, Turn] = field(factory=dict)
    names: tuple[str, ...] = ()
    moment: AnswerTime = field(factory=lambda: AnswerTime(0.0))
    shows: bool = False
    crash: str = ""
    leaving: Shareable | None = None  # the whole result, once it is final
    _refused: dict[str, Any] = field(factory=dict)
    _lock: threading.Lock = field(factory=threading.Lock)
    _content: dict[str, Any] = field(factory=dict)

    @property
    def props(self) -> dict[str, Any]:
        """What a context must have for `task_of` to find this task."""
        return {
            TURN: self,
            FLContextKey.TASK_ID: self.heads[ReservedHeaderKey.TASK_ID],
            FLContextKey.TASK_NAME: self.heads[ReservedHeaderKey.TASK_NAME],
        }

    def add(self, key: str, turn: Turn) -> None:
        """Take an accepted request in; the first one fixes the answer's moment."""
        if not self.turns:
            self.moment = turn.moment
        self.turns[key] = turn

    def refuse(self, key: str, public: Refusal) -> None:
        """Note why a request is not answered."""
        self._refused |= _refused(key, public)

    def serving(self) -> contextlib.AbstractContextManager[None]:
        """Let the app find the batch of its round, in any thread and any child process."""
        turn = self.turns.get(UPDATE)
        if turn is None:
            return contextlib.nullcontext()
        return serving(turn.accepted, dimension=turn.dimension)

    def answer(self, result: Any) -> Shareable:
        """Return the one reply that leaves for this task; no later result is read."""
        with self._lock:
            if not self._content:
                releases = partial(self._release_of, result)
                self._content = self._written(releases, self._numbers(result))
            return Shareable(deepcopy(self._content))

    def sealed(self) -> dict[str, Any]:
        """Return what was answered, as it was written; without an answer, that of a failed app."""
        self.answer(None)
        return self._content

    def zero(self) -> dict[str, Any]:
        """Return the content that leaves where no other is ready; it was computed beforehand."""
        return self._written(_zero_of, dict.fromkeys(self.names, 0.0))

    def _written(
        self, release_of: Callable[[str, Turn], dict[str, Any]], numbers: dict[str, float]
    ) -> dict[str, Any]:
        """Return a content: releases, why there are none, and the numbers that the owner names.

        Numbers leave beside a release, or alone where none was asked for.
        """
        if self.runs and not self.turns:
            self.heads[ReservedHeaderKey.CONTENT_TYPE] = "DXO"
            metrics = DXO(DataKind.METRICS, data=numbers).to_shareable()
            return {key: metrics[key] for key in metrics if key != ReservedHeaderKey.HEADERS}
        record = dict(self._refused)
        for key, turn in self.turns.items():
            record |= release_of(key, turn)
        if numbers and record.keys() & {RELEASE, ANSWER}:
            record["metrics"] = numbers
        if self.shows and self.crash:
            record[CRASHED] = self.crash[-MOST_TRACEBACK:]
        return {RECORD: record}

    def _release_of(self, result: Any, key: str, turn: Turn) -> dict[str, Any]:
        """Return the one release of an accepted request, or why it cannot be made."""
        crashes: list[BaseException] = []
        try:
            update = turn.read(partial(app_answer, result), crashes)
            if crashes and self.shows and not self.crash:
                self.crash = crash_text(crashes[0])
            return _released(key, turn.release(update))
        except Exception as error:
            return _refused(key, refusal(error, accepted=True))

    def _numbers(self, result: Any) -> dict[str, float]:
        if not self.names:
            return {}
        return named_numbers(partial(_tables, result), self.names)


def _released(key: str, release: bytes) -> dict[str, Any]:
    return {RELEASE if key == UPDATE else ANSWER: release}


def _refused(key: str, public: Refusal) -> dict[str, Any]:
    """Return why there is no release, as it is sent."""
    record = {"declined": public.to_text(), "noted": public.reason.counts}
    return record if key == UPDATE else {ANSWER: record}


def _zero_of(key: str, turn: Turn) -> dict[str, Any]:
    """Return the release that was made of zero beforehand, or that it may have been made."""
    if turn.zero is None:
        return _refused(key, Refusal(Reason.NOTED))
    return _released(key, turn.zero)


def task_of(fl_ctx: FLContext) -> Task | None:
    """Return what was decided about the task of a context, if it was."""
    task = fl_ctx.get_prop(TURN)
    if not isinstance(task, Task):
        return None
    number = fl_ctx.get_prop(FLContextKey.TASK_ID)
    return task if task.heads[ReservedHeaderKey.TASK_ID] == number else None


def has_filter(
    kind: type, chain: str, table: Mapping[str, Any], direction: str, fl_ctx: FLContext
) -> bool:
    """Return whether a filter of this kind stands in a chain of a context's task."""
    name = fl_ctx.get_prop(FLContextKey.TASK_NAME)
    members = get_filters(chain, fl_ctx, table, name, direction)
    return any(isinstance(member, kind) for member in members)


@final
@frozen
class _FlareAnswer:
    """The data of an app's result, as the parts of a turn read it."""

    dxo: DXO

    def update(self, layout: ModelLayout, received: list[FloatVector]) -> list[FloatVector]:
        """Return *received minus trained* of the app's weights, or of NVFlare's differences."""
        arrays: dict[str, Any] = dict.fromkeys(layout.kept)  # which are never read
        arrays |= named_arrays(self.dxo.data)
        kind = self.dxo.data_kind
        if kind == DataKind.WEIGHTS:
            return layout.difference(received, arrays)
        require(kind == DataKind.WEIGHT_DIFF, "kind of the app's answer", kind, "weights")
        # NVFlare's difference is *trained minus received*: taken from zero it is ours.
        return layout.difference([np.zeros_like(part) for part in received], arrays)

    def metric(self, name: str) -> Any:
        """Return the metric of this name, which stands alone or beside the weights."""
        metrics = _metrics(self.dxo)
        if name not in metrics:
            rule = f"given by the app: its answer has {len(metrics)} other metrics"
            raise InvalidParameter.of(f"metric {name!r}", rule)
        return metrics[name]


def app_answer(result: Any) -> _FlareAnswer:
    """Return what the app answered with; a failure is refused."""
    code = result.get_return_code()
    require(code == ReturnCode.OK, "return code of the app", code, "OK")
    return _FlareAnswer(from_shareable(result))


def _metrics(dxo: DXO) -> Mapping[str, Any]:
    metrics: Any = dxo.get_meta_prop(MetaKey.INITIAL_METRICS, {})
    if dxo.data_kind == DataKind.METRICS:
        metrics = dxo.data
    return metrics if isinstance(metrics, Mapping) else {}


def _tables(result: Any) -> Iterable[Mapping[str, Any]]:
    return [_metrics(from_shareable(result))]


def kind_of(weights: Mapping[str, Any]) -> str:
    """Return what a model's arrays are: torch's tensors, or numpy's arrays."""
    return TORCH if any(is_tensor(value) for value in weights.values()) else NUMPY


def as_kind(array: Any, kind: str) -> Any:
    """Return an array as the kind that the server's model has, in memory of its own."""
    copied = np.array(array, order="C")  # as NVFlare sends tensors
    if kind == TORCH:
        return require_module("torch", "torch").from_numpy(copied)
    return copied
