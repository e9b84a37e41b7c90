"""Samples protected through Flower's layer: digits over five sites, one batch per round that each
site draws itself.
"""

import logging
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs quietbit-lab: pip install ./packages/lab")
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvgM

from engines.flower.kit import HandGrid, be_the_server, context, gated, ledger, simulated
from federation.node.makers import write_policy
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.federation.plan import Plan
from quietbit.flower import PrivateStrategy, Simulation, dp_sgd_step, private_batch
from quietbit.target import Unit

SITES, ROUNDS, DIMENSION = 5, 25, 650
CONFIG = {
    "quietbit.mechanism": "gaussian",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 4.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.releases": ROUNDS,
    "quietbit.samples.dataset-size": 280,
    "quietbit.samples.sampling-rate": 0.25,
}
FEWEST = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
MOD = simulated(gated(simulation=Simulation()))


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x / 16.0 - 0.3)[order], y[order]
    return [(x[k:1400:SITES], y[k:1400:SITES]) for k in range(SITES)], (x[1400:], y[1400:])


def start():
    return ArrayRecord(
        {"weight": Array(np.zeros((10, 64), np.float32)), "bias": Array(np.zeros(10, np.float32))}
    )


def values(message):
    record = next(iter(message.content.array_records.values()))
    return record["weight"].numpy(), record["bias"].numpy()


def errors(weight, bias, x, y):
    scores = x @ weight.T + bias
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True) - np.eye(10)[y]


def app(data):
    """One gradient per drawn sample, in numpy; the reply says nothing."""

    def train(message, _):
        batch = private_batch()
        drawn = batch.draw(len(data[0]))
        x, y = data[0][drawn], data[1][drawn]
        off = errors(*values(message), x, y)
        rows = (off[:, :, None] * x[:, None, :]).reshape(len(x), -1)
        batch.add(np.concatenate([rows, off], axis=1))
        return Message(RecordDict({"arrays": start()}), reply_to=message)

    return train


def rounds(sites, apps, config, count, mod=MOD):
    be_the_server()
    grid, places = HandGrid(range(101, 101 + len(apps))), {}
    strategy = PrivateStrategy(
        FedAvgM(server_learning_rate=4.0, server_momentum=0.5, **FEWEST), config
    )
    arrays = start()
    for number in range(1, count + 1):
        replies = []
        for message in strategy.configure_train(number, arrays, ConfigRecord(), grid):
            node = message.metadata.dst_node_id
            place = places.setdefault(node, sites(node - 101))
            replies.append(mod(message, place, apps[node - 101]))
        arrays = strategy.aggregate_train(number, replies)[0]
    return strategy, arrays, places


def test_digits_are_learnt_and_the_report_names_the_sample(digits):
    data, (x, y) = digits
    strategy, arrays, places = rounds(
        lambda k: context(101 + k, k, CONFIG), [app(d) for d in data], CONFIG, ROUNDS
    )
    right = np.argmax(x @ arrays["weight"].numpy().T + arrays["bias"].numpy(), axis=1) == y
    assert right.mean() > 0.75
    report = strategy.report()
    assert report.guarantee.unit is Unit.SAMPLE
    assert report.guarantee.epsilon_upper <= 4.0
    assert (
        "Any sample of the worst site, per node number in this run: epsilon <= " in report.promise()
    )
    assert (
        "for one sample (zero-out adjacency: the neighbour's contribution is the zero vector)"
        in report.promise()
    )
    assert all(ledger(place).releases == ROUNDS for place in places.values())
    # One release more than was planned for is declined by every node: the budget is a sample's.
    assert Plan.from_run_config(CONFIG).mechanism_for(DIMENSION).batch == 70


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
        _, arrays, _ = rounds(lambda k: context(101 + k, k, loud), [train], loud, 1)
        steps.append(arrays["weight"].numpy())
    assert np.abs(steps[0]).max() > 0.004
    np.testing.assert_allclose(steps[0], steps[1], atol=2e-4)


