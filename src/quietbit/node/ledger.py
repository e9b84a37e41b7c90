"""A node's ledger on disk: lines that are only ever added, each bound to the one before, and a counter kept apart.

Idea     what was spent is the one thing a node must not forget. Every line of the file holds the
         SHA-256 of the line before it, so that no line can be changed, taken out or moved. A second
         file, the counter, says how many lines there are and what the last one is; a ledger that is
         shorter than its counter, or another one, is refused. Both are made by `quietbit node init`
         and by nothing else: a missing ledger is an error.
Symbols  head: SHA-256 of a line; count: number of lines, the first (which names the ledger)
         included.

| line | says |
|---|---|
| `ledger` | format, version, a random name; when it was made |
| `mechanism` | a mechanism in full, by its identity: once |
| `release` | one release: mechanism, k, run, round, moment, data set. Written before a random word is drawn |
| `step` | a step of a masked sum that hands out shares: answered once |

A line is added under a lock on the file itself, in one write, and forced to disk, then the counter
is replaced. A crash in between leaves the ledger ahead of its counter, which only means that more
was spent; a line without its end was never acted upon and is cut off. A *whole* disk that is put
back is noticed by those who remember the last head besides (docs/explanation/threat-model.md), or
with a counter on another disk.
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
MOST_OF_RUN = (
    16  # mechanisms that one run may add: updates, scouts, evaluations, and changes of its plan
)
MOST_OF_DAY = 64  # and all runs in 24 hours
EVALUATIONS = "/evaluations"  # follows a run's number where its evaluations are noted
MOST_STEPS = 8  # lines of steps for every release that was made, and as many rounds to begin with
START = bytes(32)
Entry = dict[str, Any]
HELP = (
    "Put the newest copy of both files back. If it is lost, so is the account of what this node has released: only its "
    "owner can decide to move both files away and begin again with `quietbit node init`"
)


class LedgerError(QuietbitError):
    """A ledger that cannot be read, written or believed: nobody knows what was spent, so nothing more is."""


@final
class Moment(NamedTuple):
    """When something happened: by the clock, and by how long the machine had then been running since ``boot``.

    A clock can be put forward; how long a machine has been running cannot. After a restart only the
    clock is left.
    """

    time: float
    boot: str
    running: float

    def is_within_day(self, now: Moment) -> bool:
        """Return whether this was less than 24 hours before ``now``, by either clock, or lies in the future."""
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
    """Return a name for this start of the machine; where the system has none, for this process."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.urandom(16).hex()


Counts: TypeAlias = dict[
    tuple[str, int, str], int
]  # releases by mechanism, k and data set, the first one first


