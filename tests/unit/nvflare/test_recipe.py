"""`add_privacy` on NVFlare's own recipe: what stands in the job that it writes."""

import json

import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe

from quietbit.errors import InvalidParameter
from quietbit.nvflare import PrivateReceiver, add_privacy
from unit.nvflare.kit import CONFIG

SCRIPT = "import nvflare.client as flare\nflare.init()\n"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text(SCRIPT)
    return NumpyFedAvgRecipe(name="job", model=[[0.0, 0.0]], min_clients=2, num_rounds=1, train_script="client.py")


def test_all_four_filters_are_registered_and_no_copy_of_quietbit_is_carried(recipe, tmp_path):
    add_privacy(recipe, {**CONFIG, "learning-rate": 0.1}, simulation=True, seed=7, metrics=["loss"])
    recipe.export(str(tmp_path / "jobs"))
    written = {path.name: json.loads(path.read_text()) for path in (tmp_path / "jobs").rglob("config_fed_*.json")}
    for side, name in (("server", "PrivateReceiver"), ("client", "PrivateUplink")):
        for chain in ("task_data_filters", "task_result_filters"):
            (entry,) = written[f"config_fed_{side}.json"][chain]
            (made,) = entry["filters"]
            assert (entry["tasks"], made["path"]) == (["train"], f"quietbit.nvflare.{side}.{name}")
            if side == "server":
                # Keys with dots would be read as tables where a server deploys the job: there are none.
                ((word, table),) = made["args"]["settings"].items()
                assert word == "quietbit"
                assert {f"quietbit.{key}": value for key, value in table.items()}.items() >= CONFIG.items()
                assert PrivateReceiver(**made["args"])._settings == PrivateReceiver(dict(CONFIG))._settings
            else:
                wanted = {"simulation": True, "seed": 7, "metrics": ["loss"]}
                assert {key: made["args"][key] for key in wanted} == wanted
    assert not [path for path in (tmp_path / "jobs").rglob("*") if path.name == "quietbit"]


@pytest.mark.parametrize("tasks", [(), ("*",), ("train*",), ("",), (5,)])
def test_patterns_are_refused(recipe, tasks):
    with pytest.raises(InvalidParameter, match="tasks"):
        add_privacy(recipe, CONFIG, tasks=tasks)


def test_masked_sums_are_refused(recipe):
    sums = {"trust": "secure-aggregation", "threshold": 2, "server": "honest-but-curious"}
    with pytest.raises(InvalidParameter, match="sees every release"):
        add_privacy(recipe, CONFIG | {f"quietbit.{key}": value for key, value in sums.items()})
