"""The engine as it is deployed: a SuperLink and SuperNodes as processes of their own, with HTTP
between them.

The words are seeded, so that what the server holds after every round is known to the last bit: the
private mean of exactly those releases that are valid.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from engines.superlink import EngineFailure, Network, Node
from engines.wire import PUSHES, Request, replies, total
from federation.node.makers import books, write_policy
from quietbit import Plan
from quietbit.kernel.client_rng import seeded_client_rng
from quietbit.node.budget import account_of
from quietbit.node.ledger import FileLedger
from quietbit.target import Adjacency, Target
from quietbit.wire.uplink import Uplink

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs flwr: install quietbit[flower]"),
    pytest.mark.skipif(
        sys.platform != "linux", reason="needs Linux: its processes are found through /proc"
    ),
]

ROOT = Path(__file__).parent.parent.parent
DIGITS, FAULTY = ROOT / "examples" / "flower-digits", Path(__file__).parent / "faulty_app"
DIMENSION, RELEASES, SEED = (
    200_003,
    4,
    7,
)  # no multiple of eight; how often a node's owner lets it answer
BEHAVIOURS = ("honest", "honest", "honest", "liar", "replay")
KILLED, CUT, STEADY, LIAR, REPLAY = range(5)
SITES = 2  # of the example
ENVELOPE = (
    5 * 1024
)  # what Flower 1.41 needs to send an empty reply: four requests, most of it their heads


def module(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def settings_of(app: Path, **changed: Any) -> Plan:
    config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"][
        "quietbit"
    ]
    return Plan.from_run_config(
        {f"quietbit.{key}": value for key, value in {**config, **changed}.items()}
    )


@pytest.fixture(scope="module")
def processes(tmp_path_factory) -> Iterator[Network]:
    """One SuperLink and two SuperNodes for all tests."""
    with Network(tmp_path_factory.mktemp("network")) as found:
        for partition in range(SITES):
            start(found, partition)
        yield found


@pytest.fixture
def network(processes) -> Iterator[Network]:
    """With new ledgers: what a test releases is all that they know. The second node's is kept by
    a gatekeeper.
    """
    for partition in range(len(BEHAVIOURS)):
        policy(processes.folder, partition)
        home = processes.folder / f"node-{partition}"
        for name in ("ledger", "counter"):
            (home / name).unlink()
        FileLedger.create(home / "ledger", home / "counter")
    with gatekeeper(processes.folder, 1):
        yield processes


def test_the_example_trains_as_its_releases_say(network, tmp_path):
    """Two nodes, the example as it is: the model is the mean of the releases of its own steps."""
    rounds = 2
    config = {"nodes": SITES, "num-server-rounds": rounds, "output": str(tmp_path)}
    private = {"epsilon": 150.0, "releases": rounds}
    network.run(DIGITS, {**config, **{f"quietbit.{key}": value for key, value in private.items()}})
    network.until((tmp_path / "run.json").exists, "the example finishes")
    assert [releases(network, partition) for partition in range(SITES)] == [rounds] * SITES
    with np.load(tmp_path / "model.npz") as found:
        model = flat(found)
    task = module(DIGITS / "flower_digits" / "task.py")

    def learn(start: Any, partition: int, number: int) -> Any:
        own = task.own_examples(partition, SITES)
        return flat(task.train(shaped(start), own, 10, 0.5))

    found = models(settings_of(DIGITS, **private), [range(SITES)] * rounds, learn, 650)
    np.testing.assert_allclose(model, found[-1], rtol=0, atol=1e-6)
    report = json.loads((tmp_path / "run.json").read_text())
    _, test = task.load()
    accuracies = [task.accuracy(shaped(model), test) for model in found]
    assert [entry["accuracy"] for entry in report["scores"]][1:] == accuracies
    assert accuracies[-1] > 0.4  # a guess is right one time in ten
    assert report["guarantee"]["epsilon_upper"] <= 150.0
    assert [entry["answered"] for entry in report["rounds"]] == [SITES] * rounds


def flat(arrays: Mapping[str, Any]) -> Any:
    return np.concatenate([arrays["weight"].reshape(-1), arrays["bias"]])


def shaped(model: Any) -> dict[str, Any]:
    return {"weight": model[:640].reshape(10, 64), "bias": model[640:]}


def policy(folder: Path, partition: int) -> dict[str, str]:
    """The node config of a node whose owner has written a policy and begun a ledger."""
    home = folder / f"node-{partition}"
    path = home / "policy.toml"
    if not path.exists():
        home.mkdir(parents=True, exist_ok=True)
        rules = {"adjacency": "zero-out", "mechanisms": ["imvu"], "releases_per_day": 100}
        write_policy(home, epsilon=1e6, seed=SEED, releases=RELEASES, **rules)
    return {"quietbit.policy": str(path)}


@contextlib.contextmanager
def gatekeeper(folder: Path, partition: int) -> Iterator[None]:
    """`quietbit node serve` beside a node."""
    own = policy(folder, partition)["quietbit.policy"]
    place = folder / f"node-{partition}" / "gate"
    words = [sys.executable, "-m", "quietbit", "node", "serve", own, "--socket", str(place)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as gate:
        try:
            yield
        finally:
            gate.terminate()


# --- five nodes, three runs, everything that goes wrong


def start(network: Network, partition: int) -> Node:
    home = network.folder / f"node-{partition}"
    own = policy(network.folder, partition)
    if partition == 1:
        own = {"quietbit.gatekeeper": str(home / "gate")}
    own |= {"behaviour": BEHAVIOURS[partition], "disk": str(home)}
    sites = {"partition-id": partition, "num-partitions": SITES}
    return network.start_node(home.name, {**sites, **own})


def releases(network: Network, partition: int) -> int:
    """What the node itself says it has released."""
    return books(network.folder / f"node-{partition}").releases


def models(
    settings: Plan, rounds: Iterable[Iterable[int]], learn: Callable[..., Any], dimension: int
) -> list[Any]:
    """The model after every round, when exactly these partitions' releases are in the mean."""
    uplink = Uplink(settings.mechanism_for(dimension), clip=settings.clip)
    words, model, found = seeded_client_rng(SEED), np.zeros(dimension, np.float32), []
    for number, partitions in enumerate(rounds, 1):
        payloads = []
        for partition in partitions:
            update = model.astype(np.float64) - learn(model, partition, number)
            payloads.append(uplink.send(update, words(number - 1, partition)))
        if payloads:
            model = (model - uplink.receive(payloads)).astype(np.float32)
        found.append(model)
    return found


