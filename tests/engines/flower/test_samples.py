"""Samples protected through Flower's layer: the examples of the page, and apps that hand nothing
over.
"""

import logging
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from engines.flower.kit import Federation, gated, simulated
from federation.node.makers import write_policy
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.flower import Simulation, dp_sgd_step, private_batch

DIMENSION = 650
CONFIG = {
    "quietbit.mechanism": "gaussian",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 4.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.releases": 25,
    "quietbit.samples.dataset-size": 280,
    "quietbit.samples.sampling-rate": 0.25,
}
MOD = simulated(gated(simulation=Simulation()))


def start():
    return ArrayRecord(
        {"weight": Array(np.zeros((10, 64), np.float32)), "bias": Array(np.zeros(10, np.float32))}
    )


def rounds(apps, config=CONFIG, count=1, mod=MOD, **node_config):
    """Play rounds, in which each node has an app of its own."""
    inner = FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    nodes = range(101, 101 + len(apps))
    federation = Federation(inner, config, nodes, mod, **node_config)
    arrays = start()

    def call(message, place):
        return apps[place.node_id - 101](message, place)

    for number in range(1, count + 1):
        arrays, _ = federation.train(number, arrays, call)
    return federation.strategy, arrays


def test_both_examples_of_the_page_give_the_same_step():
    """With a noise multiplier of 0.01 and all samples in the batch."""
    pytest.importorskip("torch", reason="needs torch")
    page = Path(__file__).parents[3] / "docs/how-to/protect-samples.md"
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, page.name, "exec"), names)  # noqa: S102 - our own documentation
    loud = {
        **CONFIG,
        "quietbit.mechanism.noise-multiplier": 0.01,
        "quietbit.epsilon": 1e6,
        "quietbit.samples.sampling-rate": 1.0,
        "quietbit.samples.dataset-size": 5000,
    }
    del loud["quietbit.releases"]
    steps = []
    for train in (names["train"], names["train_without_torch"]):
        _, arrays = rounds([train], loud)
        steps.append(arrays["weight"].numpy())
    assert np.abs(steps[0]).max() > 0.001
    np.testing.assert_allclose(steps[0], steps[1], atol=5e-5)


def hands_over(message, _):
    batch = private_batch()
    batch.add(np.ones((len(batch.draw(280)), DIMENSION)))
    return Message(RecordDict({"arrays": start()}), reply_to=message)


def forgets(message, _):
    """An app that trains as if nothing were private."""
    return Message(RecordDict({"arrays": start()}), reply_to=message)


def draws_alone(message, _):
    private_batch().draw(280)
    return Message(RecordDict({"arrays": start()}), reply_to=message)


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (forgets, "4 apps drew no batch: call dp_sgd_step"),
        (draws_alone, "4 apps drew a batch and added no gradients: call add"),
    ],
)
def test_apps_that_hand_nothing_over_end_a_simulation_in_its_first_round(train, sentence):
    """The budget would be spent on noise, in rounds that a log line calls useful."""
    with pytest.raises(QuietbitError, match=sentence):
        rounds([train] * 4, count=2)


def test_an_app_that_hands_nothing_over_among_others_is_named_and_ends_nothing(caplog):
    strategy, _ = rounds([hands_over, forgets], count=2)
    assert len(strategy.report().rounds) == 2
    assert "round 2: 1 app drew no batch: call dp_sgd_step" in caplog.text


@pytest.fixture
def client_log(caplog, monkeypatch):
    """What a node's owner reads, whatever other tests did to the loggers above."""
    logger = logging.getLogger("quietbit.federation.client")
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def test_only_its_owner_learns_what_an_app_did_with_its_batch(tmp_path, client_log):
    rules = {"unit": "sample", "data_set": "digits", "epsilon": 2.5, "adjacency": "zero-out"}
    replies = []
    for train in (forgets, draws_alone):
        home = tmp_path / train.__name__
        home.mkdir()

        def call(message, place, train):
            replies.append(gated()(message, place, train))
            return replies[-1]

        rounds([train], mod=call, quietbit_policy=write_policy(home, **rules))
    assert [list(reply.content) for reply in replies] == [["quietbit"]] * 2
    assert "quietbit: the app drew no batch" in client_log.text
    assert "quietbit: the app drew a batch and added no gradients" in client_log.text


def test_batches_are_for_train_functions_alone():
    with pytest.raises(InvalidParameter, match="while an app trains"):
        private_batch()


def test_a_torch_model_takes_the_steps_of_its_round():
    torch = pytest.importorskip("torch", reason="needs torch")
    config = {**CONFIG, "quietbit.samples.steps": 3, "quietbit.samples.learning-rate": 3.0}
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(280, 64)), dtype=torch.float32)
    y = torch.tensor(rng.integers(0, 10, 280))
    moved = []

    def train(message, _):
        model = torch.nn.Linear(64, 10)
        before = model.weight.detach().clone()
        dp_sgd_step(
            model,
            lambda out, to: torch.nn.functional.cross_entropy(out, to, reduction="none"),
            (x, y),
        )
        moved.append(float((model.weight - before).detach().norm()))
        return Message(RecordDict(), reply_to=message)

    strategy, arrays = rounds([train], config)
    assert strategy.report().rounds[0].crashed == 0
    assert moved[0] > 0  # by the steps before the last, which is the release
    assert np.abs(arrays["weight"].numpy()).max() > 0
