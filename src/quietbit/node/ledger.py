"""A node's ledger on disk: an append-only file of chained lines, and a counter in another file.

Idea     a node must never forget what it has released. Every line holds the SHA-256 of the line
         before it, so no line can be changed, removed or moved. A second file, the counter, holds
         the number of lines and the digest of the last; a ledger that is shorter than its counter,
         or is a different one, is refused. Only `quietbit node init` makes them: a missing ledger
         is an error.
Symbols  head: SHA-256 of a line; count: number of lines, the first (which names the ledger)
         included.

| line | says |
|---|---|
| `ledger` | format, version, a random name; when it was made |
| `mechanism` | the full description of a mechanism, under its identity: once |
| `release` | one release: mechanism, k, run, round, moment, data set; noted before it is made |
| `step` | a step of a masked sum that hands out shares: answered once |

A line is added under a lock on the file itself, in one write, and forced to disk; then the counter
is replaced. A crash in between leaves the ledger ahead of its counter, which is valid. An
incomplete last line was never acted upon and is cut off. Restoring the *whole* disk from a copy is
noticed if the counter is on another disk, or if an engine remembers the last head
(docs/explanation/threat-model.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias, final

from attrs import define, field, frozen

from quietbit.errors import InvalidParameter, QuietbitError, check_int, require
from quietbit.node.refusal import AnsweredBefore, BudgetSpent

__all__ = ["FileLedger", "Ledger", "LedgerError", "LedgerState", "StateLedger", "WatchedLedger"]

FORMAT = "quietbit-ledger"
VERSION = 2
COUNTER = "quietbit-counter"
DAY = 86400.0
MOST_BYTES = 256 * 2**20
MOST_MECHANISMS = 256
MOST_OF_RUN = 16  # new mechanisms per run: updates, scouts, evaluations, changes of the plan
MOST_OF_DAY = 64  # new mechanisms of all runs in 24 hours
EVALUATIONS = "/evaluations"  # after a run's number, where its evaluations are noted
MOST_STEPS = 8  # lines of steps per release
FREE_RELEASES = 32  # the number of releases whose steps are allowed before any release is made
START = bytes(32)
Entry = dict[str, Any]
HELP = (
    "Restore the newest copy of both files. Without a copy the account of this node's releases is "
    "lost: only its owner can decide to move both files away and start again with `quietbit node "
    "init`"
)


class LedgerError(QuietbitError):
    """A ledger that cannot be read, written or trusted: the node then releases nothing."""


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
        return cls(
            time.time(),
            _boot(),
            time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)),
        )


@cache
def _boot() -> str:
    """Return a name for this start of the machine, or of this process where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.urandom(16).hex()


# Releases by mechanism, k and data set, in the order of the first of each.
Counts: TypeAlias = dict[tuple[str, int, str], int]


