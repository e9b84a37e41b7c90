"""Flower's own simulation runtime, ten nodes: the model of the engine-free simulator, its bytes
and its account.
"""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra: pip install 'quietbit[flower]'")
pytest.importorskip("ray", reason="needs the flower extra: pip install 'quietbit[flower]'")
pytest.importorskip("sklearn", reason="needs quietbit-lab: pip install ./packages/lab")

from engines.simulation import simulate_app
from plans import engine_plan, flat_plan
from quietbit.federation.simulate.loop import simulate
from quietbit.federation.simulate.problem import Training
from quietbit_lab.task.registry import TaskSpec, build_task

pytestmark = (
    pytest.mark.long
)  # test_flower_secure.py has the same runtime, test_flower_deployment.py the same sums
APP = Path(__file__).parent / "simulation_app"
NODES, ROUNDS, DIMENSION = 10, 6, 650
SETTINGS = engine_plan("imvu", clip=0.3, epsilon=60.0, adjacency="zero-out", releases=ROUNDS)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """One simulation for all tests: what the server and the nodes left behind."""
    folder = tmp_path_factory.mktemp("simulation")
    results = folder / "results"
    results.mkdir()
    simulate_app(APP, folder, nodes=NODES, config={"results": json.dumps(str(results))})
    files = sorted(results.glob("node-*.jsonl"))
    notes = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return {
        "parameters": np.load(results / "parameters.npy"),
        "report": json.loads((results / "report.json").read_text()),
        "metrics": json.loads((results / "metrics.json").read_text()),
        "train": [note for note in notes if note["kind"] == "train"],
        "evaluate": [note for note in notes if note["kind"] == "evaluate"],
    }


@pytest.fixture(scope="module")
def reference():
    """The same plan without an engine, with the same words."""
    mechanism = SETTINGS.mechanism_for(
        DIMENSION
    )  # nodes stop by an account of their own: the run is calibrated to that
    given = {
        "design_epsilon": mechanism.design.spec.epsilon,
        "beta": mechanism.beta,
        "clamp": mechanism.clamp,
    }
    plan = flat_plan("imvu", clip=0.3, adjacency="zero-out", cohort=NODES, rng="seeded", **given)
    training = Training(lr=1.0, momentum=0.0, rounds=ROUNDS)
    return simulate(build_task(TaskSpec("digits", samples=143)), plan, training)


def test_the_model_is_that_of_the_simulator_to_the_last_bit(outcome, reference):
    assert outcome["parameters"].dtype == np.float32
    assert np.array_equal(outcome["parameters"], reference.parameters)
    accuracy = outcome["metrics"]["server"][str(ROUNDS)]["accuracy"]
    assert accuracy == reference.points[-1].score.accuracy
    assert accuracy > 0.7  # ten clients learn at epsilon 60; a guess is right one time in ten


def test_uplink_bytes_measured_by_flower(outcome):
    limit = (DIMENSION + 7) // 8 + 1024
    for note in outcome["train"]:
        assert note["outgoing"] <= note["serialised"] <= limit
        assert note["incoming"] >= 4 * DIMENSION
    serialised = sum(note["serialised"] for note in outcome["train"])
    # Flower gives a message its id after the mods: a few bytes more per message than they see.
    assert serialised <= outcome["report"]["uplink"] <= serialised + 200 * len(outcome["train"])


def test_nothing_but_the_release_left_a_node(outcome):
    assert all(note["records"] == {"quietbit": ["release"]} for note in outcome["train"])
    assert len(outcome["evaluate"]) == NODES * ROUNDS
    assert all(note["records"] == {} for note in outcome["evaluate"])
    assert outcome["metrics"]["evaluate"] == {}
    for record in outcome["metrics"]["train"].values():
        assert all(name.startswith("quietbit-") for name in record)
