"""The client's filter with NVFlare's own runner around it: one release leaves, whatever happens,
and nothing else.
"""

import json
import threading
from functools import cache

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.apis.workspace import Workspace
from nvflare.fuel.utils import fobs
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.privacy_manager import Scope

from engines.nvflare.kit import (
    CONFIG,
    FAILED,
    LEARNT,
    NEARLY_EXACT,
    SECRET,
    Server,
    Site,
    content,
    flat,
    marked,
    owned,
    privacy,
    public_names,
    raw,
    release_of,
    says,
    secrets_in,
    trained,
    weights,
)
from federation.node.makers import books, write_policy
from quietbit.errors import InvalidParameter
from quietbit.node.gate import LocalGate
from quietbit.node.gatekeeper import Gatekeeper
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import Policy
from quietbit.node.refusal import Reason, Refusal
from quietbit.nvflare import PrivateUplink

ANSWERS = LEARNT | FAILED


@cache
def zero_reply():
    """What a site of seed 7 answers whose app has learnt nothing."""
    return Site(trained(0.0), seed=7).does(Server().asks())


@pytest.mark.filterwarnings("ignore:.*protect nobody")
@pytest.mark.parametrize("name", ANSWERS)
def test_whatever_the_app_answers_one_release_leaves(name, tmp_path):
    """Of what it learnt, or bit for bit that of zero; nothing else tells one from the other."""
    site = Site(ANSWERS[name], properties=owned(tmp_path, seed=7))
    reply = site.does(Server().asks())
    assert site.app.calls == 1
    assert reply.get_return_code() == ReturnCode.OK
    assert (release_of(reply) == release_of(zero_reply())) is (name in FAILED)
    assert set(reply["__headers__"]) == set(zero_reply()["__headers__"])
    assert public_names(reply) == set()
    assert len(fobs.dumps(reply)) == len(fobs.dumps(zero_reply()))
    assert not secrets_in(reply)


CRASHES = {
    "value error": "ValueError: SECRET 12345.6789",
    "none": "The app answered with no result.",
    "other names": "The trained arrays must have the names of the received ones",
}


@pytest.mark.parametrize(("name", "said"), CRASHES.items())
def test_a_simulated_site_says_why_its_app_crashed(name, said, tmp_path, caplog):
    """It belongs to whoever runs the simulation; with an owner's policy it says nothing."""
    server = Server(folder=tmp_path)
    reply = Site(ANSWERS[name]).does(server.asks())
    assert said in content(reply)["quietbit"]["crashed"]
    server.takes(reply)
    with caplog.at_level("INFO"):
        server.report(tmp_path)
    assert said in caplog.text


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
    # Noise of 0.02 in each of 42 places: 0.025 is 8 deviations of the mean, a false alarm below
    # 1e-14.
    assert np.abs(flat(seen["data"]).mean() - 0.05) < 0.025