@final
@define(eq=False)
class LedgerState:
    """The totals of a ledger's lines."""

    identity: str = ""
    heads: list[bytes] = field(factory=list)
    mechanisms: dict[str, Any] = field(factory=dict)
    counts: Counts = field(factory=dict)
    # `counts` of each run, its evaluations included.
    run_counts: dict[str, Counts] = field(factory=dict)
    # Of each mechanism: the run that used it first, and when.
    first_uses: dict[str, tuple[str, Moment]] = field(factory=dict)
    times: list[Moment] = field(factory=list)
    runs: dict[str, list[tuple[int, float, str]]] = field(factory=dict)
    steps: dict[str, tuple[int, int]] = field(factory=dict)
    step_lines: int = 0

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
        return {"count": len(self.heads), "head": self.heads[-1].hex()}

    @property
    def releases(self) -> int:
        """The number of releases."""
        return sum(self.counts.values())

    def is_behind(self, known: Mapping[str, Any]) -> bool:
        """Return whether this is a different ledger than that of ``known``, or an earlier state.

        ``known`` is an earlier `mark`.
        """
        count = check_int(known.get("count", 0), "count", 0)
        return count > len(self.heads) or (
            count > 0 and self.heads[count - 1].hex() != known.get("head")
        )

    def last_day(self, now: Moment) -> int:
        """Return the number of releases in the last 24 hours; those dated in the future count."""
        return sum(when.is_within_day(now) for when in self.times)

    def last_round(self, run: str) -> int:
        """Return the last answered round of a run; 0 if there is none."""
        return max((number for number, _, _ in self.runs.get(run, ())), default=0)

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
        of_run = sum(user == base for user, _ in self.first_uses.values())
        of_day = sum(when.is_within_day(now) for _, when in self.first_uses.values())
        for count, most, where in (
            (len(self.mechanisms), MOST_MECHANISMS, "in its ledger"),
            (of_run, MOST_OF_RUN, f"for run {base}"),
            (of_day, MOST_OF_DAY, "in the last 24 hours"),
        ):
            if count >= most:
                raise BudgetSpent(
                    f"This node has released {most} different mechanisms {where}, the most it may."
                )

    def take(self, line: bytes, origin: str) -> None:
        """Add a line that was read, or is about to be written, to the totals."""
        number = self.count + 1
        try:
            entry = json.loads(line)
            if entry["previous"] != self.head.hex():
                raise LedgerError(
                    f"{origin} was changed: line {number} does not follow the one before. {HELP}."
                )
            self._take(entry, origin)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LedgerError(
                f"{origin} is not a ledger: line {number} cannot be read "
                f"({type(error).__name__}). {HELP}."
            ) from error
        self.heads.append(hashlib.sha256(line).digest())

    def _take(self, entry: Entry, origin: str) -> None:
        kind = entry["kind"]
        is_first = not self.heads
        if (kind == "ledger") is not is_first:
            raise InvalidParameter.of("kind of the line", "ledger in the first line only", kind)
        if kind == "ledger":
            self._take_first(entry, origin)
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

    def _take_first(self, entry: Entry, origin: str) -> None:
        require(entry["format"] == FORMAT, "format", entry["format"], FORMAT)
        version = check_int(entry["version"], "version of the ledger", 1)
        if version != VERSION:
            raise LedgerError(
                f"{origin} cannot be used: it has version {version}, and this quietbit reads "
                f"version {VERSION}. Install the quietbit that wrote it, or a newer one."
            )
        self.identity = str(entry["identity"])

    def _take_release(self, entry: Entry) -> None:
        mechanism = str(entry["mechanism"])
        honest = check_int(entry["honest"], "honest", 0)
        number = check_int(entry["round"], "round", 1)
        when = float(entry["time"])
        if mechanism not in self.mechanisms:
            raise InvalidParameter.of("mechanism of a release", "noted before it", mechanism)
        run = str(entry["run"])
        moment = Moment(when, str(entry.get("boot", "")), float(entry.get("running", 0.0)))
        key = (mechanism, honest, str(entry.get("data-set", "")))
        for counts in (self.counts, self.run_counts.setdefault(base_run(run), {})):
            counts[key] = counts.get(key, 0) + 1
        self.times.append(moment)
        self.first_uses.setdefault(mechanism, (base_run(run), moment))
        self.runs.setdefault(run, []).append((number, when, mechanism))


Change = Callable[[LedgerState], Iterable[Entry]]


def base_run(run: str) -> str:
    """Return the number of the run that updates or evaluations are noted under."""
    return run.removesuffix(EVALUATIONS)


