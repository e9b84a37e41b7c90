"""`LocalPrivacy` in jobs of NVFlare's own, in its simulator: the model is the honest one under a
huge epsilon and noise under a small one, and every site's table says what its ledger says.
"""

import csv
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quietbit.node.budget import account_of
from quietbit.node.ledger import FileLedger
from quietbit.target import Adjacency, Target

pytest.importorskip("nvflare", reason="needs the nvflare extra")
torch = pytest.importorskip("torch", reason="needs quietbit-lab: pip install ./packages/lab")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    " " in sys.prefix, reason="NVFlare's simulator starts no site from a path with a space"
)
RELEASES, DELTA = 2, 1e-5
HUGE, SMALL = 1e9, 4.0
STEP = 0.125  # of a site, times its number: sums of it are exact

MODEL = """
import torch


class Model(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        with torch.no_grad():
            for part in self.parameters():
                part.zero_()
"""

JOB = """
import sys

from model import Model
from nvflare.app_common.ccwf.ccwf_job import CCWFJob, CyclicClientConfig, CyclicServerConfig
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import (
    FullModelShareableGenerator,
)
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.app_opt.pt.file_model_persistor import PTFileModelPersistor
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.app_opt.pt.recipes.swarm import SwarmLearningRecipe
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner
from nvflare.recipe import SimEnv
from nvflare.recipe.spec import Recipe

from quietbit.nvflare import LocalPrivacy

workspace, workflow, epsilon = sys.argv[1], sys.argv[2], float(sys.argv[3])
RELEASES, SITES = 2, 2
script = {"numpy": "numbers_site.py", "lightning": "lightning_site.py"}.get(workflow, "site.py")


def cyclic():
    job = CCWFJob("line", min_clients=SITES)
    job.add_cyclic(
        CyclicServerConfig(num_rounds=RELEASES),
        CyclicClientConfig(
            ScriptRunner(script=script, framework=FrameworkType.PYTORCH),
            PTFileModelPersistor(model=Model()),
            FullModelShareableGenerator(),
        ),
    )
    return Recipe(job)


if workflow.startswith("swarm"):
    recipe = SwarmLearningRecipe(
        name="line", model=Model(), min_clients=SITES, num_rounds=RELEASES, train_script=script,
        key_metric=None, launch_external_process=workflow.endswith("external"),
        command=sys.executable + " -u",
    )
elif workflow == "cyclic":
    recipe = cyclic()
elif workflow == "numpy":
    recipe = NumpyFedAvgRecipe(
        name="line", model=[[0.0] * 4] * 2, min_clients=SITES, num_rounds=RELEASES,
        train_script=script,
    )
else:
    recipe = FedAvgRecipe(
        name="line", model=Model(), min_clients=SITES, num_rounds=RELEASES, train_script=script,
        launch_external_process=workflow == "external", command=sys.executable + " -u",
    )
recipe.add_client_file("model.py")
line = LocalPrivacy(epsilon=epsilon, clip=10.0, releases=RELEASES, adjacency="zero-out")
recipe.add_client_output_filter(line, tasks=["train"])
recipe.execute(SimEnv(num_clients=SITES, workspace_root=workspace))
"""

SITE = """
import nvflare.client as flare
from nvflare.client.tracking import SummaryWriter

flare.init()
writer = SummaryWriter()
step = 0.125 * int(flare.get_site_name().rpartition("-")[2])
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    writer.add_scalar("secret", 417.25, 1)
    params = {name: value + step for name, value in received.params.items()}
    flare.send(flare.FLModel(params=params, metrics={"accuracy": 417.25}))
"""

NUMBERS_SITE = SITE

LIGHTNING_SITE = """
import nvflare.client.lightning as flare
import pytorch_lightning as lightning
import torch
from model import Model


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, 3))
        self.bias = torch.nn.Parameter(torch.zeros(2))

    def training_step(self, batch, at):
        site = int(flare.get_site_name().rpartition("-")[2])
        return -0.125 * site * (self.weight.sum() + self.bias.sum())

    def validation_step(self, batch, at):
        self.log("secret", 417.25)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def main():
    model = Lit()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    flare.patch(trainer)
    batches = torch.utils.data.DataLoader(torch.zeros(1, 1))
    while flare.is_running():
        flare.receive()
        trainer.validate(model, batches, verbose=False)
        trainer.fit(model, batches)


main()
"""


