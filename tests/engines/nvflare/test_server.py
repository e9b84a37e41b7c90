"""The server's filter: releases become differences of weight one; what else comes has no weight,
ends nothing, and where it passed no gate ends the claim of an epsilon.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import (
    InTimeAccumulateWeightedAggregator,
)
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.base_fedavg import _get_num_steps_weight
from nvflare.app_common.workflows.fedavg import FedAvg

from engines.nvflare.kit import (
    CONFIG,
    DIMENSION,
    SECRET,
    Server,
    Site,
    carried,
    content,
    flat,
    marked,
    owned,
    raw,
    release_of,
    secrets_in,
    trained,
    weights,
)
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.federation.exchange import NO_WEIGHT
from quietbit.nvflare import PrivateReceiver
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink

SITES = ("site-1", "site-2")
NONE = {MetaKey.NUM_STEPS_CURRENT_ROUND: NO_WEIGHT}
EVALUATES = {**CONFIG, "quietbit.epsilon": 80.0, "quietbit.evaluate.epsilon": 15.0}
REPLAY = {
    "quietbit.mechanism": "vmvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 100.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.mechanism.design-epsilon": 2.0,
    "quietbit.mechanism.coordinates": 8,
    "quietbit.replay": True,
}


def reply_of(server, client="site-1", number=0):
    return Site(trained(), client).does(server.asks(client, number))


def taken(server, client="site-1", number=0, unprotected=()):
    """What the workflow sees of a client's result in a round."""
    if client in unprotected:
        server.asks(client, number)
        return server.takes(raw(), client, number)
    return server.takes(reply_of(server, client, number), client, number)


def record(**fields):
    return Shareable({"quietbit": fields})


@pytest.fixture
def said(monkeypatch):
    """The reasons for which jobs end."""
    sentences = []
    panic = lambda self, reason, fl_ctx: sentences.append(reason)  # noqa: E731
    monkeypatch.setattr(PrivateReceiver, "system_panic", panic)
    return sentences


def test_a_release_becomes_its_own_estimate_of_weight_one(tmp_path):
    server = Server(folder=tmp_path)
    reply = reply_of(server)
    # What a client says about itself is not believed.
    reply.set_header(AppConstants.CURRENT_ROUND, 9)
    reply.set_cookie_jar({AppConstants.CONTRIBUTION_ROUND: 9})
    reply.set_peer_props({"__identity_name__": "somebody"})
    payload = Framed.from_bytes(release_of(reply)).payload
    expected = Uplink(server.data._plan.mechanism_for(DIMENSION)).receive([bytes(payload)])
    seen = server.takes(reply)
    model = FLModelUtils.from_shareable(seen)
    np.testing.assert_array_equal(flat(model.params), -expected.astype(np.float32))
    assert model.params_type == "DIFF"
    assert _get_num_steps_weight(model) == 1.0
    # In place: components of NVFlare that keep the object see the difference, too.
    assert seen is reply
    assert seen.get_cookie(AppConstants.CONTRIBUTION_ROUND) == 0
    assert seen.get_peer_prop("__identity_name__", None) == "site-1"
    assert seen.get_header(AppConstants.CURRENT_ROUND) == 0
    assert server.report(tmp_path)["nodes"][0]["node"] == "site-1"