def text_of(value: Any) -> str:
    """Return the canonical line of JSON of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


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


def _written(state: LedgerState, entries: Iterable[Entry], origin: str) -> bytes:
    """Return the entries as chained lines, and add each to the totals."""
    lines = []
    for entry in entries:
        line = text_of({**entry, "previous": state.head.hex()}).encode("ascii")
        state.take(line, origin)
        lines.append(line + b"\n")
    return b"".join(lines)


@final
@frozen(eq=False)
class StateLedger:
    """A ledger in a mapping, for simulations; an empty mapping starts a new one."""

    state: MutableMapping[str, Any]
    path: ClassVar[Path | None] = None

    def read(self) -> LedgerState:
        """Return the totals."""
        state = LedgerState()
        text = self.state.get("ledger", "")
        for line in str(text).encode("ascii").splitlines():
            state.take(line, "The ledger in the state")
        if not text:
            self.state["ledger"] = _written(
                state, [first_line()], "The ledger in the state"
            ).decode("ascii")
        return state

    def update(self, change: Change) -> LedgerState:
        """Add the lines that ``change`` returns for the totals; where it raises, add nothing."""
        state = self.read()
        added = _written(state, list(change(state)), "The ledger in the state").decode("ascii")
        self.state["ledger"] = str(self.state["ledger"]) + added
        return state


@final
class FileLedger:
    """The ledger in a file with its counter; made by `create`, shared by several processes."""

    def __init__(self, path: str | os.PathLike[str], counter: str | os.PathLike[str]) -> None:
        """Name the files; they are opened by `read` and `update`."""
        self.path = _absolute(path, "ledger")
        self._counter = _absolute(counter, "counter")
        require(self.path != self._counter, "counter", str(counter), "a file other than the ledger")
        self._state = LedgerState()
        self._size = 0
        self._guard = threading.RLock()

    @classmethod
    def create(cls, path: str | os.PathLike[str], counter: str | os.PathLike[str]) -> FileLedger:
        """Make a new ledger; refuse where either file exists."""
        ledger = cls(path, counter)
        for place in (ledger.path, ledger._counter):
            if os.path.lexists(place):
                raise LedgerError(
                    f"{place} exists: a ledger is made once. Move it away first if the past "
                    "releases of this node may be forgotten."
                )
        try:
            os.close(os.open(ledger.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise LedgerError(f"Cannot make the ledger {ledger.path}: {error.strerror}.") from error
        try:
            _force(ledger.path.parent, os.O_RDONLY)
            with locked(ledger.path, "ledger", os.O_RDWR) as handle:
                state = LedgerState()
                _append(handle, _written(state, [first_line()], str(ledger.path)), 0, ledger.path)
                ledger._put_counter(state)
        except BaseException as error:
            ledger.remove()  # an incomplete ledger would block the next attempt
            if isinstance(error, OSError):
                raise LedgerError(
                    f"Cannot make the ledger {ledger.path}: {error.strerror}."
                ) from error
            raise
        return ledger

    def remove(self) -> None:
        """Remove a new ledger that nothing was released under."""
        for path in (self.path, self._counter, self._unfinished_counter):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    @property
    def _unfinished_counter(self) -> Path:
        """The file where a new counter is written before it replaces the old one."""
        return self._counter.with_name(self._counter.name + ".new")

    def read(self, known: Mapping[str, Any] | None = None) -> LedgerState:
        """Return the totals; refuse a ledger behind its counter or behind ``known``, a `mark`."""
        with self._guard, locked(self.path, "ledger", os.O_RDONLY) as handle:
            return self._read(handle, known or {})

    def update(self, change: Change, known: Mapping[str, Any] | None = None) -> LedgerState:
        """Add the lines that ``change`` returns for the totals, and force them to disk, locked."""
        with self._guard, locked(self.path, "ledger", os.O_RDWR) as handle:
            state = self._read(handle, known or {})
            entries = list(change(state))
            size = self._size
            if not entries:
                return state
            self._state = LedgerState()  # after an error below, the file is read from its start
            self._size = 0
            lines = _written(state, entries, str(self.path))
            if size + len(lines) > MOST_BYTES:
                raise LedgerError(
                    f"The ledger {self.path} is full: this release would take it beyond "
                    f"{MOST_BYTES} bytes, the largest that quietbit reads."
                )
            _append(handle, lines, size, self.path)
            self._put_counter(state)
            self._state = state
            self._size = size + len(lines)
            return state

    def _read(self, handle: int, known: Mapping[str, Any]) -> LedgerState:
        size = os.fstat(handle).st_size
        if size > MOST_BYTES:
            raise LedgerError(f"{self.path} is not a ledger: it has more than {MOST_BYTES} bytes.")
        if size < self._size:
            raise LedgerError(f"The ledger {self.path} is shorter than it was. {HELP}.")
        with open(handle, "rb", closefd=False) as file:
            file.seek(self._size)
            added = file.read(size - self._size)
        if len(added) < size - self._size:
            raise LedgerError(
                f"The ledger {self.path} ended after {self._size + len(added)} of {size} bytes."
            )
        lines, newline, _ = added.rpartition(b"\n")
        if newline:
            state = self._state
            start = self._size
            self._state = LedgerState()  # after an unreadable line, the file is read from its start
            self._size = 0
            for line in lines.split(b"\n"):
                state.take(line, f"The ledger {self.path}")
            self._state = state
            self._size = start + len(lines) + 1
        self._check_counter(self._state)
        if self._state.is_behind(known):
            raise LedgerError(
                f"The ledger {self.path} is older than the one that this run wrote to. {HELP}."
            )
        return self._state

    def _check_counter(self, state: LedgerState) -> None:
        try:
            with _opened(self._counter, "counter", os.O_RDONLY) as handle:
                counter = json.loads(os.read(handle, 4096))
            belongs = counter["format"] == COUNTER and counter["ledger"] == state.identity
            count = check_int(counter["count"], "count", 1)
            is_behind = state.is_behind(counter)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LedgerError(
                f"{self._counter} is not the counter of a ledger ({type(error).__name__}). {HELP}."
            ) from error
        if not belongs:
            raise LedgerError(
                f"The counter {self._counter} belongs to a different ledger, not to {self.path}. "
                f"{HELP}."
            )
        if is_behind:
            raise LedgerError(
                f"The ledger {self.path} is older than its counter, or a different ledger: it has "
                f"{state.count} lines, and the counter says {count}. {HELP}."
            )

    def _put_counter(self, state: LedgerState) -> None:
        counter = {"format": COUNTER, "ledger": state.identity, **state.mark}
        data = (json.dumps(counter, sort_keys=True) + "\n").encode("ascii")
        unfinished = self._unfinished_counter
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)
            _force(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, data)
            os.replace(unfinished, self._counter)
            _force(self._counter.parent, os.O_RDONLY)
        except OSError as error:
            raise LedgerError(
                f"Cannot write the counter {self._counter}: {error.strerror}."
            ) from error


@final
@frozen(eq=False)
class WatchedLedger:
    """A ledger whose head is also in a record elsewhere, such as Flower's state of a run."""

    ledger: FileLedger
    record: MutableMapping[str, Any]

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self.ledger.path

    def read(self) -> LedgerState:
        """Return the totals; refuse a ledger that is behind the record."""
        return self.ledger.read(self.record)

    def update(self, change: Change) -> LedgerState:
        """Add lines, and write the new head into the record."""
        state = self.ledger.update(change, self.record)
        self.record.update(state.mark)
        return state


