"""An honest app with a time-out on a real SuperNode: its exception is raised in the engine's main
thread.

Before the engine's thread only waited, the server got ``TimeoutError: 'record of patient 4711 did
not load'`` 0.3 s after the app began, where the policy says 2 s.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from engines.superlink import Network
from engines.wire import PUSHES
from federation.node.makers import books, write_policy

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs flwr: install quietbit[flower]"),
    pytest.mark.skipif(
        sys.platform != "linux", reason="needs Linux: its processes are found through /proc"
    ),
]
FAULTY = Path(__file__).parent / "faulty_app"
SECONDS = 2.0


def test_a_handler_that_raises_in_the_engines_thread_tells_the_server_nothing(tmp_path):
    home, output = tmp_path / "node", tmp_path / "run"
    home.mkdir()
    rules = {"epsilon": 1e6, "adjacency": "zero-out", "response_seconds": SECONDS}
    own = {
        "quietbit.policy": write_policy(home, **rules),
        "behaviour": "alarm",
        "disk": str(home),
        "partition-id": 0,
    }
    with Network(tmp_path / "network") as network:
        node = network.start_node("node", own)
        network.run(FAULTY, {"nodes": 1, "num-server-rounds": 1, "output": str(output)})
        network.until(lambda: node.wire.seen(PUSHES), "the node answers")
        answered = time.time()
        network.until((output / "report.json").exists, "the run finishes")
        logs, sent = network.logs(), b"".join(request.content for request in node.wire.seen())
    (entry,) = json.loads((output / "report.json").read_text())["rounds"]
    assert (entry["answered"], entry["declined"], entry["failed"], entry["refused"]) == (
        1,
        0,
        0,
        0,
    ), logs
    assert books(home).releases == 1
    assert answered - float((home / "training").read_text()) >= SECONDS - 0.05
    assert b"4711" not in sent