ARRAY = np.full(3, SECRET)
# Of a reply, what comes in its place where no gate lets it out.
UNPROTECTED = {
    "weights": lambda reply: raw(),
    "a difference": lambda reply: raw(DataKind.WEIGHT_DIFF),
    "metrics": lambda reply: DXO(DataKind.METRICS, data={"loss": SECRET}).to_shareable(),
    "weights beside it": lambda reply: marked(reply),
    "a number": lambda reply: Shareable({"quietbit": 5}),
    "an array": lambda reply: Shareable({"quietbit": ARRAY}),
    "words": lambda reply: record(release="words"),
    "an array of bytes": lambda reply: record(release=ARRAY),
    "an array in a refusal": lambda reply: record(declined=ARRAY, noted=False),
    "another field": lambda reply: record(**reply["quietbit"], weight=100),
    "arrays for metrics": lambda reply: record(**reply["quietbit"], metrics={"loss": [SECRET]}),
    "a list for a crash": lambda reply: record(**reply["quietbit"], crashed=[SECRET]),
    "none for an answer": lambda reply: record(**reply["quietbit"], answer=None),
    "a list for an answer": lambda reply: record(**reply["quietbit"], answer=[b"a"]),
    "half a refusal": lambda reply: record(**reply["quietbit"], answer={"declined": 1}),
}
RESULTS = UNPROTECTED | {
    "nothing": lambda reply: Shareable(),
    "cut": lambda reply: record(release=release_of(reply)[:-1]),
    "a bit turned": lambda reply: record(
        release=release_of(reply)[:-1] + bytes([release_of(reply)[-1] ^ 1])
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_what_is_no_release_alone_has_no_weight_and_may_be_unprotected(name, tmp_path):
    """Arrays in the fields of a record were quoted by the report, or declined without a count."""
    server = Server(folder=tmp_path)
    seen = server.takes(carried(RESULTS[name](reply_of(server))))
    assert seen["DXO"]["meta"] == NONE
    assert not flat(seen["DXO"]["data"]).any()
    assert seen.get_return_code() == ReturnCode.OK
    report = server.report(tmp_path)
    entry = report["rounds"][0]
    assert (entry["answered"], entry["refused"], entry["skipped"]) == (0, 1, True)
    assert report.get("unprotected", 0) == (name in UNPROTECTED)
    assert report["nodes"][0]["releases"] >= 1
    assert str(SECRET) not in json.dumps(report)


@pytest.mark.parametrize("number", [5, 2**63, 10**400, float("nan"), float("-inf"), True])
def test_metrics_beside_a_release_are_finite_numbers(number):
    server = Server()
    reply = reply_of(server)
    meta = server.takes(record(**reply["quietbit"], metrics={"a": number}))["DXO"]["meta"]
    assert meta[MetaKey.NUM_STEPS_CURRENT_ROUND] == 1.0
    assert np.isfinite(list(meta.get(MetaKey.INITIAL_METRICS, {}).values())).all()


def test_a_client_that_declines_or_fails_has_no_weight_and_only_its_word_saves_the_account(
    tmp_path,
):
    server = Server(folder=tmp_path)
    answers = {
        "site-1": record(declined="The budget is\nspent.", noted=False),
        "site-2": record(declined="It was made.", noted=True),
        "site-3": make_reply(ReturnCode.TASK_ABORTED),
        "site-4": record(declined="words", noted="no"),
    }
    for client, answer in answers.items():
        server.asks(client)
        assert server.takes(answer, client)["DXO"]["meta"] == NONE
    found = server.report(tmp_path)
    assert [node["releases"] for node in found["nodes"]] == [0, 1, 1, 1]
    assert "site-1 declined: The budget is spent." in found["rounds"][0]["reasons"]
    assert found["rounds"][0]["declined"] == 1


def averaged(results):
    """NVFlare's own streaming mean, as FedAvg uses it."""
    helper = WeightedAggregationHelper()
    for place, result in enumerate(results):
        model = FLModelUtils.from_shareable(result)
        helper.add(model.params, _get_num_steps_weight(model), f"client {place}", 0)
    return flat(helper.get_result())


@pytest.mark.parametrize("first", [0, 2])
def test_no_weight_is_none_in_nvflares_means(first):
    """Two clients answer and two do not: the mean is that of the two, to the last bit, whoever
    comes first.
    """
    server = Server()
    seen = [taken(server, client) for client in SITES]
    for client in ("site-3", "site-4"):
        server.asks(client)
        seen.append(server.takes(Shareable(), client))
    alone = averaged(seen[:2])
    assert alone.any()
    ordered = seen[first:] + seen[:first]
    np.testing.assert_array_equal(averaged(ordered), alone)
    assert not averaged(seen[2:]).any()  # where nobody answers the model stays
    aggregator = InTimeAccumulateWeightedAggregator(expected_data_kind=DataKind.WEIGHT_DIFF)
    context = server.context("site-1", "none")
    context.set_prop(AppConstants.CURRENT_ROUND, 0, private=True, sticky=False)
    aggregator.handle_event("_start_run", context)
    assert all(aggregator.accept(reply, context) for reply in ordered)
    found = flat(aggregator.aggregate(context)["DXO"]["data"])
    np.testing.assert_allclose(found, alone, rtol=1e-6)


def test_a_task_that_is_fetched_again_is_one_request(tmp_path):
    server = Server(folder=tmp_path)
    server.asks()
    server.asks()
    assert server.report(tmp_path)["rounds"][0]["asked"] == 1


ASKS = {
    "a difference": {"kind": DataKind.WEIGHT_DIFF},
    "no round": {"number": None},
    "round -1": {"number": -1},
    "counters": {"arrays": {"count": np.arange(3)}},
    "nothing": {"arrays": {}},
    "words": {"arrays": {"weight": "words"}},
}


@pytest.mark.parametrize("given", ASKS.values(), ids=ASKS)
def test_a_request_that_cannot_be_asked_ends_the_job_with_a_sentence(given, said):
    with pytest.raises((InvalidParameter, ValueError)):
        Server().asks(**given)
    assert said[0].startswith("quietbit: the job ends: ")


COVERING = {
    "both": ({"tell/out"}, {"tell/in"}),
    "data alone": ({"tell/out"}, set()),
    "results alone": (set(), {"tell/in"}),
    "another task": ({"train/out"}, {"train/in"}),
}


@pytest.mark.parametrize("event", ["_before_task_data_filter", "_before_task_result_filter"])
@pytest.mark.parametrize("name", COVERING)
def test_a_task_past_the_filters_ends_the_job_and_nothing_of_it_is_passed_on(event, name, said):
    """A workflow of the user's own, or a job that was written by hand."""
    server, message = Server(), raw()
    data, results = COVERING[name]
    config = SimpleNamespace(
        task_data_filters={key: [server.data] for key in data},
        task_result_filters={key: [server.results] for key in results},
    )
    key = FLContextKey.TASK_DATA if "data" in event else FLContextKey.TASK_RESULT
    runner = SimpleNamespace(config=config)
    props = {FLContextKey.TASK_NAME: "tell", FLContextKey.RUNNER: runner, key: message}
    server.hears(event, **props)
    assert bool(said) is (name != "both")
    assert ("DXO" in message) is (name == "both")
    assert set(message) <= {"DXO", ReservedHeaderKey.HEADERS}


SUMS = {"quietbit.trust": "secure-aggregation", "quietbit.secure-aggregation.threshold": 2}
GIVEN = {
    "nothing": ({}, {}),
    "an odd key": (CONFIG | {"quietbit.odd": 1}, {}),
    "masked sums": (CONFIG | SUMS, {}),
    "stragglers": (CONFIG | {"quietbit.stragglers.enough": 1}, {}),
    "a start of the app's": (REPLAY | {"quietbit.replay.start": "app"}, {}),
    "a report elsewhere": (CONFIG, {"report": "../report.json"}),
    "validations that ask nothing": (CONFIG, {"validations": ["validate"]}),
}


@pytest.mark.parametrize(("settings", "more"), GIVEN.values(), ids=GIVEN)
def test_settings_that_cannot_be_kept_are_refused(settings, more):
    with pytest.raises(InvalidParameter):
        PrivateReceiver(dict(settings), **more)


def test_what_a_run_may_come_to_is_said_before_its_first_round(caplog):
    """Two sites, four releases each: noise far above the clip."""
    with caplog.at_level("INFO"):
        Server().asks()
    assert "the noise in the mean of 2 updates" in caplog.records[0].message


def test_a_run_in_which_nobody_answered_ends_with_an_error(tmp_path, said):
    """NVFlare marks a job as failed that panics; one with a single release is not."""
    for answers in (False, True):
        server = Server(folder=tmp_path)
        declined = record(declined="This node has no policy.", noted=False)
        server.asks()
        server.takes(declined)
        reply = reply_of(server, number=1)
        server.takes(reply if answers else declined, number=1)
        server.report(tmp_path)
    (sentence,) = said
    assert "No node answered in 2 rounds, and the model has not changed: site-1" in sentence


def clients(server):
    """The clients that a workflow would choose among."""
    return [client.name for client in server.engine.get_clients()]


@pytest.mark.parametrize("says", [True, False])
def test_a_job_of_sites_without_quietbit_ends_after_its_first_round(tmp_path, caplog, says, said):
    """At once where the workflow ``says`` that its round is over, else when it asks again."""
    caplog.set_level("INFO")
    server = Server(folder=tmp_path)
    for client in SITES:
        seen = taken(server, client, unprotected=SITES)
        assert seen["DXO"]["meta"] == NONE
        assert not secrets_in(seen)
    assert clients(server) == list(SITES)  # it must ask somebody, or wait for ever
    if says:
        server.hears(AppEventType.BEFORE_AGGREGATION)
    assert len(said) == int(says)
    with pytest.raises(QuietbitError, match="No guarantee: 2 nodes"):
        server.asks(number=1)
    assert "the job ends: No guarantee: 2 nodes sent unprotected replies. " in said[0]
    assert "quietbit.nvflare.add_privacy" in said[0]
    report = server.report(tmp_path)
    assert [(entry["asked"], entry["epsilon_upper"]) for entry in report["rounds"]] == [(2, None)]
    assert {entry["epsilon_upper"] for entry in report["nodes"]} == {None}
    assert report["guarantee"] is None
    assert "epsilon <= " not in caplog.text.replace("epsilon <=\n", "")  # the head of a column


def test_a_site_without_quietbit_is_asked_no_more_and_the_job_has_no_epsilon(tmp_path, said):
    server = Server(folder=tmp_path)
    for number, asked in enumerate([SITES, SITES[1:]]):
        for client in asked:
            assert not secrets_in(taken(server, client, number, SITES[:1]))
        server.hears(AppEventType.BEFORE_AGGREGATION)
        assert clients(server) == ["site-2"]
    assert not said
    with pytest.raises(QuietbitError, match=r"asks site-1 again"):
        server.asks("site-1", 1)
    assert len(said) == 1
    server.hears("_about_to_end_run")
    assert clients(server) == list(SITES)  # all are told that the run is over
    report = server.report(tmp_path)
    assert [entry["answered"] for entry in report["rounds"]] == [1, 1]
    assert report["guarantee"] is None


def test_a_result_of_a_task_that_was_not_sent_is_passed_on_to_nobody(tmp_path):
    server = Server(folder=tmp_path)
    taken(server, "site-2")
    with pytest.raises(ContentBlockedException):
        server.takes(raw(), "site-1", 5)
    assert server.report(tmp_path)["guarantee"] is None


def test_metrics_for_an_answer_about_a_model_are_unprotected_too(tmp_path):
    server = Server(EVALUATES, tmp_path, validations=["validate"])
    server.asks(number=7, name="validate")
    seen = server.takes(UNPROTECTED["metrics"](None), number=7, name="validate")
    assert not secrets_in(seen)
    with pytest.raises(QuietbitError, match="asks site-1 again"):
        server.asks(number=8, name="validate")
    assert server.report(tmp_path)["guarantee"] is None


def right(name, shareable, fl_ctx):
    """An app whose model is always right, and which trains where it is not asked to validate."""
    if name == "validate":
        return DXO(DataKind.METRICS, data={"accuracy": 1.0}).to_shareable()
    return trained(initial_metrics={"accuracy": 1.0})(name, shareable, fl_ctx)


def test_a_validation_task_is_answered_and_no_update_is_asked_for(tmp_path):
    server = Server(EVALUATES, tmp_path, validations=["validate"])
    site = Site(right, tasks=("train", "validate"))
    assert release_of(site.does(server.asks()))  # the validation task asks, and nothing else does
    for number, model in enumerate(("SRV_best", "SRV_last", "SRV_last"), 2):
        task = server.asks(number=number, name="validate", owner=model)
        assert set(task["quietbit"]) == {"settings", "evaluation"}
        reply = site.does(task)
        assert set(content(reply)["quietbit"]) == {"answer"}
        seen = server.takes(reply, number=number, name="validate")
        assert FLModelUtils.from_shareable(seen).metrics["accuracy"] == pytest.approx(1.0, abs=1e-4)
        assert seen.get_cookie(AppConstants.MODEL_OWNER) == model
    found = server.report(tmp_path)
    answered = sorted((entry["model"], entry["answered"]) for entry in found["evaluations"])
    assert answered == [("SRV_best", 1), ("SRV_last", 1), ("SRV_last", 1)]


def test_an_evaluation_in_the_place_of_an_update_is_refused(tmp_path):
    site = Site(right, properties=owned(tmp_path, evaluate=50.0))
    server = Server(EVALUATES)
    task = server.asks()
    task["quietbit"]["request"] = task["quietbit"].pop("evaluation")
    assert "declined" in content(site.does(task))["quietbit"]
    assert site.app.calls == 0
    unasked = server.asks(number=1)  # by settings that evaluate nothing
    unasked["quietbit"]["settings"] = Server().asks()["quietbit"]["settings"]
    assert "quietbit.evaluate" in content(site.does(unasked))["quietbit"]["answer"]["declined"]


def test_an_app_without_the_metric_answers_like_any_other():
    reply = Site(trained()).does(Server(EVALUATES).asks())
    usual = Site(right).does(Server(EVALUATES).asks())
    assert len(reply["quietbit"]["answer"]) == len(usual["quietbit"]["answer"])


class Median(FedAvg):
    """A workflow with a step of its own."""

    def update_model(self, model, aggr_result):
        return model


def replays(controller):
    """A server whose rounds are replayed, with a workflow around it."""
    server = Server(REPLAY)
    runner = SimpleNamespace(current_wf=SimpleNamespace(controller=controller))
    context = server.engine.manager.new_context()
    context.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=True)
    return server


def stepped(server, site, number, model):
    """Play a round; the model that it leads to, and whether it went out in full."""
    task = server.asks(site.name, number, dict(model))
    server.takes(carried(site.does(task)), site.name, number)
    server.hears(AppEventType.BEFORE_AGGREGATION)
    learnable = make_model_learnable(dict(model), {})
    server.hears(AppEventType.AFTER_SHAREABLE_TO_LEARNABLE, global_model=learnable)
    return learnable["weights"], bool(task["DXO"]["data"])


@pytest.mark.parametrize(
    "controller", [Median(), FedAvg(exclude_vars="bias"), FedAvg(aggregation_weights={"a": 2.0})]
)
def test_another_workflow_keeps_the_full_model_and_says_so_once(controller, caplog):
    server, site = replays(controller), Site(trained())
    full = [stepped(server, site, number, weights())[1] for number in range(2)]
    assert full == [True, True]
    assert caplog.text.count("nodes get the full model in every round") == 1


def test_tensors_are_replayed_as_tensors():
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    seen = []

    def looks(task_name, shareable, fl_ctx):
        seen.append(shareable["DXO"]["data"]["weight"])
        return trained()(task_name, shareable, fl_ctx)

    server, site = replays(FedAvg()), Site(looks)
    model = {name: torch.from_numpy(value) for name, value in weights().items()}
    for number in range(2):
        model, is_full = stepped(server, site, number, model)
        assert is_full is (number == 0)
        assert isinstance(seen[-1], torch.Tensor)
        assert isinstance(model["weight"], torch.Tensor)
