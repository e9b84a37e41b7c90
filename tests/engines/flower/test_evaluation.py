"""Private evaluation through Flower: one cell per answer, the app's own numbers stay, and a report
with intervals.
"""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from engines.flower.kit import (
    CONFIG,
    Federation,
    app,
    gated,
    ledger,
    simulated,
)
from federation.node.makers import books, write_policy
from quietbit import Plan
from quietbit.federation.messages import request_record
from quietbit.mechanism.response import RandomisedResponse

ASKS = CONFIG | {"quietbit.evaluate.epsilon": 2.0, "quietbit.evaluate.releases": 3}
MOD = simulated(gated())


def evaluates(value, name="accuracy"):
    """Reply as an ordinary app does: metrics, and a note that is nobody's business."""

    def call(message, _):
        content = {
            "metrics": MetricRecord({name: value, "num-examples": 31}),
            "note": ConfigRecord({"who": "Ada"}),
        }
        return Message(RecordDict(content), reply_to=message)

    return call


def federation_of(nodes, config=ASKS, mod=MOD, **node_config):
    inner = FedAvg(min_available_nodes=1, min_train_nodes=1, min_evaluate_nodes=1)
    return Federation(inner, config, range(1, nodes + 1), mod, **node_config)


def test_a_report_shows_accuracy_with_its_interval_over_rounds():
    federation = federation_of(200)
    for number, accuracy in ((1, 0.2), (2, 0.9)):
        _, _, metrics = federation.evaluate(number, evaluates(accuracy))
        assert metrics["accuracy-low"] <= metrics["accuracy"] <= metrics["accuracy-high"]
    report = federation.strategy.report()
    low, high = (one.estimates[0] for one in report.evaluations)
    assert low.high < high.low
    assert "Evaluations, with 95 % intervals" in str(report)
    assert f"accuracy {high}" in str(report)


def crash(*_):
    raise ValueError("label 7 of patient Ada")


@pytest.mark.parametrize(
    "call", [crash, evaluates(float("nan")), evaluates(0.5, "loss"), evaluates([1.0, 2.0])]
)
def test_an_app_without_the_metric_answers_like_any_other(call, tmp_path):
    path = write_policy(tmp_path, evaluate=4.0, epsilon=20.0)
    federation = federation_of(1, mod=gated(), quietbit_policy=path)
    _, replies, _ = federation.evaluate(1, call)
    assert list(replies[0].content) == ["quietbit"]
    assert books(tmp_path).releases == 1


def test_a_server_cannot_ask_for_more_truth_than_the_plan_says():
    federation = federation_of(1)
    louder = Plan.from_run_config(
        ASKS | {"quietbit.evaluate.epsilon": 6.0, "quietbit.evaluate.releases": 1}
    )
    messages = federation.messages(1, kind="evaluate")
    record = request_record(1, louder.evaluation.mechanism)
    messages[0].content["quietbit"] = ConfigRecord(dict(record))
    reply = MOD(messages[0], federation.contexts[1], evaluates(1.0))
    assert "mechanism of the evaluation" in reply.error.reason
    assert ledger(federation.contexts[1]).releases == 0


def test_an_answer_is_no_update_and_has_not_the_budget_of_updates():
    federation = federation_of(1)
    messages = federation.messages(1)
    record = request_record(1, RandomisedResponse.within(6.0, 42, "replace-one"))
    messages[0].content["quietbit"] = ConfigRecord(dict(record))
    reply = MOD(messages[0], federation.contexts[1], app(np.zeros(42)))
    assert "mechanism of an update" in reply.error.reason
    assert ledger(federation.contexts[1]).releases == 0


def test_without_the_key_evaluations_are_answered_with_nothing_as_before():
    federation = federation_of(2, CONFIG)
    messages, replies, metrics = federation.evaluate(1, crash)
    assert metrics is None
    assert all("quietbit" not in message.content for message in messages)
    assert all(not reply.content for reply in replies)
    assert federation.strategy.report().evaluations == ()


def test_a_strategy_that_evaluates_on_no_node_is_warned_of_once_and_reports_no_evaluations(caplog):
    federation = federation_of(2)
    federation.strategy.inner.fraction_evaluate = 0.0
    for number in (1, 2):
        assert federation.evaluate(number, evaluates(0.5))[2] is None
    assert caplog.text.count("evaluates on no node") == 1
    assert federation.strategy.report().evaluations == ()


def test_few_answers_are_said_to_be_few_and_no_share_is_above_one(caplog):
    """Twenty nodes who all say yes: the unbiased estimate is above 1, and what people read is
    not.
    """
    with caplog.at_level("INFO"):
        federation = federation_of(20, config=ASKS | {"quietbit.evaluate.epsilon": 0.5})
        federation.evaluate(1, evaluates(1.0))
    assert "20 randomised answers are few" in caplog.text
    report = federation.strategy.report()
    estimate = report.evaluations[0].estimates[0]
    shown = float(str(estimate).split()[0])
    assert estimate.low - 1e-3 <= shown <= 1.0
