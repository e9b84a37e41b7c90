"""A node's decisions, for its owner: the last requests with full reasons, and counts of all.

Idea     a server learns one of a few public values (`quietbit.node.refusal`); the owner reads here
         what was requested, when, by which run, and why it was refused. The file is beside the
         ledger, readable by its owner only, and of bounded size. It holds nothing that depends on
         data: decisions are made before an app is called. It also serves the limit on refusals:
         the runs that the node's budget refused in the last 24 hours have a list of their own,
         which a flood of other requests cannot push out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, final

from attrs import astuple, frozen

from quietbit.node.ledger import LedgerError, Moment, locked

__all__ = ["ACCEPTED", "Decision", "Decisions", "History", "decisions_beside"]

LOGGER = logging.getLogger(__name__)
FORMAT = "quietbit-decisions"
VERSION = 1
SUFFIX = ".decisions"
ACCEPTED = "accepted"
MOST_DECISIONS = 256
MOST_LETTERS = 400  # of a reason's text
MOST_BYTES = 2**21  # more than the file can reach


@final
@frozen
class Decision:
    """One decision: ``reason`` is `ACCEPTED` or a value of `Reason`, ``text`` is for the owner."""

    time: float
    run: str
    round: int
    reason: str
    text: str = ""


@final
class History:
    """The content of the file, as plain values."""

    def __init__(self, content: dict[str, Any] | None = None) -> None:
        """Start empty, or with the content of a file."""
        self.content = content or {"format": FORMAT, "version": VERSION}

    @property
    def counts(self) -> dict[str, int]:
        """Decisions by reason, since the file was made."""
        return {str(reason): int(count) for reason, count in self.content.get("counts", {}).items()}

    @property
    def seconds(self) -> float:
        """Seconds that all decisions took together, accounts included."""
        return float(self.content.get("seconds", 0.0))

    @property
    def last(self) -> list[Decision]:
        """The last decisions, the latest last."""
        return [Decision(*values) for values in self.content.get("last", [])]

    def recent_refusals(self, now: Moment) -> dict[str, list[Any]]:
        """Return the runs that the node's budget refused in the last 24 hours, and when."""
        refusals = self.content.get("budget-refusals", {})
        return {
            run: values for run, values in refusals.items() if Moment(*values).is_within_day(now)
        }


@final
class Decisions:
    """The file of one node; several processes may add to it at once."""

    def __init__(self, path: Path) -> None:
        """Name the file; the first decision makes it."""
        self._path = path

    def read(self) -> History:
        """Return the history on disk; an empty one where the file is missing or unreadable."""
        try:
            return self._parse(self._path.read_bytes())
        except FileNotFoundError:
            return History()
        except OSError as error:
            raise LedgerError(
                f"Cannot read the decisions {self._path}: {error.strerror}."
            ) from error

    def add(self, decision: Decision, seconds: float, refused_run: str, now: Moment) -> None:
        """Add one decision; ``refused_run`` names the run if the node's budget refused it."""
        with self._locked() as handle:
            history = self._parse(os.pread(handle, MOST_BYTES, 0))
            content = history.content
            counts = content.setdefault("counts", {})
            counts[decision.reason] = counts.get(decision.reason, 0) + 1
            content["seconds"] = content.get("seconds", 0.0) + seconds
            last = [*content.get("last", []), astuple(decision)]
            content["last"] = last[-MOST_DECISIONS:]
            if refused_run:
                content["budget-refusals"] = {**history.recent_refusals(now), refused_run: now}
            data = json.dumps(content).encode("ascii")
            try:
                os.pwrite(handle, data, 0)
                os.ftruncate(handle, len(data))
            except OSError as error:
                raise LedgerError(
                    f"Cannot write the decisions {self._path}: {error.strerror}."
                ) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Open and lock the file; make it, for its owner only, if it is missing."""
        try:
            os.close(
                os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            )
        except OSError as error:
            raise LedgerError(
                f"Cannot make the decisions {self._path}: {error.strerror}."
            ) from error
        with locked(self._path, "file of decisions", os.O_RDWR) as handle:
            yield handle

    def _parse(self, data: bytes) -> History:
        """Return the content; start again where it is unreadable: no account depends on it."""
        if not data:
            return History()
        try:
            content = json.loads(data)
            if content["format"] != FORMAT or content["version"] != VERSION:
                raise ValueError(f"version {content['version']}")
            history = History(content)
            Decision(*content.get("last", [["", "", 0, ""]])[-1])
            history.recent_refusals(Moment(0.0, "", 0.0))
            return history
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            AttributeError,
            RecursionError,
        ) as error:
            LOGGER.warning(
                "quietbit: the decisions in %s cannot be read, and are started again: %s",
                self._path,
                error,
            )
            return History()


@cache
def decisions_beside(ledger: Path) -> Decisions:
    """Return the decisions beside a ledger, once per process."""
    return Decisions(ledger.with_name(ledger.name + SUFFIX))
