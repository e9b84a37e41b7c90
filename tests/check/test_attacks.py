"""Jobs that a careless or a hostile author could write: nothing may be proved that does not hold.

Each is a job that looks private beside what must be said of it: no guarantee, a value that is
missing, a refusal, or an epsilon of at least a number. Those of ``FOUND`` were believed once.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from check.kit import verdict, write
from cli.kit import shell
from quietbit.errors import QuietbitError
from quietbit.target import Adjacency

NONE, OPEN, REFUSED, FAILS = "no guarantee", "missing", "refused", "does not hold"
START = "\nstrategy.start(grid=g, initial_arrays=a, num_rounds=1)\n"
FLWR = "from flwr.clientapp import ClientApp\nfrom flwr.clientapp.mod import *\n"
FLWR += "from flwr.serverapp.strategy import *\n"
MOD = "LocalDpMod(1.0, 1.0, 0.5, 1e-5)"
APP = f"app = ClientApp(mods=[{MOD}])\n"
CENTRAL = (
    "{before}strategy = DifferentialPrivacy{side}SideFixedClipping({strategy}, noise_multiplier={z},"
    " clipping_norm=1.0, num_sampled_clients=10{more})\n"
)
ACCOUNTED = ", accountant=RdpAccountant(c)"
CLIPPED = "app = ClientApp(mods=[fixedclipping_mod])\n"
OPACUS = (
    "import torch\nfrom opacus import PrivacyEngine\nfrom torch.utils.data import DataLoader\n{before}"
    "loader = DataLoader(data, {loader})\nengine = PrivacyEngine({engine})\n"
    "engine.{call}(module=m, optimizer=o, data_loader=loader, max_grad_norm=1.0, {arguments})\n{after}"
)
EVENTS = "import dp_accounting\nfrom dp_accounting import *\n"


def flower(*code: str, config: str = "") -> dict[str, str]:
    text = FLWR + "\n".join(code) + ("" if ".start(" in "".join(code) else START)
    return {"pyproject.toml": config, "app.py": text}


def central(
    before: str = "",
    side: str = "Server",
    strategy: str = "FedAvg()",
    z: Any = 2.0,
    more: str = ACCOUNTED,
) -> str:
    return CENTRAL.format(before=before, side=side, strategy=strategy, z=z, more=more)


def opacus(
    arguments: str = "noise_multiplier=1.0",
    before: str = "",
    after: str = "train(epochs=1)\n",
    loader: str = "batch_size=64",
    engine: str = "",
    call: str = "make_private",
) -> dict[str, str]:
    values = {"arguments": arguments, "before": before, "after": after}
    return {"train.py": OPACUS.format(**values, loader=loader, engine=engine, call=call)}


LINE = {"epsilon": 4.0, "clip": 1.0, "releases": 5, "adjacency": "zero-out"}
LOCAL = {"path": "quietbit.nvflare.LocalPrivacy", "args": LINE}
FLIP = {
    "path": "flip.nvflare.components.LocalDifferentialPrivacy",
    "args": {"sensitivity": 1.0, "epsilon": 0.5},
}
FEDAVG = {"path": "nvflare.app_common.workflows.fedavg.FedAvg", "args": {"num_rounds": 1}}


def nvflare(
    *filters: dict[str, Any], workflows: Any = (FEDAVG,), site: str = "", **client: Any
) -> dict[str, str]:
    chain = [{"tasks": ["train"], "filters": list(filters)}] if filters else []
    table = {"format_version": 2, "task_result_filters": chain, **client}
    return {
        f"{site}config_fed_client.json": json.dumps(table),
        f"{site}config_fed_server.json": json.dumps({"workflows": list(workflows)}),
    }


RECIPE = "from quietbit.nvflare import LocalPrivacy\nrecipe = FedAvgRecipe(num_rounds=1)\n"
PRIVATE = "LocalPrivacy(epsilon=4.0, clip=1.0, releases=5, adjacency='zero-out')"
PYPROJECT = '[tool.flwr.app.components]\nclientapp = "{client}:app"\nserverapp = "server:app"\n'
TWICE = 4.9  # epsilon of two Gaussian events of multiplier 1 is about 5.4

FOUND: dict[str, tuple[dict[str, str], Any]] = {
    # Flower: which class it is
    "a local class with the mod's name": (flower("class LocalDpMod:\n  pass\n", APP), NONE),
    "a function with the mod's name": (flower("def LocalDpMod(*a): pass\n", APP), NONE),
    "a mod of another package": (flower("from evil import LocalDpMod\n", APP), NONE),
    "another class under the mod's name": (
        flower("from evil import Nothing as LocalDpMod\n", APP),
        NONE,
    ),
    "a mod that is bound anew": (flower("LocalDpMod = quiet(LocalDpMod)\n", APP), NONE),
    # Flower: whether the mod is applied
    "a mod beside an app with other mods": (
        flower(f"mod = {MOD}", "app = ClientApp(mods=[secaggplus_mod])"),
        NONE,
    ),
    "a mod that is imported and not used": (
        flower(
            "from flwr.clientapp.mod import fixedclipping_mod\napp = ClientApp()\n",
            central(side="Client"),
        ),
        NONE,
    ),
    "a mod that changes updates after the clip": (
        flower("app = ClientApp(mods=[scale_mod, fixedclipping_mod])\n", central(side="Client")),
        NONE,
    ),
    "a second app without mods": (flower(APP, "plain = ClientApp()"), NONE),
    "a plain app that is an argument of something": (
        flower(f"plain = ClientApp()\napp = ClientApp(mods=[{MOD}], client_fn=plain)"),
        NONE,
    ),
    "two apps on one line": (flower("a = ClientApp(); " + APP), NONE),
    "a second training function without mods": (
        flower(
            f"app = ClientApp()\n@app.train(mods=[{MOD}])\ndef f(m, c): pass\n"
            "@app.train('tune')\ndef g(m, c): pass\n"
        ),
        NONE,
    ),
    "mods that are cleared": (
        flower(f"mods = [{MOD}]\nmods.clear()\napp = ClientApp(mods=mods)"),
        NONE,
    ),
    "a private app that the project does not name": (
        {
            "pyproject.toml": PYPROJECT.format(client="plain"),
            "plain.py": FLWR + "app = ClientApp()\n",
            "private.py": FLWR + APP,
            "server.py": "app = ServerApp()" + START,
        },
        NONE,
    ),
    "a private app of ours that the project does not name": (
        {
            "pyproject.toml": PYPROJECT.format(client="plain"),
            "plain.py": FLWR + "app = ClientApp()\n",
            "private.py": "from quietbit.flower import PrivateClientApp\n"
            "app = PrivateClientApp(epsilon=1.0, clip=1.0, releases=1, adjacency='zero-out')\n",
            "server.py": "app = ServerApp()" + START,
        },
        NONE,
    ),
    "a client without an app beside an app of ours": (
        flower(
            "a = PrivateClientApp(epsilon=1.0, clip=1.0, releases=1, adjacency='zero-out')\n"
            "start_client(client=c)"
        ),
        NONE,
    ),
    "an answer to a query": (flower(APP, "@app.query()\ndef f(m, c): pass\n"), NONE),
    "a switch that is off": (
        flower(
            "def make(context):\n  if context.run_config['dp']:\n    return "
            f"ClientApp(mods=[{MOD}])\n  return ClientApp()\napp = make(c)\n",
            config="[tool.flwr.app.config]\ndp = false\n",
        ),
        NONE,
    ),
    "a branch that is never taken": (
        flower(f"if False:\n  app = ClientApp(mods=[{MOD}])\nelse:\n  app = ClientApp()\n"),
        NONE,
    ),
    # Flower: what the noise is for
    "noise for a mean on FedAdam": (flower(central(strategy="FedAdam()", more="")), NONE),
    "noise for a mean on FedMedian": (flower(central(strategy="FedMedian()", more="")), NONE),
    "noise for a mean on Krum": (flower(central(strategy="Krum()", more="")), NONE),
    "noise for a mean on a strategy of its own": (
        flower("class Mine(FedAvg): pass\n", central(strategy="Mine()", more="")),
        NONE,
    ),
    "the plain strategy is started": (
        flower(
            "plain = FedAvg()\n",
            central(strategy="plain").replace("strategy = ", "private = "),
            "plain.start(grid=g, initial_arrays=a, num_rounds=1)",
        ),
        NONE,
    ),
    "a plain strategy on another branch": (
        flower(f"if fast:\n  strategy = FedAvg()\nelse:\n  {central()}"),
        NONE,
    ),
    "equal weights in evaluation alone": (
        flower(
            "MetricRecord({'num-examples': 1})\nm['num-examples'] = len(data)\n", central(more="")
        ),
        24.0,
    ),
    "weights of another key": (
        flower(
            "MetricRecord({'num-examples': 1})\n",
            central(strategy="FedAvg(weighted_by_key='rows')", more=""),
        ),
        24.0,
    ),
    "more sampled clients than FedAvg asks": (
        flower(
            "MetricRecord({'num-examples': 1})\n",
            central(strategy="FedAvg(fraction_train=0.1, min_train_nodes=1)", more=""),
        ),
        24.0,
    ),
    "an accountant that may be None": (
        flower(
            "MetricRecord({'num-examples': 2})\n",
            central(more=", accountant=make() if audit else None"),
        ),
        OPEN,
    ),
    "noise below the rounding of floats": (
        flower("app = ClientApp(mods=[LocalDpMod(1.0, 1e-9, 9.0, 1e-5)])"),
        NONE,
    ),
    "central noise below the rounding of floats": (flower(central(z=1e-9)), NONE),
    "counters of BatchNorm leave as they are": (
        flower("net = torch.nn.BatchNorm2d(3)\n", APP),
        NONE,
    ),
    # Flower: values and how often
    "noise that is set after construction": (
        flower(central(), "strategy.noise_multiplier = 0.01"),
        OPEN,
    ),
    "noise that is set by name": (
        flower(central(), "setattr(strategy, 'noise_multiplier', 0.01)"),
        OPEN,
    ),
    "a configuration that is changed": (
        flower(
            "def f(context):\n  context.run_config['z'] = 0.1\n  z = context.run_config['z']\n  "
            + central(z="z"),
            config="[tool.flwr.app.config]\nz = 2.0\n",
        ),
        OPEN,
    ),
    "a table in a table that is changed": (
        flower("s = {'a': {'z': 2.0}}\ns['a']['z'] = 0.1\n", central(z="s['a']['z']")),
        OPEN,
    ),
    "a table that is changed under another name": (
        flower("s = {'z': 2.0}\nt = s\nt['z'] = 0.1\n", central(z="s['z']")),
        OPEN,
    ),
    "a module's value under the name of a variable": (
        {**flower("config = load()\n", central(z="config.Z")), "config.py": "Z = 2.0\n"},
        OPEN,
    ),
    "rounds by position": (
        flower(
            APP,
            "strategy.start(grid, arrays, 50)",
            config="[tool.flwr.app.config]\nnum-server-rounds = 1\n",
        ),
        3.0,
    ),
    "three rounds that nobody wrote": (
        flower(
            APP,
            "strategy.start(grid=g, initial_arrays=a)",
            config="[tool.flwr.app.config]\nnum-server-rounds = 1\n",
        ),
        0.6,
    ),
    "two runs after each other": (flower(APP + START + START), 0.5),
    "a run in a loop": (
        flower(
            APP, "for seed in range(9):\n  strategy.start(grid=g, initial_arrays=a, num_rounds=1)"
        ),
        OPEN,
    ),
    "two apps with one name for their values": (
        {
            **flower(central(z="context.run_config['z']")),
            "a/pyproject.toml": "[tool.flwr.app.config]\nz = 0.1\n",
            "b/pyproject.toml": "[tool.flwr.app.config]\nz = 2.0\n",
        },
        REFUSED,
    ),
    "a numpy seed": (flower("import numpy as np\nnp.random.seed(42)\n", APP), NONE),
    "a seed of everything on the server": (flower("seed_everything(42)\n", central()), NONE),
    # NVFlare
    "a class of its own with a known name": (
        nvflare({**LOCAL, "path": "custom.dp.LocalPrivacy"}),
        NONE,
    ),
    "a filter for one of two tasks": (
        nvflare(
            FLIP,
            workflows=[FEDAVG, {**FEDAVG, "args": {"num_rounds": 1, "task_name": "tune"}}],
        ),
        NONE,
    ),
    "two workflows after each other": (nvflare(FLIP, workflows=[FEDAVG, FEDAVG]), 0.5),
    "a workflow of its own beside FedAvg": (
        nvflare(FLIP, workflows=[FEDAVG, {"path": "my.Flow"}]),
        OPEN,
    ),
    "a plain site beside a private recipe": (
        {
            **nvflare(),
            "job.py": "add_privacy(recipe, {'quietbit.mechanism': 'gaussian', 'quietbit.clip': 1.0, "
            "'quietbit.epsilon': 4.0, 'quietbit.adjacency': 'zero-out', 'quietbit.releases': 5})",
        },
        NONE,
    ),
    "a private server with plain sites": (
        nvflare(
            workflows=[
                FEDAVG,
                {
                    "path": "quietbit.nvflare.server.PrivateReceiver",
                    "args": {
                        "num_rounds": 1,
                        "settings": {
                            "quietbit": {
                                "mechanism": "gaussian",
                                "clip": 1.0,
                                "epsilon": 4.0,
                                "adjacency": "zero-out",
                                "releases": 5,
                            }
                        },
                    },
                },
            ]
        ),
        NONE,
    ),
    "a filter of a recipe that is not added": ({"job.py": RECIPE + f"f = {PRIVATE}\n"}, NONE),
    "a filter of a recipe for no task": (
        {"job.py": RECIPE + f"recipe.add_client_output_filter({PRIVATE})\n"},
        NONE,
    ),
    "a filter of a job for what comes in": (
        {"job.py": RECIPE + f"job.to_clients({PRIVATE}, filter_type=FilterType.TASK_DATA)\n"},
        NONE,
    ),
    # Opacus
    "noise that decays": (opacus(after="train(epochs=1)\nExponentialNoise(o, gamma=0.9)\n"), NONE),
    "noise that is set in a loop": (
        opacus(after="train(epochs=1)\nfor i in x:\n  optimizer.noise_multiplier = 0.1\n"),
        OPEN,
    ),
    "a seed of torch": (opacus(before="torch.manual_seed(0)\n"), NONE),
    "the accountant by position": (
        opacus(
            "target_epsilon=1.0, target_delta=1e-5, epochs=1",
            engine="'gdp'",
            call="make_private_with_epsilon",
        ),
        1.01,
    ),
    "an accountant that is computed": (
        opacus(
            "target_epsilon=1.0, target_delta=1e-5, epochs=1",
            engine="accountant=args.a",
            call="make_private_with_epsilon",
        ),
        OPEN,
    ),
    "an accountant that is swapped": (
        opacus(
            "target_epsilon=1.0, target_delta=1e-5, epochs=1",
            before="engine.accountant = GaussianAccountant()\n",
            call="make_private_with_epsilon",
        ),
        OPEN,
    ),
    "epochs that are known once and computed once": (
        opacus(after="train(epochs=1)\ntrain(epochs=args.epochs)\n"),
        OPEN,
    ),
    "a batch of one test loader": (
        opacus(loader="args.batch", after="train(epochs=1)\nDataLoader(test, batch_size=1)\n"),
        OPEN,
    ),
    "the last batch is dropped": (opacus(loader="batch_size=4000, drop_last=True"), 4.37),
    "two engines on the same data": (
        opacus(
            loader="batch_size=6400",
            after="train(epochs=1)\nengine.make_private(module=n, data_loader=loader, noise_multiplier=1.0)\n",
        ),
        TWICE + 3,
    ),
    "a package that is not Opacus": (
        {"t.py": opacus()["train.py"].replace("from opacus", "from mine")},
        NONE,
    ),
    # dp_accounting
    "a list of events": (
        {"e.py": EVENTS + "ComposedDpEvent([GaussianDpEvent(1.0), GaussianDpEvent(1.0)])"},
        TWICE,
    ),
    "an event that has no noise in a list": (
        {"e.py": EVENTS + "ComposedDpEvent([GaussianDpEvent(1.0), NonPrivateDpEvent()])"},
        NONE,
    ),
    "a Laplace event beside": (
        {"e.py": EVENTS + "GaussianDpEvent(1.0)\nLaplaceDpEvent(0.1)"},
        NONE,
    ),
    "an accountant that counts": ({"e.py": EVENTS + "a.compose(GaussianDpEvent(1.0), 100)"}, 70.0),
    "an accountant in a loop": (
        {"e.py": EVENTS + "e = GaussianDpEvent(1.0)\nfor i in range(9):\n  a.compose(e)"},
        OPEN,
    ),
    "an event that is computed": (
        {"e.py": EVENTS + "GaussianDpEvent(9.0)\na.compose(make())"},
        NONE,
    ),
    "batches that may have a sample twice": (
        {"e.py": EVENTS + "SampledWithReplacementDpEvent(10, 10, GaussianDpEvent(1.0))"},
        NONE,
    ),
    "two events one after the other": (
        {"e.py": EVENTS + "GaussianDpEvent(1.0)\nGaussianDpEvent(1.0)"},
        TWICE,
    ),
    # claims
    "a strict claim after a lax one": (
        {
            **opacus(),
            **flower(
                "app = ClientApp(mods=[LocalDpMod(1.0, 1.0, 50.0, 1e-5), LocalDpMod(1.0, 1.0, 0.01, 1e-5)])"
            ),
        },
        FAILS,
    ),
}


def local(*numbers: Any) -> dict[str, str]:
    return flower(f"app = ClientApp(mods=[LocalDpMod({', '.join(map(str, numbers))})])")


# Tried as well, and never believed.
HELD: dict[str, tuple[dict[str, str], Any]] = {
    "epsilon infinite": (local(1.0, 1.0, "1e999", 1e-5), REFUSED),
    "epsilon negative": (local(1.0, 1.0, -1.0, 1e-5), REFUSED),
    "clip infinite": (local("1e999", 1.0, 0.5, 1e-5), REFUSED),
    "clip huge": (local(1e300, 1.0, 0.5, 1e-5), REFUSED),
    "clip not a number": (local("float('nan')", 1.0, 0.5, 1e-5), REFUSED),
    "sensitivity of zero": (local(1.0, 0.0, 0.5, 1e-5), NONE),
    "sensitivity below the clip": (local(1.0, 0.001, 0.5, 1e-5), 5e3),
    "delta of zero": (local(1.0, 1.0, 0.5, 0.0), REFUSED),
    "delta of one": (local(1.0, 1.0, 0.5, 1.0), REFUSED),
    "the mod of a subclass": (
        flower("class Mine(LocalDpMod): pass\napp = ClientApp(mods=[Mine(1, 1, 1, 1e-5)])"),
        NONE,
    ),
    "mods that are computed": (flower("app = ClientApp(mods=make())"), NONE),
    "a list of noise multipliers": (flower(central(z=[1.0, 2.0])), REFUSED),
    "a word for a number": (flower(central(z="'2.0'")), REFUSED),
    "no noise": (flower(central(z=0.0)), NONE),
    "negative noise": (flower(central(z=-1.0)), REFUSED),
    "masks alone": (flower("w = SecAggPlusWorkflow(3, 2)"), NONE),
    "a filter for every task": (
        nvflare(task_result_filters=[{"tasks": ["*"], "filters": [FLIP]}]),
        NONE,
    ),
    "a filter of what comes in": (
        nvflare(task_result_filters=[{"tasks": ["train"], "direction": "in", "filters": [FLIP]}]),
        NONE,
    ),
    "a filter of data": (
        nvflare(task_data_filters=[{"tasks": ["train"], "filters": [FLIP]}]),
        NONE,
    ),
    "a filter that is off": (nvflare({**FLIP, "args": {"off": True}}), NONE),
    "percentiles, excluded variables and encryption": (
        nvflare({"path": "nvflare.x.PercentilePrivacy"}, {"path": "nvflare.x.HEModelEncryptor"}),
        NONE,
    ),
    "two jobs, of which one is private": ({**nvflare(FLIP, site="a/"), **nvflare(site="b/")}, NONE),
    "a budget in a subclass of ours": (
        flower("class Mine(PrivateClientApp): pass\napp = Mine(epsilon=1.0, clip=1.0, releases=1)"),
        NONE,
    ),
    "no Poisson batches": (opacus("noise_multiplier=1.0, poisson_sampling=False"), 4.3),
    "noise of a generator": (opacus("noise_multiplier=1.0, noise_generator=g"), NONE),
    "another clipping": (opacus("noise_multiplier=1.0, clipping='adaptive'"), NONE),
    "a rate above one": (
        {"e.py": EVENTS + "PoissonSampledDpEvent(1.5, GaussianDpEvent(1.0))"},
        4.3,
    ),
    "no events": ({"e.py": EVENTS + "SelfComposedDpEvent(GaussianDpEvent(1.0), 0)"}, REFUSED),
    "events of a negative count": (
        {"e.py": EVENTS + "SelfComposedDpEvent(GaussianDpEvent(1.0), -3)"},
        REFUSED,
    ),
    "a sample of a list without an account": (
        {
            "e.py": EVENTS
            + "PoissonSampledDpEvent(0.01, SelfComposedDpEvent(GaussianDpEvent(1.0), 9))"
        },
        NONE,
    ),
}


def outcome(folder: Path) -> Any:
    """Return what is said of everything but metrics: no guarantee, missing, refused, or epsilon."""
    try:
        found = verdict(folder, given={"samples": 6400}, accepted=["metrics"])
    except QuietbitError:
        return REFUSED
    if found.missing:
        return OPEN
    if found.proven == math.inf:
        return NONE
    return (
        FAILS
        if found.claim is not None and found.holds is False and found.claim.epsilon < 0.1
        else found.proven
    )


@pytest.mark.parametrize(("files", "expected"), (FOUND | HELD).values(), ids=FOUND | HELD)
def test_nothing_is_proved_that_does_not_hold(tmp_path, files, expected):
    found = outcome(write(tmp_path, files))
    if isinstance(expected, float):
        assert found == NONE or found >= expected
    else:
        assert found == expected


def test_a_workflow_of_ones_own_is_relied_on(tmp_path):
    """It may send other tasks, which the filter does not meet."""
    flow = {"path": "my.Flow", "args": {"num_rounds": 1}}
    found = verdict(write(tmp_path, nvflare(FLIP, workflows=[flow])))
    assert "no other task of my.Flow that trains" in found.releases[0].needs


@pytest.mark.parametrize(
    ("head", "need"), [("if fast():", "the condition at app.py"), ("def f():", "a call of f")]
)
def test_what_must_be_true_for_a_call_is_relied_on(tmp_path, head, need):
    found = verdict(write(tmp_path, flower(f"{APP}{head}\n  {APP.replace('0.5', '9.0')}")))
    assert need in " ".join(found.releases[0].needs)


@pytest.mark.parametrize(
    "name", ["noise for a mean on Krum", "a seed of torch", "noise that decays"]
)
def test_what_is_not_tried_is_not_refuted_either(tmp_path, name):
    found = verdict(write(tmp_path, FOUND[name][0]), given={"samples": 6400})
    assert found.releases[0].refuted(Adjacency.ZERO_OUT, 1e-5) == 0.0


@pytest.mark.parametrize(
    "words",
    [
        ["--max-epsilon", "inf"],
        ["--max-epsilon", "nan"],
        ["--delta", "0"],
        ["--delta", "1"],
        ["--delta", "nan"],
        ["--set", "noise_multiplier=NaN"],
        ["--set", "noise_multiplier=-1"],
        ["--set", "clipping_norm=1e9"],
        ["--rounds", "0"],
    ],
    ids=" ".join,
)
def test_options_prove_nothing_either(tmp_path, capsys, words):
    found = flower(central(z="args.z"))
    code = shell(capsys, "check", write(tmp_path, found), "--accept", "metrics", *words).code
    assert code == 2
