"""The client's filter with NVFlare's own runner around it: one release leaves, whatever happens,
and nothing else.
"""

import asyncio
import json
import threading

import numpy as np
import pytest

from quietbit.node.refusal import Reason, Refusal

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_exception import UnsafeJobError
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.workspace import Workspace
from nvflare.fuel.utils import fobs
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.privacy_manager import Scope

from engines.nvflare.kit import (
    CONFIG,
    NEARLY_EXACT,
    Server,
    Site,
    content,
    flat,
    owned,
    privacy,
    public_names,
    release_of,
    trained,
    weights,
)
from federation.node.makers import books, write_policy
from quietbit.errors import InvalidParameter
from quietbit.node.gate import LocalGate
from quietbit.node.gatekeeper import Gatekeeper
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import Policy
from quietbit.nvflare import PrivateUplink

SECRET = 12345.6789  # what must never leave, as a number and as a word
SECRETS = (
    np.float32(SECRET).tobytes(),
    np.float64(SECRET).tobytes(),
    np.float64(SECRET).tobytes()[::-1],
    b"SECRET",
)


def fails(error):
    def answer(task_name, shareable, fl_ctx):
        raise error

    return answer


def says(result):
    return lambda task_name, shareable, fl_ctx: result() if callable(result) else result


def raw(kind=DataKind.WEIGHTS, names=("weight", "bias"), shape=None, value=SECRET):
    arrays = {
        n: np.full(shape or s, value, np.float32)
        for n, s in zip(names, [(5, 7), (7,)], strict=True)
    }
    return DXO(kind, data=arrays)


def with_headers():
    found = raw().to_shareable()
    found.set_header("SECRET", SECRET)
    found["SECRET"] = raw().to_dict()
    return found


def not_ok():
    found = raw().to_shareable()
    found.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
    return found