def simulated(folder, workflow, epsilon):
    """Run a job; its final model as one vector."""
    modules = {
        "job": JOB,
        "model": MODEL,
        "site": SITE,
        "numbers_site": NUMBERS_SITE,
        "lightning_site": LIGHTNING_SITE,
    }
    folder.mkdir()
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder), *sys.path]),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    result = subprocess.run(
        [sys.executable, "job.py", str(folder), workflow, str(epsilon)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    found = [*(folder / "line").rglob("FL_global_model.pt"), *(folder / "line").rglob("server.npy")]
    assert found, "the job has no model at its end"
    models = [vector_of(path) for path in found]
    for model in models[1:]:
        np.testing.assert_array_equal(model, models[0])
    return models[0]


def vector_of(path):
    if path.suffix == ".npy":
        return np.load(path).reshape(-1)
    model = torch.load(path, weights_only=False)["model"]
    return np.concatenate([np.asarray(part).reshape(-1) for part in model.values()])


def check_ledgers(folder, epsilon):
    """Every site's table ends with the account of its ledger, within the budget."""
    for site in ("site-1", "site-2"):
        home = folder / "line" / site
        ledger = FileLedger(home / "quietbit" / "ledger", home / "quietbit" / "counter").read()
        assert ledger.releases == RELEASES
        account = account_of(ledger, Target(epsilon, DELTA, Adjacency.ZERO_OUT), 0)
        (table,) = home.rglob("quietbit-epsilon.csv")
        with table.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert [row["release"] for row in rows] == ["1", "2"]
        assert float(rows[-1]["epsilon"]) == pytest.approx(account.epsilon(), rel=1e-6)
        assert float(rows[-1]["epsilon"]) <= epsilon


def expected(workflow):
    """Of two rounds: sums of both sites' steps one after the other, or means of them."""
    a_round = STEP * 3 if workflow == "cyclic" else STEP * 1.5
    return RELEASES * a_round


WORKFLOWS = ["swarm", "swarm-external", "torch", "numpy", "cyclic", "external", "lightning"]


def long(workflow):
    """The swarm's first run represents the others in `make test`."""
    return pytest.param(workflow, marks=pytest.mark.long)


def needs(workflow):
    if workflow == "lightning" and importlib.util.find_spec("pytorch_lightning") is None:
        pytest.skip("needs pytorch-lightning")


@pytest.mark.parametrize("workflow", ["swarm", *map(long, WORKFLOWS[1:])])
@pytest.mark.slow
def test_under_a_huge_epsilon_any_workflow_ends_with_the_honest_model(tmp_path, workflow):
    needs(workflow)
    model = simulated(tmp_path / workflow, workflow, HUGE)
    np.testing.assert_allclose(model, expected(workflow), atol=0.02)
    check_ledgers(tmp_path / workflow, HUGE)


@pytest.mark.parametrize("workflow", [*map(long, WORKFLOWS)])
def test_under_a_small_one_it_ends_with_noise_and_nothing_else_leaves(tmp_path, workflow):
    needs(workflow)
    model = simulated(tmp_path / workflow, workflow, SMALL)
    # sigma of a coordinate is above 5, and eight of them are within 0.3 of the honest ones with a
    # probability below (2 * 0.3 * 0.08) ** 8 = 3e-11
    assert np.abs(model - expected(workflow)).max() > 0.3
    check_ledgers(tmp_path / workflow, SMALL)
    server = (tmp_path / workflow / "line" / "server").rglob("*")
    told = b"".join(path.read_bytes() for path in server if path.suffix not in ("", ".py"))
    assert b"417.25" not in told
    assert np.float32(417.25).tobytes() not in told
