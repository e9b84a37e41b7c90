"""A node's ledger: chained lines in the owner's database, and a counter in another one.

Idea     a node must never forget what it has released. Every line holds the SHA-256 of the line
         before it, so no line can be changed, removed or moved. A second database, the counter,
         holds the number of lines and the digest of the last; a ledger that is shorter than its
         counter, or is a different one, is refused. Only `quietbit node init` makes them: a missing
         ledger is an error.
Symbols  head: SHA-256 of a line; count: number of lines, the first (which names the ledger)
         included.

| line | says |
|---|---|
| `ledger` | format, version, a random name; when it was made |
| `mechanism` | the full description of a mechanism, under its identity: once |
| `release` | one release: mechanism, k, run, round, moment, data set; noted before it is made |
| `step` | a step of a masked sum that hands out shares: answered once |

All lines are read, and their chain checked, at every use: a running process notices what a new one
does. Lines are added in one transaction, which is on disk before the counter is raised in one of
its own. A crash in between leaves the ledger ahead of its counter, which is valid. Restoring *both*
files from a copy is noticed by a process that runs, and by an engine that remembers the last head
(docs/explanation/threat-model.md).

A ledger is worth as much as the rights on its file. So every opening checks that the file is a
regular one of this user with one name, in a folder where no other user can put or replace anything,
a journal included. `synchronous=extra` forces a transaction to disk before it counts, and
`secure_delete` wipes what is deleted. SQLite locks the file, and rolls back what a crash left
(https://www.sqlite.org/lockingv3.html and https://www.sqlite.org/pragma.html).

Refusals are in tables of bounded size for the owner: a server learns one of a few public values
(`quietbit.node.refusal`). They hold nothing that depends on data: requests are refused before an
app is called. The runs that the node's budget refused in the last 24 hours have a table of their
own, which a flood of other requests cannot push out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias, final

from attrs import define, field

from quietbit._files import others
from quietbit.errors import InvalidParameter, QuietbitError, check_int, require
from quietbit.node.refusal import AnsweredBefore, BudgetSpent

__all__ = [
    "EVALUATIONS",
    "RESPONSE",
    "SCOUT",
    "FileLedger",
    "Ledger",
    "LedgerError",
    "LedgerState",
    "StateLedger",
    "check_owner",
    "opened",
    "owned_path",
    "text_of",
]

RESPONSE = "response"  # the family that answers evaluations; the server sees each answer
SCOUT = "scout"  # the family that answers for a moving clip; scouts need it among the mechanisms
EVALUATIONS = "/evaluations"  # after a run's number, where its evaluations are noted
# The canonical line of JSON of a value.
text_of = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
APPLICATION = 0x71426974  # "qBit", in the header of the file
SCHEMA = 3  # the version of the tables; version 2 was a text file
LEDGER = (  # lines, refusals, and the table of `node.costs`
    "create table lines (number integer primary key, line text not null)",
    "create table refusals (number integer primary key, time real not null, run text not null, "
    "round integer not null, reason text not null, detail text not null)",
    "create table reasons (reason text primary key, count integer not null)",
    "create table refused_runs (run text primary key, time real not null, boot text not null, "
    "running real not null)",
    "create table costs (version text, bound text, alpha real, value real not null, "
    "primary key (version, bound, alpha))",
)
COUNTER = (
    "create table counter (ledger text not null, count integer not null, head text not null)",
)
PAGES = 2**16  # of 4096 bytes each: the largest file that is written
WAIT = 60.0  # seconds until a lock that another process holds is an error
HELP = (
    "Restore the newest copy of both files. Without a copy the account of this node's releases is "
    "lost: only its owner can decide to move both files away and start again with `quietbit node "
    "init`"
)
IMPORT = (
    "If an earlier quietbit wrote it, move both files away and give them to `quietbit node import`"
)


class LedgerError(QuietbitError):
    """A ledger that cannot be read, written or trusted: the node then releases nothing."""


def owned_path(path: str | os.PathLike[str], name: str) -> Path:
    """Return an absolute path whose folder has no links in it; the file itself may not be one."""
    place = Path(path).expanduser()
    # A relative path would name another file in another working directory.
    require(place.is_absolute(), name, str(path), "an absolute path")
    return Path(os.path.realpath(place.parent)) / place.name


def check_owner(path: Path, name: str) -> None:
    """Refuse a file that other users could change or replace, and whatever is not a file."""
    try:
        file = os.lstat(path)
    except FileNotFoundError as error:
        raise LedgerError(
            f"The {name} {path} is missing: only `quietbit node init` makes one, once. {HELP}."
        ) from error
    except OSError as error:
        raise LedgerError(f"Cannot open the {name} {path}: {error.strerror}.") from error
    if not stat.S_ISREG(file.st_mode) or file.st_nlink != 1:
        raise LedgerError(
            f"The {name} {path} must be a regular file with one name: not a FIFO, a device, a "
            "symbolic link or a hard link."
        )
    _check_folder(path, name)
    problem = others(file, name, path)
    if problem:
        raise LedgerError(problem)


def _check_folder(path: Path, name: str) -> None:
    problem = others(os.lstat(path.parent), f"folder of the {name}", path.parent)
    if problem:
        raise LedgerError(problem)


@contextlib.contextmanager
def opened(path: Path, name: str, *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """Open an owner's database for one transaction, which an exception rolls back."""
    check_owner(path, name)
    with _connected(path, name) as database:
        database.execute("begin immediate" if write else "begin")
        if database.execute("pragma application_id").fetchone()[0] != APPLICATION:
            raise LedgerError(f"{path} is not a {name} of quietbit. {IMPORT}.")
        version = database.execute("pragma user_version").fetchone()[0]
        if version != SCHEMA:
            raise LedgerError(
                f"The {name} {path} cannot be used: it has version {version}, and this quietbit "
                f"reads version {SCHEMA}. Install the quietbit that wrote it, or a newer one."
            )
        yield database
        database.execute("commit")


