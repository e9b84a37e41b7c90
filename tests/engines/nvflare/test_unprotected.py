"""Results that passed no gate: no number and no epsilon comes of them, and their sites are asked no
more; and releases that nobody asked for, which count.
"""

import json
import logging

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from engines.nvflare.kit import CONFIG, Server, Site, carried, release_of, trained, weights
from quietbit.errors import QuietbitError
from quietbit.federation.exchange import NO_WEIGHT

SECRET = 417.25
SITES = ("site-1", "site-2")
EVALUATES = {**CONFIG, "quietbit.evaluate": {"epsilon": 0.5, "metric": "accuracy"}}


def raw(kind=DataKind.WEIGHTS):
    """What a site without quietbit answers: its weights, or its metrics."""
    data = {"accuracy": SECRET} if kind == DataKind.METRICS else weights()
    meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 31, MetaKey.INITIAL_METRICS: {"accuracy": SECRET}}
    return DXO(kind, data=data, meta=meta).to_shareable()


def answered(server, client, number=0, unprotected=()):
    """What the workflow sees of a client's result in a round."""
    task = server.asks(client, number)
    result = raw() if client in unprotected else Site(trained(), client).does(task)
    return server.takes(carried(result), client, number)


def asked(server):
    """The clients that a workflow would choose among."""
    return [client.name for client in server.engine.get_clients()]


def sentences(server):
    """Have the reasons noted for which the job ends."""
    said = []
    for member in (server.data, server.results):
        member.system_panic = lambda reason, fl_ctx: said.append(reason)
    return said


def without_head(text):
    """A report without the head of a column."""
    return text.replace("epsilon <=\n", "")


@pytest.mark.parametrize("says", [True, False])
def test_a_job_of_sites_without_quietbit_ends_after_its_first_round(tmp_path, caplog, says):
    """At once where the workflow ``says`` that its round is over, else when it asks again."""
    caplog.set_level(logging.INFO)
    server = Server(folder=tmp_path)
    said = sentences(server)
    for client in SITES:
        seen = answered(server, client, unprotected=SITES)
        model = FLModelUtils.from_shareable(seen)
        assert not any(np.any(value) for value in model.params.values())
        assert str(SECRET) not in str(seen)
        assert seen["DXO"]["meta"] == {MetaKey.NUM_STEPS_CURRENT_ROUND: NO_WEIGHT}
    assert asked(server) == list(SITES)  # it must ask somebody, or wait for ever
    if says:
        server.hears(AppEventType.BEFORE_AGGREGATION)
    assert len(said) == int(says)
    with pytest.raises(QuietbitError, match="No guarantee: 2 nodes"):
        server.asks(number=1)
    expected = "quietbit: the job ends: No guarantee: 2 nodes sent unprotected replies. "
    assert said[0].startswith(expected)
    assert "quietbit.nvflare.add_privacy" in said[0]
    report = server.report(tmp_path)
    assert [entry["asked"] for entry in report["rounds"]] == [2]
    assert [entry["epsilon_upper"] for entry in report["rounds"]] == [None]
    assert {entry["epsilon_upper"] for entry in report["nodes"]} == {None}
    assert report["guarantee"] is None
    assert "epsilon <=" not in without_head(caplog.text)
    assert "No guarantee: 2 nodes sent unprotected replies." in caplog.text


