"""The server's filter: releases become differences of weight one; what else comes has no weight,
and ends nothing.

Then `add_privacy` on NVFlare's own recipe: what stands in the job that it writes.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import (
    InTimeAccumulateWeightedAggregator,
)
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.base_fedavg import _get_num_steps_weight

from engines.nvflare.kit import (
    CONFIG,
    DIMENSION,
    JOB,
    Server,
    Site,
    flat,
    release_of,
    trained,
    weights,
)
from quietbit.errors import InvalidParameter
from quietbit.federation.exchange import NO_WEIGHT
from quietbit.nvflare import PrivateReceiver, add_privacy
from quietbit.nvflare.client import number_of
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink


def reply_of(server, client="site-1", number=0):
    return Site(trained(), client).does(server.asks(client, number))


def record(**fields):
    return Shareable({"quietbit": fields})


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
    assert (
        seen is reply
    )  # in place: components of NVFlare that keep the object see the difference, too
    assert seen.get_cookie(AppConstants.CONTRIBUTION_ROUND) == 0
    assert seen.get_peer_prop("__identity_name__", None) == "site-1"
    assert seen.get_header(AppConstants.CURRENT_ROUND) == 0
    found = server.report(tmp_path)
    assert [found["rounds"][0][name] for name in ("asked", "answered", "declined", "refused")] == [
        1,
        1,
        0,
        0,
    ]
    assert found["nodes"][0]["node"] == "site-1"
    assert 0 < found["guarantee"]["epsilon_upper"] < 20
    assert found["run"] == str(number_of(JOB))


RESULTS = {
    "nothing": lambda reply: Shareable(),
    "raw weights": lambda reply: DXO(DataKind.WEIGHTS, data=weights()).to_shareable(),
    "a difference": lambda reply: DXO(DataKind.WEIGHT_DIFF, data=weights()).to_shareable(),
    "no record": lambda reply: Shareable({"quietbit": 5}),
    "no bytes": lambda reply: record(release="words"),
    "a bit turned": lambda reply: record(
        release=release_of(reply)[:-1] + bytes([release_of(reply)[-1] ^ 1])
    ),
    "another field": lambda reply: record(release=release_of(reply), weight=100),
}


@pytest.mark.parametrize("change", RESULTS.values(), ids=RESULTS)
def test_what_is_no_release_has_no_weight(change, tmp_path):
    server = Server(folder=tmp_path)
    reply = reply_of(server)
    seen = server.takes(change(reply))
    assert seen["DXO"]["meta"] == {"NUM_STEPS_CURRENT_ROUND": NO_WEIGHT}
    assert not flat(seen["DXO"]["data"]).any()
    assert seen.get_return_code() == ReturnCode.OK
    entry = server.report(tmp_path)["rounds"][0]
    assert (entry["answered"], entry["refused"], entry["skipped"], len(entry["reasons"])) == (
        0,
        1,
        True,
        1,
    )


def test_whatever_a_client_sends_is_one_difference_or_none():
    """150 results with something changed: the job goes on, and what has weight is a whole
    release.
    """
    rng, server, taken = np.random.default_rng(5), Server({**CONFIG, "quietbit.releases": 1000}), 0
    site = Site(trained())
    for number in range(150):
        reply = site.does(server.asks(number=number))
        release = bytearray(release_of(reply))
        release[rng.integers(len(release))] ^= 1 << rng.integers(8)
        junk = [bytes(release), b"", b"words", release_of(reply)[:-1], release_of(reply)]
        numbers = [5, 2**63, 10**400, float("nan"), float("-inf"), True]
        made = {
            "release": junk[rng.integers(len(junk))],
            "metrics": {"a": numbers[rng.integers(len(numbers))]},
        }
        made = {name: value for name, value in made.items() if rng.random() < 0.9}
        whole = made.get("release") == release_of(reply)
        seen = server.takes(Shareable({"quietbit": made}), number=number)["DXO"]
        assert seen["meta"]["NUM_STEPS_CURRENT_ROUND"] == (1.0 if whole else NO_WEIGHT)
        assert all(np.isfinite(value) for value in seen["meta"].get("initial_metrics", {}).values())
        taken += whole
    assert 5 < taken < 60


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
        assert server.takes(answer, client)["DXO"]["meta"] == {"NUM_STEPS_CURRENT_ROUND": NO_WEIGHT}
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


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_no_weight_is_none_in_nvflares_mean(order):
    """Two clients answer and two do not: the mean is that of the two, to the last bit, whoever
    comes first.
    """
    server = Server()
    clients = [f"site-{place}" for place in range(4)]
    replies = [reply_of(server, client) for client in clients[:2]]
    for client in clients[2:]:
        server.asks(client)
    seen = [server.takes(reply, client) for reply, client in zip(replies, clients[:2], strict=True)]
    seen += [server.takes(Shareable(), client) for client in clients[2:]]
    alone = averaged([seen[place] for place in order if place < 2])
    np.testing.assert_array_equal(averaged([seen[place] for place in order]), alone)
    assert alone.any()
    assert not averaged(seen[2:]).any()  # where nobody answers the model stays


def test_nvflares_other_aggregator_takes_the_same_mean():
    server, replies = Server(), []
    aggregator = InTimeAccumulateWeightedAggregator(expected_data_kind=DataKind.WEIGHT_DIFF)
    context = server.context("site-1", "none")
    context.set_prop(AppConstants.CURRENT_ROUND, 0, private=True, sticky=False)
    aggregator.handle_event("_start_run", context)
    for client in ("site-1", "site-2"):
        replies.append(server.takes(reply_of(server, client), client))
    server.asks("site-3")
    replies.append(server.takes(Shareable(), "site-3"))
    assert all(aggregator.accept(reply, context) for reply in replies)
    found = flat(aggregator.aggregate(context)["DXO"]["data"])
    np.testing.assert_allclose(found, averaged(replies), rtol=1e-6)


def test_a_task_that_is_fetched_again_is_one_request(tmp_path):
    server = Server(folder=tmp_path)
    server.asks()
    server.asks()
    assert server.report(tmp_path)["rounds"][0]["asked"] == 1


def test_tensors_come_back_as_tensors():
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    server, arrays = Server(), weights()
    task = server.asks(arrays={name: torch.from_numpy(value) for name, value in arrays.items()})
    task["DXO"]["data"] = arrays  # the wire is not what this is about
    seen = server.takes(Site(trained()).does(task))["DXO"]["data"]
    assert all(
        isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in seen.values()
    )


ASKS = {
    "a difference": {"kind": DataKind.WEIGHT_DIFF},
    "no round": {"number": None},
    "round -1": {"number": -1},
    "counters": {"arrays": {"count": np.arange(3)}},
    "nothing": {"arrays": {}},
    "words": {"arrays": {"weight": "words"}},
}


@pytest.mark.parametrize("given", ASKS.values(), ids=ASKS)
def test_a_request_that_cannot_be_asked_ends_the_job_with_a_sentence(given):
    server, said = Server(), []
    server.data.system_panic = lambda reason, fl_ctx: said.append(reason)
    with pytest.raises((InvalidParameter, ValueError)):
        server.asks(**given)
    assert said
    assert said[0].startswith("quietbit: the job ends: ")


COVERING = {
    "both": ({"tell/out"}, {"tell/in"}),
    "data alone": ({"tell/out"}, set()),
    "results alone": (set(), {"tell/in"}),
    "another task": ({"train/out"}, {"train/in"}),
}


@pytest.mark.parametrize("event", ["_before_task_data_filter", "_before_task_result_filter"])
@pytest.mark.parametrize(("data", "results"), COVERING.values(), ids=COVERING)
def test_a_task_past_the_filters_ends_the_job_and_nothing_of_it_is_passed_on(event, data, results):
    """A workflow of the user's own, or a job that was written by hand."""
    server = Server()
    config = SimpleNamespace(
        task_data_filters={key: [server.data] for key in data},
        task_result_filters={key: [server.results] for key in results},
    )
    message = DXO(DataKind.WEIGHTS, data=weights()).to_shareable()
    key = FLContextKey.TASK_DATA if "data" in event else FLContextKey.TASK_RESULT
    runner = SimpleNamespace(config=config)
    props = {FLContextKey.TASK_NAME: "tell", FLContextKey.RUNNER: runner, key: message}
    server.hears(event, **props)
    if "tell/out" in data and "tell/in" in results:
        assert not server.engine.panics
        assert "DXO" in message
    else:
        assert set(server.engine.panics) == {"_fatal_system_error"}
        assert set(message) == {ReservedHeaderKey.HEADERS}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {
            **CONFIG,
            "quietbit.trust": "secure-aggregation",
            "quietbit.secure-aggregation.threshold": 2,
        },
        {**CONFIG, "quietbit.odd": 1},
        {**CONFIG, "quietbit.participation": "secret-order"},
    ],
)
def test_settings_that_cannot_be_kept_are_refused(given):
    with pytest.raises(InvalidParameter):
        PrivateReceiver(given)
    with pytest.raises(InvalidParameter):
        PrivateReceiver(dict(CONFIG), report="../report.json")


