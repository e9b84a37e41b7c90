"""The README's Flower snippet as it stands, and apps without quietbit, in Flower's own simulation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the flower extra: pip install 'quietbit[flower]'")
pytest.importorskip("ray", reason="needs the flower extra: pip install 'quietbit[flower]'")

from engines.simulation import simulate_app

README = (Path(__file__).parent.parent.parent / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("## In Flower\n")[2].partition("\n## ")[0]
BUILD = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "shown"
version = "1.0.0"
description = "The app of the README."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "quietbit"

[tool.flwr.app.components]
serverapp = "shown.app:server_app"
clientapp = "shown.app:client_app"

[tool.flwr.app.config]
results = ""

"""
NOTES = """
    from pathlib import Path
    Path(context.run_config["results"]).write_text(str(strategy.report()))
"""
PLAIN = """
from flwr.app import MetricRecord
from flwr.clientapp import ClientApp

private = client_app
client_app = ClientApp()


@client_app.train()
def raw(message, context):
    if context.node_config["partition-id"] >= {plain}:
        return private(message, context)
    reply = train(message, context)
    reply.content["metrics"] = MetricRecord({{"num-examples": 31, "loss": 417.25}})
    return reply


@client_app.evaluate()
def evaluate(message, context):
    metrics = MetricRecord({{"num-examples": 31, "loss": 417.25}})
    return Message(RecordDict({{"metrics": metrics}}), reply_to=message)
"""


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
    return found


def run(folder: Path, more: str = "", change=("", ""), nodes: int = 2) -> tuple[str, str]:
    """Run the README's app, with more code after it; return its log and report."""
    app = folder / "app"
    (app / "shown").mkdir(parents=True)
    (app / "conftest.py").write_text("")  # nothing in here is a test
    (app / "pyproject.toml").write_text(BUILD + block("toml"))
    (app / "shown" / "__init__.py").write_text("")
    code = block("python").replace(*change) + NOTES + more
    (app / "shown" / "app.py").write_text(code)
    results = folder / "report"
    log = simulate_app(app, folder, nodes=nodes, config={"results": json.dumps(str(results))})
    return log, results.read_text() if results.exists() else ""


def test_the_snippet_of_the_readme_works_as_it_stands(tmp_path):
    """With evaluations in every round, and none answered, it logged 1,157 lines in five."""
    log, report = run(tmp_path)
    assert "Traceback" not in log
    assert "ERROR" not in log
    assert len(log.splitlines()) < 450  # of 20 rounds; Flower prints every round's metrics twice
    assert "The worst client, per node number in this run: epsilon <= 8 at delta = 1e-05" in report
    assert "Releases per node, in this run: fewest 20 (epsilon 8)" in report


@pytest.mark.long  # tests/engines/flower/test_unprotected.py has the same without the engine
def test_plain_apps_among_private_ones_are_asked_once(tmp_path):
    change = ("num_rounds=20", "num_rounds=3")
    evaluates = PLAIN.format(plain=2)
    log, report = run(tmp_path, evaluates, change, nodes=4)
    assert "No guarantee: 2 nodes sent unprotected replies." in report
    assert "epsilon <= 8" not in log + report
    assert "quietbit-epsilon" not in log
    assert "417.25" not in log + report
    lines = [line for line in report.splitlines() if re.match(r" {4}[123] ", line)]
    assert [line.split()[:2] for line in lines] == [["1", "4"], ["2", "2"], ["3", "2"]]
