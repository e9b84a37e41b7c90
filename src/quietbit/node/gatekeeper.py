"""A gate outside the app: a small process of the owner's that holds policy, ledger and keys behind a Unix socket.

Idea     a run ships the code that trains, so nothing inside that code can be made to keep a
         promise. The gatekeeper runs under the owner's user, outside the bundle. The app hands it
         an update and gets a release: clipped, priced, noted, randomised and framed by the same
         code (`release.LocalGate`) that runs in an app's own process. What it stops, and what it
         cannot, is in docs/how-to/plug-into-flower.md, "A gatekeeper". Where an engine starts the
         app as a process of its own, the gate's process serves it batches in the same words
         (`BatchSocket`).
Symbols  a message on the socket: magic, length of a JSON object (32 bits), length of the bytes
         after it (64 bits).

| the app says | the gatekeeper answers |
|---|---|
| `{"ask": "release", "request"}` | `{"accepted": true}`, when it is checked, priced and noted; the app trains |
| `{"draw": n}` | `{}` + places: a batch is drawn, where samples are protected |
| `{"rows": m}` + float32 | `{}`: each row is clipped and added up; as often as there are rows |
| `{"step": true}` | `{"more": true}` + float64: randomised, where several batches make one release; the next is drawn |
| `{"update": true}` + float64 | `{}` + release: clipped, randomised, framed |

A connection that ends before its update came leaves a release that was noted and not made.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import shutil
import socket
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.arrays import flatten
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.kernel.norm import Flat
from quietbit.node.policy import PolicyError
from quietbit.node.refusal import Noted, Reason, Refusal, Unusable, error_of, refusal_of
from quietbit.node.release import LocalAcceptedRequest, LocalGate
from quietbit.node.request import Request
from quietbit.node.stores import ModelFolder
from quietbit.secagg.identity import OTHERS_WRITE

__all__ = ["AcceptedRequest", "BatchSocket", "Gate", "Gatekeeper", "RemoteGate", "batch_of_parent"]

LOGGER = logging.getLogger(__name__)
MAGIC = b"QBG1"
HEAD = struct.Struct("<4sIQ")
MOST_JSON = 2**22
PIECE = 2**24  # bytes of gradients in one message
MOST_BYTES = 2**40  # of an answer: the app believes the gatekeeper
CONNECTIONS = 64
ASK = 10.0  # seconds from a connection to a whole request
PATIENCE = 86400.0  # seconds that an app may train, where the policy names no answer time
WAIT = 600.0  # seconds that an app waits for an answer
# the variable that names a `BatchSocket` to processes that the gate's process starts
BATCH = "QUIETBIT_BATCH"


@final
class Gatekeeper:
    """Serve one gate on a socket; `serve` returns when ``stop`` is called."""

    def __init__(self, gate: LocalGate, path: str | os.PathLike[str], *, mode: int = 0o600) -> None:
        """Bind the socket; one that somebody listens on is refused, what a crash left is replaced."""
        self._gate = gate
        self._path = Path(path).expanduser()
        require(self._path.is_absolute(), "socket", str(path), "an absolute path")
        require(0 <= mode <= 0o777, "mode of the socket", mode, "the permission bits of a file")
        if _is_shared(self._path):
            rule = "in a folder that only its owner can write in (chmod go-w): others could put a socket in its place"
            raise InvalidParameter.of("socket", rule, str(path))
        self._stopped = threading.Event()
        self._guard = threading.Lock()
        self._open: dict[
            socket.socket, bool
        ] = {}  # in the order they came: whether a release was noted for it
        self._clear()
        self._socket = _new_socket()
        before = os.umask(0o777 & ~mode)
        try:
            self._socket.bind(str(self._path))
            self._socket.listen(CONNECTIONS)
            self._socket.settimeout(0.2)
        except OSError as error:
            self._socket.close()
            raise QuietbitError(
                f"Cannot serve on {self._path}: {error.strerror or error}."
            ) from error
        finally:
            os.umask(before)

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
            self._path.unlink(missing_ok=True)

    def stop(self) -> None:
        """Answer nobody any more."""
        self._stopped.set()

    def _make_room(self, connection: socket.socket) -> None:
        """Take a connection in; where there are too many, the oldest without a noted release goes, or else the oldest.

        Nobody can shut the others out by opening connections: each that comes may cost one that
        does nothing.
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
            status = os.lstat(self._path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(status.st_mode):
            raise QuietbitError(
                f"Cannot serve on {self._path}: there is something that is not a socket."
            )
        with _new_socket() as probe:
            try:
                probe.connect(str(self._path))
            except OSError:
                self._path.unlink()
                return
        raise QuietbitError(f"Cannot serve on {self._path}: another gatekeeper does.")

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._converse(connection)
            except Exception as error:
                refusal = refusal_of(error)
                if refusal.reason is Reason.UNUSABLE:
                    LOGGER.error("quietbit: a request is not answered.", exc_info=error)
                with contextlib.suppress(OSError):
                    _send(connection, {"refused": refusal.reason.value, "detail": refusal.detail})
            finally:
                with self._guard:
                    self._open.pop(connection, None)

    def _converse(self, connection: socket.socket) -> None:
        asked, _ = _receive(connection, 0, ASK)
        gate = self._gate
        what = asked.get("ask")
        if what == "rules":
            models = gate.rules.models and str(Path(gate.rules.models).expanduser())
            rules = {
                "metrics": list(gate.metrics),
                "answer-seconds": gate.answer_seconds,
                "models": models,
                "families": gate.families,
            }
            _send(connection, rules)
        elif what == "forget":
            gate.forget(int(asked["run"]))
            _send(connection, {})
        elif what == "step":
            _send(connection, {}, gate.step(Request.from_json(asked.get("request"))))
        elif what == "release":
            request = Request.from_json(asked.get("request"))
            accepted = gate.accept(request)
            with self._guard:
                self._open[connection] = True
            _send(connection, {"accepted": True})
            data = _serve_batches(
                connection, accepted, request.dimension, gate.answer_seconds or PATIENCE
            )
            fits = (
                len(data) == 8 * request.dimension
            )  # of an update of another length than asked zero is released
            _send(
                connection, {}, accepted.release(np.frombuffer(data, dtype="<f8") if fits else None)
            )
        else:
            raise InvalidParameter(
                "The request must ask for rules, a step, a release or to forget."
            )


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
        """How long after a request its answer leaves."""
        return float(self._rules["answer-seconds"])

    @property
    def families(self) -> tuple[str, ...] | None:
        """Families of mechanisms that the owner allows; None allows all."""
        names = self._rules.get("families")
        return None if names is None else tuple(str(name) for name in names)

    @property
    def models(self) -> ModelFolder | None:
        """The folder that the policy names: this process writes there, and the gatekeeper does not."""
        folder = self._rules.get("models")
        return None if folder is None else ModelFolder(Path(str(folder)))

    def accept(self, request: Request) -> RemoteAcceptedRequest:
        """Ask whether it may be answered; the connection stays open for the update."""
        connection = self._connect()
        try:
            _send(connection, {"ask": "release", "request": request.to_json()})
            _answered(_receive(connection, 0, WAIT))
        except BaseException:
            connection.close()
            raise
        return RemoteAcceptedRequest(connection, request.dimension)

    def step(self, request: Request) -> bytes:
        """Have a step of a masked sum answered."""
        return self._ask({"ask": "step", "request": request.to_json()})[1]

    def forget(self, run: int) -> None:
        """Abandon the run's masked sum."""
        self._ask({"ask": "forget", "run": run})

    def _ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        with self._connect() as connection:
            _send(connection, request)
            return _answered(_receive(connection, MOST_BYTES, WAIT))

    def _connect(self) -> socket.socket:
        if _is_shared(self._path):  # somebody else's socket would be handed the update as it is
            raise Unusable(
                f"Others can write in the folder of the gatekeeper's socket {self._path}: chmod go-w."
            )
        connection = _new_socket()
        ends = time.monotonic() + ASK
        connection.settimeout(WAIT)
        while True:
            try:
                connection.connect(str(self._path))
                return connection
            except OSError as error:
                if isinstance(error, BlockingIOError) and time.monotonic() < ends:
                    time.sleep(0.02)  # more wait to be let in than the system queues
                    continue
                connection.close()
                LOGGER.error("quietbit: no gatekeeper answers on %s.", self._path, exc_info=error)
                raise Unusable(
                    "This node's gatekeeper does not answer; its owner's log says why."
                ) from error


@final
class RemoteAcceptedRequest:
    """A request that the gatekeeper has noted.

    An app that is late may go on in its own thread: what is said and what is answered go together,
    and nothing is said beside or after the release. An answer to the app, the places of its batch,
    would else be taken for the release.
    """

    def __init__(self, connection: socket.socket, dimension: int) -> None:
        self._connection = connection
        self._dimension = dimension
        self._guard = threading.Lock()
        self._used = False

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

    def zero(self) -> bytes | None:
        """Return None: the gatekeeper, which no app can disturb, makes one release and no other."""
        return None

    def release(self, update: Any) -> bytes:
        """Hand the update over, or say that there is none, and get the release."""
        data = b""
        if update is not None:
            try:
                flat = Flat.of(flatten(update)[0])
                if flat.size == self._dimension:  # of any other update zero is released
                    data = flat.piece(0, flat.size).astype("<f8").tobytes()
            except Exception as error:
                LOGGER.error(
                    "quietbit: the update cannot be sent; zero is released in its place.",
                    exc_info=error,
                )
        try:
            with self._connection:
                return self._asked({"update": bool(data)}, data, last=True)[1]
        except (OSError, Unusable) as error:
            LOGGER.error("quietbit: the gatekeeper did not make the release.", exc_info=error)
            raise Noted("The release of this round was noted, and cannot be made.") from error

    def _asked(
        self, said: dict[str, Any], data: bytes = b"", *, last: bool = False
    ) -> tuple[dict[str, Any], bytes]:
        with self._guard:
            if self._used:
                raise Noted("The release of this round was made already.")
            self._used = last
            try:
                _send(self._connection, said, data)
                answer = _receive(self._connection, MOST_BYTES, WAIT)
            except (
                BaseException
            ):  # an answer that was not waited for must not be taken for that to another request
                self._connection.close()
                raise
        return _answered(answer)


Gate: TypeAlias = (
    LocalGate | RemoteGate
)  # who holds policy, ledger and keys: in this process, or behind a socket
AcceptedRequest: TypeAlias = (
    LocalAcceptedRequest | RemoteAcceptedRequest
)  # an accepted request: one release, once


@final
class BatchSocket:
    """Serve the accepted of the round that is open to trainers in processes of their own; the gate stays on this side.

    ``current`` says which accepted, and how many parameters it is for. Only this process's user can
    open the socket.
    """

    def __init__(self, current: Callable[[], tuple[AcceptedRequest, int] | None]) -> None:
        """Listen from now on, and tell all processes that this one will start."""
        self._current = current
        folder = Path(tempfile.mkdtemp(prefix="quietbit-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._socket = _new_socket()
        self._socket.bind(str(folder / "batch"))
        self._socket.listen(CONNECTIONS)
        os.environ[BATCH] = str(folder / "batch")
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """Answer one trainer for one round; when it goes, nothing is left to do."""
        with connection, contextlib.suppress(OSError, Unusable):
            current = self._current()
            if current is None:
                _send(connection, {"refused": Reason.INVALID.value, "detail": "There is no round."})
                return
            accepted, dimension = current
            _send(connection, {"dimension": dimension})
            _serve_batches(connection, accepted, dimension, PATIENCE)


def batch_of_parent() -> RemoteAcceptedRequest | None:
    """Return the accepted of the process that started this one; None where that has no round, or serves none."""
    path = os.environ.get(BATCH)
    if path is None:
        return None
    connection = _new_socket()
    try:
        connection.connect(path)
        return RemoteAcceptedRequest(
            connection, int(_answered(_receive(connection, 0, WAIT))[0]["dimension"])
        )
    except (OSError, InvalidParameter):
        connection.close()
        return None


def _serve_batches(
    connection: socket.socket, accepted: AcceptedRequest, dimension: int, seconds: float
) -> bytes:
    """Draw batches and take gradients until something else is said, within ``seconds``; return the data beside that."""
    ends = time.monotonic() + seconds
    most = max(8 * dimension, PIECE)  # no more is read than an update, or a piece of gradients
    while True:
        message, data = _receive(connection, most, ends - time.monotonic())
        answer: dict[str, Any] = {}
        content = b""
        try:
            if "draw" in message:
                content = accepted.draw(message["draw"]).astype("<i8").tobytes()
            elif "rows" in message:
                accepted.add(np.frombuffer(data, dtype="<f4").reshape(-1, dimension))
            elif "step" in message:
                change = accepted.step()
                answer = {"more": change is not None}
                if change is not None:
                    content = change.astype("<f8").tobytes()
            else:
                return data
        except (
            QuietbitError,
            ValueError,
        ) as error:  # there is a release all the same, of what came before
            answer = {"refused": Reason.INVALID.value, "detail": str(error)}
        _send(connection, answer, content)


def _is_shared(path: Path) -> bool:
    """Return whether others than its owner may put files into the folder of a path, a sticky one included."""
    try:
        return bool(os.stat(path.parent).st_mode & OTHERS_WRITE)
    except OSError:
        return False  # then there is no socket either


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _answered(received: tuple[dict[str, Any], bytes]) -> tuple[dict[str, Any], bytes]:
    answer, _ = received
    if "refused" in answer:
        raise error_of(Refusal(Reason(answer["refused"]), str(answer.get("detail", ""))))
    return received


def _send(connection: socket.socket, said: dict[str, Any], data: bytes = b"") -> None:
    text = json.dumps(said, allow_nan=False).encode("ascii")
    connection.sendall(HEAD.pack(MAGIC, len(text), len(data)) + text)
    for start in range(0, len(data), 2**24):
        connection.sendall(memoryview(data)[start : start + 2**24])


def _receive(connection: socket.socket, most: int, seconds: float) -> tuple[dict[str, Any], bytes]:
    """Read a whole message of at most ``most`` bytes within ``seconds``."""
    ends = time.monotonic() + seconds
    magic, letters, size = HEAD.unpack(_read(connection, HEAD.size, ends))
    said: Any = None
    if magic == MAGIC and letters <= MOST_JSON and size <= most:
        with contextlib.suppress(ValueError):
            said = json.loads(_read(connection, letters, ends))
    if not isinstance(said, dict):
        raise Unusable("Unreadable message from the peer.")
    return said, _read(connection, size, ends)


def _read(connection: socket.socket, size: int, ends: float) -> bytes:
    """Read exactly ``size`` bytes; a connection that ends before, or is not done at ``ends``, is an error."""
    data = bytearray()
    while len(data) < size:
        connection.settimeout(max(1e-3, ends - time.monotonic()))
        piece = connection.recv(min(size - len(data), 2**20))
        if not piece:
            raise Unusable("The connection ended before its message did.")
        data += piece
    return bytes(data)