@final
@define(eq=False)
class LedgerState:
    """The totals of a ledger's lines."""

    identity: str = ""
    heads: list[bytes] = field(factory=list)
    mechanisms: dict[str, Any] = field(factory=dict)
    counts: Counts = field(factory=dict)
    run_counts: dict[str, Counts] = field(
        factory=dict
    )  # the same of each run, its evaluations included
    first_uses: dict[str, tuple[str, Moment]] = field(
        factory=dict
    )  # of a mechanism: by which run, and when
    times: list[Moment] = field(factory=list)
    runs: dict[str, list[tuple[int, float, str]]] = field(factory=dict)
    steps: dict[str, tuple[int, int]] = field(factory=dict)
    step_lines: int = 0

    @property
    def count(self) -> int:
        """How many lines there are."""
        return len(self.heads)

    @property
    def head(self) -> bytes:
        """The digest of the last line."""
        return self.heads[-1] if self.heads else START

    @property
    def mark(self) -> dict[str, Any]:
        """What to remember of a ledger in order to notice that it went back."""
        return {"count": len(self.heads), "head": self.heads[-1].hex()}

    @property
    def releases(self) -> int:
        """How many releases were noted."""
        return sum(self.counts.values())

    def behind(self, known: Mapping[str, Any]) -> bool:
        """Whether this is not the ledger, or is an earlier state of it, that ``known`` (a `mark`) was taken of."""
        count = check_int(known.get("count", 0), "count", 0)
        return count > len(self.heads) or (
            count > 0 and self.heads[count - 1].hex() != known.get("head")
        )

    def last_day(self, now: Moment) -> int:
        """Return the releases of the last 24 hours; those that a clock put into the future are among them."""
        return sum(when.is_within_day(now) for when in self.times)

    def last_round(self, run: str) -> int:
        """Return the last round of a run that was answered; 0 if none."""
        return max((number for number, _, _ in self.runs.get(run, ())), default=0)

    def check_round(self, run: str, number: int) -> None:
        """Refuse a round that is not later than all that were answered in this run."""
        last = self.last_round(run)
        if not number > last:
            raise AnsweredBefore(
                f"round must be above {last}, the last one answered in run {run}, got {number}."
            )

    def step(self, run: str, number: int, step: int) -> Entry:
        """Return the line of a step of a masked sum that is answered now; refused unless later than all of this run.

        Refused, too, after steps of too many sums that came to no release: they would fill the
        disk.
        """
        if self.step_lines >= MOST_STEPS * (self.releases + 32):
            raise BudgetSpent(
                "This node was asked for steps of too many sums that came to nothing."
            )
        last_round, last_step = self.steps.get(run, (0, 0))
        if not (number, step) > (last_round, last_step):
            raise AnsweredBefore(
                f"step {step} of the sum of round {number} must come after step {last_step} of round {last_round}, "
                f"the last one answered in run {run}."
            )
        return {"kind": "step", "run": run, "round": number, "step": step}

    def check_mechanism(self, identity: str, run: str, now: Moment) -> None:
        """Refuse a new mechanism beyond what a ledger holds, or what a run or a day may add to it.

        Each is priced in every process that reads the ledger, so nobody may fill it at will.
        """
        if identity in self.mechanisms:
            return
        base = base_run(run)
        of_run = sum(user == base for user, _ in self.first_uses.values())
        of_day = sum(when.is_within_day(now) for _, when in self.first_uses.values())
        for count, most, where in (
            (len(self.mechanisms), MOST_MECHANISMS, "in all"),
            (of_run, MOST_OF_RUN, f"of run {base}"),
            (of_day, MOST_OF_DAY, "in the last 24 hours"),
        ):
            if count >= most:
                raise BudgetSpent(
                    f"This node has answered with {most} different mechanisms {where}."
                )

    def take(self, line: bytes, origin: str) -> None:
        """Add a line that was read or is about to be written."""
        try:
            entry = json.loads(line)
            if entry["previous"] != self.head.hex():
                said = f"line {self.count + 1} does not follow the one before"
                raise LedgerError(f"{origin} was changed: {said}. {HELP}.")
            kind = entry["kind"]
            if (kind == "ledger") == bool(self.heads):
                raise InvalidParameter.of(
                    "kind of the line", "ledger in the first, and no other", kind
                )
            if kind == "ledger":
                require(entry["format"] == FORMAT, "format", entry["format"], FORMAT)
                version = check_int(entry["version"], "version of the ledger", 1)
                if version != VERSION:
                    known = f"it has version {version}, and this quietbit reads version {VERSION}"
                    raise LedgerError(
                        f"{origin} cannot be used: {known}. Install the quietbit that wrote it, or a newer one."
                    )
                self.identity = str(entry["identity"])
            elif kind == "mechanism":
                self.mechanisms[str(entry["mechanism"])] = entry["description"]
            elif kind == "release":
                mechanism = str(entry["mechanism"])
                honest = check_int(entry["honest"], "honest", 0)
                number = check_int(entry["round"], "round", 1)
                when = float(entry["time"])
                if mechanism not in self.mechanisms:
                    raise InvalidParameter.of(
                        "mechanism of a release", "one that was noted", mechanism
                    )
                run = str(entry["run"])
                moment = Moment(when, str(entry.get("boot", "")), float(entry.get("running", 0.0)))
                key = mechanism, honest, str(entry.get("data-set", ""))
                for counts in (self.counts, self.run_counts.setdefault(base_run(run), {})):
                    counts[key] = counts.get(key, 0) + 1
                self.times.append(moment)
                self.first_uses.setdefault(mechanism, (base_run(run), moment))
                self.runs.setdefault(run, []).append((number, when, mechanism))
            elif kind == "step":
                place = check_int(entry["round"], "round", 1), check_int(entry["step"], "step", 1)
                self.steps[str(entry["run"])] = place
                self.step_lines += 1
            elif (
                kind != "price"
            ):  # of earlier versions; mechanisms are priced anew from their descriptions
                raise InvalidParameter(
                    f"kind of the line must be one of this version's, got {kind!r}."
                )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            said = f"line {self.count + 1} cannot be read ({type(error).__name__})"
            raise LedgerError(f"{origin} is not a ledger: {said}. {HELP}.") from error
        self.heads.append(hashlib.sha256(line).digest())


Change = Callable[[LedgerState], Iterable[Entry]]


def base_run(run: str) -> str:
    """Return the run whose updates or evaluations are noted under this name."""
    return run.removesuffix(EVALUATIONS)


