"""Messages on a Unix socket, each within a deadline, and a server that nobody locks others out of.

Idea     a peer may be slow, silent or hostile. So the head of a message says how long it is before
         any of it is read, a whole message has one deadline, and where too many connections are
         open those that have asked for nothing are closed first. A refusal crosses the socket as
         the value that a server may learn, and becomes the same error again.
Symbols  a message: magic, length of a JSON object (32 bits), length of the bytes after it (64
         bits), the object, the bytes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from quietbit.errors import QuietbitError
from quietbit.node.refusal import Reason, Refusal, Unusable, error_of, refusal_of

__all__ = ["MOST_BYTES", "WAIT", "Server", "answered", "new_socket", "receive", "send"]

LOGGER = logging.getLogger(__name__)
MAGIC = b"QBG2"
HEAD = struct.Struct("<4sIQ")
MOST_JSON = 2**22
MOST_BYTES = 2**40  # of an answer: the app trusts the gatekeeper
CONNECTIONS = 64
WAIT = 600.0  # seconds that an app waits for an answer


@final
class Server:
    """Answer connections on a Unix socket, each in a thread of its own, until stopped.

    At too many the oldest that has asked for nothing yet is closed; where all have, the oldest. So
    nobody can lock others out by opening connections.
    """

    def __init__(
        self, path: Path, answer: Callable[[socket.socket], None], *, mode: int = 0o600
    ) -> None:
        """Bind the socket."""
        self._path = path
        self._answer = answer
        self._stopped = threading.Event()
        self._guard = threading.Lock()
        # Connections in the order they came, and whether each has asked for a release.
        self._open: dict[socket.socket, bool] = {}
        self._socket = new_socket()
        before = os.umask(0o777 & ~mode)
        try:
            self._socket.bind(str(path))
            self._socket.listen(CONNECTIONS)
            self._socket.settimeout(0.2)
        except OSError as error:
            self._socket.close()
            raise QuietbitError(f"Cannot serve on {path}: {error.strerror or error}.") from error
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
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()
        finally:
            self._socket.close()
            self._path.unlink(missing_ok=True)

    def stop(self) -> None:
        """Make `serve` return."""
        self._stopped.set()

    def keep(self, connection: socket.socket) -> None:
        """Close this connection after those that have asked for nothing."""
        with self._guard:
            if connection in self._open:
                self._open[connection] = True

    def _make_room(self, connection: socket.socket) -> None:
        with self._guard:
            if len(self._open) >= CONNECTIONS:
                oldest = min(self._open, key=self._open.__getitem__)
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # ends the reads of its thread
            self._open[connection] = False

    def _converse(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._answer(connection)
            except Exception as error:
                refusal = refusal_of(error)
                if refusal.reason is Reason.UNUSABLE:
                    LOGGER.error("quietbit: a request is not answered.", exc_info=error)
                with contextlib.suppress(OSError):
                    send(connection, {"refused": refusal.reason.value, "detail": refusal.detail})
            finally:
                with self._guard:
                    self._open.pop(connection, None)


def new_socket() -> socket.socket:
    """Return a Unix socket that is not connected."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def answered(received: tuple[dict[str, Any], bytes]) -> tuple[dict[str, Any], bytes]:
    """Return an answer as it is; raise the error of a refusal."""
    answer, _ = received
    if "refused" in answer:
        raise error_of(Refusal(Reason(answer["refused"]), str(answer.get("detail", ""))))
    return received


def send(connection: socket.socket, message: dict[str, Any], data: bytes = b"") -> None:
    """Send one message."""
    text = json.dumps(message, allow_nan=False).encode("ascii")
    connection.sendall(HEAD.pack(MAGIC, len(text), len(data)) + text)
    for start in range(0, len(data), 2**24):
        connection.sendall(memoryview(data)[start : start + 2**24])


def receive(connection: socket.socket, most: int, seconds: float) -> tuple[dict[str, Any], bytes]:
    """Read one message with at most ``most`` bytes of data, within ``seconds``."""
    ends = time.monotonic() + seconds
    magic, letters, size = HEAD.unpack(_read(connection, HEAD.size, ends))
    message: Any = None
    if magic == MAGIC and letters <= MOST_JSON and size <= most:
        with contextlib.suppress(ValueError):
            message = json.loads(_read(connection, letters, ends))
    if not isinstance(message, dict):
        raise Unusable(
            "Unreadable message from the peer: the app and the gatekeeper need the same version of "
            "quietbit."
        )
    return message, _read(connection, size, ends)


def _read(connection: socket.socket, size: int, ends: float) -> bytes:
    """Read exactly ``size`` bytes until ``ends``; an earlier end of the connection is an error."""
    data = bytearray()
    while len(data) < size:
        connection.settimeout(max(1e-3, ends - time.monotonic()))
        piece = connection.recv(min(size - len(data), 2**20))
        if not piece:
            raise Unusable(f"The connection ended after {len(data)} of {size} bytes.")
        data += piece
    return bytes(data)