def assert_models(folder: Path, settings: Plan, rounds: Sequence[Sequence[int]]) -> None:
    learn = module(FAULTY / "faulty" / "lesson.py").trained
    for number, model in enumerate(models(settings, rounds, learn, DIMENSION), 1):
        np.testing.assert_array_equal(np.load(folder / f"round-{number}.npy"), model)


@pytest.mark.long
def test_faults_spoil_neither_the_mean_nor_the_ledgers(network, tmp_path):
    settings, config = settings_of(FAULTY), {"dimension": DIMENSION, "nodes": len(BEHAVIOURS)}
    everybody = range(len(BEHAVIOURS))
    for partition in (STEADY, LIAR, REPLAY):
        start(network, partition)
    seen = {
        partition: len(network.nodes[f"node-{partition}"].wire.seen()) for partition in everybody
    }

    # A liar and a node that repeats itself: their lies are refused, the others' mean is exact.
    first = tmp_path / "first"
    network.run(FAULTY, {**config, "output": str(first)})
    network.until((first / "report.json").exists, "the first run finishes")
    assert_models(first, settings, [[KILLED, CUT, STEADY, REPLAY], [KILLED, CUT, STEADY]])
    report = json.loads((first / "report.json").read_text())
    assert [(entry["answered"], entry["refused"]) for entry in report["rounds"]] == [(4, 1), (3, 2)]
    reasons = " ".join(reason for entry in report["rounds"] for reason in entry["reasons"])
    assert "length of the release must be at least 24 bytes, got 0." in reasons
    assert "mechanism identity of the payload" in reasons
    assert "round of the release must be 2, got 1." in reasons
    assert [releases(network, partition) for partition in everybody] == [2] * 5
    check_bytes(network, report, seen)

    # One node is killed while it trains, one while it sends; then the SuperLink is, too.
    second = tmp_path / "second"
    network.nodes["node-1"].wire.lose = frozenset(PUSHES)
    before = len(network.nodes["node-1"].wire.seen(PUSHES))
    run = network.run(FAULTY, {**config, "output": str(second), "slow": KILLED, "nodes": 3})
    network.until((network.folder / "node-0" / "training").exists, "a node trains")
    network.kill_node("node-0")
    network.until(lambda: len(network.nodes["node-1"].wire.seen(PUSHES)) > before, "a node sends")
    network.kill_node("node-1")
    # By itself the SuperLink gives dead nodes up after a minute; an operator who knows need not
    # wait.
    gone = [network.nodes[name].identity for name in ("node-0", "node-1")]
    for identity in gone:
        network.flwr("supernode", "unregister", str(identity), "here")
    network.until((second / "round-1.npy").exists, "the round finishes without them")
    assert_models(second, settings, [[STEADY]])
    assert (
        releases(network, KILLED) == 3
    )  # noted before it trained: what was killed may have been the data's doing
    assert releases(network, CUT) == 3  # its release left, and nobody has it
    # The SuperLink dies in the second round, when the others have the model and have noted what
    # they will answer.
    others = (STEADY, LIAR, REPLAY)
    network.until(
        lambda: all(releases(network, partition) == RELEASES for partition in others),
        "the others train",
    )
    network.kill_superlink()
    network.start_superlink()
    # Nobody runs this run any more. The SuperLink finds out by itself after a while; by hand it is
    # quicker.
    with contextlib.suppress(EngineFailure):
        network.flwr("stop", run, "here")
    assert network.status(run) in ("finished:stopped", "finished:failed")
    network.until(lambda: not network.training(), "nodes finish what they were asked")

    # Nodes and SuperLink are back: the ledgers go on where they were, and whose budget is spent
    # declines.
    network.nodes["node-1"].wire.lose = frozenset()
    start(network, KILLED)
    start(network, CUT)
    network.until(
        lambda: all(network.nodes[n].identity not in gone for n in ("node-0", "node-1")),
        "nodes return",
    )
    before = [releases(network, partition) for partition in everybody]
    assert before == [3, 3, RELEASES, RELEASES, RELEASES]
    third = tmp_path / "third"
    network.run(FAULTY, {**config, "output": str(third), "num-server-rounds": 1})
    network.until((third / "report.json").exists, "the third run finishes")
    report = json.loads((third / "report.json").read_text())
    assert [
        (entry["answered"], entry["declined"], entry["failed"]) for entry in report["rounds"]
    ] == [(2, 3, 0)], report["rounds"]
    assert "budget-spent" in " ".join(report["rounds"][0]["reasons"])
    assert_models(third, settings, [[KILLED, CUT]])
    # Nothing was lost in this run, so that the server's count of every node's releases is the
    # node's own.
    counted = {node["node"]: node["releases"] for node in report["nodes"]}
    for partition in everybody:
        node = network.nodes[f"node-{partition}"]
        assert counted[str(node.identity)] == releases(network, partition) - before[partition]
        ledger = books(node.home)
        assert ledger.releases == RELEASES
        cap = Target(settings.epsilon, settings.delta, Adjacency.ZERO_OUT)
        assert account_of(ledger, cap, 0).epsilon() <= settings.epsilon


