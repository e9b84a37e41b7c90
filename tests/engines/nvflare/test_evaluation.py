"""Private evaluation over NVFlare: one priced answer about the model, beside an update or to a
validation task.
"""

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from engines.nvflare.kit import CONFIG, Server, Site, carried, content, owned, trained
from federation.node.makers import books
from quietbit.errors import InvalidParameter
from quietbit.mechanism.adaptive_clip import AdaptiveClip
from quietbit.mechanism.response import RandomisedResponse
from quietbit.node.request import description_of
from quietbit.nvflare import PrivateReceiver

TRUE = {**CONFIG, "quietbit.epsilon": 80.0, "quietbit.evaluate.epsilon": 15.0}  # hardly ever a lie
VALIDATIONS = {"validations": ["validate"]}


@pytest.fixture
def quiet(monkeypatch):
    """A site that does not stream its log."""
    monkeypatch.setattr("quietbit.nvflare.client.is_log_streaming_allowed", lambda fl_ctx: False)


def right(share, **more):
    """An app that trains and says how often the model that came was right."""
    return trained(initial_metrics={"accuracy": share, **more})


def judged(share, metric="accuracy"):
    """An app that validates."""
    return lambda *_: DXO(DataKind.METRICS, data={metric: share}).to_shareable()


def answer_of(reply):
    return content(reply)["quietbit"]["answer"]


def test_few_answers_are_spread_over_the_rounds(tmp_path):
    server = Server({**TRUE, "quietbit.evaluate.releases": 2}, tmp_path)
    site = Site(right(1.0))
    replies = [site.does(server.asks(number=number)) for number in range(4)]
    assert ["answer" in content(reply)["quietbit"] for reply in replies] == [
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "said",
    [{}, {"loss": 0.3}, {"accuracy": float("nan")}, {"accuracy": "high"}, {"accuracy": [1, 2]}],
)
def test_an_app_without_the_metric_answers_like_any_other(said, tmp_path):
    server = Server(TRUE, tmp_path)
    reply = Site(trained(initial_metrics=said)).does(server.asks())
    assert len(answer_of(reply)) == len(
        answer_of(Site(right(1.0), "site-2").does(server.asks("site-2")))
    )
    server.takes(reply)
    found = server.report(tmp_path)
    assert [entry["answered"] for entry in (*found["rounds"], *found["evaluations"])] == [1, 1]


def test_a_histogram_is_one_cell(tmp_path):
    cells = {**TRUE, "quietbit.evaluate.metric": "confusion", "quietbit.evaluate.cells": 4}
    server = Server(cells, tmp_path)
    for name in ("site-1", "site-2"):
        app = trained(initial_metrics={"confusion": [0, 0, 7, 0]})
        seen = server.takes(Site(app, name).does(server.asks(name)), name)
        assert not FLModelUtils.from_shareable(seen).metrics  # lists are no metrics of NVFlare's
    estimates = server.report(tmp_path)["evaluations"][0]["estimates"]
    assert np.allclose([one["value"] for one in estimates], [0, 0, 1, 0], atol=1e-4)


def test_a_validation_task_is_answered_and_no_update_is_asked_for(tmp_path):
    server = Server(TRUE, tmp_path, **VALIDATIONS)
    site = Site(
        lambda name, *rest: (right(0.0) if name == "train" else judged(1.0))(name, *rest),
        tasks=("train", "validate"),
    )
    for number in range(2):
        reply = site.does(server.asks(number=number))
        assert set(content(reply)["quietbit"]) == {
            "release"
        }  # the validation task asks, and nothing else does
        server.takes(reply, number=number)
    for place, model in enumerate(("SRV_best", "SRV_last", "SRV_last"), 2):
        task = about(server, place, model)
        assert set(task["quietbit"]) == {"settings", "evaluation"}
        reply = site.does(task)
        assert set(content(reply)["quietbit"]) == {"answer"}
        seen = server.takes(reply, number=place, name="validate")
        assert abs(FLModelUtils.from_shareable(seen).metrics["accuracy"] - 1.0) < 1e-4
        assert seen.get_cookie(AppConstants.MODEL_OWNER) == model
    found = server.report(tmp_path)
    answered = sorted((entry["model"], entry["answered"]) for entry in found["evaluations"])
    assert answered == [("SRV_best", 1), ("SRV_last", 1), ("SRV_last", 1)]
    assert found["nodes"][0]["evaluations"] == 3