def test_what_a_run_may_come_to_is_said_before_its_first_round(caplog):
    """Two sites, four releases each: noise far above the clip."""
    with caplog.at_level("INFO"):
        server = Server()
        server.asks()
    assert "the noise in the mean of 2 updates" in caplog.records[0].message


def test_a_run_in_which_nobody_answered_ends_with_an_error(tmp_path):
    """NVFlare marks a job as failed that panics; one with a single release is not."""
    said = []
    for answers in (False, True):
        server = Server(folder=tmp_path)
        server.results.system_panic = server.data.system_panic = lambda reason, fl_ctx: said.append(
            reason
        )
        for number in range(2):
            task = server.asks(number=number)
            declined = Shareable(
                {"quietbit": {"declined": "This node has no policy.", "noted": False}}
            )
            reply = Site(trained()).does(task) if answers and number else declined
            server.takes(reply, number=number)
        server.report(tmp_path)
    why = "site-1 declined: This node has no policy."
    assert said == [
        f"quietbit: the job ends: No node answered in 2 rounds, and the model has not changed: {why}"
    ]


SCRIPT = "import nvflare.client as flare\nflare.init()\n"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text(SCRIPT)
    return NumpyFedAvgRecipe(
        name="job", model=[[0.0, 0.0]], min_clients=2, num_rounds=1, train_script="client.py"
    )


