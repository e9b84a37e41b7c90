"""What may leave a node besides its release: nothing, unless it is named.

Idea     a loss, a count of examples or an exception's text tells about the data and is not randomised. Every record
         of a reply is dropped, whatever its kind, except the metrics that were allowed by name; those leave as they
         are, and a warning says which. An app's errors are replaced by a sentence without particulars.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from quietbit._validate import require

__all__ = [
    "ANSWERED",
    "DECLINED",
    "PlaintextWarning",
    "allowed_metrics",
    "check_allowed",
    "decline",
    "failed",
    "note_metrics",
    "one_line",
]

MOST_LETTERS = 400
DECLINED = "quietbit: "  # how the reason of an error reply begins when nothing was released
ANSWERED = "quietbit, answered before: "  # and when this round's release may have left in an earlier reply


class PlaintextWarning(UserWarning):
    """Something leaves the node without being randomised."""


def check_allowed(allow: Any, errors: bool) -> tuple[str, ...]:
    """The names that are let through, warned about; a bare word is refused, being a list of letters."""
    fine = not isinstance(allow, str) and isinstance(allow, Iterable)
    names = tuple(allow) if fine else ()
    require(fine and all(isinstance(name, str) for name in names), "allow", allow, "a tuple of names of metrics")
    if names:
        listed = ", ".join(names)
        warnings.warn(f"These metrics leave the node as they are, with no privacy: {listed}.", PlaintextWarning, 4)
    if errors:
        warnings.warn("Texts of the app's errors leave the node as they are, with no privacy.", PlaintextWarning, 4)
    return names


def allowed_metrics(content: RecordDict, allow: tuple[str, ...]) -> RecordDict:
    """The metrics that are allowed by name, each in its record; everything else, arrays included, is dropped."""
    kept, dropped = RecordDict(), []
    for name, record in content.items():
        if isinstance(record, MetricRecord):
            through = MetricRecord({key: value for key, value in record.items() if key in allow})
            dropped += [key for key in record if key not in allow]
            if through:
                kept[name] = through
        elif not isinstance(record, ArrayRecord):
            dropped.append(name)
    if dropped:
        log(INFO, "quietbit: not sent to the server: %s", ", ".join(sorted(set(dropped))))
    return kept


def decline(message: Message, reason: object, kind: str = DECLINED) -> Message:
    """An error reply that says why this node does not answer, in one sentence."""
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, f"{kind}{reason}"), reply_to=message)


def failed(message: Message) -> Message:
    """An error reply for an app that failed; what went wrong stays in the node's log."""
    reason = f"{DECLINED}the app failed on the node; the node's log says why."
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def one_line(reason: str) -> str:
    """A node's words on one line, of a length that a report can bear."""
    text = " ".join(reason.split())
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}..."


def note_metrics(content: RecordDict, into: dict[str, list[float]]) -> None:
    """Add the finite numbers that a node let through to those of the round."""
    for record in content.metric_records.values():
        for name, value in record.items():
            if isinstance(value, int | float) and math.isfinite(value):
                into.setdefault(name, []).append(float(value))
