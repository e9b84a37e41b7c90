"""What a server can tell from the time of an answer: bits per release about what a node's app did.

Idea     Flower's mod with an owner's policy, once per process, as a SuperNode runs it. The app does
         one of several things, drawn at random; the reply is serialised as Flower does it, and the
         time is taken when it is bytes, on the node itself: nearer than any server. Between what
         the app did and that time there is mutual information. Several nodes run at once, and
         programs that only compute beside them: a busy machine.
Symbols  I: plug-in estimate from equally frequent bins of the times. It is too large by about (bins
         - 1)(kinds - 1) / (2 N ln 2) bits: the mean over shuffled labels measures that bias, and is
         subtracted.

    python benchmarks/answer_time.py [--releases 1000] [--seconds 0.75] [--beside 2] [--kinds 2 4]
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import multiprocessing
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(
    0, str(Path(__file__).parent.parent / "tests")
)  # messages and contexts without an engine

BINS, SHUFFLES = 10, 200
SEEN = struct.Struct("<ddd")


def raises(*_: Any) -> Any:
    raise FloatingPointError("the loss is NaN")


def working(seconds: float, train: Callable[..., Any]) -> Callable[..., Any]:
    """An app that computes for so long, in numpy, and then answers."""

    def call(message: Any, context: Any) -> Any:
        ends, matrix = time.monotonic() + seconds, np.random.default_rng(0).normal(size=(200, 200))
        while time.monotonic() < ends:
            matrix = matrix @ matrix
            matrix /= np.abs(matrix).max()
        return train(message, context)

    return call


def spinning(seconds: float, train: Callable[..., Any]) -> Callable[..., Any]:
    """An app that computes for so long in Python alone, and never lets the interpreter go by itself."""

    def call(message: Any, context: Any) -> Any:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            sum(range(100))
        return train(message, context)

    return call


def information(kinds: Any, times: Any, rng: np.random.Generator) -> tuple[float, float, float]:
    """Plug-in mutual information in bits, its mean over shuffled labels, and their 99 % quantile."""
    places = np.argsort(np.argsort(times, kind="stable"), kind="stable") * BINS // len(times)

    def plug_in(labels: Any) -> float:
        table = np.zeros((labels.max() + 1, BINS))
        np.add.at(table, (labels, places), 1.0)
        table /= table.sum()
        apart = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True)
        there = table > 0
        return float(np.sum(table[there] * np.log2(table[there] / apart[there])))

    null = [plug_in(rng.permutation(kinds)) for _ in range(SHUFFLES)]
    return plug_in(kinds), float(np.mean(null)), float(np.quantile(null, 0.99))


def node(releases: int, seconds: float, apps: int, seed: int, out: Any) -> None:
    """One node: as many releases as told, each in a process of its own.

    Send (what the app did, when) of all.
    """
    logging.disable(logging.CRITICAL)
    makers, kit = (
        importlib.import_module("federation.node.makers"),
        importlib.import_module("engines.flower.kit"),
    )
    asking = importlib.import_module("engines.flower.test_client")
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    train, budget = kit.app(np.linspace(-0.2, 0.3, kit.DIMENSION)), 0.75 * seconds
    table = [
        raises,
        working(0.6 * budget, train),
        working(4 * seconds, train),
        spinning(4 * seconds, train),
    ][:apps]
    rng, found = np.random.default_rng(seed), []
    with tempfile.TemporaryDirectory() as folder:
        limits = {"epsilon": 1e6, "releases": 10**6, "releases_per_day": 10**6}
        path = makers.write_policy(Path(folder), response_seconds=seconds, **limits)
        config = kit.CONFIG | {"quietbit.epsilon": 1e6}
        (Path(folder) / "first").mkdir()
        first = makers.write_policy(
            Path(folder) / "first", **limits
        )  # one release fills what processes share
        kit.gated()(asking.request(1), kit.context(11, config=config, quietbit_policy=first), train)
        for number in range(1, releases + 1):
            kind, start = int(rng.integers(apps)), rng.uniform(0, 0.25)
            message = asking.request(number)
            ours, theirs = os.pipe()
            if os.fork() == 0:
                time.sleep(start)
                place = kit.context(11, config=config, quietbit_policy=path)
                begun = time.time()
                reply = kit.gated()(message, place, table[kind])
                sum(len(part.deflate()) for part in get_all_nested_objects(reply).values())
                os.write(theirs, SEEN.pack(begun, reply.metadata.created_at, time.time()))
                os._exit(0)
            os.close(theirs)
            begun, stamp, left = SEEN.unpack(os.read(ours, SEEN.size))
            os.close(ours)
            os.wait()
            found.append((kind, stamp - begun, left - stamp))
            if number % 50 == 0:
                print(f"node {seed}: {number} of {releases}", file=sys.stderr, flush=True)
    out.send(found)


def measure(releases: int, seconds: float, apps: int, beside: int) -> dict[str, Any]:
    """All releases of four nodes on one machine, with ``beside`` programs that compute."""
    load = [multiprocessing.Process(target=busy, daemon=True) for _ in range(beside)]
    for one in load:
        one.start()
    ends, nodes = [], []
    for place in range(4):
        mine, theirs = multiprocessing.Pipe(duplex=False)
        one = multiprocessing.Process(
            target=node, args=(releases // 4, seconds, apps, place, theirs)
        )
        one.start()
        ends.append(mine)
        nodes.append(one)
    found = [entry for end in ends for entry in end.recv()]
    for one in load:
        one.terminate()
    for one in nodes:
        one.join()
    kinds, rng = np.array([entry[0] for entry in found]), np.random.default_rng(1)
    late = np.array([entry[2] for entry in found]) * 1e3
    said: dict[str, Any] = {
        "releases": len(found),
        "kinds": apps,
        "response_seconds": seconds,
        "programs_beside": beside,
    }
    for name, column in (("moment", 1), ("after_moment", 2)):
        plain, bias, most = information(kinds, np.array([entry[column] for entry in found]), rng)
        said[name] = {
            "bits": round(plain, 4),
            "bias": round(bias, 4),
            "corrected": round(plain - bias, 4),
            "shuffled_99": round(most, 4),
        }
    said["ms_after_moment"] = {
        str(kind): [round(float(np.quantile(late[kinds == kind], q)), 2) for q in (0.5, 0.9, 0.99)]
        for kind in range(apps)
    }
    return said


def busy() -> None:
    """Compute until killed."""
    os.nice(5)
    while True:
        sum(range(1000))


def main() -> None:
    """Print one JSON object for each experiment.

    Failing or training, and all that apps can do, late ones included.
    """
    words = argparse.ArgumentParser()
    words.add_argument("--releases", type=int, default=1000)
    words.add_argument("--seconds", type=float, default=0.75)
    words.add_argument("--beside", type=int, default=2)
    words.add_argument("--kinds", type=int, nargs="+", default=(2, 4))
    given = words.parse_args()
    for apps in given.kinds:
        print(json.dumps(measure(given.releases, given.seconds, apps, given.beside)), flush=True)


if __name__ == "__main__":
    main()