def about(server, number, model, client="site-1"):
    """A validation task as NVFlare's cross-site evaluation makes it."""
    from engines.nvflare.kit import FilterKey, ReservedHeaderKey, Scope, apply_filters, weights

    task = DXO(DataKind.WEIGHTS, data=weights()).to_shareable()
    task.set_header(AppConstants.MODEL_OWNER, model)
    task.add_cookie(AppConstants.MODEL_OWNER, model)
    task.set_header(ReservedHeaderKey.TASK_NAME, "validate")
    task.set_header(ReservedHeaderKey.TASK_ID, f"{client}/{number}")
    fl_ctx, table = (
        server.context(client, f"{client}/{number}", "validate"),
        {"validate/out": [server.data]},
    )
    return apply_filters(
        Scope.TASK_DATA_FILTERS_NAME, task, fl_ctx, table, "validate", FilterKey.OUT
    )


def test_an_owner_who_allows_no_evaluations_sends_updates_all_the_same(quiet, tmp_path):
    server = Server(TRUE, tmp_path)
    site = Site(right(1.0), simulated=False, properties=owned(tmp_path))
    reply = site.does(server.asks())
    assert "(evaluate)" in answer_of(reply)["declined"]
    assert FLModelUtils.from_shareable(server.takes(reply)).metrics is None
    found = server.report(tmp_path)
    assert found["rounds"][0]["answered"] == 1
    assert (found["evaluations"][0]["answered"], found["evaluations"][0]["declined"]) == (0, 1)
    assert found["nodes"][0]["evaluations"] == 0
    assert books(tmp_path).releases == 1


def test_requests_end_where_the_owners_budget_for_them_does(quiet, tmp_path):
    """A server that asks again and again, by new tasks and new numbers, gets what the policy set
    aside and no more.
    """
    server = Server(
        {**CONFIG, "quietbit.evaluate.epsilon": 0.5, "quietbit.evaluate.releases": 8}, **VALIDATIONS
    )
    site = Site(
        judged(1.0),
        simulated=False,
        properties=owned(tmp_path, evaluate=1.6),
        tasks=("train", "validate"),
    )
    said = [
        answer_or_refusal(site.does(about(server, number, f"model {number}")))
        for number in range(6)
    ]
    assert [isinstance(one, bytes) for one in said] == [True] * 3 + [False] * 3
    assert "spent" in said[3]
    again = site.does(carried(about(server, 7, "model 2")))
    assert not isinstance(answer_or_refusal(again), bytes)
    assert books(tmp_path).releases == 3


def answer_or_refusal(reply):
    record = content(reply)["quietbit"]
    return record["answer"] if "answer" in record else record["declined"]


