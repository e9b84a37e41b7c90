"""An app with an epsilon of its own under strategies that know nothing of quietbit: what leaves is
a decoded release, with one example as its weight, until the budget is used up.
"""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, Krum

from engines.flower.kit import (
    CONFIG,
    DIMENSION,
    NODES,
    Federation,
    app,
    gated,
    ledger,
    model,
    shift,
    simulated,
)
from federation.node.makers import write_policy
from quietbit.errors import InvalidParameter
from quietbit.flower import PrivateClientApp

LINE = {"epsilon": 4.0, "clip": 1.0, "releases": 3, "adjacency": "zero-out"}
NEARLY_EXACT = LINE | {"epsilon": 1e9}
SECRET = 12345.6789


def flat(arrays):
    return np.concatenate([array.numpy().ravel() for array in arrays.values()])


def running(strategy, line=LINE, mod=None, **given):
    """Nodes under a strategy of Flower's own; nothing of quietbit is in the run config."""
    return Federation(config={}, strategy=strategy, mod=mod or simulated(gated(**line)), **given)


@pytest.mark.parametrize("strategy", [FedAvg, FedAdam, Krum])
def test_any_strategy_trains_on_decoded_releases(strategy):
    start = model()
    private = running(strategy(), NEARLY_EXACT).train(1, start)[0]
    honest = running(strategy(), mod=lambda message, place, call: call(message, place))
    plain = honest.train(1, model())[0]
    np.testing.assert_allclose(flat(private), flat(plain), atol=2e-3)
    assert np.abs(flat(private) - flat(start)).max() > 1e-3


def test_a_reply_is_the_release_and_nothing_else():
    run = running(FedAvg())
    for reply in run.ask(1, call=app(np.full(DIMENSION, SECRET))):
        assert set(reply.content) == {"arrays", "quietbit-metrics"}
        assert dict(reply.content["quietbit-metrics"]) == {"num-examples": 1.0}
        moved = flat(reply.content["arrays"]) - flat(model())
        assert np.abs(moved).max() < 100
        assert {array.dtype for array in reply.content["arrays"].values()} == {"float32"}


def test_evaluations_are_answered_with_a_weight_alone():
    replies = running(FedAvg()).ask(1, call=app(shift(1)), kind="evaluate")
    assert [dict(reply.content["quietbit-metrics"]) for reply in replies] == [
        {"num-examples": 1.0}
    ] * len(NODES)
    assert FedAvg().aggregate_evaluate(1, replies) is not None


def test_the_budget_ends_and_the_ledger_has_every_release():
    run = running(FedAvg())
    for number in range(1, 4):
        assert not any(reply.has_error() for reply in run.ask(number, model()))
    calls = []

    def call(message, place):
        calls.append(message)
        return app(shift(1))(message, place)

    assert all(reply.has_error() for reply in run.ask(4, call=call))
    assert calls == []
    assert all(ledger(place).releases == 3 for place in run.contexts.values())


def crash(message, place):
    raise ValueError(f"SECRET {SECRET}")


def not_floats(message, place):
    arrays = {key: Array(np.full(a.shape, 12345)) for key, a in model().items()}
    return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)


@pytest.mark.parametrize(
    "call",
    [crash, not_floats, lambda message, place: None],
    ids=["crash", "not floats", "None"],
)
def test_an_app_that_fails_releases_zero(call):
    for reply in running(FedAvg()).ask(1, call=call):
        assert np.isfinite(flat(reply.content["arrays"])).all()
        assert "SECRET" not in str(reply.content)


def test_a_message_that_is_trained_in_place_does_not_leave():
    def call(message, place):
        for key in list(message.content["arrays"]):
            shape = message.content["arrays"][key].shape
            message.content["arrays"][key] = Array(np.full(shape, SECRET, np.float32))
        return Message(message.content, reply_to=message)

    run = running(FedAvg())
    # One node alone: the messages of this grid share the model, which those of a network do not.
    message = run.messages(1)[0]
    reply = run.mod(message, run.contexts[message.metadata.dst_node_id], call)
    assert np.abs(flat(reply.content["arrays"])).max() < 100


def test_a_message_that_is_sent_twice_is_two_releases():
    run = running(FedAvg())
    message = run.messages(1)[0]
    place = run.contexts[message.metadata.dst_node_id]
    first, second = (run.mod(message, place, app(shift(1))) for _ in range(2))
    assert (flat(first.content["arrays"]) != flat(second.content["arrays"])).all()
    assert ledger(place).releases == 2


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_every_type_and_shape_goes_out_as_it_came(kind):
    arrays = {
        "matrix": np.zeros((3, 4), kind).T,
        "number": np.array(2.0, kind),
        "empty": np.zeros((0, 3), kind),
    }
    start = ArrayRecord({key: Array(value) for key, value in arrays.items()})
    for reply in running(FedAvg(), NEARLY_EXACT).ask(1, start, call=app(np.full(13, -0.125))):
        for key, came in arrays.items():
            back = reply.content["arrays"][key].numpy()
            assert (back.dtype, back.shape) == (came.dtype, came.shape)
            np.testing.assert_allclose(back, came + 0.125, atol=5e-3)


def test_counters_go_back_as_they_came():
    start = model()
    start["steps"] = Array(np.array(7))
    start["bn.running_mean"] = Array(np.full(7, 0.5, np.float32))

    def call(message, place):
        arrays = {
            key: Array(a.numpy() + np.array(3, a.numpy().dtype))
            for key, a in message.content["arrays"].items()
        }
        return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)

    for reply in running(FedAvg()).ask(1, start, call=call):
        assert reply.content["arrays"]["steps"].numpy() == 7
        assert (reply.content["arrays"]["bn.running_mean"].numpy() == 0.5).all()


def test_with_a_private_strategy_it_is_the_compressed_way():
    """One class, two ways: quietbit's request comes first, and both budgets are one."""
    line = {"epsilon": 20.0, "clip": 1.0, "releases": 4, "adjacency": "replace-one"}
    run = Federation(mod=simulated(gated(**line, mechanism="imvu")))
    replies = run.ask(1, model())
    assert all(set(reply.content) == {"quietbit"} for reply in replies)


def test_a_run_with_another_budget_than_the_apps_is_declined():
    run = Federation(mod=simulated(gated(**LINE)))
    assert CONFIG["quietbit.epsilon"] != LINE["epsilon"]
    assert all(reply.has_error() for reply in run.ask(1, model()))


def test_on_a_node_its_owner_decides(tmp_path):
    rules = {"epsilon": 8.0, "mechanisms": ("gaussian",), "response_seconds": 0.0}
    policy = write_policy(tmp_path, **rules)
    alone = FedAvg(min_train_nodes=1, min_available_nodes=1)
    owned = running(alone, mod=gated(**LINE), nodes=NODES[:1], quietbit_policy=policy)
    (reply,) = owned.ask(1, model())
    assert set(reply.content) == {"arrays", "quietbit-metrics"}
    without = running(alone, mod=gated(**LINE), nodes=NODES[:1])
    assert without.ask(1, model())[0].has_error()


@pytest.mark.parametrize("missing", ["epsilon", "clip", "releases", "adjacency"])
def test_half_a_line_is_refused(missing):
    line = {key: value for key, value in LINE.items() if key != missing}
    with pytest.raises(InvalidParameter, match=missing):
        PrivateClientApp(**line)
