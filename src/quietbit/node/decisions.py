"""A node's decisions, for its owner: the last requests with full reasons, and counts of all.

Idea     a server learns one of a few public values (`quietbit.node.refusal`); the owner reads here
         what was requested, when, by which run, and why it was refused. The tables are in the
         ledger's database and of bounded size. They hold nothing that depends on data: decisions
         are made before an app is called. They also serve the limit on refusals: the runs that the
         node's budget refused in the last 24 hours have a table of their own, which a flood of
         other requests cannot push out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import final

from attrs import astuple, frozen

from quietbit.node.database import opened
from quietbit.node.ledger import Moment

__all__ = ["ACCEPTED", "Decision", "Decisions", "History"]

ACCEPTED = "accepted"
MOST_DECISIONS = 256
MOST_LETTERS = 400  # of a reason's text


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
@frozen
class History:
    """What the tables hold.

    Attributes:
        counts: decisions by reason, since the ledger was made.
        seconds: what all decisions took together, accounts included.
        last: the last decisions, the latest last.
    """

    counts: Mapping[str, int]
    seconds: float
    last: tuple[Decision, ...]


@final
@frozen
class Decisions:
    """The tables of one ledger; several processes may add to them at once."""

    path: Path

    def read(self) -> History:
        """Return the counts and the last decisions."""
        with opened(self.path, "ledger") as database:
            reasons = database.execute("select reason, count, seconds from reasons").fetchall()
            last = database.execute(
                "select time, run, round, reason, detail from decisions order by number"
            ).fetchall()
        return History(
            {reason: count for reason, count, _ in reasons},
            sum(seconds for _, _, seconds in reasons),
            tuple(Decision(*row) for row in last),
        )

    def add(self, decision: Decision, seconds: float, refused_run: str, now: Moment) -> None:
        """Add one decision; ``refused_run`` names the run if the node's budget refused it."""
        with opened(self.path, "ledger", write=True) as database:
            database.execute(
                "insert into decisions (time, run, round, reason, detail) values (?, ?, ?, ?, ?)",
                astuple(decision),
            )
            database.execute(
                "delete from decisions where number <= (select max(number) from decisions) - ?",
                (MOST_DECISIONS,),
            )
            database.execute(
                "insert into reasons values (?, 1, ?) on conflict (reason) do update set "
                "count = count + 1, seconds = seconds + excluded.seconds",
                (decision.reason, seconds),
            )
            if refused_run:
                rows = database.execute("select * from refused_runs").fetchall()
                gone = [(run,) for run, *moment in rows if not Moment(*moment).is_within_day(now)]
                database.executemany("delete from refused_runs where run = ?", gone)
                database.execute(
                    "insert or replace into refused_runs values (?, ?, ?, ?)", (refused_run, *now)
                )