@contextlib.contextmanager
def created(path: Path, name: str, tables: tuple[str, ...]) -> Iterator[sqlite3.Connection]:
    """Make a database with these tables, for its owner only; refuse where the file exists."""
    try:
        _check_folder(path, name)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise LedgerError(f"Cannot make the {name} {path}: {error.strerror}.") from error
    with _connected(path, name) as database:
        database.execute("pragma journal_mode = delete")
        database.execute("begin immediate")
        database.execute(f"pragma application_id = {APPLICATION}")
        database.execute(f"pragma user_version = {SCHEMA}")
        for table in tables:
            database.execute(table)
        yield database
        database.execute("commit")


@contextlib.contextmanager
def _connected(path: Path, name: str) -> Iterator[sqlite3.Connection]:
    """Connect to an existing file; an error of SQLite says which file it is about."""
    try:
        database = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, timeout=WAIT, isolation_level=None
        )
        with contextlib.closing(database):
            database.execute("pragma synchronous = extra")
            database.execute("pragma secure_delete = on")
            database.execute(f"pragma max_page_count = {PAGES}")
            yield database
    except sqlite3.Error as error:
        remedy = ""
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
            remedy = f" {IMPORT}."
        raise LedgerError(f"Cannot use the {name} {path}: {error}.{remedy}") from error


FORMAT = "quietbit-ledger"
VERSION = 2  # of the lines
DAY = 86400.0
MOST_MECHANISMS = 256
MOST_OF_RUN = 16  # new mechanisms per run: updates, scouts, evaluations, changes of the plan
MOST_OF_DAY = 64  # new mechanisms of all runs in 24 hours
MOST_REFUSALS = 256  # that are listed
MOST_LETTERS = 400  # of a refusal's text
MOST_STEPS = 8  # lines of steps per release
FREE_RELEASES = 32  # the number of releases whose steps are allowed before any release is made
START = bytes(32)
Entry = dict[str, Any]


@final
class Moment(NamedTuple):
    """When something happened: the clock's time, and the seconds since the start ``boot``.

    A clock can be set forward; the seconds since the start cannot. After a restart only the clock
    is left to compare.
    """

    time: float
    boot: str
    running: float

    def is_within_day(self, now: Moment) -> bool:
        """Return whether this was within 24 hours before ``now`` by either clock, or after it."""
        if now.time - self.time < DAY:
            return True
        return now.boot == self.boot and now.running - self.running < DAY

    @classmethod
    def now(cls) -> Moment:
        """Read both clocks."""
        return cls(time.time(), _boot(), _running())


