"""The laws of NVFlare's filters against the real classes, run on arrays."""

from __future__ import annotations

import inspect
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import FilterKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.app_common.ccwf.client_ctl import ClientSideController
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from nvflare.app_common.statistics.min_max_cleanser import AddNoiseToMinMax
from nvflare.private.fed.client.client_runner import TaskRouter

from check.kit import FILTERS, assert_laplace, catches, nvflare_job, reasons, row, verdict
from quietbit.check.nvflare import ROUNDS
from quietbit.target import Adjacency

SIZE = 1_000_000
SVT = {"path": f"{FILTERS}.svt_privacy.SVTPrivacy", "args": {}}
PERCENTILE = {
    "path": f"{FILTERS}.percentile_privacy.PercentilePrivacy",
    "args": {"percentile": 10, "gamma": 0.01},
}


def filtered(member, update, **arrays) -> dict:
    dxo = DXO(DataKind.WEIGHT_DIFF, {"w": update.copy(), **arrays})
    return member.process_dxo(dxo, Shareable(), FLContext()) or dxo


def sparse(folder: Path, dimension: int = SIZE, rounds: int = 1, **arguments):
    member = {**SVT, "args": arguments}
    return row(nvflare_job(folder, member, rounds=rounds), given={"dimension": dimension})


def test_the_sparse_vector_filter_is_the_law(tmp_path):
    law = sparse(tmp_path).release.noise
    answer = filtered(SVTPrivacy(), np.zeros(SIZE))
    noisy = answer.data["w"]
    assert noisy.shape == (SIZE,)
    catches(assert_laplace, noisy[noisy != 0], 2e-5 * law.number / law.epsilon)
    budget = answer.get_meta_prop("svt_privacy_budget")
    assert budget["n_upload"] == law.number
    assert budget["epsilon_release"] == pytest.approx(law.epsilon)
    # With replacement at least 60 % of them are different, which the attack counts on.
    assert 0.6 * law.number < np.count_nonzero(noisy) <= law.number


def test_the_sparse_vector_filter_clips_each_coordinate():
    huge = SVTPrivacy(gamma=1e-3, noise_var=1e9, epsilon=1e3)
    values = filtered(huge, np.full(1000, 5.0)).data["w"]
    assert np.abs(values).max() == pytest.approx(1e-3)


def test_seventy_thousand_of_epsilon_in_a_round(tmp_path):
    """The defaults, on the 7,033,300 parameters of a DenseNet: NVFlare's own log says the same."""
    found = sparse(tmp_path, dimension=7_033_300)
    assert found.zero_out == found.replace_one == math.inf  # no bound for the selection
    assert found.release.noise.epsilon == pytest.approx(70_333)
    assert "70,333" in found.release.why[0].detail
    assert found.release.claim.epsilon == 0.1
    assert reasons(found) == {"SELECTION", "PER_ROUND"}


def test_scalars_pass_the_sparse_vector_filter():
    answer = filtered(SVTPrivacy(), np.zeros(100), scalar=np.array(0.75))
    assert answer.data["scalar"] == 0.75


def test_the_outputs_refute_the_epsilon_that_is_configured(tmp_path):
    found = sparse(tmp_path / "a", dimension=SIZE)
    law = found.release.noise
    for adjacency in Adjacency:
        refuted = found.release.refuted(adjacency, 1e-5)
        assert 10 < refuted < law.epsilon
    # On real outputs: far more are positive than half of them, when every coordinate is at gamma.
    real = filtered(SVTPrivacy(), np.ones(SIZE)).data["w"]
    kept = np.count_nonzero(real)
    assert np.count_nonzero(real > 0) > kept / 2 + 6 * math.sqrt(kept)


def test_a_percentile_is_no_noise(tmp_path):
    update = np.random.default_rng(1).normal(size=1000)
    first = filtered(PercentilePrivacy(), update).data["w"]
    assert np.array_equal(first, filtered(PercentilePrivacy(), update).data["w"])
    assert not np.array_equal(first, filtered(PercentilePrivacy(), update[::-1]).data["w"])
    found = row(nvflare_job(tmp_path, PERCENTILE))
    assert found.zero_out == found.release.refuted(Adjacency.ZERO_OUT, 1e-5) == math.inf
    assert reasons(found) == {"NO_NOISE"}