@pytest.fixture
def client_log(caplog, monkeypatch):
    """What a node's owner reads, whatever other tests did to the loggers above."""
    logger = logging.getLogger("quietbit.federation.client")
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


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
def test_apps_that_hand_nothing_over_end_a_simulation_in_its_first_round(
    train, sentence, client_log
):
    """The budget would be spent on noise, in rounds that a log line calls useful."""
    with pytest.raises(QuietbitError, match=sentence):
        rounds(lambda k: context(101 + k, k, CONFIG), [train] * 4, CONFIG, 2)
    assert f"round 1: {sentence}" in client_log.text
    assert "quietbit: the app drew " in client_log.text  # in the node's own log, too


def test_an_app_that_hands_nothing_over_among_others_is_named_and_ends_nothing(digits, caplog):
    data = digits[0]
    strategy, _, _ = rounds(
        lambda k: context(101 + k, k, CONFIG), [app(data[0]), forgets], CONFIG, 2
    )
    assert len(strategy.report().rounds) == 2
    assert "round 2: 1 app drew no batch: call dp_sgd_step" in caplog.text


def test_only_its_owner_learns_what_an_app_did_with_its_batch(tmp_path, client_log):
    path = write_policy(
        tmp_path, unit="sample", data_set="digits 0", epsilon=1.5, adjacency="zero-out"
    )
    mod = gated()
    said = []
    trains = [forgets, draws_alone]

    def call(message, place, train):
        said.append(mod(message, place, lambda *given: trains[len(said)](*given)))
        return said[-1]

    rounds(lambda k: context(101, 0, CONFIG, quietbit_policy=path), [None], CONFIG, 2, call)
    assert [sorted(reply.content.keys()) for reply in said] == [["quietbit"]] * 2
    assert "quietbit: the app drew no batch" in client_log.text
    assert "quietbit: the app drew a batch and added no gradients" in client_log.text


def test_batches_are_for_train_functions_alone():
    with pytest.raises(InvalidParameter, match="while an app trains"):
        private_batch()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"samples.dataset-size": None}, "samples.dataset-size"),
        ({"samples.sampling-rate": 1.5}, "samples.sampling-rate"),
        ({"mechanism.norm": "l1"}, "mechanism.norm"),
        ({"trust": "secure-aggregation"}, "samples"),
        ({"samples.steps": 3}, "samples.learning-rate"),
        ({"samples.learning-rate": 1.0}, "samples.learning-rate"),
        ({"samples.bits": 2}, "samples.bits"),
        ({"samples.steps": 2, "samples.learning-rate": 1.0, "samples.bits": 9}, "samples.bits"),
    ],
)
def test_plans_of_samples_are_complete_or_refused(change, name):
    changes = {f"quietbit.{key}": value for key, value in change.items()}
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    with pytest.raises(InvalidParameter) as refusal:
        Plan.from_run_config(config).mechanism_for(DIMENSION)
    assert refusal.value.name == f"quietbit.{name}"


def test_a_family_that_has_no_batches_is_refused():
    with pytest.raises(InvalidParameter, match="imvu with two levels"):
        Plan.from_run_config({**CONFIG, "quietbit.mechanism": "skellam"}).mechanism_for(DIMENSION)


def test_a_torch_model_takes_the_steps_of_its_round(digits):
    torch = pytest.importorskip("torch", reason="needs torch")
    config = {**CONFIG, "quietbit.samples.steps": 3, "quietbit.samples.learning-rate": 3.0}
    x, y = digits[0][0]
    moved = []

    def train(message, _):
        model = torch.nn.Linear(64, 10)
        before = model.weight.detach().clone()
        dp_sgd_step(
            model,
            lambda out, to: torch.nn.functional.cross_entropy(out, to, reduction="none"),
            (torch.tensor(x, dtype=torch.float32), torch.tensor(y)),
        )
        moved.append(float((model.weight - before).detach().norm()))
        return Message(RecordDict(), reply_to=message)

    strategy, arrays, _ = rounds(lambda k: context(101 + k, k, config), [train], config, 1)
    assert strategy.report().rounds[0].crashed == 0
    assert moved[0] > 0  # by the steps before the last, which is the release
    assert np.abs(arrays["weight"].numpy()).max() > 0