QUESTIONS = {
    "no request": lambda task: task.pop("quietbit"),
    "another thing": lambda task: task.update(quietbit=5),
    "no settings": lambda task: task["quietbit"].pop("settings"),
    "nothing asked": lambda task: task["quietbit"].pop("request"),
    "weights of words": lambda task: task["DXO"]["data"].update(bias="words"),
    "infinite weights": lambda task: task["DXO"]["data"]["bias"].fill(np.inf),
    "no weights": lambda task: task.pop("DXO"),
    "another kind": lambda task: task["DXO"].update(kind=DataKind.WEIGHT_DIFF),
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


def task_of(name):
    """A task that carries no request."""
    task = DXO(DataKind.WEIGHTS, data=weights()).to_shareable()
    task.set_header("__task_name__", name)
    task.set_header("__task_id__", "another")
    return task


def assert_not_run(site, reply, before=0):
    assert content(reply) == {}
    assert reply.get_return_code() == ReturnCode.TASK_DATA_FILTER_ERROR
    assert site.app.calls == before


@pytest.mark.parametrize("before", [0, 1])
def test_a_task_that_no_filter_is_registered_for_is_not_run(before):
    site = Site(says(raw))
    for _ in range(before):
        site.does(Server().asks())
    assert_not_run(site, site.does(task_of("submit_model")), before)


def test_a_run_that_began_with_open_ways_out_is_answered_with_nothing():
    """Filters of a scope hear no events: without the component beside them the run begins
    unwatched.
    """
    site = Site(says(raw), scope=site_scope(), filters=[None, None])
    assert_not_run(site, site.does(Server().asks()))


@pytest.mark.parametrize("pushed", [True, False])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("missing", [0, 1])
def test_one_filter_without_the_other_lets_nothing_out(missing, early, pushed):
    filters = [PrivateUplink(simulation=True), PrivateUplink(simulation=True)]
    filters[missing] = None
    site = Site(says(raw), filters=filters, started=early)
    reply = site.is_pushed(Server().asks()) if pushed else site.does(Server().asks())
    assert content(reply) == {}
    assert reply.get_return_code() != ReturnCode.OK


def test_a_task_that_is_pushed_is_answered_in_the_same_way():
    reply = Site(ANSWERS["headers"]).is_pushed(Server().asks())
    assert release_of(reply)
    assert not secrets_in(reply)


@pytest.mark.parametrize(
    ("chain", "direction"),
    [
        (FilterChainType.TASK_DATA_CHAIN, "out"),
        (FilterChainType.TASK_RESULT_CHAIN, "in"),
        (FilterChainType.TASK_RESULT_CHAIN, None),
        (None, "out"),
    ],
)
def test_other_directions_raise(chain, direction):
    """Swarms and other workflows between clients send tasks out and take results in."""
    site, tool = Site(trained()), PrivateUplink(simulation=True)
    tool.set_prop(FilterContextKey.CHAIN_TYPE, chain)
    context = site.engine.new_context()
    context.set_prop(FLContextKey.FILTER_DIRECTION, direction, private=True, sticky=False)
    with pytest.raises(Exception, match="nothing is sent"):
        tool.process(raw(), context)


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
    assert not secrets_in(reply)


def test_without_the_filter_all_of_it_leaves():
    """The test above can fail."""
    site = Site(leaky, filters=[None, None]).starts("_start_run")
    reply = site.does(Server().asks())
    topics = sorted(sent["topic"] for sent in site.engine.sent)
    assert topics == ["SECRET"] * 3 + ["__job_heartbeat__", "__task_check__", "fed.event"]
    assert public_names(reply) == {"SECRET", "SECRET sticky"}
    assert "SECRET" in reply.get_cookie_jar()


class Changes(Filter):
    """A job's own filter, after ours."""

    def process(self, shareable, fl_ctx):
        return raw()


def site_scope():
    """A scope like one of `privacy.json`, in a simulation."""
    scope = Scope()
    scope.add_task_data_filter(PrivateUplink(simulation=True), "inout")
    scope.add_task_result_filter(PrivateUplink(simulation=True), "inout")
    return scope


@pytest.mark.parametrize("changes", [True, False])
@pytest.mark.parametrize("both", [True, False])
def test_a_sites_filter_and_a_jobs_filter_make_one_release(both, changes):
    """And what comes after them is not sent."""
    filters = None if both else [None, None]
    site = Site(trained(), scope=site_scope(), filters=filters)
    site.engine.add_handler(PrivateUplink(simulation=True))  # as a component
    site.starts()
    if changes:
        site.runner.task_result_filters["train/out"].insert(0, Changes())
    reply = site.does(Server().asks())
    assert release_of(reply)
    assert not secrets_in(reply)
    assert site.app.calls == 1
    assert site.does(Server().asks())["quietbit"]["noted"]  # the round was answered, once


class Raises(Filter):
    """A job's own filter that fails on what the app answered."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def process(self, shareable, fl_ctx):
        raise self.error


@pytest.mark.parametrize("error", [ValueError("SECRET"), SystemExit("SECRET")])
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
            marked(result, "SECRET")
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
    assert not secrets_in(reply)


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
    options = {"simulated": False, "filters": [None, None], "scope": scope}
    site = Site(ANSWERS["headers"], properties=scope.props, **options)
    site.engine.new_context().set_prop(FLContextKey.WORKSPACE_ROOT, str(tmp_path), private=True)
    site.engine.add_handler(guard)
    site.starts()
    reply = site.does(Server().asks(name=name))
    assert release_of(reply)
    assert books(tmp_path).releases == 1
    assert not secrets_in(reply)


@pytest.fixture
def quiet(monkeypatch):
    """A site that does not stream its log."""
    monkeypatch.setattr("quietbit.nvflare.client.is_log_streaming_allowed", lambda fl_ctx: False)


def test_a_site_without_a_policy_releases_nothing_even_if_the_job_calls_it_a_simulation(quiet):
    filters = [PrivateUplink(simulation=True), PrivateUplink(simulation=True)]
    site = Site(trained(), simulated=False, filters=filters)
    assert "has no policy" in content(site.does(Server().asks()))["quietbit"]["declined"]
    assert site.app.calls == 0


def test_a_site_that_streams_its_log_releases_nothing(tmp_path):
    site = Site(trained(), simulated=False, properties=owned(tmp_path))
    said = content(site.does(Server().asks()))["quietbit"]["declined"]
    assert said == Refusal(Reason.UNUSABLE).to_text()
    assert books(tmp_path).releases == 0


def test_a_gatekeeper_answers_for_a_site(quiet, tmp_path):
    policy = Policy.load(write_policy(tmp_path, epsilon=100.0))
    local = LocalGate(policy, FileLedger(policy.ledger, policy.counter), {})
    gate = Gatekeeper(local, tmp_path / "gate")
    thread = threading.Thread(target=gate.serve)
    thread.start()
    owner = {"quietbit.gatekeeper": str(tmp_path / "gate")}
    try:
        site = Site(trained(), simulated=False, properties=owner)
        assert release_of(site.does(Server().asks()))
        assert site.does(Server().asks())["quietbit"]["noted"] is True
    finally:
        gate.stop()
        thread.join()
    assert books(tmp_path).releases == 1
    # Without it nothing is released.
    assert "declined" in site.does(Server().asks(number=1))["quietbit"]
    assert site.app.calls == 1


JUNK = (None, True, -1, 2**63, 1e308, float("nan"), "", b"words", [], {}, {"quietbit": 1})


def changed(value, rng):
    """One value somewhere below replaced by junk, or one key lost."""
    if not isinstance(value, dict) or not value or rng.random() < 0.1:
        return JUNK[rng.integers(len(JUNK))]
    key = list(value)[rng.integers(len(value))]
    if rng.random() < 0.1:
        return {name: entry for name, entry in value.items() if name != key}
    return {**value, key: changed(value[key], rng)}


def test_whatever_the_server_asks_the_reply_is_a_release_or_a_refusal():
    """100 requests with something changed: nothing else comes back, and the app runs for releases
    alone.
    """
    rng = np.random.default_rng(5)
    server = Server({**CONFIG, "quietbit.releases": 1000})
    site = Site(trained())
    released = 0
    for number in range(100):
        task = server.asks(number=number)
        for part in ("quietbit", "DXO"):
            if rng.random() < 0.6:
                task[part] = changed(task[part], rng)
        reply = content(site.does(task))
        assert set(reply) == {"quietbit"}
        assert set(reply["quietbit"]) in ({"release"}, {"declined", "noted"})
        released += "release" in reply["quietbit"]
        assert site.app.calls == released
    assert 10 < released < 70  # both happen


def test_numbers_leave_only_where_they_are_named():
    """Beside a release; what is no number is 0."""
    metrics = {"accuracy": 0.75, "loss": SECRET, "bad": float("nan"), "huge": 10**400}
    site = Site(trained(initial_metrics=metrics), metrics=["accuracy", "bad", "missing", "huge"])
    server = Server()
    reply = site.does(server.asks())
    told = {"accuracy": 0.75, "bad": 0.0, "missing": 0.0, "huge": 0.0}
    assert content(reply)["quietbit"]["metrics"] == told
    assert server.takes(reply)["DXO"]["meta"]["initial_metrics"] == told


METRICS = {"accuracy": 0.5, "loss": SECRET}


@pytest.mark.parametrize(
    ("name", "app", "told"),
    [
        ("accuracy", says(lambda: DXO(DataKind.METRICS, data=METRICS).to_shareable()), 0.5),
        ("weight", says(raw), 0.0),  # a model is no number
    ],
)
def test_a_task_without_a_request_is_answered_with_the_named_numbers(name, app, told):
    site = Site(app, metrics=[name], tasks=("validate",))
    found = site.does(task_of("validate"))["DXO"]
    assert (found["kind"], found["data"], found["meta"]) == (DataKind.METRICS, {name: told}, {})


@pytest.mark.parametrize(
    "given", [{"seed": 1}, {"metrics": ["a"]}, {"simulation": 1}, {"simulation": True, "seed": -1}]
)
def test_rules_that_are_none_are_refused(given):
    with pytest.raises(InvalidParameter):
        PrivateUplink(**given)
