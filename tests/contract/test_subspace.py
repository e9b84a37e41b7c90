"""Coordinates in a subspace, through all adapters: k numbers leave, and the step stays in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plans import flat_plan
from quietbit.local import Training, simulate
from quietbit.subspace import Subspace
from refusals import refuses
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
    assert f"{K} directions of {DIMENSION} numbers, {bytes_sent[0]:,} bytes" in str(report)


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


REPLAYED = {
    "quietbit.mechanism": "vmvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 60.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.releases": 6,
    "quietbit.mechanism.keep": 32,
    "quietbit.replay": True,
}


@pytest.mark.parametrize("source", ["server", "seed"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_flower_nodes_that_replay_rounds_have_the_servers_bits(
    source: str, momentum: float
) -> None:
    """A round is the kept coordinates alone: both sides lift and step, to the same model."""
    pytest.importorskip("flwr", reason="needs the flower extra")
    from flwr.app import Array, ArrayRecord, ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from quietbit.flower import PrivateStrategy, PrivateUplink, Simulation
    from quietbit.run.messages import MODEL
    from unit.flower.kit import HandGrid, be_the_server, context, simulated, trained

    dimension, size, nodes = 4_000, 40, [11, 12, 13]
    space = Subspace.of_seed(3, size, dimension)
    given = {"directions": size} | ({"seed": 3} if source == "seed" else {})
    config = REPLAYED | {f"quietbit.subspace.{key}": value for key, value in given.items()}
    config |= {"quietbit.replay.momentum": momentum, "quietbit.replay.learning-rate": 0.5}
    mod = simulated(PrivateUplink(simulation=Simulation(seed=7)))
    be_the_server()
    inner = FedAvg(min_train_nodes=3, min_available_nodes=3)
    strategy = PrivateStrategy(inner, config, basis=space if source == "server" else None)
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
    from unit.nvflare.kit import Server, trained
    from unit.nvflare.test_replay import CONFIG, DIMENSION, Workflow, sites

    size = 40
    space = Subspace.of_seed(3, size, DIMENSION)
    path = str(tmp_path / "basis.npy")
    np.save(path, space.directions)
    seen: list[bytes] = []

    def looks(task_name: Any, shareable: Any, fl_ctx: Any) -> Any:
        weight = shareable["DXO"]["data"]["weight"]
        seen.append(np.asarray(weight).tobytes())
        return trained()(task_name, {"DXO": {"data": {"weight": weight}}}, fl_ctx)

    config = CONFIG | {
        "quietbit.local-arrays": "count",
        "quietbit.mechanism.keep": 32,
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
    space, _ = directions("server", problem.dimension)
    given = {"clip": 1.0, "adjacency": "zero-out", "epsilon": 50.0, "cohort": 60, "rng": "seeded"}
    runs = []
    for replay in (True, None):
        rows = None if replay else "shared"
        plan = flat_plan("vmvu", **given, replay=replay, rows=rows, keep=4, subspace=K)
        runs.append(simulate(problem, plan, Training(0.5, 4), basis=space))
    assert [run.status for run in runs] == ["finished"] * 2
    assert runs[0].parameters == pytest.approx(runs[1].parameters, abs=1e-5)


@pytest.mark.parametrize("server", ["honest-but-curious", "active"])
def test_flower_masked_sums_are_of_padded_coordinates(server: str) -> None:
    pytest.importorskip("flwr", reason="needs the flower extra")
    from unit.flower.kit import DIMENSION
    from unit.flower.secure_kit import ACTIVE, CONFIG, Room, flat, run

    chosen = ACTIVE if server == "active" else CONFIG
    config = chosen | {"quietbit.subspace.directions": K, "quietbit.subspace.seed": 3}
    strategy, history = run(Room(config=config), rounds=2, config=config)
    report = strategy.report()
    assert [entry.answered for entry in report.rounds] == [6, 6]
    assert report.dimension == 1024
    space = Subspace.of_seed(3, K, DIMENSION)
    moved = flat(history[0]).astype(np.float64) - flat(history[2])
    assert np.linalg.norm(moved) > 0
    assert moved - space.lift(space.coordinates(moved)) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    "more",
    [
        {"quietbit.scouts.every": 2},
        {"quietbit.weights.most-examples": 10},
        {"quietbit.evaluate.epsilon": 0.5},
        {"quietbit.participation": "secret-order"},
    ],
    ids=["scouts", "weights", "evaluation", "secret order"],
)
def test_flower_beside_other_sections(more: dict[str, Any]) -> None:
    pytest.importorskip("flwr", reason="needs the flower extra")
    from flwr.app import ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from quietbit.flower import PrivateStrategy, PrivateUplink, Simulation
    from unit.flower.kit import (
        CONFIG,
        DIMENSION,
        HandGrid,
        app,
        be_the_server,
        context,
        model,
        simulated,
    )

    nodes = list(range(11, 17))
    config = CONFIG | {"quietbit.mechanism": "vmvu", "quietbit.subspace": K} | more
    config |= {"quietbit.adjacency": "zero-out"}
    space, _ = directions("server", DIMENSION)
    rules = Simulation(seed=7, metrics=("num-examples",))
    mod = simulated(PrivateUplink(simulation=rules))
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


def of_model(weights: Any) -> Subspace:
    """Directions that change with the model: its own numbers, in K groups of them."""
    rows = np.zeros((K, weights.size))
    for place in range(K):
        mine = weights[place::K] + 1.0
        rows[place, place::K] = mine / np.linalg.norm(mine)
    return Subspace(rows)


@pytest.mark.parametrize("source", ["server", "app"])
def test_flower_directions_that_are_renewed_are_those_of_the_rounds_model(source: str) -> None:
    pytest.importorskip("flwr", reason="needs the flower extra")
    from flwr.app import ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from quietbit.flower import PrivateStrategy, PrivateUplink, Simulation
    from unit.flower.kit import DIMENSION, HandGrid, app, be_the_server, context, model, simulated

    nodes = [11, 12, 13]
    given = {"directions": K, "basis": source, "renewed": True}
    config = EXACT | {f"quietbit.subspace.{key}": value for key, value in given.items()}
    brought = of_model if source == "app" else None
    mod = simulated(PrivateUplink(simulation=Simulation(seed=7), basis=brought))
    be_the_server()
    inner = FedAvg(min_train_nodes=3, min_available_nodes=3)
    strategy = PrivateStrategy(inner, config, basis=of_model)
    contexts = {node: context(node, config=config) for node in nodes}
    arrays = model()
    update = np.random.default_rng(4).normal(size=DIMENSION) / 7
    digests = set()
    for number in (1, 2, 3):
        before = np.concatenate([array.numpy().ravel() for array in arrays.values()])
        space = of_model(before.astype(np.float64))
        digests.add(space.digest)
        asked = list(strategy.configure_train(number, arrays, ConfigRecord(), HandGrid(nodes)))
        train = app(update)
        replies = [mod(message, contexts[message.metadata.dst_node_id], train) for message in asked]
        arrays, _ = strategy.aggregate_train(number, replies)
        after = np.concatenate([array.numpy().ravel() for array in arrays.values()])
        check(before.astype(np.float64) - after, update, space)
    assert len(digests) == 3
    records = [entry.records["subspace"] for entry in strategy.report().rounds]
    assert {record["digest"] for record in records} == digests
    expected = 3 * space.bytes_once if source == "server" else 0
    assert [record["basis_bytes"] for record in records] == [expected] * 3


def test_nvflare_and_local_directions_are_renewed_too(tmp_path: Path) -> None:
    problem = small_problem()
    given = {"clip": 10.0, "adjacency": "zero-out", "noise_multiplier": 1e-6, "cohort": 60}
    section = {"directions": K, "basis": "app", "renewed": True}
    plan = flat_plan("gaussian", **given, rng="seeded", subspace=section)
    seen = []

    def directions_of(weights: Any) -> Subspace:
        seen.append(weights.copy())
        return of_model(weights)

    run = simulate(problem, plan, Training(1.0, 3, momentum=0.0), basis=directions_of)
    assert run.status == "finished", run.reason
    assert len(seen) == 3
    moved = seen[1] - seen[0]
    space = of_model(seen[0])
    assert moved - space.lift(space.coordinates(moved)) == pytest.approx(0.0, abs=1e-5)
    pytest.importorskip("nvflare", reason="needs the nvflare extra")
    from unit.nvflare.kit import DIMENSION, Server, Site, trained

    config = EXACT | {f"quietbit.subspace.{key}": value for key, value in section.items()}
    server = Server(config, folder=tmp_path, basis=of_model)
    site = Site(trained(0.02), basis=of_model)
    for number in (0, 1):
        task = server.asks(number=number)
        weights = np.concatenate([value.ravel() for value in task["DXO"]["data"].values()])
        seen_by_workflow = server.takes(site.does(task), number=number)["DXO"]["data"]
        change = np.concatenate([value.ravel() for value in seen_by_workflow.values()])
        space = of_model(weights.astype(np.float64))
        check(-change.astype(np.float64), np.full(DIMENSION, -0.02), space)


def test_directions_that_are_renewed_come_from_a_function() -> None:
    plan = flat_plan(
        "gaussian",
        clip=1.0,
        adjacency="zero-out",
        noise_multiplier=1.0,
        cohort=5,
        subspace={"directions": K, "renewed": True},
    )
    with refuses("basis"):
        simulate(small_problem(), plan, Training(1.0, 1), basis=Subspace.of_seed(1, K, 39))


def test_flower_a_masked_sum_gets_its_directions_from_the_server() -> None:
    pytest.importorskip("flwr", reason="needs the flower extra")
    from flwr.app import ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from quietbit.flower import PrivateStrategy
    from unit.flower.kit import DIMENSION, be_the_server, model
    from unit.flower.secure_kit import CONFIG, Room

    config = CONFIG | {"quietbit.subspace": K}
    space, _ = directions("server", DIMENSION)
    room = Room(config=config)
    be_the_server()
    inner = FedAvg(min_train_nodes=6, min_available_nodes=6)
    strategy = PrivateStrategy(inner, config, basis=space)
    for number in (1, 2):
        messages = strategy.configure_train(number, model(), ConfigRecord({}), room)
        strategy.aggregate_train(number, room.send_and_receive(messages))
    report = strategy.report()
    assert [entry.answered for entry in report.rounds] == [6, 6]
    sent = [entry.records["subspace"]["basis_bytes"] for entry in report.rounds]
    assert sent == [6 * space.bytes_once, 0]