def test_a_site_without_quietbit_is_asked_no_more_and_the_job_has_no_epsilon(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    server = Server(folder=tmp_path)
    said = sentences(server)
    for number, clients in enumerate([SITES, SITES[1:], SITES[1:]]):
        for client in clients:
            seen = answered(server, client, number, unprotected=SITES[:1])
            assert str(SECRET) not in str(seen)
        server.hears(AppEventType.BEFORE_AGGREGATION)
        assert asked(server) == ["site-2"]
    assert not said
    with pytest.raises(QuietbitError, match=r"asks site-1 again"):
        server.asks("site-1", 2)
    assert len(said) == 1
    server.hears("_about_to_end_run")
    assert asked(server) == list(SITES)  # all are told that the run is over
    report = server.report(tmp_path)
    assert [entry["answered"] for entry in report["rounds"]] == [1, 1, 1]
    assert report["guarantee"] is None
    assert "epsilon <=" not in without_head(caplog.text)
    assert caplog.text.count("sent an unprotected reply") == 2  # in its round, and in the report


@pytest.mark.parametrize(
    "change",
    [
        lambda reply: reply | {"DXO": raw()["DXO"]},
        lambda reply: reply | {"more": SECRET},
        lambda reply: {"quietbit": reply["quietbit"] | {"weights": weights()}},
        lambda reply: {"quietbit": reply["quietbit"] | {"secret": SECRET}},
        *(
            lambda reply, junk=junk: {"quietbit": reply["quietbit"] | {"answer": junk}}
            for junk in (None, 5, "x", {}, {"declined": 1}, [b"a"], {"accuracy": SECRET})
        ),
        lambda reply: {"quietbit": reply["quietbit"] | {"metrics": {"weights": [SECRET]}}},
        lambda reply: {"quietbit": reply["quietbit"] | {"crashed": [SECRET]}},
        lambda reply: {"quietbit": {"release": np.full(3, SECRET)}},
        lambda reply: {"quietbit": {"declined": np.full(3, SECRET), "noted": False}},
        lambda reply: {"quietbit": np.full(3, SECRET)},
    ],
)
def test_a_release_with_something_beside_it_is_unprotected(change, tmp_path):
    """Arrays in the fields of a record were quoted by the report, or declined without a count."""
    server = Server(folder=tmp_path)
    reply = Site(trained()).does(server.asks())
    seen = server.takes(Shareable(change(dict(reply))))
    assert seen["DXO"]["meta"] == {MetaKey.NUM_STEPS_CURRENT_ROUND: NO_WEIGHT}
    report = server.report(tmp_path)
    assert report["unprotected"] == 1
    assert report["nodes"][0]["releases"] >= 1
    assert str(SECRET) not in json.dumps(report)


def test_one_that_comes_when_its_round_is_over_ends_the_claim_as_well(tmp_path, caplog):
    server = Server(folder=tmp_path)
    server.asks("site-1")
    answered(server, "site-2")
    server.hears(AppEventType.BEFORE_AGGREGATION)
    server.takes(raw(), "site-1")
    assert "site-1 sent an unprotected reply" in caplog.text
    assert asked(server) == ["site-2"]
    assert server.report(tmp_path)["guarantee"] is None


def test_so_does_one_for_a_task_that_was_not_sent(tmp_path):
    server = Server(folder=tmp_path)
    answered(server, "site-2")
    with pytest.raises(ContentBlockedException):
        server.takes(raw(), "site-1", 5)
    assert server.report(tmp_path)["guarantee"] is None


def test_answers_that_were_not_asked_for_count_beside_updates(tmp_path):
    """A task that asks for an update alone is answered about the model, too; then no task at all."""
    server = Server(EVALUATES, tmp_path, validations=["validate"])
    reply = Site(trained()).does(server.asks())
    answer = Shareable({"quietbit": {**reply["quietbit"], "answer": release_of(reply)}})
    server.takes(carried(answer))
    with pytest.raises(ContentBlockedException):
        server.takes(Shareable({"quietbit": {"answer": b"words"}}), number=4)
    (node,) = server.report(tmp_path)["nodes"]
    assert (node["releases"], node["evaluations"]) == (1, 2)


def test_an_answer_about_a_model_is_unprotected_too(tmp_path):
    server = Server(EVALUATES, tmp_path, validations=["validate"])
    answered(server, "site-1")
    server.asks("site-1", 7, name="validate")
    seen = server.takes(raw(DataKind.METRICS), "site-1", 7, name="validate")
    assert seen["DXO"]["data"] == {}
    assert asked(server) == ["site-2"]
    with pytest.raises(QuietbitError, match="asks site-1 again"):
        server.asks("site-1", 8, name="validate")
    report = server.report(tmp_path)
    assert report["guarantee"] is None
    assert str(SECRET) not in json.dumps(report)