def test_a_percentile_outside_its_range_filters_nothing():
    update = np.arange(5.0)
    assert np.array_equal(filtered(PercentilePrivacy(gamma=0), update).data["w"], update)


def test_excluded_variables_are_all_that_is_hidden(tmp_path):
    member = {"path": f"{FILTERS}.exclude_vars.ExcludeVars", "args": {"exclude_vars": ["b"]}}
    answer = filtered(ExcludeVars(["b"]), np.arange(3.0), b=np.zeros(1))
    assert list(answer.data) == ["w"]
    assert answer.data["w"].tolist() == [0.0, 1.0, 2.0]
    assert reasons(row(nvflare_job(tmp_path, member))) == {"NO_CLIP", "NO_NOISE"}


def test_noise_of_a_bounded_share_separates_two_minima(tmp_path):
    """From 10 to 30 % of 1 and of 2: no output is possible for both."""
    cleanser = AddNoiseToMinMax(0.1, 0.3)
    values = [
        [cleanser.generate_noise({"min": {"d": {"f": value}}}, "min")["min"]["d"]["f"]]
        for value in (1.0, 2.0)
        for _ in range(200)
    ]
    assert max(values[:200]) < min(values[200:])
    entry = {"id": "n", "path": "nvflare.app_common.statistics.min_max_cleanser.AddNoiseToMinMax"}
    folder = nvflare_job(tmp_path, components=[{**entry, "args": {"min_noise_level": 0.1}}])
    assert row(folder, what="statistics").zero_out == math.inf


LOCAL = {"path": "flip.nvflare.components.LocalDifferentialPrivacy", "args": {}}
LINE = {
    "path": "quietbit.nvflare.LocalPrivacy",
    "args": {"epsilon": 4.0, "clip": 1.0, "releases": 9, "adjacency": "zero-out"},
}


def controlled(kind: str) -> dict:
    """Return the executor of a client-controlled workflow; its tasks may be a pattern."""
    path = f"nvflare.app_common.ccwf.{kind}ClientController"
    return {"tasks": [f"{kind.lower()}_*"], "executor": {"path": path, "args": {}}}


def test_client_controlled_training_passes_no_result_filter():
    """The controller calls the executor itself; what it returns is what it got."""

    class Controller(ClientSideController):
        do_learn_task = start_workflow = None

    controller = Controller("swarm")
    result = Shareable()

    class Trainer:
        def execute(self, *_):
            return result

    controller.learn_executor = Trainer()
    controller.task_result_filters = {"train_/out": [None]}  # would fail if it were called
    assert controller.execute_learn_task(Shareable(), FLContext(), Signal()) is result


def test_tasks_of_filters_are_exact_names():
    """NVFlare looks its filters up by the task's own name, and executors by patterns."""
    task_filters = {"*/out": [ExcludeVars(["w"])]}
    result = DXO(DataKind.WEIGHT_DIFF, {"w": np.ones(1)}).to_shareable()
    for chain, left in ((task_filters, ["w"]), ({"train/out": task_filters["*/out"]}, [])):
        answer = apply_filters(
            "task_result_filters", result, FLContext(), chain, "train", FilterKey.OUT
        )
        assert list(from_shareable(answer).data) == left
    router = TaskRouter()
    router.add_executor(["tr*"], "an executor")
    assert router.route("train") == "an executor"


@pytest.mark.parametrize("kind", [None, "Swarm", "Cyclic"])
@pytest.mark.parametrize("task", ["train", "*", "tr*", "validate"])
def test_a_filter_counts_where_nvflare_applies_it(tmp_path, kind, task):
    executors = [controlled(kind)] if kind else []
    met = task == "train"
    for member, expected in ((LOCAL, met and not kind), (LINE, met)):
        chain = [{"tasks": [task], "filters": [member]}]
        folder = tmp_path / member["path"]
        found = row(nvflare_job(folder, executors=executors, task_result_filters=chain))
        assert (found.zero_out < math.inf) == expected
        assert ("NOT_APPLIED" in reasons(found)) == (not expected)


