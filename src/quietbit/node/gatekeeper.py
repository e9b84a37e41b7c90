"""A gate outside the app: the owner's process with policy, ledger and keys, on a Unix socket.

Idea     a run ships the code that trains, so no rule can be enforced inside that code. The
         gatekeeper runs under the owner's user, outside the bundle. The app hands it an update and
         gets a release: clipped, noted, randomised and framed by the same code
         (`release.LocalGate`) that runs in an app's own process. What it prevents, and what it
         cannot, is in docs/how-to/plug-into-flower.md, "A gatekeeper".

| the app sends | the gatekeeper answers |
|---|---|
| `{"ask": "rules"}` | what an app must know of the policy |
| `{"ask": "step", "request"}` | `{}` + the answer to a step of a masked sum |
| `{"ask": "forget", "run"}` | `{}`: the secrets of the run's sum are deleted |
| `{"ask": "release", "request"}` | `{"accepted": true}`: checked and noted; the app trains |
| `{"draw": n}` | `{}` + places: a batch is drawn, where samples are protected |
| `{"rows": m}` + float32 | `{}`: each row is clipped and added; repeated while there are rows |
| `{"step": true}` | `{"more": true}` + float64: the batch, randomised; draw the next |
| `{"update": true}` + float64 | `{}` + release: clipped, randomised, framed |

A connection that ends before its update leaves a release that is noted and was not made.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import time
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from attrs import asdict, field, frozen
from attrs.converters import optional

from quietbit._files import OTHERS_WRITE, others
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.node.channel import MOST_BYTES, WAIT, Server, answered, new_socket, receive, send
from quietbit.node.gate import CANNOT_MAKE, LocalGate
from quietbit.node.policy import PolicyError
from quietbit.node.refusal import Noted, Unusable
from quietbit.node.remote_release import PATIENCE, RemoteAcceptedRequest, serve_batches
from quietbit.node.request import ProposedMechanism, Request
from quietbit.node.stores import ModelFolder

__all__ = ["Gatekeeper", "RemoteGate"]

LOGGER = logging.getLogger(__name__)
ASK = 10.0  # seconds from a connection to a complete request


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
        elif what == "step":
            send(connection, {}, gate.step(Request.from_json(message.get("request"))))
        elif what == "release":
            self._release(connection, Request.from_json(message.get("request")))
        else:
            raise InvalidParameter.of("ask", "rules, step, release or forget", what)

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
