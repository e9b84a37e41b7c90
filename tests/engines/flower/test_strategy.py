"""The wrapper with real strategies inside: the plain mean, faults that change nothing, and unaware
strategies.
"""

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
import flwr.serverapp.strategy as strategies
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from engines.flower.kit import (
    CONFIG,
    DIMENSION,
    NODES,
    Federation,
    HandGrid,
    app,
    be_the_server,
    gated,
    model,
    simulated,
)
from quietbit import Plan
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.federation.messages import ANSWERED
from quietbit.flower import PrivateStrategy, Simulation
from quietbit.flower.inner import SINGLE
from quietbit.wire.uplink import Uplink

SETTINGS = Plan.from_run_config(CONFIG)
MECHANISM = SETTINGS.mechanism_for(DIMENSION)
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


def vector(arrays):
    return np.concatenate([array.numpy().reshape(-1) for array in arrays.values()]).astype(
        np.float64
    )


def payload(reply):
    return reply.content["quietbit"]["release"][24:]


def numbers(strategy):
    last = strategy.report().rounds[-1]
    return last.asked, last.answered, last.declined, last.refused


def test_fedadam_takes_the_mean_as_its_gradient():
    federation = Federation(FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3))
    arrays, w, m, s = model(), vector(model()), 0.0, 0.0
    for number in (1, 2, 3):
        replies = federation.ask(number, arrays)
        mean = -Uplink(MECHANISM).receive([payload(reply) for reply in replies])
        arrays, _ = federation.strategy.aggregate_train(number, replies)
        m, s = 0.9 * m + 0.1 * mean, 0.99 * s + 0.01 * mean**2
        rate = 0.1 * np.sqrt(1 - 0.99 ** (number + 1)) / (1 - 0.9 ** (number + 1))
        w = w + rate * m / (np.sqrt(s) + 1e-3)
        assert np.allclose(vector(arrays), w, rtol=0, atol=1e-4)
        assert {array.dtype for array in arrays.values()} == {"float32"}


def test_an_unaware_strategy_fails_and_averages_nothing():
    federation = Federation()
    replies = federation.ask(1, model())
    for unaware in (FedAvg(), FedAvgM(server_momentum=0.5), FedAdam()):
        with pytest.raises(InconsistentMessageReplies):
            unaware.aggregate_train(1, replies)
    mod = simulated(gated(simulation=Simulation(seed=7, metrics=("num-examples",))))
    with pytest.raises(InconsistentMessageReplies, match="exactly one ArrayRecord"):
        FedAvg().aggregate_train(1, Federation(mod=mod).ask(1, model()))


def test_a_round_without_a_release_is_skipped():
    inner = FedAvgM(server_momentum=0.9)
    federation, arrays = Federation(inner), model()
    arrays, _ = federation.strategy.aggregate_train(1, federation.ask(1, arrays))
    momentum = [part.copy() for part in inner.momentum_vector]
    federation.ask(2, arrays)
    found, _ = federation.strategy.aggregate_train(2, [])
    assert np.array_equal(vector(found), vector(arrays))  # the model it was given
    assert all(np.array_equal(*pair) for pair in zip(momentum, inner.momentum_vector, strict=True))
    assert [entry.skipped for entry in federation.strategy.report().rounds] == [False, True]


def test_kept_arrays_stay_as_they_are():
    arrays = model()
    arrays["bn.steps"] = Array(np.array([5], dtype=np.int64))
    with pytest.raises(InvalidParameter, match=r"bn.steps \(int64\); .*quietbit\.local-arrays"):
        Federation().ask(1, arrays)
    federation = Federation(FedAdam(), CONFIG | {"quietbit.local-arrays": "bn.*"})

    def counts(message, _):
        reply = app(np.zeros(DIMENSION + 1))(message, _)
        reply.content["arrays"]["bn.steps"] = Array(np.array([99], dtype=np.int64))
        return reply

    replies = federation.ask(1, arrays, call=counts)
    found, _ = federation.strategy.aggregate_train(1, replies)
    assert found["bn.steps"].numpy().tolist() == [5]
    assert found["bn.steps"].dtype == "int64"
    assert list(found) == list(arrays)


