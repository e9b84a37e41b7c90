"""Coordinates in a subspace, through all adapters: k numbers leave, and the step stays in it."""

import numpy as np
import pytest

from federation.contract.kit import (
    ADAPTERS,
    COLUMNS,
    ENGINES,
    LocalFederation,
    Work,
)
from quietbit.gradients.subspace import Subspace
from spaces import space_of_seed

K = 6
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
SUBSPACE = {
    "quietbit.mechanism": "gaussian",
    "quietbit.clip": 1.0,
    "quietbit.mechanism.noise-multiplier": 1e-4,
    "quietbit.epsilon": 1e11,
    "quietbit.adjacency": "replace-one",
    "quietbit.subspace": K,
}


def directions(dimension):
    """The directions of a run."""
    return Subspace.of_gradients(np.random.default_rng(2).normal(size=(20, dimension)), K)


@pytest.mark.parametrize("kind", ADAPTERS, ids=lambda kind: kind.name)
def test_the_model_moves_by_the_updates_part_in_the_subspace(kind, tmp_path):
    """No clip shortens it; the directions are sent once to every node."""
    dimension = 6 * COLUMNS
    space = directions(dimension)
    update = np.random.default_rng(4).normal(size=dimension) / 20
    federation = kind(SUBSPACE, lambda node, model: Work(update), folder=tmp_path, basis=space)
    start = federation.model.astype(np.float64)
    federation.play()
    federation.play()
    change = start - federation.model
    inside = 2 * space.lift(space.coordinates(update))
    assert np.linalg.norm(change - inside) < 0.1 * np.linalg.norm(inside)
    assert change - space.lift(space.coordinates(change)) == pytest.approx(0.0, abs=1e-6)
    if isinstance(federation, LocalFederation):
        assert federation.run.mechanism.ball.dimension == K
        rounds = [{"records": entry.records} for entry in federation.run.round_reports]
    else:
        report = federation.report()
        assert report["dimension"] == K
        rounds = report["rounds"]
        assert [entry["answered"] for entry in rounds] == [3, 3]
        assert rounds[0]["downlink"] - rounds[1]["downlink"] >= 3 * space.bytes_once
    sent = [entry["records"]["subspace"]["basis_bytes"] for entry in rounds]
    assert sent == [3 * space.bytes_once, 0]


REPLAYED = {
    "quietbit.mechanism": "vmvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 60.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.releases": 6,
    "quietbit.mechanism.coordinates": 32,
    "quietbit.replay": True,
    "quietbit.subspace": 40,
}


@pytest.mark.parametrize("momentum", [pytest.param(0.0, marks=pytest.mark.long), 0.9])
@pytest.mark.parametrize("kind", ENGINES, ids=lambda kind: kind.name)
def test_nodes_that_replay_rounds_have_the_servers_bits(kind, momentum, tmp_path):
    """A round is the kept coordinates alone: both sides lift and step, to the same model."""
    space = space_of_seed(3, 40, 401 * COLUMNS)
    config = REPLAYED | {
        "quietbit.replay.momentum": momentum,
        "quietbit.replay.learning-rate": 0.5,
    }
    federation = kind(config, rows=400, folder=tmp_path, basis=space)
    start = federation.model.astype(np.float64)
    for _ in range(4):
        before = federation.model
        federation.seen.clear()
        federation.play()
        assert [model.tobytes() for model in federation.seen.values()] == [before.tobytes()] * 3
    moved = federation.model - start
    assert np.linalg.norm(moved) > 0.01
    outside = moved - space.lift(space.coordinates(moved))
    assert np.linalg.norm(outside) < 1e-4 * np.linalg.norm(moved)
    rounds = federation.report()["rounds"]
    assert [entry["answered"] for entry in rounds] == [3] * 4
    assert rounds[1]["downlink"] < 3 * 4 * start.size / 2


@pytest.mark.parametrize("server", ["honest-but-curious", "active"])
def test_flower_masked_sums_are_of_padded_coordinates(server):
    pytest.importorskip("flwr", reason="needs the flower extra")
    from engines.flower.kit import DIMENSION
    from engines.flower.secure_kit import ACTIVE, CONFIG, Room, flat, run

    config = (ACTIVE if server == "active" else CONFIG) | {"quietbit.subspace": K}
    space = directions(DIMENSION)
    strategy, history = run(Room(config=config), rounds=2, config=config, basis=space)
    report = strategy.report()
    assert [entry.answered for entry in report.rounds] == [6, 6]
    assert report.dimension == 1024
    moved = flat(history[0]).astype(np.float64) - flat(history[2])
    assert np.linalg.norm(moved) > 0
    assert moved - space.lift(space.coordinates(moved)) == pytest.approx(0.0, abs=1e-5)
    sent = [entry.records["subspace"]["basis_bytes"] for entry in report.rounds]
    assert sent == [6 * space.bytes_once, 0]
