"""The way of a trainer in a process of its own to the batch of its round.

Idea     an engine may start an app as a process of its own, which shares no memory with the gate. So the gate's process
         listens on a socket, in a folder that only its user can open, and the processes that it starts find the path in
         their environment. What is asked there is what an app in a thread asks of its ticket, in the words of the
         gatekeeper's socket; the noise, the batch and the ledger stay on this side.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import final

from quietbit.errors import InvalidParameter
from quietbit.node.gatekeeper import (
    CONNECTIONS,
    PATIENCE,
    WAIT,
    RemoteTicket,
    Ticket,
    _answered,
    _receive,
    _send,
    serve_batches,
)
from quietbit.node.release import Unusable

__all__ = ["BatchSocket", "batch_of_parent"]

PATH = "QUIETBIT_BATCH"  # the name of the variable
Current = Callable[[], tuple[Ticket, int] | None]


@final
class BatchSocket:
    """Serves the ticket of the round that is open, and says how many parameters it is for."""

    def __init__(self, current: Current) -> None:
        """Listen from now on, and tell all processes that this one will start."""
        self._current, folder = current, Path(tempfile.mkdtemp(prefix="quietbit-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(folder / "batch"))
        self._socket.listen(CONNECTIONS)
        os.environ[PATH] = str(folder / "batch")
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """Answer one trainer for one round; when it goes, nothing is left to do."""
        with connection, contextlib.suppress(OSError, Unusable):
            found = self._current()
            if found is None:
                _send(connection, {"refused": "There is no round.", "kind": "refused"})
                return
            ticket, dimension = found
            _send(connection, {"dimension": dimension})
            serve_batches(connection, ticket, dimension, PATIENCE)


def batch_of_parent() -> RemoteTicket | None:
    """Return the ticket of the process that started this one; None where that has no round, or serves none."""
    path = os.environ.get(PATH)
    if path is None:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
        return RemoteTicket(connection, int(_answered(_receive(connection, 0, WAIT))[0]["dimension"]))
    except (OSError, InvalidParameter):
        connection.close()
        return None