HONEST = RandomisedResponse.within(0.5, 2, "replace-one")
QUESTIONS = {
    "a truer answer": RandomisedResponse.within(6.0, 2, "replace-one"),
    "other cells": RandomisedResponse.within(0.5, 3, "replace-one"),
    "in a wrapper": AdaptiveClip(HONEST, 1.0),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_server_that_asks_about_the_model_in_other_words_gets_no_answer(name, quiet, tmp_path):
    """The settings say epsilon 0.5 and two cells; the request says something else. The update is
    released.
    """
    server = Server({**CONFIG, "quietbit.evaluate.epsilon": 0.5})
    site = Site(right(1.0), simulated=False, properties=owned(tmp_path, evaluate=50.0))
    task = server.asks()
    task["quietbit"]["evaluation"] |= {
        "mechanism": description_of(QUESTIONS[name]),
        "dimension": QUESTIONS[name].ball.dimension,
    }
    record = content(site.does(task))["quietbit"]
    assert isinstance(record["release"], bytes)
    assert set(record["answer"]) == {"declined", "noted"}
    assert books(tmp_path).releases == 1


def test_an_evaluation_in_the_place_of_an_update_is_refused(quiet, tmp_path):
    server = Server({**CONFIG, "quietbit.evaluate.epsilon": 0.5})
    site = Site(right(1.0), simulated=False, properties=owned(tmp_path, evaluate=50.0))
    task = server.asks()
    task["quietbit"]["request"] = task["quietbit"].pop("evaluation")
    assert "declined" in content(site.does(task))["quietbit"]
    unasked = server.asks(number=1)
    unasked["quietbit"]["settings"] = Server(CONFIG).asks()["quietbit"][
        "settings"
    ]  # which evaluate nothing
    record = content(site.does(unasked))["quietbit"]
    assert "quietbit.evaluate" in record["answer"]["declined"]
    task = server.asks(number=2)
    task["quietbit"] = {"settings": task["quietbit"]["settings"]}
    assert "must carry quietbit's request" in content(site.does(task))["quietbit"]["declined"]
    assert site.app.calls == 1


def test_one_round_is_answered_once(quiet, tmp_path):
    server = Server({**CONFIG, "quietbit.evaluate.epsilon": 0.5})
    properties = owned(tmp_path, evaluate=50.0)
    task = server.asks()
    for fresh in (True, False):
        site = Site(right(1.0), simulated=False, properties=properties)
        twice = carried(task)
        if not fresh:
            del twice["quietbit"]["request"]  # the answer alone, of the same number
        record = content(site.does(twice))["quietbit"]
        assert ("answer" in record) is fresh
    assert books(tmp_path).releases == 2


JUNK = [
    None,
    5,
    b"",
    b"words",
    "x",
    {},
    {"declined": 1},
    {"declined": "a", "noted": False, "more": 1},
    [b"a"],
]


def test_whatever_stands_for_an_answer_counts_once_or_not_at_all(tmp_path):
    server = Server(
        {
            **CONFIG,
            "quietbit.releases": 52,
            "quietbit.epsilon": 90.0,
            "quietbit.evaluate.epsilon": 1.0,
        },
        tmp_path,
    )
    site = Site(right(1.0))
    for number, junk in enumerate(JUNK):
        record = content(site.does(server.asks(number=number)))["quietbit"]
        seen = server.takes(Shareable({"quietbit": record | {"answer": junk}}), number=number)
        assert seen["DXO"]["meta"] == {"NUM_STEPS_CURRENT_ROUND": 1.0}  # the update stands
    record = content(site.does(server.asks(number=50)))["quietbit"]
    frame = bytearray(record["answer"])
    frame[-1] ^= 0xFF  # the cell
    assert (
        "initial_metrics"
        not in server.takes(Shareable({"quietbit": record | {"answer": bytes(frame)}}), number=50)[
            "DXO"
        ]["meta"]
    )
    server.asks(number=51)
    server.takes(make_reply(ReturnCode.EXECUTION_EXCEPTION), number=51)
    found = server.report(tmp_path)
    assert all(entry["answered"] == 0 for entry in found["evaluations"])
    assert all(not entry["estimates"] for entry in found["evaluations"])
    assert (
        found["nodes"][0]["evaluations"] == len(JUNK) + 2
    )  # each may have been made, and is charged


def test_validations_need_something_to_ask():
    with pytest.raises(InvalidParameter, match=r"quietbit\.evaluate"):
        PrivateReceiver(dict(CONFIG), **VALIDATIONS)