def _running() -> float:
    """Return the seconds since the machine started, sleep included where the system says so."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@cache
def _boot() -> str:
    """Return a name for this start of the machine, or of this process where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.urandom(16).hex()


@final
class NotedRelease(NamedTuple):
    """A release as a line notes it; ``honest`` is the k that its cost assumes."""

    mechanism: str
    honest: int
    data_set: str
    run: str
    round: int
    when: Moment


class LoggedRefusal(NamedTuple):
    """One refused request: ``reason`` is a value of `Reason`, ``text`` is for the owner."""

    time: float
    run: str
    round: int
    reason: str
    text: str


class Refusals(NamedTuple):
    """Counts of refusals by reason, since the ledger was made, and the last ones in order."""

    counts: dict[str, int]
    last: tuple[LoggedRefusal, ...]


# Releases by mechanism, k and data set, in the order of the first of each.
Counts: TypeAlias = Counter[tuple[str, int, str]]


@final
@define(eq=False)
class LedgerState:
    """The totals of a ledger's lines; ``origin`` names it in errors.

    ``refused_runs`` are the runs that the node's budget has refused, each with the last moment.
    """

    origin: str = "The ledger"
    identity: str = ""
    heads: list[bytes] = field(factory=list)
    mechanisms: dict[str, Any] = field(factory=dict)
    noted: list[NotedRelease] = field(factory=list)
    steps: dict[str, tuple[int, int]] = field(factory=dict)
    step_lines: int = 0
    refused_runs: dict[str, Moment] = field(factory=dict)

    @property
    def count(self) -> int:
        """The number of lines."""
        return len(self.heads)

    @property
    def head(self) -> bytes:
        """The digest of the last line."""
        return self.heads[-1] if self.heads else START

    @property
    def mark(self) -> dict[str, Any]:
        """The count and head, from which `is_behind` notices an earlier state of the ledger."""
        return {"count": self.count, "head": self.head.hex()}

    @property
    def releases(self) -> int:
        """The number of releases."""
        return len(self.noted)

    def counts(self, run: str | None = None) -> Counts:
        """Count the releases, or those of one run with its evaluations."""
        return Counter(
            (noted.mechanism, noted.honest, noted.data_set)
            for noted in self.noted
            if run is None or base_run(noted.run) == run
        )

    def is_behind(self, known: Mapping[str, Any]) -> bool:
        """Return whether this is a different ledger than that of ``known``, or an earlier state.

        ``known`` is an earlier `mark`.
        """
        count = check_int(known.get("count", 0), "count", 0)
        return count > len(self.heads) or (
            count > 0 and self.heads[count - 1].hex() != known.get("head")
        )

    def check_counter(self, path: Path, ledger: str, count: int, head: str) -> None:
        """Refuse a counter of a different ledger, and one that is ahead of this ledger."""
        if ledger != self.identity:
            raise LedgerError(
                f"The counter {path} belongs to a different ledger, not to {self.origin}. {HELP}."
            )
        if self.is_behind({"count": count, "head": head}):
            raise LedgerError(
                f"{self.origin} is older than its counter, or a different ledger: it has "
                f"{self.count} lines, and the counter says {count}. {HELP}."
            )

    def last_day(self, now: Moment) -> int:
        """Return the number of releases in the last 24 hours; those dated in the future count."""
        return sum(noted.when.is_within_day(now) for noted in self.noted)

    def last_round(self, run: str) -> int:
        """Return the last answered round of a run; 0 if there is none."""
        return max((noted.round for noted in self.noted if noted.run == run), default=0)

    def check_round(self, run: str, number: int) -> None:
        """Refuse a round that is not after the last answered one of this run."""
        last = self.last_round(run)
        if not number > last:
            raise AnsweredBefore(
                f"Round {number} of run {run} is not after round {last}, the last one answered."
            )

    def step(self, run: str, number: int, step: int) -> Entry:
        """Return the line of a step of a masked sum; refuse one that is not after the run's last.

        Steps of too many sums without a release are refused, too: they would fill the disk.
        """
        if self.step_lines >= MOST_STEPS * (self.releases + FREE_RELEASES):
            raise BudgetSpent(
                f"{self.step_lines} steps of sums were answered for {self.releases} releases: no "
                "more are answered before a release is made."
            )
        last_round, last_step = self.steps.get(run, (0, 0))
        if not (number, step) > (last_round, last_step):
            raise AnsweredBefore(
                f"Step {step} of the sum of round {number} is not after step {last_step} of round "
                f"{last_round}, the last one answered in run {run}."
            )
        return {"kind": "step", "run": run, "round": number, "step": step}

    def check_mechanism(self, identity: str, run: str, now: Moment) -> None:
        """Refuse a new mechanism beyond the limits per ledger, per run and per 24 hours.

        Every process that reads the ledger computes the cost of each, so their number is limited.
        """
        if identity in self.mechanisms:
            return
        base = base_run(run)
        first_uses: dict[str, NotedRelease] = {}
        for noted in self.noted:
            first_uses.setdefault(noted.mechanism, noted)
        of_run = sum(base_run(first.run) == base for first in first_uses.values())
        of_day = sum(first.when.is_within_day(now) for first in first_uses.values())
        for count, most, where in (
            (len(self.mechanisms), MOST_MECHANISMS, "in its ledger"),
            (of_run, MOST_OF_RUN, f"for run {base}"),
            (of_day, MOST_OF_DAY, "in the last 24 hours"),
        ):
            if count >= most:
                raise BudgetSpent(
                    f"This node has released {most} different mechanisms {where}, the most it may."
                )

    def add(self, entries: Iterable[Entry]) -> list[str]:
        """Add entries to the totals; return them as chained lines."""
        lines = []
        for entry in entries:
            line = text_of({**entry, "previous": self.head.hex()})
            self.take(line)
            lines.append(line)
        return lines

    def take(self, line: str) -> None:
        """Add a line that was read, or is about to be written, to the totals."""
        number = len(self.heads) + 1
        try:
            entry = json.loads(line)
            if entry["previous"] != self.head.hex():
                raise LedgerError(
                    f"{self.origin} was changed: line {number} does not follow the one before. "
                    f"{HELP}."
                )
            self._take(entry)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LedgerError(
                f"{self.origin} is not a ledger: line {number} cannot be read "
                f"({type(error).__name__}). {HELP}."
            ) from error
        self.heads.append(digest(line))

    def _take(self, entry: Entry) -> None:
        kind = entry["kind"]
        is_first = not self.heads
        if (kind == "ledger") is not is_first:
            raise InvalidParameter.of("kind of the line", "ledger in the first line only", kind)
        if kind == "ledger":
            self._take_first(entry)
        elif kind == "mechanism":
            self.mechanisms[str(entry["mechanism"])] = entry["description"]
        elif kind == "release":
            self._take_release(entry)
        elif kind == "step":
            number = check_int(entry["round"], "round", 1)
            self.steps[str(entry["run"])] = (number, check_int(entry["step"], "step", 1))
            self.step_lines += 1
        elif kind != "price":  # of earlier versions: costs are computed from the descriptions
            rule = "ledger, mechanism, release or step"
            raise InvalidParameter.of("kind of the line", rule, kind)

    def _take_first(self, entry: Entry) -> None:
        require(entry["format"] == FORMAT, "format", entry["format"], FORMAT)
        version = check_int(entry["version"], "version of the ledger", 1)
        if version != VERSION:
            raise LedgerError(
                f"{self.origin} cannot be used: its lines have version {version}, and this "
                f"quietbit reads version {VERSION}. Install the quietbit that wrote it, or a newer "
                "one."
            )
        self.identity = str(entry["identity"])

    def _take_release(self, entry: Entry) -> None:
        mechanism = str(entry["mechanism"])
        if mechanism not in self.mechanisms:
            raise InvalidParameter.of("mechanism of a release", "noted before it", mechanism)
        noted = NotedRelease(
            mechanism,
            check_int(entry["honest"], "honest", 0),
            str(entry.get("data-set", "")),
            str(entry["run"]),
            check_int(entry["round"], "round", 1),
            Moment(
                float(entry["time"]),
                str(entry.get("boot", "")),
                float(entry.get("running", 0.0)),
            ),
        )
        self.noted.append(noted)