def check_bytes(network: Network, report: dict[str, Any], seen: Mapping[int, int]) -> None:
    """What the proxies saw of the first run, against ceil(d / 8) + 1 KiB for each client and
    round.
    """
    bound = -(-DIMENSION // 8) + 1024
    sent = {
        p: replies(network.nodes[f"node-{p}"].wire.seen()[already:]) for p, already in seen.items()
    }
    assert [len(found) for found in sent.values()] == [2] * 5
    empty = sent[LIAR][0]  # a reply with nothing in it: Flower's own share of the wire
    assert total(empty) < ENVELOPE
    for partition in (KILLED, CUT, STEADY):
        for reply in sent[partition]:
            assert content(reply) <= bound
            assert total(reply) - total(empty) <= bound
            assert -(-DIMENSION // 8) < total(reply) <= bound + ENVELOPE
    # The server's report says what the sockets say, of the objects of all replies together.
    assert (
        sum(content(found[number]) for found in sent.values() for number in range(2))
        == report["uplink"]
    )


def content(requests: Iterable[Request]) -> int:
    """Bytes of the objects that a reply consists of, as they are in the requests' bodies."""
    from flwr.proto.message_pb2 import PushObjectRequest

    pushed = [
        PushObjectRequest.FromString(request.content)
        for request in requests
        if request.path == PUSHES[1]
    ]
    return sum(len(one.object_content) for one in pushed)
