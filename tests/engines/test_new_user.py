"""A new user's first hour: two lines around a torch CNN with BatchNorm, the refusal, the help, and
a model that learns.

The client app and the strategy are Flower's own; messages are carried in this process, which is
what the engine does with them (the other tests of this folder send them through it).
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra: pip install 'quietbit[flower]'")
pytest.importorskip("torch", reason="needs the torch extra: pip install 'quietbit[torch]'")
pytest.importorskip("sklearn", reason="needs quietbit-lab: pip install ./packages/lab")
pytest.importorskip("typer", reason="the command line")

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation.ray_transport.ray_actor import VirtualClientEngineActor
from sklearn import datasets
from typer.testing import CliRunner

from engines.flower.kit import RUN, HandGrid, as_actor, be_the_server
from quietbit import InvalidParameter, group_norm
from quietbit.cli.app import app as command
from quietbit.flower import PrivateClientApp, PrivateStrategy, Simulation

NODES, ROUNDS = 30, 8
CONFIG = {
    "quietbit.mechanism": "imvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 60.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.releases": ROUNDS,
}
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


def cnn() -> torch.nn.Module:
    """What one writes without a thought of privacy."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10)
    )


@pytest.fixture(scope="module")
def digits():
    found = datasets.load_digits()
    images = torch.tensor(found.images[:, None] / 8 - 1, dtype=torch.float32)
    return images, torch.tensor(found.target)


class Nodes(HandGrid):
    """Every message goes to a real ClientApp with the private mod."""

    def __init__(self, app: ClientApp) -> None:
        super().__init__(range(1, NODES + 1))
        self.app = app
        self.contexts = {
            n: Context(RUN, n, {"partition-id": n - 1}, RecordDict(), dict(CONFIG))
            for n in self.nodes
        }

    def send_and_receive(self, messages, *, timeout=None):
        actor = VirtualClientEngineActor()
        contexts = self.contexts
        with as_actor():  # which is how the mod knows that this is a simulation
            return [
                actor.run(lambda: self.app, one, "0", contexts[one.metadata.dst_node_id])[1]
                for one in messages
            ]


def federation(make, digits):
    """The two lines: a mod in the client app, a wrapper around the strategy. The rest is a
    Flower tutorial's.
    """
    images, labels = digits
    app = PrivateClientApp(
        simulation=Simulation(seed=7)
    )  # seeded, so that the test is always the same

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, own = make(), slice(int(context.node_config["partition-id"]), 1500, NODES)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        step = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            step.zero_grad()
            nn.functional.cross_entropy(model(images[own]), labels[own]).backward()
            step.step()
        metrics = MetricRecord({"num-examples": 50})
        return Message(
            RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
            reply_to=message,
        )

    def score(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = make().eval()
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            right = model(images[1500:]).argmax(dim=1) == labels[1500:]
        return MetricRecord({"accuracy": float(right.float().mean())})

    be_the_server()
    return (
        PrivateStrategy(FedAvg(fraction_evaluate=0.0), CONFIG),
        Nodes(app),
        ArrayRecord(make().state_dict()),
        score,
    )


def test_batch_norm_is_refused_with_what_to_do(digits):
    strategy, nodes, arrays, score = federation(cnn, digits)
    with pytest.raises(
        InvalidParameter,
        match=r"3 arrays are .* parameters: 1\.running_mean .*quietbit\.group_norm",
    ):
        strategy.start(nodes, arrays, ROUNDS, evaluate_fn=score)
    assert not any(context.state for context in nodes.contexts.values())  # nobody was asked


def test_the_helped_model_learns_and_becomes_a_page(digits, tmp_path):
    strategy, nodes, arrays, score = federation(lambda: group_norm(cnn()), digits)
    result = strategy.start(nodes, arrays, ROUNDS, evaluate_fn=score)
    report = strategy.report()
    accuracies = [entry["accuracy"] for entry in report.scores]
    assert accuracies[0] < 0.3
    assert accuracies[-1] > 0.5
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    assert report.guarantee.epsilon_upper <= 60.0
    saved, page = report.save(tmp_path / "run.json"), tmp_path / "report.html"
    done = CliRunner().invoke(command, ["report", str(saved), "--out", str(page), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["runs"] == 1
    assert "a federated run of 826 parameters" in page.read_text()


def test_a_federation_of_100_clients_in_plain_pytorch_learns(capsys):
    """The example as it is, for one round: about half of the images, where chance is one in ten."""
    path = Path(__file__).parents[2] / "examples" / "plain-pytorch" / "federation.py"
    spec = importlib.util.spec_from_file_location("federation", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(rounds=1, seed=0) > 0.3
    told = capsys.readouterr().out
    assert "secure-aggregation: imvu" in told
    assert "epsilon <= 8 at delta = 1e-05" in told
