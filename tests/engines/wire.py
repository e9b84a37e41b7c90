"""A counting proxy between one SuperNode and the SuperLink: what really crosses the socket, request
by request.

Idea     the SuperNode is told the proxy's port instead of the SuperLink's. Requests (protobuf over
         HTTP/1.1) are read whole, counted and passed on; answers are passed on as they come.
         Nothing of quietbit is involved.
Symbols  up, down: every byte of every request and answer, heads included. A request in ``lose`` is
         read and counted but never passed on: the network took it from the device and lost it.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import final

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
BLOCK = 1 << 16
PUSHES = ("push-messages", "push-object")  # what carries a reply


@final
@dataclass(frozen=True, slots=True)
class Request:
    """One request of a SuperNode: the last part of its path, and the sizes of head and body."""

    path: str
    head: int
    body: int
    content: bytes


@final
class Wire:
    """Listens on a free port of the loopback interface and passes requests on to ``target``."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.requests: list[Request] = []
        self.lose: frozenset[str] = frozenset()
        self.up = self.down = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._start(self._accept)

    def seen(self, paths: Collection[str] = ()) -> list[Request]:
        """The requests so far, of these paths only where some are given."""
        with self._lock:
            return [request for request in self.requests if not paths or request.path in paths]

    def close(self) -> None:
        """Cut every connection and wait for the threads."""
        with self._lock:
            sockets = [self._listener, *self._open]
        for one in sockets:
            _close(one)
        for thread in self._threads:
            thread.join(5)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                device, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                except OSError:
                    _close(device)  # the SuperLink is down: the device is to see it
                    continue
                server.settimeout(None)
                with self._lock:
                    self._open |= {device, server}
                self._start(self._upwards, device, server)
                self._start(self._downwards, server, device)

    def _upwards(self, device: socket.socket, server: socket.socket) -> None:
        waiting = b""
        with contextlib.suppress(OSError):
            while True:
                while b"\r\n\r\n" not in waiting:
                    waiting += self._read(device)
                head, _, waiting = waiting.partition(b"\r\n\r\n")
                found = LENGTH.search(head + b"\r\n")
                size = int(found[1]) if found else 0
                parts = [waiting]
                have = len(waiting)
                while have < size:
                    parts.append(self._read(device))
                    have += len(parts[-1])
                body, waiting = b"".join(parts)[:size], b"".join(parts)[size:]
                if self._record(head, body):
                    server.sendall(head + b"\r\n\r\n" + body)
                else:
                    break
        self._drop(device, server)

    def _downwards(self, server: socket.socket, device: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := server.recv(BLOCK):
                with self._lock:
                    self.down += len(block)
                device.sendall(block)
        self._drop(device, server)

    def _read(self, device: socket.socket) -> bytes:
        block = device.recv(BLOCK)
        if not block:
            raise ConnectionError
        with self._lock:
            self.up += len(block)
        return block

    def _record(self, head: bytes, body: bytes) -> bool:
        """Write the request down; whether it is to be passed on."""
        path = head.split(b" ", 2)[1].decode("ascii").rsplit("/", 1)[-1]
        with self._lock:
            self.requests.append(Request(path, len(head) + 4, len(body), body))
            return path not in self.lose

    def _drop(self, *sockets: socket.socket) -> None:
        for one in sockets:
            _close(one)
        with self._lock:
            self._open -= set(sockets)


def replies(requests: Iterable[Request]) -> list[list[Request]]:
    """The requests that carry replies, reply by reply: the announcement, then its objects."""
    found: list[list[Request]] = []
    for request in requests:
        if request.path == PUSHES[0]:
            found.append([request])
        elif request.path == PUSHES[1]:
            found[-1].append(request)
    return found


def total(requests: Iterable[Request]) -> int:
    """Bytes of these requests, heads and bodies."""
    return sum(request.head + request.body for request in requests)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in recv or accept
    one.close()
