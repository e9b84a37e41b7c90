"""An evaluation behind masks in Flower's simulation runtime: its steps are messages that the app
never sees.
"""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the flower extra: pip install 'quietbit[flower]'")
pytest.importorskip("ray", reason="needs the flower extra: pip install 'quietbit[flower]'")
pytest.importorskip("sklearn", reason="needs quietbit-lab: pip install ./packages/lab")
pytest.importorskip("cryptography", reason="needs the all extra: pip install 'quietbit[all]'")

from engines.simulation import simulate_app

APP = Path(__file__).parent / "simulation_app"
SUMMED = """releases = 1
masks = {server = "honest-but-curious", threshold = 7, honest = 6}
evaluate = {epsilon = 6.0, metric = "loss", most = 3.0}
"""


@pytest.mark.long  # without an engine: tests/engines/flower/test_summed_evaluation.py
def test_ten_nodes_say_their_loss_in_one_masked_sum(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    app = shutil.copytree(APP, tmp_path / "app")  # `flwr run` overrides keys, and adds none
    project = app / "pyproject.toml"
    text = project.read_text()
    assert text.rstrip().endswith("releases = 6")
    project.write_text(text.replace("releases = 6", SUMMED))
    client = app / "private_digits" / "client_app.py"
    client.write_text(client.read_text().replace("mods=[watch, message_size_mod, ", "mods=["))
    simulate_app(
        app,
        tmp_path,
        nodes=10,
        config={"results": json.dumps(str(results)), "num-server-rounds": 1},
    )
    report = json.loads((results / "report.json").read_text())
    (entry,) = report["evaluations"]
    assert (entry["metric"], entry["asked"], entry["answered"]) == ("loss", 10, 10)
    (estimate,) = entry["estimates"]
    assert estimate["low"] <= estimate["value"] <= estimate["high"]
    loss = report["scores"][-1]["loss"]
    assert estimate["low"] <= loss <= estimate["high"]  # every node has the same test digits
    assert report["rounds"][0]["answered"] == 10
    assert report["guarantee"]["epsilon_upper"] <= 60.0
