"""Replayed rounds between real processes, on nodes that lose their power."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from engines.superlink import EngineFailure, Network
from quietbit.federation.parts.replay import HeldModel
from quietbit.node import init
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import Policy
from quietbit.node.stores import ModelFolder
from quietbit.wire.downlink import Replica

pytestmark = [
    pytest.mark.long,  # without processes: tests/engines/flower/test_replay.py
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs flwr: install quietbit[flower]"),
    pytest.mark.skipif(
        sys.platform != "linux", reason="needs Linux: its processes are found through /proc"
    ),
]
APP = Path(__file__).parent / "faulty_app"
KEEP, NODES = 1024, 2
CONFIG = {"nodes": NODES, "quietbit.mechanism": "vmvu", "quietbit.releases": 8}


def start(network: Network, partition: int) -> None:
    home = network.folder / f"node-{partition}"
    home.mkdir(exist_ok=True)
    if not (home / "policy").exists():
        init(
            home / "policy",
            epsilon=100.0,
            adjacency="zero-out",
            largest_clip=1.0,
            releases=50,
            releases_per_day=50,
            mechanisms=("vmvu",),
            response_seconds=0.0,
            models=str(home / "models"),
        )
    config = {"partition-id": partition, "behaviour": "honest", "disk": str(home)}
    network.start_node(home.name, {**config, "quietbit.policy": str(home / "policy")})


def held(content: bytes) -> Replica:
    """Return the model that a node has kept."""
    return HeldModel.from_bytes(content, "", lambda mean: mean).replica


def finished(network: Network, run: str) -> bool:
    status = network.status(run)
    if status.startswith("finished") and status != "finished:completed":
        raise EngineFailure(f"{status}\n{network.logs()}")
    return status == "finished:completed"


def replaying(folder: Path, start: str = "server") -> Path:
    """The app, with rounds that are replayed."""
    shutil.copytree(APP, folder)
    with (folder / "pyproject.toml").open(
        "a", encoding="utf-8"
    ) as file:  # its last table is quietbit's
        file.write(f'"mechanism.coordinates" = {KEEP}\nreplay = {{start = "{start}"}}\n')
    return folder


def test_a_killed_node_replays_what_it_missed(tmp_path):
    """Killed while it trains, it comes back under another number, as SuperNodes do, with the
    model that it kept.
    """
    output, app, rounds, size = tmp_path / "output", replaying(tmp_path / "app", "app"), 5, 20_000
    own = {
        "num-server-rounds": rounds,
        "dimension": size,
        "slow": 0,
        "slow-round": 2,
        "output": str(output),
    }
    with Network(tmp_path / "network") as network:
        for partition in range(NODES):
            start(network, partition)
        run = network.run(app, {**CONFIG, **own})
        network.until(
            (network.folder / "node-0" / "training").exists, "a node trains in the second round"
        )
        network.kill_node("node-0")
        gone = network.nodes["node-0"].identity
        kept = ModelFolder(network.nodes["node-0"].home / "models")[f"{run}.model"]
        assert held(kept).round == 1  # the model that it was asked to train
        network.flwr("supernode", "unregister", str(gone), "here")
        network.until((output / "round-2.npy").exists, "the round ends without it")
        start(network, 0)
        network.until(lambda: finished(network, run), "the run is over")
        report = json.loads((output / "report.json").read_text())
        assert [entry["answered"] for entry in report["rounds"]] == [2, 1, 2, 2, 2]
        assert [entry["resyncs"] for entry in report["rounds"]] == [0] * rounds
        assert all(
            entry["downlink"] < NODES * 4 * size for entry in report["rounds"]
        )  # nobody got the model in full
        digests = set()
        for node in network.nodes.values():
            kept = ModelFolder(node.home / "models")[f"{run}.model"]
            digests.add(held(kept).digest)
        assert digests == {
            Replica(np.load(output / f"round-{rounds - 1}.npy"), round=rounds - 1).digest
        }
        policy = Policy.load(network.nodes["node-0"].home / "policy")
        assert (
            FileLedger(policy.ledger, policy.counter).read().releases == rounds
        )  # the one that was lost counts