Change = Callable[[LedgerState], Iterable[Entry]]


def base_run(run: str) -> str:
    """Return the number of the run that updates or evaluations are noted under."""
    return run.removesuffix(EVALUATIONS)


def digest(line: Any) -> bytes:
    """Return the SHA-256 of a line; of what is no text, that of its representation."""
    return hashlib.sha256(str(line).encode()).digest()


def mechanism_line(identity: str, description: Any) -> Entry:
    """Return the line that describes a mechanism in full."""
    return {"kind": "mechanism", "mechanism": identity, "description": description}


def release_line(identity: str, honest: int, run: str, number: int, data_set: str = "") -> Entry:
    """Return the line of one release, made now, of the data set that the owner has named."""
    line: Entry = {
        "kind": "release",
        "mechanism": identity,
        "honest": honest,
        "run": run,
        "round": number,
    }
    if data_set:
        line["data-set"] = data_set
    now = Moment.now()
    return line | {"time": round(now.time, 3), "boot": now.boot, "running": round(now.running, 3)}


def first_line() -> Entry:
    """Return the line that names a new ledger."""
    stamp = {"identity": os.urandom(16).hex(), "time": round(time.time(), 3)}
    return {"kind": "ledger", "format": FORMAT, "version": VERSION, **stamp}