def test_a_clip_that_moves_is_among_the_numbers_of_a_round():
    config = {**CONFIG, "quietbit.adaptive-clip.every": 2, "quietbit.releases": 6}
    federation = Federation(config=config)
    _, metrics = federation.strategy.aggregate_train(1, federation.ask(1, model()))
    last = federation.strategy.report().rounds[-1]
    assert metrics["quietbit-clip"] == last.clip == 1.0
    assert metrics["quietbit-scouted"] == last.scouted
    assert last.scouted + last.answered == 4


def test_allowed_metrics_are_averaged_plainly():
    mod = simulated(gated(simulation=Simulation(seed=7, metrics=("train_loss",))))
    federation = Federation(mod=mod)
    replies = federation.ask(1, model(), {"train_loss": 0.5, "num-examples": 7})
    replies[1].content["quietbit-metrics"] = MetricRecord({"train_loss": 1.5})
    replies[2].content["quietbit-metrics"] = MetricRecord({"train_loss": float("nan")})
    _, metrics = federation.strategy.aggregate_train(1, replies)
    assert metrics["train_loss"] == pytest.approx((0.5 + 1.5 + 0.5) / 3)


def evaluated(federation, number, contents):
    federation.messages(number)
    messages = federation.messages(number, kind="evaluate")
    replies = [
        Message(RecordDict(dict(c)), reply_to=m) for c, m in zip(contents, messages, strict=True)
    ]
    return federation.strategy.aggregate_evaluate(number, replies)


def test_evaluation_without_metrics_is_no_error():
    assert evaluated(Federation(), 1, [{}] * 4) is None


def test_evaluation_with_metrics_is_the_inner_strategys():
    loss = [{"quietbit-metrics": MetricRecord({"loss": value})} for value in (1.0, 2.0, 3.0)]
    odd = {"quietbit-metrics": MetricRecord({"loss": 9.0, "more": 1.0})}
    assert dict(evaluated(Federation(), 1, [*loss, odd])) == {"loss": 2.0}
    weighted = [
        {"quietbit-metrics": MetricRecord({"loss": v, "num-examples": n})}
        for v, n in ((1.0, 3), (2.0, 1), (0.0, 0), (1.0, 0))
    ]
    assert dict(evaluated(Federation(), 1, weighted)) == {
        "loss": 1.0
    }  # every node counts as one, whatever it says


@pytest.mark.parametrize(
    "content",
    [
        {"quietbit-metrics": MetricRecord({"num-examples": 0})},
        {"quietbit-metrics": MetricRecord({"num-examples": -3, "loss": 1.0})},
        {"quietbit-metrics": MetricRecord({"loss": [1.0, 2.0]})},
        {"quietbit-metrics": MetricRecord({"loss": float("nan")})},
        {"quietbit-metrics": MetricRecord({"loss": float("inf"), "num-examples": 0})},
        {"quietbit-metrics": MetricRecord({"loss": 1.0}), "more": MetricRecord({"loss": 2.0})},
        {"quietbit-metrics": MetricRecord({}), "arrays": model()},
        {"quietbit-metrics": ConfigRecord({"loss": "many"})},
        {"metrics": MetricRecord({"loss": 1.0})},
    ],
)
def test_what_a_node_says_of_its_evaluation_cannot_end_the_run(content):
    good = [{"quietbit-metrics": MetricRecord({"loss": value})} for value in (1.0, 3.0)]
    evaluated(Federation(), 1, [content] * 4)
    found = evaluated(Federation(), 1, [*good, content, {}])
    assert found is None or found["loss"] in (2.0, pytest.approx(5 / 3))


