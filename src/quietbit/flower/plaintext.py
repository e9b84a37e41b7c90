"""What may leave a node besides its release: nothing, unless its owner names it; and words that both ends read.

Idea     a loss, a count of examples or an exception's text tells about the data and is not randomised. A reply holds
         the metrics that the owner's policy names, one number each, and nothing else; a number that is not there, or
         is none, is sent as 0, so that failing looks like any other answer. What the server is told of a refusal is
         a sentence made from its own question.
"""

from __future__ import annotations

from logging import INFO

from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from quietbit.engine.messages import finite, lines_of, one_line

__all__ = ["ANSWERED", "CRASHED", "DECLINED", "crash_of", "decline", "named_metrics", "note_metrics"]

METRICS = "metrics"
CRASHED = "quietbit.crashed"  # a record of simulated nodes alone: the traceback of an app that crashed
DECLINED = "quietbit: "  # how the reason of an error reply begins when nothing was released
ANSWERED = "quietbit, answered before: "  # and when this round's release was noted, whether or not it arrived


def named_metrics(content: RecordDict | None, names: tuple[str, ...]) -> RecordDict:
    """One number for each of the names, 0 where there is none; everything else, arrays included, is dropped."""
    found: dict[str, float] = {}
    dropped: list[str] = []
    for name, record in (content or {}).items():
        if not isinstance(record, MetricRecord):
            dropped.append(name)
            continue
        for key, value in record.items():
            if key not in names:
                dropped.append(key)
            elif (number := finite(value)) is not None:
                found.setdefault(key, number)
    if dropped:
        log(INFO, "quietbit: not sent to the server: %s", one_line(", ".join(sorted(set(dropped)))))
    if not names:
        return RecordDict()
    return RecordDict({METRICS: MetricRecord({name: found.get(name, 0.0) for name in names})})


def decline(message: Message, reason: object, kind: str = DECLINED) -> Message:
    """Return an error reply that says, in one sentence, why this node does not answer."""
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, one_line(f"{kind}{reason}")), reply_to=message)


def note_metrics(content: RecordDict, into: dict[str, list[float]]) -> None:
    """Add the finite numbers that a node let through to those of the round."""
    for record in content.metric_records.values():
        for name, value in record.items():
            if (number := finite(value)) is not None:
                into.setdefault(one_line(name), []).append(number)


def crash_of(content: RecordDict) -> str | None:
    """Return the traceback of a simulated node's app; None where it did not crash. A SuperNode never sends one."""
    found = content.config_records.get(CRASHED)
    return None if found is None else lines_of(str(found.get("traceback", "")))
