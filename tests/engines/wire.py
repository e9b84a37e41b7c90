"""A counting proxy between one SuperNode and the SuperLink: what really crosses the socket, request
by request.

Idea     the SuperNode is told the proxy's port instead of the SuperLink's. Requests (protobuf over
         HTTP/1.1) are read whole, counted and passed on, and answers likewise. Nothing of quietbit
         is involved. A request in ``lose`` is read and counted but never passed on: the network
         took it from the device and lost it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import final

PUSHES = ("push-messages", "push-object")  # what carries a reply
WAIT = 60.0  # seconds for an answer
HOP = ("connection", "transfer-encoding", "content-length")  # heads of one connection alone


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
        wire = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (OSError, HTTPException):  # the SuperLink is down: the device is to see it
                    self.close_connection = True

            def do_POST(self) -> None:
                wire.carry(self)

            do_GET = do_POST

            def log_message(self, *words: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def seen(self, paths: Collection[str] = ()) -> list[Request]:
        """The requests so far, of these paths only where some are given."""
        return [request for request in self.requests if not paths or request.path in paths]

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.socket.close()
        self._thread.join(5)

    def carry(self, asked: BaseHTTPRequestHandler) -> None:
        """Write a request down and pass it on, unless the network loses it."""
        body = asked.rfile.read(int(asked.headers.get("Content-Length", 0)))
        head = len(asked.raw_requestline) + len(asked.headers.as_bytes())
        path = asked.path.rsplit("/", 1)[-1]
        self.requests.append(Request(path, head, len(body), body))
        if path in self.lose:
            asked.close_connection = True
            return
        onward = HTTPConnection("127.0.0.1", self.target, timeout=WAIT)
        try:
            onward.request(asked.command, asked.path, body, dict(asked.headers))
            answer = onward.getresponse()
            content = answer.read()
        finally:
            onward.close()
        asked.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP:
                asked.send_header(name, value)
        asked.send_header("Content-Length", str(len(content)))
        asked.end_headers()
        asked.wfile.write(content)


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
