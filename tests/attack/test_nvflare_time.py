"""A server of NVFlare that reads the clock: failures, slow apps and slow filters must not show
in when a task ends.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.filter import Filter
from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.utils import fobs

from engines.nvflare.kit import CONFIG, Server, Site, content, public_names, trained, weights
from federation.node.makers import books, write_policy
from quietbit.node.guard import GRAIN

SECONDS = 0.9


def raises(*_):
    raise FloatingPointError("the loss of patient Ada is NaN")


def slowly(seconds, then=None):
    def call(task_name, shareable, fl_ctx):
        time.sleep(seconds)
        return (then or trained())(task_name, shareable, fl_ctx)

    return call


class Dawdles(Filter, FLComponent):
    """A job's filter and component that take longer than there is, after the app."""

    def process(self, shareable, fl_ctx):
        time.sleep(2.0)
        return shareable


APPS = {
    "fails at once": raises,
    "quick": trained(),
    "takes its time": slowly(0.4),
    "fails late": slowly(0.4, raises),
    "overruns": slowly(2.0),
    "returns nothing": lambda *_: None,
    "a slow filter": trained(),
}
FEW = ("fails at once", "overruns", "a slow filter")


@pytest.fixture
def quiet(monkeypatch):
    """A site that does not stream its log."""
    monkeypatch.setattr("quietbit.nvflare.client.is_log_streaming_allowed", lambda fl_ctx: False)


TRIES = 4  # a busy machine may be late; an answer that tells something always is


def told(site, task):
    """Do a task; the reply, and whether the first message after it left at its moment.

    That message (`task_check`) leaves at a multiple of the grain, a fixed time after it began.
    """
    begun = time.time()
    reply = site.does(task)
    (check,) = [sent["moment"] for sent in site.engine.sent if sent["topic"] == "__task_check__"]
    took = check - begun - (SECONDS + GRAIN)
    assert took > -GRAIN
    return reply, check % GRAIN < 0.1 and took < 2 * GRAIN


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("train", APPS),
        ("validate", FEW),
        ("evaluate", FEW),
        pytest.param("validate", APPS, marks=pytest.mark.long),
        pytest.param("evaluate", APPS, marks=pytest.mark.long),
    ],
)
def test_a_task_ends_at_its_moment_whatever_happened_in_it(quiet, tmp_path, name, kinds):
    rules = {"epsilon": 1e4, "response_seconds": SECONDS, "metrics": ("loss",), "evaluate": 100.0}
    config = {**CONFIG, "quietbit.releases": TRIES, "quietbit.evaluate.epsilon": 0.2}
    tasks = ("train", "validate", "evaluate")

    def reply_of(kind):
        home = tmp_path / kind
        home.mkdir()
        properties = {"quietbit.policy": write_policy(home, **rules)}
        server = Server(config, validations=["evaluate"] if name == "evaluate" else ["none"])
        for number in range(TRIES):
            site = Site(APPS[kind], simulated=False, properties=properties, tasks=tasks)
            if kind == "a slow filter":
                site.runner.task_result_filters[f"{name}/out"].insert(0, Dawdles())
            task = server.asks(number=number, name="evaluate" if name == "evaluate" else "train")
            if name == "validate":
                task = DXO(DataKind.WEIGHTS, data=weights()).to_shareable()
                task.set_header("__task_name__", name)
            reply, on_time = told(site, task)
            assert books(home).releases == (0 if name == "validate" else number + 1)
            if on_time:
                return reply
        raise AssertionError(f"{kind}: late in {TRIES} tries")

    with ThreadPoolExecutor(len(kinds)) as pool:  # they wait side by side
        replies = list(pool.map(reply_of, kinds))
    # Whatever happened, the answers look alike: the same fields, headers and sizes.
    assert len({frozenset(content(reply)) for reply in replies}) == 1
    assert len({frozenset(reply["__headers__"]) for reply in replies}) == 1
    assert len({len(fobs.dumps(reply)) for reply in replies}) == 1


def test_an_abandoned_app_has_no_way_into_the_answer(quiet, tmp_path):
    """What an app does to its context after its time goes nowhere, while its answer is on the
    way.
    """
    done = []

    def lingers(task_name, shareable, fl_ctx):
        for _ in range(300):
            fl_ctx.set_prop("SECRET", 12345.6789, private=False, sticky=False)
            fl_ctx.set_prop("SECRET sticky", 12345.6789, private=False, sticky=True)
            time.sleep(0.005)
        done.append(True)

    properties = {"quietbit.policy": write_policy(tmp_path, epsilon=1e4, response_seconds=0.5)}
    site = Site(lingers, simulated=False, properties=properties)
    reply = site.does(Server().asks())
    assert not done
    assert set(content(reply)["quietbit"]) == {"release"}
    assert public_names(reply) == set()