@final
@define(eq=False)
class StateLedger:
    """A ledger in a mapping, for simulations; an empty mapping starts a new one."""

    state: MutableMapping[str, Any]
    path: ClassVar[Path | None] = None
    _text: str = field(default="", init=False)  # what was read before
    _totals: LedgerState | None = field(default=None, init=False)  # of it

    def read(self) -> LedgerState:
        """Return the totals; lines that were read before are not read again."""
        text = str(self.state.get("ledger", ""))
        totals = self._totals
        if totals is None or not text.startswith(self._text):
            totals = LedgerState("The ledger in the state")
            self._text = ""
        self._totals = None  # after an error, all lines are read anew
        for line in text[len(self._text) :].splitlines():
            totals.take(line)
        self._text = text
        if not text:
            self._append(totals.add([first_line()]))
        self._totals = totals
        return totals

    def update(self, change: Change) -> LedgerState:
        """Add the lines that ``change`` returns for the totals; where it raises, add nothing."""
        totals = self.read()
        entries = list(change(totals))
        self._append(totals.add(entries))
        return totals

    def refuse(self, refusal: LoggedRefusal, budget_of: str, now: Moment) -> None:
        """Keep nothing: a simulated node has no owner who reads it."""

    def _append(self, lines: list[str]) -> None:
        self._text += "".join(f"{line}\n" for line in lines)
        self.state["ledger"] = self._text


ADD_LINE = "insert into lines values (?, ?)"


