"""A clip that begins ten times off, in Flower's own simulation runtime: scouts bring it to the
updates' length.
"""

import json
import math

import pytest

pytest.importorskip("flwr", reason="needs the flower extra: pip install 'quietbit[flower]'")
pytest.importorskip("ray", reason="needs the flower extra: pip install 'quietbit[flower]'")

from engines.simulation import simulate_app

# Without processes: tests/engines/flower/test_moving_clip.py; the same runtime: test_flower_secure.py.
pytestmark = pytest.mark.long
NODES, ROUNDS = 20, 12
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "lengths"
version = "1.0.0"
description = "Clients whose updates have lengths around 1."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "quietbit"

[tool.flwr.app.components]
serverapp = "lengths.server_app:app"
clientapp = "lengths.client_app:app"

[tool.flwr.app.config]
results = ""

[tool.flwr.app.config.quietbit]
"""
CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from quietbit.flower import PrivateClientApp

app = PrivateClientApp()


@app.train()
def train(message, context):
    place = context.node_config["partition-id"]
    weight = message.content["arrays"]["weight"].numpy().copy()
    weight[place] += np.exp(2 * place / {last} - 1)  # the median of the lengths is 1
    return Message(RecordDict({{"arrays": ArrayRecord({{"weight": Array(weight)}})}}), reply_to=message)
"""
SERVER = """
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from quietbit.flower import PrivateStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    inner = FedAvg(min_train_nodes={nodes}, min_available_nodes={nodes}, fraction_evaluate=0.0)
    strategy = PrivateStrategy(inner, context.run_config)
    strategy.start(grid, ArrayRecord({{"weight": Array(np.zeros(30, np.float32))}}), {rounds}, timeout=120.0)
    strategy.report().save(Path(context.run_config["results"]) / "report.json")
"""
LOCAL = {"mechanism": "vmvu", "epsilon": 60.0, "adjacency": "zero-out"}
SUMS = {
    "mechanism": "imvu",
    "epsilon": 30.0,
    "adjacency": "zero-out",
    "secure-aggregation.adversary": "honest-but-curious",
    "secure-aggregation.threshold": 7,
    "secure-aggregation.honest-clients": 5,
}


@pytest.mark.parametrize(
    ("start", "settings"),
    [(10.0, LOCAL), (0.1, LOCAL), (10.0, SUMS)],
    ids=["ten times", "a tenth", "sums"],
)
def test_scouts_find_the_length_and_reports_count_them_apart(tmp_path, start, settings):
    """Some ten scouts in every round: a share is off by 0.2 to 0.3 each time, and a factor of
    three is far off.
    """
    app, results = tmp_path / "app", tmp_path / "results"
    (app / "lengths").mkdir(parents=True)
    results.mkdir()
    given = {"clip": start, "adaptive-clip.every": 2, "releases": ROUNDS, **settings}
    (app / "pyproject.toml").write_text(
        PROJECT + "\n".join(f"{key} = {json.dumps(one)}" for key, one in given.items())
    )
    (app / "lengths" / "__init__.py").write_text("")
    (app / "lengths" / "client_app.py").write_text(CLIENT.format(last=NODES - 1))
    (app / "lengths" / "server_app.py").write_text(SERVER.format(nodes=NODES, rounds=ROUNDS))
    simulate_app(app, tmp_path, nodes=NODES, config={"results": json.dumps(str(results))})
    report = json.loads((results / "report.json").read_text())
    rounds = report["rounds"]
    clips = [entry["clip"] for entry in rounds]
    assert clips[0] == start
    assert abs(math.log(clips[-1])) < math.log(3)
    assert abs(math.log(clips[-1])) < abs(math.log(start)) / 2
    for entry in rounds:
        assert entry["scouts"] == entry["scouted"]
        assert entry["asked"] + entry["scouts"] == NODES
        assert entry["answered"] == entry["asked"] or (
            entry["skipped"] and "secure-aggregation.threshold" in settings
        )
    assert sum(entry["scouts"] for entry in rounds) > ROUNDS
    assert sum(not entry["skipped"] for entry in rounds) > ROUNDS / 2
    if "secure-aggregation.threshold" not in settings:
        assert {node["releases"] for node in report["nodes"]} == {ROUNDS}
    assert report["guarantee"]["epsilon_upper"] <= settings["epsilon"]