def text_of(value: Any) -> str:
    """Return the one line of JSON that stands for a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def mechanism_line(identity: str, description: Any) -> Entry:
    """Return the line that describes a mechanism in full."""
    return {"kind": "mechanism", "mechanism": identity, "description": description}


def release_line(identity: str, honest: int, run: str, number: int, data_set: str = "") -> Entry:
    """One release, now; of a data set, where the owner has named it."""
    line: Entry = {
        "kind": "release",
        "mechanism": identity,
        "honest": honest,
        "run": run,
        "round": number,
    }
    line |= {"data-set": data_set} if data_set else {}
    now = Moment.now()
    return line | {"time": round(now.time, 3), "boot": now.boot, "running": round(now.running, 3)}


def first_line() -> Entry:
    """Return the line that names a new ledger."""
    stamp = {"identity": os.urandom(16).hex(), "time": round(time.time(), 3)}
    return {"kind": "ledger", "format": FORMAT, "version": VERSION, **stamp}


def _written(state: LedgerState, entries: Iterable[Entry], origin: str) -> bytes:
    """Encode the entries as lines, adding each to the totals in turn."""
    lines = []
    for entry in entries:
        line = text_of({**entry, "previous": state.head.hex()}).encode("ascii")
        state.take(line, origin)
        lines.append(line + b"\n")
    return b"".join(lines)


@final
@frozen(eq=False)
class StateLedger:
    """A ledger in a mapping, for simulations: lines without a disk below them; an empty mapping begins one."""

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
        """Add the lines that ``change`` makes of what there is; where it raises, nothing is added."""
        state = self.read()
        added = _written(state, list(change(state)), "The ledger in the state").decode("ascii")
        self.state["ledger"] = str(self.state["ledger"]) + added
        return state


@final
class FileLedger:
    """The ledger in a file with its counter; made by `create`, used by as many processes as like."""

    def __init__(self, path: str | os.PathLike[str], counter: str | os.PathLike[str]) -> None:
        """Name the files; they are opened when they are used."""
        self.path = _absolute(path, "ledger")
        self._counter = _absolute(counter, "counter")
        require(self.path != self._counter, "counter", str(counter), "another file than the ledger")
        self._state = LedgerState()
        self._size = 0
        self._guard = threading.RLock()

    @classmethod
    def create(cls, path: str | os.PathLike[str], counter: str | os.PathLike[str]) -> FileLedger:
        """Begin a ledger; refused where either file is there already."""
        ledger = cls(path, counter)
        for place in (ledger.path, ledger._counter):
            if os.path.lexists(place):
                raise LedgerError(
                    f"{place} is there already: a ledger is begun once. If this node's past releases may be forgotten, "
                    "move it away first."
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
            ledger.remove()  # half a ledger would be refused, and in the way of the next attempt
            if isinstance(error, OSError):
                raise LedgerError(
                    f"Cannot make the ledger {ledger.path}: {error.strerror}."
                ) from error
            raise
        return ledger

    def remove(self) -> None:
        """Remove a ledger that was begun and not used: nothing was released."""
        for path in (self.path, self._counter, self._unfinished_counter):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    @property
    def _unfinished_counter(self) -> Path:
        """Where a new counter is written before it replaces the old one; what a crash leaves there is used again."""
        return self._counter.with_name(self._counter.name + ".new")

    def read(self, known: Mapping[str, Any] | None = None) -> LedgerState:
        """Return the totals; refused where the ledger is not what its counter or ``known`` (a `mark`) says."""
        with self._guard, locked(self.path, "ledger", os.O_RDONLY) as handle:
            return self._read(handle, known or {})

    def update(self, change: Change, known: Mapping[str, Any] | None = None) -> LedgerState:
        """Read, change, write and force to disk, the counter too, all under the lock."""
        with self._guard, locked(self.path, "ledger", os.O_RDWR) as handle:
            state = self._read(handle, known or {})
            entries = list(change(state))
            size = self._size
            if not entries:
                return state
            self._state = LedgerState()  # read anew if anything goes wrong from here on
            self._size = 0
            lines = _written(state, entries, str(self.path))
            if size + len(lines) > MOST_BYTES:
                raise LedgerError(
                    f"The ledger {self.path} would be larger than {MOST_BYTES} bytes."
                )
            _append(handle, lines, size, self.path)
            self._put_counter(state)
            self._state = state
            self._size = size + len(lines)
            return state

    def _read(self, handle: int, known: Mapping[str, Any]) -> LedgerState:
        size = os.fstat(handle).st_size
        if size > MOST_BYTES:
            raise LedgerError(f"{self.path} is not a ledger: it is larger than {MOST_BYTES} bytes.")
        if size < self._size:
            raise LedgerError(f"The ledger {self.path} is shorter than it was. {HELP}.")
        with open(handle, "rb", closefd=False) as file:
            file.seek(self._size)
            fresh = file.read(size - self._size)
        if len(fresh) < size - self._size:
            raise LedgerError(f"The ledger {self.path} cannot be read to its end.")
        whole, end, _ = fresh.rpartition(b"\n")
        if end:
            state = self._state
            start = self._size
            self._state = LedgerState()  # lines that cannot be read leave nothing that looks read
            self._size = 0
            for line in whole.split(b"\n"):
                state.take(line, f"The ledger {self.path}")
            self._state = state
            self._size = start + len(whole) + 1
        self._check_counter(self._state)
        if self._state.behind(known):
            raise LedgerError("The ledger is behind what this run has noted in it.")
        return self._state

    def _check_counter(self, state: LedgerState) -> None:
        try:
            with _opened(self._counter, "counter", os.O_RDONLY) as handle:
                said = json.loads(os.read(handle, 4096))
            own = said["format"] == COUNTER and said["ledger"] == state.identity
            count = check_int(said["count"], "count", 1)
            behind = state.behind(said)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LedgerError(
                f"{self._counter} is not the counter of a ledger ({type(error).__name__}). {HELP}."
            ) from error
        if not own:
            raise LedgerError(
                f"The counter {self._counter} belongs to another ledger than {self.path}. {HELP}."
            )
        if behind:
            said = f"({state.count} lines; it has seen {count})"
            raise LedgerError(
                f"The ledger {self.path} is older than its counter, or another {said}. {HELP}."
            )

    def _put_counter(self, state: LedgerState) -> None:
        said = {"format": COUNTER, "ledger": state.identity, **state.mark}
        data = (json.dumps(said, sort_keys=True) + "\n").encode("ascii")
        beside = self._unfinished_counter
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            _force(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, data)
            os.replace(beside, self._counter)
            _force(self._counter.parent, os.O_RDONLY)
        except OSError as error:
            raise LedgerError(
                f"Cannot write the counter {self._counter}: {error.strerror}."
            ) from error


@final
@frozen(eq=False)
class WatchedLedger:
    """A ledger whose head a record elsewhere remembers, such as Flower's state within a run."""

    ledger: FileLedger
    record: MutableMapping[str, Any]

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self.ledger.path

    def read(self) -> LedgerState:
        """Return the totals; refused where the ledger went back."""
        return self.ledger.read(self.record)

    def update(self, change: Change) -> LedgerState:
        """Add lines, and remember the last."""
        state = self.ledger.update(change, self.record)
        self.record.update(state.mark)
        return state


