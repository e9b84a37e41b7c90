"""Requests to single nodes: what an answer contributes, and what has no weight."""

import gc
import weakref

import numpy as np
import pytest

from plans import engine_plan
from quietbit.federation.exchange import NO_WEIGHT, Exchanges, Result
from quietbit.federation.layout import named_arrays
from quietbit.federation.messages import ABOUT, RECORD, UPDATE, Reply
from quietbit.federation.part import Model
from quietbit.federation.server import Run
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink

RUN = 5
DIMENSION = 40
PLAN = engine_plan(
    "gaussian",
    clip=1.0,
    adjacency="zero-out",
    epsilon=20.0,
    releases=10,
    evaluate={"epsilon": 1.0},
)
MODEL = Model.of(named_arrays({"weight": np.zeros(DIMENSION, np.float32)}))
VALUE = np.full(DIMENSION, 0.1)
RIGHT = np.array([0.0, 1.0])


def started():
    return Exchanges(Run(PLAN, RUN, lambda level, line: None))


def asked(exchanges, node=1, number=1):
    """Ask a node for an update and about the model."""
    exchange = exchanges.ask_update(node, number, MODEL, evaluates=True)
    exchanges.sent(exchange, lambda: 100)
    return exchange


def reply(current, value, node=1, **metrics):
    """Answer a request as a client does."""
    payload = Uplink(current.scope.mechanism).send(value)
    frame = Framed(RUN, current.number, node, payload).to_bytes()
    return Reply(node, 0, {RECORD: {"release": frame}}, metrics)


def both(exchange):
    """Return valid answers to both requests."""
    return {
        UPDATE: reply(exchange.rounds[UPDATE], VALUE, loss=0.5),
        ABOUT: reply(exchange.rounds[ABOUT], RIGHT, loss=0.5),
    }


def test_an_answer_is_an_estimate_of_weight_one_and_of_the_metric():
    exchanges = started()
    exchange = asked(exchanges)
    answers = both(exchange)
    contribution = exchanges.take(Result(1, 80, answers), exchange)
    payload = Framed.from_bytes(answers[UPDATE].records[RECORD]["release"]).payload
    expected = Uplink(exchange.first.scope.mechanism).receive([bytes(payload)])
    np.testing.assert_array_equal(contribution.update, expected)
    assert contribution.weight == 1.0
    assert set(contribution.metrics) == {"loss", "accuracy"}
    again = exchanges.take(Result(1, 80, answers), exchange)
    assert again.weight == NO_WEIGHT
    assert not again.metrics
    report = exchange.first.report()
    assert (report.answered, report.refused, report.uplink) == (1, 1, 160)
    assert exchanges.run.updates[1].extra == 0  # the same bytes are the same release


def test_an_answer_of_another_node_is_refused_and_counts_for_its_sender():
    exchanges = started()
    exchange = asked(exchanges)
    own = asked(exchanges, 2)
    stranger = reply(exchange.first, VALUE, node=2)
    contribution = exchanges.take(Result(2, 80, {UPDATE: stranger, ABOUT: Reply(2, 0)}), exchange)
    assert contribution.weight == NO_WEIGHT
    assert exchange.first.report().refused == 1
    answers = {UPDATE: reply(own.first, VALUE, node=2), ABOUT: Reply(2, 0)}
    assert exchanges.take(Result(2, 80, answers), own).weight == 1.0
    assert exchanges.run.updates[2].extra == 1
    assert exchanges.take(Result(1, 80, both(exchange)), exchange).weight == 1.0


@pytest.mark.parametrize("unreadable", [UPDATE, ABOUT])
@pytest.mark.parametrize("release", [b"", b"words", bytes(40), None])
def test_what_cannot_be_read_leaves_the_other_part_alone(unreadable, release):
    exchanges = started()
    exchange = asked(exchanges)
    junk = Reply(1, 0, {} if release is None else {RECORD: {"release": release}})
    answers = {**both(exchange), unreadable: junk}
    contribution = exchanges.take(Result(1, 80, answers), exchange)
    for name, current in exchange.rounds.items():
        report = current.report()
        assert (report.answered, report.refused) == ((0, 1) if name == unreadable else (1, 0))
    assert contribution.weight == (NO_WEIGHT if unreadable == UPDATE else 1.0)
    assert np.asarray(contribution.update).any() == (unreadable == ABOUT)
    assert ("accuracy" in contribution.metrics) == (unreadable == UPDATE)
    assert exchanges.run.updates[1].releases == 1


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("for_a_task", [False, True])
def test_an_unprotected_result_ends_the_guarantee_whenever_it_comes(for_a_task, late):
    exchanges = started()
    exchange = asked(exchanges)
    if late:
        exchanges.aggregates()
    result = Result(1, 80, both(exchange), unprotected=True)
    contribution = exchanges.take(result, exchange if for_a_task else None)
    assert contribution.weight == NO_WEIGHT
    assert not contribution.metrics
    assert exchanges.run.excludes(1)
    assert exchanges.run.report().guarantee is None


def test_a_late_release_has_no_weight_and_a_late_refusal_counts():
    exchanges = started()
    exchange = asked(exchanges)
    answers = both(exchange)
    declined = asked(exchanges, 2)
    exchanges.aggregates()
    contribution = exchanges.take(Result(1, 80, answers), exchange)
    assert contribution.weight == NO_WEIGHT
    assert not contribution.metrics
    refusal = Reply(2, 0, refusal="no")
    exchanges.take(Result(2, 80, {UPDATE: refusal, ABOUT: refusal}), declined)
    report = exchange.first.report()
    assert (report.asked, report.answered, report.declined, report.refused) == (2, 0, 1, 1)


def test_a_release_that_nobody_asked_for_counts():
    exchanges = started()
    exchange = asked(exchanges)
    contribution = exchanges.take(Result(1, 80, both(exchange)), None)
    assert contribution.update is None
    assert exchanges.run.updates[1].extra == 1
    assert exchanges.run.uplink_beside == 80


def test_messages_that_hold_the_same_are_measured_once_per_round():
    exchanges = started()
    sizes = iter((100, 200))
    for number in (1, 2):
        for node in (1, 2, 3):
            exchange = exchanges.ask_update(node, number, MODEL, evaluates=False)
            exchanges.sent(exchange, lambda: next(sizes))
    exchanges.close()
    assert [entry.downlink for entry in exchanges.run.rounds] == [300, 600]


def test_requests_that_an_engine_keeps_do_not_keep_the_model():
    exchanges = started()
    model = Model.of(named_arrays({"weight": np.zeros(DIMENSION, np.float32)}))
    alive = weakref.ref(model)
    kept = [exchanges.ask_update(1, 1, model, evaluates=True)]
    del model
    kept.append(asked(exchanges, number=2))
    gc.collect()
    assert alive() is None


def test_a_node_that_is_asked_again_about_a_model_is_asked_about_a_later_state():
    exchanges = started()
    first = exchanges.ask_about(1, "best", again=False)
    exchanges.sent(first, lambda: 100)
    assert exchanges.ask_about(1, "best", again=True).first is first.first
    later = exchanges.ask_about(1, "best", again=False)
    assert later.first.number == first.first.number + 1
    answers = {UPDATE: Reply(1, 0), ABOUT: reply(first.first, RIGHT)}
    contribution = exchanges.take(Result(1, 80, answers), first)
    assert contribution.update is None
    assert not contribution.metrics
    assert first.first.report().refused == 1