def test_an_inner_strategy_that_fails_on_metrics_has_none():
    class Strict(FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            raise ZeroDivisionError

    loss = [{"quietbit-metrics": MetricRecord({"loss": 1.0})}] * 4
    assert evaluated(Federation(Strict()), 1, loss) is None


def test_what_it_refuses():
    be_the_server()
    for name in SINGLE:
        assert hasattr(strategies, name), name
    for inner in (strategies.FedMedian(), strategies.Krum(), strategies.QFedAvg(0.1)):
        with pytest.raises(InvalidParameter, match="works on the mean of clients alone"):
            PrivateStrategy(inner, CONFIG)
    with pytest.raises(InvalidParameter, match="a Flower strategy"):
        PrivateStrategy(None, CONFIG)
    with pytest.raises(InvalidParameter, match=r"quietbit\.clip must be given"):
        PrivateStrategy(
            FedAvg(), {key: value for key, value in CONFIG.items() if key != "quietbit.clip"}
        )
    federation = Federation()
    with pytest.raises(QuietbitError, match="Round 1 was not opened"):
        federation.strategy.aggregate_train(1, [])
    federation.ask(1, model())
    federation.strategy.aggregate_train(1, [])
    with pytest.raises(InvalidParameter, match="as in earlier rounds"):
        federation.ask(2, ArrayRecord({"w": Array(np.zeros(3))}))


def test_the_summary_names_the_settings(caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    PrivateStrategy(FedAvg(), CONFIG).summary()
    assert "quietbit.mechanism=imvu" in caplog.text
    assert "Fraction: train" in caplog.text
    assert "Weighted by" not in caplog.text


def test_control_characters_of_nodes_are_spelt_out():
    federation = Federation()
    replies = federation.ask(1, model())
    node = replies[0].metadata.src_node_id
    text = f"{ANSWERED}\x1b[2J\x07 cleared\x9b \u202e"
    replies[0] = Message(Error(2, text), reply_to=replies[0])
    replies[0].metadata.__dict__["_src_node_id"] = node
    federation.strategy.aggregate_train(1, replies)
    (reason,) = federation.strategy.report().rounds[0].sentences()
    assert reason.isprintable()
    assert "\\u001b[2J\\u0007 cleared\\u009b \\u202e" in reason
    assert {entry.releases for entry in federation.strategy.report().nodes} == {1}


# --- a whole run through `start`


class Carried(HandGrid):
    """A grid whose nodes answer at once."""

    def __init__(self, federation, lost=()):
        super().__init__(NODES)
        self.federation, self.lost = federation, lost

    def send_and_receive(self, messages, *, timeout=None):
        found = []
        for message in messages:
            if message.metadata.message_type == "evaluate":
                found.append(Message(RecordDict(), reply_to=message))
            elif message.metadata.dst_node_id not in self.lost:
                found.append(self.federation.answer(message))
        return found


def start(federation, said, *, rounds=3, initial=None, lost=(), evaluate=None):
    said.set_level(logging.INFO, logger="flwr")
    return federation.strategy.start(
        Carried(federation, lost), initial or model(), rounds, evaluate_fn=evaluate
    )


def test_a_run_says_what_to_expect_and_nothing_misleading(caplog):
    federation = Federation()
    scores = iter((0.1, 0.2, 0.3, float("nan")))
    result = start(
        federation, caplog, evaluate=lambda number, arrays: MetricRecord({"accuracy": next(scores)})
    )
    assert len(vector(result.arrays)) == DIMENSION
    assert "the noise in the mean of 4 updates is" in caplog.text
    assert "quietbit: 4 of 4 nodes answered, 0 declined, 0 failed, 0 refused" in caplog.text
    assert "nodes answer evaluations with nothing" in caplog.text
    assert "quietbit: The worst client, per node number in this run: epsilon <= " in caplog.text
    for misleading in ("Weighted by", "Received 1 results"):
        assert misleading not in caplog.text
    report = federation.strategy.report()
    assert [entry["round"] for entry in report.scores] == [0, 1, 2, 3]
    assert [entry["accuracy"] for entry in report.to_json()["scores"]] == [0.1, 0.2, 0.3, None]


def test_a_run_in_which_nobody_answers_ends_with_an_error(caplog):
    initial = model(5)
    with pytest.raises(
        QuietbitError, match="No node answered in 3 rounds, and the model has not changed"
    ):
        start(Federation(), caplog, initial=initial, lost=NODES)
    assert caplog.text.count("the model stays as it was") == 3
    assert "ArrayRecord (0.000 MB)" in caplog.text  # 168 bytes
    assert np.array_equal(
        vector(start(Federation(), caplog, initial=initial, rounds=0).arrays), vector(initial)
    )


@pytest.mark.parametrize(
    ("config", "rounds", "says"),
    [
        ({}, 10, "10 rounds ask a node 10 times: nodes decline after 4 times"),
        ({"quietbit.epsilon": 0.01}, 4, "hopeless: the noise in the mean of 4 updates"),
    ],
)
def test_settings_that_do_not_fit_are_told_before_the_first_round(config, rounds, says, caplog):
    with pytest.raises(QuietbitError, match="No node answered"):
        start(Federation(config=CONFIG | config), caplog, rounds=rounds, lost=NODES)
    fitting = [record for record in caplog.records if says in record.getMessage()]
    assert [record.levelno for record in fitting] == [logging.WARNING]


def test_a_model_that_cannot_be_learnt_is_refused_before_anybody_is_asked(caplog):
    class Nobody(HandGrid):
        def get_node_ids(self):
            raise AssertionError

    be_the_server()
    spoilt = model()
    spoilt["bias"] = Array(np.full(7, np.nan, np.float32))
    with pytest.raises(InvalidParameter, match="bias"):
        PrivateStrategy(FedAvg(), CONFIG).start(Nobody(NODES), spoilt)


def test_counters_among_arrays_without_names_are_warned_of(caplog):
    """A list of a state_dict's values: nobody can tell a running variance, but its counter is
    there.
    """
    values = [np.zeros((5, 7), np.float32), np.ones(7, np.float32), np.array(3)]
    listed = ArrayRecord({str(place): Array(value) for place, value in enumerate(values)})
    with pytest.raises(
        InvalidParameter, match=r"1 array is not a trainable parameter: 2 \(int64\)"
    ):
        start(Federation(), caplog, initial=listed, lost=NODES)
    with pytest.raises(QuietbitError, match="No node answered"):
        start(
            Federation(config=CONFIG | {"quietbit.local-arrays": "2"}),
            caplog,
            rounds=1,
            initial=listed,
            lost=NODES,
        )
    assert "arrays have numbers for names, and counters among them" in caplog.text
    caplog.clear()
    with pytest.raises(QuietbitError, match="No node answered"):
        start(Federation(), caplog, rounds=1, lost=NODES)
    assert "numbers for names" not in caplog.text


def test_a_step_that_would_spoil_the_model_is_not_taken(caplog):
    class Diverges(FedAvg):
        def aggregate_train(self, server_round, replies):
            found, metrics = super().aggregate_train(server_round, replies)
            return ArrayRecord(
                {name: Array(array.numpy() * np.nan) for name, array in found.items()}
            ), metrics

    federation = Federation(Diverges())
    result = start(federation, caplog, rounds=1)
    assert np.array_equal(vector(result.arrays), vector(model()))
    (entry,) = federation.strategy.report().rounds
    assert entry.skipped
    assert entry.answered == 4
    (sentence,) = entry.sentences()
    assert sentence.startswith("the step was not taken: ")
    assert "weight, bias" in sentence
    # A type that cannot hold the mean: the step is refused before the inner strategy sees it.
    federation = Federation(config=CONFIG | {"quietbit.clip": 1e6})
    half = ArrayRecord(
        {name: Array(array.numpy().astype(np.float16)) for name, array in model().items()}
    )
    result = start(federation, caplog, rounds=1, initial=half)
    assert np.isfinite(vector(result.arrays)).all()
    assert federation.strategy.report().rounds[0].skipped


def test_an_empty_cohort_is_skipped():
    federation = Federation(FedAvg(fraction_train=0.0))
    assert federation.ask(1, model()) == []
    assert np.array_equal(vector(federation.strategy.aggregate_train(1, [])[0]), vector(model()))
