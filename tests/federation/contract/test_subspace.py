"""Coordinates in a subspace, through all adapters: k numbers leave, and the step stays in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.simulate.makers import small_problem
from plans import flat_plan
from quietbit.federation.simulate import Training, simulate
from quietbit.gradients.subspace import Subspace
from spaces import space_of_seed

K = 6
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
EXACT = {
    "quietbit.mechanism": "gaussian",
    "quietbit.clip": 1.0,
    "quietbit.mechanism.noise-multiplier": 1e-4,
    "quietbit.epsilon": 1e11,
    "quietbit.adjacency": "replace-one",
}
SUBSPACE = EXACT | {"quietbit.subspace": K}


def directions(dimension: int) -> Subspace:
    """The directions of a run."""
    return Subspace.of_gradients(np.random.default_rng(2).normal(size=(20, dimension)), K)


def check(change: Any, update: Any, space: Subspace) -> None:
    """The model moved by the update's part in the subspace, which no clip shortened."""
    inside = space.lift(space.coordinates(update))
    assert np.linalg.norm(change - inside) < 0.1 * np.linalg.norm(inside)
    assert change - space.lift(space.coordinates(change)) == pytest.approx(0.0, abs=1e-6)


def test_flower() -> None:
    pytest.importorskip("flwr", reason="needs the flower extra")
    from flwr.app import ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from engines.flower.kit import (
        DIMENSION,
        HandGrid,
        app,
        be_the_server,
        context,
        gated,
        model,
        simulated,
    )
    from quietbit.flower import PrivateStrategy, Simulation

    nodes = [11, 12, 13]
    config = SUBSPACE
    space = directions(DIMENSION)
    mod = simulated(gated(simulation=Simulation(seed=7)))
    be_the_server()
    inner = FedAvg(min_train_nodes=3, min_available_nodes=3)
    strategy = PrivateStrategy(inner, config, basis=space)
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
    assert bytes_sent == [3 * space.bytes_once, 0]
    assert report.rounds[0].downlink - report.rounds[1].downlink >= bytes_sent[0]
    assert f"{K} directions of {DIMENSION} numbers, {bytes_sent[0]:,} bytes" in str(report)


def test_nvflare(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="needs the nvflare extra")
    from engines.nvflare.kit import DIMENSION, Server, Site, trained

    space = directions(DIMENSION)
    path = str(tmp_path / "basis.npy")
    np.save(path, space.directions)
    server = Server(SUBSPACE, folder=tmp_path, basis=path)
    site = Site(trained(0.02))
    for number in (0, 1):
        seen = server.takes(site.does(server.asks(number=number)), number=number)
        moved = np.concatenate([value.ravel() for value in seen["DXO"]["data"].values()])
        check(-moved.astype(np.float64), np.full(DIMENSION, -0.02), space)
    report = server.report(tmp_path)
    assert report["dimension"] == K
    bytes_sent = [entry["records"]["subspace"]["basis_bytes"] for entry in report["rounds"]]
    assert bytes_sent == [space.bytes_once, 0]


def test_local() -> None:
    problem = small_problem()
    space = directions(problem.dimension)
    plan = flat_plan(
        "gaussian",
        clip=100.0,
        adjacency="zero-out",
        noise_multiplier=1e-6,
        cohort=60,
        rng="seeded",
        subspace=K,
    )
    run = simulate(problem, plan, Training(1.0, 2, momentum=0.0), basis=space)
    assert run.status == "finished", run.reason
    moved = run.parameters - problem.initial(plan.seed)
    outside = moved - space.lift(space.coordinates(moved))
    assert np.linalg.norm(outside) < 1e-5 < np.linalg.norm(moved)
    assert run.mechanism is not None
    assert run.mechanism.ball.dimension == K
    sent = [entry.records["subspace"]["basis_bytes"] for entry in run.round_reports]
    assert sent == [60 * space.bytes_once, 0]


REPLAYED = {
    "quietbit.mechanism": "vmvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 60.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.releases": 6,
    "quietbit.mechanism.coordinates": 32,
    "quietbit.replay": True,
}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_flower_nodes_that_replay_rounds_have_the_servers_bits(momentum: float) -> None:
    """A round is the kept coordinates alone: both sides lift and step, to the same model."""
    pytest.importorskip("flwr", reason="needs the flower extra")
    from flwr.app import Array, ArrayRecord, ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from engines.flower.kit import HandGrid, be_the_server, context, gated, simulated, trained
    from quietbit.federation.messages import MODEL
    from quietbit.flower import PrivateStrategy, Simulation

    dimension, size, nodes = 4_000, 40, [11, 12, 13]
    space = space_of_seed(3, size, dimension)
    config = REPLAYED | {
        "quietbit.subspace": size,
        "quietbit.replay.momentum": momentum,
        "quietbit.replay.learning-rate": 0.5,
    }
    mod = simulated(gated(simulation=Simulation(seed=7)))
    be_the_server()
    inner = FedAvg(min_train_nodes=3, min_available_nodes=3)
    strategy = PrivateStrategy(inner, config, basis=space)
    contexts = {node: context(node, config=config) for node in nodes}
    start = np.random.default_rng(1).normal(size=dimension).astype(np.float32)
    arrays = ArrayRecord({"weight": Array(start)})
    seen: list[bytes] = []

    def train(message: Any, _: Any) -> Any:
        seen.append(message.content["arrays"]["weight"].numpy().tobytes())
        return trained(message, np.random.default_rng(len(seen)).normal(size=dimension) / 50)

    for number in range(1, 6):
        messages = list(strategy.configure_train(number, arrays, ConfigRecord(), HandGrid(nodes)))
        if number > 1:
            broadcasts = [content["broadcasts"] for content in (m.content[MODEL] for m in messages)]
            assert all(sum(map(len, sent)) < 4 * size + 200 for sent in broadcasts)
        replies = [
            mod(message, contexts[message.metadata.dst_node_id], train) for message in messages
        ]
        assert seen[-3:] == [arrays["weight"].numpy().tobytes()] * 3
        arrays, _ = strategy.aggregate_train(number, replies)
    moved = arrays["weight"].numpy().astype(np.float64) - start
    assert np.linalg.norm(moved) > 0.01
    outside = moved - space.lift(space.coordinates(moved))
    assert np.linalg.norm(outside) < 1e-4 * np.linalg.norm(moved)
    report = strategy.report()
    assert [entry.answered for entry in report.rounds] == [3] * 5
    assert report.rounds[1].downlink < 3 * 4 * dimension / 2


