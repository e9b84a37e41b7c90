"""The diff of docs/how-to/add-a-capability.md, as it is printed there, through all adapters.

A copy of the sources with the diff plays rounds in a process of its own; what it reports is
compared with norms that the sources without it decode from the same payloads. A part without a
section of its own is handed to the adapters.
"""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from federation.contract.kit import (
    ADAPTERS,
    FlowerFederation,
    LocalFederation,
    walk,
)
from quietbit import Plan
from quietbit.federation import Part
from quietbit.wire.uplink import Uplink

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "add-a-capability.md"
ENGINES = {"flower": "flwr", "nvflare": "nvflare"}
NODES = 4
ROUNDS = 2
CONFIG = {
    "quietbit.mechanism": "gaussian",  # whose releases differ in length
    "quietbit.clip": 1.0,
    "quietbit.mechanism.noise-multiplier": 0.1,
    "quietbit.epsilon": 10_000.0,
    "quietbit.adjacency": "replace-one",
}
# Under which a server sees no release by itself, or updates without noise.
UNSEEN = {
    "central": CONFIG | {"quietbit.trust": "central"},
    "summed": {
        "quietbit.mechanism": "imvu",
        "quietbit.clip": 1.0,
        "quietbit.epsilon": 20.0,
        "quietbit.adjacency": "zero-out",
        "quietbit.trust": "secure-aggregation",
    },
}
SECTION = {"quietbit.release-norms": True}
SAID = re.compile(r"^ +\d .*median norm ([\d.]+)", re.MULTILINE)  # by a line of the report's table
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")


@pytest.fixture(name="changed", scope="module")
def made_from_the_page(tmp_path_factory):
    """A copy of the sources with the diff of the page."""
    if shutil.which("git") is None:
        pytest.skip("needs git, which applies the diff")
    (diff,) = re.findall(r"```diff\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    folder = tmp_path_factory.mktemp("changed")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    # Within a repository, git would leave out files that are not of it.
    alone = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    command = ["git", "apply", "-"]
    done = subprocess.run(
        command, cwd=folder, env=alone, input=diff, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, f"The diff of the page does not apply.\n{done.stderr}"
    return folder / "src"


@pytest.fixture(name="played", scope="module")
def played_with_the_diff(changed, tmp_path_factory):
    """What a process with these sources reports of some rounds, by the name of what was played."""
    folder = tmp_path_factory.mktemp("played")
    paths = [str(changed), str(ROOT / "tests")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "federation.contract.test_own_part", str(folder)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "played.json").read_text(encoding="utf-8"))
    assert Path(found["source"]).is_relative_to(changed)
    return found


@pytest.mark.parametrize("name", ["local", "flower", "nvflare"])
def test_every_round_has_the_median_norm(played, name):
    if name not in played:
        pytest.skip(f"needs the {name} extra")
    found = played[name]
    medians = []
    for payloads in found["payloads"]:
        medians.append(median_norm([bytes.fromhex(payload) for payload in payloads]))
    assert len(medians) == ROUNDS
    records = [record["release_norms"]["median"] for record in found["records"]]
    assert records == pytest.approx(medians, rel=1e-6)
    said = [float(number) for number in SAID.findall(found["text"])]
    assert said == pytest.approx(medians, rel=1e-3)


def test_rounds_without_visible_releases_have_none(played):
    for name in UNSEEN:
        assert played[name]["records"] == [{}]
    if "masked" in played:
        assert played["masked"]["answered"] == [6]
        assert played["masked"]["records"] == [{}]
        assert "median norm" not in played["masked"]["text"]


def median_norm(payloads):
    """The median norm of releases, each of which is a mean of its own."""
    dimension = 42
    uplink = Uplink(Plan.from_run_config(CONFIG).mechanism_for(dimension))
    assert len(payloads) == NODES
    norms = sorted(float(np.linalg.norm(uplink.receive([payload]))) for payload in payloads)
    return (norms[1] + norms[2]) / 2


def play_all(folder):
    """Play rounds with the section of the page, by all adapters that are installed."""
    found = {}
    for kind in ADAPTERS:
        if find_spec(ENGINES.get(kind.name, "quietbit")) is not None:
            (folder / kind.name).mkdir()
            found[kind.name] = play(kind, folder / kind.name)
    for name, config in UNSEEN.items():
        unseen = LocalFederation(config | SECTION, nodes=NODES, folder=folder)
        unseen.play()
        found[name] = {"records": [dict(entry.records) for entry in unseen.run.report().rounds]}
    if "flower" in found:
        found["masked"] = play_masked()
    return found


def play(kind, folder):
    """Play rounds of an adapter."""
    federation = kind(CONFIG | SECTION, nodes=NODES, folder=folder)
    payloads = []
    for _ in range(ROUNDS):
        before = federation.model.astype(np.float64)
        federation.play()
        payloads.append([payload(federation, node, before).hex() for node in range(NODES)])
    lines = Lines()
    logging.basicConfig(level=logging.INFO, handlers=[lines], force=True)
    records = [entry["records"] for entry in federation.report()["rounds"]]
    text = "\n".join(lines.said)  # NVFlare's log has the report at the end
    if isinstance(federation, LocalFederation):
        text = str(federation.run.report())
    if isinstance(federation, FlowerFederation):
        text = str(federation.strategy.report())
    return {"payloads": payloads, "records": records, "text": text}


def play_masked():
    """Play a round of masked sums, in which a server sees no release."""
    from engines.flower.secure_kit import CONFIG as SUMS
    from engines.flower.secure_kit import Room, run

    config = SUMS | SECTION
    strategy, _ = run(Room(config=config), config=config)
    report = strategy.report()
    return {
        "answered": [entry.answered for entry in report.rounds],
        "records": [dict(entry.records) for entry in report.rounds],
        "text": str(report),
    }


def payload(federation, node, model):
    """The payload of a node; a simulation, which keeps none, makes the same one again."""
    if not isinstance(federation, LocalFederation):
        return federation.payload(node)
    update = walk(node, model).update.astype(np.float32)
    mechanism = federation.plan.mechanism_for(model.size)
    return federation.expected(node, update, mechanism, federation.number)


class Lines(logging.Handler):
    """What is logged."""

    def __init__(self):
        super().__init__()
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


class Bytes(Part):
    """A part of one's own: bytes of messages in both directions."""

    section = "bytes"

    def __init__(self):
        self.down = 0
        self.up = 0

        self.taken = 0

    def take(self, scope, release):
        self.taken += 1

    def close(self, closed):
        self.down += closed.report.downlink
        self.up += closed.report.uplink
        return {"down": self.down, "up": self.up, "taken": self.taken}


@pytest.mark.parametrize("kind", ADAPTERS, ids=lambda kind: kind.name)
def test_a_part_of_ones_own(kind, tmp_path):
    federation = kind(CONFIG, nodes=NODES, folder=tmp_path, parts=[Bytes()])
    rounds = 1 if kind is LocalFederation else ROUNDS  # a simulation plays from its start again
    for _ in range(rounds):
        federation.play()
    report = federation.report()
    records = [entry["records"]["bytes"] for entry in report["rounds"]]
    assert len(records) == rounds
    assert records[0]["up"] == report["rounds"][0]["uplink"]
    assert records[-1] == {
        "down": report["downlink"],
        "up": report["uplink"],
        "taken": rounds * NODES,
    }


if __name__ == "__main__":
    import quietbit

    goal = Path(sys.argv[1])
    result = play_all(goal) | {"source": quietbit.__file__}
    (goal / "played.json").write_text(json.dumps(result), encoding="utf-8")