@final
class FileLedger:
    """The ledger of an owner with its counter; made by `create`, shared by several processes.

    ``known`` holds the newest mark that this process has seen, or that a record elsewhere holds,
    such as Flower's state of a run; an older ledger is refused.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        counter: str | os.PathLike[str],
        known: MutableMapping[str, Any] | None = None,
    ) -> None:
        """Name the files; they are opened by `read` and `update`."""
        self.path = owned_path(path, "ledger")
        self._counter = owned_path(counter, "counter")
        require(self.path != self._counter, "counter", str(counter), "a file other than the ledger")
        self._known = {} if known is None else known
        self._state = LedgerState(f"The ledger {self.path}")
        self._guard = threading.RLock()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        counter: str | os.PathLike[str],
        lines: Iterable[str] = (),
    ) -> FileLedger:
        """Make a new ledger, or one of these ``lines``; refuse where either file exists."""
        ledger = cls(path, counter)
        for place in (ledger.path, ledger._counter):
            if os.path.lexists(place):
                raise LedgerError(
                    f"{place} exists: a ledger is made once. Move it away first if the past "
                    "releases of this node may be forgotten."
                )
        state = LedgerState(str(ledger.path))
        chained = list(lines)
        for line in chained:
            state.take(line)
        if not chained:
            chained = state.add([first_line()])
        try:
            with created(ledger.path, "ledger", LEDGER) as database:
                database.executemany(ADD_LINE, enumerate(chained, 1))
            with created(ledger._counter, "counter", COUNTER) as database:
                mark = (state.identity, state.count, state.head.hex())
                database.execute("insert into counter values (?, ?, ?)", mark)
        except BaseException:
            ledger.remove()  # an incomplete ledger would block the next attempt
            raise
        return ledger

    def remove(self) -> None:
        """Remove a new ledger that nothing was released under."""
        for path in (self.path, self._counter):
            for name in (path.name, f"{path.name}-journal"):
                with contextlib.suppress(OSError):
                    path.with_name(name).unlink(missing_ok=True)

    def read(self) -> LedgerState:
        """Return the totals; refuse a ledger that is behind its counter, or behind ``known``."""
        with (
            self._guard,
            opened(self.path, "ledger") as database,
            opened(self._counter, "counter") as counter,
        ):
            return self._keep(self._read(database, counter))

    def update(self, change: Change) -> LedgerState:
        """Add the lines that ``change`` returns for the totals, and force them to disk."""
        with self._guard, opened(self._counter, "counter", write=True) as counter:
            with opened(self.path, "ledger", write=True) as database:
                state = self._read(database, counter)
                following = state.count + 1
                lines = state.add(list(change(state)))
                database.executemany(ADD_LINE, enumerate(lines, following))
            # The lines are on disk.
            counter.execute("update counter set count = :count, head = :head", state.mark)
            return self._keep(state)

    def refusals(self) -> Refusals:
        """Return the counts and the last refusals."""
        with opened(self.path, "ledger") as database:
            counts = dict(database.execute("select reason, count from reasons").fetchall())
            last = database.execute(
                "select time, run, round, reason, detail from refusals order by number"
            ).fetchall()
        return Refusals(counts, tuple(LoggedRefusal(*row) for row in last))

    def refuse(self, refusal: LoggedRefusal, budget_of: str, now: Moment) -> None:
        """Add one refusal; ``budget_of`` names the run if the node's budget refused it."""
        with opened(self.path, "ledger", write=True) as database:
            database.execute(
                "insert into refusals (time, run, round, reason, detail) values (?, ?, ?, ?, ?)",
                refusal._replace(text=refusal.text[:MOST_LETTERS]),
            )
            database.execute(
                "delete from refusals where number <= (select max(number) from refusals) - ?",
                (MOST_REFUSALS,),
            )
            database.execute(
                "insert into reasons values (?, 1) on conflict (reason) do update set "
                "count = count + 1",
                (refusal.reason,),
            )
            if budget_of:
                rows = database.execute("select * from refused_runs").fetchall()
                gone = [(run,) for run, *moment in rows if not Moment(*moment).is_within_day(now)]
                database.executemany("delete from refused_runs where run = ?", gone)
                database.execute(
                    "insert or replace into refused_runs values (?, ?, ?, ?)", (budget_of, *now)
                )

    def _read(self, database: sqlite3.Connection, counter: sqlite3.Connection) -> LedgerState:
        """Read all lines and the counter, which cannot pass them while they are locked.

        Of lines that this process has read before, the digests are compared.
        """
        state = self._state
        self._state = LedgerState(f"The ledger {self.path}")  # after an error, all are read anew
        lines = database.execute("select line from lines order by number").fetchall()
        known = state.count
        if len(lines) < known:
            raise LedgerError(f"{state.origin} is shorter than it was. {HELP}.")
        for number, (line,) in enumerate(lines, 1):
            if number > known:
                state.take(line)
            elif digest(line) != state.heads[number - 1]:
                raise LedgerError(f"{state.origin} was changed: line {number}. {HELP}.")
        rows = database.execute("select run, time, boot, running from refused_runs")
        state.refused_runs = {run: Moment(*moment) for run, *moment in rows}
        marks = counter.execute("select ledger, count, head from counter").fetchall()
        if len(marks) != 1:
            raise LedgerError(
                f"{self._counter} is not the counter of a ledger: it has {len(marks)} rows. {HELP}."
            )
        state.check_counter(self._counter, *marks[0])
        if state.is_behind(self._known):
            raise LedgerError(
                f"The ledger {self.path} is older than the one that this process or this run has "
                f"seen. {HELP}."
            )
        return state

    def _keep(self, state: LedgerState) -> LedgerState:
        self._state = state
        self._known.update(state.mark)
        return state


Ledger: TypeAlias = FileLedger | StateLedger