@pytest.mark.parametrize(
    ("kind", "task"), [("Swarm", "swarm_report_learn_result"), ("Cyclic", "cyclic_learn")]
)
def test_the_task_as_whose_data_an_update_leaves_is_covered(tmp_path, kind, task):
    chain = {"tasks": [task], "direction": "out", "filters": [LOCAL]}
    found = row(
        nvflare_job(tmp_path / "name", executors=[controlled(kind)], task_data_filters=[chain])
    )
    assert found.zero_out < math.inf
    pattern = {**chain, "tasks": [task[:5] + "*"]}
    found = row(
        nvflare_job(tmp_path / "pattern", executors=[controlled(kind)], task_data_filters=[pattern])
    )
    assert reasons(found) == {"NOT_APPLIED"}


def test_the_filter_of_flip_has_a_deviation_of_its_own_sensitivity(tmp_path):
    path = {"path": "flip.nvflare.components.LocalDifferentialPrivacy"}
    found = row(nvflare_job(tmp_path / "a", {**path, "args": {}}))
    assert 1 / found.release.noise.mu == pytest.approx(4.845e-5, rel=1e-3)
    assert reasons(found) == {"SENSITIVITY"}
    off = row(nvflare_job(tmp_path / "b", {**path, "args": {"off": True}}))
    assert reasons(off) == {"SWITCHED_OFF"}


def test_the_best_of_several_filters_counts(tmp_path):
    local = {
        "path": "flip.nvflare.components.LocalDifferentialPrivacy",
        "args": {"sensitivity": 1.0, "epsilon": 0.5},
    }
    found = row(nvflare_job(tmp_path, PERCENTILE, local))
    assert found.zero_out <= 0.5


def test_a_workflow_that_is_not_told_has_as_many_rounds_as_its_class(tmp_path):
    from nvflare.app_common.workflows.cyclic_ctl import CyclicController
    from nvflare.app_common.workflows.fedavg import FedAvg
    from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather

    for kind in (CyclicController, ScatterAndGather, FedAvg):
        usual = [
            inspect.signature(base).parameters["num_rounds"].default
            for base in kind.__mro__
            if "num_rounds" in inspect.signature(base).parameters
        ]
        assert usual[0] == ROUNDS[kind.__name__]
    local = {"path": "flip.nvflare.components.LocalDifferentialPrivacy", "args": {}}
    assert row(nvflare_job(tmp_path, local, rounds=None)).release.times == 5


def test_a_recipe_that_was_exported_proves_its_budget(tmp_path):
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe

    from quietbit.nvflare import add_privacy

    (tmp_path / "train.py").write_text("import nvflare.client as flare\n")
    recipe = NumpyFedAvgRecipe(
        name="digits",
        model=[[0.0] * 5] * 2,
        min_clients=2,
        num_rounds=5,
        train_script=str(tmp_path / "train.py"),
    )
    settings = {
        "quietbit.mechanism": "imvu",
        "quietbit.clip": 0.5,
        "quietbit.epsilon": 20.0,
        "quietbit.adjacency": "zero-out",
        "quietbit.releases": 5,
    }
    add_privacy(recipe, settings, simulation=True)
    recipe.export(str(tmp_path / "job"))
    found = verdict(tmp_path / "job" / "digits")
    assert 19 < found.proven <= 20.0
    assert found.holds


@pytest.mark.parametrize("ending", ["json", "conf", "yml"])
def test_configurations_are_read_in_three_formats(tmp_path, ending):
    texts = {
        "json": '{"workflows": [{"path": "a.B", "args": {"num_rounds": 7}}]}',
        "conf": "workflows = [\n{\n path = a.B\n args { num_rounds = 7 }\n}\n] # comment\n",
        "yml": "workflows:\n- path: a.B\n  args:\n    num_rounds: 7\n",
    }
    local = {"path": "flip.nvflare.components.LocalDifferentialPrivacy", "args": {}}
    folder = nvflare_job(tmp_path, local, rounds=None)
    (folder / "app/config/config_fed_server.json").unlink()
    (folder / f"app/config/config_fed_server.{ending}").write_text(texts[ending])
    assert row(folder).release.times == 7
