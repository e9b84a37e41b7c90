"""Replayed rounds over NVFlare: the model goes down once; whoever lost it gets it whole again, and
is counted.
"""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.fl_constant import FLContextKey
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.workflows.fedavg import FedAvg

from engines.nvflare.kit import JOB, Server, Site, carried, content, owned, release_of, trained
from quietbit.federation.parts.replay import HeldModel
from quietbit.node.refusal import Reason, Refusal
from quietbit.node.stores import ModelFolder
from quietbit.nvflare.client import number_of
from quietbit.nvflare.task import as_kind, kind_of

DIMENSION, KEEP, ROUNDS = 5_000, 64, 5
CONFIG = {
    "quietbit.mechanism": "vmvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 60.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.releases": ROUNDS,
    "quietbit.mechanism.coordinates": KEEP,
    "quietbit.replay": True,
}
NAMES = ("site-1", "site-2")


class Workflow:
    """NVFlare's FedAvg around a server's filters: what it does with a round, in its own words."""

    def __init__(self, config=CONFIG, controller=None, folder=None):
        self.server = Server(config, folder)
        self.controller = FedAvg() if controller is None else controller
        context = self.server.engine.manager.new_context()
        runner = SimpleNamespace(current_wf=SimpleNamespace(controller=self.controller))
        context.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=True)
        rng = np.random.default_rng(1)
        self.model = {
            "weight": rng.normal(size=(DIMENSION // 50, 50)).astype(np.float32),
            "count": np.array(7),
        }

    def round(self, number, sites):
        """Ask, have it answered, average, step; the tasks as they went out, and the replies."""
        tasks, replies, seen = {}, {}, []
        for site in sites:
            tasks[site.name] = self.server.asks(site.name, number, dict(self.model))
            replies[site.name] = site.does(tasks[site.name])
        for name in replies:
            seen.append(self.server.takes(carried(replies[name]), name, number)["DXO"])
        self.server.hears(AppEventType.BEFORE_AGGREGATION)
        shares = [one["meta"]["NUM_STEPS_CURRENT_ROUND"] for one in seen]
        mean = np.average([one["data"]["weight"] for one in seen], axis=0, weights=shares)
        self.model["weight"] = self.model["weight"] + as_kind(
            mean.astype(np.float32), kind_of(self.model)
        )
        learnt = make_model_learnable(self.model, {})
        self.server.hears(AppEventType.AFTER_SHAREABLE_TO_LEARNABLE, global_model=learnt)
        return tasks, replies


def local(**changes):
    return {**CONFIG, "quietbit.local-arrays": "count", **changes}


def sites(tmp_path, app=None):
    found = []
    for name in NAMES:
        (tmp_path / name).mkdir()
        rules = {
            "mechanisms": ("vmvu",),
            "adjacency": "zero-out",
            "models": str(tmp_path / name / "models"),
        }
        found.append(Site(app or trained(), name, properties=owned(tmp_path / name, **rules)))
    return found


def kept(tmp_path, name):
    content = ModelFolder(tmp_path / name / "models")[f"{number_of(JOB)}.model"]
    return HeldModel.from_bytes(content, "count", lambda mean: mean).replica.weights


def test_a_site_that_lost_its_model_says_so_and_gets_it_whole(tmp_path):
    workflow, nodes = Workflow(local(), folder=tmp_path), sites(tmp_path)
    workflow.round(0, nodes)
    store = ModelFolder(tmp_path / "site-1" / "models")
    for name in list(store):
        del store[name]
    tasks, replies = workflow.round(1, nodes)
    assert not tasks["site-1"]["DXO"]["data"]
    assert content(replies["site-1"])["quietbit"] == {
        "declined": Refusal(Reason.NEEDS_MODEL).to_text(),
        "noted": False,
    }
    tasks, replies = workflow.round(2, nodes)
    assert tasks["site-1"]["DXO"]["data"]
    assert not tasks["site-2"]["DXO"]["data"]
    assert release_of(replies["site-1"])
    assert kept(tmp_path, "site-1").tobytes() == kept(tmp_path, "site-2").tobytes()
    found = workflow.server.report(tmp_path)
    assert [entry["resyncs"] for entry in found["rounds"]] == [0, 1, 0]
    assert [node["releases"] for node in found["nodes"]] == [2, 3]


class Median(FedAvg):
    """A workflow with a step of its own."""

    def update_model(self, model, aggr_result):
        return model


@pytest.mark.parametrize(
    "controller", [Median(), FedAvg(exclude_vars="bias"), FedAvg(aggregation_weights={"a": 2.0})]
)
def test_another_workflow_keeps_the_full_model_and_says_so_once(controller, tmp_path, caplog):
    workflow, nodes = Workflow(local(), controller), sites(tmp_path)
    for number in range(2):
        tasks, replies = workflow.round(number, nodes)
        assert all(task["DXO"]["data"] for task in tasks.values())
        assert all(release_of(reply) for reply in replies.values())
    assert caplog.text.count("nodes get the full model in every round") == 1


def test_tensors_are_replayed_as_tensors(tmp_path):
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    seen = []

    def looks(task_name, shareable, fl_ctx):
        seen.append(shareable["DXO"]["data"]["weight"])
        return trained()(task_name, shareable, fl_ctx)

    workflow, nodes = Workflow(local()), sites(tmp_path, looks)
    for name, value in workflow.model.items():
        workflow.model[name] = torch.from_numpy(value)
    for number in range(2):
        workflow.round(number, nodes)
        assert isinstance(seen[-1], torch.Tensor)
        assert isinstance(workflow.model["weight"], torch.Tensor)


def test_a_site_without_a_folder_gets_the_full_model_and_is_not_asked_to_replay_for_ever(tmp_path):
    rules = {"mechanisms": ("vmvu",), "adjacency": "zero-out"}
    workflow, site = (
        Workflow(local(), folder=tmp_path),
        Site(trained(), properties=owned(tmp_path, **rules)),
    )
    whole = [
        bool(workflow.round(number, [site])[0]["site-1"]["DXO"]["data"]) for number in range(5)
    ]
    assert whole == [True, False, True, False, True]
