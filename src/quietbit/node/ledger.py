"""A node's ledger on disk: lines that are only ever added, each bound to the one before, and a counter kept apart.

Idea     what was spent is the one thing a node must not forget. Every line of the file holds the SHA-256 of the line
         before it, so that no line can be changed, taken out or moved. A second file, the counter, says how many
         lines there are and what the last one is; a ledger that is shorter than its counter, or another one, is
         refused. Both are made by `quietbit node init` and by nothing else: a ledger that is not there was taken away.
Symbols  head: SHA-256 of a line; count: number of lines, the first (which names the ledger) included.

| line | says |
|---|---|
| `ledger` | format, version, a random name; when it was made |
| `mechanism` | a mechanism in full, by its identity: once |
| `release` | one release: mechanism, k, run, round, moment, data set. Written before a random word is drawn |
| `step` | a step of a masked sum that hands out shares: answered once |

A line is added under a lock on the file itself, in one write, and forced to disk, then the counter is replaced. A crash
in between leaves the ledger ahead of its counter, which only means that more was spent; a line without its end was
never acted upon and is cut off. A *whole* disk that is put back is noticed by those who remember the last head besides
(docs/explanation/threat-model.md), or with a counter on another disk.
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
from typing import Any, NamedTuple, TypeAlias, final

from attrs import define, field, frozen

from quietbit.errors import InvalidParameter, QuietbitError, check_int, require

__all__ = ["AnsweredBefore", "FileLedger", "Ledger", "LedgerError", "LedgerState", "StateLedger", "WatchedLedger"]

FORMAT, VERSION = "quietbit-ledger", 2
COUNTER = "quietbit-counter"
DAY = 86400.0
MOST_BYTES = 256 * 2**20
MOST_MECHANISMS = 256
MOST_STEPS = 8  # lines of steps for every release that was made, and as many rounds to begin with
START = bytes(32)
Entry = dict[str, Any]
HELP = (
    "Put the newest copy of both files back. If it is lost, so is the account of what this node has released: only its "
    "owner can decide to move both files away and begin again with `quietbit node init`"
)


class LedgerError(QuietbitError):
    """A ledger that cannot be read, written or believed: nobody knows what was spent, so nothing more is."""


class AnsweredBefore(InvalidParameter):
    """A question that is answered once, and was, or may have been: what it asks for has left this node."""


@final
class Moment(NamedTuple):
    """When something happened: by the clock, and by how long the machine had then been running since ``boot``.

    A clock can be put forward; how long a machine has been running cannot. After a restart only the clock is left.
    """

    time: float
    boot: str
    running: float

    @classmethod
    def now(cls) -> Moment:
        """Read both clocks."""
        return cls(time.time(), _boot(), time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)))


@cache
def _boot() -> str:
    """Return a name for this start of the machine; where the system has none, for this process."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.urandom(16).hex()


