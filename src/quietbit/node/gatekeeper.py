"""A gate outside the app: the owner's process with policy, ledger and keys, on a Unix socket.

Idea     a run ships the code that trains, so no rule can be enforced inside that code. The
         gatekeeper runs under the owner's user, outside the bundle. The app hands it an update and
         gets a release: clipped, noted, randomised and framed by the same code
         (`gate.LocalGate`) that runs in an app's own process. What it prevents, and what it
         cannot, is in docs/how-to/plug-into-flower.md, "A gatekeeper".

| the app sends | the gatekeeper answers |
|---|---|
| `{"ask": "rules"}` | what an app must know of the policy |
| `{"ask": "step", "request"}` | `{}` + the answer to a step of a masked sum |
| `{"ask": "round", "run"}` | the last round of the run that was noted |
| `{"ask": "spent", "request"}` | the epsilon of the run's updates that were noted |
| `{"ask": "forget", "run"}` | `{}`: the secrets of the run's sum are deleted |
| `{"ask": "release", "request"}` | `{"accepted": true}`: checked and noted; the app trains |
| `{"draw": n}` | `{}` + places: a batch is drawn, where samples are protected |
| `{"rows": m}` + float32 | `{}`: each row is clipped and added; repeated while there are rows |
| `{"step": true}` | `{"more": true}` + float64: the batch, randomised; draw the next |
| `{"update": true}` + float64 | `{}` + release: clipped, randomised, framed |

A connection that ends before its update leaves a release that is noted and was not made. Where an
engine starts the app as a process of its own, the gate's own process serves batches in the same way
(`BatchSocket`): there the app draws batches, and the release is made where the gate is.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from attrs import asdict, field, frozen
from attrs.converters import optional
from numpy.typing import NDArray

from quietbit._files import OTHERS_WRITE, others
from quietbit._typing import FloatVector
from quietbit.arrays import flatten
from quietbit.errors import InvalidParameter, QuietbitError, check_int, require
from quietbit.kernel.norm import Flat
from quietbit.node.channel import MOST_BYTES, WAIT, Server, answered, new_socket, receive, send
from quietbit.node.gate import (
    CANNOT_MAKE,
    CANNOT_SEND,
    MADE_BEFORE,
    LocalAcceptedRequest,
    LocalGate,
)
from quietbit.node.policy import PolicyError
from quietbit.node.refusal import Noted, Reason, Unusable
from quietbit.node.request import ProposedMechanism, Request
from quietbit.node.stores import ModelFolder

__all__ = [
    "PATIENCE",
    "AcceptedRequest",
    "BatchSocket",
    "Gate",
    "Gatekeeper",
    "RemoteAcceptedRequest",
    "RemoteGate",
    "batch_of_parent",
    "serve_batches",
]

LOGGER = logging.getLogger(__name__)
ASK = 10.0  # seconds from a connection to a complete request
PIECE = 2**24  # bytes of gradients in one message
PATIENCE = 86400.0  # seconds that an app may train where the policy has no response-seconds
BATCH = "QUIETBIT_BATCH"  # the variable that names a `BatchSocket` to child processes


@final
class Gatekeeper:
    """Serve one gate on a socket; `serve` returns after `stop` is called."""

    def __init__(self, gate: LocalGate, path: str | os.PathLike[str], *, mode: int = 0o600) -> None:
        """Bind the socket; replace one that a crash left, refuse one that is in use."""
        self._gate = gate
        self._path = Path(path).expanduser()
        require(self._path.is_absolute(), "socket", str(path), "an absolute path")
        require(0 <= mode <= 0o777, "mode", oct(mode), "permission bits from 0o000 to 0o777")
        self._check_folder()
        self._clear()
        self._server = Server(self._path, self._converse, mode=mode)
        self.serve = self._server.serve
        self.stop = self._server.stop

    def _check_folder(self) -> None:
        """Refuse a folder in which other users could replace the socket."""
        folder = self._path.parent
        try:
            problem = others(os.stat(folder), "folder of the socket", folder)
        except OSError as error:
            raise QuietbitError(f"Cannot serve on {self._path}: {error.strerror}.") from error
        if problem:
            raise InvalidParameter(problem, name="socket")

    def _clear(self) -> None:
        try:
            status = os.lstat(self._path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(status.st_mode):
            raise QuietbitError(
                f"Cannot serve on {self._path}: it is not a socket. Choose another path."
            )
        with new_socket() as probe:
            try:
                probe.connect(str(self._path))
            except OSError:
                self._path.unlink()
                return
        raise QuietbitError(
            f"Cannot serve on {self._path}: another gatekeeper does. Stop it, or choose another "
            "path."
        )

    def _converse(self, connection: socket.socket) -> None:
        message, _ = receive(connection, 0, ASK)
        gate = self._gate
        what = message.get("ask")
        if what == "rules":
            rules = gate.rules
            models = rules.models
            if models is not None:
                models = str(Path(models).expanduser())
            shown = RemoteRules(rules.metrics, rules.mechanisms, rules.response_seconds, models)
            send(connection, asdict(shown))
        elif what == "forget":
            gate.forget(int(message["run"]))
            send(connection, {})
        elif what == "round":
            send(connection, {"round": gate.last_round(int(message["run"]))})
        elif what == "spent":
            epsilon = gate.spent(Request.from_json(message.get("request")))
            send(connection, {"epsilon": epsilon})
        elif what == "step":
            send(connection, {}, gate.step(Request.from_json(message.get("request"))))
        elif what == "release":
            self._release(connection, Request.from_json(message.get("request")))
        else:
            raise InvalidParameter.of("ask", "rules, round, spent, step, release or forget", what)

    def _release(self, connection: socket.socket, request: Request) -> None:
        """Accept a request, serve batches, and answer the update with its release."""
        gate = self._gate
        self._server.keep(connection)  # from now on a lost connection may lose a release
        accepted = gate.accept(request)
        send(connection, {"accepted": True})
        seconds = gate.rules.response_seconds or PATIENCE
        data = serve_batches(connection, accepted, request.dimension, seconds)
        update = None
        if len(data) == 8 * request.dimension:  # else the zero update is released
            update = np.frombuffer(data, dtype="<f8")
        send(connection, {}, accepted.release(update))


def _names(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(words)


@final
@frozen
class RemoteRules:
    """What an app must know of the policy behind a socket."""

    metrics: tuple[str, ...] = field(converter=_names)
    mechanisms: tuple[str, ...] | None = field(converter=optional(_names))
    response_seconds: float
    models: str | None


@final
class RemoteGate:
    """The app's end of the socket, with the methods of a `LocalGate`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the socket; it is opened by the first request."""
        self._path = Path(path).expanduser()
        if not self._path.is_absolute():
            raise PolicyError(
                f"quietbit.gatekeeper must be an absolute path, got {os.fspath(path)!r}."
            )

    @cached_property
    def rules(self) -> RemoteRules:
        """The policy's rules, as far as the app must know them; asked for once."""
        return RemoteRules(**self._ask({"ask": "rules"})[0])

    @property
    def models(self) -> ModelFolder | None:
        """The policy's folder of models, which this process writes and the gatekeeper does not."""
        folder = self.rules.models
        return None if folder is None else ModelFolder(Path(folder))

    def check(self, request: Request) -> ProposedMechanism:
        """Return the requested mechanism; the gatekeeper checks the rest when it accepts."""
        return request.proposed(self.rules.mechanisms)

    def accept(self, request: Request) -> RemoteAcceptedRequest:
        """Have a request checked and noted; its connection stays open for the update."""
        connection = self._connect()
        try:
            send(connection, {"ask": "release", "request": request.to_json()})
            try:
                answer = receive(connection, 0, WAIT)
            except (OSError, Unusable) as error:  # it may have noted the release before it ended
                LOGGER.error("quietbit: the gatekeeper gave no answer.", exc_info=error)
                raise Noted(CANNOT_MAKE) from error
            answered(answer)
        except BaseException:
            connection.close()
            raise
        return RemoteAcceptedRequest(connection, request.dimension)

    def step(self, request: Request) -> bytes:
        """Return the gatekeeper's answer to a step of a masked sum."""
        return self._ask({"ask": "step", "request": request.to_json()})[1]

    def last_round(self, run: int) -> int:
        """Return the last round of a run that the gatekeeper noted; 0 if there is none."""
        return check_int(self._ask({"ask": "round", "run": run})[0]["round"], "round", 0)

    def spent(self, request: Request) -> float:
        """Return the epsilon of all updates of the request's run that the gatekeeper noted."""
        return float(self._ask({"ask": "spent", "request": request.to_json()})[0]["epsilon"])

    def forget(self, run: int) -> None:
        """Abandon the run's masked sum."""
        self._ask({"ask": "forget", "run": run})

    def _ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        with self._connect() as connection:
            send(connection, request)
            return answered(receive(connection, MOST_BYTES, WAIT))

    def _connect(self) -> socket.socket:
        if _is_shared(self._path):  # another user's socket could receive the update unprotected
            raise Unusable(
                f"Other users can write in the folder of the gatekeeper's socket {self._path}: "
                "move it to a folder of its own."
            )
        connection = new_socket()
        ends = time.monotonic() + ASK
        connection.settimeout(WAIT)
        while True:
            try:
                connection.connect(str(self._path))
                return connection
            except OSError as error:
                if isinstance(error, BlockingIOError) and time.monotonic() < ends:
                    time.sleep(0.02)  # the system's queue of connections is full
                    continue
                connection.close()
                LOGGER.error("quietbit: no gatekeeper answers on %s.", self._path, exc_info=error)
                raise Unusable(
                    f"No gatekeeper answers on {self._path}: start quietbit node serve."
                ) from error


