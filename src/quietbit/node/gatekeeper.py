"""A gate outside the app: a small process of the owner's that holds policy, ledger and keys behind a Unix socket.

Idea     a run ships the code that trains, so nothing inside that code can be made to keep a promise. The gatekeeper
         runs under the owner's user, outside the bundle. The app hands it an update and gets a release: clipped,
         priced, noted, randomised and framed by the same code (`release.LocalGate`) that runs in an app's own process.
Symbols  a message on the socket: magic, length of a JSON object (32 bits), length of the bytes after it (64 bits).

What it stops: an app cannot read or reset the ledger, raise a cap, choose its randomness, or learn the secrets of sums,
if it runs as another user. What it does not stop: an app that can reach the network by itself can send what it likes,
wherever it likes; and an app decides which update it hands over. Take the network away from the app, and let the
engine verify who wrote it.

    app                                   gatekeeper
    {"ask": "release", "question"}  --->  checks, prices, notes
                 {"accepted": true} <---
    (trains)
    {"draw": n}                     --->  draws a batch (where samples are protected)
                      {} + places   <---
    {"rows": m} + float32           --->  clips each row, adds it up; as often as there are rows
                               {}   <---
    {"step": true}                  --->  randomises the batch, where several make one release; then {"draw": n} again
         {"more": true} + float64   <---
    {"update": true} + float64      --->  clips, randomises, frames
                    {} + release    <---

A connection that ends before its update came leaves a release that was noted and not made.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.arrays import flatten
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.kernel.norm import Flat
from quietbit.node.ledger import AnsweredBefore
from quietbit.node.models import ModelFolder
from quietbit.node.policy import NotAllowed, PolicyError
from quietbit.node.question import Question
from quietbit.node.release import Accepted, BudgetSpent, LocalGate, Noted, Unusable, public
from quietbit.secagg.plan import ProtocolError

__all__ = ["Gate", "Gatekeeper", "RemoteGate", "Ticket", "serve_batches"]

LOGGER = logging.getLogger(__name__)
MAGIC, HEAD = b"QBG1", struct.Struct("<4sIQ")
MOST_JSON = 2**22
PIECE = 2**24  # bytes of gradients in one message
MOST_BYTES = 2**40  # of an answer: the app believes the gatekeeper
CONNECTIONS = 64
ASK = 10.0  # seconds from a connection to a whole question
PATIENCE = 86400.0  # seconds that an app may train, where the policy names no answer time
WAIT = 600.0  # seconds that an app waits for an answer
KINDS: dict[str, type[QuietbitError]] = {
    "answered": AnsweredBefore, "noted": Noted, "spent": BudgetSpent, "unusable": Unusable, "not-allowed": NotAllowed,
    "protocol": ProtocolError, "refused": InvalidParameter,
}  # fmt: skip


@final
class Gatekeeper:
    """Serve one gate on a socket; `serve` returns when ``stop`` is called."""

    def __init__(
        self, gate: LocalGate, path: str | os.PathLike[str], *, mode: int = 0o600, patience: float = PATIENCE
    ) -> None:
        """Bind the socket; one that somebody listens on is refused, what a crash left is replaced."""
        self._gate, self._path, self._patience = gate, Path(path).expanduser(), patience
        require(self._path.is_absolute(), "socket", str(path), "an absolute path")
        require(0 <= mode <= 0o777, "mode of the socket", mode, "the permission bits of a file")
        self._stopped, self._guard = threading.Event(), threading.Lock()
        self._open: dict[socket.socket, bool] = {}  # in the order they came: whether a release was noted for it
        self._clear()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            before = os.umask(0o777 & ~mode)
            try:
                self._socket.bind(str(self._path))
            finally:
                os.umask(before)
            self._socket.listen(CONNECTIONS)
            self._socket.settimeout(0.2)
        except OSError as error:
            self._socket.close()
            raise QuietbitError(f"Cannot serve on {self._path}: {error.strerror or error}.") from error

    def serve(self) -> None:
        """Answer until stopped."""
        try:
            while not self._stopped.is_set():
                try:
                    connection, _ = self._socket.accept()
                except TimeoutError:
                    continue
                self._make_room(connection)
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
        finally:
            self._socket.close()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    def stop(self) -> None:
        """Answer nobody any more."""
        self._stopped.set()

    def _make_room(self, connection: socket.socket) -> None:
        """Take a connection in; where there are too many, the oldest without a noted release goes, or else the oldest.

        Nobody can shut the others out by opening connections: each that comes may cost one that does nothing.
        """
        with self._guard:
            if len(self._open) >= CONNECTIONS:
                oldest = min(self._open, key=lambda one: self._open[one])
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # whoever reads there finds its end
            self._open[connection] = False

    def _clear(self) -> None:
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise QuietbitError(f"Cannot serve on {self._path}: there is something that is not a socket.")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self._path))
            except OSError:
                self._path.unlink()
                return
        raise QuietbitError(f"Cannot serve on {self._path}: another gatekeeper does.")

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection:
                try:
                    self._converse(connection)
                except Exception as error:
                    if not isinstance(error, QuietbitError) or isinstance(public(error), Unusable):
                        LOGGER.error("quietbit: a question is not answered.", exc_info=error)
                    said = public(error)
                    kind = next((name for name, family in KINDS.items() if isinstance(said, family)), "unusable")
                    with contextlib.suppress(OSError):
                        _send(connection, {"refused": str(said), "kind": kind})
        finally:
            with self._guard:
                self._open.pop(connection, None)

    def _converse(self, connection: socket.socket) -> None:
        asked, data = _receive(connection, 0, ASK)
        what = asked.get("ask")
        if what == "rules":
            gate, models = self._gate, self._gate.models
            folder = str(models.path) if isinstance(models, ModelFolder) else None
            said = {"metrics": list(gate.metrics), "answer-seconds": gate.answer_seconds, "models": folder}
            _send(connection, said)
        elif what == "forget":
            self._gate.forget(int(asked["run"]))
            _send(connection, {})
        elif what == "step":
            _send(connection, {}, self._gate.step(Question.from_json(asked.get("question"))))
        elif what == "release":
            question = Question.from_json(asked.get("question"))
            ticket = self._gate.accept(question)
            with self._guard:
                self._open[connection] = True
            _send(connection, {"accepted": True})
            seconds = self._gate.answer_seconds or self._patience
            data = serve_batches(connection, ticket, question.dimension, seconds)
            update = None
            if len(data) == 8 * question.dimension:
                update = np.frombuffer(data, dtype="<f8")  # of another length than asked: zero is released
            _send(connection, {}, ticket.release(update))
        else:
            raise InvalidParameter("The question must ask for rules, a step, a release or to forget.")


@final
class RemoteGate:
    """The app's end of the socket: a gate like any other."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the socket; nothing is asked yet."""
        self._path = Path(path).expanduser()
        if not self._path.is_absolute():
            raise PolicyError(f"socket of the gatekeeper must be an absolute path, got {path!r}.")

    @cached_property
    def _rules(self) -> dict[str, Any]:
        return self._ask({"ask": "rules"})[0]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Numbers that the owner lets out as they are."""
        return tuple(str(name) for name in self._rules.get("metrics", ()))

    @property
    def answer_seconds(self) -> float:
        """How long after a question its answer leaves."""
        return float(self._rules["answer-seconds"])

    @property
    def models(self) -> ModelFolder | None:
        """The folder that the policy names: this process writes there, and the gatekeeper does not."""
        folder = self._rules.get("models")
        return None if folder is None else ModelFolder(Path(str(folder)))

    def accept(self, question: Question) -> RemoteTicket:
        """Ask whether it may be answered; the connection stays open for the update."""
        connection = self._connect()
        try:
            _send(connection, {"ask": "release", "question": question.to_json()})
            _answered(_receive(connection, 0, WAIT))
        except BaseException:
            connection.close()
            raise
        return RemoteTicket(connection, question.dimension)

    def step(self, question: Question) -> bytes:
        """Have a step of a masked sum answered."""
        return self._ask({"ask": "step", "question": question.to_json()})[1]

    def forget(self, run: int) -> None:
        """Abandon the run's masked sum."""
        self._ask({"ask": "forget", "run": run})

    def _ask(self, question: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        with self._connect() as connection:
            _send(connection, question)
            return _answered(_receive(connection, MOST_BYTES, WAIT))

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            ends = time.monotonic() + ASK
            while True:
                try:
                    connection.settimeout(WAIT)
                    connection.connect(str(self._path))
                    break
                except BlockingIOError:  # more wait to be let in than the system queues
                    if time.monotonic() > ends:
                        raise
                    time.sleep(0.02)
        except OSError as error:
            connection.close()
            LOGGER.error("quietbit: no gatekeeper answers on %s.", self._path, exc_info=error)
            raise Unusable("This node's gatekeeper does not answer; its owner's log says why.") from error
        return connection


@final
class RemoteTicket:
    """A question that the gatekeeper has noted.

    An app that is late may go on in its own thread: what is said and what is answered go together, and nothing is said
    beside or after the release. An answer to the app, the places of its batch, would else be taken for the release.
    """

    def __init__(self, connection: socket.socket, dimension: int) -> None:
        self._connection, self._dimension = connection, dimension
        self._guard, self._used = threading.Lock(), False

    def draw(self, count: int) -> NDArray[np.int64]:
        """Have the batch drawn."""
        places = self._asked({"draw": count})[1]
        return np.frombuffer(places, dtype="<i8").astype(np.int64)

    def add(self, rows: NDArray[Any]) -> None:
        """Hand gradients over, in pieces."""
        size = max(1, PIECE // (4 * self._dimension))
        for start in range(0, len(rows), size):
            piece = np.ascontiguousarray(rows[start : start + size], dtype="<f4")
            self._asked({"rows": len(piece)}, piece.tobytes())

    def step(self) -> FloatVector | None:
        """Have the batch closed."""
        said, change = self._asked({"step": True})
        return np.frombuffer(change, dtype="<f8") if said["more"] else None

    def release(self, update: Any) -> bytes:
        """Hand the update over, or say that there is none, and get the release."""
        data = b""
        if update is not None:
            try:
                flat = Flat.of(flatten(update)[0])
                if flat.size == self._dimension:  # of any other update zero is released
                    data = flat.piece(0, flat.size).astype("<f8").tobytes()
            except Exception as error:
                LOGGER.error("quietbit: the update cannot be sent; zero is released in its place.", exc_info=error)
        try:
            with self._connection:
                return self._asked({"update": bool(data)}, data, last=True)[1]
        except (OSError, Unusable) as error:
            LOGGER.error("quietbit: the gatekeeper did not make the release.", exc_info=error)
            raise Noted("The release of this round was noted, and cannot be made.") from error

    def _asked(self, said: dict[str, Any], data: bytes = b"", *, last: bool = False) -> tuple[dict[str, Any], bytes]:
        with self._guard:
            if self._used:
                raise Noted("The release of this round was made already.")
            self._used = last
            try:
                _send(self._connection, said, data)
                found = _receive(self._connection, MOST_BYTES, WAIT)
            except BaseException:  # an answer that was not waited for must not be taken for that to another question
                self._connection.close()
                raise
        return _answered(found)


Gate: TypeAlias = LocalGate | RemoteGate  # who holds policy, ledger and keys: in this process, or behind a socket
Ticket: TypeAlias = Accepted | RemoteTicket  # an accepted question: one release, once


def serve_batches(connection: socket.socket, ticket: Ticket, dimension: int, seconds: float) -> bytes:
    """Draw batches and take gradients until something else is said, within ``seconds``; return the data beside that."""
    ends = time.monotonic() + seconds
    most = max(8 * dimension, PIECE)  # no more is read than an update, or a piece of gradients
    while True:
        said, data = _receive(connection, most, ends - time.monotonic())
        if not said.keys() & {"draw", "rows", "step"}:
            return data
        try:
            _send(connection, *_batched(ticket, said, data, dimension))
        except (QuietbitError, ValueError) as error:  # there is a release all the same, of what came before
            _send(connection, {"refused": str(error), "kind": "refused"})


def _batched(ticket: Ticket, said: dict[str, Any], data: bytes, dimension: int) -> tuple[dict[str, Any], bytes]:
    """Draw a batch, take gradients of it, or close it."""
    if "draw" in said:
        return {}, ticket.draw(said["draw"]).astype("<i8").tobytes()
    if "rows" in said:
        ticket.add(np.frombuffer(data, dtype="<f4").reshape(-1, dimension))
        return {}, b""
    change = ticket.step()
    return {"more": change is not None}, b"" if change is None else change.astype("<f8").tobytes()


def _answered(received: tuple[dict[str, Any], bytes]) -> tuple[dict[str, Any], bytes]:
    answer, _ = received
    if "refused" in answer:
        raise KINDS.get(str(answer.get("kind")), Unusable)(str(answer["refused"]))
    return received


def _send(connection: socket.socket, said: dict[str, Any], data: bytes = b"") -> None:
    text = json.dumps(said, allow_nan=False).encode("ascii")
    connection.sendall(HEAD.pack(MAGIC, len(text), len(data)) + text)
    for start in range(0, len(data), 2**24):
        connection.sendall(memoryview(data)[start : start + 2**24])


def _receive(connection: socket.socket, most: int, seconds: float) -> tuple[dict[str, Any], bytes]:
    """Read a whole message of at most ``most`` bytes within ``seconds``."""
    ends = time.monotonic() + seconds
    magic, letters, size = HEAD.unpack(b"".join(_pieces(connection, HEAD.size, ends)))
    said: Any = None
    if magic == MAGIC and letters <= MOST_JSON and size <= most:
        with contextlib.suppress(ValueError):
            said = json.loads(b"".join(_pieces(connection, letters, ends)))
    if not isinstance(said, dict):
        raise Unusable("The other end of the socket speaks another language.")
    return said, b"".join(_pieces(connection, size, ends))


def _pieces(connection: socket.socket, size: int, ends: float) -> Iterator[bytes]:
    """Exactly ``size`` bytes; a connection that ends before, or is not done at ``ends``, is an error."""
    while size > 0:
        connection.settimeout(max(1e-3, ends - time.monotonic()))
        piece = connection.recv(min(size, 2**20))
        if not piece:
            raise Unusable("The connection ended before its message did.")
        size -= len(piece)
        yield piece