ANSWERS = {
    "weights": says(lambda: raw().to_shareable()),
    "difference": says(lambda: raw(DataKind.WEIGHT_DIFF).to_shareable()),
    "meta": trained(
        NUM_STEPS_CURRENT_ROUND=SECRET, SECRET=SECRET, initial_metrics={"loss": SECRET}
    ),
    "headers": says(with_headers),
    "metrics": says(lambda: DXO(DataKind.METRICS, data={"SECRET": SECRET}).to_shareable()),
    "collection": says(
        lambda: DXO(DataKind.COLLECTION, data={"a": raw(), "b": raw()}).to_shareable()
    ),
    "statistics": says(lambda: DXO(DataKind.STATISTICS, data={"SECRET": SECRET}).to_shareable()),
    "app defined": says(lambda: DXO(DataKind.APP_DEFINED, data="SECRET").to_shareable()),
    "whole model": says(lambda: raw(DataKind.FL_MODEL).to_shareable()),
    "no kind": says(lambda: Shareable({"SECRET": SECRET})),
    "no content": says(Shareable),
    "not ok": says(not_ok),
    "an error": says(lambda: make_reply(ReturnCode.EXECUTION_EXCEPTION, {"SECRET": SECRET})),
    "other shapes": says(lambda: raw(shape=(3,)).to_shareable()),
    "other names": says(lambda: raw(names=("weight", "SECRET")).to_shareable()),
    "NaN": says(lambda: raw(value=np.nan).to_shareable()),
    "infinity": says(lambda: raw(value=np.inf).to_shareable()),
    "text": says(
        lambda: DXO(DataKind.WEIGHTS, data={"weight": "SECRET", "bias": SECRET}).to_shareable()
    ),
    "none": says(None),
    "a dict": says({"SECRET": SECRET}),
    "value error": fails(ValueError(f"SECRET {SECRET}")),
    "runtime error": fails(RuntimeError(f"SECRET {SECRET}")),
    "unsafe job": fails(UnsafeJobError("SECRET")),
    "exit": fails(SystemExit("SECRET")),
    "cancelled": fails(asyncio.CancelledError("SECRET")),
    "panic": fails(type("PanicException", (BaseException,), {})("SECRET")),
    "interrupt": fails(KeyboardInterrupt("SECRET")),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_one_release_leaves_whatever_the_app_answers(answer, tmp_path):
    site = Site(answer, properties=owned(tmp_path))
    reply = site.does(Server().asks())
    honest = Site(trained()).does(Server().asks())
    assert site.app.calls == 1
    assert reply.get_return_code() == ReturnCode.OK
    assert set(content(reply)) == {"quietbit"}
    assert len(release_of(reply)) == len(release_of(honest))
    assert set(reply["__headers__"]) == set(honest["__headers__"])
    assert public_names(reply) == set()
    sent = fobs.dumps(reply)
    assert len(sent) == len(fobs.dumps(honest))
    assert not [word for word in SECRETS if word in sent]


@pytest.mark.parametrize(
    "name",
    ["NaN", "metrics", "collection", "not ok", "value error", "exit", "none", "other shapes"],
)
@pytest.mark.filterwarnings("ignore:.*protect nobody")
def test_a_failure_is_a_release_of_the_zero_update_bit_for_bit(name, tmp_path):
    task = Server().asks()
    failed = Site(ANSWERS[name], properties=owned(tmp_path, seed=7))
    zero, other = (Site(trained(step), seed=7) for step in (0.0, 0.5))
    released = release_of(failed.does(task))
    assert released == release_of(zero.does(task))
    assert released != release_of(other.does(task))


CRASHES = {
    "value error": "ValueError: SECRET 12345.6789",
    "none": "The app answered with no result.",
    "other names": "The trained arrays must have the names of the received ones",
}


@pytest.mark.parametrize("name", CRASHES)
def test_a_simulated_site_says_why_its_app_crashed_and_the_report_counts_it(name, tmp_path, caplog):
    """It belongs to whoever runs the simulation; with an owner's policy it says nothing."""
    server = Server(folder=tmp_path)
    crashed, fine = Site(ANSWERS[name]), Site(trained(), "site-2")
    replies = {site.name: site.does(server.asks(site.name)) for site in (crashed, fine)}
    assert CRASHES[name] in content(replies["site-1"])["quietbit"]["crashed"]
    assert release_of(replies["site-2"])
    for client, reply in replies.items():
        server.takes(reply, client)
    with caplog.at_level("INFO"):
        (entry,) = server.report(tmp_path)["rounds"]
    assert (entry["answered"], entry["crashed"]) == (2, 1)
    assert "the apps of 1 simulated nodes crashed" in caplog.text
    assert CRASHES[name] in caplog.text


def in_place(task_name, shareable, fl_ctx):
    """An app that trains in the arrays that came: doubles reach the layout without a copy."""
    for value in shareable["DXO"]["data"].values():
        value += 0.05
    return DXO(DataKind.WEIGHTS, data=shareable["DXO"]["data"]).to_shareable()


@pytest.mark.parametrize("app", [trained(0.05, DataKind.WEIGHT_DIFF), in_place])
def test_the_server_gets_what_was_trained(app):
    server = Server(NEARLY_EXACT)
    task = server.asks(arrays={name: value.astype(np.float64) for name, value in weights().items()})
    seen = server.takes(Site(app).does(task))["DXO"]
    assert seen["kind"] == DataKind.WEIGHT_DIFF
    assert seen["data"]["weight"].dtype == np.float64
    # Noise of 0.02 in each of 42 places: 0.3 is 15 deviations, a false alarm below 1e-48, and 0.025
    # is 8 of the mean.
    assert np.abs(flat(seen["data"]) - 0.05).max() < 0.3
    assert np.abs(flat(seen["data"]).mean() - 0.05) < 0.025


QUESTIONS = {
    "no request": lambda task: task.pop("quietbit"),
    "another thing": lambda task: task.update(quietbit=5),
    "no settings": lambda task: task["quietbit"].pop("settings"),
    "settings of another kind": lambda task: task["quietbit"].update(settings=[1]),
    "an unknown key": lambda task: task["quietbit"]["settings"].update({"quietbit.seed": 1}),
    "no private mechanism": lambda task: task["quietbit"]["settings"].update(
        {"quietbit.mechanism": "none"}
    ),
    "other weights": lambda task: task["DXO"]["data"].pop("bias"),
    "weights of words": lambda task: task["DXO"]["data"].update(bias="words"),
    "infinite weights": lambda task: task["DXO"]["data"]["bias"].fill(np.inf),
    "no weights": lambda task: task.pop("DXO"),
    "another kind": lambda task: task["DXO"].update(kind=DataKind.WEIGHT_DIFF),
    "masked sums": lambda task: task["quietbit"]["settings"].update(
        {"quietbit.trust": "secure-aggregation", "quietbit.secure-aggregation.threshold": 2}
    ),
}


@pytest.mark.parametrize("change", QUESTIONS.values(), ids=QUESTIONS)
def test_a_request_that_is_none_is_declined_and_the_app_is_not_run(change):
    site, task = Site(trained()), Server().asks()
    change(task)
    reply = content(site.does(task))
    assert set(reply) == {"quietbit"}
    assert set(reply["quietbit"]) == {"declined", "noted"}
    assert reply["quietbit"]["noted"] is False
    assert site.app.calls == 0


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("name", ["validate", "submit_model", "anything"])
def test_a_task_that_no_filter_is_registered_for_is_not_run(name, before):
    site = Site(says(lambda: raw().to_shareable()))
    for _ in range(before):
        site.does(Server().asks())
    task = DXO(DataKind.WEIGHTS, data=weights()).to_shareable()
    task.set_header("__task_name__", name)
    task.set_header("__task_id__", "another")
    reply = site.does(task)
    assert content(reply) == {}
    assert reply.get_return_code() == ReturnCode.TASK_DATA_FILTER_ERROR
    assert site.app.calls == before


def test_a_run_that_began_with_open_ways_out_is_answered_with_nothing():
    """Filters of a scope hear no events: without the component beside them the run begins
    unwatched.
    """
    site = Site(says(lambda: raw().to_shareable()), scope=site_scope(), filters=[None, None])
    reply = site.does(Server().asks())
    assert content(reply) == {}
    assert reply.get_return_code() == ReturnCode.TASK_DATA_FILTER_ERROR
    assert site.app.calls == 0


@pytest.mark.parametrize("pushed", [True, False])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("missing", [0, 1])
def test_one_filter_without_the_other_lets_nothing_out(missing, early, pushed):
    filters = [PrivateUplink(simulation=True), PrivateUplink(simulation=True)]
    filters[missing] = None
    site = Site(says(lambda: raw().to_shareable()), filters=filters, started=early)
    reply = site.is_pushed(Server().asks()) if pushed else site.does(Server().asks())
    assert content(reply) == {}
    assert reply.get_return_code() != ReturnCode.OK


def test_a_task_that_is_pushed_is_answered_in_the_same_way():
    reply = Site(ANSWERS["headers"]).is_pushed(Server().asks())
    assert release_of(reply)
    assert not [word for word in SECRETS if word in fobs.dumps(reply)]


@pytest.mark.parametrize(
    "chain", [FilterChainType.TASK_DATA_CHAIN, FilterChainType.TASK_RESULT_CHAIN, None]
)
@pytest.mark.parametrize("direction", ["in", "out", None])
def test_other_directions_raise(chain, direction):
    """Swarms and other workflows between clients send tasks out and take results in."""
    site, tool = Site(trained()), PrivateUplink(simulation=True)
    tool.set_prop(FilterContextKey.CHAIN_TYPE, chain)
    context = site.engine.new_context()
    context.set_prop(FLContextKey.FILTER_DIRECTION, direction, private=True, sticky=False)
    if (chain, direction) != (FilterChainType.TASK_DATA_CHAIN, "in"):
        with pytest.raises(Exception, match="nothing is sent"):
            tool.process(raw().to_shareable(), context)


def test_an_engine_that_cannot_be_watched_gets_nothing():
    site = Site(says(lambda: raw().to_shareable()))
    del site.engine.aux_runner
    site.engine.dispatch = None
    context = site.engine.new_context()
    context.set_prop(FLContextKey.FILTER_DIRECTION, "out", private=True, sticky=False)
    with pytest.raises(AttributeError, match="aux_runner"):
        site.runner.task_result_filters["train/out"][0].process(raw().to_shareable(), context)


def leaky(task_name, shareable, fl_ctx):
    """An honest app with components around it that talk: cookies, properties, events, messages."""
    engine = fl_ctx.get_engine()
    shareable.add_cookie("SECRET", SECRET)
    fl_ctx.set_prop("SECRET sticky", SECRET, private=False, sticky=True)
    fl_ctx.set_prop("SECRET", SECRET, private=False, sticky=False)
    event = DXO(DataKind.ANALYTIC, data={"SECRET": SECRET}).to_shareable()

    with engine.new_context() as other:
        other.set_prop(FLContextKey.EVENT_DATA, event, private=True, sticky=False)
        other.set_prop(FLContextKey.EVENT_SCOPE, "federation", private=True, sticky=False)
        engine.fire_event("fed.analytix_log_stats", other)
    engine.send_aux_request(None, "SECRET", Shareable({"SECRET": SECRET}), 1.0, fl_ctx)
    engine.multicast_aux_requests("SECRET", {"server": Shareable({"SECRET": SECRET})}, 1.0, fl_ctx)
    engine.fire_and_forget_aux_request("SECRET", Shareable({"SECRET": SECRET}), fl_ctx)
    engine.send_aux_request(None, "__job_heartbeat__", Shareable(), 0.0, engine.new_context())
    return trained()(task_name, shareable, fl_ctx)


def test_nothing_leaves_beside_the_release():
    site = Site(leaky).starts("_start_run")
    reply = site.does(Server().asks())
    assert release_of(reply)
    assert public_names(reply) == set()
    assert "SECRET sticky" not in site.engine.new_context().get_all_public_props()
    assert [sent["topic"] for sent in site.engine.sent] == ["__job_heartbeat__", "__task_check__"]
    assert reply.get_cookie_jar() == {"contribution_round": 0}
    assert not [word for word in SECRETS if word in fobs.dumps(reply)]


def test_without_the_filter_all_of_it_leaves():
    """The test above can fail."""
    site = Site(leaky, filters=[None, None]).starts("_start_run")
    reply = site.does(Server().asks())
    topics = [sent["topic"] for sent in site.engine.sent]
    assert sorted(topics) == [
        "SECRET",
        "SECRET",
        "SECRET",
        "__job_heartbeat__",
        "__task_check__",
        "fed.event",
    ]
    assert public_names(reply) == {"SECRET", "SECRET sticky"}
    assert "SECRET" in reply.get_cookie_jar()


class Changes(Filter):
    """A job's own filter, after ours."""

    def process(self, shareable, fl_ctx):
        return raw().to_shareable()


def site_scope():
    """A scope like one of `privacy.json`, in a simulation."""
    scope = Scope()
    scope.add_task_data_filter(PrivateUplink(simulation=True), "inout")
    scope.add_task_result_filter(PrivateUplink(simulation=True), "inout")
    return scope


def test_a_sites_filter_and_a_jobs_filter_make_one_release():
    site = Site(trained(), scope=site_scope())
    assert release_of(site.does(Server().asks()))
    assert site.app.calls == 1
    assert site.does(Server().asks())["quietbit"]["noted"]  # the round was answered, once


@pytest.mark.parametrize("both", [True, False])
def test_what_comes_after_the_filter_is_not_sent(both):
    filters = (
        [PrivateUplink(simulation=True), PrivateUplink(simulation=True)] if both else [None, None]
    )
    site = Site(trained(), scope=site_scope(), filters=filters)
    site.engine.add_handler(PrivateUplink(simulation=True))  # as a component
    site.starts()
    site.runner.task_result_filters["train/out"].insert(0, Changes())
    reply = site.does(Server().asks())
    assert release_of(reply)
    assert not [word for word in SECRETS if word in fobs.dumps(reply)]


class Raises(Filter):
    """A job's own filter that fails on what the app answered."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def process(self, shareable, fl_ctx):
        raise self.error


@pytest.mark.parametrize(
    "error", [ValueError("SECRET"), UnsafeJobError("SECRET"), SystemExit("SECRET")]
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_jobs_filter_that_fails_is_not_told_from_one_that_does_not(error, place, tmp_path):
    """Before ours the release is of zero, after ours as it was; neither this task nor the next says
    which.
    """
    site, server = Site(trained(), properties=owned(tmp_path)), Server()
    site.runner.task_result_filters["train/out"].insert(place, Raises(error))
    for number in range(2):
        reply = site.does(server.asks(number=number))
        assert reply.get_return_code() == ReturnCode.OK
        assert release_of(reply)


class Talks(FLComponent):
    """A component of the job that writes into results and contexts after all filters have seen
    them.
    """

    def handle_event(self, event_type, fl_ctx):
        result = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
        if event_type == "_after_task_result_filter" and result is not None:
            result["SECRET"] = raw().to_dict()
            result.set_header("SECRET", SECRET)
            result.set_return_code("SECRET")
            result["quietbit"]["SECRET"] = SECRET
            result["quietbit"]["release"] += b"SECRET"
            fl_ctx.set_prop("SECRET", SECRET, private=False, sticky=False)


def test_an_answer_that_is_changed_afterwards_leaves_as_it_was_written():
    site = Site(trained())
    site.engine.add_handler(Talks())
    reply = site.does(Server().asks())
    assert release_of(reply)
    assert reply.get_return_code() == ReturnCode.OK
    assert public_names(reply) == set()
    assert not [word for word in SECRETS if word in fobs.dumps(reply)]


@pytest.fixture
def quiet(monkeypatch):
    """A site that does not stream its log."""
    monkeypatch.setattr("quietbit.nvflare.client.is_log_streaming_allowed", lambda fl_ctx: False)


@pytest.mark.parametrize("name", ["train", "whatever"])
def test_a_site_holds_every_job_to_its_privacy_json(tmp_path, name):
    """The owner's file, read by NVFlare; the job brings no filter, and a task of any name is
    answered by ours.
    """
    for folder in ("local", "startup"):
        (tmp_path / folder).mkdir()
    path = write_policy(tmp_path, epsilon=100.0)
    (tmp_path / "local" / "privacy.json").write_text(json.dumps(privacy(path)))
    (tmp_path / "local" / "resources.json").write_text(json.dumps({"allow_log_streaming": False}))
    manager = create_privacy_manager(Workspace(str(tmp_path), "site-1"), names_only=False)
    scope, guard = manager.get_scope(""), manager.components["quietbit"]
    site = Site(
        ANSWERS["headers"],
        simulated=False,
        filters=[None, None],
        scope=scope,
        properties=scope.props,
    )
    site.engine.new_context().set_prop(FLContextKey.WORKSPACE_ROOT, str(tmp_path), private=True)
    site.engine.add_handler(guard)
    site.starts()
    reply = site.does(Server().asks(name=name))
    assert release_of(reply)
    assert books(tmp_path).releases == 1
    assert not [word for word in SECRETS if word in fobs.dumps(reply)]


def test_a_site_without_a_policy_releases_nothing_even_if_the_job_calls_it_a_simulation(quiet):
    site = Site(
        trained(),
        simulated=False,
        filters=[PrivateUplink(simulation=True), PrivateUplink(simulation=True)],
    )
    assert "has no policy" in content(site.does(Server().asks()))["quietbit"]["declined"]
    assert site.app.calls == 0


def test_a_site_that_streams_its_log_releases_nothing(tmp_path):
    path = write_policy(tmp_path)
    site = Site(trained(), simulated=False, properties={"quietbit.policy": path})
    said = content(site.does(Server().asks()))["quietbit"]["declined"]
    assert said == Refusal(Reason.UNUSABLE).to_text()
    assert books(tmp_path).releases == 0


def test_a_gatekeeper_answers_for_a_site(quiet, tmp_path):
    policy = Policy.load(write_policy(tmp_path, epsilon=100.0))
    gate = Gatekeeper(
        LocalGate(policy, FileLedger(policy.ledger, policy.counter), {}), tmp_path / "gate"
    )
    thread = threading.Thread(target=gate.serve)
    thread.start()
    try:
        site = Site(
            trained(), simulated=False, properties={"quietbit.gatekeeper": str(tmp_path / "gate")}
        )
        assert release_of(site.does(Server().asks()))
        assert site.does(Server().asks())["quietbit"]["noted"] is True
    finally:
        gate.stop()
        thread.join()
    assert books(tmp_path).releases == 1
    assert (
        "declined" in site.does(Server().asks(number=1))["quietbit"]
    )  # and without it nothing is released
    assert site.app.calls == 1


JUNK = (
    None,
    True,
    -1,
    0,
    1,
    2**63,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "words",
    b"",
    b"words",
    [],
    {},
    {"quietbit": 1},
)


def changed(value, rng):
    """One value somewhere below replaced by junk, or one key lost."""
    if not isinstance(value, dict) or not value or rng.random() < 0.1:
        return JUNK[rng.integers(len(JUNK))]
    key = list(value)[rng.integers(len(value))]
    if rng.random() < 0.1:
        return {name: entry for name, entry in value.items() if name != key}
    return {**value, key: changed(value[key], rng)}


def test_whatever_the_server_asks_the_reply_is_a_release_or_a_refusal():
    """150 requests with something changed: nothing else comes back, and the app runs for releases
    alone.
    """
    rng, server, released = (
        np.random.default_rng(5),
        Server({**CONFIG, "quietbit.releases": 1000}),
        0,
    )
    site = Site(trained())
    for number in range(150):
        task = server.asks(number=number)
        for part in ("quietbit", "DXO"):
            if rng.random() < 0.6:
                task[part] = changed(task[part], rng)
        reply = content(site.does(task))
        assert set(reply) == {"quietbit"}
        assert set(reply["quietbit"]) in ({"release"}, {"declined", "noted"})
        released += "release" in reply["quietbit"]
        assert site.app.calls == released
    assert 15 < released < 100  # both happen


def test_numbers_leave_only_where_they_are_named():
    app = trained(
        initial_metrics={"accuracy": 0.75, "loss": SECRET, "bad": float("nan"), "huge": 10**400}
    )
    site, server = Site(app, metrics=["accuracy", "bad", "missing", "huge"]), Server()
    reply = site.does(server.asks())
    record = content(reply)["quietbit"]
    assert record["metrics"] == {"accuracy": 0.75, "bad": 0.0, "missing": 0.0, "huge": 0.0}
    meta = server.takes(reply)["DXO"]["meta"]
    assert meta["initial_metrics"] == record["metrics"]
    evaluated = Site(
        says(lambda: DXO(DataKind.METRICS, data={"accuracy": 0.5, "loss": SECRET}).to_shareable()),
        metrics=["accuracy"],
        tasks=("train", "validate"),
    )
    task = DXO(DataKind.WEIGHTS, data=weights()).to_shareable()
    task.set_header("__task_name__", "validate")
    found = evaluated.does(task)["DXO"]
    assert (found["kind"], found["data"], found["meta"]) == (
        DataKind.METRICS,
        {"accuracy": 0.5},
        {},
    )


def test_a_model_is_no_number():
    site = Site(says(lambda: raw().to_shareable()), metrics=["weight"], tasks=("submit_model",))
    task = DXO(DataKind.WEIGHTS, data=weights()).to_shareable()
    task.set_header("__task_name__", "submit_model")
    assert site.does(task)["DXO"]["data"] == {"weight": 0.0}


@pytest.mark.parametrize(
    "given", [{"seed": 1}, {"metrics": ["a"]}, {"simulation": 1}, {"simulation": True, "seed": -1}]
)
def test_rules_that_are_none_are_refused(given):
    with pytest.raises(InvalidParameter):
        PrivateUplink(**given)