def _is_shared(path: Path) -> bool:
    """Return whether users other than its owner may create files in a path's folder."""
    try:
        return bool(os.stat(path.parent).st_mode & OTHERS_WRITE)
    except OSError:
        return False  # without a folder there is no socket


@final
class RemoteAcceptedRequest:
    """A request that the gatekeeper has accepted and noted.

    A late app may still be running in its own thread. So a message and its answer are one step
    under a lock, and nothing is sent after the release: otherwise the places of the app's batch
    could be taken for the release.
    """

    def __init__(self, connection: socket.socket, dimension: int) -> None:
        self._connection = connection
        self._dimension = dimension
        self._guard = threading.Lock()
        self._used = False
        #: Samples that were drawn (None before any batch was) and rows that were added.
        self.drawn: int | None = None
        self.added = 0

    def draw(self, count: int) -> NDArray[np.int64]:
        """Draw a batch of ``count`` samples' places, once per step of the release."""
        places = self._exchange({"draw": count})[1]
        batch = np.frombuffer(places, dtype="<i8").astype(np.int64)
        self.drawn = (self.drawn or 0) + batch.size
        return batch

    def add(self, rows: NDArray[Any]) -> None:
        """Send gradients of the samples that were drawn, one per row, in several messages."""
        size = max(1, PIECE // (4 * self._dimension))
        for start in range(0, len(rows), size):
            piece = np.ascontiguousarray(rows[start : start + size], dtype="<f4")
            self._exchange({"rows": len(piece)}, piece.tobytes())
            self.added += len(piece)

    def step(self) -> FloatVector | None:
        """Return the randomised sum of this batch; None for the last, which is the release."""
        answer, change = self._exchange({"step": True})
        if not answer["more"]:
            return None
        return np.frombuffer(change, dtype="<f8")

    def zero(self) -> bytes | None:
        """Return None: the gatekeeper makes one release only, when the update comes."""
        return None

    def release(self, update: Any) -> bytes:
        """Return the release of an update; None, or one that cannot be sent, releases zero."""
        data = b""
        if update is not None:
            try:
                flat = Flat.of(flatten(update)[0])
                if flat.size == self._dimension:  # else the gatekeeper releases zero
                    data = flat.piece(0, flat.size).astype("<f8").tobytes()
            except Exception as error:
                LOGGER.error(CANNOT_SEND, exc_info=error)
        try:
            with self._connection:
                return self._exchange({"update": bool(data)}, data, last=True)[1]
        except (OSError, Unusable) as error:
            LOGGER.error("quietbit: the gatekeeper did not make the release.", exc_info=error)
            raise Noted(CANNOT_MAKE) from error

    def _exchange(
        self, message: dict[str, Any], data: bytes = b"", *, last: bool = False
    ) -> tuple[dict[str, Any], bytes]:
        """Send a message and return its answer; after the ``last`` nothing is sent."""
        with self._guard:
            if self._used:
                raise Noted(MADE_BEFORE)
            self._used = last
            try:
                send(self._connection, message, data)
                answer = receive(self._connection, MOST_BYTES, WAIT)
            except BaseException:
                # An answer that comes later must not be taken for that to another message.
                self._connection.close()
                raise
        return answered(answer)


Gate: TypeAlias = LocalGate | RemoteGate  # what holds policy, ledger and keys
# A request that is noted, and its one release.
AcceptedRequest: TypeAlias = LocalAcceptedRequest | RemoteAcceptedRequest


@final
class BatchSocket:
    """Serve batches of the open round to trainers in child processes; the gate stays in this one.

    ``current`` returns the accepted request of that round and its number of parameters. Only this
    process's user can open the socket.
    """

    def __init__(self, current: Callable[[], tuple[AcceptedRequest, int] | None]) -> None:
        """Listen from now on, and name the socket to all processes that this one starts."""
        self._current = current
        folder = Path(tempfile.mkdtemp(prefix="quietbit-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        server = Server(folder / "batch", self._answer)
        os.environ[BATCH] = str(folder / "batch")
        threading.Thread(target=server.serve, daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """Serve one trainer for one round, until it ends the connection."""
        current = self._current()
        if current is None:
            raise InvalidParameter("No round is open: draw a batch within one.", name="batch")
        accepted, dimension = current
        send(connection, {"dimension": dimension})
        with contextlib.suppress(OSError, Unusable):
            serve_batches(connection, accepted, dimension, PATIENCE)


def batch_of_parent() -> RemoteAcceptedRequest | None:
    """Return the accepted request of the parent process; None where it serves no round."""
    path = os.environ.get(BATCH)
    if path is None:
        return None
    connection = new_socket()
    try:
        connection.connect(path)
        answer, _ = answered(receive(connection, 0, WAIT))
        return RemoteAcceptedRequest(connection, int(answer["dimension"]))
    except (OSError, InvalidParameter):
        connection.close()
        return None


def serve_batches(
    connection: socket.socket, accepted: AcceptedRequest, dimension: int, seconds: float
) -> bytes:
    """Serve batches for ``seconds`` at most, until another message comes; return its data."""
    ends = time.monotonic() + seconds
    most = max(8 * dimension, PIECE)  # bytes of an update, or of one message of gradients
    while True:
        message, data = receive(connection, most, ends - time.monotonic())
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
        except (QuietbitError, ValueError) as error:
            # The release is made all the same, of the gradients before this message.
            answer = {"refused": Reason.INVALID.value, "detail": str(error)}
        send(connection, answer, content)