Ledger: TypeAlias = FileLedger | StateLedger | WatchedLedger


def _absolute(path: str | os.PathLike[str], name: str) -> Path:
    place = Path(path).expanduser()
    # A relative path would name another file in another working directory.
    require(place.is_absolute(), name, str(path), "an absolute path")
    return Path(os.path.realpath(place))


@contextlib.contextmanager
def locked(path: Path, name: str, how: int) -> Iterator[int]:
    """Open a file and lock it until the end of the block: shared to read, exclusive to write."""
    try:
        import fcntl as locks
    except ImportError as error:
        raise LedgerError(
            f"The {name} needs POSIX file locks, which this system does not have."
        ) from error
    with _opened(path, name, how) as handle:
        try:
            locks.flock(handle, locks.LOCK_SH if how == os.O_RDONLY else locks.LOCK_EX)
        except OSError as error:
            raise LedgerError(f"Cannot lock the {name} {path}: {error.strerror}.") from error
        same = False
        with contextlib.suppress(OSError):
            same = os.path.samestat(os.fstat(handle), os.stat(path))
        if not same:
            raise LedgerError(
                f"The {name} {path} was moved or replaced while it was opened: try again."
            )
        yield handle


@contextlib.contextmanager
def _opened(path: Path, name: str, how: int) -> Iterator[int]:
    """Open a regular file that has one name; do not wait for a FIFO."""
    try:
        handle = os.open(path, how | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError as error:
        raise LedgerError(
            f"The {name} {path} is missing: only `quietbit node init` makes one, once. {HELP}."
        ) from error
    except OSError as error:
        raise LedgerError(f"Cannot open the {name} {path}: {error.strerror}.") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise LedgerError(
                f"The {name} {path} must be a regular file with one name: not a FIFO, a device or "
                "a hard link."
            )
        yield handle
    finally:
        os.close(handle)


def _append(handle: int, lines: bytes, size: int, path: Path) -> None:
    """Write lines after the first ``size`` bytes; if that fails, leave these as they were."""
    try:
        os.ftruncate(handle, size)  # cuts off an incomplete line that a crash left
        done = 0
        while done < len(lines):
            done += os.pwrite(handle, lines[done:], size + done)
        os.fsync(handle)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, size)
        raise LedgerError(f"Cannot write the ledger {path}: {error.strerror}.") from error


def _force(path: Path, how: int, data: bytes = b"") -> None:
    """Force a folder, or a file with this data, to disk."""
    handle = os.open(path, how | os.O_CLOEXEC, 0o600)
    try:
        if data and os.write(handle, data) != len(data):
            raise OSError(0, "the disk is full")
        os.fsync(handle)
    finally:
        os.close(handle)
