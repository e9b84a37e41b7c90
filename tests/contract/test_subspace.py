"""Coordinates in a subspace, through all three adapters: what leaves has k numbers, and the step stays in the subspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plans import flat_plan
from quietbit.local import Training, simulate
from quietbit.subspace import Subspace
from unit.local.makers import small_problem

K = 6
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
EXACT = {
    "quietbit.mechanism": "gaussian",
    "quietbit.clip": 1.0,
    "quietbit.mechanism.noise-multiplier": 1e-4,
    "quietbit.epsilon": 1e11,
    "quietbit.adjacency": "replace-one",
}
SOURCES = {
    "server": {"quietbit.subspace": K},
    "app": {"quietbit.subspace.directions": K, "quietbit.subspace.basis": "app"},
    "seed": {"quietbit.subspace.directions": K, "quietbit.subspace.seed": 3},
}


def directions(source: str, dimension: int) -> tuple[Subspace, Subspace | None]:
    """The directions of a run, and what the server is given of them."""
    if source == "seed":
        return Subspace.of_seed(3, K, dimension), None
    space = Subspace.of_gradients(np.random.default_rng(2).normal(size=(20, dimension)), K)
    return space, space


def check(change: Any, update: Any, space: Subspace) -> None:
    """The model moved by the update's part in the subspace, which no clip shortened."""
    inside = space.lift(space.coordinates(update))
    assert np.linalg.norm(change - inside) < 0.1 * np.linalg.norm(inside)
    assert change - space.lift(space.coordinates(change)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("source", SOURCES)
def test_flower(source: str) -> None:
    pytest.importorskip("flwr", reason="needs the flower extra")
    from flwr.app import ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from quietbit.flower import PrivateStrategy, PrivateUplink, Simulation
    from unit.flower.kit import DIMENSION, HandGrid, app, be_the_server, context, model, simulated

    nodes = [11, 12, 13]
    config = EXACT | SOURCES[source]
    space, given = directions(source, DIMENSION)
    mod = simulated(
        PrivateUplink(simulation=Simulation(seed=7), basis=given if source == "app" else None)
    )
    be_the_server()
    inner = FedAvg(min_train_nodes=3, min_available_nodes=3)
    strategy = PrivateStrategy(inner, config, basis=given)
    contexts = {node: context(node, config=config) for node in nodes}
    arrays = model()
    update = np.random.default_rng(4).normal(size=DIMENSION) / 20
    for number in (1, 2):
        asked = list(strategy.configure_train(number, arrays, ConfigRecord(), HandGrid(nodes)))
        train = app(update)
        replies = [mod(message, contexts[message.metadata.dst_node_id], train) for message in asked]
        after, _ = strategy.aggregate_train(number, replies)
        before = np.concatenate([array.numpy().ravel() for array in arrays.values()])
        moved = np.concatenate([array.numpy().ravel() for array in after.values()])
        check(before.astype(np.float64) - moved, update, space)
        arrays = after
    report = strategy.report()
    assert [entry.answered for entry in report.rounds] == [3, 3]
    assert report.dimension == K
    bytes_sent = [entry.records["subspace"]["basis_bytes"] for entry in report.rounds]
    assert bytes_sent == ([3 * space.bytes_once, 0] if source == "server" else [0, 0])
    if source == "server":
        assert report.rounds[0].downlink - report.rounds[1].downlink >= bytes_sent[0]


@pytest.mark.parametrize("source", SOURCES)
def test_nvflare(source: str, tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="needs the nvflare extra")
    from unit.nvflare.kit import DIMENSION, Server, Site, trained

    space, given = directions(source, DIMENSION)
    path = None
    if given is not None:
        path = str(tmp_path / "basis.npy")
        np.save(path, given.directions)
    server = Server(EXACT | SOURCES[source], folder=tmp_path, basis=path)
    site = Site(trained(0.02), basis=path if source == "app" else None)
    for number in (0, 1):
        seen = server.takes(site.does(server.asks(number=number)), number=number)
        moved = np.concatenate([value.ravel() for value in seen["DXO"]["data"].values()])
        check(-moved.astype(np.float64), np.full(DIMENSION, -0.02), space)
    report = server.report(tmp_path)
    assert report["dimension"] == K
    bytes_sent = [entry["records"]["subspace"]["basis_bytes"] for entry in report["rounds"]]
    assert bytes_sent == ([space.bytes_once, 0] if source == "server" else [0, 0])


@pytest.mark.parametrize("source", SOURCES)
def test_local(source: str) -> None:
    problem = small_problem()
    space, given = directions(source, problem.dimension)
    plan = flat_plan(
        "gaussian",
        clip=100.0,
        adjacency="zero-out",
        noise_multiplier=1e-6,
        cohort=60,
        rng="seeded",
        subspace={
            "directions": K,
            "basis": "app" if source == "app" else "server",
            "seed": 3 if source == "seed" else None,
        },
    )
    run = simulate(problem, plan, Training(1.0, 2, momentum=0.0), basis=given)
    assert run.status == "finished", run.reason
    moved = run.parameters - problem.initial(plan.seed)
    outside = moved - space.lift(space.coordinates(moved))
    assert np.linalg.norm(outside) < 1e-5 < np.linalg.norm(moved)
    assert run.mechanism is not None
    assert run.mechanism.ball.dimension == K
    assert run.enclosed_bytes == (60 * space.bytes_once if source == "server" else 0)
