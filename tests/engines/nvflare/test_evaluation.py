"""Private evaluation over NVFlare: one priced answer about the model, beside an update or to a
validation task.
"""

import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from engines.nvflare.kit import CONFIG, Server, Site, content, owned, trained
from quietbit.errors import InvalidParameter
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
        task = server.asks(number=place, name="validate", owner=model)
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


JUNK = [b"", b"words", b"QBRL", bytes(40), {"declined": "a", "noted": True}]


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
