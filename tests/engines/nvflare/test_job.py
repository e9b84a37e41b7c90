"""Parts of a job that quietbit's filters cannot cover are refused when the job is built, and so is
whatever is added afterwards; filters end up next to the wire.
"""

import json
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.app_common.aggregators.collect_and_assemble_model_aggregator import (
    CollectAndAssembleModelAggregator,
)
from nvflare.app_common.np.np_model_locator import NPModelLocator
from nvflare.app_common.np.recipes.cross_site_eval import NumpyCrossSiteEvalRecipe
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_common.widgets.streaming import AnalyticsReceiver
from nvflare.app_common.workflows.cross_site_model_eval import CrossSiteModelEval
from nvflare.app_common.workflows.cyclic import Cyclic
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.app_common.workflows.statistics_controller import StatisticsController
from nvflare.recipe.utils import add_cross_site_evaluation, set_per_site_config

from engines.nvflare.kit import CONFIG, UPLINK
from quietbit.errors import InvalidParameter
from quietbit.nvflare import PrivateReceiver, PrivateUplink, add_privacy

RECEIVER = "quietbit.nvflare.server.PrivateReceiver"
EVALUATES = {**CONFIG, "quietbit.evaluate": {"epsilon": 0.5, "metric": "accuracy"}}


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A function that makes NVFlare's own recipe of averaging."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text("")

    def made(**more):
        options = {"model": [[0.0, 0.0]], "min_clients": 2, "num_rounds": 1}
        return NumpyFedAvgRecipe(name="job", train_script="client.py", **options, **more)

    return made