def test_all_four_filters_are_registered_and_no_copy_of_quietbit_is_carried(recipe, tmp_path):
    add_privacy(recipe, {**CONFIG, "learning-rate": 0.1}, simulation=True, seed=7, metrics=["loss"])
    recipe.export(str(tmp_path / "jobs"))
    written = {
        path.name: json.loads(path.read_text())
        for path in (tmp_path / "jobs").rglob("config_fed_*.json")
    }
    for side, name in (("server", "PrivateReceiver"), ("client", "PrivateUplink")):
        for chain in ("task_data_filters", "task_result_filters"):
            (entry,) = written[f"config_fed_{side}.json"][chain]
            (made,) = entry["filters"]
            assert (entry["tasks"], made["path"]) == (["train"], f"quietbit.nvflare.{side}.{name}")
            if side == "server":
                # Keys with dots would be read as tables where a server deploys the job: there are
                # none.
                ((word, table),) = made["args"]["settings"].items()
                assert word == "quietbit"
                assert {
                    f"quietbit.{key}": value for key, value in table.items()
                }.items() >= CONFIG.items()
                assert PrivateReceiver(**made["args"])._plan == PrivateReceiver(dict(CONFIG))._plan
            else:
                wanted = {"simulation": True, "seed": 7, "metrics": ["loss"]}
                assert {key: made["args"][key] for key in wanted} == wanted
    assert not [path for path in (tmp_path / "jobs").rglob("*") if path.name == "quietbit"]


@pytest.mark.parametrize("tasks", [(), ("*",), ("train*",), ("",), (5,)])
def test_patterns_are_refused(recipe, tasks):
    with pytest.raises(InvalidParameter, match="tasks"):
        add_privacy(recipe, CONFIG, tasks=tasks)