def test_nvflare_sites_that_replay_rounds_have_the_servers_bits(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="needs the nvflare extra")
    from engines.nvflare.kit import Server, trained
    from engines.nvflare.test_replay import CONFIG, DIMENSION, Workflow, sites

    size = 40
    space = space_of_seed(3, size, DIMENSION)
    path = str(tmp_path / "basis.npy")
    np.save(path, space.directions)
    seen: list[bytes] = []

    def looks(task_name: Any, shareable: Any, fl_ctx: Any) -> Any:
        weight = shareable["DXO"]["data"]["weight"]
        seen.append(np.asarray(weight).tobytes())
        return trained()(task_name, {"DXO": {"data": {"weight": weight}}}, fl_ctx)

    config = CONFIG | {
        "quietbit.local-arrays": "count",
        "quietbit.mechanism.coordinates": 32,
        "quietbit.subspace": size,
    }
    workflow = Workflow(config, folder=tmp_path)
    controller = workflow.server.engine  # the context that knows the workflow stays
    server = Server(config, tmp_path, basis=path)
    server.engine = controller
    workflow.server = server
    nodes = sites(tmp_path, looks)
    for number in range(4):
        before = workflow.model["weight"].tobytes()
        tasks, _ = workflow.round(number, nodes)
        assert seen[-2:] == [before] * 2
        assert all(bool(task["DXO"]["data"]) is (number == 0) for task in tasks.values())
    report = server.report(tmp_path)
    assert [entry["answered"] for entry in report["rounds"]] == [2] * 4
    assert report["rounds"][0]["records"]["subspace"]["basis_bytes"] == 2 * space.bytes_once


def test_local_rounds_that_are_replayed_end_where_others_do() -> None:
    problem = small_problem()
    space = directions(problem.dimension)
    given = {"clip": 1.0, "adjacency": "zero-out", "epsilon": 8.0, "cohort": 60, "rng": "seeded"}
    runs = []
    for replay in (True, None):
        rows = None if replay else "shared"
        plan = flat_plan("vmvu", **given, replay=replay, rows=rows, coordinates=4, subspace=K)
        runs.append(simulate(problem, plan, Training(0.5, 4), basis=space))
    assert [run.status for run in runs] == ["finished"] * 2
    assert runs[0].parameters == pytest.approx(runs[1].parameters, abs=1e-5)


@pytest.mark.parametrize(
    "more",
    [
        {"quietbit.adaptive-clip.every": 2},
        {"quietbit.weights.most-examples": 10},
        {"quietbit.evaluate.epsilon": 0.5},
    ],
    ids=["scouts", "weights", "evaluation"],
)
def test_flower_beside_other_sections(more: dict[str, Any]) -> None:
    pytest.importorskip("flwr", reason="needs the flower extra")
    from flwr.app import ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from engines.flower.kit import (
        CONFIG,
        DIMENSION,
        HandGrid,
        app,
        be_the_server,
        context,
        gated,
        model,
        simulated,
    )
    from quietbit.flower import PrivateStrategy, Simulation

    nodes = list(range(11, 17))
    config = CONFIG | {"quietbit.mechanism": "vmvu", "quietbit.subspace": K} | more
    config |= {"quietbit.adjacency": "zero-out"}
    space = directions(DIMENSION)
    rules = Simulation(seed=7, metrics=("num-examples",))
    mod = simulated(gated(simulation=rules))
    be_the_server()
    inner = FedAvg(min_train_nodes=6, min_available_nodes=6, min_evaluate_nodes=6)
    strategy = PrivateStrategy(inner, config, basis=space)
    contexts = {node: context(node, config=config) for node in nodes}
    arrays = model()
    for number in (1, 2):
        grid = HandGrid(nodes)
        asked = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
        train = app(np.full(DIMENSION, 0.01), {"num-examples": 5, "accuracy": 0.5})
        replies = [mod(message, contexts[message.metadata.dst_node_id], train) for message in asked]
        assert not any(reply.has_error() for reply in replies)
        arrays, _ = strategy.aggregate_train(number, replies)
        asked = list(strategy.configure_evaluate(number, arrays, ConfigRecord(), grid))
        replies = [mod(message, contexts[message.metadata.dst_node_id], train) for message in asked]
        strategy.aggregate_evaluate(number, replies)
    report = strategy.report()
    assert [entry.answered + entry.scouted for entry in report.rounds] == [6, 6]
    assert report.guarantee is not None
    assert report.guarantee.epsilon_upper <= 20.0
    assert len(report.evaluations) == (2 if "quietbit.evaluate.epsilon" in more else 0)


@pytest.mark.parametrize("server", ["honest-but-curious", "active"])
def test_flower_masked_sums_are_of_padded_coordinates(server: str) -> None:
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