class Doer(Executor):
    """An executor of a user."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        raise NotImplementedError


class Plain(Filter):
    """A filter of a user, which knows where it was put."""

    def __init__(self, place: str):
        super().__init__()
        self.place = place

    def process(self, shareable, fl_ctx):
        raise NotImplementedError


class Own(ModelController):
    """A workflow of a user."""

    def run(self):
        raise NotImplementedError


class Shows(AnalyticsReceiver):
    """A receiver of streamed metrics, as those of TensorBoard, MLflow and W&B are."""

    def initialize(self, fl_ctx):
        raise NotImplementedError

    def save(self, fl_ctx, shareable, record_origin):
        raise NotImplementedError

    def finalize(self, fl_ctx):
        raise NotImplementedError


def cross_site(recipe):
    add_cross_site_evaluation(recipe, submit_model_timeout=1)


def final_evaluation(recipe):
    located = recipe._job.to_server(NPModelLocator())
    recipe._job.to_server(CrossSiteModelEval(model_locator_id=located, submit_model_task_name=""))


def to_server(part):
    return lambda recipe: recipe._job.to_server(part())


def to_clients(part, **more):
    return lambda recipe: recipe._job.to_clients(part(), **more)


def streamed(recipe):
    pytest.importorskip("torch")
    recipe.enable_tensor_streaming(format="numpy")


UNCOVERED = {
    "cross-site evaluation": (cross_site, "submit_model_task_name of CrossSiteModelEval"),
    "validation": (final_evaluation, "the task of CrossSiteModelEval"),
    "another training task": (to_server(lambda: FedAvg(task_name="tune")), "the task of FedAvg"),
    "another task of a scatter": (
        to_server(lambda: ScatterAndGather(train_task_name="tune")),
        "the task of ScatterAndGather",
    ),
    "one site after the other": (to_server(Cyclic), "workflow of the job"),
    "statistics": (to_server(lambda: StatisticsController({}, "writer")), "workflow of the job"),
    "models that are not averaged": (
        to_server(lambda: FedAvg(aggregator=CollectAndAssembleModelAggregator("none"))),
        "aggregator of FedAvg",
    ),
    "an executor of other tasks": (
        to_clients(Doer, tasks=["count", "swarm_*"]),
        "the task of Doer",
    ),
    "streamed metrics": (to_server(Shows), "component of the job"),
    "streamed logs": (lambda recipe: recipe.enable_log_streaming(), "component of the job"),
    "streamed tensors": (streamed, "component of the job"),
}


@pytest.mark.parametrize(("add", "name"), UNCOVERED.values(), ids=UNCOVERED)
@pytest.mark.parametrize("added", ["before", "after"])
def test_a_part_that_is_not_covered_is_refused_whenever_it_is_added(make, added, add, name):
    recipe = make()
    recipe._ensure_client_apps_prepared()
    if added == "after":
        add_privacy(recipe, CONFIG)
    add(recipe)
    with pytest.raises(InvalidParameter) as caught:
        add_privacy(recipe, CONFIG) if added == "before" else recipe.export("jobs")
    assert caught.value.name == name
    assert not Path("jobs").exists()
    for app in recipe._job._deploy_map.values():  # a refused call has changed nothing
        assert bool(app.app_config.task_data_filters) is (added == "after")


def test_a_recipe_without_training_is_refused():
    recipe = NumpyCrossSiteEvalRecipe(model_dir="models", model_name={"server": "server.npy"})
    with pytest.raises(InvalidParameter) as caught:
        add_privacy(recipe, CONFIG)
    assert "CrossSiteModelEval" in caught.value.name


def written(side):
    """The chains of filters in a job that was written."""
    (path,) = Path("jobs").rglob(f"config_fed_{side}.json")
    config = json.loads(path.read_text())
    return {name: config[name] for name in ("task_data_filters", "task_result_filters")}


def test_what_is_named_is_covered(make):
    recipe = make()
    final_evaluation(recipe)
    recipe._job.to_server(Own())
    recipe._job.to_server(FedAvg(task_name="tune"))
    add_privacy(recipe, EVALUATES, tasks=("train", "tune"), validations=("validate",))
    recipe.export("jobs")
    for chain in written("server").values():
        assert {"train", "tune", "validate"} == set(chain[0]["tasks"])


@pytest.mark.parametrize("tasks", [(), ("*",), ("train*",), ("",), (5,)])
def test_names_of_tasks_are_no_patterns(make, tasks):
    with pytest.raises(InvalidParameter, match="tasks"):
        add_privacy(make(), CONFIG, tasks=tasks)


def test_a_second_call_is_refused(make):
    recipe = make()
    add_privacy(recipe, CONFIG)
    with pytest.raises(InvalidParameter, match="call add_privacy once"):
        add_privacy(recipe, {**CONFIG, "quietbit.clip": 100.0})


ADD = {
    "server": lambda recipe: recipe.add_server_input_filter(
        PrivateReceiver(dict(CONFIG)), tasks=["train"]
    ),
    "client": lambda recipe: recipe.add_client_output_filter(PrivateUplink(), tasks=["train"]),
}


@pytest.mark.parametrize("add", ADD.values(), ids=ADD)
def test_a_filter_of_ours_beside_the_calls_is_refused(make, add):
    recipe = make()
    add_privacy(recipe, CONFIG)
    add(recipe)
    with pytest.raises(InvalidParameter, match="the number of quietbit's filters"):
        recipe.export("jobs")


def test_a_site_that_comes_later_has_filters_or_the_job_is_not_written(make):
    recipe = make()
    set_per_site_config(recipe, {"site-1": {}, "site-2": {}})
    add_privacy(recipe, CONFIG)
    recipe._job.to(Doer(), "site-3", tasks=["train"])
    with pytest.raises(InvalidParameter, match="filters of site-3"):
        recipe.export("jobs")


SIDES = {"server": ("input", "output"), "client": ("output", "input")}  # of results, of data


@pytest.mark.parametrize("side", SIDES)
def test_filters_of_the_job_stand_inside_quietbits(make, side):
    """Added before the call or after it: what is next to the wire is quietbit's."""
    recipe = make()
    adding = [getattr(recipe, f"add_{side}_{direction}_filter") for direction in SIDES[side]]
    for add in adding:
        add(Plain("before"), tasks=["train"])
    add_privacy(recipe, CONFIG)
    for add in adding:
        add(Plain("after"), tasks=["train"])
    recipe.export("jobs")
    for chain, (entry,) in written(side).items():
        places = [made["args"].get("place") for made in entry["filters"]]
        leaves = (chain == "task_data_filters") is (side == "server")
        assert places == (["before", "after", None] if leaves else [None, "before", "after"])


def test_all_four_filters_are_written_with_what_was_given_and_no_copy_of_quietbit(make):
    recipe = make()
    given = {"simulation": True, "seed": 7, "metrics": ["loss"]}
    add_privacy(recipe, {**CONFIG, "learning-rate": 0.1}, **given)
    recipe.export("jobs")
    for (entry,) in written("client").values():
        (made,) = entry["filters"]
        assert (entry["tasks"], made["path"]) == (["train"], UPLINK)
        assert made["args"] == given
    for (entry,) in written("server").values():
        (made,) = entry["filters"]
        assert (entry["tasks"], made["path"]) == (["train"], RECEIVER)
        # Keys with dots would be read as tables where a server deploys the job.
        assert list(made["args"]["settings"]) == ["quietbit"]
        assert PrivateReceiver(**made["args"])._plan == PrivateReceiver(dict(CONFIG))._plan
    assert not [path for path in Path("jobs").rglob("*") if path.name == "quietbit"]