Ledger: TypeAlias = FileLedger | StateLedger | WatchedLedger


def _absolute(path: str | os.PathLike[str], name: str) -> Path:
    place = Path(path).expanduser()
    # A relative path would be another file when the process is started elsewhere.
    require(place.is_absolute(), name, str(path), "an absolute path")
    return Path(os.path.realpath(place))


@contextlib.contextmanager
def locked(path: Path, name: str, how: int) -> Iterator[int]:
    """Open and lock a file: the lock is on the file itself, whatever name it was opened by; shared to read it."""
    try:
        import fcntl as locks
    except ImportError as error:
        raise LedgerError(
            f"The {name} needs POSIX file locks, which this system does not have."
        ) from error
    with _opened(path, name, how) as handle:
        try:
            locks.flock(
                handle, locks.LOCK_SH if how == os.O_RDONLY else locks.LOCK_EX
            )  # until it is closed
        except OSError as error:
            raise LedgerError(f"Cannot lock the {name} {path}: {error.strerror}.") from error
        same = False
        with contextlib.suppress(OSError):
            same = os.path.samestat(os.fstat(handle), os.stat(path))
        if not same:
            raise LedgerError(f"The {name} {path} was taken away or replaced while it was opened.")
        yield handle


@contextlib.contextmanager
def _opened(path: Path, name: str, how: int) -> Iterator[int]:
    """Open a regular file with one name, without waiting for a FIFO."""
    try:
        handle = os.open(path, how | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError as error:
        raise LedgerError(
            f"The {name} {path} is missing: `quietbit node init` makes it, once, and nothing else does. {HELP}."
        ) from error
    except OSError as error:
        raise LedgerError(f"Cannot open the {name} {path}: {error.strerror}.") from error
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise LedgerError(
                f"The {name} {path} must be a regular file with one name (no FIFO, device or hard link)."
            )
        yield handle
    finally:
        os.close(handle)


def _append(handle: int, lines: bytes, size: int, path: Path) -> None:
    """Write at the end of the whole lines; if that fails, leave them as they were."""
    try:
        os.ftruncate(handle, size)  # a line without its end, from a crash
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
