"""One accepted request over a socket: batches are drawn and rows added there, then it is released.

Idea     the app holds a `RemoteAcceptedRequest` where it would hold an accepted request of its own
         process; the other end serves its messages with `serve_batches`. A gatekeeper is such an
         end. So is the gate's own process where an engine starts the app as a process of its own
         (`BatchSocket`): there the app draws batches, and the release is made where the gate is.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.arrays import flatten
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.kernel.norm import Flat
from quietbit.node.channel import MOST_BYTES, WAIT, Server, answered, new_socket, receive, send
from quietbit.node.gate import CANNOT_MAKE, CANNOT_SEND, MADE_BEFORE, AcceptedRequest
from quietbit.node.refusal import Noted, Reason, Unusable

__all__ = ["PATIENCE", "BatchSocket", "RemoteAcceptedRequest", "batch_of_parent", "serve_batches"]

LOGGER = logging.getLogger(__name__)
PIECE = 2**24  # bytes of gradients in one message
PATIENCE = 86400.0  # seconds that an app may train where the policy has no response-seconds
BATCH = "QUIETBIT_BATCH"  # the variable that names a `BatchSocket` to child processes


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
