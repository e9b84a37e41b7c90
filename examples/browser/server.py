"""A server for the page beside this file: digits, requests, and a mean of payloads. Not an engine.

    python examples/browser/server.py        # then open http://127.0.0.1:8001/?client=0 and
    /?client=1

It hands payloads to an `Aggregator` and nothing else: no accounts, no TLS, no state on a disk.
Engines are Flower and NVFlare. 50 clients hold 30 digits each: two of them are tabs, the others are
simulated here, so that a mean of private updates teaches anything at all.
"""

from __future__ import annotations

import argparse
import base64
import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from quietbit import Adjacency, Ball, Norm, Uplink, calibrate
from quietbit.client_table import client_table
from quietbit.errors import QuietbitError
from quietbit.mechanism.registry import canonical_text
from quietbit.target import Target

FOLDER = Path(__file__).parent
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
    "/quietbit.js": ("quietbit.js", "text/javascript"),
    "/quietbit.wasm": ("quietbit.wasm", "application/wasm"),
}
CLIENTS = 50
DIGITS_EACH = 30
TABS = 2
ROUNDS = 10
TARGET = Target(20.0, 1e-5, Adjacency.ZERO_OUT)
CLIP = 1.0
STEPS = 5
LEARNING_RATE = 1.0
PARAMETERS = 650
Floats = NDArray[np.float32]


def train(model: Floats, features: Floats, labels: NDArray[np.int64]) -> Floats:
    """Return what `train` of page.js returns, for clients that are simulated."""
    weights = model.astype(np.float64)
    for _ in range(STEPS):
        scores = features @ weights[:640].reshape(64, 10) + weights[640:]
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        chances[np.arange(labels.size), labels] -= 1.0
        weights[:640] -= LEARNING_RATE * (features.T @ chances / labels.size).reshape(-1)
        weights[640:] -= LEARNING_RATE * chances.mean(axis=0)
    return (weights - model).astype(np.float32)


class Run:
    """One run: a model, the digits of every client, and the payloads of the round."""

    def __init__(self, tabs: int = TABS, rounds: int = ROUNDS) -> None:
        """Fix everything before data is seen."""
        ball = Ball(Norm.L2, PARAMETERS)
        terms: dict[str, Any] = {
            "epsilon": TARGET.epsilon,
            "delta": TARGET.delta,
            "adjacency": TARGET.adjacency,
        }
        self.mechanism = calibrate("vmvu", ball=ball, releases=rounds, **terms).mechanism
        self.text = canonical_text(self.mechanism, CLIP)
        self.uplink = Uplink(self.mechanism, clip=CLIP)
        self.table = client_table([self.uplink], TARGET)
        self.rounds = rounds
        self.tabs = tabs
        self.round = 0
        self.model = np.zeros(PARAMETERS, np.float32)
        self.answered: set[int] = set()
        self.lock = threading.Lock()
        features, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(labels.size)
        self.features = (features[order] / 16.0).astype(np.float32)
        self.labels = labels[order]
        self._begin_round()

    def digits(self, client: int) -> tuple[Floats, NDArray[np.int64]]:
        """Return the digits of one client."""
        own = slice(client * DIGITS_EACH, (client + 1) * DIGITS_EACH)
        return self.features[own], self.labels[own]

    def accuracy(self) -> float:
        """Return the share of unseen digits that the model names."""
        unseen = slice(CLIENTS * DIGITS_EACH, None)
        scores = self.features[unseen] @ self.model[:640].reshape(64, 10) + self.model[640:]
        return float(np.mean(np.argmax(scores, axis=1) == self.labels[unseen]))

    def _begin_round(self) -> None:
        """Add the payloads of all clients that are simulated.

        Without tabs, finish the round as well.
        """
        self.answered = set()
        self.mean = self.uplink.aggregator()
        for client in range(self.tabs, CLIENTS):
            self.mean.add(self.uplink.send(train(self.model, *self.digits(client))))

    def add(self, client: int, number: int, payload: bytes) -> None:
        """Add the payload of a tab, once per round; the last one ends the round."""
        with self.lock:
            if number != self.round or client in self.answered or not 0 <= client < self.tabs:
                raise QuietbitError(f"Client {client} is not expected in round {number}.")
            self.mean.add(payload)
            self.answered.add(client)
            if len(self.answered) == self.tabs:
                self.finish_round()

    def finish_round(self) -> None:
        """Move the model by the mean, and begin the next round."""
        self.model = (self.model + self.mean.mean()).astype(np.float32)
        self.round += 1
        if self.round < self.rounds:
            self._begin_round()

    def request(self) -> dict[str, Any]:
        """Return what a tab is asked."""
        with self.lock:
            return {
                "round": self.round,
                "rounds": self.rounds,
                "text": self.text,
                "model": base64.b64encode(self.model.astype("<f4").tobytes()).decode(),
                "accuracy": self.accuracy(),
            }


def handler_of(run: Run) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers requests about a run."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with a file of the page, the table, digits, or the request of the round."""
            address = urlparse(self.path)
            if address.path in FILES:
                name, kind = FILES[address.path]
                self.reply((FOLDER / name).read_bytes(), kind)
            elif address.path == "/table":
                self.reply(run.table, "application/octet-stream")
            elif address.path == "/round":
                self.reply(json.dumps(run.request()).encode(), "application/json")
            elif address.path == "/data":
                features, labels = run.digits(int(parse_qs(address.query)["client"][0]) % run.tabs)
                content = {
                    "features": base64.b64encode(features.tobytes()).decode(),
                    "labels": labels.tolist(),
                }
                self.reply(json.dumps(content).encode(), "application/json")
            else:
                self.reply(b"not found", "text/plain", HTTPStatus.NOT_FOUND)

        def do_POST(self) -> None:
            """Take a payload."""
            words = parse_qs(urlparse(self.path).query)
            size = int(self.headers.get("Content-Length", 0))
            if size > 1000:
                self.reply(b"too long", "text/plain", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                return
            try:
                run.add(int(words["client"][0]), int(words["round"][0]), self.rfile.read(size))
            except (QuietbitError, KeyError, ValueError) as error:
                self.reply(str(error).encode(), "text/plain", HTTPStatus.BAD_REQUEST)
                return
            self.reply(b"", "text/plain")

        def reply(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
            """Send an answer; pages may load nothing from elsewhere."""
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header(
                "Content-Security-Policy",
                "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'",
            )
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Stay silent."""

    return Handler


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description="The demonstration server of a browser's client.")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    server = ThreadingHTTPServer(
        ("127.0.0.1", arguments.port), handler_of(Run(rounds=arguments.rounds))
    )
    print(
        f"open http://127.0.0.1:{arguments.port}/?client=0 and http://127.0.0.1:{arguments.port}/?client=1"
    )
    server.serve_forever()


if __name__ == "__main__":
    main()
