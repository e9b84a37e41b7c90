"""What a node has refused, for its owner: the last requests with full reasons, and counts of all.

Idea     a server learns one of a few public values (`quietbit.node.refusal`); the owner reads here
         what was requested, when, by which run, and why it was refused. What was accepted is in the
         ledger's lines. The tables are in the ledger's database and of bounded size. They hold
         nothing that depends on data: requests are refused before an app is called. They also serve
         the limit on refusals: the runs that the node's budget refused in the last 24 hours have a
         table of their own, which a flood of other requests cannot push out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import final

from attrs import astuple, frozen

from quietbit.node.database import opened
from quietbit.node.ledger import Moment

__all__ = ["LoggedRefusal", "RefusalLog", "Refusals"]

MOST_REFUSALS = 256
MOST_LETTERS = 400  # of a reason's text


@final
@frozen
class LoggedRefusal:
    """One refused request: ``reason`` is a value of `Reason`, ``text`` is for the owner."""

    time: float
    run: str
    round: int
    reason: str
    text: str


@final
@frozen
class Refusals:
    """What the tables hold.

    Attributes:
        counts: refusals by reason, since the ledger was made.
        last: the last refusals, the latest last.
    """

    counts: Mapping[str, int]
    last: tuple[LoggedRefusal, ...]


@final
@frozen
class RefusalLog:
    """The tables of one ledger; several processes may add to them at once."""

    ledger: Path

    def read(self) -> Refusals:
        """Return the counts and the last refusals."""
        with opened(self.ledger, "ledger") as database:
            counts = dict(database.execute("select reason, count from reasons").fetchall())
            last = database.execute(
                "select time, run, round, reason, detail from refusals order by number"
            ).fetchall()
        return Refusals(counts, tuple(LoggedRefusal(*row) for row in last))

    def add(
        self, run: str, number: int, reason: str, text: str, budget_of: str, now: Moment
    ) -> None:
        """Add one refusal; ``budget_of`` names the run if the node's budget refused it."""
        refusal = LoggedRefusal(round(now.time, 3), run, number, reason, text[:MOST_LETTERS])
        with opened(self.ledger, "ledger", write=True) as database:
            database.execute(
                "insert into refusals (time, run, round, reason, detail) values (?, ?, ?, ?, ?)",
                astuple(refusal),
            )
            database.execute(
                "delete from refusals where number <= (select max(number) from refusals) - ?",
                (MOST_REFUSALS,),
            )
            database.execute(
                "insert into reasons values (?, 1) on conflict (reason) do update set "
                "count = count + 1",
                (reason,),
            )
            if budget_of:
                rows = database.execute("select * from refused_runs").fetchall()
                gone = [(run,) for run, *moment in rows if not Moment(*moment).is_within_day(now)]
                database.executemany("delete from refused_runs where run = ?", gone)
                database.execute(
                    "insert or replace into refused_runs values (?, ?, ?, ?)", (budget_of, *now)
                )
