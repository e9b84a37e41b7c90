"""What a large cohort costs in Flower's simulation.

Memory of all its processes, time, and bytes per client.

Run:  python benchmarks/flower_scale.py [--nodes 1000] [--parameters 1000000] [--rounds 3]
[--workers 2] A SuperLink in simulation mode runs an app whose clients move every parameter a
little. All processes below it (ray's workers, its object store and its daemons included) are looked
at twice a second: the sum of their resident memory counts pages that several of them share several
times, the proportional sum counts them once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).parent.parent / "tests")
)  # the harness that starts and ends the engine

PROJECT = """[project]
name = "flower-scale"
version = "1.0.0"
description = "A large cohort."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "quietbit"
[tool.flwr.app.components]
serverapp = "scale:server"
clientapp = "scale:client"
[tool.flwr.app.config]
results = ""
nodes = 2
parameters = 1
rounds = 1
[tool.flwr.app.config.quietbit]
mechanism = "imvu"
clip = 1.0
epsilon = 3.0
adjacency = "replace-one"
releases = 3
"""
APP = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from quietbit.flower import PrivateClientApp, PrivateStrategy, Simulation

client = PrivateClientApp(simulation=Simulation())
server = ServerApp()

@client.train()
def train(message, context):
    moved = message.content["arrays"]["w"].numpy() - np.float32(1e-4)
    content = {"arrays": ArrayRecord({"w": Array(moved)}), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)

@server.main()
def main(grid, context):
    config = context.run_config
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=config["nodes"], min_available_nodes=config["nodes"])
    strategy = PrivateStrategy(inner, config)
    start = ArrayRecord({"w": Array(np.zeros(config["parameters"], dtype=np.float32))})
    strategy.start(grid, start, config["rounds"])
    strategy.report().save(config["results"])
"""


class Watcher:
    """The largest memory of all processes that carry a name, by resident and by proportional size, in bytes."""

    def __init__(self, name: str) -> None:
        self.name, self.resident, self.proportional, self.most = name, 0, 0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        processes = importlib.import_module("engines.superlink").processes
        while not self._stop.wait(0.5):
            numbers = processes(self.name)
            sizes = [_memory(number) for number in numbers]
            self.resident = max(self.resident, sum(rss for rss, _ in sizes))
            self.proportional = max(self.proportional, sum(pss for _, pss in sizes))
            self.most = max(self.most, len(numbers))


def _memory(process: int) -> tuple[int, int]:
    found = {"Rss": 0, "Pss": 0}
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in found:
                found[key] = 1024 * int(value.split()[0])
    return found["Rss"], found["Pss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for option, usual in (
        ("nodes", 1000),
        ("parameters", 10**6),
        ("rounds", 3),
        ("workers", 2),
        ("within", 3600),
    ):
        parser.add_argument(f"--{option}", type=int, default=usual)
    asked = parser.parse_args()
    simulate_app = importlib.import_module("engines.simulation").simulate_app
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "app").mkdir()
        (folder / "app" / "pyproject.toml").write_text(PROJECT)
        (folder / "app" / "scale.py").write_text(APP)
        results, name, began = folder / "report.json", uuid.uuid4().hex, time.perf_counter()
        config = {
            "results": json.dumps(str(results)),
            "nodes": asked.nodes,
            "parameters": asked.parameters,
            "rounds": asked.rounds,
        }
        with Watcher(name) as seen:
            shape = {
                "nodes": asked.nodes,
                "workers": asked.workers,
                "within": float(asked.within),
                "name": name,
            }
            simulate_app(folder / "app", folder, **shape, config=config)
        seconds, report = time.perf_counter() - began, json.loads(results.read_text())
    answered = [entry["answered"] for entry in report["rounds"]]
    print(
        f"{asked.nodes:,} nodes, {asked.parameters:,} parameters, {asked.workers} workers; answered: {answered}"
    )
    print(
        f"peak memory of {seen.most} processes: {seen.resident / 2**30:.2f} GiB resident (shared pages counted"
    )
    print(f"  in each), {seen.proportional / 2**30:.2f} GiB proportional; {seconds:.0f} s in all")
    print(
        f"uplink {report['uplink'] / sum(answered):,.0f} bytes and downlink {report['downlink'] / sum(answered):,.0f}"
    )
    print("  bytes per client and round")


if __name__ == "__main__":
    main()