@final
@define(eq=False)
class LedgerState:
    """The totals of a ledger's lines."""

    identity: str = ""
    heads: list[bytes] = field(factory=list)
    mechanisms: dict[str, Any] = field(factory=dict)
    counts: dict[tuple[str, int, str], int] = field(factory=dict)  # by mechanism, k and data set
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
        return count > len(self.heads) or (count > 0 and self.heads[count - 1].hex() != known.get("head"))

    def last_day(self, now: Moment) -> int:
        """Return the releases of the last 24 hours; those that a clock put into the future are among them."""
        return sum(
            now.time - when.time < DAY or (now.boot == when.boot and now.running - when.running < DAY)
            for when in self.times
        )

    def last_round(self, run: str) -> int:
        """Return the last round of a run that was answered; 0 if none."""
        return max((number for number, _, _ in self.runs.get(run, ())), default=0)

    def check_round(self, run: str, number: int) -> None:
        """Refuse a round that is not later than all that were answered in this run."""
        last = self.last_round(run)
        if not number > last:
            raise AnsweredBefore(f"round must be above {last}, the last one answered in this run, got {number}.")

    def step(self, run: str, number: int, step: int) -> Entry:
        """Return the line of a step of a masked sum that is answered now; refused unless later than all of this run.

        Refused, too, after steps of too many sums that came to no release: they would fill the disk.
        """
        if self.step_lines >= MOST_STEPS * (self.releases + 32):
            raise LedgerError("This node was asked for steps of too many sums that came to nothing.")
        last = self.steps.get(run, (0, 0))
        if not (number, step) > last:
            raise AnsweredBefore(
                f"step {step} of the sum of round {number} must come after step {last[1]} of round {last[0]}, the last "
                "one answered in this run."
            )
        return {"kind": "step", "run": run, "round": number, "step": step}

    def check_mechanism(self, identity: str) -> None:
        """Refuse one mechanism more than a ledger holds: each is priced anew in every process that reads it."""
        if identity not in self.mechanisms and len(self.mechanisms) >= MOST_MECHANISMS:
            raise LedgerError(f"This node has answered with {MOST_MECHANISMS} different mechanisms, and takes no more.")

    def take(self, line: bytes, origin: str) -> None:
        """Add a line that was read or is about to be written."""
        try:
            entry = json.loads(line)
            if entry["previous"] != self.head.hex():
                said = f"line {self.count + 1} does not follow the one before"
                raise LedgerError(f"{origin} was changed: {said}. {HELP}.")
            kind = entry["kind"]
            if (kind == "ledger") == bool(self.heads):
                raise InvalidParameter.of("kind of the line", "ledger in the first, and no other", kind)
            if kind == "ledger":
                require(entry["format"] == FORMAT and entry["version"] == VERSION, "format", entry["format"], FORMAT)
                self.identity = str(entry["identity"])
            elif kind == "mechanism":
                self.mechanisms[str(entry["mechanism"])] = entry["description"]
            elif kind == "release":
                mechanism, honest = str(entry["mechanism"]), check_int(entry["honest"], "honest", 0)
                number, when = check_int(entry["round"], "round", 1), float(entry["time"])
                if mechanism not in self.mechanisms:
                    raise InvalidParameter.of("mechanism of a release", "one that was noted", mechanism)
                key = mechanism, honest, str(entry.get("data-set", ""))
                self.counts[key] = self.counts.get(key, 0) + 1
                self.times.append(Moment(when, str(entry.get("boot", "")), float(entry.get("running", 0.0))))
                self.runs.setdefault(str(entry["run"]), []).append((number, when, mechanism))
            elif kind == "step":
                place = check_int(entry["round"], "round", 1), check_int(entry["step"], "step", 1)
                self.steps[str(entry["run"])] = place
                self.step_lines += 1
            elif kind != "price":  # of earlier versions; mechanisms are priced anew from their descriptions
                raise InvalidParameter(f"kind of the line must be one of this version's, got {kind!r}.")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            said = f"line {self.count + 1} cannot be read ({type(error).__name__})"
            raise LedgerError(f"{origin} is not a ledger: {said}. {HELP}.") from error
        self.heads.append(hashlib.sha256(line).digest())


Change = Callable[[LedgerState], Iterable[Entry]]


