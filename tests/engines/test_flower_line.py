"""An app with an epsilon of its own on a SuperLink and SuperNodes, and in Flower's simulation
runtime, under strategies that know nothing of quietbit: its model is the plain app's under a huge
epsilon and noise under a small one, and every ledger has the account that the log says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from engines.simulation import simulate_app
from engines.superlink import Network
from federation.node.makers import write_policy
from quietbit.node.ledger import FileLedger

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs flwr: install quietbit[flower]"),
    pytest.mark.skipif(
        sys.platform != "linux", reason="needs Linux: its processes are found through /proc"
    ),
]
NODES, ROUNDS, DELTA = 3, 2, 1e-5
HUGE, SMALL = 1e9, 4.0

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "line"
version = "1.0.0"
description = "Nodes that add a number to every weight."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "quietbit"

[tool.flwr.app.components]
serverapp = "line.server:app"
clientapp = "line.client:app"

[tool.flwr.app.config]
strategy = "FedAvg"
output = ""
"""

CLIENT = """
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quietbit.flower import PrivateClientApp

app = {app}


@app.train()
def train(message, context):
    step = 0.125 * (1 + context.node_config["partition-id"])
    arrays = message.content["arrays"]
    trained = ArrayRecord({{key: Array(value.numpy() + step) for key, value in arrays.items()}})
    metrics = MetricRecord({{"num-examples": 1, "secret": 417.25}})
    return Message(RecordDict({{"arrays": trained, "metrics": metrics}}), reply_to=message)
"""

SERVER = """
import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp, strategy

app = ServerApp()


@app.main()
def main(grid, context):
    chosen = getattr(strategy, context.run_config["strategy"])(
        fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3
    )
    start = ArrayRecord({"weight": Array(np.zeros((2, 3))), "bias": Array(np.zeros(2))})
    result = chosen.start(grid, start, num_rounds=2)
    model = np.concatenate([array.numpy().ravel() for array in result.arrays.values()])
    told = {str(number): dict(metrics) for number, metrics in result.train_metrics_clientapp.items()}
    folder = Path(context.run_config["output"])
    (folder / "told.json").write_text(json.dumps(told))
    np.save(folder / "unfinished.npy", model)
    (folder / "unfinished.npy").rename(folder / "model.npy")
"""


def app_folder(folder: Path, name: str, app: str) -> Path:
    """An app whose ClientApp is this expression."""
    home = folder / name
    (home / "line").mkdir(parents=True)
    files = {
        "pyproject.toml": PROJECT,
        "line/__init__.py": "",
        "line/client.py": CLIENT.format(app=app),
        "line/server.py": SERVER,
    }
    for path, text in files.items():
        (home / path).write_text(text)
    return home


def private(epsilon: float) -> str:
    """The one line."""
    return f"PrivateClientApp(epsilon={epsilon}, clip=10.0, releases=2, adjacency='zero-out')"


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Iterator[Network]:
    """One SuperLink and three SuperNodes, whose owners allow the Gaussian mechanism."""
    with Network(tmp_path_factory.mktemp("network")) as found:
        for partition in range(NODES):
            home = found.folder / f"node-{partition}"
            home.mkdir()
            rules = {"mechanisms": ("gaussian",), "response_seconds": 1.0, "largest_clip": 10.0}
            policy = write_policy(home, epsilon=1e12, metrics=("quietbit.epsilon",), **rules)
            config = {"partition-id": partition, "num-partitions": NODES}
            found.start_node(home.name, {**config, "quietbit.policy": policy})
        yield found


def trained(network: Network, folder: Path, app: str, strategy: str):
    """The model and the metrics of a run on the SuperNodes."""
    output = folder / "output"
    output.mkdir(parents=True)
    network.run(app_folder(folder, "app", app), {"strategy": strategy, "output": str(output)})
    network.until((output / "model.npy").exists, "the run finishes", 120.0)
    return np.load(output / "model.npy"), json.loads((output / "told.json").read_text())


def check_ledgers(network: Network) -> None:
    """The newest two releases of every node are those of one run."""
    for partition in range(NODES):
        home = network.folder / f"node-{partition}"
        ledger = FileLedger(home / "ledger", home / "counter").read()
        assert [noted.round for noted in ledger.noted[-ROUNDS:]] == [1, 2]
        assert len({noted.run for noted in ledger.noted[-ROUNDS:]}) == 1


@pytest.mark.parametrize(
    "strategy",
    [
        "FedAvg",
        pytest.param("FedAdam", marks=pytest.mark.long),
        pytest.param("Krum", marks=pytest.mark.long),
    ],
)
def test_on_supernodes_a_huge_epsilon_is_the_plain_app_and_a_small_one_is_not(
    network, tmp_path, strategy
):
    honest = np.full(8, ROUNDS * 0.25)
    if strategy != "FedAvg":
        honest, heard = trained(network, tmp_path / "honest", "ClientApp()", strategy)
        assert "secret" in str(heard)
    near, told = trained(network, tmp_path / "huge", private(HUGE), strategy)
    assert "secret" not in str(told)
    check_ledgers(network)
    if strategy == "Krum":  # chooses one of three nodes; between neighbours' distances it is a tie
        distance = np.abs(near[:, None] - np.array([2, 3, 4, 5, 6]) * 0.125).min(axis=1)
        assert distance.max() < 0.02
    else:
        np.testing.assert_allclose(near, honest, atol=0.02)
    far, told = trained(network, tmp_path / "small", private(SMALL), strategy)
    assert "secret" not in str(told)
    spent = [told[number]["quietbit.epsilon"] for number in ("1", "2")]
    assert 2.0 < spent[0] < 3.0 < 3.9 < spent[1] <= SMALL
    check_ledgers(network)
    # FedAdam's steps are at most 0.1 whatever the noise: its signs are those of noise
    least = 0.3 if strategy != "FedAdam" else 0.02
    assert np.abs(far - honest).max() > least


@pytest.mark.long
def test_in_the_simulation_runtime_no_owner_is_needed(tmp_path):
    pytest.importorskip("ray", reason="needs the flower extra")
    output = tmp_path / "output"
    output.mkdir()
    app = app_folder(tmp_path, "app", private(HUGE))
    simulate_app(app, tmp_path, nodes=NODES, config={"output": json.dumps(str(output))})
    np.testing.assert_allclose(np.load(output / "model.npy"), ROUNDS * 0.25, atol=0.02)