def text_of(value: Any) -> str:
    """Return the one line of JSON that stands for a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def mechanism_line(identity: str, description: Any) -> Entry:
    """Return the line that describes a mechanism in full."""
    return {"kind": "mechanism", "mechanism": identity, "description": description}


def release_line(identity: str, honest: int, run: str, number: int, data_set: str = "") -> Entry:
    """One release, now; of a data set, where the owner has named it."""
    line: Entry = {"kind": "release", "mechanism": identity, "honest": honest, "run": run, "round": number}
    line |= {"data-set": data_set} if data_set else {}
    now = Moment.now()
    return line | {"time": round(now.time, 3), "boot": now.boot, "running": round(now.running, 3)}


def first_line() -> Entry:
    """Return the line that names a new ledger."""
    stamp = {"identity": os.urandom(16).hex(), "time": round(time.time(), 3)}
    return {"kind": "ledger", "format": FORMAT, "version": VERSION, **stamp}


def _written(books: LedgerState, entries: Iterable[Entry], origin: str) -> bytes:
    """Encode the entries as lines, taking each into the books in turn."""
    lines = []
    for entry in entries:
        line = text_of({**entry, "previous": books.head.hex()}).encode("ascii")
        books.take(line, origin)
        lines.append(line + b"\n")
    return b"".join(lines)


@final
@frozen(eq=False)
class StateLedger:
    """A ledger in a mapping, for simulations: lines without a disk below them; an empty mapping begins one."""

    state: MutableMapping[str, Any]

    def read(self) -> LedgerState:
        """Return the totals."""
        books, text = LedgerState(), self.state.get("ledger", "")
        for line in str(text).encode("ascii").splitlines():
            books.take(line, "The ledger in the state")
        if not text:
            self.state["ledger"] = _written(books, [first_line()], "The ledger in the state").decode("ascii")
        return books

    def update(self, change: Change) -> LedgerState:
        """Add the lines that ``change`` makes of what there is; where it raises, nothing is added."""
        books = self.read()
        added = _written(books, list(change(books)), "The ledger in the state").decode("ascii")
        self.state["ledger"] = str(self.state["ledger"]) + added
        return books


@final
class FileLedger:
    """The ledger in a file with its counter; made by `create`, used by as many processes as like."""

    def __init__(self, path: str | os.PathLike[str], counter: str | os.PathLike[str]) -> None:
        """Name the files; they are opened when they are used."""
        self._path, self._counter = _absolute(path, "ledger"), _absolute(counter, "counter")
        require(self._path != self._counter, "counter", str(counter), "another file than the ledger")
        self._books, self._size = LedgerState(), 0
        self._guard = threading.RLock()

    @classmethod
    def create(cls, path: str | os.PathLike[str], counter: str | os.PathLike[str]) -> FileLedger:
        """Begin a ledger; refused where either file is there already."""
        ledger = cls(path, counter)
        for place in (ledger._path, ledger._counter):
            if os.path.lexists(place):
                raise LedgerError(
                    f"{place} is there already: a ledger is begun once. If this node's past releases may be forgotten, "
                    "move it away first."
                )
        try:
            os.close(os.open(ledger._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            _force(ledger._path.parent, os.O_RDONLY)
        except OSError as error:
            raise LedgerError(f"Cannot make the ledger {ledger._path}: {error.strerror}.") from error
        with ledger._locked() as handle:
            books = LedgerState()
            _append(handle, _written(books, [first_line()], str(ledger._path)), 0, ledger._path)
            ledger._put_counter(books)
        return ledger

    def read(self, known: Mapping[str, Any] | None = None) -> LedgerState:
        """Return the totals; refused where the ledger is not what its counter or ``known`` (a `mark`) says."""
        with self._guard, self._locked() as handle:
            return self._read(handle, known or {})

    def update(self, change: Change, known: Mapping[str, Any] | None = None) -> LedgerState:
        """Read, change, write and force to disk, the counter too, all under the lock."""
        with self._guard, self._locked() as handle:
            books = self._read(handle, known or {})
            entries, size = list(change(books)), self._size
            if not entries:
                return books
            self._books, self._size = LedgerState(), 0  # read anew if anything goes wrong from here on
            lines = _written(books, entries, str(self._path))
            if size + len(lines) > MOST_BYTES:
                raise LedgerError(f"The ledger {self._path} would be larger than {MOST_BYTES} bytes.")
            _append(handle, lines, size, self._path)
            self._put_counter(books)
            self._books, self._size = books, size + len(lines)
            return books

    def _read(self, handle: int, known: Mapping[str, Any]) -> LedgerState:
        size = os.fstat(handle).st_size
        if size > MOST_BYTES:
            raise LedgerError(f"{self._path} is not a ledger: it is larger than {MOST_BYTES} bytes.")
        if size < self._size:
            raise LedgerError(f"The ledger {self._path} is shorter than it was. {HELP}.")
        with open(handle, "rb", closefd=False) as file:
            file.seek(self._size)
            fresh = file.read(size - self._size)
        if len(fresh) < size - self._size:
            raise LedgerError(f"The ledger {self._path} cannot be read to its end.")
        whole, end, _ = fresh.rpartition(b"\n")
        if end:
            books, start = self._books, self._size
            self._books, self._size = LedgerState(), 0  # lines that cannot be read leave nothing that looks read
            for line in whole.split(b"\n"):
                books.take(line, f"The ledger {self._path}")
            self._books, self._size = books, start + len(whole) + 1
        self._check_counter(self._books)
        if self._books.behind(known):
            raise LedgerError("The ledger is behind what this run has noted in it.")
        return self._books

    def _check_counter(self, books: LedgerState) -> None:
        try:
            with _opened(self._counter, "counter", os.O_RDONLY) as handle:
                said = json.loads(os.read(handle, 4096))
            own = said["format"] == COUNTER and said["ledger"] == books.identity
            count, behind = check_int(said["count"], "count", 1), books.behind(said)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LedgerError(
                f"{self._counter} is not the counter of a ledger ({type(error).__name__}). {HELP}."
            ) from error
        if not own:
            raise LedgerError(f"The counter {self._counter} belongs to another ledger than {self._path}. {HELP}.")
        if behind:
            said = f"({books.count} lines; it has seen {count})"
            raise LedgerError(f"The ledger {self._path} is older than its counter, or another {said}. {HELP}.")

    def _put_counter(self, books: LedgerState) -> None:
        said = {"format": COUNTER, "ledger": books.identity, **books.mark}
        data = (json.dumps(said, sort_keys=True) + "\n").encode("ascii")
        beside = self._counter.with_name(self._counter.name + ".new")  # one name: what a crash leaves is used again
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            _force(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, data)
            os.replace(beside, self._counter)
            _force(self._counter.parent, os.O_RDONLY)
        except OSError as error:
            raise LedgerError(f"Cannot write the counter {self._counter}: {error.strerror}.") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Open and lock the ledger: the lock is on the file itself, whatever name it was opened by."""
        try:
            import fcntl as locks
        except ImportError as error:
            raise LedgerError("A ledger needs POSIX file locks, which this system does not have.") from error
        with _opened(self._path, "ledger", os.O_RDWR) as handle:
            locks.flock(handle, locks.LOCK_EX)  # given back when it is closed
            same = False
            with contextlib.suppress(OSError):
                same = os.path.samestat(os.fstat(handle), os.stat(self._path))
            if not same:
                raise LedgerError(f"The ledger {self._path} was taken away or replaced while it was opened.")
            yield handle


@final
@frozen(eq=False)
class WatchedLedger:
    """A ledger whose head a record elsewhere remembers, such as Flower's state within a run."""

    ledger: FileLedger
    record: MutableMapping[str, Any]

    def read(self) -> LedgerState:
        """Return the totals; refused where the ledger went back."""
        return self.ledger.read(self.record)

    def update(self, change: Change) -> LedgerState:
        """Add lines, and remember the last."""
        books = self.ledger.update(change, self.record)
        self.record.update(books.mark)
        return books


Ledger: TypeAlias = FileLedger | StateLedger | WatchedLedger


def _absolute(path: str | os.PathLike[str], name: str) -> Path:
    place = Path(path).expanduser()
    # A relative path would be another file when the process is started elsewhere.
    require(place.is_absolute(), name, str(path), "an absolute path")
    return Path(os.path.realpath(place))


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
            raise LedgerError(f"The {name} {path} must be a regular file with one name (no FIFO, device or hard link).")
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
